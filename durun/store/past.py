"""What a run was when it last entered a state, and what was begun since."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from durun.errors import NotPossible
from durun.machine import rewind
from durun.machine.events import Rewind
from durun.machine.model import Checkpoint, StateRow
from durun.machine.scope import without_once
from durun.plan.canonical import Plan
from durun.plan.units import show_moment
from durun.store import read
from durun.store.file import File, each, rows
from durun.store.runs import Store, value_of
from durun.values import NamedTuple

Json = Any
_built: dict[tuple[str, int, int], rewind.Then] = {}  # the last that was asked for
MAY_HAVE_HAPPENED = ("done", "not_certain", "in_doubt")


class Since(NamedTuple):
    """An effect begun since that has happened, or may have, or is to be undone all the same. `undo`: the status of its undo."""

    no: int
    scope: str
    state: str
    visit: int
    status: str
    undo: str | None


def rewinding(
    store: Store, no: int, plan: Plan, at: Checkpoint, state: str, by: str, before: int | None = None
) -> tuple[Rewind, list[Since]]:
    """The event that leads back to a state, and the effects since. `before`: the row of history, where it is known already.

    Raises NotPossible where the run has never been there, or not under this plan.
    """
    id = at.run.id
    if before is None:
        before = _entered(store.file, no, state)
        known = at.states.get(("", state))
        if before is None and not (known is not None and known.visits):  # a migration may have given it another name
            been = dict.fromkeys(e["state"] for e in read.history(store.file, no, 0, ("entered",)) if e["scope"] == "")
            raise NotPossible(f"run {id} has never been in {state!r}; it has been in {', '.join(been)}; nothing was changed")
        if state not in plan["states"]:
            raise NotPossible(
                f"run {id} was in {state} under another plan, and the one it has now has no such state; nothing was changed"
            )
        if before is None or any(read.history(store.file, no, before, ("migrated",))):
            once = "" if at.run.status == "failed" else "once it has failed, "
            raise NotPossible(
                f"run {id} was in {state} under another plan: {once}`durun resume {id} --from {state}`; nothing was changed"
            )
    then = _then(store.file, no, before)
    found = _effects(store, no, rewind.since(read.history(store.file, no, before - 1, ("entered",))))
    ended = ((name, how) for name, how in then.ended.items() if name in plan["states"] and name != state)  # that is entered anew
    made = [_row(store, no, plan, at, name, how) for name, how in ended]
    effects = tuple(e.no for e in found)
    return Rewind(state, before, then.vars, then.error, tuple(made), effects, by=by), found


def _entered(file: File, no: int, state: str) -> int | None:
    """The row of history with which the run itself last entered a state."""
    sql = "SELECT no FROM history WHERE run = ? AND kind = 'entered' AND scope = '' AND state = ? ORDER BY no DESC LIMIT 1"
    found = rows(file.db, sql, (no, state))
    return found[0][0] if found else None


def _then(file: File, no: int, before: int) -> rewind.Then:
    """Its data before a row of history. What was before a row never changes, so it is built once, however often it is asked for."""
    of = (file.path, no, before)
    if of not in _built:
        _built.clear()
        _built[of] = rewind.folded(_leading_to(file, no, before))
    return _built[of]


def _leading_to(file: File, no: int, before: int) -> Iterator[Json]:
    """The rows of history that made its data what it was before a row, some read at a time."""
    for after, until in rewind.stretches(list(read.history(file, no, 0, ("rewound",))), before):
        yield from takewhile(lambda e: e["no"] < until, read.history(file, no, after, rewind.FOLDED))  # noqa: B023  (used at once)


def _effects(store: Store, no: int, places: set[tuple[str, str, int]]) -> list[Since]:
    sql = (
        "SELECT e.no, scope, state, visit, e.status, u.status FROM effects e LEFT JOIN undos u ON u.run = e.run AND u.effect = e.no"
        " WHERE e.run = ? AND kind IN ('run', 'http', 'once') ORDER BY e.no"
    )
    found = (Since(*row) for row in each(store.file.db, sql, (no,)))  # of a million few are since then
    return [e for e in found if (e.scope, without_once(e.state), e.visit) in places and _counts(e)]


def _counts(e: Since) -> bool:
    return e.undo in ("owed", "failed") or (e.status in MAY_HAVE_HAPPENED and e.undo != "undone")


def _row(store: Store, no: int, plan: Plan, at: Checkpoint, name: str, how: Json) -> StateRow:
    """What was remembered of a state then. Raises NotPossible where what it gave is not kept."""
    now = at.states.get(("", name))
    if now is not None and now.visits == how["visit"] and now.ended:
        return now
    if how.get("error") is not None:
        return StateRow("", name, ended=True, error=how["error"], exit=how["error"].get("exit"))
    if how.get("effect") is not None:
        effect = store.effect(store.file.db, no, how["effect"])
        if plan["states"][name].get("background"):  # it was left to be delivered: how that went is not its own
            return StateRow("", name, 0, True, effect=effect.no)
        return StateRow("", name, 0, True, effect.output, effect.no, effect.has_output, exit=effect.exit)
    kind = plan["states"][name]["kind"]
    then = (no, how.get("name", name), how["visit"])
    if kind == "approval":
        sql = "SELECT answer, data, by, note, at FROM answers WHERE run = ? AND scope = '' AND state = ? AND visit = ?"
        for answer, data, by, note, given in rows(store.file.db, sql, then):
            words = {"answer": answer, "data": value_of(data), "by": by, "note": note, "at": show_moment(given)}
            return StateRow("", name, 0, True, words, has_output=True)
    if kind == "wait":
        sql = "SELECT payload FROM signals WHERE run = ? AND scope = '' AND state = ? AND visit = ?"
        sent = rows(store.file.db, sql, then)
        return StateRow("", name, 0, True, value_of(sent[0][0]) if sent else None, has_output=bool(sent) and sent[0][0] != "null")
    if kind in ("parallel", "map", "plan"):
        said = f"what {name} gave in its visit {how['visit']} is not kept, as it was entered again since"
        raise NotPossible(f"run {at.run.id}: {said}: go back further, to {name} itself; nothing was changed")
    return StateRow("", name, 0, True)


def undelivered(store: Store, no: int) -> int:
    """How many messages of a run are left to be delivered."""
    sql = "SELECT count(*) FROM messages WHERE run = ? AND ordered AND status IN ('waiting', 'sending', 'dead')"
    return int(rows(store.file.db, sql, (no,))[0][0])

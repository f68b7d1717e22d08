"""Back to a visited state of the run itself, with its data as it was then.

Rules:
- data as it was then is built from the history: the vars that each row changed, and the effect whose output a state had; visits are
  never counted back, so what comes after has new keys
- what was begun since stays in the log of effects, and is undone first where a person wants that: only that, the youngest first;
  what was not begun yet never will be
- nothing goes back over a move to another plan, nor over a point of no return where it is to be undone
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from durun.errors import NotPossible
from durun.machine import clock, fan, undo
from durun.machine.draft import Draft
from durun.machine.events import Rewind
from durun.machine.model import TERMINAL, Phase, Position, StateRow, Status
from durun.values import NamedTuple

Json = Any


class Then(NamedTuple):
    """What is known of the data before a row of the history."""

    vars: Json
    error: Json
    ended: dict[
        str, Json
    ]  # state -> {visit, effect, error, name (it had then)} as it had ended last, and was not entered anew since


FOLDED = ("started", "entered", "left", "caught", "failed", "migrated", "assigned")  # the kinds that change data


def stretches(rewound: list[Json], before: int) -> list[tuple[int, int]]:
    """The stretches of the history (after, before) that lead to a row, in order: what was gone back over is in none. `rewound`:
    the rows that say so, in order."""
    found: list[tuple[int, int]] = []
    while True:
        back = next((e for e in reversed(rewound) if e["no"] < before), None)
        found.insert(0, (0 if back is None else back["no"], before))
        if back is None:
            return found
        before = back["data"]["before"]


def folded(rows: Iterable[Json]) -> Then:
    """Data after these rows of the history, which are those of all its stretches in order; one by one, however many they are."""
    then = Then({}, None, {})
    for e in rows:
        if e["scope"] == "":
            then = _after(then, e)
    return then


def as_it_was(history: list[Json], before: int) -> Then:
    """Data before the row with this number, built from the rows before it."""
    found = stretches([e for e in history if e["kind"] == "rewound"], before)
    return folded(e for after, until in found for e in history if after < e["no"] < until)


def _after(then: Then, e: Json) -> Then:
    data, state, ended = e["data"], e["state"], then.ended
    vars = {**then.vars, **data.get("vars", {})}
    match e["kind"]:
        case "started":
            return then._replace(vars=data.get("vars", {}))
        case "entered":
            return then._replace(ended={name: how for name, how in ended.items() if name != state})
        case "left":
            how = {"visit": e["visit"], "effect": data.get("effect"), "name": state}
            return then._replace(vars=vars, ended={**ended, state: how})
        case "caught":
            gone = {**ended, state: {"visit": e["visit"], "error": data["error"]}}
            return then._replace(vars=vars, error=data["error"], ended=gone)
        case "failed" if state is not None:
            return then._replace(error=data.get("error"), ended={**ended, state: {"visit": e["visit"], "error": data.get("error")}})
        case "migrated":
            names = data.get("map", {})
            kept = {name: value for name, value in vars.items() if name not in data.get("dropped", [])}
            return then._replace(vars=kept, ended={names.get(name, name): how for name, how in ended.items()})
        case "assigned":
            return then._replace(vars=vars)
    return then


def since(rows: Iterable[Json]) -> set[tuple[str, str, int]]:
    """(scope, state, visit) of all that was entered in these rows of the history."""
    return {(e["scope"], e["state"], e["visit"]) for e in rows if e["kind"] == "entered"}


# --- to go back ---


def wanted(d: Draft, event: Rewind) -> None:
    """A person wants the run back at a state: at once, or once what was done since is undone."""
    run = d.run
    if run.status in (Status.CANCELLED, Status.COMPENSATED):
        raise NotPossible(f"run {run.id} has ended: it is {run.status}; nothing was changed")
    if event.undo:
        undo.turns_back(run, force=False)
    if run.status is Status.PAUSED:
        d.set_run(status=Status.RUNNING, paused_at=None)
    if not event.undo:
        return back(d, event)
    undo.begin(d, event.by)
    assert d.run.undoing is not None
    to = {"state": event.state, "before": event.before, "effects": list(event.effects), "by": event.by}
    d.set_run(undoing={**d.run.undoing, "rewind": to})


def back(d: Draft, event: Rewind) -> None:
    """The run stands before that state again; what it begins there waits for whoever drives on."""
    d.moment = d.moment._replace(place=None)
    for p in d.positions():
        fan.withdraw(d, p)
    fan.let_go_of_all(d)
    ended = d.run.status in TERMINAL
    d.set_run(
        status=Status.RUNNING, reason=None, vars=event.vars, error=event.error, ended_by=None, ended_at=None, output=None,
        has_output=False, cancel=None, undoing=None, drift=None, updated_at=d.moment.now,
    )  # fmt: skip
    if ended:
        clock.fresh(d)
    kept = {row.state: row for row in event.rows}
    for scope, name in list(d.at.states):
        if not scope:
            now = d.row("", name)
            was = kept.get(name, StateRow("", name))
            d.put_row(was._replace(visits=now.visits, peak=now.peak))
    d.tell("rewound", None, None, by=event.by, to=event.state, before=event.before, vars=event.vars)
    d.put(Position("", event.state, d.row("", event.state).visits, Phase.READY, target=event.state, entered_at=d.moment.now))
    d.go("", event.state)

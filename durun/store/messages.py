"""Messages in the file: who may deliver which, claimed under a lock and a fence, and what became of it. No decisions.

A message is claimed by the place of a process whose lock is held while it lives; nothing takes a claim away from a process that
lives, however long it stands still. Each claim raises the fence of the message, and what became of it is written with that fence.
They touch rows of messages, effects and undos, never a position, so they clash with no move of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from durun.machine.events import Moment
from durun.machine.message import AS_IT_WAS, Step, known_undo, limit_of, taken_back
from durun.machine.model import Effect, Message, Move
from durun.plan.digest import canonical_text
from durun.store.file import File, rows
from durun.store.read import OVER
from durun.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.machine.limits import Limit

Json = Any
OPEN = "status IN ('waiting', 'sending', 'dead')"  # as the index of open messages says it
FIRST = "SELECT min(effect) FROM messages m WHERE m.run = messages.run AND m.ordered AND m.status IN ('waiting', 'sending', 'dead')"
HEAD = f"effect = ({FIRST})"
COLUMNS = "effect, status, ordered, due, data"
PLAIN = ("effect", "status", "ordered", "due")
USUAL = Message(0)
UPSERT = (
    "INSERT INTO messages (run, effect, status, ordered, due, data) VALUES (?,?,?,?,?,?) ON CONFLICT (run, effect) DO UPDATE"
    " SET status=excluded.status, due=excluded.due, data=excluded.data"
)
# a key of durun's own that stands in the text of the request is the same wherever the far side sees it; no other text is like it
SAME_KEY = "CASE WHEN key <> ?1 AND key GLOB '????????-????-5???-????-????????????' THEN replace(request, key, ?1) ELSE request END"
RESULT = (
    f"UPDATE effects SET request = {SAME_KEY}, key = ?1, status = ?2, attempt = ?3, boot = ?4, place = ?5, first_at = ?6,"
    " ended_at = ?7, exit = ?8, error = ?9 WHERE run = ?10 AND no = ?11"
)


class Claimed(NamedTuple):
    """A message that this process delivers. `before`: who claimed it and died, where somebody did."""

    run: int
    message: Message
    effect: Effect
    fence: int
    before: str | None = None


class Lost(Exception):
    """Somebody else has claimed it since, or a person has said what becomes of it: nothing was changed."""


def write(db: apsw.Connection, run: int, move: Move) -> None:
    """What a move leaves to be delivered, and what it withdraws."""
    for message in move.messages.values():
        db.execute(UPSERT, (run, *row(message)))
    if move.withdraw:
        _with_their_keys(db, run)
        waits = "SELECT effect FROM messages WHERE run = ? AND ordered AND status = 'waiting'"
        db.execute(f"UPDATE effects SET status = 'withdrawn' WHERE run = ? AND status = 'waiting' AND no IN ({waits})", (run, run))
        _undos_of_withdrawn(db, run)
        db.execute("UPDATE messages SET status = 'withdrawn', due = NULL WHERE run = ? AND ordered AND status = 'waiting'", (run,))


def _with_their_keys(db: apsw.Connection, run: int) -> None:
    """Those that wait with a new key, and will not be delivered, as they were with the one before."""
    found = rows(
        db,
        f"SELECT {', '.join(f'e.{name}' for name in AS_IT_WAS)}, {', '.join('m.' + name for name in COLUMNS.split(', '))}"
        " FROM messages m CROSS JOIN effects e ON e.run = m.run AND e.no = m.effect"
        " WHERE m.run = ? AND m.ordered AND m.status = 'waiting' AND m.data ->> 'earlier' IS NOT NULL",
        (run,),
    )
    import json

    for some in found:
        so, m = dict(zip(AS_IT_WAS, some, strict=False)), of_row(some[len(AS_IT_WAS) :])
        so["error"] = None if so["error"] is None else json.loads(so["error"])
        m, e = taken_back(m, Effect(m.effect, "", "", 0, "", request=None, **so))
        _put(db, run, m, e)


def _put(db: apsw.Connection, run: int, m: Message, e: Effect) -> None:
    error = None if e.error is None else canonical_text(e.error)
    db.execute(UPSERT, (run, *row(m)))
    how = (e.key, e.status, e.attempt, e.boot, e.place, e.first_at, e.ended_at, e.exit, error)
    db.execute(RESULT, (*how, run, e.no))


def _undos_of_withdrawn(db: apsw.Connection, run: int) -> None:
    """What becomes of the undos of those that wait and will not be delivered; an attempt may have been made of some."""
    found = rows(
        db,
        f"SELECT e.status, {', '.join('m.' + name for name in COLUMNS.split(', '))} FROM undos u"
        " JOIN messages m ON m.run = u.run AND m.effect = u.effect CROSS JOIN effects e ON e.run = u.run AND e.no = u.effect"
        " WHERE u.run = ? AND u.status = 'registered' AND m.ordered AND m.status = 'waiting'",
        (run,),
    )
    for how, *plain in found:
        m = of_row(tuple(plain))._replace(status="withdrawn")
        _learnt(db, run, m, how)


def _learnt(db: apsw.Connection, run: int, m: Message, how: str) -> None:
    """What becomes of the undo of a message, by how its effect ended."""
    undo = known_undo(m, how)
    if undo is None:
        return
    where = "WHERE run = ? AND effect = ? AND status IN ('registered', 'owed')"
    if "keys" in undo:
        frozen = "json_remove(json_set(coalesce(request, '{}'), '$.keys', json(?)), '$.probe')"  # that asks for the first key
        keys = canonical_text(undo["keys"])
        db.execute(f"UPDATE undos SET status = ?, request = {frozen} {where}", (undo["status"], keys, run, m.effect))
        return
    request = None if undo.get("request") is None else canonical_text(undo["request"])
    said = (undo["status"], request, undo.get("error", ""))
    db.execute(f"UPDATE undos SET status = ?, request = ?, error = ? {where}", (*said, run, m.effect))


def row(m: Message) -> tuple[Json, ...]:
    data = {name: value for name, value, usual in zip(Message._fields, m, USUAL, strict=True) if value != usual}
    for name in PLAIN:
        data.pop(name, None)
    return m.effect, m.status, int(m.ordered), m.due, canonical_text(data) if data else "{}"


def of_row(found: tuple[Any, ...]) -> Message:
    import json

    effect, status, ordered, due, text = found
    data = json.loads(text)
    if "failures" in data:
        data["failures"] = tuple(data["failures"])
    for name in ("logs", "earlier"):
        if name in data:
            data[name] = tuple(data[name])
    return Message(effect, status, bool(ordered), due=due, **data)


class Messages:
    """The messages of a file. `effect_of` reads an effect (run, no) inside an open view or transaction."""

    def __init__(self, file: File, effect_of: Callable[[apsw.Connection, int, int], Effect]) -> None:
        self.file, self._effect_of = file, effect_of

    # to claim

    def heads(self, run: int) -> list[Message]:
        """Those that may be delivered as soon as they are due: the first that is ordered, and all that are not."""
        sql = f"SELECT {COLUMNS} FROM messages WHERE run = ? AND {OPEN} AND (NOT ordered OR {HEAD}) ORDER BY effect"
        return [m for m in map(of_row, rows(self.file.db, sql, (run,))) if m.status != "dead"]

    def claim(
        self, run: int, no: int, place: str, alive: Callable[[str], bool], begin: Callable[[Message, Effect], Step | None],
        at: Moment,
    ) -> Claimed | None:  # fmt: skip
        """Claims a message, and stores what `begin` makes of one that waits, in one transaction. None where it is somebody
        else's, where its run may not go on, where its limit is full, or where `begin` gives nothing."""
        with self.file.write() as db:
            found = rows(db, f"SELECT {COLUMNS}, place, fence FROM messages WHERE run = ? AND effect = ? AND {OPEN}", (run, no))
            if not found or not self._may_be_delivered(db, run):
                return None
            *plain, before, fence = found[0]
            message, effect = of_row(tuple(plain)), self._effect_of(db, run, no)
            if message.status == "dead" or (message.status == "sending" and before not in (None, place) and alive(str(before))):
                return None
            claimed = Claimed(run, message, effect, fence + 1, before)
            if message.status == "waiting":
                step = begin(message, effect)
                limit = limit_of(message)
                if step is None or (limit is not None and not step.message.asking and not _place(db, run, no, limit, alive, at)):
                    return None
                self.file.room()
                self._store(db, run, step)
                claimed = claimed._replace(message=step.message, effect=step.effect, before=None)
            db.execute("UPDATE messages SET place = ?, fence = fence + 1 WHERE run = ? AND effect = ?", (place, run, no))
            return claimed

    def _may_be_delivered(self, db: apsw.Connection, run: int) -> bool:
        if rows(db, "SELECT 1 FROM hold"):
            return False
        return not rows(db, "SELECT 1 FROM runs WHERE no = ? AND (status = 'paused' OR restored IS NOT NULL)", (run,))

    def put(self, claimed: Claimed, decide: Callable[[bool], Step], at: Moment, held_back: int = 0) -> Claimed:
        """What became of it, in one transaction; `decide` is told whether the run was cancelled or is undone. Raises Lost.

        Its place of a limit is given back, unless it begins anew at once; `held_back` is for how many ms nobody may take one.
        """
        with self.file.write() as db:
            run, no = claimed.run, claimed.effect.no
            over = bool(rows(db, f"SELECT 1 FROM runs WHERE no = ? AND {OVER}", (run,)))
            step = decide(over)
            freed = "" if step.begin else ", place = NULL"
            db.execute(
                f"UPDATE messages SET fence = fence{freed} WHERE run = ? AND effect = ? AND fence = ?", (run, no, claimed.fence)
            )
            if db.changes() != 1:
                raise Lost
            self._store(db, run, step)
            limit = limit_of(step.message)
            if limit is not None and (not step.begin or step.message.asking):
                _give(db, run, no, limit, held_back, at)
            return claimed._replace(message=step.message, effect=step.effect, before=None)

    def _store(self, db: apsw.Connection, run: int, step: Step) -> None:
        m, e = step.message, step.effect
        _put(db, run, m, e)
        _learnt(db, run, m, e.status)

    # what people see and say

    def waiting_runs(self, now: int) -> list[int]:
        """The runs of which something may be delivered, the one that waits longest first."""
        sql = (
            f"SELECT run, min(coalesce(due, 0)) d FROM messages WHERE {OPEN} AND status <> 'dead' AND (NOT ordered OR {HEAD})"
            " AND EXISTS (SELECT 1 FROM runs WHERE no = run AND status <> 'paused' AND restored IS NULL)"
            " GROUP BY run HAVING d <= ? ORDER BY d, run"
        )
        return [found[0] for found in rows(self.file.db, sql, (now,))]

    def change(self, run: int, no: int, decide: Callable[[Message, Effect, bool], Step]) -> Step:
        """What a person says of a message that nobody delivers now, in one transaction; `decide` is told whether its run was
        cancelled or is undone."""
        with self.file.write() as db:
            found = rows(db, f"SELECT {COLUMNS} FROM messages WHERE run = ? AND effect = ?", (run, no))
            over = bool(rows(db, f"SELECT 1 FROM runs WHERE no = ? AND {OVER}", (run,)))
            step = decide(of_row(found[0]), self._effect_of(db, run, no), over)
            db.execute("UPDATE messages SET place = NULL, fence = fence + 1 WHERE run = ? AND effect = ?", (run, no))
            self._store(db, run, step)
            return step


def _place(db: apsw.Connection, run: int, no: int, limit: Limit, alive: Callable[[str], bool], at: Moment) -> bool:
    from durun.store import places

    return places.take(db, run, no, limit, alive, at)


def _give(db: apsw.Connection, run: int, no: int, limit: Limit, held_back: int, at: Moment) -> None:
    from durun.store import places

    places.give(db, run, no, limit, held_back, at)


def status_of(file: File, run: int, no: int) -> str | None:
    """The status of a message; None where there is none."""
    found = rows(file.db, "SELECT status FROM messages WHERE run = ? AND effect = ?", (run, no))
    return str(found[0][0]) if found else None


def counted(file: File, run: int) -> dict[str, int]:
    """How many of a run's messages are open: {waiting, dead}; those under way count as waiting."""
    sql = f"SELECT status = 'dead', count(*) FROM messages WHERE run = ? AND {OPEN} GROUP BY 1"
    found = {bool(dead): count for dead, count in rows(file.db, sql, (run,))}
    return {"waiting": found.get(False, 0), "dead": found.get(True, 0)}

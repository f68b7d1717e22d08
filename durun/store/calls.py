"""The calls of `durun once`: each writes the rows of its once, in transactions of its own, beside the driver of the run.

A call is judged in the transaction that writes what it comes to, and only there is its attempt known to be the current one. What it
changes are rows of its own (effect, undo, record), so it carries no fence; the driver hears of a doubt by a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import apsw

from durun.errors import NotNow
from durun.machine import once
from durun.machine.model import Phase
from durun.machine.once import Call, Said, Seen
from durun.machine.outcome import DONE, NOT_DONE
from durun.plan.digest import canonical_text
from durun.store import onces
from durun.store.file import File, rows
from durun.store.read import place_of
from durun.values import NamedTuple

Json = Any


class Step(NamedTuple):
    """What the command of a step is told of itself."""

    run: str
    path: str
    visit: int
    attempt: int
    key: str


class Found(NamedTuple):
    """The effect under way that a call belongs to."""

    run: int
    no: int
    scope: str
    state: str
    visit: int
    attempt: int
    request: Json
    first_at: int
    ends: str  # why nothing more begins in it; '' where it may
    awaited: bool  # whether its run stands there: of what is in the background nothing is said to the run


class Record(NamedTuple):
    """What is told of a once."""

    status: str
    exit: int | None
    error: Json
    stdout: bytes | None


class Calls:
    """What calls of one attempt do. `alive` says whether the process that holds a file lives."""

    def __init__(self, file: File, step: Step, alive: Callable[[str], bool]) -> None:
        self.file, self.step, self._alive = file, step, alive

    def current(self) -> Found:
        """The attempt this process belongs to. Raises NotNow where it is over."""
        step, db = self.step, self.file.db
        found = rows(db, "SELECT no, cancel FROM runs WHERE id = ?", (step.run,)) or rows(
            db, "SELECT no, cancel FROM runs WHERE no IN (SELECT run FROM states WHERE child = ?)", (step.run,)
        )
        if not found:
            raise NotNow(f"there is no run {step.run} in {self.file.path}: nothing was begun")
        (no, cancel), (scope, state) = found[0], place_of(step.path)
        sql = (
            "SELECT e.no, e.attempt, e.key, e.request, e.first_at, p.data FROM positions p"
            " CROSS JOIN effects e ON e.run = p.run AND e.no = p.effect"
            " WHERE p.run = ? AND p.scope = ? AND p.state = ? AND p.visit = ? AND p.phase = ? AND e.status = 'begin'"
        )
        left = (
            "SELECT e.no, e.attempt, e.key, e.request, e.first_at, NULL FROM messages m"
            " CROSS JOIN effects e ON e.run = m.run AND e.no = m.effect WHERE m.run = ? AND m.status = 'sending'"
            " AND e.scope = ? AND e.state = ? AND e.visit = ? AND e.status = 'begin' AND e.kind = 'run'"
        )
        at = (no, scope, state, step.visit)
        for effect, attempt, key, request, first_at, data in rows(db, sql, (*at, Phase.ACTING)) or rows(db, left, at):
            if attempt == step.attempt and (key == step.key or self._inside(no, effect)):
                self.step = step._replace(key=key)
                stopping = data is not None and json.loads(data).get("stopping")
                ends = "cancelled" if cancel is not None else "stopped" if stopping else ""
                return Found(no, effect, scope, state, step.visit, attempt, json.loads(request), first_at, ends, data is not None)
        raise NotNow(
            f"run {step.run}: attempt {step.attempt} of {step.path} (visit {step.visit}) is over: nothing was begun;"
            f" `durun show {step.run}` says how it stands"
        )

    def _inside(self, run: int, effect: int) -> bool:
        """Whether this process is the command of another once of the step, which has a key of its own: both belong to the step."""
        return bool(rows(self.file.db, "SELECT 1 FROM onces WHERE run = ? AND step = ? AND key = ?", (run, effect, self.step.key)))

    def look(self, call: Call, said: Said | None = None) -> tuple[str, Seen | None]:
        """What a call comes to as things stand, and what is stored of it. Raises NotNow, PlanRefused."""
        return self._judged(self.current(), call, said)

    def begin(self, call: Call, said: Said | None, name: str, cwd: str, now: int) -> tuple[int, int] | None:
        """Stores that it begins, with the file that this process holds: (run, number). None where it is not to begin any more."""
        self.file.room()
        with self.file.write() as db:
            found = self.current()
            verdict, seen = self._judged(found, call, said)
            if verdict != once.BEGIN:
                return None
            if found.ends:
                raise NotNow(f"run {self.step.run}: {self.step.path} is being {found.ends}: nothing more begins in it")
            return found.run, self._write(db, found, call, seen, name, cwd, now)

    def _judged(self, found: Found, call: Call, said: Said | None) -> tuple[str, Seen | None]:
        key = once.key_of(self.step.key, call.name)
        sql = (
            "SELECT o.effect, e.status, e.attempt, e.request, o.file FROM onces o"
            " CROSS JOIN effects e ON e.run = o.run AND e.no = o.effect WHERE o.run = ? AND o.step = ? AND o.key = ?"
        )
        seen = None
        for no, status, attempt, request, name in rows(self.file.db, sql, (found.run, found.no, key)):
            alive = status == "begin" and self._alive(name)
            seen = Seen(no, status, attempt, json.loads(request)["argv"], name, alive)
        return once.judge(seen, call, said), seen

    def _write(self, db: apsw.Connection, found: Found, call: Call, seen: Seen | None, name: str, cwd: str, now: int) -> int:
        key = once.key_of(self.step.key, call.name)
        request = canonical_text({"argv": call.argv, "cwd": cwd, "once": call.name})
        if seen is not None:
            no = seen.no
            db.execute(
                "UPDATE effects SET status = 'begin', attempt = ?, request = ?, ended_at = NULL, exit = NULL, error = NULL"
                " WHERE run = ? AND no = ?",
                (call.attempt, request, found.run, no),
            )
            db.execute("UPDATE onces SET file = ?, stdout = NULL WHERE run = ? AND effect = ?", (name, found.run, no))
        else:
            youngest = rows(db, "SELECT no, first_at FROM effects WHERE run = ? AND no < 0 ORDER BY no LIMIT 1", (found.run,))
            before, last = youngest[0] if youngest else (0, 0)
            no, state = before - 1, f"{found.state}/once:{call.name}"
            first = max(now, found.first_at or 0, last or 0)  # a clock that was set back does not change the order
            db.execute(
                "INSERT INTO effects (run, no, scope, state, visit, kind, key, request, status, attempt, intended_at, first_at)"
                " VALUES (?,?,?,?,?,'once',?,?,'begin',?,?,?)",
                (found.run, no, found.scope, state, found.visit, key, request, call.attempt, first, first),
            )
            db.execute("INSERT INTO onces (run, effect, step, key, file) VALUES (?,?,?,?,?)", (found.run, no, found.no, key, name))
        if call.undo is not None:
            later = canonical_text(once.for_later(call, found.request, key, cwd))
            db.execute(
                "INSERT INTO undos (run, effect, status, request, key, error) VALUES (?,?,'registered',?,?,'')"
                " ON CONFLICT DO UPDATE SET status = 'registered', request = excluded.request",
                (found.run, no, later, once.undo_key_of(key)),
            )
        else:  # what was said with an earlier begin stands
            db.execute("UPDATE undos SET status = 'registered' WHERE run = ? AND effect = ?", (found.run, no))
        return no

    def ended(self, run: int, no: int, name: str, how: Record, now: int) -> bool:
        """Stores how it ended. False where it was settled otherwise meanwhile."""
        with self.file.write() as db:
            db.execute(
                "UPDATE effects SET status = ?, exit = ?, error = ?, ended_at = ? WHERE run = ? AND no = ?"
                " AND status IN ('begin', 'in_doubt', 'not_certain')"
                " AND EXISTS (SELECT 1 FROM onces o WHERE o.run = effects.run AND o.effect = effects.no AND o.file = ?)",
                (how.status, how.exit, None if how.error is None else canonical_text(how.error), now, run, no, name),
            )
            if db.changes() != 1:
                return False
            db.execute("UPDATE onces SET stdout = ? WHERE run = ? AND effect = ?", (how.stdout, run, no))
            if how.status == DONE:
                onces.owe(db, run, no, "" if how.stdout is not None else str(how.error["message"]))
            elif how.status == NOT_DONE:
                onces.no_need(db, run, no)
            return True

    def doubt(self, call: Call, said: Said | None, now: int) -> str:
        """Stores that the call was told of a doubt, for the step and for people. What the call comes to by now."""
        with self.file.write() as db:
            found = self.current()
            verdict, seen = self._judged(found, call, said)
            if verdict == once.DOUBT and seen is not None:
                db.execute(
                    "UPDATE effects SET status = 'in_doubt', ended_at = ? WHERE run = ? AND no = ? AND status <> 'in_doubt'",
                    (now, found.run, seen.no),
                )
                told = {
                    "scope": found.scope, "state": found.state, "visit": found.visit, "attempt": found.attempt, "name": call.name,
                }  # fmt: skip
                if found.awaited:
                    db.execute(
                        "INSERT INTO notes (run, kind, data, by, at) VALUES (?, 'once', ?, '', ?)",
                        (found.run, canonical_text(told), now),
                    )
            return verdict

    def record(self, run: int, no: int) -> Record:
        """What is told of one that has ended."""
        sql = (
            "SELECT e.status, e.exit, e.error, o.stdout FROM effects e JOIN onces o ON o.run = e.run AND o.effect = e.no"
            " WHERE e.run = ? AND e.no = ?"
        )
        status, exit, error, stdout = rows(self.file.db, sql, (run, no))[0]
        return Record(status, exit, None if error is None else json.loads(error), stdout)

"""Runs in the file: one transaction a move, written with the fence, every row count checked. No decisions.

A writer holds a run by (no, fence, seq). Whoever takes it over raises the fence; the old one's next write finds no row, and
raises Superseded before anything is changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import apsw

from durun.errors import Held as HeldByAnother
from durun.errors import Superseded
from durun.machine.clock import Account, taken_over
from durun.machine.model import Checkpoint, Effect, Move, Phase, Position, Run, StateRow, Status
from durun.plan.digest import canonical_text
from durun.store.file import File, rows

Json = Any

Sign = Callable[[str], tuple[str, int] | None]

LONG = 256  # characters from which on a script is stored once, by its digest


class Birth(NamedTuple):
    """What a run starts with, beside its checkpoint."""

    plan_text: str
    plan_digest: str
    source: str
    file: str
    directory: str
    bound_to: str
    pins: Json
    language: int


class Pinned(NamedTuple):
    """What a run took with it."""

    plan: Json
    digest: str
    file: str
    directory: str
    pins: Json
    bound_to: str
    language: int


class Driver(NamedTuple):
    place: str
    pid: int
    boot: str
    host: str


class Exists(Exception):
    """A run with this id is there already."""

    def __init__(self, id: str, no: int, bound_to: str) -> None:
        super().__init__(id)
        self.no, self.bound_to = no, bound_to


class Held(NamedTuple):
    """The right to write a run."""

    no: int
    fence: int
    seq: int
    events: int


class Note(NamedTuple):
    no: int
    kind: str
    data: Json
    by: str


def text_of(value: Json) -> str | None:
    return None if value is None else canonical_text(value)


def value_of(text: str | None) -> Json:
    return None if text is None else json.loads(text)


class Store:
    """Reads and writes runs. Every method that writes is one transaction."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._literals: set[str] = set()

    # birth

    def create(self, birth: Birth, move: Move, driver: Driver | None, now: int) -> Held:
        """The plan, the run, its position and its first intent, in one transaction. Raises Exists."""
        run = move.run
        with self.file.write() as db:
            there = rows(db, "SELECT no, bound_to FROM runs WHERE id = ?", (run.id,))
            if there:
                raise Exists(run.id, there[0][0], there[0][1])
            db.execute(
                "INSERT OR IGNORE INTO plans (digest, canonical, source) VALUES (?, ?, ?)",
                (birth.plan_digest, birth.plan_text, birth.source),
            )
            self._driver(db, driver, now)
            db.execute(
                "INSERT INTO runs (id, plan, name, version, language, file, directory, namespace, bound_to, pins, input,"
                " types, vars, status, driver, fence, seq, events, next_effect, created_at, updated_at)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    run.id, birth.plan_digest, run.name, run.version, birth.language, birth.file, birth.directory,
                    run.namespace, birth.bound_to, text_of(birth.pins), text_of(run.input), text_of(run.types),
                    text_of(run.vars), str(run.status), driver.place if driver else None, 1, 0, 0, 1, run.started_at, now,
                ),
            )  # fmt: skip
            held = Held(db.last_insert_rowid(), 1, 0, 0)
            return self._write_move(db, held, None, move, now)

    def id_of(self, id: str) -> tuple[int, str] | None:
        """(no, what it is bound to) of the run with exactly this id."""
        found = rows(self.file.db, "SELECT no, bound_to FROM runs WHERE id = ?", (id,))
        return (found[0][0], found[0][1]) if found else None

    def _driver(self, db: apsw.Connection, driver: Driver | None, now: int) -> None:
        if driver is not None:
            db.execute("INSERT OR IGNORE INTO drivers (place, pid, boot, host, started_at) VALUES (?, ?, ?, ?, ?)", (*driver, now))

    # to take, and to let go

    def take_over(
        self, no: int, driver: Driver, alive: Callable[[str], bool], now: int, sign: Sign = lambda _: None,
        awake: int | None = None,
    ) -> Held:  # fmt: skip
        """The run is this driver's: the lock of the one before is free, and the fence goes up. Raises HeldByAnother.

        `sign` tells the last sign of life of a driver; `awake` is the reading from which the run's time counts here.
        """
        with self.file.write() as db:
            row = rows(db, "SELECT id, driver, fence, seq, events, driven, awake, awake_boot, gap FROM runs WHERE no = ?", (no,))[0]
            id, before, fence, seq, events, *account = row
            if before is not None and before != driver.place and alive(before):
                raise HeldByAnother(who_holds(db, id, before))
            self._driver(db, driver, now)
            account[3] = value_of(account[3])
            after = taken_over(Account(*account), sign(before) if before else None, awake, driver.boot)
            db.execute(
                "UPDATE runs SET driver = ?, fence = fence + 1, driven = ?, awake = ?, awake_boot = ?, gap = ?"
                " WHERE no = ? AND fence = ?",
                (driver.place, *after[:3], text_of(after.gap), no, fence),
            )
            _one(db, id)
            return Held(no, fence + 1, seq, events)

    def let_go(self, held: Held) -> None:
        """Nobody drives the run any more."""
        with self.file.write() as db:
            db.execute("UPDATE runs SET driver = NULL WHERE no = ? AND fence = ?", (held.no, held.fence))

    def forget_driver(self, place: str) -> None:
        with self.file.write() as db:
            db.execute("DELETE FROM drivers WHERE place = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE driver = ?)", (place, place))

    # to read

    def pinned(self, no: int) -> Pinned:
        """What the run took with it when it started."""
        row = rows(
            self.file.db,
            "SELECT canonical, digest, file, directory, pins, bound_to, language FROM runs JOIN plans ON digest = plan"
            " WHERE no = ?",
            (no,),
        )[0]
        return Pinned(value_of(row[0]), row[1], row[2], row[3], value_of(row[4]), row[5], row[6])

    def load(self, no: int) -> Checkpoint:
        """All that is needed to go on; costs what the plan costs, whatever the history."""
        with self._reading() as db:
            run = _run_of(rows(db, f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE no = ?", (no,))[0])
            at = Checkpoint(run)
            for row in rows(db, "SELECT scope, state, visit, phase, effect, asking, due, data FROM positions WHERE run = ?", (no,)):
                position = _position_of(row)
                at.positions[position.scope] = position
            for row in rows(
                db,
                "SELECT s.scope, s.state, s.visits, s.ended, coalesce(s.output, e.output), s.effect, s.error, s.exit"
                " FROM states s LEFT JOIN effects e ON e.run = s.run AND e.no = s.effect WHERE s.run = ?",
                (no,),
            ):
                found = _state_of(row)
                at.states[found.scope, found.state] = found
            for p in at.positions.values():
                for effect in (p.effect, p.asking):
                    if effect is not None:
                        at.effects[effect] = self._effect(db, no, effect)
        return at

    def _reading(self) -> Any:
        return Reading(self.file.db)

    def _effect(self, db: apsw.Connection, run: int, no: int) -> Effect:
        row = rows(db, f"SELECT {', '.join(EFFECT_COLUMNS)} FROM effects WHERE run = ? AND no = ?", (run, no))[0]
        found = dict(zip(EFFECT_COLUMNS, row, strict=True))
        for name in ("request", "error", "output"):
            found[name] = value_of(found[name])
        found["has_output"] = row[EFFECT_COLUMNS.index("output")] is not None
        request = found["request"]
        if "script_of" in request:
            text = rows(db, "SELECT text FROM literals WHERE digest = ?", (request.pop("script_of"),))[0][0]
            request["script"] = text
        return Effect(**found)

    def held(self, no: int) -> tuple[int, int]:
        """(fence, seq) as they stand."""
        row = rows(self.file.db, "SELECT fence, seq FROM runs WHERE no = ?", (no,))[0]
        return row[0], row[1]

    def changed(self) -> int:
        """A number that differs whenever another process has written."""
        return int(rows(self.file.db, "PRAGMA data_version")[0][0])

    # notes

    def add_note(self, no: int, kind: str, data: Json, by: str, now: int) -> int:
        """Leaves what another process wants in the inbox of a run."""
        with self.file.write() as db:
            ended = "status IN ('succeeded', 'failed', 'cancelled', 'compensated')"
            if rows(db, f"SELECT 1 FROM runs WHERE no = ? AND {ended}", (no,)):
                return 0  # too late: it binds nobody
            db.execute(
                "INSERT INTO notes (run, kind, data, by, at) VALUES (?, ?, ?, ?, ?)", (no, kind, canonical_text(data), by, now)
            )
            return int(db.last_insert_rowid())

    def notes(self, no: int) -> list[Note]:
        found = rows(self.file.db, "SELECT no, kind, data, by FROM notes WHERE run = ? ORDER BY no", (no,))
        return [Note(n, kind, value_of(data), by) for n, kind, data, by in found]

    # moves

    def commit(
        self, held: Held, before: Run, decide: Callable[[list[Note]], list[Move]], now: int, heard: Iterable[int] = ()
    ) -> tuple[Held, list[Move]]:
        """One transaction of one or several moves. `decide` is handed the notes that lie there, inside the transaction."""
        with self.file.write() as db:
            notes = self.notes(held.no)
            moves = decide(notes)
            at = held
            for move in moves:
                at = self._write_move(db, at, before, move, now)
                before = move.run
            for no in [*heard, *(note.no for note in notes)]:
                db.execute("DELETE FROM notes WHERE no = ?", (no,))
        return at, moves

    def _write_move(self, db: apsw.Connection, held: Held, before: Run | None, move: Move, now: int) -> Held:
        at = held._replace(seq=held.seq + 1, events=held.events + len(move.history))
        self._write_run(db, held, at, before, move, now)
        for scope, position in move.positions.items():
            if position is None:
                db.execute("DELETE FROM positions WHERE run = ? AND scope = ?", (held.no, scope))
            else:
                db.execute(UPSERT_POSITION, (held.no, *_position_row(position)))
        for effect in move.effects.values():
            db.execute(UPSERT_EFFECT, (held.no, *self._effect_row(db, effect)))
        for row in move.states.values():
            db.execute(UPSERT_STATE, (held.no, *_state_row(row)))
        for n, event in enumerate(move.history, held.events + 1):
            db.execute(
                "INSERT INTO history (run, no, at, kind, scope, state, visit, attempt, data) VALUES (?,?,?,?,?,?,?,?,?)",
                (held.no, n, now, event.kind, event.scope, event.state, event.visit, event.attempt, canonical_text(event.data)),
            )
        return at

    def _write_run(self, db: apsw.Connection, held: Held, at: Held, before: Run | None, move: Move, now: int) -> None:
        run = move.run
        root = move.positions.get("")
        values: dict[str, Json] = {
            "status": str(run.status), "reason": run.reason, "seq": at.seq, "events": at.events,
            "next_effect": run.next_effect, "updated_at": now, "driven": run.driven, "awake": run.awake,
        }  # fmt: skip
        if root is not None:
            effect = move.effects.get(root.effect) if root.effect is not None else None
            values |= {"state": root.state, "visit": root.visit, "due": root.due}
            if effect is not None:
                values["attempt"] = effect.attempt
        if before is None or run.awake_boot != before.awake_boot or run.over_at != before.over_at:
            values |= {"awake_boot": run.awake_boot, "over_at": run.over_at}
        for name in ("vars", "error", "ended_by", "cancel", "gap"):
            if before is None or getattr(run, name) is not getattr(before, name):
                values[name] = text_of(getattr(run, name))
        if run.has_output:
            values["output"] = text_of(run.output) or "null"
        if before is None or run.paused_at != before.paused_at or run.ended_at != before.ended_at:
            values |= {"paused_at": run.paused_at, "ended_at": run.ended_at}
        setting = ", ".join(f"{name} = ?" for name in values)
        db.execute(
            f"UPDATE runs SET {setting} WHERE no = ? AND fence = ? AND seq = ?",
            (*values.values(), held.no, held.fence, held.seq),
        )
        _one(db, run.id)

    def _effect_row(self, db: apsw.Connection, e: Effect) -> tuple[Json, ...]:
        request = e.request
        if len(request.get("script", "")) > LONG:
            text = request["script"]
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            if digest not in self._literals:
                db.execute("INSERT OR IGNORE INTO literals (digest, text) VALUES (?, ?)", (digest, text))
                self._literals.add(digest)
            request = {**{k: v for k, v in request.items() if k != "script"}, "script_of": digest}
        return (
            e.no, e.scope, e.state, e.visit, e.kind, e.key, canonical_text(request), e.status, e.attempt, e.boot, e.place,
            e.intended_at, e.first_at, e.ended_at, e.exit, text_of(e.error), text_of(e.output) if e.has_output else None,
        )  # fmt: skip


def _one(db: apsw.Connection, id: str) -> None:
    if db.changes() != 1:
        raise Superseded(f"run {id} was taken over by another driver")


def who_holds(db: apsw.Connection, id: str, place: str) -> str:
    """Who drives a run, in words for the one who is refused."""
    found = rows(db, "SELECT pid, host, started_at FROM drivers WHERE place = ?", (place,))
    if not found:
        return f"run {id} is driven by another process"
    from durun.plan.units import show_moment

    pid, host, since = found[0]
    return f"run {id} is driven by process {pid} on {host} since {show_moment(since)}: it goes on there"


class Reading:
    """One view of the file for several reads, let go at the end."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db

    def __enter__(self) -> apsw.Connection:
        self.db.execute("BEGIN")
        return self.db

    def __exit__(self, *_: object) -> None:
        if self.db.in_transaction:
            self.db.execute("COMMIT")


# --- rows ---

RUN_COLUMNS = (
    "id", "name", "version", "namespace", "created_at", "status", "reason", "input", "vars", "pins", "types", "output", "error",
    "ended_by", "cancel", "paused_at", "next_effect", "updated_at", "ended_at", "driven", "awake", "awake_boot", "gap", "over_at",
)  # fmt: skip
EFFECT_COLUMNS = (
    "no", "scope", "state", "visit", "kind", "key", "request", "status", "attempt", "boot", "place", "intended_at", "first_at",
    "ended_at", "exit", "error", "output",
)  # fmt: skip
PLAIN = ("scope", "state", "visit", "phase", "effect", "asking", "due")
MORE = tuple(name for name in Position._fields if name not in PLAIN)
DEFAULTS = Position("", "", 0, Phase.READY)

UPSERT_POSITION = (
    "INSERT INTO positions (run, scope, state, visit, phase, effect, asking, due, data) VALUES (?,?,?,?,?,?,?,?,?)"
    " ON CONFLICT (run, scope) DO UPDATE SET state=excluded.state, visit=excluded.visit, phase=excluded.phase,"
    " effect=excluded.effect, asking=excluded.asking, due=excluded.due, data=excluded.data"
)
UPSERT_STATE = (
    "INSERT INTO states (run, scope, state, visits, ended, effect, output, error, exit) VALUES (?,?,?,?,?,?,?,?,?)"
    " ON CONFLICT (run, scope, state) DO UPDATE SET visits=excluded.visits, ended=excluded.ended, effect=excluded.effect,"
    " output=excluded.output, error=excluded.error, exit=excluded.exit"
)
UPSERT_EFFECT = (
    f"INSERT INTO effects (run, {', '.join(EFFECT_COLUMNS)}) VALUES (?{',?' * len(EFFECT_COLUMNS)}) ON CONFLICT (run, no) DO"
    " UPDATE SET key=excluded.key, request=excluded.request, status=excluded.status, attempt=excluded.attempt,"
    " boot=excluded.boot, place=excluded.place, first_at=excluded.first_at, ended_at=excluded.ended_at, exit=excluded.exit,"
    " error=excluded.error, output=excluded.output"
)


def _run_of(row: tuple[Any, ...]) -> Run:
    v = dict(zip(RUN_COLUMNS, row, strict=True))
    return Run(
        id=v["id"], name=v["name"], version=v["version"], namespace=v["namespace"], started_at=v["created_at"],
        status=Status(v["status"]), reason=v["reason"], input=value_of(v["input"]), vars=value_of(v["vars"]),
        env=value_of(v["pins"])["env"], types=value_of(v["types"]), output=value_of(v["output"]),
        has_output=v["output"] is not None, error=value_of(v["error"]), ended_by=value_of(v["ended_by"]),
        cancel=value_of(v["cancel"]), paused_at=v["paused_at"], next_effect=v["next_effect"], updated_at=v["updated_at"],
        ended_at=v["ended_at"], driven=v["driven"], awake=v["awake"], awake_boot=v["awake_boot"], gap=value_of(v["gap"]),
        over_at=v["over_at"],
    )  # fmt: skip


def _position_row(p: Position) -> tuple[Json, ...]:
    data = {name: getattr(p, name) for name in MORE if getattr(p, name) != getattr(DEFAULTS, name)}
    return p.scope, p.state, p.visit, str(p.phase), p.effect, p.asking, p.due, canonical_text(data)


def _position_of(row: tuple[Any, ...]) -> Position:
    data = value_of(row[7])
    if "failures" in data:
        data["failures"] = tuple(data["failures"])
    return Position(row[0], row[1], row[2], Phase(row[3]), effect=row[4], asking=row[5], due=row[6], **data)


def _state_row(s: StateRow) -> tuple[Json, ...]:
    output = text_of(s.output) if s.effect is None and s.has_output else None
    return s.scope, s.state, s.visits, int(s.ended), s.effect, output, text_of(s.error), s.exit


def _state_of(row: tuple[Any, ...]) -> StateRow:
    scope, state, visits, ended, output, effect, error, exit = row
    ended_well = bool(ended) and error is None
    return StateRow(
        scope,
        state,
        visits,
        bool(ended),
        value_of(output) if ended_well else None,
        effect,
        output is not None,
        value_of(error),
        exit,
    )

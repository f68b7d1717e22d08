"""Runs in the file: one transaction a move, written with the fence, every row count checked. No decisions.

A writer holds a run by (no, fence, seq). Whoever takes it over raises the fence; the old one's next write finds no row, and
raises Superseded before anything is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Protocol

import apsw

from durun.errors import Held as HeldByAnother
from durun.errors import NeedsPerson, PlanRefused, Refusal, StoreUnusable, Superseded
from durun.machine.clock import Account, taken_over
from durun.machine.model import (
    TERMINAL,
    Answered,
    Checkpoint,
    Effect,
    Item,
    Move,
    Phase,
    Position,
    Run,
    Sent,
    StateRow,
    Status,
    Undo,
)
from durun.plan.digest import canonical_text, sha256
from durun.store import messages, onces, order, read
from durun.store.file import File, failing, rows
from durun.values import NamedTuple

Json = Any

Sign = Callable[[str], tuple[str, int] | None]

NOT_STORED: tuple[Json, str] = (None, "")
LONG = 256  # characters from which on a script is stored once, by its digest
LARGE = 1000  # characters of an input, or of vars, beyond which they lie beside the row of the run: that stays within a page


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
    mark: str | None = None  # what the text of the plan is known by from now on
    named: bool = False  # its id was given by a person
    group: str | None = None  # of which at most one run may be in flight
    trees: dict[str, Json] | None = None  # of pinned files: digest -> {path: [SHA-256, mode]}
    files: dict[str, bytes] | None = None  # SHA-256 -> what they hold


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


class UnderWay(NamedTuple):
    """An effect that a position refers to, as far as whoever watches needs it."""

    no: int
    attempt: int
    place: str | None


class Migrated(Protocol):
    """The move to another plan, with the input and the types of the vars as that has them."""

    @property
    def move(self) -> Move: ...
    @property
    def input(self) -> Json: ...
    @property
    def types(self) -> dict[str, str]: ...


class Exists(Exception):
    """A run with this id is there already."""

    def __init__(self, id: str, no: int, bound_to: str) -> None:
        super().__init__(id)
        self.no, self.bound_to = no, bound_to


class Pruned(Exception):
    """A run with this id has ended, and was pruned; `status` is how."""

    def __init__(self, id: str, bound_to: str, status: str, ended_at: int) -> None:
        super().__init__(id)
        self.id, self.bound_to, self.status, self.ended_at = id, bound_to, status, ended_at


class Grouped(Exception):
    """Another run of the group, which has not ended: `run` and how it stands."""

    def __init__(self, group: str, run: str, status: str) -> None:
        super().__init__(group)
        self.group, self.run, self.status = group, run, status


class HoldChanged(Exception):
    """The whole file was held, or let go, between the decision and its commit: decide again."""


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


class Judged(NamedTuple):
    """What became of something that was said: the note for a driver (kind, data, by), or the moves where there is none."""

    note: tuple[str, Json, str] | None
    moves: list[Move]


def text_of(value: Json) -> str | None:
    return None if value is None else canonical_text(value)


def value_of(text: str | None) -> Json:
    return None if text is None else json.loads(text)


class Store:
    """Reads and writes runs. Every method that writes is one transaction."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._literals: set[str] = set()
        self._requests: dict[tuple[int, int], tuple[Json, str]] = {}  # those of effects under way and their keys, as stored
        self._beside: set[int] = set()  # runs whose vars lay, or lie, beside their row
        self._texts: dict[int, tuple[Json, str]] = {}  # of what the next move may have, by the identity of the value

    # birth

    def create(
        self, birth: Birth, move: Move, driver: Driver | None, now: int, *, held: bool = False, queued: bool = False
    ) -> Held:
        """The plan, the run, its position and its first intent, in one transaction. `held`: the move was decided with the
        whole file held; `queued`: so that it waits for its group. Raises Exists, Pruned, HoldChanged, Grouped, and PlanRefused
        where the plan is drained."""
        run = move.run
        with self.file.write() as db:
            if (read.hold(self.file) is not None) != held:
                raise HoldChanged
            there = rows(db, "SELECT no, bound_to FROM runs WHERE id = ?", (run.id,))
            if birth.named:
                refuse_pruned(self.file, run.id)
            if there:
                raise Exists(run.id, there[0][0], there[0][1])
            refuse_drained(self.file, run.name)
            if birth.group is not None and not queued:
                self._first_of(db, birth.group)
            db.execute(
                "INSERT OR IGNORE INTO plans (digest, canonical, source) VALUES (?, ?, ?)",
                (birth.plan_digest, birth.plan_text, birth.source),
            )
            if birth.mark is not None:
                db.execute("INSERT OR IGNORE INTO checked (mark, plan) VALUES (?, ?)", (birth.mark, birth.plan_digest))
            self._driver(db, driver, now)
            given = canonical_text(run.input)
            db.execute(
                "INSERT INTO runs (no, id, plan, name, version, language, file, directory, namespace, bound_to, pins, input,"
                f" types, vars, status, driver, fence, seq, events, next_effect, created_at, updated_at, named) VALUES ({NEXT},"
                "?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    run.id, birth.plan_digest, run.name, run.version, birth.language, birth.file, birth.directory,
                    run.namespace, birth.bound_to, text_of(birth.pins), given if len(given) <= LARGE else None,
                    text_of(run.types), None, str(run.status), driver.place if driver else None, 1, 0, 0, 1, run.started_at, now,
                    int(birth.named),
                ),
            )  # fmt: skip
            right = Held(db.last_insert_rowid(), 1, 0, 0)
            if len(given) > LARGE:
                from durun.store import large

                large.put(db, right.no, "input", given)
            if birth.group is not None:
                db.execute("INSERT INTO grouped (run, name) VALUES (?, ?)", (right.no, birth.group))
            if birth.trees:
                from durun.store import pinned

                pinned.put(db, right.no, birth.trees, birth.files or {})
            return self._write(db, right, None, [move], now)

    @staticmethod
    def _first_of(db: apsw.Connection, group: str) -> None:
        from durun.store import places

        found = places.before(db, group, None)
        if found is not None:
            raise Grouped(group, *found)

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
        awake: int | None = None, *, to_drive: bool = False,
    ) -> Held:  # fmt: skip
        """The run is this driver's: the lock of the one before is free, and the fence goes up. Raises HeldByAnother, and
        with `to_drive` NeedsPerson where the whole file is held.

        `sign` tells the last sign of life of a driver; `awake` is the reading from which the run's time counts here.
        """
        with self.file.write() as db:
            return self._take(db, no, driver, alive, now, sign, awake, to_drive=to_drive)

    def _take(
        self, db: apsw.Connection, no: int, driver: Driver, alive: Callable[[str], bool], now: int, sign: Sign,
        awake: int | None, *, to_drive: bool,
    ) -> Held:  # fmt: skip
        hold = read.hold(self.file) if to_drive else None
        if hold is not None:
            raise NeedsPerson(f"all runs in {self.file.path} are held since {hold.since} by {hold.by}: `durun resume --all`")
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
        if before is not None and before != driver.place:
            self._forget(db, before)  # it was killed, and this may have been the last that it held
        return Held(no, fence + 1, seq, events)

    def take_all(
        self, nos: list[int], driver: Driver, alive: Callable[[str], bool], now: int, sign: Sign, awake: int
    ) -> list[Held | Refusal]:
        """The same of several runs, in one transaction: each is this driver's, or it is said why not."""
        with self.file.write() as db:
            found: list[Held | Refusal] = []
            for no in nos:
                try:
                    found.append(self._take(db, no, driver, alive, now, sign, awake, to_drive=True))
                except Refusal as e:
                    found.append(e)
            return found

    def let_go(self, held: Held, place: str | None = None) -> None:
        """Nobody drives the run any more, and a driver that holds no other is forgotten. Lost in a power cut it says nothing wrong:
        the lock of that driver is free."""
        with self.file.write(synced=False) as db:
            db.execute("UPDATE runs SET driver = NULL WHERE no = ? AND fence = ?", (held.no, held.fence))
            self._forget(db, place)

    def let_go_all(self, held: list[Held], place: str | None = None) -> None:
        """The same of several runs in one transaction. With `place` their driver is forgotten too, else it goes on with others."""
        if held or place is not None:
            with self.file.write(synced=False) as db:
                for one in held:
                    db.execute("UPDATE runs SET driver = NULL WHERE no = ? AND fence = ?", (one.no, one.fence))
                self._forget(db, place)

    @staticmethod
    def _forget(db: apsw.Connection, place: str | None) -> None:
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

    def load(self, no: int, *, inside: bool = False) -> Checkpoint:
        """All that is needed to go on; costs what the plan costs, whatever the history. `inside`: within a view of the file that
        is open already."""
        with nullcontext(self.file.db) if inside else self._reading() as db:
            return self._load(db, no)

    def _load(self, db: apsw.Connection, no: int) -> Checkpoint:
        run = _run_of(self._whole(db, no, rows(db, f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE no = ?", (no,))[0]))
        positions, states, items, effects, signals = {}, {}, dict[str, list[Item]](), dict[int, Effect](), {}
        for row in rows(db, "SELECT scope, state, visit, phase, effect, asking, due, data FROM positions WHERE run = ?", (no,)):
            position = _position_of(row)
            positions[position.scope] = position
        for row in rows(
            db,
            "SELECT s.scope, s.state, s.visits, s.ended, coalesce(s.output, e.output), s.effect, s.error, s.exit, s.peak, s.child"
            " FROM states s LEFT JOIN effects e ON e.run = s.run AND e.no = s.effect WHERE s.run = ?",
            (no,),
        ):
            found = _state_of(row)
            states[found.scope, found.state] = found
        columns = "path, no, label, item, status, output, error"
        for row in rows(db, f"SELECT {columns} FROM items WHERE run = ? ORDER BY path, no", (no,)):
            items.setdefault(row[0], []).append(_item_of(row))
        for p in positions.values():
            for effect in (p.effect, p.asking):
                if effect is not None:
                    effects[effect] = self.effect(db, no, effect)
        for row in rows(db, f"SELECT {', '.join(SENT_COLUMNS)} FROM signals WHERE run = ? AND visit IS NULL ORDER BY no", (no,)):
            sent = Sent(row[0], row[1], value_of(row[2]), *row[3:])
            signals[sent.no] = sent
        return Checkpoint(run, positions, states, effects, items, signals)

    def _whole(self, db: apsw.Connection, no: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """The row of a run with what lies beside it."""
        if row[INPUT] is not None and row[VARS] is not None:
            return row
        from durun.store import large

        whole = list(row)
        for column in (INPUT, VARS):
            if row[column] is None:
                whole[column] = large.of(db, no, RUN_COLUMNS[column])
        if row[VARS] is None:
            self._beside.add(no)
        return tuple(whole)

    def view(self) -> Any:
        """One view of the file for several reads."""
        return self._reading()

    def _reading(self) -> Any:
        return Reading(self.file.db)

    def effect(self, db: apsw.Connection, run: int, no: int) -> Effect:
        """An effect, read in a view or transaction that is open."""
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

    def owed(self, no: int) -> list[int]:
        """The effects that are still to be undone, or to be settled first, the youngest last."""
        sql = (
            "SELECT u.effect, e.scope, e.state, e.visit, coalesce(e.first_at, e.intended_at) began FROM undos u"
            " CROSS JOIN effects e ON e.run = u.run AND e.no = u.effect WHERE u.run = ? AND u.status IN ('owed', 'registered')"
        )
        return [e.no for e, _ in order.oldest_first(self.file, no, [order.Began(*row) for row in rows(self.file.db, sql, (no,))])]

    def undo(self, no: int, effect: int) -> tuple[Effect, Undo] | None:
        """An effect and its undo, where that is still owed."""
        with self._reading() as db:
            columns = "effect, status, request, key, error, by"
            found = rows(db, f"SELECT {columns} FROM undos WHERE run = ? AND effect = ?", (no, effect))
            if not found or found[0][1] not in ("owed", "registered"):
                return None
            no_, status, text, key, error, before = found[0]
            its, request = self.effect(db, no, effect), value_of(text)
            if effect >= 0 and request and "left" in request:
                request["left"] = {"plan": request["left"], "state": self._state_left(db, request["left"], its)}
            tried = self.effect(db, no, before) if before is not None else None
            attempt = tried.attempt + 1 if tried is not None and tried.kind == "undo" else 1
            undo = Undo(no_, status, request, key, error, attempt)
            if effect < 0:
                return onces.to_undo(db, no, its, undo)
            return its, undo

    def _state_left(self, db: apsw.Connection, plan: str, of: Effect) -> Json:
        """The state of an effect as the plan had it under which it was begun."""
        from durun.machine.scope import level

        text = rows(db, "SELECT canonical FROM plans WHERE digest = ?", (plan,))[0][0]
        return level(json.loads(text), of.scope)["states"][of.state]

    def failed_undos(self, no: int) -> list[tuple[int, str, str]]:
        """(effect, scope, state) of what could not be undone."""
        sql = (
            "SELECT u.effect, e.scope, e.state FROM undos u CROSS JOIN effects e ON e.run = u.run AND e.no = u.effect"
            " WHERE u.run = ? AND u.status = 'failed' ORDER BY u.effect"
        )
        return [(effect, scope, state) for effect, scope, state in rows(self.file.db, sql, (no,))]

    def standing(self, no: int, limit: int) -> tuple[list[tuple[Position, UnderWay | None]], dict[str, int]]:
        """Where a run stands, for whoever watches: so many positions, those that move first, each with the effect under way;
        and how many more there are of each phase."""
        with self._reading() as db:
            count = dict(rows(db, "SELECT phase, count(*) FROM positions WHERE run = ? GROUP BY phase", (no,)))
            sql = "SELECT scope, state, visit, phase, effect, asking, due, data FROM positions WHERE run = ?"
            if sum(count.values()) > limit:  # the run itself, then what moves
                sql += " ORDER BY scope <> '', phase NOT IN ('acting', 'probing'), phase IN ('ended', 'failed'), scope LIMIT ?"
                found = [_position_of(row) for row in rows(db, sql, (no, limit))]
            else:
                found = [_position_of(row) for row in rows(db, sql, (no,))]
            out: list[tuple[Position, UnderWay | None]] = []
            for p in found:
                of = p.asking if p.asking is not None else p.effect
                row = rows(db, "SELECT no, attempt, place FROM effects WHERE run = ? AND no = ?", (no, of))
                out.append((p, UnderWay(*row[0]) if row else None))
                count[p.phase] -= 1
        return out, count

    def held(self, no: int) -> tuple[int, int]:
        """(fence, seq) as they stand."""
        row = rows(self.file.db, "SELECT fence, seq FROM runs WHERE no = ?", (no,))[0]
        return row[0], row[1]

    def changed(self) -> int:
        """A number that differs whenever another process has written."""
        return int(rows(self.file.db, "PRAGMA data_version")[0][0])

    # the whole file

    def put_hold(self, by: str, now: int) -> bool:
        """Holds the whole file: from now on no driver takes a run up. False where it is held already."""
        with self.file.write() as db:
            db.execute("INSERT OR IGNORE INTO hold (one, by, at) VALUES (1, ?, ?)", (by, now))
            return db.changes() == 1

    def lift_hold(self) -> bool:
        """Lets the file go. False where it was not held."""
        with self.file.write() as db:
            db.execute("DELETE FROM hold")
            return db.changes() == 1

    def drain(self, plan: str, by: str, now: int) -> bool:
        """From now on no new run of a plan begins. False where that is so already."""
        with self.file.write() as db:
            db.execute("INSERT OR IGNORE INTO drains (name, by, at) VALUES (?, ?, ?)", (plan, by, now))
            return db.changes() == 1

    def drain_off(self, plan: str) -> bool:
        """New runs of a plan may begin again. False where they might before."""
        with self.file.write() as db:
            db.execute("DELETE FROM drains WHERE name = ?", (plan,))
            return db.changes() == 1

    # to another plan

    def migrate(self, held: Held, before: Run, birth: Birth, moved: Migrated, now: int) -> Held:
        """The run and another plan, with all that this one takes along, in one transaction. What is still to be undone keeps the
        plan under which it was done."""
        from durun.store import pinned

        with self.file.write() as db:
            db.execute(
                "INSERT OR IGNORE INTO plans (digest, canonical, source) VALUES (?, ?, ?)",
                (birth.plan_digest, birth.plan_text, birth.source),
            )
            pinned.put(db, held.no, birth.trees or {}, birth.files or {})
            [(left,)] = rows(db, "SELECT plan FROM runs WHERE no = ?", (held.no,))
            db.execute("INSERT OR IGNORE INTO plans_left (run, plan) VALUES (?, ?)", (held.no, left))
            run = moved.move.run
            from durun.store import large

            given = large.put(db, held.no, "input", canonical_text(moved.input))
            db.execute(
                "UPDATE runs SET plan = ?, version = ?, language = ?, file = ?, bound_to = ?, pins = ?, input = ?, types = ?"
                " WHERE no = ? AND fence = ? AND seq = ?",
                (
                    birth.plan_digest, run.version, birth.language, birth.file, birth.bound_to, text_of(birth.pins),
                    given, text_of(moved.types), held.no, held.fence, held.seq,
                ),
            )  # fmt: skip
            _one(db, run.id)
            right = self._write(db, held, before, [moved.move], now)
            db.execute(  # what was begun before, also where it is known only now what there is to be undone
                "UPDATE undos SET request = json_set(coalesce(request, '{}'), '$.left', ?) WHERE run = ? AND effect > 0"
                " AND effect < ? AND status IN ('registered', 'owed', 'failed')"
                " AND (request IS NOT NULL OR status = 'registered') AND json_extract(coalesce(request, '{}'), '$.left') IS NULL",
                (left, held.no, before.next_effect),
            )
            return right

    # notes

    def add_note(self, no: int, kind: str, data: Json, by: str, now: int) -> int:
        """Leaves what another process wants in the inbox of a run."""
        with self.file.write() as db:
            ended = "status IN ('succeeded', 'failed', 'cancelled', 'compensated')"
            if rows(db, f"SELECT 1 FROM runs WHERE no = ? AND {ended}", (no,)):
                return 0  # too late: it binds nobody
            self._note(db, no, kind, data, by, now)
            return int(db.last_insert_rowid())

    def _note(self, db: apsw.Connection, no: int, kind: str, data: Json, by: str, now: int) -> None:
        db.execute("INSERT INTO notes (run, kind, data, by, at) VALUES (?, ?, ?, ?, ?)", (no, kind, canonical_text(data), by, now))

    def notes(self, no: int) -> list[Note]:
        # sorted here: with ORDER BY the statement would be compiled anew each time, in every move
        found = sorted(rows(self.file.db, "SELECT no, kind, data, by FROM notes WHERE run = ?", (no,)))
        return [Note(n, kind, value_of(data), by) for n, kind, data, by in found]

    # what people and programs outside say

    def hear(
        self,
        no: int,
        alive: Callable[[str], bool],
        judge: Callable[[Checkpoint, list[Note], bool], Judged],
        clock: Callable[[], int],
    ) -> bool:
        """Judges what is said of a run and records it, in one transaction. Whether a driver lives, who is left to act on it.

        `judge` raises where it is refused, and then nothing has changed. Without a driver its moves are made here: the fence goes
        up and nobody holds the run afterwards, so there is no moment at which this process could leave it half done.
        """
        with self.file.write() as db:
            now = clock()  # here, since it may have waited for the file
            id, driver, fence, seq, events = rows(db, "SELECT id, driver, fence, seq, events FROM runs WHERE no = ?", (no,))[0]
            driven = driver is not None and alive(driver)
            at, notes = self._load(db, no), self.notes(no)
            before, judged = at.run, judge(at, notes, driven)
            if driven and judged.note is not None:
                self._note(db, no, *judged.note, now)
            if driven or not judged.moves:
                return driven
            db.execute("UPDATE runs SET fence = fence + 1 WHERE no = ? AND fence = ?", (no, fence))
            _one(db, id)
            held = Held(no, fence + 1, seq, events)
            self._write(db, held, before, judged.moves, now)
            for note in notes:
                db.execute("DELETE FROM notes WHERE no = ?", (note.no,))
            return driven

    def last_answer(self, no: int, path: str | None, visit: int | None = None) -> Answered | None:
        """What was answered last to a run, to one state of it, or in one visit of that."""
        given = "CASE WHEN scope = '' OR scope LIKE '%/' THEN scope ELSE scope || '.' END || state"
        wanted = f"(?2 IS NULL OR {given} = ?2) AND (?3 IS NULL OR visit = ?3)"
        found = rows(
            self.file.db, f"SELECT {ANSWER} FROM answers WHERE run = ?1 AND {wanted} ORDER BY no DESC LIMIT 1", (no, path, visit)
        )
        if not found:
            return None
        scope, state, visit, answer, reject, data, *rest = found[0]
        return Answered(scope, state, visit, answer, bool(reject), value_of(data), *rest)

    def sent_before(self, no: int, name: str, dedupe: str) -> tuple[int, str] | None:
        """(when, by whom) a signal with this name and mark was sent to a run."""
        found = rows(self.file.db, "SELECT at, by FROM signals WHERE run = ? AND name = ? AND dedupe = ?", (no, name, dedupe))
        return found[0] if found else None

    # moves

    def commit(
        self, held: Held, before: Run, decide: Callable[[list[Note]], list[Move]], now: int, heard: Iterable[int] = ()
    ) -> tuple[Held, list[Move]]:
        """One transaction of one or several moves. `decide` is handed the notes that lie there, inside the transaction."""
        with self.file.write() as db:
            notes = self.notes(held.no)
            moves = decide(notes)
            at = self._write(db, held, before, moves, now) if moves else held
            for no in [*heard, *(note.no for note in notes)]:
                db.execute("DELETE FROM notes WHERE no = ?", (no,))
        return at, moves

    def commit_all(
        self, asked: list[tuple[Held, Run, Callable[[list[Note]], list[Move]]]], now: int
    ) -> list[tuple[Held, list[Move]] | Refusal | Superseded]:
        """Moves of several runs in one transaction, a savepoint each: one that is refused, or whose fence was superseded, rolls
        back alone, and it is said why."""
        found: list[tuple[Held, list[Move]] | Refusal | Superseded] = []
        with self.file.write() as db:
            for held, before, decide in asked:
                db.execute("SAVEPOINT one")
                try:
                    notes = self.notes(held.no)
                    moves = decide(notes)
                    at = self._write(db, held, before, moves, now) if moves else held
                    for note in notes:
                        db.execute("DELETE FROM notes WHERE no = ?", (note.no,))
                    found.append((at, moves))
                except StoreUnusable:
                    raise
                except (Refusal, Superseded) as e:
                    db.execute("ROLLBACK TO one")
                    self._literals.clear()
                    self._requests.clear()
                    found.append(e)
                db.execute("RELEASE one")
        return found

    def make_ready(self, move: Move) -> None:
        """Puts down the texts of a move that may come, so that they need not be made while it is written."""
        requests = [e.request for e in move.effects.values() if len(e.request.get("script", "")) <= LONG]
        values = (move.run.vars, *requests, *(event.data for event in move.history if event.data))
        self._texts = {id(value): (value, canonical_text(value)) for value in values}

    def _text(self, value: Json) -> str:
        made = self._texts.get(id(value))
        return made[1] if made is not None and made[0] is value else canonical_text(value)

    def _write(self, db: apsw.Connection, held: Held, before: Run | None, moves: list[Move], now: int) -> Held:
        """Moves that are committed together: the row of the run once, and a position that several of them change once."""
        if before is not None and before.status in TERMINAL and moves[-1].run.status not in TERMINAL:
            self._alone(db, held.no, before.id)
        at = held._replace(seq=held.seq + len(moves), events=held.events + sum(len(move.history) for move in moves))
        self._write_run(db, held, at, before, moves, now)
        events = held.events
        if len(moves) > 1:
            from durun.machine.together import together

            made = together(moves)
        else:
            made = moves
        for move in made:
            self._write_move(db, held._replace(events=events), move, now)
            events += len(move.history)
        if any(move.shares is not None for move in moves):
            from durun.store import places

            for move in moves:
                if move.shares is not None:
                    places.write(db, held.no, move.shares, now)
        self._texts = {}
        return at

    @staticmethod
    def _alone(db: apsw.Connection, no: int, id: str) -> None:
        """A run that had ended goes on: raises HeldByAnother where another of its group is in flight."""
        if not rows(db, "SELECT 1 FROM grouped WHERE run = ?", (no,)):
            return
        from durun.store import places

        found = places.other(db, no)
        if found is not None:
            group, run, status = found
            raise HeldByAnother(
                f"run {id} cannot go on: run {run} of the group {group} has not ended, it is {status}: `durun show {run}`"
            )

    def _write_move(self, db: apsw.Connection, held: Held, move: Move, now: int) -> None:
        """The rows of a move, a statement for each kind: what is taken away goes before what stands in its place."""
        run = held.no
        if move.fresh or move.gone:
            self._take_away(db, run, move)
        changed = [i for i in move.items.values() if i.path not in move.fresh]
        if changed:
            db.executemany(UPDATE_ITEM, [(*_item_end(i), run, i.path, i.no) for i in changed])
        for scope, position in move.positions.items():
            if position is None:
                db.execute(TAKE_POSITION, (run, scope))
        standing = [(run, *_position_row(p)) for p in move.positions.values() if p is not None]
        if standing:
            db.executemany(UPSERT_POSITION, standing)
        if move.effects:
            self._write_effects(db, run, move.effects.values())
        if move.states:
            db.executemany(UPSERT_STATE, [(run, *_state_row(row)) for row in move.states.values()])
        self._write_undos(db, held.no, move)
        if move.messages or move.withdraw:
            messages.write(db, held.no, move)
        for said in move.onces:
            onces.resolved(db, held.no, *said, now)
        for a in move.answers:
            db.execute(
                f"INSERT INTO answers (run, {ANSWER}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (held.no, a.scope, a.state, a.visit, a.answer, int(a.reject), canonical_text(a.data), a.by, a.note, a.digest, a.at),
            )
        for s in move.signals.values():
            taken = s.taken or (None, None, None)
            sent = (s.no, s.name, canonical_text(s.payload), s.error, s.message, s.dedupe, s.by, s.at)
            db.execute(UPSERT_SIGNAL, (held.no, *sent, *taken))
        if move.history:
            db.executemany(
                "INSERT INTO history (run, no, at, kind, scope, state, visit, attempt, data) VALUES (?,?,?,?,?,?,?,?,?)",
                [
                    (held.no, n, now, e.kind, e.scope, e.state, e.visit, e.attempt, self._text(e.data) if e.data else "{}")
                    for n, e in enumerate(move.history, held.events + 1)
                ],
            )

    def _write_undos(self, db: apsw.Connection, run: int, move: Move) -> None:
        if not (move.undos or move.undo_status or move.owed_again):
            return
        for undo in move.undos.values():
            request = text_of(undo.request)
            db.execute(UPSERT_UNDO, (run, undo.effect, undo.status, request, undo.key, undo.error))
        for effect, (status, by) in move.undo_status.items():
            db.execute("UPDATE undos SET status = ?, by = ? WHERE run = ? AND effect = ?", (status, by, run, effect))
        if move.owed_again:
            db.execute("UPDATE undos SET status = 'owed' WHERE run = ? AND status = 'failed'", (run,))

    def _take_away(self, db: apsw.Connection, run: int, move: Move) -> None:
        """What was inside a state that is entered anew, and inside scopes that have ended."""
        inside = [(run, f"{path}{a}", f"{path}{b}") for path in move.fresh for a, b in ((".", "/"), ("/", "0"), ("[", "\\"))]
        items = list(inside)
        alone = {scope: left.rows for scope, left in move.gone.items() if left.rows is not None}
        for scope, left in move.gone.items():
            # a scope, and all that begins with it and a dot: no name goes on with what sorts before `/`
            all_of_it = (run, scope, scope[:-1] + "0" if scope.endswith("/") else scope + "/")
            if left.rows is None:
                inside.append(all_of_it)
            if left.items:
                items.append(all_of_it)
        for sql in TAKE_AWAY if inside else ():
            db.executemany(sql, inside)
        if alone:
            db.executemany(TAKE_POSITION, [(run, scope) for scope in alone])
            db.executemany(TAKE_STATE, [(run, scope, name) for scope, names in alone.items() for name in names])
        if items:
            db.executemany(TAKE_ITEMS, items)
        for path, fresh in move.fresh.items():
            db.execute("DELETE FROM items WHERE run = ? AND path = ?", (run, path))
            db.executemany(INSERT_ITEM, [(run, *_item_row(move.items.get((path, item.no), item))) for item in fresh])

    def _write_run(self, db: apsw.Connection, held: Held, at: Held, before: Run | None, moves: list[Move], now: int) -> None:
        run = moves[-1].run
        root = next((move.positions[""] for move in reversed(moves) if "" in move.positions), None)
        values: dict[str, Json] = {"seq": at.seq, "events": at.events, "next_effect": run.next_effect, "updated_at": now}
        values |= {"driven": run.driven, "awake": run.awake}
        # what an index holds is written only where it differs: SQLite would write the index anew, which is a page more
        if before is None or run.status is not before.status:
            values["status"] = run.status
        if before is None or run.reason != before.reason:
            values["reason"] = run.reason
        if before is None or run.next_signal != before.next_signal:
            values["next_signal"] = run.next_signal
        if root is not None:
            found = (move.effects[root.effect] for move in reversed(moves) if root.effect in move.effects)
            effect = next(found, None) if root.effect is not None else None
            values["state"], values["visit"], values["due"] = root.state, root.visit, root.due
            if effect is not None:
                values["attempt"] = effect.attempt
        if before is None or run.awake_boot != before.awake_boot or run.over_at != before.over_at:
            values |= {"awake_boot": run.awake_boot, "over_at": run.over_at}
        if before is None or run.vars is not before.vars:
            values["vars"] = self._vars(db, held.no, self._text(run.vars))
        for name in ("error", "ended_by", "cancel", "undoing", "gap", "restored", "tools", "drift"):
            if before is None or getattr(run, name) is not getattr(before, name):
                values[name] = text_of(getattr(run, name))
        if before is None or run.pivot != before.pivot:
            values["pivot"] = run.pivot
        if run.has_output:
            values["output"] = text_of(run.output) or "null"
        elif before is not None and before.has_output:
            values["output"] = None
        if before is None or run.paused_at != before.paused_at or run.ended_at != before.ended_at:
            values |= {"paused_at": run.paused_at, "ended_at": run.ended_at}
        db.execute(_update_of(tuple(values)), (*values.values(), held.no, held.fence, held.seq))
        _one(db, run.id)

    def _vars(self, db: apsw.Connection, run: int, text: str) -> str | None:
        """What the row of a run holds of its vars."""
        if len(text) <= LARGE and run not in self._beside:
            return text
        from durun.store import large

        self._beside.add(run)  # from now on, also where this is rolled back: what is taken away may not be there
        return large.put(db, run, "vars", text)

    def _write_effects(self, db: apsw.Connection, run: int, effects: Iterable[Effect]) -> None:
        """The rows of effects; a frozen request is written once, and again only where a poll has another, or another key."""
        stored: list[Effect] = []
        others: list[Effect] = []
        for e in effects:
            request, key = self._requests.get((run, e.no), NOT_STORED)
            (stored if request is e.request and key == e.key else others).append(e)
        if stored:
            before = db.total_changes()
            db.executemany(UPDATE_EFFECT, [(*_how_row(e), run, e.no) for e in stored])
            if db.total_changes() - before != len(stored):  # what was known of them was rolled back
                stored, others = [], [*stored, *others]
        if others:
            db.executemany(UPSERT_EFFECT, [(run, *self._intent_row(db, e), *_how_row(e)) for e in others])
        for e in others:
            self._requests[run, e.no] = e.request, e.key
        for e in (*stored, *others):
            if e.status not in UNDER_WAY:
                self._requests.pop((run, e.no), None)

    def _intent_row(self, db: apsw.Connection, e: Effect) -> tuple[Json, ...]:
        return e.no, e.scope, e.state, e.visit, e.kind, e.key, self._request_text(db, e.request), e.intended_at

    def _request_text(self, db: apsw.Connection, request: Json) -> str:
        text = request.get("script", "")
        if len(text) <= LONG:
            return self._text(request)
        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if digest not in self._literals:
            db.execute("INSERT OR IGNORE INTO literals (digest, text) VALUES (?, ?)", (digest, text))
            self._literals.add(digest)
        return canonical_text({**{k: v for k, v in request.items() if k != "script"}, "script_of": digest})


@lru_cache(maxsize=64)
def _update_of(names: tuple[str, ...]) -> str:
    return f"UPDATE runs SET {', '.join(f'{name} = ?' for name in names)} WHERE no = ? AND fence = ? AND seq = ?"


def _one(db: apsw.Connection, id: str) -> None:
    if db.changes() != 1:
        raise Superseded(f"run {id} was taken over by another driver")


def refuse_pruned(file: File, id: str) -> None:
    """Raises Pruned where a run with this id was, and is gone."""
    found = rows(file.db, "SELECT bound_to, status, ended_at FROM pruned WHERE id = ?", (id,))
    if found:
        raise Pruned(id, *found[0])


def refuse_drained(file: File, plan: str) -> None:
    """Raises PlanRefused where new runs of a plan are refused."""
    drained = read.drained(file, plan)
    if drained is not None:
        said = f"plan {plan} is drained since {drained.since} by {drained.by}: no new run of it begins"
        raise PlanRefused(f"{said}; `durun drain {plan} --off` lets them begin again; nothing was changed")


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
        with failing(self.db.filename, self.db):  # a cursor that met a failing disk says so once more
            if self.db.in_transaction:
                self.db.execute("COMMIT")


# --- rows ---

# the number of a run that was pruned is not given again: what its driver noted under it may still be there
NEXT = "1 + max(coalesce((SELECT max(no) FROM runs), 0), coalesce((SELECT floor FROM origin), 0))"

RUN_COLUMNS = (
    "id", "name", "version", "namespace", "created_at", "status", "reason", "input", "vars", "pins", "types", "output", "error",
    "ended_by", "cancel", "undoing", "pivot", "paused_at", "next_effect", "next_signal", "updated_at", "ended_at", "driven",
    "awake", "awake_boot", "gap", "over_at", "restored", "tools", "drift",
)  # fmt: skip
INPUT, VARS = RUN_COLUMNS.index("input"), RUN_COLUMNS.index("vars")
EFFECT_COLUMNS = (
    "no", "scope", "state", "visit", "kind", "key", "request", "status", "attempt", "boot", "place", "intended_at", "first_at",
    "ended_at", "exit", "error", "output",
)  # fmt: skip
ANSWER = "scope, state, visit, answer, reject, data, by, note, digest, at"
SENT_COLUMNS = ("no", "name", "payload", "error", "message", "dedupe", "by", "at")
PLAIN = ("scope", "state", "visit", "phase", "effect", "asking", "due")
OTHERS = tuple("" if name in PLAIN else name for name in Position._fields)  # what has no column of its own
DEFAULTS = Position("", "", 0, Phase.READY)

UPSERT_POSITION = (
    "INSERT INTO positions (run, scope, state, visit, phase, effect, asking, due, data) VALUES (?,?,?,?,?,?,?,?,?)"
    " ON CONFLICT (run, scope) DO UPDATE SET state=excluded.state, visit=excluded.visit, phase=excluded.phase,"
    " effect=excluded.effect, asking=excluded.asking, due=excluded.due, data=excluded.data"
)
UPSERT_STATE = (
    "INSERT INTO states (run, scope, state, visits, ended, effect, output, error, exit, peak, child)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (run, scope, state) DO UPDATE SET visits=excluded.visits, ended=excluded.ended,"
    " effect=excluded.effect, output=excluded.output, error=excluded.error, exit=excluded.exit, peak=excluded.peak,"
    " child=excluded.child"
)
INSERT_ITEM = "INSERT INTO items (run, path, no, label, item, status, output, error) VALUES (?,?,?,?,?,?,?,?)"
UPDATE_ITEM = "UPDATE items SET status = ?, output = ?, error = ? WHERE run = ? AND path = ? AND no = ?"
UNTOUCHED = ("not_begun", None, None)
UPSERT_UNDO = (
    "INSERT INTO undos (run, effect, status, request, key, error) VALUES (?,?,?,?,?,?) ON CONFLICT (run, effect) DO UPDATE"
    " SET status=excluded.status, request=excluded.request, error=excluded.error"
)
TAKE_AWAY = (  # what stands inside another, from one path to the next that is none of it
    "DELETE FROM positions WHERE run = ? AND scope >= ? AND scope < ?",
    "DELETE FROM states WHERE run = ? AND scope >= ? AND scope < ?",
)
TAKE_POSITION = "DELETE FROM positions WHERE run = ? AND scope = ?"  # by its key: for a stretch SQLite makes a list of keys first
TAKE_STATE = "DELETE FROM states WHERE run = ? AND scope = ? AND state = ?"
TAKE_ITEMS = "DELETE FROM items WHERE run = ? AND path >= ? AND path < ?"
HOW = ("status", "attempt", "boot", "place", "first_at", "ended_at", "exit", "error", "output")  # what changes of an effect
INTENT = ("no", "scope", "state", "visit", "kind", "key", "request", "intended_at")
UNDER_WAY = ("waiting", "begin")
UPSERT_EFFECT = (
    f"INSERT INTO effects (run, {', '.join((*INTENT, *HOW))}) VALUES (?{',?' * len(INTENT + HOW)}) ON CONFLICT (run, no) DO"
    f" UPDATE SET key=excluded.key, request=excluded.request, {', '.join(f'{name}=excluded.{name}' for name in HOW)}"
)
UPDATE_EFFECT = f"UPDATE effects SET {', '.join(f'{name} = ?' for name in HOW)} WHERE run = ? AND no = ?"
UPSERT_SIGNAL = (
    f"INSERT INTO signals (run, {', '.join(SENT_COLUMNS)}, scope, state, visit) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
    " ON CONFLICT (run, no) DO UPDATE SET scope=excluded.scope, state=excluded.state, visit=excluded.visit"
)


def _run_of(row: tuple[Any, ...]) -> Run:
    v = dict(zip(RUN_COLUMNS, row, strict=True))
    return Run(
        id=v["id"], name=v["name"], version=v["version"], namespace=v["namespace"], started_at=v["created_at"],
        status=Status(v["status"]), reason=v["reason"], input=value_of(v["input"]), vars=value_of(v["vars"]),
        env=value_of(v["pins"])["env"], types=value_of(v["types"]), output=value_of(v["output"]),
        has_output=v["output"] is not None, error=value_of(v["error"]), ended_by=value_of(v["ended_by"]),
        cancel=value_of(v["cancel"]), undoing=value_of(v["undoing"]), pivot=v["pivot"],
        paused_at=v["paused_at"], next_effect=v["next_effect"], updated_at=v["updated_at"],
        ended_at=v["ended_at"], next_signal=v["next_signal"], driven=v["driven"], awake=v["awake"], awake_boot=v["awake_boot"],
        gap=value_of(v["gap"]), over_at=v["over_at"], restored=value_of(v["restored"]), tools=value_of(v["tools"]),
        drift=value_of(v["drift"]),
    )  # fmt: skip


def _position_row(p: Position) -> tuple[Json, ...]:
    # most fields are as usual, and the same object: that is looked at first
    data = {name: v for name, v, usual in zip(OTHERS, p, DEFAULTS, strict=True) if v is not usual and name and v != usual}
    return p.scope, p.state, p.visit, p.phase, p.effect, p.asking, p.due, canonical_text(data) if data else "{}"


def _position_of(row: tuple[Any, ...]) -> Position:
    data = value_of(row[7])
    if "failures" in data:
        data["failures"] = tuple(data["failures"])
    return Position(row[0], row[1], row[2], Phase(row[3]), effect=row[4], asking=row[5], due=row[6], **data)


def _state_row(s: StateRow) -> tuple[Json, ...]:
    output = text_of(s.output) if s.effect is None and s.has_output else None
    return s.scope, s.state, s.visits, int(s.ended), s.effect, output, text_of(s.error), s.exit, s.peak, s.child


def _item_row(i: Item) -> tuple[Json, ...]:
    end = UNTOUCHED if i.status == "not_begun" else _item_end(i)
    return i.path, i.no, i.label, canonical_text(i.item), *end


def _item_end(i: Item) -> tuple[Json, ...]:
    """What changes of an item."""
    return i.status, text_of(i.output) if i.status == "succeeded" else None, text_of(i.error)


def _how_row(e: Effect) -> tuple[Json, ...]:
    """What changes of an effect."""
    output = text_of(e.output) if e.has_output else None
    return e.status, e.attempt, e.boot, e.place, e.first_at, e.ended_at, e.exit, text_of(e.error), output


def _item_of(row: tuple[Any, ...]) -> Item:
    path, no, label, item, status, output, error = row
    return Item(path, no, label, value_of(item), status, value_of(output), value_of(error))


def _state_of(row: tuple[Any, ...]) -> StateRow:
    scope, state, visits, ended, output, effect, error, exit, peak, child = row
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
        peak,
        child,
    )

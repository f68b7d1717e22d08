"""What must hold in the file, looked for row by row: `durun db check`. Reads only, in one view of the file.

Each invariant is a function with a sentence: it gives what breaks it, with the id of the run where there is one. They speak of
the tables as the newest version of the file has them; what a driver is writing meanwhile is not seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import apsw

from durun.machine.draft import status_of
from durun.machine.model import KINDS, Phase, Status
from durun.machine.scope import path_of
from durun.store import read
from durun.store.file import VERSION, File, each, failing, rows, statements
from durun.store.runs import Reading, Store
from durun.values import NamedTuple

Json = Any
Found = Iterator[tuple[str | None, str]]  # (id of the run, what is so)


class Broken(NamedTuple):
    invariant: str
    run: str | None
    what: str


class Audit(NamedTuple):
    looked_at: dict[str, int]
    invariants: list[str]
    broken: list[Broken]


INVARIANTS: dict[str, Callable[[apsw.Connection], Found]] = {}
NO_MESSAGE = "NOT EXISTS (SELECT 1 FROM messages m WHERE m.run = e.run AND m.effect = e.no)"
ENDED = "('succeeded', 'failed', 'cancelled', 'compensated')"
JSON_COLUMNS = {
    "runs": (
        "pins",
        "input",
        "types",
        "vars",
        "output",
        "error",
        "ended_by",
        "cancel",
        "undoing",
        "restored",
        "tools",
        "drift",
    ),
    "large": ("text",),
    "positions": ("data",),
    "states": ("output", "error"),
    "effects": ("request", "error", "output"),
    "notes": ("data",),
    "items": ("item", "output", "error"),
    "undos": ("request",),
    "messages": ("data",),
    "history": ("data",),
}
FITS = {  # phase: the statuses its effect may have; None: there may be none
    "acting": ("begin",),
    "delayed": ("waiting",),
    "held": ("waiting",),
    "queued": (None, "waiting"),
    "lost": ("in_doubt",),
    "probing": ("in_doubt", "not_certain"),
    "doubt": ("in_doubt", "not_certain", "done"),
    "failed": (None, "done", "not_done", "not_certain", "in_doubt", "withdrawn"),
    "ended": (None, "done", "not_done", "not_certain", "in_doubt", "withdrawn"),
}


def audit(file: File) -> Audit:
    """Looks at all of it. Raises StoreUnusable where it cannot be read."""
    broken = []
    with failing(file.path), Reading(file.db) as db:
        counted = {
            name: rows(db, f"SELECT count(*) FROM {name}")[0][0]
            for name in ("runs", "positions", "effects", "history", "plans", "notes")
        }
        leaving = {f"number {no}" for (no,) in rows(db, "SELECT run FROM leaving")}
        for name, look in INVARIANTS.items():
            broken += [b for b in _looked(name, lambda look=look: look(db)) if b.run not in leaving]  # type: ignore[misc]
        broken += _looked("status", lambda: _statuses(file, db))
    return Audit(counted, [*INVARIANTS, "status"], broken)


def _looked(name: str, look: Callable[[], Found]) -> list[Broken]:
    """What breaks an invariant; what cannot even be looked at is not as it was stored."""
    found = []
    try:
        for run, what in look():
            found.append(Broken(name, run, what))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        found.append(Broken(name, None, f"cannot be looked at: {type(e).__name__}: {e}"))
    return found


def _invariant(look: Callable[[apsw.Connection], Found]) -> Callable[[apsw.Connection], Found]:
    INVARIANTS[look.__name__] = look
    return look


def _ids(db: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Found:
    """Rows of (number of a run, what is so), with the id in place of the number."""
    for no, *words in each(db, sql, values):
        yield _of(db, no, " ".join(map(str, words)))


def _of(db: apsw.Connection, no: int, what: str) -> tuple[str | None, str]:
    found = rows(db, "SELECT id FROM runs WHERE no = ?", (no,))
    return (found[0][0] if found else f"number {no}"), what


# --- the file ---


@_invariant
def integrity(db: apsw.Connection) -> Found:
    """SQLite finds its pages, indexes and constraints whole."""
    for (said,) in rows(db, "PRAGMA integrity_check(50)"):
        if said != "ok":
            yield None, said


@_invariant
def foreign_keys(db: apsw.Connection) -> Found:
    """What a row refers to is there."""
    for table, _, parent, _ in each(db, "PRAGMA foreign_key_check"):
        if parent in ("runs", "effects") and rows(db, "SELECT 1 FROM leaving"):
            continue  # of what is taken away bit by bit the run goes first
        yield None, f"a row of {table} refers to one of {parent} that is not there"


@_invariant
def schema(db: apsw.Connection) -> Found:
    """Tables, indexes and views are those that the migrations make."""
    made = apsw.Connection(":memory:")
    for version in range(1, VERSION + 1):
        for statement in statements(version):
            made.execute(statement).fetchall()
    asked = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE substr(name, 1, 7) <> 'sqlite_'"
    wanted, there = dict(rows(made, asked)), dict(rows(db, asked))
    made.close()
    for name in sorted({*wanted, *there}):
        if _bare(wanted.get(name)) != _bare(there.get(name)):
            yield None, f"the {name} is {'missing' if name not in there else 'unknown' if name not in wanted else 'another'}"


def _bare(sql: str | None) -> str:
    """A statement without its comments and its spaces: they say nothing of what it makes."""
    return "".join("".join(line.partition("--")[0] for line in (sql or "").splitlines()).split())


@_invariant
def json_well_formed(db: apsw.Connection) -> Found:
    """What is stored as JSON is JSON."""
    for table, columns in JSON_COLUMNS.items():
        key = "no" if table == "runs" else "run"
        odd = [f"{column} IS NOT NULL AND NOT json_valid({column})" for column in columns]  # each table is read once
        for no, *found in each(db, f"SELECT {key}, {', '.join(odd)} FROM {table} WHERE {' OR '.join(odd)}"):
            for column in [column for column, is_odd in zip(columns, found, strict=True) if is_odd]:
                yield _of(db, no, f"{table}.{column} holds no JSON")


@_invariant
def digests(db: apsw.Connection) -> Found:
    """A plan, a long script and a pinned file have the digest they are stored under."""
    for digest, text in each(db, "SELECT digest, canonical FROM plans UNION ALL SELECT digest, text FROM literals"):
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != digest:
            users = [r[0] for r in rows(db, "SELECT id FROM runs WHERE plan = ?", (digest,))] or [None]
            for id in users:
                yield id, f"the text stored as {digest[:12]} has another digest"
    for digest, content in each(db, "SELECT digest, content FROM files"):
        if hashlib.sha256(content if isinstance(content, bytes) else str(content).encode()).hexdigest() != digest:
            sql = "SELECT DISTINCT id FROM runs JOIN pinned ON run = no JOIN trees USING (tree) WHERE digest = ?"
            for id in [r[0] for r in rows(db, sql, (digest,))] or [None]:
                yield id, f"the content stored as {digest[:12]} has another digest"


# --- a run and its position ---


@_invariant
def position(db: apsw.Connection) -> Found:
    """A run stands somewhere, and its row says where."""
    yield from _ids(db, "SELECT no, 'stands nowhere' FROM runs WHERE no NOT IN (SELECT run FROM positions WHERE scope = '')")
    sql = (
        "SELECT r.no, 'its row says ' || coalesce(r.state, 'nowhere') || ', its position ' || p.state FROM runs r"
        " JOIN positions p ON p.run = r.no AND p.scope = '' WHERE (r.state, r.visit, r.due) IS NOT (p.state, p.visit, p.due)"
    )
    yield from _ids(db, sql)


@_invariant
def states_of_the_plan(db: apsw.Connection) -> Found:
    """A run stands in, and has visited, states that its plan has."""
    known: dict[str, Any] = {}  # plan -> its states; None where they cannot be told
    for table in ("positions", "states"):
        sql = (
            f"SELECT r.no, t.state, r.plan FROM {table} t JOIN runs r ON r.no = t.run"
            f" WHERE t.scope = ''{' AND t.run NOT IN (SELECT run FROM plans_left)' if table == 'states' else ''}"
        )  # of a plan that was left, what is counted of its states stays
        for no, state, plan in each(db, sql):
            if plan not in known:
                known[plan] = _states_in(db, plan)
            if known[plan] is not None and state not in known[plan]:
                yield _of(db, no, f"{table} has the state {state}, its plan has not")


def _states_in(db: apsw.Connection, plan: str) -> Any:
    try:
        return json.loads(rows(db, "SELECT canonical FROM plans WHERE digest = ?", (plan,))[0][0])["states"]
    except (ValueError, KeyError, IndexError):
        return None  # what is wrong with the plan is said of its digest


@_invariant
def ended(db: apsw.Connection) -> Found:
    """A run that has ended says when, and has nothing under way; one that has not ended does not."""
    yield from _ids(
        db, f"SELECT no, 'is', status, 'and has no time of its end' FROM runs WHERE status IN {ENDED} AND ended_at IS NULL"
    )
    yield from _ids(
        db, f"SELECT no, 'is', status, 'and has a time of its end' FROM runs WHERE status NOT IN {ENDED} AND ended_at > 0"
    )
    sql = (
        "SELECT r.no, 'is', r.status, 'and its effect', e.no, 'is', e.status FROM runs r JOIN effects e ON e.run = r.no"
        f" WHERE r.status IN {ENDED} AND e.status IN ('begin', 'waiting') AND {NO_MESSAGE} AND e.kind <> 'once'"
    )
    yield from _ids(db, sql)
    sql = (
        "SELECT r.no, 'is', r.status, 'and stands in', p.state, 'as', p.phase FROM runs r JOIN positions p ON p.run = r.no"
        f" WHERE r.status IN {ENDED} AND p.phase NOT IN ('failed', 'ended')"
    )
    yield from _ids(db, sql)
    yield from _ids(
        db,
        f"SELECT no, 'has ended, and a note lies in its inbox' FROM runs WHERE status IN {ENDED} AND no IN (SELECT run FROM notes)",
    )


@_invariant
def paused(db: apsw.Connection) -> Found:
    """A paused run says since when."""
    yield from _ids(
        db, "SELECT no, 'is paused, and does not say since when' FROM runs WHERE status = 'paused' AND paused_at IS NULL"
    )


@_invariant
def driver(db: apsw.Connection) -> Found:
    """The driver that a run names is known."""
    sql = (
        "SELECT no, 'names the driver', driver, 'that is not there' FROM runs"
        " WHERE driver IS NOT NULL AND driver NOT IN (SELECT place FROM drivers)"
    )
    yield from _ids(db, sql)


def _statuses(file: File, db: apsw.Connection) -> Found:
    """The status of a run in flight is what its positions say."""
    store = Store(file)
    for no, id in rows(db, f"SELECT no, id FROM runs WHERE {read.OPEN} AND status IN ('running', 'waiting', 'blocked')"):
        try:
            at = store.load(no, inside=True)
        except (ValueError, KeyError, IndexError, TypeError) as e:
            yield id, f"cannot be loaded: {type(e).__name__}: {e}"
            continue
        if at.run.undoing is not None or at.run.restored is not None:
            continue
        if at.run.cancel is not None and "pids" in at.run.cancel:
            continue  # blocked, since what is being stopped does not end
        said = (Status.BLOCKED, "drift") if at.run.held_up() else status_of(list(at.positions.values()))
        if at.positions and said != (at.run.status, at.run.reason):
            words = [f"{status} ({reason})" if reason else str(status) for status, reason in (said, (at.run.status, at.run.reason))]
            yield id, f"its positions say {words[0]}, its row {words[1]}"


# --- effects ---


@_invariant
def effect_of_a_position(db: apsw.Connection) -> Found:
    """The effect of a position is there, belongs to its visit, and has a status that fits the phase."""
    sql = (
        "SELECT p.run, p.state, p.visit, p.phase, p.effect, p.asking, e.no, e.status, e.state, e.visit, a.no, a.status"
        " FROM positions p LEFT JOIN effects e ON e.run = p.run AND e.no = p.effect"
        " LEFT JOIN effects a ON a.run = p.run AND a.no = p.asking"
    )
    for no, state, visit, phase, effect, asking, there, status, its_state, its_visit, asked, asked_status in each(db, sql):
        said = None
        if effect is not None and there is None:
            said = f"{state} is {phase}, its effect {effect} is not there"
        elif effect is not None and (its_state, its_visit) != (state, visit) and state != "undo":
            said = f"{state} visit {visit} has an effect of {its_state} visit {its_visit}"
        elif phase in FITS and status not in FITS[phase]:
            said = f"{state} is {phase}, its effect {'missing' if effect is None else status}"
        elif asking is not None and asked is None:
            said = f"{state} is {phase}, the effect {asking} of its probe is not there"
        elif phase == Phase.PROBING and asked_status not in ("begin", "waiting"):
            said = f"{state} is {phase}, its probe {asked_status or 'missing'}"
        if said is not None:
            yield _of(db, no, said)


@_invariant
def under_way(db: apsw.Connection) -> Found:
    """What is to begin or has begun belongs to a position; its boot and place are known just from then on."""
    sql = (
        "SELECT e.run, 'its effect', e.no, 'of', e.state, 'is', e.status, 'and nothing stands there' FROM effects e"
        " WHERE e.status IN ('begin', 'waiting') AND e.kind IN ('run', 'http', 'probe', 'undo') AND NOT EXISTS"
        f" (SELECT 1 FROM positions p WHERE p.run = e.run AND e.no IN (p.effect, p.asking)) AND {NO_MESSAGE}"
    )
    yield from _ids(db, sql)
    yield from _ids(
        db,
        "SELECT run, 'its effect', no, 'begins in no place' FROM effects"
        " WHERE status = 'begin' AND (boot IS NULL OR place IS NULL) AND kind <> 'once'",
    )
    yield from _ids(
        db, "SELECT run, 'its effect', no, 'waits, and has a place' FROM effects WHERE status = 'waiting' AND place IS NOT NULL"
    )


@_invariant
def places(db: apsw.Connection) -> Found:
    """A place is held by an effect that is under way, and one for each."""
    sql = (
        "SELECT p.run, 'its effect', p.effect, 'is', coalesce(e.status, 'not there'), 'and holds a place of', p.name FROM places p"
        " LEFT JOIN effects e ON e.run = p.run AND e.no = p.effect WHERE p.open = 1 AND e.status IS NOT 'begin'"
    )
    yield from _ids(db, sql)


@_invariant
def queue(db: apsw.Connection) -> Found:
    """Who waits for a place of a limit is in its queue, and nobody else is."""
    wants = "json_extract(p.data, '$.wants.limit')"
    sql = (
        f"SELECT p.run, p.state, 'waits for', {wants}, 'and is not in its queue' FROM positions p"
        f" LEFT JOIN queue q ON q.run = p.run AND q.scope = p.scope AND q.name = {wants}"
        f" WHERE p.phase = 'queued' AND {wants} IS NOT NULL AND q.run IS NULL"
    )
    yield from _ids(db, sql)
    sql = (
        "SELECT q.run, 'is in the queue of', q.name, 'and does not wait for it' FROM queue q LEFT JOIN positions p ON p.run = q.run"
        f" AND p.scope = q.scope AND p.phase = 'queued' AND q.name = {wants} WHERE p.run IS NULL"
    )
    yield from _ids(db, sql)


@_invariant
def groups(db: apsw.Connection) -> Found:
    """Of a group only the oldest run that has not ended is past its beginning."""
    sql = (
        "SELECT g.run, 'goes on, and an older run of its group', g.name, 'has not ended' FROM grouped g JOIN runs r ON r.no = g.run"
        f" JOIN positions p ON p.run = g.run AND p.scope = '' WHERE r.status NOT IN {ENDED} AND p.phase NOT IN ('queued', 'ended')"
        f" AND EXISTS (SELECT 1 FROM grouped o JOIN runs b ON b.no = o.run"
        f" WHERE o.name = g.name AND o.run < g.run AND b.status NOT IN {ENDED})"
    )
    yield from _ids(db, sql)


@_invariant
def effect_numbers(db: apsw.Connection) -> Found:
    """The effects of a run are numbered from 1, without gaps, up to the next one."""
    sql = (
        "SELECT r.no, 'its next effect is', next_effect, 'after', count(e.no), 'effects up to', coalesce(max(e.no), 0)"
        " FROM runs r LEFT JOIN effects e ON e.run = r.no AND e.no > 0 GROUP BY r.no"
        " HAVING count(e.no) <> next_effect - 1 OR coalesce(max(e.no), 0) <> next_effect - 1"
    )
    yield from _ids(db, sql)


@_invariant
def keys(db: apsw.Connection) -> Found:
    """No two acts of a run have the same key, but where the plan gives it."""
    sql = (
        "SELECT e.run, e.key, min(e.state), count(*) FROM effects e WHERE e.kind = 'run' GROUP BY e.run, e.key"
        " HAVING count(*) > 1 OR e.key = ''"
    )
    for no, key, state, count in each(db, sql):
        plan = rows(db, "SELECT canonical FROM runs JOIN plans ON digest = plan WHERE no = ?", (no,))
        if key == "" or (plan and '"key":' not in plan[0][0]):
            yield _of(db, no, f"{count} effects of {state} have the key {key!r}")


@_invariant
def scripts(db: apsw.Connection) -> Found:
    """A script that is stored by its digest is there."""
    sql = (
        "SELECT run, 'the script of its effect', no, 'is not there' FROM effects WHERE instr(request, '\"script_of\"')"
        " AND json_valid(request) AND json_extract(request, '$.script_of') IS NOT NULL"
        " AND json_extract(request, '$.script_of') NOT IN (SELECT digest FROM literals)"
    )
    yield from _ids(db, sql)


MESSAGES = {  # the status of a message: those its effect may have
    "waiting": ("waiting", "not_done", "not_certain", "in_doubt"),
    "sending": ("begin", "not_done", "not_certain", "in_doubt"),  # while its probe is asked the effect has ended
    "delivered": ("done",),
    # of what nobody delivers any more it may turn out, as its run is undone, that it was done
    "dead": ("not_done", "not_certain", "in_doubt", "done"),
    "dropped": ("withdrawn", "not_done", "not_certain", "in_doubt", "done"),
    "withdrawn": ("withdrawn", "not_done", "not_certain", "in_doubt", "done"),
}


@_invariant
def messages(db: apsw.Connection) -> Found:
    """What is left to be delivered is in the log of effects, and stands there as it does here; only one that is sent is claimed."""
    sql = (
        "SELECT m.run, m.effect, m.status, m.place, m.due, e.status FROM messages m"
        " LEFT JOIN effects e ON e.run = m.run AND e.no = m.effect"
    )
    for run, no, status, place, due, effect in each(db, sql):
        if effect not in MESSAGES[status]:
            yield _of(db, run, f"its message {no} is {status}, and its effect is {effect or 'not there'}")
        if (status == "sending") != (place is not None):
            yield _of(db, run, f"its message {no} is {status}, and is claimed by {place or 'nobody'}")
        if (status == "waiting") != (due is not None):
            yield _of(db, run, f"its message {no} is {status}, and is due {'never' if due is None else 'at a time'}")


@_invariant
def visits(db: apsw.Connection) -> Found:
    """No effect and no position is of a visit that its state never had; the effect that gave an output is there.

    A branch or item that has ended leaves nothing to compare with, and an undo has no visits of its own.
    """
    for table in ("effects", "positions"):
        sql = (
            f"SELECT t.run, '{table}: visit', t.visit, 'of', t.state, 'which had', coalesce(s.visits, 0) FROM {table} t"
            " LEFT JOIN states s ON s.run = t.run AND s.scope = t.scope AND s.state = t.state WHERE t.visit > coalesce(s.visits, 0)"
            " AND (t.scope = '' OR s.visits IS NOT NULL) AND t.scope NOT LIKE '%~' AND t.state NOT LIKE 'notify:%'"
            f"{' AND t.no > 0' * (table == 'effects')}"
        )
        yield from _ids(db, sql)
    sql = (
        "SELECT s.run, 'the effect', s.effect, 'of the output of', s.state, 'is not there' FROM states s WHERE s.effect IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM effects e WHERE e.run = s.run AND e.no = s.effect)"
    )
    yield from _ids(db, sql)


@_invariant
def items(db: apsw.Connection) -> Found:
    """What a state counts of its branches or items is what their rows say; but not while a run is stopped whose time is over."""
    count = "SELECT status, count(*) FROM items WHERE run = ? AND path = ? GROUP BY status"
    over = "SELECT no FROM runs WHERE CASE WHEN json_valid(cancel) THEN json_extract(cancel, '$.error') END IS NOT NULL"
    stopped = {no for (no,) in rows(db, over)}
    for run, scope, state, data in each(db, "SELECT run, scope, state, data FROM positions WHERE phase = 'inside'"):
        if run in stopped:
            continue
        path, said = path_of(scope, state), json.loads(data) if json_valid(data) else {}
        there = dict(rows(db, count, (run, path)))
        wanted = {"succeeded": said.get("won", 0), "failed": said.get("lost", 0), "stopped": said.get("gone", 0)}
        whole = rows(db, "SELECT 1 FROM positions WHERE run = ? AND scope = ?", (run, path + "/")) or sum(
            there.values()
        ) == said.get("total", 0)
        if not whole or (there and wanted != {status: there.get(status, 0) for status in wanted}):
            yield _of(db, run, f"{path} counts {wanted}, its rows are {there}")


@_invariant
def begun(db: apsw.Connection) -> Found:
    """A branch or item that has begun, and not ended, has a position of its own, as long as what holds it stands."""
    path = "CASE WHEN p.scope = '' OR p.scope LIKE '%/' THEN p.scope ELSE p.scope || '.' END || p.state"
    sql = (
        f"SELECT i.run, i.label, 'of', i.path, 'has begun, and stands nowhere' FROM positions p JOIN runs r ON r.no = p.run"
        f" CROSS JOIN items i ON i.run = p.run AND i.path = {path} AND i.status = 'begun'"
        f" WHERE p.phase = 'inside' AND r.status NOT IN {ENDED} AND NOT EXISTS (SELECT 1 FROM positions q"
        " WHERE q.run = i.run AND q.scope IN (i.path || '[' || i.label || ']', i.path || '.' || i.label))"
    )
    yield from _ids(db, sql)


def json_valid(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@_invariant
def undos(db: apsw.Connection) -> Found:
    """An undo is of an effect that is there."""
    sql = (
        "SELECT u.run, 'an undo of the effect', u.effect, 'that is not there' FROM undos u"
        " WHERE NOT EXISTS (SELECT 1 FROM effects e WHERE e.run = u.run AND e.no = u.effect)"
    )
    yield from _ids(db, sql)


@_invariant
def onces(db: apsw.Connection) -> Found:
    """A once has a number below 0 and a record, belongs to a command of its run, and is told where it is done."""
    sql = (
        "SELECT e.run, e.no, e.kind, o.effect, s.kind, e.status, coalesce(o.stdout, e.error, e.output) IS NULL FROM effects e"
        " LEFT JOIN onces o ON o.run = e.run AND o.effect = e.no LEFT JOIN effects s ON s.run = e.run AND s.no = o.step"
        " WHERE e.no <= 0 OR e.kind = 'once'"
    )
    for run, no, kind, record, step, status, silent in each(db, sql):
        if kind != "once" or no >= 0:
            yield _of(db, run, f"its effect {no} is of the kind {kind}")
        elif record is None or step != "run":
            yield _of(db, run, f"its once {no} has no {'record' if record is None else 'step'}")
        elif status == "done" and silent:
            yield _of(db, run, f"its once {no} is done, and there is nothing to tell")


@_invariant
def large(db: apsw.Connection) -> Found:
    """An input, or vars, are in the row of their run or beside it: in one of the two."""
    for what in ("input", "vars"):
        beside = f"EXISTS (SELECT 1 FROM large WHERE run = no AND what = '{what}')"
        yield from _ids(db, f"SELECT no, 'its {what}', iif({what} IS NULL, 'is nowhere', 'is there twice') FROM runs"
                        f" WHERE ({what} IS NULL) <> {beside}")  # fmt: skip


# --- history ---


@_invariant
def history_without_gaps(db: apsw.Connection) -> Found:
    """The history of a run is numbered from 1 without gaps, up to what its row counts."""
    sql = (
        "SELECT r.no, 'counts', events, 'events; there are', count(h.no), 'up to', coalesce(max(h.no), 0) FROM runs r"
        " LEFT JOIN history h ON h.run = r.no GROUP BY r.no HAVING count(h.no) <> events OR coalesce(max(h.no), 0) <> events"
        " OR coalesce(min(h.no), 1) <> 1"
    )
    yield from _ids(db, sql)


@_invariant
def history_kinds(db: apsw.Connection) -> Found:
    """History speaks of what can happen, and of effects that are there."""
    for kind in [kind for (kind,) in rows(db, "SELECT DISTINCT kind FROM history") if kind not in KINDS]:
        for (no,) in each(db, "SELECT DISTINCT run FROM history WHERE kind = ?", (kind,)):
            yield _of(db, no, f"its history has {kind!r}, which nothing is called")
    sql = (
        "SELECT h.run, 'event', h.no, 'speaks of an effect that is not there' FROM history h"
        " WHERE instr(h.data, '\"effect\"') AND json_valid(h.data) AND json_extract(h.data, '$.effect') IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM effects e WHERE e.run = h.run AND e.no = json_extract(h.data, '$.effect'))"
    )
    yield from _ids(db, sql)


@_invariant
def of_a_run(db: apsw.Connection) -> Found:
    """Every row belongs to a run."""
    for table in ("large", "positions", "states", "effects", "undos", "onces", "notes", "history"):
        yield from _ids(
            db, f"SELECT DISTINCT run, 'is no run, and has rows in {table}' FROM {table} WHERE run NOT IN (SELECT no FROM runs)"
        )

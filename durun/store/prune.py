"""Taking away what has ended: rows, logs, and what nobody belongs to any more.

Rules:
- never a run that has not ended, that owes an undo (one that succeeded owes none), or of which something is undelivered
- the rows go first, the logs after: what is left by a process that dies between belongs to nobody, and goes with the next prune
- no transaction is long: small runs go some together, and the rows of a large one bit by bit once it is gone itself, noted in
  `leaving` until they are; between two of them whoever waits for the file has it
- what goes is overwritten; space is given back where no driver lives and that takes a moment, else where a person asks for it;
  otherwise it is used again by what comes
- a number is not given again
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apsw

from durun.store.file import File, each, failing, rows
from durun.store.read import CLOSED, OPEN, UNDELIVERED
from durun.values import NamedTuple

AT_ONCE = 100  # runs in one transaction,
ROWS = 2000  # and about so many of their rows,
BYTES = 4 * 1024 * 1024  # or so much of what they hold: all of it is overwritten, and the log of SQLite takes as much meanwhile,
FEW = 16  # seen after each so many rows; so nobody waits long for it
PAGE = 1000  # runs that are looked at in one read
GAP = 0.006  # s between two transactions: longer than whoever waits for the file sleeps before it asks again
YOUNG = 3_600_000  # ms in which what belongs to nobody may be about to
MOMENT = 64 * 1024 * 1024  # bytes that are written anew in a moment; of more nobody is kept from writing unasked
KEPT = {
    "in_flight": f"NOT ({CLOSED})",
    "owed": "status IN ('failed', 'cancelled') AND EXISTS (SELECT 1 FROM undos u WHERE u.run = runs.no"
    " AND u.status IN ('owed', 'registered', 'failed'))",
    "undelivered": f"EXISTS (SELECT 1 FROM messages m WHERE m.run = runs.no AND m.{UNDELIVERED})",
}
HEAVY = (  # of a run: its rows, and what its own row holds as if that were rows
    "events + 2 * next_effect + (coalesce(octet_length(input), 0) + coalesce(octet_length(vars), 0)"
    f" + coalesce(octet_length(output), 0)) / {BYTES // ROWS}"
)
AT_ONCE_GONE = ("positions", "notes", "queue", "grouped", "places")  # what is asked of the whole file, and is never many of a run


class Pruned(NamedTuple):
    ids: list[str]
    kept: dict[str, list[str]]  # why -> the runs
    remembered: int
    forgotten: int
    files: int
    bytes: int  # of those files
    size: tuple[int, int]  # of the database, before and after
    shrunk: bool  # False: a driver lives, or it is too much to be done unasked, and what is free in the file is used again
    free: int  # bytes in the file that it does not use
    finished: int  # runs that an earlier prune had left half done


class Ended(NamedTuple):
    """A run that has ended; `rows` is about how many it has."""

    no: int
    id: str
    rows: int
    owed: bool
    undelivered: bool


def why_kept(file: File, no: int) -> str | None:
    """Why a run may not be pruned; None where it may."""
    for why, sql in KEPT.items():
        if rows(file.db, f"SELECT 1 FROM runs WHERE no = ? AND {sql}", (no,)):
            return why
    return None


def prune(
    file: File, alive: Callable[[str], bool], now: int, *, only: int | None, before: int, forget: bool, shrink: bool = False
) -> Pruned:
    """Takes away one run, or all that ended before a time; and logs that belong to none. `shrink`: space is given back however
    long it takes, and meanwhile nobody writes."""
    size, db = _size(file), file.db
    ids: list[str] = []
    kept: dict[str, list[str]] = {}
    remembered, files = 0, [0, 0]
    with failing(file.path, db):
        db.execute("PRAGMA secure_delete=ON").fetchall()
        db.execute("PRAGMA foreign_keys=OFF").fetchall()  # to each run it would look for rows that are taken away here by name
        finished = _rest(file, files)
        for some in _batches(_ended(file, only, before), kept):
            gone, names, logs = _take(file, some, now, forget=forget)
            ids, remembered = ids + gone, remembered + names
            _unlink(file.folder, logs, files)
            _rest(file, files)
        forgotten = _forget(file, before) if forget and only is None else 0
        living = _any_driver(file, alive)
        if only is None:
            _orphans(file, alive, files, now)
        if not living and ids:
            _without_owner(file)
        shrunk = not living and _shrink(file, most=None if shrink else MOMENT)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("PRAGMA foreign_keys=ON").fetchall()
        free = _free(db)
    return Pruned(ids, kept, remembered, forgotten, files[0], files[1], (size, _size(file)), shrunk, free, finished)


def _any_driver(file: File, alive: Callable[[str], bool]) -> bool:
    """Whether a driver lives. One that was killed and holds no run any more is forgotten."""
    known = [place for (place,) in rows(file.db, "SELECT place FROM drivers")]
    dead = [place for place in known if not alive(place)]
    if dead:
        with file.write() as db:
            sql = "DELETE FROM drivers WHERE place = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE driver = ?1)"
            db.executemany(sql, [(place,) for place in dead])
    return len(dead) < len(known)


def forget(file: File, id: str) -> bool:
    """Forgets an id whose run was pruned before. False where none is known."""
    with file.write() as db:
        db.execute("DELETE FROM pruned WHERE id = ?", (id,))
        return db.changes() == 1


# --- runs ---


def _ended(file: File, only: int | None, before: int) -> Iterator[Ended]:
    """The runs that have ended before a time, the first to end first; some are read at a time, and then none is."""
    kept = f"{KEPT['owed']}, {KEPT['undelivered']}"
    what = f"SELECT ended_at, no, id, {HEAVY}, {kept} FROM runs"
    if only is not None:
        yield from (Ended(*row[1:]) for row in rows(file.db, f"{what} WHERE {CLOSED} AND no = ?", (only,)))
        return
    last: tuple[int, int] = (-1, -1)
    further = "ended_at IS NOT NULL AND ended_at < ? AND (ended_at, no) > (?, ?) ORDER BY ended_at, no LIMIT ?"
    sql = f"{what} INDEXED BY runs_ended_at WHERE {CLOSED} AND {further}"
    while found := rows(file.db, sql, (before, *last, PAGE)):
        last = found[-1][:2]
        yield from (Ended(*row[1:]) for row in found)


def _batches(ended: Iterable[Ended], kept: dict[str, list[str]]) -> Iterator[list[Ended]]:
    """Those that may go, some at a time; those that may not are told in `kept`."""
    some: list[Ended] = []
    for run in ended:
        for why in ("owed", "undelivered"):
            if getattr(run, why):
                kept.setdefault(why, []).append(run.id)
        if run.owed or run.undelivered:
            continue
        if some and (len(some) >= AT_ONCE or sum(one.rows for one in some) + run.rows > ROWS):
            yield some
            some = []
        some.append(run)
    if some:
        yield some


def _may_go() -> str:
    return " AND ".join(f"NOT ({sql})" for sql in KEPT.values())


def _take(file: File, some: list[Ended], now: int, *, forget: bool) -> tuple[list[str], int, list[str]]:
    """One transaction: (the ids that are gone, how many of them are remembered, the logs that are now nobody's)."""
    with file.write() as db:
        # asked again: a person may have taken one up meanwhile
        marks = ",".join("?" * len(some))
        asked = f"SELECT no, id, named, {HEAVY} FROM runs WHERE no IN ({marks}) AND {_may_go()}"
        going = rows(db, asked, tuple(run.no for run in some))
        nos = [row[0] for row in going]
        small = _fitting(db, [row[0] for row in going if row[3] <= ROWS])
        large = [no for no in nos if no not in small]
        marks, few = ",".join("?" * len(nos)), ",".join("?" * len(small))
        logs = [path for table in LOGS for path in _logs(db, table, f"run IN ({few})", small)]
        if not forget:
            db.execute(
                "INSERT OR REPLACE INTO pruned (id, name, bound_to, status, ended_at, pruned_at)"
                f" SELECT id, name, bound_to, status, ended_at, ? FROM runs WHERE named AND no IN ({marks})",
                (now, *nos),
            )
        for table in _belonging(db):
            db.execute(f"DELETE FROM {table} WHERE run IN ({few})", small)
        for table in AT_ONCE_GONE if large else ():
            db.executemany(f"DELETE FROM {table} WHERE run = ?", [(no,) for no in large])
        db.executemany("INSERT INTO leaving (run) VALUES (?)", [(no,) for no in large])
        db.execute(f"DELETE FROM runs WHERE no IN ({marks})", nos)
        db.execute("UPDATE origin SET floor = max(floor, ?)", (max(nos, default=0),))
    time.sleep(GAP)
    ids, remembered = [row[1] for row in going], sum(row[2] for row in going) * (not forget)
    return ids, remembered, [*logs, *(f"{no}.driver.log" for no in nos)]


def _fitting(db: apsw.Connection, nos: list[int]) -> list[int]:
    """Those whose rows hold little enough to go in one transaction."""
    sizes = dict.fromkeys(nos, 0)
    for table in _belonging(db):
        held = [row[1] for row in rows(db, f"PRAGMA table_info({table})") if row[2] in ("TEXT", "BLOB")]
        held_by = " + ".join(f"coalesce(octet_length({column}), 0)" for column in held) or "0"
        marks = ",".join("?" * len(nos))
        for no, many in rows(db, f"SELECT run, sum({held_by}) FROM {table} WHERE run IN ({marks}) GROUP BY run", tuple(nos)):
            sizes[no] += many
    left, fitting = BYTES, []
    for no, size in sizes.items():
        if size <= left:
            left -= size
            fitting.append(no)
    return fitting


def _belonging(db: apsw.Connection) -> list[str]:
    """The tables whose column `run` refers to a run, or to an effect of one, as the file itself says."""
    tables = [name for (name,) in rows(db, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    named = {table: {(fk[2], fk[3]) for fk in rows(db, f"PRAGMA foreign_key_list({table})")} for table in tables}
    return [table for table, refers in named.items() if refers & {("runs", "run"), ("effects", "run")}]


def _rest(file: File, files: list[int]) -> int:
    """What large runs that are gone have left, bit by bit; each is lost in a power cut without saying anything wrong. How many runs
    there were."""
    count = 0
    while found := rows(file.db, "SELECT run FROM leaving LIMIT 1"):
        run = found[0][0]
        for table in _belonging(file.db):
            while _some_of(file, table, run, files):
                time.sleep(GAP)
        with file.write() as db:
            db.execute("DELETE FROM leaving WHERE run = ?", (run,))
        count += 1
    return count


def _some_of(file: File, table: str, run: int, files: list[int]) -> bool:
    """Some rows of a table that a run has left, with the logs they name, in one transaction. False where there are none."""
    if not rows(file.db, f"SELECT 1 FROM {table} WHERE run = ? LIMIT 1", (run,)):
        return False
    key = ", ".join(row[1] for row in rows(file.db, f"PRAGMA table_info({table})") if row[5]) or "rowid"
    these = f"({key}) IN (SELECT {key} FROM {table} WHERE run = ? LIMIT ?)"
    logs: list[str] = []
    with file.write(synced=False) as db:
        before, many, gone = _free(db), 1, 0
        while many and gone < ROWS and _free(db) - before < BYTES:
            most = min(gone + 1, FEW, ROWS - gone)
            logs += _logs(db, table, these, (run, most)) if table in LOGS else []
            db.execute(f"DELETE FROM {table} WHERE {these}", (run, most))
            many = int(db.changes())
            gone += many
    _unlink(file.folder, logs, files)
    return True


def _free(db: apsw.Connection) -> int:
    """Bytes of the file that nothing uses."""
    return int(rows(db, "PRAGMA freelist_count")[0][0] * rows(db, "PRAGMA page_size")[0][0])


LOGS = {  # of each table the logs that its rows name, in the folder of the database
    "history": "SELECT data ->> 'out', data ->> 'err' FROM history WHERE kind = 'attempt_ended'",
    "messages": "SELECT l.value ->> 1, l.value ->> 2 FROM messages, json_each(data, '$.logs') l WHERE 1",
    "onces": "SELECT 'once/' || file, NULL FROM onces WHERE 1",
}


def _logs(db: apsw.Connection, table: str, which: str, values: Iterable[Any]) -> list[str]:
    """The paths of what commands printed, as some rows of a table name them."""
    return [path for row in rows(db, f"{LOGS[table]} AND {which}", tuple(values)) for path in row if path]


def _forget(file: File, before: int) -> int:
    with file.write() as db:
        db.execute("DELETE FROM pruned WHERE ended_at < ?", (before,))
        return int(db.changes())


NOT_NAMED = {  # of each table what nothing names any more; all runs and effects are read for it
    "plans": "digest NOT IN (SELECT plan FROM runs UNION SELECT plan FROM plans_left)",
    "trees": "tree NOT IN (SELECT tree FROM pinned)",
    "files": "digest NOT IN (SELECT digest FROM trees)",
    "literals": "digest NOT IN (SELECT json_extract(request, '$.script_of') FROM effects WHERE instr(request, '\"script_of\"')"
    " AND json_extract(request, '$.script_of') IS NOT NULL)",
}


def _without_owner(file: File) -> None:
    """Plans, pinned files and long scripts of which no run is left. A living driver may be about to name one of them again; so it
    is looked for without holding the file, and taken away only where nobody has written since."""
    for table, unnamed in NOT_NAMED.items():
        key = "tree" if table == "trees" else "digest"
        seen = rows(file.db, "PRAGMA data_version")
        found = rows(file.db, f"SELECT DISTINCT {key} FROM {table} WHERE {unnamed}")
        if not found:
            continue
        with file.write() as db:
            if rows(db, "PRAGMA data_version") != seen:
                return  # a later prune finds it
            if table == "plans":
                db.executemany("DELETE FROM checked WHERE plan = ?", found)
            db.executemany(f"DELETE FROM {table} WHERE {key} = ?", found)


# --- the folder ---

BUSY = (  # the places of drivers, and of what has begun: in runs in flight, of messages, and of what a step left behind
    "SELECT place FROM drivers"
    " UNION SELECT e.place FROM runs r INDEXED BY runs_open CROSS JOIN positions p ON p.run = r.no"
    f" CROSS JOIN effects e ON e.run = p.run AND e.no IN (p.effect, p.asking) WHERE r.{OPEN} AND e.status = 'begin'"
    f" UNION SELECT e.place FROM messages m CROSS JOIN effects e ON e.run = m.run AND e.no = m.effect WHERE m.{UNDELIVERED}"
    " UNION SELECT e.place FROM onces o CROSS JOIN effects e ON e.run = o.run AND e.no = o.effect WHERE e.status = 'begin'"
)


def _orphans(file: File, alive: Callable[[str], bool], files: list[int], now: int) -> None:
    """What lies in the folder and belongs to no run: logs whose rows are gone, and what drivers in the background said."""
    busy = {place for (place,) in rows(file.db, BUSY)}
    known: Known | None = None  # all of the history is read for it: not where there is nothing to ask about
    for name in os.listdir(file.folder) if os.path.isdir(file.folder) else []:
        path = os.path.join(file.folder, name)
        if name.endswith(".driver.log"):
            if not _is_there(file, name.partition(".")[0]):
                _unlink(file.folder, [name], files)
            continue
        if name == "once":
            logs = [f"once/{once}" for once in os.listdir(path) if not _young(os.path.join(path, once), now)]
        elif os.path.isdir(path) and _is_place(path) and name not in busy and not alive(name) and not _young(path, now):
            logs = [f"{name}/{log}" for log in os.listdir(path)]
        else:
            continue
        known = known or Known(file)
        _unlink(file.folder, [log for log in logs if not known.has(log)], files)


def _is_there(file: File, no: str) -> bool:
    return no.isdigit() and bool(rows(file.db, "SELECT 1 FROM runs WHERE no = ?", (int(no[:18]),)))


class Known:
    """The logs that runs have, in a table beside the file: they may be more than memory should hold."""

    def __init__(self, file: File) -> None:
        self._db = apsw.Connection("")  # a file without a name, which SQLite takes away
        self._db.execute("CREATE TABLE logs (path TEXT PRIMARY KEY) WITHOUT ROWID; BEGIN").fetchall()
        for said in LOGS.values():
            for paths in each(file.db, said):
                self._db.executemany("INSERT OR IGNORE INTO logs VALUES (?)", [(path,) for path in paths if path])

    def has(self, path: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM logs WHERE path = ?", (path,)).fetchall())


def _is_place(path: str) -> bool:
    name = os.path.basename(path)
    return len(name) == 16 and all(c in "0123456789abcdef" for c in name)


def _young(path: str, now: int) -> bool:
    with contextlib.suppress(OSError):
        return now - os.stat(path).st_mtime_ns // 1_000_000 < YOUNG
    return True


def _unlink(folder: str, names: Iterable[str], files: list[int]) -> None:
    """Takes files away, and the places that are empty then. What is overwritten is the file alone: a disk may keep more."""
    for name in names:
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            size = os.lstat(path).st_size
            os.unlink(path)
            files[0], files[1] = files[0] + 1, files[1] + size
    for place in {os.path.dirname(name) for name in names if _is_place(os.path.dirname(name))}:
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(folder, place))


# --- the file ---


def _size(file: File) -> int:
    return sum(os.path.getsize(path) for path in (file.path, f"{file.path}-wal") if os.path.exists(path))


def _shrink(file: File, most: int | None) -> bool:
    """Gives back what is free in the file, where it takes no more than a moment. It wants as much room again for a while; without
    that it stays as it is."""
    free = rows(file.db, "PRAGMA freelist_count")[0][0]
    if free == 0:
        return True
    if most is not None and (rows(file.db, "PRAGMA page_count")[0][0] - free) * rows(file.db, "PRAGMA page_size")[0][0] > most:
        return False
    try:
        file.same_file()
        file.db.execute("VACUUM").fetchall()
    except (apsw.FullError, apsw.BusyError):
        return False
    return True

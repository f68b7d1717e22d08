"""Taking away what has ended: rows, logs, and what nobody belongs to any more.

Rules:
- never a run that has not ended, that owes an undo (one that succeeded owes none), or of which something is undelivered
- the rows go first, the logs after: what is left by a process that dies between belongs to nobody, and goes with the next prune
- what goes is overwritten; space is given back where no driver lives, else it is used again by what comes
- a number is not given again
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import apsw

from durun.store.file import File, failing, rows
from durun.store.read import UNDELIVERED
from durun.values import NamedTuple

AT_ONCE = 100  # runs in one transaction, so that nobody waits long for it
YOUNG = 3_600_000  # ms in which what belongs to nobody may be about to
ENDED = "status IN ('succeeded', 'failed', 'cancelled', 'compensated')"
KEPT = {
    "in_flight": f"NOT ({ENDED})",
    "owed": "status IN ('failed', 'cancelled') AND EXISTS (SELECT 1 FROM undos u WHERE u.run = runs.no"
    " AND u.status IN ('owed', 'registered', 'failed'))",
    "undelivered": f"EXISTS (SELECT 1 FROM messages m WHERE m.run = runs.no AND m.{UNDELIVERED})",
}


class Pruned(NamedTuple):
    ids: list[str]
    kept: dict[str, list[str]]  # why -> the runs
    remembered: int
    forgotten: int
    files: int
    bytes: int  # of those files
    size: tuple[int, int]  # of the database, before and after
    shrunk: bool  # False: a driver lives, and what is free in the file is used again


def why_kept(file: File, no: int) -> str | None:
    """Why a run may not be pruned; None where it may."""
    for why, sql in KEPT.items():
        if rows(file.db, f"SELECT 1 FROM runs WHERE no = ? AND {sql}", (no,)):
            return why
    return None


def prune(file: File, alive: Callable[[str], bool], now: int, *, only: int | None, before: int, forget: bool) -> Pruned:
    """Takes away one run, or all that ended before a time; and logs that belong to none."""
    size, db = _size(file), file.db
    with failing(file.path, db):
        db.execute("PRAGMA secure_delete=ON").fetchall()
        chosen, kept = _chosen(file, only, before)
        ids: list[str] = []
        remembered, files = 0, [0, 0]
        for at in range(0, len(chosen), AT_ONCE):
            gone, names, logs = _take(file, chosen[at : at + AT_ONCE], now, forget=forget)
            ids, remembered = ids + gone, remembered + names
            _unlink(file.folder, logs, files)
        forgotten = _forget(file, before) if forget and only is None else 0
        living = any(alive(place) for (place,) in rows(db, "SELECT place FROM drivers"))
        if only is None:
            _orphans(file, alive, files, now)
        if not living:
            _without_owner(file)
        shrunk = not living and _shrink(file)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Pruned(ids, kept, remembered, forgotten, files[0], files[1], (size, _size(file)), shrunk)


def forget(file: File, id: str) -> bool:
    """Forgets an id whose run was pruned before. False where none is known."""
    with file.write() as db:
        db.execute("DELETE FROM pruned WHERE id = ?", (id,))
        return db.changes() == 1


def _chosen(file: File, only: int | None, before: int) -> tuple[list[int], dict[str, list[str]]]:
    """(the runs that go, those that have ended and stay)."""
    which, value = ("no = ?", only) if only is not None else ("ended_at < ?", before)
    kept = {}
    for why, sql in KEPT.items():
        found = [r[0] for r in rows(file.db, f"SELECT id FROM runs WHERE {ENDED} AND {which} AND {sql} ORDER BY no", (value,))]
        if found:
            kept[why] = found
    return [r[0] for r in rows(file.db, f"SELECT no FROM runs WHERE {which} AND {_may_go()} ORDER BY no", (value,))], kept


def _may_go() -> str:
    return " AND ".join(f"NOT ({sql})" for sql in KEPT.values())


def _take(file: File, runs: list[int], now: int, *, forget: bool) -> tuple[list[str], int, list[str]]:
    """One transaction: (the ids that are gone, how many of them are remembered, the logs that are now nobody's)."""
    with file.write() as db:
        # asked again: a person may have taken one up meanwhile
        marks = ",".join("?" * len(runs))
        going = rows(db, f"SELECT no, id, named FROM runs WHERE no IN ({marks}) AND {_may_go()}", tuple(runs))
        nos = [no for no, _, _ in going]
        marks = ",".join("?" * len(nos))
        logs = _logs(db, f"run IN ({marks})", nos) + _onces(db, f"run IN ({marks})", nos)
        if not forget:
            db.execute(
                "INSERT OR REPLACE INTO pruned (id, name, bound_to, status, ended_at, pruned_at)"
                f" SELECT id, name, bound_to, status, ended_at, ? FROM runs WHERE named AND no IN ({marks})",
                (now, *nos),
            )
        for table, column in _belonging(db):
            db.execute(f"DELETE FROM {table} WHERE {column} IN ({marks})", nos)
        db.execute(f"DELETE FROM runs WHERE no IN ({marks})", nos)
        db.execute("UPDATE origin SET floor = max(floor, ?)", (max(nos, default=0),))
    return [id for _, id, _ in going], sum(n for _, _, n in going) * (not forget), [*logs, *(f"{no}.driver.log" for no in nos)]


def _belonging(db: apsw.Connection) -> list[tuple[str, str]]:
    """(table, column) of all that refers to a run, as the file itself says."""
    tables = [name for (name,) in rows(db, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return [(table, fk[3]) for table in tables for fk in rows(db, f"PRAGMA foreign_key_list({table})") if fk[2] == "runs"]


def _logs(db: apsw.Connection, which: str, values: Iterable[Any] = ()) -> list[str]:
    """The paths of what commands printed, in the folder of the database."""
    said = "SELECT data ->> 'out', data ->> 'err' FROM history WHERE kind = 'attempt_ended' AND "
    sent = f"SELECT l.value ->> 1, l.value ->> 2 FROM messages, json_each(data, '$.logs') l WHERE {which}"
    found = [*rows(db, said + which, tuple(values)), *rows(db, sent, tuple(values))]
    return [path for row in found for path in row if path]


def _onces(db: apsw.Connection, which: str, values: Iterable[Any] = ()) -> list[str]:
    """The paths of what a once prints into, where its call died."""
    return [f"once/{name}" for (name,) in rows(db, f"SELECT file FROM onces WHERE {which}", tuple(values))]


def _forget(file: File, before: int) -> int:
    with file.write() as db:
        db.execute("DELETE FROM pruned WHERE ended_at < ?", (before,))
        return int(db.changes())


def _without_owner(file: File) -> None:
    """Plans, pinned files and long scripts of which no run is left. A living driver may be about to name one of them again."""
    with file.write() as db:
        db.execute("DELETE FROM plans WHERE digest NOT IN (SELECT plan FROM runs UNION SELECT plan FROM plans_left)")
        db.execute("DELETE FROM trees WHERE tree NOT IN (SELECT tree FROM pinned)")
        db.execute("DELETE FROM files WHERE digest NOT IN (SELECT digest FROM trees)")
        named = "SELECT json_extract(request, '$.script_of') FROM effects WHERE json_extract(request, '$.script_of') IS NOT NULL"
        db.execute(f"DELETE FROM literals WHERE digest NOT IN ({named})")


# --- the folder ---


def _orphans(file: File, alive: Callable[[str], bool], files: list[int], now: int) -> None:
    """What lies in the folder and belongs to no run: logs whose rows are gone, and what drivers in the background said."""
    known = {*_logs(file.db, "1"), *_onces(file.db, "1")}
    busy = {place for (place,) in rows(file.db, "SELECT place FROM drivers UNION SELECT place FROM effects WHERE status = 'begin'")}
    runs = {str(no) for (no,) in rows(file.db, "SELECT no FROM runs")}
    for name in os.listdir(file.folder) if os.path.isdir(file.folder) else []:
        path = os.path.join(file.folder, name)
        if name.endswith(".driver.log"):
            if name.partition(".")[0] not in runs:
                _unlink(file.folder, [name], files)
        elif name == "once":
            old = [once for once in os.listdir(path) if not _young(os.path.join(path, once), now)]
            _unlink(file.folder, [f"once/{once}" for once in old if f"once/{once}" not in known], files)
        elif os.path.isdir(path) and _is_place(path) and name not in busy and not alive(name) and not _young(path, now):
            _unlink(file.folder, [f"{name}/{log}" for log in os.listdir(path) if f"{name}/{log}" not in known], files)


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


def _shrink(file: File) -> bool:
    """Gives back what is free in the file. It wants as much room again for a while; without that it stays as it is."""
    if rows(file.db, "PRAGMA freelist_count")[0][0] == 0:
        return True
    try:
        file.same_file()
        file.db.execute("VACUUM").fetchall()
    except (apsw.FullError, apsw.BusyError):
        return False
    return True

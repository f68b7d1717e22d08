"""Which file this is: whether a database that is opened for writing is the one it was born as, or a backup or a copy of it.

Rules:
- it is the same file as long as its inode is, and its device or its path: a rename changes only the path, a boot may number the
  disks anew. Any other is a copy: whether the one it was copied from lives on cannot be seen from here
- a backup says of itself that it is one, wherever it is put
- what was in flight in either is blocked as `restored`: what it did since is not known here. Who drove it is forgotten
- noticed by whoever is about to begin or to move a run, before that; who only looks does not ask
"""

from __future__ import annotations

from durun.store.file import File, rows
from durun.store.read import OPEN, UNDELIVERED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import apsw

ORIGIN = "SELECT path, device, inode, backup_at FROM origin"


def notice(file: File, now: int) -> None:
    """Blocks what is in flight in a backup or a copy, once. Says so."""
    if file.at_home():
        return
    with file.write() as db:
        found = rows(db, ORIGIN)
        blocked = 0
        if not _is_same(file, found):
            blocked = block(db, now, "restored" if found and found[0][2] is None else "copied", found[0] if found else None)
        settle(db, file)
    if blocked:
        what = "a backup" if found and found[0][2] is None else "a copy"
        of = f" of {found[0][0]}" if found and found[0][0] != file.path else ""
        file.say(f"{file.path} is {what}{of}: what is in flight in it is blocked (restored), {blocked} in all: `durun ls`")


def _is_same(file: File, found: list[tuple[Any, ...]]) -> bool:
    if not found:
        return False
    path, device, inode, _ = found[0]
    return bool(inode == file.identity[1] and (device == file.identity[0] or path == file.path))


def settle(db: apsw.Connection, file: File) -> None:
    """From now on it is this file, where it lies."""
    db.execute(
        "INSERT INTO origin (one, path, device, inode) VALUES (1, ?, ?, ?) ON CONFLICT (one) DO UPDATE"
        " SET path = excluded.path, device = excluded.device, inode = excluded.inode, backup_at = NULL",
        (file.path, *file.identity),
    )


def block(db: apsw.Connection, now: int, why: str, origin: tuple[Any, ...] | None) -> int:
    """Blocks all runs in flight, and forgets who drove them. How many there are. `origin`: what the file said of itself."""
    path, _, _, backup_at = origin or ("", None, None, None)
    wanted = f"{OPEN} AND restored IS NULL"
    db.execute(
        "INSERT INTO history (run, no, at, kind, scope, state, visit, data) SELECT no, events + 1, ?, 'blocked', '', state, visit,"
        f" json_object('reason', 'restored', 'why', ?) FROM runs WHERE {wanted}",
        (now, why),
    )
    db.execute(
        "UPDATE runs SET restored = json_object('at', ?, 'backup_at', ?, 'from', ?, 'reason', reason, 'status', status, 'why', ?),"
        " status = 'blocked', reason = 'restored', fence = fence + 1, seq = seq + 1, events = events + 1, updated_at = ?,"
        f" awake = NULL, awake_boot = NULL, gap = NULL WHERE {wanted}",
        (now, backup_at, path, why, now),
    )
    blocked: int = db.changes()
    _doubt_messages(db)
    db.execute("UPDATE runs SET driver = NULL WHERE driver IS NOT NULL")
    db.execute("DELETE FROM drivers")
    return blocked


def _doubt_messages(db: apsw.Connection) -> None:
    """What is left to be delivered, of runs that have ended too, may have been: its probe is asked first, where it has one; and
    what was under way is lost, unless its end was noted."""
    db.execute(f"UPDATE messages SET data = json_set(data, '$.unsure', json('true')) WHERE {UNDELIVERED}")
    of = f"(run, no) IN (SELECT run, effect FROM messages WHERE {UNDELIVERED})"
    db.execute(f"UPDATE effects SET first_at = coalesce(first_at, intended_at) WHERE {of}")
    db.execute(f"UPDATE effects SET boot = 'elsewhere' WHERE status = 'begin' AND {of}")

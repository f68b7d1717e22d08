"""A backup of the file, and the way back.

Rules:
- both go through SQLite's backup: one view of the source, whatever is written meanwhile
- a backup is one plain file, without a log beside it; it says of itself that it is one; it is synced before it has its name, and
  takes no name that is taken
- a restore is one transaction of the file that is restored, with what was in flight blocked already: there is no moment at which
  a driver could take it for what it was. It is refused while a driver lives, which is asked with the file locked
- what was there before is kept as a backup beside it
- what is restored holds the tables that durun makes, as it makes them, and no other: a trigger, a view or a table that somebody
  put into a file does not come in with it
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from durun.errors import Held, NotPossible, StoreUnusable
from durun.store import origin
from durun.store.file import APPLICATION, SWITCHES, File, failing, look_at_header, rows
from durun.store.runs import who_holds
from durun.values import NamedTuple


class Restored(NamedTuple):
    runs: int
    blocked: int  # those that were in flight
    kept: str | None  # where what was there before lies now
    backup_at: int | None


def backup(file: File, to: str, now: int) -> int:
    """Writes a backup of the file: how many bytes it has. Raises NotPossible where something has that name, StoreUnusable."""
    to = os.path.abspath(to)
    if os.path.lexists(to):
        raise NotPossible(f"{to} is there already: a backup takes no file's place; name another; nothing was changed")
    with _part(to) as part:
        with failing(to):
            _copied(file.db, part, backup_at=now)
        _synced(part)
        size = os.path.getsize(part)
        try:
            os.link(part, to)
        except FileExistsError:
            raise NotPossible(f"{to} is there already: a backup takes no file's place; nothing was changed") from None
        except OSError:  # a file system without links
            os.rename(part, to)
    _synced(os.path.dirname(to))
    return size


def copied(source: apsw.Connection, to: str) -> None:
    """A plain copy under a name, whole or not there. Raises StoreUnusable."""
    with _part(to) as part:
        _copied(source, part)
        _synced(part)
        os.rename(part, to)
    _synced(os.path.dirname(to))


def _copied(source: apsw.Connection, to: str, *, backup_at: int | None = None) -> None:
    """One plain file that holds what the source holds, and may say of itself that it is a backup. Nobody else knows it, so it
    needs no locks."""
    made = apsw.Connection(to, vfs="unix-none")
    try:
        for pragma in ("locking_mode=EXCLUSIVE", "synchronous=OFF"):
            made.execute(f"PRAGMA {pragma}").fetchall()
        with made.backup("main", source, "main") as copy:
            copy.step()
        made.execute("PRAGMA journal_mode=DELETE").fetchall()
        if backup_at is not None:
            made.execute("UPDATE origin SET inode = NULL, device = NULL, backup_at = ?", (backup_at,)).fetchall()
    finally:
        made.close()


@contextmanager
def _part(of: str) -> Iterator[str]:
    """A file beside another, for its owner alone, that is gone at the end. Raises StoreUnusable."""
    part = f"{of}.part-{os.urandom(4).hex()}"
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            yield part
        finally:
            for end in ("", "-journal", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part + end)
    except OSError as e:
        raise StoreUnusable(f"{of} cannot be written: {os.strerror(e.errno or 0)}; mend that, then the same again") from None


def _synced(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def restore(source: str, file: File, alive: Callable[[str], bool], now: int, kept: str) -> Restored:
    """Puts a backup in the place of what the file holds; `kept` is where that is kept, if it holds a run.

    Raises Held where a driver lives, StoreUnusable where the source is no whole database of durun.
    """
    source = os.path.realpath(source)
    if os.path.exists(source) and os.path.samefile(source, file.path):
        raise NotPossible(f"{source} is the database itself: nothing was changed")
    with _part(file.path) as part:
        with failing(source), checked(source) as db:
            _copied(db, part)
        taken = File(part, create=False, say=file.say, private=True)
        try:
            _refuse_strange(source, taken.db)
            with taken.write() as db:
                (found,) = rows(db, origin.ORIGIN)
                blocked = origin.block(db, now, "restored", found)
                origin.settle(db, file)
                runs = rows(db, "SELECT count(*) FROM runs")[0][0]
            return Restored(runs, blocked, _put_back(taken, file, alive, now, kept), found[3])
        finally:
            taken.close()


@contextmanager
def checked(source: str) -> Iterator[apsw.Connection]:
    """A backup, open to be read, once it was looked at. Raises StoreUnusable."""
    try:
        look_at_header(source, os.stat(source).st_size, "nothing was changed")
    except OSError as e:
        raise StoreUnusable(f"{source} cannot be read: {os.strerror(e.errno or 0)}; nothing was changed") from None
    db = apsw.Connection(source, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for what, how in SWITCHES:
            db.config(what, how)
        db.execute("PRAGMA cell_size_check=ON").fetchall()
        if rows(db, "PRAGMA application_id") != [(APPLICATION,)]:
            raise StoreUnusable(f"{source} is a database, but not one of durun: nothing was changed")
        said = rows(db, "PRAGMA quick_check(1)")
        if said != [("ok",)]:
            raise StoreUnusable(f"{source} is damaged ({said[0][0]}): take an older backup; nothing was changed")
        yield db
    finally:
        db.close()


def _refuse_strange(source: str, db: apsw.Connection) -> None:
    """Raises StoreUnusable where the tables, indexes and views are others than those of a new file."""
    from durun.store.audit import schema

    for _, what in schema(db):
        raise StoreUnusable(f"{source} is not as durun makes it ({what}): it is not restored; nothing was changed")


def _put_back(taken: File, file: File, alive: Callable[[str], bool], now: int, kept: str) -> str | None:
    """The restored content in the place of the other, in one transaction. Where what was there is kept, or None."""
    file.keep_a_log()  # else nobody may look while it is written to
    looking = File(file.path, create=False, say=file.say)
    try:
        with failing(file.path, file.db), file.db.backup("main", taken.db, "main") as copy:
            copy.step(0)  # from here on nobody else writes
            file.same_file()
            _refuse_living(looking, alive)
            some = rows(looking.db, "SELECT 1 FROM runs LIMIT 1")
            if some:
                backup(looking, kept, now)
            copy.step()
    except StoreUnusable as e:
        raise StoreUnusable(f"{e}; or {away(file.path)}") from None
    finally:
        looking.close()
    return kept if some else None


def _refuse_living(file: File, alive: Callable[[str], bool]) -> None:
    """Raises Held where a driver lives, known to the file or not: one that begins asks for the file only later."""
    sql = "SELECT place, (SELECT id FROM runs WHERE driver = place ORDER BY no DESC LIMIT 1) FROM drivers"
    known = dict(rows(file.db, sql))
    there = os.listdir(file.folder) if os.path.isdir(file.folder) else []
    for place in (*known, *there):
        if alive(place):
            id = known.get(place)
            who = who_holds(file.db, id, place) if id else f"the driver of {os.path.join(file.folder, place)} lives"
            raise Held(f"{who}; nothing is restored while a driver lives: wait for it, or stop it; nothing was changed")


def away(path: str) -> str:
    """The way out where what is there cannot be used."""
    return f"move {path} and {path}-wal away, and the same again restores into a new file"

"""Who writes to a file while another version of durun may want to migrate it.

Rules:
- every process that writes holds a shared lock on a file in the database's folder, from its first write until it ends
- a migration wants that lock alone, and is refused with who drives a run where it cannot have it; it keeps a copy of what was there
- who has the lock looks at the version once more: a process that had opened the file before a migration writes nothing after it
"""

from __future__ import annotations

import fcntl
import os

import apsw

from durun.errors import StoreUnusable

NAME = "writers"


def shared(folder: str) -> int:
    """The descriptor by which this process says that it writes, until it is closed. Raises StoreUnusable."""
    return _locked(folder, fcntl.LOCK_SH)


def taken_alone(path: str, db: apsw.Connection, version: int) -> int:
    """The same, where nobody else writes: it is shared again once the migration is over. Raises StoreUnusable."""
    fd = _locked(path + ".d", fcntl.LOCK_SH)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StoreUnusable(
            f"{path} is of version {version}, which this durun brings up to its own once nobody writes to it: {_who(path, db)};"
            " wait for it, or stop it, then the same again; nothing was changed"
        ) from None
    return fd


def _who(path: str, db: apsw.Connection) -> str:
    found = [
        f"process {pid} on {host} drives a run"
        for place, pid, host in db.execute("SELECT place, pid, host FROM drivers").fetchall()
        if _is_held(os.path.join(path + ".d", str(place), "lock"))
    ]
    return ", ".join(found[:3]) or "another process is writing now"


def _is_held(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def let_others(fd: int) -> None:
    """The migration is over: others may write."""
    fcntl.flock(fd, fcntl.LOCK_SH)


def keep(path: str, db: apsw.Connection, version: int) -> None:
    """A copy of what is there, beside it, before it is changed; one of a migration that did not come to its end is replaced."""
    from durun.store.backup import copied

    copied(db, f"{path}.before-version-{version + 1}")


def _locked(folder: str, how: int) -> int:
    from durun.store.file import make_folder

    make_folder(folder)
    try:
        fd = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, how)
    except OSError as e:
        raise StoreUnusable(f"{folder} cannot be used: {os.strerror(e.errno or 0)}: mend that, then the same again") from None
    return fd

"""Whether a driver lives: its lock is asked, never a pid.

Asked with a shared lock that is let go at once, so that nobody who takes the lock honestly is refused for it. In its lock file a
driver leaves signs of life (its boot, and that boot's clock without suspend): how far its time counts, not whether it lives.
"""

from __future__ import annotations

import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


def driver_alive(folder: str, place: str | None) -> bool:
    """Whether the driver of a place lives: whether its lock is held."""
    return place is not None and locked(os.path.join(folder, place, "lock"))


def last_sign(folder: str, place: str) -> tuple[str, int] | None:
    """(boot, reading) of the last sign that the driver of a place gave; None where none can be read."""
    try:
        with open(os.path.join(folder, place, "lock"), "rb") as f:
            reading, boot = f.read(200).decode("ascii").split()
        return boot, int(reading)
    except (OSError, ValueError):
        return None


def opened_log(path: str) -> BinaryIO:
    """What a command printed, or left as its output, open to be read. A command may have put anything in its place: no link is
    followed, and nothing but a file is read. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if os.fstat(fd).st_mode & 0o170000 != 0o100000:
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no file", path)
    return open(fd, "rb")


ONCE = "once"  # where calls of `durun once` hold their files


def once_alive(folder: str, name: str) -> bool:
    """Whether the call of `durun once` that holds this file lives, or its command does."""
    return locked(os.path.join(folder, ONCE, name))


def locked(path: str, *, by_anybody: bool = False) -> bool:
    """Whether somebody holds a file's lock exclusively, or with `by_anybody` at all; a missing file is held by nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if by_anybody else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

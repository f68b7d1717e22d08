"""The command of a once: it stays in the group of its step, prints into a file of its own, and its end is seen whatever comes.

The file is locked by the process of the call, and its open description is the command's stdout: as long as one of both lives,
whoever asks for the lock is refused. So a command that outlives a killed call is waited for, and only then in doubt.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from typing import Any

from durun.effects.locks import ONCE
from durun.values import NamedTuple

CAPTURE = 16 * 1024 * 1024  # bytes of an output that is recorded
HEARD = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


class End(NamedTuple):
    """How a command ended. `errno`: why it could not be started."""

    status: int  # exit code, or minus the number of a signal
    stdout: bytes | None  # None: more than may be recorded
    errno: int = 0


class Output:
    """The file that a command prints into, made and locked. Raises OSError."""

    def __init__(self, folder: str) -> None:
        self.name = os.urandom(8).hex()
        self._path = os.path.join(folder, ONCE, self.name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self._path), 0o700)
            os.chmod(os.path.dirname(self._path), 0o700)  # the umask is that of a script
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def read(self) -> bytes | None:
        """All of it, None where it is too much."""
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, size, 0) if size <= CAPTURE else None

    def drop(self) -> None:
        """What it holds is recorded, or of no use: nobody takes its lock any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self.fd)


def forget(folder: str, name: str) -> None:
    """Takes the file away of a call that died; what it held is settled."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, ONCE, name))


def run(argv: list[str], output: Output, env: dict[str, str] | None = None) -> End:
    """Runs a command to its end. A signal to the group reaches the command by itself; this process waits for what becomes of it."""
    before = _listen()
    try:
        try:
            pid = os.posix_spawnp(
                argv[0], argv, os.environ if env is None else env,
                file_actions=[(os.POSIX_SPAWN_DUP2, output.fd, 1)], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )  # fmt: skip
        except OSError as e:
            return End(127 if e.errno == errno.ENOENT else 126, b"", e.errno or 0)
        except ValueError:  # an empty word in place of a program
            return End(127, b"", errno.ENOENT)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return End(status, output.read())


def _listen() -> dict[int, Any]:
    """From now on signals wake this process up, and end it no more; the command has its own mind. What was ignored stays so."""
    before = {}
    for name in HEARD:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda *_: None)
    return before

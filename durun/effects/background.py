"""Drivers in processes of their own: one that goes on when its caller has gone, and workers that drive runs for their caller.

Rules:
- a session of its own, so that no terminal reaches it
- of its caller it keeps no descriptor but those named here: a caller that waits for the end of our output, or holds a lock of its
  own, is never held up by what we leave behind
- the working directory is not searched for modules, whatever lies in it
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import sys
from typing import Any

READY = 3  # the descriptor on which a background driver says that it holds its run
HIGH = 16  # where descriptors lie while they are handed over


def inherit_nothing() -> None:
    """What this process was born with beyond 0, 1 and 2 goes to none of its children."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                if name.isdigit() and int(name) > 2:
                    with contextlib.suppress(OSError):
                        os.set_inheritable(int(name), False)
            return


def out_of_the_way(fd: int) -> int:
    """Another number for a descriptor, none that it is to have there. Raises OSError."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError as e:  # a number that is never given is said to be an invalid one
        number = errno.EMFILE if e.errno == errno.EINVAL else e.errno or errno.EMFILE
        raise OSError(number, os.strerror(number)) from None


def _spawn(module: str, words: list[str], given: dict[int, int], opened: list[tuple[int, str, int, int]]) -> int:
    """The pid of a Python process with these descriptors (number there -> number here), these files, and no others."""
    inherit_nothing()
    high = {at: out_of_the_way(fd) for at, fd in given.items()}
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, path, flags, mode) for fd, path, flags, mode in opened]
    actions += [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in high.items()]
    argv = [sys.executable, "-P", "-m", module, *words]
    try:
        return os.posix_spawn(
            sys.executable, argv, os.environ, file_actions=actions, setsid=True, setsigmask=[], setsigdef=[signal.SIGCHLD]
        )
    finally:
        for fd in high.values():
            os.close(fd)


class Background:
    """A driver that goes on when this process has gone. What it says for people is appended to the file `log`."""

    def __init__(self, module: str, words: list[str], log: str) -> None:
        """Raises OSError where no process can be begun."""
        self._log = log
        self._from = os.path.getsize(log) if os.path.exists(log) else 0
        self._ready, theirs = os.pipe()
        null = [(fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
        try:
            files = [*null, (2, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)]
            self.pid = _spawn(module, words, {READY: theirs}, files)
        finally:
            os.close(theirs)

    def holds(self) -> bool:
        """Waits until it says that it holds its run (True), or has ended without a word."""
        try:
            return bool(os.read(self._ready, 1))
        finally:
            os.close(self._ready)

    def ended(self) -> tuple[int, str]:
        """Of one that did not come to hold its run: its exit code, and what it said."""
        _, status = os.waitpid(self.pid, 0)
        try:
            with open(self._log, "rb") as f:
                f.seek(self._from)
                said = f.read(4096).decode("utf-8", "replace").strip()
        except OSError:
            said = ""
        return os.waitstatus_to_exitcode(status), said


def say_ready() -> None:
    """Said by a background driver once it holds its run."""
    with contextlib.suppress(OSError):
        os.write(READY, b"1")
        os.close(READY)


class Worker:
    """A driver that drives one run after the other for this process: a line to it for each, a line back when it is done."""

    def __init__(self, module: str, words: list[str]) -> None:
        """Raises OSError where no process can be begun."""
        theirs_in, to = os.pipe()
        out, theirs_out = os.pipe()
        try:
            self.pid = _spawn(module, words, {0: theirs_in, 1: theirs_out}, [])
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._to, self._out = to, out
        self._incoming = b""

    def fileno(self) -> int:
        return self._out

    def ask(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is dead: the end of its answers says so
            os.write(self._to, line.encode() + b"\n")

    def answer(self) -> str | None:
        """Its next line, '' where only a part of one has come, or None where it has ended."""
        data = os.read(self._out, 65536)
        if not data:
            return None
        self._incoming += data
        if not self._incoming.endswith(b"\n"):
            return ""
        line, self._incoming = self._incoming.decode().strip(), b""
        return line

    def tell(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, getattr(signal, f"SIG{name}"))

    def close(self) -> int:
        """Lets it go, waits for its end, and gives its exit code."""
        os.close(self._to)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._out)
        return os.waitstatus_to_exitcode(status)

"""A driver's side of its commands: it makes their place, starts the keeper, asks it to begin and stop, and hears how they end.

A place is a folder of the database's own folder. In it lie the driver's lock, the keeper's journal, the gate, the control file,
the driver's own notes of requests, and what the commands print. The driver's lock is held while the driver lives; liveness is
asked with a shared lock, let go at once, and never unlinks a lock that could be taken. What the keeper says here it has noted
before in the same words.
"""

from __future__ import annotations

import _socket  # `socket` takes the time of a commit to be loaded, for more than a pair of them
import binascii
import contextlib
import errno
import fcntl
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from typing import Any

from durun.effects.background import out_of_the_way
from durun.effects.locks import opened_log
from durun.values import NamedTuple

GRACE = 10_000  # ms between a signal and the next
CAPTURE = 16 * 1024 * 1024  # bytes of an output that becomes data
UNREADABLE = -2  # the size of a $DURUN_OUTPUT that is no file
READ = 1 << 16  # bytes of answers read at once
PARTING = 5.0  # s for an idle keeper to go
KEEPER = os.path.join(os.path.dirname(__file__), "keeper.py")
# The keeper is told its own program over its socket, as this driver has it compiled: to compile it again would cost it a fifth of
# its memory and half of its start, and it is of the driver's version whatever lies on the disk by then.
BOOT = """
import marshal, posix
def take(n):
    data = b""
    while len(data) < n:
        more = posix.read(3, n - len(data))
        if not more:
            posix._exit(0)
        data += more
    return data
exec(marshal.loads(take(int.from_bytes(take(4), "big"))))
"""
# in the order in which they may go: without a journal there is nothing to take over
FILES = ("control", "gate", "requests", "journal", "lock")


class Request(NamedTuple):
    """What to begin. Times are ms; `env` lies over the driver's environment, `without` is taken out of it."""

    token: str  # of this attempt alone; no blanks in it
    argv: list[str]
    env: dict[str, str]
    cwd: str
    stdin: bytes | None = None
    timeout: int | None = None
    heartbeat: int | None = None
    capture: bool = False
    without: tuple[str, ...] = ()
    grace: int = GRACE


class End(NamedTuple):
    """How a command ended. Paths are relative to the database's folder, '' where nothing was printed."""

    token: str
    status: int  # exit code, or minus the number of a signal
    stopped: str  # why it was stopped: timeout, heartbeat, or what was said with the wish; '' where it ended by itself
    left: tuple[int, ...]  # pids of what it left behind, 20 at most
    out: str
    err: str
    out_size: int
    out_crc: int  # 0 where the output was not to become data
    data: str
    data_size: int | None  # None where nothing was written to $DURUN_OUTPUT
    data_crc: int
    err_size: int
    ms: int
    low: bool = False  # it failed, and its disk had less than 16 MiB then
    at: int | None = None  # when it ended: ms of the boot's clock, suspend not counted


class NoStart(NamedTuple):
    """It never began. `what` says what the errno is about: directory, environment, program, its stdin, its output."""

    token: str
    errno: int
    what: str


class Full(NamedTuple):
    """Not begun: its end could not be noted, or its files not made: the disk is full, or fails, or another resource has run out."""

    token: str
    errno: int


class Refused(NamedTuple):
    """Not begun: the gate is closed, another driver has taken over."""

    token: str


class KeeperGone(NamedTuple):
    """The keeper died; what it held is to be looked for."""

    why: str


Report = End | NoStart | Full | Refused | KeeperGone


class Commands:
    """The commands of one driver, in its place. `pid` is the keeper's."""

    def __init__(self, folder: str, place: str) -> None:
        """Makes the place, takes the driver's lock, and starts the keeper beside the driver. Raises OSError."""
        self.folder, self.place = folder, place
        self.path = os.path.join(folder, place)
        os.mkdir(self.path, 0o700)
        self._lock = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for name in ("gate", "requests"):
            os.close(os.open(os.path.join(self.path, name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._number = 0
        self._gone = False
        self._incoming = b""
        self._outgoing = b""  # what is held back until it can go in one piece
        self._held: set[str] = set()
        self._start()

    def _start(self) -> None:
        """The keeper gets the journal's open description, already locked: there is no moment in which nobody holds it."""
        journal = os.open(os.path.join(self.path, "journal"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(journal, fcntl.LOCK_EX)
        self._socket, theirs = _socket.socketpair()
        high = [out_of_the_way(fd) for fd in (theirs.fileno(), journal)]
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, at) for fd, at in zip(high, (3, 4), strict=True)]
        blocked = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]  # until it ignores them
        argv = [sys.executable, "-I", "-S", "-c", BOOT, KEEPER, self.path]
        self.pid = os.posix_spawn(
            sys.executable, argv, os.environ, file_actions=actions, setsid=True, setsigmask=blocked, setsigdef=[signal.SIGCHLD]
        )
        for fd in (*high, journal):
            os.close(fd)
        theirs.close()
        self._socket.setblocking(True)
        self._say(_keeper_program())
        self.flush()

    def fileno(self) -> int:
        return self._socket.fileno()

    def next_number(self) -> int:
        """A number no attempt of this place had: it names $DURUN_OUTPUT and $DURUN_HEARTBEAT of one."""
        self._number += 1
        return self._number

    def data_path(self, number: int) -> str:
        return f"{self.path}/{number}.json"

    def alive_path(self, number: int) -> str:
        return f"{self.path}/{number}.alive"

    def begin(self, request: Request, number: int, *, more: bool = False) -> None:
        """Asks the keeper to begin. What becomes of it is reported. With `more` it is held back until the next, or `flush`."""
        self.begin_as_said(request.token, self.said(request, number), more=more)

    def begin_as_said(self, token: str, said: bytes, *, more: bool = False) -> None:
        """The same with what was put down before."""
        self._held.add(token)
        self._say(said)
        if not more:
            self.flush()

    def said(self, request: Request, number: int) -> bytes:
        """What the keeper is told to begin this; `number` is one of `next_number`."""
        return marshal.dumps(
            {
                "kind": "begin", "token": request.token, "n": number, "argv": request.argv, "env": request.env,
                "without": request.without, "cwd": os.fsencode(request.cwd), "stdin": request.stdin, "timeout": request.timeout,
                "heartbeat": request.heartbeat, "grace": request.grace, "capture": request.capture,
                "alive": os.fsencode(self.alive_path(number)), "data": os.fsencode(self.data_path(number)),
            },
            2,
        )  # fmt: skip

    def stop(self, token: str, steps: list[tuple[str, int]], why: str) -> None:
        """Asks the keeper to send these signals (INT, TERM, KILL), each with its grace in ms, until the group is gone."""
        self._say(marshal.dumps({"kind": "stop", "token": token, "steps": steps, "why": why}, 2))
        self.flush()

    def _say(self, data: bytes) -> None:
        self._outgoing += len(data).to_bytes(4, "big") + data

    def flush(self) -> None:
        """Sends what was held back: the keeper wakes up once for all of it."""
        data, self._outgoing = self._outgoing, b""
        if not data:
            return
        try:
            self._socket.sendall(data, getattr(_socket, "MSG_NOSIGNAL", 0))
        except (BrokenPipeError, ConnectionResetError):
            return  # the end of the stream is read next, and reported

    def receive(self, timeout: float | None = 0, most: int | None = None) -> list[Report]:
        """What the keeper has to say, waiting at most so many seconds for it (None: however long). Of more than `most` reports
        the rest waits for the next call."""
        if self.has_more:
            if self._readable(0):
                self._incoming += self._read()  # that it is at its end is heard again
        else:
            if self._gone or (timeout is not None and not self._readable(timeout)):
                return []
            data = self._read()
            if not data:
                self._gone = True
                return [KeeperGone(self._how_it_died())]
            self._incoming += data
        found: list[Report] = []
        while self.has_more and len(found) != most:
            length = int.from_bytes(self._incoming[:4], "big")
            report = report_of(self._incoming[4 : 4 + length].decode("utf-8", "surrogateescape").split("\t"), self.place)
            self._incoming = self._incoming[4 + length :]
            self._held.discard(report.token)
            found.append(report)
        return found

    @property
    def has_more(self) -> bool:
        """Whether a report is here that was not given out yet."""
        return len(self._incoming) >= 4 + int.from_bytes(self._incoming[:4], "big")

    def _how_it_died(self) -> str:
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return "it is gone"
        return os.strerror(code) if code > 0 else f"a signal ended it ({-code})"

    def _readable(self, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0, int(timeout * 1000))))

    def _read(self) -> bytes:
        """The next bytes, b'' at the end. A reset is said once, before what the other side still wrote."""
        for _ in range(2):
            try:
                return self._socket.recv(READ)
            except ConnectionResetError:
                continue
        return b""

    def sign(self, said: str) -> None:
        """Leaves a sign of life in the driver's lock file. One that cannot be left is missed by nobody."""
        with contextlib.suppress(OSError):
            os.pwrite(self._lock, said.encode("ascii"), 0)

    def close(self, *, keep: bool) -> None:
        """Lets the keeper go; with `keep`, or where something is under way, the notes stay for whoever goes on."""
        idle = not self._held
        if idle and not self._gone:
            idle = self._see_off()
        self._socket.close()
        if idle and not keep:
            for name in FILES:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.path, name))
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
        os.close(self._lock)

    def _see_off(self) -> bool:
        """Whether an idle keeper has gone. One that stands still is left alone: it goes once somebody lets it go on."""
        end = time.monotonic() + PARTING
        with contextlib.suppress(OSError):
            self._socket.shutdown(_socket.SHUT_WR)
        while (left := end - time.monotonic()) > 0 and self._readable(left):
            if not self._read():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self.pid, 0)
                return True
        return False


@lru_cache(maxsize=1)
def _keeper_program() -> bytes:
    """The keeper's code, from where its compiled form is kept like that of any module."""
    code = SourceFileLoader("durun.effects.keeper", KEEPER).get_code("durun.effects.keeper")
    return marshal.dumps(code)


def report_of(words: Sequence[str], place: str) -> End | NoStart | Full | Refused:
    """A report from what the keeper says, or noted."""
    kind, token = words[0], words[1]
    if kind == "ended":
        return _end_of(token, words[2:], place)
    if kind == "nostart":
        return NoStart(token, int(words[2]), words[3])
    return Full(token, int(words[2])) if kind == "full" else Refused(token)


def _end_of(token: str, words: Sequence[str], place: str) -> End:
    def within(name: str) -> str:
        return f"{place}/{name}" if name else ""

    status, stopped, left, out, err, out_size, err_size, out_crc, data, data_size, data_crc, ms, *more = words
    return End(
        token, int(status), stopped, tuple(map(int, left.split(","))) if left else (), within(out), within(err),
        int(out_size), int(out_crc), within(data), None if data_size == "-1" else int(data_size), int(data_crc), int(err_size),
        int(ms), more[:1] == ["1"], int(more[1]) if len(more) > 1 else None,
    )  # fmt: skip


def too_long() -> str:
    """What is said of a command that the system does not take, since what it is given is too long."""
    most = f"{os.sysconf('SC_ARG_MAX') // 1024:,} KiB of both together"
    if sys.platform == "linux":
        most += " and 128 KiB of each"
    return f"its arguments and its environment are too long for this system, which takes {most}: give what is long by `stdin`"


def read_whole(folder: str, path: str, size: int, crc: int) -> bytes | None:
    """The output that becomes data: whole and as it was when the command ended, or None where it is not."""
    if not path or not size:
        return b""
    try:
        with opened_log(os.path.join(folder, path)) as f:
            data = f.read(size)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO):  # gone, or something else in its place
            return None
        raise  # the output is there, and the next resume may read it
    return data if len(data) == size and binascii.crc32(data) == crc else None


def tail(folder: str, path: str, n: int = 4096) -> str:
    """The last bytes of a log, as text for people."""
    if not path:
        return ""
    try:
        with opened_log(os.path.join(folder, path)) as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - n))
            return f.read().decode("utf-8", "replace").replace("\0", "\ufffd")
    except OSError:
        return ""

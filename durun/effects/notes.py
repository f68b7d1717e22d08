"""What the keeper of another driver noted: read by whoever takes its runs over.

The gate is closed first, for ever; the journal is read after; whether the keeper lives is asked before the journal is read again,
since a dead one writes no more. Then

| the journal says | the keeper's lock | so |
| --- | --- | --- |
| ended, or could not start | any | that |
| nothing | any | never begun, in this boot |
| about to begin, no pid | free | in doubt: it may have been spawned |
| begun, no end | held | running; its end will be noted |
| begun, no end | free, something of it lives | running without a keeper: wait, then in doubt |
| begun, no end | free, nothing lives | in doubt |

A record counts by its own checksum. A pid counts in the boot and the PID namespace it was noted in, and there only for a
process that started when it was noted; nothing else is ever signalled.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import os
import signal
import time

from durun.effects.boot import boot_id
from durun.effects.command import End, NoStart, report_of
from durun.effects.locks import locked
from durun.errors import Held
from durun.values import NamedTuple

PATIENCE = 10.0  # s for the keeper to let the gate go
RECENT = 65536  # bytes at the end of the journal that may still have been in the writing when they were read
LATELY = 4 * RECENT  # bytes at the end of the journal that say what was noted last; some of them are reserved and empty
SLACK = 1.0  # s that the start of a process, told in ticks, may lie beside the window


class Nothing(NamedTuple):
    """Never begun, and after the gate was closed it never will be."""


class Begun(NamedTuple):
    """Begun, and no end noted. `pid` is None where only the intent to spawn it was noted."""

    token: str
    pid: int | None
    before: float  # s since boot, before and after the spawn
    after: float
    out: str
    err: str
    alive: str = ""  # what is touched as a sign of life
    awake: float | None = None  # s since boot at the spawn, suspend not counted


Noted = Nothing | Begun | End | NoStart


class Stuck(Held):
    """The keeper holds its gate and does not go on: it is stopped."""


class Notes:
    """The journal of one place. `gone` says that there is none.

    `file` is the keeper's, or "requests": what the driver itself noted of what it sent. Of those only the begin is noted, and
    nothing of one outlives its driver.
    """

    def __init__(self, folder: str, place: str, file: str = "journal") -> None:
        self.folder, self.place, self._file = folder, place, file
        self.path = os.path.join(folder, place)
        self.gone = not os.path.exists(os.path.join(self.path, file))
        self._text = b""  # whole lines
        self._sure = 0  # bytes of them that need not be read again

    @classmethod
    def take_over(cls, folder: str, place: str, file: str = "journal") -> Notes:
        """Closes the gate of a place for ever and reads its journal. Raises Stuck."""
        notes = cls(folder, place, file)
        if not notes.gone:
            notes._close_gate()
            notes.refresh()
        return notes

    @classmethod
    def lately(cls, folder: str, place: str) -> Notes:
        """Only what was noted last, for whoever looks and takes nothing over: it costs the same however long the journal is."""
        notes = cls(folder, place)
        try:
            with open(os.path.join(notes.path, "journal"), "rb") as f:
                f.seek(max(0, f.seek(0, os.SEEK_END) - LATELY))
                end = f.read()
        except FileNotFoundError:
            return notes
        notes._text = end[: end.rfind(b"\n") + 1]
        return notes

    def _close_gate(self) -> None:
        fd = os.open(os.path.join(self.path, "gate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise Stuck(self._stuck()) from None
                    time.sleep(0.005)
            os.pwrite(fd, b"x", 0)
        finally:
            os.close(fd)

    def _stuck(self) -> str:
        self.refresh()
        pid = next((words[2] for words in self._said("")), None)
        way = f"`kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it" if pid else "let it go on, or end it"
        return f"the keeper of {self.path} stands still while it begins a command: {way}; then the same again"

    def refresh(self) -> None:
        """Reads what has been noted since."""
        try:
            with open(os.path.join(self.path, self._file), "rb") as f:
                f.seek(self._sure)
                fresh = f.read()
        except FileNotFoundError:
            return
        self._text = self._text[: self._sure] + fresh[: fresh.rfind(b"\n") + 1]
        # a line read while it was written may look torn: it is read again. What lies far back was written long before
        self._sure = max(self._sure, self._text.rfind(b"\n", 0, max(0, len(self._text) - RECENT)) + 1)
        while (end := self._text.find(b"\n", self._sure) + 1) and _whole(self._text[self._sure : end - 1]) is not None:
            self._sure = end

    def _said(self, token: str) -> list[list[str]]:
        """All that is noted of one attempt, in order, with what is torn left out."""
        found, at, wanted = [], 0, b"\t" + token.encode() + b"\t"
        while (at := self._text.find(wanted, at)) >= 0:
            begin, end = self._text.rfind(b"\n", 0, at) + 1, self._text.find(b"\n", at)
            words = _whole(self._text[begin:end])
            if words is not None and words[1] == token:
                found.append(words)
            at = end
        return found

    def of(self, token: str) -> Noted:
        """What the journal says of an attempt."""
        noted: Noted = Nothing()
        for words in self._said(token):
            match words[0], noted:
                case "about", _:
                    out, err, alive = (*words[2:5], "", "", "")[:3]  # a request has no files
                    noted = Begun(token, None, 0.0, 0.0, out, err, alive)
                case "begun", _:
                    before = noted if isinstance(noted, Begun) else Begun(token, None, 0.0, 0.0, "", "")
                    awake = float(words[5]) if len(words) > 5 else None
                    noted = before._replace(pid=int(words[2]), before=float(words[3]), after=float(words[4]), awake=awake)
                case "not_yet", _:
                    noted = Nothing()
                case (("ended" | "nostart"), _):
                    said = report_of(words, self.place)
                    assert isinstance(said, End | NoStart)
                    noted = said
        return noted

    def keeper_alive(self) -> bool:
        return locked(os.path.join(self.path, "journal"))

    def pids_count(self) -> bool:
        """Whether a pid of this journal means the same process here: same boot, same PID namespace."""
        for words in self._said(""):
            return words[3:5] == list(_where())
        return False

    def alive(self, begun: Begun, key: str) -> bool:
        """Whether anything of a begun command lives: its group, its output, or where no pid was noted a process with its key."""
        if any(name and locked(os.path.join(self.path, name), by_anybody=True) for name in (begun.out, begun.err)):
            return True
        return self.group_alive(begun, key)

    def group_alive(self, begun: Begun, key: str) -> bool:
        """Whether its group lives, or where no pid was noted a process with its key: what a stop can reach."""
        if begun.pid is None:
            return bool(_with_key(key))
        return self.pids_count() and ours(begun, key)

    def found(self, begun: Begun, key: str) -> Begun:
        """The command whose pid its keeper could not note any more, with its pid where it can be told for sure.

        It leads a session of its own, carries the key, and prints into the files that were made for it: a key alone is no proof.
        """
        if begun.pid is not None or not self.pids_count():
            return begun
        files = [self._identity(os.path.join(self.path, name)) for name in (begun.out, begun.err)]
        for pid in _with_key(key):
            prints = [self._identity(f"/proc/{pid}/fd/{fd}") for fd in (1, 2)]
            if any(a is not None and a == b for a, b in zip(files, prints, strict=True)):
                leader = next((m for m in _group(pid) or [] if m[0] == pid and m[1] not in "ZX"), None)
                if leader is not None and _leads_a_session(pid):
                    return begun._replace(pid=pid, before=leader[2], after=leader[2])
        return begun

    @staticmethod
    def _identity(path: str) -> tuple[int, int] | None:
        try:
            there = os.stat(path)
        except OSError:
            return None
        return there.st_dev, there.st_ino

    def signs(self, begun: Begun) -> tuple[int, ...]:
        """What changes with each sign of life of a command: how much it printed, and when it touched its heartbeat file."""
        found = []
        for name in (begun.out, begun.err, begun.alive):
            try:
                there = os.stat(os.path.join(self.path, name)) if name else None
            except OSError:
                there = None
            found.append(0 if there is None else there.st_mtime_ns if name == begun.alive else there.st_size)
        return tuple(found)

    def living(self, begun: Begun, key: str) -> list[int]:
        """Pids of what lives of a begun command's group, as far as this system can tell."""
        if not self.group_alive(begun, key):
            return []
        if begun.pid is None:
            return sorted(_with_key(key))
        members = _group(begun.pid)
        return [begun.pid] if members is None else sorted(m[0] for m in members if m[1] not in "ZX")

    def still_keeper(self) -> int | None:
        """The pid of the keeper of this place, where it lives and stands still."""
        pid = next((int(words[2]) for words in self._said("")), None)
        if pid is None or not self.keeper_alive() or not self.pids_count():
            return None
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                return pid if f.read().rpartition(b")")[2].split()[0] in (b"T", b"t") else None
        except OSError:
            return None

    def ask_stop(self, begun: Begun, key: str, steps: list[tuple[str, int]], why: str) -> None:
        """Has a command stopped: by its keeper, or where that is dead, by the signal itself once it is sure whose it is."""
        if self.keeper_alive():
            line = f"{begun.token}\t{','.join(f'{name}:{ms}' for name, ms in steps)}\t{' '.join(why.split())}\n"
            fd = os.open(os.path.join(self.path, "control"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        elif begun.pid is not None and self.pids_count() and ours(begun, key):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(begun.pid, getattr(signal, f"SIG{steps[0][0]}"))
                os.killpg(begun.pid, signal.SIGCONT)


def _leads_a_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def _whole(line: bytes) -> list[str] | None:
    """The words of a record, or None where it is not what was written."""
    said = line[9:]
    if line[8:9] != b" " or line[:8] != b"%08x" % binascii.crc32(said):
        return None
    return said.decode("utf-8", "surrogateescape").split("\t")


def _where() -> tuple[str, str]:
    """This boot and this PID namespace, in the words of the keeper."""
    try:
        return boot_id(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-", "-"


def ours(begun: Begun, key: str) -> bool:
    """Whether a group is the one that was begun, and lives.

    A leader must have started in the window that was noted; where it is gone, a member must carry the key of the effect: a pid
    that was used again is no proof.
    """
    if begun.pid is None:
        return False
    try:
        os.killpg(begun.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    members = _group(begun.pid)
    if members is None:
        return True  # no /proc here: the group is there, that is all that can be said
    alive = [m for m in members if m[1] not in "ZX"]
    leader = next((m for m in members if m[0] == begun.pid), None)
    if leader is None:
        return not set(_with_key(key)).isdisjoint(m[0] for m in alive)
    return bool(alive) and begun.before - SLACK <= leader[2] <= begun.after + SLACK


def _group(pgid: int) -> list[tuple[int, str, float]] | None:
    """(pid, state, start in s since boot) of all members of a group, or None where there is no /proc."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return None
    tick, found = os.sysconf("SC_CLK_TCK"), []
    for entry in entries:
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pgid:
                found.append((int(entry), fields[0].decode(), int(fields[19]) / tick))
    return found


def _with_key(key: str) -> list[int]:
    """Pids of this user's processes that carry an idempotency key in their environment."""
    wanted, found = b"DURUN_IDEMPOTENCY_KEY=" + key.encode(), []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    if wanted in f.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found

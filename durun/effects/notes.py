"""What the keeper of another driver noted: read by whoever takes its runs over.

The gate is closed first, for ever; the journal is read after. Then

| the journal says | the keeper's lock | so |
| --- | --- | --- |
| ended, or could not start | any | that |
| nothing | any | never begun, in this boot |
| about to begin, no pid | free | in doubt: it may have been spawned |
| begun, no end | held | running; its end will be noted |
| begun, no end | free, something of it lives | running without a keeper: wait, then in doubt |
| begun, no end | free, nothing lives | in doubt |
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import marshal
import os
import re
import signal
import time
from typing import Any, NamedTuple

from durun.effects.command import End, NoStart, end_of
from durun.effects.locks import locked

PATIENCE = 10.0  # s for the keeper to let the gate go


class Nothing(NamedTuple):
    """Never begun, and after the gate was closed it never will be."""


class Begun(NamedTuple):
    """Begun, and no end noted. `pid` is None where only the intent to spawn it was noted."""

    token: str
    pid: int | None
    before: float
    after: float
    out: str
    err: str


Noted = Nothing | Begun | End | NoStart


class Stuck(Exception):
    """The keeper holds its gate and does not go on: it is stopped."""


class Notes:
    """The journal of one place, after its gate was closed."""

    def __init__(self, folder: str, place: str) -> None:
        self.folder, self.place = folder, place
        self.path = os.path.join(folder, place)
        self.gone = not os.path.exists(os.path.join(self.path, "journal"))
        self._records: dict[str, dict[str, tuple[Any, ...]]] = {}
        self._read = 0

    @classmethod
    def take_over(cls, folder: str, place: str) -> Notes:
        """Closes the gate of a place for ever and reads its journal. Raises Stuck."""
        notes = cls(folder, place)
        if not notes.gone:
            notes._close_gate()
            notes.refresh()
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
                        raise Stuck(f"the keeper of {self.path} is stopped while it begins a command") from None
                    time.sleep(0.005)
            os.pwrite(fd, b"x", 0)
        finally:
            os.close(fd)

    def refresh(self) -> None:
        """Reads what has been noted since; what is torn does not count."""
        try:
            with open(os.path.join(self.path, "journal"), "rb") as f:
                f.seek(self._read)
                data = f.read()
        except FileNotFoundError:
            return
        for line in data.split(b"\n"):
            record = _record(line)
            if record is None:
                break
            self._read += len(line) + 1
            self._records.setdefault(record[1], {})[record[0]] = record

    def of(self, token: str) -> Noted:
        """What the journal says of an attempt."""
        said = self._records.get(token, {})
        if "ended" in said:
            return end_of(token, said["ended"][2], self.place)
        if "nostart" in said:
            return NoStart(token, said["nostart"][2], said["nostart"][3])
        if "about" not in said:
            return Nothing()
        _, _, _, out, err = said["about"]
        _, _, pid, before, after = said.get("begun", (None, None, None, 0.0, 0.0))
        return Begun(token, pid, before, after, out, err)

    def keeper_alive(self) -> bool:
        return locked(os.path.join(self.path, "journal"))

    def alive(self, begun: Begun, key: str) -> bool:
        """Whether anything of a begun command lives: its group, its output, or a process with its key."""
        if any(_held(os.path.join(self.path, name)) for name in (begun.out, begun.err)):
            return True
        if begun.pid is not None:
            return ours(begun, key)
        return bool(_with_key(key))

    def ask_stop(self, begun: Begun, key: str, steps: list[tuple[str, int]], why: str) -> None:
        """Has a command stopped: by its keeper, or where that is dead, by the signal itself once it is sure whose it is."""
        if self.keeper_alive():
            line = f"{begun.token} {','.join(f'{name}:{ms}' for name, ms in steps)} {why}\n"
            fd = os.open(os.path.join(self.path, "control"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        elif begun.pid is not None and ours(begun, key):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(begun.pid, getattr(signal, f"SIG{steps[0][0]}"))


def _record(line: bytes) -> tuple[Any, ...] | None:
    found = re.fullmatch(rb"([0-9a-f]{8}) ([0-9a-f]+)", line)
    if found is None or binascii.crc32(found.group(2)) != int(found.group(1), 16):
        return None
    record = marshal.loads(bytes.fromhex(found.group(2).decode()))
    return record if isinstance(record, tuple) else None


def _held(path: str) -> bool:
    """Whether anybody holds a log as its output: whether it cannot be locked exclusively."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def ours(begun: Begun, key: str) -> bool:
    """Whether a group is the one that was begun, and lives.

    A leader must have started in the window that was noted; where it is gone, a member must carry the key of the effect: a pid
    that was used again is no proof.
    """
    if begun.pid is None:
        return False
    try:
        os.killpg(begun.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    members = _group(begun.pid)
    if members is None:
        return True  # no /proc here: the group is there, that is all that can be said
    alive = [m for m in members if m[1] not in "ZX"]
    if not alive:
        return False
    leader = next((m for m in members if m[0] == begun.pid), None)
    if leader is None:
        return not set(_with_key(key)).isdisjoint(m[0] for m in alive)
    return begun.before - 1.0 <= leader[2] <= begun.after + 1.0


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

"""Power cuts: what SQLite asks of the disk is recorded in its order, and every state the disk may be found in is made of it.

Rules:
- a write, a truncate, a new name and a deleted name may be lost until they are synced, each on its own, and a write may be torn:
  of its sectors some are there and others are not
- a sync of a file makes its own writes durable and no others. Names become durable with the folder, which SQLite syncs after it has
  first synced a journal or a WAL that it made, and after a delete where it says so
- what was durable stays as it is, also beside a write into the same sector: SQLite counts on that too
- the index of the WAL is shared memory, and never on the disk
- what durun did that cannot be taken back stands in the same record, as facts: whatever came before a cut must be in every image
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw

MADE_WITH_FOLDER = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
SECTORS = (512, 4096)


class Write(NamedTuple):
    file: int
    at: int
    data: bytes


class Truncate(NamedTuple):
    file: int
    size: int


class Made(NamedTuple):
    file: int
    name: str


class Gone(NamedTuple):
    name: str


class Sync(NamedTuple):
    file: int | None  # None: the names in the folder
    seen: Any  # what the world outside was like just then


class Fact(NamedTuple):
    what: Any


Op = Write | Truncate | Made | Gone


class Disk(NamedTuple):
    files: dict[int, bytes]
    names: dict[str, int]

    def after(self, op: Op, data: bytes | None = None) -> Disk:
        """With one change more; `data` are the bytes of a write that arrived, where not all did."""
        match op:
            case Write(file, at, whole):
                return self._put(file, _written(self.files.get(file, b""), at, whole if data is None else data))
            case Truncate(file, size):
                return self._put(file, self.files.get(file, b"")[:size].ljust(size, b"\0"))
            case Made(file, name):
                return Disk(self.files, {**self.names, name: file})
            case Gone(name):
                return Disk(self.files, {n: f for n, f in self.names.items() if n != name})

    def _put(self, file: int, content: bytes) -> Disk:
        return Disk({**self.files, file: content}, self.names)

    def lay_out(self, folder: Path) -> None:
        for name, file in self.names.items():
            (folder / name).write_bytes(self.files.get(file, b""))


def _written(old: bytes, at: int, data: bytes) -> bytes:
    return old[:at].ljust(at, b"\0") + data + old[at + len(data) :]


class Recorder(apsw.VFS):
    """The default VFS of this process while it records; what lies in its folder at the beginning is on the disk."""

    NAME = "recorder"

    def __init__(self, folder: Path, seen: Callable[[], Any] = lambda: None) -> None:
        self.folder, self.seen = str(folder), seen
        self.log: list[Op | Sync | Fact] = []
        self._names: dict[str, int] = {}
        self._numbers = 0
        self.base = apsw.vfs_names()[0]
        super().__init__(self.NAME, self.base, makedefault=True)

    def stop(self) -> None:
        apsw.set_default_vfs(self.base)
        self.unregister()

    def fact(self, what: Any) -> None:
        self.log.append(Fact(what))

    def file_of(self, name: str) -> int:
        if name not in self._names:
            self._numbers += 1
            self._names[name] = self._numbers
            self.log.append(Made(self._numbers, name))
        return self._names[name]

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or os.path.dirname(path) != self.folder:
            return super().xOpen(name, flags)
        return Recorded(self, name, flags, os.path.basename(path))

    def xDelete(self, path: str, sync: bool) -> None:
        super().xDelete(path, sync)
        if self._names.pop(os.path.basename(path), None) is not None:
            self.log.append(Gone(os.path.basename(path)))
            if sync:
                self.log.append(Sync(None, self.seen()))


class Recorded(apsw.VFSFile):
    def __init__(self, recorder: Recorder, path: Any, flags: list[int], name: str) -> None:
        new = not os.path.exists(os.path.join(recorder.folder, name))
        super().__init__(recorder.base, path, flags)
        self._recorder, self._file = recorder, recorder.file_of(name)
        self._with_folder = bool(new and flags[0] & MADE_WITH_FOLDER)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._recorder.log.append(Write(self._file, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._recorder.log.append(Truncate(self._file, size))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        log, seen = self._recorder.log, self._recorder.seen()
        log.append(Sync(self._file, seen))
        if self._with_folder:
            log.append(Sync(None, seen))
            self._with_folder = False


class Cut(NamedTuple):
    """The power goes: what is on the disk for certain, what may be, what was done before, and what the world was like."""

    disk: Disk
    pending: list[Op]
    facts: list[Any]
    seen: Any

    def whole(self, present: list[bool], torn: dict[int, tuple[int, int]] | None = None) -> Disk:
        """The image in which these of the pending changes arrived; torn: change -> (sector, bits: which of its sectors did)."""
        disk = self.disk
        for n, op in enumerate(self.pending):
            if not present[n]:
                continue
            if torn and n in torn and isinstance(op, Write):
                for part in _parts(op, *torn[n]):
                    disk = disk.after(part)
            else:
                disk = disk.after(op)
        return disk

    def images(self, chance: Random, few: int | None = None) -> Iterator[tuple[str, Disk]]:
        """All prefixes, all single losses, each write torn, and subsets drawn by chance; with `few` that many of each, drawn."""
        n = len(self.pending)
        for at in _some(range(n + 1), few, chance):
            yield f"the first {at} of {n} changes", self.whole([k < at for k in range(n)])
        for at in _some(range(n), few, chance):
            yield f"all of {n} changes but number {at}", self.whole([k != at for k in range(n)])
        for at in _some([k for k, op in enumerate(self.pending) if isinstance(op, Write)], few, chance):
            for sector in SECTORS:
                bits = chance.getrandbits(16)
                before = self.whole([k <= at for k in range(n)], {at: (sector, bits)})
                yield f"the first {at} of {n} changes and sectors {bits:b} of {sector} of the next", before
        for _ in range((3 if few is None else few) * (n > 1)):
            present = [chance.random() < 0.6 for _ in range(n)]
            torn = {k: (chance.choice(SECTORS), chance.getrandbits(16)) for k in range(n) if chance.random() < 0.2}
            yield f"{''.join('01'[p] for p in present)} torn at {sorted(torn)}", self.whole(present, torn)


def _parts(op: Write, sector: int, bits: int) -> Iterator[Write]:
    """The pieces of a write, cut at the sectors of its file, that arrived."""
    at, end, n = op.at, op.at + len(op.data), 0
    while at < end:
        upto = min(end, (at // sector + 1) * sector)
        if bits >> n % 16 & 1:
            yield Write(op.file, at, op.data[at - op.at : upto - op.at])
        at, n = upto, n + 1


def _some(all: Any, few: int | None, chance: Random) -> list[Any]:
    return list(all) if few is None or len(all) <= few else sorted(chance.sample(list(all), few))


def cuts(log: list[Op | Sync | Fact], seen: Any) -> Iterator[Cut]:
    """A cut just before each sync, and one at the end: an image of any other moment is one of these, with fewer facts."""
    disk, pending, facts = Disk({}, {}), list[Op](), list[Any]()
    for entry in log:
        match entry:
            case Fact(what):
                facts.append(what)
            case Sync(file, then):
                yield Cut(disk, list(pending), list(facts), then)
                safe = [op for op in pending if _of(op) == file]
                for op in safe:
                    disk = disk.after(op)
                pending = [op for op in pending if _of(op) != file]
            case _:
                pending.append(entry)
    yield Cut(disk, pending, facts, seen)


def _of(op: Op) -> int | None:
    """Which file a change belongs to; None: the folder."""
    return op.file if isinstance(op, Write | Truncate) else None

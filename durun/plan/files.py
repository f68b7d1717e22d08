"""The files a plan takes with it: what its patterns name in its folder, and what they held when they were read.

Rules:
- patterns are relative to the folder of the plan: `*`, `?` and `[…]` within a name, `**` for any number of folders. A name that
  begins with a dot is matched only by a pattern that writes the dot
- a link is followed as long as it stays in the folder of the plan; what leads out of it, what is no file, and a pattern that
  matches nothing are refused, so nothing is left behind in silence
- of the mode is kept who may read and who may execute: nobody writes to what is pinned
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from fnmatch import translate
from functools import lru_cache

from durun.errors import PlanRefused

Manifest = dict[str, list[int | str]]  # path -> [SHA-256, mode]

LARGEST = 16 * 1024 * 1024  # bytes of one file
MOST_BYTES = 64 * 1024 * 1024  # of all files of a plan
MOST = 10_000  # files of a plan
KEPT = 0o555  # of a mode


class Unpinnable(Exception):
    """A pattern whose files cannot be taken along; the message says why."""


def found(folder: str, patterns: Iterable[tuple[int, str]]) -> tuple[Manifest, list[tuple[int, str]]]:
    """(what the patterns name, [(number of the pattern, why it is refused)])."""
    manifest: Manifest = {}
    faults: list[tuple[int, str]] = []
    total = 0
    for n, pattern in patterns:
        try:
            for path in matched(folder, pattern):
                if path in manifest:
                    continue
                content, mode = read(folder, path)
                total += len(content)
                if total > MOST_BYTES or len(manifest) >= MOST:
                    raise Unpinnable(f"the pinned files of a plan have at most {MOST_BYTES >> 20} MiB, and are at most {MOST}")
                manifest[path] = [hashlib.sha256(content).hexdigest(), mode]
        except Unpinnable as e:
            faults.append((n, str(e)))
    return dict(sorted(manifest.items())), faults


def matched(folder: str, pattern: str) -> list[str]:
    """The files that a pattern names, sorted, as paths relative to the folder. Raises Unpinnable."""
    parts = pattern.split("/")
    if pattern.startswith("/") or ".." in parts:
        raise Unpinnable(f"`{pattern}` leads out of the folder of the plan: what is pinned lies in it")
    parts = [part for part in parts if part not in ("", ".")]
    root = os.path.realpath(folder or ".")
    if parts and os.path.isdir(os.path.join(root, *parts)):
        raise Unpinnable(f"`{pattern}` is a folder: write `{'/'.join(parts)}/**` for all that is in it")
    paths = sorted(set(_walk(root, "", parts, (root,))))
    if not paths:
        raise Unpinnable(f"`{pattern}` matches no file in {folder or '.'}")
    for path in paths:
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise Unpinnable(f"{os.fsencode(path)!r} is no UTF-8 text") from None
    return paths


def _walk(root: str, at: str, parts: list[str], chain: tuple[str, ...]) -> Iterator[str]:
    """What the rest of a pattern matches below `at`; `chain` are the folders that lead there, so that links make no circle."""
    if not parts:
        return
    first, rest = parts[0], parts[1:]
    for name, is_folder in _entries(root, at):
        path = f"{at}/{name}" if at else name
        if first == "**":
            if name.startswith("."):
                continue
            if is_folder:
                inner = _within(root, path)
                if inner not in chain:
                    yield from _walk(root, path, parts, (*chain, inner))
            elif not rest:
                yield path
        elif _fits(first, name):
            if is_folder and rest:
                inner = _within(root, path)
                if inner not in chain:
                    yield from _walk(root, path, rest, (*chain, inner))
            elif not is_folder and not rest:
                yield path
    if first == "**" and rest:
        yield from _walk(root, at, rest, chain)


def _entries(root: str, at: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(os.path.join(root, at)) as entries:
            return [(entry.name, _is_folder(entry)) for entry in entries]
    except NotADirectoryError:
        return []
    except FileNotFoundError:
        return []
    except OSError as e:
        raise Unpinnable(f"{at or '.'} cannot be read: {os.strerror(e.errno or 0)}") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, say: refused where a pattern names it, and no reason to read nothing beside it
        return False


def _within(root: str, path: str) -> str:
    """Where a path really leads. Raises Unpinnable where that is outside."""
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath((root, real)) != root:
        raise Unpinnable(f"{path} is a link that leads out of the folder of the plan, to {real}")
    return real


@lru_cache(maxsize=64)
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))


def _fits(part: str, name: str) -> bool:
    return (not name.startswith(".") or part.startswith(".")) and _pattern(part).match(name) is not None


def read(folder: str, path: str) -> tuple[bytes, int]:
    """(content, mode) of a file in the folder. Raises Unpinnable."""
    root = os.path.realpath(folder or ".")
    real = _within(root, path)
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, "rb") as f:
            there = os.fstat(fd)
            if not stat.S_ISREG(there.st_mode):
                raise Unpinnable(f"{path} is no file")
            content = f.read(LARGEST + 1)
    except OSError as e:
        raise Unpinnable(f"{path} cannot be read: {os.strerror(e.errno or 0)}") from None
    if len(content) > LARGEST:
        raise Unpinnable(f"{path} is too large to be pinned: at most {LARGEST >> 20} MiB")
    return content, stat.S_IMODE(there.st_mode) & KEPT


def contents(trees: Iterable[tuple[str, Manifest]]) -> dict[str, bytes]:
    """What the files held, by digest. Raises PlanRefused where one is not what it was when the plan was checked."""
    out: dict[str, bytes] = {}
    for folder, manifest in trees:
        for path, (digest, _) in manifest.items():
            if digest in out:
                continue
            try:
                content = read(folder, path)[0]
            except Unpinnable as e:
                raise PlanRefused(f"{e}; nothing was changed") from None
            if hashlib.sha256(content).hexdigest() != digest:
                raise PlanRefused(f"{path} was changed while it was read: the same command again; nothing was changed")
            out[str(digest)] = content
    return out

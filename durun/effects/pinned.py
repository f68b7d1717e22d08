"""Pinned files as a tree on disk: laid out from the database before a command needs them, and whole whenever one begins.

Rules:
- a tree lies in `files/DIGEST` of the database's folder, read-only, files and folders; runs that pin the same share it
- before its first command a driver checks the whole tree against its digests; before each further one it looks whether anything
  has changed since, by what the file system says of every file and folder
- what is gone or changed is made again, file by file and each in one step, and what is not of the tree is taken away; whoever
  mends a tree holds a lock, so that drivers of several runs do not get in each other's way
- what lies there is never read back as what was pinned: that is the database
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping

from durun.errors import StoreUnusable

Tree = Mapping[str, tuple[str, int]]  # path -> (SHA-256, mode)
Signs = dict[str, tuple[int, ...]]
FOLDER = 0o555


class Trees:
    """The trees of one database's folder. `tree` and `content` read the database."""

    def __init__(self, folder: str, tree: Callable[[str], Tree], content: Callable[[str], bytes]) -> None:
        self._folder = os.path.join(folder, "files")
        self._tree, self._content = tree, content
        self._known: dict[str, tuple[Tree, Signs]] = {}

    def at(self, digest: str) -> str:
        """The folder of a tree, whole. Raises OSError, StoreUnusable."""
        root = os.path.join(self._folder, digest)
        tree, signs = self._known.get(digest, (None, {}))
        if tree is None or look(root, tree) != signs:
            tree = tree if tree is not None else self._tree(digest)
            if not is_whole(root, tree):
                self._mend(root, tree)
            self._known[digest] = tree, look(root, tree)
        return root

    def _mend(self, root: str, tree: Tree) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(root, tree):
                make(root, tree, self._content)
            if not is_whole(root, tree):
                raise StoreUnusable(
                    f"the pinned files in {root} cannot be kept as they are in the database; mend that, then resume"
                )
        finally:
            os.close(lock)


def folders_of(tree: Tree) -> set[str]:
    """The folders of a tree, '' for its root."""
    found = {""}
    for path in tree:
        while path := os.path.dirname(path):
            found.add(path)
    return found


def _at(root: str, folder: str) -> str:
    """Where a folder of a tree lies: with no slash behind the root, which would make a link of it the folder it leads to."""
    return os.path.join(root, folder) if folder else root


def look(root: str, tree: Tree) -> Signs:
    """What the file system says of every file and folder of a tree; of what is gone nothing."""
    found: Signs = {}
    for path in (*sorted(folders_of(tree)), *tree):
        with contextlib.suppress(OSError):
            there = os.lstat(_at(root, path))
            found[path] = (there.st_mode, there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns)
    return found


def is_whole(root: str, tree: Tree) -> bool:
    """Whether a tree is just what it should be: every file with its content and mode, and nothing else."""
    folders = folders_of(tree)
    try:
        for folder in folders:
            at = _at(root, folder)
            there = os.lstat(at)
            if not stat.S_ISDIR(there.st_mode) or stat.S_IMODE(there.st_mode) != FOLDER:
                return False
            for name in os.listdir(at):
                path = os.path.join(folder, name)
                if path not in tree and path not in folders:
                    return False
        return all(_is_file(os.path.join(root, path), *of) for path, of in tree.items())
    except OSError:
        return False


def _is_file(at: str, digest: str, mode: int) -> bool:
    there = os.lstat(at)
    if not stat.S_ISREG(there.st_mode) or stat.S_IMODE(there.st_mode) != (mode | 0o400):
        return False
    with open(at, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() == digest


def make(root: str, tree: Tree, content: Callable[[str], bytes]) -> None:
    """Lays a tree out, or mends it. Raises OSError, StoreUnusable."""
    folders = sorted(folders_of(tree))
    for folder in folders:
        at = _at(root, folder)
        if os.path.islink(at) or (os.path.lexists(at) and not os.path.isdir(at)):
            os.unlink(at)
        os.makedirs(at, mode=0o700, exist_ok=True)
        os.chmod(at, 0o700)
        for name in os.listdir(at):
            path = os.path.join(folder, name)
            if path not in tree and path not in folders:
                _remove(os.path.join(at, name))
    for path, (digest, mode) in tree.items():
        at = os.path.join(root, path)
        with contextlib.suppress(OSError):
            if _is_file(at, digest, mode):
                continue
        held = content(digest)
        if hashlib.sha256(held).hexdigest() != digest:
            raise StoreUnusable(f"the pinned file {path} is damaged in the database: `durun db check`")
        _put(at, held, mode | 0o400)
    for folder in reversed(folders):
        os.chmod(os.path.join(root, folder), FOLDER)


def _put(at: str, content: bytes, mode: int) -> None:
    """A file in one step: nobody ever sees half of it."""
    beside = f"{at}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as f:
        f.write(content)
        f.flush()
        os.fchmod(fd, mode)
    if os.path.isdir(at) and not os.path.islink(at):
        _remove(at)
    os.replace(beside, at)


def _remove(at: str) -> None:
    if os.path.islink(at) or not os.path.isdir(at):
        os.unlink(at)
        return
    for folder, _, _ in os.walk(at):
        os.chmod(folder, 0o700)
    shutil.rmtree(at)


def sweep(folder: str, known: set[str]) -> None:
    """Takes the trees from the disk that the database has no more."""
    at = os.path.join(folder, "files")
    for name in os.listdir(at) if os.path.isdir(at) else []:
        if name != "lock" and name not in known:
            with contextlib.suppress(OSError):
                _remove(os.path.join(at, name))

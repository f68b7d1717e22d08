"""Pinned files in the file: their content once by digest, and the trees they are laid out in."""

from __future__ import annotations

import apsw

from durun.errors import StoreUnusable
from durun.store.file import File, rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any


def put(db: apsw.Connection, run: int, trees: dict[str, Json], files: dict[str, bytes]) -> None:
    """What a run takes with it, inside the transaction that stores or migrates it."""
    for digest, content in files.items():
        db.execute("INSERT OR IGNORE INTO files (digest, content) VALUES (?, ?)", (digest, content))
    for tree, manifest in trees.items():
        for path, (digest, mode) in manifest.items():
            db.execute("INSERT OR IGNORE INTO trees (tree, path, digest, mode) VALUES (?, ?, ?, ?)", (tree, path, digest, mode))
        db.execute("INSERT OR IGNORE INTO pinned (run, tree) VALUES (?, ?)", (run, tree))


def known(file: File) -> set[str]:
    """The trees that the file has."""
    return {str(tree) for (tree,) in rows(file.db, "SELECT DISTINCT tree FROM trees")}


def tree(file: File, digest: str) -> dict[str, tuple[str, int]]:
    """path -> (SHA-256, mode). Raises StoreUnusable where the file does not have it."""
    found = rows(file.db, "SELECT path, digest, mode FROM trees WHERE tree = ? ORDER BY path", (digest,))
    if not found:
        raise StoreUnusable(f"the pinned files {digest[:12]} are not in {file.path}: `durun db check`")
    return {path: (of, mode) for path, of, mode in found}


def content(file: File, digest: str) -> bytes:
    """What a pinned file holds. Raises StoreUnusable."""
    found = rows(file.db, "SELECT content FROM files WHERE digest = ?", (digest,))
    if not found:
        raise StoreUnusable(f"the pinned content {digest[:12]} is not in {file.path}: `durun db check`")
    held = found[0][0]
    return held if isinstance(held, bytes) else str(held).encode()

"""What a run was read from, as it lies on disk now. Only what was touched since the run was born is read again."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

MARGIN = 10_000  # ms before the birth of a run in which its files were read
LARGEST = 64 * 1024 * 1024  # bytes: nothing larger was taken along
MOST = 200  # words that are looked for on the disk
BOM = b"\xef\xbb\xbf"


def changes(file: str, directory: str, texts: dict[str, str], files: dict[str, str], since: int) -> str:
    """What differs on disk, in words; '' where nothing does.

    `texts`: the plans that were read, '' for the first, and `files` those that are pinned, by their path relative to the folder of
    the plan -> SHA-256. `since`: when the run was born, UTC ms.
    """
    folder = directory if file == "-" else os.path.dirname(file)
    plans = {at or os.path.basename(file): digest for at, digest in texts.items() if at or file != "-"}
    before = {**plans, **files} | plans
    now = {path: _digest_at(os.path.join(folder, path), was, since, path in plans) for path, was in before.items()}
    from durun.pins import changed

    return changed(before, now)


def _digest_at(path: str, was: str, since: int, text: bool) -> str | None:
    """SHA-256 of a file, of a text without its mark of UTF-8; None where there is none that can be read."""
    try:
        there = os.stat(path)
        if there.st_ctime_ns // 1_000_000 < since - MARGIN:
            return was
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as f:
            content = f.read(LARGEST)
    except OSError:
        return None
    import hashlib

    return hashlib.sha256(content.removeprefix(BOM) if text else content).hexdigest()


def not_pinned(plan: Json, directory: str) -> list[str]:
    """The files in the directory of a run that its commands name, and that did not go with it, as they are named."""
    from durun.plan.canonical import acts_of, own_states, plans_of

    found: dict[str, None] = {}
    for _, one in plans_of(plan):
        pinned = one["pins"].get("files", {})
        for act in (act for state in own_states(one) for act in acts_of(state)):
            for word in _words(act):
                if word.removeprefix("./") not in pinned and len(found) < MOST:
                    found[os.path.normpath(os.path.join(act.get("cwd", ""), word))] = None
    return [path for path in found if os.path.isfile(os.path.join(directory, path))]


def _words(act: Json) -> list[str]:
    """What of a command may be a relative path; in a script it has a dot or a slash in it."""
    if "argv" in act:
        return [word for word in act["argv"] if isinstance(word, str) and word and not word.startswith(("/", "-"))]
    import re

    return [word for word in re.findall(r"(?<![\w./$}~-])[\w.-][\w./-]*", act.get("script", "")) if "." in word or "/" in word]

"""What a plan says of the files and tools it pins: where it names a file on disk and not the copy that goes with the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from durun.plan import words
from durun.plan.references import Found, all_acts, items, mapping

Json = Any
Where = tuple[str | int, ...]
COPY = r"""\$(?:DURUN_FILES|\{DURUN_FILES[^}]*\})["']?/["']?(?:\./)?$"""


def named(word: str) -> str:
    """The pinned path that a word of a command would stand for."""
    return word.removeprefix("./")


def faults(data: dict[str, Json], files: Mapping[str, Json]) -> Iterator[Found]:
    """Tools whose name or words say nothing."""
    for name, argv in mapping(mapping(data.get("pins")).get("tools")).items():
        at: Where = ("pins", "tools", name)
        if not words.OPTION.fullmatch(name):
            yield Found(at, f"`{name[:40]}` is no name of a tool: letters, digits, `_`, `.` and `-`, at most 64", key=True)
        for n, word in enumerate(items(argv)):
            if isinstance(word, str) and named(word) in files:
                said = f"`{word}` is pinned with its content, so that it cannot drift: ask what it calls, or leave this out"
                yield Found((*at, n), said)


def warnings(data: dict[str, Json], files: Mapping[str, Json]) -> Iterator[Found]:
    """Commands that name a pinned path, and mean the file on disk with it."""
    if not files:
        return
    any_of = "|".join(re.escape(path) for path in sorted(files, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.-])(?:\./)?({any_of})(?![\w-]|\.\w|/)")
    for where, act in all_acts(data):
        yield from _of_act((*where, "run"), act.get("run"), files, pattern)


def _of_act(where: Where, run: Json, files: Mapping[str, Json], pattern: re.Pattern[str]) -> Iterator[Found]:
    words = [(where, run)] if isinstance(run, str) else [((*where, n), word) for n, word in enumerate(items(run))]
    for at, text in words:
        if not isinstance(text, str) or (at != where and named(text) in files):
            continue
        for hit in pattern.finditer(text):
            if not re.search(COPY, text[: hit.start()]):
                copy = f"`$DURUN_FILES/{hit[1]}` is the copy that goes with the run"
                said = f"`{hit[1]}` is pinned, and this names the file on disk: {copy}"
                yield Found(at, said, offset=hit.start())

"""Secrets: the places a frozen request keeps open for them, and the mask over text that holds their values. Pure.

Rules:
- a frozen request holds no value of a secret; `open` of it is a list of [path, parts]: the text at that path is its parts in
  order, and a part that is an object names the secret that fills it when the request is sent
- values of 6 characters or more are known to the mask; shorter ones would hide half of everything
- the longest value wins where several begin at one place, however the text is cut into pieces
- data is never masked, it is refused: `holder` says whose value is in it
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from durun.machine.draft import LIMIT, Evaluate, Names
from durun.plan.expressions import SECRET, Hole, split

Json = Any
Path = tuple[str | int, ...]

SHORTEST = 6  # characters of a value that is masked
MASK = "***"


# --- open places ---


def taken_out(tree: Json) -> tuple[Json, list[tuple[Path, str]]]:
    """The tree with each text that has a secret in it left empty, and those texts with their paths."""
    found: list[tuple[Path, str]] = []
    return _without(tree, (), found), found


def _without(at: Json, path: Path, found: list[tuple[Path, str]]) -> Json:
    if isinstance(at, dict):
        return {k: _without(v, (*path, k), found) for k, v in at.items()}
    if isinstance(at, list):
        return [_without(v, (*path, n), found) for n, v in enumerate(at)]
    if isinstance(at, str) and "secrets." in at and any(isinstance(p, Hole) and SECRET.fullmatch(p.source) for p in split(at)):
        found.append((path, at))
        return ""
    return at


def open_places(e: Evaluate, found: list[tuple[Path, str]], names: Names) -> Json:
    """`open` of a request: the texts in parts, everything but the secrets worked out. Raises ExpressionError."""
    return [[list(path), [_part(e, part, names) for part in split(text)]] for path, text in found]


def _part(e: Evaluate, part: str | Hole, names: Names) -> Json:
    if isinstance(part, str):
        return part
    secret = SECRET.fullmatch(part.source)
    return {"secret": secret[1]} if secret else e.text(f"${{{{{part.source}}}}}", names, limit=LIMIT)


def filled(request: Json, value: Callable[[str], str]) -> Json:
    """The request with its open places filled; `value` gives that of a secret by name. The frozen one stays as it is."""
    if not request.get("open"):
        return request
    full = {k: json.loads(json.dumps(v)) for k, v in request.items() if k != "open"}
    for path, parts in request["open"]:
        at = full
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = "".join(part if isinstance(part, str) else value(part["secret"]) for part in parts)
    return full


def shown(request: Json, word: str) -> str:
    """A text of a request for people: open places are shown as the plan wrote them."""
    for path, parts in request.get("open", []):
        if path == [word]:
            return "".join(part if isinstance(part, str) else f"${{{{ secrets.{part['secret']} }}}}" for part in parts)
    return str(request[word])


# --- the mask ---


class Mask:
    """Hides known values in text. `values`: (name, value) of every secret as it is or has been."""

    def __init__(self, values: Iterable[tuple[str, str]] = ()) -> None:
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._bytes: re.Pattern[bytes] | None = None
        self.longest = 0  # bytes
        for name, value in values:
            self.learn(name, value)

    def learn(self, name: str, value: str) -> None:
        if len(value) < SHORTEST or value in self._names:
            return
        self._names[value] = name
        known = sorted(self._names, key=len, reverse=True)
        raw = sorted((v.encode("utf-8", "surrogateescape") for v in known), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known)))
        self._bytes = re.compile(b"|".join(map(re.escape, raw)))
        self.longest = len(raw[0])

    def text(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def tree(self, value: Json) -> Json:
        """JSON with every text in it masked."""
        if self._pattern is None:
            return value
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.tree(v) for v in value]
            case dict():
                return {self.text(k): self.tree(v) for k, v in value.items()}
        return value

    def settled(self, data: bytes) -> tuple[bytes, bytes]:
        """What of these bytes is certain, masked, and the rest, in which a value may only have begun."""
        return (data, b"") if self._bytes is None else self._masked(data, len(data) - self.longest + 1)

    def masked(self, data: bytes) -> bytes:
        """Bytes that are whole, masked."""
        return data if self._bytes is None else self._masked(data, len(data))[0]

    def _masked(self, data: bytes, before: int) -> tuple[bytes, bytes]:
        """What begins before a place, masked, and the rest."""
        assert self._bytes is not None
        out, at = b"", 0
        for found in self._bytes.finditer(data):
            if found.start() >= before:
                break
            out += data[at : found.start()] + MASK.encode()
            at = found.end()
        end = max(at, before, 0)
        return out + data[at:end], data[end:]

    def holder(self, *data: bytes | None) -> str:
        """The name of a secret whose value is in the data, as it stands or as text of JSON; '' where there is none."""
        for raw in data:
            if self._bytes is None or not raw:
                continue
            found = self._bytes.search(raw)
            if found is not None:
                return self._names[found.group().decode("utf-8", "surrogateescape")]
            if b"\\" in raw and (name := self._in_json(raw)):
                return name
        return ""

    def _in_json(self, raw: bytes) -> str:
        """JSON may spell a value in other ways: it is read, and looked at."""
        assert self._pattern is not None
        try:
            todo: list[Json] = [json.loads(raw, parse_int=str)]  # a number of many digits would take its time
        except (ValueError, RecursionError):
            return ""
        while todo:
            at = todo.pop()
            if isinstance(at, dict):
                todo += [*at, *at.values()]
            elif isinstance(at, list):
                todo += at
            elif isinstance(at, str) and (found := self._pattern.search(at)):
                return self._names[found.group()]
        return ""

"""What goes into the CEL library and what comes out of it: JSON, and nothing the library would cut, round or die of.

Rules:
- text with NUL (the library cuts there), half a surrogate, data over 100 deep (it ends the process), NaN and infinity are refused
- an integer beyond 64 bits goes in as a stand-in, a map with one key that no JSON has: it can be passed on and compared for
  equality, and whatever reads it as a number is an error; what comes out has the integer again
- what comes out has the keys of its objects sorted

Standard library only.
"""

from __future__ import annotations

import re
from typing import Any

Json = Any

LOWEST, HIGHEST = -(2**63), 2**63 - 1
DEEPEST = 100
LARGE = LOWEST  # the one key of a stand-in; its value has the digits
INFINITE = (float("inf"), float("-inf"))
DIGITS = "-?[0-9]{19,}"  # both are compiled where they are needed
SURROGATE = "[\ud800-\udfff]"


class Unfit(Exception):
    """A value that cannot go into an expression or come out of one, in words that can follow a colon."""


def fit_text(text: str) -> None:
    """Raises Unfit where text cannot be handed over whole."""
    if "\0" in text:
        raise Unfit("text with a NUL cannot be used")
    if not text.isascii() and re.search(SURROGATE, text):
        raise Unfit("text with half a surrogate cannot be used")


def fit_number(number: int | float) -> None:
    """Raises Unfit for an integer beyond 64 bits, NaN and infinity."""
    if isinstance(number, int):
        if not LOWEST <= number <= HIGHEST:
            raise Unfit("an integer has more than 64 bits")
    elif number != number or number in INFINITE:
        raise Unfit("NaN and infinity are no numbers to go on with")


def handed(value: Json) -> tuple[Json, bool]:
    """The value as the library may have it, and whether a stand-in is in it. Raises Unfit. The value itself where it can be."""
    large = False
    todo: list[tuple[Json, int]] = [(value, 0)]
    while todo:
        at, depth = todo.pop()
        if depth > DEEPEST:
            raise Unfit(f"the data lies more than {DEEPEST} deep")
        if isinstance(at, str):
            fit_text(at)
        elif isinstance(at, list):
            todo += [(v, depth + 1) for v in at]
        elif isinstance(at, dict):
            for key, v in at.items():
                if not isinstance(key, str):
                    raise Unfit("the keys of an object must be strings")
                fit_text(key)
                todo.append((v, depth + 1))
        elif isinstance(at, float):
            fit_number(at)
        elif isinstance(at, int):
            large = large or not LOWEST <= at <= HIGHEST
        elif at is not None:
            raise Unfit(f"a {type(at).__name__} is no JSON")
    return (_stood_in(value), True) if large else (value, False)


def _stood_in(value: Json) -> Json:
    match value:
        case list():
            return [_stood_in(v) for v in value]
        case dict():
            return {k: _stood_in(v) for k, v in value.items()}
        case int() if not LOWEST <= value <= HIGHEST:
            return {LARGE: str(value)}
    return value


def taken(value: Json, depth: int = 0) -> Json:
    """What the library gave, as JSON: keys sorted, large integers themselves again. Raises Unfit."""
    if depth > DEEPEST:
        raise Unfit(f"the result lies more than {DEEPEST} deep")
    match value:
        case None | bool():
            return value
        case str():
            fit_text(value)
            return value
        case int() | float():
            fit_number(value)
            return value
        case list():
            return [taken(v, depth + 1) for v in value]
        case dict():
            return _object(value, depth)
    raise Unfit(f"the result has {_foreign(value)}, which JSON does not know; string(…) makes text of it")


def _object(value: dict[Json, Json], depth: int) -> Json:
    digits = value.get(LARGE) if len(value) == 1 else None
    if isinstance(digits, str) and len(digits) >= 19 and re.fullmatch(DIGITS, digits):
        return int(digits)
    if not all(isinstance(k, str) for k in value):
        raise Unfit("the keys of an object must be strings")
    for key in value:
        fit_text(key)
    return {k: taken(value[k], depth + 1) for k in sorted(value)}


def _foreign(value: Json) -> str:
    name = type(value).__name__
    return {"bytearray": "bytes", "datetime": "a timestamp", "timedelta": "a duration", "Type": "a type"}.get(name, f"a {name}")

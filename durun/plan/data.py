"""Data that comes from outside: strict JSON, with a bound on its depth, and nothing in it that SQLite or CEL would cut.

Standard library only; nothing here recurses with the data, and nothing takes longer than its length allows.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

Json = Any

DEEPEST = 100
DIGITS = 10_000  # of one integer; reading and writing one takes time by the square of its length
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)  # an integer keeps every digit
# a string that does not end runs to the end of the text: looked at once, not once more from each quote inside it
MARKS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', re.S)


class Unclean(ValueError):
    """JSON that is refused for what it holds, and is not to be taken for a text instead."""


def clean(value: Json) -> None:
    """Raises Unclean where data is too deep, or holds NUL, half a surrogate, NaN or infinity."""
    todo: list[tuple[Json, int]] = [([value], -1)]  # lists and objects, and how deep they lie
    while todo:
        at, depth = todo.pop()
        if depth == DEEPEST and at:
            raise Unclean(f"it lies more than {DEEPEST} deep")
        if isinstance(at, dict):
            for key in at:
                _clean_text(key)
            at = at.values()
        for v in at:
            if isinstance(v, str):
                if not v.isascii() or "\0" in v:
                    _clean_text(v)
            elif isinstance(v, list | dict):
                todo.append((v, depth + 1))
            elif isinstance(v, float) and (v != v or v in (float("inf"), float("-inf"))):
                raise Unclean("NaN and infinity are not JSON")


def _clean_text(text: str) -> None:
    if "\0" in text:
        raise Unclean("it holds a NUL character")
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        raise Unclean("it holds half a surrogate")


def read_json(raw: str | bytes) -> Json:
    """JSON as RFC 8259 has it, each key once. Raises ValueError in durun's words."""
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError as e:
        raise ValueError(f"it is no UTF-8 at byte {e.start}") from None
    _shallow(text)
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_integer, parse_float=_number)
    except json.JSONDecodeError as e:
        said = e.msg[:1].lower() + e.msg[1:]
        raise ValueError(f"{said} at line {e.lineno} column {e.colno}") from None
    if "\\" in text or not text.isascii() or _brackets(text) > DEEPEST:  # else there is nothing in it that the parser lets through
        clean(value)
    return value


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unclean(f"the key {key[:60]!r} is given twice")
            seen.add(key)
    return found


def _no_constant(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number has more than {DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{")


def _shallow(text: str) -> None:
    """Raises where brackets outside strings lie too deep, before a parser could run out of stack."""
    if _brackets(text) <= DEEPEST:
        return
    depth = 0
    for found in MARKS.finditer(text):
        sign = found.group()
        if sign in "[{":
            depth += 1
            if depth > DEEPEST + 1:
                raise Unclean(f"it lies more than {DEEPEST} deep")
        elif sign in "]}":
            depth -= 1

"""Expressions: `${{ … }}` in the strings of a plan, worked out in CEL with fences around it.

Rules:
- an expression is given only the paths it names; one that is nothing but a path is looked up here, and CEL is not even loaded
- a missing name, null where a value is wanted, and types that do not fit are errors, not answers
- objects have no order: to walk over one is an error, and what comes out has its keys sorted
- text with NUL, data too deep, integers beyond 64 bits, NaN and infinity never reach the library or come out of it
- one pass: what an expression gave is never read as an expression again
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from durun.errors import ExpressionError
from durun.plan.cel_syntax import Path, Read, SyntaxFault

Json = Any
Names = Mapping[str, Json]

NAMES = ("input", "vars", "output", "error", "states", "item", "index", "visit", "run", "pins", "key", "secrets")
BARE = re.compile(r"\s*([a-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\s*")
LOWEST, HIGHEST = -(2**63), 2**63 - 1
DEEPEST = 100

__all__ = ["Evaluator", "Hole", "Path", "Reading", "SyntaxFault", "inspect", "split"]


class Hole(NamedTuple):
    """One `${{ … }}` of a string: what stands between, and where that begins in the string."""

    source: str
    offset: int


class Reading(NamedTuple):
    """What `check` wants to know of an expression: the paths it names, and its faults as (message, offset)."""

    paths: list[Path]
    faults: list[tuple[str, int]]


def split(text: str) -> list[str | Hole]:
    """The literal parts and the holes of a string, in order; `$${{` is a literal `${{`. Raises SyntaxFault."""
    parts: list[str | Hole] = []
    literal, at = "", 0
    while True:
        found = text.find("${{", at)
        if found < 0:
            literal += text[at:]
            break
        if found > 0 and text[found - 1] == "$" and found - 1 >= at:
            literal += text[at : found - 1] + "${{"
            at = found + 3
            continue
        literal += text[at:found]
        end = _closing(text, found + 3)
        if literal:
            parts.append(literal)
            literal = ""
        parts.append(Hole(text[found + 3 : end], found + 3))
        at = end + 2
    if literal or not parts:
        parts.append(literal)
    return parts


BRACKET = re.compile(r"[rRbB]{0,2}(\"\"\"|'''|\"|')|[\[({\])}]")
ENDINGS = {
    quote: re.compile((r"(?:[^\\]|\\.)*?" if len(quote) == 3 else r"(?:[^\\\n]|\\.)*?") + quote, re.S)
    for quote in ('"""', "'''", '"', "'")
}
RAW_ENDINGS = {quote: re.compile(r".*?" + quote, re.S) for quote in ENDINGS}


def _closing(text: str, start: int) -> int:
    """Where the `}}` stands that ends the hole whose source begins at `start`."""
    depth, at = 0, start
    while True:
        if depth == 0:
            end = text.find("}}", at)
            if end < 0:
                raise SyntaxFault("`${{` has no `}}` that ends it", start - 3)
        found = BRACKET.search(text, at)
        if depth == 0 and (found is None or found.start() >= end):
            return end
        if found is None:
            raise SyntaxFault("`${{` has no `}}` that ends it", start - 3)
        at = found.end()
        quote = found.group(1)
        if quote:
            raw = "r" in found.group().lower()
            closed = (RAW_ENDINGS if raw else ENDINGS)[quote].match(text, at)
            if closed is None:
                raise SyntaxFault("a string in the expression does not end", found.start())
            at = closed.end()
        else:
            depth += 1 if found.group() in "[({" else -1
            if depth < 0:
                raise SyntaxFault("a bracket is closed that was not opened", found.start())


def inspect(source: str) -> Reading:
    """Reads and compiles an expression; its faults in durun's words."""
    if "\0" in source:
        return Reading([], [("an expression holds no NUL", source.index("\0"))])
    try:
        read = Read(source)
    except SyntaxFault as e:
        return Reading([], [(e.message, e.offset)])
    unknown = [p for p in read.paths if p.names[0] not in NAMES]
    faults = [(_unknown_name(p.names[0]), p.offset) for p in unknown]
    if not faults and not BARE.fullmatch(source):
        from durun.plan import cel

        message = cel.fault(source, read.walks)
        if message:
            faults.append((message, 0))
    return Reading(read.paths, faults)


def _unknown_name(name: str) -> str:
    near = difflib.get_close_matches(name, NAMES, 1)
    return f"`{name}` is no name here" + (f"; did you mean `{near[0]}`?" if near else f": there are {', '.join(NAMES)}")


class Evaluator:
    """Works out expressions; keeps what it has compiled, by source. All failures are ExpressionError, one line."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str | Hole]] = {}
        self._reads: dict[str, Read] = {}
        self._programs: dict[str, Any] = {}

    def expression(self, source: str, names: Names) -> Json:
        """The value of a bare expression."""
        bare = BARE.fullmatch(source)
        if bare and bare.group(1) not in ("true", "false", "null"):
            value = _look_up(bare.group(1).split("."), names)
            return value if isinstance(value, list | Mapping) else _whole(value, source)
        if "\0" in source:
            raise ExpressionError("an expression holds no NUL")
        return self._by_cel(source, names)

    def condition(self, source: str, names: Names) -> bool:
        """The value of a condition: true or false, and nothing that might be taken for one of them."""
        value = self.expression(source, names)
        if not isinstance(value, bool):
            raise ExpressionError(f"`{_short(source)}` must be true or false; it is {_kind(value)}")
        return value

    def value(self, template: Json, names: Names) -> Json:
        """A tree with its expressions worked out; a string that is one expression keeps that one's type."""
        if isinstance(template, str):
            return self._string(template, names)
        if isinstance(template, list):
            return [self.value(v, names) for v in template]
        if isinstance(template, dict):
            return {k: self.value(v, names) for k, v in template.items()}
        return template

    def text(self, template: Json, names: Names, *, limit: int | None = None) -> str:
        """A text: strings, numbers and booleans become one. Raises where more than `limit` bytes would."""
        source = template if isinstance(template, str) else ""
        return _limited(_text(self.value(template, names), source), limit)

    def argv(self, templates: list[Json], names: Names) -> list[str]:
        """The words of a command; an element that is one expression giving a list becomes that many words."""
        limit = 100 * 1024
        words: list[str] = []
        for template in templates:
            value = self.value(template, names)
            if isinstance(value, list) and isinstance(template, str):
                words += [_limited(_text(v, template), limit) for v in value]
            else:
                words.append(_limited(_text(value, template if isinstance(template, str) else ""), limit))
        return words

    def _string(self, template: str, names: Names) -> Json:
        if "${{" not in template:
            return template
        parts = self._parts.get(template)
        if parts is None:
            try:
                parts = self._parts[template] = split(template)
            except SyntaxFault as e:
                raise ExpressionError(f"`{_short(template)}`: {e.message}") from None
        if len(parts) == 1 and isinstance(parts[0], Hole):
            return self.expression(parts[0].source, names)
        return "".join(p if isinstance(p, str) else _text(self.expression(p.source, names), p.source) for p in parts)

    def _by_cel(self, source: str, names: Names) -> Json:
        from durun.plan import cel

        read = self._reads.get(source)
        if read is None:
            try:
                read = self._reads[source] = Read(source)
            except SyntaxFault as e:
                raise ExpressionError(f"`{_short(source)}`: {e.message}") from None
        program = self._programs.get(source)
        if program is None:
            program = self._programs[source] = cel.compile(source, read.walks)
        data = _pick(names, read.paths, source)
        try:
            return _whole(cel.evaluate(program, data, source), source)
        except cel.Missing as e:
            raise ExpressionError(_what_is_missing(read.paths, names, source) or str(e)) from None


# --- paths ---


def _look_up(path: list[str], names: Names) -> Json:
    at: Json = names
    for n, name in enumerate(path):
        if not isinstance(at, Mapping):
            raise ExpressionError(f"`{'.'.join(path)}`: `{'.'.join(path[:n])}` is {_kind(at)}, and has no `{name}`")
        if name not in at:
            raise ExpressionError(_missing(path, n, at))
        at = at[name]
    return at


def _missing(path: Iterable[str], n: int, at: Names) -> str:
    path = list(path)
    whole, name = ".".join(path[: n + 1]), path[n]
    if path[0] == "states" and n == 2 and name == "output":
        why = "it has not ended well since it was last entered" if at.get("visits") else "it was never visited"
        return f"`{whole}` is not there: {why}"
    near = difflib.get_close_matches(name, [k for k in at if isinstance(k, str)], 1)
    return f"`{whole}` is not there" + (f"; did you mean `{near[0]}`?" if near else "")


def _what_is_missing(paths: list[Path], names: Names, source: str) -> str | None:
    for path in paths:
        try:
            if not path.optional:
                _look_up(list(path.names), names)
        except ExpressionError as e:
            return f"{e}" if str(e).startswith(f"`{source.strip()}`") else f"`{_short(source)}`: {e}"
    return None


def _pick(names: Names, paths: list[Path], source: str) -> dict[str, Json]:
    """Just what the paths name, in the shape it had; what is not there stays away."""
    out: dict[str, Json] = {}
    whole: set[tuple[str, ...]] = set()
    for path in sorted({p.names for p in paths}, key=len):
        if any(path[:n] in whole for n in range(1, len(path) + 1)):
            continue
        at, to = names, out
        for n, name in enumerate(path):
            if not isinstance(at, Mapping) or name not in at:
                break
            at = at[name]
            if n + 1 == len(path) or not isinstance(at, Mapping):
                to[name] = _whole(at, source)
                whole.add(path[: n + 1])
                break
            to = to.setdefault(name, {})
    return out


# --- what may come in and go out ---


def _whole(value: Json, source: str) -> Json:
    """The value as JSON with its keys sorted, or ExpressionError where it is none."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        if "\0" in value:
            raise ExpressionError(f"`{_short(source)}`: text with a NUL cannot be used")
        return value
    return _part(value, source, 0)


def _part(value: Json, source: str, depth: int) -> Json:
    if depth > DEEPEST:
        raise ExpressionError(f"`{_short(source)}`: the data lies more than {DEEPEST} deep")
    match value:
        case None | bool():
            return value
        case int():
            if not LOWEST <= value <= HIGHEST:
                raise ExpressionError(f"`{_short(source)}`: an integer has more than 64 bits")
            return value
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise ExpressionError(f"`{_short(source)}`: NaN and infinity are no numbers to go on with")
            return value
        case str():
            return _whole(value, source)
        case list():
            return [_part(v, source, depth + 1) for v in value]
        case dict():
            if not all(isinstance(k, str) for k in value):
                raise ExpressionError(f"`{_short(source)}`: the keys of an object must be strings")
            return {k: _part(value[k], source, depth + 1) for k in sorted(value)}
    raise ExpressionError(f"`{_short(source)}` gives a {type(value).__name__}, which is no JSON; make a string of it")


def _text(value: Json, source: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            if "\0" in value:
                raise ExpressionError(f"`{_short(source)}`: text with a NUL cannot be used")
            return value
        case int():
            return str(value)
        case float():
            return repr(value)
    raise ExpressionError(f"`{_short(source)}` is {_kind(value)}, where a text is wanted")


def _limited(text: str, limit: int | None) -> str:
    if limit is not None and len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit:
        raise ExpressionError(f"a value of {len(text)} characters is too long for argv or env: give it by `stdin`")
    return text


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def _short(source: str) -> str:
    text = " ".join(source.split())
    return text if len(text) <= 80 else text[:77] + "…"

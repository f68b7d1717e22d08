"""Expressions: `${{ … }}` in the strings of a plan, worked out in CEL with fences around it.

Rules:
- an expression is given only the paths it names; one that is nothing but a path is looked up here, and CEL is not even loaded
- a missing name, null where a value is wanted, and types that do not fit are errors, not answers
- objects have no order: to walk over one is an error, and what comes out has its keys sorted
- text with NUL, data too deep, NaN and infinity never reach the library or come out of it; an integer beyond 64 bits can be
  passed on inside a list or object, and is an error where it is read
- one pass: what an expression gave is never read as an expression again
- what a path gives that is a list or object is the caller's own, not a copy
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from durun.errors import ExpressionError
from durun.plan.cel_data import DEEPEST, Unfit, fit_number, fit_text, handed
from durun.plan.cel_syntax import KEPT, NAMES, Path, Read, SyntaxFault
from durun.plan.counted import counting
from durun.values import NamedTuple

Json = Any
Names = Mapping[str, Json]

LARGEST_WORD = 100 * 1024  # bytes of one value in argv
# what most expressions are: read without the grammar
PLAIN = re.compile(r"\s*([a-z_]+(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\s*")
NO_NAMES = {"true", "false", "null", "in"}
# a secret alone in its braces: never worked out, its place is left open
SECRET = re.compile(r"\s*secrets\.([A-Za-z_][A-Za-z0-9_]*)\s*")
IDENTIFIER = re.compile(r"(?!(?:true|false|null|in)$)[A-Za-z_][A-Za-z0-9_]*")
# what would answer for a stand-in of a large integer instead of failing
BLIND = re.compile(r"\b(?:size|format)\b")

__all__ = ["NAMES", "Evaluator", "Hole", "Lazily", "Path", "Reading", "SyntaxFault", "inspect", "split"]


NOTHING: dict[str, Json] = {}


class Lazily(Mapping[str, Json]):
    """A mapping whose values are worked out when an expression reads them, but for those that are known: `given`."""

    __slots__ = ("_given", "_names", "_of")

    def __init__(self, names: Mapping[str, Json], of: Callable[[str], Json], given: Mapping[str, Json] = NOTHING) -> None:
        self._names, self._of, self._given = names, of, given

    def __getitem__(self, name: str) -> Json:
        if name in self._given:
            return self._given[name]
        if name not in self._names:
            raise KeyError(name)
        return self._of(name)

    def __contains__(self, name: object) -> bool:
        return name in self._given or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter({**self._names, **self._given})

    def __len__(self) -> int:
        return len({**self._names, **self._given})


OBJECTS: tuple[type[Any], ...] = (dict, Lazily)  # asked by name: an abstract class costs each look a call


def _whole(value: Json) -> Json:
    """A value that does not change any more, and can be stored."""
    return {name: _whole(value[name]) for name in value} if type(value) is Lazily else value


class Hole(NamedTuple):
    """One `${{ … }}` of a string: what stands between, and where that begins in the string."""

    source: str
    offset: int


class Reading(NamedTuple):
    """What `check` wants to know of an expression: the paths it names, and its faults as (message, offset).

    `doubles` are the paths that meet a double in arithmetic (`input.price * 1.2`): wrong wherever they may be integers.
    """

    paths: list[Path]
    faults: list[tuple[str, int]]
    doubles: list[Path] = []  # noqa: RUF012 - never written to
    bare: Path | None = None  # the whole expression is nothing but this
    gives: str | None = None  # JSON Schema's word for its type, where it is certain
    walked: list[Path] = []  # noqa: RUF012 - the same; what a macro walks over: wrong where it is no list


# --- strings with holes ---


def split(text: str) -> list[str | Hole]:
    """The literal parts and the holes of a string, in order; `$${{` is a literal `${{`. Raises SyntaxFault."""
    parts: list[str | Hole] = []
    literal, at = "", 0
    while (found := text.find("${{", at)) >= 0:
        if found > at and text[found - 1] == "$":
            literal += text[at : found - 1] + "${{"
            at = found + 3
            continue
        literal += text[at:found]
        if literal:
            parts.append(literal)
            literal = ""
        end = _closing(text, found + 3)
        parts.append(Hole(text[found + 3 : end], found + 3))
        at = end + 2
    literal += text[at:]
    if literal or not parts:
        parts.append(literal)
    return parts


# what changes what a `}}` means: strings, comments, names in backticks, brackets. Compiled when it is used, like the endings:
# most plans have no string in an expression, and every start would pay for them
TURN = r"""(?x)(?P<raw>[rR](?P<quote>\"\"\"|\'\'\'|"|'))|(?P<string>\"\"\"|\'\'\'|"|')|(?P<comment>//)|(?P<field>`[^`\n]*`)
    |(?P<end>}})|(?P<open>[\[({])|(?P<close>[\])}])"""
ENDINGS = {
    quote: (r"(?s)(?:[^\\]|\\.)*?" if len(quote) == 3 else r"(?s)(?:[^\\\n]|\\.)*?") + quote for quote in ('"""', "'''", '"', "'")
}
RAW_ENDINGS = {quote: (r"(?s).*?" if len(quote) == 3 else r"[^\n]*?") + quote for quote in ENDINGS}
PAIRS = {"(": ")", "[": "]", "{": "}"}
NEWLINE, COMMENT_ENDS = "\n", r"\n|(?=}})"


def _closing(text: str, start: int) -> int:
    """Where the `}}` stands that ends the hole whose source begins at `start`."""
    open_at: list[int] = []
    at = start
    turn = re.compile(TURN)
    while found := turn.search(text, at):
        at = found.end()
        match found.lastgroup:
            case "raw" | "string":
                at = _string_end(text, found)
            case "comment":
                # it hides quotes and brackets; a `}}` only inside brackets, where that would not end the hole anyway
                ends = re.compile(NEWLINE if open_at else COMMENT_ENDS).search(text, at)
                at = ends.end() if ends else len(text)
            case "end" if not open_at:
                return found.start()
            case "open":
                open_at.append(found.start())
            case "end" | "close":
                if not open_at:
                    raise SyntaxFault("a bracket is closed that was not opened", found.start())
                if PAIRS[text[open_at[-1]]] != found.group()[0]:
                    raise SyntaxFault(f"`{text[open_at[-1]]}` is not closed before `{found.group()[0]}`", open_at[-1])
                open_at.pop()
                at = found.start() + 1
    raise SyntaxFault("`${{` has no `}}` that ends it", start - 3)


def _string_end(text: str, begins: re.Match[str]) -> int:
    raw = begins.group("quote")
    closed = re.compile(RAW_ENDINGS[raw] if raw else ENDINGS[begins.group()]).match(text, begins.end())
    if closed is None:
        raise SyntaxFault("a string in the expression does not end", begins.start())
    return closed.end()


# --- what check asks ---


def inspect(source: str, declared: Callable[[Path], str | None] = lambda _: None) -> Reading:
    """Reads and compiles an expression; its faults in durun's words. `declared`: string or boolean, where a path is just that."""
    try:
        read = Read(source)
    except SyntaxFault as e:
        return Reading([], [(e.message, e.offset)])
    known = [p for p in read.paths if p.names[0] in NAMES]
    faults = [(_unknown_name(p.names[0]), p.offset) for p in read.paths if p.names[0] not in NAMES]
    if read.bare is not None:
        whole = known[0] if known and known[0].names == read.bare and not known[0].optional else None
        return Reading(known, faults, read.doubles, whole)
    if faults:
        return Reading(known, faults, read.doubles)
    from durun.plan import cel

    compiled = cel.compile(source, read)
    if isinstance(compiled, list):
        return Reading(known, [(fault.message, fault.offset) for fault in compiled], read.doubles)
    typed = _with_types(source, read, declared)
    if isinstance(typed, list):
        return Reading(known, [(fault.message, fault.offset) for fault in typed], read.doubles)
    return Reading(known, [], read.doubles, gives=cel.gives(typed or compiled), walked=read.walked)


def _with_types(source: str, read: Read, declared: Callable[[Path], str | None]) -> Any:
    """The expression compiled with what is known of its paths: a program, its faults, or None where nothing is known.

    Not where a path is only asked for: what is declared is there. To compare with null is an answer, whatever the type.
    """
    from durun.plan import cel

    if any(path.optional for path in read.paths) or re.search(r"\bnull\b", source):
        return None
    named = [path for path in read.paths if all(IDENTIFIER.fullmatch(name) and name not in KEPT for name in path.names)]
    known = {".".join(path.names): declared(path) for path in named}
    types = tuple(sorted((path, kind) for path, kind in known.items() if kind is not None))
    return cel.compile(source, read, types) if types else None


def _nearest(name: str, there: Sequence[str]) -> list[str]:
    import difflib  # only where something is wrong

    return difflib.get_close_matches(name, there, 1)


def _unknown_name(name: str) -> str:
    near = _nearest(name, NAMES)
    return f"`{name}` is no name here" + (f"; did you mean `{near[0]}`?" if near else f": there are {', '.join(NAMES)}")


# --- evaluation ---


class Evaluator:
    """Works out expressions; keeps what it has compiled, by source. All failures are ExpressionError, one line."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str | Hole]] = {}
        self._bare: dict[str, Sequence[str | int]] = {}  # those that are nothing but a path
        self._programs: dict[str, Program] = {}
        self._words: set[str] = set()  # of commands, that are as they stand, and fit

    def expression(self, source: str, names: Names) -> Json:
        """The value of a bare expression."""
        try:
            bare = self._bare.get(source)
            if bare is not None:
                return _scalar(_look_up(bare, names))
            program = self._programs.get(source)
            if program is not None:
                return program.value(names)
            self._learn(source)
        except (Unfit, SyntaxFault, _Missing) as e:
            raise _error(source, str(e)) from None
        return self.expression(source, names)

    def _learn(self, source: str) -> None:
        """Reads an expression, and compiles it where it is more than a path. Raises SyntaxFault."""
        plain = PLAIN.fullmatch(source)
        if plain and NO_NAMES.isdisjoint(fields := plain.group(1).split(".")):
            self._bare[source] = fields
            return
        read = Read(source)
        if read.bare is not None:
            self._bare[source] = read.bare
        else:
            self._programs[source] = Program(source, read)

    def condition(self, source: str, names: Names) -> bool:
        """The value of a condition: true or false, and nothing that might be taken for one of them."""
        value = self.expression(source, names)
        if not isinstance(value, bool):
            raise _error(source, f"it must be true or false, and is {_kind(value)}")
        return value

    def value(self, template: Json, names: Names) -> Json:
        """A tree with its expressions worked out; a string that is one expression keeps that one's type."""
        return self._string(template, names) if type(template) is str else self._tree(template, names, 0)

    def text(self, template: Json, names: Names, *, limit: int | None = None) -> str:
        """A text: strings, numbers and booleans become one. Raises where it has more than `limit` bytes."""
        return _text(self.value(template, names), template, limit)

    def argv(self, templates: Sequence[Json], names: Names) -> list[str]:
        """The words of a command; an element that is one expression giving a list becomes that many words."""
        words: list[str] = []
        for template in templates:
            if type(template) is str and template in self._words:
                words.append(template)
                continue
            value = self.value(template, names)
            spread = isinstance(value, list) and isinstance(template, str)
            words += [_text(v, template, LARGEST_WORD) for v in (value if spread else [value])]
            if value is template and isinstance(template, str):
                self._words.add(template)
        return words

    def _tree(self, template: Json, names: Names, depth: int) -> Json:
        if depth > DEEPEST:
            raise ExpressionError(f"a value of the plan lies more than {DEEPEST} deep")
        match template:
            case str():
                return self._string(template, names)
            case list():
                return [self._tree(v, names, depth + 1) for v in template]
            case dict():
                return {k: self._tree(v, names, depth + 1) for k, v in template.items()}
        return template

    def _string(self, template: str, names: Names) -> Json:
        if "${{" not in template:
            return template
        parts = self._parts.get(template)
        if parts is None:
            try:
                parts = self._parts[template] = split(template)
            except SyntaxFault as e:
                raise _error(template, e.message) from None
        if len(parts) == 1 and isinstance(parts[0], Hole):
            return self.expression(parts[0].source, names)
        return "".join(p if isinstance(p, str) else _text(self.expression(p.source, names), p.source) for p in parts)


class Program:
    """An expression as CEL has compiled it. Making one raises SyntaxFault."""

    def __init__(self, source: str, read: Read) -> None:
        from durun.plan import cel

        for path in read.paths:
            if path.names[0] not in NAMES:
                raise SyntaxFault(_unknown_name(path.names[0]), path.offset)
        compiled = cel.compile(source, read)
        if isinstance(compiled, list):
            raise SyntaxFault(*compiled[0])
        self._compiled, self._cel, self._paths = compiled, cel, read.paths
        self._picks = _picks(read.paths)
        self._blind = BLIND.search(source) is not None
        self._counting = counting(source)

    def value(self, names: Names) -> Json:
        """Raises Unfit."""
        counted = self._counting.value(names, OBJECTS) if self._counting is not None else None
        if counted is not None:
            return counted
        data, large = handed(_picked(names, self._picks))
        if large and self._blind:
            raise Unfit("an integer has more than 64 bits")
        try:
            return self._cel.evaluate(self._compiled, data)
        except self._cel.Trouble as e:
            missing = _what_is_missing(self._paths, names, e.key) if e.key is not None else None
            hint = " (an integer of more than 64 bits counts as an object)" if large and "does not take" in str(e) else ""
            raise Unfit(missing or f"{e}{hint}") from None


# --- paths ---


class _Missing(Exception):
    """A path leads nowhere. `key`: the name that is not there; None where something has no fields at all."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def _look_up(path: Sequence[str | int], names: Names) -> Json:
    at: Json = names
    for n, name in enumerate(path):
        if isinstance(at, list) and isinstance(name, int):
            if name >= len(at):
                raise _Missing(f"`{_spelt(path[:n])}` has {len(at)} items and none at {name}")
            at = at[name]
        elif not isinstance(at, OBJECTS):
            raise _Missing(f"`{_spelt(path[:n])}` is {_kind(at)}, and has no `{name}`")
        elif name not in at:
            raise _Missing(_missing(path, n, at), str(name))
        else:
            at = at[name]
    return _whole(at)


def _spelt(path: Sequence[str | int]) -> str:
    """The path as a person writes it."""
    out = str(path[0])
    for name in path[1:]:
        if isinstance(name, int):
            out += f"[{name}]"
        else:
            out += f".{name}" if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f'["{name}"]'
    return out


def _missing(path: Sequence[str | int], n: int, at: Names) -> str:
    whole, name = _spelt(path[: n + 1]), str(path[n])
    if n == 0 and name not in NAMES:
        return _unknown_name(name)
    if n == 2 and path[0] == "states" and name in ("output", "error", "exit", "items"):
        if not at.get("visits"):
            return f"`{whole}` is not there: the state was never visited"
        return f"`{whole}` is not there: the state has not ended" + (", or ended in an error" if name == "output" else "")
    near = _nearest(name, [k for k in at if isinstance(k, str)]) if n else []
    return f"`{whole}` is not there" + (f"; did you mean `{_spelt([*path[:n], near[0]])}`?" if near else "")


def _what_is_missing(paths: list[Path], names: Names, key: str) -> str | None:
    """The first path that must be there and is not for want of `key`."""
    for path in paths:
        try:
            _look_up(path.names[: path.must], names)
        except _Missing as e:
            if e.key == key:
                return str(e)
    return None


def _picks(paths: list[Path]) -> list[tuple[str, ...]]:
    """The paths to hand over: a longer one comes with a shorter one that it begins with."""
    wanted: list[tuple[str, ...]] = []
    for path in sorted({p.names for p in paths}, key=lambda names: (len(names), names)):
        if not any(path[: len(shorter)] == shorter for shorter in wanted):
            wanted.append(path)
    return wanted


def _picked(names: Names, picks: list[tuple[str, ...]]) -> dict[str, Json]:
    """Just what the paths name, in the shape it had; what is not there stays away."""
    out: dict[str, Json] = {}
    for path in picks:
        at, to, left = names, out, len(path)
        for name in path:
            if name not in at:
                break
            at, left = at[name], left - 1
            if not left or not isinstance(at, OBJECTS):
                to[name] = _whole(at)
                break
            to = to.setdefault(name, {})
    return out


# --- values ---


def _scalar(value: Json) -> Json:
    """The value, fit to be used; a list or object is passed on untouched."""
    if isinstance(value, str):
        fit_text(value)
    elif isinstance(value, int | float):
        fit_number(value)
    elif value is not None and not isinstance(value, list | Mapping):
        raise Unfit(f"a {type(value).__name__} is no JSON")
    return value


def _text(value: Json, template: Json, limit: int | None = None) -> str:
    """A string, number or boolean as text. Raises ExpressionError for anything else, and for more than `limit` bytes."""
    if isinstance(value, str):  # first, since it comes most
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int | float):
        text = repr(value)
    else:
        raise _error(template, f"a string, number or boolean is wanted, and it is {_kind(value)}")
    try:
        fit_text(text)
        if isinstance(value, float):
            fit_number(value)
    except Unfit as e:
        raise _error(template, str(e)) from None
    if limit is not None and len(text) * 4 > limit and len(text.encode()) > limit:
        raise _error(template, f"{len(text.encode())} bytes are too many for argv and env (at most {limit}): give it by `stdin`")
    return text


def _error(source: Json, message: str) -> ExpressionError:
    """The one form of a failure: the expression, and what is so."""
    quoted = f"`{_short(source)}`"
    return ExpressionError(" ".join((message if message.startswith(quoted) else f"{quoted}: {message}").split()))


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


def _short(source: Json) -> str:
    if not isinstance(source, str):
        return _kind(source)
    text = " ".join(source.split())
    return text if len(text) <= 80 else text[:79] + "…"


def needs_cel(plan: Json) -> bool:
    """Whether anything in a plan is more than a path, so that working it out needs the library."""
    todo: list[Json] = [plan]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            bare = [at[word] for word in ("when", "until", "items") if isinstance(at.get(word), str)]
            if any(not PLAIN.fullmatch(source) for source in bare):
                return True
            todo += at.values()
        elif isinstance(at, list):
            todo += at
        elif isinstance(at, str) and "${{" in at:
            try:
                parts = split(at)
            except SyntaxFault:
                continue
            if any(isinstance(part, Hole) and not PLAIN.fullmatch(part.source) for part in parts):
                return True
    return False

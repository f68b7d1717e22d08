"""Text to plan: the only room that knows YAML. Every fault has a line and a column, and all come at once.

- YAML 1.2 and narrower: only what JSON calls a number, true, false or null is one, all else is text
- duplicate keys, `<<`, tags, growth by aliases and depth are refused, before anything could be stored
- the text is read as events and put together here: nothing recurses with it, and every value knows where it stands
- lines end at LF, CR LF or CR, as an editor counts them; columns count characters
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from durun.errors import PlanRefused
from durun.plan.canonical import Plan
from durun.plan.digest import sha256
from durun.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.plan.files import Manifest

Json = Any
Where = tuple[str | int, ...]

LARGEST = 4 * 1024 * 1024  # bytes of a plan
DEEPEST_CALL = 20  # plans that call plans
DEEPEST = 100
MOST = 100_000  # values, aliases followed
DIGITS = 10_000  # of one number
BROAD = 110  # columns of a line that are drawn
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
BOM = b"\xef\xbb\xbf"
WORDS = {"": None, "null": None, "true": True, "false": False}
BREAK = re.compile(r"\r\n|\n|\r")
# control characters, halves of surrogates, and what YAML would fold like the end of a line; compiled where one may be there
NO_TEXT = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
# an escape of a quoted text: how many characters follow the one that names it
ESCAPES = {"x": 2, "u": 4, "U": 8}


class Fault(NamedTuple):
    """One fault of a plan; line and column count from 1, `width` is how many characters it is about."""

    file: str
    line: int
    column: int
    message: str
    width: int = 1


class PlanFaults(PlanRefused):
    """A plan that is refused, with every fault found in it, in the order of the text."""

    code = "plan_refused"

    def __init__(self, faults: list[Fault], source: str) -> None:
        self.faults = sorted(set(faults), key=lambda f: (f.line, f.column, f.message))
        self.source = source
        super().__init__("\n".join(draw(f, source) for f in self.faults))


class Loaded(NamedTuple):
    """A plan that holds: its canonical form, the text it came from, and what is worth a warning. With those it calls:
    the folders and files that are pinned, and the digest of the text of each plan that is called, by its file."""

    plan: Plan
    source: str
    warnings: list[Fault]
    pinned: list[tuple[str, Manifest]]
    called: dict[str, str]


class Node(NamedTuple):
    """A value of the text, which is source[start:end]. `value`: text, list of nodes, or a dict of key to (key, value)."""

    start: int
    end: int
    value: Any
    style: str | None = None  # of a text: a quote, `|`, `>`; None where it is plain
    plain: bool = False  # a text that may be a number, true, false or null


class Key(NamedTuple):
    """The place of a key, among the places of values."""

    path: Where


class Trouble(NamedTuple):
    """A fault from one index of the text to another."""

    start: int
    end: int
    message: str


class Stop(Exception):
    """A fault after which no other can be found."""

    def __init__(self, start: int, message: str, end: int = 0) -> None:
        super().__init__(message)
        self.trouble = Trouble(start, max(end, start + 1), message)


class Lines:
    """Where the lines of a text begin."""

    def __init__(self, source: str) -> None:
        self._starts = [0, *(found.end() for found in BREAK.finditer(source))]
        self._source = source

    def of(self, index: int) -> int:
        return bisect_right(self._starts, index)

    def fault(self, file: str, trouble: Trouble) -> Fault:
        line = self.of(trouble.start)
        ends = self._starts[line] if line < len(self._starts) else len(self._source)
        width = len(self._source[trouble.start : min(trouble.end, ends)].rstrip())
        return Fault(file, line, trouble.start - self._starts[line - 1] + 1, trouble.message, max(1, width))


Places = dict[Where | Key, Node]


def load(text: bytes | str, file: str, above: tuple[str, ...] = ()) -> Loaded:
    """The plan that a text holds, with the plans it calls. Raises PlanFaults with every fault there is.

    `above`: the files of the plans that called this one.
    """
    from durun.plan.check import called, read

    source = text.removeprefix("\ufeff") if isinstance(text, str) else text.removeprefix(BOM).decode("utf-8", "replace")
    lines, troubles = Lines(source), list[Trouble]()
    try:
        _readable(text, source)
        data, places = _plain(_compose(source, lines, troubles))
    except Stop as e:
        raise PlanFaults([lines.fault(file, t) for t in (*troubles, e.trouble)], source) from None
    loaded = {name: _child(name, file, above) for name in dict.fromkeys(called(data))}
    children = {name: child if isinstance(child, str) else child.plan for name, child in loaded.items()}
    folder = os.path.dirname(file)
    files, unpinned = _pinned(folder, data)
    plan, faults, warnings = read(data, _spelt(places), children, files)
    troubles += [_at(source, places, ("pins", "files", n), why) for n, why in unpinned]
    troubles += [_at(source, places, *fault) for fault in faults]
    if plan is None or troubles:
        raise PlanFaults([lines.fault(file, t) for t in troubles], source)
    told = [lines.fault(file, _at(source, places, *warning)) for warning in warnings]
    pinned, texts = [(folder, files)] if files else [], dict[str, str]()
    for name, child in loaded.items():
        if not isinstance(child, str):
            at = os.path.normpath(name)
            pinned += child.pinned
            texts[at] = sha256(child.source.encode("utf-8", "surrogatepass")).hexdigest()
            texts |= {os.path.normpath(os.path.join(os.path.dirname(at), inner)): text for inner, text in child.called.items()}
    return Loaded(plan, source, told, pinned, texts)


def mapping(text: bytes, file: str) -> dict[str, Json]:
    """A mapping that is no plan, read by the same rules. Raises PlanFaults."""
    source, troubles = text.removeprefix(BOM).decode("utf-8", "replace"), list[Trouble]()
    lines = Lines(source)
    try:
        _readable(text, source)
        data, _ = _plain(_compose(source, lines, troubles))
    except Stop as e:
        said = "a mapping is wanted here" if e.trouble.message.startswith(("a plan is a mapping", "the plan is empty")) else None
        troubles.append(e.trouble._replace(message=said) if said else e.trouble)
    if troubles:
        raise PlanFaults([lines.fault(file, t) for t in troubles], source)
    return data


def _pinned(folder: str, data: dict[str, Json]) -> tuple[Manifest, list[tuple[int, str]]]:
    """The files that `pins.files` names, and the patterns that are refused."""
    pins = data.get("pins")
    patterns = pins.get("files") if isinstance(pins, dict) else None
    if not isinstance(patterns, list):
        return {}, []
    from durun.plan.files import found

    given = [(n, one) for n, one in enumerate(patterns) if isinstance(one, str) and one.strip() and "${{" not in one]
    return found(folder, given)


def _child(name: str, file: str, above: tuple[str, ...]) -> Loaded | str:
    """A plan that another calls, by a path relative to it; or why it cannot be called."""
    path = os.path.normpath(os.path.join(os.path.dirname(file), name))
    line = (*above, file)
    if os.path.realpath(path) in map(os.path.realpath, line):
        return f"{name} is called by itself: {' -> '.join((*line, path))}"
    if len(line) > DEEPEST_CALL:
        return f"plans call each other more than {DEEPEST_CALL} deep"
    try:
        with open(path, "rb") as f:
            text = f.read(LARGEST + 1)
    except OSError as e:
        return f"{path} cannot be read: {os.strerror(e.errno or 0)}"
    try:
        return load(text, path, line)
    except PlanFaults as e:
        import shlex

        first, more = e.faults[0], len(e.faults) - 1
        said = f"{first.file}:{first.line}:{first.column}: {first.message}"
        return f"{name} is refused: {said}" + (f"; and {more} more: `durun check {shlex.quote(path)}`" if more else "")


# --- the text ---


def _readable(text: bytes | str, source: str) -> None:
    if len(text) > LARGEST:
        raise Stop(0, "a plan has at most 4 MiB")
    if isinstance(text, bytes):
        raw = text.removeprefix(BOM)
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise Stop(len(raw[: e.start].decode("utf-8")), "this is no UTF-8 text") from None
    bad = None if source.replace("\n", "").isprintable() else re.search(NO_TEXT, source)
    if bad:
        raise Stop(bad.start(), f"the character U+{ord(bad.group()):04X} cannot stand here as it is")
    if not source.strip():
        raise Stop(0, "the plan is empty")


def _events(source: str) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        yield from YAML(typ="safe", pure=True).parse(source)
    except MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        at = min(getattr(mark, "index", 0), len(source))
        raise Stop(at, f"this is no YAML: {e.problem or e.context or 'it cannot be read'}{_hint(source, at, e)}") from None
    except (YAMLError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, AssertionError) as e:
        said = str(e).splitlines()[0] if str(e) else "it cannot be read"
        raise Stop(0, f"this is no YAML: {said[:200]}") from None


def _hint(source: str, at: int, error: Any) -> str:
    """What a person most likely has to do."""
    begins = max(source.rfind("\n", 0, at), source.rfind("\r", 0, at)) + 1
    line = source[begins:].split("\n", 1)[0]
    if "'\\t'" in str(error.problem):
        return "; indent with spaces"
    if "${{" in line:
        return "; put an expression in single quotes: '${{ … }}'"
    if "mapping values" in str(error.problem) or "cannot start any token" in str(error.problem):
        return "; a text with `: ` in it, or one that begins with a sign, goes in single quotes"
    return ""


def _compose(source: str, lines: Lines, troubles: list[Trouble]) -> Node:
    """The tree of a text, built without recursion. What can be passed over goes to `troubles`. Raises Stop."""
    stack: list[Open] = []
    anchors: dict[str, Node | None] = {}
    root: Node | None = None
    count = 0
    for event in _events(source):
        start, end = event.start_mark.index, event.end_mark.index
        count += 1
        if count > 4 * MOST:
            raise Stop(start, f"a plan has at most {MOST} values")
        match type(event).__name__:
            case "MappingStartEvent" | "SequenceStartEvent" as kind:
                _no_tag(event, troubles)
                node = Node(start, end, {} if kind[0] == "M" else [])
                stack.append(Open(node, event.anchor, lines, troubles))
                anchors |= {event.anchor: None} if event.anchor else {}
                if len(stack) > DEEPEST:
                    raise Stop(start, f"a plan lies at most {DEEPEST} deep")
                continue
            case "MappingEndEvent" | "SequenceEndEvent":
                closed = stack.pop()
                node, anchor = closed.node, closed.anchor
            case "ScalarEvent":
                _no_tag(event, troubles)
                anchor = event.anchor
                style = event.style or None
                node = Node(start, end, event.value, style, style is None and bool(event.implicit[0]))
            case "AliasEvent":
                anchor, found = None, anchors.get(event.anchor)
                if found is None:
                    raise Stop(start, f"`*{event.anchor}` names nothing that stands before it", end)
                node = found
            case "DocumentStartEvent" if root is not None:
                raise Stop(start, "a second document begins here: a plan is one")
            case _:
                continue
        if anchor:
            anchors[anchor] = node
        if stack:
            stack[-1].add(node, start, end)
        else:
            root = node
    if root is None or not isinstance(root.value, dict):
        raise Stop(root.start if root else 0, "a plan is a mapping: `durun: 1`, `name: …` and so on")
    return root


class Open:
    """A collection whose end has not come yet."""

    def __init__(self, node: Node, anchor: str | None, lines: Lines, troubles: list[Trouble]) -> None:
        self.node, self.anchor = node, anchor
        self._lines, self._troubles = lines, troubles
        self._key: Node | None = None
        self._dropped = False  # the key was at fault: its value goes with it

    def add(self, node: Node, start: int, end: int) -> None:
        """An item, a key, or the value of the key before it."""
        into = self.node.value
        if isinstance(into, list):
            into.append(node)
        elif self._dropped:
            self._dropped = False
        elif self._key is None:
            fault = self._fault_of_key(node)
            if fault:
                self._troubles.append(Trouble(start, end, fault))
                self._dropped = True
            else:
                self._key = node
        else:
            into[self._key.value] = (self._key, node)
            self._key = None

    def _fault_of_key(self, key: Node) -> str | None:
        if not isinstance(key.value, str):
            return "a key is a text"
        if key.plain and key.value == "<<":
            return "`<<` has no place in a plan: write the keys out"
        if key.value in self.node.value:
            first, _ = self.node.value[key.value]
            return f"the key `{_short(key.value)}` is given twice, first in line {self._lines.of(first.start)}"
        return _unclean(key.value)


def _no_tag(event: Any, troubles: list[Trouble]) -> None:
    tag = event.tag
    if tag and str(tag) not in ("!", "tag:yaml.org,2002:str"):
        start = event.start_mark.index
        troubles.append(Trouble(start, start + 1, f"tags such as `{_short(str(tag))}` have no place in a plan"))


def _plain(root: Node) -> tuple[dict[str, Json], Places]:
    """The data, and the place of every value and key by its path. Raises Stop."""
    places: Places = {}
    holder: list[Json] = [None]
    todo: list[tuple[Node, Where, Any, Any]] = [(root, (), holder, 0)]
    count = 0
    while todo:
        node, path, into, at = todo.pop()
        count += 1
        if count > MOST:
            raise Stop(node.start, f"a plan has at most {MOST} values, aliases followed")
        if len(path) > DEEPEST:
            raise Stop(node.start, f"a plan lies at most {DEEPEST} deep")
        places[path] = node
        if isinstance(node.value, str):
            into[at] = _scalar(node)
        elif isinstance(node.value, list):
            into[at] = items = [None] * len(node.value)
            todo += [(item, (*path, n), items, n) for n, item in enumerate(node.value)]
        else:
            into[at] = fields = dict.fromkeys(node.value)
            for name, (key, child) in node.value.items():
                places[Key((*path, name))] = key
                todo.append((child, (*path, name), fields, name))
    return holder[0], places


def _scalar(node: Node) -> Json:
    text: str = node.value
    number = NUMBER.fullmatch(text) if node.plain else None
    if number is None:
        if node.plain and text in WORDS:
            return WORDS[text]
        fault = _unclean(text)
        if fault:
            raise Stop(node.start, fault, node.end)
        return text
    if len(text) > DIGITS:
        raise Stop(node.start, f"this number has more than {DIGITS} digits", node.end)
    if number.group(1) is None and number.group(2) is None:
        import durun.plan.data  # noqa: F401  (an integer keeps every digit)

        return int(text)
    value = float(text)
    return text if value in (float("inf"), float("-inf")) else value


def _unclean(text: str) -> str | None:
    if "\0" not in text and (text.isascii() or not re.search("[\ud800-\udfff]", text)):
        return None
    return "a text holds no NUL and no half of a surrogate"


def _spelt(places: Places) -> dict[Where, str]:
    """The numbers that would be written otherwise than they stand here: 1.10, 1e3, -0."""
    found: dict[Where, str] = {}
    for path, node in places.items():
        if not isinstance(path, Key) and node.plain and isinstance(node.value, str) and NUMBER.fullmatch(node.value):
            value = _scalar(node)
            if not isinstance(value, str) and repr(value) != node.value:
                found[path] = node.value
    return found


# --- places ---


def _at(source: str, places: Places, path: Where, message: str, offset: int = 0, key: bool = False) -> Trouble:
    """Where a fault stands; `path` may lead further than the text does."""
    while True:
        for mark in (Key(path), path) if key else (path, Key(path)):
            node = places.get(mark)
            if node is None or (node.value == "" and node.plain):  # what is empty stands nowhere: its key does
                continue
            if offset and mark == path:
                start = _inside(source, node, offset)
                return Trouble(start, start + 1, message)
            return Trouble(node.start, node.end if isinstance(node.value, str) else node.start + 1, message)
        path, offset, key = path[:-1], 0, True


def _inside(source: str, node: Node, offset: int) -> int:
    """The index of the text at which the value's character `offset` stands: past quotes, escapes, indents, folded lines."""
    if not isinstance(node.value, str):
        return node.start
    at, end = node.start, node.end
    if node.style in ("|", ">"):
        first = BREAK.search(source, at, end)
        at = first.end() if first else end
    elif node.style:
        at += 1
    for wanted in node.value[:offset]:
        at = _past(source, at, end, wanted, node.style)
    while at < end and source[at].isspace() and not node.value[offset : offset + 1].isspace():
        at += 1
    return max(node.start, min(at, end - 1))


def _past(source: str, at: int, end: int, wanted: str, style: str | None) -> int:
    """The index behind one character of a value, which may be written with more than one."""
    if at >= end:
        return end
    if not wanted.isspace():
        while at < end and source[at].isspace():
            at += 1
    if style == '"' and at + 1 < end and source[at] == "\\":
        if source[at + 1] in "\r\n":  # a line that is broken without a space
            return _past(source, at + 1, end, wanted, style) if not wanted.isspace() else at + 2
        return at + 2 + ESCAPES.get(source[at + 1], 0)
    if style == "'" and source.startswith("''", at):
        return at + 2
    return at + 1


# --- what a person sees ---


def draw(fault: Fault, source: str) -> str:
    """The fault with its line and a mark under its place; what a terminal would act on is made visible."""
    head = f"{_visible(fault.file)}:{fault.line}:{fault.column}: {_visible(fault.message)}"
    lines = _lines(source)
    if not source or fault.line > len(lines):
        return head
    line = "".join(c if c.isprintable() else " " if c in "\t " else "\ufffd" for c in lines[fault.line - 1])
    at = min(fault.column - 1, len(line))
    first = max(0, at - BROAD * 2 // 3) if len(line) > BROAD else 0
    last = min(len(line), first + BROAD)
    before = ("…" if first else "") + line[first:at]
    after = line[at:last] + ("…" if last < len(line) else "")
    marked = line[at : min(at + fault.width, last)]
    return f"{head}\n  {before}{after}\n  {' ' * _columns(before)}{'^' * max(1, _columns(marked))}"


@lru_cache(maxsize=2)
def _lines(source: str) -> list[str]:
    return BREAK.split(source)


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "…"

"""Text to plan: the only room that knows YAML. Every fault has a line and a column, and all come at once.

YAML 1.2 and narrower: only what JSON calls a number, true, false or null is one, all else is text. Duplicate keys, `<<`, tags,
growth by aliases and depth are refused, before anything could be stored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from durun.errors import PlanRefused
from durun.plan.canonical import Plan

Json = Any
Where = tuple[str | int, ...]

LARGEST = 4 * 1024 * 1024  # bytes of a plan
DEEPEST = 100
MOST = 100_000  # nodes, aliases followed
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
WORDS = {"": None, "null": None, "true": True, "false": False}


class Fault(NamedTuple):
    """One fault of a plan; line and column count from 1."""

    file: str
    line: int
    column: int
    message: str


class PlanFaults(PlanRefused):
    """A plan that is refused, with every fault found in it."""

    code = "plan_refused"

    def __init__(self, faults: list[Fault], source: str) -> None:
        self.faults = sorted(set(faults), key=lambda f: (f.line, f.column, f.message))
        self.source = source
        super().__init__("\n".join(draw(f, source) for f in self.faults))


class Loaded(NamedTuple):
    """A plan that holds: its canonical form, the text it came from, and what is worth a warning."""

    plan: Plan
    source: str
    warnings: list[Fault]


class Node(NamedTuple):
    """A value of the text. `value`: text, list of nodes, or a dict of key to (line, column, node)."""

    line: int
    column: int
    value: Any
    plain: bool = False  # a scalar without quotes
    inset: int = 0  # columns before a scalar's text begins: its quote


class Stop(Exception):
    """A fault after which no other can be found."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column, self.message = line, column, message


def load(text: bytes | str, file: str) -> Loaded:
    """The plan that a text holds. Raises PlanFaults with every fault there is."""
    from durun.plan.check import read

    source = ""
    try:
        source = _decode(text)
        data, places = _plain(_compose(source))
    except Stop as e:
        raise PlanFaults([Fault(file, e.line, e.column, e.message)], source) from None
    plan, faults, warnings = read(data)
    if plan is None or faults:
        raise PlanFaults([_placed(file, places, *fault) for fault in faults], source)
    return Loaded(plan, source, [_placed(file, places, *warning) for warning in warnings])


def _placed(file: str, places: dict[Where, tuple[int, int, int]], path: Where, message: str, offset: int, key: bool) -> Fault:
    """The fault at its place in the text; `path` may lead further than the text does."""
    marks: tuple[Where, ...] = (("key", *path), path) if key else (path, ("key", *path))
    while True:
        for mark in marks:
            if mark in places:
                line, column, inset = places[mark]
                return Fault(file, line, column + (inset + offset if offset else 0), message)
        path, offset = path[:-1], 0
        marks = (("key", *path), path) if path else ((),)


# --- the text ---


def _decode(text: bytes | str) -> str:
    if len(text) > LARGEST:
        raise Stop(1, 1, "a plan has at most 4 MiB")
    if isinstance(text, bytes):
        raw = text
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            line = raw.count(b"\n", 0, e.start) + 1
            raise Stop(line, e.start - raw.rfind(b"\n", 0, e.start), "this is no UTF-8 text") from None
    bad = re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", text)
    if bad:
        at = bad.start()
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise Stop(line, column, f"the character U+{ord(bad.group()):04X} has no place in a plan")
    if not text.strip():
        raise Stop(1, 1, "the plan is empty")
    return text


def _events(source: str) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    reader = YAML(typ="safe", pure=True)
    try:
        yield from reader.parse(source)
    except MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Stop(line, column, f"this is no YAML: {e.problem or e.context or 'it cannot be read'}") from None
    except (YAMLError, ValueError, IndexError, AttributeError, TypeError, KeyError, OverflowError, RecursionError) as e:
        raise Stop(1, 1, f"this is no YAML: {str(e).splitlines()[0] if str(e) else 'it cannot be read'}") from None


def _compose(source: str) -> Node:
    """The tree of a text, built without recursion. Raises Stop."""
    stack: list[Any] = []
    anchors: dict[str, Node | None] = {}
    root: Node | None = None
    for event in _events(source):
        kind = type(event).__name__
        mark = event.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            _no_tag(event, line, column)
            node = Node(line, column, {} if kind[0] == "M" else [])
            if event.anchor:
                anchors[event.anchor] = None
            stack.append([node, None, event.anchor])
            if len(stack) > DEEPEST:
                raise Stop(line, column, f"a plan lies at most {DEEPEST} deep")
            continue
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            node, _, anchor = stack.pop()
            if anchor:
                anchors[anchor] = node
        elif kind == "ScalarEvent":
            _no_tag(event, line, column)
            inset = 1 if event.style in ("'", '"') else 0
            node = Node(line, column, event.value, event.style is None and event.implicit[0], inset)
            if event.anchor:
                anchors[event.anchor] = node
        elif kind == "AliasEvent":
            found = anchors.get(event.anchor)
            if found is None:
                raise Stop(line, column, f"`*{event.anchor}` names nothing that stands before it, or itself")
            node = found._replace(line=line, column=column)
        elif kind == "DocumentStartEvent" and root is not None:
            raise Stop(line, column, "a second document begins here: a plan is one")
        else:
            continue
        if stack:
            _add(stack[-1], node)
        else:
            root = node
    if root is None or not isinstance(root.value, dict):
        raise Stop(root.line if root else 1, root.column if root else 1, "a plan is a mapping: `durun: 1`, `name: …` and so on")
    return root


def _no_tag(event: Any, line: int, column: int) -> None:
    tag = getattr(event, "tag", None)
    if tag and str(tag) not in ("!", "tag:yaml.org,2002:str"):
        raise Stop(line, column, f"tags such as `{tag}` have no place in a plan")


def _add(open_one: list[Any], node: Node) -> None:
    """Puts a node into the collection that is open: as an item, a key, or the value of the key before it."""
    collection, key, _ = open_one
    if isinstance(collection.value, list):
        collection.value.append(node)
    elif key is None:
        if not isinstance(node.value, str):
            raise Stop(node.line, node.column, "a key is a text")
        if node.plain and node.value == "<<":
            raise Stop(node.line, node.column, "`<<` has no place in a plan: write the keys out")
        if node.value in collection.value:
            first = collection.value[node.value]
            raise Stop(node.line, node.column, f"the key `{_shown(node.value)}` is given twice, first in line {first[0]}")
        open_one[1] = node
    else:
        collection.value[key.value] = (key.line, key.column, node)
        open_one[1] = None


def _plain(root: Node) -> tuple[dict[str, Json], dict[Where, tuple[int, int, int]]]:
    """The data, and the place of every value (by its path) and key (by "key" and its path). Raises Stop."""
    places: dict[Where, tuple[int, int, int]] = {}
    out: dict[str, Json] = {}
    todo: list[tuple[Node, Where, Any, Any]] = [(root, (), {"": out}, "")]
    count = 0
    while todo:
        node, path, into, at = todo.pop()
        count += 1
        if count > MOST:
            raise Stop(node.line, node.column, f"aliases make this plan grow beyond {MOST} values")
        if len(path) > DEEPEST:
            raise Stop(node.line, node.column, f"a plan lies at most {DEEPEST} deep")
        places[path] = (node.line, node.column, node.inset)
        if isinstance(node.value, str):
            into[at] = _scalar(node)
        elif isinstance(node.value, list):
            into[at] = items = [None] * len(node.value)
            todo += [(item, (*path, n), items, n) for n, item in enumerate(node.value)]
        else:
            into[at] = fields = out if not path else {}
            for key, (line, column, child) in node.value.items():
                places["key", *path, key] = (line, column, 0)
                fields[key] = None
                todo.append((child, (*path, key), fields, key))
    return out, places


def _scalar(node: Node) -> Json:
    text: str = node.value
    if not node.plain:
        _whole_text(node)
        return text
    if text in WORDS:
        return WORDS[text]
    number = NUMBER.fullmatch(text)
    if number is None:
        _whole_text(node)
        return text
    if number.group(1) is None and number.group(2) is None:
        return _integer(node)
    value = float(text)
    return text if value in (float("inf"), float("-inf")) else value


def _integer(node: Node) -> int:
    import durun.plan.data  # noqa: F401  (an integer keeps every digit)

    if len(node.value) > 10_000:
        raise Stop(node.line, node.column, "this number has more than 10,000 digits")
    return int(node.value)


def _whole_text(node: Node) -> None:
    if re.search("[\0\ud800-\udfff]", node.value):
        raise Stop(node.line, node.column, "a text holds no NUL and no half of a surrogate")


# --- what a person sees ---


def draw(fault: Fault, source: str) -> str:
    """The fault with its line and a mark under its place."""
    head = f"{fault.file}:{fault.line}:{fault.column}: {fault.message}"
    lines = source.split("\n")
    if not source or fault.line > len(lines):
        return head
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", lines[fault.line - 1])
    at = min(fault.column - 1, len(line))
    start = max(0, at - 80)
    shown = line[start : start + 110]
    return f"{head}\n  {shown}\n  {' ' * (at - start)}^"


def nearest(word: str, known: Any) -> str:
    """`; did you mean ...?`, or nothing."""
    near = difflib.get_close_matches(str(word), [str(k) for k in known], 1, 0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "…"

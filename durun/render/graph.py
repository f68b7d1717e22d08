"""A plan as a drawing, in the words of Mermaid or of Graphviz; of a run, with what was visited and where it stands.

Rules:
- one list of nodes, groups and edges is made of a plan, and each language only spells it
- a node is known by a number, so that no name of a plan means anything to the language, and a text is spelt so that no mark does
- a state that holds others is a node in a frame of its own, and what leads to and from it is drawn at that node
- the parts of a map are drawn once: what is marked is how many times a state was visited in all of them
- nothing depends on anything but the plan and the run: the same drawing every time
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from durun.machine.scope import ONCE, parts
from durun.plan.canonical import Level, Plan, State
from durun.values import NamedTuple

Json = Any
LONGEST = 80  # characters of a line
STANDS = {
    "ready": "here", "acting": "at work", "delayed": "waits for another attempt", "queued": "waits for a place",
    "waiting": "waits", "asked": "asks a person", "listening": "waits for a signal", "lost": "in doubt",
    "probing": "asks its probe", "doubt": "in doubt", "held": "cannot begin", "inside": "at work inside",
    "failed": "failed here", "ended": "ended here", "undoing": "is being undone",
}  # fmt: skip
MARKS = {"visited": "#d9ead3", "here": "#fff2cc", "failed": "#f4cccc"}  # and their colours


class Mark(NamedTuple):
    """What a run has made of a state: how often it was entered, and in which phases it stands there."""

    visits: int = 0
    phases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The word of its colour."""
        if "failed" in self.phases:
            return "failed"
        return "here" if set(self.phases) - {"ended"} else "visited" if self.visits or self.phases else ""


class Node(NamedTuple):
    id: str
    kind: str  # a kind of state, or start, succeeded, failed, compensated
    lines: tuple[str, ...]
    mark: str = ""


class Frame(NamedTuple):
    """A part of the drawing with a border: what a state holds, a branch, an item, a child."""

    id: str
    title: str
    inside: list[Any]


class Edge(NamedTuple):
    start: str
    end: str
    says: str = ""
    dashed: bool = False


class Drawing(NamedTuple):
    title: str
    inside: list[Any]  # of Node and Frame
    edges: list[Edge]


def drawing(plan: Plan, marks: dict[str, Mark] | None = None, title: str | None = None) -> Drawing:
    """What there is to draw. `marks`: what a run has made of the states, by their place."""
    made = _Maker(marks or {})
    inside = made.level(plan, "")
    return Drawing(title if title is not None else f"{plan['name']} {plan['version']}", inside, made.edges)


def place(scope: str, state: str) -> str:
    """Where a state is drawn: its path, without the labels of items."""
    out = ""
    for part in parts(scope):
        between = {"item": "[]", "child": "/", "undo": "~", "once": "~"}.get(part.kind, f".{part.name}")
        out += f"{'.' if out and out[-1] not in '/~' else ''}{part.state}{between}"
    return f"{out}{'.' if out and out[-1] not in '/~' else ''}{state}"


def marks_of(positions: list[dict[str, Json]], visited: Iterable[tuple[str, str, int]]) -> dict[str, Mark]:
    """What a run has made of its states, from where it stands and (scope, state, how often it was entered)."""
    visits: dict[str, int] = {}
    for scope, state, many in visited:
        at = place(scope, state)
        visits[at] = visits.get(at, 0) + many
    phases: dict[str, set[str]] = {}
    for p in positions:
        if p["scope"].endswith("~"):
            of = parts(p["scope"])[-1]
            phases.setdefault(place(of.scope, of.state.partition(ONCE)[0]), set()).add("undoing")
        elif p["visit"]:
            phases.setdefault(place(p["scope"], p["state"]), set()).add(p["phase"])
    return {at: Mark(visits.get(at, 0), tuple(sorted(phases.get(at, ())))) for at in (*visits, *phases)}


class _Maker:
    def __init__(self, marks: dict[str, Mark]) -> None:
        self.marks, self.edges = marks, list[Edge]()
        self._made = 0

    def _id(self, letter: str = "n") -> str:
        self._made += 1
        return f"{letter}{self._made}"

    def level(self, level: Level, outer: str, begins: str | None = None) -> list[Any]:
        """The states of a plan, a branch or an item. `begins`: the node that leads to its first, else one is drawn."""
        inside: list[Any] = []
        if begins is None:
            begins = self._id()
            inside.append(Node(begins, "start", ("start",)))
        states = _in_order(level)
        nodes = {name: self._id() for name in states}
        targets = dict.fromkeys(end for state in states.values() for _, end, *_ in _ways(state))
        ends = {name: self._id() for name in targets if name not in nodes}
        for name, state in states.items():
            inside += self._state(name, state, nodes[name], f"{outer}{name}")
        inside += [Node(id, name, (name,)) for name, id in ends.items()]
        self.edges.append(Edge(begins, nodes[level["start"]]))
        for name, state in states.items():
            self.edges += [Edge(nodes[name], {**ends, **nodes}[end], says, dashed) for says, end, dashed in _ways(state)]
        return inside

    def _state(self, name: str, state: State, id: str, at: str) -> list[Any]:
        mark = self.marks.get(at, Mark())
        lines = [name, " · ".join(_words(state))]
        lines += [said for said in (_reads(state),) if said]
        if mark.visits > 1:
            lines.append(f"visited {mark.visits} times")
        lines += sorted({STANDS[phase] for phase in mark.phases})
        node = Node(id, state["kind"], tuple(lines), mark.name)
        held: list[Any] = []
        if "parallel" in state:
            for branch in state["parallel"]["branches"]:
                held.append(Frame(self._id("f"), branch["name"], self.level(branch, f"{at}.{branch['name']}.", id)))
        elif "map" in state:
            held.append(Frame(self._id("f"), "each item", self.level(state["map"], f"{at}[].", id)))
        elif "plan" in state:
            child = state["plan"]["pinned"]
            held.append(Frame(self._id("f"), f"{child['name']} {child['version']}", self.level(child, f"{at}/", id)))
        return [Frame(self._id("f"), name, [node, *held])] if held else [node]


def _in_order(level: Level) -> dict[str, State]:
    """The states as they are come to from the first: the stored form of a plan has lost the order they were written in."""
    found, todo = dict[str, State](), [level["start"]]
    for name in todo:  # it grows
        if name in level["states"] and name not in found:
            found[name] = level["states"][name]
            todo += [end for _, end, _ in _ways(found[name])]
    return found


def _ways(state: State) -> Iterator[tuple[str, str, bool]]:
    """(what is said of it, where it leads, whether an error leads there) of each way out of a state."""
    if "next" in state:
        yield "", state["next"], False
    for line in state.get("choice", []):
        yield line.get("when", "otherwise"), line["next"], False
    for catch in state["catch"]:
        yield ", ".join(catch["on"]), catch["next"], True


def _words(state: State) -> list[str]:
    """The kind of a state, and what else matters of it at a glance."""
    words: list[str] = [state["kind"]]
    if "poll" in state:
        words.append("poll")
    words += [word for word in ("background", "pivot") if state.get(word)]
    words += ["with an undo"] if "compensate" in state else []
    words += [f"limit {state['limit']}"] if "limit" in state else []
    return words


def _reads(state: State) -> str:
    """What a person wants to see of a state beside its name."""
    from durun.plan.units import show_duration

    match state:
        case {"wait": {"signal": name}}:
            return f"signal {name}"
        case {"wait": {"lasts": given}}:
            return show_duration(given) if isinstance(given, int) else str(given)
        case {"wait": {"at": given}}:
            return f"until {given}"
        case {"fail": {"error": name}}:
            return f"error {name}"
        case {"map": {"items": given}}:
            return f"items: {given}"
        case {"plan": {"file": name}}:
            return str(name)
        case {"act": {"url": url, "method": method}}:
            return f"{method} {url}"
    return ""


# --- Mermaid ---

SHAPES = {
    "start": ("((", "))"), "succeeded": ("([", "])"), "failed": ("([", "])"), "compensated": ("([", "])"), "choice": ("{", "}"),
    "approval": ("{{", "}}"), "wait": ("([", "])"), "pass": ("(", ")"), "fail": ("[[", "]]"), "http": ("[/", "/]"),
}  # fmt: skip
PLAIN = " .,_-()/=+*!?{}[]'"  # with letters and digits: what means nothing to Mermaid inside quotes


def mermaid(made: Drawing) -> str:
    """The drawing in the words of Mermaid. A text is quoted, and every mark that could mean something is written as its number."""
    out = ["---", f"title: {_yaml(made.title)}", "---", "flowchart TD"]
    for one in made.inside:
        out += _in_mermaid(one, "  ")
    for edge in made.edges:
        arrow = "-.->" if edge.dashed else "-->"
        out.append(f"  {edge.start} {arrow}" + (f'|"{_for_mermaid(edge.says)}"|' if edge.says else "") + f" {edge.end}")
    used = {node.mark for node in _nodes(made.inside)}
    out += [f"  classDef {name} fill:{colour},stroke:#333" for name, colour in MARKS.items() if name in used]
    return "\n".join(out)


def _in_mermaid(one: Node | Frame, indent: str) -> Iterator[str]:
    if isinstance(one, Frame):
        yield f'{indent}subgraph {one.id}["{_for_mermaid(one.title)}"]'
        for inner in one.inside:
            yield from _in_mermaid(inner, indent + "  ")
        yield f"{indent}end"
        return
    begin, end = SHAPES.get(one.kind, ("[", "]"))
    text = "<br/>".join(_for_mermaid(line) for line in one.lines)
    yield f'{indent}{one.id}{begin}"{text}"{end}' + (f":::{one.mark}" if one.mark else "")


def _for_mermaid(text: str) -> str:
    return "".join(c if c.isalnum() or c in PLAIN or c == "·" or c == "…" else f"#{ord(c)};" for c in _line(text))


def _yaml(text: str) -> str:
    import json

    # in a title a mark has no number, and who puts the drawing into a page as it is puts its title there, too
    return json.dumps(_line(text).translate({ord(c): " " for c in "<>"}), ensure_ascii=False)


# --- Graphviz ---

FORMS = {
    "start": "circle", "succeeded": "oval", "failed": "oval", "compensated": "oval", "choice": "diamond", "approval": "hexagon",
    "wait": "oval", "pass": "box", "fail": "doubleoctagon", "http": "parallelogram",
}  # fmt: skip


def dot(made: Drawing) -> str:
    """The drawing in the words of Graphviz."""
    out = ["digraph {", f"  label={_for_dot(made.title)}", "  labelloc=t", "  node [shape=box]"]
    for one in made.inside:
        out += _in_dot(one, "  ")
    for edge in made.edges:
        said = [f"label={_for_dot(edge.says)}"] if edge.says else []
        said += ["style=dashed"] if edge.dashed else []
        out.append(f"  {edge.start} -> {edge.end}" + (f" [{' '.join(said)}]" if said else ""))
    return "\n".join([*out, "}"])


def _in_dot(one: Node | Frame, indent: str) -> Iterator[str]:
    if isinstance(one, Frame):
        yield f"{indent}subgraph cluster_{one.id} {{"
        yield f"{indent}  label={_for_dot(one.title)}"
        for inner in one.inside:
            yield from _in_dot(inner, indent + "  ")
        yield f"{indent}}}"
        return
    said = [f"label={_for_dot(*one.lines)}"]
    said += [f"shape={FORMS[one.kind]}"] if FORMS.get(one.kind, "box") != "box" else []
    said += [f'style=filled fillcolor="{MARKS[one.mark]}"'] if one.mark else []
    yield f"{indent}{one.id} [{' '.join(said)}]"


def _for_dot(*lines: str) -> str:
    return '"' + r"\n".join(_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


# --- both ---


def _line(text: str) -> str:
    """A text in one line, with what cannot be printed made visible, and cut where it is long."""
    shown = "".join(c if c.isprintable() else " " if c in "\n\t" else repr(c)[1:-1] for c in text).strip()
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _nodes(inside: list[Any]) -> Iterator[Node]:
    for one in inside:
        if isinstance(one, Frame):
            yield from _nodes(one.inside)
        else:
            yield one


def document(made: Drawing) -> dict[str, Json]:
    """The drawing as `graph --json` has it."""
    nodes: list[Json] = []
    frames: list[Json] = []

    def walk(inside: list[Any], frame: str | None) -> None:
        for one in inside:
            if isinstance(one, Frame):
                frames.append({"id": one.id, "title": one.title, "frame": frame})
                walk(one.inside, one.id)
            else:
                nodes.append({"id": one.id, "kind": one.kind, "lines": list(one.lines), "mark": one.mark or None, "frame": frame})

    walk(made.inside, None)
    edges = [{"from": e.start, "to": e.end, "says": e.says or None, "error": e.dashed} for e in made.edges]
    return {"title": made.title, "nodes": nodes, "frames": frames, "edges": edges}

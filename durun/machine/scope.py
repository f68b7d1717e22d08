"""Where a state stands: the paths of branches, items and children, and the part of a plan that each speaks of.

- '' is the run itself
- `book.flight` is the branch `flight` of the state `book`, `each[cust-17]` an item by its label, `call/` a child plan,
  `pay~` the undoing of what `pay` did, `pay/once:mail~` that of a once of its
- they nest: `book.flight.pay`, `each[cust-17].charge`, `call/book.flight`
- a label holds no bracket, so a path is read in one way only
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from durun.plan.canonical import Level, Plan
from durun.values import NamedTuple

Json = Any

PART = re.compile(r"([a-z][a-z0-9_]*)(?:\[([^\[\]]*)\]|/once:([^\[\]]+)~$|([/~])|\.([a-z][a-z0-9_]*))\.?")
ONCE = "/once:"
LABEL = re.compile(r"[^\[\]\x00-\x1f\x7f]{1,128}")


# the undo of a once stands in no plan: its script was given with the call
UNDO_OF_ONCE: Any = {
    "start": "undo",
    "states": {"undo": {"kind": "run", "act": {"script": ""}, "catch": [], "assign": {}, "max_visits": 1, "next": "succeeded"}},
}


class Part(NamedTuple):
    """One step into a plan: `scope` is where `state` stands, and it holds what `kind` and `name` say."""

    scope: str
    state: str
    kind: str  # branch | item | child | undo | once (the undo of one)
    name: str
    inner: str  # the scope it leads to
    path: str  # where the state stands that holds this branch, item or child


def some(paths: list[str]) -> str:
    """The first few of many paths, and how many more there are: a map may have thousands that stand alike."""
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def path_of(scope: str, state: str) -> str:
    """The path of a state."""
    if not scope:
        return state
    return f"{scope}{state}" if scope.endswith(("/", "~")) else f"{scope}.{state}"


def branch(path: str, name: str) -> str:
    return f"{path}.{name}"


def item(path: str, label: str) -> str:
    return f"{path}[{label}]"


def child(path: str) -> str:
    return f"{path}/"


def undo(path: str) -> str:
    return f"{path}~"


def once_of(path: str | None) -> str | None:
    """The name of the once that a path speaks of, None where it is that of a state. A label may hold any mark but a bracket."""
    at = -1 if path is None else path.find(ONCE, path.rfind("]") + 1)
    return None if path is None or at < 0 else path[at + len(ONCE) :]


def without_once(path: str) -> str:
    """The path of the state whose once a path speaks of."""
    name = once_of(path)
    return path if name is None else path[: -len(ONCE + name)]


@lru_cache(maxsize=4096)
def parts(scope: str) -> tuple[Part, ...]:
    """The steps that lead from the run itself to a scope. Raises ValueError for what is no scope."""
    found: list[Part] = []
    at, outer = 0, ""
    while at < len(scope):
        read = PART.match(scope, at)
        if read is None:
            raise ValueError(f"{scope!r} is no scope")
        state, label, once, into, name = read.groups()
        inner = scope[: read.end()].removesuffix(".")
        if once is not None:
            name = f"{state}{ONCE}{once}"
            found.append(Part(outer, name, "once", "", scope, path_of(outer, name)))
            break
        kind = "item" if label is not None else {"/": "child", "~": "undo"}.get(into, "branch")
        found.append(Part(outer, state, kind, label if label is not None else name or "", inner, path_of(outer, state)))
        at, outer = read.end(), inner
    return tuple(found)


def renamed(scope: str, names: Mapping[str, str]) -> str:
    """A scope once the states around it have other names; they are told by their paths in a plan, without labels of items."""
    outer, head = "", ""
    for part in parts(scope):
        path = path_of(outer, names.get(head + part.state, part.state))
        match part.kind:
            case "item":
                outer, head = item(path, part.name), f"{head}{part.state}[]."
            case "branch":
                outer, head = branch(path, part.name), f"{head}{part.state}.{part.name}."
            case _:
                outer, head = child(path), f"{head}{part.state}/"
    return outer


@lru_cache(maxsize=4096)
def paths(scope: str) -> tuple[str, ...]:
    """The paths of the states around a scope."""
    return tuple([part.path for part in parts(scope)])


def under(scope: str, outer: str) -> bool:
    """Whether a scope is `outer` or lies inside it."""
    if not outer or scope == outer:
        return True
    return scope.startswith(below(outer))


def below(scope: str) -> str:
    """What all paths of states and scopes inside a scope begin with, but for the one of the run itself."""
    return scope if scope.endswith("/") else scope + "."


def inside(scope: str, path: str) -> bool:
    """Whether a scope lies inside what the state at this path holds."""
    return scope.startswith(path) and scope[len(path) : len(path) + 1] in ("[", ".", "/", "~")


@lru_cache(maxsize=4096)
def own(scope: str) -> tuple[Part, ...]:
    """The steps of a scope since the innermost child plan began."""
    found = parts(scope)
    if "/" not in scope:  # only that of a child has one, and a label
        return found
    last = max((n for n, part in enumerate(found) if part.kind == "child"), default=-1)
    return found[last + 1 :]


@lru_cache(maxsize=4096)
def plan_scope(scope: str) -> str:
    """The scope of the plan that a scope belongs to: '' or that of a child."""
    if "/" not in scope:
        return ""
    for part in reversed(parts(scope)):
        if part.kind == "child":
            return part.inner
    return ""


NONE_KNOWN: dict[str, Level] = {}


def level(plan: Plan, scope: str, known: dict[str, Level] = NONE_KNOWN) -> Level:
    """The states that a scope walks through, as the plan has them. That of an undo may be of a plan that the run has left.
    `known`: those of scopes that were asked for before."""
    if not scope:
        return plan
    if scope.endswith("~"):
        try:
            return _level(plan, parts(scope))
        except (KeyError, StopIteration):
            return {"start": "undo", "states": {}}
    way = parts(scope)
    outer = known.get(way[-1].scope)
    return _level(plan, way) if outer is None else _level(outer, way[-1:])


def _level(at: Json, way: tuple[Part, ...]) -> Level:
    """Where a way leads that begins in one level."""
    for part in way:
        if part.kind == "once":
            return UNDO_OF_ONCE  # type: ignore[no-any-return]
        state = at["states"][part.state]
        match part.kind:
            case "item":
                at = state["map"]
            case "child":
                at = state["plan"]["pinned"]
            case "undo":
                at = {"start": "undo", "states": {"undo": state["compensate"]}}
            case _:
                at = next(b for b in state["parallel"]["branches"] if b["name"] == part.name)
    return at  # type: ignore[no-any-return]


def plan_of(plan: Plan, scope: str) -> Plan:
    """The plan that a scope belongs to: the run's, or that of the innermost child around it."""
    return level(plan, plan_scope(scope))  # type: ignore[return-value]

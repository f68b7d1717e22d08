"""The order in which what a run did is undone: a child is one entry, at the place where it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inside import World

from durun.machine.scope import path_of
from durun.plan.check import read
from durun.store.read import undos

UNDONE = {"run": ["x"], "compensate": {"run": ["u"]}}


def called(**states: Any) -> Any:
    """A plan to be called, whose states come one after the other."""
    names = [*states, "succeeded"]
    made = {name: {**states[name], "next": after} for name, after in zip(states, names[1:], strict=True)}
    child, faults, _ = read(
        {"durun": 1, "name": "c", "start": names[0], "states": made}, {}, {"deep": DEEP} if "in_it" in states else {}
    )
    assert child is not None, faults
    return child


DEEP = called(d=UNDONE, d2=UNDONE)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run with a child beside a branch, a second call of it, and something before and after."""
    child = called(c=UNDONE, in_it={"plan": {"file": "deep"}}, c2=UNDONE)
    call = {"plan": {"file": "child"}, "next": "again"}
    again = {"choice": [{"when": "states.call.visits < 2", "next": "call"}, {"next": "succeeded"}]}
    states = {
        "a": {**UNDONE, "next": "both"},
        "both": {
            "parallel": {
                "branches": {
                    "x": {"start": "call", "states": {"call": call, "again": again}},
                    "y": {"start": "b", "states": {"b": {**UNDONE, "next": "b2"}, "b2": {**UNDONE, "next": "succeeded"}}},
                }
            },
            "next": "z",
        },
        "z": {**UNDONE, "next": "hold"},
        "hold": {"wait": {"signal": "on"}, "next": "succeeded"},
    }
    data = {"durun": 1, "name": "p", "start": "a", "states": states}
    plan, faults, _ = read(data, {}, {"child": child})
    assert plan is not None, faults
    w = World(plan, str(tmp_path))
    w.end("a")
    for path in ("x.call/c", "y.b", "x.call/in_it/d", "x.call/in_it/d2", "x.call/c2", "y.b2"):
        w.end(f"both.{path}")
    for path in ("c", "in_it/d", "in_it/d2", "c2"):
        w.end(f"both.x.call/{path}")
    w.end("z")
    return w


def test_what_a_child_did_is_undone_together_where_it_began(world: World) -> None:
    assert world.store is not None
    found = undos(world.store.file, 1)
    paths = [(path_of(u["scope"], u["state"]).removeprefix("both."), u["visit"]) for u in found]
    assert paths == [
        ("z", 1), ("x.call/c2", 2), ("x.call/in_it/d2", 2), ("x.call/in_it/d", 2), ("x.call/c", 2), ("y.b2", 1),
        ("x.call/c2", 1), ("x.call/in_it/d2", 1), ("x.call/in_it/d", 1), ("x.call/c", 1), ("y.b", 1), ("a", 1),
    ]  # fmt: skip
    of = [u["child"] and (u["child"]["path"], u["child"]["visit"]) for u in found]
    assert of == [None, *[("both.x.call", 2)] * 4, None, *[("both.x.call", 1)] * 4, None, None]
    assert world.store.owed(1) == [u["effect"] for u in reversed(found)], "and in that order it is undone"

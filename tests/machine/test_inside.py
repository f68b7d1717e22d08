"""Branches, items and children through random histories: places are kept, counts are true, and each end is the right one.

Each move is stored in a real file and read back, so that the deltas say what the machine means.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import World, happenings, plan_of, some_states

from durun.errors import NotPossible
from durun.machine.decide import may_begin
from durun.machine.events import Cancel, Due, Go, Lost, Resolve, TakeUp
from durun.machine.model import TERMINAL, Phase, Position, Status
from durun.machine.scope import inside, level, parts, path_of

DO = {"start": "do", "states": {"do": {"run": ["x"], "next": "succeeded"}}}


def each(n: int, **more: Any) -> Any:
    return plan_of({"each": {"map": {"items": str(list(range(n))), **DO, **more}, "next": "succeeded"}})


def test_items_begin_in_order_as_many_at_once_as_there_are_places() -> None:
    world = World(each(5, concurrency=2, output="${{ item * 10 }}"))
    assert world.under_way() == ["each[0].do", "each[1].do"]
    world.end("each[1].do")
    assert world.under_way() == ["each[0].do", "each[2].do"]
    for n in (0, 2, 3, 4):
        world.end(f"each[{n}].do")
    assert world.at.run.status is Status.SUCCEEDED
    assert world.at.states["", "each"].output == [0, 10, 20, 30, 40]
    assert list(world.at.positions) == [""], "what has succeeded leaves no position"
    assert len({key for _, key in world.begun}) == 5


def test_more_failures_than_may_begin_nothing_further_and_let_the_others_end() -> None:
    world = World(each(5, concurrency=2))
    world.end("each[0].do", 1)
    assert world.under_way() == ["each[1].do"]
    assert world.at.run.status is Status.RUNNING
    world.end("each[1].do")
    assert world.at.run.status is Status.FAILED
    assert world.at.run.error["name"] == "item_failed"
    assert world.at.run.error["message"] == "item 0 failed: exit:1: exit 1"
    assert world.statuses("each") == ["failed", "succeeded", "not_begun", "not_begun", "not_begun"]


def test_resume_takes_up_what_did_not_succeed_with_its_key_and_begins_the_rest() -> None:
    world = World(each(4, concurrency=2))
    world.end("each[0].do", 1)
    world.end("each[1].do")
    first = world.begun[0]
    world.give(TakeUp())
    assert world.under_way() == ["each[0].do", "each[2].do"]
    assert world.begun[2] == first, "the same key"
    for n in (0, 2, 3):
        world.end(f"each[{n}].do")
    assert world.at.run.status is Status.SUCCEEDED


@pytest.mark.parametrize(
    ("failures", "lost", "ends"), [("50%", 2, "succeeded"), ("40%", 2, "failed"), ("all", 4, "succeeded"), (1, 1, "succeeded")]
)
def test_a_share_is_of_all_and_rounded_down(failures: Any, lost: int, ends: str) -> None:
    world = World(each(4, concurrency=1, failures=failures))
    for n in range(4):
        if world.at.run.status in TERMINAL:
            break
        world.end(f"each[{n}].do", 1 if n < lost else 0)
    assert world.at.run.status == ends


def test_enough_stops_the_rest_and_waits_until_it_is_gone() -> None:
    world = World(each(4, concurrency=3, enough=1))
    world.end("each[1].do")
    assert sorted(p.scope for p in world.at.positions.values() if p.stopping) == ["each[0]", "each[2]"]
    assert world.at.run.status is Status.RUNNING
    world.end("each[0].do", -15, "sibling")
    world.end("each[2].do", 0, "sibling")
    assert world.at.run.status is Status.SUCCEEDED
    assert world.statuses("each") == ["stopped", "succeeded", "succeeded", "not_begun"], (
        "what ended well all the same has succeeded"
    )


def test_an_enough_that_cannot_be_reached_has_failed_once_all_have_run() -> None:
    world = World(each(3, concurrency=1, failures="all", enough=2))
    world.end("each[0].do", 1)
    world.end("each[1].do", 1)
    assert world.at.run.status is Status.RUNNING
    world.end("each[2].do")
    assert world.at.run.error["name"] == "item_failed"


def test_an_item_that_waits_gives_its_place_away_and_gets_one_when_it_goes_on() -> None:
    states = {"a": {"run": ["x"], "next": "rest"}, "rest": {"wait": "10s", "next": "b"}, "b": {"run": ["y"], "next": "succeeded"}}
    world = World(
        plan_of({"each": {"map": {"items": "[0, 1, 2]", "concurrency": 1, "start": "a", "states": states}, "next": "succeeded"}})
    )
    world.end("each[0].a")
    assert world.under_way() == ["each[1].a"], "the first item waits, the second has its place"
    world.give(Due("each[0]"))
    assert world.under_way() == ["each[1].a"], "there is no place for its second effect yet"
    assert world.at.positions["each[0]"].phase is Phase.DELAYED
    assert not may_begin(world.plan, world.at, "each[0]")
    world.end("each[1].a")
    assert may_begin(world.plan, world.at, "each[0]")
    world.give(Due("each[0]"))
    assert world.under_way() == ["each[0].b"]


def test_a_branch_in_doubt_does_not_stop_its_siblings() -> None:
    world = World(plan_of({"fan": {"parallel": {"branches": {"a": DO, "b": DO}}, "next": "succeeded"}}))
    (lost,) = (no for no in world.open() if world.at.effects[no].scope == "fan.a")
    world.give(Lost(lost, "killed"))
    assert world.at.run.status is Status.RUNNING
    world.end("fan.b.do")
    assert world.at.run.status is Status.BLOCKED
    world.give(Resolve("happened", "fan.a.do"))
    assert world.at.run.status is Status.SUCCEEDED


def test_a_failed_item_done_by_hand_lets_the_map_succeed() -> None:
    world = World(each(2, concurrency=2))
    world.end("each[0].do", 1)
    world.end("each[1].do")
    assert world.at.run.status is Status.FAILED
    world.give(Resolve("happened", "each[0].do"))
    assert world.at.run.status is Status.SUCCEEDED
    assert world.statuses("each") == ["succeeded", "succeeded"]


def test_cancel_waits_for_every_group_and_begins_nothing_after() -> None:
    world = World(each(5, concurrency=3))
    world.give(Cancel())
    world.end("each[0].do", -15, "cancel")
    world.end("each[2].do", 0, "cancel")
    assert world.at.run.status is Status.RUNNING
    assert len(world.open()) == 1
    world.end("each[1].do", -9, "cancel")
    assert world.at.run.status is Status.CANCELLED
    assert len(world.begun) == 3


def test_vars_and_caught_errors_of_a_branch_stay_inside() -> None:
    states = {
        "set": {"pass": {}, "assign": {"n": "${{ vars.n + 1 }}"}, "next": "do"},
        "do": {"run": ["x"], "catch": [{"on": ["any"], "next": "after"}], "next": "succeeded"},
        "after": {"choice": [{"when": "vars.n == 1 && error.name == 'exit:3'", "next": "succeeded"}, {"next": "failed"}]},
    }
    branch = {"start": "set", "states": states, "output": "${{ vars.n }}"}
    plan = plan_of({"fan": {"parallel": {"branches": {"a": branch, "b": branch}}, "next": "succeeded"}}, vars={"n": 0})
    world = World(plan)
    world.end("fan.a.do", 3)
    world.end("fan.b.do", 3)
    assert world.at.run.status is Status.SUCCEEDED
    assert world.at.states["", "fan"].output == {"a": 1, "b": 1}
    assert world.at.run.vars == {"n": 0}
    assert world.at.run.error is None


def test_a_map_entered_again_counts_its_visits_on_and_gives_new_keys() -> None:
    again = {"choice": [{"when": "states.each.visits < 3", "next": "each"}, {"next": "succeeded"}]}
    world = World(plan_of({"each": {"map": {"items": "[0, 1]", **DO}, "next": "again"}, "again": again}))
    seen: list[int] = []
    for _ in range(3):
        seen.append(world.at.positions["each[0]"].visit)
        world.end("each[0].do")
        world.end("each[1].do")
    assert world.at.run.status is Status.SUCCEEDED
    assert seen == [1, 2, 3], "a visit is numbered by its path, and no number is used again"
    assert len({key for _, key in world.begun}) == 6


def test_ten_thousand_items_that_only_pass_are_several_moves_and_no_deep_recursion() -> None:
    pass_ = {"start": "do", "states": {"do": {"pass": {}, "next": "succeeded"}}, "output": "${{ index }}"}
    many = {"all": list(range(10_000))}
    world = World(plan_of({"each": {"map": {"items": "vars.all", **pass_}, "next": "succeeded"}}, vars=many))
    moves = 1
    while world.at.run.status is Status.RUNNING:
        ready = next(p.scope for p in world.at.positions.values() if p.phase is Phase.READY)
        world.give(Go(ready))
        moves += 1
    assert world.at.states["", "each"].output == list(range(10_000))
    assert 10 <= moves <= 20


# --- random histories ---


@settings(max_examples=80, deadline=None)
@given(drawn=some_states(depth=2, prefix="s"), data=st.data())
def test_whatever_happens_places_are_kept_counts_are_true_and_the_run_ends(drawn: Any, data: Any) -> None:
    start, states = drawn
    plan = plan_of({start: states.pop(start), **states})
    with tempfile.TemporaryDirectory() as folder:
        world = World(plan, folder)
        for _ in range(200):
            check(world)
            if world.at.run.status in TERMINAL:
                if world.at.run.status is not Status.FAILED or not data.draw(st.booleans()):
                    break
                try:
                    world.give(TakeUp())
                except NotPossible:
                    break
                continue
            world.give(data.draw(st.sampled_from(happenings(world))))
        assert world.store is not None
        world.store.file.close()
    assert len({key for _, key in world.begun}) == len({(path, key) for path, key in world.begun}), "two paths share a key"


def check(world: World) -> None:
    at = world.at
    for p in at.positions.values():
        if p.phase is Phase.INSIDE and at.run.status not in TERMINAL:
            _counts(world, p)
    assert at.positions, "a run stands nowhere"
    if at.run.status in TERMINAL:
        assert not world.open(), "something is under way after the end"
        assert not any(e.status in ("begin", "waiting") for e in at.effects.values())
    if at.run.status is Status.WAITING:
        assert any(p.phase in (Phase.WAITING, Phase.DELAYED) or p.due for p in at.positions.values())


def _counts(world: World, p: Position) -> None:
    """The counters of a state that holds others say what its rows say, and no more is under way than there are places."""
    path = path_of(p.scope, p.state)
    state = level(world.plan, p.scope)["states"][p.state]
    statuses = [i.status for i in world.at.items[path]]
    assert statuses.count("succeeded") == p.won
    assert statuses.count("failed") == p.lost
    assert statuses.count("stopped") == p.gone
    assert statuses.count("begun") == p.begun - p.won - p.lost - p.gone
    assert statuses[p.begun :] == ["not_begun"] * (p.total - p.begun)
    most = (state.get("map") or state.get("parallel"))["concurrency"]  # type: ignore[index]
    live = {part.inner for no in world.open() for part in parts(world.at.effects[no].scope) if part.path == path}
    assert most is None or len(live) <= most, f"{live} at once in {path}, which has {most} places"
    for scope in world.at.positions:
        if inside(scope, path):
            assert any(part.inner in world.at.positions for part in parts(scope) if part.path == path)

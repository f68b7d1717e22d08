"""Branches, items and children through random histories: places are kept, counts are true, and each end is the right one.

Each move is stored in a real file and read back, so that the deltas say what the machine means.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import CHILDREN, World, happenings, plan_of, some_states

from durun.errors import NotPossible
from durun.machine.decide import decide, may_begin
from durun.machine.events import Cancel, CouldNotStart, Due, Ended, Go, Lost, OnceInDoubt, Pause, Resolve, TakeUp, TimeOver
from durun.machine.model import TERMINAL, Phase, Position, Status, apply
from durun.machine.scope import inside, level, parts, path_of
from durun.plan.check import read
from durun.store.file import rows

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


def test_a_map_entered_again_in_the_move_that_ended_it_knows_nothing_of_the_round_before() -> None:
    more = {"choice": [{"when": "vars.n < 3", "next": "each"}, {"next": "succeeded"}]}
    inner = {"items": "[[1, 2, 3], [4, 5, 6], []][vars.n]", "concurrency": 2, "failures": "all", **DO, "output": "${{ item }}"}
    each = {"map": inner, "assign": {"n": "${{ vars.n + 1 }}"}, "next": "more"}
    gave = "${{ states.each.items.map(i, i.item) }}"
    world = World(plan_of({"each": each, "more": more}, vars={"n": 0}, output=gave))
    for n in (0, 2, 1):
        world.end(f"each[{n}].do", n)
    assert [i.item for i in world.at.items["each"]] == [4, 5, 6]
    assert world.statuses("each") == ["begun", "begun", "not_begun"]
    for n in (1, 0, 2):
        world.end(f"each[{n}].do", n)
    assert (world.at.run.output, list(world.at.positions)) == ([], [""])


def test_a_state_entered_again_in_the_move_that_failed_inside_it_forgets_what_was_held_there_as_its_file_does(
    tmp_path: Path,
) -> None:
    inner = {"first": {"run": ["x"], "next": "fan"}, "fan": {"parallel": {"branches": {"b": DO}}, "next": "failed"}}
    each = {"map": {"items": "[0]", "start": "first", "states": inner}, "catch": [{"on": ["any"], "next": "each"}]}
    world = World(plan_of({"each": {**each, "next": "succeeded"}}), str(tmp_path))
    world.end("each[0].first")
    assert list(world.at.items) == ["each", "each[0].fan"]
    world.end("each[0].fan.b.do")
    assert (list(world.at.items), world.under_way()) == (["each"], ["each[0].first"])


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


def test_an_item_in_a_delay_or_a_doubt_gives_its_place_away_and_one_that_is_due_is_not_passed_over() -> None:
    do = {"run": ["x"], "retry": {"max_attempts": 2}, "next": "succeeded"}
    held = {"items": "[0, 1, 2, 3]", "concurrency": 1, "failures": "all", "start": "do", "states": {"do": do}}
    world = World(plan_of({"each": {"map": held, "next": "succeeded"}}))
    world.end("each[0].do", 1)
    assert world.under_way() == ["each[1].do"], "the next attempt of the first is in a delay"
    world.give(Lost(world.open()[0], "killed"))
    assert world.at.positions["each[1]"].phase is Phase.DOUBT
    assert world.under_way() == [] and may_begin(world.plan, world.at, "each[0]"), "its time has come, before that of the third"
    world.give(Due("each[0]"))
    world.end("each[0].do")
    assert world.under_way() == ["each[2].do"]
    world.give(Lost(world.open()[0], "killed"))
    assert world.under_way() == ["each[3].do"]


def test_an_attempt_that_was_withdrawn_in_its_delay_is_not_counted() -> None:
    do = {"run": ["x"], "retry": {"on": ["exit:1"]}, "next": "succeeded"}
    held = {"items": "[0, 1]", "stop": "now", "start": "do", "states": {"do": do}}
    world = World(plan_of({"each": {"map": held, "next": "succeeded"}}))
    world.end("each[0].do", 1)
    world.end("each[1].do", 2)
    assert world.at.run.status is Status.FAILED and world.at.effects[1].attempt == 1
    world.give(TakeUp())
    assert world.at.effects[1].attempt == 2 and world.under_way() == ["each[0].do", "each[1].do"]


def test_a_branch_that_goes_on_finds_one_place_for_all_that_it_holds() -> None:
    inner = {"fan": {"parallel": {"branches": {"a": DO, "b": DO}}, "next": "succeeded"}}
    waits = {"start": "rest", "states": {"rest": {"wait": "5s", "next": "fan"}, **inner}}
    other = {"start": "else", "states": {"else": {"run": ["x"], "next": "succeeded"}}}
    world = World(plan_of({"all": {"parallel": {"concurrency": 1, "branches": {"w": waits, "o": other}}, "next": "succeeded"}}))
    assert world.under_way() == ["all.o.else"]
    world.give(Due("all.w"))
    assert world.under_way() == ["all.o.else"], "what waits inside it waits for its place, all of it"
    world.end("all.o.else")
    for scope in ("all.w.fan.a", "all.w.fan.b"):
        assert may_begin(world.plan, world.at, scope)
        world.give(Due(scope))
    assert world.under_way() == ["all.w.fan.a.do", "all.w.fan.b.do"], "and then has it, all of it"


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


TOLD = {"start": "do", "states": {"do": {"run": ["x"], "output": "json", "idempotent": True, "next": "succeeded"}}}
HOLDS = {
    "do": TOLD["states"]["do"],
    "each[1].do": {"map": {"items": "[0, 1]", **TOLD}, "next": "succeeded"},
    "fan.b.do": {"parallel": {"failures": "all", "branches": {"a": TOLD, "b": TOLD}}, "next": "succeeded"},
}


@pytest.mark.parametrize("path", HOLDS)
def test_what_is_cancelled_ends_so_also_where_what_it_did_last_cannot_be_used(path: str) -> None:
    world = World(plan_of({path.split("[")[0].split(".")[0]: HOLDS[path]}, on_error="compensate"))
    world.give(Cancel())
    for other in world.under_way():
        world.end(other, 0 if other == path else -15, "cancel", stdout=b"{")
    assert not world.under_way()
    assert (world.at.run.status, world.at.run.reason) == (Status.CANCELLED, None)
    assert {e.status for e in world.at.effects.values()} <= {"done", "not_certain"}


@pytest.mark.parametrize("path", HOLDS)
def test_a_run_whose_time_is_over_has_failed_by_that_also_where_what_it_did_last_cannot_be_used(path: str) -> None:
    world = World(plan_of({path.split("[")[0].split(".")[0]: HOLDS[path]}, timeout="1s"))
    began = len(world.begun)
    world.give(TimeOver())
    for other in world.under_way():
        world.end(other, 0 if other == path else -15, "run_timeout", stdout=b"{")
    assert (world.at.run.status, world.at.run.error["name"], world.at.run.cancel) == (Status.FAILED, "run_timeout", None)
    if path != "do":
        assert world.statuses(path.split("[")[0].split(".")[0]) == ["stopped"] * began
    world.give(TakeUp())
    assert len(world.under_way()) == began, "a resume takes up all of it"


@pytest.mark.parametrize("path", [path for path in HOLDS if path != "do"])
def test_what_is_put_right_when_the_time_was_over_leaves_what_was_stopped_beside_it_to_a_resume(path: str) -> None:
    name = path.split("[")[0].split(".")[0]
    world = World(plan_of({name: HOLDS[path]}, timeout="1h"))
    world.now += 3_600_000
    world.give(TimeOver())
    for other in world.under_way():
        world.end(other, -15, "run_timeout")
    (key,) = (key for begun, key in world.begun if begun != path)
    world.give(Resolve("happened", path, 1, True))
    assert (world.at.run.status, world.statuses(name)) == (Status.FAILED, ["stopped", "succeeded"])
    assert "was stopped before it had ended" in world.at.run.error["message"]
    world.give(TakeUp())
    assert [k for _, k in world.begun[2:]] == [key], "only the other one, with its key"
    world.end(world.under_way()[0], stdout=b"2")
    assert (world.at.run.status, world.statuses(name)) == (Status.SUCCEEDED, ["succeeded"] * 2)


def test_what_has_failed_with_its_once_is_taken_as_done_by_hand_and_its_once_is_asked_for_no_more() -> None:
    world = World(plan_of({"do": {"run": ["x"], "next": "succeeded"}}))
    world.give(OnceInDoubt("", "do", 1, 1, "mail"))
    world.end("do", -9)
    world.give(Resolve("fail", "do/once:mail"))
    assert world.at.run.status is Status.FAILED
    with pytest.raises(NotPossible, match="once mail of do is not in doubt"):
        world.give(Resolve("happened", "do/once:mail"))
    world.give(Resolve("happened"))
    assert world.at.run.status is Status.SUCCEEDED


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


@pytest.mark.parametrize("status", [0, 1])
def test_moves_of_one_commit_are_stored_as_if_each_had_had_its_own(tmp_path: Path, status: int) -> None:
    world = World(each(9, concurrency=3, failures="all", output="${{ index }}"), str(tmp_path))
    assert world.store is not None
    while world.at.run.status is Status.RUNNING:
        at, moves = world.at.copy(), []
        for no in world.open():
            moves.append(decide(world.plan, at, Ended(no, status), world.moment(), world.evaluate))
            apply(at, moves[-1])
        before = world.held
        world.held, _ = world.store.commit(before, world.at.run, lambda _, moves=moves: moves, world.now)
        assert world.held.seq == before.seq + len(moves)
        for move in moves:
            world.took(move)
        assert world.at == at
        world.same(world.store.load(1))
    events = rows(world.store.file.db, "SELECT no, kind, scope FROM history ORDER BY no")
    assert [no for no, *_ in events] == list(range(1, len(events) + 1))
    assert [scope for _, kind, scope in events if kind == "attempt_ended"] == [f"each[{n}]" for n in range(9)]


def test_what_an_item_held_goes_with_it_also_under_another_driver(tmp_path: Path) -> None:
    sub = {"map": {"items": "[1]", "run": ["x"], "idempotent": True}, "next": "then"}
    then = {"run": ["y"], "idempotent": True, "next": "succeeded"}
    outer = {"items": "[1, 2]", "start": "sub", "states": {"sub": sub, "then": then}, "concurrency": 1}
    world = World(plan_of({"each": {"map": outer, "next": "succeeded"}}), str(tmp_path))
    assert world.store is not None
    for path in ("each[0].sub[0].run", "each[0].then", "each[1].sub[0].run"):
        world.end(path)
        world.at = world.store.load(1)
    found = rows(world.store.file.db, "SELECT path, no, status FROM items ORDER BY path, no")
    assert found == [("each", 0, "succeeded"), ("each", 1, "begun"), ("each[1].sub", 0, "succeeded")]


# --- random histories ---


@settings(max_examples=50)
@given(drawn=some_states(depth=2, prefix="s", calls=True), data=st.data())
def test_whatever_happens_places_are_kept_counts_are_true_and_the_run_ends(drawn: Any, data: Any) -> None:
    start, states = drawn
    plan = plan_of({start: states.pop(start), **states}, children=CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        world = World(plan, folder)
        assert world.store is not None
        world.together = data.draw(st.integers(1, 4))
        for _ in range(200):
            check(world)
            if not world.kept and data.draw(st.integers(0, 4)) == 0:
                world.at = world.store.load(1)  # another driver goes on
            if world.at.run.status in TERMINAL:
                if world.at.run.status is not Status.FAILED or not data.draw(st.booleans()):
                    break
                try:
                    world.give(TakeUp())
                except NotPossible:
                    break
                continue
            world.give(data.draw(st.sampled_from(happenings(world))))
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
    if state["kind"] == "plan":
        assert any(inside(scope, path) for scope in world.at.positions), "a child stands nowhere"
        return
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


# --- to take up again, and to stop ---

TWO = {"start": "a", "states": {"a": {"run": ["x"], "next": "b"}, "b": {"run": ["y"], "next": "succeeded"}}}


def test_what_was_stopped_between_two_states_goes_on_with_the_second_and_repeats_nothing() -> None:
    world = World(plan_of({"each": {"map": {"items": "[0, 1]", "stop": "now", **TWO}, "next": "succeeded"}}))
    world.end("each[1].a", 1)
    world.end("each[0].a", 0, "sibling")
    assert (world.at.run.status, world.statuses("each")) == (Status.FAILED, ["stopped", "failed"])
    world.give(TakeUp())
    assert world.under_way() == ["each[0].b", "each[1].a"]


def test_an_item_that_ended_as_the_plan_chose_is_not_begun_again() -> None:
    states = {"a": {"run": ["x"], "next": "failed"}}
    world = World(plan_of({"each": {"map": {"items": "[0]", "start": "a", "states": states}, "next": "succeeded"}}))
    world.end("each[0].a")
    assert world.at.run.status is Status.FAILED
    with pytest.raises(NotPossible, match="ended where its plan says"):
        world.give(TakeUp())
    assert len(world.begun) == 1


def test_beside_one_that_ended_as_the_plan_chose_the_others_are_taken_up_where_that_can_help() -> None:
    states = {
        "a": {"run": ["x"], "catch": [{"on": ["exit:2"], "next": "no"}], "next": "succeeded"},
        "no": {"fail": {"error": "refused"}},
    }
    for failures, helps in ((1, True), (0, False)):
        given = {"items": "[0, 1, 2]", "failures": failures, "start": "a", "states": states}
        world = World(plan_of({"each": {"map": given, "next": "succeeded"}}))
        for n, status in enumerate((2, 1, 1)):
            world.end(f"each[{n}].a", status)
        assert world.at.run.status is Status.FAILED
        if not helps:
            with pytest.raises(NotPossible, match="ended where its plan says"):
                world.give(TakeUp())
            continue
        world.give(TakeUp())
        assert world.under_way() == ["each[1].a", "each[2].a"]
        world.end("each[1].a")
        world.end("each[2].a")
        assert (world.at.run.status, world.statuses("each")) == (Status.SUCCEEDED, ["failed", "succeeded", "succeeded"])


def test_a_resume_keeps_to_the_places_there_are() -> None:
    world = World(each(6, concurrency=2, failures="all", enough=5))
    for n in range(6):
        world.end(f"each[{n}].do", 1)
    assert world.at.run.status is Status.FAILED
    world.give(TakeUp())
    assert world.under_way() == ["each[0].do", "each[1].do"]
    seen = set()
    while world.at.run.status not in TERMINAL:
        for p in [p for p in world.at.positions.values() if p.phase is Phase.DELAYED and may_begin(world.plan, world.at, p.scope)]:
            if may_begin(world.plan, world.at, p.scope):
                world.give(Due(p.scope))
        assert len(world.under_way()) <= 2
        path = world.under_way()[0]
        seen.add(path)
        world.end(path)
    assert world.at.run.status is Status.SUCCEEDED and len(seen) >= 5


def test_enough_with_stopped_items_that_fails_later_is_not_entered_again() -> None:
    states = {
        "each": {"map": {"items": "[0, 1, 2]", "enough": 1, **DO}, "next": "after"},
        "after": {"run": ["z"], "next": "succeeded"},
    }
    world = World(plan_of(states))
    world.end("each[1].do")
    world.end("each[0].do", -15, "sibling")
    world.end("each[2].do", -15, "sibling")
    world.end("after", 1)
    assert world.at.run.status is Status.FAILED
    world.give(TakeUp())
    assert world.under_way() == ["after"], "what was stopped inside the state before is nobody's"
    world.end("after")
    assert world.at.run.status is Status.SUCCEEDED


def test_what_is_left_inside_a_state_that_the_run_has_left_is_nobodys() -> None:
    states = {
        "each": {"map": {"items": "[0, 1]", **DO}, "catch": [{"on": ["item_failed"], "next": "clean"}], "next": "succeeded"},
        "clean": {"run": ["c"], "next": "succeeded"},
    }
    world = World(plan_of(states))
    world.end("each[0].do", 1)
    world.end("each[1].do")
    world.end("clean", 1)
    assert world.at.run.status is Status.FAILED and "each[0]" in world.at.positions
    with pytest.raises(NotPossible, match=r"its state each\[0\].do has not; name one that has: clean"):
        world.give(Resolve("happened", "each[0].do"))
    world.give(Resolve("happened"))
    assert world.at.run.status is Status.SUCCEEDED, "only `clean` can have been meant"


def test_a_map_of_which_an_item_may_have_happened_is_not_entered_anew_unasked() -> None:
    world = World(each(2))
    world.end("each[0].do", -9)
    world.end("each[1].do")
    assert world.at.run.status is Status.FAILED
    with pytest.raises(NotPossible, match=r"whether each\[0\].do happened is not known"):
        world.give(TakeUp("each"))
    world.give(TakeUp())
    assert world.at.run.status is Status.BLOCKED, "it is asked about"


def test_what_was_under_way_when_the_time_was_over_counts_its_visits_on_where_the_run_is_entered_anew() -> None:
    do = {"run": ["x"], "idempotent": True, "next": "succeeded"}
    each = {"map": {"items": "[0]", "start": "do", "states": {"do": do}}, "next": "succeeded"}
    world = World(plan_of({"each": each}, timeout="1s"))
    for visit in (1, 2, 3):
        assert world.at.positions["each[0]"].visit == visit
        world.give(TimeOver())
        world.end("each[0].do", -15, "run_timeout")
        assert world.at.run.error["name"] == "run_timeout"
        world.give(TakeUp("each"))


def test_what_a_person_mended_goes_on_in_every_branch() -> None:
    world = World(plan_of({"fan": {"parallel": {"branches": {"a": DO, "b": DO, "c": DO}}, "next": "succeeded"}}))
    for name in "abc":
        (no,) = (no for no in world.open() if world.at.effects[no].scope == f"fan.{name}")
        world.give(CouldNotStart(no, 2, "secret", why="it is missing"))
    assert (world.at.run.status, world.at.run.reason) == (Status.BLOCKED, "secret_missing")
    world.give(TakeUp())
    assert world.under_way() == ["fan.a.do", "fan.b.do", "fan.c.do"]


def test_what_had_to_be_mended_goes_on_when_a_pause_ends_too() -> None:
    world = World(plan_of({"fan": {"parallel": {"branches": {"a": DO, "b": DO}}, "next": "succeeded"}}))
    world.give(CouldNotStart(world.open()[0], 2, "directory"))
    world.give(Pause())
    world.give(TakeUp())
    assert world.under_way() == ["fan.a.do", "fan.b.do"]


def test_what_had_to_be_mended_and_was_stopped_as_another_came_too_late_does_not_begin() -> None:
    poll = {"until": "true", "every": "1s", "for": "20s"}
    do = {"start": "do", "states": {"do": {"run": ["x"], "idempotent": True, "poll": poll, "next": "succeeded"}}}
    world = World(plan_of({"fan": {"parallel": {"branches": {"a": do, "b": do}, "stop": "now"}, "next": "succeeded"}}))
    for scope, no in zip(("fan.a", "fan.b"), world.open(), strict=True):
        world.give(Ended(no, 1))
        world.give(Due(scope))
        world.give(CouldNotStart(no, 2, "directory"))
    world.now += 60_000
    world.give(TakeUp())
    assert (world.at.run.status, world.under_way(), world.statuses("fan")) == (Status.FAILED, [], ["failed", "stopped"])


def test_a_cancel_withdraws_items_that_wait_for_a_place() -> None:
    states = {"a": {"run": ["x"], "next": "rest"}, "rest": {"wait": "10s", "next": "b"}, "b": {"run": ["y"], "next": "succeeded"}}
    given = {"items": "[0, 1, 2]", "concurrency": 1, "start": "a", "states": states}
    world = World(plan_of({"each": {"map": given, "next": "succeeded"}}))
    world.end("each[0].a")
    world.give(Due("each[0]"))
    assert world.at.positions["each[0]"].phase is Phase.DELAYED
    world.give(Cancel())
    world.end("each[1].a", -15, "cancel")
    assert world.at.run.status is Status.CANCELLED and len(world.begun) == 2


def test_a_cancel_while_a_poll_asks_is_the_end_of_it() -> None:
    poll = {"run": ["x"], "idempotent": True, "output": "text", "poll": {"until": "output == 'yes'", "for": "1h"}}
    branches = {"start": "wait_for", "states": {"wait_for": {**poll, "next": "succeeded"}}}
    for plan, path in (
        (plan_of({"wait_for": {**poll, "next": "succeeded"}}), "wait_for"),
        (plan_of({"fan": {"parallel": {"branches": {"a": branches}}, "next": "succeeded"}}), "fan.a.wait_for"),
    ):
        world = World(plan)
        world.give(Cancel())
        world.end(path, 0, "cancel", stdout=b"no")
        assert world.at.run.status is Status.CANCELLED
    both = {"a": branches, "b": DO}
    world = World(plan_of({"fan": {"parallel": {"branches": both, "enough": 1}, "next": "succeeded"}}))
    world.end("fan.b.do")
    world.end("fan.a.wait_for", 0, "sibling", stdout=b"no")
    assert (world.at.run.status, world.statuses("fan")) == (Status.SUCCEEDED, ["stopped", "succeeded"])


def test_a_doubt_in_a_child_is_resolved_by_its_path() -> None:
    child, _, _ = read({"durun": 1, "name": "child", "start": "say", "states": {"say": {"run": ["x"], "next": "succeeded"}}})
    data = {"durun": 1, "name": "outer", "start": "call", "states": {"call": {"plan": {"file": "c.yaml"}, "next": "succeeded"}}}
    plan, faults, _ = read(data, {}, {"c.yaml": child})
    assert plan is not None, faults
    for how, ends in (("happened", Status.SUCCEEDED), ("fail", Status.FAILED)):
        world = World(plan)
        world.give(Lost(world.open()[0], "killed"))
        assert world.at.run.status is Status.BLOCKED
        world.give(Resolve(how, "call/say"))
        assert world.at.run.status is ends
    world.give(Resolve("happened", "call/say"))
    assert world.at.run.status is Status.SUCCEEDED, "a failed state of a child may be done by hand, too"


def test_the_end_of_an_item_costs_the_same_however_many_have_failed() -> None:
    few, many = calls_of_an_end(failed=10), calls_of_an_end(failed=300)
    assert many <= few * 1.2, f"{many} calls after 300 failures, {few} after 10"


def calls_of_an_end(failed: int) -> int:
    """How many calls of functions it takes to decide on the end of one more item, and to lay it over the checkpoint."""
    world = World(each(failed + 10, concurrency=4, failures="all"))
    for n in range(failed):
        world.end(f"each[{n}].do", 1)
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    no = next(no for no in world.open() if world.at.effects[no].scope == f"each[{failed}]")
    sys.setprofile(count)
    try:
        world.give(Ended(no, 1))
    finally:
        sys.setprofile(before)
    return calls

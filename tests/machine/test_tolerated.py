"""The failed items of a run that succeeded without them: taken up anew, they and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inside import World, plan_of

from durun.errors import NotPossible
from durun.machine.events import TakeUp
from durun.machine.model import Phase, Status


def world(tmp_path: Path, **policy: Any) -> World:
    each = {"map": {"items": "[1, 2, 3]", "run": ["x"], "concurrency": 3, **policy}, "assign": {"n": 7}, "next": "after"}
    states = {"each": each, "after": {"run": ["y"], "assign": {"n": 9}, "next": "succeeded"}}
    output = '${{ {"n": vars.n, "how": states.each.items.map(i, i.status)} }}'
    return World(plan_of(states, vars={"n": 0}, output=output), str(tmp_path))


def succeeded_without(w: World, *lost: int) -> World:
    for n in range(3):
        w.end(f"each[{n}].do" if f"each[{n}].do" in w.under_way() else w.under_way()[0], int(n in lost))
    w.end("after")
    assert w.at.run.status is Status.SUCCEEDED
    return w


def test_a_failed_item_has_its_key_and_the_run_ends_where_it_had_ended(tmp_path: Path) -> None:
    w = succeeded_without(world(tmp_path, failures="all"), 1)
    assert w.at.run.output == {"n": 9, "how": ["succeeded", "failed", "succeeded"]}
    begun, stood = list(w.begun), w.at.positions[""]
    w.give(TakeUp(failed_items=True))
    assert w.at.run.status is Status.RUNNING and not w.at.run.has_output and w.at.run.ended_at is None
    assert w.begun[len(begun) :] == [begun[1]], "the same effect, with its key, and no other"
    w.end(w.under_way()[0])
    assert w.at.run.status is Status.SUCCEEDED
    assert w.at.run.output == {"n": 7, "how": ["succeeded"] * 3}, "the map does its assign, what is behind it does nothing"
    assert len(w.begun) == len(begun) + 1
    ended = w.at.positions[""]
    assert (ended.state, ended.visit, ended.phase) == (stood.state, stood.visit, Phase.ENDED)


def test_an_item_that_fails_again_can_be_taken_up_again(tmp_path: Path) -> None:
    w = succeeded_without(world(tmp_path, failures=2), 0, 2)
    for left in (2, 1):
        w.give(TakeUp("each", failed_items=True))
        assert len(w.open()) == left
        for no in w.open():
            path = f"{w.at.effects[no].scope}.{w.at.effects[no].state}"
            w.end(path, int("each[2]" in path and left == 2))
        assert w.at.run.status is Status.SUCCEEDED
    with pytest.raises(NotPossible, match="no failed items"):
        w.give(TakeUp("each", failed_items=True))


def test_with_enough_what_was_stopped_or_never_begun_stays_so(tmp_path: Path) -> None:
    w = world(tmp_path, failures="all", enough=1, concurrency=1)
    w.end(w.under_way()[0], 1)
    w.end(w.under_way()[0])
    w.end("after")
    assert w.statuses("each") == ["failed", "succeeded", "not_begun"]
    w.give(TakeUp(failed_items=True))
    assert w.statuses("each") == ["begun", "succeeded", "not_begun"]
    w.end(w.under_way()[0])
    assert w.at.run.status is Status.SUCCEEDED and w.statuses("each") == ["succeeded", "succeeded", "not_begun"]


def test_a_branch_that_failed_is_taken_up_alike(tmp_path: Path) -> None:
    branch = {"start": "do", "states": {"do": {"run": ["x"], "next": "succeeded"}}}
    other = {"start": "too", "states": {"too": {"run": ["x"], "next": "succeeded"}}}
    fan = {"parallel": {"branches": {"a": branch, "b": other}, "failures": 1}, "next": "succeeded"}
    w = World(plan_of({"fan": fan}, output="${{ states.fan.items.map(i, i.status) }}"), str(tmp_path))
    w.end("fan.a.do", 1)
    w.end("fan.b.too")
    assert w.at.run.output == ["failed", "succeeded"]
    w.give(TakeUp("fan", failed_items=True))
    w.end("fan.a.do")
    assert w.at.run.output == ["succeeded", "succeeded"]


def test_what_is_entered_again_inside_a_branch_that_is_taken_up_knows_nothing_of_the_items_before(tmp_path: Path) -> None:
    do = {"run": ["x", "${{ string(item) }}"], "next": "succeeded"}
    each = {"map": {"items": "[vars.n]", "start": "do", "states": {"do": do}, "output": "${{ item }}"}}
    states = {
        "each": {**each, "assign": {"n": "${{ vars.n + 1 }}"}, "next": "again"},
        "again": {"choice": [{"when": "vars.n < 3", "next": "each"}, {"next": "succeeded"}]},
    }
    branches = {"a": {"start": "each", "states": states}}
    plan = plan_of({"fan": {"parallel": {"branches": branches, "failures": "all"}, "next": "succeeded"}}, vars={"n": 0})
    w = World(plan, str(tmp_path))
    w.end("fan.a.each[0].do", 1)
    w.give(TakeUp("fan", failed_items=True))
    for n in range(3):
        (made,) = w.items("fan.a.each")
        assert (made.item, made.status, made.output) == (n, "begun", None)
        assert w.at.effects[w.open()[0]].request["argv"] == ["x", str(n)]
        w.end("fan.a.each[0].do")
    assert (w.at.run.status, w.statuses("fan")) == (Status.SUCCEEDED, ["succeeded"])
    assert len({key for _, key in w.begun}) == 3

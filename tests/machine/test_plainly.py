"""What is done in one go of the items of a map: it leads to just what the rules lead to step by step."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import World, happenings, plan_of

from durun.machine import plainly
from durun.machine.decide import are_alike, decide, decide_all
from durun.machine.events import Ended, Resolve
from durun.machine.model import TERMINAL, Checkpoint, Move, Status

WORDS = [
    "${{ item }}",
    "${{ index }}",
    "${{ key }}",
    "${{ run.id }}",
    "${{ vars.n }}",
    "${{ visit }}",
    "${{ states.x.visits }}",
    "w",
]


def told(world: World, events: list[Any]) -> Move:
    if len(events) > 1:
        return decide_all(world.plan, world.at, events, world.moment(), world.evaluate)
    return decide(world.plan, world.at, events[0], world.moment(), world.evaluate)


def walked(world: World, events: list[Any]) -> Move:
    """The move as it is where nothing is done in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plainly, "ended", lambda *_: False)
        return told(world, events)


def give(world: World, events: list[Any]) -> None:
    world.now += 1000
    before = copy.deepcopy(world.at)
    made, expected = told(world, events), walked(world, events)
    assert world.at == before
    for name in Move.__slots__:
        found, wanted = getattr(made, name), getattr(expected, name)
        assert found == wanted, name
        if isinstance(found, dict):
            assert list(found) == list(wanted), name
    world.took(made)
    assert world.store is not None
    world.held, _ = world.store.commit(world.held, world.stored, lambda _: [made], world.now)
    world.stored = world.at.run
    world.same(world.store.load(1))


@st.composite
def some_maps(draw: Any) -> Any:
    """A plan whose map is entered once or twice, and whose items are one command, or nearly."""
    act: dict[str, Any] = {"run": ["x", *draw(st.lists(st.sampled_from(WORDS), max_size=3))], "idempotent": draw(st.booleans())}
    if draw(st.integers(0, 3)) == 0:
        act["run"].append("${{ string(10 / item) }}")  # there is an item for which that is none
    if draw(st.booleans()):
        act["retry"] = {"max_attempts": 2}
    if draw(st.booleans()):
        act["output"] = {"format": draw(st.sampled_from(["text", "json"]))}
    more = draw(
        st.sampled_from(
            [{}] * 6 + [{"next": "y"}, {"assign": {"n": "${{ 3 }}"}}, {"catch": [{"on": ["any"], "next": "succeeded"}]}]
        )
    )
    states: dict[str, Any] = {"x": {**act, "next": "succeeded", **more}}
    if more.get("next") == "y":
        states["y"] = {"run": ["y"], "next": "succeeded"}
    inside: dict[str, Any] = {
        "items": draw(st.sampled_from(["[1, 2, 3, 4, 5, 6]", "[1, 2, 0, 4, 5]", "['a.b', 'c', 'd~', 'e', 'f', 'g']"])),
        "concurrency": draw(st.integers(1, 4)),
        "start": "x",
        "states": states,
        **draw(st.sampled_from([{}, {"output": "${{ states.x.output }}"}, {"output": "${{ index }}"}])),
        **draw(st.sampled_from([{}, {}, {"enough": 4}])),
        **draw(st.sampled_from([{}, {"failures": 2}, {"failures": "all", "stop": "now"}])),
        **draw(st.sampled_from([{}, {}, {"label": "l${{ string(item) }}"}])),
    }
    again = {"choice": [{"when": "states.each.visits < 2", "next": "each"}, {"next": "succeeded"}]}
    plan = {"each": {"map": inside, "next": draw(st.sampled_from(["succeeded", "again"]))}, "again": again}
    if plan["each"]["next"] == "succeeded":
        del plan["again"]
    return plan_of(plan, vars={"n": 1})


def _with_output(plan: Any, event: Any) -> Any:
    """What a person says of an effect that happened, with what it gave where its state gives something."""
    gives = isinstance(event, Resolve) and event.how == "happened" and "output" in plan["states"]["each"]["map"]["states"]["x"]
    return event._replace(output="7", has_output=True) if gives and not event.state.endswith(("y", "mail")) else event


@settings(max_examples=60)
@given(plan=some_maps(), data=st.data())
def test_what_is_done_in_one_go_is_what_is_done_step_by_step(plan: Any, data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(plan, folder)
        for _ in range(40):
            if world.at.run.status in TERMINAL or world.at.run.undoing is not None:
                break
            open_ = world.open()
            if open_ and data.draw(st.integers(0, 5)):
                nos = data.draw(st.permutations(open_))[: data.draw(st.integers(1, len(open_)))]
                how = st.sampled_from([(0, "")] * 8 + [(1, ""), (-9, ""), (0, "sibling"), (-2, "leaving")])
                text = st.sampled_from([b"7", b"7", b"7", b"{"])
                events = [Ended(no, *data.draw(how), stdout=data.draw(text), files={"out": "1.out", "err": ""}) for no in nos]
                events = events if are_alike(plan, world.at.run, events) else events[:1]
            else:
                events = [_with_output(plan, data.draw(st.sampled_from(happenings(world))))]
            give(world, events)
        assert world.store is not None
        world.store.file.close()


EACH = plan_of(
    {"each": {"map": {"items": "[1, 2, 3, 4, 5, 6]", "concurrency": 3, "run": ["x", "${{ item }}"]}, "next": "succeeded"}}
)


def plain_ends(world: World, events: list[Ended], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each of these ends, whether it was plain."""
    found: list[bool] = []
    ended = plainly.ended

    def noted(d: Any, p: Any, event: Ended) -> bool:
        found.append(ended(d, p, event))
        return found[-1]

    monkeypatch.setattr(plainly, "ended", noted)
    world.took(told(world, events))
    return found


def test_an_item_that_another_follows_is_done_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EACH)
    assert plain_ends(world, [Ended(3, 0), Ended(1, 0)], monkeypatch) == [True, True]
    assert world.under_way() == ["each[1].run", "each[3].run", "each[4].run"]
    assert world.statuses("each") == ["succeeded", "begun", "succeeded", "begun", "begun", "not_begun"]


@pytest.mark.parametrize("event", [Ended(1, 1), Ended(1, 0, left=(7,)), Ended(1, 0, "cancel"), Ended(1, 0, too_large=True)])
def test_what_is_out_of_the_ordinary_is_not(event: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_ends(World(EACH), [event], monkeypatch) == [False]


def test_the_last_items_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EACH)
    assert plain_ends(world, [Ended(1, 0), Ended(2, 0), Ended(3, 0)], monkeypatch) == [True] * 3
    monkeypatch.undo()
    assert plain_ends(world, [Ended(4, 0), Ended(5, 0), Ended(6, 0)], monkeypatch) == [False] * 3
    assert world.at.run.status is Status.SUCCEEDED and isinstance(world.at, Checkpoint)


def test_the_end_with_which_there_are_enough_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    each = {"items": "[1, 2, 3, 4]", "concurrency": 1, "enough": 2, "run": ["x"]}
    world = World(plan_of({"each": {"map": each, "next": "succeeded"}}))
    assert plain_ends(world, [Ended(1, 0)], monkeypatch) == [True]
    monkeypatch.undo()
    assert plain_ends(world, [Ended(2, 0)], monkeypatch) == [False]
    assert world.at.run.status is Status.SUCCEEDED and len(world.begun) == 2

"""Ends that come together: decided as one they lead to just what they lead to one after the other."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import CHILDREN, World, happenings, plan_of, some_states

from durun.errors import NotPossible
from durun.machine.decide import are_alike, decide, decide_all
from durun.machine.events import Cancel, Ended, Lost
from durun.machine.model import TERMINAL, Status, apply

ONE = {"run": ["x", "${{ item }}"], "next": "succeeded"}
EACH = plan_of(
    {"each": {"map": {"items": "[1, 2, 3, 4, 5, 6]", "concurrency": 3, "start": "x", "states": {"x": ONE}}, "next": "succeeded"}}
)
HOW = st.sampled_from([(0, ""), (0, ""), (0, ""), (1, ""), (-15, "sibling"), (-9, ""), (-2, "leaving")])


def give_together(world: World, events: list[Ended]) -> None:
    """Has a world decide them as one, and holds that to one after the other."""
    world.now += 1000
    moment, turn, moves = world.moment(), copy.deepcopy(world.at), []
    for event in events:
        moves.append(decide(world.plan, turn, event, moment, world.evaluate))
        apply(turn, moves[-1])
    made = decide_all(world.plan, world.at, events, moment, world.evaluate)
    world.took(made)
    assert world.at == turn
    assert {k: set(v) for k, v in world.at.within.items()} == {k: set(v) for k, v in turn.within.items()}
    assert made.history == [told for move in moves for told in move.history]
    for name in ("begin", "stop", "said", "onces", "answers"):
        assert getattr(made, name) == [one for move in moves for one in getattr(move, name)], name
    for name in ("effects", "undos", "undo_status", "messages"):
        assert getattr(made, name) == {no: row for move in moves for no, row in getattr(move, name).items()}, name
    for name in ("owed_again", "withdraw"):
        assert getattr(made, name) == any(getattr(move, name) for move in moves), name
    assert made.shares is None
    assert world.store is not None and not world.kept
    world.held, _ = world.store.commit(world.held, world.stored, lambda _: [made], world.now)
    world.stored = world.at.run
    world.same(world.store.load(1))


@settings(max_examples=60)
@given(drawn=some_states(depth=2, prefix="s", calls=True), data=st.data())
def test_what_ends_together_leads_to_what_it_leads_to_in_turn(drawn: Any, data: Any) -> None:
    start, states = drawn
    more = data.draw(st.sampled_from([{}, {"on_error": "compensate"}]))
    if more:
        states = {name: {**s, "compensate": {"run": ["u"]}} if "run" in s else s for name, s in states.items()}
    plan = plan_of({start: states.pop(start), **states}, children=CHILDREN, **more)
    with tempfile.TemporaryDirectory() as folder:
        world = World(plan, folder)
        for _ in range(60):
            if world.at.run.status in TERMINAL or world.at.run.undoing is not None:
                break
            open_ = world.open()
            if len(open_) > 1 and world.at.run.cancel is None:
                nos = data.draw(st.permutations(open_))[: data.draw(st.integers(2, len(open_)))]
                events = [Ended(no, *data.draw(HOW)) for no in nos]
                assert are_alike(plan, world.at.run, events)
                give_together(world, events)
            else:
                world.give(data.draw(st.sampled_from(happenings(world))))
        assert world.store is not None
        world.store.file.close()


def test_the_places_of_items_that_end_together_are_filled_in_order() -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(EACH, folder)
        give_together(world, [Ended(no, 0) for no in (3, 1)])
        assert world.under_way() == ["each[1].x", "each[3].x", "each[4].x"]
        give_together(world, [Ended(no, 0) for no in world.open()])
        give_together(world, [Ended(no, 0) for no in world.open()])
        assert world.at.run.status is Status.SUCCEEDED
        assert world.store is not None
        world.store.file.close()


def test_an_end_that_is_told_twice_is_none() -> None:
    world = World(EACH)
    with pytest.raises(NotPossible):
        decide_all(EACH, world.at, [Ended(1, 0), Ended(1, 0)], world.moment(), world.evaluate)
    assert world.under_way() == ["each[0].x", "each[1].x", "each[2].x"]


def test_what_reckons_between_two_ends_is_decided_in_turn() -> None:
    ends = [Ended(1, 0), Ended(2, 0)]
    world = World(EACH)
    assert are_alike(EACH, world.at.run, ends)
    assert not are_alike(EACH, world.at.run, [*ends, Lost(3, "killed")])
    assert not are_alike({**EACH, "notify": []}, world.at.run, ends)
    assert not are_alike(EACH, world.at.run._replace(over_at=1), ends)
    world.give(Cancel())
    assert not are_alike(EACH, world.at.run, ends)

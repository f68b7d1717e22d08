"""A run that was in flight in a backup or a copy: what may have happened elsewhere is in doubt, and the rest goes on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import World, happenings, plan_of, some_states

from durun.errors import NotPossible
from durun.machine.decide import decide
from durun.machine.events import AfterRestore, Cancel, Due, Ended, Lost, Pause, Resolve, TakeUp
from durun.machine.model import TERMINAL, Phase, Status
from durun.machine.scope import path_of

RETRY = {"max_attempts": 3, "initial_interval": "1h"}


def restored(world: World) -> None:
    """As the file has it after a restore."""
    run = world.at.run
    was = {"why": "restored", "at": 1, "from": "", "status": str(run.status), "reason": run.reason}
    world.at.run = run._replace(status=Status.BLOCKED, reason="restored", restored=was)


def let_go_on(world: World) -> None:
    world.give(AfterRestore("ann"))
    for no in world.open():
        if world.at.effects[no].kind == "run":
            world.give(Lost(no, "elsewhere"))


def test_nothing_is_heard_before_it_may_go_on() -> None:
    world = World(plan_of({"a": {"run": ["x"], "next": "succeeded"}}))
    restored(world)
    for event in (Ended(1, 0), Lost(1, ""), Cancel(), Pause(), TakeUp(), Resolve("retry"), Due("")):
        with pytest.raises(NotPossible, match="--after-restore"):
            decide(world.plan, world.at, event, world.moment(), world.evaluate)
    world.give(AfterRestore("ann"))
    with pytest.raises(NotPossible):
        world.give(AfterRestore("ann"))
    assert world.at.run.restored is None and world.at.run.status is Status.RUNNING


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        ({}, Phase.DOUBT),
        ({"idempotent": True}, Phase.ACTING),
        ({"idempotent": "1h"}, Phase.ACTING),
        ({"idempotent": "1s"}, Phase.DOUBT),
        ({"probe": {"run": ["asks"]}}, Phase.PROBING),
        ({"catch": [{"on": ["in_doubt"], "next": "b"}]}, Phase.ACTING),
    ],
)
def test_a_retry_that_waited_is_in_doubt(more: dict[str, Any], phase: Phase) -> None:
    world = World(plan_of({"a": {"run": ["x"], "retry": RETRY, "next": "b", **more}, "b": {"run": ["y"], "next": "succeeded"}}))
    world.end("a", 1)
    world.now += 2000
    key = world.begun[-1][1]
    restored(world)
    world.give(AfterRestore("ann"))
    assert world.at.positions[""].phase is phase
    if phase is Phase.ACTING and "catch" not in more:
        assert world.begun[-1] == ("a", key)


def test_a_lasting_idempotency_counts_from_the_intent_where_its_first_begin_is_not_known() -> None:
    world = World(plan_of({"a": {"run": ["x"], "idempotent": "1m", "next": "succeeded"}}))
    p, effect = world.at.positions[""], world.at.effects[1]
    world.at.positions[""] = world.at.active[""] = p._replace(phase=Phase.DELAYED, due=world.now)
    world.at.effects[1] = effect._replace(status="waiting", first_at=None, place=None, boot=None)
    world.now += 120_000
    restored(world)
    world.give(AfterRestore("ann"))
    assert world.at.positions[""].phase is Phase.DOUBT


def test_a_timer_goes_on_and_a_paused_run_stays_paused_until_it_is_taken_up() -> None:
    world = World(plan_of({"a": {"wait": "1h", "next": "succeeded"}}))
    world.give(Pause("ann"))
    due = world.at.positions[""].due
    restored(world)
    world.give(AfterRestore("ann"))
    assert world.at.run.status is Status.PAUSED and world.at.positions[""].due == due
    world.give(TakeUp())
    assert world.at.run.status is Status.WAITING


@given(st.data())
def test_nothing_that_may_have_happened_elsewhere_is_begun_again_unasked(data: Any) -> None:
    start, states = data.draw(some_states(depth=1, prefix="s"))
    world = World(plan_of(states, start=start))
    for _ in range(data.draw(st.integers(0, 6))):
        if world.at.run.status in TERMINAL:
            return
        world.give(data.draw(st.sampled_from(happenings(world))))
    if world.at.run.status in TERMINAL or world.at.run.cancel is not None:
        return
    standing = [
        world.at.effects[no] for p in world.at.positions.values() if (no := p.effect) is not None and no in world.at.effects
    ]
    open_ones = {e.no for e in standing if e.status in ("begin", "waiting")}
    once = {e.key for e in standing if e.no in open_ones and not idempotent(world, e)}
    restored(world)
    before = len(world.begun)
    let_go_on(world)
    for _ in range(30):
        if world.at.run.status in TERMINAL:
            break
        chosen = [e for e in happenings(world) if not (isinstance(e, Resolve) and wants_again(e))]
        world.give(data.draw(st.sampled_from(chosen)))
    again = {key for _, key in world.begun[before:]} & once
    assert not again, [path for path, key in world.begun[before:] if key in again]


def wants_again(e: Resolve) -> bool:
    """Whether a person asks for the step anew: what is said of a once does."""
    return e.how == "retry" or "/once:" in (e.state or "")


def idempotent(world: World, effect: Any) -> bool:
    from durun.machine.scope import level

    states = (level(world.plan, effect.scope) if effect.scope else world.plan)["states"]
    assert path_of(effect.scope, effect.state)
    return bool(states[effect.state].get("idempotent"))

"""The table of phases and events: each pair does what the table says, or raises and changes nothing."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durun.errors import NotPossible, PlanRefused
from durun.machine.decide import begin, decide
from durun.machine.draft import uuid5
from durun.machine.events import (
    Alive,
    Answer,
    Answered,
    Cancel,
    CouldNotStart,
    Due,
    Ended,
    Go,
    Lost,
    Moment,
    Moved,
    Pause,
    Resolve,
    Settle,
    Signal,
    TakeUp,
)
from durun.machine.model import Checkpoint, Effect, Phase, Position, Run, Status, apply
from durun.plan.check import read
from durun.plan.expressions import Evaluator

NOW = Moment(1_000_000, 5_000, "boot", "place", 0.5)
EVENTS = {
    "Go": Go(""),
    "Due": Due(""),
    "Ended": Ended(1, 0),
    "Answered": Answered(1, 200, {}),
    "CouldNotStart": CouldNotStart(1, 2, "program"),
    "Lost": Lost(1, "killed"),
    "Moved": Moved(1),
    "Settle": Settle(""),
    "Resolve": Resolve("happened"),
    "TakeUp": TakeUp(),
    "Cancel": Cancel(),
    "Pause": Pause(),
    "Answer": Answer(by="ann", now=1_000_000),
    "Signal": Signal("go", now=1_000_000),
    "Alive": Alive("go", now=1_000_000),
}
ALWAYS = {"Cancel", "Pause", "Signal"}
ALLOWED = {
    Phase.READY: {"Go"},
    Phase.ACTING: {"Ended", "Answered", "CouldNotStart", "Lost", "Moved"},
    Phase.DELAYED: {"Due"},
    Phase.QUEUED: {"Due"},
    Phase.WAITING: {"Due"},
    Phase.ASKED: {"Due", "Answer"},
    Phase.LISTENING: {"Due", "Alive"},
    Phase.LOST: {"Settle", "Resolve"},
    Phase.PROBING: {"Due", "Ended", "Answered", "CouldNotStart", "Lost", "Moved"},
    Phase.DOUBT: {"Resolve"},
    Phase.HELD: {"Settle", "TakeUp"},
    Phase.INSIDE: set(),
    Phase.FAILED: {"Resolve", "TakeUp"},
    Phase.ENDED: set(),
}


def plan_of(**states: Any) -> Any:
    data = {"durun": 1, "name": "table", "start": next(iter(states)), "states": states}
    plan, faults, _ = read(data)
    assert not faults, faults
    return plan


PLAN = plan_of(
    a={"run": ["true"], "probe": {"run": ["true"]}, "next": "rest", "catch": [{"on": ["not_found"], "next": "succeeded"}]},
    rest={"wait": "1h", "next": "ask"},
    ask={"approval": {"message": "well?"}, "timeout": "1h", "next": "word"},
    word={"wait": {"signal": "go", "heartbeat": "1h"}, "next": "succeeded"},
)
WANTS = {
    Phase.ASKED: {"message": "well?", "options": PLAN["states"]["ask"]["approval"]["options"], "digest": "d"},
    Phase.LISTENING: {"signal": "go", "heartbeat": 1},
}


ASKS = plan_of(
    a={"http": {"url": "http://x"}, "probe": {"http": {"url": "http://x"}}, "next": "rest"},
    rest={"wait": "1h", "next": "succeeded"},
)


def standing(phase: Phase, request: Any = None) -> Checkpoint:
    """A run that stands in a phase, with the effect that phase has."""
    status = {Phase.FAILED: Status.FAILED, Phase.ENDED: Status.SUCCEEDED, Phase.DOUBT: Status.BLOCKED}.get(phase, Status.RUNNING)
    run = Run("r", "table", "1", "ab" * 16, 0, status, None, {}, {}, {}, {}, next_effect=3)
    effect = Effect(1, "", "a", 1, "run", "key", request or {"argv": ["true"], "env": {}}, "begin", first_at=1)
    state = {Phase.WAITING: "rest", Phase.ASKED: "ask", Phase.LISTENING: "word"}.get(phase, "a")
    due = 1_000 if phase in (Phase.DELAYED, Phase.WAITING) else 2_000_000 if phase in WANTS else None
    position = Position("", state, 1, phase, effect=1, due=due, target="a" if phase is Phase.READY else None, length=1)
    if phase in WANTS:
        position = position._replace(effect=None, wants=WANTS[phase], length=1_000_001)
    effects = {1: effect}
    if phase is Phase.PROBING:
        position = position._replace(asking=1, effect=2)
        effects[2] = effect._replace(no=2, status="in_doubt")
    if phase in (Phase.DOUBT, Phase.LOST):
        effects[1] = effect._replace(status="in_doubt")
    if phase is Phase.FAILED:
        effects[1] = effect._replace(status="not_done")
    if phase is Phase.QUEUED:
        position = position._replace(wants={"limit": "l"})
    if phase in (Phase.DELAYED, Phase.HELD, Phase.QUEUED):
        effects[1] = effect._replace(status="waiting")
    return Checkpoint(run, {"": position}, {}, effects)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", EVENTS)
def test_each_phase_answers_each_event_as_the_table_says(phase: Phase, name: str) -> None:
    plan, request = (ASKS, {"method": "GET", "url": "http://x", "expect": [[200, 299]]}) if name == "Answered" else (PLAN, None)
    at = standing(phase, request)
    before = copy.deepcopy(at)
    ended = phase in (Phase.FAILED, Phase.ENDED)
    if name in ALLOWED[phase] or (name in ALWAYS and not ended):
        move = decide(plan, at, EVENTS[name], NOW, Evaluator())
        assert move.history or move.positions or move.begin
    else:
        with pytest.raises(NotPossible):
            decide(plan, at, EVENTS[name], NOW, Evaluator())
    assert at == before, "deciding changed the checkpoint"


def test_the_table_in_the_docs_of_the_rules_is_this_one() -> None:
    import durun.machine.decide as rules

    lines = [line for line in (rules.__doc__ or "").splitlines() if line.startswith("| ")]
    heads = [h.strip() for h in lines[0].strip("|").split("|")][1:]
    for line in lines[2:]:
        phase, *cells = [c.strip() for c in line.strip("|").split("|")]
        said = {
            name for head, cell in zip(heads, cells, strict=True) if cell for name in head.split(", ") if cell != "where paused"
        }
        assert said == ALLOWED[Phase(phase)], phase


@pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.FAILED, Phase.ENDED)])
def test_a_paused_run_is_taken_up_from_every_phase(phase: Phase) -> None:
    at = standing(phase)
    at.run = at.run._replace(status=Status.PAUSED, paused_at=1)
    move = decide(PLAN, at, TakeUp(), NOW, Evaluator())
    assert move.run.status is not Status.PAUSED


def first(plan: Any, **run: Any) -> tuple[Checkpoint, Any]:
    newborn = Run("r", "t", "1", "ab" * 16, 0, Status.RUNNING, None, {}, run.get("vars", {}), {}, run.get("types", {}))
    move = begin(plan, newborn, NOW, Evaluator())
    at = Checkpoint(newborn)
    apply(at, move)
    return at, move


def test_what_can_be_passed_through_is_one_move() -> None:
    plan = plan_of(
        a={"pass": {}, "next": "b"},
        b={"choice": [{"when": "visit == 1", "next": "c"}, {"next": "succeeded"}]},
        c={"run": ["true"], "next": "succeeded"},
    )
    at, move = first(plan)
    assert move.begin == [1] and at.positions[""].phase is Phase.ACTING
    assert [e.state for e in move.history if e.kind == "entered"] == ["a", "b", "c"]


def test_a_loop_without_an_effect_is_committed_every_thousand_states() -> None:
    plan = plan_of(a={"pass": {}, "next": "b"}, b={"pass": {}, "next": "a"})
    at, _ = first(plan)
    assert at.positions[""].phase is Phase.READY
    moves = 1
    while at.run.status is Status.RUNNING:
        apply(at, decide(plan, at, Go(""), NOW, Evaluator()))
        moves += 1
    assert at.run.status is Status.FAILED and at.run.error["name"] == "max_visits"
    assert moves == 21


def test_an_intent_is_left_waiting_where_nobody_drives_on() -> None:
    plan = plan_of(a={"run": ["true"], "next": "succeeded"})
    newborn = Run("r", "t", "1", "ab" * 16, 0, Status.RUNNING, None, {}, {}, {}, {})
    move = begin(plan, newborn, NOW._replace(place=None), Evaluator())
    assert move.begin == [] and move.effects[1].status == "waiting" and move.positions[""].phase is Phase.DELAYED


def test_the_end_just_seen_is_kept_when_the_next_request_cannot_be_rendered() -> None:
    plan = plan_of(
        a={"run": ["true"], "next": "b"},
        b={"run": ["x"], "env": {"N": "${{ states.a.output }}"}, "next": "succeeded"},
    )
    at, _ = first(plan)
    apply(at, decide(plan, at, Ended(1, 0), NOW, Evaluator()))
    assert at.run.status is Status.FAILED and at.run.error["name"] == "expression" and at.run.error["state"] == "b"
    assert at.states["", "a"].ended and at.states["", "a"].error is None


def test_a_retry_keeps_the_key_and_a_new_visit_has_a_new_one() -> None:
    plan = plan_of(
        a={"run": ["x"], "retry": {"max_attempts": 2}, "next": "again"},
        again={"choice": [{"when": "states.a.visits < 2", "next": "a"}, {"next": "succeeded"}]},
    )
    at, _ = first(plan)
    keys = [at.effects[1].key]
    apply(at, decide(plan, at, Ended(1, 1), NOW, Evaluator()))
    assert at.positions[""].phase is Phase.DELAYED
    apply(at, decide(plan, at, Due(""), NOW, Evaluator()))
    keys.append(at.effects[1].key)
    apply(at, decide(plan, at, Ended(1, 0), NOW, Evaluator()))
    keys.append(at.effects[2].key)
    assert keys[0] == keys[1] != keys[2] and len(keys[0]) == 36


def test_a_crash_in_a_delay_does_not_refill_the_budget() -> None:
    plan = plan_of(a={"run": ["x"], "retry": {"max_attempts": 3}, "next": "succeeded"})
    at, _ = first(plan)
    tries = 1
    while at.run.status is not Status.FAILED:
        apply(at, decide(plan, at, Ended(1, 1), NOW, Evaluator()))
        if at.positions[""].phase is Phase.DELAYED:
            at = copy.deepcopy(at)
            apply(at, decide(plan, at, Due(""), NOW, Evaluator()))
            tries += 1
    assert tries == 3


def test_three_doubts_in_one_visit_are_blocked_though_the_state_may_be_repeated() -> None:
    plan = plan_of(a={"run": ["x"], "idempotent": True, "retry": {"max_attempts": 100}, "next": "succeeded"})
    at, _ = first(plan)
    for _ in range(3):
        assert at.positions[""].phase is Phase.ACTING
        apply(at, decide(plan, at, Lost(1, "killed"), NOW, Evaluator()))
    assert (at.run.status, at.run.reason) == (Status.BLOCKED, "keeps_dying")


def test_a_doubt_that_is_caught_goes_where_the_catch_says() -> None:
    plan = plan_of(
        a={"run": ["x"], "catch": [{"on": ["in_doubt"], "next": "b"}], "next": "succeeded"}, b={"wait": "1h", "next": "failed"}
    )
    at, _ = first(plan)
    apply(at, decide(plan, at, Lost(1, "killed"), NOW, Evaluator()))
    assert at.positions[""].state == "b" and at.run.error["name"] == "in_doubt"


def test_any_takes_no_doubt() -> None:
    plan = plan_of(a={"run": ["x"], "catch": [{"on": ["any"], "next": "succeeded"}], "next": "succeeded"})
    at, _ = first(plan)
    apply(at, decide(plan, at, Lost(1, "killed"), NOW, Evaluator()))
    assert (at.run.status, at.run.reason) == (Status.BLOCKED, "in_doubt")


@pytest.mark.parametrize(
    ("end", "how", "name"),
    [
        (Ended(1, 0), "done", None),
        (Ended(1, 3), "not_done", "exit:3"),
        (Ended(1, -9), "not_certain", "killed:KILL"),
        (Ended(1, 137), "not_certain", "exit:137"),
        (Ended(1, -15, "timeout"), "not_certain", "timeout"),
        (Ended(1, -15, "heartbeat"), "not_certain", "heartbeat"),
        (Ended(1, 0, "timeout"), "done", None),
        (Ended(1, 1, "cancel"), "not_certain", "exit:1"),
        (CouldNotStart(1, 2, "program"), "not_done", "not_found"),
        (Ended(1, -2, "leaving"), "in_doubt", None),
    ],
)
def test_how_an_effect_ends(end: Any, how: str, name: str | None) -> None:
    plan = plan_of(a={"run": "true", "next": "succeeded"})
    at, _ = first(plan)
    move = decide(plan, at, end, NOW, Evaluator())
    assert move.effects[1].status == how
    assert (move.run.error or {}).get("name") == name


@pytest.mark.parametrize(
    ("state", "again"),
    [
        ({"retry": {}}, False),
        ({"retry": {"on": ["timeout"]}}, True),
        ({"retry": {"on": ["exit"]}}, False),
        ({"retry": {}, "idempotent": True}, True),
        ({"idempotent": True}, False),
    ],
)
def test_what_is_not_certain_is_repeated_only_where_the_plan_says_so(state: dict[str, Any], again: bool) -> None:
    plan = plan_of(a={"run": ["x"], "next": "succeeded", **state})
    at, _ = first(plan)
    apply(at, decide(plan, at, Ended(1, -15, "timeout"), NOW, Evaluator()))
    assert (at.positions[""].phase is Phase.DELAYED) is again


def test_an_idempotent_duration_ends() -> None:
    plan = plan_of(a={"run": ["x"], "idempotent": "1h", "next": "succeeded"})
    at, _ = first(plan)
    late = copy.deepcopy(at)
    apply(at, decide(plan, at, Lost(1, "x"), NOW, Evaluator()))
    assert at.positions[""].phase is Phase.ACTING
    apply(late, decide(plan, late, Lost(1, "x"), NOW._replace(now=NOW.now + 3_600_001), Evaluator()))
    assert late.positions[""].phase is Phase.DOUBT


def test_a_var_keeps_the_type_of_its_first_value() -> None:
    plan, _faults, _ = read(
        {
            "durun": 1,
            "name": "t",
            "vars": {"n": 1},
            "start": "a",
            "states": {"a": {"pass": {}, "assign": {"n": "${{ sum([0.5]) }}"}, "next": "succeeded"}},
        }
    )
    at, _ = first(plan, vars={"n": 1}, types={"n": "integer"})
    assert at.run.error["name"] == "vars_invalid"


def test_all_values_of_one_assign_see_the_vars_as_they_were() -> None:
    assign = {"a": "${{ vars.b }}", "b": "${{ vars.a }}"}
    plan, _, _ = read(
        {
            "durun": 1,
            "name": "t",
            "vars": {"a": 1, "b": 2},
            "start": "s",
            "states": {"s": {"pass": {}, "assign": assign, "next": "succeeded"}},
        }
    )
    at, _ = first(plan, vars={"a": 1, "b": 2}, types={"a": "integer", "b": "integer"})
    assert at.run.vars == {"a": 2, "b": 1}


def test_output_that_cannot_be_used_leaves_the_effect_done() -> None:
    plan = plan_of(a={"run": ["x"], "output": "json", "retry": {}, "next": "succeeded"})
    at, _ = first(plan)
    move = decide(plan, at, Ended(1, 0, stdout=b"{"), NOW, Evaluator())
    assert move.effects[1].status == "done" and move.run.error["name"] == "output_invalid"
    named = plan_of(a={"run": ["x"], "output": "json", "retry": {"on": ["output_invalid"]}, "next": "succeeded"})
    at, _ = first(named)
    assert decide(named, at, Ended(1, 0, stdout=b"{"), NOW, Evaluator()).positions[""].phase is Phase.DELAYED


def test_resume_of_a_run_that_the_plan_ended_has_nothing_to_take_up() -> None:
    plan = plan_of(a={"fail": {"error": "no_stock"}})
    at, _ = first(plan)
    assert at.run.error["name"] == "no_stock"
    with pytest.raises(NotPossible, match=r"nothing to take up.*--from STATE.*durun rewind"):
        decide(plan, at, TakeUp(), NOW, Evaluator())


def test_resume_of_a_failed_run_has_a_fresh_budget_and_the_same_key() -> None:
    plan = plan_of(a={"run": ["x"], "next": "succeeded"})
    at, _ = first(plan)
    key = at.effects[1].key
    apply(at, decide(plan, at, Ended(1, 1), NOW, Evaluator()))
    apply(at, decide(plan, at, TakeUp(), NOW, Evaluator()))
    assert at.positions[""].phase is Phase.ACTING and at.effects[1].key == key and at.effects[1].attempt == 2


def test_a_paused_timer_keeps_what_it_had_left() -> None:
    plan = plan_of(a={"wait": "1h", "next": "succeeded"})
    at, _ = first(plan)
    apply(at, decide(plan, at, Pause(), NOW._replace(now=NOW.now + 600_000, clock=NOW.clock + 600_000), Evaluator()))
    later = NOW._replace(now=NOW.now + 90_000_000, clock=NOW.clock + 90_000_000)
    apply(at, decide(plan, at, TakeUp(), later, Evaluator()))
    assert at.positions[""].due == later.now + 3_000_000


def failed_at_b(**more: Any) -> tuple[Any, Checkpoint]:
    """A run of a and b that failed in b."""
    plan = plan_of(a={"run": ["true"], "next": "b"}, b={"run": ["false"], "next": "succeeded", **more})
    at, _ = first(plan)
    for event in (Ended(1, 0), Ended(2, 1)):
        apply(at, decide(plan, at, event, NOW, Evaluator()))
    assert at.run.status is Status.FAILED
    return plan, at


def test_a_failed_run_is_taken_up_from_a_state_as_a_new_visit_with_a_new_key() -> None:
    plan, at = failed_at_b()
    move = decide(plan, at, TakeUp("a"), NOW, Evaluator())
    assert move.run.status is Status.RUNNING and move.run.ended_at is None and move.run.ended_by is None
    [position] = [p for p in move.positions.values() if p is not None]
    assert (position.state, position.visit, position.phase) == ("a", 2, Phase.ACTING)
    assert move.effects[3].attempt == 1 and move.effects[3].key not in (e.key for e in at.effects.values())
    assert [(e.kind, e.data.get("to")) for e in move.history][:1] == [("resumed", "a")]


def test_a_take_up_at_a_state_that_is_not_there_or_of_a_run_that_has_not_failed_changes_nothing() -> None:
    plan, at = failed_at_b()
    before = copy.deepcopy(at)
    with pytest.raises(PlanRefused, match="it has a, b"):
        decide(plan, at, TakeUp("c"), NOW, Evaluator())
    assert at == before
    for phase in Phase:
        if phase is not Phase.FAILED:
            with pytest.raises(NotPossible):
                decide(PLAN, standing(phase), TakeUp("a"), NOW, Evaluator())


@pytest.mark.parametrize("idempotent", [True, False])
def test_the_state_that_may_have_happened_is_entered_anew_only_where_that_is_harmless(idempotent: bool) -> None:
    plan = plan_of(a={"run": ["x"], "idempotent": idempotent, "next": "succeeded"})
    at, _ = first(plan)
    apply(at, decide(plan, at, Ended(1, -9), NOW, Evaluator()))
    assert at.run.status is Status.FAILED
    if idempotent:
        assert decide(plan, at, TakeUp("a"), NOW, Evaluator()).begin == [2]
    else:
        with pytest.raises(NotPossible, match="is not known"):
            decide(plan, at, TakeUp("a"), NOW, Evaluator())


def test_a_run_born_while_the_file_is_held_is_paused_and_begins_nothing() -> None:
    newborn = Run("r", "t", "1", "ab" * 16, 0, Status.RUNNING, None, {}, {}, {}, {})
    move = begin(PLAN, newborn, NOW._replace(place=None), Evaluator(), Pause("me", "all"))
    assert (move.run.status, move.run.reason, move.begin) == (Status.PAUSED, "all", [])
    assert [e.kind for e in move.history] == ["started", "entered", "paused"]
    ends = plan_of(a={"pass": {}, "next": "succeeded"})
    assert begin(ends, newborn, NOW, Evaluator(), Pause("me", "all")).run.status is Status.SUCCEEDED


@given(st.uuids(), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_key_is_a_uuid_of_version_5(namespace: uuid.UUID, name: str) -> None:
    assert uuid5(namespace.hex, name) == str(uuid.uuid5(namespace, name))

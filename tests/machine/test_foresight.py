"""What a plain end will lead to, worked out before it has come: it is the very move that is decided when it has, or there is none.

Random histories hold the same: tests/machine/test_histories.py, tests/inside.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from inside import as_foreseen

from durun.machine.decide import begin, decide
from durun.machine.events import Cancel, Ended, Moment
from durun.machine.foresight import LATER, Unforeseen, foresee, fulfilled, is_it
from durun.machine.model import Checkpoint, Run, Status, apply
from durun.plan.check import read
from durun.plan.expressions import Evaluator

LOOP = {
    "more": {"choice": [{"when": "vars.i < 3", "next": "work"}, {"next": "succeeded"}]},
    "work": {"run": ["x", "${{ vars.i }}"], "assign": {"i": "${{ vars.i + 1 }}"}, "next": "more"},
}


def started(states: Any, start: str = "a", **more: Any) -> tuple[Any, Checkpoint]:
    plan, faults, _ = read({"durun": 1, "name": "p", "start": start, "states": states, **more})
    assert plan is not None, faults
    run = Run("r", "p", "1", "ab" * 16, 1000, Status.RUNNING, None, {}, plan["vars"], {}, dict.fromkeys(plan["vars"], "any"))
    at = Checkpoint(run)
    apply(at, begin(plan, run, Moment(1000, 10, "boot", "place", 0.5, 10), Evaluator()))
    return plan, at


def test_a_step_is_foreseen_with_all_that_lies_between_it_and_the_next() -> None:
    plan, at = started(LOOP, "more", vars={"i": 0})
    for now in (2000, 3500):
        event = Ended(at.run.next_effect - 1, 0, files={"out": "place/1.out", "err": ""})
        moment = Moment(now, now, "boot", "place", 0.25, now - 5)
        assert as_foreseen(plan, at, event, moment)
        apply(at, decide(plan, at, event, moment, Evaluator()))
        assert at.positions[""].entered_at == now


def test_what_was_printed_is_told_as_it_lies() -> None:
    plan, at = started({"a": {"run": ["x"], "next": "b"}, "b": {"run": ["y"], "next": "succeeded"}})
    foreseen = foresee(plan, at, "boot", "place", Evaluator())
    event = Ended(1, 0, files={"out": "place/7.out", "err": "place/7.err"})
    assert foreseen is not None
    move = fulfilled(foreseen, event, Moment(5000, 5000, "boot", "place", 0.5, 5000))
    assert move.history[0].data == {"how": "done", "exit": 0, "out": "place/7.out", "err": "place/7.err"}


STEP = {"run": ["y"], "next": "succeeded"}


@pytest.mark.parametrize(
    ("states", "more"),
    [
        ({"a": {"run": ["x"], "next": "succeeded"}}, {}),
        ({"a": {"run": ["x"], "next": "b"}, "b": {"wait": "1s", "next": "succeeded"}}, {}),
        ({"a": {"run": ["x"], "next": "b"}, "b": {"approval": {"message": "?"}, "next": "succeeded"}}, {}),
        ({"a": {"run": ["x"], "next": "b"}, "b": STEP}, {"timeout": "1h"}),
        ({"a": {"run": ["x"], "next": "b", "limit": "l"}, "b": STEP}, {"limits": {"l": {"rate": "1/s"}}}),
        (
            {"a": {"run": ["x"], "next": "b", "idempotent": True, "poll": {"until": "false", "every": "1s", "for": "1m"}}, "b": STEP},
            {},
        ),
        ({"a": {"run": ["x"], "next": "b"}, "b": {"run": ["y"], "background": True, "idempotent": True, "next": "succeeded"}}, {}),
        ({"a": {"run": ["x"], "next": "b", "assign": {"t": "${{ 1 / 0 }}"}}, "b": STEP}, {"vars": {"t": None}}),
        ({"a": {"run": ["x"], "output": "json", "next": "b"}, "b": STEP}, {}),
        ({"a": {"map": {"items": "[1]", "run": ["x"]}, "next": "b"}, "b": STEP}, {}),
    ],
)  # fmt: skip
def test_what_hangs_on_a_time_or_begins_nothing_is_not_foreseen(states: Any, more: Any) -> None:
    plan, at = started(states, **more)
    assert foresee(plan, at, "boot", "place", Evaluator()) is None


@pytest.mark.parametrize(
    "event",
    [
        Ended(1, 1), Ended(1, -9), Ended(1, 0, "leaving"), Ended(1, 0, data=b"{}"), Ended(1, 0, left=(7,)), Ended(1, 0, secret="S"),
        Ended(2, 0), Ended(1, 0, at=5), Ended(1, 0, stdout=b""), Cancel(),
    ],
)  # fmt: skip
def test_another_end_is_another_thing(event: Any) -> None:
    plan, at = started({"a": {"run": ["x"], "next": "b"}, "b": STEP})
    foreseen = foresee(plan, at, "boot", "place", Evaluator())
    assert foreseen is not None and not is_it(foreseen, event, Moment(5000, 5000, "boot", "place", 0.5))


@pytest.mark.parametrize("moment", [("boot", None), ("boot", "elsewhere"), ("another", "place")])
def test_so_is_an_end_elsewhere(moment: tuple[str, str | None]) -> None:
    plan, at = started({"a": {"run": ["x"], "next": "b"}, "b": STEP})
    foreseen = foresee(plan, at, "boot", "place", Evaluator())
    assert foreseen is not None and not is_it(foreseen, Ended(1, 0), Moment(5000, 5000, *moment, 0.5))


def test_a_checkpoint_is_not_changed_by_looking_ahead() -> None:
    plan, at = started(LOOP, "more", vars={"i": 0})
    before = at.copy()
    assert foresee(plan, at, "boot", "place", Evaluator()) is not None
    assert at == before


@pytest.mark.parametrize(
    "reckon", ["t + 1", "1 - t", "t < 1", "t == 1", "t != ''", "bool(t)", "f'{t}'", "str(t)", "float(t)", "[0][t]", "{t: 1}"]
)
def test_a_time_that_is_not_known_can_only_be_noted(reckon: str) -> None:
    with pytest.raises(Unforeseen):
        eval(reckon, {"t": LATER})

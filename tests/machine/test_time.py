"""Time as an argument: clocks that are set, a machine that sleeps or is booted, a driver that dies, a run whose time is over."""

from __future__ import annotations

from typing import Any

import pytest

from durun.errors import NotPossible
from durun.machine import clock
from durun.machine.decide import begin, decide
from durun.machine.events import (
    Answered,
    Cancel,
    Due,
    Ended,
    Go,
    Lost,
    Moment,
    Moved,
    NotStopped,
    Pause,
    RanOn,
    Rebooted,
    Resolve,
    TakeUp,
    TimeOver,
)
from durun.machine.model import Checkpoint, Move, Phase, Position, Run, Status, apply
from durun.plan.check import read
from durun.plan.expressions import Evaluator

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
DAY = 24 * HOUR


class Life:
    """A run whose clocks the test turns: `now` can be set, `clock` counts sleep, `awake` does not, a boot begins both anew."""

    def __init__(self, states: dict[str, Any], given: Any = None, **plan: Any) -> None:
        data = {"durun": 1, "name": "time", "start": next(iter(states)), "states": states, **plan}
        found, faults, _ = read(data)
        assert found is not None, faults
        self.plan = found
        self.now, self.clock, self.awake, self.boot, self.place = 10 * DAY, 9 * HOUR, 8 * HOUR, "boot", "place"
        first = Evaluator().value(found["vars"], {})
        run = Run("r", "time", "1", "ab" * 16, self.now, Status.RUNNING, None, given or {}, first, {}, {})
        self.at = Checkpoint(run)
        self.last = begin(found, run, self.moment, Evaluator())
        apply(self.at, self.last)

    @property
    def moment(self) -> Moment:
        return Moment(self.now, self.clock, self.boot, self.place, 0.0, self.awake)

    def runs(self, ms: int) -> Life:
        self.now, self.clock, self.awake = self.now + ms, self.clock + ms, self.awake + ms
        return self

    def sleeps(self, ms: int) -> Life:
        self.now, self.clock = self.now + ms, self.clock + ms
        return self

    def boots(self, away: int) -> Life:
        self.now, self.clock, self.awake, self.boot = self.now + away, 5 * SECOND, 5 * SECOND, self.boot + "+"
        return self

    def hears(self, event: Any) -> Move:
        self.last = decide(self.plan, self.at, event, self.moment, Evaluator())
        apply(self.at, self.last)
        return self.last

    def is_taken(self, sign: tuple[str, int] | None = None) -> Life:
        """Another driver takes the run over, now, after the last sign of life of the one before."""
        run = self.at.run
        was = clock.Account(run.driven, run.awake, run.awake_boot, run.gap)
        driven, awake, boot, gap = clock.taken_over(was, sign, self.awake, self.boot)
        self.at.run = run._replace(driven=driven, awake=awake, awake_boot=boot, gap=gap)
        return self

    @property
    def driven(self) -> int:
        """What is counted up to now."""
        run = self.at.run
        same = run.awake is not None and run.awake_boot == self.boot
        return run.driven + (self.awake - run.awake if same and run.awake is not None else 0)

    @property
    def left(self) -> int:
        """Until the only position is due."""
        return clock.left(self.position, self.now, self.clock, self.boot)

    @property
    def position(self) -> Position:
        return self.at.positions[""]

    @property
    def over_in(self) -> int | None:
        return clock.over_in(self.at.run, self.awake, self.boot)


def command(**more: Any) -> dict[str, Any]:
    return {"run": ["x"], "next": "succeeded", **more}


# --- waits ---


@pytest.mark.parametrize("jump", [-2 * DAY, -1, 0, HOUR, 400 * DAY])
def test_within_a_boot_a_wait_keeps_its_length_wherever_the_clock_is_set(jump: int) -> None:
    life = Life({"a": {"wait": "5m", "next": "succeeded"}})
    life.now += jump
    assert life.left == 5 * MINUTE
    assert life.runs(MINUTE).sleeps(MINUTE).left == 3 * MINUTE


def test_after_a_reboot_a_clock_set_back_lengthens_a_wait_once_at_most() -> None:
    life = Life({"a": {"wait": "5m", "next": "succeeded"}})
    life.runs(MINUTE).boots(-2 * DAY).hears(Rebooted())
    assert (life.left, life.position.length) == (5 * MINUTE, 5 * MINUTE)
    assert life.runs(2 * MINUTE).left == 3 * MINUTE
    life.boots(-2 * DAY).hears(Rebooted())
    assert life.left <= 5 * MINUTE
    assert life.runs(5 * MINUTE).left == 0


def test_after_a_reboot_the_time_that_was_away_counts_for_a_wait() -> None:
    life = Life({"a": {"wait": "5m", "next": "succeeded"}})
    life.runs(MINUTE).boots(MINUTE).hears(Rebooted())
    assert life.left == 3 * MINUTE
    assert life.position.due == life.now + 3 * MINUTE
    life.now += DAY
    assert life.left == 3 * MINUTE


def test_a_wait_for_a_time_goes_by_the_clock_also_after_a_reboot() -> None:
    life = Life({"a": {"wait": {"at": "2100-01-01T00:00:00Z"}, "next": "succeeded"}})
    due = life.position.due
    life.boots(DAY)
    assert not clock.was_set_elsewhere(life.position, life.boot)
    life.hears(Rebooted())
    assert life.position.due == due and life.left == (due or 0) - life.now


@pytest.mark.parametrize("jump", [-DAY, 0, DAY])
def test_while_it_is_paused_a_delay_stands_still_whatever_the_clock_says(jump: int) -> None:
    life = Life({"a": command(retry={"initial_interval": "1m", "max_interval": "1m", "jitter": "none"})})
    life.hears(Ended(1, 1))
    life.runs(20 * SECOND).hears(Pause())
    life.now += jump
    life.runs(HOUR).hears(TakeUp())
    assert life.left == 40 * SECOND
    life.hears(Pause())
    life.boots(HOUR).hears(TakeUp())
    assert life.left == 40 * SECOND


POLL = {"until": "false", "every": "1m", "for": "10m"}


@pytest.mark.parametrize("jump", [-DAY, 0, DAY])
def test_a_poll_lasts_as_long_as_it_may_whatever_the_clock_says(jump: int) -> None:
    life = Life({"a": command(poll=POLL, idempotent=True)})
    life.now += jump
    for _ in range(10):
        life.hears(Ended(1, 0))
        life.runs(MINUTE).hears(Due(""))
    life.hears(Ended(1, 0))
    assert life.at.run.status is Status.FAILED and life.at.run.error["name"] == "timeout"
    assert life.at.run.error["attempt"] == 11


def test_no_round_of_a_poll_begins_after_its_end_though_its_driver_was_away() -> None:
    life = Life({"a": command(poll=POLL, idempotent=True, output="json")})
    life.hears(Ended(1, 0, stdout=b"[4]"))
    life.runs(DAY)
    assert not life.hears(Due("")).begin
    assert life.at.run.error["name"] == "timeout"
    assert life.at.run.error["output"] == [4], "the last answer"
    assert life.at.effects[1].status == "done" and life.at.effects[1].attempt == 1


def test_a_poll_that_is_taken_up_has_all_its_time_and_a_new_key_for_each_round() -> None:
    life = Life({"a": command(poll=POLL, idempotent=True)})
    keys = [life.at.effects[1].key]
    life.runs(11 * MINUTE).hears(Ended(1, 1))
    assert life.at.run.status is Status.FAILED
    move = life.runs(DAY).hears(TakeUp())
    assert move.begin == [1] and move.effects[1].attempt == 2
    keys.append(life.at.effects[1].key)
    life.runs(9 * MINUTE).hears(Ended(1, 1))
    life.runs(MINUTE).hears(Due(""))
    keys.append(life.at.effects[1].key)
    assert len(set(keys)) == 3


def test_while_it_is_paused_the_time_of_a_poll_stands_still() -> None:
    life = Life({"a": command(poll=POLL, idempotent=True)})
    life.hears(Ended(1, 1))
    life.runs(MINUTE).hears(Pause())
    life.runs(DAY).hears(TakeUp())
    assert life.hears(Due("")).begin == [1]
    life.runs(8 * MINUTE).hears(Ended(1, 1))
    assert life.position.phase is Phase.DELAYED
    life.runs(MINUTE).hears(Due(""))
    life.runs(SECOND).hears(Ended(1, 1))
    assert life.at.run.status is Status.FAILED


# --- driven time ---


def test_time_counts_while_it_is_driven_and_not_while_the_machine_sleeps() -> None:
    life = Life({"a": {"run": ["x"], "next": "b"}, "b": command()})
    life.runs(MINUTE).sleeps(HOUR)
    life.now -= DAY
    life.hears(Ended(1, 0))
    assert life.at.run.driven == MINUTE
    life.now += 400 * DAY
    life.runs(MINUTE).hears(Ended(2, 0))
    assert life.at.run.driven == 2 * MINUTE and life.at.run.awake is None


def test_a_timer_that_is_sat_out_counts() -> None:
    life = Life({"a": {"wait": "5m", "next": "succeeded"}})
    life.runs(5 * MINUTE).hears(Due(""))
    assert life.at.run.driven == 5 * MINUTE


def test_what_is_paused_or_blocked_does_not_count() -> None:
    life = Life({"a": command()})
    life.runs(MINUTE).hears(Pause())
    life.runs(HOUR).hears(TakeUp())
    life.runs(MINUTE).hears(Lost(1, "killed"))
    assert life.at.run.status is Status.BLOCKED and life.at.run.driven == 2 * MINUTE
    life.runs(HOUR).hears(Resolve("retry"))
    life.runs(MINUTE).hears(Ended(1, 0))
    assert life.at.run.driven == 3 * MINUTE


def test_time_in_which_nobody_drove_does_not_count_but_up_to_the_last_sign_it_does() -> None:
    life = Life({"a": {"wait": "5d", "next": "succeeded"}})
    signed = life.runs(MINUTE).awake
    life.runs(HOUR).is_taken(("boot", signed))
    assert life.driven == MINUTE
    assert life.runs(MINUTE).driven == 2 * MINUTE
    life.runs(HOUR).is_taken(None)
    assert life.at.run.driven == MINUTE, "nobody left a sign"


def test_a_sign_of_another_boot_or_from_before_the_last_move_counts_for_nothing() -> None:
    life = Life({"a": {"wait": "5d", "next": "succeeded"}})
    for sign in (("other", life.awake + HOUR), ("boot", life.awake - HOUR)):
        life.runs(MINUTE).is_taken(sign)
        assert life.at.run.driven == 0


def test_after_a_reboot_the_time_up_to_the_last_sign_before_it_counts() -> None:
    life = Life({"a": {"wait": "5d", "next": "succeeded"}})
    signed = life.runs(MINUTE).awake
    life.boots(DAY).is_taken(("boot", signed)).hears(Rebooted())
    assert life.driven == MINUTE
    assert life.runs(MINUTE).driven == 2 * MINUTE


def test_a_command_that_ran_on_after_its_driver_counts_to_its_end() -> None:
    life = Life({"a": command()})
    signed = life.runs(MINUTE).awake
    ended = life.runs(2 * MINUTE).awake
    life.runs(HOUR).is_taken(("boot", signed))
    life.hears(Ended(1, 0, at=ended))
    assert life.at.run.driven == 3 * MINUTE


def test_a_command_that_still_runs_counts_for_the_whole_time_and_only_once() -> None:
    life = Life({"a": command()})
    signed = life.runs(MINUTE).awake
    life.runs(HOUR).is_taken(("boot", signed))
    assert clock.unaccounted(life.at.run)
    life.hears(RanOn(1))
    assert life.driven == HOUR + MINUTE and not clock.unaccounted(life.at.run)
    life.runs(MINUTE).hears(Ended(1, 0, at=life.awake))
    assert life.at.run.driven == HOUR + 2 * MINUTE


def test_the_end_of_a_command_in_the_boot_before_counts() -> None:
    life = Life({"a": command()})
    signed = life.runs(MINUTE).awake
    ended = life.runs(MINUTE).awake
    life.boots(DAY).is_taken(("boot", signed))
    life.hears(Ended(1, 0, at=ended))
    assert life.at.run.driven == 2 * MINUTE


# --- max_elapsed ---

RULE = {"max_elapsed": "10m", "initial_interval": "1m", "max_interval": "1m", "jitter": "none"}


def test_max_elapsed_counts_driven_time_and_no_clock_that_is_set() -> None:
    life = Life({"a": command(retry=RULE)})
    for n in range(10):
        life.now += DAY if n % 2 else -DAY
        life.sleeps(HOUR).hears(Ended(1, 1))
        assert life.position.phase is Phase.DELAYED, n
        life.runs(MINUTE).hears(Due(""))
    life.hears(Ended(1, 1))
    assert life.at.run.status is Status.FAILED


def test_an_interruption_uses_nothing_of_max_elapsed_up() -> None:
    life = Life({"a": command(retry=RULE)})
    life.runs(8 * MINUTE).hears(Ended(1, 1))
    life.runs(DAY).is_taken(None)
    life.hears(Due(""))
    life.runs(SECOND).hears(Ended(1, 1))
    assert life.position.phase is Phase.DELAYED
    life.runs(MINUTE).hears(Due(""))
    life.runs(MINUTE).hears(Ended(1, 1))
    assert life.at.run.status is Status.FAILED


def test_a_resume_gives_a_fresh_max_elapsed() -> None:
    life = Life({"a": command(retry=RULE)})
    life.runs(11 * MINUTE).hears(Ended(1, 1))
    assert life.at.run.status is Status.FAILED
    life.hears(TakeUp())
    life.runs(SECOND).hears(Ended(1, 1))
    assert life.position.phase is Phase.DELAYED


def test_a_key_is_not_held_to_be_remembered_when_the_clock_was_set_back() -> None:
    life = Life({"a": command(idempotent="1h")})
    life.now -= MINUTE
    life.runs(SECOND).hears(Lost(1, "killed"))
    assert life.at.run.status is Status.BLOCKED


# --- the time of the run ---

TIMED = {"timeout": "10m"}
CAUGHT = [{"on": "any", "next": "rest"}]


def test_nothing_is_over_before_its_time() -> None:
    life = Life({"a": command()}, **TIMED)
    assert life.runs(9 * MINUTE).sleeps(DAY).over_in == MINUTE
    with pytest.raises(NotPossible):
        life.hears(TimeOver())
    assert Life({"a": command()}).over_in is None


def test_a_command_under_way_is_stopped_and_is_not_certain_and_no_catch_takes_the_error() -> None:
    life = Life({"a": command(catch=CAUGHT, retry={}, probe={"run": ["y"]}), "rest": command()}, **TIMED)
    assert life.runs(10 * MINUTE).over_in == 0
    move = life.hears(TimeOver())
    assert move.stop == [1] and life.at.run.status is Status.RUNNING and life.over_in is None
    life.hears(Ended(1, -15, "run_timeout"))
    assert (life.at.run.status, life.at.run.error["name"]) == (Status.FAILED, "run_timeout")
    assert life.at.run.cancel is None
    assert life.at.effects[1].status == "not_certain"
    assert [e.kind for e in life.last.history][-1] == "failed"


def test_resume_gives_a_fresh_time_and_asks_about_what_is_not_certain() -> None:
    life = Life({"a": command()}, **TIMED)
    life.runs(10 * MINUTE).hears(TimeOver())
    life.hears(Ended(1, -15, "run_timeout"))
    assert not life.runs(HOUR).hears(TakeUp()).begin
    assert (life.at.run.status, life.at.run.reason) == (Status.BLOCKED, "in_doubt")
    assert life.hears(Resolve("retry")).begin == [1]
    assert life.runs(9 * MINUTE).over_in == MINUTE


def test_what_may_be_repeated_is_repeated_by_resume_with_its_key() -> None:
    life = Life({"a": command(idempotent=True)}, **TIMED)
    key = life.at.effects[1].key
    life.runs(10 * MINUTE).hears(TimeOver())
    life.hears(Lost(1, "its keeper died"))
    assert life.at.run.error["name"] == "run_timeout"
    move = life.hears(TakeUp())
    assert move.begin == [1] and (move.effects[1].key, move.effects[1].attempt) == (key, 2)
    assert life.over_in == 10 * MINUTE


def test_a_command_that_ended_well_all_the_same_is_done_and_resume_goes_on_behind_it() -> None:
    life = Life({"a": {"run": ["x"], "next": "b"}, "b": command()}, **TIMED)
    life.runs(10 * MINUTE).hears(TimeOver())
    move = life.hears(Ended(1, 0, "run_timeout"))
    assert move.effects[1].status == "done" and not move.begin
    assert life.at.run.error["name"] == "run_timeout"
    assert life.hears(TakeUp()).begin == [2]
    assert life.position.state == "b"


def test_a_timer_is_ended_and_is_a_new_visit_for_resume() -> None:
    life = Life({"a": {"wait": "1h", "next": "succeeded"}}, **TIMED)
    life.runs(10 * MINUTE).hears(TimeOver())
    assert life.at.run.status is Status.FAILED and life.position.due is None
    life.hears(TakeUp())
    assert (life.position.phase, life.position.visit, life.left) == (Phase.WAITING, 2, HOUR)


def test_a_retry_that_waits_is_ended_and_the_attempt_it_never_made_is_not_counted() -> None:
    life = Life({"a": command(retry={"initial_interval": "1h", "max_interval": "1h"})}, **TIMED)
    life.hears(Ended(1, 1))
    life.runs(10 * MINUTE).hears(TimeOver())
    assert life.at.effects[1].status == "not_done"
    move = life.hears(TakeUp())
    assert move.begin == [1] and move.effects[1].attempt == 2


def test_a_poll_between_two_rounds_is_ended_and_taken_up_with_the_round_it_never_made() -> None:
    life = Life({"a": command(poll={**POLL, "for": "1h"}, idempotent=True)}, **TIMED)
    life.runs(9 * MINUTE).hears(Ended(1, 1))
    life.runs(MINUTE).hears(TimeOver())
    move = life.hears(TakeUp())
    assert move.begin == [1] and move.effects[1].attempt == 2 and life.position.round == 2


def test_a_poll_whose_time_is_over_between_two_rounds_stands_as_its_last_round_ended() -> None:
    asks = {"http": {"url": "http://far/x"}, "poll": {**POLL, "for": "1h"}, "next": "succeeded"}
    for said, how in ((200, "done"), (404, "not_done"), (500, "not_certain")):
        life = Life({"a": asks}, **TIMED)
        life.runs(9 * MINUTE).hears(Answered(1, said, {}, b'{"ready": false}'))
        life.runs(MINUTE).hears(TimeOver())
        assert (life.at.effects[1].status, life.at.run.status) == (how, Status.FAILED)


def test_a_probe_under_way_is_stopped_and_asked_again_by_resume() -> None:
    life = Life({"a": command(probe={"run": ["y"]})}, **TIMED)
    life.runs(9 * MINUTE).hears(Lost(1, "killed"))
    assert life.position.phase is Phase.PROBING
    assert life.runs(MINUTE).hears(TimeOver()).stop == [2]
    life.hears(Ended(2, -15, "run_timeout"))
    assert life.at.run.error["name"] == "run_timeout" and life.at.effects[1].status == "in_doubt"
    assert life.hears(TakeUp()).begin == [3]


def test_an_intent_that_was_never_begun_is_withdrawn_and_begun_by_resume_as_the_first() -> None:
    life = Life({"a": {"run": ["x"], "next": "b"}, "b": command()}, **TIMED)
    life.place = None  # type: ignore[assignment]
    life.hears(Ended(1, 0))
    life.runs(10 * MINUTE).hears(TimeOver())
    assert life.at.effects[2].status == "withdrawn"
    life.place = "place"
    move = life.hears(TakeUp())
    assert move.begin == [2] and move.effects[2].attempt == 1


def test_nothing_begins_behind_a_command_whose_end_shows_that_the_time_is_over() -> None:
    life = Life({"a": {"run": ["x"], "next": "b"}, "b": command()}, **TIMED)
    signed = life.runs(MINUTE).awake
    ended = life.runs(HOUR).awake
    life.runs(DAY).is_taken(("boot", signed))
    assert not life.hears(Ended(1, 0, at=ended)).begin
    assert (life.at.run.status, life.at.run.error["name"]) == (Status.FAILED, "run_timeout")
    assert life.hears(TakeUp()).begin == [2]


def test_an_intent_of_a_dead_driver_is_not_begun_when_the_time_is_over() -> None:
    life = Life({"a": command()}, **TIMED)
    signed = life.runs(10 * MINUTE).awake
    life.is_taken(("boot", signed)).hears(TimeOver())
    assert not life.hears(Moved(1)).begin
    assert life.at.run.error["name"] == "run_timeout"


def test_a_loop_that_was_committed_on_its_way_is_ended_where_it_stands() -> None:
    life = Life({"a": {"pass": {}, "next": "b"}, "b": {"pass": {}, "next": "a"}}, **TIMED)
    assert life.position.phase is Phase.READY
    life.runs(10 * MINUTE).hears(TimeOver())
    assert life.at.run.error["name"] == "run_timeout"
    life.hears(TakeUp())
    assert life.position.phase is Phase.READY and life.at.run.status is Status.RUNNING
    life.hears(Go(""))


def test_a_person_s_cancel_is_heard_while_the_run_is_stopped_for_its_time() -> None:
    life = Life({"a": command()}, **TIMED)
    life.runs(10 * MINUTE).hears(TimeOver())
    assert life.hears(Cancel(by="ann")).stop == [1]
    life.hears(Ended(1, -15, "run_timeout"))
    assert life.at.run.status is Status.CANCELLED


def test_time_that_does_not_count_ends_no_run() -> None:
    life = Life({"a": command()}, **TIMED)
    life.hears(Lost(1, "killed"))
    assert life.runs(DAY).over_in is None
    with pytest.raises(NotPossible):
        life.hears(TimeOver())


def test_the_time_may_be_given_by_the_input() -> None:
    life = Life({"a": command()}, {"t": "10m"}, timeout="${{ input.t }}", input={"t": "string"})
    assert life.over_in == 10 * MINUTE


# --- what does not let itself be stopped ---


def test_a_run_whose_group_lives_is_blocked_and_never_cancelled_until_it_is_gone() -> None:
    life = Life({"a": command()})
    life.hears(Cancel(by="ann"))
    life.hears(NotStopped((77, 78), 5))
    assert (life.at.run.status, life.at.run.reason) == (Status.BLOCKED, "not_stopped")
    assert life.at.run.cancel["pids"] == [77, 78] and life.at.run.cancel["keeper"] == 5
    assert life.hears(Cancel(by="ann")).stop == [1]
    assert life.at.run.status is Status.RUNNING
    life.hears(NotStopped((77,)))
    life.hears(Ended(1, -9, "cancel"))
    assert life.at.run.status is Status.CANCELLED


def test_only_what_is_being_stopped_can_fail_to_stop() -> None:
    life = Life({"a": command()})
    with pytest.raises(NotPossible):
        life.hears(NotStopped((77,)))


# --- vars_schema ---

SCHEMA = {"properties": {"n": {"maximum": 3}}, "$defs": {"x": {}}}


def test_vars_are_held_against_their_schema_before_each_commit() -> None:
    life = Life(
        {"a": {"run": ["x"], "assign": {"n": "${{ vars.n + 2 }}"}, "next": "a", "catch": [{"on": "vars_invalid", "next": "b"}]}, "b": command()},
        vars={"n": 0}, vars_schema=SCHEMA,
    )  # fmt: skip
    life.hears(Ended(1, 0))
    assert life.at.run.vars == {"n": 2}
    move = life.hears(Ended(2, 0))
    assert life.at.run.vars == {"n": 2} and life.position.state == "b"
    assert "n: 4 is greater than the maximum of 3" in life.at.run.error["message"]
    assert move.effects[2].status == "done"

"""Limits and groups: whose turn it is, what a place belongs to, and what a rate counts. Real runs in one real file, one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import plan_of
from sharing import Sharing

from durun.errors import Held
from durun.machine.events import Answered, Cancel, Compensate, Ended, Pause, TakeUp
from durun.machine.limits import Limit, limits_of
from durun.machine.model import TERMINAL, Phase, Status
from durun.plan.digest import canonical_text
from durun.store.runs import Grouped

RUN = {"run": ["x"], "limit": "l", "idempotent": True, "next": "succeeded"}


def limited(most: int | None = 1, rate: str | None = None, **more: Any) -> Any:
    numbers = {**({"concurrency": most} if most else {}), **({"rate": rate} if rate else {})}
    return plan_of({"a": {**RUN, **more}}, limits={"l": numbers})


@pytest.fixture
def sharing(tmp_path: Path) -> Any:
    made = Sharing(str(tmp_path))
    yield made
    made.settle()
    made.well()


def begun(sharing: Sharing) -> list[int]:
    """The runs of what was begun, in order."""
    return [no for _, no, _ in sharing.outside.begun]


def end_all(sharing: Sharing) -> None:
    for token in list(sharing.outside.alive):
        sharing.end(token)
    sharing.settle()


def test_the_limits_of_a_plan_are_its_own_numbers_and_an_unlimited_plan_keeps_its_form() -> None:
    assert limits_of(limited(4, "25/s")) == (Limit("l", 4, 25, 1000),)
    plain = plan_of({"a": {"run": ["x"], "next": "succeeded"}})
    assert limits_of(plain) == () and "limit" not in canonical_text(plain)


def test_a_place_is_taken_in_the_move_that_begins_and_free_in_the_move_that_knows_the_end(sharing: Sharing) -> None:
    one, two = sharing.start(limited()), sharing.start(limited())
    sharing.settle()
    assert begun(sharing) == [one]
    assert sharing.drivers[two].at.positions[""].phase is Phase.QUEUED and sharing.status(two) == "waiting"
    assert sharing.drivers[two].at.effects == {}, "rendered before its turn"
    end_all(sharing)
    assert begun(sharing) == [one, two] and sharing.status(one) == "succeeded"
    end_all(sharing)
    assert sharing.status(two) == "succeeded"
    assert sharing.file.db.execute("SELECT count(*) FROM queue").fetchall() == [(0,)]
    assert sharing.file.db.execute("SELECT count(*) FROM places WHERE open = 1").fetchall() == [(0,)]


def test_where_there_is_room_the_next_state_begins_in_the_commit_that_ends_the_one_before(sharing: Sharing) -> None:
    plan = plan_of({"a": {**RUN, "next": "b"}, "b": {**RUN, "next": "c"}, "c": RUN}, limits={"l": {"concurrency": 1}})
    sharing.start(plan)
    sharing.settle()
    seq = sharing.drivers[1].held.seq
    end_all(sharing)
    end_all(sharing)
    assert sharing.drivers[1].held.seq == seq + 2 and sharing.states() == [(1, "c")]
    end_all(sharing)


def test_who_waits_longest_comes_first_over_all_runs_also_before_whoever_just_had_a_place(sharing: Sharing) -> None:
    plan = plan_of({"a": {**RUN, "next": "b"}, "b": RUN}, limits={"l": {"concurrency": 1}})
    for _ in range(3):
        sharing.start(plan)
        sharing.settle()
        sharing.pass_time(10)
    for _ in range(6):
        sharing.pass_time(10)
        end_all(sharing)
    assert begun(sharing) == [1, 2, 3, 1, 2, 3]


def test_a_place_belongs_to_the_command_not_to_its_driver(sharing: Sharing) -> None:
    one, two = sharing.start(limited()), sharing.start(limited())
    sharing.settle()
    sharing.die(one)
    sharing.pass_time(60_000)
    sharing.settle()
    assert sharing.states() == [(one, "a")]
    sharing.end((one, 1, 1))  # nobody drives its run, and it has ended all the same
    sharing.pass_time(2_000)
    sharing.settle()
    assert sharing.states() == [(two, "a")]
    sharing.take(one)  # its end is taken as it was noted, and nothing is begun for it
    sharing.settle()
    assert sharing.status(one) == "succeeded" and begun(sharing) == [one, two]
    end_all(sharing)


def test_a_resumed_run_frees_the_place_of_a_command_that_has_ended(sharing: Sharing) -> None:
    one, two = sharing.start(limited()), sharing.start(limited())
    sharing.settle()
    sharing.die(one)
    sharing.take(one)
    sharing.settle()
    assert sharing.states() == [(one, "a")], "it is adopted, and holds its place"
    sharing.end((one, 1, 1))
    sharing.settle()
    assert sharing.states() == [(two, "a")]
    end_all(sharing)


def test_an_intent_that_was_never_begun_asks_for_a_place_anew_where_its_own_was_given_away(sharing: Sharing) -> None:
    one, two = sharing.start(limited()), sharing.start(limited())
    sharing.settle()
    sharing.outside.alive.clear()  # committed, and its driver died before it handed it on
    sharing.outside.begun.clear()
    sharing.die(one)
    sharing.pass_time(2_000)
    sharing.settle()
    assert sharing.states() == [(two, "a")]
    sharing.take(one)
    sharing.settle()
    assert sharing.states() == [(two, "a")] and sharing.status(one) == "waiting"
    end_all(sharing)
    assert sharing.states() == [(one, "a")]
    end_all(sharing)


def test_who_is_not_driven_or_paused_holds_nobody_up_and_keeps_its_turn(sharing: Sharing) -> None:
    for _ in range(4):
        sharing.start(limited())
        sharing.settle()
        sharing.pass_time(10)
    sharing.die(2)
    sharing.drivers[3].move(Pause())
    end_all(sharing)
    assert sharing.states() == [(4, "a")]
    sharing.take(2)
    sharing.drivers[3].move(TakeUp())
    five = sharing.start(limited())
    sharing.settle()
    end_all(sharing)
    assert sharing.states() == [(2, "a")]
    for _ in range(3):
        end_all(sharing)
    assert begun(sharing) == [1, 4, 2, 3, five]


def test_a_living_driver_that_lets_its_turn_pass_holds_others_up_for_a_moment_only(sharing: Sharing) -> None:
    for _ in range(3):
        sharing.start(limited())
        sharing.settle()
        sharing.pass_time(10)
    stands_still = sharing.drivers.pop(2)  # as under SIGSTOP: alive, and does nothing
    end_all(sharing)
    assert sharing.states() == []
    sharing.pass_time(3_000)
    sharing.settle()
    assert sharing.states() == [(3, "a")]
    sharing.drivers[2] = stands_still
    end_all(sharing)
    end_all(sharing)
    assert begun(sharing) == [1, 3, 2]


def test_each_attempt_takes_a_place_again_and_waits_for_it_behind_who_came_before(sharing: Sharing) -> None:
    plan = limited(retry={"max_attempts": 2, "initial_interval": "1s", "jitter": "none"})
    sharing.start(plan)
    sharing.start(plan)
    sharing.settle()
    sharing.end((1, 1, 1), 1)
    sharing.settle()
    assert sharing.states() == [(2, "a")] and sharing.drivers[1].at.positions[""].phase is Phase.DELAYED
    sharing.pass_time(1_500)
    sharing.settle()
    p = sharing.drivers[1].at.positions[""]
    assert p.phase is Phase.QUEUED and p.effect == 1 and sharing.drivers[1].at.effects[1].attempt == 2
    end_all(sharing)
    assert sharing.states() == [(1, "a")]
    end_all(sharing)


def test_a_round_of_a_poll_takes_a_place_and_ends_with_its_window_while_it_waits(sharing: Sharing) -> None:
    poll = plan_of(
        {"a": {**RUN, "output": "text", "poll": {"until": "output == 'x'", "every": "1s", "for": "10s"}}},
        limits={"l": {"concurrency": 1}},
    )
    sharing.start(poll)
    sharing.settle()
    two = sharing.start(limited())
    sharing.settle()
    sharing.outside.ended[1, 1, 1] = Ended(1, 0, stdout=b"no")
    del sharing.outside.alive[1, 1, 1]
    sharing.settle()
    sharing.pass_time(1_100)
    sharing.settle()
    assert sharing.states() == [(two, "a")] and sharing.drivers[1].at.positions[""].phase is Phase.QUEUED
    sharing.pass_time(10_000)
    sharing.settle()
    assert sharing.status(1) == "failed" and sharing.drivers[1].at.run.ended_by["name"] == "timeout"
    end_all(sharing)


def test_items_that_wait_for_a_limit_give_their_place_in_the_map_away(sharing: Sharing) -> None:
    inner = {"pre": {"run": ["y"], "idempotent": True, "next": "a"}, "a": RUN}
    plan = plan_of(
        {"m": {"map": {"items": "[0, 1, 2]", "concurrency": 1, "start": "pre", "states": inner}, "next": "succeeded"}},
        limits={"l": {"concurrency": 1}},
    )
    other = sharing.start(limited())
    sharing.settle()
    run = sharing.start(plan)
    for _ in range(3):
        sharing.settle()
        pres = [token for token, e in sharing.outside.alive.items() if e.state == "pre"]
        assert len(pres) == 1
        sharing.end(pres[0])
    sharing.settle()
    assert [p.phase for s, p in sharing.drivers[run].at.positions.items() if s] == [Phase.QUEUED] * 3
    for n in range(3):
        end_all(sharing)
        assert sharing.states() == [(run, "a")], n
    end_all(sharing)
    assert sharing.status(run) == "succeeded" and begun(sharing)[0] == other


def test_what_waits_for_a_place_is_cancelled_and_compensated_like_any_wait(sharing: Sharing) -> None:
    sharing.start(limited())
    for _ in range(2):
        sharing.start(limited())
    sharing.settle()
    sharing.drivers[2].move(Cancel())
    sharing.drivers[3].move(Compensate())
    sharing.settle()
    assert (sharing.status(2), sharing.status(3)) == ("cancelled", "compensated")
    sharing.well()
    end_all(sharing)
    assert begun(sharing) == [1]


def test_a_stopped_sibling_leaves_the_queue(sharing: Sharing) -> None:
    branches = {
        "one": {"start": "s", "states": {"s": {"run": ["y"], "next": "succeeded"}}},
        "two": {"start": "a", "states": {"a": RUN}},
    }
    plan = plan_of({"p": {"parallel": {"branches": branches, "enough": 1}, "next": "succeeded"}}, limits={"l": {"concurrency": 1}})
    sharing.start(limited())
    sharing.settle()
    run = sharing.start(plan)
    sharing.settle()
    sharing.end(next(token for token, e in sharing.outside.alive.items() if e.state == "s"))
    sharing.settle()
    assert sharing.status(run) == "succeeded"
    sharing.well()
    end_all(sharing)


def test_probes_and_undos_need_no_place(sharing: Sharing) -> None:
    plan = plan_of(
        {"a": {**RUN, "idempotent": False, "probe": {"run": ["p"]}, "compensate": {"run": ["u"], "idempotent": True}}},
        limits={"l": {"concurrency": 1}},
    )
    sharing.start(plan)
    sharing.settle()
    sharing.end((1, 1, 1), -1)  # lost: its probe is asked, and its place is free
    two = sharing.start(limited())
    sharing.settle()
    assert sorted(sharing.outside.alive) == [(1, 2, 1), (two, 1, 1)]
    sharing.end((1, 2, 1))
    sharing.settle()
    sharing.drivers[1].move(Compensate())
    sharing.settle()
    assert len(sharing.outside.alive) == 2, "the undo runs beside who holds the place"
    end_all(sharing)
    assert sharing.status(1) == "compensated"


def test_two_plans_with_other_numbers_hold_each_its_own_against_the_shared_count(sharing: Sharing) -> None:
    for _ in range(3):
        sharing.start(limited(3))
    small = sharing.start(limited(1))
    sharing.settle()
    assert sharing.states() == [(1, "a"), (2, "a"), (3, "a")]
    sharing.end((1, 1, 1))
    sharing.end((2, 1, 1))
    sharing.settle()
    assert sharing.states() == [(3, "a")]
    sharing.end((3, 1, 1))
    sharing.settle()
    assert sharing.states() == [(small, "a")]
    end_all(sharing)


def test_a_limit_of_a_child_plan_is_the_same_limit(sharing: Sharing) -> None:
    from durun.plan.check import read

    child = {**limited(2), "name": "child"}
    data = {"durun": 1, "name": "parent", "start": "c", "states": {"c": {"plan": {"file": "c.yaml"}, "next": "succeeded"}}}
    plan, faults, _ = read(data, children={"c.yaml": child})
    assert plan is not None and plan["limits"] == {} and limits_of(plan) == (Limit("l", 2),), faults
    sharing.start(limited(1))
    sharing.settle()
    for _ in range(2):
        sharing.start(plan)
        sharing.settle()
    assert sharing.states() == [(1, "a"), (2, "a")]
    end_all(sharing)
    end_all(sharing)
    assert sharing.status(3) == "succeeded"


# --- rates ---


def begins(sharing: Sharing, until: int, step: int) -> list[int]:
    """When something was begun, with every command ending at once."""
    end = sharing.clock + until
    while sharing.clock < end:
        end_all(sharing)
        sharing.pass_time(step)
    return [at for at, _, _ in sharing.outside.begun]


def most_in(times: list[int], window: int) -> int:
    return max((sum(at <= other < at + window for other in times) for at in times), default=0)


@pytest.mark.parametrize(("rate", "count", "period"), [("3/s", 3, 1000), ("5/m", 5, 60_000), ("2/h", 2, 3_600_000)])
def test_no_window_of_the_length_of_a_rate_has_more_begins_than_it_says_and_none_is_wasted(
    sharing: Sharing, rate: str, count: int, period: int
) -> None:
    inner = {"a": RUN}
    plan = plan_of(
        {
            "m": {
                "map": {"items": str(list(range(count * 2))), "concurrency": 50, "start": "a", "states": inner},
                "next": "succeeded",
            }
        },
        limits={"l": {"rate": rate}},
    )
    sharing.start(plan)
    sharing.start(plan)
    times = begins(sharing, 4 * period, period // 20)
    assert most_in(times, period) == count
    assert len(times) == 4 * count, "four periods, each used in full"


def test_a_rate_survives_deaths_and_a_clock_set_back(sharing: Sharing) -> None:
    sharing.start(limited(None, "1/m"))
    end_all(sharing)
    end_all(sharing)
    two = sharing.start(limited(None, "1/m"))
    sharing.settle()
    assert begun(sharing) == [1]
    sharing.die(two)
    sharing.pass_time(30_000, set_back=86_400_000)
    sharing.take(two)
    sharing.settle()
    assert begun(sharing) == [1], "a clock set back gave it a place too early"
    sharing.pass_time(30_001)
    sharing.settle()
    assert begun(sharing) == [1, two], "a clock set back held it up"
    end_all(sharing)


def test_after_a_reboot_a_rate_counts_on_and_a_clock_that_is_wrong_then_lengthens_nothing(sharing: Sharing) -> None:
    sharing.start(limited(None, "1/m"))
    end_all(sharing)
    end_all(sharing)
    two = sharing.start(limited(None, "1/m"))
    sharing.settle()
    sharing.die(two)
    sharing.boot, sharing.clock, sharing.now = "another", 1_000, sharing.now - 7 * 86_400_000
    sharing.times = sharing.times._replace(boot="another")
    sharing.take(two)
    sharing.settle()
    assert begun(sharing) == [1]
    sharing.pass_time(60_001)
    sharing.settle()
    assert begun(sharing) == [1, two]
    end_all(sharing)


# --- Retry-After ---


def test_retry_after_holds_the_whole_limit_back_for_all_runs_and_a_day_at_most(sharing: Sharing) -> None:
    http = {"http": {"url": "http://x"}, "limit": "l", "next": "succeeded", "retry": {"max_attempts": 2, "max_interval": "1s"}}
    plan = plan_of({"a": http}, limits={"l": {"concurrency": 2}})
    sharing.start(plan)
    sharing.settle()
    sharing.outside.ended[1, 1, 1] = Answered(1, 429, {"retry-after": "30"})
    del sharing.outside.alive[1, 1, 1]
    sharing.settle()
    two = sharing.start(limited(2))
    sharing.settle()
    assert begun(sharing) == [1]
    sharing.pass_time(29_000, set_back=3_600_000)
    sharing.settle()
    assert begun(sharing) == [1]
    sharing.pass_time(1_001)
    sharing.settle()
    assert begun(sharing) == [1, 1, two] or begun(sharing) == [1, two, 1]
    sharing.outside.ended[1, 1, 2] = Answered(1, 503, {"retry-after": "999999999"})
    del sharing.outside.alive[1, 1, 2]
    sharing.end((two, 1, 1))
    sharing.settle()
    three = sharing.start(limited(2))
    sharing.pass_time(86_400_001)
    sharing.settle()
    assert begun(sharing)[-1] == three
    end_all(sharing)


def test_retry_after_with_what_was_expected_or_on_another_status_holds_nothing_back(sharing: Sharing) -> None:
    plan = plan_of({"a": {"http": {"url": "http://x"}, "limit": "l", "next": "succeeded"}}, limits={"l": {"concurrency": 1}})
    for no, status in ((1, 200), (2, 404)):
        sharing.start(plan)
        sharing.settle()
        sharing.outside.ended[no, 1, 1] = Answered(1, status, {"retry-after": "30"})
        del sharing.outside.alive[no, 1, 1]
        sharing.settle()
    assert sharing.start(plan) == 3
    sharing.settle()
    assert begun(sharing) == [1, 2, 3]
    sharing.outside.alive.clear()
    sharing.outside.ended[3, 1, 1] = Answered(1, 200, {})


# --- groups ---


def grouped(**more: Any) -> Any:
    return plan_of({"a": {"run": ["x"], "idempotent": True, "next": "succeeded"}}, group={"name": "g", "if_busy": "wait"}, **more)


def test_of_a_group_one_run_is_in_flight_and_the_oldest_that_waits_comes_next(sharing: Sharing) -> None:
    plan = grouped(timeout="1m")
    sharing.start(grouped(), group="g")
    with pytest.raises(Grouped) as refused:
        sharing.start(plan, group="g")
    assert (refused.value.run, refused.value.status) == ("r1", "running")
    sharing.start(grouped(), group="other")
    for _ in range(2):
        sharing.start(plan, group="g", queued=True)
    sharing.settle()
    assert begun(sharing) == [1, 2] and sharing.status(3) == sharing.status(4) == "waiting"
    sharing.pass_time(3_600_000)
    sharing.die(3)
    end_all(sharing)
    assert begun(sharing) == [1, 2], "the oldest comes first, also where nobody drives it now"
    sharing.take(3)
    sharing.settle()
    assert begun(sharing) == [1, 2, 3] and sharing.status(3) == "running", "its time counts from its turn"
    end_all(sharing)
    assert begun(sharing) == [1, 2, 3, 4]
    end_all(sharing)
    assert [sharing.status(no) for no in (1, 3, 4)] == ["succeeded"] * 3


def test_a_run_that_waits_for_its_group_is_cancelled_and_paused_and_the_next_moves_up(sharing: Sharing) -> None:
    sharing.start(grouped(), group="g")
    for _ in range(3):
        sharing.start(grouped(), group="g", queued=True)
    sharing.drivers[2].move(Cancel())
    sharing.drivers[3].move(Pause())
    end_all(sharing)
    assert sharing.status(2) == "cancelled" and begun(sharing) == [1]
    sharing.drivers[3].move(TakeUp())
    sharing.settle()
    assert begun(sharing) == [1, 3]
    end_all(sharing)
    end_all(sharing)


def test_a_run_that_failed_goes_on_only_while_no_other_of_its_group_is_in_flight(sharing: Sharing) -> None:
    sharing.start(grouped(), group="g")
    sharing.end((1, 1, 1), 1)
    sharing.settle()
    assert sharing.status(1) == "failed"
    sharing.start(grouped(), group="g")
    sharing.settle()
    for event in (TakeUp(), Compensate()):
        with pytest.raises(Held, match="run r2 of the group g has not ended, it is running: `durun show r2`"):
            sharing.drivers[1].move(event)
        assert sharing.status(1) == "failed"
    end_all(sharing)
    sharing.drivers[1].move(TakeUp())
    assert sharing.status(1) == "running"
    end_all(sharing)


# --- random histories ---


def rests(at: Any) -> bool:
    """Whether a run has ended, or only a person can move it: what was lost again and again is not begun any more."""
    left = [p for p in at.active.values() if p.phase is not Phase.INSIDE]
    return at.run.status in TERMINAL or (at.run.status is Status.BLOCKED and all(p.phase is Phase.DOUBT for p in left))


@settings(max_examples=40)
@given(data=st.data())
def test_never_more_than_a_limit_says_however_drivers_die_and_none_waits_for_nothing(data: Any, tmp_path_factory: Any) -> None:
    most = data.draw(st.integers(1, 3))
    rate = data.draw(st.sampled_from([None, 2, 5]))
    numbers = {"concurrency": most, **({"rate": f"{rate}/m"} if rate else {})}
    sharing = Sharing(str(tmp_path_factory.mktemp("shared")))
    retry = {"max_attempts": 3, "initial_interval": "5s", "jitter": "none"}
    plain = plan_of({"a": {**RUN, "retry": retry, "next": "b"}, "b": {**RUN, "next": "succeeded"}}, limits={"l": numbers})
    each = {
        "map": {"items": "[0, 1, 2]", "concurrency": 2, "start": "a", "states": {"a": {**RUN, "retry": retry}}, "failures": "all"}
    }
    mapped = plan_of({"m": {**each, "next": "succeeded"}}, limits={"l": numbers})
    plans = [plain, mapped]

    def check() -> None:
        assert len(sharing.outside.alive) <= most
        times = [at for at, _, _ in sharing.outside.begun]
        assert rate is None or most_in(times, 60_000) <= rate

    runs = [sharing.start(data.draw(st.sampled_from(plans)))]
    for _ in range(data.draw(st.integers(5, 30))):
        undriven = [no for no in runs if no not in sharing.drivers]
        acts = (
            ["start"] * (len(runs) < 4)
            + ["die", "die early"] * bool(sharing.drivers)
            + ["take"] * 2 * bool(undriven)
            + ["settle", "time"]
        )
        match data.draw(st.sampled_from(acts + ["end"] * 3 * bool(sharing.outside.alive))):
            case "start":
                runs.append(sharing.start(data.draw(st.sampled_from(plans))))
            case "die":
                sharing.die(data.draw(st.sampled_from(sorted(sharing.drivers))))
            case "die early":
                sharing.die_before_it_begins(data.draw(st.sampled_from(sorted(sharing.drivers))))
            case "take":
                sharing.take(data.draw(st.sampled_from(undriven)))
            case "end":
                sharing.end(data.draw(st.sampled_from(sorted(sharing.outside.alive))), data.draw(st.sampled_from([0, 0, 1, -1])))
            case "settle":
                sharing.settle()
            case "time":
                sharing.pass_time(
                    data.draw(st.sampled_from([100, 3_000, 70_000])), set_back=data.draw(st.sampled_from([0, 0, 50_000]))
                )
        check()
        sharing.well()
    for no in [no for no in runs if no not in sharing.drivers]:
        sharing.take(no)
    for _ in range(200):
        sharing.settle()
        check()
        for token in list(sharing.outside.alive):
            sharing.end(token)
        sharing.pass_time(15_000)
        if not sharing.outside.alive and all(rests(engine.at) for engine in sharing.drivers.values()):
            break
    assert all(rests(engine.at) for engine in sharing.drivers.values()), "one waits for nothing"
    assert sharing.file.db.execute(
        "SELECT (SELECT count(*) FROM queue) + (SELECT count(*) FROM places WHERE open = 1)"
    ).fetchall() == [(0,)]
    sharing.well()
    sharing.file.close()

"""Retries, timers and clocks: bounded, kept in the file, and never moved by a clock or a zone that changes."""

from __future__ import annotations

import itertools
import signal
import time
from datetime import UTC, datetime

import apsw
import pytest

from durun.engine import Engine, World
from durun.machine.model import Checkpoint, Phase, Position, Run, Status
from durun.machine.retry import allowed, delay

DAY = 86_400_000


@pytest.mark.parametrize("backoff", [1, 1.5, 2, 10, 1000])
@pytest.mark.parametrize("cap", [1, 1000, 100 * 366 * DAY])
@pytest.mark.parametrize("draw", [0.0, 0.5, 0.9999999999])
def test_f56_every_delay_is_above_nothing_and_within_its_longest_however_many_failures(backoff, cap, draw):
    rule = {
        "on": ["any"],
        "max_attempts": None,
        "max_elapsed": None,
        "initial_interval": 1,
        "backoff": backoff,
        "max_interval": cap,
    }
    for jitter in ("full", "none"):
        before = 0
        for failures in (1, 2, 10, 1100, 5000, 10**6):
            found = delay({**rule, "jitter": jitter}, failures, draw)
            assert 0 < found <= cap
            assert jitter == "full" or found >= before
            before = found
    assert allowed({**rule, "max_attempts": 5000}, 4999, 0, cap) and not allowed({**rule, "max_attempts": 5000}, 5000, 0, cap)


def test_f56_a_hundred_tries_with_a_steep_backoff_are_all_made(place):
    rule = "{max_attempts: 100, initial_interval: 1ms, max_interval: 2ms, backoff: 1000}"
    place.durun("start", place.plan(f"a: {{run: 'echo a >> ticks; exit 1', retry: {rule}, next: succeeded}}"), "-q", exit=1)
    assert place.lines("ticks") == ["a"] * 100


TRY = "a: {{run: 'echo a >> ticks; exit 1', {retry} next: succeeded}}"


@pytest.mark.parametrize(("retry", "tries"), [("", 1), ("retry: {max_attempts: 1},", 1), ("retry: {initial_interval: 1ms},", 3),
                                              ("retry: {max_attempts: 2, initial_interval: 1ms},", 2),
                                              ("retry: {on: timeout, max_attempts: 5, initial_interval: 1ms},", 1)])  # fmt: skip
def test_f58_nothing_is_retried_unless_the_plan_asks_and_never_more_than_it_says(place, retry, tries):
    place.durun("start", place.plan(TRY.format(retry=retry)), exit=1)
    assert place.lines("ticks") == ["a"] * tries


@pytest.mark.parametrize("rule", ["0", "false", "-1", "'3'", "3", "{max_attempts: 0}", "{max_attempts: -1}", "{max_attempts: '3'}", "{max_attempts: 1.5}",
                                  "{max_interval: -1s}", "{backoff: 0.5}", "{backoff: .inf}", "{attempts: 3}"])  # fmt: skip
def test_f58_a_count_that_means_nothing_is_refused(place, rule):
    place.durun("check", place.plan(TRY.format(retry=f"retry: {rule},")), exit=7)


def test_f58_a_crash_does_not_refill_the_budget(place):
    rule = "{max_attempts: 3, initial_interval: 1ms, max_interval: 1ms}"
    plan = place.plan(
        f"a: {{run: 'echo a >> ticks; [ \"$(wc -l < ticks)\" != 2 ] || {{ echo $$ > up; while [ ! -e go ]; do sleep 0.05; done; }}; exit 1', retry: {rule}, idempotent: true, next: succeeded}}"
    )
    place.begin("start", plan, "--id", "r").stdout.readline()
    place.there("up")
    place.kill_all()
    place.write("go", "")
    place.durun("resume", "r", exit=1)
    assert 2 < len(place.lines("ticks")) <= 4
    shown = place.show("r")
    assert shown["attempt"] == len(place.lines("ticks"))


@pytest.mark.parametrize("wait", ["wait: 30d", "wait: 400d", "wait: 36500d", "wait: {at: '9999-12-31T23:59:59Z'}"])
def test_f59_a_wait_of_any_length_is_sat_out_without_an_overflow(place, wait):
    process = place.begin("start", place.plan(f"a: {{{wait}, next: succeeded}}"), "--id", "r")
    place.until(lambda: place.db.exists() and [r["status"] for r in place.runs()] == ["waiting"], "the wait")
    assert place.show("r")["waiting_for"][0]["until"].endswith("Z")
    assert process.poll() is None
    place.durun("cancel", "r", exit=4)
    place.end(process, 4)


def test_f59_a_timeout_and_a_heartbeat_of_years_hold_nothing_up(place):
    done = place.durun("start", place.plan("a: {run: [sleep, '0.2'], timeout: 36500d, heartbeat: 36500d, next: succeeded}"))
    assert place.show(done.id)["status"] == "succeeded"


@pytest.mark.parametrize("wait", ["10000000d", "999999999d", "99999999999999999999d", "-1s", "1e9s"])
def test_f59_an_absurd_length_is_refused_before_anything_begins(place, wait):
    place.durun("start", place.plan(f"a: {{wait: '{wait}', next: succeeded}}"), exit=7)


NOW, CLOCK = 1_800_000_000_000, 5_000_000


def left(*, now=0, clock=0, boot="this", length=300_000):
    """Milliseconds left of a wait of five minutes, set at NOW, once the clocks say NOW + now and CLOCK + clock."""
    world = World(lambda: NOW + now, lambda: CLOCK + clock, lambda: 0.5, boot)
    run = Run("r", "fault", "1", "0" * 32, NOW, Status.WAITING, None, {}, {}, {}, {})
    engine = Engine(None, None, world, {}, None, None, Checkpoint(run))
    at = Position("", "a", 1, Phase.WAITING, due=NOW + 300_000, length=length, set_at=NOW, boot="this", clock=CLOCK)
    return engine._left(at)


@pytest.mark.parametrize("jump", [-2 * DAY, -1, 0, 3600_000, 400 * DAY])
def test_f61_a_relative_wait_keeps_its_length_wherever_the_clock_is_set(jump):
    assert left(now=jump + 60_000, clock=60_000) == 240_000
    assert left(now=jump + 360_000, clock=360_000) <= 0


def test_f61_after_a_reboot_what_is_left_is_at_most_the_length():
    assert left(now=-2 * DAY, clock=-CLOCK, boot="next") == 300_000
    assert left(now=100_000, clock=-CLOCK, boot="next") == 200_000
    assert left(now=2 * DAY, clock=-CLOCK, boot="next") <= 0


def test_f61_a_wait_for_a_time_of_day_goes_by_the_clock():
    assert left(now=-2 * DAY, clock=60_000, length=None) == 2 * DAY + 300_000
    assert left(now=400_000, clock=60_000, length=None) <= 0


def test_f61_history_is_in_the_order_of_its_numbers_without_gaps(place):
    done = place.durun("start", place.plan("a: {run: ['false'], retry: {initial_interval: 1ms}, next: succeeded}"), exit=1)
    assert [e["no"] for e in place.history(done.id)] == list(range(1, len(place.history(done.id)) + 1))


def test_f62_what_was_slept_through_is_not_made_up_for(place):
    plan = place.plan(
        "a: {run: 'date +%s%N >> ticks; test -e mended', poll: {until: 'true', every: 200ms, for: 1h}, idempotent: true, next: succeeded}"
    )
    process = place.begin("start", plan, "-q")
    place.until(lambda: len(place.lines("ticks")) >= 2, "two rounds")
    place.kill(process.pid, signal.SIGSTOP)
    woken = time.monotonic() + 2.5
    place.until(lambda: time.monotonic() > woken, "a time to sleep")
    asleep = len(place.lines("ticks"))
    place.kill(process.pid, signal.SIGCONT)
    place.until(lambda: len(place.lines("ticks")) >= asleep + 4, "four rounds more")
    place.write("mended", "")
    place.end(process)
    times = [int(line) / 1e6 for line in place.lines("ticks")]
    assert min(b - a for a, b in itertools.pairwise(times)) >= 198
    assert max(b - a for a, b in itertools.pairwise(times)) > 2000


def test_f122_what_is_due_does_not_move_with_the_zone_and_is_shown_in_utc(place):
    place.env["TZ"] = "America/New_York"
    place.durun("start", place.plan("a: {wait: 10d, next: succeeded}"), "--id", "length", "--no-wait", exit=3)
    place.durun(
        "start", place.plan("a: {wait: {at: '2097-03-01T09:00:00+05:30'}, next: succeeded}"), "--id", "moment", "--no-wait", exit=3
    )
    seen = []
    for zone in ("America/New_York", "Asia/Kolkata", "UTC", "Nonsense/Zone"):
        place.env["TZ"] = zone
        for id in ("length", "moment"):
            place.durun("resume", id, "--no-wait", exit=3)
        shown = {id: place.show(id) for id in ("length", "moment")}
        seen.append({id: (s["waiting_for"][0]["until"], s["created_at"]) for id, s in shown.items()})
    assert all(s == seen[0] for s in seen)
    assert seen[0]["moment"][0] == "2097-03-01T03:30:00.000Z"
    until, created = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in seen[0]["length"])
    assert 0 <= (until - created).total_seconds() - 10 * 86400 < 60
    assert abs((created - datetime.now(UTC)).total_seconds()) < 600


@pytest.mark.parametrize(
    "at", ["2097-03-01T09:00:00", "2097-03-01", "tomorrow", "09:00", "10000-01-01T00:00:00Z", "2026-13-01T00:00:00Z"]
)
def test_f122_a_time_without_its_offset_or_that_is_none_is_never_waited_for(place, at):
    done = place.durun("start", place.plan(f"a: {{wait: {{at: '{at}'}}, next: succeeded}}"), "--no-wait", exit=(1, 7))
    assert "is no time" in done.err


def test_f122_times_are_integers_in_the_file(place):
    place.durun("start", place.plan("a: {run: ['true'], next: b}\nb: {wait: 1d, next: succeeded}"), "--no-wait", exit=3)
    db = apsw.Connection(str(place.db))
    asked = [
        ("runs", "created_at"),
        ("runs", "updated_at"),
        ("runs", "due"),
        ("history", "at"),
        ("effects", "intended_at"),
        ("effects", "ended_at"),
    ]
    for table, column in asked:
        assert {row[0] for row in db.execute(f"SELECT typeof({column}) FROM {table}").fetchall()} == {"integer"}, (table, column)
    db.close()


@pytest.mark.parametrize(
    "at", ["2097-03-01T09:00:00", "2097-03-01", "tomorrow", "09:00", "10000-01-01T00:00:00Z", "2026-13-01T00:00:00Z"]
)
def test_f59_f97_f122_a_literal_time_that_is_none_is_refused_before_anything_begins(place, at):
    place.durun("check", place.plan(f"a: {{wait: {{at: '{at}'}}, next: succeeded}}"), exit=7)

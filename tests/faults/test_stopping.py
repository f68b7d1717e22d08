"""Stopping by whichever way, commands that fail while they prepare, and what other processes leave open."""

from __future__ import annotations

import sys
import threading
import time

import apsw
import pytest

AGENT = """
import os, signal, sys, time
def heard(number, frame):
    with open("heard", "a") as f: f.write(signal.Signals(number).name + "\\n")
    time.sleep(0.3)
    with open("clean", "w") as f: f.write("clean\\n")
    os._exit(1)
for name in ("INT", "TERM", "HUP", "QUIT"): signal.signal(getattr(signal, "SIG" + name), heard)
with open("up", "w") as f: f.write(f"{os.getpid()}\\n")
while True: time.sleep(0.05)
"""
WAYS = {
    "timeout": ("timeout: 3s,", ""),
    "heartbeat": ("heartbeat: 3s,", ""),
    "run_timeout": ("", "timeout: 3s"),
    "cancel": ("", ""),
    "leaving": ("", ""),
}


@pytest.mark.parametrize("way", WAYS)
def test_f18_every_way_to_stop_is_one_term_with_time_to_clean_up_and_says_which_it_was(place, way):
    place.write("agent.py", AGENT)
    more, head = WAYS[way]
    plan = place.plan(f"a: {{run: [{sys.executable}, agent.py], {more} next: succeeded}}", head=head)
    process = place.begin("start", plan, "--id", "r")
    pid = int(place.there("up"))
    if way == "cancel":
        place.durun("cancel", "r", exit=4)
    elif way == "leaving":
        place.kill(process.pid, 15)
    place.end(process, {"cancel": 4, "leaving": 143}.get(way, 1))
    assert (place.lines("heard"), place.lines("clean")) == (["SIGTERM"], ["clean"])
    assert not place.alive(pid)
    assert [e["stopped"] for e in place.history("r", "attempt_ended")] == [way]


def test_f18_a_signal_that_came_from_elsewhere_is_named_and_is_none_of_durun_s_ways(place):
    process = place.begin("start", place.plan("a: {run: 'echo $$ > up; exec sleep 60', next: succeeded}"), "--id", "r")
    place.kill(int(place.there("up")), 15)
    place.end(process, 1)
    (ended,) = place.history("r", "attempt_ended")
    assert (ended["error"], ended.get("stopped")) == ("killed:TERM", None)


def test_f37_whoever_follows_a_run_keeps_no_view_of_the_file_open(place):
    """Else the log beside the file could never be taken over into it, and would grow with every commit."""
    place.durun("start", place.plan("a: {wait: 1h, next: succeeded}"), "--id", "r", "--no-wait", exit=3)
    sitting = place.begin("resume", "r")
    following = place.begin("history", "r", "-f")
    assert b"started" in following.stdout.readline()
    place.until(lambda: place.runs()[0]["status"] == "waiting", "a driver that sits the wait out")
    db = apsw.Connection(str(place.db))
    db.set_busy_timeout(30_000)
    for _ in range(20):
        db.execute("BEGIN IMMEDIATE; UPDATE runs SET updated_at = updated_at + 1; COMMIT").fetchall()
        place.until(lambda: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0] == 0, "a checkpoint of the whole log")
    db.close()
    assert following.poll() is None and sitting.poll() is None


def test_f37_the_log_beside_the_file_stays_small_however_much_is_committed(place):
    step = """
a: {run: ["true"], assign: {n: '${{ vars.n + 1 }}'}, next: more}
more: {choice: [{when: vars.n < 300, next: a}, {next: succeeded}]}
"""
    head = "vars: {n: 0, load: " + "x" * 40_000 + "}"
    process = place.begin("start", place.plan(step, head=head), "--id", "r", "-q")
    log, largest = place.folder / "durun.db-wal", 0
    while process.poll() is None:
        largest = max(largest, log.stat().st_size if log.exists() else 0)
        time.sleep(0.02)
    place.end(process)
    assert place.show("r")["vars"]["n"] == 300
    assert 0 < largest < 8 * 1024 * 1024  # what was committed is about twice that


def test_f51_runs_whose_recovery_meets_a_busy_file_are_all_recovered(place):
    plan = place.plan("a: {run: 'echo $DURUN_RUN_ID >> ticks', next: b}\nb: {wait: 50ms, next: succeeded}")
    ids = [f"r{n}" for n in range(4)]
    for id in ids:
        place.durun("start", plan, "--id", id, "--no-wait", exit=(0, 3))
    db = apsw.Connection(str(place.db))
    db.set_busy_timeout(20_000)
    stop = threading.Event()

    def hold_it_again_and_again() -> None:
        while not stop.is_set():
            db.execute("BEGIN IMMEDIATE").fetchall()
            time.sleep(0.3)
            db.execute("COMMIT").fetchall()
            time.sleep(0.01)

    holding = threading.Thread(target=hold_it_again_and_again)
    holding.start()
    try:
        place.durun("resume", *ids)
    finally:
        stop.set()
        holding.join()
    db.close()
    assert {r["status"] for r in place.runs()} == {"succeeded"}
    assert sorted(place.lines("ticks")) == ids


def test_f51_runs_that_could_not_be_recovered_show_in_the_code_and_are_recovered_later(place):
    plan = place.plan("a: {wait: 10ms, next: b}\nb: {run: 'echo b >> ticks', next: succeeded}")
    for id in ("one", "two"):
        place.durun("start", plan, "--id", id, "--no-wait", exit=(0, 3))
    db = apsw.Connection(str(place.db))
    db.execute("PRAGMA user_version = 1000").fetchall()
    place.durun("resume", "one", "two", exit=8)
    db.execute("PRAGMA user_version = 1").fetchall()
    db.close()
    place.durun("resume", "one", "two")
    assert {r["status"] for r in place.runs()} == {"succeeded"}
    assert place.lines("ticks") == ["b", "b"]


def test_f84_what_a_cancelled_run_waited_to_do_is_withdrawn_and_never_done_later(place):
    rule = "{initial_interval: 1s, max_interval: 1s, jitter: none, max_attempts: 5}"
    plan = place.plan(f"a: {{run: 'echo a >> ticks; exit 1', retry: {rule}, next: succeeded}}")
    place.durun("start", plan, "--id", "r", "--no-wait", exit=3)
    place.durun("cancel", "r", exit=4)
    shown = place.show("r")
    assert [e["status"] for e in shown["effects"]] == ["not_done"]
    assert shown["waiting_for"] == [] and [p["due"] for p in shown["positions"]] == [None]
    later = time.monotonic() + 1.2
    place.until(lambda: time.monotonic() > later, "the time of the retry")
    place.durun("resume", "r", exit=4)
    assert place.lines("ticks") == ["a"]


def test_f84_a_cancel_touches_no_run_that_has_ended(place):
    plan = place.plan("a: {run: 'exit $CODE', next: succeeded}", head="pins: {env: [CODE]}")
    ends = {"0": "succeeded", "1": "failed"}
    for code in ends:
        place.env["CODE"] = code
        place.durun("start", plan, "--id", f"r{code}", exit=int(code))
    for code, status in ends.items():
        before = place.history(f"r{code}")
        place.durun("cancel", f"r{code}", exit=10)
        assert place.show(f"r{code}")["status"] == status and place.history(f"r{code}") == before


@pytest.mark.parametrize(
    ("states", "head"),
    [
        ("a: {run: [sh, -c, 'exit 1'], catch: [{on: any, assign: {v: '${{ error.output.x }}'}, next: succeeded}], next: failed}", "vars: {v: 0}"),
        ("a: {fail: {error: mine, message: '${{ vars.v.x }}'}}", "vars: {v: null}"),
        ("a: {run: ['true'], next: b}\nb: {run: [echo, '${{ states.a.output.x }}'], next: succeeded}", ""),
        ("a: {run: ['true'], next: succeeded}", "output: '${{ states.a.output.x }}'"),
    ],
    ids=["a catch", "a fail", "the next command", "the output of the plan"],
)  # fmt: skip
def test_f90_an_error_while_what_follows_is_prepared_ends_the_run_at_once(place, states, head):
    done = place.durun("start", place.plan(states, head=head), "--id", "r", exit=1)
    shown = place.show("r")
    assert (shown["status"], shown["error"]["name"]) == ("failed", "expression")
    assert "failed" in done.err and shown["ended_at"]


def test_f93_a_run_that_a_step_started_leaves_no_process_when_its_parent_is_cancelled(place):
    """A run begun by hand in a command is a run of its own: it is stopped with its driver, and can be taken up."""
    child = place.plan("a: {run: 'echo $$ > up; while :; do sleep 0.05; done', next: succeeded}", name="child.yaml")
    command = [*place.argv, "start", child, "--id", "child"]
    parent = place.plan(f"a: {{run: {command}, next: succeeded}}")
    process = place.begin("start", parent, "--id", "parent")
    pid = int(place.there("up"))
    place.durun("cancel", "parent", exit=4)
    place.end(process, 4)
    assert not place.alive(pid)
    place.until(lambda: not place.processes(), "the end of every process")
    assert {r["id"]: r["status"] for r in place.runs()} == {"parent": "cancelled", "child": "interrupted"}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC"])
def test_f124_a_time_is_an_instant_with_its_offset_also_on_the_days_when_clocks_change(place, zone):
    place.env["TZ"] = zone
    due = {}
    for n, at in enumerate(("2097-10-27T02:30:00+02:00", "2097-10-27T02:30:00+01:00", "2097-03-31T02:30:00+01:00")):
        place.durun("start", place.plan(f"a: {{wait: {{at: '{at}'}}, next: succeeded}}"), "--id", f"r{n}", "--no-wait", exit=3)
        due[n] = place.show(f"r{n}")["waiting_for"][0]["until"]
    assert list(due.values()) == ["2097-10-27T00:30:00.000Z", "2097-10-27T01:30:00.000Z", "2097-03-31T01:30:00.000Z"]


@pytest.mark.parametrize("at", ["2097-10-27T02:30:00 Europe/Berlin", "2097-10-27T02:30:00[Europe/Berlin]", "02:30 Europe/Berlin"])
def test_f124_a_time_of_a_place_is_refused(place, at):
    place.durun("check", place.plan(f"a: {{wait: {{at: '{at}'}}, next: succeeded}}"), exit=7)

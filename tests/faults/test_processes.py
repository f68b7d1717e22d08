"""Processes: groups, orphans, what they leave behind, who owns a run."""

from __future__ import annotations

import ast
import binascii
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import durun

BEATING = """
a:
  run: |
    sh -c 'sh -c "echo \\$\\$ > inner; while :; do echo x >> beat; sleep 0.05; done"; :'
  {more}
  next: succeeded
"""
WAITS = "echo $$ > up; while [ ! -e go ]; do sleep 0.05; done"


@pytest.mark.parametrize("how", ["cancel", "timeout", "cancel without a driver", "cancel without driver and keeper"])
def test_f01_stopping_a_step_ends_its_grandchildren_before_it_is_said_to_have_ended(place, how):
    plan = place.plan(BEATING.replace("{more}", "timeout: 500ms" if how == "timeout" else ""))
    run = place.begin("start", plan, "--id", "r")
    inner = int(place.there("inner"))
    if how == "timeout":
        place.end(run, 1)
        assert place.show("r")["error"]["name"] == "timeout"
    else:
        if how != "cancel":
            run.kill()
        if how.endswith("keeper"):
            for keeper in place.keepers():
                place.kill(keeper)
        place.durun("cancel", "r", exit=4)
        assert place.show("r")["status"] == "cancelled"
    assert not place.alive(inner)
    place.until(lambda: not place.processes(), "the end of every process of the run")


def test_f02_a_background_process_with_the_output_open_holds_up_nothing_and_is_named(place):
    plan = place.plan('a: {run: "sleep 300 & echo $! > left; echo done", output: text, next: succeeded}')
    done = place.durun("start", plan)
    left = int(place.there("left"))
    assert place.alive(left)
    assert place.durun("output", done.id, "a").out == "done\n"
    assert place.history(done.id, "attempt_ended")[0]["left"] == [left]


def test_f02_a_timeout_holds_although_a_helper_keeps_the_output_open(place):
    plan = place.plan("a: {run: 'sh -c \"sleep 300; :\" | cat', timeout: 500ms, next: succeeded}")
    done = place.durun("start", plan, exit=1)
    assert place.show(done.id)["error"]["name"] == "timeout"
    assert not place.commands()


SECOND = """
a: {run: "echo a >> ticks", next: b}
b: {run: "echo b >> ticks; echo $$ > up; while [ ! -e go ]; do sleep 0.05; done", {more} next: c}
c: {run: "echo c >> ticks", next: succeeded}
"""


def crashed_in_b(place, more=""):
    plan = place.plan(SECOND.replace("{more}", more))
    place.begin("start", plan, "--id", "r")
    place.there("up")
    place.kill_all()
    place.write("go", "")


def test_f04_a_step_in_flight_when_everything_died_is_asked_about(place):
    crashed_in_b(place)
    assert place.show("r")["status"] == "interrupted"
    done = place.durun("resume", "r", exit=9)
    shown = place.show("r")
    assert (shown["status"], shown["reason"], shown["state"]) == ("blocked", "in_doubt", "b")
    assert "durun resolve r b" in shown["waiting_for"][0]["command"]
    assert "resolve" in done.err
    assert place.lines("ticks") == ["a", "b"]


def test_f04_an_idempotent_step_in_flight_when_everything_died_is_begun_again(place):
    crashed_in_b(place, "idempotent: true,")
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "b", "b", "c"]


@pytest.mark.parametrize(
    ("answer", "exit", "ticks"), [("0", 0, ["a", "b", "c"]), ("1", 0, ["a", "b", "b", "c"]), ("7", 9, ["a", "b"])]
)
def test_f04_a_probe_decides_what_becomes_of_a_step_in_flight(place, answer, exit, ticks):
    crashed_in_b(place, f"probe: {{run: 'exit {answer}'}},")
    place.durun("resume", "r", exit=exit)
    assert place.lines("ticks") == ticks


@pytest.mark.parametrize("leader_lives", [True, False])
def test_f05_a_stranger_with_a_recycled_pid_is_never_signalled_and_keeps_nothing_alive(place, leader_lives):
    """The notes and the database are made to name a process that was begun long after the step was."""
    place.begin("start", place.plan("a: {run: 'echo $$ > up; sleep 300', next: succeeded}"), "--id", "r")
    place.there("up")
    noted = lambda: any(b"begun\t" in j.read_bytes() for j in Path(f"{place.db}.d").glob("*/journal"))  # noqa: E731
    place.until(noted, "the note of the pid")
    place.kill_all()
    script = (
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "if child and len(sys.argv) > 1: sys.exit()\n"
        "time.sleep(300)"
    )
    words = [] if leader_lives else ["ends"]
    stranger = subprocess.Popen([sys.executable, "-c", script, *words], start_new_session=True, stdout=subprocess.PIPE)
    try:
        child = int(stranger.stdout.readline())
        if not leader_lives:
            stranger.wait(30)
        forge(place, stranger.pid)
        assert [r["status"] for r in place.runs()] == ["interrupted"]
        place.durun("cancel", "r", exit=4)
        assert place.alive(child)
        assert place.alive(stranger.pid) is leader_lives
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait(30)
        stranger.stdout.close()


def forge(place, pid):
    """Every place where a pid is kept says `pid`, as if the number had been used again."""
    with apsw.Connection(str(place.db)) as db:
        db.execute("UPDATE drivers SET pid = ?", (pid,)).fetchall()
    forged = 0
    for journal in Path(f"{place.db}.d").glob("*/journal"):  # a driver whose keeper was killed first has another
        lines = []
        for line in journal.read_bytes().split(b"\n"):
            words = line[9:].split(b"\t")
            if words[0] == b"begun":
                before, after = (b"%.3f" % (float(at) - 5000) for at in words[3:5])
                said = b"\t".join([*words[:2], b"%d" % pid, before, after])
                line = b"%08x %s" % (binascii.crc32(said), said)
                forged += 1
            lines.append(line)
        journal.write_bytes(b"\n".join(lines))
    assert forged, "no pid is noted here: the form of a record has changed"


def test_f07_an_inherited_ignored_sigchld_never_turns_a_failure_into_success(place):
    plan = place.plan("a: {run: 'exit 3', next: succeeded}")
    launcher = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", launcher, *place.argv, "start", plan, "--id", "r"]
    ran = subprocess.run(argv, cwd=place.folder, env=place.env, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 1, ran.stderr
    shown = place.show("r")
    assert (shown["error"]["name"], shown["error"]["exit"]) == ("exit:3", 3)


def test_f09_nothing_runs_between_fork_and_exec():
    for path in Path(durun.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            words = [k.arg for k in node.keywords] if isinstance(node, ast.Call) else []
            assert "preexec_fn" not in words, path
            assert not (isinstance(node, ast.Attribute) and node.attr in ("fork", "forkpty")), path


def test_f09_hundreds_of_spawns_in_a_row_never_hang(place):
    plan = place.plan(
        """
a: {run: ["true"], assign: {n: '${{ vars.n + 1 }}'}, next: more}
more: {choice: [{when: vars.n < 400, next: a}, {next: succeeded}]}
""",
        head="vars: {n: 0}",
    )
    done = place.durun("start", plan, "-q")
    assert place.show(done.id)["vars"]["n"] == 400


TWO = "a: {run: 'echo a >> ticks; echo $$ > up; while [ ! -e go ]; do sleep 0.05; done', next: b}\nb: {run: 'echo b >> ticks', next: succeeded}"


def test_f10_a_run_that_is_driven_is_refused_to_a_second_driver_also_while_the_first_is_stopped(place):
    first = place.begin("start", place.plan(TWO), "--id", "r")
    place.there("up")
    refused = place.durun("resume", "r", exit=6)
    assert str(first.pid) in refused.err
    place.kill(first.pid, signal.SIGSTOP)
    place.durun("resume", "r", exit=6)
    assert place.runs()[0]["status"] == "running"
    place.write("go", "")
    place.kill(first.pid, signal.SIGCONT)
    place.end(first)
    assert place.lines("ticks") == ["a", "b"]


def test_f10_a_driver_that_lost_its_run_stops_at_its_next_write_without_a_further_side_effect(place):
    first = place.begin("start", place.plan(TWO), "--id", "r")
    place.there("up")
    with apsw.Connection(str(place.db)) as db:
        db.execute("UPDATE runs SET fence = fence + 1").fetchall()
    place.write("go", "")
    place.end(first, 6)
    assert place.lines("ticks") == ["a"]
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "b"]


def test_f10_a_command_that_outlived_its_driver_is_waited_for_and_not_begun_twice(place):
    first = place.begin("start", place.plan(TWO), "--id", "r")
    place.there("up")
    first.kill()
    second = place.begin("resume", "r")
    place.until(lambda: place.runs()[0]["status"] == "running", "a second driver")
    place.write("go", "")
    place.end(second)
    assert place.lines("ticks") == ["a", "b"]

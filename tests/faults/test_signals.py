"""Signals: one key press is one signal, children get their grace, and what the shell made durun inherit changes nothing."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

AGENT = """
import os, signal, sys, time
def heard(number, frame):
    with open("heard", "a") as f: f.write(signal.Signals(number).name + "\\n")
    if sys.argv[1] == "deaf": return
    end = time.monotonic() + 2
    while time.monotonic() < end: time.sleep(0.05)
    with open("clean", "w") as f: f.write("clean\\n")
    os._exit(0)
for name in ("INT", "TERM", "HUP", "QUIT"): signal.signal(getattr(signal, "SIG" + name), heard)
with open("up", "a") as f: f.write(f"{os.getpid()}\\n")
while True: time.sleep(0.05)
"""
PTY = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
CTRL_C = b"\x03"


def agent(place, kind="clean", more=""):
    place.write("agent.py", AGENT)
    return place.plan(
        f"a: {{run: [{sys.executable}, agent.py, {kind}], {more} next: b}}\nb: {{run: 'echo b >> ticks', next: succeeded}}"
    )


def on_a_terminal(place, *args):
    """A command on a terminal of its own; what is written to its stdin are key presses."""
    place.argv = [sys.executable, "-c", PTY, *place.argv]
    process = place.begin(*args, stdin=subprocess.PIPE)
    place.argv = place.argv[3:]
    return process


def press(process, keys=CTRL_C):
    process.stdin.write(keys)
    process.stdin.flush()


def end_of(place, process):
    """The exit code of a command on a terminal, whose stdin stays open until it has ended."""
    place.until(lambda: process.poll() is not None, "its end")
    return process.returncode


def test_f12_f13_one_ctrl_c_is_one_int_to_the_command_which_may_clean_up_to_its_end(place):
    process = on_a_terminal(place, "start", agent(place), "--id", "r")
    place.there("up")
    press(process)
    assert end_of(place, process) == 130
    assert place.lines("heard") == ["SIGINT"]
    assert place.lines("clean") == ["clean"]
    assert place.show("r")["status"] == "paused"
    assert not place.lines("ticks")


def test_f12_a_second_ctrl_c_kills_without_a_further_word(place):
    process = on_a_terminal(place, "start", agent(place, "deaf"), "--id", "r")
    pid = int(place.there("up"))
    press(process)
    place.until(lambda: place.lines("heard"), "the first INT")
    press(process)
    assert end_of(place, process) == 130
    assert place.lines("heard") == ["SIGINT"]
    assert not place.alive(pid)


def test_f13_a_timeout_and_a_cancel_leave_time_to_clean_up(place):
    done = place.durun("start", agent(place, more="timeout: 500ms,"))
    assert (place.lines("heard"), place.lines("clean")) == (["SIGTERM"], ["clean"])
    assert place.history(done.id, "attempt_ended")[0]["stopped"] == "timeout"

    (place.folder / "up").unlink()
    (place.folder / "clean").unlink()
    place.begin("start", agent(place), "--id", "r")
    place.there("up")
    place.durun("cancel", "r", exit=4)
    assert place.lines("heard") == ["SIGTERM", "SIGTERM"]
    assert place.lines("clean") == ["clean"]


def test_f13_the_grace_of_a_cancel_ends_with_kill(place):
    place.begin("start", agent(place, "deaf"), "--id", "r")
    pid = int(place.there("up"))
    place.durun("cancel", "r", "--grace", "200ms", exit=4)
    assert place.lines("heard") == ["SIGTERM"]
    assert not place.alive(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_f15_term_and_hup_stop_the_command_and_leave_a_run_that_can_be_resumed(place, number):
    process = place.begin("start", agent(place, more="probe: {run: [test, -e, clean]},"), "--id", "r")
    pid = int(place.there("up"))
    place.kill(process.pid, number)
    place.end(process, 143)
    assert place.lines("heard") == ["SIGTERM"]
    assert not place.alive(pid)
    assert place.show("r")["status"] == "interrupted"
    place.durun("resume", "r")
    assert place.lines("ticks") == ["b"]


def test_f15_after_quit_the_run_can_be_resumed(place):
    no_core = lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # noqa: E731  (to write one may take its time)
    process = place.begin("start", agent(place, more="idempotent: true,"), "--id", "r", preexec_fn=no_core)
    pid = int(place.there("up"))
    place.kill(process.pid, signal.SIGQUIT)
    process.wait(60)
    assert place.show("r")["status"] == "interrupted"
    place.durun("cancel", "r", exit=4)
    assert not place.alive(pid)


def test_f15_a_hup_that_was_ignored_at_start_stays_ignored(place):
    plan = place.plan("a: {run: 'echo up > up; while [ ! -e go ]; do sleep 0.05; done', next: succeeded}")
    place.argv = ["nohup", *place.argv]
    process = place.begin("start", plan)
    place.there("up")
    place.kill(process.pid, signal.SIGHUP)
    place.write("go", "")
    place.end(process)


def test_f17_a_driver_begun_with_an_ampersand_by_a_script_hears_int(place):
    plan = agent(place)
    script = '"$@" & p=$!; until [ -s up ]; do sleep 0.05; done; kill -INT $p; wait $p; echo "exit $?"'
    argv = ["sh", "-c", script, "sh", *place.argv, "start", plan, "--id", "s", "-q"]
    ran = subprocess.run(argv, cwd=place.folder, env=place.env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.splitlines() == ["s", "exit 130"], ran.stderr
    assert place.lines("heard") == ["SIGINT"]
    assert place.show("s")["status"] == "paused"


def test_f17_a_command_has_default_dispositions_and_an_empty_mask_whatever_durun_inherited(place):
    plan = place.plan("a: {run: [grep, -E, 'Sig(Ign|Blk)', /proc/self/status], output: lines, next: succeeded}")
    launcher = """
import os, signal, sys
for name in ("INT", "QUIT", "PIPE", "CHLD", "HUP", "TERM", "TSTP", "TTIN", "TTOU", "USR1", "USR2", "ALRM", "XFSZ"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD])
os.execv(sys.argv[1], sys.argv[1:])
"""
    place.argv = [sys.executable, "-c", launcher, *place.argv]
    place.durun("start", plan, "--id", "r")
    masks = dict(line.split(":\t") for line in place.durun("output", "r", "a").json)
    own = 0xFFFFFFFF >> 1  # signals 32 and 33 belong to the C library, which ignores them in what it spawns
    assert {name: int(mask, 16) & own for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}

"""The command line: exit codes, pipes, machine output, and ids."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

TICK = "a: {run: 'echo tick >> ticks', next: succeeded}"
PTY = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_f113_every_command_that_exits_by_the_run_exits_by_the_run(place):
    table = {
        "succeeded": ("a: {run: ['true'], next: succeeded}", 0),
        "failed": ("a: {run: ['false'], next: succeeded}", 1),
        "timed out": ("a: {run: [sleep, '300'], timeout: 200ms, next: succeeded}", 1),
        "handler failed": ("a: {run: ['false'], catch: [{on: any, next: b}], next: succeeded}\nb: {run: [sh, -c, exit 5], next: succeeded}", 1),
        "caught": ("a: {run: ['false'], catch: [{on: any, next: b}], next: succeeded}\nb: {run: ['true'], next: succeeded}", 0),
        "ended as failed": ("a: {run: ['true'], next: failed}", 1),
        "fails": ("a: {run: ['true'], next: b}\nb: {fail: {error: sad}}", 1),
    }  # fmt: skip
    for n, (states, code) in enumerate(table.values()):
        plan = place.plan(states)
        place.durun("start", plan, "--id", f"r{n}", exit=code)
        place.durun("wait", f"r{n}", exit=code)
        place.durun("show", f"r{n}")
        place.durun("history", f"r{n}")
        assert place.durun("wait", f"r{n}", "--json", exit=code).json["id"] == f"r{n}"


def test_f113_a_run_that_waits_exits_with_3_and_one_that_is_cancelled_with_4(place):
    place.durun("start", place.plan("a: {wait: 300d, next: succeeded}"), "--id", "w", "--no-wait", exit=3)
    place.durun("resume", "w", "--no-wait", exit=3)
    place.durun("wait", "w", "--timeout", "100ms", exit=124)
    place.durun("cancel", "w", exit=4)
    place.durun("wait", "w", exit=4)
    place.durun("resume", "w", exit=4)


def test_f113_wrong_words_unknown_runs_bad_plans_and_too_late_each_have_their_code(place):
    plan = place.plan(TICK)
    done = place.durun("start", plan)
    for words in (
        ["start"],
        ["nonsense"],
        ["ls", "--nonsense"],
        ["ls", "--status", "odd"],
        ["cancel"],
        ["cancel", done.id, "--grace", "soon"],
    ):
        place.durun(*words, exit=2)
    for command in ("resume", "show", "history", "logs", "output", "wait", "cancel"):
        place.durun(command, "nobody", exit=5)
    place.durun("start", "nowhere.yaml", exit=7)
    place.durun("check", place.write("bad.yaml", "a: b").name, exit=7)
    place.durun("cancel", done.id, exit=10)
    place.durun("resolve", done.id, "--retry", exit=10)
    place.durun("output", done.id, "nowhere", exit=10)
    place.durun("resume", done.id)


def test_f113_one_that_has_failed_and_one_that_is_unknown_show_in_the_code_of_several(place):
    bad = place.durun("start", place.plan("a: {run: ['false'], next: succeeded}"), exit=1)
    good = place.durun("start", place.plan(TICK))
    place.durun("resume", good.id, bad.id, exit=1)
    place.durun("resume", good.id, good.id)
    place.durun("resume", good.id, "nobody", exit=5)


@pytest.mark.parametrize(
    ("run", "name", "exit"),
    [
        ("exit 42", "exit:42", 42), ("kill -KILL $$", "killed:KILL", None), ("kill -SEGV $$", "killed:SEGV", None),
        (["no-such-program"], "not_found", None), (["./plain"], "not_found", None), ("no-such-program", "exit:127", 127),
        ("./plain", "exit:126", 126),
    ],
)  # fmt: skip
def test_f114_code_signal_and_reason_of_an_end_are_kept_apart(place, run, name, exit):
    place.write("plain", "no program\n")
    done = place.durun("start", place.plan(f"a: {{run: {json.dumps(run)}, next: succeeded}}"), exit=1)
    error = place.show(done.id)["error"]
    assert error["name"] == name
    assert name != "not_found" or f"could not be started: {run[0]}: " in error["message"]
    assert error.get("exit") == exit
    assert place.show(done.id)["effects"][0]["exit"] == exit


def test_f114_an_exit_of_its_own_is_what_the_plan_can_decide_by(place):
    plan = place.plan(
        """
a: {run: [sh, -c, exit 42], catch: [{on: 'exit:41', next: failed}, {on: 'exit:42', next: b}], next: succeeded}
b: {run: [./note, '${{ error.exit }}', '${{ error.name }}'], output: text, next: succeeded}
"""
    )
    place.write("note", '#!/bin/sh\necho "$@"\n')
    (place.folder / "note").chmod(0o755)
    done = place.durun("start", plan)
    assert place.durun("output", done.id, "b").out == "42 exit:42\n"


def piped(place, *words, shell='"$@" | head -n 1; echo "code ${PIPESTATUS[0]}"', **env):
    argv = ["bash", "-c", shell, "bash", *place.argv, *words]
    ran = subprocess.run(argv, cwd=place.folder, env=place.env | env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr and "BrokenPipe" not in ran.stderr, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_f116_a_closed_pipe_is_no_fault_of_a_command_that_looks(place, env):
    place.write("loud.py", "print('line\\n' * 500000)")
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, loud.py], output: lines, next: b}}
b: {{run: ["true"], assign: {{n: '${{{{ vars.n + 1 }}}}'}}, next: more}}
more: {{choice: [{{when: vars.n < 300, next: b}}, {{next: succeeded}}]}}
""",
        head="vars: {n: 0}",
    )
    place.durun("start", plan, "--id", "r", "-q")
    for words in (
        ["logs", "r"],
        ["output", "r", "a"],
        ["history", "r"],
        ["history", "r", "--json"],
        ["show", "r"],
        ["ls", "--json"],
    ):
        code = piped(place, *words, **env)[-1]
        assert code in ("code 0", "code 141"), words


@pytest.mark.parametrize("words", [["--help"], ["start", "--help"], ["db", "--help"]])
def test_f116_help_that_nobody_reads_to_its_end_is_no_fault(place, words):
    assert piped(place, *words)[-1] == "code 0"
    full = piped(place, *words, shell='"$@" > /dev/full; echo "code $?"')
    assert full[-1] == "code 1"


@pytest.mark.parametrize(
    "shell", ['"$@" | head -n 0; echo "code ${PIPESTATUS[0]}"', '"$@" 2>&1 | head -n 1; echo "code ${PIPESTATUS[0]}"']
)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_f116_a_closed_stdout_never_stops_a_run(place, shell, words):
    plan = place.plan("a: {run: 'echo a >> ticks; sleep 0.3', next: b}\nb: {run: 'echo b >> ticks', next: succeeded}")
    assert piped(place, "start", plan, "--id", "r", *words, shell=shell)[-1] == "code 0"
    assert place.lines("ticks") == ["a", "b"]
    assert place.show("r")["status"] == "succeeded"


@pytest.mark.parametrize(
    "env", [{}, {"FORCE_COLOR": "1"}, {"CLICOLOR_FORCE": "1", "TERM": "xterm-256color"}, {"CI": "1"}, {"TERM": "dumb"}]
)
def test_f117_machine_output_is_one_document_and_nothing_else(place, env):
    place.env.pop("NO_COLOR", None)
    place.env |= env
    plan = place.plan(TICK)
    started = place.durun("start", plan, "--id", "r", "--json")
    assert started.json["id"] == "r"
    for words in (["ls"], ["show", "r"], ["history", "r"], ["wait", "r"], ["resume", "r"], ["check", plan]):
        done = place.durun(*words, "--json")
        json.loads(done.out)
        assert "\x1b" not in done.out + done.err
        assert len(done.out.splitlines()) == 1
    refused = place.durun("show", "nobody", "--json", exit=5)
    assert refused.json["error"]["exit"] == 5
    plain = place.durun("start", plan)
    assert plain.out == f"{plain.id}\n"
    assert place.durun("ls", "-q").out.splitlines() == [plain.id, "r"]


def on_terminal(place, *words, **env):
    ran = subprocess.run([sys.executable, "-c", PTY, *place.argv, *words], cwd=place.folder, env=place.env | env,
                         stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)  # fmt: skip
    return ran.stdout.replace(b"\r\n", b"\n").decode()


def test_f117_on_a_terminal_json_has_no_colour_and_no_color_is_obeyed(place):
    place.durun("start", place.plan(TICK), "--id", "r")
    assert [r["id"] for r in json.loads(on_terminal(place, "ls", "--json", TERM="xterm-256color"))["runs"]] == ["r"]
    for words in (["ls"], ["show", "r"], ["history", "r"]):
        assert "\x1b" not in on_terminal(place, *words, TERM="xterm-256color", NO_COLOR="1")
        assert "\x1b" not in on_terminal(place, *words, TERM="dumb")


def test_f119_a_short_id_that_fits_two_runs_acts_on_neither(place):
    wait = place.plan("a: {wait: 300d, next: succeeded}")
    for id in ("abc-1", "abc-2", "ab", "x_y", "xzy"):
        place.durun("start", wait, "--id", id, "--no-wait", exit=3)
    for command in ("show", "cancel", "resume", "history", "logs", "output", "wait"):
        refused = place.durun(command, "abc", exit=5)
        assert "abc-1" in refused.err and "abc-2" in refused.err
    assert {r["status"] for r in place.runs()} == {"waiting"}
    assert place.show("ab")["id"] == "ab"
    place.durun("cancel", "abc-1", exit=4)
    place.durun("cancel", "x_", exit=4)
    assert {r["id"]: r["status"] for r in place.runs()} == {
        "abc-1": "cancelled",
        "abc-2": "waiting",
        "ab": "waiting",
        "x_y": "cancelled",
        "xzy": "waiting",
    }
    for pattern in ("%", "_", "*", "", "ABC-2", "abc-3"):
        place.durun("cancel", pattern, exit=5)
    for id in place.durun("ls", "-q").out.split():
        assert place.show(id)["id"] == id


def test_f120_resume_takes_up_the_run_it_was_given_and_no_other(place):
    plan = place.plan('a: {run: \'echo "$RUN" >> ticks; test -e mended\', env: {RUN: "${{ run.id }}"}, next: succeeded}')
    for id in ("older", "newer"):
        place.durun("start", plan, "--id", id, exit=1)
    place.write("mended", "")
    place.durun("resume", "typo", exit=5)
    place.durun("resume", exit=2)
    place.durun("cancel", exit=2)
    place.durun("resume", "older")
    assert place.lines("ticks") == ["older", "newer", "older"]
    assert {r["id"]: r["status"] for r in place.runs()} == {"older": "succeeded", "newer": "failed"}


def test_f116_a_reader_of_a_running_log_that_goes_away_does_not_harm_the_run(place):
    process = place.begin(
        "start", place.plan("a: {run: 'echo $$ > up; while [ ! -e go ]; do sleep 0.05; done', next: succeeded}"), "--id", "r"
    )
    place.there("up")
    follower = place.begin("history", "r", "-f")
    assert follower.stdout.readline()
    follower.stdout.close()
    place.write("go", "")
    place.end(process)
    follower.wait(60)
    assert follower.returncode in (0, -signal.SIGPIPE, 141)
    assert b"Traceback" not in follower.stderr.read()


@pytest.mark.parametrize(
    "states",
    ["a: {pass: {}, next: failed}", "a: {fail: {error: sad, message: no}}", "a: {choice: [{when: 'false', next: succeeded}]}"],
)
def test_f113_a_run_whose_first_move_ends_it_as_failed_exits_with_1(place, states):
    place.durun("start", place.plan(states), "--id", "r", exit=1)
    assert place.show("r")["status"] == "failed"


@pytest.mark.parametrize("shell", ['"$@" >&-; echo "code $?"', '"$@" >&- 2>&-; echo "code $?"'])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_f116_a_stdout_that_was_never_open_stops_no_run(place, shell, words):
    plan = place.plan("a: {run: 'echo a >> ticks; sleep 0.3', next: b}\nb: {run: 'echo b >> ticks', next: succeeded}")
    assert piped(place, "start", plan, "--id", "r", *words, shell=shell)[-1] == "code 0"
    assert place.lines("ticks") == ["a", "b"]
    for look in (["ls"], ["ls", "--json"], ["show", "r"], ["history", "r"], ["wait", "r"], ["resume", "r"]):
        assert piped(place, *look, shell=shell)[-1] in ("code 0", "code 141"), look

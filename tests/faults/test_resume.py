"""Resume: nothing that happened is begun again, nothing is forgotten, and the run keeps the rules it started with."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest


def test_f43_what_stands_before_a_wait_is_not_done_again_when_it_goes_on(place):
    plan = place.plan(
        """
a: {run: 'echo a >> ticks', assign: {n: '${{ vars.n + 1 }}'}, next: rest}
rest: {wait: 100ms, next: more}
more: {choice: [{when: vars.n < 3, next: a}, {next: succeeded}]}
""",
        head="vars: {n: 0}",
    )
    place.durun("start", plan, "--id", "r", "--no-wait", exit=3)
    assert place.lines("ticks") == ["a"]
    place.until(lambda: place.durun("resume", "r", "--no-wait", exit=(0, 3)).exit == 0, "the end of the third round")
    assert place.lines("ticks") == ["a"] * 3


def test_f46_outputs_are_there_after_a_failure_and_in_a_cleared_environment(place):
    plan = place.plan(
        """
a: {run: 'echo 42', output: json, assign: {v: '${{ output }}'}, next: b}
b: {run: 'test -e mended && echo "$V $W" > out', env: {V: '${{ states.a.output }}', W: '${{ vars.v }}'}, next: succeeded}
""",
        head="vars: {v: 0}",
    )
    place.durun("start", plan, "--id", "r", exit=1)
    place.write("mended", "")
    place.env = {"DURUN_DB": str(place.db), "FAULTS_TOKEN": place.token}
    place.durun("resume", "r")
    assert place.lines("out") == ["42 42"]


def test_f46_a_command_has_the_path_and_home_of_the_start_whatever_the_resume_has(place):
    words = " ".join(f'echo "${{{name}-unset}}";' for name in ("PATH", "HOME", "TZ", "PINNED"))
    plan = place.plan(f"a: {{run: '{words} test -e mended', output: lines, next: succeeded}}", head="pins: {env: [PINNED]}")
    place.env |= {"PINNED": "then", "HOME": "/then", "TZ": "Asia/Tokyo", "PATH": "/then:" + place.env["PATH"]}
    path = place.env["PATH"]
    place.durun("start", plan, "--id", "r", exit=1)
    place.write("mended", "")
    place.env |= {"PINNED": "now", "HOME": "/now", "TZ": "Europe/Berlin", "PATH": "/now:" + path}
    place.durun("resume", "r")
    assert place.durun("output", "r", "a").json == [path, "/then", "Asia/Tokyo", "then"]


@pytest.mark.parametrize("cwd", ["", "below"])
def test_f47_every_attempt_has_the_directory_of_the_start(place, cwd):
    one, other = place.folder / "one", place.folder / "other"
    (one / "below").mkdir(parents=True)
    other.mkdir()
    plan = place.plan(
        f"a: {{run: 'pwd >> {place.folder}/ticks; test -e {place.folder}/mended', {'cwd: below,' if cwd else ''} next: succeeded}}"
    )
    place.durun("start", "../plan.yaml", "--id", "r", exit=1, cwd=one)
    place.durun("resume", "r", exit=1, cwd=other)
    Path(plan).unlink()
    place.write("mended", "")
    place.durun("resume", "r", cwd=other)
    assert place.lines("ticks") == [str(one / cwd)] * 3


@pytest.mark.parametrize(("below", "exit"), [("..", 1), ("/tmp", 1), ("a/../../b", 1), ("a/..", 0)])
def test_f47_a_directory_that_is_worked_out_lies_below_that_of_the_start(place, below, exit):
    (place.folder / "a").mkdir()
    plan = place.plan("a: {run: 'echo a >> ran', cwd: '${{ input.below }}', next: succeeded}", head="input: {below: string}")
    run = place.durun("start", plan, "--id", "r", "-i", f"below={below}", exit=exit)
    error = place.show("r")["error"]
    if exit:
        assert error["name"] == "expression" and f"its directory, {below}, " in error["message"], run.err
    assert place.lines("ran") == ["a"] * (not exit)


def test_f47_a_directory_that_is_gone_is_said_before_anything_begins(place):
    one = place.folder / "one"
    one.mkdir()
    place.plan(f"a: {{run: 'echo a >> {place.folder}/ticks; test -e {place.folder}/mended', next: succeeded}}")
    place.durun("start", "../plan.yaml", "--id", "r", exit=1, cwd=one)
    shutil.rmtree(one)
    place.write("mended", "")
    gone = place.durun("resume", "r", exit=9)
    assert str(one) in gone.err
    assert place.show("r")["reason"] == "cwd_gone"
    assert place.lines("ticks") == ["a"]
    one.mkdir()
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "a"]


WAITING = "a: {run: 'echo \"$DURUN_IDEMPOTENCY_KEY\" >> ticks; echo $$ > up; while [ ! -e go ]; do sleep 0.05; done; echo ended > ended', next: b}\nb: {run: 'echo b >> after', next: succeeded}"


@pytest.mark.parametrize("when", ["before its command ended", "after its command ended"])
def test_f48_a_driver_that_died_with_the_end_unrecorded_is_replaced_as_if_nothing_had_happened(place, when):
    """Stopped, then killed: what its keeper noted is all that the next one has."""
    process = place.begin("start", place.plan(WAITING), "--id", "r")
    place.there("up")
    place.kill(process.pid, signal.SIGSTOP)
    if when == "after its command ended":
        place.write("go", "")
        place.there("ended")
        place.until(lambda: not place.commands(), "the end of the command")
    process.kill()
    process.wait(60)
    assert place.show("r")["status"] == "interrupted"
    place.write("go", "")
    place.durun("resume", "r")
    assert len(place.lines("ticks")) == 1
    assert place.lines("after") == ["b"]


def in_doubt(place):
    place.begin("start", place.plan(WAITING), "--id", "r")
    place.there("up")
    place.kill_all()
    place.write("go", "")
    for _ in range(2):
        place.durun("resume", "r", exit=9)
        assert len(place.lines("ticks")) == 1
    assert place.show("r")["effects"][0]["status"] == "in_doubt"


def test_f48_an_unknown_outcome_that_a_person_knows_happened_is_not_begun_again(place):
    in_doubt(place)
    place.durun("resolve", "r", "a", "--happened", "--note", "seen at the bank")
    place.durun("resume", "r")
    assert len(place.lines("ticks")) == 1
    assert place.lines("after") == ["b"]
    assert place.history("r", "resolved")[0]["how"] == "happened"


def test_f48_an_unknown_outcome_is_begun_again_on_a_person_s_word_with_the_same_key(place):
    in_doubt(place)
    place.durun("resolve", "r", "--retry")
    place.durun("resume", "r")
    first, second = place.lines("ticks")
    assert first == second
    assert len(first) == 36
    assert place.lines("after") == ["b"]


def test_f48_an_unknown_outcome_that_a_person_calls_failed_is_an_error_with_its_name(place):
    in_doubt(place)
    place.durun("resolve", "r", "--fail")
    assert place.durun("resume", "r", exit=None).exit in (1, 9, 10)
    assert place.show("r")["error"]["name"] == "unresolved"
    assert not place.lines("after")


def test_f48_a_missing_status_is_never_success_when_the_keeper_dies(place):
    process = place.begin("start", place.plan(WAITING), "--id", "r")
    place.there("up")
    for keeper in place.keepers():
        place.kill(keeper)
    place.write("go", "")
    place.end(process, 9)
    assert place.show("r")["reason"] == "in_doubt"
    assert len(place.lines("ticks")) == 1
    assert not place.lines("after")


STEPS = """
a: {run: 'echo a >> ticks', next: b}
b: {run: 'echo b >> ticks', output: text, next: c}
c: {run: 'echo c >> ticks', assign: {n: 1}, next: succeeded}
"""


@pytest.mark.parametrize("call", ["fdatasync", "sendto"])
def test_f53_killed_at_any_write_of_a_commit_the_run_goes_on_to_its_end_with_each_step_once(place, strace, call):
    """The driver alone is killed, at its n-th sync and at its n-th word to the keeper, for every n; the store must tell what follows."""
    plan = place.plan(STEPS, head="vars: {n: 0}")
    place.durun("start", plan, "--id", "first")
    plain, kills = place.argv, 0
    for n in range(1, 60):
        (place.folder / "ticks").unlink()
        place.write("ticks", "")
        place.argv = [strace, "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={n}", *plain]
        process = place.begin("start", plan, "--id", f"r{n}", "-q")
        code = process.wait(60)
        place.argv = plain
        kills += code != 0
        found = place.durun("show", f"r{n}", "--json", exit=(0, 5))
        if found.exit == 0:
            place.durun("resume", f"r{n}", "-q")
            assert place.show(f"r{n}")["vars"] == {"n": 1}
            assert place.lines("ticks") == ["a", "b", "c"], f"after {call} number {n}"
        else:
            assert place.lines("ticks") == []
        if code == 0:
            break
    assert kills > 2


def test_f54_a_handler_that_ran_does_not_run_again_on_resume(place):
    plan = place.plan(
        """
a: {run: 'echo a >> ticks; exit 1', catch: [{on: exit, next: h}], next: succeeded}
h: {run: 'echo h >> ticks', next: slow}
slow: {run: 'echo $$ > up; while [ ! -e go ]; do sleep 0.05; done', idempotent: true, next: last}
last: {run: 'echo last >> ticks; test -e mended', next: succeeded}
"""
    )
    place.begin("start", plan, "--id", "r")
    place.there("up")
    place.kill_all()
    place.write("go", "")
    place.durun("resume", "r", exit=1)
    place.write("mended", "")
    place.durun("resume", "r")
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "h", "last", "last"]


def test_f54_a_handler_in_flight_when_everything_died_is_asked_about_by_its_own_name(place):
    plan = place.plan(
        """
a: {run: 'echo a >> ticks; exit 1', catch: [{on: exit, next: h}], next: succeeded}
h: {run: 'echo h >> ticks; echo $$ > up; sleep 300', next: succeeded}
"""
    )
    place.begin("start", plan, "--id", "r")
    place.there("up")
    place.kill_all()
    place.durun("resume", "r", exit=9)
    assert place.show("r")["state"] == "h"
    assert place.lines("ticks") == ["a", "h"]


@pytest.mark.parametrize("ending", ["driven on", "killed and resumed", "failed and resumed"])
def test_f67_an_edited_plan_changes_no_run_in_flight(place, ending):
    old = """
a: {run: 'echo a >> ticks; echo $$ > up; while [ ! -e go ]; do sleep 0.05; done; test -e mended', idempotent: true, next: b}
b: {run: 'echo b >> ticks', next: succeeded}
"""
    plan = place.plan(old)
    process = place.begin("start", plan, "--id", "r")
    place.there("up")
    digest = place.show("r")["pins"]["plan"]
    place.plan(old.replace("next: b", "next: c").replace("b:", "c:").replace("echo b", "echo c"))
    if ending == "killed and resumed":
        place.kill_all()
    if ending != "failed and resumed":
        place.write("mended", "")
    place.write("go", "")
    if ending == "driven on":
        place.end(process)
    elif ending == "killed and resumed":
        place.durun("resume", "r")
    else:
        place.end(process, 1)
        place.write("mended", "")
        place.durun("resume", "r")
    assert place.lines("ticks")[-1] == "b"
    assert "c" not in place.lines("ticks")
    assert place.show("r")["pins"]["plan"] == digest


def test_f67_a_run_goes_on_when_its_plan_is_gone_or_no_plan_any_more(place):
    plan = place.plan("a: {run: 'echo a >> ticks; test -e mended', next: succeeded}")
    place.durun("start", plan, "--id", "r", exit=1)
    place.write("plan.yaml", "no: [plan")
    place.durun("resume", "r", exit=1)
    Path(plan).unlink()
    place.write("mended", "")
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a"] * 3

"""start --detach and resume --detach: the caller has its id and nothing else of the driver that goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import COMMAND, Program, until

SLOW = """
start: a
states:
  a: {run: 'echo a >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done; echo z >> "$LEDGER"', next: succeeded}
"""


def drivers(durun: Program) -> list[int]:
    found = []
    for pid in durun.processes():
        with contextlib.suppress(OSError):
            if b"durun.cli.background" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def go(durun: Program) -> None:
    (durun.folder / "ledger.go").touch()


def test_a_command_substitution_returns_while_the_run_goes_on_and_holds_no_lock_of_the_caller(durun: Program) -> None:
    durun.plan(SLOW)
    script = f"""
exec 9> lock; flock 9
id=$({" ".join(COMMAND)} start --detach plan.yaml 2> said)
exec 9>&-
flock -n lock echo "free $id"
"""
    done = subprocess.run(["bash", "-euc", script], cwd=durun.folder, env=durun.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    word, run = done.stdout.split()
    assert word == "free" and (durun.folder / "said").read_text().startswith(f"run {run} goes on in process")
    assert durun.show(run)["driver"]["alive"] and durun.show(run)["status"] == "running"
    until(durun.lines)
    go(durun)
    durun("wait", run)
    assert durun.lines() == ["a", "z"]


def test_a_detached_driver_has_its_own_session_and_none_of_the_descriptors_of_its_caller(durun: Program) -> None:
    durun.plan(SLOW)
    with open(durun.folder / "kept", "w") as kept:
        os.set_inheritable(kept.fileno(), True)
        durun("start", "--detach", "plan.yaml", pass_fds=[kept.fileno()])
    until(durun.lines)
    [driver] = drivers(durun)
    assert os.getsid(driver) == driver
    for pid in durun.processes():
        there = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        assert str(durun.folder / "kept") not in there
    assert [os.readlink(f"/proc/{driver}/fd/{n}") for n in (0, 1)] == ["/dev/null", "/dev/null"]
    assert os.readlink(f"/proc/{driver}/fd/2").startswith(str(durun.db) + ".d/")
    go(durun)
    durun("wait", durun.the_run())


def test_a_folder_called_durun_where_start_is_called_is_not_taken_for_durun(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo a >> \"$LEDGER\"', next: succeeded}}\n")
    (durun.folder / "durun").mkdir()
    (durun.folder / "durun" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    (durun.folder / "typing.py").write_text("raise SystemExit('the wrong one')\n")
    program = Path(sys.executable).with_name("durun")
    subprocess.run(
        [program, "start", "--id", "x", "--detach", "plan.yaml"], cwd=durun.folder, env=durun.env, timeout=60, check=True
    )
    durun("wait", "x", cwd="/")
    assert durun.lines() == ["a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_detached_driver_told_to_stop_leaves_its_command_to_the_keeper(durun: Program, number: signal.Signals) -> None:
    durun.plan(SLOW)
    before = signal.signal(number, signal.SIG_DFL)  # one that is ignored here would stay ignored there
    run = durun("start", "--detach", "plan.yaml").stdout.strip()
    signal.signal(number, before)
    until(durun.lines)
    [driver] = drivers(durun)
    os.kill(driver, number)
    until(lambda: not drivers(durun))
    assert durun.show(run)["status"] == "interrupted"
    resumed = durun.begin("resume", run)
    until(lambda: durun.show(run)["status"] == "running")
    go(durun)
    assert resumed.wait(30) == 0
    assert durun.lines() == ["a", "z"]  # begun once, and never stopped


def test_a_detached_driver_told_to_stop_while_it_waits_lets_the_timer_go_on(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    run = durun("start", "--detach", "plan.yaml").stdout.strip()
    before = durun.show(run)["waiting_for"][0]["until"]
    os.kill(drivers(durun)[0], signal.SIGTERM)
    until(lambda: not drivers(durun))
    assert durun.show(run)["status"] == "waiting" and durun.show(run)["waiting_for"][0]["until"] == before


def test_an_id_given_again_goes_on_with_its_run_or_says_how_it_ended(durun: Program) -> None:
    durun.plan(SLOW)
    durun("start", "--detach", "--id", "x", "plan.yaml")
    again = durun("start", "--detach", "--id", "x", "plan.yaml")
    assert again.stdout == "x\n" and "exists already" in again.stderr and "another process drives it" in again.stderr
    go(durun)
    durun("wait", "x")
    again = durun("start", "--detach", "--id", "x", "plan.yaml")
    assert "succeeded already" in again.stderr and durun.lines() == ["a", "z"]
    durun("start", "--detach", "--id", "x", "plan.yaml", "-i", "who=me", exit=7)


def test_a_failed_run_is_resumed_in_the_background(durun: Program) -> None:
    durun.plan('start: a\nstates: {a: {run: \'echo a >> "$LEDGER"; test -e "$LEDGER.go"\', next: succeeded}}\n')
    run = durun.start(1)
    go(durun)
    durun("resume", "--detach", run)
    durun("wait", run)
    assert durun.lines() == ["a", "a"]


def test_a_background_driver_that_cannot_start_is_said_and_the_run_can_be_resumed(durun: Program) -> None:
    durun.plan(SLOW)
    go(durun)
    (durun.folder / "broken").mkdir()
    (durun.folder / "broken" / "sitecustomize.py").write_text(
        "import sys\nif 'durun.cli.background' in ' '.join(sys.orig_argv): sys.stderr.write('no luck\\n'); sys.exit(1)\n"
    )
    broken = durun("start", "--detach", "plan.yaml", "--id", "c", exit=8, env={"PYTHONPATH": str(durun.folder / "broken")})
    assert broken.stdout == "c\n" and "no luck" in broken.stderr and "durun resume c" in broken.stderr
    assert durun.show("c")["status"] == "interrupted"
    durun("resume", "c")


def test_a_refusal_of_the_background_driver_is_the_callers(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {fail: {error: mine, message: no}}}\n")
    run = durun.start(1)
    refused = durun("resume", "--detach", run, exit=10)
    assert "nothing to take up" in refused.stderr
    assert durun.show(run)["driver"] is None
    assert "no state 'nowhere'" in durun("resume", "--detach", "--from", "nowhere", run, exit=7).stderr


def test_killed_at_any_moment_the_caller_leaves_a_run_that_can_be_gone_on_with(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo a >> \"$LEDGER\"', idempotent: true, next: succeeded}}\n")
    for ms in (*range(20, 180, 20), 240, 320):
        begun = durun.begin("start", "--detach", "plan.yaml", "--id", f"k{ms}")
        time.sleep(ms / 1000)
        begun.kill()
        begun.communicate(timeout=30)
    until(lambda: not drivers(durun))
    runs = durun("ls", "-q", "--all").stdout.split()
    for run in runs:
        durun("resume", run)
    assert len(durun.lines()) == len(runs)


def test_start_detached_with_json_is_one_document(durun: Program) -> None:
    import json

    durun.plan("start: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    doc = json.loads(durun("start", "--detach", "--json", "plan.yaml").stdout)
    assert doc["driver"]["alive"] and doc["status"] in ("running", "waiting")

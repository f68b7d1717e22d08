"""How durun is stopped, and what is asked of it meanwhile: it always leaves, hears everything, and forgets nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import COMMAND, Program, until

STUBBORN = """
start: a
states:
  a: {run: 'trap "" INT TERM; echo a >> "$LEDGER"; for i in 1 2 3 4 5 6 7 8; do sleep 1; done', next: succeeded}
"""


def keeper_of(durun: Program) -> int:
    return next(p for p in durun.processes() if b"keeper.py" in Path(f"/proc/{p}/cmdline").read_bytes())


def test_ctrl_c_in_a_probe_forgets_neither_the_error_nor_its_catch(durun: Program) -> None:
    durun.plan("""
start: a
states:
  a:
    run: 'echo a >> "$LEDGER"; kill -9 $$'
    probe: {run: 'echo asked >> "$LEDGER"; test -e "$LEDGER.again" || sleep 30; exit 1'}
    catch: [{on: [killed], next: h}]
    next: succeeded
  h: {run: 'echo handled >> "$LEDGER"', next: succeeded}
""")
    begun = durun.begin("start", "plan.yaml")
    until(lambda: "asked" in durun.lines())
    os.kill(begun.pid, signal.SIGINT)
    assert begun.wait(30) == 130
    (durun.folder / "ledger.again").touch()
    durun("resume", durun.the_run())
    assert durun.lines() == ["a", "asked", "asked", "handled"]


def test_a_cancel_is_heard_while_durun_is_being_stopped(durun: Program) -> None:
    durun.plan(STUBBORN)
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    run = durun.the_run()
    os.kill(begun.pid, signal.SIGINT)
    durun("cancel", run, "--grace", "300ms", exit=4)
    begun.communicate(timeout=30)
    assert durun.show(run)["status"] == "cancelled"


def test_a_driver_that_was_told_to_stop_waits_without_burning_a_core(durun: Program) -> None:
    durun.plan(STUBBORN)
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    os.kill(begun.pid, signal.SIGINT)

    def spent() -> float:
        fields = Path(f"/proc/{begun.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(0.3)
    before, at = spent(), time.monotonic()
    time.sleep(2)
    assert (spent() - before) / (time.monotonic() - at) < 0.3
    os.kill(begun.pid, signal.SIGINT)
    assert begun.wait(30) == 130


def test_a_keeper_that_stands_still_does_not_keep_durun_from_leaving(durun: Program) -> None:
    durun.plan(
        'start: a\nstates: {a: {run: \'echo a >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done\', idempotent: true, next: succeeded}}\n'
    )
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    keeper = keeper_of(durun)
    os.kill(keeper, signal.SIGSTOP)
    for _ in range(2):
        os.kill(begun.pid, signal.SIGINT)
        time.sleep(0.5)
    assert begun.wait(40) == 130
    said = begun.stderr.read()
    assert str(keeper) in said and "kill -CONT" in said
    os.kill(keeper, signal.SIGCONT)
    (durun.folder / "ledger.go").touch()
    durun("resume", durun.the_run())
    assert len(durun.lines()) <= 2
    assert durun.show(durun.the_run())["status"] == "succeeded"


def test_what_left_its_group_holds_up_no_cancel_when_the_keeper_is_dead(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'setsid sleep 50 & echo a >> \"$LEDGER\"; sleep 1', next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    os.kill(keeper_of(durun), signal.SIGKILL)
    asked = time.monotonic()
    durun("cancel", durun.the_run(), "--grace", "1s", exit=4)
    assert time.monotonic() - asked < 20
    begun.communicate(timeout=30)


def test_ctrl_c_at_any_moment_of_the_start_up_is_no_fault(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'sleep 5', idempotent: true, next: succeeded}}\n")
    for ms in (*range(5, 125, 10), *range(125, 400, 50)):  # it is short, and longer on a machine with other work to do
        begun = subprocess.Popen(
            [*COMMAND, "start", "plan.yaml"], cwd=durun.folder, env={**durun.env, "TMPDIR": str(durun.folder)}, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        until(lambda pid=begun.pid: b"durun" in Path(f"/proc/{pid}/cmdline").read_bytes())  # before, it is still this test's image
        time.sleep(ms / 1000)
        begun.send_signal(signal.SIGINT)
        said = begun.communicate(timeout=40)[1]
        assert "fault of its own" not in said, (ms, said)
        before = any(word in said for word in ("site", "runpy", "Fatal Python error: init"))  # the interpreter itself was beginning
        assert begun.returncode in (130, -2, 1 if before else 130), (ms, begun.returncode, said)
    assert not list(durun.folder.glob("durun-bug-*"))


def test_all_that_driving_needs_is_there_before_a_resumed_run_begins_anything(durun: Program) -> None:
    durun.plan("""
vars: {i: 0}
start: a
states:
  a: {run: 'test -e "$LEDGER.go"', assign: {i: '${{ vars.i + 1 }}'}, next: succeeded}
output: '${{ vars.i + 1 }}'
""")
    run = durun.start(1)
    (durun.folder / "ledger.go").touch()
    code = (
        "import sys, durun.outbox as o\n"
        "begin, seen = o.Deliverer.begin, []\n"
        "def first(self, *a):\n"
        "    seen.append(set(sys.modules))\n"
        "    return begin(self, *a)\n"
        "o.Deliverer.begin = first\n"
        "from durun.cli import main\n"
        f"sys.argv = ['durun', 'resume', '{run}']\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "print(sorted(m for m in set(sys.modules) - seen[0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=durun.folder, env=durun.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("make", ["mkfifo", "mkdir", "ln -s /no/such/file"])
def test_an_output_file_that_is_no_file_is_an_error_and_not_null(durun: Program, make: str) -> None:
    durun.plan(f"start: a\nstates: {{a: {{run: '{make} \"$DURUN_OUTPUT\"', next: succeeded}}}}\n")
    assert durun.show(durun.start(1))["error"]["name"] == "output_invalid"


def test_a_cancel_that_looked_a_moment_too_early_is_left_to_the_driver_that_came(
    durun: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look says that nobody drives; then somebody does: the run is held, and the cancel becomes a note all the same."""
    from durun.cli import control

    durun.plan("start: a\nstates: {a: {run: 'echo a >> \"$LEDGER\"; sleep 60', next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml", "--id", "r")
    until(durun.lines)
    real, looks = control._left_to_driver, []

    def too_early(*args: object) -> bool:
        looks.append(args)
        return len(looks) > 1 and real(*args)

    monkeypatch.setattr(control, "_left_to_driver", too_early)
    assert control.cancel("r", db=str(durun.db)) == 4
    assert len(looks) == 2
    begun.communicate(timeout=30)
    assert durun.show("r")["status"] == "cancelled"

"""A driver whose keeper is dead holds its command to its time, and to its signs of life, until it has ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import Program, until

SIGNS = {
    "none": "sleep 0.1",
    "printed": "echo x",
    "complained": "echo x >&2",
    "touched": ': > "$DURUN_HEARTBEAT"',
}
PLAN = """
start: a
states:
  a:
    run: 'echo up >> "$LEDGER"; i=0; while [ $i -lt 30 ]; do i=$((i + 1)); SIGN; sleep 0.1; done; echo end >> "$LEDGER"'
    heartbeat: 2s
    next: succeeded
"""


def keeper_of(durun: Program) -> int:
    return next(p for p in durun.processes() if b"keeper.py" in Path(f"/proc/{p}/cmdline").read_bytes())


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("who", ["its driver", "the next driver"])
def test_silence_ends_a_command_and_a_sign_of_life_does_not(durun: Program, sign: str, who: str) -> None:
    durun.plan(PLAN.replace("SIGN", SIGNS[sign]))
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    os.kill(keeper_of(durun), signal.SIGKILL)
    if who == "its driver":
        assert begun.wait(60) == 9
    else:
        begun.kill()
        begun.wait()
        durun("resume", durun.the_run(), exit=9)
    assert durun.lines() == (["up"] if sign == "none" else ["up", "end"])
    assert durun.show(durun.the_run())["reason"] == "in_doubt", "nobody saw how it ended"
    assert durun.processes() == []


def test_a_keeper_that_dies_at_once_is_begun_anew_but_not_for_ever(durun: Program) -> None:
    broken = durun.folder / "python"
    broken.write_text('#!/bin/sh\necho born >> "$LEDGER"\nexit 5\n')
    broken.chmod(0o700)
    durun.plan("start: a\nstates: {a: {run: 'echo a >> \"$LEDGER\"', next: succeeded}}\n")
    code = f"import sys; sys.executable = {str(broken)!r}; from durun.cli import main; main()"
    words = [sys.executable, "-c", code, "start", "plan.yaml", "--id", "r"]
    done = subprocess.run(words, env=durun.env, cwd=durun.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 8, done.stderr
    assert "Input/output error" in done.stderr and "then resume" in done.stderr
    assert durun.lines() == ["born"] * 3
    durun("resume", "r")
    assert durun.lines() == ["born"] * 3 + ["a"]


@pytest.fixture
def dies_before_the_pid(durun: Program) -> list[str]:
    """argv of a durun whose first keeper is killed as soon as its command is there, before it has noted the command's pid."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    python, traced = durun.folder / "python", durun.folder / "traced"
    strace = "strace -qq -D -o /dev/null -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=3"  # who it is, the intent, the pid
    python.write_text(f'#!/bin/sh\nmkdir {traced} 2>/dev/null || exec {sys.executable} "$@"\nexec {strace} {sys.executable} "$@"\n')
    python.chmod(0o700)
    return [sys.executable, "-c", f"import sys; sys.executable = {str(python)!r}; from durun.cli import main; main()"]


@pytest.mark.parametrize("limit", ["heartbeat: 1s", "timeout: 1s", "cancel"])
def test_a_command_whose_pid_was_not_noted_is_held_to_its_limits_too(
    durun: Program, dies_before_the_pid: list[str], limit: str
) -> None:
    more = "" if limit == "cancel" else f"{limit}, "
    durun.plan(
        f'start: a\nstates: {{a: {{run: \'echo up >> "$LEDGER"; sleep 50; echo end >> "$LEDGER"\', {more}next: succeeded}}}}\n'
    )
    begun = subprocess.Popen(
        [*dies_before_the_pid, "start", "plan.yaml"],
        env=durun.env,
        cwd=durun.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until(durun.lines)
    if limit == "cancel":
        durun("cancel", durun.the_run(), "--grace", "1s", exit=4)
    assert begun.wait(40) == (4 if limit == "cancel" else 9), begun.stderr.read()
    begun.stderr.close()
    assert durun.lines() == ["up"]
    assert durun.processes() == []

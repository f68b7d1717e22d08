"""A driver whose keeper is dead holds its command to its time, and to its signs of life, until it has ended."""

from __future__ import annotations

import os
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

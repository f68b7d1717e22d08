"""A real driver that looks ahead: it begins the sooner what it has foreseen, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Driving

from durun import engine as engines
from durun.machine.model import Status

STEPS = """
durun: 1
name: steps
vars: {n: 0}
start: more
states:
  more: {choice: [{when: vars.n < 4, next: step}, {next: succeeded}]}
  step: {run: 'echo "$N" >>ledger; sleep 0.1', env: {N: '${{ vars.n }}'}, assign: {n: '${{ vars.n + 1 }}'}, next: more}
"""
CAUGHT = """
durun: 1
name: caught
start: a
states:
  a: {run: exit 3, next: b, catch: [{on: any, next: c}]}
  b: {run: echo b >>ledger, next: succeeded}
  c: {run: echo c >>ledger, next: d}
  d: {run: echo d >>ledger, next: succeeded}
"""


def ledger(folder: Path) -> list[str]:
    return (folder / "ledger").read_text().split()


def test_a_step_begins_by_what_was_foreseen_while_the_one_before_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    fulfilled = engines.fulfilled
    monkeypatch.setattr(engines, "fulfilled", lambda *given: used.append(given[1].effect) or fulfilled(*given))
    driving = Driving(tmp_path)
    engine = driving.start(STEPS)
    engine.drive()
    driving.leave()
    assert engine.at.run.status is Status.SUCCEEDED
    assert used and set(used) <= {1, 2, 3}, "on a machine with other work an end may come first; the last leads to no other step"
    assert ledger(tmp_path) == ["0", "1", "2", "3"]


def test_what_begins_instead_is_what_is_begun_though_it_has_the_same_number(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    engine = driving.start(CAUGHT)
    engine.drive()
    driving.leave()
    assert engine.at.run.status is Status.SUCCEEDED and ledger(tmp_path) == ["c", "d"]

"""Random plans under random kills, held to their promises: the bounded part of scripts/torture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
SCRIPTS = Path(__file__).parents[2] / "scripts"
SEED = os.environ.get("TORTURE_SEED", "11")


def test_runs_of_a_random_plan_survive_random_deaths() -> None:
    words = [sys.executable, str(SCRIPTS / "torture.py"), "--seed", SEED, "--rounds", "1", "--each", "1.5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rounds" in done.stdout


def test_what_was_lost_or_repeated_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import torture

    plan = {"durun": 1, "name": "torture", "pins": {"env": ["LEDGER"]}, "start": "a", "states": {}}
    plan["states"] = {"a": {"run": ["./do", "x:a", "0", "0"], "next": "succeeded"}}
    one = torture.Round(tmp_path / "round", "1", 0)
    assert one.live(plan) == []
    ledger, line = one.durun.ledger, one.durun.ledger.read_text()
    key = line.split()[1]
    ledger.write_text(line.splitlines()[0] + "\n" + line)
    assert any(f"x:a with the key {key} has happened 2 times" in what for what in one.of_ledgers())
    ledger.write_text("".join(one for one in line.splitlines(keepends=True) if key not in one))
    assert any(f"run a with the key {key} is done, and has not happened" in what for what in one.of_ledgers())
    ledger.write_text(line + "x:b another 1 r0\n")
    assert any("no effect has its key another" in what for what in one.of_ledgers())
    assert len(list(torture.smaller(torture.Drawn(torture.Random("1 plan"), "http://far").plan()))) > 1

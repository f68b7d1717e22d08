"""Random plans under random kills, held to their promises: the bounded part of scripts/torture."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_the_plan_that_fails_is_made_as_small_as_it_still_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import torture

    class Picky(torture.Round):
        """A round that dislikes every plan with a wait somewhere in it: nothing is run."""

        def live(self, plan: torture.Plan | None = None) -> list[str]:
            drawn = self.write(plan)
            self.far.close()
            if self.disk is not None:
                self.disk.gone()
            kinds = [state for level in torture.levels(drawn) for state in level["states"].values() if "wait" in state]
            self.wrong = ["there is a wait"] if kinds else []
            return self.wrong

    monkeypatch.setattr(torture, "Round", Picky)
    seed = next(
        n for n in range(100) if len(json.dumps(drawn_by(torture, n))) > 3000 and '"wait"' in json.dumps(drawn_by(torture, n))
    )
    args = argparse.Namespace(seed=seed, each=0)
    assert torture.shrink(tmp_path, args, None) == 1
    said = capsys.readouterr().out.splitlines()
    assert "there is a wait" in said
    smallest = json.loads((Path(said[-1].rpartition(" ")[2]).parent / "drawn.json").read_text())
    assert sum(len(level["states"]) for level in torture.levels(smallest)) <= 3, smallest


def drawn_by(torture: Any, seed: int) -> Any:
    return torture.Drawn(torture.Random(f"{seed} plan"), "http://far").plan()

"""Broken and odd inputs end in a word of what is wrong: the bounded part of scripts/fuzz."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
SCRIPTS = Path(__file__).parents[2] / "scripts"
SEED = os.environ.get("FUZZ_SEED", "1")


def fuzz(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "fuzz.py"), "--seed", SEED, *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " inputs " in done.stdout


def test_a_broken_plan_an_odd_expression_and_odd_words_are_answered() -> None:
    fuzz("--count", "5", "--kind", "plan", "--kind", "expression", "--kind", "words")


def test_a_payload_is_kept_as_it_is_and_a_damaged_file_is_answered_for() -> None:
    fuzz("--count", "1", "--kind", "payload", "--kind", "bytes")


def test_what_hangs_dies_or_has_a_fault_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in ("DURUN_DB", "LEDGER", "NO_COLOR", "COLUMNS", "TMPDIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # what it sets is taken back
    import fuzz as script

    monkeypatch.setattr(script, "LONG", 0.2)
    durun = script.Forked(tmp_path)
    assert "hangs" in " ".join(script.of_call(durun.fork(lambda: time.sleep(60))))
    assert "exit -9" in " ".join(script.of_call(durun.fork(lambda: os.kill(os.getpid(), 9))))
    assert "ZeroDivisionError" in " ".join(script.of_call(durun.fork(lambda: print(1 / 0))))
    assert "no JSON" in " ".join(script.of_call(script.Done(0, "{", ""), ("--json",)))

"""A real driver and a real keeper, killed or failing at their calls to the system: the bounded part of scripts/faults.

What is marked there is run whole; of all the rest a part that a seed draws. A violation names the one case that repeats it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import COMMAND, Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs strace and /proc")
FAULTS = Path(__file__).parents[2] / "scripts" / "faults.py"
SEED = os.environ.get("FAULTS_SEED", "1")


def faults(*words: str) -> str:
    done = subprocess.run([sys.executable, str(FAULTS), *words], capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_survives_a_kill_and_a_failing_disk_where_most_is_at_stake() -> None:
    said = faults("--marked")
    everything = said.splitlines()[-2].split()
    assert everything[0] == "everything" and int(everything[1]) >= 50
    assert int(everything[2]) >= 45, f"faults that were not met prove nothing:\n{said}"


def test_a_run_survives_whatever_fault_a_seed_draws() -> None:
    assert int(faults("--seed", SEED, "--budget", "6").splitlines()[-2].split()[1]) > 0


def test_effects_of_every_kind_survive_whatever_fault_a_seed_draws() -> None:
    others = [
        word for kind in ("http", "undo", "background", "deliver", "once", "map", "child", "work") for word in ("--kind", kind)
    ]
    assert int(faults(*others, "--seed", SEED, "--budget", "5", "--jobs", "1").splitlines()[-2].split()[1]) > 0


def test_much_output_grows_neither_driver_nor_keeper_nor_database() -> None:
    assert "database" in faults("--output", "256M")


def test_a_log_that_the_disk_does_not_give_is_refused_without_a_traceback(durun: Program) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    durun.plan("start: a\nstates: {a: {run: [echo, said], next: succeeded}}\n")
    run = durun.start()
    log = next(Path(f"{durun.db}.d").glob("*/*.out"))
    words = ["strace", "-o", "/dev/null", "-P", str(log), "-e", "inject=openat:error=EIO", *COMMAND, "logs", run]
    done = subprocess.run(words, env=durun.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr, str(log) in done.stderr) == (8, False, True), done.stderr
    assert durun("logs", run).stdout == "said\n"

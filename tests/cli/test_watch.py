"""watch, where its output is no terminal: the lines its driver says, and the exit code of the run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from program import Program, until

from durun.cli import watch as watch_of

TWO = """
start: a
states:
  a: {run: 'echo a >> "$LEDGER"; until [ -e "$LEDGER.a" ]; do sleep 0.05; done', next: b}
  b: {run: 'echo b >> "$LEDGER"; until [ -e "$LEDGER.b" ]; do sleep 0.05; done; exit $(cat "$LEDGER.b")', next: succeeded}
"""


def begun(durun: Program, *args: str) -> subprocess.Popen[str]:
    durun.plan(TWO)
    driver = durun.begin("start", "plan.yaml", "--id", "r", *args)
    until(durun.lines)
    return driver


def watching(durun: Program) -> tuple[subprocess.Popen[str], str]:
    """A watch that has seen where the run stands, and its first line."""
    watch = durun.begin("watch", "r")
    assert watch.stderr is not None
    return watch, watch.stderr.readline().rstrip("\n")


@pytest.mark.parametrize(("exit", "code"), [("0", 0), ("3", 1)])
def test_watch_says_each_move_as_the_driver_does_and_exits_by_the_run(durun: Program, exit: str, code: int) -> None:
    driver = begun(durun)
    watch, first = watching(durun)
    assert first == "run r is running in state a"
    (durun.folder / "ledger.b").write_text(exit)
    (durun.folder / "ledger.a").touch()
    assert watch.wait(60) == code
    out, said = watch.communicate()
    assert out == ""
    assert said == driver.communicate()[1]
    assert said.splitlines()[0] == "a: done, on to b"


def test_watch_of_a_run_that_has_ended_says_how(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: ['false'], next: succeeded}}\n")
    run = durun.start(1)
    said = durun("watch", run, exit=1)
    assert said.stderr.splitlines() == [f"run {run} failed in state a: exit:1: exit 1"] and said.stdout == ""
    durun("watch", "nobody", exit=5)


def test_ctrl_c_ends_watching_alone(durun: Program) -> None:
    driver = begun(durun)
    watch, _ = watching(durun)
    watch.send_signal(signal.SIGINT)
    assert watch.wait(60) == 130
    assert watch.stderr is not None
    assert watch.stderr.read() == "run r is running; it goes on unwatched\n"
    assert driver.poll() is None and durun.show("r")["status"] == "running"
    (durun.folder / "ledger.b").write_text("0")
    (durun.folder / "ledger.a").touch()
    assert driver.wait(60) == 0


def test_watch_ends_where_a_person_must_act(durun: Program) -> None:
    begun(durun)
    watch, _ = watching(durun)
    asked = durun.begin("pause", "r")
    until(lambda: durun.show("r")["status"] == "paused")
    (durun.folder / "ledger.a").touch()
    asked.communicate(timeout=60)
    assert watch.wait(60) == 9
    assert watch.stderr is not None and "durun resume r" in watch.stderr.read()


def test_a_run_that_nobody_drives_is_said_to_be_so_and_is_followed_where_somebody_takes_it_up(durun: Program) -> None:
    driver = begun(durun)
    watch, _ = watching(durun)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert watch.stderr is not None
    assert watch.stderr.readline() == "nobody drives run r, it is interrupted: `durun resume r` goes on\n"
    (durun.folder / "ledger.a").touch()
    (durun.folder / "ledger.b").write_text("0")
    durun("resume", "r", "-q")
    assert watch.wait(60) == 0
    assert watch.stderr.read().splitlines() == ["a: done, on to b", "b: done", "run r succeeded"]


def test_a_run_that_nobody_takes_up_is_left_with_the_command_that_goes_on(durun: Program) -> None:
    driver = begun(durun)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    said = durun("watch", "r", exit=3).stderr
    assert said.splitlines()[-2:] == ["run r is interrupted", "  nobody drives it: durun resume r"]


def test_watching_writes_nothing(durun: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and what lies beside it are as they were, but for SQLite's own two."""
    durun.plan("start: a\nstates: {a: {wait: 300d, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r", "--no-wait", exit=3)

    def there() -> dict[str, bytes]:
        files = [durun.db, *Path(f"{durun.db}.d").rglob("*")]
        return {str(p): p.read_bytes() for p in files if p.is_file()}

    before = there()
    monkeypatch.setattr(watch_of, "PATIENCE", 3 * watch_of.LOOK)
    assert watch_of.watch("r", db=str(durun.db)) == 3
    assert there() == before

"""logs, and logs --follow: what the commands wrote, as it was written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from program import COMMAND, Program, until

from durun.cli.look import logs

TALKS = """
start: a
states:
  a: {run: 'echo a1; echo oops >&2; until [ -e "$LEDGER.1" ]; do sleep 0.05; done; echo a2; exit 3', retry: {max_attempts: 2, initial_interval: 1ms}, catch: [{on: [exit], next: b}], next: b}
  b: {run: 'echo b1; until [ -e "$LEDGER.2" ]; do sleep 0.05; done; echo b2', next: rest}
  rest: {wait: 1ms, next: c}
  c: {run: 'printf "no newline"', next: succeeded}
"""


def test_following_prints_attempt_after_attempt_until_the_run_has_ended(durun: Program) -> None:
    durun.plan(TALKS)
    driven = durun.begin("start", "plan.yaml")
    run = until(lambda: durun("ls", "-q").stdout.strip())
    follows = durun.begin("logs", run, "-f")
    assert follows.stdout is not None
    assert sorted(follows.stdout.readline() for _ in range(2)) == ["a1\n", "oops\n"]  # before the attempt has ended
    (durun.folder / "ledger.1").touch()
    assert [follows.stdout.readline() for _ in range(4)] == ["a2\n", "a1\n", "a2\n", "oops\n"]
    assert follows.stdout.readline() == "b1\n" and follows.poll() is None
    (durun.folder / "ledger.2").touch()
    rest, said = follows.communicate(timeout=30)
    assert (follows.returncode, rest, said) == (0, "b2\nno newline", "")
    assert driven.wait(30) == 0
    assert durun("logs", run, "-f").stdout == durun("logs", run).stdout == "a1\na2\noops\na1\na2\noops\nb1\nb2\nno newline"
    assert durun("logs", run, "b", "-f").stdout == "b1\nb2\n"


def test_following_ends_by_ctrl_c_with_130_and_touches_nothing(durun: Program) -> None:
    durun.plan(TALKS)
    driven = durun.begin("start", "plan.yaml")
    run = until(lambda: durun("ls", "-q").stdout.strip())
    follows = durun.begin("logs", run, "-f")
    assert follows.stdout is not None and follows.stdout.readline()
    follows.send_signal(signal.SIGINT)
    assert follows.wait(30) == 130
    for n in (1, 2):
        (durun.folder / f"ledger.{n}").touch()
    assert driven.wait(30) == 0


def test_following_a_silent_command_ends_quietly_when_nobody_reads_any_more(durun: Program) -> None:
    durun.plan(TALKS)
    driven = durun.begin("start", "plan.yaml")
    run = until(lambda: durun("ls", "-q").stdout.strip())
    for command in ("logs", "history"):
        script = f'{" ".join(COMMAND)} {command} {run} -f | head -n1; echo "${{PIPESTATUS[0]}}"'
        done = subprocess.run(["bash", "-c", script], cwd=durun.folder, env=durun.env, capture_output=True, text=True, timeout=30)
        assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""
    for n in (1, 2):
        (durun.folder / f"ledger.{n}").touch()
    assert driven.wait(30) == 0


def test_following_goes_on_over_a_crash_and_a_resume(durun: Program) -> None:
    durun.plan(
        'start: a\nstates: {a: {run: \'echo one; [ -e "$LEDGER.go" ] || kill -9 $PPID; [ -e "$LEDGER.go" ] || sleep 60; echo two\', idempotent: true, next: succeeded}}\n'
    )
    begun = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.db.exists() and "one" in durun("logs", "r", exit=None).stdout)
    follows = subprocess.Popen(
        [sys.executable, "-m", "durun", "logs", "r", "-f", "--db", durun.db], cwd=durun.folder, stdout=subprocess.PIPE, text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("DURUN_")},
    )  # fmt: skip
    assert follows.stdout is not None and follows.stdout.readline() == "one\n"
    durun.kill_all()
    begun.communicate()
    (durun.folder / "ledger.go").touch()
    durun("resume", "r")
    rest, _ = follows.communicate(timeout=30)
    assert (follows.returncode, rest) == (0, "one\ntwo\n")


def test_logs_as_one_document(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo out; printf \"\\377\" >&2; exit 1', next: succeeded}}\n")
    run = durun.start(1)
    found = json.loads(durun("logs", run, "--json").stdout)
    assert found == {
        "run": run,
        "logs": [{"path": "a", "visit": 1, "attempt": 1, "stdout": "out\n", "stderr": "\ufffd", "under_way": False}],
    }
    durun("logs", run, "--json", "-f", exit=2)


def test_logs_as_one_document_have_what_is_under_way_as_far_as_it_has_written(durun: Program) -> None:
    durun.plan(TALKS)
    driven = durun.begin("start", "plan.yaml", "--id", "r")

    def documents(*words: str) -> list[tuple[str, int, str, str, bool]]:
        found = json.loads(durun("logs", "r", "--json", *words, exit=None).stdout).get("logs", [])
        return [(e["path"], e["attempt"], e["stdout"], e["stderr"], e["under_way"]) for e in found]

    until(lambda: documents() == [("a", 1, "a1\n", "oops\n", True)])
    (durun.folder / "ledger.1").touch()
    ended = [("a", n, "a1\na2\n", "oops\n", False) for n in (1, 2)]
    until(lambda: documents() == [*ended, ("b", 1, "b1\n", "", True)])
    assert documents("a") == ended
    (durun.folder / "ledger.2").touch()
    driven.communicate(timeout=30)
    assert [e[4] for e in documents()] == [False] * 4


def test_what_wrote_nothing_is_said(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    run = durun.start()
    for words in (["logs", run], ["logs", run, "a"], ["logs", run, "-f"]):
        done = durun(*words)
        assert done.stdout == "" and run in done.stderr


def test_a_state_that_there_is_not_is_refused_and_those_there_are_are_named(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: 'echo a', catch: [{on: [any], next: never}], next: fan}\n  never: {run: 'true', next: succeeded}\n  fan:\n    parallel:\n"
        "      branches:\n        left: {start: pull, states: {pull: {run: 'echo p', next: succeeded}}}\n    next: succeeded\n"
    )
    run = durun.start()
    for name in ("nosuch", "right.pull", "pul"):
        said = durun("logs", run, name, exit=10)
        assert said.stdout == "" and f"no state {name!r}" in said.stderr and "a, fan, never" in said.stderr
    assert json.loads(durun("logs", run, "nosuch", "--json", exit=10).stdout)["error"]["exit"] == 10
    assert "has written nothing" in durun("logs", run, "never").stderr
    assert durun("logs", run, "pull").stdout == durun("logs", run, "fan.left").stdout == "p\n"


def test_a_database_that_was_named_and_is_not_there_is_said_to_be(durun: Program) -> None:
    for more in ({}, {"env": {"DURUN_DB": "/no/such.db"}}):
        said = durun("ls", *(() if more else ("--db", "/no/such.db")), **more)
        assert said.stdout == "" and "there is no database at /no/such.db" in said.stderr
    said = durun("ls", "--json", "--db", "/no/such.db")
    assert json.loads(said.stdout)["runs"] == []


def test_whoever_follows_a_database_that_was_taken_away_is_told_so(durun: Program) -> None:
    durun.plan(TALKS)
    driven = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.seen("r") and durun("logs", "r").stdout)
    looks = [durun.begin(*words) for words in (("logs", "r", "-f"), ("history", "r", "-f"), ("wait", "r"), ("watch", "r"))]
    assert all(one.stdout is not None and one.stdout.readline() for one in looks[:2])
    assert looks[3].stderr is not None and looks[3].stderr.readline()
    durun.db.rename(durun.folder / "elsewhere.db")
    for one in looks:
        said = one.communicate(timeout=60)[1]
        assert one.returncode == 8 and "is gone" in said and "run r is looked at no more" in said, said
    (durun.folder / "ledger.1").touch()
    assert driven.wait(60) == 8


def test_no_attempt_is_missed_that_ends_while_the_logs_are_read(
    durun: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo said; until [ -e \"$LEDGER.go\" ]; do sleep 0.05; done', next: succeeded}}\n")
    for n, asked in enumerate(("FROM history", "status = 'begin'")):
        driven = durun.begin("start", "plan.yaml", "--id", f"r{n}")
        until(lambda id=f"r{n}": durun.seen(id) and durun("logs", id).stdout)
        ends = ends_at(asked, driven, durun.folder / "ledger.go")
        monkeypatch.setattr(apsw, "connection_hooks", [lambda db, ends=ends: setattr(db, "exec_trace", ends)])
        assert logs(f"r{n}", db=str(durun.db)) == 0
        monkeypatch.undo()
        assert driven.returncode == 0, "it has ended in between"
        assert capfd.readouterr().out == "said\n"
        (durun.folder / "ledger.go").unlink()


def ends_at(asked: str, driven: subprocess.Popen[str], go: Path) -> Callable[[apsw.Cursor, str, Any], bool]:
    """What has a run end just before something is asked of its file."""

    def ends(_: apsw.Cursor, sql: str, __: Any) -> bool:
        if asked in sql and driven.poll() is None:
            go.touch()
            driven.communicate(timeout=60)
        return True

    return ends


def test_what_a_command_wrote_whose_end_is_not_stored_yet_is_printed(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo said; until [ -e \"$LEDGER.go\" ]; do sleep 0.05; done', next: succeeded}}\n")
    driven = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.seen("r") and durun("logs", "r").stdout)
    driven.kill()
    driven.communicate()
    (durun.folder / "ledger.go").touch()
    until(lambda: not durun.processes())  # its keeper has noted the end
    assert durun("logs", "r").stdout == "said\n"
    (found,) = json.loads(durun("logs", "r", "--json").stdout)["logs"]
    assert (found["stdout"], found["under_way"]) == ("said\n", False)

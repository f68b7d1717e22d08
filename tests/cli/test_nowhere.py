"""Where there is no database: one table of all commands, what each of them says then, and that none of them makes one by looking."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from program import Program

from durun.cli.reader import COMMANDS, function, guarded, read

PLAN = "durun: 1\nname: p\nstart: a\nstates: {a: {run: 'true', next: succeeded}}\n"
NO_RUN = [
    "show r", "history r", "history r -f", "logs r", "logs r a -f", "output r", "output r a", "wait r", "wait r --timeout 1s", "watch r",
    "report r", "graph r", "cancel r", "cancel r --compensate", "pause r", "resolve r --fail", "resolve r a --undone", "compensate r",
    "approve r", "reject r", "signal r go", "resume r", "resume r s", "resume r --detach", "outbox ls r", "outbox show r:1",
    "outbox retry r", "outbox drop r:1", "outbox deliver r", "rewind r a --undo", "migrate r plan.yaml", "db prune r",
]  # fmt: skip
NOTHING = ["ls", "ls --all", "inbox", "outbox ls", "outbox deliver", "resume --all", "resume --all --detach", "work --once"]
THE_FILE = ["db check", "db backup b.db", "db prune", "drain p", "pause --all", "pause --plan p"]  # it is what they are about
APART = {  # what makes a database, or has no use for one
    "start", "once", "check", "db path", "db restore", "docs", "init", "schema", "simulate", "graph",
}  # fmt: skip


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plan, and the database that is not there."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURUN_DB", str(tmp_path / "state" / "runs.db"))
    return tmp_path


def said(line: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    words = line.split()
    name = " ".join(words[:2]) if words[0] in ("db", "outbox") else words[0]
    act = function(name)
    given = read(act, [*words[len(name.split()) :], *more])
    assert given is not None, line
    code = guarded(lambda: act(**given), as_json="--json" in more)
    return code, *capsys.readouterr()


def test_every_command_is_in_the_table() -> None:
    named = {" ".join(line.split()[:2]) if line.split()[0] in ("db", "outbox") else line.split()[0]
             for line in (*NO_RUN, *NOTHING, *THE_FILE)}  # fmt: skip
    assert named | APART == set(COMMANDS)


@pytest.mark.parametrize("line", NO_RUN)
def test_a_run_that_is_looked_for_is_not_there_and_the_file_is_named(
    line: str, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(line, capsys)
    assert (code, out) == (5, ""), err
    assert f"no database at {nowhere / 'state' / 'runs.db'}" in err and err.count("\n") == 1
    assert os.listdir(nowhere) == ["plan.yaml"]


@pytest.mark.parametrize("line", NOTHING)
def test_there_is_nothing_to_list_or_to_do_and_that_is_said(line: str, nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(line, capsys)
    assert (code, out) == (0, "")
    assert f"there is no database at {nowhere / 'state' / 'runs.db'}: " in err
    code, out, err = said(line, capsys, "--json")
    assert code == 0 and all(not value for name, value in json.loads(out).items() if name != "told"), out
    assert os.listdir(nowhere) == ["plan.yaml"]


@pytest.mark.parametrize("line", THE_FILE)
def test_what_is_about_the_file_itself_cannot_do_without_it(line: str, nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(line, capsys)
    assert (code, out) == (8, "") and f"there is no database at {nowhere / 'state' / 'runs.db'}" in err
    assert os.listdir(nowhere) == ["plan.yaml"]


def test_the_program_exits_so_and_one_that_is_there_and_cannot_be_used_is_still_another_thing(durun: Program) -> None:
    assert json.loads(durun("show", "r", "--json", exit=5).stdout)["error"]["code"] == "no_such_run"
    durun.db.mkdir()
    for line in (*NOTHING[:3], "show r", "resume --all"):
        assert "is no file" in durun(*line.split(), exit=8).stderr

"""What a shell may hand over that is no text: refused in one line, never changed in silence, never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Any

import pytest
from program import COMMAND, Program

PLAN = "start: a\nstates: {a: {run: 'true', next: succeeded}}\n"


def run(durun: Program, *words: bytes, exit: int, env: dict[bytes, bytes] | None = None, **more: Any) -> str:
    all_env = {os.fsencode(k): os.fsencode(v) for k, v in durun.env.items()} | (env or {})
    argv = [*map(os.fsencode, COMMAND), *words]
    done = subprocess.run(argv, cwd=more.pop("cwd", durun.folder), env=all_env, capture_output=True, timeout=60, **more)
    said = done.stderr.decode("utf-8", "replace")
    assert done.returncode == exit, said
    assert "Traceback" not in said
    return said


def test_a_pinned_value_that_is_no_text_is_refused(durun: Program) -> None:
    durun.plan("pins: {env: [STRANGE]}\n" + PLAN)
    assert "STRANGE" in run(durun, b"start", b"plan.yaml", exit=7, env={b"STRANGE": b"a\xffb"})
    assert not durun.db.exists()


def test_a_path_variable_that_is_no_text_is_refused(durun: Program) -> None:
    durun.plan(PLAN)
    path = os.fsencode(durun.env["PATH"]) + b":/x\xff"
    assert "PATH" in run(durun, b"start", b"plan.yaml", exit=7, env={b"PATH": path})


def test_other_bytes_in_the_environment_reach_the_command_as_they_are(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'printf %s \"$OTHER\" > other', next: succeeded}}\n")
    run(durun, b"start", b"plan.yaml", exit=0, env={b"OTHER": b"a\xffb"})
    assert (durun.folder / "other").read_bytes() == b"a\xffb"


def test_a_working_directory_that_is_no_text_or_gone_is_refused(durun: Program) -> None:
    plan = durun.plan(PLAN)
    where = os.fsencode(durun.folder) + b"/w\xff"
    os.mkdir(where)
    run(durun, b"start", os.fsencode(plan), exit=7, cwd=where)


@pytest.mark.parametrize(
    "words", [[b"show", b"\xff"], [b"resume", b"\xff"], [b"ls", b"--plan", b"\xff"], [b"ls", b"--db", b"\xff"]]
)
def test_arguments_that_are_no_text_are_refused(durun: Program, words: list[bytes]) -> None:
    durun.plan(PLAN)
    durun.start()
    run(durun, *words, exit=2)


@pytest.mark.parametrize("encoding", [b"ascii", b"latin-1"])
def test_what_is_written_is_utf_8_whatever_the_locale_says(durun: Program, encoding: bytes) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo é→', output: text, next: succeeded}}\noutput: '${{ states.a.output }}'\n")
    id = durun.start()
    env = durun.env | {"PYTHONIOENCODING": encoding.decode()}
    for words in (["output", id], ["show", id], ["show", id, "--json"]):
        done = subprocess.run([*COMMAND, *words], cwd=durun.folder, env=env, capture_output=True, timeout=60)
        assert done.returncode == 0 and "é→".encode() in done.stdout, done.stderr


@pytest.mark.parametrize("files", [32, 64])
def test_a_process_that_may_open_few_files_can_drive_a_run(durun: Program, files: int) -> None:
    durun.plan(PLAN)
    limit = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *COMMAND]
    for words in (["start", "plan.yaml"], ["start", "plan.yaml", "--id", "away", "--detach"], ["wait", "away"]):
        done = subprocess.run([*limit, *words], cwd=durun.folder, env=durun.env, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def test_an_input_that_is_no_text_is_refused(durun: Program) -> None:
    durun.plan("input: {who: string}\n" + PLAN)
    run(durun, b"start", b"plan.yaml", b"-i", b"who=\xff", exit=7)


def test_a_bug_is_one_line_and_a_file(durun: Program) -> None:
    code = (
        "import sys; from durun.cli import main, look\n"
        "def ls(**k): raise ZeroDivisionError('on purpose')\n"
        "ls.__kwdefaults__ = {}\n"
        "look.ls = ls; sys.argv = ['durun', 'ls']; main()\n"
    )
    import sys

    env = {**durun.env, "TMPDIR": str(durun.folder)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "on purpose" in done.stderr
    assert "Traceback" in next(durun.folder.glob("durun-bug-*.log")).read_text()


def test_a_file_given_as_an_input_that_is_no_text_is_refused(durun: Program) -> None:
    durun.plan("input: {who: string}\n" + PLAN)
    (durun.folder / "who.bin").write_bytes(b"ab\xffcd")
    assert "byte 2" in durun("start", "plan.yaml", "-i", "who=@who.bin", exit=7).stderr


def test_an_integer_of_five_thousand_digits_can_be_read_again(durun: Program) -> None:
    durun.plan(
        'input: {n: integer}\nstart: a\nstates: {a: {run: \'printf "%05000d" 0 | tr 0 9 > "$DURUN_OUTPUT"\', next: succeeded}}\n'
    )
    (durun.folder / "n").write_text("7" * 5000)
    run_id = durun("start", "plan.yaml", "-i", "n=@n").stdout.split()[0]
    assert durun.show(run_id)["input"]["n"] == int("7" * 5000)
    assert durun("output", run_id, "a").stdout.strip() == "9" * 5000


def test_a_stdout_that_is_full_is_said_in_one_line(durun: Program) -> None:
    durun.plan(PLAN)
    run_id = durun.start()
    for words in (
        ["ls"],
        ["ls", "--json"],
        ["show", run_id],
        ["report", run_id],
        ["schema"],
        ["graph", "plan.yaml"],
        ["outbox", "ls", "--json"],
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*COMMAND, *words], cwd=durun.folder, env=durun.env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "stdout cannot be written" in done.stderr


def test_a_plan_by_a_relative_path_in_a_directory_that_is_gone_is_refused(durun: Program) -> None:
    durun.plan(PLAN)
    script = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "start", "../plan.yaml"],
        cwd=durun.folder,
        env=durun.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7 and "fault of its own" not in done.stderr, done.stderr


def test_a_stdin_that_is_closed_is_an_empty_one(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: [cat], next: succeeded}}\n")
    words = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "start", "plan.yaml"]
    done = subprocess.run(words, cwd=durun.folder, env=durun.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, f"a: done\nrun {durun.the_run()} succeeded\n")


def hint(said: str, command: str) -> list[str]:
    """The command that a message gives between backticks, as a shell reads it."""
    [found] = [text for text in said.split("`")[1::2] if text.startswith(command)]
    return shlex.split(found)


def test_a_command_that_names_a_path_can_be_copied_whatever_is_in_it(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r")
    (folder := durun.folder / "it's $(here) a\nb").mkdir()
    durun("db", "backup", folder / "x.db")
    again = hint(durun("db", "backup", folder / "y.db").stderr, "durun db restore")
    assert again == ["durun", "db", "restore", str(folder / "y.db")]
    durun(*again[1:])
    folder.chmod(0o777)
    said = durun("start", "plan.yaml", "--db", folder / "z.db").stderr
    assert hint(said, "chmod") == ["chmod", "o-w", str(folder)]


def test_a_command_that_names_an_item_by_its_label_can_be_copied(durun: Program) -> None:
    durun.plan(
        "start: m\nstates:\n  m:\n    map: {items: '[0]', label: \"it's & that\", start: k, states: {k: {run: 'kill -9 $$', next: succeeded}}}\n"
        "    next: succeeded\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=1)
    said = hint(durun("migrate", "r", "plan.yaml", exit=10).stderr, "durun resolve")
    assert said[:5] == ["durun", "resolve", "r", "m[it's & that].k", "--happened"]
    durun(*said[1:5])

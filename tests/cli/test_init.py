"""Plans to begin with: listed, copied without overwriting anything, and run as they say themselves."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from program import COMMAND, Program

import durun as package

TEMPLATES = Path(package.__file__).parent / "templates"
NAMES = ["book-trip", "hello", "migrate-code", "support-queue"]


def test_the_templates_are_listed_with_what_they_do(durun: Program) -> None:
    assert [line.split()[0] for line in durun("init").stdout.splitlines()] == NAMES
    listed = json.loads(durun("init", "--json").stdout)["templates"]
    assert [one["template"] for one in listed] == NAMES and all(one["title"].endswith(".") for one in listed)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_copied_whole_and_is_a_plan(durun: Program, name: str) -> None:
    said = json.loads(durun("init", name, "--json").stdout)
    copy = durun.folder / name
    assert sorted(said["files"]) == sorted(os.listdir(copy)) and said["folder"] == str(copy)
    for file in said["files"]:
        assert (copy / file).read_bytes() == (TEMPLATES / name / file).read_bytes()
        assert (copy / file).stat().st_mode & stat.S_IXUSR == (TEMPLATES / name / file).stat().st_mode & stat.S_IXUSR
    assert any(line.startswith("durun start plan.yaml") for line in said["next"])
    assert durun("check", copy / "plan.yaml").returncode == 0


def test_nothing_is_overwritten_and_an_empty_folder_will_do(durun: Program) -> None:
    full, empty = durun.folder / "full", durun.folder / "empty"
    full.mkdir(), empty.mkdir()
    (full / "plan.yaml").write_text("mine")
    assert "full is not empty" in durun("init", "hello", "full", exit=10).stderr
    assert (full / "plan.yaml").read_text() == "mine" and os.listdir(full) == ["plan.yaml"]
    assert durun("init", "hello", ".", cwd=empty).stdout == "./plan.yaml\n"
    assert "cannot be filled" in durun("init", "hello", "full/plan.yaml", exit=10).stderr
    assert "there are book-trip, hello" in durun("init", "hallo", exit=2).stderr


def test_a_copy_that_fails_half_way_leaves_nothing(durun: Program) -> None:
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"  # the plan fits, the service does not
        "from durun.cli import main; main(['init', 'book-trip', 'trip'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=durun.folder, env=durun.env, capture_output=True, text=True)
    assert done.returncode == 10 and "trip cannot be filled" in done.stderr
    assert not (durun.folder / "trip").exists()


def test_hello_runs_as_its_comment_says(durun: Program) -> None:
    said = durun("init", "hello")
    then = [line.strip() for line in said.stderr.splitlines() if line.startswith("  ")]
    assert then[0] == "cd hello" and then[-1] == "durun start plan.yaml -i who=ann"
    durun_here = " ".join(COMMAND)
    lines = [line.replace("durun ", f"{durun_here} ", 1) for line in then[:-1]] + [
        f"{durun_here} start plan.yaml -i who=ann --id a"
    ]
    done = subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=durun.folder, env=durun.env, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    durun("approve", "a", "--resume", cwd=durun.folder / "hello")
    assert (durun.folder / "hello" / "greetings.txt").read_text() == "hello, ann [a]\n"
    assert durun("output", "a").stdout == "hello, ann\n"


def test_book_trip_runs_as_its_comment_says(durun: Program) -> None:
    then = json.loads(durun("init", "book-trip", "--json").stdout)["next"]
    lines = [line.partition("  #")[0].rstrip("& ") for line in then]
    service, export, start = (
        line.replace("python3 ", f"{sys.executable} ").replace("durun ", " ".join(COMMAND) + " ") for line in lines
    )
    far_side = subprocess.Popen(
        shlex.split(service.replace("8765", "0")),
        cwd=durun.folder / "book-trip",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert far_side.stdout is not None
    export = export.replace("http://127.0.0.1:8765", far_side.stdout.readline().strip())  # whatever port was free
    done = subprocess.run(
        ["sh", "-ec", f"{export}\n{start}"], cwd=durun.folder / "book-trip", env=durun.env, capture_output=True, text=True
    )
    far_side.kill(), far_side.communicate()
    assert done.returncode in (0, 3), done.stderr
    assert durun.show(done.stdout.strip())["status"] in ("succeeded", "waiting")

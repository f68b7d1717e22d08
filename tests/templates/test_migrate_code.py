"""migrate-code, run for real on a small package made here, and killed with -9: git must have each module exactly once.

The tools of the plan (pyupgrade, pytest) are installed from the package index once; without it these tests are skipped and say so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from program import Program, until

import durun as package

TEMPLATES = Path(package.__file__).parent / "templates"
PLAN = TEMPLATES / "migrate-code" / "plan.yaml"

OLD = "# -*- coding: utf-8 -*-\nclass {name}(object):\n    def __init__(self):\n        super({name}, self).__init__()\n"
SOURCE = {
    "old/__init__.py": "",
    "old/broken.py": "class Broken(object):\n    pass\n",
    "tests/test_old.py": """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", ["One", "Two", "Three", "Four"])
def test_a_class_can_be_made(name):
    module = __import__("old." + name.lower(), fromlist=[name])
    assert getattr(module, name)()

def test_broken_must_stay_as_it_is():
    assert "(object)" in Path("old/broken.py").read_text()

@pytest.mark.parametrize("what", ["a - b"])
def test_that_fails_before_any_change(what):
    assert False
""",
    **{f"old/{name.lower()}.py": OLD.format(name=name) for name in ("One", "Two", "Three", "Four")},
}
MODULES = ["old/__init__.py", "old/broken.py", "old/four.py", "old/one.py", "old/three.py", "old/two.py"]
CHANGED = [m for m in MODULES if m not in ("old/__init__.py", "old/broken.py")]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the plan asks for by default, and a virtualenv that has it."""
    found = re.search(r"tools: {type: string, default: '(.*)'}", PLAN.read_text())
    assert found
    venv = tmp_path_factory.mktemp("tools") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin/python"]
    done = subprocess.run([*pip, "install", "-q", *found[1].split()], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the package index for {found[1]}: {done.stderr.strip()[-300:]}")
    (venv / "ready").write_text(found[1] + "\n")
    return found[1], venv


class Migration:
    """A run of the plan on the package made here, in a folder of its own."""

    def __init__(self, durun: Program, tools: tuple[str, Path]) -> None:
        self.durun = durun
        self.work = durun.folder / "work"
        self.code = self.work / "code"
        self.work.mkdir()
        (self.work / "venv").symlink_to(tools[1])
        archive = self._archive()
        values = {"work": self.work, "archive": archive, "package": "old", "version": "1.0"}
        values |= {"python": sys.executable, "tools": tools[0]}
        self.start = ["start", PLAN, "-q", *(word for k, v in values.items() for word in ("-i", f"{k}={v}"))]

    def _archive(self) -> Path:
        for name, text in SOURCE.items():
            path = self.durun.folder / "old-1.0" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        archive = self.durun.folder / "old-1.0.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(self.durun.folder / "old-1.0", "old-1.0")
        return archive

    def git(self, *words: str) -> list[str]:
        git = ["git", f"--git-dir={self.code}/.git", f"--work-tree={self.code}", *words]
        return subprocess.run(git, capture_output=True, text=True).stdout.splitlines()

    def made(self) -> list[str]:
        """The modules that have a commit, in order."""
        return [line.removeprefix("modernise ") for line in self.git("log", "--reverse", "--format=%s")][1:]

    def hook(self, name: str, said: Path) -> Path:
        """A hook that holds a commit open, and says when it does."""
        path = self.code / ".git/hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\n: > "{said}"\nsleep 60\n')
        path.chmod(0o755)
        return path

    def assert_whole(self) -> dict[str, Any]:
        """The run succeeded; each module was done exactly once, and git and the run say the same."""
        run = self.durun.show(self.durun.the_run())
        assert run["status"] == "succeeded", run["error"]
        assert run["vars"]["modules"] == MODULES
        assert self.made() == run["vars"]["changed"] == CHANGED
        assert (run["vars"]["unchanged"], run["vars"]["reverted"]) == (["old/__init__.py"], ["old/broken.py"])
        assert self.git("status", "--porcelain") == []
        assert "(object)" not in (self.code / "old/one.py").read_text()
        assert "(object)" in (self.code / "old/broken.py").read_text()
        assert run["output"] == {
            "package": "old", "version": "1.0", "modules": 6, "changed": 4, "unchanged": 1, "reverted": 1,
            "reverted_modules": ["old/broken.py"],
            "failed_before": ["tests/test_old.py::test_that_fails_before_any_change[a - b]"],
        }  # fmt: skip
        return run


@pytest.fixture
def migration(durun: Program, tools: tuple[str, Path]) -> Migration:
    return Migration(durun, tools)


@pytest.mark.parametrize("plan", sorted(TEMPLATES.glob("*/plan.yaml")), ids=lambda p: str(p.parent.name))
def test_check_accepts_every_template(durun: Program, plan: Path) -> None:
    durun("check", plan)


def test_each_module_is_committed_left_or_put_back_and_the_report_says_so(migration: Migration) -> None:
    migration.durun(*migration.start, limit=120)
    migration.assert_whole()


def test_a_folder_with_the_code_of_another_run_is_refused_and_left_alone(migration: Migration) -> None:
    migration.durun(*migration.start, limit=120)
    before = migration.git("log", "--format=%H")
    refused = migration.durun(*migration.start, exit=1, limit=120)
    assert "is there already, and not of this run" in migration.durun("show", refused.stdout.split()[0]).stdout
    assert migration.git("log", "--format=%H") == before


@pytest.mark.parametrize("all_at_once", [False, True], ids=["the driver alone", "driver, keeper and command"])
def test_killed_whenever_a_state_is_reached_the_first_time_and_after_each_commit(migration: Migration, all_at_once: bool) -> None:
    durun, killed, died = migration.durun, set[object](), set[object]()
    driver = durun.begin(*migration.start)
    until(lambda: durun("ls", "-q", "--all").stdout.split())
    run = durun.the_run()

    def moment() -> object:
        """A place where it was not killed before, or the end of the driver."""
        shown = durun.show(run)
        made = len(migration.made())
        # without a retry rule an idempotent state is repeated once: so it is killed once in each visit, and no more
        if (shown["state"], shown["visit"]) in died:
            return driver.poll() is not None or None
        places = [shown["state"], *([("commits", made)] if made else [])]
        return driver.poll() is not None or next((p for p in places if p not in killed), None)

    while (place := until(moment, 60)) is not True:
        killed.add(place)
        if all_at_once:
            durun.kill_all()
        else:
            driver.kill()
        driver.communicate()
        shown = durun.show(run)
        died.add((shown["state"], shown["visit"]))  # by the time of the kill it may have gone on
        if shown["status"] == "succeeded":
            break
        driver = durun.begin("resume", run, "-q")
    said = driver.communicate()[1]
    assert len(killed) >= 6, (killed, driver.returncode, said, durun("show", run).stdout)
    migration.assert_whole()


@pytest.mark.parametrize(("hook", "answer"), [("post-commit", "yes"), ("pre-commit", "no")])
def test_all_killed_in_the_middle_of_a_commit_the_log_is_asked(migration: Migration, hook: str, answer: str) -> None:
    durun, held = migration.durun, migration.durun.folder / "held"
    driver = durun.begin(*migration.start)
    until(lambda: migration.made() and durun.the_run(), 60)
    path = migration.hook(hook, held)
    until(held.exists, 60)
    durun.kill_all()
    driver.communicate()
    os.unlink(path)
    durun("resume", durun.the_run(), "-q", limit=120)
    migration.assert_whole()
    probed = [line for line in durun("history", durun.the_run()).stdout.splitlines() if " probed " in line]
    assert [f"answer={answer}" in line for line in probed] == [True]

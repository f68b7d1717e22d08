"""A migration wants the file alone: it is refused while somebody writes, and who had opened the file before it writes nothing after.

There is one version of the file so far, so the next one is handed in."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import apsw
import pytest
from program import Program, until

from durun.errors import StoreUnusable
from durun.store import file as module
from durun.store.file import File

BEFORE = module.statements


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A durun whose file has one more table."""

    def statements(version: int) -> list[str]:
        return ["CREATE TABLE later (x)"] if version == module.VERSION else BEFORE(version)

    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    monkeypatch.setattr(module, "statements", statements)


def version_of(path: Path) -> int:
    db = apsw.Connection(str(path))
    try:
        return int(db.execute("PRAGMA user_version").fetchall()[0][0])
    finally:
        db.close()


def test_it_is_refused_with_who_holds_it_while_a_driver_lives_and_nothing_is_changed(
    durun: Program, request: pytest.FixtureRequest
) -> None:
    durun.plan("start: a\nstates: {a: {run: 'until [ -e go ]; do sleep 0.05; done', next: succeeded}}\n")
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.seen("r").get("effects"))
    request.getfixturevalue("next_version")
    with pytest.raises(StoreUnusable, match=rf"process {driver.pid} on .* drives a run.*nothing was changed"):
        File(str(durun.db), create=False)
    assert version_of(durun.db) == module.VERSION - 1
    (durun.folder / "go").touch()
    assert driver.wait(60) == 0
    driver.communicate()
    file = File(str(durun.db), create=False)
    with file.write() as db:
        db.execute("INSERT INTO later VALUES (1)")
    file.close()
    assert version_of(durun.db) == module.VERSION
    assert version_of(Path(f"{durun.db}.before-version-{module.VERSION}")) == module.VERSION - 1
    durun.audited = False  # it is of a version that the program does not know
    assert "newer durun" in durun("ls", exit=8).stderr


def test_who_had_opened_the_file_before_a_migration_writes_nothing_after_it(durun: Program, request: pytest.FixtureRequest) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    durun("start", "plan.yaml")
    old = File(str(durun.db), create=False)
    request.getfixturevalue("next_version")
    File(str(durun.db), create=False).close()
    module.VERSION -= 1
    with pytest.raises(StoreUnusable, match="another version"), old.write():
        raise AssertionError("it wrote")
    module.VERSION += 1
    old.close()
    durun.audited = False


def test_writers_do_not_keep_each_other_waiting(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    durun("start", "plan.yaml")
    fd = os.open(durun.db.parent / (durun.db.name + ".d") / "writers", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_SH)
    durun("start", "plan.yaml")
    os.close(fd)

"""A database of every released version, and of this one, opens, and each run in it goes on to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from program import Program

from durun.store.file import VERSION

sys.path.insert(0, str(Path(__file__).parent))

from made import STATUSES, made

FOLDER = Path(__file__).parent
ENDS = {
    "interrupted": ("resolve", 0), "asks": ("approve", 0), "timed": ("resume", 0), "blocked": ("resolve", 0),
    "paused": ("approve", 0), "compensating": ("resume", 4), "failed": ("resume", 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def this_version(tmp_path_factory: pytest.TempPathFactory) -> str:
    durun = Program(tmp_path_factory.mktemp("made"))
    try:
        return made(durun)
    finally:
        durun.end()


@pytest.mark.parametrize("version", ["this", *sorted(p.stem for p in FOLDER.glob("[0-9]*.sql"))])
def test_f128_a_database_opens_and_each_run_in_it_goes_on_to_its_end(durun: Program, this_version: str, version: str) -> None:
    text = this_version if version == "this" else (FOLDER / f"{version}.sql").read_text()
    db = apsw.Connection(str(durun.db))
    db.execute(text).fetchall()
    db.close()
    durun.db.chmod(0o600)
    durun("db", "check", exit=None)  # the first that opens it brings it up to this version
    durun.adopt()
    durun("db", "check")
    db = apsw.Connection(str(durun.db))
    assert dict(db.execute("SELECT id, status FROM run")) == STATUSES
    assert db.execute("PRAGMA user_version").fetchall() == [(VERSION,)]
    directories = {row[0] for row in db.execute("SELECT directory FROM runs")}
    db.execute("UPDATE runs SET directory = ?, pins = json_set(pins, '$.env.LEDGER', ?)", (str(durun.folder), str(durun.ledger)))
    db.close()
    assert str(durun.folder) not in directories
    (durun.folder / "ledger.go").touch()
    before = keys(durun)
    for run, (way, exit) in ENDS.items():
        if way == "resolve":
            durun("resume", run, exit=9)
            durun("resolve", run, "--happened")
        if way == "approve":
            durun("resume", run, exit=3)
            durun("approve", run)
        durun("resume", run, exit=exit)
    assert set(query(durun, "SELECT status FROM run")) == {("succeeded",), ("cancelled",), ("compensated",)}
    assert set(before) <= set(keys(durun))
    said = durun.show("succeeded")
    assert said["vars"] == {"n": 7, "s": None, "l": [1, 2.5], "o": {"k": True}, "big": 9007199254740993}
    assert json.loads(durun("output", "succeeded", "--json").stdout)["output"] == "é ü"


def query(durun: Program, sql: str) -> list[tuple[Any, ...]]:
    db = apsw.Connection(str(durun.db))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def keys(durun: Program) -> list[tuple[Any, ...]]:
    return query(durun, "SELECT run, no, key FROM effect")

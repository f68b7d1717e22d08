"""A database from somewhere else: what somebody put into it beside runs does nothing, and does not come in by a restore."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from program import Program

from durun.errors import StoreUnusable
from durun.store.backup import backup, restore
from durun.store.file import File

STRANGE = {
    "a trigger that drops what is stored": "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM history; END",
    "a trigger on what every start writes": "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM effects; END",
    "a view in the place of a table": "ALTER TABLE holds RENAME TO h; CREATE VIEW holds AS SELECT * FROM h",
    "a public view that says something else": "DROP VIEW run; CREATE VIEW run AS SELECT 'r' AS id",
    "a table of its own": "CREATE TABLE more (x)",
    "a table with nearly a name of SQLite's": "CREATE TABLE sqliteXmore (x)",
    "an index that runs an expression": "CREATE INDEX i ON runs (abs(no))",
    "a virtual table": "CREATE VIRTUAL TABLE v USING fts5(x)",
    "a column with a default of its own": "ALTER TABLE runs ADD COLUMN z DEFAULT 1",
}


def changed(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    for statement in sql.split("; ") if "TRIGGER" not in sql else [sql]:
        db.execute(statement).fetchall()
    db.close()


@pytest.mark.parametrize("sql", STRANGE.values(), ids=STRANGE)
def test_a_backup_that_holds_what_durun_never_makes_is_not_restored(tmp_path: Path, sql: str) -> None:
    source, target = File(str(tmp_path / "source.db"), create=True), File(str(tmp_path / "runs.db"), create=True)
    hold = {name for (name,) in source.db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    sql = sql.replace("holds", "hold") if "hold" in hold else sql.replace("holds", sorted(hold)[0])
    backup(source, str(tmp_path / "b.db"), 1)
    source.close()
    assert restore(str(tmp_path / "b.db"), target, lambda place: False, 2, str(tmp_path / "kept")).runs == 0, "as it is it may"
    changed(tmp_path / "b.db", sql)
    before = target.db.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
    with pytest.raises(StoreUnusable, match="not as durun makes it"):
        restore(str(tmp_path / "b.db"), target, lambda place: False, 2, str(tmp_path / "kept"))
    assert target.db.execute("SELECT type, name, sql FROM sqlite_schema").fetchall() == before
    target.close()


def test_a_trigger_in_the_file_itself_does_nothing(durun: Program) -> None:
    durun.audited = False  # `durun db check` names each of them
    durun.plan("start: a\nstates: {a: {run: ['true'], next: w}, w: {approval: {message: 'yes?'}, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r", exit=3)
    for when in ("INSERT ON history", "UPDATE ON runs", "INSERT ON effects"):
        name = when.split()[-1]
        changed(durun.db, f"CREATE TRIGGER t_{name} AFTER {when} BEGIN DELETE FROM history; UPDATE runs SET status = 'failed'; END")
    durun("approve", "r", "--resume")
    assert durun.show("r")["status"] == "succeeded"
    assert [e.split()[0] for e in durun("history", "r").stdout.splitlines()][:3] == ["1", "2", "3"]
    assert durun("db", "check", exit=8).stdout.count("the trigger t_") == 3


def test_what_sql_of_the_file_may_do_is_switched_off(tmp_path: Path) -> None:
    file = File(str(tmp_path / "runs.db"), create=True)
    switches = {
        apsw.SQLITE_DBCONFIG_DEFENSIVE: 1, apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA: 0, apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER: 0,
        apsw.SQLITE_DBCONFIG_ENABLE_VIEW: 0, apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION: 0,
    }  # fmt: skip
    assert {what: file.db.config(what, -1) for what in switches} == switches
    file.close()

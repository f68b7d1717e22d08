"""The database file: born once by however many, refused with its reason, never half migrated."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from program import Program

from durun.errors import StoreUnusable
from durun.store import file as files
from durun.store.file import File, file_system, statements


def pragma(path: Path, name: str) -> int:
    db = apsw.Connection(str(path))
    try:
        return int(db.execute(f"PRAGMA {name}").fetchall()[0][0])
    finally:
        db.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_many_processes_that_make_the_same_file_at_once_all_succeed(tmp_path: Path) -> None:
    code = "import sys; from durun.store.file import File; f = File(sys.argv[1], create=True); f.close()"
    for n in range(5):
        path = tmp_path / f"{n}.db"
        born = [subprocess.Popen([sys.executable, "-c", code, str(path)], stderr=subprocess.PIPE) for _ in range(8)]
        for process in born:
            assert process.wait(60) == 0, process.stderr.read()
            process.stderr.close()
        assert pragma(path, "user_version") == files.VERSION
        db = apsw.Connection(str(path))
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()


def test_a_file_that_another_process_makes_between_two_looks_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = tmp_path / "runs.db", File._look_at_marks

    def late(self: File) -> None:
        monkeypatch.setattr(File, "_look_at_marks", look)
        other = File(str(path), create=True)
        with other.write():
            look(self)  # the other has made it, and is writing
        self.other = other  # type: ignore[attr-defined]

    monkeypatch.setattr(File, "_look_at_marks", late)
    file = File(str(path), create=True)
    assert file.at_home()
    file.other.close()  # type: ignore[attr-defined]
    file.close()


def test_the_file_is_in_wal_mode_at_full_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    file = File(str(path), create=True)
    assert file.db.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert file.db.execute("PRAGMA synchronous").fetchall() == [(2,)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "runs.db-wal").stat().st_mode & 0o777 == 0o600
    file.close()


def test_a_file_of_a_newer_durun_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    File(str(path), create=True).close()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version={files.VERSION + 1}").fetchall()
    db.close()
    before = digest(path)
    with pytest.raises(StoreUnusable, match="newer durun"):
        File(str(path), create=True)
    assert digest(path) == before


def test_a_newer_mark_that_is_still_in_the_log_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    File(str(path), create=True).close()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version={files.VERSION + 1}").fetchall()
    before = digest(path)
    with pytest.raises(StoreUnusable, match="newer durun"):
        File(str(path), create=True)
    assert digest(path) == before
    db.close()


def test_a_foreign_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE t (x)")
    db.close()
    before = digest(path)
    with pytest.raises(StoreUnusable, match="not one of durun"):
        File(str(path), create=True)
    assert digest(path) == before


@pytest.mark.parametrize("content", [b"hello, this is no database", b"SQLite format 3\0" + b"\xff" * 200, b"x" * 5000])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnusable):
        File(str(path), create=True)
    assert path.read_bytes() == content


def test_an_empty_file_is_made_into_a_database(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    File(str(path), create=True).close()
    assert pragma(path, "application_id") == files.APPLICATION


def test_a_missing_file_is_not_made_by_those_who_only_look(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="there is no database"):
        File(str(tmp_path / "no.db"), create=False)
    assert not (tmp_path / "no.db").exists()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="is no file"):
        File(str(tmp_path), create=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    File(str(path), create=True).close()
    os.chown(path, 12345, 12345)
    with pytest.raises(StoreUnusable, match="another user"):
        File(str(path), create=True)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("nfs4", "cifs", "9p", "fuse.sshfs", "virtiofs"):
        monkeypatch.setattr(files, "file_system", lambda path, kind=kind: kind)
        with pytest.raises(StoreUnusable, match="network file system"):
            File(str(tmp_path / "runs.db"), create=True)
    assert not (tmp_path / "runs.db").exists()


def test_the_kind_of_a_file_system_is_read_from_the_mounts(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 {os.major(device)}:{os.minor(device)} / / rw - nfs4 server:/x rw\n")
    assert file_system(str(tmp_path), str(mounts)) == "nfs4"


def test_a_migration_that_dies_at_any_statement_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = statements(1)
    assert len(whole) > 10
    for n in range(len(whole)):
        path = tmp_path / f"{n}.db"
        monkeypatch.setattr(files, "statements", lambda version, n=n: [*whole[:n], "no such statement", *whole[n:]])
        with pytest.raises(apsw.SQLError):
            File(str(path), create=True)
        db = apsw.Connection(str(path))
        assert db.execute("SELECT count(*) FROM sqlite_schema").fetchall() == [(0,)]
        db.close()
        monkeypatch.setattr(files, "statements", lambda version: whole)
        File(str(path), create=True).close()
        assert pragma(path, "user_version") == 1


def test_a_commit_to_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    file = File(str(path), create=True)
    os.rename(path, tmp_path / "moved.db")
    with pytest.raises(StoreUnusable, match="is gone"), file.write():
        pass
    path.write_bytes(b"")
    with pytest.raises(StoreUnusable, match="another file"), file.write():
        pass
    file.close()


def test_nothing_begins_where_little_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File(str(tmp_path / "runs.db"), create=True)
    file.room()
    monkeypatch.setattr(files, "ROOM", 1 << 62)
    with pytest.raises(StoreUnusable, match="16 MiB"):
        file.room()
    file.close()


def test_a_busy_file_is_waited_for_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "QUIET", 0.05)
    monkeypatch.setattr(files, "PATIENCE", 0.3)
    path, said = tmp_path / "runs.db", []
    one, two = File(str(path), create=True), File(str(path), create=True, say=said.append)
    with one.write(), pytest.raises(StoreUnusable, match="busy"), two.write():
        pass
    assert len(said) == 1 and "another process" in said[0]
    one.close()
    two.close()


def test_the_views_say_what_a_person_with_sqlite_wants_to_know(tmp_path: Path) -> None:
    File(str(tmp_path / "runs.db"), create=True).close()
    db = apsw.Connection(str(tmp_path / "runs.db"))  # as a person opens it
    for view in ("run", "event", "effect"):
        assert db.execute(f"SELECT * FROM {view}").fetchall() == []
    db.close()


@pytest.mark.parametrize("table", ["runs", "plans", "positions", "states", "effects", "history"])
def test_a_table_that_is_damaged_is_refused_in_one_line(durun: Program, table: str) -> None:
    durun.audited = False
    durun.plan("start: a\nstates: {a: {run: ['false'], next: succeeded}}\n")
    run = durun.start(1)
    db = apsw.Connection(str(durun.db))
    ((size,),) = db.execute("PRAGMA page_size").fetchall()
    ((page,),) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    db.close()
    with durun.db.open("r+b") as f:
        f.seek((page - 1) * size)
        f.write(b"\xff" * size)
    for words in (["resume", run], ["show", run], ["history", run], ["ls"]):
        done = durun(*words, exit=None)
        assert done.returncode in (0, 8) and "fault of its own" not in done.stderr, done.stderr
        assert done.returncode == 0 or "damaged" in done.stderr
    assert durun("resume", run, exit=8).stderr.count("\n") == 1


def test_a_second_look_at_the_file_leaves_this_process_its_locks(tmp_path: Path) -> None:
    """POSIX locks go with any descriptor that is closed: without them another process may take the log away under this one."""
    path = tmp_path / "runs.db"
    file = File(str(path), create=True)
    assert locked_here(path)
    assert files.look(str(path), create=False)
    second = File(str(path), create=False)
    assert locked_here(path)
    second.close()
    assert locked_here(path)
    file.close()
    assert not locked_here(path)


def locked_here(path: Path) -> bool:
    """Whether this process has a lock on a file, asked of another: it may not take what this one holds shared."""
    code = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as f:\n"
        "    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)\n"  # where SQLite keeps its shared lock
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True).returncode != 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE runs SET id = CAST(x'61ff' AS TEXT)", ["ls"]),
        ("UPDATE history SET data = '{' WHERE no = 1", ["history"]),
        ("PRAGMA user_version = -7", ["ls"]),
        ("PRAGMA user_version = 0", ["ls"]),
    ],
)
def test_what_durun_never_stored_is_told_as_damage(durun: Program, damage: str, words: list[str]) -> None:
    durun.audited = False
    durun.plan("start: a\nstates: {a: {run: ['true'], next: succeeded}}\n")
    run = durun.start()
    db = apsw.Connection(str(durun.db))
    db.execute(damage).fetchall()
    db.close()
    done = durun(*words, *([run] if words != ["ls"] else []), exit=8)
    assert "damaged" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_file_format_that_sqlite_does_not_know_is_told_as_damage(durun: Program) -> None:
    durun.audited = False
    durun.plan("start: a\nstates: {a: {run: ['true'], next: succeeded}}\n")
    durun.start()
    with durun.db.open("r+b") as f:
        f.seek(47)
        f.write(b"\x09")
    assert "damaged" in durun("ls", exit=8).stderr


def test_a_backup_that_is_put_where_a_database_lies_keeps_a_log_from_its_first_write_on(tmp_path: Path) -> None:
    from durun.store.backup import backup, restore

    source = File(str(tmp_path / "runs.db"), create=True)
    backup(source, str(tmp_path / "b.db"), 1)
    source.close()
    for name, act in {
        "written.db": lambda file: file.write().__enter__(),
        "restored.db": lambda file: restore(str(tmp_path / "b.db"), file, lambda place: False, 2, str(tmp_path / "kept")),
    }.items():
        (tmp_path / name).write_bytes((tmp_path / "b.db").read_bytes())
        file = File(str(tmp_path / name), create=False)
        assert file.db.execute("PRAGMA journal_mode").fetchall() == [("delete",)], "to look at one changes nothing"
        act(file)
        assert file.db.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        assert file.db.execute("PRAGMA synchronous").fetchall() == [(2,)]
        file.close()

"""The file through its life: backed up, restored, copied, pruned; and plans of which no new run begins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path

import apsw
import pytest

ASKS = """
a: {run: 'echo a $DURUN_IDEMPOTENCY_KEY >> ticks', next: q}
q: {approval: {message: 'go on?'}, next: b}
b: {run: 'echo b $DURUN_IDEMPOTENCY_KEY >> ticks; test ! -e fails', idempotent: true, next: succeeded}
"""
HANGS = """
a: {run: 'echo a $DURUN_IDEMPOTENCY_KEY >> ticks; echo begun > begun; while test ! -e over; do sleep 0.05; done', next: succeeded%s}
"""


def sql(path, text, *values):
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return db.execute(text, values).fetchall()
    finally:
        db.close()


def well(place, **more):
    assert place.durun("db", "check", **more).exit == 0


# --- F35: a backup ---


def test_f35_a_backup_of_a_file_in_use_is_one_whole_file_that_lacks_no_commit(place):
    run = place.begin("start", place.plan(HANGS % ""), "--id", "r")
    place.there("begun")
    place.durun("start", place.plan(ASKS, "asks.yaml"), "--id", "s", exit=3)
    said = place.durun("db", "backup", "b.db")
    assert str(place.db) + ".d" in said.err
    backup = place.folder / "b.db"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert sql(backup, "SELECT id, status FROM run ORDER BY id") == [("r", "running"), ("s", "waiting")]
    assert sql(backup, "PRAGMA integrity_check") == [("ok",)]
    assert sql(backup, "PRAGMA journal_mode") == [("delete",)]
    assert sorted(p.name for p in place.folder.glob("b.db*")) == ["b.db"]
    place.write("over", "")
    place.end(run)


def test_f35_a_copy_without_its_log_lacks_the_newest_commits_and_a_backup_does_not(place):
    run = place.begin("start", place.plan(HANGS % ""), "--id", "r")
    place.there("begun")
    shutil.copy(place.db, place.folder / "lone.db")
    place.durun("db", "backup", "b.db")
    events = sql(place.db, "SELECT count(*) FROM event")
    assert sql(place.folder / "b.db", "SELECT count(*) FROM event") == events
    lone = apsw.Connection(str(place.folder / "lone.db"))
    with contextlib.suppress(apsw.SQLError):  # not even its tables are there
        assert lone.execute("SELECT count(*) FROM event").fetchall() < events
    lone.close()
    place.write("over", "")
    place.end(run)


@pytest.mark.parametrize("what", ["a backup", "the database itself", "a folder"])
def test_f35_a_backup_takes_no_file_s_place(place, what):
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    name = {"a backup": "b.db", "the database itself": str(place.db), "a folder": "."}[what]
    if what == "a backup":
        place.durun("db", "backup", name)
    before = {p.name: p.read_bytes() for p in place.folder.glob("*.db")}
    assert "there already" in place.durun("db", "backup", name, exit=10).err
    assert {p.name: p.read_bytes() for p in place.folder.glob("*.db")} == before
    assert not list(place.folder.glob("*part*"))


def test_f35_a_backup_killed_at_any_write_leaves_no_file_of_that_name(place, strace):
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    plain, kills = place.argv, 0
    for call, ns in (("pwrite64", (1, 9, 25)), ("fsync", (1, 2)), ("link", (1,))):
        for n in ns:
            place.argv = [strace, "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={n}", *plain]
            done = place.durun("db", "backup", f"{call}{n}.db", exit=None)
            made = place.folder / f"{call}{n}.db"
            kills += done.exit != 0
            if made.exists():
                assert sql(made, "PRAGMA integrity_check") == [("ok",)]
    assert kills > 3
    place.argv = plain
    well(place)


# --- F35: restored ---


def backed_up(place, states=ASKS, exit=3):
    place.durun("start", place.plan(states), "--id", "r", exit=exit)
    place.durun("db", "backup", "b.db")


def test_f35_what_was_in_flight_is_blocked_after_a_restore_and_goes_on_with_the_same_keys(place):
    backed_up(place)
    place.write("fails", "")
    place.durun("approve", "r", "--resume", exit=1)
    before = place.lines("ticks")
    said = place.durun("db", "restore", "b.db", "--json").json
    assert said["runs"] == said["blocked"] == 1
    assert sql(said["kept"], "SELECT status FROM run") == [("failed",)]
    shown = place.show("r")
    assert (shown["status"], shown["reason"]) == ("blocked", "restored")
    assert "--after-restore" in shown["waiting_for"][0]["command"]
    well(place)
    for words in (["resume", "r"], ["start", str(place.folder / "plan.yaml"), "--id", "r"], ["wait", "r"]):
        assert "--after-restore" in place.durun(*words, exit=9).err
    for words in (["approve", "r"], ["signal", "r", "x"], ["pause", "r"], ["resolve", "r", "--retry"]):
        assert "--after-restore" in place.durun(*words, exit=10).err
    assert "--after-restore" in place.durun("inbox").out
    assert place.lines("ticks") == before
    (place.folder / "fails").unlink()
    place.durun("resume", "r", "--after-restore", exit=3)
    place.durun("approve", "r", "--resume")
    assert place.lines("ticks") == [*before, before[-1]]
    well(place)


@pytest.mark.parametrize("how", ["idempotent", "not idempotent", "cancel"])
def test_f35_what_was_under_way_is_in_doubt_after_a_restore(place, how):
    run = place.begin("start", place.plan(HANGS % (", idempotent: true" if how == "idempotent" else "")), "--id", "r")
    place.there("begun")
    place.durun("db", "backup", "b.db")
    place.write("over", "")
    place.end(run)
    shutil.rmtree(f"{place.db}.d")
    place.durun("db", "restore", "b.db")
    if how == "cancel":
        assert "in doubt: a" in place.durun("cancel", "r", exit=4).err
        assert len(place.lines("ticks")) == 1
    elif how == "idempotent":
        place.durun("resume", "--all", "--after-restore")
        one, two = place.lines("ticks")
        assert one == two
    else:
        place.durun("resume", "r", "--after-restore", exit=9)
        assert place.show("r")["reason"] == "in_doubt"
        assert len(place.lines("ticks")) == 1
        place.durun("resolve", "r", "--happened")
        place.durun("resume", "r")
    well(place)


def test_f35_a_retry_that_waited_may_have_been_made_after_the_backup(place):
    states = "a: {run: 'echo a >> ticks; exit 1', retry: {initial_interval: 1h, jitter: none}, next: succeeded}"
    place.durun("start", place.plan(states), "--id", "r", "--no-wait", exit=3)
    place.durun("db", "backup", "b.db")
    place.durun("db", "restore", "b.db")
    place.durun("resume", "r", "--after-restore", "--no-wait", exit=9)
    assert place.show("r")["reason"] == "in_doubt"
    assert place.lines("ticks") == ["a"]
    well(place)


def test_f35_a_timer_goes_on_after_a_restore_and_a_paused_run_is_taken_up(place):
    states = "w: {wait: 1s, next: b}\nb: {run: 'echo b >> ticks', next: succeeded}"
    place.durun("start", place.plan(states, start="w"), "--id", "r", "--no-wait", exit=3)
    place.durun("start", place.plan(states, start="w"), "--id", "s", "--no-wait", exit=3)
    place.durun("pause", "s")
    place.durun("db", "backup", "b.db")
    place.durun("db", "restore", "b.db")
    well(place)
    for run in ("r", "s"):
        place.durun("resume", run, "--after-restore")
    assert place.lines("ticks") == ["b", "b"]
    well(place)


def test_f35_a_command_that_lives_through_a_restore_is_waited_for_and_not_begun_twice(place):
    place.begin("start", place.plan(HANGS % ", idempotent: true"), "--id", "r")
    place.there("begun")
    place.durun("db", "backup", "b.db")
    driver = sql(place.db, "SELECT pid FROM drivers")[0][0]
    assert f"process {driver}" in place.durun("db", "restore", "b.db", exit=6).err
    assert place.show("r")["status"] == "running"
    place.kill(driver)
    place.until(lambda: place.show("r")["status"] == "interrupted", "the end of the driver")
    place.durun("db", "restore", "b.db")
    goes_on = place.begin("resume", "r", "--after-restore")
    place.until(lambda: place.show("r")["status"] == "running", "a driver")
    place.write("over", "")
    place.end(goes_on)
    assert len(place.lines("ticks")) == 1
    well(place)


def test_f35_a_backup_in_the_place_of_a_lost_file_is_known_for_what_it_is(place):
    backed_up(place)
    for path in place.folder.glob("durun.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.move(place.folder / "b.db", place.db)
    said = place.durun("resume", "r", exit=9)
    assert "backup" in said.err and "--after-restore" in said.err
    place.durun("resume", "r", "--after-restore", exit=3)
    place.durun("approve", "r", "--resume")
    assert len(place.lines("ticks")) == 2


@pytest.mark.parametrize("what", ["no database", "another program's", "damaged", "newer", "missing", "the database itself"])
def test_f35_what_is_no_whole_backup_is_not_restored_and_nothing_changes(place, what):
    backed_up(place)
    backup = place.folder / "b.db"
    if what == "no database":
        backup.write_bytes(b"hello\n" * 50)
    elif what == "damaged":
        whole = bytearray(backup.read_bytes())
        page = int.from_bytes(whole[16:18], "big")
        for at in range(page, len(whole), page):
            whole[at + 8 : at + 200] = b"\xff" * 192
        backup.write_bytes(whole)
    elif what in ("another program's", "missing"):
        backup.unlink()
    if what in ("another program's", "newer"):
        db = apsw.Connection(str(backup))
        db.execute("CREATE TABLE t (x)" if what != "newer" else "PRAGMA user_version=99").fetchall()
        db.close()
    name = str(place.db) if what == "the database itself" else "b.db"
    place.durun("db", "restore", name, exit={"missing": 2, "the database itself": 10}.get(what, 8))
    assert place.show("r")["status"] == "waiting"
    assert [p.name for p in place.folder.glob("durun.db*") if "part" in p.name or "before" in p.name] == []
    well(place)


def test_f35_a_restore_killed_at_any_write_leaves_the_file_wholly_old_or_wholly_restored(place, strace):
    backed_up(place)
    place.durun("approve", "r")
    plain, kills = place.argv, 0
    for call, n in [("pwrite64", 30), ("pwrite64", 80), ("pwrite64", 130), ("fdatasync", 1), ("fdatasync", 2), ("fdatasync", 3)]:
        place.argv = [strace, "-f", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={n}", *plain]
        kills += place.durun("db", "restore", "b.db", exit=None).exit != 0
        place.argv = plain
        well(place)
        assert sql(place.db, "SELECT coalesce(reason, 'none') FROM run") in ([("none",)], [("restored",)])
    assert kills >= 3
    place.durun("db", "restore", "b.db")
    assert sql(place.db, "SELECT reason FROM run") == [("restored",)]


MESSAGE = """
a: {run: 'echo a >> ticks; test -e well', background: true, probe: {run: 'test -e well'}, retry: {initial_interval: 1s, jitter: none}, next: q}
q: {approval: {message: 'go on?'}, next: succeeded}
"""


def test_f35_a_message_that_may_have_been_delivered_after_the_backup_is_asked_about_first(place):
    status = lambda: [m["status"] for m in place.durun("outbox", "ls", "--all", "--json").json["messages"]]  # noqa: E731
    deliver = lambda: place.durun("outbox", "deliver", exit=None) and status() == ["delivered"]  # noqa: E731
    backed_up(place, MESSAGE)
    place.write("well", "")
    place.until(deliver, "the delivery")
    before = place.lines("ticks")
    place.durun("db", "restore", "b.db")
    place.durun("outbox", "deliver", exit=None)
    assert status() == ["waiting"], "nothing of what is blocked is delivered"
    well(place)
    place.durun("resume", "r", "--after-restore", exit=3)
    place.until(deliver, "the answer of its probe")
    assert place.lines("ticks") == before
    well(place)


def test_f35_a_damaged_file_is_moved_away_and_a_backup_makes_a_new_one(place):
    backed_up(place)
    whole = bytearray(place.db.read_bytes())
    page = int.from_bytes(whole[16:18], "big")
    for at in range(page, len(whole), page):
        whole[at : at + 200] = b"\xff" * 200
    place.db.write_bytes(whole)
    assert "away" in place.durun("db", "restore", "b.db", exit=8).err
    place.db.write_bytes(b"no database at all\n" * 20)
    assert "away" in place.durun("db", "restore", "b.db", exit=8).err
    os.rename(place.db, place.folder / "damaged.db")
    place.durun("db", "restore", "b.db")
    place.durun("resume", "r", "--after-restore", exit=3)
    well(place)


def test_f35_a_restore_waits_for_who_writes_and_for_no_reader(place):
    backed_up(place)
    db = apsw.Connection(str(place.db))
    db.execute("BEGIN IMMEDIATE").fetchall()
    restoring = place.begin("db", "restore", "b.db")
    place.until(lambda: list(place.folder.glob("durun.db.part*")), "what is being restored")
    assert place.show("r")["status"] == "waiting"
    assert restoring.poll() is None
    db.execute("ROLLBACK").fetchall()
    db.close()
    place.end(restoring)
    assert place.show("r")["reason"] == "restored"


# --- F35: copied ---


def copied(place, name="c.db"):
    """A copy of the file, at rest, as `cp` makes it; the commands that follow mean it."""
    shutil.copy(place.db, place.folder / name)
    place.db = place.folder / name
    place.env["DURUN_DB"] = str(place.db)


def test_f35_a_copied_file_is_noticed_and_does_nothing_that_the_original_may_do(place):
    original = place.db
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    copied(place)
    assert "copy of" in place.durun("resume", "r", exit=9).err
    assert place.show("r")["reason"] == "restored"
    place.durun("start", place.plan(ASKS), "--id", "s", exit=3)
    assert place.show("s")["status"] == "waiting"
    assert "copy" not in place.durun("resume", "s", exit=3).err
    place.durun("approve", "r", "--db", str(original), "--resume")
    place.durun("resume", "r", "--after-restore", exit=3)
    well(place)


@pytest.mark.parametrize(
    "words", [["approve", "r"], ["cancel", "r"], ["pause", "--all"], ["start", "plan.yaml", "--id", "s"], ["work", "--once"]]
)
def test_f35_whatever_would_move_a_copy_notices_it_first(place, words):
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    copied(place)
    assert "copy of" in place.durun(*words, exit=None).err
    assert place.show("r")["status"] in ("blocked", "cancelled")
    assert all(line.startswith("a ") for line in place.lines("ticks"))
    well(place)


def test_f35_what_a_copy_was_doing_is_never_signalled_from_there(place):
    run = place.begin("start", place.plan(HANGS % ""), "--id", "r")
    place.there("begun")
    place.durun("db", "backup", "b.db")
    shutil.copytree(f"{place.db}.d", place.folder / "c.db.d")
    sql_copy = apsw.Connection(str(place.folder / "b.db"))
    sql_copy.execute("UPDATE origin SET inode = 1, device = 1").fetchall()  # as `cp` of a file at rest leaves it
    sql_copy.close()
    os.rename(place.folder / "b.db", place.folder / "c.db")
    (command,) = [pid for pid, line in place.processes().items() if "echo begun" in line]
    said = place.durun("cancel", "r", "--db", str(place.folder / "c.db"), "--grace", "1s", exit=4)
    assert "in doubt: a" in said.err
    assert place.alive(command)
    place.write("over", "")
    place.end(run)


def test_f35_a_file_that_is_renamed_or_whose_disk_has_another_number_is_the_same(place):
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    for end in ("", ".d"):
        os.rename(f"{place.db}{end}", place.folder / f"moved.db{end}")
    place.db = place.folder / "moved.db"
    place.env["DURUN_DB"] = str(place.db)
    place.durun("resume", "r", exit=3)
    db = apsw.Connection(str(place.db))
    assert db.execute("SELECT path FROM origin").fetchall() == [(str(place.db),)]
    db.execute("UPDATE origin SET device = device + 1").fetchall()
    db.close()
    place.durun("approve", "r", "--resume")
    assert len(place.lines("ticks")) == 2


def test_f35_a_new_file_beside_the_folder_of_one_that_was_deleted_reads_nothing_of_it(place):
    place.begin("start", place.plan(HANGS % ""), "--id", "r")
    place.there("begun")
    place.kill_all()
    for path in place.folder.glob("durun.db*"):
        if path.is_file():
            path.unlink()
    place.write("over", "")
    place.durun("start", place.plan(HANGS % ""), "--id", "r")
    one, two = place.lines("ticks")
    assert one != two
    well(place)


# --- prune ---


def test_prune_takes_what_has_ended_with_its_logs_and_leaves_the_rest(place):
    done = place.durun("start", place.plan("a: {run: 'echo very-private-words', output: text, next: succeeded}")).id
    place.durun("start", place.plan(ASKS, "asks.yaml"), "--id", "r", exit=3)
    failed = place.durun("start", place.plan("a: {run: 'echo err >&2; exit 1', next: succeeded}"), exit=1).id
    logs = lambda: [p for p in Path(f"{place.db}.d").rglob("*") if p.is_file() and p.name != "writers"]  # noqa: E731
    assert len(logs()) == 2
    said = place.durun("db", "prune", "--json").json
    assert said["pruned"] == [done, failed]
    assert said["logs"]["files"] == 2
    assert said["ids_kept"] == 0
    assert [r["id"] for r in place.runs()] == ["r"]
    assert not logs()
    for path in place.folder.glob("durun.db*"):
        assert path.is_dir() or b"very-private-words" not in path.read_bytes()
    well(place)
    assert "nothing to prune" in place.durun("db", "prune").err
    place.durun("approve", "r", "--resume")


def test_prune_never_takes_a_run_that_has_not_ended_or_owes_an_undo(place):
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    owes = "a: {run: 'echo a', compensate: {run: 'echo undo >> ticks'}, next: b}\nb: {run: 'exit 1', next: succeeded}"
    place.durun("start", place.plan(owes, "owes.yaml"), "--id", "o", exit=1)
    assert "has not ended" in place.durun("db", "prune", "r", exit=10).err
    assert "owes undos" in place.durun("db", "prune", "o", exit=10).err
    said = place.durun("db", "prune", "--json")
    assert (said.json["pruned"], said.json["kept"]) == ([], {"owed": ["o"]})
    assert "o" in said.err
    place.durun("compensate", "o", exit=4)
    assert place.durun("db", "prune", "--json").json["pruned"] == ["o"]
    assert place.lines("ticks")[-1] == "undo"


def test_prune_never_takes_a_run_with_a_message_that_is_not_delivered(place):
    states = "a: {run: 'test -e well', background: true, idempotent: true, next: succeeded}"
    place.durun("start", place.plan(states), "--id", "r")
    assert "not delivered" in place.durun("db", "prune", "r", exit=10).err
    assert place.durun("db", "prune", "--json").json["kept"] == {"undelivered": ["r"]}
    place.durun("outbox", "drop", "r")
    assert place.durun("db", "prune", "--json").json["pruned"] == ["r"]
    well(place)


def test_prune_takes_what_a_once_has_recorded(place):
    once = f"{place.argv[0]} -m durun once mail -- echo very-private-words >&2"
    place.durun("start", place.plan(f"a: {{run: '{once}', next: succeeded}}"), "--id", "r")
    assert sql(place.db, "SELECT count(*) FROM onces") == [(1,)]
    place.durun("db", "prune")
    assert sql(place.db, "SELECT count(*) FROM onces") == [(0,)]
    for path in place.folder.rglob("*durun.db*"):
        assert path.is_dir() or b"very-private-words" not in path.read_bytes()
    well(place)


def test_prune_keeps_what_is_younger_and_refuses_what_it_cannot_read(place):
    place.durun("start", place.plan("a: {pass: {}, next: succeeded}"), "--id", "r")
    assert place.durun("db", "prune", "--older-than", "1h", "--json").json["pruned"] == []
    for words, exit in ((["--older-than", "soon"], 2), (["r", "--older-than", "1h"], 2), (["nosuch"], 5)):
        place.durun("db", "prune", *words, exit=exit)
    assert place.durun("db", "prune", "--older-than", "0s", "--json").json["pruned"] == ["r"]


def test_an_id_of_a_run_that_was_pruned_says_how_it_ended_and_begins_nothing(place):
    plan = place.plan("a: {run: 'echo a >> ticks; false', next: succeeded}")
    place.durun("start", plan, "--id", "r", exit=1)
    place.durun("db", "prune", "r")
    again = place.durun("start", plan, "--id", "r", exit=1)
    assert again.out == "r\n" and "was pruned" in again.err
    assert place.durun("start", plan, "--id", "r", "--json", exit=1).json["pruned"]
    assert place.durun("start", plan, "--id", "r", "--detach", exit=1).out == "r\n"
    assert "pruned" in place.durun("show", "r", exit=5).err
    assert place.lines("ticks") == ["a"]


def test_an_id_of_a_run_that_was_pruned_means_that_run_until_it_is_forgotten(place):
    place.durun("start", place.plan("a: {pass: {}, next: succeeded}"), "--id", "r")
    place.durun("db", "prune", "r")
    other = place.plan("a: {run: 'echo b >> ticks', next: succeeded}", "other.yaml")
    for more in ([], ["--dry-run"], ["--detach"]):
        assert "another plan" in place.durun("start", other, "--id", "r", *more, exit=7).err
    place.durun("db", "prune", "r", "--forget-id")
    place.durun("start", other, "--id", "r")
    assert place.lines("ticks") == ["b"]
    place.durun("db", "prune", "--forget-id")
    assert sql(place.db, "SELECT count(*) FROM pruned") == [(0,)]
    assert [p.name for p in Path(f"{place.db}.d").iterdir()] == ["writers"]


def test_the_number_of_a_run_that_was_pruned_is_not_given_again(place):
    plan = place.plan("a: {pass: {}, next: succeeded}")
    place.durun("start", plan)
    place.durun("start", plan)
    place.durun("db", "prune")
    place.durun("start", plan)
    assert sql(place.db, "SELECT no FROM runs") == [(3,)]


def test_prune_takes_logs_that_belong_to_no_run_once_they_are_old(place):
    place.durun("start", place.plan("a: {run: 'echo a', next: succeeded}"), "--id", "r")
    folder = Path(f"{place.db}.d")
    for name, age in (("0123456789abcdef", 7200), ("fedcba9876543210", 0)):
        (folder / name).mkdir()
        (folder / name / "1.out").write_text("old")
        os.utime(folder / name, (os.stat(folder).st_mtime - age,) * 2)
    (folder / "77.driver.log").write_text("old")
    (folder / "once").mkdir()
    for name, age in (("aaaa", 7200), ("bbbb", 0)):
        (folder / "once" / name).write_text("old")
        os.utime(folder / "once" / name, (os.stat(folder).st_mtime - age,) * 2)
    (folder / "mine.txt").write_text("not ours")
    place.durun("db", "prune", "--older-than", "1d")
    left = {p.name for p in folder.iterdir()} - {"writers"}
    assert {"fedcba9876543210", "mine.txt"} < left
    assert [p.name for p in (folder / "once").iterdir()] == ["bbbb"]
    assert not {"0123456789abcdef", "77.driver.log"} & left
    assert place.durun("logs", "r").out == "a\n"


def test_prune_beside_a_living_driver_takes_nothing_it_needs_and_gives_space_back_later(place):
    script = "echo a >> ticks # " + "x" * 400
    ended = json.dumps(script)
    place.durun("start", place.plan(f"a: {{run: {ended}, next: succeeded}}"))
    more = f"b: {{run: {ended}, next: succeeded}}"
    run = place.begin("start", place.plan(HANGS.replace("next: succeeded%s", "next: b") + more, "h.yaml"), "--id", "r")
    place.there("begun")
    said = place.durun("db", "prune", "--json").json
    assert len(said["pruned"]) == 1 and not said["database"]["shrunk"]
    well(place)
    place.write("over", "")
    place.end(run)
    assert place.durun("db", "prune", "--json").json["database"]["shrunk"]
    well(place)


# --- drain ---


def test_a_drained_plan_begins_no_new_run_and_those_in_flight_go_on(place):
    plan = place.plan(ASKS)
    place.durun("start", plan, "--id", "r", exit=3)
    assert "1 in flight" in place.durun("drain", "fault").err
    assert "already" in place.durun("drain", "fault").err
    for more in ([], ["--id", "s"], ["--detach"], ["--dry-run"], ["--json"]):
        refused = place.durun("start", plan, *more, exit=7)
        assert "drained" in refused.err and "--off" in refused.err
    assert [r["id"] for r in place.runs()] == ["r"]
    assert [p.name for p in Path(f"{place.db}.d").iterdir()] == ["writers"]
    place.durun("start", plan, "--id", "r", exit=3)
    left = place.durun("drain", "fault", "--wait", "--json", exit=3)
    assert [r["id"] for r in left.json["in_flight"]] == ["r"]
    assert "run r is waiting in q" in left.err
    place.durun("approve", "r", "--resume")
    place.durun("drain", "fault", "--wait")
    other = place.plan("a: {pass: {}, next: succeeded}", "other.yaml")
    place.durun("start", other, exit=7)
    assert "no more" in place.durun("drain", "fault", "--off").err
    assert "not drained" in place.durun("drain", "fault", "--off").err
    place.durun("start", plan, exit=3)
    place.durun("drain", "fault", "--off", "--wait", exit=2)


def test_a_drain_waits_for_what_moves(place):
    run = place.begin("start", place.plan(HANGS % ""), "--id", "r")
    place.there("begun")
    waits = place.begin("drain", "fault", "--wait")
    place.until(lambda: sql(place.db, "SELECT count(*) FROM drains") == [(1,)], "the drain")
    assert waits.poll() is None
    place.write("over", "")
    place.end(run)
    assert "no run of plan fault is in flight" in place.end(waits).err


# --- stranded ---


def test_f128_a_run_whose_language_is_newer_is_stranded_and_says_which_durun_can(place):
    place.durun("start", place.plan(ASKS), "--id", "r", exit=3)
    db = apsw.Connection(str(place.db))
    db.execute("UPDATE runs SET language = 2, pins = json_set(pins, '$.durun', '9.8.7')").fetchall()
    db.close()
    listed = place.durun("ls")
    assert "stranded" in listed.out and "stranded" in listed.err
    assert [r["status"] for r in place.durun("ls", "--status", "stranded", "--json").json["runs"]] == ["stranded"]
    assert place.durun("ls", "--status", "waiting", "--json").json["runs"] == []
    shown = place.show("r")
    assert shown["status"] == "stranded" and "9.8.7" in shown["waiting_for"][0]["message"]
    for words in (["resume", "r"], ["wait", "r"], ["approve", "r"], ["cancel", "r"], ["watch", "r"]):
        said = place.durun(*words, exit=9).err
        assert "stranded" in said and "9.8.7" in said and "run r" in said, words
    assert "9.8.7" in place.durun("inbox").out
    assert len(place.lines("ticks")) == 1

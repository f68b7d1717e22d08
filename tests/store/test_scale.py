"""What is asked of a file costs the same however much is in it: counted in steps of SQLite, never in time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw
import pytest

from durun.cli import drive, graph, look, outbox, people, prune, reader, start, work
from durun.cli import rewind as rewinds
from durun.store import prune as pruning
from durun.store import read
from durun.store.file import File
from durun.store.messages import Messages
from durun.store.runs import Store

SCRIPTS = Path(__file__).parents[2] / "scripts"
RUNS, VISITS, MORE = 40, read.MANY + 10, 10  # in a small file, and how many times as many in one that has grown
LARGE = ("runs", "effects", "history", "undos", "states", "positions", "items", "messages", "grouped", "pruned")


def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale", SCRIPTS / "scale.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """A file of some runs, one of them long, and the same with ten times as many that have ended, and ten times as long a run."""
    made = scale()
    above = str(tmp_path_factory.mktemp("scale"))
    small = made.newborn(above, "small")
    small.run("start", small.plan(made.LONG, "long"), "-q", "--id", "long", exits=(3,))
    grown = made.Place(above, "grown")
    with small.sql() as db, apsw.Connection(str(grown.db)) as other, other.backup("main", db, "main") as copy:
        copy.step()
    with grown.sql() as db:
        there = grown.db.stat()
        db.execute("UPDATE origin SET path = ?, device = ?, inode = ?", (str(grown.db), there.st_dev, there.st_ino)).fetchall()
    for text, name in ((made.ORDER, "order"), (made.GROUPED, "grouped")):
        grown.plan(made.filled(text, {"NAME": name, "WORK": "/bin/true"}), name)
    for place, times in ((small, 1), (grown, MORE)):
        made.grow(place, RUNS * times, 0)
        made.lengthen(place, VISITS * times)
    yield small, grown
    small.gone()
    grown.gone()


class Steps:
    """How many steps SQLite made in this process, and by which statements."""

    def __init__(self) -> None:
        self.count, self.by = 0, dict[str, int]()

    def __call__(self, db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._done)

    def _done(self, event: dict[str, Any]) -> None:
        steps = event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        self.count += steps
        self.by[event["sql"]] = self.by.get(event["sql"], 0) + steps


@pytest.fixture
def steps() -> Iterator[Callable[[Callable[[], Any]], Steps]]:
    counting: list[Steps] = []

    def hook(db: apsw.Connection) -> None:
        if counting:
            counting[-1](db)

    def counted(act: Callable[[], Any]) -> Steps:
        counting.append(Steps())
        try:
            reader.guarded(lambda: act() or 0, as_json=False)
        finally:
            found = counting.pop()
        return found

    apsw.connection_hooks.append(hook)
    yield counted
    apsw.connection_hooks.remove(hook)


COMMANDS: dict[str, Callable[[Any], Any]] = {
    "ls": lambda p: look.ls(db=str(p.db)),
    "ls --status failed": lambda p: look.ls(status=["failed"], db=str(p.db), limit=5),
    "ls --status compensated": lambda p: look.ls(status=["compensated"], db=str(p.db), limit=1),
    "ls --plan order": lambda p: look.ls(plan="order", db=str(p.db), limit=5),
    "ls --plan rare --status failed": lambda p: look.ls(plan="rare", status=["failed"], db=str(p.db)),
    "show": lambda p: look.show("done", db=str(p.db)),
    "output": lambda p: look.output("done", "look", db=str(p.db)),
    "output of the long run": lambda p: look.output("long", "work", db=str(p.db)),
    "wait": lambda p: look.wait("done", db=str(p.db)),
    "history": lambda p: look.history("done", db=str(p.db)),
    "inbox": lambda p: people.inbox(db=str(p.db)),
    "outbox ls": lambda p: outbox.outbox_ls(db=str(p.db)),
    "resume --all": lambda p: drive.resume(all=True, quiet=True, no_wait=True, db=str(p.db)),
    "db prune --older-than 400d": lambda p: prune.db_prune(older_than="400d", db=str(p.db)),
    "work --once": lambda p: work.work(once=True, quiet=True, db=str(p.db)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_makes_as_many_steps_in_a_file_that_has_grown(name: str, files: Any, steps: Any, capfd: Any) -> None:
    found = [steps(lambda place=place: COMMANDS[name](place)) for place in files]
    same(found)


def test_a_run_is_begun_and_gone_on_with_in_as_many_steps(files: Any, steps: Any, capfd: Any, monkeypatch: Any) -> None:
    for words in ({"plan": "order.yaml"}, {"plan": "grouped.yaml"}, {"plan": "order.yaml", "id": "done"}):
        found = []
        for place in files:
            monkeypatch.chdir(place.path)
            found.append(steps(lambda place=place, words=words: start.start(**words, quiet=True, db=str(place.db))))
        same(found)
    same([steps(lambda place=place: drive.resume(["bad"], quiet=True, db=str(place.db))) for place in files])


def test_one_more_step_of_a_long_run_makes_as_many(files: Any, steps: Any, capfd: Any) -> None:
    same([steps(lambda place=place: look.show("long", db=str(place.db))) for place in files])
    answered = [steps(lambda place=place: people.approve("long", resume=True, db=str(place.db))) for place in files]
    same(answered)
    same([steps(lambda place=place: drive.resume(["long"], quiet=True, db=str(place.db))) for place in files])


LOOP = """
durun: 1
name: loop
vars: {n: 0}
start: more
states:
  more: {choice: [{when: vars.n < MOST, next: one}, {next: ends}]}
  one: {run: ["true"], assign: {n: '${{ vars.n + 1 }}'}, next: more}
  ends: {run: ["false"], next: succeeded}
"""


def test_the_end_of_a_run_that_undoes_nothing_is_told_in_as_many_steps(tmp_path: Path, steps: Any, capfd: Any) -> None:
    found = []
    for most in (read.MANY + 10, 4 * read.MANY):  # of so many effects the last are told
        db, plan = str(tmp_path / f"{most}.db"), tmp_path / f"{most}.yaml"
        plan.write_text(LOOP.replace("MOST", str(most)))
        reader.guarded(lambda db=db, plan=plan: start.start(str(plan), id="r", quiet=True, db=db), as_json=False)
        found.append(steps(lambda db=db: drive.resume(["r"], quiet=True, db=db)))
    same(found)


def same(found: list[Steps]) -> None:
    small, grown = found
    odd = {sql: (small.by.get(sql, 0), count) for sql, count in grown.by.items() if count > 1.2 * small.by.get(sql, 0) + 400}
    assert not odd and grown.count <= 1.2 * small.count + 1000, (small.count, grown.count, odd)


def test_nothing_reads_all_of_a_table_that_grows(files: Any, steps: Any, capfd: Any) -> None:
    """The plans of all statements of these commands, and of what `work` and those who prune ask again and again."""
    place = files[1]
    found: set[str] = set()
    for act in COMMANDS.values():
        found |= set(steps(lambda act=act: act(place)).by)

    def asked() -> None:
        file = File(str(place.db), create=False)
        store = Store(file)
        read.to_work(file, lambda _: False, 2)
        read.next_due(file, 1)
        Messages(file, store.effect).waiting_runs(1 << 50)
        list(pruning._ended(file, None, 0))
        file.close()

    found |= set(steps(asked).by)
    db = apsw.Connection(str(place.db), flags=apsw.SQLITE_OPEN_READONLY)
    for sql in found:
        if not sql.lstrip("-\n ").upper().startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
            continue
        for *_, said in db.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall() if "?1" not in sql else []:
            words = said.split()
            whole = words[0] == "SCAN" and words[1] in LARGE and "USING" not in words
            assert not whole or sql.endswith("ORDER BY no DESC LIMIT ?"), (said, sql)
    db.close()


# --- a long run ---


def test_a_long_history_is_read_a_page_at_a_time_and_is_whole(files: Any, steps: Any, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(read, "PAGE", 7)
    file = File(str(files[1].db), create=False)
    no = read.number(file, "long")
    assert [e["no"] for e in read.history(file, no)] == list(range(1, read.events(file, no) + 1))
    assert [e["no"] for e in read.every_effect(file, no)] == [e["no"] for e in read.effects(file, no, 1 << 30)]
    file.close()


def test_a_long_run_is_drawn_from_as_many_rows(files: Any, capfd: Any, monkeypatch: Any) -> None:
    drawn, rows = [], [0]

    def handed(_: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        rows[-1] += 1
        return row

    monkeypatch.setattr(apsw, "connection_hooks", [lambda db: setattr(db, "row_trace", handed)])
    for place in files:
        assert reader.guarded(lambda place=place: graph.graph("long", db=str(place.db)), as_json=False) == 0
        rows.append(0)
        drawn.append(capfd.readouterr().out)
    assert rows[0] == rows[1] > 0, rows
    before, after = (str(VISITS * times + 6) for times in (1, MORE))
    assert f"visited {before} times" in drawn[0] and drawn[1].count(after) == drawn[0].count(before)


def test_a_run_goes_back_past_many_visits_with_its_data_as_it_was(files: Any, capfd: Any) -> None:
    for place, times in zip(files, (1, MORE), strict=True):
        reader.guarded(lambda place=place: rewinds.rewind("long", "work", repeat=True, quiet=True, db=str(place.db)), as_json=False)
        with place.sql() as db:
            assert db.execute("SELECT vars, state FROM runs WHERE id = 'long'").fetchall() == [
                (f'{{"i":{VISITS * times + 5}}}', "work")
            ]


# --- prune ---


@pytest.fixture
def ended(files: Any, tmp_path: Path) -> Iterator[Any]:
    """The grown file once more, with its long run at its end."""
    made = scale()
    place = made.Place(str(tmp_path), "ended")
    with files[1].sql() as db, apsw.Connection(str(place.db)) as other, other.backup("main", db, "main") as copy:
        copy.step()
    with place.sql() as db:
        there = place.db.stat()
        db.execute("UPDATE origin SET path = ?, device = ?, inode = ?", (str(place.db), there.st_dev, there.st_ino)).fetchall()
    yield place
    place.gone()


def test_prune_takes_a_long_run_bit_by_bit_and_others_write_in_between(ended: Any, monkeypatch: Any, capfd: Any) -> None:
    place = ended
    place.run("cancel", "long", exits=(4,))
    with place.sql() as db:
        db.execute("UPDATE undos SET status = 'undone'").fetchall()
    monkeypatch.setattr(pruning, "ROWS", 100)
    other = apsw.Connection(str(place.db))
    left: list[int] = []

    def in_between(seconds: float) -> None:
        """Whoever waits for the file has it now, and does not know the run any more."""
        other.execute("BEGIN IMMEDIATE").fetchall()
        left.append(other.execute("SELECT count(*) FROM history").fetchall()[0][0])
        assert other.execute("SELECT count(*) FROM runs WHERE id = 'long'").fetchall() == [(0,)]
        other.execute("COMMIT").fetchall()

    monkeypatch.setattr(pruning.time, "sleep", in_between)
    assert prune.db_prune("long", db=str(place.db)) == 0
    assert len(left) > 20 and max(a - b for a, b in pairwise(left)) <= 100
    for table in (*pruning._belonging(other), "leaving"):
        names = "run" if table != "runs" else "no"
        assert other.execute(f"SELECT count(*) FROM {table} WHERE {names} NOT IN (SELECT no FROM runs)").fetchall() == [(0,)]
    other.close()
    place.run("db", "check")


def test_prune_takes_large_outputs_a_few_at_a_time(ended: Any, monkeypatch: Any, capfd: Any) -> None:
    """What is overwritten goes through the log of SQLite, which takes as much of the disk, while everybody else waits."""
    place = ended
    with place.sql() as db:
        first = "(SELECT no FROM runs WHERE no <= 12 AND ended_at IS NOT NULL)"  # what goes on is not taken
        db.execute(f"UPDATE effects SET output = json_quote(printf('%.*c', 1000000, 'x')) WHERE run IN {first}").fetchall()
        db.execute(f"UPDATE runs SET output = json_quote(printf('%.*c', 1000000, 'x')) WHERE no IN {first}").fetchall()
    monkeypatch.setattr(pruning, "GAP", 0.0)
    monkeypatch.setattr(pruning, "_shrink", lambda _file, most: False)
    logs: list[int] = []
    really = pruning._unlink

    def seen(*given: Any) -> None:
        logs.append(os.path.getsize(f"{place.db}-wal"))
        really(*given)

    monkeypatch.setattr(pruning, "_unlink", seen)
    assert prune.db_prune(db=str(place.db)) == 0
    assert pruning.BYTES / 2 < max(logs) < 3 * pruning.BYTES


def test_a_prune_that_dies_is_gone_on_with_by_the_next(ended: Any, monkeypatch: Any, capfd: Any) -> None:
    place = ended
    place.run("cancel", "long", exits=(4,))
    with place.sql() as db:
        db.execute("UPDATE undos SET status = 'undone'").fetchall()
    monkeypatch.setattr(pruning, "ROWS", 100)
    slept: list[float] = []

    def dies(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(pruning.time, "sleep", dies)
    with pytest.raises(KeyboardInterrupt):
        reader.guarded(lambda: prune.db_prune("long", db=str(place.db)), as_json=False)
    place.run("show", "long", exits=(5,))
    place.run("db", "check")  # what is left is known to be on its way
    monkeypatch.undo()
    capfd.readouterr()
    assert prune.db_prune(older_than="400d", db=str(place.db)) == 0
    assert "what an earlier prune had left of runs is gone too: 1" in capfd.readouterr().err
    with place.sql() as db:
        assert db.execute("SELECT count(*) FROM leaving").fetchall() == [(0,)]
        assert db.execute("SELECT count(*) FROM history WHERE run NOT IN (SELECT no FROM runs)").fetchall() == [(0,)]


def test_the_files_that_are_measured_are_such_as_durun_writes(files: Any) -> None:
    for place in files:
        place.run("db", "check")


def test_scripts_scale_measures_a_map(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "scale.py"), "--items", "300", "--rounds", "1", "--folder", str(tmp_path), "map"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "resume to the end" in said.stdout and "show (ended)" in said.stdout
    assert list(tmp_path.iterdir()) == []

"""Locking: several processes in one file, an id given twice, and a cancel that meets the end."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import time
from pathlib import Path

import apsw
import pytest

import durun

TICK = "a: {run: 'echo tick >> ticks', next: succeeded}"
LOOP = """
a: {run: ["true"], assign: {n: '${{ vars.n + 1 }}'}, next: more}
more: {choice: [{when: vars.n < 100, next: a}, {next: succeeded}]}
"""


def test_f26_every_transaction_that_writes_begins_immediate():
    """A deferred one that has read first cannot be made to wait. `BEGIN` alone is for a view that only reads."""
    found = []
    for path in Path(durun.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"\s*(BEGIN|SAVEPOINT)\b", node.value):
                found.append((path.stem, node.value))
    # the savepoints lie in a transaction that has begun: one for each run of those whose moves are committed together
    assert {sql for _, sql in found} == {"BEGIN IMMEDIATE", "BEGIN", "SAVEPOINT one"}
    for path in Path(durun.__file__).parent.rglob("*.py"):
        lines = (text := path.read_text()).splitlines()
        for node in ast.walk(ast.parse(text)) if '"BEGIN"' in text else ():
            whole = isinstance(node, ast.FunctionDef | ast.ClassDef)
            inner = "\n".join(lines[node.lineno - 1 : node.end_lineno]) if whole else None
            view = isinstance(node, ast.FunctionDef) or "def __enter__" in (inner or "")  # not each class with such a function
            if inner is not None and view and '"BEGIN"' in inner:
                assert not re.search(r"\b(INSERT|UPDATE|DELETE)\b", inner), (path, node.name)


def test_f26_drivers_that_write_to_one_file_at_once_never_fail(place):
    plan = place.plan(LOOP, head="vars: {n: 0}")
    started = [place.begin("start", plan, "-q") for _ in range(4)]
    for process in started:
        done = place.end(process)
        assert place.show(done.id)["vars"]["n"] == 100


def test_f26_a_busy_file_is_waited_for(place):
    plan = place.plan(TICK)
    place.durun("start", plan)
    db = apsw.Connection(str(place.db))
    db.execute("BEGIN IMMEDIATE").fetchall()
    waiting = place.begin("start", plan)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2)
    assert len(place.runs()) == 1
    db.execute("ROLLBACK").fetchall()
    db.close()
    place.end(waiting)
    assert place.lines("ticks") == ["tick"] * 2


def test_f27_a_fresh_file_is_made_by_many_processes_at_once(place):
    plan = place.plan(TICK)
    started = [place.begin("start", plan, "--id", f"r{n}") for n in range(20)]
    for process in started:
        place.end(process)
    assert sorted(r["id"] for r in place.runs()) == sorted(f"r{n}" for n in range(20))
    assert place.lines("ticks") == ["tick"] * 20
    with apsw.Connection(str(place.db)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


INPUT = "input: {x: integer}"


def test_f72_an_id_given_again_is_the_same_run_and_with_other_input_or_plan_it_is_refused(place):
    plan = place.plan(TICK, head=INPUT)
    place.durun("start", plan, "--id", "k", "-i", "x=1")
    again = place.durun("start", plan, "--id", "k", "-i", "x=1")
    assert again.id == "k"
    assert "exists" in again.err
    place.durun("start", plan, "--id", "k", "-i", "x=2", exit=7)
    place.plan(TICK + "\nb: {pass: {}, next: succeeded}".replace("succeeded", "a"), head=INPUT, start="b")
    place.durun("start", plan, "--id", "k", "-i", "x=1", exit=7)
    assert [r["id"] for r in place.runs()] == ["k"]
    assert place.lines("ticks") == ["tick"]


def test_f72_a_dry_run_refuses_an_id_that_another_run_has(place):
    plan = place.plan(TICK, head=INPUT)
    place.durun("start", plan, "--id", "k", "-i", "x=1", "--dry-run")
    assert not place.db.exists()
    place.durun("start", plan, "--id", "k", "-i", "x=1")
    assert "exists" in place.durun("start", plan, "--id", "k", "-i", "x=1", "--dry-run").err
    assert "another id" in place.durun("start", plan, "--id", "k", "-i", "x=2", "--dry-run", exit=7).err
    assert place.lines("ticks") == ["tick"]


def test_f72_an_id_given_while_its_run_is_driven_begins_nothing(place):
    plan = place.plan("a: {run: 'echo tick >> ticks; while [ ! -e go ]; do sleep 0.05; done', next: succeeded}")
    first = place.begin("start", plan, "--id", "k")
    place.until(lambda: place.lines("ticks"), "its step")
    place.durun("start", plan, "--id", "k", exit=6)
    place.write("go", "")
    place.end(first)
    assert place.lines("ticks") == ["tick"]


def test_f72_one_id_given_by_many_at_once_is_one_run(place):
    plan = place.plan(TICK)
    started = [place.begin("start", plan, "--id", "k") for _ in range(10)]
    codes = [place.end(process, (0, 6)).exit for process in started]
    assert 0 in codes
    assert [(r["id"], r["status"]) for r in place.runs()] == [("k", "succeeded")]
    assert place.lines("ticks") == ["tick"]


def test_f72_a_failed_run_whose_id_is_given_again_does_what_resume_does(place):
    plan = place.plan("a: {run: 'echo tick >> ticks; test -e mended', next: succeeded}")
    place.durun("start", plan, "--id", "k", exit=1)
    place.write("mended", "")
    place.durun("start", plan, "--id", "k")
    assert place.lines("ticks") == ["tick"] * 2


def test_f81_a_cancel_that_meets_the_end_tells_the_truth_and_the_end_stands(place):
    plan = place.plan("a: {run: 'sleep 0.15', next: succeeded}")
    chance, seen = random.Random(81), set()
    for n in range(12):
        run = place.begin("start", plan, "--id", f"r{n}")
        place.until(lambda n=n: place.db.exists() and place.durun("show", f"r{n}", "--json", exit=None).exit == 0, "the run")
        time.sleep(chance.uniform(0, 0.1))
        cancelled = place.durun("cancel", f"r{n}", exit=(4, 10))
        ended = place.end(run, (0, 4))
        status = place.show(f"r{n}")["status"]
        assert (cancelled.exit, ended.exit, status) in {(4, 4, "cancelled"), (10, 0, "succeeded")}
        assert cancelled.exit == 4 or "succeeded" in cancelled.err
        seen.add(status)
        ends = [e["kind"] for e in place.history(f"r{n}") if e["kind"] in ("succeeded", "cancelled")]
        assert ends == [status]
    assert seen


@pytest.mark.parametrize("ending", ["succeeded", "failed"])
def test_f81_a_run_that_has_ended_is_never_cancelled(place, ending):
    done = place.durun("start", place.plan(f"a: {{run: ['true'], next: {ending}}}"), exit=(0, 1))
    refused = place.durun("cancel", done.id, exit=10)
    assert ending in refused.err
    assert place.show(done.id)["status"] == ending


def test_f83_a_run_nobody_drives_is_cancelled_by_the_command_itself(place):
    """Interrupted with its command alive, interrupted without, waiting for a time, in doubt; and again."""
    plan = place.plan(
        "a: {run: 'echo $$ > $RUN; while [ ! -e go ]; do sleep 0.05; done', env: {RUN: '${{ run.id }}'}, next: succeeded}"
    )
    for id in ("alive", "dead", "doubt"):
        place.begin("start", plan, "--id", id)
        place.there(id)
        if id == "alive":
            continue
        place.kill_all() if id == "dead" else None
    for pid, line in place.processes().items():
        if "-m durun" in line:
            place.kill(pid)
    command = int(place.there("doubt"))
    assert place.alive(command)
    place.durun("start", place.plan("a: {wait: 300d, next: succeeded}", "wait.yaml"), "--id", "timer", "--no-wait", exit=3)
    place.durun("resume", "dead", exit=9)
    for id in ("alive", "dead", "doubt", "timer"):
        place.durun("cancel", id, exit=4)
        place.durun("cancel", id, exit=4)
    assert {r["status"] for r in place.runs()} == {"cancelled"}
    assert not place.alive(command)
    place.durun("resume", "timer", exit=4)

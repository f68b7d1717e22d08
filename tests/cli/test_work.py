"""`durun work`: many runs in one process, taken up when they can go on, committed together, left to their keepers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest
from program import Program, until

from durun.engine import Signals, real_world
from durun.store.file import File
from durun.store.runs import Store
from durun.work import Work

STEPS = 6
PLAN = "start: w\nstates:\n  w: {wait: 1h, next: s0}\n" + "".join(
    f'  s{n}: {{run: \'echo "$DURUN_RUN_ID s{n} $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"\', idempotent: true,'
    f" next: {f's{n + 1}' if n < STEPS - 1 else 'succeeded'}}}\n"
    for n in range(STEPS)
)


def waiting(durun: Program, count: int) -> list[str]:
    """So many runs that wait for an hour."""
    durun.plan(PLAN)
    ids = [f"r{n}" for n in range(count)]
    for id in ids:
        durun("start", "plan.yaml", "--id", id, "--no-wait", "-q", exit=3)
    return ids


def make_due(durun: Program) -> None:
    db = apsw.Connection(str(durun.db))
    db.execute("UPDATE positions SET due = 1, data = '{}' WHERE phase = 'waiting'; UPDATE runs SET due = 1 WHERE due > 0")
    db.close()


def statuses(durun: Program) -> Counter[str]:
    return Counter(r["status"] for r in json.loads(durun("ls", "--all", "--json").stdout)["runs"])


def done(durun: Program, ids: list[str]) -> None:
    """Each step of each run was begun once, in order."""
    lines = [line.split()[:2] for line in durun.lines()]
    for id in ids:
        assert [step for run, step in lines if run == id] == [f"s{n}" for n in range(STEPS)], id


def test_what_is_not_due_is_let_be_and_what_is_due_is_done(durun: Program) -> None:
    ids = waiting(durun, 5)
    durun("work", "--once")
    assert durun.lines() == [] and statuses(durun) == {"waiting": 5}
    make_due(durun)
    said = durun("work", "--once").stderr
    assert "r0: s0: done" in said and "r4: succeeded" in said
    assert statuses(durun) == {"succeeded": 5}
    done(durun, ids)
    assert json.loads(durun("work", "--once", "--json").stdout) == {"moves": 0, "told": ""}


def test_interrupted_answered_and_undelivered_are_taken_up_and_what_asks_a_person_is_not(durun: Program) -> None:
    durun.plan('start: a\nstates: {a: {run: \'echo a >> "$LEDGER"; sleep 0.4; echo b >> "$LEDGER"\', next: succeeded}}\n')
    driver = durun.begin("start", "plan.yaml", "--id", "cut")
    until(lambda: durun.lines() == ["a"])
    driver.kill()
    driver.communicate()
    durun.plan(
        "start: a\nstates: {a: {approval: {message: well?}, next: b}, b: {run: 'echo c >> \"$LEDGER\"', next: succeeded}}\n",
        "asks.yaml",
    )
    durun("start", "asks.yaml", "--id", "asks", exit=3)
    durun("start", "asks.yaml", "--id", "answered", exit=3)
    durun("approve", "answered")
    durun.plan(
        "start: a\nstates: {a: {run: 'echo d >> \"$LEDGER\"; test -e well', background: true, idempotent: true, next: succeeded}}\n",
        "leaves.yaml",
    )
    durun("start", "leaves.yaml", "--id", "leaves")
    (durun.folder / "well").touch()
    durun("outbox", "retry", "leaves")
    durun("work", "--once", "-q")
    assert Counter(durun.lines()) == {"a": 1, "b": 1, "c": 1, "d": 2}
    runs = {r["id"]: r["status"] for r in json.loads(durun("ls", "--json").stdout)["runs"]}
    assert runs == {"cut": "succeeded", "asks": "waiting", "answered": "succeeded", "leaves": "succeeded"}
    assert json.loads(durun("outbox", "ls", "--json").stdout)["depth"] == 0


def test_told_to_stop_it_leaves_commands_to_their_keeper_and_the_next_finds_their_ends(durun: Program) -> None:
    durun.plan(
        'start: w\nstates: {w: {wait: 1h, next: a}, a: {run: \'echo a >> "$LEDGER"; until [ -e go ]; do sleep 0.05; done; echo b >> "$LEDGER"\', next: succeeded}}\n'
    )
    durun("start", "plan.yaml", "--id", "r", "--no-wait", exit=3)
    make_due(durun)
    worker = durun.begin("work")
    until(lambda: durun.lines() == ["a"])
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(30) == 143
    worker.communicate()
    assert durun.show("r")["status"] == "interrupted"
    (durun.folder / "go").touch()
    until(lambda: durun.lines() == ["a", "b"])
    durun("work", "--once", "-q")
    assert durun.lines() == ["a", "b"] and durun.show("r")["status"] == "succeeded"


def test_it_hears_at_once_what_other_processes_store(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {wait: {signal: go}, next: b}, b: {run: 'echo b >> \"$LEDGER\"', next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r", exit=3)
    worker = durun.begin("work")
    durun("signal", "r", "go")
    until(lambda: durun.show("r")["status"] == "succeeded")
    worker.terminate()
    assert worker.wait(30) == 143
    worker.communicate()
    assert durun.lines() == ["b"]


def test_killed_again_and_again_nothing_is_lost_and_nothing_is_done_twice(durun: Program) -> None:
    ids = waiting(durun, 12)
    make_due(durun)
    for _ in range(200):
        seen = len(durun.lines())
        worker = durun.begin("work", "--once", "-q")
        until(lambda seen=seen, worker=worker: len(durun.lines()) > seen + 5 or worker.poll() is not None, 60)
        worker.kill()
        worker.communicate()
        if statuses(durun) == {"succeeded": 12}:
            break
    assert statuses(durun) == {"succeeded": 12}
    done(durun, ids)


def test_two_share_a_file_and_each_run_is_held_by_one(durun: Program) -> None:
    ids = waiting(durun, 8)
    make_due(durun)
    both = [durun.begin("work", "--once", "-q") for _ in range(2)]
    assert [worker.wait(60) for worker in both] == [0, 0]
    for worker in both:
        worker.communicate()
    durun("work", "--once", "-q")
    assert statuses(durun) == {"succeeded": 8}
    done(durun, ids)


def test_while_the_file_is_held_it_takes_nothing(durun: Program) -> None:
    waiting(durun, 2)
    durun("pause", "--all")
    make_due(durun)
    assert "resume --all" in durun("work", "--once", exit=9).stderr
    assert durun.lines() == []


def test_one_run_that_cannot_go_on_keeps_no_other_from_it(durun: Program) -> None:
    ids = waiting(durun, 3)
    make_due(durun)
    db = apsw.Connection(str(durun.db))
    db.execute("UPDATE runs SET language = 99 WHERE id = 'r1'")
    db.close()
    durun("work", "--once", "-q")
    assert statuses(durun) == {"succeeded": 2, "stranded": 1}
    done(durun, [ids[0], ids[2]])
    durun.audited = False  # a language that there is not


def test_messages_of_a_run_that_cannot_go_on_keep_no_other_run_waiting(durun: Program) -> None:
    left = "a: {run: 'test -e ok && echo $DURUN_RUN_ID >> \"$LEDGER\"', background: true, idempotent: true, next: b}"
    durun.plan(f"start: a\nstates:\n  {left}\n  b: {{wait: {{signal: s}}, next: succeeded}}\n")
    for id in ("r0", "r1"):
        durun("start", "plan.yaml", "--id", id, "-q", exit=3)
        durun("outbox", "retry", id)
    (durun.folder / "ok").touch()
    db = apsw.Connection(str(durun.db))
    db.execute("UPDATE runs SET language = 99 WHERE id = 'r0'")
    db.close()
    assert "run r0 is stranded" in durun("work", "--once").stderr
    assert durun.lines() == ["r1"]
    durun.audited = False  # a language that there is not


def test_tools_that_hang_hold_up_their_own_runs_alone_and_are_asked_once_for_all_that_ask_alike(durun: Program) -> None:
    states = "a: {wait: 1h, next: b}\n  b: {run: 'echo $DURUN_RUN_ID >> \"$LEDGER\"', idempotent: true, next: succeeded}"
    hangs = "if test -e slow; then echo asked >> asked; until test -e go; do sleep 0.05; done; fi; echo 1.0"
    tools = "pins: {env: [LEDGER], tools: {pay: [sh, -c, " + json.dumps(hangs) + "]}}\n"
    durun.plan(f"{tools}start: a\nstates:\n  {states}\n", "tools.yaml")
    durun.plan(f"start: a\nstates:\n  {states}\n")
    for id in ("t0", "t1", "t2"):
        durun("start", "tools.yaml", "--id", id, "--no-wait", "-q", exit=3)
    durun("start", "plan.yaml", "--id", "r", "--no-wait", "-q", exit=3)
    make_due(durun)
    (durun.folder / "slow").touch()
    working = durun.begin("work", "--once", "-q")
    until(lambda: durun.lines() == ["r"])
    asked = durun.folder / "asked"
    assert until(lambda: asked.exists() and asked.read_text()) == "asked\n"
    (durun.folder / "go").touch()
    working.communicate(timeout=60)
    assert working.returncode == 0 and sorted(durun.lines()) == ["r", "t0", "t1", "t2"]


def test_a_limit_holds_among_the_runs_of_one_process_and_all_have_their_turn(durun: Program) -> None:
    durun.plan(
        """
limits: {two: {concurrency: 2}}
start: w
states:
  w: {wait: 1h, next: a}
  a: {run: 'echo "+" >> "$LEDGER"; sleep 0.1; echo "-" >> "$LEDGER"', limit: two, next: b}
  b: {run: 'true', next: succeeded}
"""
    )
    for n in range(7):
        durun("start", "plan.yaml", "--id", f"r{n}", "--no-wait", "-q", exit=3)
    make_due(durun)
    durun("work", "--once", "-q")
    assert statuses(durun) == {"succeeded": 7}
    held = 0
    for line in durun.lines():
        held += 1 if line == "+" else -1
        assert 0 <= held <= 2


class Counting:
    """A file whose transactions are counted."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.count = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, **more: Any) -> Any:
        self.count += 1
        return self.inner.write(**more)


def test_what_is_ready_in_many_runs_is_committed_together(durun: Program) -> None:
    ids = waiting(durun, 10)
    make_due(durun)
    file: Any = Counting(File(str(durun.db), create=False))
    before = dict(os.environ)
    w = Work(
        Store(file), real_world(), Signals(), lambda _: False, lambda _: None, lambda _: None, lambda *_: None, 100, lambda *_: None
    )
    w.run(once=True)
    w.close()
    file.inner.close()
    assert before == dict(os.environ)
    done(durun, ids)
    assert w.moved == 10 * (STEPS + 1)
    assert file.count < w.moved / 2, "fewer commits than steps"


def test_a_run_whose_fence_was_superseded_rolls_back_alone(durun: Program) -> None:
    waiting(durun, 3)
    make_due(durun)
    file = File(str(durun.db), create=False)
    store = Store(file)
    taken: list[str] = []
    w = Work(store, real_world(), Signals(), lambda _: False, lambda _: None, taken.append, lambda *_: None, 100, lambda *_: None)
    w._take_up()
    assert len(w.slots) == 3
    db = apsw.Connection(str(durun.db))
    db.execute("UPDATE runs SET fence = fence + 1, driver = NULL WHERE id = 'r1'")
    db.close()
    end = time.monotonic() + 30
    while w.slots and time.monotonic() < end:
        w._turn(w._receive(w._patience()))
    assert any("r1" in line and "taken over" in line for line in taken)
    w.close()
    file.close()
    assert statuses(durun) == {"succeeded": 2, "waiting": 1}
    assert {line.split()[0] for line in durun.lines()} == {"r0", "r2"}


@pytest.fixture(autouse=True)
def _ledger(durun: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER", str(Path(durun.ledger)))


def test_work_undoes_in_reverse_order_as_a_driver_does(durun: Program) -> None:
    durun.plan("on_error: compensate\nstart: a\nstates:\n  a: {run: 'true', compensate: {run: 'echo a >> \"$LEDGER\"'}, next: m}\n  m:\n    map:\n"
               "      items: '[1, 2, 3, 4]'\n      concurrency: 1\n      start: x\n      states:\n"
               "        x: {run: 'true', compensate: {run: ['sh', '-c', 'echo $0 >> \"$LEDGER\"', '${{ item }}']}, next: succeeded}\n    next: ask\n"
               "  ask: {approval: {message: 'on?'}, next: bad}\n  bad: {run: exit 1, next: succeeded}\n")  # fmt: skip
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("approve", "r")
    durun("work", "--once")
    assert durun.show("r")["status"] == "compensated"
    assert durun.lines() == ["4", "3", "2", "1", "a"]


def test_it_leaves_no_driver_behind_in_the_file(durun: Program) -> None:
    waiting(durun, 2)
    make_due(durun)
    durun("work", "--once", "-q")
    db = apsw.Connection(str(durun.db))
    assert db.execute("SELECT count(*) FROM drivers").fetchall() == [(0,)]
    db.close()


def test_a_run_goes_on_while_a_message_of_it_is_delivered(durun: Program) -> None:
    """What takes its time is what the run does not wait for."""
    durun.plan(
        """
start: a
states:
  a: {run: 'until [ -e go ]; do sleep 0.05; done; test -e well', background: true, idempotent: true, next: ask}
  ask: {approval: {message: well?}, next: b}
  b: {run: 'echo b >> "$LEDGER"', next: succeeded}
"""
    )
    (durun.folder / "go").touch()
    durun("start", "plan.yaml", "--id", "r", exit=3)
    (durun.folder / "go").unlink()
    durun("outbox", "retry", "r")
    worker = durun.begin("work", "-q")
    until(lambda: durun.show("r")["messages"][0]["status"] == "sending")
    durun("approve", "r")
    until(lambda: durun.lines() == ["b"])
    assert durun.show("r")["messages"][0]["status"] == "sending"
    for name in ("well", "go"):
        (durun.folder / name).touch()
    until(lambda: durun.show("r")["status"] == "succeeded" and not durun.show("r")["messages"])
    worker.terminate()
    assert worker.wait(30) == 143
    worker.communicate()


def test_what_could_not_go_on_once_does_not_have_the_file_looked_into_again_and_again(durun: Program) -> None:
    waiting(durun, 1)
    file = File(str(durun.db), create=False)
    w = Work(
        Store(file), real_world(), Signals(), lambda _: False, lambda _: None, lambda _: None, lambda *_: None, 100, lambda *_: None
    )
    w._refused = {99: ((1, 1), time.monotonic() - 5)}  # its time is over, and it is no run that could go on
    w._take_up()
    assert w._look_at > time.monotonic() + 10 and not w.slots
    w.close()
    file.close()


def test_a_driver_that_was_killed_is_forgotten_once_it_holds_nothing_any_more(durun: Program) -> None:
    ids = waiting(durun, 2)
    durun.plan("start: a\nstates: {a: {run: 'touch begun; until [ -e go ]; do sleep 0.05; done', next: succeeded}}\n")
    drivers = [durun.begin("start", "plan.yaml", "--id", "one"), durun.begin("work")]
    until((durun.folder / "begun").exists)
    make_due(durun)
    until(lambda: statuses(durun)["succeeded"] == 2)
    done(durun, ids)
    with contextlib.closing(apsw.Connection(str(durun.db))) as db:

        def known() -> list[int]:
            return [pid for (pid,) in db.execute("SELECT pid FROM drivers ORDER BY started_at").fetchall()]

        assert set(known()) == {one.pid for one in drivers}
        for one in drivers:
            one.kill()
            one.communicate()
        durun("db", "prune")
        assert known() == [drivers[0].pid], "that has a run, the other had let all of its runs go"
        assert durun.show("one")["status"] == "interrupted"
        (durun.folder / "go").touch()
        durun("resume", "one")
        assert known() == []

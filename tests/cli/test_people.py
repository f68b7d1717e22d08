"""Approvals and signals from the command line: what is said, what it exits with, and who goes on."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import Died, Driving, Moments, Mortal
from program import COMMAND, Program, until

from durun.effects.locks import driver_alive
from durun.engine import World, real_world, tell
from durun.errors import NotPossible
from durun.machine.events import Answer, Cancel, Due, Pause, Signal, TimeOver
from durun.machine.model import Status
from durun.plan.expressions import Evaluator

ASK = """
start: ask
states:
  ask:
    approval: {message: 'Ship it?', data: {to: prod}}
    catch: [{on: rejected, next: no_ship}]
    next: ship
  ship: {run: 'echo "ship $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', next: succeeded}
  no_ship: {run: 'echo no >> "$LEDGER"', next: succeeded}
"""
WORD = """
output: '${{ states.word.output }}'
start: word
states:
  word: {wait: {signal: go, schema: {type: object, required: [n], properties: {n: {type: integer}}}}, next: succeeded}
"""


def words(durun: Program) -> list[str]:
    return [line.split()[0] for line in durun.lines()]


# --- approve and reject ---


def test_a_run_that_asks_exits_3_and_says_what_it_asks(durun: Program) -> None:
    durun.plan(ASK)
    said = durun("start", "plan.yaml", "--id", "r", exit=3)
    assert "Ship it?: durun approve r ask | durun reject r ask" in said.stderr
    (w,) = durun.show("r")["waiting_for"]
    assert (w["path"], w["kind"], w["name"], w["message"], w["until"]) == ("ask", "approval", "ask", "Ship it?", None)
    assert w["command"] == "durun approve r ask | durun reject r ask" and w["data"] == {"to": "prod"}
    assert [o["name"] for o in w["options"]] == ["yes", "no"]
    text = durun("show", "r").stdout
    assert 'data     {"to":"prod"}' in text and "answers  yes, no (a no)" in text and f"digest   {w['digest']}" in text
    assert durun("wait", "r", "--timeout", "30s", exit=3).stderr.startswith("run r is waiting")
    assert durun("resume", "r", exit=3).stderr.startswith("run r is waiting")


def test_a_yes_is_recorded_and_whoever_resumes_goes_on(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    said = durun("approve", "r", "--note", "fine", "--by", "ann")
    assert "run r: the answer is recorded" in said.stderr and "durun resume r" in said.stderr and said.stdout == ""
    assert durun.lines() == [], "nothing is begun by who answers"
    assert durun("output", "r", "ask").stdout.startswith('{"answer": "yes", "at": "')
    assert json.loads(durun("output", "r", "ask").stdout)["by"] == "ann"
    durun("resume", "r")
    assert words(durun) == ["ship"]


def test_a_no_goes_where_the_catch_says(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("reject", "r", "ask", "--note", "too late")
    durun("resume", "r")
    assert words(durun) == ["no"]
    assert durun.show("r")["error"]["output"]["note"] == "too late"


def test_resume_in_the_same_breath_drives_on_and_exits_by_the_run(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    said = durun("approve", "r", "--resume", "--json")
    assert json.loads(said.stdout)["status"] == "succeeded" and words(durun) == ["ship"]
    durun.plan(
        ASK.replace("    catch: [{on: rejected, next: no_ship}]\n", "").replace(
            "  no_ship: {run: 'echo no >> \"$LEDGER\"', next: succeeded}\n", ""
        )
    )
    durun("start", "plan.yaml", "--id", "s", exit=3)
    durun("reject", "s", "--resume", exit=1)
    assert durun.show("s")["status"] == "failed", "a run that the no has ended is not taken up again"


def test_resume_in_the_same_breath_exits_by_a_run_that_ends_with_what_was_said(durun: Program) -> None:
    durun.plan(WORD)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    assert "failed" in durun("signal", "r", "go", "--error", "declined", "--resume", exit=1).stderr
    durun("start", "plan.yaml", "--id", "s", exit=3)
    durun("signal", "s", "go", "--data", '{"n": 1}', "--resume", exit=0)


def test_of_many_questions_a_few_are_named_and_of_many_waits_each_says_where(durun: Program) -> None:
    durun.plan(
        "start: each\nstates:\n  each:\n    map:\n      items: '[1, 2, 3, 4, 5, 6, 7]'\n      start: ask\n      states:\n"
        "        ask: {approval: {message: 'this one?'}, next: hear}\n        hear: {wait: {signal: go}, next: succeeded}\n"
        "    next: succeeded\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    said = durun("approve", "r", exit=10).stderr
    assert "name one of" in said and said.rstrip().endswith("and 2 more") and said.count("].ask") == 5
    said = durun("approve", "r", "each[3].ask").stderr
    assert "each[3].hear: the signal go" in said and "each[3].hear: the signal go" in durun("show", "r").stdout


def test_the_answer_is_written_once(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("approve", "r", "--by", "ann")
    for when in ("answered", "ended"):
        assert "is answered already: yes, by ann" in durun("approve", "r", "--by", "ann").stderr
        assert "ann answered yes at" in durun("approve", "r", "--by", "bob", exit=10).stderr
        assert "ann answered yes at" in durun("reject", "r", "ask", "--by", "ann", exit=10).stderr
        if when == "answered":
            durun("resume", "r")
    assert words(durun) == ["ship"]


def test_an_answer_may_be_held_to_what_was_shown(durun: Program) -> None:
    durun.plan(
        ASK.replace("next: no_ship", "next: ask").replace("  no_ship: {run: 'echo no >> \"$LEDGER\"', next: succeeded}\n", "")
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    (first,) = durun.show("r")["waiting_for"]
    durun("reject", "r", "--digest", first["digest"])
    (second,) = durun.show("r")["waiting_for"]
    assert second["digest"] != first["digest"] and second["visit"] == 2
    assert "look again" in durun("approve", "r", "--digest", first["digest"], exit=10).stderr
    durun("approve", "r", "--digest", second["digest"])


def two_hours_pass(durun: Program) -> None:
    """As the run sees it, whose timers are set in UTC and by the clock of this boot."""
    with contextlib.closing(sqlite3.connect(durun.db)) as db, db:
        back = "json_set(data, '$.clock', json_extract(data, '$.clock') - 7200000, '$.set_at', json_extract(data, '$.set_at') - 7200000)"
        db.execute(f"UPDATE positions SET due = due - 7200000, data = {back}")


def test_an_answer_that_comes_too_late_is_refused_though_nobody_has_noticed(durun: Program) -> None:
    durun.plan(ASK.replace("    catch", "    timeout: 1h\n    catch"))
    durun("start", "plan.yaml", "--id", "r", exit=3)
    two_hours_pass(durun)
    (w,) = durun.show("r")["waiting_for"]
    assert (w["kind"], w["command"]) == ("timer", "durun resume r") and "the time to answer is over since" in w["message"]
    assert json.loads(durun("inbox", "--json").stdout)["inbox"] == []
    said = durun("approve", "r", exit=10).stderr
    assert "the time to answer is over" in said and "`durun resume r` goes on" in said
    assert durun.show("r")["status"] == "waiting"
    durun("resume", "r", exit=1)
    assert durun.show("r")["error"]["name"] == "timeout"
    assert "has ended" in durun("approve", "r", exit=10).stderr


def test_what_is_filled_in_is_held_to_the_schema(durun: Program) -> None:
    durun.plan(
        "output: '${{ states.ask.output.data }}'\nstart: ask\nstates:\n"
        "  ask: {approval: {message: 'How many?', options: [few, many], schema: integer}, next: succeeded}\n"
    )
    said = durun("start", "plan.yaml", "--id", "r", exit=3).stderr
    assert "durun approve r ask --answer few|many --data JSON" in said and "reject" not in said
    assert "say which with --answer: few, many" in durun("approve", "r", "--data", "1", exit=2).stderr
    assert "does not fit" in durun("approve", "r", "--answer", "few", exit=7).stderr
    assert "--data holds no JSON" in durun("approve", "r", "--answer", "few", "--data", "{", exit=2).stderr
    assert "none of its answers is a no" in durun("reject", "r", exit=2).stderr
    (durun.folder / "n.json").write_text("7")
    durun("approve", "r", "--answer", "few", "--data", "@n.json")
    assert durun("output", "r").stdout == "7\n"
    assert durun("approve", "nobody", exit=5)


def test_the_driver_of_a_paused_run_does_not_go_on_with_what_was_said_and_that_is_not_claimed(durun: Program) -> None:
    durun.plan(
        "notify: [{on: [succeeded], run: 'true'}]\nstart: both\nstates:\n  both:\n    parallel:\n      branches:\n"
        "        asks: {start: x, states: {x: {approval: {message: 'Well?'}, next: succeeded}}}\n"
        "        does: {start: y, states: {y: {run: 'while ! test -e gate; do sleep 0.05; done', next: succeeded}}}\n"
        "    next: succeeded\n"
    )
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: any(w["kind"] == "approval" for w in durun.seen("r").get("waiting_for", [])))
    durun("pause", "r")
    assert durun.show("r")["driver"]["alive"]
    said = durun("approve", "r").stderr
    assert "is recorded\n" in said and "goes on" not in said and "run r is paused" in said, said
    (durun.folder / "gate").touch()
    assert driver.wait(60) == 0


def test_an_answer_that_ends_a_run_says_what_is_left_to_be_delivered(durun: Program) -> None:
    durun.plan("notify: [{on: [succeeded], run: 'true'}]\nstart: a\nstates: {a: {approval: {message: 'Well?'}, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r", exit=3)
    assert "messages left to be delivered: 1: `durun outbox deliver r`" in durun("approve", "r").stderr


def test_a_driver_that_lives_goes_on_at_once_with_what_was_said(durun: Program) -> None:
    durun.plan(
        WORD.replace("start: word", "start: a").replace(
            "states:", "states:\n  a: {run: 'while ! test -e gate; do sleep 0.05; done', next: word}"
        )
    )
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: any(e["status"] == "begin" for e in durun.seen("r").get("effects", [])))
    assert "its driver goes on" in durun("signal", "r", "go", "--data", '{"n": 1}').stderr
    (durun.folder / "gate").touch()
    assert driver.wait(60) == 0
    assert json.loads(durun("output", "r").stdout) == {"n": 1}


def test_a_paused_run_is_answered_and_begins_nothing(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("pause", "r")
    durun("approve", "r")
    assert durun.show("r")["status"] == "paused" and durun.lines() == []
    durun("resume", "r")
    assert words(durun) == ["ship"]


# --- signal ---


def test_a_signal_is_held_to_the_schema_and_the_names_of_the_plan(durun: Program) -> None:
    durun.plan(WORD)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    (w,) = durun.show("r")["waiting_for"]
    assert (w["kind"], w["name"], w["command"]) == ("signal", "go", "durun signal r go")
    before = durun("history", "r").stdout
    for exit, args in (
        (7, ("go",)), (7, ("go", "--data", '{"n": "x"}')), (2, ("go", "--data", "{")), (10, ("gone", "--data", '{"n": 1}')),
        (10, ("go", "--alive")), (2, ("go", "--error", "timeout")), (2, ("go", "--error", "in doubt")), (2, ("go", "--message", "x")),
        (2, ("go", "--alive", "--data", "1")), (2, ("go", "--error", "mine", "--data", "{")), (7, ("go", "--data", "@nowhere")),
    ):  # fmt: skip
        durun("signal", "r", *args, exit=exit)
    assert durun("history", "r").stdout == before, "what is refused leaves no trace"
    durun("signal", "r", "go", "--data", '{"n": 1}')
    assert json.loads(durun("output", "r").stdout) == {"n": 1}
    assert "has ended" in durun("signal", "r", "go", "--data", '{"n": 1}', exit=10).stderr


def test_bad_news_may_bring_data_of_any_shape(durun: Program) -> None:
    durun.plan(WORD)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("signal", "r", "go", "--error", "Declined", "--message", "not today", "--data", '{"code": 7}')
    error = durun.show("r")["error"]
    assert (error["name"], error["message"], error["output"]) == ("Declined", "not today", {"code": 7})


def test_a_repeat_with_the_same_mark_is_dropped_and_says_so(durun: Program) -> None:
    durun.plan(
        "output: '${{ [states.a.output, states.b.output] }}'\nstart: a\nstates:\n"
        "  a: {wait: {signal: coin}, next: b}\n  b: {wait: {signal: coin}, next: succeeded}\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("signal", "r", "coin", "--data", "1", "--dedupe", "m1")
    assert "was sent before as m1" in durun("signal", "r", "coin", "--data", "1", "--dedupe", "m1").stderr
    assert durun.show("r")["state"] == "b"
    durun("signal", "r", "coin", "--data", "2", "--dedupe", "m2")
    assert json.loads(durun("output", "r").stdout) == [1, 2]


def test_an_error_from_outside_ends_the_wait_with_it(durun: Program) -> None:
    durun.plan(WORD)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("signal", "r", "go", "--error", "no_stock", "--message", "sold out")
    doc = durun.show("r")
    assert (doc["status"], doc["error"]["name"], doc["error"]["message"]) == ("failed", "no_stock", "sold out")
    assert durun("resume", "r", exit=3) and durun.show("r")["visit"] == 2
    durun("signal", "r", "go", "--data", '{"n": 4}')
    assert durun.show("r")["status"] == "succeeded"


def test_what_nobody_took_is_named_at_the_end_and_in_show_before(durun: Program) -> None:
    durun.plan(
        "start: ask\nstates:\n  ask: {approval: {message: x}, catch: [{on: rejected, next: word}], next: succeeded}\n  word: {wait: {signal: go}, next: succeeded}\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("signal", "r", "go", "--by", "bank")
    assert durun.show("r")["signals"][0]["name"] == "go" and "signals  go (not taken)" in durun("show", "r").stdout
    assert "nobody took the signals go" in durun("approve", "r").stderr
    (left,) = [e for e in json.loads(durun("history", "r", "--json").stdout)["events"] if e["kind"] == "signals_left"]
    assert left["signals"] == [{"name": "go", "no": 1, "by": "bank"}]


def test_an_expired_wait_ends_the_run_before_a_signal_reaches_it(durun: Program) -> None:
    durun.plan("start: w\nstates:\n  w: {wait: {signal: go}, timeout: 1h, next: succeeded}\n")
    durun("start", "plan.yaml", "--id", "r", exit=3)
    two_hours_pass(durun)
    (w,) = durun.show("r")["waiting_for"]
    assert (w["kind"], w["command"]) == ("timer", "durun resume r") and "the time for the signal go is over" in w["message"]
    said = durun("signal", "r", "go", exit=10).stderr
    assert "its time is over since" in said and "`durun resume r` goes on" in said
    durun("resume", "r", exit=1)
    assert durun.show("r")["error"]["name"] == "timeout"


def test_a_signal_that_comes_after_the_time_of_a_wait_is_for_the_next_one(durun: Program) -> None:
    durun.plan(
        "output: '${{ states.b.output }}'\nstart: a\nstates:\n  b: {wait: {signal: go}, next: succeeded}\n"
        "  a: {wait: {signal: go}, timeout: 1h, catch: [{on: timeout, next: b}], next: failed}\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    two_hours_pass(durun)
    durun("signal", "r", "go", "--data", "5")
    assert durun("output", "r").stdout == "5\n"


# --- inbox ---


def test_the_inbox_lists_what_waits_for_a_person_over_all_runs(durun: Program) -> None:
    assert durun("inbox").stderr.endswith(": nothing waits for a person\n")
    assert json.loads(durun("inbox", "--json").stdout) == {"inbox": []}
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "asks", exit=3)
    durun.plan(WORD)
    durun("start", "plan.yaml", "--id", "listens", exit=3)
    durun.plan("start: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "sleeps", "--no-wait", exit=3)
    durun("pause", "sleeps")
    items = json.loads(durun("inbox", "--json").stdout)["inbox"]
    assert [(i["run"], i["kind"], i["command"]) for i in items] == [
        ("asks", "approval", "durun approve asks ask | durun reject asks ask"),
        ("sleeps", "paused", "durun resume sleeps"),
    ]
    text = durun("inbox").stdout
    assert "asks  test  ask: Ship it?" in text and "durun reject asks ask" in text
    durun("approve", "asks")
    durun("resume", "sleeps", "--no-wait", exit=3)
    assert durun("inbox").stdout == ""


# --- many at once ---


def test_ten_processes_that_answer_one_run_at_once_give_one_answer(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    said = [durun.begin("approve" if n % 2 else "reject", "r", "--by", f"p{n}", "--resume") for n in range(10)]
    codes = Counter()
    for process in said:
        _, err = process.communicate(timeout=120)
        assert "Traceback" not in err and "fault of its own" not in err, err
        codes[process.returncode] += 1
    assert codes == {0: 1, 10: 9}, codes
    assert len(durun.lines()) == 1
    assert len([e for e in json.loads(durun("history", "r", "--json").stdout)["events"] if e["kind"] == "answered"]) == 1


def test_ten_processes_that_send_signals_to_one_run_at_once_lose_none(durun: Program) -> None:
    durun.plan(
        "vars: {got: []}\noutput: '${{ vars.got }}'\nstart: w\nstates:\n"
        "  w: {wait: {signal: n}, assign: {got: '${{ vars.got + [output] }}'}, next: more}\n"
        "  more: {choice: [{when: size(vars.got) < 10, next: w}, {next: succeeded}]}\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    senders = [durun.begin("signal", "r", "n", "--data", str(n), *(("--resume",) if n % 3 == 0 else ())) for n in range(10)]
    for process in senders:
        _, err = process.communicate(timeout=120)
        assert process.returncode in (0, 3), err
    assert sorted(json.loads(durun("output", "r").stdout)) == list(range(10))


# --- kill -9 ---

FAULTS_OF_A_DRIVER = {"driver": {}, "driver and keeper": {"keeper": True}}
PLAN = f"durun: 1\nname: kill\npins: {{env: [LEDGER]}}\n{ASK}"


def answered(driving: Driving, store: Any, by: str) -> str:
    """What `approve` does, with a store that may die. What was said before, where it was."""
    alive = lambda place: driver_alive(driving.path + ".d", place)  # noqa: E731
    return tell(store, 1, store.pinned(1).plan, Answer(by=by), driving.world, alive, Evaluator()).before


@pytest.mark.parametrize("driven", [False, True])
def test_an_answer_survives_a_kill_at_every_moment_of_being_given(tmp_path: Path, driven: bool) -> None:
    for at in range(2):
        folder = tmp_path / f"{driven}-{at}"
        folder.mkdir()
        ledger = folder / "ledger"
        driving = Driving(folder)
        engine = driving.start(PLAN, env={"LEDGER": str(ledger)})
        engine.drive()
        if not driven:
            driving.leave()
        giver = Driving(folder)
        with pytest.raises(Died):
            answered(giver, Mortal(giver.store._inner, Moments(at), {"hear"}), "ann")
        giver.die()
        again = Driving(folder)
        before = answered(again, again.store, "ann")
        assert bool(before) is (at == 1), "the answer was there exactly when it had been committed"
        with pytest.raises(NotPossible):
            answered(again, again.store, "bob")
        again.die()
        if driven:
            engine.drive()
            driving.leave()
        else:
            last = Driving(folder)
            engine = last.take()
            engine.drive()
            last.leave()
        assert engine.at.run.status is Status.SUCCEEDED
        assert len(ledger.read_text().splitlines()) == 1


@pytest.mark.parametrize("death", FAULTS_OF_A_DRIVER)
def test_an_accepted_answer_survives_a_driver_that_dies_at_any_moment_after_it(tmp_path: Path, death: str) -> None:
    for at in range(40):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        ledger, moments = folder / "ledger", Moments(10**9)
        driving = Driving(folder, moments=moments)
        engine = driving.start(PLAN, env={"LEDGER": str(ledger)})
        engine.drive()
        giver = Driving(folder)
        answered(giver, giver.store, "ann")
        giver.leave_as_told()
        moments.at = moments.seen + at
        try:
            engine.drive()
        except Died:
            driving.die(**FAULTS_OF_A_DRIVER[death])
        else:
            driving.leave()
            assert at > 3, "there are fewer moments than there should be"
            break
        last = Driving(folder)
        engine = last.take()
        engine.drive()
        if engine.at.run.status is Status.BLOCKED:  # its keeper died with it: what became of the command is not known
            assert death == "driver and keeper"
            last.leave()
            continue
        last.leave()
        assert engine.at.run.status is Status.SUCCEEDED, f"killed at {moments.names[-1]}"
        assert len(ledger.read_text().splitlines()) == 1
    else:
        raise AssertionError("it never came to its end")


def test_an_accepted_answer_beats_the_timeout_that_falls_due_in_the_same_move(tmp_path: Path) -> None:
    clock = [1_000_000]
    world = World(lambda: clock[0], lambda: clock[0], lambda: 0.5, real_world().boot)
    driving = Driving(tmp_path, world=world)
    engine = driving.start(PLAN.replace("    catch", "    timeout: 10s\n    catch"), env={"LEDGER": str(tmp_path / "ledger")})
    engine.drive()
    giver = Driving(tmp_path, world=world)
    clock[0] += 9_999
    answered(giver, giver.store, "ann")
    clock[0] += 1
    with pytest.raises(NotPossible):
        answered(giver, giver.store, "bob")
    giver.leave_as_told()
    assert isinstance(engine.ready(), Due), "the timeout is due, and this driver has heard nothing yet"
    engine.drive()
    driving.leave()
    assert engine.at.run.status is Status.SUCCEEDED and (tmp_path / "ledger").read_text().startswith("ship ")


def test_a_signal_left_to_a_driver_that_died_is_taken_by_the_next_who_says_something(tmp_path: Path) -> None:
    plan = "durun: 1\nname: t\nstart: a\nstates: {a: {wait: {signal: x}, next: b}, b: {wait: {signal: x}, next: succeeded}}\n"
    driving = Driving(tmp_path)
    engine = driving.start(plan)
    engine.drive()
    giver = Driving(tmp_path)
    alive = lambda place: driver_alive(driving.path + ".d", place)  # noqa: E731
    args = (engine.plan, Signal("x", 1), giver.world, alive, Evaluator())
    assert tell(giver.store, 1, *args).driven
    driving.die()
    until(lambda: not alive(driving.commands.place))  # what was just being executed closes its copy of the lock a moment later
    told = tell(giver.store, 1, engine.plan, Signal("x", 2), giver.world, alive, Evaluator())
    assert not told.driven
    at = giver.store.load(1)
    assert at.run.status is Status.SUCCEEDED
    assert [at.states["", name].output for name in "ab"] == [1, 2]
    giver.leave_as_told()


@pytest.mark.parametrize(("no", "ends"), [(False, Status.SUCCEEDED), (True, Status.FAILED)])
@pytest.mark.parametrize("then", ["resumed", "cancelled"])
def test_an_answer_left_to_the_driver_of_a_paused_run_stands_whatever_is_asked_of_the_run_next(
    tmp_path: Path, no: bool, ends: Status, then: str
) -> None:
    driving = Driving(tmp_path)
    engine = driving.start("durun: 1\nname: t\nstart: a\nstates: {a: {approval: {message: m}, next: succeeded}}\n")
    engine.drive()
    engine.move(Pause())
    answer = Answer(by="ann", reject=no)
    assert tell(driving.store, 1, engine.plan, answer, driving.world, lambda _: True, Evaluator()).driven
    driving.die()
    until(lambda: not driver_alive(driving.path + ".d", driving.commands.place))
    second = Driving(tmp_path)
    engine = second.take()
    if then == "resumed":
        engine.take_up()
    else:
        with pytest.raises(NotPossible, match=f"already {ends}"):
            engine.move(Cancel())
    assert (engine.at.run.status, second.store.load(1).run.status, second.store.notes(1)) == (ends, ends, [])
    second.leave()


def test_an_answer_that_finds_the_time_of_the_run_over_does_not_keep_its_driver_from_saying_so(tmp_path: Path) -> None:
    clock = [1_000_000_000]
    world = World(lambda: clock[0], lambda: clock[0], lambda: 0.5, "boot")
    fan = "a: {start: x, states: {x: {approval: {message: m}, next: succeeded}}}, b: {start: y, states: {y: {wait: 1h, next: succeeded}}}"
    text = f"durun: 1\nname: t\ntimeout: 1m\nstart: f\nstates: {{f: {{parallel: {{branches: {{{fan}}}}}, next: succeeded}}}}\n"
    driving = Driving(tmp_path, world=world)
    engine = driving.start(text)
    engine.drive(wait=False)
    assert tell(driving.store, 1, engine.plan, Answer(by="ann"), world, lambda _: True, Evaluator()).driven
    clock[0] += 60_000
    engine.move(TimeOver())
    assert (engine.at.run.status, engine.at.run.error["name"]) == (Status.FAILED, "run_timeout")
    driving.leave()


# --- a terminal ---


class Terminal:
    """A command on a terminal of its own, as a person has it."""

    def __init__(self, durun: Program, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *args], cwd=durun.folder, env={**durun.env, "TERM": "dumb"}, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: _own_terminal(),
        )  # fmt: skip
        os.close(slave)
        self.said = ""

    def until(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.said:
            assert time.monotonic() < end, self.said
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.master, 4096).decode()
                except OSError:
                    break
        assert text in self.said, self.said

    def type(self, text: str) -> None:
        self.said = ""
        os.write(self.master, text.encode())

    def end(self) -> int:
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.said += os.read(self.master, 4096).decode()
                except OSError:
                    time.sleep(0.01)
        os.close(self.master)
        return self.process.wait(1)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_on_a_terminal_the_person_is_asked_there_and_then(durun: Program) -> None:
    durun.plan(ASK)
    t = Terminal(durun, "start", "plan.yaml", "--id", "r")
    t.until("yes / no")
    assert "Ship it?" in t.said and '{"to":"prod"}' in t.said
    t.type("perhaps\n")
    t.until("answer one of yes, no")
    t.type("y\n")
    assert t.end() == 0 and "run r succeeded" in t.said
    assert words(durun) == ["ship"]


@pytest.mark.parametrize(("typed", "exit"), [("\n", 3), ("\x04", 3), ("\x03", 130)])
def test_who_says_nothing_at_the_terminal_leaves_it_waiting(durun: Program, typed: str, exit: int) -> None:
    durun.plan(ASK)
    t = Terminal(durun, "start", "plan.yaml", "--id", "r")
    t.until("yes / no")
    t.type(typed)
    assert t.end() == exit
    assert durun.show("r")["status"] == "waiting"
    t = Terminal(durun, "resume", "r")
    t.until("yes / no")
    t.type("no\n")
    assert t.end() == 0 and words(durun) == ["no"]


def test_what_is_to_be_filled_in_is_asked_at_the_terminal_too(durun: Program) -> None:
    durun.plan(
        "output: '${{ states.ask.output.data }}'\nstart: ask\nstates:\n  ask: {approval: {message: 'How many?', schema: integer}, next: succeeded}\n"
    )
    t = Terminal(durun, "start", "plan.yaml", "--id", "r")
    t.until("yes / no")
    t.type("yes\n")
    t.until("as JSON")
    t.type("many\n")
    t.until("expecting value")
    t.type("yes\n")
    t.until("as JSON")
    t.type("7\n")
    assert t.end() == 0 and durun("output", "r").stdout == "7\n"


def test_another_may_answer_while_the_terminal_asks(durun: Program) -> None:
    durun.plan(ASK)
    t = Terminal(durun, "start", "plan.yaml", "--id", "r")
    t.until("yes / no")
    assert "its driver goes on" in durun("reject", "r", "--by", "bob").stderr
    assert t.end() == 0 and words(durun) == ["no"]


def test_a_timeout_comes_while_the_terminal_asks(durun: Program) -> None:
    durun.plan(ASK.replace("    catch", "    timeout: 5s\n    catch"))
    t = Terminal(durun, "start", "plan.yaml", "--id", "r")
    t.until("yes / no")
    assert t.end() == 1
    assert durun.show("r")["error"]["name"] == "timeout"


def test_who_only_watches_is_asked_too_and_the_driver_goes_on(durun: Program) -> None:
    durun.plan(ASK)
    driver = durun.begin("start", "plan.yaml", "--id", "r", "--wait", "-q")
    until(lambda: durun.seen("r").get("waiting_for"))
    t = Terminal(durun, "watch", "r")
    t.until("yes / no")
    assert "Ship it?" in t.said
    t.type("perhaps\n")
    t.until("answer one of yes, no")
    t.type("y\n")
    assert t.end() == 0 and "run r succeeded" in t.said
    assert driver.wait(60) == 0 and words(durun) == ["ship"]


def test_what_is_said_to_a_watch_is_recorded_where_nobody_drives(durun: Program) -> None:
    durun.plan(ASK.replace("start: ask\nstates:\n", "start: first\nstates:\n  first: {approval: {message: 'Look?'}, next: ask}\n"))
    durun("start", "plan.yaml", "--id", "r", exit=3)
    t = Terminal(durun, "watch", "r")
    t.until("Look?")
    t.type("yes\n")
    t.until("Ship it?")
    t.type("no\n")
    t.until("durun resume r")
    answered = [e for e in json.loads(durun("history", "r", "--json").stdout)["events"] if e["kind"] == "answered"]
    assert [e["answer"] for e in answered] == ["yes", "no"] and words(durun) == [], "who watches drives nothing"
    durun("resume", "r")
    assert t.end() == 0 and words(durun) == ["no"]


def test_a_question_goes_from_a_watch_when_another_has_answered_it(durun: Program) -> None:
    durun.plan(ASK)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    t = Terminal(durun, "watch", "r")
    t.until("yes / no")
    durun("approve", "r", "--resume")
    assert t.end() == 0 and words(durun) == ["ship"]


def test_a_question_whose_text_comes_out_empty_is_asked_all_the_same(durun: Program) -> None:
    durun.plan("""
input: {text: string}
start: ask
states: {ask: {approval: {message: '${{ input.text }}', data: 7}, next: succeeded}}
""")
    started = durun("start", "plan.yaml", "-i", "text=", exit=3)
    assert "ask: asks: \n" in started.stderr
    assert durun("approve", started.stdout.strip()).stderr.endswith("succeeded\n")

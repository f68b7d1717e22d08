"""Approvals and signals: early, late, twice, at once, malformed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from harness import Driving, Moments

from durun.effects.locks import driver_alive
from durun.engine import tell
from durun.machine.events import Signal
from durun.machine.model import Status
from durun.plan.expressions import Evaluator

HEAD = "pins: {env: [FAULTS_TOKEN]}"
GO = "durun: 1\nname: park\nstart: a\noutput: '${{ states.w.output }}'\nstates:\n  a: {run: 'true', next: w}\n  w: {wait: {signal: go}, next: succeeded}\n"


class Sending(Moments):
    """At one moment of a driver another process sends a signal; nobody dies."""

    def __init__(self, at: int | None, send: Any) -> None:
        super().__init__(None)
        self.when, self.send, self.sent = at, send, False

    def pass_by(self, name: str) -> None:
        super().pass_by(name)
        if self.seen - 1 == self.when and not self.sent:
            self.sent = True
            self.send()


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """Another process, as far as the database goes: a connection of its own, that sends to the run of a driver."""

    def made(driving: Driving, sender: Driving) -> Any:
        alive = lambda place: driver_alive(driving.path + ".d", place)  # noqa: E731
        return lambda: tell(sender.store, 1, sender.store.pinned(1).plan, Signal("go", 7), sender.world, alive, Evaluator())

    return made


def test_f73_a_signal_is_not_lost_at_any_moment_of_parking(tmp_path: Path, other: Any) -> None:
    parked = 0
    for at in range(60):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        sender = Driving(folder)
        moments = Sending(None, None)
        driving = Driving(folder, moments=moments)
        moments.send = other(driving, sender)
        engine = driving.start(GO)
        moments.when = moments.seen + at
        engine.drive()
        if not moments.sent:  # the driver has left before: the signal comes when nobody drives
            driving.leave()
            moments.send()
            parked += 1
        elif engine.at.run.status is not Status.SUCCEEDED:
            driving.leave()
            raise AssertionError(f"the run stands for ever: the signal came {moments.names[-1]}")
        else:
            driving.leave()
        assert sender.store.load(1).run.output == 7
        sender.leave_as_told()
        if parked:
            break
    assert parked and at > 3, "there are fewer moments than there should be"


def test_f73_a_signal_to_a_run_that_is_not_there_is_an_error(place: Any) -> None:
    place.plan("a: {wait: {signal: go}, next: succeeded}")
    assert "there is no database" in place.durun("signal", "r", "go", exit=5).err
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    assert "there is no run 'other'" in place.durun("signal", "other", "go", exit=5).err


def test_f73_a_signal_that_comes_while_a_step_runs_is_taken_by_the_wait_after_it(place: Any) -> None:
    place.plan("a: {run: 'while ! test -e gate; do sleep 0.05; done', next: w}\nw: {wait: {signal: go}, next: succeeded}")
    driver = place.begin("start", "plan.yaml", "--id", "r")
    place.until(lambda: place.commands(), "the step")
    place.durun("signal", "r", "go", "--data", "1")
    place.write("gate", "")
    place.end(driver, 0)
    assert place.durun("output", "r", "w").out == "1\n"


def test_f43_what_was_done_before_a_question_is_not_done_again_for_its_answer(place: Any) -> None:
    place.plan(
        "a: {run: 'echo a$DURUN_VISIT >> ticks', next: ask}\n"
        "ask: {approval: {message: 'again?', options: [more, enough]}, next: which}\n"
        "which: {choice: [{when: states.ask.output.answer == 'more', next: a}, {next: succeeded}]}"
    )
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    for answer in ("more", "more", "enough"):
        place.durun("approve", "r", "--answer", answer)
        place.durun("resume", "r", exit=0 if answer == "enough" else 3)
    assert place.lines("ticks") == ["a1", "a2", "a3"]


def test_f76_the_same_question_answered_twice_keeps_the_first_answer(place: Any) -> None:
    ask = "ask: {approval: {message: x}, catch: [{on: rejected, next: no_ship}], next: ship}\n"
    place.plan(
        ask + "ship: {run: 'echo yes >> did', next: succeeded}\nno_ship: {run: 'echo no >> did', next: succeeded}", start="ask"
    )
    for n in range(6):
        id = f"r{n}"
        place.durun("start", "plan.yaml", "--id", id, exit=3)
        both = {word: place.begin(word, id) for word in ("approve", "reject")}
        exits = {word: place.end(process, (0, 10)).exit for word, process in both.items()}
        assert sorted(exits.values()) == [0, 10], exits
        first, second = sorted(exits, key=exits.__getitem__)
        place.durun("resume", id)
        assert "is answered already" in place.durun(first, id).err
        assert "is answered already" in place.durun(second, id, exit=10).err
        assert place.lines("did")[n:] == ["yes" if first == "approve" else "no"]


def test_f78_an_answer_holds_for_what_was_shown_and_nothing_else(place: Any) -> None:
    """The target changes between the look and the answer: the one who looked at the first is not taken to have seen the second."""
    place.plan(
        "ask: {approval: {message: 'deploy to ${{ vars.target }}?', data: {to: '${{ vars.target }}'}}, next: deploy, "
        "catch: [{on: rejected, next: ask, assign: {target: prod}}]}\n"
        "deploy: {run: [sh, -c, 'echo $1 >> did', x, '${{ vars.target }}'], next: succeeded}",
        head="vars: {target: test}",
        start="ask",
    )
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    (seen,) = place.show("r")["waiting_for"]
    place.durun("reject", "r", "--by", "bob")
    assert "look again" in place.durun("approve", "r", "--by", "ann", "--digest", seen["digest"], exit=10).err
    (now,) = place.show("r")["waiting_for"]
    assert now["message"] == "deploy to prod?" and now["data"] == {"to": "prod"}
    place.durun("approve", "r", "--by", "ann", "--digest", now["digest"], "--resume")
    (answered,) = [e for e in place.history("r", "answered") if e["answer"] == "yes"]
    assert answered["digest"] == now["digest"] and place.lines("did") == ["prod"]


def test_f79_a_payload_that_does_not_fit_is_refused_to_its_sender_and_leaves_no_trace(place: Any) -> None:
    place.plan(
        "w: {wait: {signal: go, schema: {type: object, required: [n], properties: {n: {type: integer}, t: {maxLength: 100}}}},"
        " next: succeeded}",
        start="w",
    )
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    before, size = place.history("r"), place.db.stat().st_size
    place.write("large.json", json.dumps({"n": 1, "t": "x" * (10 << 20)}))
    place.write("larger.json", json.dumps({"n": 1, "t": "x" * (17 << 20)}))
    place.write("deep.json", "[" * 500 + "]" * 500)
    place.write("binary.json", b'{"n": 1, "t": "\xff"}')
    for given, exit in {
        '{"n": 1': 2, '{"t": "x"}': 7, '{"n": "1"}': 7, "@large.json": 7, "@larger.json": 7, "@deep.json": 2, "@binary.json": 2,
        '{"n": 1, "n": 2}': 2, "NaN": 2,
    }.items():  # fmt: skip
        assert place.durun("signal", "r", "go", "--data", given, exit=exit).err.strip(), given
    assert "never waits for a signal 'gone': it waits for go" in place.durun("signal", "r", "gone", exit=10).err
    assert place.history("r") == before and place.db.stat().st_size == size
    place.durun("signal", "r", "go", "--data", '{"n": 1}')
    assert place.show("r")["status"] == "succeeded"


def test_f79_a_large_payload_that_fits_arrives_whole(place: Any) -> None:
    place.plan("w: {wait: {signal: go}, next: succeeded}", start="w")
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    text = "".join(chr(97 + n % 26) for n in range(10 << 20))
    place.write("large.json", json.dumps(text))
    place.durun("signal", "r", "go", "--data", "@large.json")
    assert place.durun("output", "r", "w").out == text + "\n"


def test_f30_commands_of_many_processes_at_one_run_leave_only_legal_transitions(place: Any) -> None:
    """Answers, signals, pauses, resumes and at last a cancel, fired at random; each is done or refused in words."""
    place.plan(
        "work: {run: 'echo $DURUN_VISIT >> ticks', next: ask}\n"
        "ask: {approval: {message: more?}, catch: [{on: rejected, next: word}], next: word}\n"
        "word: {wait: {signal: go}, timeout: 1h, next: work}",
        start="work",
    )
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    chance = random.Random(7)
    for _ in range(6):
        orders = [
            chance.choice((["approve", "r"], ["reject", "r"], ["signal", "r", "go"], ["pause", "r"], ["resume", "r"], ["approve", "r", "--resume"]))
            for _ in range(5)
        ]  # fmt: skip
        for process in [place.begin(*order) for order in orders]:
            place.end(process, (0, 3, 6, 9, 10))
    place.durun("cancel", "r", exit=4)
    events = place.history("r")
    assert [e["no"] for e in events] == list(range(1, len(events) + 1))
    answered = [(e["path"], e["visit"]) for e in events if e["kind"] == "answered"]
    asked = [(e["path"], e["visit"]) for e in events if e["kind"] == "asked"]
    taken = [e["no_of_signal"] for e in events if e["kind"] == "taken"]
    sent = [e["no_of_signal"] for e in events if e["kind"] == "signal"]
    assert len(set(answered)) == len(answered) and set(answered) <= set(asked)
    assert taken == sent[: len(taken)], "first in, first out"
    assert not [e for e in events if e["kind"] == "refused" and e["asked"] in ("answer", "signal")], (
        "what was accepted is not refused"
    )
    assert events[-1]["kind"] in ("cancelled", "signals_left")
    assert place.lines("ticks") == [str(n + 1) for n in range(len(place.lines("ticks")))], "each visit once"


def test_f113_a_run_that_waits_for_a_person_or_a_signal_exits_3_everywhere(place: Any) -> None:
    place.plan("ask: {approval: {message: x}, next: word}\nword: {wait: {signal: go}, next: succeeded}", start="ask")
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    place.durun("resume", "r", exit=3)
    place.durun("wait", "r", exit=3)
    place.durun("show", "r", exit=0)
    place.durun("approve", "r", exit=0)
    place.durun("resume", "r", exit=3)
    place.durun("wait", "r", exit=3)
    place.durun("signal", "r", "go", "--resume", exit=0)
    place.durun("cancel", "r", exit=10)

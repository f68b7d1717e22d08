"""Compensation through given and random histories: what happened is undone once, the youngest first, and nothing blindly."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import World, happenings, some_states  # type: ignore[import-not-found]

from durun.errors import NotPossible
from durun.machine.decide import may_begin
from durun.machine.events import (
    Answered,
    Cancel,
    Compensate,
    CouldNotStart,
    Due,
    Ended,
    Go,
    Lost,
    Moment,
    Moved,
    NextUndo,
    NothingOwed,
    NotStopped,
    Pause,
    Resolve,
    Settle,
    Signal,
    TakeUp,
)
from durun.machine.model import TERMINAL, Phase, Status
from durun.machine.scope import path_of
from durun.machine.undo import is_undo
from durun.plan.check import read
from durun.store.audit import audit

UNDO = {"run": ["undo"]}


def plan_of(states: dict[str, Any], **more: Any) -> Any:
    plan, faults, _ = read({"durun": 1, "name": "undo", "start": next(iter(states)), "states": states, **more})
    assert plan is not None, faults
    return plan


class Undoing(World):
    """A run that is undone as the engine does it: one after the other, read from the file."""

    def __init__(self, plan: Any, folder: str) -> None:
        super().__init__(plan, folder)
        self.undone: list[str] = []

    def moment(self) -> Moment:
        """Nobody begins anything of a run that is paused."""
        at = getattr(self, "at", None)
        return super().moment()._replace(place=None if at is not None and at.run.status is Status.PAUSED else "place")

    def next(self) -> None:
        assert self.store is not None
        owed = self.store.owed(1)
        found = self.store.undo(1, owed[-1]) if owed else None
        self.give(NextUndo(*found) if found is not None else NothingOwed(len(self.store.failed_undos(1))))

    def undo_all(self, failing: str = "") -> None:
        """Undoes what is left; the undo of the state at `failing` fails."""
        while self.at.run.status is Status.COMPENSATING:
            stands = next((p for p in self.at.positions.values() if is_undo(p)), None)
            if stands is None:
                self.next()
                continue
            path = path_of(stands.scope, stands.state)
            self.undone.append(path.removesuffix("~undo"))
            self.end(path, 1 if path == f"{failing}~undo" else 0)

    def logged(self) -> dict[str, str]:
        """path -> status of what is in the log of undos."""
        assert self.store is not None
        sql = "SELECT e.scope, e.state, u.status FROM undos u JOIN effects e ON e.no = u.effect AND e.run = u.run ORDER BY u.effect"
        return {path_of(scope, state): status for scope, state, status in self.store.file.db.execute(sql)}


@pytest.fixture
def folder() -> Any:
    with tempfile.TemporaryDirectory() as found:
        yield found


def three(**more: Any) -> Any:
    names = ["a", "b", "c"]
    states = {
        n: {"run": ["x"], "compensate": {**UNDO, "idempotent": False}, "next": after}
        for n, after in zip(names, [*names[1:], "end"], strict=True)
    }
    return plan_of({**states, "end": {"run": ["y"], "next": "succeeded"}}, **more)


def test_an_error_nothing_takes_is_followed_by_the_undos_the_youngest_first(folder: str) -> None:
    world = Undoing(three(on_error="compensate"), folder)
    for name in "abc":
        world.end(name)
    world.end("end", 1)
    assert world.at.run.status is Status.COMPENSATING
    world.undo_all()
    assert world.undone == ["c", "b", "a"]
    assert world.at.run.status is Status.COMPENSATED
    assert world.at.run.ended_by["name"] == "exit:1"
    assert set(world.logged().values()) == {"undone"}


def test_without_that_word_it_fails_and_a_person_may_ask_for_it(folder: str) -> None:
    world = Undoing(three(), folder)
    world.end("a")
    world.end("b", 1)
    assert world.at.run.status is Status.FAILED
    world.give(Compensate())
    world.undo_all()
    assert world.undone == ["a"], "what was not done is not undone"
    assert world.at.run.status is Status.COMPENSATED


def test_a_succeeded_run_can_be_undone_and_only_once(folder: str) -> None:
    world = Undoing(three(), folder)
    for name in ("a", "b", "c", "end"):
        world.end(name)
    world.give(Compensate())
    world.undo_all()
    assert world.undone == ["c", "b", "a"]
    with pytest.raises(NotPossible, match="already"):
        world.give(Compensate())


def test_a_failed_undo_stays_owed_while_the_others_go_on_and_again_does_only_what_is_left(folder: str) -> None:
    world = Undoing(three(on_error="compensate"), folder)
    for name in "abc":
        world.end(name)
    world.end("end", 1)
    world.undo_all(failing="b")
    assert world.undone == ["c", "b", "a"]
    assert (world.at.run.status, world.at.run.reason) == (Status.BLOCKED, "undo_failed")
    assert world.logged() == {"a": "undone", "b": "failed", "c": "undone"}
    keys = [key for path, key in world.begun if path == "b~undo"]
    world.give(Compensate())
    world.undo_all()
    assert world.undone[3:] == ["b"]
    assert [key for path, key in world.begun if path == "b~undo"] == keys * 2, "an undo keeps its key"
    assert world.at.run.status is Status.COMPENSATED


def test_a_person_may_say_that_it_is_undone(folder: str) -> None:
    world = Undoing(three(on_error="compensate"), folder)
    world.end("a")
    world.end("b", 1)
    world.undo_all(failing="a")
    assert world.store is not None
    (failed,) = world.store.failed_undos(1)
    world.give(Resolve("undone", effects=(failed[0],)))
    world.undo_all()
    assert world.at.run.status is Status.COMPENSATED


@pytest.mark.parametrize(("how", "undone"), [("happened", ["b", "a"]), ("fail", ["a"]), ("undone", ["a"])])
def test_a_doubt_is_settled_before_anything_older_is_undone(folder: str, how: str, undone: list[str]) -> None:
    world = Undoing(three(), folder)
    world.end("a")
    world.give(Lost(world.open()[0], "killed"))
    assert world.at.run.status is Status.BLOCKED
    world.give(Compensate())
    world.undo_all()
    assert (world.at.run.status, world.at.run.reason, world.undone) == (Status.BLOCKED, "in_doubt", [])
    world.give(Resolve(how))
    world.undo_all()
    assert world.undone == undone
    assert world.at.run.status is Status.COMPENSATED


@pytest.mark.parametrize(("answer", "undone"), [(0, ["b", "a"]), (1, ["a"]), (2, [])])
def test_the_probe_is_asked_whether_there_is_anything_to_undo(folder: str, answer: int, undone: list[str]) -> None:
    states = {
        "a": {"run": ["x"], "compensate": UNDO, "next": "b"},
        "b": {"run": ["x"], "compensate": UNDO, "probe": {"run": ["p"]}, "next": "succeeded"},
    }
    world = Undoing(plan_of(states, on_cancel="compensate"), folder)
    world.end("a")
    world.give(Cancel())
    world.end("b", -9, "cancel")
    assert world.at.run.status is Status.COMPENSATING
    world.next()
    (probe,) = world.open()
    world.give(Ended(probe, answer))
    world.undo_all()
    assert world.undone == undone
    assert world.at.run.status is (Status.BLOCKED if answer == 2 else Status.COMPENSATED)


@pytest.mark.parametrize("said", ["by its probe", "by a person"])
def test_what_was_in_doubt_and_did_not_happen_is_undone_where_the_plan_undoes_what_has_failed(folder: str, said: str) -> None:
    states = {
        "a": {"run": ["x"], "compensate": {**UNDO, "after": ["failed"]}, "probe": {"run": ["p"]}, "next": "succeeded"},
    }
    world = Undoing(plan_of(states, on_cancel="compensate"), folder)
    world.give(Cancel())
    world.end("a", -9, "cancel")
    world.next()
    (probe,) = world.open()
    world.give(Ended(probe, 1 if said == "by its probe" else 2))
    if said == "by a person":
        world.give(Resolve("fail"))
    world.undo_all()
    assert world.undone == ["a"]
    assert (world.at.run.status, world.logged()) == (Status.COMPENSATED, {"a": "undone"})


@pytest.mark.parametrize("happened", ["at once", "at the second attempt", "by its probe"])
def test_what_was_done_is_not_undone_where_the_plan_undoes_only_what_has_failed(folder: str, happened: str) -> None:
    a = {"run": ["x"], "retry": {}, "compensate": {**UNDO, "after": ["failed"]}, "probe": {"run": ["p"]}, "next": "succeeded"}
    world = Undoing(plan_of({"a": a}, on_cancel="compensate"), folder)
    if happened == "at the second attempt":
        world.end("a", 1)
        assert world.logged() == {"a": "owed"}, "should it not be tried again"
        world.give(Due(""))
    if happened == "by its probe":
        world.give(Cancel())
        world.end("a", -9, "cancel")
        world.next()
        world.give(Ended(world.open()[0], 0))
    else:
        world.end("a")
        world.give(Compensate())
    world.undo_all()
    assert (world.at.run.status, world.undone, world.logged()) == (Status.COMPENSATED, [], {"a": "not_needed"})


@pytest.mark.parametrize("why", [Moved(1), CouldNotStart(1, 2, "directory")], ids=["its driver died before it began", "held"])
def test_what_was_to_begin_and_certainly_never_has_is_not_undone_as_failed(folder: str, why: Any) -> None:
    each = {"a": {"run": ["x"], "compensate": {**UNDO, "after": ["failed"]}, "next": "succeeded"}}
    each = {"each": {"map": {"items": "[0]", "failures": "all", "start": "a", "states": each}, "next": "succeeded"}}
    world = Undoing(plan_of(each, on_cancel="compensate"), folder)
    world.give(Pause())
    world.give(why)
    world.give(Cancel())
    world.undo_all()
    assert (world.at.run.status, world.undone, world.logged()) == (Status.COMPENSATED, [], {"each[0].a": "not_needed"})


def test_it_sees_what_was_there_when_its_effect_was_done(folder: str) -> None:
    undo = {"run": ["undo", "${{ output.id }}", "${{ vars.n }}", "${{ undo_key }}"], "if": "output.id != 'none'"}
    states = {
        "a": {"run": ["x"], "output": "json", "compensate": undo, "assign": {"n": 1}, "next": "b"},
        "b": {"pass": {}, "assign": {"n": 2}, "next": "compensated"},
    }
    world = Undoing(plan_of(states, vars={"n": 0}), folder)
    key = world.begun[0][1]
    world.end("a", stdout=b'{"id": "t-7"}')
    world.next()
    (no,) = world.open()
    assert world.at.effects[no].request["argv"] == ["undo", "t-7", "1", key]
    assert world.at.effects[no].key != key


def test_nothing_is_undone_past_the_point_of_no_return_without_force(folder: str) -> None:
    states = {
        "a": {"run": ["x"], "compensate": UNDO, "pivot": True, "next": "b"},
        "b": {"run": ["x"], "next": "succeeded"},
    }
    world = Undoing(plan_of(states, on_error="compensate"), folder)
    world.end("a")
    world.end("b", 1)
    assert world.at.run.status is Status.FAILED
    with pytest.raises(NotPossible, match="--force"):
        world.give(Compensate())
    world.give(Compensate(force=True))
    world.undo_all()
    assert world.undone == ["a"]


def test_cancel_does_not_cut_an_undo_short(folder: str) -> None:
    world = Undoing(three(on_error="compensate"), folder)
    world.end("a")
    world.end("b", 1)
    with pytest.raises(NotPossible, match="compensates"):
        world.give(Cancel())


def test_compensate_stops_what_is_under_way_first(folder: str) -> None:
    world = Undoing(three(), folder)
    world.end("a")
    world.give(Compensate())
    assert world.at.run.status is Status.RUNNING
    world.end("b", 0, "cancel")
    assert world.at.run.status is Status.COMPENSATING
    world.undo_all()
    assert world.undone == ["b", "a"], "what ended well all the same is undone too"


# --- doubts, and what was there when they arose ---


def settled(world: Undoing) -> Any:
    """The next undo is begun, or asked about first: the request of what is under way."""
    world.next()
    (no,) = world.open()
    return world.at.effects[no]


def test_the_probe_asks_what_was_to_be_asked_when_the_doubt_arose(folder: str) -> None:
    """Vars go on, and the item is gone: both would ask about something else."""
    probe, undo = (
        {"run": ["was", "${{ item }}", "${{ vars.n }}"]},
        {"run": ["undo", "${{ item }}", "${{ vars.n }}", "${{ output }}"]},
    )
    do = {"run": ["x"], "output": "text", "probe": probe, "compensate": undo, "catch": [{"on": ["killed"], "next": "on"}]}
    inner = {"do": {**do, "next": "on"}, "on": {"pass": {}, "assign": {"n": "${{ vars.n + 1 }}"}, "next": "succeeded"}}
    states = {
        "each": {"map": {"items": "['i']", "start": "do", "states": inner}, "assign": {"n": 9}, "next": "end"},
        "end": {"run": ["y"], "next": "succeeded"},
    }
    world = Undoing(plan_of(states, vars={"n": 0}), folder)
    world.end("each[0].do", -9)  # not certain
    world.give(Ended(world.open()[0], 7))  # its probe cannot say
    world.end("end")
    assert world.at.run.status is Status.SUCCEEDED
    world.give(Compensate())
    asked = settled(world)
    assert asked.kind == "probe" and asked.request["argv"] == ["was", "i", "0"]
    world.give(Ended(asked.no, 0, stdout=b"t-7"))
    (no,) = world.open()
    assert world.at.effects[no].request["argv"] == ["undo", "i", "0", "t-7"]


def test_a_doubt_of_a_child_that_has_ended_is_asked_about_in_the_words_of_the_child(folder: str) -> None:
    probe, undo = {"run": ["was", "${{ input.who }}"]}, {"run": ["undo", "${{ input.who }}", "${{ output }}"]}
    do = {"run": ["x"], "output": "text", "probe": probe, "compensate": undo, "catch": [{"on": ["killed"], "next": "succeeded"}]}
    child = {"durun": 1, "name": "child", "start": "do", "input": {"who": "string"}, "states": {"do": {**do, "next": "succeeded"}}}
    called, faults, _ = read(child)
    assert called is not None, faults
    data = {
        "durun": 1, "name": "outer", "start": "call", "input": {"who": {"type": "string", "default": "of the caller"}},
        "states": {"call": {"plan": {"file": "c", "input": {"who": "of the child"}}, "next": "succeeded"}},
    }  # fmt: skip
    plan, faults, _ = read(data, {}, {"c": called})
    assert plan is not None, faults
    world = Undoing(plan, folder)
    world.end("call/do", -9)
    world.give(Ended(world.open()[0], 7))
    assert world.at.run.status is Status.SUCCEEDED
    world.give(Compensate())
    asked = settled(world)
    assert asked.request["argv"] == ["was", "of the child"]
    world.give(Ended(asked.no, 0, stdout=b"t"))
    (no,) = world.open()
    assert world.at.effects[no].request["argv"] == ["undo", "of the child", "t"]


@pytest.mark.parametrize("reads", ["${{ input.who }}", "${{ double(input.who) }}"])
def test_an_undo_of_a_child_that_has_ended_is_asked_about_in_the_words_of_the_child(folder: str, reads: str) -> None:
    undo = {"run": ["undo"], "probe": {"run": ["was", reads, "${{ key }}"]}}
    states = {"do": {"run": ["x"], "compensate": undo, "next": "succeeded"}}
    child = {"durun": 1, "name": "child", "start": "do", "input": {"who": "string"}, "states": states}
    called, faults, _ = read(child)
    assert called is not None, faults
    call = {"plan": {"file": "c", "input": {"who": "of the child"}}, "next": "succeeded"}
    plan, faults, _ = read({"durun": 1, "name": "outer", "start": "call", "states": {"call": call}}, {}, {"c": called})
    assert plan is not None, faults
    world = Undoing(plan, folder)
    world.end("call/do")
    assert world.at.run.status is Status.SUCCEEDED and "call/" not in world.at.positions
    world.give(Compensate())
    world.next()
    (no,) = world.open()
    world.give(Lost(no, "killed"))
    if "double" in reads:
        assert world.at.run.status is Status.BLOCKED, "what cannot be worked out is for a person"
        return
    (asking,) = world.open()
    asked = world.at.effects[asking]
    assert asked.kind == "probe" and asked.request["argv"] == ["was", "of the child", world.at.effects[no].key]
    assert asked.request["run"] == world.at.states["", "call"].child, "and its command is told the id of the child"
    world.give(Ended(asking, 0))
    world.next()
    assert world.at.run.status is Status.COMPENSATED


def test_an_undo_that_reads_a_state_of_an_item_that_is_gone_is_for_a_person_and_never_guessed(folder: str) -> None:
    undo = {"run": ["undo", "${{ states.first.output }}", "${{ output }}"]}
    inner = {
        "first": {"run": ["f"], "output": "text", "next": "do"},
        "do": {
            "run": ["x"],
            "output": "text",
            "compensate": undo,
            "catch": [{"on": ["killed"], "next": "succeeded"}],
            "next": "succeeded",
        },
    }
    world = Undoing(plan_of({"each": {"map": {"items": "[0]", "start": "first", "states": inner}, "next": "succeeded"}}), folder)
    world.end("each[0].first", stdout=b"f")
    world.end("each[0].do", -9)
    world.give(Compensate())
    world.next()
    assert world.at.run.reason == "in_doubt"
    world.give(Resolve("happened", output="t", has_output=True))
    world.next()
    assert (world.at.run.status, world.at.run.reason) == (Status.BLOCKED, "undo_failed")
    assert world.logged() == {"each[0].do": "failed"}


def doubtful(folder: str, **probe: Any) -> Undoing:
    """A run that compensates, of which one thing is in doubt; its probe is asked."""
    state = {"run": ["x"], "compensate": UNDO, "probe": {"run": ["p"], **probe}, "next": "succeeded"}
    world = Undoing(plan_of({"a": state}, on_cancel="compensate"), folder)
    world.give(Cancel())
    world.end("a", -9, "cancel")
    world.next()
    return world


def test_a_probe_that_was_lost_while_it_compensates_is_asked_again_but_not_for_ever(folder: str) -> None:
    world = doubtful(folder)
    for _ in range(2):
        world.give(Lost(world.open()[0], "killed"))
        assert world.at.run.status is Status.COMPENSATING
    world.give(Lost(world.open()[0], "killed"))
    assert (world.at.run.status, world.open()) == (Status.BLOCKED, [])


def test_a_probe_that_was_stopped_with_durun_is_asked_again_by_whoever_goes_on(folder: str) -> None:
    world = doubtful(folder)
    world.give(Ended(world.open()[0], -15, "leaving"))
    assert world.at.run.status is Status.COMPENSATING
    world.give(Ended(settled(world).no, 1))
    world.next()
    assert world.at.run.status is Status.COMPENSATED


def test_a_probe_keeps_to_its_own_rules_while_it_compensates(folder: str) -> None:
    world = doubtful(folder, retry={"max_attempts": 2, "initial_interval": "1s"})
    world.give(Ended(world.open()[0], 7))
    assert world.at.run.status is Status.COMPENSATING, "it is asked once more"
    world.give(Due("a~"))
    world.give(Ended(world.open()[0], 1))
    world.next()
    assert world.at.run.status is Status.COMPENSATED


def test_what_an_undo_printed_is_of_no_use_and_spoils_nothing(folder: str) -> None:
    world = Undoing(three(on_error="compensate"), folder)
    world.end("a")
    world.end("b", 1)
    world.next()
    world.give(Ended(world.open()[0], 0, data=b"{no json"))
    world.next()
    assert world.at.run.status is Status.COMPENSATED


def test_an_error_in_a_paused_run_is_followed_by_no_undo_until_it_is_resumed(folder: str) -> None:
    for way in (TakeUp(), Compensate()):
        with tempfile.TemporaryDirectory() as place:
            world = Undoing(three(on_error="compensate"), place)
            world.end("a")
            world.give(Pause())
            world.end("b", 1)
            assert world.at.run.status is Status.PAUSED
            world.give(way)
            world.undo_all()
            assert (world.at.run.status, world.undone) == (Status.COMPENSATED, ["a"])


def test_a_run_that_compensates_takes_no_signal_any_more(folder: str) -> None:
    states = {"a": {"run": ["x"], "compensate": UNDO, "next": "w"}, "w": {"wait": {"signal": "go"}, "next": "compensated"}}
    world = Undoing(plan_of(states), folder)
    world.end("a")
    world.give(Signal("go"))
    assert world.at.run.status is Status.COMPENSATING
    with pytest.raises(NotPossible, match="compensates"):
        world.give(Signal("go"))


@pytest.mark.parametrize("when", ["in its round", "between two rounds"])
def test_a_poll_that_a_cancel_ended_after_an_answer_is_undone(folder: str, when: str) -> None:
    state = {
        "run": ["x"], "idempotent": True, "output": "text", "compensate": {"run": ["undo", "${{ output }}"]},
        "poll": {"until": "output == 'yes'", "for": "1h"}, "next": "succeeded",
    }  # fmt: skip
    world = Undoing(plan_of({"a": state}, on_cancel="compensate"), folder)
    if when == "in its round":
        world.give(Cancel())
        world.end("a", 0, "cancel", stdout=b"no")
    else:
        world.end("a", stdout=b"no")
        world.give(Cancel())
    world.undo_all()
    assert (world.at.run.status, world.undone) == (Status.COMPENSATED, ["a"])
    assert world.store is not None
    stored = world.store.effect(world.store.file.db, 1, 1)
    assert (stored.status, stored.attempt) == ("done", 1), "the second round was never begun"


REQUEST = {"http": {"method": "GET", "url": "http://far/x"}}
SCRIPT: dict[str, Any] = {"run": "x", "idempotent": True}
ROUNDS = [  # the last word of a poll, how its effect then stands, and what becomes of its undo
    (REQUEST, Answered(1, 200, {}, b"no"), "done", "undone"), (REQUEST, Answered(1, 404, {}), "not_done", "not_needed"),
    (REQUEST, Answered(1, 500, {}), "not_certain", "asked"), (SCRIPT, Ended(1, 0), "done", "undone"),
    (SCRIPT, Ended(1, 3), "not_done", "not_needed"), (SCRIPT, Ended(1, 137), "not_certain", "asked"),
    (SCRIPT, Ended(1, -9), "not_certain", "asked"), (REQUEST, Lost(1, "gone"), "in_doubt", "asked"),
]  # fmt: skip


@pytest.mark.parametrize("ends", ["cancel", "sibling"])
@pytest.mark.parametrize(("does", "said", "how", "then"), ROUNDS)
def test_a_poll_that_is_ended_between_two_rounds_stands_as_its_last_round_ended(
    folder: str, ends: str, does: Any, said: Any, how: str, then: str
) -> None:
    a = {**does, "compensate": {"run": ["undo"]}, "poll": {"until": "1 > 2", "every": "1h", "for": "9h"}, "next": "succeeded"}
    states: dict[str, Any] = {"a": a}
    if ends == "sibling":
        b = {"run": ["x"], "next": "succeeded"}
        branches = {name: {"start": name, "states": {name: state}} for name, state in (("a", a), ("b", b))}
        states = {"both": {"parallel": {"branches": branches, "stop": "now"}, "next": "succeeded"}}
    path = "both.a.a" if ends == "sibling" else "a"
    world = Undoing(plan_of(states), folder)
    key = world.at.effects[1].key
    world.give(said)
    assert world.at.effects[1].status == "waiting" and world.at.effects[1].key != key
    if ends == "cancel":
        world.give(Cancel())
    else:
        world.end("both.b.b", 1)
    assert world.at.run.status in TERMINAL and world.store is not None
    effect = world.store.effect(world.store.file.db, 1, 1)
    assert (effect.status, effect.attempt, effect.key) == (how, 1, key)
    world.give(Compensate())
    world.undo_all()
    if then == "asked":
        assert world.at.run.status is Status.BLOCKED
    else:
        assert (world.at.run.status, world.undone) == (Status.COMPENSATED, [path] if then == "undone" else [])


# --- random histories ---


def with_undos(states: dict[str, Any]) -> dict[str, Any]:
    for state in states.values():
        if "run" in state:
            state["compensate"] = UNDO
        for inner in (state.get("parallel") or {"branches": {}})["branches"].values():
            with_undos(inner["states"])
        if "map" in state:
            with_undos(state["map"]["states"])
    return states


@settings(max_examples=40)
@given(drawn=some_states(depth=2, prefix="s"), data=st.data())
def test_whatever_happened_is_undone_once_and_none_before_one_that_began_after_it(drawn: Any, data: Any) -> None:
    start, states = drawn
    states = with_undos(states)
    plan = plan_of({start: states.pop(start), **states}, on_error=data.draw(st.sampled_from(["stop", "compensate"])))
    with tempfile.TemporaryDirectory() as folder:
        world = Undoing(plan, folder)
        for _ in range(data.draw(st.integers(0, 40))):
            if world.at.run.status in TERMINAL or world.at.run.undoing is not None:
                break
            world.give(data.draw(st.sampled_from(happenings(world))))
        if world.at.run.undoing is None:
            world.give(Compensate())
        while world.at.run.undoing is None:  # what was under way is stopped first
            world.give(data.draw(st.sampled_from([Ended(world.open()[0], 0, "cancel"), Ended(world.open()[0], -9, "cancel")])))
        order = unwind(world, data)
        assert world.at.run.status is Status.COMPENSATED
        assert not set(world.logged().values()) & {"registered", "owed", "failed"}
        done = [row[0] for row in world.store.file.db.execute("SELECT no FROM effects WHERE kind = 'run' AND status = 'done'")]
        assert sorted(order) == sorted(done), "what is known to have happened is undone, each once"
        began = dict(world.store.file.db.execute("SELECT no, coalesce(first_at, intended_at) * 10000 + no FROM effects"))
        assert [began[no] for no in order] == sorted((began[no] for no in order), reverse=True)
        world.store.file.close()


def unwind(world: Undoing, data: Any) -> list[int]:
    """Undoes all; a person answers what is in doubt. The effects undone, in order."""
    order: list[int] = []
    for _ in range(400):
        if world.at.run.status in TERMINAL:
            return order
        stands = next((p for p in world.at.positions.values() if is_undo(p)), None)
        if stands is None and world.at.run.reason == "undo_failed":  # it needs an output that nobody saw
            failed = tuple(effect for effect, _, _ in world.store.failed_undos(1))
            order += failed
            world.give(Resolve("undone", effects=failed))
        elif stands is None:
            world.next()
        elif stands.phase is Phase.DOUBT and stands.settling:
            world.give(Resolve(data.draw(st.sampled_from(["happened", "fail"]))))
        elif stands.phase is Phase.DOUBT:
            order.append(stands.of)
            world.give(Resolve("undone"))
        else:
            (no,) = world.open()
            if data.draw(st.booleans()):
                order.append(stands.of)
                world.give(Ended(no, 0))
            else:
                world.give(Lost(no, "killed"))
    raise AssertionError("it never came to its end")


WAYS: list[dict[str, Any]] = [
    {},
    {"probe": {"run": ["p"]}},
    {"idempotent": True},
    {"retry": {"max_attempts": 2, "initial_interval": "1s", "jitter": "none"}},
    {"idempotent": True, "output": "text", "poll": {"until": "output == 'yes'", "every": "1s", "for": "1h"}},
]


def with_ways_to_find_out(draw: Any, states: dict[str, Any]) -> dict[str, Any]:
    """Some states have a probe, some are repeated, some are polled for, some try again."""
    for state in states.values():
        if "run" in state and "catch" not in state:
            state |= draw(st.sampled_from(WAYS))
            if "poll" in state:
                state.pop("retry", None)
        for inner in (state.get("parallel") or {"branches": {}})["branches"].values():
            with_ways_to_find_out(draw, inner["states"])
        if "map" in state:
            with_ways_to_find_out(draw, state["map"]["states"])
    return states


@settings(max_examples=80)
@given(drawn=some_states(depth=2, prefix="s"), data=st.data())
def test_paused_held_probed_polled_and_cancelled_at_any_moment_a_run_begins_nothing_it_may_not_and_ends(
    drawn: Any, data: Any
) -> None:
    start, states = drawn
    states = with_undos(with_ways_to_find_out(data.draw, states))
    more = {word: data.draw(st.sampled_from(["stop", "compensate"])) for word in ("on_error", "on_cancel")}
    with tempfile.TemporaryDirectory() as folder:
        world = Undoing(plan_of({start: states.pop(start), **states}, **more), folder)
        for n in range(300):
            at, begun = world.at.run, len(world.begun)
            if at.status in TERMINAL:
                break
            event = data.draw(st.sampled_from(what_may_come(world, late=n > 60)))
            if event is None:
                world.next()
            else:
                world.give(event)
            if at.status is Status.PAUSED and not isinstance(event, TakeUp | Cancel | Compensate):
                assert len(world.begun) == begun, "a paused run began something"
            if at.cancel is not None and world.at.run.undoing is None:
                assert len(world.begun) == begun, "a cancelled run began something"
            if world.at.run.undoing is not None:
                assert all(path.endswith("~undo") for path, _ in world.begun[begun:])
        assert world.at.run.status in TERMINAL, (world.at.run, world.at.positions)
        assert not world.open()
        if world.at.run.status is Status.COMPENSATED:
            assert not set(world.logged().values()) & {"registered", "owed", "failed"}
        assert world.store is not None
        assert not audit(world.store.file).broken
        world.store.file.close()


def what_may_come(world: Undoing, *, late: bool) -> list[Any]:
    """What may happen next, `late` only what leads to an end; None: the next undo."""
    run, found = world.at.run, list[Any]()
    for no in world.open():
        effect = world.at.effects[no]
        ends = (
            [Ended(no, 0, stdout=b"yes")] * 3
            if late
            else [Ended(no, 0), Ended(no, 1), Lost(no, "killed"), Ended(no, -2, "leaving")]
        )
        found += ends if late or effect.kind == "probe" else [*ends, CouldNotStart(no, 2, "secret", why="missing")]
    for p in world.at.positions.values():
        path = path_of(p.scope, p.state)
        match p.phase:
            case Phase.DOUBT if p.settling:
                found += [Resolve("happened", output="yes", has_output=True), Resolve("fail")]
            case Phase.DOUBT if run.undoing is not None:
                found += [Resolve("undone"), Resolve("retry")]
            case Phase.DOUBT:
                found += [Resolve("happened", path, output="yes", has_output=True), Resolve("fail", path)]
            case _ if run.status is Status.PAUSED:
                pass
            case Phase.READY:
                found.append(Go(p.scope))
            case Phase.LOST:
                found.append(Settle(p.scope))
            case Phase.HELD:
                found.append(TakeUp())
            case Phase.WAITING | Phase.DELAYED | Phase.PROBING if p.due is not None and may_begin(world.plan, world.at, p.scope):
                found.append(Due(p.scope))
    if run.status is Status.PAUSED:
        return [*found, TakeUp(), TakeUp()]
    if run.status is Status.COMPENSATING and not any(is_undo(p) for p in world.at.positions.values()):
        found.append(None)
    if run.reason == "undo_failed":
        assert world.store is not None
        return [Resolve("undone", effects=tuple(no for no, *_ in world.store.failed_undos(1))), Compensate()]
    if not late and run.undoing is None:
        found += [Pause(), *([Cancel(), Compensate()] if len(found) > 3 else [])]
    elif not late:
        found.append(Pause())
    return found


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_an_earlier_attempt_may_have_done_is_not_forgotten_when_a_later_one_did_nothing(folder: str, cancelled: bool) -> None:
    """Its time was over, and it was begun again; the second says that it did nothing. Of the first nobody knows."""
    again = {"retry": {"max_attempts": 2 + cancelled, "initial_interval": "1ms", "jitter": "none"}}
    world = Undoing(
        plan_of({"a": {"run": ["x"], "idempotent": True, "compensate": dict(UNDO), "next": "succeeded", **again}}), folder
    )
    world.end("a", -9, "timeout")
    world.give(Due(""))
    world.end("a", 1)
    if cancelled:
        world.give(Cancel())
        assert world.at.run.status is Status.CANCELLED
    assert world.logged() == {"a": "registered"}
    world.give(Compensate())
    world.next()
    assert world.at.run.status is Status.BLOCKED, "a person is asked"
    world.give(Resolve("happened"))
    world.undo_all()
    assert world.undone == ["a"] and world.at.run.status is Status.COMPENSATED


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_person_who_says_again_has_not_said_that_it_did_not_happen(folder: str, cancelled: bool) -> None:
    world = Undoing(plan_of({"a": {"run": ["x"], "compensate": dict(UNDO), "next": "succeeded"}}), folder)
    world.give(Lost(1, "killed"))
    world.give(Resolve("retry"))
    if cancelled:
        world.give(Cancel())
    world.end("a", 1)
    assert world.logged() == {"a": "registered"}
    world.give(Compensate())
    world.next()
    assert world.at.run.status is Status.BLOCKED, "a person is asked"


def test_what_was_done_and_gave_nothing_of_use_is_not_forgotten_when_it_was_begun_again_in_vain(folder: str) -> None:
    again = {"retry": {"on": ["output_invalid"], "max_attempts": 2, "initial_interval": "1ms", "jitter": "none"}}
    world = Undoing(
        plan_of({"a": {"run": ["x"], "output": "json", "compensate": dict(UNDO), "next": "succeeded", **again}}), folder
    )
    world.end("a", 0, stdout=b"no json")
    assert world.logged() == {"a": "owed"}
    world.give(Due(""))
    world.end("a", 1)
    assert world.at.run.status is Status.FAILED and world.logged() == {"a": "registered"}


def test_a_probe_that_says_no_leaves_nothing_of_an_earlier_attempt_to_be_undone(folder: str) -> None:
    ways = {"probe": {"run": ["p"]}, "retry": {"max_attempts": 2, "initial_interval": "1ms", "jitter": "none"}}
    world = Undoing(plan_of({"a": {"run": ["x"], "compensate": dict(UNDO), "next": "succeeded", **ways}}), folder)
    world.end("a", -9, "timeout")
    world.end("a", 1)  # the probe: it did not happen
    world.give(Due(""))
    world.end("a", 1)
    assert world.logged() == {"a": "not_needed"}


def test_a_run_that_does_not_let_itself_be_stopped_is_whole_all_the_same(tmp_path: Path) -> None:
    world = World(plan_of({"a": {"run": ["x"], "next": "succeeded"}}), str(tmp_path))
    world.give(Cancel())
    world.give(NotStopped((), 7))
    assert (world.at.run.status, world.at.run.reason) == (Status.BLOCKED, "not_stopped")
    assert world.store is not None and not audit(world.store.file).broken

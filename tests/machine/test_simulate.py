"""A plan is walked through without doing anything: what happens next is what the rules say, and a script says how things end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import plan_of, some_states

from durun.machine.model import TERMINAL, Run, Status
from durun.machine.script import Script, WrongAnswers, places
from durun.machine.simulate import Walk
from durun.plan.expressions import Evaluator


def walk(plan: Any, answers: Any = None, **names: Any) -> Walk:
    types = dict.fromkeys(plan["vars"], "integer")
    run = Run("r", plan["name"], "1", "00" * 16, 1_000_000, Status.RUNNING, None, names, plan["vars"], {}, types)
    made = Walk(plan, run, Script(plan, answers or {}), Evaluator())
    made.go()
    return made


def begun(made: Walk) -> list[str]:
    return [f"{step.path}{'?' if step.data['effect'] == 'probe' else ''}" for step in made.steps if step.kind == "begins"]


RUN: dict[str, Any] = {"run": ["x"], "next": "succeeded"}


def test_time_jumps_to_what_is_due_and_nothing_else_takes_any() -> None:
    plan = plan_of({"a": {"wait": "2h", "next": "b"}, "b": {**RUN, "retry": {"jitter": "none", "max_attempts": 3}}})
    made = walk(plan, {"b": [{"exit": 7}, {"signal": "KILL"}]})
    assert made.at.run.status == "failed", "a command that was killed is not certain, and not idempotent: no rule repeats it"
    made = walk(plan, {"b": [{"exit": 7}, {"exit": 8}]})
    assert made.at.run.status == "succeeded" and made.now - made.started == 7_200_000 + 1000 + 2000


def test_a_doubt_is_settled_by_a_probe_or_a_person() -> None:
    plan = plan_of({"a": {**RUN, "probe": {"run": ["p"]}}})
    assert begun(walk(plan, {"a": [{"error": "in_doubt"}]})) == ["a", "a?"], "a probe says yes unless the script says otherwise"
    assert begun(walk(plan, {"a": {"error": "in_doubt"}, "a/probe": [{"exit": 1}]})) == ["a", "a?", "a"]
    made = walk(plan, {"a": [{"error": "in_doubt"}], "a/probe": [{"exit": 2}]})
    assert (made.at.run.status, made.at.run.reason) == ("blocked", "in_doubt")


def test_what_was_done_is_undone_the_youngest_first_and_an_undo_may_fail() -> None:
    undo = {"compensate": {"run": ["u"]}}
    plan = plan_of({"a": {**RUN, **undo, "next": "b"}, "b": {**RUN, **undo, "next": "c"}, "c": RUN}, on_error="compensate")
    assert begun(walk(plan, {"c": {"exit": 1}})) == ["a", "b", "c", "b~undo", "a~undo"]
    made = walk(plan, {"c": {"exit": 1}, "b~undo": {"exit": 1}})
    assert begun(made)[-1] == "a~undo" and (made.at.run.status, made.at.run.reason) == ("blocked", "undo_failed")


def test_a_doubt_is_settled_by_the_probe_of_its_state_before_it_is_undone() -> None:
    a = {**RUN, "probe": {"run": ["p"]}, "compensate": {"run": ["u"]}, "catch": [{"on": ["in_doubt"], "next": "b"}]}
    plan = plan_of({"a": a, "b": {"fail": {"error": "mine"}}}, on_error="compensate")
    unknown = {"a": {"error": "in_doubt"}, "a/probe": [{"exit": 2}]}
    assert begun(walk(plan, unknown)) == ["a", "a?", "a~undo?", "a~undo"]
    made = walk(plan, {**unknown, "a/probe": [{"exit": 2}, {"exit": 1}]})
    assert begun(made) == ["a", "a?", "a~undo?"] and made.at.run.status == "compensated"


def test_people_and_signals_say_what_the_script_says() -> None:
    plan = plan_of({
        "a": {"approval": {"message": "?", "options": ["now", "later", {"name": "never", "reject": True}]}, "timeout": "1d",
              "catch": [{"on": ["timeout"], "next": "late"}, {"on": ["rejected"], "next": "failed"}], "next": "b"},
        "b": {"wait": {"signal": "go", "schema": {"type": "integer"}}, "next": "succeeded"}, "late": {"pass": {}, "next": "succeeded"},
    }, output="${{ has(states.b.output) ? states.b.output : 0 }}")  # fmt: skip
    assert walk(plan, {"a": {"answer": "later"}, "b": {"output": 7}}).at.run.output == 7
    assert walk(plan, {"a": {"answer": "never"}}).at.run.status == "failed"
    late = walk(plan, {"a": {"error": "timeout"}})
    assert late.now - late.started == 86_400_000 and [s.path for s in late.steps if s.kind == "entered"] == ["a", "late"]
    assert walk(plan, {"b": {"error": "gone", "message": "m"}}).at.run.ended_by["name"] == "gone"
    stands = walk(plan)
    assert stands.at.run.status == "waiting" and "does not fit" in stands.ends, "null is no integer, so the signal is still to come"


def test_items_have_answers_by_their_label_or_all_alike() -> None:
    plan = plan_of({"m": {"map": {"items": "['x', 'y', 'z']", "label": "${{ item }}", "run": ["r"], "failures": "all", "concurrency": 1}, "next": "succeeded"}}, output="${{ states.m.items.map(i, i.status) }}")  # fmt: skip
    assert walk(plan, {"m[].run": {"exit": 1}, "m[y].run": []}).at.run.output == ["failed", "succeeded", "failed"]
    made = walk(plan, {"m[q].run": [{}], "m[x].run": [{}, {}]})
    assert sorted(made.script.left()) == [("m[q].run", 1), ("m[x].run", 1)]


def test_limits_are_free_a_group_is_nobodys_and_messages_are_delivered() -> None:
    plan = plan_of(
        {
            "m": {"map": {"items": "[1, 2, 3]", "run": ["r"], "limit": "one", "concurrency": 2}, "next": "tell"},
            "tell": {**RUN, "background": True, "idempotent": True, "compensate": {"run": ["u"]}, "next": "end"},
            "end": {"fail": {"error": "on_purpose"}},
        },
        limits={"one": {"concurrency": 1, "rate": "1/h"}}, group={"name": "g"}, on_error="compensate",
        notify=[{"on": ["failed", "compensated"], "run": ["n"]}],
    )  # fmt: skip
    made = walk(plan)
    assert begun(made)[:4] == ["m[0].run", "m[1].run", "m[2].run", "tell"] and begun(made)[4] == "tell~undo"
    assert made.at.run.status == "compensated" and made.now == made.started and len(begun(made)) == 6


def test_a_sibling_that_is_stopped_does_not_end_well() -> None:
    plan = plan_of({"p": {"parallel": {"stop": "now", "branches": {n: {"start": n + n, "states": {n + n: RUN}} for n in "ab"}}, "next": "succeeded"}})  # fmt: skip
    made = walk(plan, {"p.a.aa": {"exit": 1}})
    assert [s.data.get("stopped") for s in made.steps if s.kind == "attempt_ended"] == [None, "sibling"]


def test_polls_the_time_of_the_run_and_walks_without_an_end() -> None:
    poll = plan_of({"a": {"run": ["x"], "idempotent": True, "output": "json", "poll": {"until": "output == 3", "every": "5s", "for": "1m"}, "next": "succeeded"}})  # fmt: skip
    assert walk(poll, {"a": [{"output": 1}, {"exit": 1}, {"output": 3}]}).at.run.status == "succeeded"
    assert walk(poll).at.run.ended_by["name"] == "timeout"
    over = walk(plan_of({"a": {"wait": "2h", "next": "succeeded"}}, timeout="1h"))
    assert over.at.run.ended_by["name"] == "run_timeout" and over.now - over.started == 3_600_000
    loop = walk(
        plan_of({"a": {"wait": "1s", "next": "b"}, "b": {"choice": [{"when": "false", "next": "succeeded"}, {"next": "a"}]}})
    )
    assert loop.at.run.status != "succeeded" and ("given up" in loop.ends or loop.at.run.ended_by["name"] == "max_visits")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"b": []}, "'b' is nothing in this plan that is answered"), ({"ask": {"answer": "perhaps"}}, "`answer` is one of yes, no"),
        ({"aks": {}}, "did you mean `ask`"), ({"a": {"exit": 256}}, "from 0 to 255"), ({"a": {"exit": True}}, "from 0 to 255"),
        ({"a": {"status": 200}}, "`status` says nothing to it"), ({"a": {"exit": 1, "signal": "TERM"}}, "say one of them"),
        ({"a": {"signal": "NONE"}}, "the name of one"), ({"a": {"error": "boom"}}, "`error` is one of"), ({"a": 7}, "a mapping with"),
        ({"ask": {"error": "timeout"}}, "it waits for ever"), ({"sig": {"error": "heartbeat"}}, "it waits for ever"),
        ({"sig": {"error": "exit"}}, "a name of your own"), ({"get": {"output": 7}}, "`headers`, `json` and `body`"),
        ({"get": {"status": 1000}}, "from 100 to 999"), ({"a/probe": {}}, "'a/probe' is nothing"), ({"a~undo": {}}, "'a~undo' is nothing"),
        ([], "a mapping: a path to a list"), ({"a": [{}, {"stderr": 1}]}, "a, answer 2: `stderr` is a text"),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit_the_plan_are_refused(answers: Any, said: str) -> None:
    plan = plan_of({"a": {**RUN, "next": "ask"}, "ask": {"approval": {"message": "?"}, "next": "sig"}, "sig": {"wait": {"signal": "s"}, "next": "get"}, "get": {"http": {"url": "http://x"}, "next": "succeeded"}})  # fmt: skip
    with pytest.raises(WrongAnswers) as e:
        Script(plan, answers)
    assert said in str(e.value)


ENDS = [{}, {}, {}, {"exit": 1}, {"signal": "TERM"}, {"error": "in_doubt"}, {"error": "timeout"}, {"error": "not_found"}]


@settings(max_examples=40)
@given(some_states(depth=2, prefix="s"), st.data())
def test_every_walk_comes_to_an_end(made: tuple[str, dict[str, Any]], data: Any) -> None:
    plan = plan_of(made[1])
    answers = {path: data.draw(st.lists(st.sampled_from(ENDS), max_size=3)) for path, _ in places(plan, "")}
    ended = walk(plan, answers)
    assert not ended.ends and ended.at.run.status in {*TERMINAL, Status.BLOCKED}

"""Children by their ids: commands that look show them as runs of their own, and what moves a run names the one they go with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from program import Program, until

CHILD = """
durun: 1
name: child
version: '7'
pins: {env: [LEDGER]}
input: {n: integer}
vars: {got: 0}
start: s
states:
  s: {run: 'echo "said $DURUN_RUN_ID"', output: text, assign: {got: '${{ input.n }}'}, compensate: {run: 'true'}, next: ask}
  ask: {approval: {message: 'go on?'}, next: fan}
  fan:
    parallel: {branches: {left: {start: a, states: {a: {run: 'echo by a; test ! -e "$LEDGER.bad"', next: succeeded}}}}}
    next: succeeded
output: '${{ {"n": vars.got} }}'
"""
PLAN = """
start: call
states:
  call: {plan: {file: child.yaml, input: {n: 2}}, next: last}
  last: {run: 'echo the last', next: succeeded}
"""


def answered(durun: Program, *args: Any) -> Any:
    return json.loads(durun(*args, "--json").stdout)


@pytest.fixture
def asked(durun: Program) -> Iterator[tuple[Program, str]]:
    """A run `r` whose child asks, and the id of that."""
    (durun.folder / "child.yaml").write_text(CHILD)
    durun.plan(PLAN)
    durun("start", "plan.yaml", "--id", "r", exit=3)
    lines = answered(durun, "ls", "--children")["runs"]
    assert [line["parent"] for line in lines] == [None, {"run": "r", "path": "call", "visit": 1}]
    yield durun, lines[1]["id"]


def test_a_child_that_waits_is_shown_answered_and_shown_when_it_has_ended(asked: tuple[Program, str]) -> None:
    durun, child = asked
    shown = durun.show(child)
    assert (shown["status"], shown["state"], shown["plan"], shown["version"]) == ("waiting", "ask", "child", "7")
    assert shown["input"] == {"n": 2} and shown["vars"] == {"got": 2} and [e["path"] for e in shown["effects"]] == ["s"]
    assert [p["path"] for p in shown["positions"]] == ["ask"] and shown["pins"]["file"].endswith("child.yaml")
    (wanted,) = shown["waiting_for"]
    assert wanted["path"] == "ask" and wanted["command"].startswith("durun approve r call/ask")
    assert durun("wait", child, exit=3).stderr and "child of r, called by call (visit 1)" in durun("show", child).stdout
    durun("approve", child[:-2], "ask", "--note", "well")
    assert "already" in durun("approve", child, "--note", "well").stderr, "the same answer, to the only question it had"
    durun("resume", "r")
    after = durun.show(child)
    assert (after["status"], after["output"], after["vars"], after["positions"]) == ("succeeded", {"n": 2}, {"got": 2}, [])
    assert [e["path"] for e in after["effects"]] == ["s", "fan.left.a"] and [u["path"] for u in after["undo"]] == ["s"]
    assert after["ended_at"] and after["updated_at"] <= durun.show("r")["updated_at"]
    assert durun("output", child).stdout == '{"n": 2}\n' and durun("wait", child).returncode == 0
    assert durun("logs", child).stdout == f"said {child}\nby a\n" and durun("logs", child, "fan").stdout == "by a\n"
    kinds = [e["kind"] for e in answered(durun, "history", child)["events"] if e["path"] in (None, "fan")]
    assert kinds == ["started", "entered", "begun_inside", "left", "succeeded"]
    assert "has no state 'last'" in durun("logs", child, "last", exit=10).stderr
    assert durun.show("r:call") == after == durun.show("r:call#1"), "by where it was called"
    durun("show", "r:call#2", exit=5)
    durun("compensate", "r", exit=4)
    assert durun.show(child)["status"] == "compensated" and durun.show(child)["undo"][0]["status"] == "undone"


def test_what_moves_a_run_names_the_one_that_called_the_child(asked: tuple[Program, str]) -> None:
    durun, child = asked
    for command in ("cancel", "pause", "resume", "compensate", "watch"):
        assert f"{child} is a child of run r, called by call" in durun(command, child, exit=10).stderr
    assert durun.show("r")["status"] == "waiting"
    durun("pause", "r")
    assert durun.show(child)["status"] == "paused" and durun.show(child)["waiting_for"][-1]["command"] == "durun resume r"
    durun("cancel", "r", exit=4)
    assert durun.show(child)["status"] == "cancelled" and durun("wait", child, exit=4)


def test_a_child_that_failed_says_why_and_goes_on_with_its_run(asked: tuple[Program, str]) -> None:
    durun, child = asked
    durun("approve", child)
    (durun.folder / "ledger.bad").touch()
    durun("resume", "r", exit=1)
    shown = durun.show(child)
    assert (shown["status"], shown["error"]["name"]) == ("failed", "branch_failed") and durun("wait", child, exit=1)
    (durun.folder / "ledger.bad").unlink()
    durun("resume", "r")
    assert durun.show(child)["status"] == "succeeded"
    assert [e["attempt"] for e in durun.show(child)["effects"] if e["path"] == "fan.left.a"] == [2]


def test_what_failed_in_a_child_is_taken_as_done_by_hand_by_its_id(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text("durun: 1\nname: child\nstart: k\nstates: {k: {run: 'exit 3', next: succeeded}}\n")
    durun.plan("start: call\nstates: {call: {plan: {file: child.yaml, id: kid}, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r", exit=1)
    assert "nothing of it waits" in durun("resolve", "kid", "--fail", exit=10).stderr
    durun("resolve", "kid", "--happened")
    durun("resume", "r", exit=0)


def test_children_of_one_id_are_told_apart_and_two_at_once_are_refused(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text("durun: 1\nname: child\nstart: s\nstates: {s: {run: 'echo $DURUN_VISIT', output: text, next: succeeded}}\n"
                                             "output: '${{ states.s.output }}'\n")  # fmt: skip
    durun.plan("vars: {n: 0}\nstart: call\nstates:\n  call: {plan: {file: child.yaml, id: same}, assign: {n: '${{ vars.n + 1 }}'}, next: on}\n"
               "  on: {choice: [{when: vars.n < 2, next: call}, {next: each}]}\n"
               "  each:\n    map: {items: '[1, 2]', failures: all, start: sub, states: {sub: {plan: {file: child.yaml, id: twin}, next: succeeded}}}\n"
               "    next: succeeded\noutput: '${{ states.each.items.map(i, i.status) }}'\n")  # fmt: skip
    durun("start", "plan.yaml", "--id", "r")
    said = durun("show", "same", exit=5).stderr
    assert "'same' fits several children: r:call#1, r:call#2" in said
    assert [durun("output", f"r:call#{n}").stdout for n in (1, 2)] == ["1\n", "2\n"]
    assert [durun("logs", f"r:call#{n}").stdout for n in (1, 2)] == ["1\n", "2\n"]
    assert durun.show("r")["output"] == ["succeeded", "failed"], "two at once would be one and the same"
    assert durun.show("twin")["parent"]["path"] == "each[0].sub"
    lines = answered(durun, "ls", "--children", "--all")["runs"]
    assert [line["id"] for line in lines] == ["r", "same", "same", "twin"] and {line["status"] for line in lines} == {"succeeded"}


def test_a_run_is_meant_before_a_child_and_a_child_inside_a_child_is_one_too(durun: Program) -> None:
    (durun.folder / "deep.yaml").write_text("durun: 1\nname: deep\nstart: d\nstates: {d: {wait: {signal: go}, next: succeeded}}\n")
    (durun.folder / "child.yaml").write_text(
        "durun: 1\nname: child\nstart: sub\nstates: {sub: {plan: {file: deep.yaml}, next: succeeded}}\noutput: '${{ states.sub.run }}'\n"
    )
    durun.plan("start: call\nstates: {call: {plan: {file: child.yaml, id: mid}, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r", exit=3)
    deep = next(line for line in answered(durun, "ls", "--children")["runs"] if line["plan"] == "deep")
    assert deep["parent"] == {"run": "r", "path": "call/sub", "visit": 1} and deep["status"] == "waiting"
    assert [p["path"] for p in durun.show("mid")["positions"]] == ["sub", "sub/d"]
    durun("signal", deep["id"], "go", "--resume")
    until(lambda: durun.show("r")["status"] == "succeeded")
    assert durun("output", "mid").stdout == deep["id"] + "\n"
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n", "other.yaml")
    durun("start", "other.yaml", "--id", "mid")
    assert durun.show("mid")["parent"] is None and durun.show("r:call")["id"] == "mid"


def test_what_a_child_did_is_undone_together_though_others_began_meanwhile(durun: Program) -> None:
    undo = "compensate: {run: 'echo NAME >> \"$LEDGER\"'}"
    (durun.folder / "child.yaml").write_text(
        "durun: 1\nname: child\npins: {env: [LEDGER]}\nstart: c1\nstates:\n"
        f"  c1: {{run: 'touch c1; until test -e b; do sleep 0.02; done', {undo.replace('NAME', 'c1')}, next: c2}}\n"
        f"  c2: {{run: 'true', {undo.replace('NAME', 'c2')}, next: succeeded}}\n"
    )
    durun.plan(
        f"on_error: compensate\nstart: a\nstates:\n  a: {{run: 'true', {undo.replace('NAME', 'a')}, next: both}}\n"
        "  both:\n    parallel:\n      branches:\n"
        "        x: {start: call, states: {call: {plan: {file: child.yaml, id: kid}, next: succeeded}}}\n"
        "        y:\n          start: until_c1\n          states:\n"
        "            until_c1: {run: 'until test -e c1; do sleep 0.02; done', next: b}\n"
        f"            b: {{run: 'touch b', {undo.replace('NAME', 'b')}, next: succeeded}}\n    next: asked\n"
        f"  asked: {{approval: {{message: on?}}, next: bad}}\n  bad: {{run: exit 1, {undo.replace('NAME', 'bad')}, next: succeeded}}\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    shown = durun("show", "r").stdout.splitlines()
    at = shown.index("    both.x.call visit 1, child kid: 2 to be undone")
    assert [line.split(" visit")[0] for line in shown[at - 1 : at + 4]] == [
        "    both.y.b", "    both.x.call", "      both.x.call/c2", "      both.x.call/c1", "    a",
    ]  # fmt: skip
    durun("approve", "r", "--resume", exit=4)
    assert durun.lines() == ["b", "c2", "c1", "a"]


@pytest.fixture
def called_again(durun: Program) -> Iterator[tuple[Program, list[str]]]:
    """A run whose state calls a child that is told no, and then another one that stands in the same place."""
    (durun.folder / "child.yaml").write_text(
        "durun: 1\nname: child\npins: {env: [LEDGER]}\nstart: k\nstates:\n"
        "  k: {run: 'kill -9 $$', compensate: {run: 'echo $DURUN_VISIT >> \"$LEDGER\"; test ! -e bad'}, catch: [{on: [any], next: ask}], next: ask}\n"
        "  ask: {approval: {message: 'go on?'}, next: succeeded}\n"
    )
    durun.plan("start: call\nstates:\n  call: {plan: {file: child.yaml}, catch: [{on: [any], next: on}], next: on}\n"
               "  on: {choice: [{when: states.call.visits < 2, next: call}, {next: succeeded}]}\n")  # fmt: skip
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("reject", "r", "call/ask", "--resume", exit=3)
    yield durun, [line["id"] for line in answered(durun, "ls", "--children")["runs"][1:]]


def test_what_is_said_to_a_child_is_never_heard_of_another_in_its_place(called_again: tuple[Program, list[str]]) -> None:
    durun, (first, second) = called_again
    for named in ([], ["ask"]):
        assert "(visit 1) is answered already" in durun("approve", first, *named, exit=10).stderr
    assert durun.show(second)["waiting_for"][0]["kind"] == "approval"
    durun("approve", second)
    (durun.folder / "bad").touch()
    durun("resume", "r")
    durun("compensate", "r", exit=9)
    assert durun.show(second)["reason"] == "in_doubt"
    assert not [w for w in durun.show(first)["waiting_for"] if w["kind"] == "in_doubt"], "it is the other one that asks"
    for named in ([], ["k"], ["k~undo"]):
        durun("resolve", first, *named, "--fail", exit=10)
        durun("resolve", first, *named, "--undone", exit=10)
    durun("resolve", second, "k", "--happened")
    durun("resume", "r", exit=9)
    assert durun.lines() == ["2"] and durun.show(second)["undo"][0]["status"] == "failed"
    durun("resolve", second, "k", "--happened", exit=10)
    assert "of call/k (visit 2)" in durun("resolve", second, "--undone").stderr
    durun("resume", "r", exit=9)
    durun("resolve", first, "--happened")
    (durun.folder / "bad").unlink()
    durun("resume", "r", exit=4)
    assert durun.lines() == ["2", "1"] and [u["status"] for u in durun.show("r")["undo"]] == ["undone", "undone"]


def test_a_signal_to_a_child_is_taken_by_no_other(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text(
        "durun: 1\nname: child\nstart: w\nstates: {w: {wait: {signal: go, heartbeat: 1h}, next: succeeded}}\noutput: '${{ states.w.output }}'\n"
    )
    durun.plan("start: m\nstates:\n  m:\n    map: {items: '[0, 1]', start: c, output: '${{ states.c.output }}', states: "
               "{c: {plan: {file: child.yaml, id: 'kid-${{ item }}'}, next: ask}, ask: {approval: {message: ok?}, next: succeeded}}}\n"
               "    next: succeeded\noutput: '${{ states.m.output }}'\n")  # fmt: skip
    durun("start", "plan.yaml", "--id", "r", exit=3)
    durun("signal", "kid-1", "go", "--alive")
    durun("signal", "kid-1", "go", "--data", "1", "--dedupe", "a")
    assert [w["path"] for w in durun.show("r")["waiting_for"]] == ["m[0].c/w", "m[1].ask"]
    assert "was sent before" in durun("signal", "kid-1", "go", "--data", "1", "--dedupe", "a").stderr
    for words in ([], ["--alive"]):
        assert "`durun s" in durun("signal", "kid-1", "go", *words, exit=10).stderr, "it has ended, and the other one waits"
    durun("signal", "kid-0", "go", "--data", "0")
    durun("approve", "r", "m[0].ask")
    durun("approve", "r", "m[1].ask")
    assert durun.show("r")["output"] == [0, 1] and durun.show("r")["signals"] == []

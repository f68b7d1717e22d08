"""Drawings of plans and runs: what is in them, and that nothing a plan is called breaks them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from inside import plan_of
from program import Program

from durun.render.graph import document, dot, drawing, mermaid, place

STATES: Any = {
    "look": {"run": ["x"], "idempotent": True, "catch": [{"on": ["exit:3", "timeout"], "next": "ask"}], "next": "dear"},
    "dear": {"choice": [{"when": 'vars.price > 3 && "a" != "b"', "next": "ask"}, {"next": "both"}]},
    "ask": {"approval": {"message": "?"}, "next": "both"},
    "both": {
        "parallel": {
            "branches": {"left": {"start": "a", "states": {"a": {"wait": "5m", "next": "succeeded"}}},
                         "right": {"start": "b", "states": {"b": {"fail": {"error": "lost"}}}}},
        },
        "next": "each",
    },
    "each": {"map": {"items": "[1, 2]", "run": ["x"], "idempotent": True}, "next": "end"},
    "end": {"pass": {}, "next": "succeeded"},
}  # fmt: skip


def test_a_plan_is_drawn_with_all_its_ways() -> None:
    assert (
        mermaid(drawing(plan_of(STATES, vars={"price": 1}, version="1")))
        == """---
title: "inside 1"
---
flowchart TD
  n1(("start"))
  n2["look<br/>run"]
  n3{"dear<br/>choice"}
  n4{{"ask<br/>approval"}}
  subgraph f14["both"]
    n5["both<br/>parallel"]
    subgraph f9["left"]
      n10(["a<br/>wait<br/>5m"])
      n11(["succeeded"])
    end
    subgraph f12["right"]
      n13[["b<br/>fail<br/>error lost"]]
    end
  end
  subgraph f18["each"]
    n6["each<br/>map<br/>items#58; [1, 2]"]
    subgraph f15["each item"]
      n16["run<br/>run"]
      n17(["succeeded"])
    end
  end
  n7("end<br/>pass")
  n8(["succeeded"])
  n5 --> n10
  n10 --> n11
  n5 --> n13
  n6 --> n16
  n16 --> n17
  n1 --> n2
  n2 --> n3
  n2 -.->|"exit#58;3, timeout"| n4
  n3 -->|"vars.price #62; 3 #38;#38; #34;a#34; != #34;b#34;"| n4
  n3 -->|"otherwise"| n5
  n4 --> n5
  n5 --> n6
  n6 --> n7
  n7 --> n8"""
    )


def test_the_same_in_the_words_of_graphviz() -> None:
    said = dot(drawing(plan_of({"a": {"wait": {"signal": "go"}, "timeout": "1h", "catch": [{"on": ["timeout"], "next": "b"}], "next": "succeeded"}, "b": {"fail": {"error": "late"}}}, version="1")))  # fmt: skip
    assert (
        said
        == """digraph {
  label="inside 1"
  labelloc=t
  node [shape=box]
  n1 [label="start" shape=circle]
  n2 [label="a\\nwait\\nsignal go" shape=oval]
  n3 [label="b\\nfail\\nerror late" shape=doubleoctagon]
  n4 [label="succeeded" shape=oval]
  n1 -> n2
  n2 -> n4
  n2 -> n3 [label="timeout" style=dashed]
}"""
    )


EVIL = '"]; end\n%%{init: {}}%% <b>&amp;</b> `x` |y| \\" style:#a; $$ \x1b[31m'


def test_nothing_that_a_plan_says_means_anything_to_the_drawing() -> None:
    when = f"{json.dumps(EVIL[:40])} == 'classDef x:#b;'"
    plan = plan_of({"end": {"choice": [{"when": when, "next": "graph"}, {"next": "subgraph"}]}, "graph": {"wait": "1s", "next": "subgraph"}, "subgraph": {"fail": {"error": "default"}}}, version=EVIL)  # fmt: skip
    said = mermaid(drawing(plan))
    head, body = said.split("\n---\n")
    assert json.loads(head.removeprefix("---\ntitle: ")).isprintable()
    for line in body.splitlines()[1:]:
        plain = re.fullmatch(r'  (?:n\d+[\[({]{1,2}"([^"]*)"[\])}]{1,2}|n\d+ --> ?(?:\|"([^"]*)"\|)? n\d+|n\d+ --> n\d+)', line)
        assert plain, line
        for text in filter(None, plain.groups()):
            assert not re.search(r"[%<>&`|\\$:;#]", re.sub(r"#\d+;|<br/>", "", text)), text
    for line in dot(drawing(plan)).splitlines()[1:-1]:
        assert re.fullmatch(r'(?:[^"]|"(?:[^"\\]|\\["\\n])*")*', line) and line.isprintable(), line


def test_a_place_is_a_path_without_the_labels_of_items() -> None:
    assert place("", "a") == "a" and place("each[x.y]", "a") == "each[].a" and place("call/", "a") == "call/a"
    assert place("each[1].fan.left", "a") == "each[].fan.left.a"


RUN = """
start: each
states:
  each:
    map: {items: '[1, 2, 3]', start: one, states: {one: {run: ['true'], idempotent: true, next: succeeded}}}
    next: call
  call: {plan: {file: child.yaml}, next: again}
  again: {run: 'exit 4', idempotent: true, catch: [{on: [exit], next: ask}], next: succeeded}
  ask: {approval: {message: 'well?'}, catch: [{on: [rejected], next: broken}], next: succeeded}
  broken: {run: 'exit 5', idempotent: true, next: succeeded}
"""


def test_a_run_is_drawn_with_what_was_visited_and_where_it_stands(durun: Program) -> None:
    durun.plan("start: a\nname: child\nstates: {a: {run: ['true'], idempotent: true, next: succeeded}}\n", "child.yaml")
    durun.plan(RUN)
    run = durun.start(3)

    def marks() -> dict[str, Any]:
        return {" ".join(n["lines"]): n["mark"] for n in json.loads(durun("graph", run, "--json").stdout)["nodes"] if n["mark"]}

    visited = ["one run visited 3 times", "a run", "call plan child.yaml", "again run", "each map items: [1, 2, 3]"]
    assert marks() == {**dict.fromkeys(visited, "visited"), "ask approval asks a person": "here"}
    assert ":::here" in durun("graph", run).stdout and "waiting" in durun("graph", run).stdout
    durun("reject", run, "--resume", exit=1)
    assert marks()["broken run failed here"] == "failed" and marks()["ask approval"] == "visited"
    assert "fillcolor" in durun("graph", run, "--format", "dot").stdout


def test_what_is_neither_a_plan_nor_a_run_is_refused(durun: Program) -> None:
    assert "no file nothing" in durun("graph", "nothing", exit=5).stderr
    assert "there are mermaid and dot" in durun("graph", "nothing", "--format", "svg", exit=2).stderr
    durun.plan("start: a\nstates: {a: {run: ['true'], next: nowhere}}\n")
    assert "plan.yaml:5" in durun("graph", "plan.yaml", exit=7).stderr
    assert durun("graph", "-", input="durun: 1\nname: p\nstart: a\nstates: {a: {pass: {}, next: succeeded}}\n").stdout


@pytest.mark.parametrize("inner", ["parallel", "map"])
def test_the_document_names_the_frame_of_each_node(inner: str) -> None:
    doc = document(drawing(plan_of(STATES, vars={"price": 1})))
    frames = {f["id"]: f for f in doc["frames"]}
    head = next(n for n in doc["nodes"] if n["kind"] == inner)
    assert frames[head["frame"]]["title"] == head["lines"][0]
    assert {e["from"] for e in doc["edges"]} | {e["to"] for e in doc["edges"]} == {n["id"] for n in doc["nodes"]}

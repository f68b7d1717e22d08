"""Paths: a state in a branch, an item or a child is named alike wherever a command takes one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from program import Program, until

CHILD = """
durun: 1
name: child
pins: {env: [LEDGER]}
start: s
states:
  s: {run: 'echo "said by the child"', output: text, next: t}
  t: {parallel: {branches: {x: {start: y, states: {y: {run: 'echo deep', output: text, next: succeeded}}, output: '${{ states.y.output }}'}}}, next: hold}
  hold: {run: 'until [ -e "$LEDGER.go" ]; do sleep 0.05; done', next: succeeded}
output: '${{ states.s.output }}'
"""
PLAN = """
start: fan
states:
  fan:
    parallel:
      branches:
        left: {start: a, states: {a: {run: 'echo by a; echo to stderr >&2', output: text, next: succeeded}}, output: '${{ states.a.output }}'}
        right: {start: b, states: {b: {run: 'exit 3', next: succeeded}}, output: 1}
      failures: 1
    next: each
  each:
    map:
      items: '["cust-17", "a.b/c~d"]'
      label: '${{ item }}'
      start: do
      states:
        do: {run: [echo, 'for ${{ item }}'], output: text, next: succeeded}
      output: '${{ states.do.output }}'
    next: call
  call: {plan: {file: child.yaml}, next: last}
  last: {run: 'echo the last', output: text, next: succeeded}
"""


@pytest.fixture
def live(durun: Program) -> Iterator[tuple[Program, str]]:
    """A run that stands inside its child."""
    (durun.folder / "child.yaml").write_text(CHILD)
    durun.plan(PLAN)
    driven = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: any(p["path"] == "call/hold" for p in durun.seen("r").get("positions", [])))
    yield durun, "r"
    (durun.folder / "ledger.go").touch()
    assert driven.wait(60) == 0


def test_outputs_of_branches_items_and_of_states_inside(live: tuple[Program, str]) -> None:
    durun, run = live
    for path, said in {
        "fan.left": "by a",
        "fan.left.a": "by a",
        "each[cust-17]": "for cust-17",
        "each[a.b/c~d]": "for a.b/c~d",
        "each[a.b/c~d].do": "for a.b/c~d",
        "call/s": "said by the child",
        "call/t.x": "deep",
        "call/t.x.y": "deep",
    }.items():
        assert durun("output", run, path).stdout == said + "\n", path
        assert json.loads(durun("output", run, path, "--json").stdout) == {"run": run, "state": path, "output": said}
    assert json.loads(durun("output", run, "fan").stdout) == {"left": "by a", "right": None}
    for path in (
        "fan.right",
        "fan.right.b",
        "fan.none",
        "each[none]",
        "each[]",
        "call",
        "call/hold",
        "call/none",
        "[",
        "]",
        "/",
        "~",
        "",
    ):
        said = durun("output", run, path, exit=10).stderr
        assert "has no output" in said or f"has no state {path!r}" in said, path


def test_the_output_of_a_child_is_that_of_the_state_that_called_it(live: tuple[Program, str]) -> None:
    durun, run = live
    (durun.folder / "ledger.go").touch()
    durun("wait", run)
    for path in ("call", "call/", "call/s"):
        assert durun("output", run, path).stdout == "said by the child\n", path


def test_logs_of_what_is_named_and_of_all_inside_it(live: tuple[Program, str]) -> None:
    durun, run = live
    (durun.folder / "ledger.go").touch()
    durun("wait", run)
    for path, said in {
        "fan.left.a": "by a\nto stderr\n",
        "fan.left": "by a\nto stderr\n",
        "a": "by a\nto stderr\n",
        "fan": "by a\nto stderr\n",
        "each[cust-17].do": "for cust-17\n",
        "each[cust-17]": "for cust-17\n",
        "each[a.b/c~d]": "for a.b/c~d\n",
        "call/s": "said by the child\n",
        "call/t": "deep\n",
        "call/": "said by the child\ndeep\n",
        "call": "said by the child\ndeep\n",
        "last": "the last\n",
    }.items():
        assert durun("logs", run, path).stdout == said, path
    assert sorted(durun("logs", run, "each").stdout.splitlines()) == ["for a.b/c~d", "for cust-17"]
    logs = json.loads(durun("logs", run, "each[cust-17]", "--json").stdout)["logs"]
    assert [(e["path"], e["stdout"]) for e in logs] == [("each[cust-17].do", "for cust-17\n")]
    for path in ("eac", "each[cust-1", "call/none", "fan.lef"):
        said = durun("logs", run, path, exit=None)
        assert said.stdout == "" and ("has written nothing" in said.stderr or "has no state" in said.stderr), path


def test_logs_of_what_is_under_way_inside(durun: Program) -> None:
    durun.plan(
        "start: fan\nstates:\n  fan:\n    parallel:\n      branches:\n"
        + "".join(
            f"        {name}: {{start: do, states: {{do: {{run: 'echo from {name}; "
            f'until [ -e "$LEDGER.go" ]; do sleep 0.05; done\', next: succeeded}}}}}}\n'
            for name in ("left", "right")
        )
        + "    next: succeeded\n"
    )
    driven = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.db.exists() and durun("logs", "r", "fan", exit=None).stdout.count("from") == 2)
    for path in ("fan.left.do", "fan.left"):
        assert durun("logs", "r", path).stdout == "from left\n"
    assert durun("logs", "r", "fan.right.do").stdout == "from right\n"
    (durun.folder / "ledger.go").touch()
    assert driven.wait(60) == 0


def test_the_logs_of_an_undo_are_apart_from_those_of_what_it_undoes(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo done', compensate: {run: 'echo undone'}, next: succeeded}}\n")
    run = durun.start()
    durun("compensate", run, exit=4)
    assert durun("logs", run, "a").stdout == "done\n" and durun("logs", run, "a~undo").stdout == "undone\n"
    assert durun("logs", run).stdout == "done\nundone\n"


def test_a_doubt_and_a_question_inside_are_named_as_a_word_of_the_shell(durun: Program) -> None:
    durun.plan(
        "start: each\nstates:\n  each:\n    map:\n      items: '[\"x y\", \"z\"]'\n      label: '${{ item }}'\n      start: ask\n"
        "      states: {ask: {approval: {message: '${{ item }}?'}, next: succeeded}}\n    next: succeeded\n"
    )
    run = durun.start(3)
    command = {w["path"]: w["command"] for w in durun.show(run)["waiting_for"]}["each[x y].ask"]
    assert f"durun approve {run} 'each[x y].ask' |" in command
    durun("approve", run, "each[x y].ask")
    durun("reject", run, "each[z].ask")
    assert durun.show(run)["status"] == "failed"

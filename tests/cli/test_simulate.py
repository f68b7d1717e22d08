"""`durun simulate`: the same way through a plan as a run takes, and nothing is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from program import Program

import durun as package

TEMPLATES = Path(package.__file__).parent / "templates"
PLAN = """
input: {who: string, sum: {type: integer, default: 5}}
vars: {n: 0}
secrets: [TOKEN]
pins: {env: [PLACE]}
output: '${{ vars.n }}'
start: look
states:
  look:
    run: [look, --for, '${{ input.who }}']
    env: {AUTH: 'Bearer ${{ secrets.TOKEN }}'}
    output: json
    idempotent: true
    retry: {on: [exit], jitter: none}
    assign: {n: '${{ output.n }}'}
    next: rest
  rest: {wait: 1h30m, next: ask}
  ask:
    approval: {message: 'Pay ${{ vars.n }}?'}
    catch: [{on: [rejected], next: failed}]
    next: pay
  pay:
    http: {method: POST, url: '${{ pins.env.PLACE }}/pay', auth: {bearer: '${{ secrets.TOKEN }}'}, json: {sum: '${{ vars.n }}'}}
    compensate: {run: 'undo it', env: {ID: '${{ output.json.id }}'}}
    next: succeeded
"""
ANSWERS = """
look: [{exit: 3}, {output: {n: 7}}]
ask: [{answer: yes, by: ann}]
pay: [{status: 201, output: {json: {id: p1}}}]
"""


def test_it_prints_the_way_taken_with_every_request_and_opens_nothing(durun: Program) -> None:
    durun.plan(PLAN)
    (durun.folder / "answers.yaml").write_text(ANSWERS)
    said = durun("simulate", "plan.yaml", "-i", "who=ann", "--answers", "answers.yaml", env={"PLACE": "https://x.org"})
    assert (
        said.stdout
        == """\
+0s       look: runs look --for ann
              env AUTH: Bearer ${{ secrets.TOKEN }}
+0s       look: exit:3 (exit 3)
+0s       look: attempt 2 in 1s
+1s       look, attempt 2: runs look --for ann
              env AUTH: Bearer ${{ secrets.TOKEN }}
+1s       look: done, on to rest
              n = 7
+1s       rest: waits 1h30m
+1h30m    rest: done, on to ask
+1h30m    ask: asks: Pay 7?
+1h30m    ask: ann says yes
+1h30m    ask: done, on to pay
+1h30m    pay: sends POST https://x.org/pay
              auth bearer: ${{ secrets.TOKEN }}
              json {"sum":7}
+1h30m    pay: done
it succeeds after 1h30m: 7
  `durun compensate` would undo pay
"""
    )
    assert said.stderr == "" and not durun.db.exists() and not Path(f"{durun.db}.d").exists()


def test_it_exits_as_the_run_would(durun: Program) -> None:
    durun.plan(PLAN)
    given = ["simulate", "plan.yaml", "-i", "who=ann", "--answers", "-"]
    place = {"PLACE": "https://x.org"}
    look = '"look": {"output": {"n": 1}}'
    assert "rejected" in durun(*given, input=f'{{{look}, "ask": {{"answer": "no"}}}}', env=place, exit=1).stdout
    said = durun(*given, input=f'{{{look}, "pay": {{"error": "in_doubt"}}, "look/probe": {{}}}}', env=place, exit=7)
    assert "--answers -: 'look/probe' is nothing in this plan that is answered" in said.stderr
    said = durun(*given, input=f'{{{look}, "pay": [{{"error": "in_doubt"}}, {{}}]}}', env=place, exit=9)
    assert "it is blocked after 1h30m (in_doubt)\n  pay waits for in_doubt" in said.stdout
    assert said.stderr == "pay: 1 of its answers was not asked for\n"
    assert "expression" in durun("simulate", "plan.yaml", "-i", "who=ann", env=place, exit=1).stdout
    assert "pins.env names PLACE" in durun("simulate", "plan.yaml", "-i", "who=ann", exit=7).stderr
    assert "input `who` is missing" in durun("simulate", "plan.yaml", env=place, exit=7).stderr
    assert "-:1:1: a mapping is wanted here" in durun(*given, input="- a\n", env=place, exit=7).stderr


def test_the_document_has_each_step(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: ['x'], idempotent: true, next: b}, b: {wait: {signal: go}, next: succeeded}}\n")
    doc = json.loads(durun("simulate", "plan.yaml", "--json", env={"LEDGER": "x"}).stdout)
    assert doc["status"] == "succeeded" and doc["took_ms"] == 0 and doc["not_used"] == []
    begins = next(step for step in doc["steps"] if step["kind"] == "begins")
    assert begins == {"after_ms": 0, "kind": "begins", "path": "a", "visit": 1, "attempt": 1, "effect": "run", "request": {"argv": ["x"], "env": {}}}  # fmt: skip


REAL = """
vars: {n: 0}
start: fan
states:
  fan:
    parallel:
      branches:
        left: {start: l, states: {l: {run: 'exit 3', retry: {max_attempts: 2, initial_interval: 1ms}, catch: [{on: ['exit:3'], next: ok}], next: ok}, ok: {pass: {}, next: succeeded}}}
        right: {start: r, states: {r: {run: 'echo "[1, 2]"', output: json, next: succeeded}}, output: '${{ states.r.output }}'}
    next: each
  each:
    map: {items: 'states.fan.output.right', failures: all, start: one, states: {one: {run: 'exit $((N - 1))', env: {N: '${{ item }}'}, compensate: {run: 'true'}, next: succeeded}}}
    assign: {n: 2}
    next: many
  many:
    choice: [{when: 'vars.n > 1', next: last}, {next: succeeded}]
  last: {run: 'exit 9', next: succeeded}
on_error: compensate
"""
REALLY: dict[str, Any] = {
    "fan.left.l": [{"exit": 3}, {"exit": 3}], "fan.right.r": {"output": [1, 2]}, "each[1].one": {"exit": 1}, "last": {"exit": 9},
}  # fmt: skip


def test_a_run_whose_effects_end_so_takes_the_same_way(durun: Program) -> None:
    durun.plan(REAL)
    (durun.folder / "answers.json").write_text(json.dumps(REALLY))
    made = json.loads(durun("simulate", "plan.yaml", "--answers", "answers.json", "--json", env={"LEDGER": "x"}, exit=4).stdout)
    run = durun("start", "plan.yaml", env={"LEDGER": "x"}, exit=4).stdout.strip()
    happened = json.loads(durun("history", run, "--json").stdout)["events"]

    def by_path(steps: Any) -> dict[Any, list[Any]]:  # what happens at one place has an order, what happens at several has none
        found: dict[Any, list[Any]] = {}
        for step in steps:
            if step["kind"] != "begins":
                found.setdefault(step["path"], []).append((step["kind"], step["visit"], step["attempt"]))
        return found

    assert by_path(made["steps"]) == by_path(happened)


@pytest.mark.parametrize(
    ("template", "given", "answers", "exit"),
    [
        ("hello", [], {}, 0), ("hello", [], {"ask": {"answer": "no"}}, 1), ("hello", [], {"keep": {"error": "in_doubt"}}, 0),
        ("support-queue", ["-i", "mailbox=m", "-i", "answer=a"], {"read": {"output": []}}, 0),
        ("migrate-code", ["-i", "work=w"], {"baseline": {"output": {"failed": []}}, "list": {"output": ["a.py", "b.py"]}, "rewrite": [{"output": "changed"}, {"output": "unchanged"}]}, 0),
        ("book-trip", ["-i", "traveller=ann"], {"search": {"output": {"json": {"flights": []}}}}, 4),
    ],
)  # fmt: skip
def test_the_templates_can_be_walked_through(durun: Program, template: str, given: list[str], answers: Any, exit: int) -> None:
    plan, env = TEMPLATES / template / "plan.yaml", {"BOOKING_API": "http://x"}
    durun("simulate", plan, *given, "--answers", "-", input=json.dumps(answers), env=env, exit=exit)

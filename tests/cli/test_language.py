"""The plan language as whoever writes a plan meets it: what may be read of what has ended, and what counts as what."""

from __future__ import annotations

import pytest
from program import Program


def test_a_state_reads_its_own_end_in_what_follows_it(durun: Program) -> None:
    durun.plan("""
vars: {seen: [], n: 0}
on_error: compensate
start: say
states:
  say:
    run: 'echo 7'
    output: json
    assign: {seen: '${{ [states.say.output, states.say.exit] }}'}
    compensate: {run: 'echo "undo say $X" >> "$LEDGER"', env: {X: '${{ states.say.output }}'}}
    next: ask
  ask:
    run: 'echo "$N"'
    env: {N: '${{ vars.n }}'}
    output: json
    idempotent: true
    poll: {until: 'output >= 2', every: 10ms, for: 1m}
    assign: {n: '${{ states.ask.output + 1 }}'}
    next: each
  each:
    map: {items: '[1, 2]', run: 'exit 1', failures: 1}
    catch: [{on: item_failed, assign: {seen: '${{ vars.seen + states.each.items.map(i, i.error.exit) }}'}, next: last}]
    next: last
  last:
    run: 'exit 3'
    compensate: {after: [failed], run: 'echo "undo last $X" >> "$LEDGER"', env: {X: '${{ states.last.error.name }}'}}
    next: succeeded
""")
    run = durun.start(exit=4)
    shown = durun.show(run)
    assert (shown["vars"], shown["error"]["name"]) == ({"seen": [7, 0, 1, 1], "n": 3}, "exit:3")
    assert durun.lines() == ["undo last exit:3", "undo say 7"]


def test_where_a_state_has_failed_its_own_output_is_never_there(durun: Program) -> None:
    durun.plan("""
vars: {seen: null}
start: say
states:
  say: {run: x, catch: [{on: any, assign: {seen: '${{ states.say.output }}'}, next: last}], next: last}
  last: {pass: , next: succeeded}
""")
    assert "`states.say.output` is never there: `say` has ended in an error" in durun("check", "plan.yaml", exit=7).stderr


@pytest.mark.parametrize(
    ("body", "gives"),
    [
        ("run: 'echo oh >&2; exit 3'", [1, 3, None, None, "oh\n"]),
        ("run: [no-such-program]", [1, None, None, None, ""]),
        ("choice: [{when: 'false', next: succeeded}]", [None, None, None, None, None]),
        ("wait: {signal: go}, timeout: 10ms", [None, None, None, None, None]),
        ("map: {items: '[1]', start: f, states: {f: {fail: {error: Mine}}}}", [None, None, None, None, None]),
    ],
)
def test_what_means_nothing_of_an_error_is_null(durun: Program, body: str, gives: list[object]) -> None:
    after = "" if body.startswith("choice") else ", next: failed"
    durun.plan(f"""
start: bad
states:
  bad: {{{body}, catch: [{{on: any, next: seen}}]{after}}}
  seen: {{pass: , next: succeeded}}
output: '${{{{ [error.attempt, error.exit, error.status, error.output, error.stderr] }}}}'
""")
    assert durun.show(durun.start(0, "--wait"))["output"] == gives


def test_what_is_given_to_a_plan_that_is_called_is_held_against_its_input(durun: Program) -> None:
    durun.plan("input: {n: integer}\ntimeout: 1m\nstart: a\nstates: {a: {pass: , next: succeeded}}\n", "called.yaml")
    durun.plan("start: call\nstates: {call: {plan: {file: called.yaml, input: {n: two}}, next: succeeded}}\n")
    assert (
        'plan.yaml:5:54: the input `n` of called.yaml: "two" is not of the type integer'
        in durun("check", "plan.yaml", exit=7).stderr
    )
    durun.plan("start: call\nstates: {call: {plan: {file: called.yaml, input: {n: '${{ 1 + 1 }}'}}, next: succeeded}}\n")
    assert "the `timeout` of called.yaml is not heard where it is called" in durun("check", "plan.yaml").stderr


def test_a_round_whose_output_cannot_be_used_is_not_yet(durun: Program) -> None:
    plan = """
start: ask
states:
  ask:
    run: 'echo x >> "$LEDGER"; if [ $(wc -l < "$LEDGER") -ge 3 ]; then echo 4; else echo {; fi'
    output: json
    idempotent: true
    poll: {until: 'output == UNTIL', every: 10ms, for: FOR}
    next: succeeded
"""
    durun.plan(plan.replace("UNTIL", "4").replace("FOR", "1m"))
    durun.start()
    assert durun.lines() == ["x"] * 3
    durun.ledger.unlink()
    durun.plan(plan.replace("UNTIL", "4").replace("FOR", "1ms"))
    error = durun.show(durun.start(exit=1))["error"]
    assert error["name"] == "timeout" and "in 1 rounds; the last ended in output_invalid: stdout holds no JSON" in error["message"]


def test_a_stdin_of_null_is_json_like_any_other(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: [cat], stdin: '${{ null }}', output: json, next: b}, b: {pass: , next: succeeded}}\n")
    run = durun.start()
    assert durun("logs", run).stdout.split()[-1] == "null"

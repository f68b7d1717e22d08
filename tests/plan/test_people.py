"""What a plan may say of approvals and signals."""

from __future__ import annotations

from typing import Any

import pytest

from durun.plan.load import PlanFaults, load


def faults(body: str, more: str = "") -> list[str]:
    text = f"durun: 1\nname: test\n{more}start: a\nstates:\n  a: {{{body}}}\n  b: {{pass: , next: succeeded}}\n"
    try:
        load(text, "plan.yaml")
    except PlanFaults as e:
        return [f.message for f in e.faults]
    return []


def good(body: str, more: str = "") -> dict[str, Any]:
    text = f"durun: 1\nname: test\n{more}start: a\nstates:\n  a: {{{body}}}\n"
    return dict(load(text, "plan.yaml").plan["states"]["a"])


def warned(body: str) -> list[str]:
    text = f"durun: 1\nname: test\nstart: a\nstates:\n  a: {{{body}}}\n"
    return [w.message for w in load(text, "plan.yaml").warnings]


def test_an_approval_has_yes_and_no_unless_it_says_otherwise() -> None:
    assert good("approval: {message: Ship?}, next: succeeded")["approval"] == {
        "message": "Ship?",
        "options": [{"name": "yes", "reject": False}, {"name": "no", "reject": True}],
    }
    named = good("approval: {message: Ship?, options: [now, later, {name: never, reject: true}]}, timeout: 24h, next: succeeded")
    assert [(o["name"], o["reject"]) for o in named["approval"]["options"]] == [("now", False), ("later", False), ("never", True)]
    assert named["timeout"] == 86_400_000


def test_a_wait_for_a_signal_has_a_name_a_schema_a_silence_and_a_time() -> None:
    found = good("wait: {signal: payment.done, schema: integer, heartbeat: 5m}, timeout: 2h, next: succeeded")
    assert found["wait"] == {"signal": "payment.done", "schema": {"type": "integer"}, "heartbeat": 300_000}
    assert found["timeout"] == 7_200_000
    assert "timeout" not in good("wait: 5m, next: succeeded")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("approval: {}, next: b", "`message` is required here"),
        ("approval: , next: b", "nothing is given here"),
        ("approval: {message: ''}, next: b", "this text is empty"),
        ("approval: {message: x, option: [a]}, next: b", "`option` is no key here; did you mean `options`?"),
        ("approval: {message: x, options: []}, next: b", "there is nothing in it"),
        ("approval: {message: x, options: [a, a]}, next: b", "the answer `a` is there twice"),
        ("approval: {message: x, options: [{name: a, reject: true}]}, next: b", "every answer is a no"),
        ("approval: {message: x, options: [{name: a, rejct: true}]}, next: b", "`rejct` is no key here; did you mean `reject`?"),
        ("approval: {message: x, options: [true]}, next: b", "a text is wanted here, not true; put it in quotes"),
        ("approval: {message: x, options: ['a b']}, next: b", "`a b` is no answer"),
        ("approval: {message: x, options: ['${{ input.x }}']}, next: b", "no expression may stand here"),
        ("approval: {message: x, schema: strng}, next: b", "`strng` is no type; did you mean `string`?"),
        ("approval: {message: x}", "state `a` has no `next`"),
        ("approval: {message: x}, retry: {}, next: b", "`retry` says nothing to a `approval`"),
        ("approval: {message: x}, heartbeat: 1s, next: b", "a person gives no sign of life"),
        ("approval: {message: x}, output: json, next: b", "the answer is its output"),
        ("approval: {message: '${{ key }}'}, next: b", "`key` has no value here"),
        ("approval: {message: '${{ output.x }}'}, next: b", "`output` has no value here"),
        ("approval: {message: x}, timeout: '${{ key }}', next: b", "`key` has no value here"),
        ("approval: {message: x}, timeout: 0s, next: b", "a duration of nothing"),
        ("wait: {signal: }, next: b", "a text is wanted here"),
        ("wait: {signal: '1x'}, next: b", "`1x` is no name of a signal"),
        ("wait: {signal: '${{ input.x }}'}, next: b", "no expression may stand here"),
        ("wait: {signal: x, shema: string}, next: b", "`shema` is no key here; did you mean `schema`?"),
        ("wait: {heartbeat: 1s}, next: b", "`signal` is required here"),
        ("wait: {signal: x, at: '2026-11-30T00:00:00Z'}, next: b", "`at` is no key here"),
        ("wait: {signal: x, schema: {type: strng}}, next: b", "`strng` is no type"),
        ("wait: {signal: x, heartbeat: 0s}, next: b", "a duration of nothing"),
        ("wait: {signal: x}, heartbeat: 1s, next: b", "it goes beside `signal`"),
        ("wait: {at: '2026-11-30T00:00:00Z'}, timeout: 1s, next: b", "a wait for a time is over when that time has come"),
        ("run: [x], approval: {message: x}, next: b", "is several things at once, run, approval"),
    ],
)
def test_what_is_wrong_with_an_approval_or_a_signal_is_said(body: str, message: str) -> None:
    found = faults(body)
    assert any(message in said for said in found), found
    assert len([said for said in found if "never reached" not in said]) == 1, found


def test_what_an_answer_and_a_payload_hold_is_known() -> None:
    ask = "approval: {message: x, schema: {type: object, properties: {n: {type: integer}}, additionalProperties: false}}"
    assert faults(ask + ", assign: {v: '${{ output.data.n }}'}, next: b", "vars: {v: 0}\n") == []
    states = "  b: {{pass: , assign: {{v: '${{{{ {} }}}}'}}, next: succeeded}}\n"
    for path, well in {
        "states.a.output.answer": True, "states.a.output.at": True, "states.a.output.data.n": True,
        "states.a.output.data.m": False, "states.a.output.answr": False,
    }.items():  # fmt: skip
        text = f"durun: 1\nname: t\nvars: {{v: null}}\nstart: a\nstates:\n  a: {{{ask}, next: b}}\n" + states.format(path)
        if well:
            load(text, "plan.yaml")
        else:
            with pytest.raises(PlanFaults, match="is not there"):
                load(text, "plan.yaml")


def test_an_answer_that_sounds_like_a_no_and_is_none_is_warned_of() -> None:
    (said,) = warned("approval: {message: x, options: [yes, no]}, next: succeeded")
    assert "`no` goes on like any other answer" in said and "{name: no, reject: true}" in said
    assert warned("approval: {message: x}, next: succeeded") == []
    assert warned("approval: {message: x, options: [yes, {name: no, reject: true}]}, next: succeeded") == []

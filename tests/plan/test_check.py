"""What a plan may say: shapes, kinds, names, references, and the canonical form they become."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durun.plan.digest import canonical_text, digest
from durun.plan.load import Fault, PlanFaults, load


def told(text: str) -> tuple[list[Fault], list[Fault]]:
    """The faults and the warnings of a plan; what every plan needs may be left out."""
    head = "".join(f"{k}: {v}\n" for k, v in (("durun", 1), ("name", "test")) if f"\n{k}:" not in "\n" + text)
    try:
        return [], load(head + text, "plan.yaml").warnings
    except PlanFaults as e:
        return e.faults, []


def messages(text: str) -> list[str]:
    return [f.message for f in told(text)[0]]


def state(body: str, more: str = "") -> str:
    return f"{more}start: a\nstates:\n  a: {{{body}}}\n  b: {{pass: , next: succeeded}}\n"


def one(body: str, more: str = "") -> str:
    """The one fault of a state."""
    found = [m for m in messages(state(body, more)) if "`b` is never reached" not in m]
    assert len(found) == 1, found
    return found[0]


def good(body: str, more: str = "") -> dict[str, Any]:
    """The canonical state."""
    text = f"durun: 1\nname: test\n{more}start: a\nstates:\n  a: {{{body}}}\n"
    return dict(load(text, "plan.yaml").plan["states"]["a"])


# --- the top ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("durun: 2\n", "this durun reads version 1 of the language: `durun: 1`, not `2`"),
        ("durun: true\n", "not true"),
        ("durun: '1'\n", "not `1`"),
        ("durun: 1.0\n", "not `1.0`"),
        ("name: Book_Trip\n", "`Book_Trip` is no name of a plan"),
        ("name: ../x\n", "`../x` is no name of a plan"),
        ("name: " + "a" * 65 + "\n", "is no name of a plan"),
        ("verison: '1'\n", "`verison` is no key here; did you mean `version`?"),
        ("description: 5\n", "a text is wanted here, not `5`; put it in quotes"),
        ("version:\n", "nothing is given here"),
        ("input: [a]\n", "a mapping is wanted here, not a list"),
        ("pins: {env: HOME}\n", "a list is wanted here, not `HOME`"),
        ("pins: {env: [A-B]}\n", "`A-B` is no name of an environment variable"),
        ("on_error: stopp\n", "`stop` or `compensate` is wanted here, not `stopp`"),
        ("defaults: {expect: [1]}\n", "`expect` is no key here"),
    ],
)
def test_a_fault_at_the_top_is_told_in_words(text: str, message: str) -> None:
    found = messages(text + state("pass: , next: b"))
    assert len(found) == 1 and message in found[0], found


def test_what_is_required_and_missing_is_named() -> None:
    assert [f.message for f in told("x-a: 1\n")[0]] == ["`start` is required here", "`states` is required here"]
    assert "there is nothing in it" in messages("start: a\nstates: {}\n")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("affinity: run\n", "affinity"),
    ],
)  # fmt: skip
def test_what_is_not_built_yet_is_known_at_the_top(text: str, word: str) -> None:
    assert messages(text + state("pass: , next: b")) == [f"`{word}` is part of the language, but this durun does not have it yet"]


# --- kinds ---


def test_a_state_has_exactly_one_kind() -> None:
    assert "state `a` has no kind: it is one of run, http, wait, approval, choice, pass, fail" in one("next: b")
    assert "is several things at once, run, wait" in one("run: [x], wait: 1s, next: b")
    assert {"`rnu` is no key here; did you mean `run`?"} < set(messages(state("rnu: [x], next: b")))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("wait: 1s, retry: {max_attempts: 2}, next: b", "`retry` says nothing to a `wait`: a `catch` may lead back to it"),
        ("wait: 1s, timeout: 2s, next: b", "`timeout` says nothing to a `wait`: a wait for a time is over when that time has come"),
        ("choice: [{next: b}], next: b", "`next` says nothing to a `choice`: each of its lines has one"),
        ("choice: [{next: b}], retry: []", "`retry` says nothing to a `choice`"),
        ("fail: {error: E}, next: b", "`next` says nothing to a `fail`: it ends the run"),
        ("fail: {error: E}, catch: [{on: any, next: b}]", "`catch` says nothing to a `fail`"),
        ("pass: , env: {A: b}, next: b", "`env` says nothing to a `pass`"),
        ("pass: , idempotent: true, next: b", "`idempotent` says nothing to a `pass`"),
        ("run: [x], shell: sh, next: b", "`shell` says nothing to a list"),
        ("run: x, probe: {run: [x], shell: sh}, next: b", "`shell` says nothing to a list"),
    ],
)
def test_a_key_that_does_not_fit_its_kind_is_refused_with_the_reason(body: str, message: str) -> None:
    assert message in one(body)


def test_a_missing_next_names_the_state_that_follows() -> None:
    said = "a transition is never implied by the order of lines"
    assert one("run: [x]") == f"state `a` has no `next`: {said}; did you mean `next: b`?"
    assert messages("start: a\nstates: {a: {wait: 1s}}\n") == [f"state `a` has no `next`: {said}; did you mean `next: succeeded`?"]


def test_only_the_last_line_of_a_choice_may_have_no_condition() -> None:
    assert "only the last line may have no `when`" in one("choice: [{next: b}, {when: visit > 1, next: b}]")
    assert one("choice: []") == "there is nothing in it"


def test_a_catch_that_leaves_nothing_to_the_next_is_a_fault() -> None:
    assert "it is never reached" in one("run: [x], next: b, catch: [{on: '*', next: b}, {on: timeout, next: b}]")
    assert good("run: [x], next: succeeded, catch: [{on: any, next: failed}, {on: in_doubt, next: failed}]")["catch"][1]["on"] == [
        "in_doubt"
    ]


# --- values ---


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("0", "`retry` is a rule such as {max_attempts: 3}"),
        ("", "nothing is given here"),
        ("true", "`retry` is a rule"),
        ("3", "`retry` is a rule"),
        ("{attempts: 3}", "`attempts` is no key here; did you mean `max_attempts`?"),
        ("{max_attempts: 0}", "`0` is too small: at least 1"),
        ("{max_attempts: -1}", "`-1` is too small: at least 1"),
        ("{max_attempts: null}", "nothing is given here"),
        ("{max_attempts: '3'}", "a whole number is wanted here, not `3`"),
        ("{max_attempts: 3.0}", "a whole number is wanted here, not `3.0`"),
        ("{max_attempts: true}", "a whole number is wanted here, not true"),
        ("{max_elapsed: 0s}", "a duration of nothing has no sense here"),
        ("{max_elapsed: 200000d}", "longer than a hundred years"),
        ("{initial_interval: 5}", "`5` is no duration"),
        ("{initial_interval: '${{ visit }}'}", "no expression may stand here"),
        ("{backoff: 0.5}", "a number from 1 to 1000 is wanted here, not `0.5`"),
        ("{backoff: true}", "a number is wanted here, not true"),
        ("{backoff: " + "9" * 400 + "}", "a number from 1 to 1000"),
        ("{jitter: ful}", "`ful` is none of full, none; did you mean `full`?"),
        ("{on: in_doubt}", "a doubt is not retried by a rule"),
        ("{on: [exit:256]}", "`exit:256` is no name of an error"),
        ("{on: ['exit:']}", "`exit:` is no name of an error"),
        ("{on: [5]}", "the name of an error is wanted here, not `5`"),
        ("{on: []}", "there is nothing in it"),
    ],
)
def test_a_retry_rule_that_is_none_is_refused(rule: str, message: str) -> None:
    assert message in one(f"run: [x], next: b, retry: {rule}")


def test_no_rule_is_one_attempt_and_a_rule_is_three() -> None:
    assert good("run: [x], next: succeeded")["retry"] == []
    assert good("run: [x], retry: [], next: succeeded", "defaults: {retry: {}}\n")["retry"] == []
    assert good("run: [x], retry: {}, next: succeeded")["retry"] == [
        {
            "on": ["any"], "max_attempts": 3, "max_elapsed": None, "initial_interval": 1000, "backoff": 2, "max_interval": 60_000,
            "jitter": "full",
        }
    ]  # fmt: skip
    assert good("run: [x], retry: {max_attempts: 1}, next: succeeded")["retry"][0]["max_attempts"] == 1
    elapsed = good("run: [x], retry: {max_elapsed: 1h}, next: succeeded")["retry"][0]
    assert (elapsed["max_attempts"], elapsed["max_elapsed"]) == (None, 3_600_000)


def test_a_matcher_has_one_spelling_in_the_canonical_form() -> None:
    rule = good("run: [x], retry: {on: ['*', exit:1, killed:SIGKILL, exit, 'http:5xx', My.Own-1]}, next: succeeded")["retry"][0]
    assert rule["on"] == ["any", "exit:1", "killed:KILL", "exit", "http:5xx", "My.Own-1"]


@pytest.mark.parametrize(
    "name", ["timeout", "any", "exit", "exit:1", "killed:TERM", "'http:500'", "in_doubt", "run_timeout", "a b", "1a", "''"]
)
def test_an_error_of_ones_own_has_a_name_of_its_own(name: str) -> None:
    assert "take one of your own" in one(f"fail: {{error: {name}}}") or "is no name of an error" in one(f"fail: {{error: {name}}}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("run: '', next: b", "the script is empty"),
        ("run: [], next: b", "not an empty list"),
        ("run: , next: b", "a command is a list of words"),
        ("run: [''], next: b", "the name of the command is empty"),
        ("run: [x, [y]], next: b", "word 2 is a list"),
        ("run: [x, null], next: b", "word 2 is nothing"),
        ("run: x, shell: zsh, next: b", "`zsh` is none of sh, bash"),
        ("run: [x], timeout: 0s, next: b", "a duration of nothing"),
        ("run: [x], timeout: 1:30, next: b", "`1:30` is no duration"),
        ("run: [x], timeout: 30, next: b", "`30` is no duration"),
        ("run: [x], expect: [256], next: b", "`256` is too large: at most 255"),
        ("run: [x], expect: [true], next: b", "a whole number is wanted here, not true"),
        ("run: [x], idempotent: 'yes', next: b", "`yes` is no duration"),
        ("run: [x], idempotent: 5, next: b", "true, false or a duration"),
        ("run: [x], max_visits: 0, next: b", "at least 1"),
        ("run: [x], max_visits: 9" + "9" * 400 + ", next: b", "is too large"),
        ("run: [x], output: jsn, next: b", "`jsn` is none of json, text, lines; did you mean `json`?"),
        ("run: [x], output: {format: json, schema: strng}, next: b", "`strng` is no type; did you mean `string`?"),
        ("run: [x], output: {format: json, schema: {$ref: 'http://x/y'}}, next: b", "leads outside the plan"),
        ("run: [x], env: {1A: x}, next: b", "`1A` is no name of an environment variable"),
        ("run: [x], env: {A=B: x}, next: b", "is no name of an environment variable"),
        ("run: [x], env: {DURUN_KEY: x}, next: b", "names that begin with DURUN_ are durun's"),
        ("run: [x], env: {A: null}, next: b", "a text, a number or a boolean is wanted here, not nothing"),
        ("run: [x], env: {A: [1]}, next: b", "not a list"),
        ("run: [x], probe: {run: [y], yes: [0, 1]}, next: b", "the exit code `1` means both yes and no"),
        ("run: [x], catch: [{on: run_timeout, next: b}], next: b", "is never caught"),
        ("wait: PT1H30M, next: b", "`PT1H30M` is no duration; write 250ms"),
        ("wait: {at: 2026-11-30}, next: b", "is no time; write it as"),
        ("wait: {at: '2026-11-30T09:00:00'}, next: b", "with its offset"),
        ("wait: 30, next: b", "`30` is no duration"),
        ("wait: 4000000d, next: b", "longer than a hundred years"),
        ("wait: , next: b", "nothing is given here"),
        ("pass: true, next: b", "a mapping is wanted here, not true"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(body: str, message: str) -> None:
    assert message in one(body)


def test_nothing_is_ever_rendered_into_a_shell_script() -> None:
    message = one("run: \"echo '${{ input.msg }}'\", next: b", "input: {msg: string}\n")
    assert message == 'nothing is ever put into a shell script: pass the value by `env:` and write "$NAME", or make `run` a list'
    assert "shell script" in one("run: [x], probe: {run: 'echo ${{ key }}'}, next: b")


def test_a_wait_of_nothing_is_one() -> None:
    assert good("wait: 0s, next: succeeded")["wait"] == {"lasts": 0}


@pytest.mark.parametrize(
    "word", ["name: '${{ input.n }}'", "version: '${{ input.n }}'", "start: '${{ input.n }}'", "description: '${{ input.n }}'"]
)
def test_no_expression_may_stand_where_the_plan_must_be_known_at_the_top(word: str) -> None:
    text = f"{word}\ninput: {{n: string}}\n" + state("pass: , next: b")
    if word.startswith("start"):
        text = text.replace("start: a\n", "")
    assert messages(text) == ["no expression may stand here: this is known before a run begins"]


@pytest.mark.parametrize(
    "body",
    [
        "run: [x], next: '${{ visit }}'", "run: [x], next: b, max_visits: '${{ visit }}'",
        "run: [x], next: b, expect: ['${{ visit }}']",
        "run: [x], next: b, retry: {max_attempts: '${{ visit }}'}", "run: [x], next: b, catch: [{on: '${{ visit }}', next: b}]",
        "run: [x], next: b, output: {format: json, schema: {const: '${{ visit }}'}}", "fail: {error: '${{ visit }}'}",
        "choice: [{next: '${{ visit }}'}]", "run: [x], next: b, idempotent: '${{ visit }}'",
    ],
)  # fmt: skip
def test_no_expression_may_stand_where_the_plan_must_be_known(body: str) -> None:
    assert one(body) == "no expression may stand here: this is known before a run begins"


# --- polls ---


def test_a_poll_must_be_idempotent_or_have_a_probe() -> None:
    poll = "poll: {until: output == 1, for: 1m}, output: json"
    assert "idempotent" in one(f"run: [x], next: b, {poll}")
    assert "idempotent" in one(f"run: [x], next: b, idempotent: false, {poll}", "defaults: {idempotent: true}\n")
    assert good(f"run: [x], next: succeeded, idempotent: true, {poll}")["poll"] == {
        "until": "output == 1", "every": 5000, "times": 1, "lasts": 60_000,
    }  # fmt: skip
    assert good(f"run: [x], next: succeeded, {poll}", "defaults: {idempotent: 1h}\n")["idempotent"] == 3_600_000
    assert good(f"run: [x], next: succeeded, probe: {{run: [y]}}, {poll}")["poll"]


def test_a_poll_has_no_retry_and_an_end() -> None:
    body = "run: [x], next: b, idempotent: true"
    assert "a poll has no `retry` of its own" in one(body + ", retry: {}, poll: {until: visit > 1, for: 1m}")
    assert (
        good("run: [x], next: succeeded, idempotent: true, poll: {until: visit > 1, for: 1m}", "defaults: {retry: {}}\n")["retry"]
        == []
    )
    assert "`for` is required here: how long to poll at most" in one(body + ", poll: {until: visit > 1}")
    assert "`lasts` is no key here" in messages(state(body + ", poll: {until: visit > 1, lasts: 1m}"))
    assert "a duration of nothing" in one(body + ", poll: {until: visit > 1, for: 1m, every: 0s}")


# --- names and references ---


@pytest.mark.parametrize("name", ["../y", "A", "1a", "a-b", "in", "true", "null", "a b", "é", "-rf", "a" * 65])
def test_a_name_that_is_none_is_refused_wherever_it_stands(name: str) -> None:
    assert len(messages(f"vars: {{'{name}': 1}}\n" + state("pass: , next: b"))) == 1
    assert len(messages(f"input: {{'{name}': string}}\n" + state("pass: , next: b"))) == 1
    assert len(messages(f"start: '{name}'\nstates: {{'{name}': {{pass: , next: succeeded}}}}\n")) == 1


def test_every_name_at_fault_is_told() -> None:
    assert len(messages("vars: {A: 1, B: 2}\ninput: {C: any}\n" + state("pass: , next: b"))) == 3


@pytest.mark.parametrize("name", ["succeeded", "failed", "compensated"])
def test_a_built_in_end_is_no_name_for_a_state(name: str) -> None:
    assert f"`{name}` is a built-in end, no name for a state" in messages(
        f"start: {name}\nstates: {{{name}: {{fail: {{error: E}}}}}}\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: aa\nstates: {a: {pass: , next: succeeded}}\n", "`aa` is no state of this plan; did you mean `a`?"),
        (state("pass: , next: succeded"), "`succeded` is no state of this plan; did you mean `succeeded`?"),
        (state("run: [x], next: b, catch: [{on: any, next: bb}]"), "`bb` is no state of this plan; did you mean `b`?"),
        (state("choice: [{when: visit > 1, next: bb}, {next: b}]"), "`bb` is no state of this plan; did you mean `b`?"),
        (state("pass: , next: succeeded"), "state `b` is never reached from `a`"),
        (state("pass: , next: b, assign: {nun: 1}", "vars: {num: 1}\n"), "`nun` is none of the vars; did you mean `num`?"),
        (state("run: [x], next: b, catch: [{on: any, next: b, assign: {q: 1}}]"), "`q` is none of the vars"),
        (state("run: ['${{ inptu.a }}'], next: b"), "`inptu` is no name here; did you mean `input`?"),
        (
            state("run: ['${{ input.buget }}'], next: b", "input: {budget: any}\n"),
            "`input.buget` is not there; did you mean `budget`?",
        ),
        (state("run: ['${{ vars.x }}'], next: b"), "`vars.x` is not there"),
        (state("run: ['${{ states.c.output }}'], next: b"), "`states.c` is not there"),
        (
            state("run: ['${{ states.b.ouput }}'], next: b"),
            "a state has output, error, visits, exit, items, run, no `ouput`; did you mean `output`?",
        ),
        (state("run: ['${{ run.idd }}'], next: b"), "`run.idd` is not there; did you mean `id`?"),
        (
            state("run: ['${{ pins.env.B }}'], next: b", "pins: {env: [BB]}\n"),
            "`B` is not pinned: name it under pins.env; did you mean `BB`?",
        ),
        (state("run: ['${{ pins.files }}'], next: b"), "`pins.files` is not there"),
        (state("run: ['${{ error.nam }}'], next: b"), "`error.nam` is not there; did you mean `name`?"),
        (state("run: ['${{ output }}'], next: b"), "`output` has no value here"),
        (state("pass: , next: b, assign: {v: '${{ output }}'}", "vars: {v: null}\n"), "`output` has no value here"),
        (state("choice: [{when: output > 1, next: b}, {next: b}]"), "`output` has no value here"),
        (state("run: [x], key: '${{ key }}', next: b"), "`key` has no value here"),
        (state("pass: , next: b", "vars: {v: '${{ run.id }}'}\n"), "`run` has no value here: there are input"),
        (state("pass: , next: b", "output: '${{ visit }}'\n"), "`visit` has no value here"),
        (state("choice: [{when: '${{ visit > 1 }}', next: b}, {next: b}]"), "leave `${{` and `}}` out"),
        (state("choice: [{when: visit >, next: b}, {next: b}]"), "the expression ends too early"),
        (state("run: ['${{ visit'], next: b"), "has no `}}` that ends it"),
    ],
)
def test_what_is_named_and_not_there_is_refused_with_the_nearest_word(text: str, message: str) -> None:
    found = [m for m in messages(text) if "`b` is never reached" not in m or "`b` is never" in message]
    assert len(found) == 1 and message in found[0], found


def test_every_name_has_a_value_where_it_is_given() -> None:
    text = """
input: {a: any}
vars: {v: '${{ input.a }}'}
pins: {env: [HOME]}
output: '${{ [input.a, vars.v, states.a.output, run.id, pins.env.HOME] }}'
start: a
states:
  a:
    run: [x, '${{ key }}', '${{ visit }}', '${{ run.started_at }}', '${{ pins.env.HOME }}', '${{ states.a.visits }}']
    probe: {run: [y, '${{ key }}'], stdin: {deep: ['${{ input }}']}}
    key: '${{ run.id }}-${{ visit }}'
    assign: {v: '${{ {"o": output, "k": key} }}'}
    catch: [{on: any, next: failed, assign: {v: '${{ error.stderr }}'}}]
    next: succeeded
"""
    assert messages(text) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("input.trip.frm", "`input.trip.frm` is not there; did you mean `from`?"),
        ("input.who.name", "`input.who` is of the type string, and has no `name`"),
        ("vars.n.x", "`vars.n` is of the type integer, and has no `x`"),
        ("states.c.output.prize", "`states.c.output.prize` is not there; did you mean `price`?"),
        ("states.w.output.x", "`states.w.output` is of the type null, and has no `x`"),
    ],
)
def test_a_path_is_held_against_what_is_declared(path: str, message: str) -> None:
    schema = "{type: object, additionalProperties: false, properties: {from: {type: string}, price: {type: number}}}"
    text = f"""
input: {{who: string, trip: {schema}}}
vars: {{n: 0, free: null}}
start: c
states:
  c: {{run: [x], output: {{format: json, schema: {schema}}}, next: w}}
  w: {{wait: 1s, next: d}}
  d: {{run: [x, '${{{{ {path} }}}}'], next: succeeded}}
"""
    assert messages(text) == [message]
    for fine in ("input.trip.from", "vars.free.x.y", "states.c.output.price", "has(input.trip.from)"):
        assert messages(text.replace(path, fine)) == []


def test_a_double_that_meets_an_integer_is_told() -> None:
    more = "input: {i: integer, n: number}\nvars: {f: 1.5}\n"
    assert "`input.i` is an integer, and here it meets a double: write double(input.i)" in one(
        "run: ['${{ input.i * 1.2 }}'], next: b", more
    )
    text = state(
        "run: ['${{ input.n * 1.2 }}', '${{ double(input.i) * 1.2 }}', '${{ vars.f * 1.2 }}'], idempotent: true, next: b", more
    )
    found, warnings = told(text)
    assert found == []
    assert [w.message for w in warnings] == ["`input.n` fails here where it is an integer: write double(input.n)"]


# --- types that cannot fit ---

TYPED = """
input: {s: string, b: boolean, i: integer, n: number, l: {type: array}, o: {type: object}, maybe: {type: [string, 'null']}}
vars: {text: '', whole: 0, half: 0.5, list: [], free: null, kept: null}
vars_schema: {properties: {kept: {type: [string, 'null']}}}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # what a var takes
        ("run: [x], next: b, assign: {whole: '${{ input.s }}'}", "`input.s` is a string, and `whole` stays an integer"),
        ("run: [x], next: b, assign: {whole: '${{ 1.5 * 2.0 }}'}", "this expression is a number, and `whole` stays an integer"),
        ("run: [x], next: b, assign: {half: '${{ size(input.l) }}'}", "this expression is an integer, and `half` stays a number"),
        ("run: [x], next: b, assign: {text: [a]}", "this value is a list, and `text` stays a string"),
        ("run: [x], next: b, assign: {whole: 'no. ${{ input.i }}'}", "this text is a string, and `whole` stays an integer"),
        ("run: [x], next: b, assign: {kept: '${{ input.i }}'}", "`input.i` is an integer, and `kept` stays null or a string"),
        ("pass: , next: b, assign: {list: '${{ input.o }}'}", "`input.o` is an object, and `list` stays a list"),
        ("run: [x], next: b, catch: [{on: any, next: b, assign: {whole: '${{ error.name }}'}}]", "`error.name` is a string"),
        ("run: [x], output: {format: json, schema: {type: array}}, next: b, assign: {text: '${{ output }}'}", "stays a string"),
        # what is true or false
        ("choice: [{when: input.s, next: b}, {next: b}]", "`input.s` is a string, and true or false is wanted here"),
        ("choice: [{when: size(input.l), next: b}, {next: b}]", "this expression is an integer, and true or false is wanted here"),
        ("run: [x], idempotent: true, poll: {until: vars.whole, for: 1h}, next: b", "`vars.whole` is an integer"),
        # what becomes text
        ("run: [x, '${{ input.o }}'], next: b", "`input.o` is an object, and a string, number, boolean or list of them is wanted here"),
        ("run: [x, '--a=${{ input.l }}'], next: b", "`input.l` is a list, and a string, number or boolean is wanted here"),
        ("run: [x], env: {A: '${{ input.l }}'}, next: b", "`input.l` is a list, and a string, number or boolean is wanted here"),
        ("run: [x], cwd: '${{ vars.list }}', next: b", "`vars.list` is a list"),
        ("run: [x], key: '${{ {} }}', next: b", "this expression is an object"),
        ("fail: {error: mine, message: '${{ input.o }}'}", "`input.o` is an object"),
        ("run: [x], probe: {run: [y, '${{ input.o }}']}, next: b", "`input.o` is an object"),
        # what is a duration or a time
        ("wait: '${{ input.i }}', next: b", "`input.i` is an integer, and a text is wanted here"),
        ("wait: {at: '${{ run.id == run.name }}'}, next: b", "this expression is a boolean, and a text is wanted here"),
        ("run: [x], timeout: '${{ input.b }}', next: b", "`input.b` is a boolean, and a text is wanted here"),
        # inside an expression
        ("choice: [{when: input.s > 5, next: b}, {next: b}]", "`>` does not take a string and an integer"),
        ("choice: [{when: input.s == 5, next: b}, {next: b}]", "`==` does not take a string and an integer"),
        ("choice: [{when: input.b == run.id, next: b}, {next: b}]", "`==` does not take a boolean and a string"),
        ("run: [x, '${{ input.s + 1 }}'], next: b", "`+` does not take a string and an integer"),
        ("run: [x, '${{ [1, 2].map(i, vars.text * i) }}'], next: b", "does not take"),
        ("pass: , next: b, assign: {free: '${{ visit.x }}'}", "`visit` is of the type integer, and has no `x`"),
        # what is walked over
        ("pass: , next: b, assign: {free: '${{ input.o.map(k, k) }}'}", "an object has no order, walk over keys(input.o)"),
        ("choice: [{when: 'input.s.exists(c, c == input.s)', next: b}, {next: b}]", "only a list can be walked over"),
        ("map: {items: input.o, run: [x]}, next: b", "`input.o` is an object, and a list is wanted here"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_fit_is_a_fault(body: str, message: str) -> None:
    assert message in one(body, TYPED)


@pytest.mark.parametrize(
    "body",
    [
        "run: [x, '${{ input.l }}', '${{ input.n }}', '${{ input.maybe }}'], idempotent: true, next: b",
        "run: [x], idempotent: true, next: b, assign: {half: '${{ input.n }}', whole: '${{ input.n }}', free: '${{ input.o }}'}",
        "run: [x], idempotent: true, next: b, assign: {text: '${{ input.maybe }}', kept: '${{ input.s }}', list: '${{ output }}'}",
        "run: [x], idempotent: true, stdin: '${{ input.o }}', next: b",
        "choice: [{when: 'input.n == 1.5', next: b}, {when: input.i < 2.5, next: b}, {when: 'input.maybe == null', next: b}, {next: b}]",
        "choice: [{when: 'has(input.s) && input.s == input.maybe', next: b}, {when: input.b, next: b}, {next: b}]",
        "pass: , next: b, assign: {free: '${{ [keys(input.o).map(k, k), input.o.x.map(k, k), vars.free.map(k, k)] }}'}",
        "map: {items: input.o.x, run: [x], idempotent: true}, next: b",
        "choice: [{when: 'input.l.exists(s, s == input.s)', next: b}, {when: 'input.s == null', next: b}, {next: b}]",
        "wait: '${{ input.s }}', next: b",
        "fail: {error: mine, message: '${{ input.n }}', data: '${{ input.o }}'}",
    ],
)
def test_a_type_that_may_fit_is_none(body: str) -> None:
    assert [m for m in messages(state(body, TYPED)) if "never reached" not in m] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("[a]", "a schema of all vars is an object, not a list"),
        ("", "nothing is given here"),
        ("{type: objct}", "`objct` is no type; did you mean `object`?"),
        ("{properties: {m: {type: integer}}}", "`m` is none of the vars"),
        (
            "{properties: {n: {type: integer, minimum: 1}}}",
            "the first values of vars do not fit it: n: 0 is less than the minimum of 1",
        ),
        ("{properties: {n: {$ref: 'other.json#/x'}}}", "the reference 'other.json#/x' leads outside the plan"),
        ("{title: '${{ input.a }}'}", "no expression may stand here"),
    ],
)
def test_a_schema_of_vars_that_is_none_is_refused(schema: str, message: str) -> None:
    assert message in one("pass: , next: b", f"vars: {{n: 0}}\nvars_schema: {schema}\n")


REMOTE = "{$ref: 'https://example.org/x'}"


@pytest.mark.parametrize(
    "text",
    [
        f"input:\n  i: {{type: object, properties: {{a: {{items: {REMOTE}}}}}}}\n" + state("pass: , next: b"),
        f"vars: {{n: 0}}\nvars_schema: {{allOf: [{{}}, {{$defs: {{d: {REMOTE}}}}}]}}\n" + state("pass: , next: b"),
        state(f"run: [x], output: {{format: json, schema: {{properties: {{default: {REMOTE}}}}}}}, next: b"),
    ],
)
def test_a_reference_that_leads_outside_is_refused_at_its_place(text: str) -> None:
    (found,) = told(text)[0]
    whole = "durun: 1\nname: test\n" + text
    assert whole.splitlines()[found.line - 1][found.column - 1 :].startswith("'https://example.org/x'"), found


def test_a_reference_inside_its_schema_is_followed_and_data_is_no_reference() -> None:
    schema = "{$defs: {d: {type: integer}}, properties: {a: {$ref: '#/$defs/d'}, $ref: {const: {$ref: 'http://x/y'}}}}"
    assert messages(f"input: {{i: {schema}}}\n" + state("pass: , next: b")) == []
    text = f"input: {{i: {schema.replace('{$defs', '{default: {a: x}, $defs')}}}\n" + state("pass: , next: b")
    assert messages(text) == ['the default of `i` does not fit it: a: "x" is not of type "integer"']


def test_the_time_of_a_run_is_a_duration_that_may_read_the_input() -> None:
    more = "input: {d: string, n: number}\nvars: {v: 1h}\n"
    plan = load("durun: 1\nname: test\ntimeout: 6h\n" + state("pass: , next: b"), "p").plan
    assert plan["timeout"] == 6 * 3600_000
    assert messages(more + "timeout: '${{ input.d }}'\n" + state("pass: , next: b")) == []
    for given, message in (
        ("0s", "a duration of nothing"),
        ("1x", "is no duration"),
        ("60", "is no duration"),
        ("'${{ vars.v }}'", "`vars` has no value here"),
        ("'${{ input.n }}'", "`input.n` is a number, and a text is wanted here"),
    ):
        assert message in one("pass: , next: b", f"{more}timeout: {given}\n")


# --- inputs ---


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("strng", "input `i`: `strng` is no type; did you mean `string`?"),
        ("", "input `i`: there is no type: write any, or 'null' in quotes"),
        ("[string]", "input `i`: a schema is an object"),
        ("{type: nmber}", "input `i`: `nmber` is no type; did you mean `number`?"),
        ("{type: string, defualt: x}", "input `i`: `defualt` is no word of a schema; did you mean `default`?"),
        ("{type: string, minLength: -1}", "input `i`: this is no schema"),
        ("{type: string, pattern: '('}", "input `i`: this is no schema"),
        ("{$ref: 'https://example.org/x'}", "leads outside the plan"),
        ("{$ref: '#/$defs/x'}", "input `i`: this is no schema"),
        ("{$schema: 'https://example.org/x'}", "names no draft of JSON Schema"),
        ("{type: integer, default: 1.5}", "the default of `i` does not fit it: 1.5 is not of the type integer"),
        ("{type: integer, default: 1.0}", "the default of `i` does not fit it: 1.0 is not of the type integer"),
        ("{type: string, default: '${{ 1 }}'}", "no expression may stand here"),
        ("{enum: [a, b], default: c}", "the default of `i` does not fit it"),
    ],
)
def test_an_input_that_can_hold_nothing_is_refused(what: str, message: str) -> None:
    found = messages(f"input: {{i: {what}}}\n" + state("pass: , next: b"))
    assert len(found) == 1 and message in found[0], found


def test_an_input_is_a_type_word_or_a_schema() -> None:
    more = "input: {a: string, b: any, c: {type: number, default: 800}, d: {type: any, default: null}, e: {enum: [1]}}\n"
    plan = load("durun: 1\nname: test\n" + more + state("pass: , next: b"), "p").plan
    assert plan["input"] == {
        "a": {"schema": {"type": "string"}, "required": True},
        "b": {"schema": {}, "required": True},
        "c": {"schema": {"type": "number"}, "required": False, "default": 800},
        "d": {"schema": {}, "required": False, "default": None},
        "e": {"schema": {"enum": [1]}, "required": True},
    }


# --- warnings ---


def test_a_step_that_can_neither_be_repeated_nor_probed_is_warned_of() -> None:
    warning = "state `a` can neither be repeated, probed nor undone: interrupted, it asks a person"
    assert [w.message for w in told(state("run: [x], next: b"))[1]] == [warning]
    for more in ("idempotent: true", "idempotent: 1h", "probe: {run: [y]}", "catch: [{on: in_doubt, next: b}]"):
        assert told(state(f"run: [x], next: b, {more}")) == ([], [])


@pytest.mark.parametrize(
    ("script", "here", "well"),
    [
        ("echo a > /dev/stderr", ">", "echo a >&2"), ("x 2>/dev/stdout", "2>", "x 2>&1"), ("x >| /dev/stdout; y", ">|", "x >> /dev/stdout"),
        ("x 2>/dev/stderr", "2>", "x 2>>/dev/stderr; y >/dev/stderr.txt"),
    ],
)  # fmt: skip
def test_a_script_that_empties_its_log_is_warned_of(script: str, here: str, well: str) -> None:
    for run in (f"run: '{script}'", f"run: [sh, -c, '{script}']", f"run: x, compensate: {{run: '{script}'}}"):
        text = state(f"idempotent: true, next: b, {run}")
        found, (warning,) = told(text)
        assert found == [] and "the log anew" in warning.message
        assert text.splitlines()[2].index(here) + 1 == warning.column
    assert told(state(f"idempotent: true, next: b, run: '{well}', compensate: {{run: '{well}'}}")) == ([], [])


def test_a_matcher_that_nearly_names_an_error_is_warned_of() -> None:
    found = told(state("run: [x], next: b, idempotent: true, retry: {on: [tiemout]}, catch: [{on: MyOwn, next: b}]"))[1]
    assert [w.message for w in found] == ["`tiemout` is no error durun gives itself; did you mean `timeout`?"]


def test_a_state_that_may_not_have_been_visited_is_a_fault() -> None:
    text = """
defaults: {idempotent: true}
output: '${{ states.one.output }}'
start: pick
states:
  pick: {choice: [{when: visit > 1, next: one}, {next: two}]}
  one: {run: [x], idempotent: true, next: two, catch: [{on: any, next: three}]}
  two: {run: [x, '${{ states.one.output }}', '${{ has(states.one.output) ? states.one.output : 0 }}'], next: three}
  three: {run: [x, '${{ states.three.output }}', '${{ states.pick.exit }}', '${{ states.one.visits }}'], next: succeeded}
"""
    found, _ = told(text)
    asks = "`one` may not have been visited on some way to here: has(states.one.output) asks whether it was"
    assert [(f.line - 2, f.message) for f in found] == [
        (3, asks),
        (8, asks),
        (9, "`states.three.output` is never there: `three` has not been visited on any way to here"),
    ]


def test_an_output_of_a_state_that_may_have_failed_is_warned_of() -> None:
    text = """
start: one
states:
  one: {run: [x], idempotent: true, next: two, catch: [{on: any, next: two}]}
  two: {run: [x, '${{ states.one.output }}'], idempotent: true, next: succeeded}
"""
    found, warnings = told(text)
    assert found == []
    assert [w.message for w in warnings] == [
        "`states.one.output` is not there where `one` has failed; has(states.one.output) asks for it"
    ]


def test_an_output_that_is_there_on_every_way_is_not_warned_of() -> None:
    text = """
start: one
states:
  one: {run: [x], idempotent: true, next: two}
  two: {choice: [{when: states.one.output == 1, next: three}, {next: four}]}
  three: {run: ['${{ states.one.output }}'], idempotent: true, next: two}
  four: {run: ['${{ states.one.output }}'], idempotent: true, next: succeeded, catch: [{on: any, next: five}]}
  five: {run: ['${{ states.four.error.name }}'], idempotent: true, next: succeeded}
"""
    assert told(text) == ([], [])


def test_a_round_of_states_that_do_nothing_is_warned_of() -> None:
    found, warnings = told("start: a\nstates: {a: {pass: , next: b}, b: {pass: , next: a}}\n")
    assert found == []
    assert [w.message for w in warnings] == ["a -> b -> a goes round until `max_visits` ends it"]


# --- the canonical form ---


def test_defaults_are_merged_into_commands_and_their_probes_and_nothing_else() -> None:
    text = """durun: 1
name: test
defaults: {timeout: 5m, heartbeat: 30s, retry: {max_attempts: 2}, env: {A: a, B: b}, cwd: sub, shell: bash, idempotent: 1h}
start: one
states:
  one:
    run: "true"
    env: {B: own}
    timeout: '${{ visit }}s'
    probe: {run: [y], cwd: other, retry: []}
    next: two
  two: {wait: 5s, next: three}
  three: {run: [x, 1, true], retry: [], idempotent: false, expect: [0, 3], stdin: null, next: succeeded}
"""
    states = load(text, "p").plan["states"]
    one, two, three = states["one"], states["two"], states["three"]
    env = {"A": "a", "B": "own"}
    assert one["act"] == {
        "script": "true",
        "shell": "bash",
        "env": env,
        "cwd": "sub",
        "timeout": "${{ visit }}s",
        "heartbeat": 30_000,
    }
    assert one["retry"][0]["max_attempts"] == 2
    assert one["idempotent"] == 3_600_000
    probe = one["probe"]
    assert (probe["argv"], probe["cwd"], probe["timeout"], probe["env"]) == (["y"], "other", 300_000, {"A": "a", "B": "b"})
    assert (probe["yes"], probe["no"], probe["retry"], probe["idempotent"]) == ([0], [1], [], True)
    assert "shell" not in probe
    assert two == {"kind": "wait", "catch": [], "assign": {}, "max_visits": 10_000, "next": "three", "wait": {"lasts": 5000}}
    assert three["act"] == {
        "argv": ["x", 1, True],
        "env": {"A": "a", "B": "b"},
        "cwd": "sub",
        "timeout": 300_000,
        "heartbeat": 30_000,
        "stdin": None,
    }
    assert (three["retry"], three["idempotent"], three["expect"]) == ([], False, [0, 3])


def test_every_kind_has_its_form() -> None:
    assert good("pass: , next: succeeded, description: d") == {
        "kind": "pass", "catch": [], "assign": {}, "max_visits": 10_000, "next": "succeeded", "description": "d",
    }  # fmt: skip
    assert good("choice: [{when: visit > 1, next: failed}, {next: succeeded}]")["choice"] == [
        {"when": "visit > 1", "next": "failed"},
        {"next": "succeeded"},
    ]
    assert good("fail: {error: E, message: m, data: null}")["fail"] == {"error": "E", "message": "m", "data": None}
    assert good("wait: {at: '${{ run.started_at }}'}, next: succeeded")["wait"] == {"at": "${{ run.started_at }}"}
    assert good("run: [x], output: text, next: succeeded")["output"] == {"format": "text"}
    assert good("run: [x], output: {format: json, schema: integer}, next: succeeded")["output"] == {
        "format": "json",
        "schema": {"type": "integer"},
    }


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_text({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"é"]}'
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    assert len(digest({})) == 64


def test_what_reads_a_pinned_plan_needs_neither_pydantic_nor_yaml() -> None:
    heavy = ("pydantic", "ruamel", "ruamel.yaml", "jsonschema_rs", "difflib", "cel_expr_python")
    code = (
        "import sys, durun.plan.canonical, durun.plan.digest, durun.plan.data, durun.plan.units, durun.plan.schema\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- limits and groups ---

LIMITED = "limits: {pay: {concurrency: 4, rate: 25/s}}\n"


def test_a_limit_and_a_group_are_kept_in_their_canonical_form() -> None:
    head = "durun: 1\nname: test\ngroup: {name: 'g-${{ input.x }}'}\ninput: {x: string}\n"
    found = load(head + LIMITED + state("run: [x], limit: pay, next: b"), "plan.yaml").plan
    assert found["limits"] == {"pay": {"concurrency": 4, "rate": [25, 1000]}}
    assert found["group"] == {"name": "g-${{ input.x }}", "if_busy": "refuse"}
    assert found["states"]["a"]["limit"] == "pay"


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        (LIMITED, "run: [x], limit: pya, next: b", "`pya` is none of the plan's `limits`; did you mean `pay`?"),
        ("", "run: [x], limit: pay, next: b", "`pay` is none of the plan's `limits`; they are declared at the top of the plan"),
        (LIMITED, "wait: 1s, limit: pay, next: b", "`limit` says nothing to a `wait`"),
        (LIMITED, "run: [x], limit: '${{ vars.a }}', next: b", "no expression may stand here: this is known before a run begins"),
        ("limits: {pay: {}}\n", "run: [x], limit: pay, next: b", "the limit `pay` has neither `concurrency` nor `rate`: give it one"),
        ("limits: {pay: {concurency: 1}}\n", "run: [x], limit: pay, next: b", "did you mean `concurrency`?"),
        ("limits: {pay: {concurrency: 0}}\n", "run: [x], limit: pay, next: b", "`0` is too small: at least 1"),
        ("limits: {pay: {rate: 25}}\n", "run: [x], limit: pay, next: b", "`25` is no rate; write 25/s, 100/m or 1000/h"),
        ("limits: {pay: {rate: 25/x}}\n", "run: [x], limit: pay, next: b", "`25/x` is no rate"),
        ("limits: {pay: {rate: 10001/s}}\n", "run: [x], limit: pay, next: b", "at most 10000 in a unit"),
        ("limits: {Pay: {rate: 1/s}}\n", "run: [x], limit: Pay, next: b", "`Pay` is no name"),
        ("group: {name: a, if_busy: waits}\n", "run: [x], next: b", "`waits` is none of refuse, skip, wait; did you mean `wait`?"),
        ("group: {if_busy: wait}\n", "run: [x], next: b", "`name` is required here"),
        ("group: {name: 'g-${{ vars.a }}'}\n", "run: [x], next: b", "`vars` has no value here"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_limit_or_a_group_is_named(head: str, body: str, said: str) -> None:
    assert any(said in message for message in messages(head + state(body))), messages(head + state(body))


def test_a_limit_that_no_state_has_is_said() -> None:
    assert any("no state has the limit `pay`" in f.message for f in told(LIMITED + state("run: [x], idempotent: true, next: b"))[1])


CHILD = "durun: 1\nname: c\n{}start: s\nstates: {{s: {{run: 'true', idempotent: true, next: succeeded}}}}\n"


def of_calls(tmp_path: Path, head: str, *children: str) -> list[Any]:
    """The faults of a plan that calls these one after the other."""
    for n, child in enumerate(children):
        (tmp_path / f"c{n}.yaml").write_text(CHILD.format(child))
    states = "".join(f"  a{n}: {{plan: {{file: c{n}.yaml}}, next: {f'a{n + 1}'}}}\n" for n in range(len(children)))
    text = f"durun: 1\nname: p\n{head}start: a0\nstates:\n{states}  a{len(children)}: {{pass: , next: succeeded}}\n"
    try:
        load(text, str(tmp_path / "plan.yaml"))
    except PlanFaults as e:
        return e.faults
    return []


@pytest.mark.parametrize(
    ("head", "children", "line", "said"),
    [
        ("secrets: [KEY]\n", ["secrets: [{name: KEY, file: k}]\n"], 6, "from the file `k` in c0.yaml, and from the environment in this"),
        ("", ["secrets: [{name: KEY, run: [pass, a]}]\n", "secrets: [KEY]\n"], 6, "in c1.yaml, and from the command `pass a` in c0.yaml"),
        ("pins: {env: [KEY]}\n", ["secrets: [KEY]\n"], 6, "KEY is a secret in c0.yaml, and pinned in this plan"),
        ("secrets: [KEY]\n", ["pins: {env: [KEY]}\n"], 6, "KEY is pinned in c0.yaml, so that it would be stored, and a secret in this plan"),
    ],
)  # fmt: skip
def test_a_name_that_means_two_things_in_a_plan_and_what_it_calls_is_refused(
    tmp_path: Path, head: str, children: list[str], line: int, said: str
) -> None:
    (fault,) = of_calls(tmp_path, head, *children)
    assert said in fault.message and "another name" in fault.message
    assert fault.line == line and fault.column > 1


def test_a_secret_that_is_read_at_one_place_may_be_named_by_all(tmp_path: Path) -> None:
    of = "secrets: [{name: KEY, run: [pass, a]}, OTHER]\n"
    assert not of_calls(tmp_path, of, of, "secrets: [OTHER]\n")


@pytest.mark.parametrize(
    ("cwd", "said"),
    [
        ("/srv", "is absolute"), ("..", "goes above"), ("../x", "goes above"), ("a/../..", "goes above"), ("./a/../../b/c", "goes above"),
        ("'/${{ input.x }}'", "is absolute"), ("'../${{ input.x }}'", "goes above"), ("'a/../../b${{ input.x }}'", "goes above"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", ["run: [x], cwd: {}, next: b", "run: [x], compensate: {{run: [y], cwd: {}}}, next: b"])
def test_a_directory_lies_below_the_one_of_the_start(body: str, cwd: str, said: str) -> None:
    assert said in one(body.format(cwd), "input: {x: string}\n")


@pytest.mark.parametrize(
    "cwd", [".", "./a", "a/../b", "a/..", "..a", "a/..b/c", "'${{ input.x }}'", "'${{ input.x }}/../y'", "'a${{ input.x }}'"]
)
def test_a_directory_that_is_below_it_however_it_is_written_is_none(cwd: str) -> None:
    assert "cwd" in good(f"run: [x], cwd: {cwd}, next: succeeded", "input: {x: string}\n")["act"]

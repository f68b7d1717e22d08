"""Text to plan: YAML 1.2 and narrower, and every fault at its place."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durun.plan.load import NO_TEXT, Fault, PlanFaults, draw, load

HEAD = "durun: 1\nname: test\n"
GOOD = HEAD + "start: one\nstates:\n  one: {run: [echo, hello], idempotent: true, next: succeeded}\n"


def faults(text: str | bytes) -> list[Fault]:
    with pytest.raises(PlanFaults) as e:
        load(text, "plan.yaml")
    assert e.value.exit == 7
    return e.value.faults


def fault(text: str | bytes) -> Fault:
    found = faults(text)
    assert len(found) == 1, found
    return found[0]


def value(text: str) -> Any:
    """What a YAML text means, as the first value of a var."""
    return load(f"{HEAD}vars:\n  a: {text}\nstart: one\nstates: {{one: {{pass: , next: succeeded}}}}\n", "plan.yaml").plan["vars"][
        "a"
    ]


# --- words and numbers ---


@pytest.mark.parametrize(
    "text",
    [
        "on", "off", "yes", "no", "y", "True", "NULL", "~", "017", "08", "0x10", "0o17", "1_000", "12:30", "12:30:00", "2026-11-30",
        "2026-11-30T09:00:00Z", "12e5678", ".inf", "-.inf", ".nan", "NaN", "Infinity", "+1", "1.", ".5", "1.10.2", "٣", "=",
    ],
)  # fmt: skip
def test_a_plain_word_that_json_does_not_know_is_text(text: str) -> None:
    assert value(text) == text


@pytest.mark.parametrize(
    ("text", "meant"),
    [("true", True), ("false", False), ("null", None), ("", None), ("0", 0), ("-7", -7), ("1.5", 1.5), ("1e3", 1000.0), ("-0", 0)],
)
def test_a_plain_word_that_json_knows_is_what_json_says(text: str, meant: Any) -> None:
    found = value(text)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize("text", ["true", "null", "12", "1.5", ""])
def test_what_stands_in_quotes_is_text(text: str) -> None:
    assert value(f"'{text}'") == value(f'"{text}"') == value(f"!!str '{text}'") == text


def test_an_integer_keeps_every_digit() -> None:
    assert value("9" * 5000) == 10**5000 - 1
    assert "more than 10000 digits" in fault(HEAD + f"start: one\nx-a: {'9' * 10_001}\nstates: {{}}\n").message


def test_a_key_that_looks_like_a_boolean_is_a_name() -> None:
    plan = load(HEAD + "start: on\nstates: {on: {pass: , next: no}, no: {pass: , next: succeeded}}\n", "plan.yaml").plan
    assert list(plan["states"]) == ["on", "no"]


def test_a_number_that_would_reach_a_command_in_another_spelling_must_be_quoted() -> None:
    text = (
        HEAD + "start: a\nstates:\n  a:\n    run: [x, 1.10, 1.5, 7]\n    env: {A: 1e3, B: 2, C: '1e3'}\n    stdin: -0\n"
        "    next: succeeded\n"
    )
    assert [(f.line, f.column, f.message) for f in faults(text)] == [
        (6, 14, "as a number `1.10` reaches the command as 1.1: put it in quotes"),
        (7, 14, "as a number `1e3` reaches the command as 1000.0: put it in quotes"),
        (8, 12, "as a number `-0` reaches the command as 0: put it in quotes"),
    ]


WORDS = ["echo", "yes", "08", "1_000", "017", "12:30:00", "2024-01-01", "~"]


def test_the_words_of_a_command_arrive_as_they_were_written() -> None:
    text = GOOD.replace("[echo, hello]", f"[{', '.join(WORDS)}]")
    assert load(text, "plan.yaml").plan["states"]["one"]["act"]["argv"] == WORDS


# --- what is refused ---


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    found = fault(GOOD + "start: one\n")
    assert (found.line, found.column, found.message) == (6, 1, "the key `start` is given twice, first in line 3")
    assert "given twice, first in line 2" in fault("x-a:\n  1: a\n  '1': b\n" + GOOD).message
    two = faults(GOOD.replace("next: succeeded", "env: {A: b, A: b}, next: succeeded") + "states: {}\n")
    assert [f.line for f in two] == [5, 6]


def test_a_key_that_is_no_text_is_refused() -> None:
    assert fault("x-a:\n  ? [1]\n  : 2\n" + GOOD).message == "a key is a text"
    assert fault("x-a:\n  ? {a: 1}\n  : 2\n" + GOOD).message == "a key is a text"


def test_a_merge_key_is_refused_and_a_quoted_one_is_a_key() -> None:
    assert "`<<` has no place in a plan" in fault("x-a: &a {b: 1}\nx-c: {<<: *a}\n" + GOOD).message
    assert load("x-c: {'<<': 1}\n" + GOOD, "plan.yaml").plan["name"] == "test"


def test_a_tag_is_refused() -> None:
    for tag in ("!!int", "!!python/object:os.system", "!own", "!!binary", "!!set", "!!timestamp"):
        assert "have no place in a plan" in fault(f"x-a: {tag} 1\n" + GOOD).message


def test_an_alias_stands_for_what_it_names() -> None:
    text = HEAD + "x-again: &again {max_attempts: 4}\nstart: a\nstates:\n  a: {run: [x], retry: *again, next: succeeded}\n"
    assert load(text, "plan.yaml").plan["states"]["a"]["retry"][0]["max_attempts"] == 4


def test_a_fault_behind_an_alias_is_told_once_and_where_it_was_written() -> None:
    text = (
        HEAD
        + "x-e: &e {A: null}\nstart: a\nstates:\n  a: {run: [x], env: *e, next: b}\n  b: {run: [x], env: *e, next: succeeded}\n"
    )
    assert [(f.line, f.column) for f in faults(text)] == [(3, 13)]


def test_growth_by_aliases_is_refused_before_it_grows() -> None:
    bomb = "x-a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True):
        bomb += f"x-{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    began = time.monotonic()
    assert "aliases followed" in fault(bomb + GOOD).message
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("text", ["x-a: &a [*a]\n", "x-a: &a {b: {c: *a}}\n", "x-a: *nowhere\n"])
def test_an_alias_to_itself_or_to_nothing_is_refused(text: str) -> None:
    assert "names nothing that stands before it" in fault(text + GOOD).message


@pytest.mark.parametrize(
    "text",
    ["x-a: " + "[" * 3000, "x-a: " + "{a: " * 3000, "x-a:\n  " + "- " * 3000, "? " * 3000, "x-a: " + "[" * 150 + "]" * 150],
    ids=["flow", "maps", "dashes", "keys", "closed"],
)
def test_depth_is_refused_at_once_and_without_a_traceback(text: str) -> None:
    began = time.monotonic()
    found = fault(text + "\n")
    assert "100 deep" in found.message or "no YAML" in found.message
    assert time.monotonic() - began < 60  # s: it hangs nowhere, however slow the machine is


def test_depth_up_to_the_bound_is_taken() -> None:
    assert load("x-a: " + "[" * 98 + "]" * 98 + "\n" + GOOD, "plan.yaml")


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        (b"", 1, 1, "the plan is empty"),
        (b" \n\n", 1, 1, "the plan is empty"),
        (b"# nothing\n", 1, 1, "a plan is a mapping"),
        (b"[1]\n", 1, 1, "a plan is a mapping"),
        (b"hello\n", 1, 1, "a plan is a mapping"),
        (b"durun: 1\nname: \xff\n", 2, 7, "this is no UTF-8 text"),
        ("é: 1\nname: ".encode() + b"\xe4\xf6\n", 2, 7, "this is no UTF-8 text"),
        (b"durun: 1\nname: a\0b\n", 2, 8, "the character U+0000 cannot stand here"),
        (b"durun: 1\nname: \x1b[31m\n", 2, 7, "the character U+001B cannot stand here"),
        ("durun: 1\nname: a\u2028b\n".encode(), 2, 8, "the character U+2028 cannot stand here"),
        (b'durun: 1\nx-a: "\\0"\n', 2, 6, "no NUL"),
        (b'durun: 1\nx-a: "\\ud800"\n', 2, 6, "half of a surrogate"),
        (b'durun: 1\n"\\ud800": 1\n', 2, 1, "half of a surrogate"),
        (b"durun: 1\nx-a: [1, 2\n", 3, 1, "this is no YAML"),
        (b'durun: 1\nx-a: "abc\n', 3, 1, "this is no YAML"),
        (b"durun: 1\n\tname: x\n", 2, 1, "indent with spaces"),
        (b"durun: 1\nx-a: {b: ${{ input.c }}}\n", 2, 11, "put an expression in single quotes"),
        (b"durun: 1\nx-a: b: c\n", 2, 7, "goes in single quotes"),
        (b"durun: 1\n---\nname: a\n", 2, 1, "a second document begins here"),
        (b"a" * (4 * 1024 * 1024 + 1), 1, 1, "at most 4 MiB"),
    ],
)  # fmt: skip
def test_what_is_no_plan_at_all_is_refused_with_a_place(text: bytes, line: int, column: int, message: str) -> None:
    found = [f for f in faults(text) if message in f.message]
    assert [(f.line, f.column) for f in found] == [(line, column)], faults(text)


def test_an_unknown_directive_and_an_old_version_of_yaml_change_nothing() -> None:
    assert load("%YAML 1.1\n---\n" + GOOD.replace("[echo, hello]", "[echo, no, 017]"), "p").plan["states"]["one"]["act"]["argv"][
        1:
    ] == ["no", "017"]


def test_a_byte_order_mark_and_other_ends_of_lines_are_taken() -> None:
    plan = load(GOOD, "plan.yaml").plan
    assert load(b"\xef\xbb\xbf" + GOOD.encode(), "plan.yaml").plan == load(GOOD.replace("\n", "\r\n"), "plan.yaml").plan == plan
    assert fault(GOOD.replace("succeeded", "suceeded").replace("\n", "\r\n").encode()).line == 5


# --- places ---


def test_a_fault_is_drawn_with_its_line_and_a_mark() -> None:
    with pytest.raises(PlanFaults) as e:
        load(GOOD.replace("succeeded", "suceeded"), "plan.yaml")
    assert str(e.value) == (
        "plan.yaml:5:53: `suceeded` is no state of this plan; did you mean `succeeded`?\n"
        "    one: {run: [echo, hello], idempotent: true, next: suceeded}\n" + " " * 54 + "^^^^^^^^"
    )


def test_all_faults_come_at_once_in_the_order_of_the_text() -> None:
    text = (
        "durun: 1\nname: Test\nstrat: one\nstates:\n  one: {rnu: [x], next: 5}\n  two: {wait: PT1H, next: succeeded, next: one}\n"
    )
    assert [(f.line, f.column) for f in faults(text)] == [(1, 1), (2, 7), (3, 1), (5, 3), (5, 9), (5, 25), (6, 15), (6, 38)]


@pytest.mark.parametrize(
    "scalar",
    [
        "'it''s ${{ inptu.q }}'",
        '"a\\n\\x41\\u0041 ${{ inptu.q }}"',
        "a ${{ inptu.q }}",
        "a\n      b ${{ inptu.q }}",
        "|\n      a\n      b ${{ inptu.q }}",
        ">-\n      a\n      ${{ inptu.q }}",
        '"a\n\n      b ${{ inptu.q }}"',
        '"a\\\n      b ${{ inptu.q }}"',
        "漢字 ${{ inptu.q }}",
        "'${{ size({\"a\": [1]}) }} ${{ 1 + inptu.q }}'",
    ],
)
def test_the_place_inside_a_text_is_found_however_it_is_written(scalar: str) -> None:
    text = f"durun: 1\nname: test\nstart: a\nvars:\n  v: {scalar}\nstates: {{a: {{pass: , next: succeeded}}}}\n"
    found, before = fault(text), text[: text.index("inptu")]
    assert (found.line, found.column) == (before.count("\n") + 1, len(before) - before.rfind("\n")), draw(found, text)


def test_what_is_empty_is_marked_at_its_key() -> None:
    text = HEAD + "start: a\nstates:\n  a:\n    run: [x]\n    timeout:\n    next: succeeded\n"
    assert (fault(text).line, fault(text).column) == (7, 5)
    assert "nothing is given here" in fault(text).message


def test_a_long_line_is_clipped_around_the_mark() -> None:
    text = HEAD + f"start: a\nx-long: [{'a, ' * 3000}b]\nstates: {{a: {{pass: , next: {'x' * 300}}}}}\n"
    for shown in str(_refusal(text)).splitlines()[1:]:
        assert len(shown) <= 230


def test_a_wide_character_takes_two_columns_and_a_combining_one_none() -> None:
    wide = draw(Fault("p", 1, 4, "m"), "漢字e\u0301x")
    assert wide.splitlines()[2] == "  " + " " * 5 + "^"


def test_nothing_in_a_plan_reaches_the_terminal_as_a_command_to_it() -> None:
    shown = str(_refusal(GOOD.replace("next: succeeded", 'next: "\\e[31m\\u202e"')))
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "\\x1b[31m" in shown
    assert "\x1b" not in draw(Fault("a\x1b.yaml", 1, 1, "m"), "\x1b\x07 x")


def _refusal(text: str) -> PlanFaults:
    with pytest.raises(PlanFaults) as e:
        load(text, "plan.yaml")
    return e.value


# --- what comes out ---


def test_the_version_is_by_default_the_digest_of_the_plan() -> None:
    one, two = load(GOOD, "a.yaml").plan, load("# a remark\n" + GOOD, "b.yaml").plan
    assert one["version"] == two["version"]
    assert len(one["version"]) == 12
    assert load(GOOD.replace("hello", "hullo"), "a.yaml").plan["version"] != one["version"]
    assert load(GOOD + "version: '2026.11'\n", "a.yaml").plan["version"] == "2026.11"


def test_a_version_that_is_a_number_must_be_quoted() -> None:
    assert "put it in quotes" in fault(GOOD + "version: 1.10\n").message


def test_keys_that_begin_with_x_are_free_at_the_top_alone() -> None:
    assert "x-note" not in load(GOOD + "x-note: {a: [1]}\n", "p").plan
    assert "is no key here" in fault(GOOD.replace("next:", "x-note: 1, next:")).message


def test_the_source_is_kept_as_it_was() -> None:
    assert load(GOOD.encode(), "p").source == GOOD


# --- whatever comes in ---


def _only_faults(text: str | bytes) -> None:
    try:
        plan = load(text, "plan.yaml").plan
    except PlanFaults as e:
        assert e.faults
        assert all(f.line >= 1 and f.column >= 1 for f in e.faults)
        str(e)
    else:
        json.dumps(plan, allow_nan=False)


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_else_happens(raw: bytes) -> None:
    _only_faults(raw)


BITS = st.sampled_from(
    [
        "[", "{", "}", "]", ": ", "- ", "? ", "&a ", "*a", "!!int ", "|\n", "'", '"', "${{", "}}", "\t", "\n", "# ", "<<: ", "null",
        "1e999", "---\n", "%YAML 1.1\n", "\0", "é", '"\\ud800"', "9" * 50, "true", "[[[[" * 40, "@", "-0", "~", "compensated",
    ],
)  # fmt: skip
WHOLE = """durun: 1
name: whole
input: {a: string, b: {type: integer, default: 3}}
vars: {n: 0, m: null}
pins: {env: [HOME]}
defaults: {timeout: 5m, retry: {max_attempts: 2}}
output: '${{ vars.n }}'
start: one
states:
  one:
    run: [echo, '${{ input.a }}']
    probe: {run: "true", yes: [0], no: 1}
    retry: [{on: [exit:1, timeout], max_elapsed: 1h}]
    output: {format: json, schema: {type: object}}
    assign: {n: '${{ output.n }}'}
    catch: [{on: any, next: failed, assign: {m: '${{ error.name }}'}}]
    next: two
  two:
    choice: [{when: vars.n > 3, next: three}, {next: four}]
  three: {wait: {at: '2030-01-01T00:00:00Z'}, next: four}
  four: {run: "true", idempotent: true, poll: {until: visit > 1, for: 10m}, next: five}
  five: {fail: {error: Own, message: 'n is ${{ vars.n }}', data: [1]}}
"""


def test_the_plan_that_is_mutated_holds() -> None:
    load(WHOLE, "plan.yaml")


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 12), BITS | st.text(max_size=3)), min_size=1, max_size=4))
def test_a_plan_changed_anywhere_holds_or_is_refused(changes: list[tuple[int, int, str]]) -> None:
    text = WHOLE
    for at, gone, new in changes:
        text = text[:at] + new + text[at + gone :]
    _only_faults(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["any", "30s", "one"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SPOTS = st.sampled_from(
    [
        ("states",), ("start",), ("input",), ("input", "a"), ("vars",), ("pins",), ("pins", "env"), ("defaults",),
        *(("states", "one", word) for word in ("run", "probe", "retry", "output", "assign", "catch", "next", "env", "idempotent")),
        ("states", "one", "probe", "yes"), ("states", "one", "retry", 0), ("states", "one", "retry", 0, "on"), ("states", "two"),
        ("states", "two", "choice"), ("states", "two", "choice", 0), ("states", "three", "wait"), ("states", "four", "poll"),
        ("states", "four", "max_visits"), ("states", "five", "fail"), ("output",), ("durun",), ("name",), ("version",),
    ],
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(SPOTS, JSON)
def test_any_value_at_any_key_is_taken_or_refused(spot: tuple[str | int, ...], new: Any) -> None:
    from ruamel.yaml import YAML

    data = YAML(typ="safe").load(WHOLE)
    at = data
    for part in spot[:-1]:
        at = at[part]
    at[spot[-1]] = new
    _only_faults(json.dumps(data))


def test_no_character_that_may_not_stand_in_a_plan_can_be_printed() -> None:
    assert [n for n in range(0x110000) if chr(n).isprintable() and re.match(NO_TEXT, chr(n))] == []

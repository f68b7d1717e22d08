"""Data that comes in: strict JSON, and inputs held against what the plan declares."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durun.errors import PlanRefused
from durun.plan.canonical import Plan
from durun.plan.data import clean, read_json
from durun.plan.load import load
from durun.plan.schema import TYPES, fault, input_values, read_input, validate

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


@given(JSON)
def test_json_is_read_back_as_it_was(value: Any) -> None:
    text = json.dumps(value)
    assert repr(read_json(text)) == repr(read_json(text.encode())) == repr(value)


def test_an_integer_keeps_every_digit_up_to_a_bound() -> None:
    assert read_json("9" * 5000) == 10**5000 - 1
    with pytest.raises(ValueError, match="more than 10000 digits"):
        read_json("[" + "9" * 10_001 + "]")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("", "expecting value"),
        ("{", "line 1 column 2"),
        ("[1] 2", "extra data"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "the number 1e999 is too large"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('"\\u0000"', "NUL"),
        ('{"a\\u0000": 1}', "NUL"),
        ('"\\ud800"', "half a surrogate"),
        (b"\xff", "no UTF-8 at byte 0"),
        (b'"\xed\xa0\x80"', "no UTF-8"),
        ("[" * 102 + "]" * 102, "more than 100 deep"),
        ("[" * 1_000_000, "more than 100 deep"),
        ('{"a":' * 200_000, "more than 100 deep"),
    ],
)
def test_what_is_no_json_is_refused_in_words(raw: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_json(raw)


def test_brackets_inside_a_string_are_no_depth() -> None:
    assert read_json(json.dumps("[" * 5000)) == "[" * 5000
    assert read_json(json.dumps(['\\"' + "{" * 500])) == ['\\"' + "{" * 500]
    assert read_json("[" * 101 + "]" * 101)


def test_a_string_that_does_not_end_costs_its_length_once() -> None:
    began = time.monotonic()
    with pytest.raises(ValueError):
        read_json("[" * 50 + '"' + '\\"' * 500_000 + "[" * 60)
    assert time.monotonic() - began < 5


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_whatever_comes_in_is_a_value_or_a_value_error(raw: str | bytes) -> None:
    try:
        clean(read_json(raw))
    except ValueError as e:
        assert "\n" not in str(e)


def test_data_in_hand_is_held_to_the_same_bounds() -> None:
    deep: Any = 1
    for _ in range(101):
        deep = [deep]
    for bad in (deep, "a\0", ["\ud800"], {"\0": 1}, float("nan"), [float("inf")]):
        with pytest.raises(ValueError):
            clean(bad)
    clean(deep[0])
    clean({"a": [1, None, True, 1.5, "é"]})


# --- schemas ---


@pytest.mark.parametrize(
    ("schema", "fits", "not_so"),
    [
        ({}, [None, 1, {}], []),
        (True, [None], []),
        ({"type": "integer"}, [1, 10**30], [1.0, 1.5, True, "1"]),
        ({"type": "number"}, [1, 1.5], [True, "1", None]),
        ({"type": "boolean"}, [True], [1, "true"]),
        ({"type": "null"}, [None], [0, ""]),
        ({"type": "integer", "minimum": 0}, [0, 2**70], [-1, 1.0]),
        ({"type": ["string", "null"]}, ["", None], [1]),
        ({"type": "array", "items": {"type": "string"}}, [[], ["a"]], [[1], "a"]),
        ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}, []]),
        ({"$defs": {"t": {"enum": [1]}}, "$ref": "#/$defs/t"}, [1], [2]),
        (False, [], [None]),
    ],
)
def test_a_value_fits_its_schema_or_is_told_why(schema: Any, fits: list[Any], not_so: list[Any]) -> None:
    assert fault(schema) is None
    assert [validate(schema, v) for v in fits] == [None] * len(fits)
    assert all(validate(schema, v) for v in not_so)


def test_a_problem_inside_a_value_is_named_by_its_path() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    assert validate(schema, {"a": ["x", 5]}) == 'a[1]: 5 is not of type "string"'


# --- inputs ---


def plan(inputs: str) -> Plan:
    return load(f"durun: 1\nname: test\ninput: {inputs}\nstart: a\nstates: {{a: {{pass: , next: succeeded}}}}\n", "p").plan


def test_defaults_are_filled_in_and_what_is_given_is_kept() -> None:
    p = plan("{a: string, b: {type: number, default: 800}, c: {default: null}}")
    assert input_values(p, {"a": "x"}) == {"a": "x", "b": 800, "c": None}
    assert input_values(p, {"a": "", "b": 1.5, "c": [1]}) == {"a": "", "b": 1.5, "c": [1]}


def test_all_that_is_wrong_with_an_input_comes_at_once() -> None:
    with pytest.raises(PlanRefused) as e:
        input_values(
            plan("{traveller: string, budget: integer, seats: {type: integer, minimum: 1, default: 1}}"),
            {"travelr": 1, "budget": 1.0, "seats": 0},
        )
    assert str(e.value).splitlines() == [
        "input `travelr` is not one of the plan; did you mean `traveller`?",
        "input `traveller` is missing: give it with -i traveller=VALUE",
        "input `budget`: 1.0 is not of the type integer",
        "input `seats`: 0 is less than the minimum of 1",
    ]
    assert e.value.exit == 7


def test_an_input_that_could_not_be_kept_is_refused() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    for bad in (deep, "\0", float("nan")):
        with pytest.raises(PlanRefused, match="input `a`: "):
            input_values(plan("{a: any}"), {"a": bad})
    with pytest.raises(PlanRefused, match="must be a JSON object"):
        input_values(plan("{a: any}"), [1])


@pytest.mark.parametrize(
    ("declared", "text", "meant"),
    [
        ("string", "5", "5"), ("string", "", ""), ("string", "null", "null"), ("integer", "5", 5), ("number", "5", 5),
        ("number", "1.5", 1.5),
        ("boolean", "true", True), ("array", "[1]", [1]), ("object", "{}", {}), ("'null'", "null", None), ("any", "5", 5),
        ("any", "no", "no"),
        ("any", "", ""), ("any", "{", "{"), ("{type: [string, 'null']}", "5", "5"), ("{type: [string, 'null']}", "null", None),
        ("{enum: [a, '1']}", "1", "1"), ("{enum: [a, 1]}", "1", 1), ("{enum: [a]}", "a", "a"),
        ("integer", "9" * 100, int("9" * 100)), ("any", "1e999", "1e999"), ("{type: [string, 'null']}", "[" * 200, "[" * 200),
    ],
)  # fmt: skip
def test_a_text_is_read_by_the_type_of_its_input(declared: str, text: str, meant: Any) -> None:
    found = read_input(plan(f"{{a: {declared}}}"), "a", text)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize("text", ["[" * 102 + "]" * 102, '"a\\u0000b"', '["\\ud800"]', '{"a": 1, "a": 2}'])
def test_json_that_could_not_be_kept_is_not_taken_for_a_text(text: str) -> None:
    for declared in ("any", "{type: [string, array, object]}"):
        with pytest.raises(PlanRefused, match=r"input `a`: .* cannot be taken: "):
            read_input(plan(f"{{a: {declared}}}"), "a", text)


def test_a_text_that_is_not_of_the_type_is_refused() -> None:
    for declared, text in (("integer", "x"), ("boolean", "yes"), ("object", "{"), ("number", ""), ("number", "NaN")):
        with pytest.raises(PlanRefused, match=f"input `a`: .* is no {declared}"):
            read_input(plan(f"{{a: {declared}}}"), "a", text)


@pytest.mark.parametrize("word", TYPES)
@pytest.mark.parametrize("about", [{}, {"title": "x"}, {"description": "x", "title": ""}])
def test_a_schema_that_is_only_a_type_means_what_the_library_makes_of_it(word: str, about: dict[str, Any]) -> None:
    schema = {"type": word, **about}
    library = jsonschema_rs.validator_for(schema)
    assert fault(schema) is None
    for value in (None, True, 1, 1.5, "x", [], {}, [1], {"a": 1}):
        assert (validate(schema, value) is None) == library.is_valid(value)
    for wrong in ({"title": 1}, {"description": None}, {"type": [word, word]}):
        assert fault(schema | wrong) is not None

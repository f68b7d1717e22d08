"""A plan taken without the library that knows its shapes is the plan that library would make, or it is not taken."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import some_states
from pydantic import ValidationError

import durun as package
from durun.cli.pages import pages, text
from durun.plan import model
from durun.plan.check import called, long_form, read
from durun.plan.digest import canonical_text
from durun.plan.form import canonical
from durun.plan.load import Lines, _compose, _plain
from durun.plan.shape_table import FIELDS, LEFT_OUT, MADE
from durun.plan.shapes import Shaped, keys, taken

ROOT = Path(package.__file__).parent
SCRIPTS = Path(__file__).parents[2] / "scripts"
TEXTS = [block for page in pages() for block in re.findall(r"```yaml\n(.*?)```", text(page), re.DOTALL)]
TEXTS += [path.read_text() for path in sorted(ROOT.glob("templates/*/plan.yaml"))]
WRITTEN = [_plain(_compose(one, Lines(one), []))[0] for one in TEXTS]
SMALL: Any = {"durun": 1, "name": "child", "start": "a", "states": {"a": {"pass": {}, "next": "succeeded"}}}
CHILD = read(SMALL)[0]


class Text(str):
    pass


class Number(int):
    pass


class Mapping(dict[str, Any]):
    pass


# what stands where something else is wanted
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 255, 256, 1001, 2**53 + 1, 2**63, -(2**63) - 1, 2**80, 1.0, 0.5, 0.0, 3e300, float("nan"),
    float("inf"), "", " ", "1", "1.0", "true", "yes", "x", "\ud800", "é", "5s", "0s", "5", "1h30m", "${{ 1 }}", "5s\n", "any", "*",
    "in_doubt", "exit:1", "json", "done", "stop", "all", "101%", "1/s", "0/s", "now", "200-299", 404, 99, "299-200", "2026-11-30T09:00:00Z",
    "POST", "post", [], [[]], [1], ["x"], ["x", None], [True], [1.0], {}, {"a": 1}, {1: 2}, {"\ud800": 1}, {"run": ["x"]}, [{"run": ["x"]}],
    {"http": {"url": "http://x"}}, {"on": "any"}, {"at": "x"}, {"signal": "x"}, b"x", ("x",), {"x"}, Text("x"), Number(1), Mapping(a=1),
]  # fmt: skip
# what a function of `words` takes
GOOD: dict[str, list[Any]] = {
    "text": ["x", "é", "${{ vars.a }}"], "span": ["5s", "1h30m", "${{ vars.a }}"], "fixed_span": ["5s", "250ms"], "leave": [True, False, "24h"],
    "number": [1, 2, 1.5, 1000], "matcher": ["any", "*", "exit:7", "killed:SIGTERM", "http:5xx", "mine"], "output": ["json", {"format": "text"}],
    "command": [["x", 1, True, 0.5], "echo x", ["x"]], "body_size": ["64KiB", "1MiB"], "statuses": [["200-299", 404], 200, "404"],
    "schema": ["string", "any", {"type": "string"}, True], "failures": [0, 3, "25%", "all"], "now": ["now"],
    "tool": [["pay", "--version"]], "language": [1], "begun_rate": ["25/s", "100/m"], "stop": ["stop", "compensate"],
    "on_drift": ["ask", "continue"], "way_to_wait": ["5s"], "time": ["2026-11-30T09:00:00+01:00", "${{ vars.a }}"], "method": ["GET", "PUT"],
    "header": ["X-Key"], "error_name": ["mine", "mine.too"], "plan_name": ["plan-b"], "variable": ["A_B"], "signal_name": ["go"],
    "option_name": ["yes", "no", "later"], "option": ["yes", "no"], "secret": ["TOKEN"],
}  # fmt: skip
ATOMS: dict[str, Any] = {
    "any": st.sampled_from([None, True, 1, 0.5, "x", "${{ vars.a }}", [1, [2]], {"b": None, "a": [{}]}]),
    "str": st.sampled_from(["a", "b"]), "int": st.sampled_from([1, 7]), "bool": st.booleans(), "float": st.sampled_from([1.5, 2.0]), "none": st.none(),
}  # fmt: skip


@st.composite
def a_value(draw: Any, form: Any, depth: int) -> Any:
    """A value of a form, nearly always one that fits."""
    if isinstance(form, str):
        return draw(ATOMS[form])
    match form:
        case ("read", before, inner, after):
            known = [name for name in (*after, *before) if name in GOOD]
            if known and draw(st.integers(0, 3)):
                return draw(st.sampled_from(GOOD[known[0]]))
            made = draw(a_value(inner, depth))
            return made[0] if {"a_list", "rules"} & {*before} and isinstance(made, list) and made and draw(st.booleans()) else made
        case ("either", first, *rest):
            return draw(a_value(draw(st.sampled_from([first, first, first, *rest])), depth))
        case ("whole", least, most):
            return draw(st.sampled_from([least, least + 1, most]))
        case ("literal", *words):
            return draw(st.sampled_from(words))
        case ("list", inner, least):
            return [draw(a_value(inner, depth)) for _ in range(draw(st.integers(least, 2)))]
        case ("dict", inner, least):
            names = draw(st.lists(st.sampled_from(["a", "b", "c_1"]), min_size=least, max_size=2, unique=True))
            return {name: draw(a_value(inner, depth)) for name in names}
        case ("tagged", _, ways):
            return draw(a_value(draw(st.sampled_from([*ways.values()])), depth))
        case ("shape", name):
            return draw(a_shape(name, depth - 1))
    return (1, 1)


@st.composite
def a_shape(draw: Any, name: str, depth: int) -> Any:
    """A mapping of a shape: what is required, and a few of the other keys."""
    fields, may = FIELDS[name], {**LEFT_OUT[name], **MADE.get(name, {})}
    needed = [key for key, (field, _) in fields.items() if field not in may]
    deep = {"map", "parallel", "compensate", "approval", "http", "notify", "migrations"}
    others = [key for key in fields if key not in needed and (depth > 0 or key not in deep)]
    few = draw(st.lists(st.sampled_from(others), max_size=4, unique=True)) if others else []
    return {key: draw(a_value(fields[key][1], depth)) for key in draw(st.permutations([*needed, *few]))}


@st.composite
def a_plan(draw: Any) -> Any:
    """A plan of the documentation, one that could run, or one of all that shapes may hold; as it is, or with a few things wrong."""
    match draw(st.integers(0, 3)):
        case 0:
            made = copy.deepcopy(draw(st.sampled_from(WRITTEN)))
        case 1:
            start, states = draw(some_states(depth=1, prefix="s"))
            made = {"durun": 1, "name": "p", "start": start, "states": states}
        case _:
            made = draw(a_shape("Plan", 3))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 2]))):
        _spoilt(draw, made)
    return made


def _spoilt(draw: Any, made: Any) -> None:
    """Something in it is another value, or is gone, or has one more beside it."""
    at: Any = made
    inner = made
    while isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
        at = inner
        inner = at[draw(st.sampled_from([*at] if isinstance(at, dict) else range(len(at))))]
    where = draw(st.sampled_from([*at] if isinstance(at, dict) else range(len(at)))) if at else None
    odd = copy.deepcopy(draw(st.sampled_from(ODD)))
    if where is not None and draw(st.integers(0, 3)):
        at[where] = odd
    elif where is not None and draw(st.booleans()):
        del at[where]
    elif isinstance(at, dict):
        at[
            draw(
                st.sampled_from(
                    ["x", 1, None, "schema_", "json_", "if_", "pass_", "lasts", "from_", "key", "run", "http", "model_fields_set"]
                )
            )
        ] = odd
    else:
        at.append(odd)


def by_the_library(data: Any) -> model.Plan | None:
    try:
        return model.shaped(copy.deepcopy(data))
    except (ValidationError, UnicodeEncodeError):  # the second: it cannot even say what is wrong
        return None


def alike(light: Any, full: Any) -> None:
    """Both are the same, through and through."""
    if isinstance(light, Shaped):
        shape = type(full).__name__
        assert light.model_fields_set == full.model_fields_set, shape
        names = {*type(full).model_fields, *LEFT_OUT[shape]}
        assert {*vars(light)} == names | {"model_fields_set"}
        for name in names:
            alike(getattr(light, name), getattr(full, name))
        return
    assert type(light) is type(full), (light, full)
    if isinstance(light, dict):
        assert [*light] == [*full] and [*map(type, light)] == [*map(type, full)]
        for key in light:
            alike(light[key], full[key])
    elif isinstance(light, list | tuple):
        assert len(light) == len(full)
        for one, other in zip(light, full, strict=True):
            alike(one, other)
    else:
        assert light == full or (light != light and full != full)


def judged(data: dict[str, Any]) -> bool:
    """Whether a plan is taken; then the library takes it too, and makes the same of it."""
    data = long_form(data)[0]
    light = taken(copy.deepcopy(data))
    full = by_the_library(data)
    if light is None:
        return False
    assert full is not None
    alike(light, full)
    return True


def test_the_table_is_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import shapes

    assert shapes.TABLE.read_text(encoding="utf-8") == shapes.text(), (
        "`model` says something else: scripts/shapes writes the table anew"
    )


@pytest.mark.parametrize("data", WRITTEN, ids=[data["name"] for data in WRITTEN])
def test_every_plan_of_the_documentation_and_of_the_templates_is_taken(data: dict[str, Any]) -> None:
    assert judged({k: v for k, v in data.items() if not k.startswith("x-")})


@settings(max_examples=400, deadline=None)
@given(a_plan())
def test_what_is_taken_is_what_the_library_makes_of_it(data: Any) -> None:
    judged(data)


@settings(max_examples=60, deadline=None)
@given(a_plan())
def test_a_plan_is_pinned_and_judged_alike_in_both_ways(data: Any) -> None:
    try:
        data = copy.deepcopy(data)
        children = dict.fromkeys(called(data), CHILD)
        found = read(data, children=children)  # type: ignore[arg-type]
    except (TypeError, AttributeError, UnicodeEncodeError):
        return  # no text leads to such a plan: its keys are no texts, or hold half a surrogate
    full = by_the_library(long_form(data)[0])
    if found[0] is not None:
        assert full is not None
        assert canonical_text(found[0]) == canonical_text(canonical(full, children))  # type: ignore[arg-type]
    if full is None:
        assert found[1]


@pytest.mark.parametrize(
    "odd",
    [
        {"max_visits": True}, {"max_visits": 1.0}, {"max_visits": "1"}, {"max_visits": 2**53 + 1}, {"description": Text("x")}, {"expect": [True]},
        {"pivot": 1}, {"pivot": "yes"}, {"timeout": 5}, {"timeout": None}, {"next": "\ud800"}, {"env": {1: 2}}, {"env": [["A", "b"]]}, {"expect": []},
        {"expect": (0,)}, {"catch": ()}, {"schema_": 1}, {"pass_": {}}, {"model_fields_set": 1}, {"retry": {"jitter": "some"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_exactly_of_its_type_is_left_to_the_library(odd: dict[str, Any]) -> None:
    data = {"durun": 1, "name": "p", "start": "a", "states": {"a": {"run": ["x"], "next": "succeeded"}}}
    assert taken(data) is not None
    data["states"]["a"] |= odd  # type: ignore[index]
    assert taken(data) is None


def test_what_is_taken_does_not_change_and_shares_nothing() -> None:
    data = {"durun": 1, "name": "p", "start": "a", "states": {n: {"run": ["x"], "next": "succeeded"} for n in "ab"}}
    light = taken(data)
    assert light is not None
    with pytest.raises(AttributeError, match="does not change"):
        light.name = "q"  # type: ignore[misc]
    light.states["a"].assign["x"] = 1
    assert light.states["b"].assign == {} and taken(data).states["a"].assign == {}  # type: ignore[union-attr]


def test_the_keys_of_a_shape_are_those_of_its_model() -> None:
    for name in FIELDS:
        assert keys(name) == {field.alias or word for word, field in getattr(model, name).model_fields.items()}

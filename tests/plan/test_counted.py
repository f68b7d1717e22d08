"""What a loop counts with is worked out as the library would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from durun.errors import ExpressionError
from durun.plan.cel_data import Unfit
from durun.plan.cel_syntax import Read
from durun.plan.counted import ACTS, counting
from durun.plan.expressions import Program

EDGES = [0, 1, -1, 2**31, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, 2**63, -(2**63) - 1]
INTEGERS = st.sampled_from(EDGES) | st.integers(-(2**64), 2**64)
OTHERS = st.sampled_from([1.0, 0.5, True, False, None, "1", "", [], [1], {}, {"i": 1}])


def said(program: Program, names: dict[str, Any]) -> tuple[str, Any]:
    """What comes of an expression, with its type; or that it is refused, and how."""
    try:
        value = program.value(names)
    except Unfit as e:
        return type(e).__name__, str(e)
    return type(value).__name__, value


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ACTS)), INTEGERS | OTHERS, st.sampled_from([0, 1, 7, 10**17, 10**18 - 1]))
@example("+", 2**63 - 1, 1)
@example("-", -(2**63), 1)
@example("<", 2**63, 1)
@example("==", True, 1)
def test_a_count_is_what_the_library_makes_of_it(act: str, value: Any, number: int) -> None:
    source = f"vars.i {act} {number}"
    counts, library = Program(source, Read(source)), Program(source, Read(source))
    assert counts._counting is not None
    library._counting = None
    for names in ({"vars": {"i": value}}, {"vars": {"j": value}}, {"vars": value}):
        assert said(counts, names) == said(library, names)


@pytest.mark.parametrize(
    "source",
    [
        "i + 1",
        "vars.i + 01",
        "vars.i + 1.0",
        "vars.i * 2",
        "1 + vars.i",
        "vars.i + 1 + 1",
        "vars.i - -1",
        "vars.i + 1u",
        "vars[0] + 1",
    ],
)
def test_what_does_more_than_count_is_left_to_the_library(source: str) -> None:
    assert counting(source) is None


def test_a_count_that_the_library_would_not_compile_is_refused_as_before() -> None:
    from durun.plan.expressions import Evaluator

    with pytest.raises(ExpressionError, match="no name here"):
        Evaluator().expression("nothing.i + 1", {"nothing": {"i": 1}})

"""What a loop counts with: a path, one operator and an integer, worked out without the library, as it would.

Rules:
- only where the path leads to an integer, and it and the answer have 64 bits: all else is the library's, to answer or refuse
- nothing longer: the library is compiled all the same, and says what is wrong with an expression
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from durun.plan.cel_data import HIGHEST, LOWEST

Json = Any
FORM = r"\s*([a-z_]+(?:\.[A-Za-z_][A-Za-z0-9_]*)+)\s*(<=|>=|==|!=|<|>|\+|-)\s*(0|[1-9][0-9]{0,17})\s*"
ACTS: dict[str, Callable[[int, int], int]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "+": operator.add, "-": operator.sub,
}  # fmt: skip


class Counting:
    """`vars.i + 1`, `vars.i < 10` and their like."""

    def __init__(self, path: Sequence[str], act: Callable[[int, int], int], number: int) -> None:
        self._path, self._act, self._number = path, act, number

    def value(self, names: Mapping[str, Json], objects: tuple[type, ...]) -> int | None:
        """The answer, which may be true or false; None where it is for the library to give. `objects`: what has fields."""
        at: Json = names
        for name in self._path:
            fields = at
            if not isinstance(at, objects) or name not in fields:
                return None
            at = fields[name]
        if type(at) is not int or not LOWEST <= at <= HIGHEST:
            return None
        answer = self._act(at, self._number)
        return answer if LOWEST <= answer <= HIGHEST else None


def counting(source: str) -> Counting | None:
    """An expression that only counts; None where it does more."""
    found = re.fullmatch(FORM, source)
    return Counting(found[1].split("."), ACTS[found[2]], int(found[3])) if found else None

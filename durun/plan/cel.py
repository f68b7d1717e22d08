"""The CEL library, kept at arm's length: one environment, one way to compile, one way to evaluate.

`eval` returns an error as a value, and `value()` gives its text: so the type is asked first; what it raises is taken too.
"""

from __future__ import annotations

import json as _json
import re
from typing import Any

from cel_expr_python import cel as _cel
from cel_expr_python.ext import ext_math, ext_optional, ext_strings

from durun.errors import ExpressionError
from durun.plan.cel_syntax import Walk, guarded

Json = Any
LONGEST_WALK = 3000  # items that may go through map or filter: the library is quadratic there
TROUBLE = (RuntimeError, TypeError, ValueError, OverflowError, SystemError, RecursionError, KeyError, IndexError)


class Missing(Exception):
    """The library found a key or an index missing."""


def _no_order(_: Json) -> Json:
    raise ValueError("an object has no order: walk over keys(…) of it")


def _walk_list(items: Json) -> Json:
    if len(items) > LONGEST_WALK:
        raise ValueError(f"a list of {len(items)} items is too long for map or filter (at most {LONGEST_WALK}): use a command")
    return items


def _sum(items: Json) -> Json:
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in items):
        raise ValueError("sum wants a list of numbers")
    if len({type(v) for v in items}) > 1:
        raise ValueError("integers and doubles do not mix in sum: write double(x)")
    return sum(items)


def _sort(items: Json) -> Json:
    kinds = {type(v) for v in items}
    if not (kinds <= {int, float} or kinds in ({str}, {bool})):
        raise ValueError("sort wants a list of numbers, of strings or of booleans")
    return sorted(items)


def _flatten(items: Json) -> Json:
    return [v for item in items for v in (item if isinstance(item, list) else [item])]


def _to_json(value: Json) -> str:
    return _json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _functions() -> list[Any]:
    t = _cel.Type

    def one(name: str, given: Any, gives: Any, act: Any) -> Any:
        return _cel.Overload(f"{name}_{given.name().lower()}", gives, [given], False, act)

    kinds = (t.LIST, t.MAP, t.INT, t.UINT, t.DOUBLE, t.STRING, t.BOOL, t.NULL)
    return [
        _cel.FunctionDecl("durun_list", [one("dl", t.LIST, t.LIST, _walk_list), one("dl", t.MAP, t.LIST, _no_order)]),
        _cel.FunctionDecl("durun_walk", [one("dw", t.LIST, t.LIST, lambda v: v), one("dw", t.MAP, t.LIST, _no_order)]),
        _cel.FunctionDecl("sum", [one("sum", t.LIST, t.DYN, _sum)]),
        _cel.FunctionDecl("sort", [one("sort", t.LIST, t.LIST, _sort)]),
        _cel.FunctionDecl("flatten", [one("flatten", t.LIST, t.LIST, _flatten)]),
        _cel.FunctionDecl("keys", [one("keys", t.MAP, t.List(t.STRING), sorted)]),
        _cel.FunctionDecl("json", [one("json", kind, t.STRING, _to_json) for kind in kinds]),
    ]


def _environment() -> Any:
    from durun.plan.expressions import NAMES

    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_math.ExtMath()]
    return _cel.NewEnv(variables=dict.fromkeys(NAMES, _cel.Type.DYN), extensions=extensions, functions=_functions())


ENVIRONMENT = _environment()


def compile(source: str, walks: list[Walk]) -> Any:
    """A program. Raises ExpressionError."""
    message = None
    try:
        program = ENVIRONMENT.compile(guarded(source, walks))
    except TROUBLE as e:
        message = _in_our_words(str(e))
    if message is not None:
        raise ExpressionError(f"`{_short(source)}`: {message}")
    return program


def fault(source: str, walks: list[Walk]) -> str | None:
    """What is wrong with an expression, or None."""
    try:
        compile(source, walks)
    except ExpressionError as e:
        return str(e)
    return None


def evaluate(program: Any, data: dict[str, Json], source: str) -> Json:
    """The value as plain Python. Raises ExpressionError, or Missing where something named is not there."""
    try:
        value = program.eval(data=data)
        if value.type().name() != "ERROR":
            return _plain(value, source)
        message = str(value.value())
    except TROUBLE as e:
        message = str(e)
    said = f"`{_short(source)}`: {_in_our_words(message)}"
    if "NOT_FOUND" in message or "No value with name" in message or "Key not found" in message:
        raise Missing(said)
    raise ExpressionError(said)


def _plain(value: Any, source: str) -> Json:
    try:
        return value.plain_value()
    except TROUBLE:
        raise ExpressionError(f"`{_short(source)}` gives no JSON; an optional wants .orValue(…)") from None


def _in_our_words(message: str) -> str:
    line = message.split("\n")[0]
    line = re.sub(r"^(?:[A-Z_]+: )+(?:ERROR: )?(?:<input>:\d+:\d+: )?", "", line)
    line = re.sub(r" \[[A-Z_]+\]$", "", line)
    overload = re.search(r"No matching overloads found : (\S+?)\((.*)\)", line)
    if overload:
        return _no_overload(overload.group(1), overload.group(2).split(", "))
    if "Unable to convert" in line:
        return "it gives no JSON; an optional wants .orValue(…)"
    if "durun_" in line and "no matching overload" in line:
        return "only a list can be walked over"
    if "Iteration budget" in line:
        return "it walks over too many items: let a command do that"
    if "Applying SELECT to non-message" in line:
        return "a field is asked of something that is no object"
    undeclared = re.search(r"undeclared reference to '([^']*)'", line)
    if undeclared:
        return f"there is no function or name `{undeclared.group(1)}`"
    return line.replace("durun_list(", "(").replace("durun_walk(", "(")


def _no_overload(what: str, given: list[str]) -> str:
    sign = what.strip("_").replace("_", "") or what
    if "null_type" in given:
        return f"null where a value is wanted, in `{sign}`"
    if sorted(given) == ["double", "int64"]:
        return f"integers and doubles do not mix in `{sign}`: write double(x)"
    if what.startswith("durun_"):
        return f"only a list can be walked over, not {given[0]}"
    return f"`{sign}` does not take {' and '.join(given)}"


def _short(source: str) -> str:
    text = " ".join(source.split())
    return text if len(text) <= 80 else text[:77] + "…"

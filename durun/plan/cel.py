"""The CEL library, kept at arm's length: one environment, one way to compile, one way to evaluate.

Rules:
- `eval` returns an error as a value, and `value()` gives its text: so the type is asked first; what it raises is taken too
- what it says is turned into durun's words, and a place in the guarded source into a place in the plan's
- it is handed data that `cel_data.handed` has been over, and what it gives goes through `cel_data.taken`

Importing this module loads the library (about 12 ms and 16 MiB): only what evaluates or checks more than a path does.
"""

from __future__ import annotations

import json
import re
import threading
from functools import lru_cache
from typing import Any

from cel_expr_python import cel as _cel
from cel_expr_python.ext import ext_math, ext_optional, ext_strings

from durun.plan.cel_data import Unfit, taken
from durun.plan.cel_syntax import NAMES, Guarded, Read, guarded
from durun.plan.cel_words import NO_LIST, NO_ORDER, Said, faults, in_our_words, missing_key
from durun.values import NamedTuple

Json = Any
LONGEST_WALK = 3000  # items that may go through map or filter: the library is quadratic there
MOST_WORK = 1_000_000  # values that durun's own functions may look at in one evaluation
TROUBLE = (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError, SystemError, MemoryError)


class Trouble(Exception):
    """What the library would not compile or evaluate, in durun's words. `key`: the key it found missing."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


# --- durun's own functions; a ValueError here becomes the error of the expression ---

_spent = threading.local()


def _look_at(value: Json) -> Json:
    """Counts what a function is given against MOST_WORK: called within a walk, it would have no end otherwise."""
    left, todo = _spent.left, [value]
    while todo:
        at = todo.pop()
        left -= 1
        if left < 0:
            raise ValueError("durun: it looks at too many values: let a command do that")
        if isinstance(at, list):
            todo += at
        elif isinstance(at, dict):
            todo += at.values()
    _spent.left = left
    return value


def _long_walk(length: int) -> bool:
    if length < 0:
        raise ValueError(f"durun: {NO_ORDER if length == -1 else NO_LIST}")
    return True


def _short_walk(length: int) -> bool:
    if length > LONGEST_WALK:
        raise ValueError(
            f"durun: a list of {length} items is too long for map or filter, which take {LONGEST_WALK}: let a command do that"
        )
    return _long_walk(length)


def _plain(is_optional: bool) -> bool:
    if is_optional:
        raise ValueError("durun: an optional wants .orValue(…)")
    return True


def _sum(items: list[Json]) -> Json:
    kinds = {type(v) for v in _look_at(items)}
    if not kinds <= {int, float}:
        raise ValueError("durun: sum wants a list of numbers")
    if len(kinds) > 1:
        raise ValueError("durun: integers and doubles do not mix in sum: write double(x)")
    total = sum(items)
    if isinstance(total, int) and not -(2**63) <= total < 2**63:
        raise ValueError("durun: the sum has more than 64 bits")
    return total


def _sort(items: list[Json]) -> Json:
    kinds = {type(v) for v in _look_at(items)}
    if not (kinds <= {int, float} or kinds in ({str}, {bool})):
        raise ValueError("durun: sort wants a list of numbers, of strings or of booleans")
    if any(v != v for v in items):
        raise ValueError("durun: NaN has no place in an order")
    return sorted(items)


def _flatten(items: list[Json]) -> Json:
    """One level: a list in the list gives its items."""
    return [v for item in _look_at(items) for v in (item if isinstance(item, list) else [item])]


def _keys(value: dict[str, Json]) -> Json:
    if not all(isinstance(key, str) for key in _look_at(value)):
        raise ValueError("durun: keys wants an object")
    return sorted(value)


def _to_json(value: Json) -> str:
    try:
        value = taken(_look_at(value))
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except Unfit as e:
        raise ValueError(f"durun: json: {e}") from None


def _functions() -> list[Any]:
    t = _cel.Type

    def one(name: str, given: Any, gives: Any, act: Any) -> Any:
        return _cel.Overload(f"durun_{name}_{given.name().lower()}", gives, [given], False, act)

    def function(name: str, given: tuple[Any, ...], gives: Any, act: Any) -> Any:
        return _cel.FunctionDecl(name, [one(name, kind, gives, act) for kind in given])

    return [
        function("durun_short", (t.INT,), t.BOOL, _short_walk),
        function("durun_long", (t.INT,), t.BOOL, _long_walk),
        function("durun_plain", (t.BOOL,), t.BOOL, _plain),
        function("sum", (t.LIST,), t.DYN, _sum),
        function("sort", (t.LIST,), t.LIST, _sort),
        function("flatten", (t.LIST,), t.LIST, _flatten),
        function("keys", (t.MAP,), t.List(t.STRING), _keys),
        function("json", (t.LIST, t.MAP, t.INT, t.UINT, t.DOUBLE, t.STRING, t.BOOL, t.NULL), t.STRING, _to_json),
    ]


def _environment(known: dict[str, Any] | None = None) -> Any:
    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_math.ExtMath()]
    variables = {**dict.fromkeys(NAMES, _cel.Type.DYN), **(known or {})}
    return _cel.NewEnv(variables=variables, extensions=extensions, functions=_functions())


@lru_cache(maxsize=256)
def _typed(known: tuple[tuple[str, str], ...]) -> Any:
    types = {"string": _cel.Type.STRING, "boolean": _cel.Type.BOOL}
    return _environment({path: types[kind] for path, kind in known})


GIVES = {
    "BOOL": "boolean", "INT": "integer", "DOUBLE": "number", "STRING": "string", "NULL": "null", "LIST": "array", "MAP": "object",
}  # fmt: skip


def gives(program: Any) -> str | None:
    """JSON Schema's word for what a program gives, where that is certain."""
    return GIVES.get(str(program.return_type()).partition("<")[0])


ENVIRONMENT = _environment()


# --- compile and evaluate ---


class Fault(NamedTuple):
    message: str
    offset: int


def compile(source: str, read: Read, known: tuple[tuple[str, str], ...] = ()) -> Any | list[Fault]:
    """A program; or what is wrong with the source, each fault with its place in it.

    `known`: paths and their types (string, boolean), for a compilation that is only to be looked at.
    """
    text = guarded(source, read.walks)
    try:
        return (_typed(known) if known else ENVIRONMENT).compile(text.text)
    except TROUBLE as e:
        message = str(e)
    placed: dict[int, Fault] = {}
    for said in faults(message):
        fault = _placed(said, text)
        name = re.search(r"undeclared reference to '(\w+)'", said.raw)
        if name and source[: fault.offset].endswith(name.group(1)):
            fault = fault._replace(offset=fault.offset - len(name.group(1)))
        placed.setdefault(fault.offset, fault)
    return list(placed.values())


def _placed(said: Said, text: Guarded) -> Fault:
    if said.line < 1 or said.column < 1:
        return Fault(said.message, 0)
    lines = text.text.split("\n")
    at = sum(len(line) + 1 for line in lines[: said.line - 1]) + said.column - 1
    if text.within(at):
        return Fault(NO_ORDER if "map(" in said.raw else NO_LIST, text.place(at))
    return Fault(said.message, text.place(at))


def evaluate(program: Any, data: dict[str, Json]) -> Json:
    """The value as JSON. Raises Trouble, or Unfit where it is no JSON."""
    _spent.left = MOST_WORK
    try:
        value = program.eval(data=data)
        if value.type().name() != "ERROR":
            return taken(value.plain_value())
        message = str(value.value())
    except TROUBLE as e:
        message = str(e)
    raise Trouble(in_our_words(message), missing_key(message))

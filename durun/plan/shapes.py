"""A plan taken in its shapes without the library that says what they are.

`model` is the one definition of the language. To build its shapes and to load what builds them takes longer than all else in the
start of a small plan, and nearly every plan that is started is well formed. So there are two ways: this one takes what is
certainly right, by a table of what `model` says (`shape_table`, written by scripts/shapes), and says "not sure" of all else, which
`model` then judges and refuses as if it had been asked alone.

- nothing is taken that `model` would refuse, and nothing is made of it but what `model` would make: where a value is not of exactly
  the type that is wanted, it is not sure, also where pydantic would make that type of it
- a value has the attributes of its model, with what was left out, its class variables and `model_fields_set`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durun.plan import words
from durun.plan.shape_table import FIELDS, LEFT_OUT, MADE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.plan import model

Json = Any
Form = Any  # the name of a type, or a tuple that begins with the name of a way below

ATOMS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": float, "none": type(None)}
LARGEST = 2**63 - 1  # a larger integer is left to who knows what becomes of it


class Unsure(ValueError):
    """What is not certainly right, which does not mean that it is wrong."""


class Shaped:
    """A mapping in its shape."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set: what a plan says does not change")


def taken(data: dict[str, Json]) -> model.Plan | None:
    """The plan in its shapes; None where that is not sure."""
    try:
        return _shape((None, "Plan"), data)  # type: ignore[return-value]
    except (ValueError, RecursionError):  # what a function of `words` refuses too
        return None


def keys(shape: str) -> set[str]:
    """The keys that a shape may have, as they are written."""
    return set(FIELDS[shape])


def _take(form: Form, value: Json) -> Any:
    return _atom(form, value) if isinstance(form, str) else WAYS[form[0]](form, value)


def _atom(name: str, value: Json) -> Json:
    if name == "any":
        return value
    if type(value) is not ATOMS[name]:
        raise Unsure
    if isinstance(value, str):
        value.encode()  # half a surrogate is no text: UnicodeEncodeError
    elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise Unsure
    return value


def _read(form: Form, value: Json) -> Any:
    """By functions of `words` before and after."""
    _, before, inner, after = form
    for name in before:
        value = getattr(words, name)(value)
    value = _take(inner, value)
    for name in after:
        value = getattr(words, name)(value)
    return value


def _either(form: Form, value: Json) -> Any:
    """Of several types the one that it is; at most the first is more than the name of one."""
    for name in form[2:]:
        if type(value) is ATOMS[name]:
            return _atom(name, value)
    return _take(form[1], value)


def _whole(form: Form, value: Json) -> int:
    _, least, most = form
    if type(value) is not int or not least <= value <= most:
        raise Unsure
    return value


def _literal(form: Form, value: Json) -> str:
    if type(value) is not str or value not in form[1:]:
        raise Unsure
    return value


def _list(form: Form, value: Json) -> list[Any]:
    _, inner, least = form
    if type(value) is not list or len(value) < least:
        raise Unsure
    return [_take(inner, one) for one in value]


def _tuple(form: Form, value: Json) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != len(form) - 1:
        raise Unsure
    return tuple(_take(inner, one) for inner, one in zip(form[1:], value, strict=True))


def _mapping(form: Form, value: Json) -> dict[str, Any]:
    _, inner, least = form
    if type(value) is not dict or len(value) < least:
        raise Unsure
    return {_atom("str", key): _take(inner, one) for key, one in value.items()}


def _tagged(form: Form, value: Json) -> Any:
    """One of several ways to write it, told apart by a function of `words`."""
    _, tell, ways = form
    return _take(ways[getattr(words, tell)(value)], value)


def _shape(form: Form, value: Json) -> Shaped:
    if type(value) is not dict:
        raise Unsure
    fields, usual, made = FIELDS[form[1]], LEFT_OUT[form[1]], MADE.get(form[1], {})
    given: dict[str, Any] = {}
    for key, one in value.items():
        if type(key) is not str or key not in fields:
            raise Unsure
        name, inner = fields[key]
        given[name] = _take(inner, one)
    values = {name: _own(one) for name, one in usual.items()}
    for name, inner in fields.values():
        if name in made and name not in given:
            values[name] = _take(inner, made[name])
        elif name not in given and name not in usual:
            raise Unsure  # it is required
    return Shaped({**values, **given, "model_fields_set": set(given)})


def _own(value: Json) -> Json:
    """What stands for something left out, which nobody else has."""
    return [_own(one) for one in value] if type(value) is list else dict(value) if type(value) is dict else value


WAYS: dict[str, Callable[[Form, Json], Any]] = {
    "read": _read, "either": _either, "whole": _whole, "literal": _literal, "list": _list, "tuple": _tuple, "dict": _mapping,
    "tagged": _tagged, "shape": _shape,
}  # fmt: skip

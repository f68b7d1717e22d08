"""Writes durun/plan/shape_table.py: what durun/plan/model.py says of every shape, as data.

What it does not know how to say is an error: then `shapes` must learn it first.
"""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from durun.plan import model, words

TABLE = Path(model.__file__).with_name("shape_table.py")
ATOMS = {str: "str", int: "int", bool: "bool", float: "float", NoneType: "none", Any: "any"}
HEAD = '''"""What `model` says of every shape of a plan, as data: written by scripts/shapes, by nobody's hand.

FIELDS: the keys of a shape as they are written, each with its attribute and the form of its value. LEFT_OUT: what stands for those
that are left out, and the class variables. MADE: the same, as it would be written.
"""

# ruff: noqa: E501

from __future__ import annotations

from typing import Any

'''


def every() -> list[type[model.Shape]]:
    """All shapes, in the order in which `model` names them."""
    return [
        one for one in vars(model).values() if isinstance(one, type) and issubclass(one, model.Shape) and one is not model.Shape
    ]


def form(hint: Any) -> Any:
    """How a value of a type is taken."""
    if get_origin(hint) is Annotated:
        base, *more = get_args(hint)
        return _annotated(base, more)
    if isinstance(hint, type) and issubclass(hint, model.Shape):
        return ("shape", hint.__name__)
    if hint in ATOMS:
        return ATOMS[hint]
    return _compound(get_origin(hint), get_args(hint), 0)


def _compound(origin: Any, inner: tuple[Any, ...], least: int) -> Any:
    if origin is Literal:
        assert all(isinstance(word, str) for word in inner)
        return ("literal", *inner)
    if origin in (Union, UnionType):
        first, *rest = sorted(map(form, inner), key=lambda one: isinstance(one, str))  # what is more than a name comes first
        assert all(isinstance(one, str) and one != "any" for one in rest), inner
        return ("either", first, *rest)
    if origin is list:
        return ("list", form(inner[0]), least)
    if origin is dict:
        assert inner[0] is str
        return ("dict", form(inner[1]), least)
    assert origin is tuple and Ellipsis not in inner, (origin, inner)
    return ("tuple", *map(form, inner))


def _annotated(base: Any, more: list[Any]) -> Any:
    """The functions of `words` before and after (of those before the last comes first), and bounds on what is between."""
    before: list[str] = []
    after: list[str] = []
    bounds: dict[str, int] = {}
    strict = tell = False
    for one in more:
        match one:
            case BeforeValidator():
                before.insert(0, _name(one.func))
            case AfterValidator():
                after.append(_name(one.func))
            case Discriminator():
                tell = True
                before.append(_name(one.discriminator))
            case FieldInfo():
                bounds |= {word: getattr(b, word) for b in one.metadata for word in ("ge", "le", "min_length") if hasattr(b, word)}
                assert len(bounds) == len(one.metadata)
            case _:
                assert type(one).__name__ == "Strict" and base in (int, bool), one
                strict = True
    if tell:
        assert len(before) == 1 and not after and not bounds
        return ("tagged", before[0], dict(_way(one) for one in get_args(base)))
    if "ge" in bounds:
        assert base is int and strict
        inner: Any = ("whole", bounds["ge"], bounds["le"])
    elif bounds:
        inner = _compound(get_origin(base), get_args(base), bounds["min_length"])
        assert inner[0] in ("list", "dict")
    else:
        inner = form(base)
    return ("read", tuple(before), inner, tuple(after)) if before or after else inner


def _way(hint: Any) -> tuple[str, Any]:
    """One of several that are told apart: its tag, and its form."""
    base, *more = get_args(hint)
    assert get_origin(hint) is Annotated and isinstance(more[-1], Tag)
    return more[-1].tag, form(Annotated[(base, *more[:-1])] if more[:-1] else base)


def _name(function: Any) -> str:
    assert getattr(words, function.__name__) is function, function
    return str(function.__name__)


def table() -> dict[str, dict[str, dict[str, Any]]]:
    """What is said of every shape."""
    fields: dict[str, dict[str, Any]] = {}
    left_out: dict[str, dict[str, Any]] = {}
    made: dict[str, dict[str, Any]] = {}
    for shape in every():
        hints, name = get_type_hints(shape, vars(model), include_extras=True), shape.__name__
        fields[name] = {f.alias or field: (field, form(hints[field])) for field, f in shape.model_fields.items()}
        left_out[name] = {}
        for field, f in shape.model_fields.items():
            if f.default_factory is not None:
                made.setdefault(name, {})[field] = _written(f.get_default(call_default_factory=True))
            elif f.default is not PydanticUndefined:
                left_out[name][field] = f.default
        left_out[name] |= {
            word: getattr(shape, word) for word, hint in hints.items() if get_origin(hint) is ClassVar and word in own(shape)
        }
    return {"FIELDS": fields, "LEFT_OUT": left_out, "MADE": made}


def own(shape: type[model.Shape]) -> set[str]:
    """The class variables of a shape that are durun's."""
    return {word for one in shape.__mro__ if issubclass(one, model.Shape) and one is not model.Shape for word in one.__class_vars__}


def _written(value: Any) -> Any:
    """What would be written for what a factory makes."""
    if isinstance(value, model.Shape):
        return {word: _written(getattr(value, word)) for word in type(value).model_fields if word in value.model_fields_set}
    return [_written(one) for one in value] if isinstance(value, list) else value


def text() -> str:
    """The file."""
    lines = [HEAD]
    for name, shapes in table().items():
        kind = "tuple[str, Any]" if name == "FIELDS" else "Any"
        lines.append(f"{name}: dict[str, dict[str, {kind}]] = {{\n")
        for shape, said in shapes.items():
            lines += [f"    {shape!r}: {{\n", *(f"        {key!r}: {value!r},\n" for key, value in said.items()), "    },\n"]
        lines.append("}  # fmt: skip\n")
    return "".join(lines)


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
    print(f"{TABLE} says what the shapes are")

"""Values: tuples with names, frozen.

For a type checker they are those of `typing`. That one looks at the annotation of every field, which costs a third of a millisecond
a class, and what drives a run has a hundred: here the names alone are taken, so a value is made in the same way and at once.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Named(type):
        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__", {})
            usual = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=usual, module=body.pop("__module__"))
            made.__annotations__ = fields
            for word, value in body.items():
                setattr(made, word, value)
            return made

    class NamedTuple(metaclass=_Named):
        """Fields with their annotations (as text: `from __future__ import annotations`), defaults, and methods."""

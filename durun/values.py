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

    def _replacing(places):
        """The method that gives another value with some fields changed: only those are looked at, however many there are."""

        def _replace(self, /, **changes):
            fields = list(self)
            try:
                for field, value in changes.items():
                    fields[places[field]] = value
            except KeyError as e:
                raise ValueError(f"Got unexpected field names: {[e.args[0]]!r}") from None
            return tuple.__new__(type(self), fields)

        return _replace

    class _Named(type):
        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__", {})
            usual = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=usual, module=body.pop("__module__"))
            made.__annotations__ = fields
            made._replace = _replacing({field: n for n, field in enumerate(fields)})
            for word, value in body.items():
                setattr(made, word, value)
            return made

    class NamedTuple(metaclass=_Named):
        """Fields with their annotations (as text: `from __future__ import annotations`), defaults, and methods."""

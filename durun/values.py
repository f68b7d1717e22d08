"""Values: tuples with names, frozen; words that are all there is of their kind; and the types of mappings that come from outside.

For a type checker they are those of `typing`. That one looks at the annotation of every field, the one of `collections` compiles
a function for every class: a tenth of a millisecond together, and what drives a run has a hundred classes. Here the names alone are
taken, and one function is compiled for all classes of a length: a value is made in the same way, and at once. To look up a word of
`enum` takes ten times as long as to look up what any other class holds, and a driver does so a hundred times in a move.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import StrEnum as StrEnum
    from typing import NamedTuple as NamedTuple
    from typing import TypedDict as TypedDict
else:
    from _collections import _tuplegetter  # what `collections` takes too

    _new = {"_tuple_new": tuple.__new__, "__builtins__": {}}
    _codes = {}  # of the function that makes a value, by the number of its fields
    _function = type(lambda: None)

    def _making(name, fields, usual):
        """The function that makes a value of its fields."""
        code = _codes.get(len(fields))
        if code is None:
            words = "".join(f"_{n}, " for n in range(len(fields)))
            code = _codes[len(fields)] = eval(f"lambda _cls, {words}: _tuple_new(_cls, ({words}))", _new).__code__
        own = code.replace(co_varnames=("_cls", *fields), co_name="__new__", co_qualname=f"{name}.__new__")
        return _function(own, _new, "__new__", usual)

    def _replacing(places, new=tuple.__new__):
        """The method that gives another value with some fields changed: only those are looked at, however many there are."""

        def _replace(self, /, **changes):
            fields = [*self]
            try:
                for field in changes:
                    fields[places[field]] = changes[field]
            except KeyError as e:
                raise ValueError(f"Got unexpected field names: {[e.args[0]]!r}") from None
            return new(self.__class__, fields)

        return _replace

    def _asdict(self):
        return dict(zip(self._fields, self, strict=True))

    def _repr(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self, strict=True))})"

    def _arguments(self):
        return tuple(self)

    class _Named(type):
        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.get("__annotations__", {})
            names = (*fields,)
            usual = {field: body[field] for field in names if field in body}
            if (*usual,) != names[len(names) - len(usual) :]:
                raise TypeError(f"{name}: a field without a value stands behind one that has one")
            made = {
                "__slots__": (), "__match_args__": names, "_fields": names, "_field_defaults": usual, "__repr__": _repr,
                "__new__": _making(name, names, (*usual.values(),)), "__getnewargs__": _arguments, "_asdict": _asdict,
                "_replace": _replacing({field: n for n, field in enumerate(names)}),
            }  # fmt: skip
            return type(name, (tuple,), made | body | {field: _tuplegetter(n, None) for n, field in enumerate(names)})

    class NamedTuple(metaclass=_Named):
        """Fields with their annotations (as text: `from __future__ import annotations`), defaults, and methods."""

    def _word_repr(self):
        kind = type(self)
        return f"<{kind.__name__}.{next(name for name in kind._names if getattr(kind, name) is self)}: {str(self)!r}>"

    def _word_again(self):
        return type(self), (str(self),)

    class _Words(type):
        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            names = [word for word in body if not word.startswith("_")]
            own = {word: value for word, value in body.items() if word not in names}
            made = type.__new__(cls, name, (str,), {"__slots__": (), "__repr__": _word_repr, "__reduce__": _word_again, **own})
            made._names = names
            made._words = {body[word]: str.__new__(made, body[word]) for word in names}
            for word in names:
                setattr(made, word, made._words[body[word]])
            return made

        def __call__(cls, word):
            try:
                return cls._words[word]
            except KeyError:
                raise ValueError(f"{word!r} is not a valid {cls.__name__}") from None

        def __iter__(cls):
            return iter(cls._words.values())

        def __len__(cls):
            return len(cls._words)

        def __contains__(cls, word):
            return word in cls._words

    class StrEnum(metaclass=_Words):
        """Words, each a text that is the same object wherever it is meant; a class called with a text gives its word."""

    class TypedDict(dict):
        """A mapping with keys of its own, which only a type checker knows."""

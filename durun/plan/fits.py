"""Which types a value may have, and where none of them fits. Says nothing where that is not certain.

A type is a word of JSON Schema. What a schema calls a number may turn out an integer; a double that an expression gives is a
number for certain. None stands for: nothing is known.
"""

from __future__ import annotations

from typing import Any

Json = Any
Kinds = frozenset[str] | None

# what stands at a place -> the types that fit there, and how they are called
TEXT, WORD, TRUTH, SPELT, LIST = "text", "word", "truth", "spelt", "list"
SCALARS = frozenset({"string", "number", "integer", "boolean"})
FIT = {
    TEXT: (SCALARS, "a string, number or boolean"),
    WORD: (SCALARS | {"array"}, "a string, number, boolean or list of them"),
    TRUTH: (frozenset({"boolean"}), "true or false"),
    SPELT: (frozenset({"string"}), "a text"),
    LIST: (frozenset({"array"}), "a list"),
}
# what is known of names that no plan declares
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
ERROR = {"name": STRING, "message": STRING, "state": STRING, "visit": INTEGER}


def given(name: tuple[str, ...]) -> tuple[Json, int] | None:
    """What durun itself says of a path (its schema, and of how many names that speaks), or None."""
    match name:
        case ("visit", *_):
            return INTEGER, 1
        case ("key", *_):
            return STRING, 1
        case ("run", _, *_):
            return STRING, 2
        case ("error", field, *_) if field in ERROR:
            return ERROR[field], 2
        case ("pins", "env", _, *_):
            return STRING, 3
        case ("states", _, "visits", *_):
            return INTEGER, 3
    return None


def of_schema(kinds: set[str] | None) -> Kinds:
    """The types a value may have that fits a schema with these."""
    if kinds is None:
        return None
    return frozenset(kinds | {"integer"} if "number" in kinds else kinds)


def unfit(place: str, kinds: Kinds, what: str) -> str | None:
    """What is wrong with a value of these types at a place, or None."""
    if not kinds or place not in FIT or kinds & FIT[place][0]:
        return None
    return f"{what} is {said(kinds)}, and {FIT[place][1]} is wanted here"


def no_walk(path: str, kinds: Kinds) -> str | None:
    """What is wrong with walking over a path of these types, or None."""
    if not kinds or "array" in kinds:
        return None
    order = f": an object has no order, walk over keys({path})" if kinds == {"object"} else ""
    return f"`{path}` is {said(kinds)}, and only a list can be walked over{order}"


def no_var(name: str, kept: Kinds, kinds: Kinds, what: str) -> str | None:
    """What is wrong with assigning a value of these types to a var that keeps those."""
    if not kinds or not kept or kinds & kept:
        return None
    return f"{what} is {said(kinds)}, and `{name}` stays {said(kept)}"


def said(kinds: frozenset[str]) -> str:
    """The types in words: an integer, or null or a string."""
    words = {"null": "null", "array": "a list", "object": "an object", "integer": "an integer"}
    shown = sorted(kinds - {"integer"} if "number" in kinds else kinds)
    return " or ".join(words.get(kind, f"a {kind}") for kind in shown)

"""JSON Schema: what an input or an output must look like.

- remote references are refused; nothing is fetched
- an integer is a number without a point: 1.0 is none, since an expression tells the two apart
- a word that is no word of JSON Schema but looks like one is a fault: JSON Schema itself would ignore it
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from durun.errors import PlanRefused
from durun.plan.canonical import Plan
from durun.plan.data import Unclean, clean, read_json
from durun.plan.digest import canonical_text

Json = Any
Where = tuple[str | int, ...]
DRAFTS = ("2020-12/schema", "2019-09/schema", "draft-07/schema", "draft-06/schema", "draft-04/schema")
WORDS = (
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength",
    "pattern", "items", "prefixItems", "additionalItems", "maxItems", "minItems", "uniqueItems", "contains", "maxContains",
    "minContains", "maxProperties", "minProperties", "required", "properties", "patternProperties", "additionalProperties",
    "propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "allOf",
    "anyOf", "oneOf", "not", "if", "then", "else", "format", "contentEncoding", "contentMediaType", "contentSchema", "definitions",
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "id", "$anchor", "$ref",
    "$defs", "$comment", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary",
)  # fmt: skip
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA = ("const", "enum", "default", "examples")  # words whose value is data
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # and those whose keys are names
ABOUT = ("type", "title", "description")
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


def fault(schema: Json) -> str | None:
    """What is wrong with a schema, or None."""
    found = placed_fault(schema)
    return None if found is None else found[1]


def placed_fault(schema: Json) -> tuple[Where, str] | None:
    """What is wrong with a schema, and at which path in it; or None."""
    if isinstance(schema, bool):
        return None
    if schema is None:
        return (), "there is no type: write any, or 'null' in quotes"
    if not isinstance(schema, dict):
        return (), "a schema is an object, or one of the words " + ", ".join((*TYPES, "any"))
    said = _word(schema) or _draft(schema)
    if said is not None:
        return (), said
    if _only_a_type(schema):
        return None
    import jsonschema_rs

    remote = _remote(schema)
    if remote is not None:
        return remote
    try:
        jsonschema_rs.validator_for(schema)
    except (ValueError, jsonschema_rs.ReferencingError) as e:
        said = str(e).split("\n")[0].rstrip(":")
        return (), f"this is no schema: {said[:200]}"
    return None


def _only_a_type(schema: dict[str, Json]) -> bool:
    """Whether a schema is one type, with at most a word about it. Most are, and the library, slow to load, need not be asked."""
    return all(isinstance(schema.get(word, ""), str) for word in ABOUT) and {*schema} <= {*ABOUT} and "type" in schema


def _word(schema: dict[str, Json]) -> str | None:
    """A type that is none, or a word that is misspelt, at the top of a schema."""
    given = schema.get("type", [])
    for kind in given if isinstance(given, list) else [given]:
        if kind not in TYPES:
            said = f"`{kind}` is no type" if isinstance(kind, str) else "a type is a word"
            return f"{said}{_near(str(kind), (*TYPES, 'any')) or ': there are ' + ', '.join((*TYPES, 'any'))}"
    for word in schema:
        if word not in WORDS and not word.startswith("x-") and (near := _near(word, WORDS)):
            return f"`{word}` is no word of a schema{near}"
    return None


def _near(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word[:100], list(known), 1, 0.75)
    return f"; did you mean `{near[0]}`?" if near else ""


def _draft(schema: dict[str, Json]) -> str | None:
    draft = schema.get("$schema")
    if draft is not None and not (isinstance(draft, str) and draft.rstrip("#").endswith(DRAFTS)):
        return f"`$schema` names no draft of JSON Schema: {str(draft)[:100]}"
    return None


def _remote(schema: Json) -> tuple[Where, str] | None:
    """The first reference that leads out of its schema, at its path. What is data in a schema holds no reference."""
    todo: list[tuple[Where, Json, bool]] = [((), schema, False)]
    while todo:
        path, at, named = todo.pop(0)
        if isinstance(at, list):
            todo += [((*path, n), inner, False) for n, inner in enumerate(at)]
        elif isinstance(at, dict):
            for word in () if named else REFERENCES:
                if isinstance(at.get(word), str) and not at[word].startswith("#"):
                    return (*path, word), f"the reference {at[word][:100]!r} leads outside the plan"
            inside = [(word, inner) for word, inner in at.items() if named or word not in DATA]
            todo += [((*path, word), inner, not named and word in NAMED) for word, inner in inside]
    return None


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(read_json(text))


def validate(schema: Json, value: Json) -> str | None:
    """The first problem of a value, or None."""
    if schema == {} or schema is True:
        return None
    wanted = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(wanted, str):
        found = kind(value)
        if found != wanted and (wanted, found) != ("number", "integer"):
            return f"{_shown(value)} is not of the type {wanted}"
        if _only_a_type(schema):
            return None
    error = next(iter(_validator(canonical_text(schema)).iter_errors(value)), None)
    if error is None:
        return None
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.instance_path)
    said = str(error.message).split("\n")[0]
    said = said if len(said) <= 300 else said[:297] + "…"
    return f"{where.lstrip('.')}: {said}" if where else said


def kind(value: Json) -> str:
    """JSON Schema's word for the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _shown(value: Json) -> str:
    text = canonical_text(value)
    return text if len(text) <= 60 else text[:57] + "…"


def input_values(plan: Plan, given: Json) -> dict[str, Json]:
    """The input of a run: defaults filled in, unknown names, missing ones and unfit values refused, all at once."""
    if not isinstance(given, dict):
        raise PlanRefused("the input must be a JSON object: name to value")
    declared, problems = plan["input"], []
    for name in given:
        if name not in declared:
            problems.append(f"input `{name[:80]}` is not one of the plan{_near(name, declared)}")
    values: dict[str, Json] = {}
    for name, what in declared.items():
        if name in given:
            values[name] = given[name]
        elif what["required"]:
            problems.append(f"input `{name}` is missing: give it with -i {name}=VALUE")
            continue
        else:
            values[name] = what.get("default")
        problem = _unfit(what["schema"], values[name])
        if problem:
            problems.append(f"input `{name}`: {problem}")
    if problems:
        raise PlanRefused("\n".join(problems))
    return values


def _unfit(schema: Json, value: Json) -> str | None:
    try:
        clean(value)
    except ValueError as e:
        return str(e)
    return validate(schema, value)


def read_input(plan: Plan, name: str, text: str) -> Json:
    """The value that `-i NAME=TEXT` means, by the type the plan declares. Raises PlanRefused."""
    what = plan["input"].get(name)
    if what is None:
        return text  # named by `input_values` together with whatever else is wrong
    wanted = what["schema"].get("type") if isinstance(what["schema"], dict) else None
    if wanted == "string":
        return text
    textual = wanted is None or (isinstance(wanted, list) and "string" in wanted)
    try:
        value = read_json(text)
    except ValueError as e:
        if isinstance(e, Unclean) and (wanted is None or {"array", "object"} & set(wanted)):
            raise PlanRefused(f"input `{name}`: {_shown(text)} cannot be taken: {e}") from None
        if textual:
            return text
        word = " or ".join(wanted) if isinstance(wanted, list) else wanted
        raise PlanRefused(f"input `{name}`: {_shown(text)} is no {word}: {e}") from None
    return text if textual and validate(what["schema"], value) and not validate(what["schema"], text) else value

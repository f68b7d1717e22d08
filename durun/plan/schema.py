"""JSON Schema: what an input or an output must look like. Remote references are refused; nothing is fetched."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

from durun.errors import PlanRefused
from durun.plan.canonical import Plan
from durun.plan.data import clean, read_json
from durun.plan.digest import canonical_text

Json = Any
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


def fault(schema: Json) -> str | None:
    """What is wrong with a schema, or None."""
    import jsonschema_rs

    if not isinstance(schema, dict | bool):
        return "a schema is an object, or one of the words " + ", ".join((*TYPES, "any"))
    remote = _remote(schema)
    if remote is not None:
        return f"the reference {remote!r} leads outside the plan"
    try:
        jsonschema_rs.validator_for(schema)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as e:
        return str(e).split("\n")[0]
    return None


def _remote(schema: Json) -> str | None:
    todo = [schema]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            for word in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(at.get(word), str) and not at[word].startswith("#"):
                    return str(at[word])
            todo += at.values()
        elif isinstance(at, list):
            todo += at
    return None


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(read_json(text))


def validate(schema: Json, value: Json) -> str | None:
    """The first problem of a value, or None."""
    plain = _by_type(schema, value)
    if plain is not None:
        return plain or None
    error = next(iter(_validator(canonical_text(schema)).iter_errors(value)), None)
    if error is None:
        return None
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.instance_path)
    said = str(error.message).split("\n")[0]
    return f"{where.lstrip('.')}: {said}" if where else said


def _by_type(schema: Json, value: Json) -> str | None:
    """The answer for a schema that is a bare type: '' where it fits; None where more is to be asked."""
    if schema == {}:
        return ""
    if set(schema) != {"type"} or not isinstance(schema["type"], str):
        return None
    wanted = schema["type"]
    found = kind(value)
    if found == wanted or (wanted == "number" and found == "integer"):
        return ""
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        return None
    return f"{_shown(value)} is not of the type {wanted}"


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
            near = difflib.get_close_matches(name, declared, 1)
            problems.append(f"input `{name}` is not one of the plan" + (f"; did you mean `{near[0]}`?" if near else ""))
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
    try:
        return read_json(text)
    except ValueError as e:
        if wanted is None or (isinstance(wanted, list) and "string" in wanted):
            return text
        raise PlanRefused(f"input `{name}`: {text!r} is no {wanted}: {e}") from None

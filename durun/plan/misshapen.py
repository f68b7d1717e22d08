"""What the shapes refuse, in durun's words and at the path that the text has.

Only a plan that may be at fault comes here, and with it the library that knows the shapes: see `shapes`.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from durun.plan import model
from durun.plan.references import Found, mapping
from durun.plan.shapes import keys
from durun.plan.words import ALWAYS, FITS, KINDS, cut, nearest, shown

Json = Any
Where = tuple[str | int, ...]


def judged(data: dict[str, Json]) -> tuple[model.Plan | None, list[Found]]:
    """The plan in its shapes, or all that is wrong with them."""
    try:
        return model.shaped(data), []
    except ValidationError as e:
        return None, [_in_our_words(data, error) for error in e.errors()]


def _in_our_words(data: dict[str, Json], error: Any) -> Found:
    """A fault that pydantic found, at the path the text has, in durun's words."""
    loc = tuple(part for part in error["loc"] if not str(part).startswith("("))
    path, at = _real_path(data, loc)
    kind, last = error["type"], loc[-1] if loc else ""
    match kind:
        case "missing":
            return Found(path, f"`{last}` is required here{_what_for(loc)}", key=True)
        case "extra_forbidden":
            return Found(path, f"`{cut(last)}` is no key here{nearest(last, _keys_at(data, loc))}", key=True)
        case "value_error":
            return Found(path, str(error["ctx"]["error"]))
        case "literal_error":
            words = re.findall(r"'(\w+)'", error["ctx"]["expected"])
            return Found(path, f"{shown(at)} is none of {', '.join(words)}{nearest(at, words)}")
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return Found(path, f"a whole number is wanted here, not {shown(at)}")
        case "greater_than_equal":
            return Found(path, f"{shown(at)} is too small: at least {error['ctx']['ge']}")
        case "less_than_equal":
            return Found(path, f"{shown(at)} is too large: at most {error['ctx']['le']}")
        case "dict_type" | "model_type" | "model_attributes_type":
            return Found(path, f"a mapping is wanted here, not {shown(at)}")
        case "list_type":
            return Found(path, f"a list is wanted here, not {shown(at)}")
        case "too_short":
            return Found(path, "there is nothing in it")
    return Found(path, error["msg"].replace("Input should be", "this must be"))


def _real_path(data: Json, loc: Where) -> tuple[Where, Json]:
    """As much of pydantic's path as the text has; a rule that was written without its list has no number there."""
    path: list[str | int] = []
    at: Any = data
    for part in loc:
        if (isinstance(at, dict) and part in at) or (isinstance(part, int) and isinstance(at, list) and part < len(at)):
            at = at[part]  # type: ignore[index,unused-ignore]
        elif isinstance(part, int) and not isinstance(at, list):
            continue
        else:
            break
        path.append(part)
    return tuple(path), at


SHAPES = {
    "catch": "Catch", "retry": "Rule", "probe": "Probe", "poll": "Poll", "choice": "Line", "fail": "Fail",
    "wait": "At", "output": "Output", "pass": "Nothing", "defaults": "Defaults", "pins": "Pins",
    "compensate": "Compensation", "parallel": "Parallel", "map": "Map", "plan": "Child", "branches": "Branch",
    "http": "Http", "auth": "Auth", "secrets": "SecretOf", "migrations": "Migration", "group": "Group",
    "approval": "Approval", "options": "Option", "notify": "Notify",
}  # fmt: skip


def _keys_at(data: dict[str, Json], loc: Where) -> list[str]:
    """The keys that may stand beside the last of a path; of a state, those of its kind."""
    at: Any = data
    words: list[str] = []  # those since the last name of a state or branch
    path = list(loc[:-1])
    while path:
        part = path.pop(0)
        if part in ("states", "branches") and path:
            name = path.pop(0)
            at, words = mapping(mapping(mapping(at).get(part)).get(name)), [part]  # type: ignore[arg-type]
        else:
            at = mapping(at).get(part) if isinstance(part, str) else at
            words += [part] if isinstance(part, str) else []
    if words[:1] == ["limits"] and len(words) == 2:
        return sorted(keys("SharedLimit"))
    if words == ["states", "wait"]:
        return sorted(keys("At") | keys("Heard"))
    if words == ["states"]:
        kinds = [kind for kind in KINDS if kind in mapping(at)]
        return sorted(FITS[kinds[0]] | ALWAYS if len(kinds) == 1 else keys("State"))
    return sorted(keys(SHAPES.get(words[-1], "Plan") if words else "Plan"))


def _what_for(loc: Where) -> str:
    if loc[-2:] == ("poll", "for"):
        return ": how long to poll at most"
    return ""

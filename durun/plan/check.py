"""What shapes cannot say: one kind a state, keys that fit it, names. It asks `references` for the rest, `form` for the plan.

`read` takes plain data and gives the canonical plan with every fault as (path, message, offset, at_the_key); `load` turns the
paths into lines and columns. No stage waits for another: what is wrong with the shapes does not hide a state that is misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from durun.plan import model
from durun.plan.canonical import Plan
from durun.plan.form import canonical
from durun.plan.model import nearest, not_yet, shown
from durun.plan.references import Expressions, Found, items, mapping, misplaced, reach, rounds, schemas, states_of, targets

Json = Any
Where = tuple[str | int, ...]

__all__ = ["Found", "read"]


def read(
    data: dict[str, Json], spelt: Mapping[Where, str] = MappingProxyType({})
) -> tuple[Plan | None, list[Found], list[Found]]:  # fmt: skip
    """The canonical plan, the faults, the warnings. `spelt`: numbers that would not be written as they stand in the text."""
    data = {k: v for k, v in data.items() if not k.startswith("x-")}
    faults = [*_later(data), *misplaced(data)]
    shaped = None
    try:
        shaped = model.Plan.model_validate(data)
    except ValidationError as e:
        taken = {f.path for f in faults}
        faults += [f for f in (_in_our_words(data, error) for error in e.errors()) if f.path not in taken]
    expressions = Expressions(data)
    further = [
        *_kinds(data),
        *_names(data),
        *_numbers(data, spelt),
        *targets(data),
        *reach(data),
        *schemas(data),
        *expressions.faults,
    ]
    taken = {f.path for f in faults if not f.key}
    faults += [f for f in further if f.path not in taken]
    if faults or shaped is None:
        return None, faults, []
    plan = canonical(shaped)
    return plan, [], [*_warnings(plan), *rounds(data), *expressions.warnings]


# --- shapes ---


def _later(data: dict[str, Json]) -> Iterator[Found]:
    """Keys that belong to the language and are not built yet."""
    for place, where, value in _places_of_later(data):
        for key in value:
            if key in model.LATER[place]:
                yield Found((*where, key), not_yet(key), key=True)


def _places_of_later(data: dict[str, Json]) -> Iterator[tuple[str, Where, dict[str, Json]]]:
    yield "plan", (), data
    yield "pins", ("pins",), mapping(data.get("pins"))
    for name, state in states_of(data).items():
        yield "state", ("states", name), state
        yield "wait", ("states", name, "wait"), mapping(state.get("wait"))
        yield "probe", ("states", name, "probe"), mapping(state.get("probe"))


def _in_our_words(data: dict[str, Json], error: Any) -> Found:
    """A fault that pydantic found, at the path the text has, in durun's words."""
    loc = tuple(part for part in error["loc"] if not str(part).startswith("("))
    path, at = _real_path(data, loc)
    kind, last = error["type"], loc[-1] if loc else ""
    match kind:
        case "missing":
            return Found(path, f"`{last}` is required here{_what_for(loc)}", key=True)
        case "extra_forbidden":
            return Found(path, f"`{_cut(last)}` is no key here{nearest(last, _keys_at(data, loc))}", key=True)
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


def _cut(word: Json) -> str:
    text = str(word)
    return text if len(text) <= 40 else text[:37] + "…"


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


SHAPES: dict[str, type[model.Shape]] = {
    "catch": model.Catch, "retry": model.Rule, "probe": model.Probe, "poll": model.Poll, "choice": model.Line, "fail": model.Fail,
    "wait": model.At, "output": model.Output, "pass": model.Nothing, "defaults": model.Defaults, "pins": model.Pins,
}  # fmt: skip


def _keys_at(data: dict[str, Json], loc: Where) -> list[str]:
    """The keys that may stand beside the last of a path; of a state, those of its kind."""
    words = [part for part in loc[:-1] if isinstance(part, str)]
    if words[:1] == ["states"]:
        state, words = mapping(states_of(data).get(str(loc[1]))), words[2:]
        if not words:
            kinds = [kind for kind in model.KINDS if kind in state]
            return sorted(model.FITS[kinds[0]] | model.ALWAYS if len(kinds) == 1 else _fields(model.State))
    return sorted(_fields(SHAPES.get(words[-1], model.Plan) if words else model.Plan))


def _fields(shape: type[model.Shape]) -> set[str]:
    return {field.alias or name for name, field in shape.model_fields.items()}


def _what_for(loc: Where) -> str:
    if loc[-2:] == ("poll", "for"):
        return ": how long to poll at most"
    return ""


# --- kinds ---


def _kinds(data: dict[str, Json]) -> Iterator[Found]:
    """One kind a state, keys that fit it, a `next` where it goes on."""
    states = states_of(data)
    names = list(states)
    for n, (name, state) in enumerate(states.items()):
        kinds = [k for k in (*model.KINDS, *model.LATER_KINDS) if k in state]
        where = ("states", name)
        if len(kinds) != 1:
            yield Found(where, f"state `{_cut(name)}` {_no_one_kind(state, kinds)}", key=True)
            continue
        kind = kinds[0]
        if kind in model.LATER_KINDS:
            continue
        for key in state:
            if key in _fields(model.State) and key not in model.FITS[kind] | model.ALWAYS:
                why = model.WHY.get((kind, key))
                yield Found((*where, key), f"`{key}` says nothing to a `{kind}`" + (f": {why}" if why else ""), key=True)
        if "next" not in state and "next" in model.FITS[kind]:
            follows = names[n + 1] if n + 1 < len(names) else "succeeded"
            said = "a transition is never implied by the order of lines"
            yield Found(where, f"state `{_cut(name)}` has no `next`: {said}; did you mean `next: {_cut(follows)}`?", key=True)
        if kind == "run":
            yield from _of_run(where, state, data)
        if kind == "choice":
            yield from _of_choice(where, state)
        yield from _of_catch(where, state)


def _no_one_kind(state: dict[str, Json], kinds: list[str]) -> str:
    if kinds:
        return f"is several things at once, {', '.join(kinds)}: it is one of them"
    unknown = [key for key in state if key not in _fields(model.State)]
    near = next((said for key in unknown if (said := nearest(key, model.KINDS))), "")
    return f"has no kind: it is one of {', '.join(model.KINDS)}{near}"


def _of_run(where: Where, state: dict[str, Json], data: dict[str, Json]) -> Iterator[Found]:
    probe = mapping(state.get("probe"))
    for at, act in ((where, state), ((*where, "probe"), probe)):
        if isinstance(act.get("run"), list) and "shell" in act:
            yield Found((*at, "shell"), "`shell` says nothing to a list: it is begun without a shell", key=True)
    yes, no = ([given] if isinstance(given, int) else items(given) for given in (probe.get("yes", 0), probe.get("no", 1)))
    for code in yes:
        if probe and code in no:
            yield Found((*where, "probe"), f"the exit code {shown(code)} means both yes and no", key=True)
    if "poll" not in state:
        return
    if not state.get("idempotent", mapping(data.get("defaults")).get("idempotent", False)) and not probe:
        yield Found((*where, "poll"), "a poll repeats its effect: it must be `idempotent`, or have a `probe`", key=True)
    if "retry" in state:
        yield Found((*where, "retry"), "a poll has no `retry` of its own: a round that fails counts as not yet", key=True)


def _of_choice(where: Where, state: dict[str, Json]) -> Iterator[Found]:
    lines = items(state["choice"])
    for n, line in enumerate(lines[:-1]):
        if isinstance(line, dict) and "when" not in line:
            yield Found((*where, "choice", n), "only the last line may have no `when`: what follows is never reached")


def _of_catch(where: Where, state: dict[str, Json]) -> Iterator[Found]:
    """Lines that an earlier one leaves nothing to."""
    taken: set[str] = set()
    for n, line in enumerate(items(state.get("catch"))):
        given = mapping(line).get("on")
        names = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
        left = [name for name in names if name == "in_doubt" or "any" not in taken]
        if names and not [name for name in left if name not in taken]:
            yield Found((*where, "catch", n), "the lines above take all of this: it is never reached")
        taken |= {"any" if name == "*" else name for name in names}


# --- names and values ---


def _names(data: dict[str, Json]) -> Iterator[Found]:
    """Names of inputs, vars, states and environment variables; vars that are assigned and not declared."""
    for word in ("input", "vars", "states"):
        for name in mapping(data.get(word)):
            if not model.NAME.fullmatch(name) or name in model.NO_NAMES:
                said = f"`{_cut(name)}` is no name: small letters, digits and `_`, a letter first, at most 64"
                yield Found(
                    (word, name),
                    said if name not in model.NO_NAMES else f"`{name}` means something else in an expression",
                    key=True,
                )
    yield from _variables(("defaults", "env"), mapping(data.get("defaults")).get("env"))
    declared = mapping(data.get("vars"))
    for name, state in states_of(data).items():
        at = ("states", name)
        yield from _variables((*at, "env"), state.get("env"))
        yield from _variables((*at, "probe", "env"), mapping(state.get("probe")).get("env"))
        assigned: list[tuple[Where, Json]] = [((*at, "assign"), state.get("assign"))]
        for n, catch in enumerate(items(state.get("catch"))):
            assigned.append(((*at, "catch", n, "assign"), mapping(catch).get("assign")))
        for path, given in assigned:
            for var in mapping(given):
                if var not in declared:
                    yield Found((*path, var), f"`{_cut(var)}` is none of the vars{nearest(var, declared)}", key=True)


def _variables(path: Where, env: Json) -> Iterator[Found]:
    for name, value in mapping(env).items():
        at = (*path, name)
        if not model.VARIABLE.fullmatch(name):
            yield Found(at, f"`{_cut(name)}` is no name of an environment variable", key=True)
        elif name.startswith("DURUN_"):
            yield Found(at, f"`{_cut(name)}`: names that begin with DURUN_ are durun's", key=True)
        if value is None or isinstance(value, list | dict):
            yield Found(at, f"a text, a number or a boolean is wanted here, not {shown(value)}")


def _numbers(data: dict[str, Json], spelt: Mapping[Where, str]) -> Iterator[Found]:
    """Numbers in argv, env and stdin that a command would not see as they are written."""
    for path, text in spelt.items():
        place = path[2:] if path[:1] == ("states",) else path[1:] if path[:1] == ("defaults",) else ()
        place = place[1:] if place[:1] == ("probe",) else place
        if place[:1] in (("run",), ("env",)) or place == ("stdin",):
            at: Any = data
            for part in path:
                at = at[part]
            yield Found(path, f"as a number `{_cut(text)}` reaches the command as {at!r}: put it in quotes")


# --- warnings ---


def _warnings(plan: Plan) -> Iterator[Found]:
    for name, state in plan["states"].items():
        for word, lines in (("catch", state["catch"]), ("retry", state.get("retry", []))):
            for n, line in enumerate(lines):
                for matcher in line["on"]:
                    if ":" not in matcher and matcher not in model.BUILT_IN and (near := nearest(matcher, model.BUILT_IN)):
                        yield Found(("states", name, word, n, "on"), f"`{matcher}` is no error durun gives itself{near}")
        if state["kind"] == "run" and not (state.get("idempotent") or "probe" in state or "compensate" in state):
            if any("in_doubt" in catch["on"] for catch in state["catch"]):
                continue
            message = f"state `{name}` can neither be repeated, probed nor undone: interrupted, it asks a person"
            yield Found(("states", name), message, key=True)

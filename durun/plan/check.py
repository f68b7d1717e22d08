"""What shapes cannot say: one kind a state, keys that fit it, references, dead ends, expressions. And the canonical form.

`read` takes plain data and gives the canonical plan with every fault as (path, message, offset, at_the_key); `load` turns the
paths into lines and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from durun.plan import model, schema
from durun.plan.canonical import ENDS, Plan
from durun.plan.digest import digest
from durun.plan.expressions import Hole, SyntaxFault, inspect, split
from durun.plan.load import nearest

Json = Any
Where = tuple[str | int, ...]


class Found(NamedTuple):
    path: Where
    message: str
    offset: int = 0
    key: bool = False


BASE = {"input", "vars", "error", "states", "visit", "run", "pins"}
LATER_NAMES = {"item", "index", "secrets"}
RUN_FIELDS = {"id", "name", "version", "started_at"}
SEEN = {"output", "error", "visits", "exit", "items"}


def read(data: dict[str, Json]) -> tuple[Plan | None, list[Found], list[Found]]:
    """The canonical plan, the faults, the warnings. With faults of shape no plan is given."""
    data = {k: v for k, v in data.items() if not k.startswith("x-")}
    faults = list(_later(data))
    try:
        shaped = model.Plan.model_validate(data)
    except ValidationError as e:
        known = {f.path for f in faults}
        faults += [f for f in (_in_our_words(data, error) for error in e.errors()) if f.path not in known]
        faults += list(_kinds(data))
        return None, faults, []
    faults += [*_kinds(data), *_targets(data), *_reach(data), *_values(data, shaped), *_expressions(data)]
    if faults:
        return None, faults, []
    plan = canonical(shaped, data)
    return plan, [], list(_warnings(plan))


# --- shapes ---


def _dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _states(data: dict[str, Json]) -> dict[str, dict[str, Json]]:
    return {name: _dict(state) for name, state in _dict(data.get("states")).items()}


def _later(data: dict[str, Json]) -> Iterator[Found]:
    """Keys that belong to the language and are not built yet."""
    for place, where, value in _places_of_later(data):
        for key in value:
            if key in model.LATER[place]:
                yield Found((*where, key), model.not_yet(key), key=True)
    for name, state in _states(data).items():
        targets: list[tuple[Where, Json]] = [(("states", name, "next"), state.get("next"))]
        for word in ("catch", "choice"):
            lines = state.get(word)
            for n, line in enumerate(lines if isinstance(lines, list) else []):
                targets.append((("states", name, word, n, "next"), _dict(line).get("next")))
        for path, target in targets:
            if target == "compensated":
                yield Found(path, model.not_yet("compensated"))


def _places_of_later(data: dict[str, Json]) -> Iterator[tuple[str, Where, dict[str, Json]]]:
    yield "plan", (), data
    yield "pins", ("pins",), _dict(data.get("pins"))
    for name, state in _states(data).items():
        yield "state", ("states", name), state
        yield "wait", ("states", name, "wait"), _dict(state.get("wait"))
        yield "probe", ("states", name, "probe"), _dict(state.get("probe"))


def _in_our_words(data: dict[str, Json], error: Any) -> Found:
    """A fault that pydantic found, at the path the text has, in durun's words."""
    path, at = _real_path(data, error["loc"])
    kind, last = error["type"], error["loc"][-1] if error["loc"] else ""
    match kind:
        case "missing":
            return Found(path, f"`{last}` is required here{_what_for(error['loc'])}", key=True)
        case "extra_forbidden":
            return Found(path, f"`{last}` is no key here{nearest(last, _keys_at(error['loc']))}", key=True)
        case "value_error":
            return Found(path, str(error["ctx"]["error"]))
        case "literal_error":
            return Found(path, f"`{at}` is not one of {error['ctx']['expected']}")
        case "int_type" | "int_from_float":
            return Found(path, f"a whole number is wanted here, not {_shown(at)}")
        case "bool_type":
            return Found(path, f"true or false is wanted here, not {_shown(at)}")
        case "dict_type" | "model_type" | "model_attributes_type":
            return Found(path, f"a mapping is wanted here, not {_shown(at)}")
        case "list_type":
            return Found(path, f"a list is wanted here, not {_shown(at)}")
    return Found(path, error["msg"].replace("Input should be", "this must be"))


def _shown(value: Json) -> str:
    match value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
    return f"`{str(value)[:40]}`"


def _real_path(data: Json, loc: tuple[str | int, ...]) -> tuple[Where, Json]:
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


def _keys_at(loc: tuple[str | int, ...]) -> list[str]:
    words = [p for p in loc[:-1] if isinstance(p, str)]
    shapes: list[tuple[str, type[model.Shape]]] = [
        ("catch", model.Catch), ("retry", model.Rule), ("probe", model.Probe), ("poll", model.Poll), ("choice", model.Line),
        ("fail", model.Fail), ("wait", model.At), ("output", model.Output), ("defaults", model.Defaults), ("pins", model.Pins),
    ]  # fmt: skip
    shape: type[model.Shape] = model.Plan
    if words[:1] == ["states"]:
        shape = model.State
    for word, candidate in shapes:
        if words and words[-1] == word:
            shape = candidate
    return [f.alias or name for name, f in shape.model_fields.items()]


def _what_for(loc: tuple[str | int, ...]) -> str:
    if len(loc) >= 2 and loc[-2] == "poll":
        return ": how long to poll at most"
    return ""


def _kinds(data: dict[str, Json]) -> Iterator[Found]:
    """One kind a state, keys that fit it, a `next` where it goes on."""
    states = _states(data)
    names = list(states)
    for n, (name, state) in enumerate(states.items()):
        kinds = [k for k in (*model.KINDS, *model.LATER_KINDS) if k in state]
        where = ("states", name)
        if len(kinds) != 1:
            said = "no kind" if not kinds else "several kinds, " + ", ".join(kinds)
            near = "" if kinds else next((s for k in state if (s := nearest(k, model.KINDS))), "")
            yield Found(where, f"state `{name}` has {said}: it is one of {', '.join(model.KINDS)}{near}", key=True)
            continue
        kind = kinds[0]
        if kind in model.LATER_KINDS:
            continue
        for key in state:
            if key in model.State.model_fields and key not in model.FITS[kind] | model.ALWAYS:
                yield Found((*where, key), f"`{key}` says nothing to a state of the kind `{kind}`", key=True)
        if "next" not in state and "next" in model.FITS[kind]:
            follows = names[n + 1] if n + 1 < len(names) else "succeeded"
            yield Found(
                where,
                f"state `{name}` has no `next`: the order of lines says nothing; did you mean `next: {follows}`?",
                key=True,
            )
        yield from _of_kind(where, kind, state, data)


def _of_kind(where: Where, kind: str, state: dict[str, Json], data: dict[str, Json]) -> Iterator[Found]:
    if kind == "run":
        if isinstance(state["run"], list) and "shell" in state:
            yield Found((*where, "shell"), "`shell` says nothing to a list: it is begun without a shell", key=True)
        if "poll" in state:
            yield from _of_poll(where, state, data)
    if kind == "wait" and isinstance(state["wait"], dict) and not set(state["wait"]) & {"at", *model.LATER["wait"]}:
        yield Found((*where, "wait"), "a wait is a duration, or `{at: TIME}`")
    if kind == "choice" and isinstance(state["choice"], list):
        for n, line in enumerate(state["choice"]):
            if n + 1 < len(state["choice"]) and isinstance(line, dict) and "when" not in line:
                yield Found((*where, "choice", n), "only the last line may have no `when`: what follows is never reached")
    catches = state.get("catch")
    for n, catch in enumerate(catches if isinstance(catches, list) else []):
        if n + 1 < len(catches or []) and isinstance(catch, dict) and catch.get("on") in (["any"], "any", "*", ["*"]):
            rest = [c for c in (catches or [])[n + 1 :] if "in_doubt" not in str(_dict(c).get("on"))]
            if rest:
                yield Found((*where, "catch", n + 1), "the line above takes any error: this one is never reached")


def _of_poll(where: Where, state: dict[str, Json], data: dict[str, Json]) -> Iterator[Found]:
    idempotent = state.get("idempotent", _dict(data.get("defaults")).get("idempotent", False))
    if not idempotent and "probe" not in state:
        yield Found((*where, "poll"), "a poll repeats its effect: it must be `idempotent`, or have a `probe`", key=True)
    if "retry" in state:
        yield Found((*where, "retry"), "a poll has no `retry` of its own: a round that fails counts as not yet", key=True)


# --- references ---


def _ways(data: dict[str, Json], name: str) -> Iterator[tuple[Where, str]]:
    state = _states(data)[name]
    if "next" in state:
        yield ("states", name, "next"), state["next"]
    for word in ("catch", "choice"):
        for n, line in enumerate(state.get(word) or []):
            yield ("states", name, word, n, "next"), line["next"]


def _targets(data: dict[str, Json]) -> Iterator[Found]:
    states = _states(data)
    if data["start"] not in states:
        yield Found(("start",), f"`{data['start']}` is no state of this plan{nearest(data['start'], states)}")
    for name in states:
        if name in ENDS:
            yield Found(("states", name), f"`{name}` is a built-in end, no name for a state", key=True)
        for path, target in _ways(data, name):
            if target not in states and target not in ENDS:
                yield Found(path, f"`{target}` is no state of this plan{nearest(target, [*states, *ENDS])}")


def _reach(data: dict[str, Json]) -> Iterator[Found]:
    states = _states(data)
    if data["start"] not in states:
        return
    seen, todo = set(), [data["start"]]
    while todo:
        name = todo.pop()
        if name in states and name not in seen:
            seen.add(name)
            todo += [target for _, target in _ways(data, name)]
    for name in states:
        if name not in seen:
            yield Found(("states", name), f"state `{name}` is never reached from `{data['start']}`", key=True)


# --- values ---


def _values(data: dict[str, Json], shaped: model.Plan) -> Iterator[Found]:
    """Schemas and defaults, and vars that are assigned."""
    for name, what in shaped.input.items():
        short, default, required = input_of(what)
        if problem := schema.fault(short):
            yield Found(("input", name), f"input `{name}`: {problem}{_near_type(what)}")
        elif not required and (unfit := schema.validate(short, default)):
            yield Found(("input", name, "default"), f"the default of `{name}` does not fit it: {unfit}")
    for name, state in _states(data).items():
        declared = shaped.states[name].output
        if declared is not None and declared.schema_ is not None and (problem := schema.fault(declared.schema_)):
            yield Found(("states", name, "output", "schema"), problem)
        for path, wanted in _assigns(state, ("states", name)):
            for var in wanted:
                if var not in shaped.vars:
                    yield Found((*path, var), f"`{var}` is none of the vars{nearest(var, shaped.vars)}", key=True)


def _near_type(what: Json) -> str:
    return nearest(what, (*schema.TYPES, "any")) if isinstance(what, str) else ""


def _assigns(state: dict[str, Json], where: Where) -> Iterator[tuple[Where, dict[str, Json]]]:
    yield (*where, "assign"), _dict(state.get("assign"))
    for n, catch in enumerate(state.get("catch") or []):
        yield (*where, "catch", n, "assign"), _dict(_dict(catch).get("assign"))


def input_of(what: Json) -> tuple[Json, Json, bool]:
    """(schema, default, required) of an input: a type word, or a JSON Schema that may have a default."""
    if what == "any" or what is None:
        return {}, None, True
    if isinstance(what, str):
        return {"type": what}, None, True
    if isinstance(what, dict) and "default" in what:
        return {k: v for k, v in what.items() if k != "default"} | _any_type(what), what["default"], False
    return ({**what, **_any_type(what)} if isinstance(what, dict) else what), None, True


def _any_type(what: dict[str, Json]) -> dict[str, Json]:
    return {"type": list(schema.TYPES)} if what.get("type") == "any" else {}


# --- expressions ---


def _expressions(data: dict[str, Json]) -> Iterator[Found]:
    for path, value, names, bare in _templates(data):
        yield from _in_value(data, path, value, names, bare)


def _templates(data: dict[str, Json]) -> Iterator[tuple[Where, Json, set[str], bool]]:
    """Every place that may hold an expression: (path, value, the names it may use, whether it is bare)."""
    yield ("vars",), data.get("vars", {}), {"input"}, False
    yield ("output",), data.get("output"), BASE, False
    acting = BASE | {"key"}
    for word in ("env", "cwd", "timeout", "heartbeat"):
        yield ("defaults", word), _dict(data.get("defaults")).get(word), acting, False
    for name, state in _states(data).items():
        at = ("states", name)
        for word in ("run", "env", "cwd", "stdin", "timeout", "heartbeat"):
            if not (word == "run" and isinstance(state.get(word), str)):
                yield (*at, word), state.get(word), acting, False
        yield (*at, "key"), state.get("key"), BASE, False
        probe = _dict(state.get("probe"))
        for word in ("run", "env", "cwd", "stdin", "timeout"):
            if not (word == "run" and isinstance(probe.get(word), str)):
                yield (*at, "probe", word), probe.get(word), acting, False
        yield (*at, "assign"), state.get("assign"), acting | {"output"} if "run" in state else BASE, False
        yield (*at, "wait"), state.get("wait"), BASE, False
        yield (*at, "fail"), {k: v for k, v in _dict(state.get("fail")).items() if k != "error"}, BASE, False
        poll = _dict(state.get("poll"))
        yield (*at, "poll", "until"), poll.get("until"), BASE | {"output"}, True
        yield (*at, "poll", "every"), poll.get("every"), BASE, False
        yield (*at, "poll", "for"), poll.get("for"), BASE, False
        for n, line in enumerate(state.get("choice") or []):
            yield (*at, "choice", n, "when"), line.get("when"), BASE, True
        for n, catch in enumerate(state.get("catch") or []):
            yield (*at, "catch", n, "assign"), catch.get("assign"), BASE, False


def _in_value(data: dict[str, Json], path: Where, value: Json, names: set[str], bare: bool) -> Iterator[Found]:
    if isinstance(value, dict):
        for key, v in value.items():
            yield from _in_value(data, (*path, key), v, names, bare)
    elif isinstance(value, list):
        for n, v in enumerate(value):
            yield from _in_value(data, (*path, n), v, names, bare)
    elif isinstance(value, str) and bare:
        if "${{" in value:
            yield Found(path, "this is an expression already: leave `${{` and `}}` out", value.index("${{"))
        else:
            yield from _in_source(data, path, Hole(value, 0), names)
    elif isinstance(value, str) and "${{" in value:
        try:
            for part in split(value):
                if isinstance(part, Hole):
                    yield from _in_source(data, path, part, names)
        except SyntaxFault as e:
            yield Found(path, e.message, e.offset)


def _in_source(data: dict[str, Json], path: Where, hole: Hole, names: set[str]) -> Iterator[Found]:
    reading = inspect(hole.source)
    for message, offset in reading.faults:
        yield Found(path, message, hole.offset + offset)
    if reading.faults:
        return
    for p in reading.paths:
        unknown = _path_fault(data, p.names, names)
        if unknown:
            yield Found(path, unknown, hole.offset + p.offset)


def _path_fault(data: dict[str, Json], path: tuple[str, ...], names: set[str]) -> str | None:
    root = path[0]
    if root in LATER_NAMES:
        return model.not_yet(root)
    if root not in names:
        return f"`{root}` has no value here: there are {', '.join(sorted(names))}"
    if len(path) < 2:
        return None
    known: dict[str, Any] = {
        "input": _dict(data.get("input")),
        "vars": _dict(data.get("vars")),
        "states": _states(data),
        "run": RUN_FIELDS,
        "pins": {"env"},
    }
    if root in known and path[1] not in known[root]:
        return f"`{root}.{path[1]}` is not there{nearest(path[1], known[root])}"
    if root == "states" and len(path) > 2 and path[2] not in SEEN:
        return f"a state has {', '.join(sorted(SEEN))}, no `{path[2]}`{nearest(path[2], SEEN)}"
    if root == "pins" and len(path) > 2 and path[2] not in (pinned := _dict(data.get("pins")).get("env") or []):
        return f"`{path[2]}` is not pinned: name it under pins.env{nearest(path[2], pinned)}"
    return None


def _warnings(plan: Plan) -> Iterator[Found]:
    for name, state in plan["states"].items():
        if state["kind"] == "run" and not state.get("idempotent") and "probe" not in state:
            if any("in_doubt" in catch["on"] for catch in state["catch"]):
                continue
            message = f"state `{name}` can neither be repeated nor probed: interrupted, it asks a person"
            yield Found(("states", name), message, key=True)


# --- the canonical form ---


def canonical(shaped: model.Plan, data: dict[str, Json]) -> Plan:
    """The form a run is pinned to, with `defaults` merged in."""
    plan: dict[str, Json] = {
        "durun": 1,
        "name": shaped.name,
        "input": {name: _input(what) for name, what in shaped.input.items()},
        "vars": shaped.vars,
        "pins": {"env": list(shaped.pins.env)},
        "start": shaped.start,
        "states": {name: _state(state, shaped.defaults) for name, state in shaped.states.items()},
    }
    if shaped.description is not None:
        plan["description"] = shaped.description
    if "output" in data:
        plan["output"] = shaped.output
    plan["version"] = shaped.version if shaped.version is not None else digest(plan)[:12]
    return plan  # type: ignore[return-value]


def _input(what: Json) -> Json:
    short, default, required = input_of(what)
    return {"schema": short, "required": required, **({} if required else {"default": default})}


def _state(state: model.State, defaults: model.Defaults) -> Json:
    kind = next(k for k in model.KINDS if ("pass_" if k == "pass" else k) in state.model_fields_set)
    out: dict[str, Json] = {
        "kind": kind,
        "catch": [{"on": list(c.on), "next": c.next, "assign": c.assign} for c in state.catch],
        "assign": state.assign,
        "max_visits": state.max_visits,
    }
    for word in ("description", "next"):
        if getattr(state, word) is not None:
            out[word] = getattr(state, word)
    match kind:
        case "run":
            out |= _run(state, defaults)
        case "wait":
            assert state.wait is not None
            out["wait"] = _given(state.wait)
        case "choice":
            out["choice"] = [_given(line) for line in state.choice or []]
        case "fail":
            assert state.fail is not None
            out["fail"] = _given(state.fail)
    return out


def _given(shape: model.Shape) -> dict[str, Json]:
    return {name: getattr(shape, name) for name in sorted(shape.model_fields_set)}


def _run(state: model.State, defaults: model.Defaults) -> dict[str, Json]:
    retry = state.retry if state.retry is not None else ([] if state.poll else defaults.retry or [])
    idempotent = state.idempotent if state.idempotent is not None else defaults.idempotent
    out: dict[str, Json] = {
        "act": _act(state, defaults),
        "expect": list(state.expect or [0]),
        "retry": [_rule(r) for r in retry],
        "idempotent": idempotent if idempotent is not None else False,
    }
    if state.key is not None:
        out["key"] = state.key
    if state.output is not None:
        out["output"] = {"format": state.output.format}
        if state.output.schema_ is not None:
            out["output"]["schema"] = state.output.schema_
    if state.poll is not None:
        p = state.poll
        out["poll"] = {"until": p.until, "every": p.every, "times": p.times, "lasts": p.lasts}
    if state.probe is not None:
        out["probe"] = _probe(state.probe, defaults)
    return out


def _act(given: model.State | model.Probe, defaults: model.Defaults) -> dict[str, Json]:
    act: dict[str, Json] = {"env": {**defaults.env, **given.env}}
    if isinstance(given.run, str):
        act["script"] = given.run
        act["shell"] = given.shell or defaults.shell or "sh"
    else:
        act["argv"] = list(given.run)
    for word in ("cwd", "timeout", "heartbeat"):
        value = getattr(given, word, None)
        value = value if value is not None else getattr(defaults, word)
        if value is not None:
            act[word] = value
    if "stdin" in given.model_fields_set:
        act["stdin"] = given.stdin
    return act


def _rule(rule: model.Rule) -> dict[str, Json]:
    most = rule.max_attempts
    if most is None and rule.max_elapsed is None:
        most = 3
    return {
        "on": list(rule.on),
        "max_attempts": most,
        "max_elapsed": rule.max_elapsed,
        "initial_interval": rule.initial_interval,
        "backoff": rule.backoff,
        "max_interval": rule.max_interval,
        "jitter": rule.jitter,
    }


def _probe(probe: model.Probe, defaults: model.Defaults) -> dict[str, Json]:
    return {
        **_act(probe, defaults),
        "yes": list(probe.yes),
        "no": list(probe.no),
        "retry": [_rule(r) for r in (probe.retry if probe.retry is not None else defaults.retry or [])],
        "idempotent": probe.idempotent if probe.idempotent is not None else True,
    }

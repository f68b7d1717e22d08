"""The canonical form of a plan whose shapes hold: what was left out is filled in, `defaults` are merged where they reach."""

from __future__ import annotations

from typing import Any

from durun.plan import model, schema
from durun.plan.canonical import Plan
from durun.plan.digest import digest

Json = Any


def canonical(shaped: model.Plan) -> Plan:
    """The form a run is pinned to. `version` is the author's, else the first twelve digits of the digest of the rest."""
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
    if shaped.timeout is not None:
        plan["timeout"] = shaped.timeout
    if "vars_schema" in shaped.model_fields_set:
        plan["vars_schema"] = shaped.vars_schema
    if "output" in shaped.model_fields_set:
        plan["output"] = shaped.output
    plan["version"] = shaped.version if shaped.version is not None else digest(plan)[:12]
    return plan  # type: ignore[return-value]


def input_of(what: Json) -> tuple[Json, Json, bool]:
    """(schema, default, required) of an input: a type word, or a JSON Schema that may have a default."""
    if what == "any":
        return {}, None, True
    if isinstance(what, str):
        return {"type": what}, None, True
    if not isinstance(what, dict):
        return what, None, True
    rest = {k: v for k, v in what.items() if k != "default"}
    if rest.get("type") == "any":
        del rest["type"]
    return rest, what.get("default"), "default" not in what


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
            out["wait"] = {"at": state.wait.at} if isinstance(state.wait, model.At) else {"lasts": state.wait}
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
        if "schema_" in state.output.model_fields_set:
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
        "idempotent": probe.idempotent if probe.idempotent is not None else True,  # it only asks
    }


def schema_of(state: Json) -> Json:
    """What is declared of the output of a state as it was written; {} where nothing is."""
    output = state.get("output")
    declared = output.get("schema", {}) if isinstance(output, dict) else {}
    if "run" not in state and "output" not in state:
        return {"type": "null"}
    return input_of(declared)[0] if isinstance(declared, dict | str) else {}


def type_of(value: Json) -> Json:
    """What is known of a var by its first value, whose type it keeps; {} where that is null or an expression."""
    if value is None or (isinstance(value, str) and "${{" in value):
        return {}
    return {"type": schema.kind(value)}

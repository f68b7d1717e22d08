"""The canonical form of a plan whose shapes hold: what was left out is filled in, `defaults` are merged where they reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durun.plan import http, schema, words
from durun.plan.canonical import Plan, acts_of, own_states
from durun.plan.digest import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.plan import model

    Acting = model.State | model.Compensation | model.Notify

Json = Any


def canonical(shaped: model.Plan, children: Mapping[str, Plan], files: Json = None) -> Plan:
    """The form a run is pinned to; `children` are the plans it calls, by the file it names, `files` those that it pins.

    `version` is the author's, else the first twelve digits of the digest of the rest.
    """
    plan: dict[str, Json] = {
        "durun": 1,
        "name": shaped.name,
        "input": {name: _input(what) for name, what in shaped.input.items()},
        "vars": shaped.vars,
        "pins": {"env": list(shaped.pins.env)},
        "start": shaped.start,
        "states": _states(shaped.states, shaped.defaults, children),
    }
    secrets: list[Json] = [_secret(s) for s in shaped.secrets]
    for child in children.values():
        secrets += [spec for spec in child.get("secrets", []) if spec["name"] not in [s["name"] for s in secrets]]
    if secrets:
        plan["secrets"] = secrets
    if shaped.limits or any("limits" in child for child in children.values()):
        plan["limits"] = {name: _limit(limit) for name, limit in shaped.limits.items()}
    if shaped.group is not None:
        plan["group"] = {"name": shaped.group.name, "if_busy": shaped.group.if_busy}
    for word in ("on_error", "on_cancel"):
        if getattr(shaped, word) != "stop":
            plan[word] = getattr(shaped, word)
    if shaped.migrations:
        plan["migrations"] = [{"from": list(m.from_), "map": m.map, "set": m.set} for m in shaped.migrations]
    if shaped.on_drift != "ask":
        plan["on_drift"] = shaped.on_drift
    if shaped.pins.tools:
        plan["pins"]["tools"] = {name: list(argv) for name, argv in shaped.pins.tools.items()}
    if shaped.description is not None:
        plan["description"] = shaped.description
    if shaped.timeout is not None:
        plan["timeout"] = shaped.timeout
    if "vars_schema" in shaped.model_fields_set:
        plan["vars_schema"] = shaped.vars_schema
    if "output" in shaped.model_fields_set:
        plan["output"] = shaped.output
    if shaped.notify:
        plan["notify"] = [_notify(n, shaped.defaults) for n in shaped.notify]
    if files:
        _pin(plan, files)
    plan["version"] = shaped.version if shaped.version is not None else digest(plan)[:12]
    return plan  # type: ignore[return-value]


def _limit(given: model.SharedLimit) -> Json:
    out: dict[str, Json] = {} if given.concurrency is None else {"concurrency": given.concurrency}
    return out if given.rate is None else {**out, "rate": list(given.rate)}


def _pin(plan: Json, files: Json) -> None:
    """The files that go with the plan; each of its commands knows the tree they are laid out in."""
    plan["pins"] |= {"files": files, "tree": digest(files)}
    for state in (*own_states(plan), *plan.get("notify", [])):
        for act in acts_of(state):
            if "argv" in act or "script" in act:
                act["files"] = plan["pins"]["tree"]


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


def _states(states: dict[str, model.State], defaults: model.Defaults, children: Mapping[str, Plan]) -> dict[str, Json]:
    return {name: _state(state, defaults, children) for name, state in states.items()}


def _state(state: model.State, defaults: model.Defaults, children: Mapping[str, Plan]) -> Json:
    kind = next(k for k in words.KINDS if ("pass_" if k == "pass" else k) in state.model_fields_set)
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
        case "http":
            out |= _http(state, defaults)
        case "wait":
            out["wait"] = _wait(state.wait)
        case "approval":
            assert state.approval is not None
            out["approval"] = _approval(state.approval)
        case "choice":
            out["choice"] = [_given(line) for line in state.choice or []]
        case "fail":
            assert state.fail is not None
            out["fail"] = _given(state.fail)
        case "parallel":
            assert state.parallel is not None
            branches = state.parallel.branches.items()
            lines = [{"name": name, **_level(branch, defaults, children)} for name, branch in branches]
            out["parallel"] = {**_policy(state.parallel, None), "branches": lines}
        case "map":
            assert state.map is not None
            out["map"] = {**_policy(state.map, 4), **_level(state.map, defaults, children), "items": state.map.items}
            if state.map.label is not None:
                out["map"]["label"] = state.map.label
        case "plan":
            assert state.plan is not None
            out["plan"] = {"input": {}, **_given(state.plan), "pinned": children[state.plan.file]}
    if kind in ("wait", "approval") and state.timeout is not None:
        out["timeout"] = state.timeout
    return out


def _wait(wait: Json) -> dict[str, Json]:
    if isinstance(wait, int | str):
        return {"lasts": wait}
    if "at" in wait.model_fields_set:
        return {"at": wait.at}
    out: dict[str, Json] = {"signal": wait.signal}
    if "schema_" in wait.model_fields_set:
        out["schema"] = wait.schema_
    if wait.heartbeat is not None:
        out["heartbeat"] = wait.heartbeat
    return out


def _approval(approval: model.Approval) -> dict[str, Json]:
    out: dict[str, Json] = {
        "message": approval.message,
        "options": [{"name": option.name, "reject": option.reject} for option in approval.options],
    }
    if "data" in approval.model_fields_set:
        out["data"] = approval.data
    if "schema_" in approval.model_fields_set:
        out["schema"] = approval.schema_
    return out


def _level(level: model.Branch, defaults: model.Defaults, children: Mapping[str, Plan]) -> dict[str, Json]:
    given = {"output": level.output} if "output" in level.model_fields_set else {}
    return {"start": level.start, "states": _states(level.states, defaults, children), **given}


def _policy(given: model.Policy, concurrency: int | None) -> dict[str, Json]:
    out: dict[str, Json] = {"concurrency": given.concurrency or concurrency, "failures": given.failures, "enough": given.enough}
    return {**out, "stop": given.stop} if given.stop else out


def _given(shape: model.Shape) -> dict[str, Json]:
    return {name: getattr(shape, name) for name in sorted(shape.model_fields_set)}


def _run(state: Acting, defaults: model.Defaults) -> dict[str, Json]:
    out = {"act": _act(state, defaults), "expect": list(state.expect or [0]), **_effect(state, defaults, False)}
    if state.output is not None:
        out["output"] = {"format": state.output.format}
        if "schema_" in state.output.model_fields_set:
            out["output"]["schema"] = state.output.schema_
    return out


def _http(state: Acting, defaults: model.Defaults) -> dict[str, Json]:
    assert state.http is not None
    act = _request(state.http, state.timeout, defaults)
    act["key_header"] = state.idempotency_header or http.KEY_HEADER
    return {"act": act, **_effect(state, defaults, state.http.method in http.REPEATABLE)}


def _request(given: model.Http, timeout: int | str | None, defaults: model.Defaults) -> dict[str, Json]:
    limit = timeout if timeout is not None else defaults.timeout
    return {**http.canonical(given), "timeout": limit if limit is not None else http.TIMEOUT}


def _effect(state: Acting, defaults: model.Defaults, repeatable: bool) -> dict[str, Json]:
    """What commands and requests have alike."""
    retry = state.retry if state.retry is not None else ([] if state.poll else defaults.retry or [])
    idempotent = state.idempotent if state.idempotent is not None else defaults.idempotent
    out: dict[str, Json] = {
        "retry": [_rule(r) for r in retry],
        "idempotent": idempotent if idempotent is not None else repeatable,
    }
    if state.key is not None:
        out["key"] = state.key
    if state.poll is not None:
        p = state.poll
        out["poll"] = {"until": p.until, "every": p.every, "times": p.times, "lasts": p.lasts}
    if state.probe is not None:
        out["probe"] = _probe(state.probe, defaults)
    if state.compensate is not None:
        out["compensate"] = _compensation(state.compensate, defaults)
    if state.pivot:
        out["pivot"] = True
    if state.background:
        out["background"] = True
    if state.limit is not None:
        out["limit"] = state.limit
    return out


def _compensation(given: model.Compensation, defaults: model.Defaults) -> dict[str, Json]:
    """An undo as a state of its own, which leads to its end."""
    kind = "http" if given.http is not None else "run"
    out: dict[str, Json] = {
        "kind": kind,
        "catch": [],
        "assign": {},
        "max_visits": 1,
        "next": "succeeded",
        "after": list(given.after),
    }
    if given.if_ is not None:
        out["if"] = given.if_
    return out | (_http(given, defaults) if kind == "http" else _run(given, defaults))


def _notify(given: model.Notify, defaults: model.Defaults) -> dict[str, Json]:
    """What is sent when one of these comes, as a state that nothing leads from."""
    kind = "http" if given.http is not None else "run"
    return {"on": list(given.on), "kind": kind, **(_http(given, defaults) if kind == "http" else _run(given, defaults))}


def _secret(given: model.SecretOf) -> dict[str, Json]:
    return {word: value for word in ("name", "file", "run") if (value := getattr(given, word)) is not None}


def _act(given: Acting | model.Probe, defaults: model.Defaults) -> dict[str, Json]:
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


def _probe(probe: model.Probe | model.HttpProbe, defaults: model.Defaults) -> dict[str, Json]:
    return {
        **(_request(probe.http, probe.timeout, defaults) if probe.http is not None else _act(probe, defaults)),
        "yes": list(probe.yes),
        "no": list(probe.no),
        "retry": [_rule(r) for r in (probe.retry if probe.retry is not None else defaults.retry or [])],
        "idempotent": probe.idempotent if probe.idempotent is not None else True,  # it only asks
    }


def schema_of(state: Json) -> Json:
    """What is declared of the output of a state as it was written; {} where nothing is."""
    if "approval" in state:
        return _schema_of_answer(state["approval"])
    wait = state.get("wait")
    if isinstance(wait, dict) and "signal" in wait:
        return _declared(wait)
    output = state.get("output")
    if "http" in state and "run" not in state:
        return http.ANSWER
    if isinstance(state.get("parallel"), dict):
        branches = state["parallel"].get("branches")
        names = branches if isinstance(branches, dict) else {}
        return {"type": "object", "properties": {name: {} for name in names}, "additionalProperties": False}
    if "map" in state:
        return {"type": "array"}
    if "run" not in state and "output" not in state and "plan" not in state:
        return {"type": "null"}
    return _declared(output)


def _declared(given: Json) -> Json:
    """The schema beside other words; {} where none is given, or none that can be read."""
    declared = given.get("schema", {}) if isinstance(given, dict) else {}
    return input_of(declared)[0] if isinstance(declared, dict | str) else {}


def _schema_of_answer(approval: Json) -> Json:
    text = {"type": "string"}
    fields = {"answer": text, "data": _declared(approval), "by": text, "note": text, "at": text}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def type_of(value: Json) -> Json:
    """What is known of a var by its first value, whose type it keeps; {} where that is null or an expression."""
    if value is None or (isinstance(value, str) and "${{" in value):
        return {}
    return {"type": schema.kind(value)}

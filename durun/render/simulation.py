"""A simulated walk, as text for people and as a document: what would happen, in which order, and where it would end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from durun.machine.model import Phase
from durun.machine.scope import path_of
from durun.machine.secrets import filled
from durun.machine.simulate import OPEN, Step, Walk
from durun.plan.digest import canonical_text
from durun.plan.units import show_duration
from durun.render.text import moved, plain

Json = Any
LONGEST = 100  # characters of a value


def text(walk: Walk) -> str:
    """The path taken, a line for each thing that would happen, and how it ends."""
    lines = []
    for step in walk.steps:
        said = list(_said(step))
        after = f"+{show_duration(step.after)}"
        lines += [f"{after if not n else '':<9} {line}" for n, line in enumerate(said)]
    return "\n".join([*lines, *_end(walk)])


def _said(step: Step) -> Iterator[str]:
    path, data = plain(step.path), step.data
    again = f", attempt {step.attempt}" if (step.attempt or 1) > 1 else ""
    match step.kind:
        case "begins":
            yield from _begins(path + again, data)
        case "waiting":
            yield f"{path}: waits {show_duration(data['in'])}"
        case "retry_at":
            yield f"{path}: attempt {step.attempt} in {show_duration(data['in'])}"
        case "asked" | "listening":
            line = moved(step.kind, step.path, step.attempt, data)
            yield f"{line}" + (f" (for {show_duration(data['in'])})" if "in" in data else "")
            if data.get("data") is not None:
                yield f"    data {_value(data['data'])}"
        case "assigned":
            yield f"{path}: {', '.join(f'{name} = {_value(value)}' for name, value in data['vars'].items())}"
        case "left" if path.endswith("~undo"):
            pass  # that it is undone is said next
        case "left":
            yield str(moved(step.kind, step.path, step.attempt, data))
            for name, value in data.get("vars", {}).items():
                yield f"    {name} = {_value(value)}"
        case "blocked":
            yield f"{path if step.path else 'the run'}: a person must decide ({data['reason']})"
        case "undone":
            yield f"{path}: undone"
        case "undo_not_needed":
            yield f"{path}: nothing to undo"
        case _:
            line = moved(step.kind, step.path, step.attempt, data)
            if line is not None:
                yield line


def _begins(path: str, data: Json) -> Iterator[str]:
    """An effect with its frozen request; the place of a secret stays what the plan wrote."""
    request = shown(data["request"])
    what = "its probe " if data["effect"] == "probe" else "in the background it " if data.get("background") else ""
    if "method" in request:
        yield f"{path}: {what}sends {request['method']} {plain(request['url'])}"
    else:
        yield f"{path}: {what}runs {_command(request)}"
    for word in ("env", "headers", "form", "auth"):
        for name, value in (request.get(word) or {}).items():
            yield f"    {word} {plain(name)}: {_value(value)}"
    for word in ("cwd", "stdin", "json", "body"):
        if word in request:
            yield f"    {word} {_value(request[word])}"


def _command(request: Json) -> str:
    import shlex

    if "argv" in request:
        return _cut(plain(shlex.join(request["argv"])))
    lines = [line.strip() for line in request["script"].strip().split("\n")]
    more = f" … ({len(lines)} lines)" if len(lines) > 1 else ""
    return f"{request['shell']}: {_cut(plain(lines[0]))}{more}"


def shown(request: Json) -> Json:
    """A frozen request with its open places as the plan wrote them."""
    return filled(request, lambda name: f"${{{{ secrets.{name} }}}}")


def _value(value: Json) -> str:
    return _cut(plain(value if isinstance(value, str) else canonical_text(value)))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _end(walk: Walk) -> Iterator[str]:
    run, doc = walk.at.run, document(walk)
    after = f"after {show_duration(walk.now - walk.started)}"
    error = doc["error"] or {}
    match run.status:
        case "succeeded":
            yield f"it succeeds {after}" + (f": {canonical_text(run.output)}" if run.has_output else "")
        case "failed":
            said = f": {plain(error['message'])}" if error.get("message") else ""
            yield f"it fails {after} in state {error.get('state')}: {plain(error.get('name'))}{said}"
        case "compensated":
            yield f"it is compensated {after}: {plain(error.get('name', ''))} in state {error.get('state')}"
        case _:
            yield f"it is {run.status} {after}" + (f" ({run.reason})" if run.reason else "")
    for w in doc["waiting_for"]:
        yield f"  {plain(w['path'])} waits for {w['kind']} {plain(w['name'])}".rstrip()
    if walk.ends:
        yield f"  {plain(walk.ends)}"
    owed = [u["path"] for u in doc["undo"] if u["status"] in OPEN]
    if owed and run.status != "compensated":
        yield f"  `durun compensate` would undo {', '.join(map(plain, reversed(owed)))}"


def document(walk: Walk) -> dict[str, Json]:
    """`simulate --json`."""
    run = walk.at.run
    return {
        "plan": run.name, "version": run.version, "status": str(run.status), "reason": run.reason, "input": run.input,
        "vars": run.vars, "output": run.output, "error": run.ended_by if run.ended_by is not None else run.error,
        "took_ms": walk.now - walk.started, "steps": [_step(step) for step in walk.steps], "waiting_for": _waiting_for(walk),
        "undo": [
            {"path": path_of(walk.effects[no].scope, walk.effects[no].state), "visit": walk.effects[no].visit, "status": u.status}
            for no, u in walk.undos.items()
        ],
        "ends": walk.ends or None, "not_used": [{"path": path, "answers": n} for path, n in walk.script.left()],
    }  # fmt: skip


def _step(step: Step) -> dict[str, Json]:
    data = {name: value for name, value in step.data.items() if name not in ("due", "in")}
    if "request" in data:
        data["request"] = shown(data["request"])
    after = {"in_ms": step.data["in"]} if "in" in step.data else {}
    return {
        "after_ms": step.after,
        "kind": step.kind,
        "path": step.path,
        "visit": step.visit,
        "attempt": step.attempt,
        **after,
        **data,
    }


def _waiting_for(walk: Walk) -> list[dict[str, Json]]:
    """What only a person or a program outside could move."""
    found = []
    for p in walk.at.active.values():
        path = path_of(p.scope, p.state)
        match p.phase:
            case Phase.ASKED:
                found.append({"path": path, "kind": "approval", "name": ""})
            case Phase.LISTENING:
                found.append({"path": path, "kind": "signal", "name": p.wants["signal"]})
            case Phase.DOUBT:
                found.append({"path": path, "kind": "in_doubt", "name": ""})
    return found

"""Approvals: a person is asked, and answers once for each visit.

Rules:
- what is shown is worked out once, on entering, and has a digest over run, path, visit, message, data and options
- an answer counts if its question stands when it is given and its time is not over then; the digest it names must agree
- a no is the error `rejected`, which carries what was said; anything else goes on, with what was said as the output
- whoever says the same once more is told so; whoever says something else comes too late
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError, NotPossible, PlanRefused, Usage
from durun.machine import timer, walk
from durun.machine.draft import Draft, moment_text
from durun.machine.events import Answer
from durun.machine.model import TERMINAL, Answered, Checkpoint, Phase, Position
from durun.machine.scope import path_of, some
from durun.plan.canonical import Option, State
from durun.plan.digest import digest

Json = Any


def lasting(d: Draft, p: Position, given: int | str | None) -> int | None:
    """Milliseconds of a `timeout` or a `heartbeat`. Raises ExpressionError."""
    from durun.plan.units import duration

    if given is None or isinstance(given, int):
        return given
    try:
        return duration(d.evaluate.text(given, d.names(p.scope, visit=p.visit)))
    except ValueError as e:
        raise ExpressionError(str(e)) from None


# --- to ask ---


def begin(d: Draft, p: Position, state: State) -> None:
    """Asks: from now on it stands until somebody answers, or its time is over."""
    wants = shown(d, p, state)
    length = lasting(d, p, state.get("timeout"))
    p = p._replace(phase=Phase.ASKED, target=None, wants=wants)
    d.put(p if length is None else walk.timed(d, p, d.moment.now + length, length))
    d.tell("asked", p, None, message=wants["message"], data=wants.get("data"), digest=wants["digest"], due=d.position(p.scope).due)


def shown(d: Draft, p: Position, state: State) -> dict[str, Json]:
    """What is asked, with its digest. Raises ExpressionError."""
    asked, names = state["approval"], d.names(p.scope, visit=p.visit)
    out: dict[str, Json] = {"message": d.evaluate.text(asked["message"], names), "options": asked["options"]}
    if "data" in asked:
        out["data"] = d.evaluate.value(asked["data"], names)
    if "schema" in asked:
        out["schema"] = asked["schema"]
    out["digest"] = digest({"run": d.run.id, "path": path_of(p.scope, p.state), "visit": p.visit, "shown": out})[:16]
    return out


def over(d: Draft, p: Position) -> None:
    """Nobody answered in time."""
    p = d.put(timer.without(p))
    walk.follow(d, p.scope, walk.failed(d, p, "timeout", "nobody answered in time"))


# --- to answer ---


def standing(at: Checkpoint, state: str | None, visit: int | None = None) -> list[Position]:
    """The questions that stand, or the one of this path, in any visit or in this one."""
    asked = [p for p in at.positions.values() if p.phase is Phase.ASKED and visit in (None, p.visit)]
    return [p for p in asked if state in (None, path_of(p.scope, p.state))]


def answer(d: Draft, event: Answer) -> None:
    """A person answers. Raises Usage, PlanRefused or NotPossible, and then nothing has changed."""
    p = _meant(d, event)
    where = f"run {d.run.id}: {path_of(p.scope, p.state)}"
    if timer.is_over(p, d.run.paused_at, event.now, event.clock, event.boot):
        said = f"the time to answer is over since {moment_text(p.due or 0)}: `durun resume {d.run.id}` goes on"
        raise NotPossible(f"{where}: {said}; nothing was changed")
    if event.digest is not None and event.digest != p.wants["digest"]:
        said = f"what is asked has the digest {p.wants['digest']}, not {event.digest}"
        raise NotPossible(f"{where}: {said}: look again with `durun show {d.run.id}`; nothing was changed")
    option = _option(where, p.wants["options"], event)
    if not option["reject"]:
        _filled_in(where, p.wants, event)
    _record(d, p, event, option)


def _meant(d: Draft, event: Answer) -> Position:
    run = d.run
    what = f"state {event.state} waits for no answer" if event.state else "nothing of it waits for an answer"
    if run.status in TERMINAL:
        raise NotPossible(f"run {run.id} has ended: it is {run.status}; nothing was changed")
    if run.cancel is not None:
        raise NotPossible(f"run {run.id} is being cancelled; nothing was changed")
    found = standing(d.at, event.state, event.visit)
    if not found and (asked := standing(d.at, None)):
        ways = some([path_of(p.scope, p.state) for p in asked])
        raise NotPossible(f"run {run.id}: {what}; name one that does: {ways}; nothing was changed")
    if not found:
        raise NotPossible(f"run {run.id}: {what}; it is {run.status}: `durun show {run.id}`; nothing was changed")
    if len(found) > 1:
        names = some([path_of(p.scope, p.state) for p in sorted(found, key=lambda p: p.nth or 0)])
        raise NotPossible(f"run {run.id}: several states wait for an answer; name one of {names}")
    return found[0]


def _option(where: str, options: list[Option], event: Answer) -> Option:
    """The answer that is meant."""
    fits = [option for option in options if option["reject"] == event.reject]
    names = ", ".join(option["name"] for option in fits)
    word = "reject" if event.reject else "approve"
    if event.answer is None:
        if len(fits) == 1:
            return fits[0]
        raise Usage(f"{where}: say which with --answer: {names}" if fits else f"{where}: none of its answers is a no")
    found = next((option for option in options if option["name"] == event.answer), None)
    if found is None:
        raise PlanRefused(f"{where}: {event.answer!a} is none of its answers: `durun {word}` takes {names or 'none'}")
    if found not in fits:
        raise Usage(f"{where}: {event.answer} is {'no no' if event.reject else 'a no'}: `durun {word}` takes {names or 'none'}")
    return found


def _filled_in(where: str, wants: Json, event: Answer) -> None:
    from durun.plan.schema import validate

    problem = validate(wants["schema"], event.data) if "schema" in wants else None
    if problem is not None:
        raise PlanRefused(f"{where}: what is filled in does not fit: {problem}; give it with --data JSON; nothing was changed")


def _record(d: Draft, p: Position, event: Answer, option: Option) -> None:
    name, no, shown = option["name"], option["reject"], p.wants["digest"]
    d.move.answers.append(Answered(p.scope, p.state, p.visit, name, no, event.data, event.by, event.note, shown, event.now))
    d.tell("answered", p, None, answer=name, data=event.data, by=event.by, note=event.note, digest=shown)
    given = {"answer": name, "data": event.data, "by": event.by, "note": event.note, "at": moment_text(event.now)}
    p = d.put(timer.without(p))
    if not no:
        return walk.follow(d, p.scope, walk.leave(d, p, None, output=given))
    said = f"{event.by} said {name}" + (f": {event.note}" if event.note else "")
    error = walk.error_of(p, "rejected", said, output=given)
    return walk.follow(d, p.scope, walk.after_error(d, p, error, None))


def said_before(run: str, before: Answered, event: Answer) -> str:
    """In words that this was said before, by the same person. Raises NotPossible where something else was."""
    who = f"run {run}: {path_of(before.scope, before.state)} (visit {before.visit})"
    same_answer = before.reject == event.reject and event.answer in (None, before.answer) and before.data == event.data
    if same_answer and before.by == event.by and event.digest in (None, before.digest):
        return f"{who} is answered already: {before.answer}, by {before.by}"
    said = f"{before.by} answered {before.answer} at {moment_text(before.at)}"
    raise NotPossible(f"{who} is answered already: {said}; nothing was changed")

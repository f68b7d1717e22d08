"""A poll: the same effect again, each round with its own key, until a condition held so many times in a row.

Rules:
- one visit and one row of the effect log; the attempt number is the round's
- `assign` is done after each round, the next request is rendered from what it left
- a round that ended in an error, or in doubt, counts as "not yet" and ends the row of times in a row
- no round begins after the end of `for`, which keeps its length as a wait does; as soon as none fits any more the error is
  `timeout`, and it has the last answer
- taken up again after it failed it has all of `for` before it, and goes on with the next round
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine import clock, doubt, request, undo, walk
from durun.machine.draft import Draft
from durun.machine.model import Effect, Phase, Position
from durun.machine.outcome import DONE, IN_DOUBT, Outcome

Json = Any


def key_of(d: Draft, p: Position, round: int) -> str:
    """The key of one round: its own, so that the far side can tell one asking from the next."""
    template = d.state(p).get("key")
    if template is None:
        return d.key(p, "round", str(round))
    return f"{walk.own_key(d, p, template)}/{round}"


def begin(d: Draft, p: Position) -> Position:
    """The position at its first round, with the time at which no further round may begin."""
    until, window = clock.window(d, _length(d, p, "lasts"))
    return p._replace(round=1, streak=0, until=until, window=window)


def _length(d: Draft, p: Position, word: str) -> int:
    from durun.plan.units import duration

    given = d.state(p)["poll"][word]  # type: ignore[literal-required]
    if isinstance(given, int):
        return given
    try:
        return duration(d.evaluate.text(given, d.names(p.scope, visit=p.visit)))
    except ValueError as e:
        raise ExpressionError(f"poll: {e}") from None


def goes_on(d: Draft, p: Position) -> bool:
    """Whether the state of a position polls, and another round may follow one that failed."""
    return "poll" in d.state(p) and d.run.cancel is None and not p.stopping


def not_yet(d: Draft, p: Position, outcome: Outcome | None, answer: Json = None) -> str | None:
    """A round that gave no answer that counts. `outcome` is None where nobody knows how it ended."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    if outcome is not None:
        d.put_effect(effect._replace(status=outcome.how, exit=outcome.exit, ended_at=d.moment.now))
    else:
        d.put_effect(effect._replace(status=IN_DOUBT, ended_at=d.moment.now))
    return _next_round(d, p._replace(streak=0), answer, outcome)


def answered(d: Draft, p: Position, output: Json) -> str | None:
    """A round that gave an answer: enough, or another round."""
    assert p.effect is not None
    state = d.state(p)
    try:
        changed = _assigned(d, p, output)
        held = d.evaluate.condition(state["poll"]["until"], d.names(p.scope, visit=p.visit, output=output))
    except walk.AssignError as e:
        return walk.done_but(d, p, e.name, e.message)
    except ExpressionError as e:
        return walk.done_but(d, p, "expression", f"in until: {e}")
    p = p._replace(streak=p.streak + 1 if held else 0)
    if p.streak >= state["poll"]["times"]:
        return walk.finish(d, p, output, changed=changed)
    if changed:
        d.tell("assigned", p, p.round, vars=changed)
    if d.run.cancel is not None or p.stopping:  # no further round begins
        undo.learnt(d, p, DONE, output=output)
        doubt.told_to_stop(d, p)
        return None
    return _next_round(d, p, output)


def _assigned(d: Draft, p: Position, output: Json) -> dict[str, Json]:
    """`assign` after a round: it sees the state as if it had ended with this one. Raises AssignError."""
    wanted, before = d.state(p)["assign"], d.row(p.scope, p.state)
    if not wanted:
        return {}
    assert p.effect is not None
    effect = d.effect(p.effect)
    d.put_row(walk.ended(before, p, output=output, effect=effect.no, has_output=output is not None, exit=effect.exit))
    try:
        return walk.assign(d, p, wanted, output=output, key=effect.key)
    finally:
        d.put_row(before)


def _next_round(d: Draft, p: Position, output: Json, failed: Outcome | None = None) -> str | None:
    """Waits for the next round, with its key and request frozen now."""
    try:
        every = _length(d, p, "every")
        if d.state(p)["kind"] == "http":
            every = max(every, request.asked_to_wait(output, d.moment.now))
        if every > clock.window_left(d, p):
            return _out_of_time(d, p, output, failed)
        stands = _round(d, p, p.round + 1)
    except ExpressionError as e:
        return walk.done_but(d, p, "expression", str(e))
    d.put(walk.timed(d, stands, d.moment.now + every, every))
    return None


def _round(d: Draft, p: Position, round: int) -> Position:
    """The intent of a round, left waiting: its key and request are frozen now. Raises ExpressionError."""
    assert p.effect is not None
    key = key_of(d, p, round)
    names = d.names(p.scope, visit=p.visit, key=key)
    request = walk.render(d, d.state(p)["act"], names, capture="output" in d.state(p))
    fresh = {"key": key, "request": request, "attempt": round, "first_at": None, "boot": None, "place": None, "error": None}
    before = d.effect(p.effect)
    d.put_effect(before._replace(status="waiting", **fresh))
    return p._replace(phase=Phase.DELAYED, round=round, before=[before.status, before.key], doubts=0, asking=None, cause=None)


def is_over(d: Draft, p: Position) -> bool:
    """Whether the time of a poll was over before a round that waited could begin. The first one begins whenever it can."""
    return "poll" in d.state(p) and p.round > 1 and clock.window_left(d, p) < 0


def has_asked(d: Draft, p: Position) -> bool:
    """Whether a position polls, and the round that waits is not its first."""
    return p.round > 1 and "poll" in d.state(p)


def late(d: Draft, p: Position) -> str | None:
    """A round that waited never begins."""
    _as_before(d, p)
    return _out_of_time(d, p._replace(round=p.round - 1))


def withdraw(d: Draft, p: Position) -> None:
    """The same, where its run or what it is a part of ends without it: what the rounds before may have done is not forgotten."""
    effect = _as_before(d, p)
    undo.learnt(d, p, effect.status, output=effect.output)


def _as_before(d: Draft, p: Position) -> Effect:
    """The effect stands as the round before the one that waits left it, with its key."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    how, key = p.before or (IN_DOUBT, effect.key)
    return d.put_effect(effect._replace(status=how, key=key, attempt=p.round - 1, ended_at=d.moment.now))


def taken_up(d: Draft, p: Position) -> str | None:
    """A person resumes a run whose poll failed: the next round now, and all of `for` before it."""
    assert p.effect is not None
    try:
        until, window = clock.window(d, _length(d, p, "lasts"))
        effect = d.effect(p.effect)
        begun = effect.status != "withdrawn"
        stands = _round(d, p._replace(until=until, window=window, streak=0), effect.attempt + begun)
    except ExpressionError as e:
        return walk.done_but(d, p, "expression", str(e))
    walk.begin_waiting(d, d.put(stands))
    return None


def _out_of_time(d: Draft, p: Position, output: Json = None, failed: Outcome | None = None) -> str | None:
    """No round fits any more; the error has the last answer, and says how the last round failed."""
    assert p.effect is not None
    answer = d.effect(p.effect)
    said = f"what was polled for did not come in time, in {p.round} rounds"
    said += f"; the last ended in {failed.name}: {failed.message}" if failed is not None else ""
    last = output if output is not None else answer.output if answer.has_output else None
    return walk.after_error(d, p, walk.error_of(p, "timeout", said, attempt=p.round, output=last), None)

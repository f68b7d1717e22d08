"""A poll: the same effect again, each round with its own key, until a condition held so many times in a row.

Rules:
- one visit and one row of the effect log; the attempt number is the round's
- `assign` is done after each round, the next request is rendered from what it left
- a round that ended in an error, or in doubt, counts as "not yet" and ends the row of times in a row
- no round begins after the end of `for`; as soon as none fits any more the error is `timeout`, and it has the last answer
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine import doubt, request, undo, walk
from durun.machine.draft import Draft
from durun.machine.model import Phase, Position
from durun.machine.outcome import DONE, IN_DOUBT, Outcome

Json = Any


def key_of(d: Draft, p: Position, round: int) -> str:
    """The key of one round: its own, so that the far side can tell one asking from the next."""
    template = d.state(p).get("key")
    if template is None:
        return d.key(p, "round", str(round))
    return f"{d.evaluate.text(template, d.names(p.scope, visit=p.visit))}/{round}"


def begin(d: Draft, p: Position) -> Position:
    """The position at its first round, with the time at which no further round may begin."""
    lasts = _length(d, p, "lasts")
    return p._replace(round=1, streak=0, until=d.moment.now + lasts)


def _length(d: Draft, p: Position, word: str) -> int:
    from durun.plan.units import duration

    given = d.state(p)["poll"][word]  # type: ignore[literal-required]
    if isinstance(given, int):
        return given
    try:
        return duration(d.evaluate.text(given, d.names(p.scope, visit=p.visit)))
    except ValueError as e:
        raise ExpressionError(f"poll: {e}") from None


def not_yet(d: Draft, p: Position, outcome: Outcome | None, answer: Json = None) -> str | None:
    """A round that gave no answer that counts. `outcome` is None where nobody knows how it ended."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    if outcome is not None:
        d.put_effect(effect._replace(status=outcome.how, exit=outcome.exit, ended_at=d.moment.now))
    else:
        d.put_effect(effect._replace(status=IN_DOUBT, ended_at=d.moment.now))
    return _next_round(d, p._replace(streak=0), answer)


def answered(d: Draft, p: Position, output: Json) -> str | None:
    """A round that gave an answer: enough, or another round."""
    assert p.effect is not None
    state = d.state(p)
    try:
        changed = walk.assign(d, p, state["assign"], output=output, key=d.effect(p.effect).key)
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


def _next_round(d: Draft, p: Position, output: Json) -> str | None:
    """Waits for the next round, with its key and request frozen now."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    try:
        every = _length(d, p, "every")
        if d.state(p)["kind"] == "http":
            every = max(every, request.asked_to_wait(output, d.moment.now))
        if p.until is None or d.moment.now + every > p.until:
            return _out_of_time(d, p, output)
        key = key_of(d, p, p.round + 1)
        names = d.names(p.scope, visit=p.visit, key=key)
        frozen = walk.render(d, d.state(p)["act"], names, capture="output" in d.state(p))
    except ExpressionError as e:
        return walk.done_but(d, p, "expression", str(e))
    stands = p._replace(phase=Phase.DELAYED, round=p.round + 1, doubts=0, asking=None, cause=None)
    d.put(walk.timed(d, stands, d.moment.now + every, every))
    d.put_effect(
        effect._replace(
            status="waiting",
            key=key,
            request=frozen,
            attempt=p.round + 1,
            first_at=None,
            boot=None,
            place=None,
            error=None,
        )
    )
    return None


def _out_of_time(d: Draft, p: Position, output: Json) -> str | None:
    assert p.effect is not None
    error = {
        "name": "timeout",
        "message": f"what was polled for did not come in time, in {p.round} rounds",
        "state": p.state,
        "visit": p.visit,
        "attempt": p.round,
        "output": output,
    }
    return walk.after_error(d, p, error, None)

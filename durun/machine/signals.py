"""Signals: word from outside, that goes to the oldest wait of its name, or is kept for one that is still to come.

Rules:
- first in, first out by name; a wait takes the first whose payload fits its schema, the others stay for another wait
- a payload that fits no wait of its name in the whole plan, and a name that none waits for, are refused to the sender
- one that is sent to a child goes to a wait of that child which stands; it is not kept, for another wait might take it
- a signal may bring an error, which the wait then ends with; a payload beside it is the `output` of that
- a wait has one timer for two ends: its whole time, and the longest silence; `beyond` is what is left of the first after it
- what nobody took is named when the run ends
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from durun.errors import NotPossible, PlanRefused
from durun.machine import asks, timer, walk
from durun.machine.draft import Draft
from durun.machine.events import Alive, Moment, Signal
from durun.machine.model import TERMINAL, Phase, Position, Sent
from durun.machine.scope import parts, under
from durun.plan.canonical import Plan, State, states_of

Json = Any


def waits(plan: Plan) -> Iterator[State]:
    """The states of a plan that wait for a signal."""
    for state in states_of(plan):
        if "signal" in state.get("wait", {}):
            yield state


def unfit(state: State, sent: Signal | Sent) -> str | None:
    """Why the wait of this state does not take what was sent, or None. An error fits everywhere."""
    from durun.plan.schema import validate

    wait = state["wait"]
    return validate(wait["schema"], sent.payload) if sent.error is None and "schema" in wait else None


# --- to wait ---


def begin(d: Draft, p: Position, state: State) -> str | None:
    """Waits for a signal, or takes one that came early and goes on."""
    wait = state["wait"]
    whole, silence = asks.lasting(d, p, state.get("timeout")), asks.lasting(d, p, wait.get("heartbeat"))
    p = p._replace(phase=Phase.LISTENING, target=None, wants={"signal": wait["signal"], "heartbeat": silence})
    p = d.put(_timed(p, whole, d.moment))
    d.tell("listening", p, None, signal=wait["signal"], due=p.due)
    for sent in kept(d):
        if sent.name == wait["signal"] and unfit(state, sent) is None:
            return _take(d, p, sent)
    return None


def _timed(p: Position, whole: int | None, since: Moment | Alive) -> Position:
    """The timer that comes first: the end of the whole time, or of the silence."""
    silence = p.wants["heartbeat"]
    if silence is None and whole is None:
        return p
    length = min(n for n in (silence, whole) if n is not None)
    beyond, at = None if whole is None else whole - length, since.now
    return p._replace(due=at + length, length=length, set_at=at, clock=since.clock, boot=since.boot, beyond=beyond)


def kept(d: Draft) -> list[Sent]:
    """The signals nobody has taken, in the order they came."""
    return [sent for sent in {**d.at.signals, **d.move.signals}.values() if sent.taken is None]


def _take(d: Draft, p: Position, sent: Sent) -> str | None:
    """The wait ends with what was sent."""
    d.move.signals[sent.no] = sent._replace(taken=(p.scope, p.state, p.visit))
    d.tell("taken", p, None, signal=sent.name, no_of_signal=sent.no, by=sent.by, error=sent.error)
    p = d.put(timer.without(p))
    if sent.error is None:
        return walk.leave(d, p, None, output=sent.payload)
    return walk.after_error(d, p, walk.error_of(p, sent.error, sent.message, output=sent.payload), None)


def over(d: Draft, p: Position) -> None:
    """Its whole time is over, or the silence was too long."""
    name, late = p.wants["signal"], p.beyond == 0
    said = f"the signal {name} did not come in time" if late else f"there was no sign of life of the signal {name}"
    p = d.put(timer.without(p))
    walk.follow(d, p.scope, walk.failed(d, p, "timeout" if late else "heartbeat", said))


# --- what is sent ---


def signal(d: Draft, event: Signal) -> None:
    """Word comes: to the oldest wait that takes it, or kept. Raises NotPossible or PlanRefused, and then nothing has changed."""
    _hears(d, event.name)
    problems = [unfit(state, event) for state in waits(d.plan) if state["wait"]["signal"] == event.name]
    if all(problems):
        raise PlanRefused(f"run {d.run.id}: the payload of {event.name} does not fit: {problems[0]}; nothing was changed")
    p = next((p for p in _listening(d, event) if unfit(d.state(p), event) is None), None)
    if p is None and event.within:
        said = f"nothing in {event.within[:-1]} takes the signal {event.name} now"
        raise NotPossible(f"run {d.run.id}: {said}; `durun signal {d.run.id} {event.name}` leaves it for any wait of the run")
    no = d.run.next_signal
    d.set_run(next_signal=no + 1)
    sent = Sent(no, event.name, event.payload, event.error, event.message, event.dedupe, event.by, event.now)
    d.move.signals[no] = sent
    d.tell("signal", None, None, signal=sent.name, no_of_signal=no, by=sent.by, error=sent.error, dedupe=sent.dedupe)
    if p is not None:
        walk.follow(d, p.scope, _take(d, p, sent))


def _hears(d: Draft, name: str) -> None:
    run = d.run
    if run.status in TERMINAL:
        raise NotPossible(f"run {run.id} has ended: it is {run.status}; nothing was changed")
    if run.cancel is not None:
        raise NotPossible(f"run {run.id} is being cancelled; nothing was changed")
    if run.undoing is not None:
        raise NotPossible(f"run {run.id} compensates: nothing of it waits for a signal any more; nothing was changed")
    names = sorted({state["wait"]["signal"] for state in waits(d.plan)})
    if name not in names:
        known = f"it waits for {', '.join(names)}" if names else "it waits for none"
        raise NotPossible(f"run {run.id}: its plan never waits for a signal {name!a}: {known}; nothing was changed")


def _listening(d: Draft, event: Signal | Alive) -> list[Position]:
    """The waits for this name whose time is not over, the oldest first."""
    found = [
        p
        for p in d.positions()
        if p.phase is Phase.LISTENING
        and p.wants["signal"] == event.name
        and _is_for(d, event, p)
        and not timer.is_over(p, d.run.paused_at, event.now, event.clock, event.boot)
    ]
    return sorted(found, key=lambda p: p.entered_at)


def _is_for(d: Draft, event: Signal | Alive, p: Position) -> bool:
    """Whether a wait is of the run, or of the child, that is spoken to."""
    if not event.within:
        return True
    calls = d.found(parts(event.within)[-1].scope)
    return under(p.scope, event.within) and calls is not None and calls.visit == event.visit


def alive(d: Draft, event: Alive) -> None:
    """A sign of life: the silence begins anew, the whole time does not. Raises NotPossible."""
    _hears(d, event.name)
    found = [p for p in _listening(d, event) if p.wants["heartbeat"] is not None]
    if not found:
        said = f"nothing of it waits for a sign of life of {event.name} now"
        raise NotPossible(f"run {d.run.id}: {said}: `durun show {d.run.id}`; nothing was changed")
    for p in found:
        left = timer.left_when(p, d.run.paused_at, event.now, event.clock, event.boot)
        d.put(_timed(p, None if p.beyond is None else left + p.beyond, event))


def left_over(d: Draft) -> None:
    """Names what nobody took, when the run has ended."""
    if d.run.status in TERMINAL and d.at.run.status not in TERMINAL and (left := kept(d)):
        d.tell("signals_left", None, None, signals=[{"name": s.name, "no": s.no, "by": s.by} for s in left])

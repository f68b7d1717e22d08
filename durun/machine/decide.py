"""The rules: `decide(plan, checkpoint, event) -> move`. Pure: no clock, no file, no chance, no log.

The core owns what happens next and whether something is allowed; the edge owns when, where and with what process.

| phase \\ event | Go | Due | Ended, CouldNotStart | Lost | Moved | Settle | Resolve | TakeUp |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| ready | on | | | | | | | where paused |
| acting | | | outcome | in doubt | issued again | | | where paused |
| delayed | | begin | | | | | | where paused |
| waiting | | on | | | | | | where paused |
| lost | | | | | | settled | settled | where paused |
| probing | | begin | answer | again | issued again | | | where paused |
| doubt | | | | | | | settled | where paused |
| held | | | | | | begin | | where paused |
| failed | | | | | | | happened | again |
| ended | | | | | | | | |

Cancel and Pause are heard in every phase of a run that has not ended; TimeOver, RanOn, Rebooted and NotStopped speak of the run
as a whole. What is not in the table raises NotPossible, and then nothing has changed.
"""

from __future__ import annotations

from typing import Any

from durun.errors import NotPossible
from durun.machine import clock, control, doubt, stopping, walk
from durun.machine.draft import Draft, Evaluate
from durun.machine.events import (
    Cancel,
    CouldNotStart,
    Due,
    Ended,
    Go,
    Happening,
    Lost,
    Moment,
    Moved,
    NotStopped,
    Pause,
    RanOn,
    Rebooted,
    Resolve,
    Settle,
    TakeUp,
    TimeOver,
)
from durun.machine.model import TERMINAL, Checkpoint, Move, Phase, Position, Run, Status
from durun.plan.canonical import Plan


def begin(plan: Plan, run: Run, moment: Moment, evaluate: Evaluate) -> Move:
    """The first move of a run: from its start to the first thing it has to wait for."""
    d = Draft(plan, Checkpoint(run), moment, evaluate)
    clock.fresh(d)
    d.tell("started", None, None, input=run.input, vars=run.vars)
    walk.walk(d, "", plan["start"])
    d.settle_status()
    clock.settle(d)
    return d.move


def decide(plan: Plan, at: Checkpoint, event: Happening, moment: Moment, evaluate: Evaluate) -> Move:
    """The rows that change and the effects to begin. Raises NotPossible, and then nothing has changed."""
    d = Draft(plan, at, moment, evaluate)
    clock.count(d, event)
    match event:
        case Cancel():
            control.cancel(d, event)
        case Pause():
            control.pause(d, event)
        case TakeUp():
            control.take_up(d)
        case TimeOver():
            stopping.time_over(d)
        case NotStopped():
            stopping.not_stopped(d, event)
        case RanOn():
            clock.ran_on(d, event.effect)
        case Rebooted():
            clock.rebooted(d)
        case Resolve():
            doubt.resolve(d, _one(d, event), event)
        case _:
            _at_position(d, _position_of(d, event), event)
    d.settle_status()
    clock.settle(d)
    return d.move


def _at_position(d: Draft, p: Position, event: Any) -> None:
    if d.run.status in TERMINAL:
        raise NotPossible(f"run {d.run.id} has ended: it is {d.run.status}")
    match p.phase, event:
        case Phase.READY, Go():
            walk.walk(d, p.scope, p.target or "")
        case (Phase.ACTING, Ended() | CouldNotStart()) if event.effect == p.effect:
            walk.acted(d, p, event)
        case (Phase.ACTING, Lost()) if event.effect == p.effect:
            doubt.lost(d, p, event.why)
        case (Phase.ACTING | Phase.PROBING, Moved()) if event.effect == (p.asking or p.effect):
            walk.moved(d, p, event.effect)
        case Phase.DELAYED | Phase.PROBING, Due():
            walk.begin_waiting(d, p)
        case Phase.WAITING, Due():
            walk.waited(d, p)
        case Phase.LOST, Settle():
            doubt.settle(d, p)
        case Phase.HELD, Settle():
            walk.begin_waiting(d, p)
        case (Phase.PROBING, Ended() | CouldNotStart()) if event.effect == p.asking:
            doubt.answered(d, p, event)
        case (Phase.PROBING, Lost()) if event.effect == p.asking:
            doubt.ask_again(d, p)
        case _:
            raise NotPossible(f"run {d.run.id}: {type(event).__name__.lower()} says nothing to a position that is {p.phase}")


def _position_of(d: Draft, event: Any) -> Position:
    if isinstance(event, Go | Due | Settle):
        found = d.at.positions.get(event.scope)
    else:
        found = next((p for p in d.at.positions.values() if event.effect in (p.effect, p.asking)), None)
    if found is None:
        raise NotPossible(f"run {d.run.id} stands nowhere that {event!r} speaks of")
    return found


def _one(d: Draft, event: Resolve) -> Position:
    """The position a person means: the one named, else the only one that can be meant."""
    open_ones = [p for p in d.at.positions.values() if p.phase in (Phase.DOUBT, Phase.LOST, Phase.FAILED)]
    named = [p for p in open_ones if event.state is None or _path(p) == event.state]
    if d.run.status in (Status.SUCCEEDED, Status.CANCELLED) or not named:
        what = f"state {event.state}" if event.state else "nothing"
        raise NotPossible(f"run {d.run.id}: {what} of it is in doubt; it is {d.run.status}")
    if len(named) > 1:
        raise NotPossible(f"run {d.run.id}: several states are in doubt; name one of " + ", ".join(map(_path, named)))
    return named[0]


def _path(p: Position) -> str:
    return f"{p.scope}.{p.state}" if p.scope else p.state

"""The rules: `decide(plan, checkpoint, event) -> move`. Pure: no clock, no file, no chance, no log.

The core owns what happens next and whether something is allowed; the edge owns when, where and with what process.

| phase \\ event | Go | Due | Ended, Answered, CouldNotStart | Lost | Moved | Settle | Resolve | Answer | Alive | TakeUp |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| ready | on | | | | | | | | | where paused |
| acting | | | outcome | in doubt | issued again | | | | | where paused |
| delayed | | begin | | | | | | | | where paused |
| queued | | begin, where its time is over | | | | | | | | where paused |
| waiting | | on | | | | | | | | where paused |
| asked | | timeout | | | | | | on | | where paused |
| listening | | timeout | | | | | | | renewed | where paused |
| lost | | | | | | settled | settled | | | where paused |
| probing | | begin | answer | again | issued again | | | | | where paused |
| doubt | | | | | | | settled | | | where paused |
| held | | | | | | begin | | | | begin |
| inside | | | | | | | | | | where paused |
| failed | | | | | | | happened | | | again |
| ended | | | | | | | | | | |

Cancel, Pause and Signal are heard in every phase of a run that has not ended, a TakeUp that names a state in every phase of one
that has failed, one of failed items in every phase of one that has succeeded; Compensate in any, unless it is compensated. A run
that compensates takes NextUndo and NothingOwed, and Resolve says what `undo` makes of it. TimeOver, RanOn, Rebooted, NotStopped,
Drifted, AcceptDrift, Rewind and Looked speak of the run as a whole: with the last one, and with every other, what is queued
begins where it has its turn. OnceInDoubt is heard where its attempt is under way, and dropped elsewhere. A run that is blocked as
`restored` takes AfterRestore, and nothing else. What is not in the table raises NotPossible, and then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from durun.errors import NotPossible
from durun.machine import (
    asks,
    clock,
    control,
    doubt,
    drift,
    message,
    once_step,
    plainly,
    request,
    restored,
    rewind,
    signals,
    stopping,
    undo,
    walk,
)
from durun.machine.draft import Draft, Evaluate, fits
from durun.machine.events import (
    AcceptDrift,
    AfterRestore,
    Alive,
    Answer,
    Answered,
    Cancel,
    Compensate,
    CouldNotStart,
    Drifted,
    Due,
    Ended,
    Go,
    Happening,
    Looked,
    Lost,
    Moment,
    Moved,
    NextUndo,
    NothingOwed,
    NotStopped,
    OnceInDoubt,
    Pause,
    RanOn,
    Rebooted,
    Resolve,
    Rewind,
    Settle,
    Signal,
    TakeUp,
    TimeOver,
)
from durun.machine.model import TERMINAL, Checkpoint, Move, Phase, Position, Run, Status
from durun.machine.scope import path_of, some, without_once
from durun.plan.canonical import Plan


def begin(plan: Plan, run: Run, moment: Moment, evaluate: Evaluate, pause: Pause | None = None, group: str | None = None) -> Move:
    """The first move of a run: from its start to the first thing it has to wait for; with `pause` it begins paused, and with
    `group` it waits for another run of its group."""
    d = Draft(plan, Checkpoint(run), moment, evaluate)
    clock.fresh(d)
    d.tell("started", None, None, input=run.input, vars=run.vars)
    d.put(Position("", plan["start"], 0, Phase.READY, target=plan["start"], entered_at=moment.now))
    if group is None:
        d.todo.append("")
        walk.run_on(d)
    else:
        from durun.machine import limits

        limits.queue_run(d, group)
    _share(d)
    d.settle_status()
    if pause is not None and d.run.status not in TERMINAL:
        control.pause(d, pause)
    message.notify(d)
    clock.settle(d)
    return d.move


def decide(plan: Plan, at: Checkpoint, event: Happening, moment: Moment, evaluate: Evaluate) -> Move:
    """The rows that change and the effects to begin. Raises NotPossible, and then nothing has changed."""
    d = Draft(plan, at, moment, evaluate)
    if at.run.restored is not None:
        restored.refuse(at.run, event)
    clock.count(d, event)
    lead_on(d, event)
    clock.settle(d)
    return d.move


def are_alike(plan: Plan, run: Run, events: Sequence[Happening]) -> bool:
    """Whether these events may be decided as one: commands of a run that goes on have ended, and nothing is reckoned between two
    of them, neither what is shared with other runs nor what somebody is to be told of, nor the time that is left."""
    if run.status in TERMINAL or run.restored is not None or not all(isinstance(event, Ended) for event in events):
        return False
    apart = any(word in plan for word in ("limits", "group", "notify"))
    return not apart and run.cancel is None and run.undoing is None and run.over_at is None


def decide_all(plan: Plan, at: Checkpoint, events: Sequence[Ended], moment: Moment, evaluate: Evaluate) -> Move:
    """One move of several ends that came together: each is heard and followed in its turn, as if the one before had been laid over
    the checkpoint. What follows for the run as a whole is worked out once. Raises NotPossible, and then nothing has changed."""
    d = Draft(plan, at, moment, evaluate)
    for event in events:
        clock.count(d, event)
        _at_position(d, _position_of(d, event), event)
        walk.run_on(d)
    d.settle_status()
    signals.left_over(d)
    clock.settle(d)
    return d.move


def lead_on(d: Draft, event: Happening) -> None:
    """What an event leads to; the account of the run's time is kept by whoever asks."""
    match event:
        case Ended():  # first, since it comes most
            _at_position(d, _position_of(d, event), event)
        case AfterRestore():
            restored.go_on(d, event)
        case Cancel():
            control.cancel(d, event)
        case Pause():
            control.pause(d, event)
        case TakeUp():
            control.take_up(d, event)
        case TimeOver():
            stopping.time_over(d)
        case OnceInDoubt():
            once_step.told(d, event)
        case NotStopped():
            stopping.not_stopped(d, event)
        case Looked():
            pass  # what follows begins it
        case RanOn():
            clock.ran_on(d, event.effect)
        case Rebooted():
            clock.rebooted(d)
        case Drifted():
            drift.found(d, event)
        case AcceptDrift():
            drift.accepted(d, event)
        case Rewind():
            rewind.wanted(d, event)
        case Resolve() if d.run.undoing is not None:
            undo.resolve(d, event)
        case Resolve():
            doubt.resolve(d, _one(d, event), event)
        case Compensate():
            undo.wanted(d, event)
        case NextUndo():
            undo.take_next(d, event)
        case NothingOwed():
            undo.ended(d, event)
        case Answer():
            asks.answer(d, event)
        case Signal():
            signals.signal(d, event)
        case Alive():
            signals.alive(d, event)
        case _:
            _at_position(d, _position_of(d, event), event)
    walk.run_on(d)
    _share(d)
    d.settle_status()
    signals.left_over(d)
    message.notify(d)


def _share(d: Draft) -> None:
    """Where the plan shares something with other runs: who has their turn, and what is taken and given back."""
    if "limits" in d.plan or "group" in d.plan:
        from durun.machine import limits

        limits.settle(d)


def may_begin(plan: Plan, at: Checkpoint, scope: str) -> bool:
    """Whether an effect that waits in this scope would find a place now, in every map and parallel around it."""
    return fits(plan, at.holders, scope)


def _at_position(d: Draft, p: Position, event: Any) -> None:
    if d.run.status in TERMINAL:
        raise NotPossible(f"run {d.run.id} has ended: it is {d.run.status}")
    match p.phase, event:
        case Phase.READY, Go():
            d.go(p.scope, p.target or "")
        case (Phase.ACTING, Ended()) if event.effect == p.effect:
            if not plainly.ended(d, p, event):
                walk.acted(d, p, event)
        case (Phase.ACTING, CouldNotStart()) if event.effect == p.effect:
            walk.acted(d, p, event)
        case (Phase.ACTING, Answered()) if event.effect == p.effect:
            request.answered(d, p, event)
        case (Phase.ACTING, Lost()) if event.effect == p.effect:
            doubt.lost(d, p, event.why)
        case (Phase.ACTING | Phase.PROBING, Moved()) if event.effect == (p.asking or p.effect):
            walk.moved(d, p, event.effect)
        case Phase.DELAYED | Phase.PROBING, Due():
            walk.begin_waiting(d, p)
        case Phase.QUEUED, Due() if p.effect is not None:
            walk.begin_waiting(d, p)
        case Phase.WAITING, Due():
            walk.waited(d, p)
        case Phase.ASKED, Due():
            asks.over(d, p)
        case Phase.LISTENING, Due():
            signals.over(d, p)
        case Phase.LOST, Settle():
            doubt.settle(d, p)
        case Phase.HELD, Settle():
            walk.begin_waiting(d, p)
        case (Phase.PROBING, Ended() | Answered() | CouldNotStart()) if event.effect == p.asking:
            doubt.answered(d, p, event)
        case (Phase.PROBING, Lost()) if event.effect == p.asking:
            doubt.ask_again(d, p)
        case _:
            raise NotPossible(f"run {d.run.id}: {type(event).__name__.lower()} says nothing to a position that is {p.phase}")


def _position_of(d: Draft, event: Any) -> Position:
    if isinstance(event, Go | Due | Settle):
        found = d.found(event.scope)
    else:
        effect = d.at.effects.get(event.effect)
        found = d.found(effect.scope) if effect is not None else None
        if found is not None and event.effect not in (found.effect, found.asking):
            found = None
    if found is None:
        raise NotPossible(f"run {d.run.id} stands nowhere that {event!r} speaks of")
    return found


def _one(d: Draft, event: Resolve) -> Position:
    """The position a person means: the one named, else the only one that can be meant."""
    if event.how == "undone":
        raise NotPossible(f"run {d.run.id} does not compensate: there is nothing to be undone")
    phases = (Phase.DOUBT, Phase.LOST, Phase.FAILED) if d.run.status is Status.FAILED else (Phase.DOUBT, Phase.LOST)
    open_ones = [p for p in d.at.positions.values() if p.phase in phases and d.stands(p)]
    if d.run.status is Status.FAILED and event.state is None:
        open_ones = [p for p in open_ones if p.effect is not None] or open_ones
    named = [p for p in open_ones if event.state is None or _path(p) == without_once(event.state)]
    named = [p for p in named if event.visit in (None, p.visit)]
    if d.run.status is Status.FAILED and len(named) != 1:
        raise NotPossible(f"run {d.run.id} has failed: {_failed(event, open_ones, named)}; nothing was changed")
    if d.run.status in (Status.SUCCEEDED, Status.CANCELLED) or not named:
        what = f"its state {event.state} is not in doubt" if event.state else "nothing of it is in doubt"
        others = f"; name one that is: {some(list(map(_path, open_ones)))}" if open_ones else ""
        raise NotPossible(f"run {d.run.id}: {what}{others}; it is {d.run.status}; nothing was changed")
    if len(named) > 1:
        raise NotPossible(f"run {d.run.id}: several states are in doubt; name one of " + some(list(map(_path, named))))
    return named[0]


def _failed(event: Resolve, open_ones: list[Position], named: list[Position]) -> str:
    """Why it is not known which state of a run that has failed a person means: none of it is in doubt any more."""
    if not open_ones:
        return "there is no state of it that could be taken as done by hand"
    if named:
        return f"several of its states have; name one of {some(list(map(_path, named)))}"
    return f"its state {event.state} has not; name one that has: {some(list(map(_path, open_ones)))}"


def _path(p: Position) -> str:
    return path_of(p.scope, p.state)

"""What people ask of a run from outside: cancel, pause, and to take it up again."""

from __future__ import annotations

from durun.errors import NotPossible, PlanRefused
from durun.machine import clock, doubt, fan, stopping, undo, walk
from durun.machine.draft import Draft
from durun.machine.events import Cancel, Pause, TakeUp
from durun.machine.model import TERMINAL, Phase, Position, Status
from durun.machine.outcome import IN_DOUBT, NOT_CERTAIN
from durun.machine.scope import path_of


def cancel(d: Draft, event: Cancel) -> None:
    """Withdraws what has not begun, has what has begun stopped, and ends the run when nothing of it lives."""
    run = d.run
    if run.status in TERMINAL:
        raise NotPossible(f"run {run.id} has ended: it is already {run.status}")
    if run.undoing is not None:
        raise NotPossible(f"run {run.id} compensates: what it undoes is not cut short; `durun show {run.id}` says what is left")
    if event.compensate:
        undo.turns_back(run, force=False)
    if run.cancel is None or stopping.is_over(run):
        d.tell("cancel_asked", None, None, by=event.by)
    then = {"then": "compensate"} if event.compensate or (run.cancel or {}).get("then") else {}
    d.set_run(cancel={"grace": event.grace, "by": event.by, "at": d.moment.now, **then})
    d.move.withdraw = True
    if run.status is Status.PAUSED:
        d.set_run(status=Status.RUNNING, paused_at=None)
    begun = [p for p in d.positions() if doubt.under_way(d, p)]
    if not begun:
        return doubt.cancelled(d)
    d.move.stop = [no for p in begun if (no := p.asking or p.effect) is not None]
    doubt.withdraw(d)


def pause(d: Draft, event: Pause) -> None:
    """The run stops at the next effect; what waits keeps the time it has left.

    One that is held with the whole file, and then paused by itself, stays paused when the file is held no more.
    """
    run = d.run
    if run.status in TERMINAL:
        raise NotPossible(f"run {run.id} has ended: it is already {run.status}")
    if run.status is Status.PAUSED and (event.reason or run.reason is None):
        raise NotPossible(f"run {run.id} is paused already: `durun resume {run.id}` goes on")
    if run.status is Status.PAUSED:
        d.set_run(reason=None, updated_at=d.moment.now)
        return d.tell("paused", None, None, by=event.by, reason=event.reason)
    d.set_run(status=Status.PAUSED, reason=event.reason or None, paused_at=d.moment.now, updated_at=d.moment.now)
    d.tell("paused", None, None, by=event.by, reason=event.reason)
    for p in d.positions():
        clock.anchor(d, p)


def take_up(d: Draft, event: TakeUp) -> None:
    """A person resumes a run that was paused, or that failed."""
    run = d.run
    if event.failed_items:
        from durun.machine import tolerated

        return tolerated.take_up(d, event.state)
    if event.state is not None:
        return _take_up_from(d, event.state)
    if run.status is Status.PAUSED:
        d.set_run(status=Status.RUNNING, paused_at=None)
        d.tell("resumed", None)
        for p in d.positions():
            clock.thaw(d, p)
        _begin_held(d)
        return
    if run.status not in TERMINAL and _begin_held(d):
        return
    if run.status is not Status.FAILED:
        raise NotPossible(f"run {run.id} is {run.status}: there is nothing to take up")
    failed = d.position("")
    if not walk.can_take_up(d, failed):
        raise NotPossible(
            f"run {run.id} ended where its plan says it ends: there is nothing to take up;"
            f" `durun resume {run.id} --from STATE` begins at a state of its plan,"
            f" `durun rewind {run.id} STATE` goes back to one it was in, with its data as they were then"
        )
    d.set_run(status=Status.RUNNING, reason=None, ended_by=None, ended_at=None)
    clock.fresh(d)
    d.tell("resumed", failed)
    walk.take_up(d, failed)


def _begin_held(d: Draft) -> int:
    """What a person had to mend first is begun; how many there are."""
    held = [p.scope for p in d.positions() if p.phase is Phase.HELD]
    for scope in held:
        p = d.found(scope)
        if p is not None and p.phase is Phase.HELD:  # what became of one before it may have stopped it
            walk.begin_waiting(d, p)
    return len(held)


def _take_up_from(d: Draft, state: str) -> None:
    """A run that failed is entered anew at a state of its own: a new visit, and with it a new key."""
    run = d.run
    if run.status is not Status.FAILED:
        raise NotPossible(f"run {run.id} is {run.status}: only one that failed can begin again at a state that is named")
    if state not in d.plan["states"]:
        known = ", ".join(d.plan["states"])
        raise PlanRefused(f"run {run.id}: its plan has no state {state!r}; it has {known}; nothing was changed")
    failed = d.position("")
    for p in d.positions() if failed.state == state else []:
        if d.stands(p) and _may_have_happened(d, p) and not doubt.idempotent(d, p):
            raise NotPossible(
                f"run {run.id}: whether {path_of(p.scope, p.state)} happened is not known, and a new visit would have another key:"
                f" `durun resume {run.id}` finds out or asks; nothing was changed"
            )
    d.set_run(status=Status.RUNNING, reason=None, ended_by=None, ended_at=None)
    clock.fresh(d)
    d.tell("resumed", failed, None, to=state)
    fan.let_go_of_all(d)
    d.go("", state)


def _may_have_happened(d: Draft, p: Position) -> bool:
    return p.effect is not None and (p.unsure or d.effect(p.effect).status in (NOT_CERTAIN, IN_DOUBT))

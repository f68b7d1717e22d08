"""What people ask of a run from outside: cancel, pause, and to take it up again."""

from __future__ import annotations

from durun.errors import NotPossible
from durun.machine import clock, doubt, poll, stopping, walk
from durun.machine.draft import Draft
from durun.machine.events import Cancel, Pause
from durun.machine.model import TERMINAL, Phase, Position, Status
from durun.machine.outcome import DONE, IN_DOUBT, NOT_CERTAIN


def cancel(d: Draft, event: Cancel) -> None:
    """Withdraws what has not begun, has what has begun stopped, and ends the run when nothing of it lives."""
    run = d.run
    if run.status in TERMINAL:
        raise NotPossible(f"run {run.id} has ended: it is already {run.status}")
    if run.cancel is None or stopping.is_over(run):
        d.tell("cancel_asked", None, None, by=event.by)
    d.set_run(cancel={"grace": event.grace, "by": event.by, "at": d.moment.now})
    if run.status is Status.PAUSED:
        d.set_run(status=Status.RUNNING, paused_at=None)
    under_way = [p.asking or p.effect for p in d.positions() if has_begun(d, p)]
    if under_way:
        d.move.stop = [no for no in under_way if no is not None]
        return
    doubt.cancelled(d)


def has_begun(d: Draft, p: Position) -> bool:
    """Whether something of a position is under way."""
    if p.phase not in (Phase.ACTING, Phase.PROBING):
        return False
    no = p.asking if p.phase is Phase.PROBING else p.effect
    return no is not None and d.effect(no).status == "begin"


def pause(d: Draft, event: Pause) -> None:
    """The run stops at the next effect; what waits keeps the time it has left."""
    run = d.run
    if run.status in TERMINAL:
        raise NotPossible(f"run {run.id} has ended: it is already {run.status}")
    if run.status is Status.PAUSED:
        raise NotPossible(f"run {run.id} is paused already: `durun resume {run.id}` goes on")
    d.set_run(status=Status.PAUSED, reason=None, paused_at=d.moment.now, updated_at=d.moment.now)
    d.tell("paused", None, None, by=event.by)
    for p in d.positions():
        clock.anchor(d, p)


def take_up(d: Draft) -> None:
    """A person resumes a run that was paused, or that failed."""
    run = d.run
    if run.status is Status.PAUSED:
        d.set_run(status=Status.RUNNING, paused_at=None)
        d.tell("resumed", None)
        for p in d.positions():
            clock.thaw(d, p)
        return
    if run.status is not Status.FAILED:
        raise NotPossible(f"run {run.id} is {run.status}: there is nothing to take up")
    failed = next((p for p in d.positions() if p.phase is Phase.FAILED), None)
    if failed is None:
        raise NotPossible(f"run {run.id} ended where its plan says it ends: there is nothing to take up")
    d.set_run(status=Status.RUNNING, reason=None, ended_by=None, ended_at=None)
    clock.fresh(d)
    d.tell("resumed", failed)
    _take_up_state(d, failed)


def _take_up_state(d: Draft, p: Position) -> None:
    """The state whose error ended the run, with a fresh budget: again what may be repeated, else a person is asked."""
    p = p._replace(failures=(0,) * len(p.failures), doubts=0, cause=None, asking=None)
    p = d.put(p._replace(entered_at=d.moment.now, since=d.run.driven))
    if p.target is not None:
        return walk.walk(d, p.scope, p.target)
    if d.state(p)["kind"] == "wait":
        return walk.walk(d, p.scope, p.state)  # a new visit
    if p.effect is None:
        p = d.put(p._replace(phase=Phase.READY, target=p.state))
        return walk.follow(d, p.scope, walk.begin_state(d, p))
    if "poll" in d.state(p):
        return walk.follow(d, p.scope, poll.taken_up(d, p))
    how = d.effect(p.effect).status
    if how == DONE and not doubt.idempotent(d, p):
        return doubt.block(d, p)
    if how in (NOT_CERTAIN, IN_DOUBT):
        d.put_effect(d.effect(p.effect)._replace(status=IN_DOUBT))
        return doubt.settle(d, p)
    return walk.again(d, p)

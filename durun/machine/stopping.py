"""What is stopped by the rules and not by a person: a run whose time is over. And what does not let itself be stopped.

Rules:
- a run whose time is over is told to stop as by a cancel (`run.cancel`, with the error it will end with); what is under way is
  not certain, what waits is ended, and then it has failed with `run_timeout`, which no catch takes
- each position stands as failed where it stood, so that `resume` takes it up, with a fresh time for the run
- a run is never cancelled while a group of it lives: where one outlives the last signal the run is blocked, until somebody
  asks again
"""

from __future__ import annotations

from typing import Any

from durun.errors import NotPossible
from durun.machine import doubt, fan, timer, undo, walk
from durun.machine.draft import Draft
from durun.machine.events import NotStopped
from durun.machine.model import TERMINAL, Phase, Position, Run, Status
from durun.machine.scope import parts

Json = Any
GRACE = 10_000  # ms between TERM and KILL
STANDING = (
    Phase.READY, Phase.ACTING, Phase.DELAYED, Phase.QUEUED, Phase.WAITING, Phase.ASKED, Phase.LISTENING, Phase.LOST, Phase.PROBING,
    Phase.DOUBT, Phase.HELD, Phase.INSIDE,
)  # fmt: skip


def why(run: Run) -> str:
    """Why the commands of a run are stopped, in a word."""
    return "run_timeout" if is_over(run) else "cancel"


def is_over(run: Run) -> bool:
    """Whether the run is being stopped because its time is over."""
    return run.cancel is not None and "error" in run.cancel


def has_no_time(run: Run) -> bool:
    """Whether the time of the run is over, and nobody has said so yet."""
    return run.cancel is None and run.undoing is None and run.over_at is not None and run.driven >= run.over_at


def time_over(d: Draft) -> None:
    """Has what is under way stopped; ends the run when nothing of it lives."""
    run = d.run
    if run.status in TERMINAL or not has_no_time(run):
        raise NotPossible(f"run {run.id} has time left, or is stopped already")
    p = d.position("")
    error = walk.error_of(p, "run_timeout", "the time of the run is over")
    d.set_run(cancel={"grace": GRACE, "by": "", "at": d.moment.now, "error": error})
    d.tell("time_over", p)
    under_way = [p.asking or p.effect for p in d.positions() if doubt.under_way(d, p)]
    d.move.stop = [no for no in under_way if no is not None]
    if not d.move.stop:
        return ended(d)
    for stands in d.positions():
        if stands.phase in STANDING and stands.phase is not Phase.INSIDE and not doubt.under_way(d, stands):
            _fail(d, stands)


def ended(d: Draft) -> None:
    """The run has failed, once nothing of it is under way any more."""
    if any(doubt.under_way(d, p) for p in d.positions()):
        return
    assert d.run.cancel is not None
    error, now = d.run.cancel["error"], d.moment.now
    for p in d.positions():
        if p.phase in STANDING:
            _fail(d, p)
    d.set_run(cancel=None, reason=None, error=error, ended_by=error, updated_at=now)
    d.tell("failed", d.position(""), error=error)
    if not undo.after_error(d):
        d.set_run(status=Status.FAILED, ended_at=now)


def _fail(d: Draft, p: Position) -> None:
    """The position as `resume` will find it: what it waited to begin is withdrawn."""
    fan.withdraw(d, p)
    target = p.target if p.phase is Phase.READY else None
    d.put(timer.without(p)._replace(phase=Phase.FAILED, target=target, asking=None, cause=None))
    if p.nth is not None:
        d.put_item(d.item(parts(p.scope)[-1].path, p.nth)._replace(status="stopped", error=fan.STOPPED))


def not_stopped(d: Draft, event: NotStopped) -> None:
    """A group outlived the last signal: a person must look, and may ask again."""
    run = d.run
    if run.status in TERMINAL or run.cancel is None:
        raise NotPossible(f"run {run.id} is {run.status}: nothing of it is being stopped")
    d.set_run(cancel={**run.cancel, "pids": list(event.pids), "keeper": event.keeper})
    d.tell("blocked", d.position(""), None, reason="not_stopped", pids=list(event.pids))

"""Time as the rules see it: how long a wait still is, what of a run's time counts, and how much of it is left.

Rules:
- a wait is due at a UTC time. One that has a length keeps it: within one boot the clock that counts suspend decides, after a
  reboot what is left is at most the length, and is bound to the new boot at once
- a run's time counts while it is driven or its commands run: not while it is paused, blocked or waits for people, not while
  nobody drives it, and not while the machine sleeps. A timer that a driver sits out counts
- it is known up to the last move, the last sign of the driver that died, and the ends its keeper noted; where nothing is known
  nothing is counted
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine.draft import Draft, Evaluate
from durun.machine.events import Ended, Moment
from durun.machine.model import Phase, Position, Run, Status, moves
from durun.machine.timer import left, remaining
from durun.plan.canonical import Plan
from durun.values import NamedTuple

Json = Any
TIMED = (Phase.DELAYED, Phase.WAITING, Phase.PROBING, Phase.QUEUED)  # what goes on by itself when its time has come


# --- waits ---


def window(d: Draft, length: int) -> tuple[int, Json]:
    """(until, window) of a poll that may last so long from now."""
    return d.moment.now + length, [length, d.moment.boot, d.moment.clock]


def window_left(d: Draft, p: Position) -> int:
    """Milliseconds in which a poll may still begin a round."""
    if p.until is None:
        return 0
    length, boot, clock = p.window or (None, None, None)
    return remaining(p.until, length, (boot, clock), (d.moment.now, d.moment.clock, d.moment.boot))


def anchor(d: Draft, p: Position) -> None:
    """What a position waits for is bound to this boot and this reading, with what is left of it."""
    m = d.moment
    if p.due is not None and p.length is not None:
        length = max(0, left(p, m.now, m.clock, m.boot))
        p = p._replace(due=m.now + length, length=length, set_at=m.now, boot=m.boot, clock=m.clock)
    if p.until is not None:
        until, span = window(d, max(0, window_left(d, p)))
        p = p._replace(until=until, window=span)
    d.put(p)


def thaw(d: Draft, p: Position) -> None:
    """What stood still goes on with the length it was frozen with."""
    m = d.moment
    if p.due is not None and p.length is not None:
        p = p._replace(due=m.now + p.length, set_at=m.now, boot=m.boot, clock=m.clock)
    if p.until is not None and p.window is not None:
        until, span = window(d, p.window[0])
        p = p._replace(until=until, window=span)
    d.put(p)


def rebooted(d: Draft) -> None:
    """Waits that were set in another boot are bound to this one: a clock that is wrong now lengthens them once at most."""
    for p in d.positions():
        if was_set_elsewhere(p, d.moment.boot):
            anchor(d, p)


def was_set_elsewhere(p: Position, boot: str) -> bool:
    """Whether something a position waits for is bound to another boot."""
    timer = p.due is not None and p.length is not None and p.boot != boot
    return timer or (p.until is not None and p.window is not None and p.window[1] != boot)


# --- the time of a run ---


def reading(m: Moment) -> int:
    return m.clock if m.awake is None else m.awake


def count(d: Draft, event: Json = None) -> None:
    """The time since the last move, and what a command ran on after its driver had died."""
    run, at = d.run, reading(d.moment)
    if run.awake is not None and run.awake != at and run.awake_boot == d.moment.boot:
        d.set_run(driven=run.driven + max(0, at - run.awake), awake=max(at, run.awake))
    if isinstance(event, Ended) and event.at is not None:
        ran_on(d, event.effect, event.at)


def settle(d: Draft) -> None:
    """Whether time counts from here on, as the run stands after the move."""
    run = d.run
    counts = run.status is Status.RUNNING or (run.status is Status.WAITING and any(_goes_on(p) for p in d.positions()))
    if counts:
        at = reading(d.moment)
        if run.awake != at or run.awake_boot != d.moment.boot:
            d.set_run(awake=at, awake_boot=d.moment.boot)
    elif run.awake is not None:
        d.set_run(awake=None)


def _goes_on(p: Position) -> bool:
    if p.phase is Phase.QUEUED and "group" in p.wants:
        return False  # its own time has not begun
    return p.phase in TIMED or moves(p)


def elapsed(d: Draft, p: Position) -> int:
    """How much of the run's time this visit has used."""
    return d.run.driven - p.since


class Account(NamedTuple):
    """What is stored of a run's time; see the fields of Run."""

    driven: int
    awake: int | None
    boot: str | None
    gap: Json


def taken_over(was: Account, sign: tuple[str, int] | None, now: int | None, boot: str) -> Account:
    """The account when another driver takes the run: counted up to the last sign of the one before (boot, reading).

    `now` is the reading of the new one; from there on its own time counts.
    """
    if was.awake is None:
        return was
    same = was.boot == boot and now is not None
    to = max(was.awake, sign[1]) if sign is not None and sign[0] == was.boot else was.awake
    if same and now is not None:
        to = max(was.awake, min(to, now))
    return Account(was.driven + to - was.awake, now, boot, [was.boot, to, now if same else None])


def ran_on(d: Draft, no: int, at: int | None = None) -> None:
    """A command that a dead driver had begun ran on: until the reading `at`, or until the run was taken over."""
    gap = d.run.gap
    if gap is None or d.effect(no).boot != gap[0]:
        return
    boot, since, end = gap
    to = end if at is None else at if end is None else min(at, end)
    if to is not None and to > since:
        d.set_run(driven=d.run.driven + to - since, gap=[boot, to, end])


def unaccounted(run: Run) -> bool:
    """Whether there is time in which a command may have run on that is not counted yet."""
    return run.gap is not None and run.gap[2] is not None and run.gap[2] > run.gap[1]


# --- how much of it there is ---


def allowance(plan: Plan, evaluate: Evaluate, names: dict[str, Json]) -> int | None:
    """The time a plan gives a run, in ms; None where it gives any. Raises ExpressionError."""
    from durun.plan.units import duration

    given = plan.get("timeout")
    if given is None or isinstance(given, int):
        return given
    try:
        return duration(evaluate.text(given, names))
    except ValueError as e:
        raise ExpressionError(f"timeout: {e}") from None


def fresh(d: Draft) -> None:
    """The run has all its time before it (again)."""
    allowed = allowance(d.plan, d.evaluate, {"input": d.run.input})
    d.set_run(over_at=None if allowed is None else d.run.driven + allowed)


def over_in(run: Run, awake: int, boot: str) -> int | None:
    """Milliseconds until the run's time is over; None where it has no end, or does not count now."""
    if run.over_at is None or run.awake is None or run.cancel is not None or run.undoing is not None:
        return None
    since = max(0, awake - run.awake) if run.awake_boot == boot else 0
    return run.over_at - run.driven - since

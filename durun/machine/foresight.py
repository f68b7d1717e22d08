"""What the plain end of a command leads to, worked out while it still runs: the next step begins the sooner.

Rules:
- it is `decide` itself, asked beforehand; what it answers is a move only once just this end has been heard, and then it is the very
  move that `decide` makes of it (tests/machine/test_foresight.py holds the two equal)
- when the command will have ended is not known yet: a rule that only notes the time gets it later, one that reckons with it, or
  asks what has come, gives up; so does chance
- only the ordinary is foreseen: one position, a command that ends with 0, and another command after it. All else is decided when
  it comes
"""

from __future__ import annotations

from typing import Any, NoReturn

from durun.errors import NotPossible
from durun.machine import clock
from durun.machine.decide import lead_on
from durun.machine.draft import Draft, Evaluate
from durun.machine.events import Ended, Moment
from durun.machine.model import Checkpoint, Effect, Move, Phase
from durun.plan.canonical import Plan
from durun.values import NamedTuple


class Unforeseen(Exception):
    """Something hangs on a time that is not known yet."""


class Later:
    """A time that is not known yet: it can be noted, and nothing else."""

    def _unforeseen(self, *_: Any) -> NoReturn:
        raise Unforeseen

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _unforeseen
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __neg__ = __abs__ = __float__ = __int__ = __bool__ = __index__ = _unforeseen
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __str__ = __repr__ = __format__ = _unforeseen
    __hash__ = _unforeseen


LATER: Any = Later()


class Foreseen(NamedTuple):
    """The move of an end that has not come. `event` is that end, as far as it matters."""

    event: Ended
    boot: str
    place: str | None
    draft: Draft
    begun: int  # the effect that begins then

    @property
    def begins(self) -> Effect:
        return self.draft.move.effects[self.begun]


def foresee(plan: Plan, at: Checkpoint, boot: str, place: str | None, evaluate: Evaluate) -> Foreseen | None:
    """What follows if the only command under way ends with 0, prints no data and leaves nothing behind; None where that cannot
    be told yet, or is nothing to be ready for."""
    if len(at.positions) != 1 or at.run.over_at is not None or at.run.restored is not None or "limits" in plan or "group" in plan:
        return None
    p = at.positions.get("")
    if p is None or p.phase is not Phase.ACTING or p.effect is None or at.effects[p.effect].kind != "run":
        return None
    event = Ended(p.effect, 0)
    d = Draft(plan, at, Moment(LATER, LATER, boot, place, LATER, LATER), evaluate)
    d.set_run(driven=LATER)
    try:
        lead_on(d, event)
    except (Unforeseen, NotPossible, TypeError):  # a function that takes numbers only; a fault of ours shows when the end has come
        return None
    return Foreseen(event, boot, place, d, d.move.begin[0]) if _is_ordinary(d, p.effect) else None


def _is_ordinary(d: Draft, ended: int) -> bool:
    """Whether all that has a time in this move is what `fulfilled` knows of."""
    move, run = d.move, d.run
    if len(move.begin) != 1 or set(move.effects) != {ended, move.begin[0]} or set(move.positions) != {""}:
        return False
    if any((move.fresh, move.items, move.gone, move.undo_status, move.owed_again, move.onces, move.signals, move.messages)):
        return False
    if any((move.withdraw, move.answers, move.stop, move.shares, move.said)) or move.history[0].kind != "attempt_ended":
        return False
    p, old, new = move.positions[""], move.effects[ended], move.effects[move.begin[0]]
    noted = [run.driven, run.updated_at, old.ended_at, new.intended_at, new.first_at]
    if p is None or p.phase is not Phase.ACTING or not all(time is LATER for time in (*noted, p.entered_at, p.since)):
        return False
    return sum(value is LATER for row in (run, p, old, new) for value in row) == len(noted) + 2


def is_it(foreseen: Foreseen, event: Any, moment: Moment) -> bool:
    """Whether just this end has come, here."""
    same = isinstance(event, Ended) and event._replace(files=None) == foreseen.event
    return same and (moment.boot, moment.place) == (foreseen.boot, foreseen.place)


def fulfilled(foreseen: Foreseen, event: Ended, moment: Moment) -> Move:
    """The move, now that the end has come: what was left open is what it is. Good for once."""
    d, now = foreseen.draft, moment.now
    move, no = d.move, foreseen.begun
    d.moment = moment
    d.set_run(driven=d.at.run.driven, updated_at=now)
    clock.count(d, event)
    move.effects[event.effect] = move.effects[event.effect]._replace(ended_at=now)
    move.effects[no] = move.effects[no]._replace(intended_at=now, first_at=now)
    move.positions[""] = d.position("")._replace(entered_at=now, since=d.run.driven)
    if event.files:
        told = move.history[0]
        move.history[0] = told._replace(data={**told.data, **{kind: name for kind, name in event.files.items() if name}})
    clock.settle(d)
    return move

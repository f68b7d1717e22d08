"""What a run shares with the other runs of its file: whether something of it has its turn at a limit, or in its group.

Rules:
- what is free is read inside the transaction of the move that takes it, so it stays so until its commit
- who could begin and lets its turn pass is passed by after a while: a driver that stands still holds nobody up
- a place whose run nobody drives is given back once its attempt has ended, as far as that can be told without taking the run over
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from durun.machine import limits, timer
from durun.machine.draft import fits
from durun.machine.events import Due, Happening, Looked, Moment
from durun.machine.limits import Places
from durun.machine.model import Checkpoint, Move, Phase, Position
from durun.plan.canonical import Plan
from durun.store import places
from durun.store.runs import Store

PASSED = 2000  # ms in which whoever has waited longer for a place must take it, before another does
UNDRIVEN = 1000  # ms between looks at places whose runs nobody drives


class Performer(Protocol):
    """What it needs of the deliverer; see `outbox.Deliverer`."""

    def is_over(self, boot: str | None, place: str | None, token: str, key: str, kind: str) -> bool: ...


class Turns:
    """What a run shares with others, its limits and its group: what is free now, and whether something of it has its turn."""

    def __init__(self, store: Store, plan: Plan, no: int) -> None:
        self.store, self.plan, self.no = store, plan, no
        self.wanted = limits.limits_of(plan)
        self.alive: Callable[[str], bool] = lambda _: True  # whether the driver of a place lives
        self._able: dict[tuple[int, str, int], int] = {}  # who could begin and has not -> since which reading of the clock
        self._seen: int | None = None  # when it was looked for places whose runs nobody drives
        self._wait = 0  # ms until it is worth to look again; 0: not known

    def look(self, at: Checkpoint, moment: Moment) -> Places:
        """What is free now; inside the transaction of a move it stays so until its commit."""
        root = at.positions.get("")
        grouped = root is not None and limits.waits_for_group(root)
        if not self.wanted and not grouped:
            return Places({}, {})
        db = self.store.file.db

        def able(scope: str) -> bool:
            return fits(self.plan, at.holders, scope)

        passed = frozenset(ticket for ticket, since in self._able.items() if moment.clock - since > PASSED)
        free = places.look(db, self.wanted, places.Asking(self.no, self.alive, able, passed), moment)
        if root is None or not grouped:
            return free
        return free._replace(turn=places.before(db, root.wants["group"], self.no) is None)

    def after(self, moment: Moment, move: Move) -> Moment:
        """The moment as the next move of the same commit finds it."""
        return moment if moment.places is None else moment._replace(places=limits.after(moment.places, move))

    def is_worth(self, at: Checkpoint, moment: Moment) -> bool:
        return moment.places is not None and limits.is_worth(at, moment.places)

    def bind(self, moment: Moment) -> None:
        """What rates count from is told by the clock of this boot."""
        if self.wanted:
            places.bind(self.store.file, moment)

    def ready(self, at: Checkpoint, moment: Moment, performer: Performer | None) -> Happening | None:
        """Whether something that is queued may begin now; also where the run that held a place is not driven any more."""
        if moment.place is None or not any(p.phase is Phase.QUEUED for p in at.active.values()):
            return None
        for p in at.active.values():
            if p.phase is Phase.QUEUED and p.until is not None and p.round > 1 and _poll_is_over(p, moment):
                return Due(p.scope)
        free = self._look(at, moment)
        due = self._seen is None or moment.clock - self._seen > UNDRIVEN
        if not limits.is_worth(at, free) and due and performer is not None:
            self._seen = moment.clock
            if self._give_back(free, performer):
                free = self._look(at, moment)
        if limits.is_worth(at, free):
            return Looked()
        self._note(free, moment.clock)
        return None

    def _look(self, at: Checkpoint, moment: Moment) -> Places:
        with self.store.view():
            return self.look(at, moment)

    def _note(self, free: Places, clock: int) -> None:
        """Who stands before this run and could begin: if they do not in a while, they are passed by."""
        rooms = free.rooms.values()
        able = [one for room in rooms for one in room.first() if not isinstance(one, str)]
        passed = {ticket: since for ticket, since in self._able.items() if clock - since > PASSED}
        self._able = {**passed, **{ticket: self._able.get(ticket, clock) for ticket in able}}
        waits = [room.wait for room in rooms if room.wait > 0]
        self._wait = min(waits, default=0) if len(waits) == len(rooms) else 0

    def _give_back(self, free: Places, performer: Performer) -> bool:
        """Gives back places whose attempt has ended, though nobody drives its run and has seen it."""
        full = [limit.name for limit, room in free.rooms.items() if room.free is not None and room.free <= 0]
        held = places.undriven(self.store.file, full, self.alive) if full else []
        over = [h for h in held if performer.is_over(h.boot, h.place, h.token, h.key, h.kind)]
        if over:
            places.give_back(self.store.file, over, self.alive)
        return bool(over)

    def next_look(self, at: Checkpoint) -> int | None:
        """Milliseconds until it is worth to look again; None where nothing is queued."""
        if not any(p.phase is Phase.QUEUED for p in at.active.values()):
            return None
        return self._wait or UNDRIVEN


def _poll_is_over(p: Position, m: Moment) -> bool:
    length, boot, clock_ = p.window or (None, None, None)
    return timer.remaining(p.until or 0, length, (boot, clock_), (m.now, m.clock, m.boot)) < 0

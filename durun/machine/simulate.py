"""A walk through a plan in which nothing is done: each effect ends as a script says. Pure, like the rules it asks.

Rules:
- what happens next is what the rules say; what a driver would do is done here in one order: what can be begun, what ends, what
  people and signals say, and only then what time brings
- nothing takes time but waits, delays and pauses of polls: the clock jumps to the next that is due
- every effect begins at once: limits and groups count as free, and what is left to be delivered counts as delivered
- a question or a signal whose answer does not fit is left waiting, and the walk ends where only a person could go on
"""

from __future__ import annotations

from typing import Any

from durun.errors import Refusal
from durun.machine import clock, timer
from durun.machine.decide import begin, decide, may_begin
from durun.machine.draft import Evaluate
from durun.machine.events import (
    Answer,
    Due,
    Ended,
    Go,
    Happening,
    Looked,
    Moment,
    NextUndo,
    NothingOwed,
    Settle,
    Signal,
    TimeOver,
)
from durun.machine.limits import Places, Room, is_worth, limits_of
from durun.machine.model import TERMINAL, Checkpoint, Effect, Move, Phase, Position, Run, Status, Undo, apply
from durun.machine.scope import parts, path_of
from durun.machine.script import Script, end_of
from durun.machine.undo import is_undo
from durun.plan.canonical import Plan
from durun.values import NamedTuple

Json = Any

MOST = 10_000  # moves, after which a walk is given up
BOOT, PLACE = "simulated", "simulated"
OPEN = ("owed", "registered")


class Step(NamedTuple):
    """Something that happened: a row of the history, or an effect that began (`begins`)."""

    after: int  # ms since the start
    kind: str
    path: str | None
    visit: int | None
    attempt: int | None
    data: Json


class Walk:
    """One walk. `steps` says what happened, `ends` why it went no further."""

    def __init__(self, plan: Plan, run: Run, script: Script, evaluate: Evaluate) -> None:
        self.plan, self.script, self.evaluate = plan, script, evaluate
        self.started = self.now = run.started_at
        self.at = Checkpoint(run)
        self.steps: list[Step] = []
        self.effects: dict[int, Effect] = {}  # all there ever were
        self.undos: dict[int, Undo] = {}
        self.ends = ""
        self._begun: list[int] = []  # in order; what has begun and not ended
        self._order: dict[int, int] = {}  # effect -> when it first began
        self._stopped: set[int] = set()  # those that a sibling has stopped
        self._stands: dict[str, int] = {}  # path -> the visit whose answer did not fit
        self._spoken = ""  # the path for which somebody has just spoken
        self._limits = limits_of(plan)
        self._took(begin(plan, run, self._moment(), evaluate))

    def go(self) -> None:
        """On until the run has ended, or only a person could move it."""
        for _ in range(MOST):
            if self.at.run.status in TERMINAL:
                return
            event = self._next()
            if event is None:
                return
            self._decide(event)
        self.ends = f"it was given up after {MOST} moves: it goes on"

    # --- moves ---

    def _moment(self) -> Moment:
        return Moment(self.now, self.now, BOOT, PLACE, 0.5, self.now, self._places())

    def _places(self) -> Places:
        """There is room for all; who waits all the same waits for a place in its map."""
        queued = [p for p in self.at.active.values() if p.phase is Phase.QUEUED]
        rooms = {one: tuple(p.scope for p in queued if p.wants["limit"] == one.name) for one in self._limits}
        return Places({}, {limit: Room(None, None, 0, queue) for limit, queue in rooms.items()})

    def _decide(self, event: Happening) -> None:
        """Hears what happens. An answer that the rules refuse leaves its question waiting."""
        try:
            self._took(decide(self.plan, self.at, event, self._moment(), self.evaluate))
        except Refusal as e:
            if not isinstance(event, Answer | Signal):
                raise
            stands = next(p for p in self.at.active.values() if _path(p) == self._spoken)
            self._stands[self._spoken] = stands.visit
            self.ends = str(e).partition(": ")[2].removesuffix("; nothing was changed")

    def _took(self, move: Move) -> None:
        for e in move.history:
            path = None if e.state is None else path_of(e.scope, e.state)
            self._tell(e.kind, path, e.visit, e.attempt, e.data)
        apply(self.at, move)
        self.effects.update(move.effects)
        self.undos.update(move.undos)
        for no, (status, _) in move.undo_status.items():
            self.undos[no] = self.undos[no]._replace(status=status)
        for no, left in move.messages.items():
            self._delivered(no, left.undo)
        self._stopped.update(move.stop)
        for no in move.begin:
            self._begins(move.effects[no])

    def _begins(self, effect: Effect) -> None:
        self._begun.append(effect.no)
        self._order.setdefault(effect.no, len(self._order))
        data = {"effect": effect.kind, "request": effect.request}
        self._tell("begins", path_of(effect.scope, effect.state), effect.visit, effect.attempt, data)

    def _delivered(self, no: int, undo: Json) -> None:
        """What is left to be delivered counts as delivered, and its undo is owed."""
        effect = self.effects[no]
        if effect.status != "waiting":
            return
        self.effects[no] = effect._replace(status="done")
        self._order.setdefault(no, len(self._order))
        if undo is not None and no in self.undos:
            self.undos[no] = self.undos[no]._replace(**{k: undo[k] for k in ("status", "request", "error") if k in undo})
        data = {"effect": effect.kind, "request": effect.request, "background": True}
        self._tell("begins", path_of(effect.scope, effect.state), effect.visit, effect.attempt, data)

    def _tell(self, kind: str, path: str | None, visit: int | None, attempt: int | None, data: Json) -> None:
        if isinstance(data.get("due"), int):
            data = {**data, "in": data["due"] - self.now}
        self.steps.append(Step(self.now - self.started, kind, path, visit, attempt, data))

    # --- what comes next ---

    def _next(self) -> Happening | None:
        return self._undoing() or self._ready() or self._ended() or self._said() or self._late()

    def _undoing(self) -> Happening | None:
        """The youngest that is to be undone, or that nothing is left."""
        run = self.at.run
        if run.status is not Status.COMPENSATING or any(is_undo(p) for p in self.at.positions.values()):
            return None
        owed = [no for no, undo in self.undos.items() if undo.status in OPEN]
        if not owed:
            return NothingOwed(sum(undo.status == "failed" for undo in self.undos.values()))
        youngest = max(owed, key=lambda no: (self._order.get(no, -1), no))
        return NextUndo(self.effects[youngest], self.undos[youngest])

    def _ready(self) -> Happening | None:
        """What can be done without waiting."""
        if self._over_in() == 0:
            return TimeOver()
        for p in self.at.active.values():
            if p.phase is Phase.READY:
                return Go(p.scope)
            if p.phase is Phase.LOST:
                return Settle(p.scope)
            if p.phase is Phase.QUEUED and is_worth(self.at, self._places()):
                return Looked()
            if (
                p.phase in (Phase.DELAYED, Phase.PROBING, Phase.WAITING)
                and p.due is not None
                and self._left(p) <= 0
                and self._fits(p)
            ):
                return Due(p.scope)
        return None

    def _fits(self, p: Position) -> bool:
        return p.phase is not Phase.DELAYED or may_begin(self.plan, self.at, p.scope)

    def _ended(self) -> Happening | None:
        """What was begun first ends, as the script says."""
        while self._begun:
            effect = self.at.effects.get(self._begun.pop(0))
            if effect is not None and effect.status == "begin":
                if effect.no in self._stopped:
                    return Ended(effect.no, -15, "sibling")
                path = self._answered_at(effect)
                return end_of(effect, self.script.place(path), self.script.next(path))
        return None

    def _answered_at(self, effect: Effect) -> str:
        """Where the script speaks of an effect. What settles a doubt before an undo is the probe of what is undone."""
        path = path_of(effect.scope, effect.state)
        if effect.kind != "probe":
            return path
        return f"{parts(effect.scope)[-1].path if self.at.positions[effect.scope].settling else path}/probe"

    def _asks(self, p: Position) -> bool:
        return p.phase in (Phase.ASKED, Phase.LISTENING) and self._stands.get(_path(p)) != p.visit

    def _said(self) -> Happening | None:
        """What a person or a signal says, where the script does not have it come too late."""
        for p in sorted(self.at.active.values(), key=lambda p: p.entered_at):
            answer = self.script.peek(_path(p)) if self._asks(p) else {}
            if not self._asks(p) or answer.get("error") in ("timeout", "heartbeat"):
                continue
            self._spoken = _path(p)
            self.script.next(self._spoken)
            moment: Json = {"now": self.now, "clock": self.now, "boot": BOOT}
            if p.phase is Phase.LISTENING:
                said = answer.get("message", "")
                return Signal(p.wants["signal"], answer.get("output"), answer.get("error"), said, by="the script", **moment)
            option = self._option(p, answer.get("answer"))
            words = {word: answer[word] for word in ("data", "note") if word in answer}
            by = answer.get("by", "the script")
            return Answer(_path(p), option["reject"], option["name"], by=by, **words, **moment)
        return None

    def _option(self, p: Position, name: str | None) -> Json:
        """The option that is meant: the one named, else the first that goes on."""
        options = p.wants["options"]
        return next(option for option in options if (option["name"] == name if name else not option["reject"]))

    def _late(self) -> Happening | None:
        """Time goes on to whatever is due first."""
        timed = [p for p in self.at.active.values() if p.due is not None and self._goes_on(p)]
        over = self._over_in()
        lengths = [*(self._left(p) for p in timed), *([over] if over is not None else [])]
        if not lengths:
            return None
        self.now += max(0, min(lengths))
        if self._over_in() == 0:
            return TimeOver()
        due = next(p for p in timed if self._left(p) <= 0)
        if due.phase in (Phase.ASKED, Phase.LISTENING):
            self.script.next(_path(due))
        return Due(due.scope)

    def _goes_on(self, p: Position) -> bool:
        """Whether time moves it: a question only where the script lets its time pass."""
        return self._fits(p) and (p.phase not in (Phase.ASKED, Phase.LISTENING) or self._passes(p))

    def _passes(self, p: Position) -> bool:
        return self._asks(p) and self.script.peek(_path(p)).get("error") in ("timeout", "heartbeat")

    def _left(self, p: Position) -> int:
        return timer.left(p, self.now, self.now, BOOT)

    def _over_in(self) -> int | None:
        """Milliseconds until the time of the run is over; None where it has no end."""
        found = None if self.at.run.over_at is None else clock.over_in(self.at.run, self.now, BOOT)
        return None if found is None else max(0, found)


def _path(p: Position) -> str:
    return path_of(p.scope, p.state)

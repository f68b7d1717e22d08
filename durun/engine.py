"""The only loop of a run: what happened, what the machine says to it, one commit, what is to begin.

Rules:
- the store, the performer, the clock and chance are handed in
- a failed commit ends the process: the next resume finds the truth
- notes of other processes are heard inside the commit, after what has just ended: the order of commits decides
- answers and signals are heard before it: they were accepted on the checkpoint as it is stored, so an answer that came in time
  beats the timeout that falls due in the same move
- nothing is begun that is not committed, and nothing is committed twice
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from durun.effects.boot import awake_ms, boot_id, boot_ms
from durun.effects.locks import once_alive
from durun.errors import NotPossible, Refusal
from durun.machine import asks, clock, restored, stopping, timer
from durun.machine.decide import are_alike, decide, decide_all, may_begin
from durun.machine.draft import Evaluate, moment_text
from durun.machine.events import (
    AcceptDrift,
    AfterRestore,
    Alive,
    Answer,
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
    Settle,
    Signal,
    TakeUp,
    TimeOver,
    Word,
)
from durun.machine.foresight import Foreseen, foresee, fulfilled, is_it
from durun.machine.model import TERMINAL, Checkpoint, Effect, Event, Move, Phase, Position, Run, Status, apply
from durun.machine.scope import path_of
from durun.machine.undo import is_undo
from durun.outbox import listened
from durun.plan.canonical import Plan
from durun.store.onces import begun
from durun.store.runs import Held, Judged, Note, Pinned, Store
from durun.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:  # they come with a plan that leaves something to be delivered, or shares something
    from durun.effects.tools import Question
    from durun.messages import Delivery
    from durun.turns import Turns

Json = Any

STILL = 5.0  # s after the last signal, before what does not end is left to itself
STUCK = 10.0  # s after the last signal of a cancel, before what does not end is named
SIGN = 5000  # ms between signs of life
TICK = 0.2  # s between looks into the inbox
BEGINNING = 0.0003  # s that the keeper has to begin a command before the driver looks ahead: they may share a processor
LEAVING = {"INT": [("INT", 10_000), ("TERM", 10_000), ("KILL", 0)], "TERM": [("TERM", 10_000), ("KILL", 0)], "KILL": [("KILL", 0)]}


class World(NamedTuple):
    """Time and chance, as arguments."""

    now: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    clock: Callable[[], int] = boot_ms
    draw: Callable[[], float] = lambda: int.from_bytes(os.urandom(7), "big") / (1 << 56)
    boot: str = ""
    awake: Callable[[], int] | None = None  # None: as `clock`

    def reading(self) -> int:
        """ms of the boot's clock, suspend not counted."""
        return (self.awake or self.clock)()


def real_world() -> World:
    return World(boot=boot_id(), awake=awake_ms)


class Performer(Protocol):
    """What the engine needs of the deliverer; see `outbox.Deliverer`."""

    @property
    def place(self) -> str: ...
    @property
    def busy(self) -> bool: ...
    def make_ready(self, run: Run, effect: Effect) -> None: ...
    def begin(self, run: Run, effect: Effect, *, more: bool = False) -> None: ...
    def stop(self, no: int, steps: list[tuple[str, int]], why: str) -> None: ...
    def recover(self, effect: Effect) -> Happening | None: ...
    def receive(self, timeout: float, wake: int | None = None) -> list[Happening]: ...
    def is_over(self, boot: str | None, place: str | None, token: str, key: str, kind: str) -> bool: ...
    def under_way(self) -> list[int]: ...
    def living(self, nos: list[int]) -> tuple[list[int], int | None]: ...
    def sign(self, said: str) -> None: ...


class Signals:
    """What durun itself was told: '' or INT, TERM, KILL (a second INT). `wake` becomes readable with each."""

    def __init__(self) -> None:
        self.told = ""
        self.exit = 0
        self.background = False  # True: told TERM, it leaves commands to their keeper
        self.wake: int | None = None

    def tell(self, name: str) -> None:
        self.exit = 130 if name == "INT" else 143
        self.told = "KILL" if self.told == "INT" and name == "INT" else (self.told if self.told == "KILL" else name)


def turns_of(store: Store, plan: Plan, held: Held) -> Turns | None:
    """None where the plan shares nothing with other runs."""
    if "limits" not in plan and "group" not in plan:
        return None
    from durun.turns import Turns

    return Turns(store, plan, held.no)


class Engine:
    """Drives one run that this process holds."""

    def __init__(
        self, store: Store, performer: Performer | None, world: World, plan: Plan, evaluate: Evaluate, held: Held, at: Checkpoint
    ) -> None:
        self.store, self.performer, self.world, self.plan, self.evaluate = store, performer, world, plan, evaluate
        self.held, self.at = held, at
        self.signals = Signals()
        self.watch: Callable[[Checkpoint, Move], None] = lambda _at, _move: None
        self.tick: Callable[[], None] = lambda: None  # called whenever the loop comes round, five times a second at least
        self.holds_back = False  # True: what begins is sent to the keeper by whoever drives other runs too
        self.until: Callable[[], bool] = lambda: False  # whether it is driven no further
        self.hold = False  # True: nothing new is begun
        self.turns = turns_of(store, plan, held)  # what it shares with other runs
        self._owed: list[int] = []  # what is to be undone, the youngest last
        self.lingers = False  # a once that is to be undone lives
        self._seen = -1
        self._foreseen: Foreseen | None = None  # of the checkpoint as it stands
        self._refused: Refusal | None = None  # by the last move: an event, after words that were accepted
        self._foresaw = -1  # moves of the run when that was tried
        self._next: Effect | None = None  # what a move that had been foreseen begins
        self._ahead: Checkpoint | None = None  # how it stands once what several events have led to is committed
        self._stopping = ""
        self._leave_by = 0.0
        self.stuck = STUCK
        self._stop_by: dict[int, float] = {}  # effect -> when a cancel has waited long enough for its end
        self._signed: int | None = None
        self._cancelled: Json = None  # the cancel that what is being delivered was told of
        self.delivery: Delivery | None = None  # of what the run leaves to be delivered, where its plan does

    # --- moves ---

    def _moment(self) -> Moment:
        w = self.world
        drives = self.performer is not None and not self.signals.told and not self.hold and not self._paused()
        place = self.performer.place if drives and self.performer is not None else None
        return Moment(w.now(), w.clock(), w.boot, place, w.draw(), w.reading())

    def move(self, *events: Happening) -> None:
        """Decides, commits, and begins what was committed. The notes that lie there are heard in the same commit."""
        moment = self._moment()
        self.held, moves = self.store.commit(self.held, self.at.run, lambda notes: self._made(events, notes, moment), moment.now)
        refused, self._refused = self._refused, None
        self._took(moves)
        if refused is not None:
            raise refused

    def _made(self, events: tuple[Happening, ...], notes: list[Note], moment: Moment) -> list[Move]:
        """The moves that these events lead to: the one that was foreseen, or what is decided now."""
        foreseen, self._foreseen, self._next = self._foreseen, None, None
        if foreseen is not None and not notes and len(events) == 1:
            event = events[0]
            if isinstance(event, Ended) and is_it(foreseen, event, moment):
                move = fulfilled(foreseen, event, moment)
                self._next = move.effects[foreseen.begun]
                return [move]
        return self._decide(list(events), notes, moment)

    def _foresee(self) -> None:
        """While the only command runs: what its plain end will lead to. Once for each move."""
        if self._foresaw != self.held.seq:
            self._foresaw = self.held.seq
            moment = self._moment()
            self._foreseen = foresee(self.plan, self.at, moment.boot, moment.place, self.evaluate)
            if self._foreseen is not None and self.performer is not None:
                self.performer.make_ready(self.at.run, self._foreseen.begins)
                self.store.make_ready(self._foreseen.draft.move)

    def words_for(self, events: list[Happening]) -> tuple[Held, Run, Callable[[list[Note]], list[Move]]]:
        """What a commit of several runs together needs of this one; `took` tells it what became of that."""
        moment = self._moment()
        return self.held, self.at.run, lambda notes: self._decide(events, notes, moment)

    def took(self, held: Held, moves: list[Move]) -> None:
        """These moves were committed."""
        self.held, self._refused = held, None
        self._took(moves)

    def _took(self, moves: list[Move]) -> None:
        following, self._next = self._next, None
        if following is not None:  # nothing else is to begin, or to stop: it need not wait for the checkpoint
            try:
                self._begin([following])
            finally:
                self._lay(moves)
                self._watch(moves)
            return
        self._lay(moves)
        try:
            self.perform(*moves)
        finally:  # while what was to begin is being begun
            self._watch(moves)

    def _lay(self, moves: list[Move]) -> None:
        """What was committed becomes the checkpoint."""
        if moves and self._ahead is not None:
            self.at = self._ahead
        else:
            for move in moves:
                apply(self.at, move)
        self._ahead = None
        if any(move.owed_again for move in moves):
            self._owed = []  # the youngest comes first

    def _watch(self, moves: list[Move]) -> None:
        for move in moves:
            self.watch(self.at, move)

    def _decide(self, events: list[Happening], notes: list[Note], moment: Moment) -> list[Move]:
        at, moves, self._ahead = self.at, [], None
        if self.turns is not None:
            moment = moment._replace(places=self.turns.look(self.at, moment))
        words = [note for note in notes if note.kind in WORDS]
        wishes = [note for note in notes if note.kind not in WORDS]
        if wishes:  # what ended first leaves its next intent waiting: a note may withdraw it
            moment = moment._replace(place=None)
        if len(events) > 1 and not notes and are_alike(self.plan, at.run, events):
            return [decide_all(self.plan, at, events, moment, self.evaluate)]  # type: ignore[arg-type]
        if len(events) + len(notes) > 1:
            at = at.copy()
        lifted = bool(events) and isinstance(events[0], AfterRestore)  # before that nothing is heard
        for what in (*events, *words, *wishes) if lifted else (*words, *events, *wishes):
            if isinstance(what, Note):
                moves.append(hear(self.plan, at, what, moment, self.evaluate))
            elif self._still(at, what, moment):
                try:
                    moves.append(decide(self.plan, at, what, moment, self.evaluate))
                except Refusal as e:
                    if not moves or not words:
                        raise
                    self._refused = e  # what was said before was accepted, and stands
                    continue
            else:
                continue
            if at is not self.at:
                self._ahead = at
                if self.turns is not None:
                    moment = self.turns.after(moment, moves[-1])
                apply(at, moves[-1])
        return moves

    def _still(self, at: Checkpoint, event: Happening, moment: Moment) -> bool:
        """Whether what was to be done next still is: an answer may have led elsewhere, another run may have been faster."""
        if isinstance(event, Looked):
            return self.turns is not None and self.turns.is_worth(at, moment)
        if isinstance(event, Go | Due | Settle):
            return at.positions.get(event.scope) == self.at.positions.get(event.scope)
        if isinstance(event, TimeOver):
            return at.run.status not in TERMINAL and at.run.cancel is None
        return True

    def perform(self, *moves: Move) -> None:
        """Begins and stops what these moves, committed together, have decided; what begins goes to the keeper in one piece."""
        if self.performer is None:
            return
        found = [self.at.effects.get(no) for move in moves for no in move.begin]
        self._begin([effect for effect in found if effect is not None and effect.status == "begin"])
        for no in [no for move in moves for no in move.stop]:
            self._stop(no)

    def _begin(self, effects: list[Effect]) -> None:
        assert self.performer is not None
        if effects:
            self.store.file.room()
            for effect in effects[:-1]:
                self.performer.begin(self.at.run, effect, more=True)
            if self.holds_back:
                self.performer.begin(self.at.run, effects[-1], more=True)
            else:
                self.performer.begin(self.at.run, effects[-1])

    def _stop(self, no: int) -> None:
        """Has the command of an effect stopped, as the run was told to stop."""
        assert self.performer is not None
        run = self.at.run
        grace = int((run.cancel or {}).get("grace", stopping.GRACE))
        why = stopping.why(run) if run.cancel is not None else "sibling"
        self.performer.stop(no, [("TERM", grace), ("KILL", 0)], why)
        self._stop_by[no] = time.monotonic() + grace / 1000 + self.stuck

    # --- the loop ---

    def deliver(self) -> None:
        """Begins what is due of what the run has left to be delivered."""
        if self.delivery is None or self.hold or self.signals.told or self._paused():
            return
        cancel = self.at.run.cancel
        if cancel is not None and not stopping.is_over(self.at.run) and self._cancelled != cancel:
            self._cancelled = cancel
            self.delivery.stop(int(cancel.get("grace", stopping.GRACE)))
        self.delivery.begin()

    def told_of(self, events: list[Happening]) -> list[Happening]:
        """What has happened to the run itself; what became of its messages is stored apart."""
        if self.delivery is None:
            return events
        for event in [e for e in events if self.delivery.has(e)]:
            self.delivery.heard(event)
            events = [e for e in events if e is not event]
        return events

    def recover(self) -> None:
        """Finds out what became of the intents that were to begin when the driver before went away."""
        assert self.performer is not None
        for effect in list(self.at.effects.values()):
            if effect.status == "begin" and self._open(effect.no) and effect.no not in self.performer.under_way():
                event = self.performer.recover(effect)
                if event is not None:
                    self.move(event)
                    continue
                if clock.unaccounted(self.at.run):
                    self.move(RanOn(effect.no))
                if self.at.run.cancel is not None or self.at.positions[effect.scope].stopping:
                    self._stop(effect.no)

    def after_restore(self, by: str) -> None:
        """A person lets a run go on that was restored: what was to begin, or had begun, is found out where that is possible."""
        if self.at.run.restored is None:
            return
        begun = [effect for effect in self.at.effects.values() if effect.status == "begin" and self._open(effect.no)]
        found = [self._since(effect) for effect in begun]
        self.move(AfterRestore(by), *(event for event in found if event is not None))

    def _since(self, effect: Effect) -> Happening | None:
        """What became of an intent that was under way when the file was taken from its place; None where it is alive.

        A good end that was noted is one. After any other it may have been begun again, of which this file knows nothing. And what
        the place of a copy holds is not ours: it may live, and its driver with it.
        """
        assert self.performer is not None
        if effect.kind == "probe":
            return Moved(effect.no)
        event = None if self._is_copy() else self.performer.recover(effect)
        ended_well = isinstance(event, Ended) and not event.status and not event.stopped
        if self._is_copy() or isinstance(event, Moved | CouldNotStart) or (isinstance(event, Ended) and not ended_well):
            return Lost(effect.no, restored.WHY)
        return event

    def _is_copy(self) -> bool:
        return bool((self.at.run.restored or {}).get("why") == "copied")

    def _open(self, no: int) -> bool:
        p = self.at.positions.get(self.at.effects[no].scope)
        if p is None:
            return False
        return (p.phase is Phase.ACTING and p.effect == no) or (p.phase is Phase.PROBING and p.asking == no)

    def take_up(self, state: str | None = None, *, failed_items: bool = False) -> None:
        """A person resumes the run: what was paused or has failed, or its failed items, at `state` where one is named."""
        stood = self.at.run.status
        if self.at.run.restored is None and self.noted():
            self.move()  # what a driver before has not heard any more: it may have led elsewhere
        if failed_items:
            self.move(TakeUp(state, failed_items=True))
        elif state is not None or (stood in (Status.FAILED, Status.PAUSED) and self.at.run.status is stood):
            self.move(TakeUp(state))

    def drive(self, *, wait: bool = True, sit: bool = False) -> None:
        """Moves the run until it has ended, or only a person can move it (or, without `wait`, time).

        With `sit` it waits for people too: it goes on listening for notes until the run has ended.
        """
        assert self.performer is not None
        self.begin_driving()
        while True:
            self._sign()
            self.tick()
            if self.until():
                return
            self.deliver()
            if self.signals.told:
                if self._leave():
                    return
                continue
            if self.does_not_stop():
                return
            if self.at.run.status in TERMINAL:
                if self.delivery is None or not self.delivery.busy:
                    return
                self._wait(None)  # what is being delivered is seen to before its driver leaves
                continue
            if self._paused() and not self.performer.busy and not sit:
                return
            if self._go():
                continue
            due = None if self._paused() else self.next_due()
            if not self.performer.busy and not sit and not self.lingers and (due is None or not wait):
                if self.noted():
                    self.move()
                    continue
                return
            self._wait(due)

    def begin_driving(self) -> None:
        """What whoever takes the run up sees to first."""
        assert self.performer is not None
        if any(clock.was_set_elsewhere(p, self.world.boot) for p in self.at.positions.values()) and not self._paused():
            self.move(Rebooted())
        for p in list(self.at.positions.values()):
            stands = self.at.positions.get(p.scope) == p  # what became of one before it may have stopped it
            if p.phase is Phase.HELD and stands and not self.at.run.held_up():
                self.move(Settle(p.scope))
        over = self._over_in()
        if over is not None and over <= 0:
            self.move(TimeOver())
        if self.turns is not None:
            self.turns.bind(self._moment())
        self.recover()

    def _go(self) -> bool:
        """Does the next thing that can be done without waiting. False where there is none."""
        ready = self.ready()
        if ready is not None:
            self.move(ready)
        return ready is not None

    def listen(self) -> bool:
        """While a person is asked at the terminal: hears what others say, and what time brings. Whether anything did."""
        if self._go():
            return True
        if not self.noted():
            return False
        self.move()
        return True

    def answered(self, answer: Answer) -> None:
        """The person at the terminal answers. Raises what `asks.answer` does, and then nothing has changed."""
        moment = self._moment()
        self.move(answer._replace(now=moment.now, clock=moment.clock, boot=moment.boot))

    def ready(self) -> Happening | None:
        """The next thing that can be done without waiting."""
        if self._paused():
            return None
        over = self._over_in()
        if over is not None and over <= 0:
            return TimeOver()
        if self.at.run.undoing is not None and not self.hold:
            undo = self._next_undo()
            if undo is not None:
                return undo
        stops = stopping.is_over(self.at.run)  # then what is ready stays where it is until all else has ended
        for p in self.at.active.values():
            if p.phase is Phase.READY and not stops:
                return Go(p.scope)
            if p.phase is Phase.LOST:
                return Settle(p.scope)
            if p.phase is Phase.QUEUED:
                continue
            if p.due is not None and self._left(p) <= 0 and self._fits(p):
                return Due(p.scope)
        return None if self.turns is None else self.turns.ready(self.at, self._moment(), self.performer)

    def _next_undo(self) -> Happening | None:
        """What is undone next, or that nothing is left; None while an undo is under way, asks, or waits for a person."""
        if self.at.run.status is not Status.COMPENSATING or any(is_undo(p) for p in self.at.positions.values()):
            return None
        no = self.held.no
        back = (self.at.run.undoing or {}).get("rewind")
        while True:
            self._owed = self._owed or self._to_undo(back)
            if not self._owed:
                break
            if self._is_under_way(self._owed[-1]):
                return None
            found = self.store.undo(no, self._owed[-1])
            if found is not None:  # it stays the next one until it has begun, however often it is asked for
                return NextUndo(*found)
            self._owed.pop()
        failed = [effect for effect, _, _ in self.store.failed_undos(no) if back is None or effect in back["effects"]]
        if back is None or failed:
            return NothingOwed(len(failed))
        from durun.store.past import rewinding

        return NothingOwed(0, rewinding(self.store, no, self.plan, self.at, back["state"], back["by"], back["before"])[0])

    def _to_undo(self, back: Json) -> list[int]:
        """The effects that are still to be undone: all, or only those since the state to which the run goes back."""
        owed = self.store.owed(self.held.no)
        return owed if back is None else [no for no in owed if no in back["effects"]]

    def _is_under_way(self, effect: int) -> bool:
        """Whether what is to be undone is not over yet: a once that a step left behind, or a message that somebody delivers. What
        becomes of it is waited for."""
        if effect < 0:
            name = begun(self.store.file, self.held.no, effect)
            self.lingers = name is not None and once_alive(self.store.file.folder, name)
        elif self.delivery is not None:
            from durun.store.messages import status_of

            self.lingers = status_of(self.store.file, self.held.no, effect) == "sending"
        else:
            self.lingers = False
        return self.lingers

    def settle_undoing(self) -> None:
        """Ends a compensation of which nothing is left."""
        nothing = self._next_undo()
        if isinstance(nothing, NothingOwed):
            self.move(nothing)

    def _fits(self, p: Position) -> bool:
        """Whether there is a place for an effect that waits to begin; the end of another makes one."""
        return not p.scope or p.phase is not Phase.DELAYED or may_begin(self.plan, self.at, p.scope)

    def _left(self, p: Position) -> int:
        """Milliseconds until a position is due."""
        return timer.left(p, self.world.now(), self.world.clock(), self.world.boot)

    def next_due(self) -> int | None:
        """Milliseconds until time moves the run; None where it does not, or where only a wait for a person has an end."""
        if self._paused():
            return None
        timed = [p for p in self.at.active.values() if p.due is not None and p.phase is not Phase.QUEUED]
        queued = None if self.turns is None else self.turns.next_look(self.at)
        if queued is not None:
            return min([queued, *(left for p in timed if (left := self._left(p)) > 0 or self._fits(p))])
        if all(p.phase in (Phase.ASKED, Phase.LISTENING) for p in timed):
            return None
        waiting = ((self._left(p), p) for p in timed)
        return min((left for left, p in waiting if left > 0 or self._fits(p)), default=None)

    def _over_in(self) -> int | None:
        """Milliseconds until the time of the run is over; None where it has no end, or does not count."""
        return None if self.at.run.over_at is None else clock.over_in(self.at.run, self.world.reading(), self.world.boot)

    def _sign(self) -> None:
        """A sign of life from time to time: if this driver dies, the run's time counts up to the last one."""
        assert self.performer is not None
        now = self.world.reading()
        if self._signed is None or now - self._signed >= SIGN:
            self.performer.sign(f"{now:020d} {self.world.boot}\n")
            self._signed = now

    def does_not_stop(self) -> bool:
        """Whether all that is left under way outlived the last signal of a cancel: the run is blocked, and left."""
        assert self.performer is not None
        if not self._stop_by:
            return False
        under_way, now = self.performer.under_way(), time.monotonic()
        if not under_way or any(self._stop_by.get(no, now) >= now for no in under_way):
            return False
        pids, keeper = self.performer.living(under_way)
        self.move(NotStopped(tuple(pids), keeper))
        return True

    def noted(self) -> bool:
        """Whether something lies in the inbox; asked only when another process has written."""
        changed = self.store.changed()
        if changed == self._seen:
            return False
        self._seen = changed
        return bool(self.store.notes(self.held.no))

    def _wait(self, due: int | None) -> None:
        assert self.performer is not None
        over = self._over_in()
        soon = min(ms for ms in (due, over, TICK * 1000) if ms is not None)
        timeout = max(0.0, soon) / 1000
        found: list[Happening] = []
        if self._foresaw != self.held.seq and timeout > BEGINNING:
            found = self.performer.receive(BEGINNING, self.signals.wake)
            if not found:
                self._foresee()
        if not found:
            found = self.performer.receive(timeout, self.signals.wake)
        events = self.told_of([listened(event, lambda: self.signals.told) for event in found])
        if events:
            self.move(*events)
        if not events and self.at.run.status not in TERMINAL and self.noted():
            self.move()

    def _leave(self) -> bool:
        """durun is told to stop: commands get the signal, and what they leave is committed. True when nothing is left."""
        assert self.performer is not None
        told = self.signals.told
        if self.performer.busy and told == "INT" and self.at.run.undoing is not None:
            self._hear()  # the undo under way ends; only a second Ctrl-C cuts it short
            return False
        if self.performer.busy and not (told == "TERM" and self.signals.background):
            if self._stopping != told:
                self._stopping = told
                self._leave_by = time.monotonic() + sum(ms for _, ms in LEAVING[told]) / 1000 + STILL
                for no in self.performer.under_way():
                    self.performer.stop(no, LEAVING[told], "leaving")
            self._hear()
            return time.monotonic() > self._leave_by  # what stands still is left, with its notes, for whoever goes on
        if self.at.run.status not in TERMINAL and self.signals.exit == 130 and self._moving():
            self.move(Pause("INT"))
        return True

    def _hear(self) -> None:
        """Commits what has ended while durun leaves, each end on its own; or what others left in the inbox."""
        assert self.performer is not None
        events = self.told_of(self.performer.receive(TICK, self.signals.wake))
        for event in events:
            self.move(event)
        if not events and self.noted():
            self.move()

    def _paused(self) -> bool:
        """Whether nothing goes on until a person says so: it is paused or restored, or its tools have drifted."""
        run = self.at.run
        return run.status is Status.PAUSED or run.restored is not None or run.held_up()

    def _moving(self) -> bool:
        """Whether the run would go on at once: then Ctrl-C pauses it. One that only waits is left to wait."""
        return self.at.run.status in (Status.RUNNING, Status.COMPENSATING)


WORDS: dict[str, type[Word | OnceInDoubt]] = {"answer": Answer, "signal": Signal, "alive": Alive, "once": OnceInDoubt}


def event_of(note: Note) -> Happening:
    """What a note in the inbox asks for."""
    data = note.data
    if note.kind in WORDS:
        return WORDS[note.kind](**data, by=note.by)
    match note.kind:
        case "cancel":
            return Cancel(data["grace"], note.by, data.get("compensate", False))
        case "compensate":
            return Compensate(data["grace"], note.by, data["force"])
        case "pause":
            return Pause(note.by, data.get("reason", ""))
        case "resume":
            return TakeUp()
        case "drifted":
            return Drifted(data["found"], data["words"])
        case "accept_drift":
            return AcceptDrift(data["found"], data["words"], note.by)
        case "resolve":
            return Resolve(**{**data, "effects": tuple(data.get("effects", ()))}, by=note.by)
    raise NotPossible(f"nobody knows what the note {note.kind!r} asks for")


def hear(plan: Plan, at: Checkpoint, note: Note, moment: Moment, evaluate: Evaluate) -> Move:
    """What a note asks for; one that is not possible is said to be so, and dropped."""
    try:
        return decide(plan, at, event_of(note), moment, evaluate)
    except Refusal as e:
        said = Event("refused", "", None, None, None, {"asked": note.kind, "by": note.by, "why": str(e)})
        return Move(at.run, history=[said])


def tools_now(pinned: Pinned, run: Run) -> Drifted | None:
    """What the pinned tools of a run say now; None where it has none."""
    if not run.tools:
        return None
    from durun.effects.tools import asked

    return drift_of(pinned, run, asked(*question(pinned, run)))


def question(pinned: Pinned, run: Run) -> Question:
    """How the pinned tools of a run are asked."""
    from durun.outbox import environment
    from durun.plan.canonical import tools_of

    tools = {name: argv for name, argv in tools_of(pinned.plan).items() if name in run.tools}
    return (tools, *environment(pinned.plan, pinned.pins["base"], pinned.pins["env"]), pinned.directory)


def drift_of(pinned: Pinned, run: Run, words: dict[str, Json]) -> Drifted:
    """What follows for a run from what its tools have said."""
    from durun.effects.tools import without_secrets
    from durun.pins import drifted

    words = without_secrets(words, pinned.plan.get("secrets", []), pinned.directory)
    return Drifted(drifted(run.tools, words), words)


class Told(NamedTuple):
    """What became of what was said: left to a living driver, or done here; or nothing, as it was said before."""

    driven: bool
    moves: list[Move]
    before: str = ""


def tell(
    store: Store, no: int, plan: Plan, word: Word | None, world: World, alive: Callable[[str], bool], evaluate: Evaluate
) -> Told:
    """Judges what a person or a program says of a run, and records it, in one transaction. Raises Refusal.

    It is judged on the stored checkpoint by the rules themselves, after the words that lie there already; a driver hears words
    before anything else, so it comes to the same. Without a word only those that a driver left behind are heard.
    """
    before = ""
    moves: list[Move] = []

    def judge(at: Checkpoint, notes: list[Note], driven: bool) -> Judged:
        nonlocal before
        moment = Moment(world.now(), world.clock(), world.boot, None, world.draw())

        def made(move: Move) -> None:
            moves.append(move)
            apply(at, move)

        words = [note for note in notes if note.kind in WORDS]
        for note in words:
            made(hear(plan, at, note, moment, evaluate))
        given = None if word is None else word._replace(now=moment.now, clock=moment.clock, boot=moment.boot)
        if given is not None:
            before = _said_before(store, no, at, moves, words, given)
            if before:
                return Judged(None, [])
            if isinstance(given, Signal):  # what is due comes first: a wait that is over takes nothing, and may end the run
                _go_by(at, _over(at, moment), lambda p: made(decide(plan, at, Due(p.scope), moment, evaluate)))
            made(decide(plan, at, given, moment, evaluate))
        for note in notes:
            if note not in words and not driven:
                made(hear(plan, at, note, moment, evaluate))
        return Judged(None if given is None else note_of(given), moves)

    driven = store.hear(no, alive, judge, world.now)
    return Told(driven, [] if driven or before else moves, before)


def note_of(word: Word) -> tuple[str, Json, str]:
    """(kind, data, by) of the note that says this to a driver."""
    kind = next(kind for kind, what in WORDS.items() if isinstance(word, what))
    return kind, {name: value for name, value in word._asdict().items() if name != "by"}, word.by


def _over(at: Checkpoint, moment: Moment) -> list[Position]:
    """The waits for people and signals whose time is over, though nobody has noticed yet."""
    waits = [p for p in at.positions.values() if p.phase in (Phase.ASKED, Phase.LISTENING)]
    return [p for p in waits if timer.is_over(p, at.run.paused_at, moment.now, moment.clock, moment.boot)]


def _go_by(at: Checkpoint, over: list[Position], made: Callable[[Position], None]) -> None:
    """What is due happens. Raises NotPossible where it ends the run: as it is stored, it only waits."""
    for p in over:
        made(p)
    if over and at.run.status in TERMINAL:
        id, path, since = at.run.id, path_of(over[0].scope, over[0].state), moment_text(over[0].due or 0)
        raise NotPossible(f"run {id}: {path}: its time is over since {since}: `durun resume {id}` goes on; nothing was changed")


def _said_before(store: Store, no: int, at: Checkpoint, moves: list[Move], words: list[Note], word: Word) -> str:
    """In words that just this was said before; '' where it was not. Raises NotPossible where something else was answered."""
    if isinstance(word, Answer) and not asks.standing(at, word.state, word.visit):
        heard = [a for move in moves for a in move.answers if word.state in (None, path_of(a.scope, a.state))]
        heard = [a for a in heard if word.visit in (None, a.visit)]
        last = heard[-1] if heard else store.last_answer(no, word.state, word.visit)
        return "" if last is None else asks.said_before(at.run.id, last, word)
    if isinstance(word, Signal) and word.dedupe is not None:
        lying = [note for note in words if note.data.get("name") == word.name and note.data.get("dedupe") == word.dedupe]
        if lying or store.sent_before(no, word.name, word.dedupe):
            return f"run {at.run.id}: the signal {word.name} was sent before as {word.dedupe}"
    return ""


def new_place() -> str:
    """A name no driver had."""
    return os.urandom(8).hex()

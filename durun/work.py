"""Many runs in one process: what is interrupted, due, answered or undelivered is taken up, and let go where it only waits.

Rules:
- each run has its own engine and is held by its own fence; one place, one keeper and one lock serve all
- what is ready in several runs is committed together, a savepoint each; what those commits begin goes to the keeper in one piece
- a run that only waits is let go: what is due next is found by the file's indexes, so ten thousand that wait cost nothing
- what is refused to one run is said, and that run is let go; a file that cannot be used ends the process
- a run's pinned tools are asked before it is taken up, beside all else: one that hangs holds up its own runs alone
- told to stop, it begins nothing more and leaves what is under way to its keeper
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Any

from durun.effects.command import Commands, Full, KeeperGone
from durun.engine import SIGN, Engine, Signals, World, drift_of, new_place, question
from durun.errors import Refusal, StoreUnusable, Superseded
from durun.machine.events import Ended, Happening
from durun.machine.model import TERMINAL, Phase, Run
from durun.messages import Delivery
from durun.outbox import LISTEN, VAIN, Deliverer, by_signal, new_commands, unusable, usable, with_files
from durun.plan.canonical import has_messages
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.messages import Messages
from durun.store.runs import Driver, Held, Pinned, Store
from durun.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.effects.tools import Beside

Json = Any

TICK = 0.2  # s between looks into the file
SOON = 500  # ms: a run that goes on within them is not let go
LATER = 60.0  # s after which what could not go on is tried again
MANY = 500  # runs that are taken up in one transaction


class Slot:
    """A run that is driven here, or only its messages are delivered: then it has no engine."""

    def __init__(self, no: int, id: str, deliverer: Deliverer, delivery: Delivery | None, engine: Engine | None) -> None:
        self.no, self.id, self.deliverer, self.delivery, self.engine = no, id, deliverer, delivery, engine
        self.late: list[tuple[float, Ended]] = []  # ends by a signal, and until when durun listens for one to itself
        self.over = False
        self.queued = False  # it waits for its turn at what it shares with other runs
        self.seq = -1  # moves of the run when it was taken up

    def now(self, events: list[Happening], told: str) -> list[Happening]:
        """What may be decided on by now: an end by a signal that nobody here sent is held back for a moment."""
        out: list[Happening] = []
        for event in events:
            if isinstance(event, Ended) and by_signal(event):
                self.late.append((time.monotonic() + LISTEN, event))
            else:
                out.append(event)
        due = [event for until, event in self.late if told or until <= time.monotonic()]
        self.late = [(until, event) for until, event in self.late if event not in due]
        return [*out, *(e._replace(stopped="leaving") if told else e for e in due)]


class Plans(NamedTuple):
    plan: Json
    evaluate: Evaluator


class Work:
    """The runs of one file. `made` is told of each run before it is driven: it refuses, or loads what its plan may need."""

    def __init__(
        self, store: Store, world: World, signals: Signals, alive: Callable[[str], bool], sign: Callable[[str], Any],
        say: Callable[[str], None], made: Callable[[Pinned, str], None], concurrency: int, watch: Callable[[Slot, Any, Any], None],
    ) -> None:  # fmt: skip
        self.store, self.world, self.signals, self.say = store, world, signals, say
        self._sign, self._made, self._concurrency, self._watch = sign, made, concurrency, watch
        self.folder = store.file.folder
        self.commands = new_commands(self.folder, new_place())
        self.place = self.commands.place  # whose lock is held as long as this process lives
        self._retired: list[Commands] = []
        self._lives = alive
        self._alive: Callable[[str], bool] = lambda place: place != self.place and alive(place)
        self._identity = Driver(self.place, os.getpid(), world.boot, os.uname().nodename)
        self.slots: dict[int, Slot] = {}
        self._plans: dict[str, Plans] = {}
        self._refused: dict[int, tuple[tuple[int, int], float]] = {}  # run -> ((fence, seq) when it could not go on, not before)
        self._tools: Beside | None = None  # once a run has any
        self._undelivered: dict[int, float] = {}  # run -> not before: its messages could not be delivered
        self._seen = -1
        self._look_at = 0.0  # when the file is looked into, though nobody has written
        self._signed: int | None = None
        self._vain = 0
        self.moved = 0
        self.idle = True  # nothing was taken up yet
        self._once = False
        self._keep = self._dropped = False  # whether an end may have been heard that is not stored: its note is for whoever goes on

    # --- the loop ---

    def run(self, *, once: bool) -> None:
        """Works until it is told to stop; with `once`, until nothing is left that could be done now."""
        self._once, self._keep = once, True
        self._rounds()
        self._keep = self._dropped

    def _rounds(self) -> None:
        while True:
            self._leave_a_sign()
            full = self._take_up()
            if self.signals.told:
                return self._end_late()
            if self._once and not self.slots and not full:
                return
            self._turn(self._receive(self._patience()))

    def _end_late(self) -> None:
        """What was ended by a signal while durun itself is told to stop was stopped with it."""
        for slot in self.slots.values():
            late = slot.now([], self.signals.told)
            if late and slot.engine is not None and (own := slot.engine.told_of(late)):
                slot.engine.move(*own)

    def _leave_a_sign(self) -> None:
        now = self.world.reading()
        if self._signed is None or now - self._signed >= SIGN:
            self.commands.sign(f"{now:020d} {self.world.boot}\n")
            self._signed = now

    def _turn(self, events: dict[int, list[Happening]]) -> None:
        """One round of all that are held: what is ready is committed together."""
        asked: list[tuple[Slot, list[Happening]]] = []
        for slot in list(self.slots.values()):
            found = slot.now(events.get(slot.no, []), self.signals.told)
            if slot.engine is None:
                self._deliver(slot, found)
            elif (what := self._ready(slot, slot.engine, found)) is not None:
                asked.append((slot, what))
        if asked:
            self._commit(asked)
        elif self._once and all(slot.queued for slot in self.slots.values()):
            for slot in self.slots.values():  # what they wait for is held by others
                slot.over = True
        self.commands.flush()
        self._let_go([slot for slot in self.slots.values() if slot.over])

    def _deliver(self, slot: Slot, events: list[Happening]) -> None:
        assert slot.delivery is not None
        for event in events:
            if slot.delivery.has(event):
                slot.delivery.heard(event)
        slot.delivery.begin()
        slot.over = not slot.delivery.busy and not slot.late

    def _ready(self, slot: Slot, engine: Engine, events: list[Happening]) -> list[Happening] | None:
        """What of a run is to be decided on now; None where nothing is. A run that only waits is marked as over."""
        slot.queued = False
        engine.deliver()
        own = engine.told_of(events)
        if own:
            return own
        if engine.does_not_stop():
            slot.over = True
            return None
        busy = slot.deliverer.busy or bool(slot.late)
        if engine.at.run.status in TERMINAL:
            slot.over = not busy
            return None
        if (ready := engine.ready()) is not None:
            return [ready]
        if engine.noted():
            return []
        due = engine.next_due()
        slot.queued = not busy and any(p.phase is Phase.QUEUED for p in engine.at.active.values())
        waits = slot.queued and len(self.slots) < self._concurrency  # it keeps its turn as long as there is room
        slot.over = not busy and not engine.lingers and not waits and (due is None or due > SOON)
        return None

    def _commit(self, asked: list[tuple[Slot, list[Happening]]]) -> None:
        engines = [slot.engine for slot, _ in asked if slot.engine is not None]
        words = [engine.words_for(events) for engine, (_, events) in zip(engines, asked, strict=True)]
        for (slot, _), engine, became in zip(asked, engines, self.store.commit_all(words, self.world.now()), strict=True):
            if isinstance(became, Refusal | Superseded):
                self.say(f"{slot.id}: {became}")
                slot.over = self._dropped = True
                self._refuse(slot.no)
                continue
            held, moves = became
            self.moved += len(moves)
            engine.took(held, moves)
            for move in moves:
                self._watch(slot, engine.at, move)

    # --- what happens ---

    def _patience(self) -> float:
        """Seconds to wait for something to happen."""
        wait = min(TICK, *(slot.deliverer.patience() for slot in self.slots.values()), TICK)
        for slot in self.slots.values():
            if slot.engine is not None:
                if slot.engine.ready() is not None:
                    return 0.0
                due = slot.engine.next_due()
                wait = wait if due is None else min(wait, max(0, due) / 1000)
        return wait

    def _receive(self, wait: float) -> dict[int, list[Happening]]:
        """What has happened, by run."""
        read_, write, odd = [], list[int](), list[int]()
        for slot in self.slots.values():
            files = slot.deliverer.files()
            read_ += files[0]
            write += files[1]
            odd += files[2]
        wake = self.signals.wake
        files_: list[Any] = [self.commands, *read_, *([wake] if wake is not None else [])]
        ready = select.select(files_, write, odd, wait)[0]
        if wake is not None and wake in ready:
            os.read(wake, 4096)
        with usable(self.folder):
            reports = self.commands.receive(None) if self.commands in ready else []
            gone = next((r for r in reports if isinstance(r, KeeperGone)), None)
            if gone is not None:
                return self._without_keeper(gone)
            if reports:
                self._vain = 0
            by_run: dict[int, list[Any]] = {}
            for report in reports:
                if isinstance(report, Full):
                    raise StoreUnusable(unusable(self.folder, report.errno))
                if isinstance(report, KeeperGone):
                    continue
                by_run.setdefault(int(report.token.partition(".")[0]), []).append(report)
            return {no: slot.deliverer.gather(by_run.get(no, [])) for no, slot in list(self.slots.items())}

    def _without_keeper(self, gone: KeeperGone) -> dict[int, list[Happening]]:
        """The keeper died: a new one takes its place for all runs. Not again and again."""
        self._vain += 1
        if self._vain >= VAIN:
            what = f"the keeper of {self.commands.path} died, and so did the {VAIN - 1} before it, before they began anything"
            raise StoreUnusable(f"{what} ({gone.why}): nothing more is begun; mend that, then start it again")
        self._retired.append(self.commands)
        self.commands = new_commands(self.folder, new_place())
        return {no: slot.deliverer.renew(self.commands) for no, slot in list(self.slots.items())}

    # --- to take up, and to let go ---

    def _take_up(self) -> bool:
        """Takes up what can go on, as far as there is room. Whether more is left than there was room for."""
        if self.signals.told or len(self.slots) >= self._concurrency:
            return False
        changed = self.store.changed()
        if changed == self._seen and time.monotonic() < self._look_at:
            return self._asks
        self._seen = changed
        self._refused = {no: kept for no, kept in self._refused.items() if kept[1] > time.monotonic()}
        now, room = self.world.now(), min(MANY, self._concurrency - len(self.slots))
        found = [no for no in read.to_work(self.store.file, self._alive, now) if self._may(no)]
        self._take(self._with_answers(found, room))
        later = self._deliver_alone(now, found, self._concurrency - len(self.slots))
        soon = read.next_due(self.store.file, now)
        wait = 0.0 if len(found) > room else later if soon is None else min(later, max(0.05, (soon - now) / 1000))
        again = min((until for _, until in self._refused.values()), default=float("inf"))
        self._look_at = min(time.monotonic() + (min(wait, TICK) if self._asks else wait), again)
        return len(found) > room or self._asks

    @property
    def _asks(self) -> bool:
        return self._tools is not None and self._tools.busy

    def _with_answers(self, found: list[int], room: int) -> list[int]:
        """So many of these runs as there is room for, whose tools have been asked, or that have none."""
        asked = set(read.with_tools(self.store.file, found))
        if asked and self._tools is None:
            from durun.effects.tools import Beside

            self._tools = Beside()
        if self._tools is None:
            return found[:room]
        self._tools.only(asked)
        for no in [no for no in found[:MANY] if no in asked and self._tools.knows(no) is None]:
            self._tools.ask(no, question(self.store.pinned(no), self.store.load(no).run))
        return [no for no in found if no not in asked or self._tools.knows(no)][:room]

    def _may(self, no: int) -> bool:
        """Whether a run is not held here already, and has changed since it could not go on, or its time has come."""
        if no in self.slots:
            return self.slots[no].engine is None  # only its messages are delivered so far
        return no not in self._refused or self._refused[no][0] != self.store.held(no)

    def _refuse(self, no: int, due: int | None = None) -> None:
        """A run cannot go on as it stands: it is let be until it has changed, or for some time."""
        wait = LATER if due is None else min(LATER, max(0.05, due / 1000))
        self._refused[no] = (self.store.held(no), time.monotonic() + wait)

    def _take(self, nos: list[int]) -> None:
        if not nos:
            return
        w = self.world
        for no, held in zip(
            nos, self.store.take_all(nos, self._identity, self._alive, w.now(), self._sign, w.reading()), strict=True
        ):
            if isinstance(held, Refusal):
                self._refuse(no)
                continue
            try:
                self._hold(no, held)
            except Refusal as e:  # StoreUnusable ends the process
                if isinstance(e, StoreUnusable):
                    raise
                self.say(f"{read.summary(self.store.file, no, self._alive).id}: {e}")
                self.store.let_go_all([held])
                if no in self.slots and self.slots[no].engine is not None:
                    self.slots[no].engine = None
                    if not self.slots[no].deliverer.busy:
                        del self.slots[no]
                self._refuse(no)

    def _hold(self, no: int, held: Held) -> None:
        pinned, at = self.store.pinned(no), self.store.load(no)
        slot = self.slots.get(no) or self._slot(no, pinned, at.run)
        plan, evaluate = self._plan(pinned, slot.id)
        engine = Engine(self.store, slot.deliverer, self.world, plan, evaluate, held, at)
        engine.signals, engine.holds_back = self.signals, True
        if engine.turns is not None:
            engine.turns.alive = self._lives
        slot.engine = engine
        engine.delivery = slot.delivery
        self.slots[no] = slot
        slot.seq = held.seq
        if self._tools is not None and self._tools.knows(no):
            said = drift_of(pinned, at.run, self._tools.words(no))
            if at.run.undoing is None and (said.found or at.run.drift is not None):
                engine.move(said)
        engine.begin_driving()

    def _slot(self, no: int, pinned: Pinned, run: Run) -> Slot:
        self.idle = False
        plans = self._plan(pinned, run.id)
        deliverer = Deliverer(self.commands, no, pinned, self.store.file.path, new_place, self.world.boot)
        with_files(deliverer, self.store.file)
        delivery = None
        if has_messages(plans.plan) or pinned.pins.get("messages"):
            messages = Messages(self.store.file, self.store.effect)
            delivery = Delivery(
                messages, no, run, deliverer, lambda: self._moment(deliverer), self.place, self._lives,
                lambda line: self.say(f"{run.id}: {line}"),
            )  # fmt: skip
        return Slot(no, run.id, deliverer, delivery, None)

    def _plan(self, pinned: Pinned, id: str) -> Plans:
        """The plan of a run, and what works out its expressions: one for all that have it."""
        self._made(pinned, id)
        if pinned.digest not in self._plans:
            self._plans[pinned.digest] = Plans(pinned.plan, Evaluator())
        return self._plans[pinned.digest]

    def _moment(self, deliverer: Deliverer) -> Any:
        from durun.machine.events import Moment

        w = self.world
        return Moment(w.now(), w.clock(), w.boot, deliverer.place, w.draw(), w.reading())

    def _deliver_alone(self, now: int, taken: list[int], room: int) -> float:
        """Delivers the messages of runs that do not go on by themselves. Seconds after which it is worth to look again."""
        later = LATER
        if room <= 0:
            return later
        waiting = Messages(self.store.file, self.store.effect).waiting_runs(now)
        for no in [no for no in waiting if no not in self.slots and no not in taken and self._may_deliver(no)][:room]:
            pinned = self.store.pinned(no)
            try:
                slot = self._slot(no, pinned, self.store.load(no).run)
            except StoreUnusable:
                raise
            except Refusal as e:  # of a run that this durun cannot go on with
                self.say(f"{read.summary(self.store.file, no, self._alive).id}: {e}")
                self._undelivered[no] = time.monotonic() + LATER
                continue
            assert slot.delivery is not None
            self.slots[no] = slot
            slot.delivery.begin()
            if not slot.delivery.busy:
                del self.slots[no]
                later = min(later, (slot.delivery.due or 0) / 1000 or later)
        return later

    def _may_deliver(self, no: int) -> bool:
        return self._undelivered.get(no, 0.0) <= time.monotonic()

    def _let_go(self, slots: list[Slot], *, all_: bool = False) -> None:
        if not slots and not all_:
            return
        held = [slot.engine.held for slot in slots if slot.engine is not None]
        self.store.let_go_all(held, self.place if all_ else None)
        for slot in slots:
            slot.deliverer.close_sender()
            del self.slots[slot.no]
            if slot.engine is not None and slot.engine.held.seq == slot.seq and slot.no not in self._refused:
                self._refuse(slot.no, slot.engine.next_due())
        self._look_at = 0.0  # what they wait for may be the next to be due

    def close(self) -> None:
        """Lets all go; what is under way stays with its keeper, and its notes stay for whoever goes on."""
        if self._tools is not None:
            self._tools.close()
        keep = self._keep or any(slot.deliverer.busy for slot in self.slots.values())
        self._let_go(list(self.slots.values()), all_=True)
        for commands in [*self._retired, self.commands]:
            commands.close(keep=keep or commands is not self.commands)

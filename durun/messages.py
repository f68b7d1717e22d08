"""The deliverer of messages: claims one, acts through the outbox, stores what became of it. It decides nothing.

Rules:
- who drives a run, `outbox deliver` and `work` all deliver here, each what it has claimed: by the lock of its place, and a fence
- the claim of one that waits, and the intent to begin it here, are one transaction; it is begun after that
- one that a dead deliverer had claimed is taken over: what became of it is found out from the notes, as of any effect
- what is written with a fence that was superseded changes nothing, and what it says is dropped
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from durun.machine import message
from durun.machine.events import Happening, Moment
from durun.machine.message import Step
from durun.machine.model import Effect, Message, Run
from durun.machine.scope import path_of
from durun.outbox import listened
from durun.store.messages import Claimed, Lost, Messages

Json = Any
TICK = 0.2  # s between looks at what it was told
LEAVING = {"INT": [("INT", 10_000), ("TERM", 10_000), ("KILL", 0)], "TERM": [("TERM", 10_000), ("KILL", 0)], "KILL": [("KILL", 0)]}
SOON = 1_000  # ms after which it is looked whether a limit has a place
PATIENCE = 60_000  # ms after which it is looked again, where nothing is due


class Performer(Protocol):
    """What a delivery needs of the outbox; see `outbox.Deliverer`."""

    @property
    def place(self) -> str: ...
    def begin(self, run: Run, effect: Effect, *, more: bool = False) -> None: ...
    def stop(self, no: int, steps: list[tuple[str, int]], why: str) -> None: ...
    def recover(self, effect: Effect) -> Happening | None: ...


class Delivery:
    """Delivers the messages of one run. `claimant` is the place whose lock this process holds while it lives."""

    def __init__(
        self, messages: Messages, no: int, run: Run, performer: Performer, moment: Callable[[], Moment], claimant: str,
        alive: Callable[[str], bool], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._messages, self._no, self._run, self._performer = messages, no, run, performer
        self._moment, self._claimant, self._say = moment, claimant, say
        self._alive = alive
        self._under_way: dict[int, Claimed] = {}
        self.due: int | None = None  # ms until the next may be delivered, as seen last
        self.delivered = 0
        self.given_up = 0

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def has(self, event: Happening) -> bool:
        """Whether something that happened is about a message that is delivered here."""
        return abs(getattr(event, "effect", 0)) in self._under_way

    def begin(self) -> None:
        """Begins what is due, and takes over what a dead deliverer left."""
        self.due = None
        for m in self._messages.heads(self._no):
            if m.effect in self._under_way:
                continue
            left = message.due_in(m, self._moment()) if m.status == "waiting" else 0
            if left > 0 or not self._claim(m):
                left = left or (SOON if message.limit_of(m) is not None else PATIENCE)
                self.due = left if self.due is None else min(self.due, left)

    def _claim(self, m: Message) -> bool:
        at = self._moment()

        def begun(found: Message, effect: Effect) -> Step | None:
            return message.begin(found, effect, at, self._performer.place) if message.due_in(found, at) <= 0 else None

        claimed = self._messages.claim(self._no, m.effect, self._claimant, self._alive, begun, at)
        if claimed is None:
            return False
        self._under_way[m.effect] = claimed
        if claimed.before is None:
            self._act(claimed)
        elif (event := self._performer.recover(_acting(claimed))) is not None:
            self.heard(event)
        return True

    def _act(self, claimed: Claimed) -> None:
        self._performer.begin(self._run, _acting(claimed))

    def heard(self, event: Any) -> None:
        """What became of a message that is delivered here, or what its probe says of it."""
        no = abs(event.effect)
        claimed, at = self._under_way.pop(no), self._moment()

        def decided(over: bool) -> Step:
            step = message.heard(claimed.message, claimed.effect, event, at, self._performer.place)
            return message.withdrawn(step) if over and claimed.message.ordered else step

        try:
            after = self._messages.put(claimed, decided, at, message.held_back(claimed.message, event, at))
        except Lost:
            return
        if after.message.status == "sending":
            self._under_way[no] = after
            return self._act(after)
        self._tell(after)

    def _tell(self, after: Claimed) -> None:
        m, e = after.message, after.effect
        path = path_of(e.scope, e.state)
        error = f"{e.error['name']}: {e.error['message']}" if e.error else ""
        match m.status:
            case "delivered":
                self.delivered += 1
                self._say(f"{path}: delivered" + (f", at attempt {e.attempt}" if e.attempt > 1 else ""))
            case "dead":
                self.given_up += 1
                run = self._run.id
                ways = f"`durun outbox retry {run}:{m.effect}` | `durun outbox drop {run}:{m.effect}`"
                self._say(f"{path}: not delivered, and given up: {error}: {ways}")
            case "waiting" if m.length is not None:
                self._say(f"{path}: not delivered: {error}; again in {m.length / 1000:.1f}s")
            case "withdrawn":
                self._say(f"{path}: withdrawn with its run")

    def stop(self, grace: int) -> None:
        """The run is cancelled: what is under way has so long to end."""
        for claimed in self._under_way.values():
            if claimed.message.ordered:
                self._performer.stop(_acting(claimed).no, [("TERM", grace), ("KILL", 0)], "cancel")


def _acting(claimed: Claimed) -> Effect:
    """What is begun of a message: its effect, or its probe, which has no row in the log and is told by a number below 0."""
    e, m = claimed.effect, claimed.message
    if not m.asking:
        return e
    return e._replace(no=-e.no, kind="probe", request=m.probe["request"], attempt=m.probes, status="begin")


def deliver(delivery: Delivery, outbox: Any, told: Callable[[], str], wake: int | None = None) -> None:
    """Delivers what is due of one run, until nothing more is, or this process is told to stop: INT, TERM or KILL."""
    stopped = ""
    while True:
        if told() and told() != stopped:
            stopped = told()
            for no in outbox.under_way():
                outbox.stop(no, LEAVING[stopped], "leaving")
        if not told():
            delivery.begin()
        if not delivery.busy:
            return
        for event in outbox.receive(TICK, wake):
            if delivery.has(event):
                delivery.heard(listened(event, told))

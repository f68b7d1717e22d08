"""A person at the terminal of `watch` is asked as one is who drives: what they say is recorded as `approve` records it.

Whoever drives the run goes on with it. Where nobody does the move is made, and what it leads to waits for whoever resumes: who only
watches never becomes a driver. A question that was left waiting is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from durun.cli import ask
from durun.cli.common import alive_in
from durun.cli.drive import noticed
from durun.cli.reader import say
from durun.engine import Signals, real_world, tell
from durun.machine import asks
from durun.machine.events import Answer
from durun.machine.model import TERMINAL
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store


class Bystander:
    """The run as `ask` needs it."""

    def __init__(self, file: File, no: int, signals: Signals) -> None:
        self.store, self.no, self.signals = Store(file), no, signals
        self.plan = self.store.pinned(no).plan
        self._looked = self._seen = -1  # the file as it was when questions were last looked for, and when the run was read
        self.at = self.store.load(no)
        self._asked: set[tuple[str, str, int]] = set()

    def asks(self, before: Callable[[], None]) -> bool:
        """Asks what stands and was not asked here before, with `before` called first. Whether anything was asked."""
        changed = self.store.changed()
        if changed == self._looked:
            return False
        self._looked = changed
        if not read.asks(self.store.file, self.no):  # a run may stand in thousands of places, and move five times between two looks
            return False
        self.at = self.store.load(self.no)
        standing = [p for p in asks.standing(self.at, None) if (p.scope, p.state, p.visit) not in self._asked]
        if not standing or self.at.run.status in TERMINAL or not ask.somebody_is_here():
            return False
        before()
        for p in standing:
            if self.signals.told or self.at.positions.get(p.scope) != p:
                continue
            self._asked.add((p.scope, p.state, p.visit))
            ask.one(self, p)
        self._looked = -1  # what was just said may have led to the next question
        return True

    def listen(self) -> bool:
        """Looks what others have done. False: nothing more is to be done about it here."""
        changed = self.store.changed()
        if changed != self._seen:
            self._seen, self.at = changed, self.store.load(self.no)
        return False

    def answered(self, answer: Answer) -> None:
        """Records the answer. Raises what `engine.tell` does, and then nothing has changed."""
        file = self.store.file
        noticed(file)
        told = tell(self.store, self.no, self.plan, answer, real_world(), alive_in(file.path), Evaluator())
        self.at = self.store.load(self.no)
        if told.before:
            say(told.before)

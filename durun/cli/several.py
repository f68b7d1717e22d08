"""Several runs driven by one command, some at once: none waits behind one that only waits.

Rules:
- each worker is a driver of its own; it drives a run as far as it goes without waiting, and takes the next
- a run that waits for a time is taken up again when that has come, by whichever worker is free
- what is refused to one run is said, and the others go on; a file that cannot be used ends them all, and names what is left
- told to stop, the workers stop what they have under way, and nothing more is begun
"""

from __future__ import annotations

import heapq
import json
import os
import select
import time

from durun.cli.common import alive_in, now
from durun.cli.reader import say
from durun.effects.background import Worker
from durun.engine import Signals
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def held_or_due(file: File, after_restore: bool = False) -> list[tuple[int, str]]:
    """What `resume --all` goes on with, after it has let the whole file go: (run, what of it may be taken up)."""
    if read.hold(file) is not None and Store(file).lift_hold():
        say(f"the runs in {file.path} are held no more")
    from durun.cli.drive import noticed

    noticed(file)
    found = read.to_take_up(file, alive_in(file.path), now(), restored=after_restore)
    if not found:
        say("no run is interrupted, due or held: there is nothing to go on with")
    return [(s.no, "held") for s in found]


def deliver(file: File, chosen: list[int], *, concurrency: int, quiet: bool) -> list[int]:
    """Delivers the messages of runs, so many runs at once. The exit code of each: 9 where something was given up."""
    return drive(file, [(no, "deliver") for no in chosen], no_wait=True, concurrency=concurrency, quiet=quiet, more={})


def drive(
    file: File, chosen: list[tuple[int, str]], *, no_wait: bool, concurrency: int, quiet: bool, more: dict[str, Any]
) -> list[int]:
    """Drives runs, so many at once. The exit code of each. `more`: what goes with each when it is first taken up."""
    from durun.cli.drive import hearing

    pool = _Pool(file, chosen, no_wait, quiet)
    pool.more = more
    if chosen:
        with hearing(pool.signals):
            pool.run(min(concurrency, len(chosen)))
    codes = [pool.codes[no] for no, _ in chosen]
    return [*codes, pool.signals.exit] if pool.signals.told else codes


class _Pool:
    def __init__(self, file: File, chosen: list[tuple[int, str]], no_wait: bool, quiet: bool) -> None:
        self.file, self.quiet = file, quiet
        self.signals = Signals()
        self.no_wait = no_wait
        self.more: dict[str, Any] = {}
        self.left = [(0.0, i, no, how) for i, (no, how) in enumerate(chosen)]  # (not before, order, run, what may be taken up)
        self.codes: dict[int, int] = {}
        self.idle: list[Worker] = []
        self.busy: dict[Worker, int] = {}
        self.told = ""
        self.unusable = False

    def run(self, workers: int) -> None:
        try:
            for _ in range(workers):
                self.idle.append(Worker("durun.cli.background", [self.file.path]))
            while self.busy or (self.left and not self.signals.told and not self.unusable):
                self._hand_out()
                self._hear()
        except OSError as e:
            say(f"no driver could be begun: {os.strerror(e.errno or 0)}")
            self.unusable = True
        for worker in [*self.idle, *self.busy]:
            worker.close()
        for _, _, no, _ in self.left:
            if no not in self.codes:
                id = read.summary(self.file, no, alive_in(self.file.path)).id
                say(f"run {id} was not gone on with: `durun resume {id}`")
                self.codes[no] = 8 if self.unusable else self.signals.exit

    def _hand_out(self) -> None:
        while self.idle and self.left and not self.signals.told and not self.unusable and self.left[0][0] <= time.monotonic():
            _, _, no, how = heapq.heappop(self.left)
            worker = self.idle.pop()
            self.busy[worker] = no
            worker.ask(json.dumps({"no": no, "quiet": self.quiet, "no_wait": True, "take_up": how, **self.more}))

    def _hear(self) -> None:
        if self.signals.told and self.signals.told != self.told:
            self.told = self.signals.told
            for worker in self.busy:
                worker.tell("TERM" if self.told == "TERM" else "INT")
        patience = self.left[0][0] - time.monotonic() if self.left and self.idle else None
        files: list[Any] = [*self.busy, *([self.signals.wake] if self.signals.wake is not None else [])]
        ready = select.select(files, [], [], None if patience is None else max(0.0, patience))[0]
        for one in ready:
            if isinstance(one, Worker):
                self._answered(one)
            else:
                os.read(one, 4096)

    def _answered(self, worker: Worker) -> None:
        line = worker.answer()
        if line == "":
            return
        no = self.busy.pop(worker)
        if line is None:
            return self._died(worker, no)
        said = json.loads(line)
        self.codes[no] = said["code"]
        self.idle.append(worker)
        if said["due"] is not None and not self.no_wait:
            heapq.heappush(self.left, (time.monotonic() + said["due"] / 1000, no, no, "none"))

    def _died(self, worker: Worker, no: int) -> None:
        """A worker that ended within a run: its word is that of the run, and another takes its place where that may help."""
        code = worker.close()
        self.codes[no] = code if code > 1 else 8
        if not self.signals.told:
            id = read.summary(self.file, no, alive_in(self.file.path)).id
            say(f"run {id}: its driver ended with {code}: `durun resume {id}`")
        if code == 8:
            self.unusable = True
        elif not self.signals.told and self.left:
            self.idle.append(Worker("durun.cli.background", [self.file.path]))

"""kill -9 at every moment of a `durun work` that drives several runs and delivers what they leave.

The moments: before and after each commit of several runs, each take-over, each letting go, each begin, each recovery. Whoever works
next brings all to their end: each command was begun once where its keeper lives, else with the same key.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import Died, Driving, Moments, Mortal

from durun.effects.locks import driver_alive
from durun.engine import Signals, real_world
from durun.errors import StoreUnusable
from durun.store import read
from durun.store.audit import audit
from durun.store.file import File
from durun.store.runs import Store
from durun.work import Slot, Work

PLAN = """
durun: 1
name: worked
pins: {env: [LEDGER]}
start: w
states:
  w: {wait: 1h, next: a}
  a: {run: 'echo "$DURUN_RUN_ID a $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', idempotent: true, next: m}
  m: {run: 'echo "$DURUN_RUN_ID m $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', background: true, idempotent: true, next: b}
  b: {run: 'echo "$DURUN_RUN_ID b $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', idempotent: true, next: succeeded}
"""
RUNS = 3


class MortalWork(Work):
    """Works for real, and may die at any of its moments."""

    def __init__(self, folder: Path, moments: Moments) -> None:
        self.file = File(str(folder / "runs.db"), create=False)
        self.moments = moments
        store: Any = Mortal(Store(self.file), moments, {"commit_all", "take_all", "let_go_all", "commit"})
        alive = lambda place: driver_alive(self.file.folder, place)  # noqa: E731
        super().__init__(
            store, real_world(), Signals(), alive, lambda _: None, lambda _: None, lambda *_: None, 100, lambda *_: None
        )

    def _slot(self, no: int, pinned: Any, run: Any) -> Slot:
        slot = super()._slot(no, pinned, run)
        slot.deliverer = Mortal(slot.deliverer, self.moments, {"begin", "recover"})  # type: ignore[assignment]
        return slot

    def die(self, *, keeper: bool) -> None:
        if keeper:
            os.kill(self.commands.pid, signal.SIGKILL)
        self.commands._socket.close()
        os.close(self.commands._lock)
        self.file.close()
        if keeper:
            os.waitpid(self.commands.pid, 0)


def made(folder: Path) -> None:
    """So many runs, all due."""
    folder.mkdir()
    driving = Driving(folder)
    for n in range(RUNS):
        engine = driving.start(PLAN, id=f"r{n}", env={"LEDGER": str(folder / "ledger")})
        driving.store.let_go(engine.held)
    driving.deliverer.close(keep=False)
    driving.file.close()
    db = apsw.Connection(str(folder / "runs.db"))
    db.execute("UPDATE positions SET due = 1, data = '{}'")
    db.close()


def life(folder: Path, at: int | None, *, keeper: bool) -> list[str]:
    made(folder)
    moments = Moments(at)
    w = MortalWork(folder, moments)
    try:
        w.run(once=True)
        w.close()
        w.file.close()
    except Died:
        w.die(keeper=keeper)
    ended(folder)
    return moments.names


def ended(folder: Path) -> None:
    """Whoever works next brings all to their end."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        w = MortalWork(folder, Moments())
        w.run(once=True)
        w.close()
        done = not read.in_flight(w.file) and not read.undelivered(w.file)
        assert not audit(w.file).broken
        w.file.close()
        if done:
            return
    raise AssertionError("they never ended")


@pytest.mark.parametrize("keeper", [False, True], ids=["worker", "worker and keeper"])
def test_at_every_moment_all_runs_come_to_their_end_with_one_key_for_each_step(tmp_path: Path, keeper: bool) -> None:
    names = life(tmp_path / "whole", None, keeper=False)
    assert {"before commit_all", "after take_all", "before let_go_all", "after begin"} <= set(names)
    for at in range(len(names)):
        life(tmp_path / str(at), at, keeper=keeper)
        lines = [line.split() for line in (tmp_path / str(at) / "ledger").read_text().splitlines()]
        keys: dict[tuple[str, str], set[str]] = {}
        for run, step, key in lines:
            keys.setdefault((run, step), set()).add(key)
        wanted = {(f"r{n}", step) for n in range(RUNS) for step in "amb"}
        assert set(keys) == wanted and all(len(found) == 1 for found in keys.values()), (at, names[at], lines)
        if not keeper:
            assert set(Counter((run, step) for run, step, _ in lines).values()) == {1}, (at, names[at], lines)


class Full:
    """A store that finds the disk full when it commits several runs for the nth time."""

    def __init__(self, store: Any, nth: int) -> None:
        self._store, self._left = store, nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit_all(self, *args: Any) -> Any:
        self._left -= 1
        if not self._left:
            raise StoreUnusable("the disk is full")
        return self._store.commit_all(*args)


def test_what_a_worker_on_a_full_disk_heard_and_could_not_store_is_found_by_the_next(tmp_path: Path) -> None:
    nth, met = 0, True
    while met:
        nth += 1
        folder = tmp_path / str(nth)
        made(folder)
        w = MortalWork(folder, Moments())
        w.store = Full(w.store, nth)  # type: ignore[assignment]
        try:
            w.run(once=True)
            met = False
        except StoreUnusable:
            pass
        w.close()
        w.file.close()
        ended(folder)
        steps = Counter(tuple(line.split()[:2]) for line in (folder / "ledger").read_text().splitlines())
        assert steps == {(f"r{n}", step): 1 for n in range(RUNS) for step in "amb"}, (nth, steps)
    assert nth > 3

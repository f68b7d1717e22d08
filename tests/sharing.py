"""Several runs of one real file under one clock, driven by the real engine; what they have begun goes on when a driver dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from durun.engine import Engine
from durun.engine import World as Times
from durun.machine.decide import begin
from durun.machine.events import Ended, Happening, Lost, Moment, Moved
from durun.machine.model import TERMINAL, Checkpoint, Effect, Run, Status, apply
from durun.plan.digest import canonical_text, digest
from durun.plan.expressions import Evaluator
from durun.store.audit import audit
from durun.store.file import File
from durun.store.runs import Birth, Driver, Store


class Outside:
    """What has really been begun: alive, or how it ended, by run, effect and attempt."""

    def __init__(self) -> None:
        self.alive: dict[tuple[int, int, int], Effect] = {}
        self.ended: dict[tuple[int, int, int], Happening] = {}
        self.begun: list[tuple[int, int, str]] = []  # (when, run, state)


class Acts:
    """A performer whose commands the test ends, and which outlive it."""

    def __init__(self, outside: Outside, no: int, place: str, times: Sharing) -> None:
        self.outside, self.no, self._place, self.times = outside, no, place, times
        self.mine: dict[int, tuple[int, int, int]] = {}

    @property
    def place(self) -> str:
        return self._place

    @property
    def busy(self) -> bool:
        return bool(self.mine)

    def begin(self, run: Run, effect: Effect, *, more: bool = False) -> None:
        token = (self.no, effect.no, effect.attempt)
        assert run.status not in TERMINAL and more in (True, False)
        assert token not in self.outside.alive and token not in self.outside.ended, "begun twice"
        self.outside.alive[token] = effect
        self.outside.begun.append((self.times.clock, self.no, effect.state))
        self.mine[effect.no] = token

    def stop(self, no: int, steps: list[tuple[str, int]], why: str) -> None:
        assert steps[-1][0] == "KILL"
        if no in self.mine:
            self.outside.alive.pop(self.mine[no], None)
            self.outside.ended[self.mine[no]] = Ended(no, -15, why)

    def recover(self, effect: Effect) -> Happening | None:
        token = (self.no, effect.no, effect.attempt)
        if token in self.outside.alive:
            self.mine[effect.no] = token
            return None
        return self.outside.ended.get(token) or Moved(effect.no)

    def receive(self, timeout: float, wake: int | None = None) -> list[Happening]:
        assert timeout == 0 and wake is None, "nobody waits here"
        found = [(no, self.outside.ended[token]) for no, token in self.mine.items() if token in self.outside.ended]
        for no, _ in found:
            del self.mine[no]
        return [event for _, event in found]

    def under_way(self) -> list[int]:
        return [*self.mine]

    def living(self, nos: list[int]) -> tuple[list[int], int | None]:
        raise AssertionError(f"{nos} ended as they were told")

    def sign(self, said: str) -> None:
        assert said

    def is_over(self, boot: str | None, place: str | None, token: str, key: str, kind: str) -> bool:
        assert boot and place and key and kind
        run, no, attempt = map(int, token.split("."))
        return (run, no, attempt) not in self.outside.alive


class Sharing:
    """The file, its clock, and its runs. A driver is an engine; a run without one has none."""

    def __init__(self, folder: str) -> None:
        self.now, self.clock, self.boot, self.folder = 1_000_000_000, 5_000_000, "boot", folder
        self.file = File(str(Path(folder) / "runs.db"), create=True)
        self.file.db.execute("PRAGMA synchronous = OFF")  # no power is cut here
        self.outside = Outside()
        self.drivers: dict[int, Engine] = {}
        self.living: set[str] = set()
        self.places = 0
        self.times = Times(lambda: self.now, lambda: self.clock, lambda: 0.5, self.boot)

    def pass_time(self, ms: int, *, set_back: int = 0) -> None:
        self.clock += ms
        self.now += ms - set_back

    def _place(self) -> Driver:
        self.places += 1
        self.living.add(f"place{self.places}")
        return Driver(f"place{self.places}", 1, self.boot, "here")

    def _engine(self, plan: Any, held: Any, at: Checkpoint, place: str) -> Engine:
        store = Store(self.file)
        engine = Engine(store, Acts(self.outside, held.no, place, self), self.times, plan, Evaluator(), held, at)
        if engine.turns is not None:
            engine.turns.alive = lambda place: place in self.living
        self.drivers[held.no] = engine
        return engine

    def start(self, plan: Any, *, group: str | None = None, queued: bool = False) -> int:
        driver = self._place()
        id = f"r{self.places}"
        run = Run(id, plan["name"], "1", f"{self.places:032x}", self.now, Status.RUNNING, None, {}, plan["vars"], {}, {})
        move = begin(
            plan, run, Moment(self.now, self.clock, self.boot, driver.place, 0.5), Evaluator(), None, group if queued else None
        )
        birth = Birth(
            canonical_text(plan), digest(plan), "", "p", self.folder, "b", {"env": {}, "base": {}, "durun": "t"}, 1, group=group
        )
        held = Store(self.file).create(birth, move, driver, self.now, queued=queued)
        at = Checkpoint(run)
        engine = self._engine(plan, held, at, driver.place)
        apply(at, move)
        engine.perform(move)
        return held.no

    def die(self, no: int) -> None:
        """Its driver is gone; what it has begun goes on."""
        engine = self.drivers.pop(no)
        assert engine.performer is not None
        self.living.discard(engine.performer.place)

    def die_before_it_begins(self, no: int) -> None:
        """Its driver is gone after the last commit, and had not handed on what that was to begin."""
        for token in [token for token in self.outside.alive if token[0] == no]:
            effect = self.outside.alive.pop(token)
            n = max(n for n, (_, run, state) in enumerate(self.outside.begun) if (run, state) == (no, effect.state))
            del self.outside.begun[n]
        self.die(no)

    def take(self, no: int) -> Engine:
        driver = self._place()
        store = Store(self.file)
        held = store.take_over(no, driver, lambda place: place in self.living, self.now)
        engine = self._engine(store.pinned(no).plan, held, store.load(no), driver.place)
        if engine.turns is not None:
            engine.turns.bind(engine._moment())
        engine.recover()
        return engine

    def settle(self) -> None:
        """All drivers do what they can do without waiting."""
        moved = True
        while moved:
            moved = False
            for engine in self.drivers.values():
                assert engine.performer is not None
                events = engine.performer.receive(0)
                if events:
                    engine.move(*events)
                elif engine.at.run.status in TERMINAL or not engine._go():
                    continue
                moved = True

    def end(self, token: tuple[int, int, int], status: int = 0) -> None:
        """A command ends, whether anybody drives its run or not."""
        del self.outside.alive[token]
        self.outside.ended[token] = Lost(token[1], "x") if status < 0 else Ended(token[1], status)

    def states(self) -> list[tuple[int, str]]:
        """(run, state) of what is alive."""
        return sorted((token[0], effect.state) for token, effect in self.outside.alive.items())

    def status(self, no: int) -> str:
        return str(self.file.db.execute("SELECT status FROM runs WHERE no = ?", (no,)).fetchall()[0][0])

    def well(self) -> None:
        broken = audit(self.file).broken
        assert not broken, broken

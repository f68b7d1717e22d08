"""A driver in this process, whose store and performer can die at any moment, as a process killed with -9 would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from program import until

from durun.effects.command import Commands
from durun.effects.http import Sender, Transfer
from durun.effects.locks import driver_alive, last_sign
from durun.effects.notes import _group
from durun.engine import Engine, World, new_place, real_world
from durun.machine import decide
from durun.machine.events import Moment
from durun.machine.model import Checkpoint, Run, Status, apply
from durun.messages import Delivery
from durun.outbox import Deliverer
from durun.plan.digest import canonical_text, digest
from durun.plan.expressions import Evaluator
from durun.plan.load import load
from durun.plan.schema import kind
from durun.store.file import File
from durun.store.messages import Messages
from durun.store.runs import Birth, Driver, Store


class Died(BaseException):
    """The driver is gone at this moment."""


class Moments:
    """Counts the moments of a driver, and ends it at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.seen, self.names = at, 0, []

    def pass_by(self, name: str) -> None:
        self.names.append(name)
        if self.seen == self.at:
            raise Died(name)
        self.seen += 1


class Mortal:
    """Calls something for real, and may die before or after each of some of its methods."""

    def __init__(self, inner: Any, moments: Moments, methods: set[str]) -> None:
        self._inner, self._moments, self._methods = inner, moments, methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._methods:
            return found

        def called(*args: Any, **kw: Any) -> Any:
            self._moments.pass_by(f"before {name}")
            answer = found(*args, **kw)
            if name != "receive" or answer:
                self._moments.pass_by(f"after {name}")
            else:
                self._moments.seen -= 1  # nothing happened: that was no moment
                self._moments.names.pop()
            return answer

        return called


KNOWN: dict[tuple[str, ...], Any] = {}


def plan_of(text: str, folder: Path) -> Any:
    """A plan beside those it calls, which is read once for all the lives of its runs."""
    texts = (text, *(path.read_text() for path in sorted(folder.glob("*.yaml"))))
    if texts not in KNOWN:
        KNOWN[texts] = load(text, str(folder / "plan.yaml")).plan
    return KNOWN[texts]


class Driving:
    """One driver on one run."""

    def __init__(self, folder: Path, *, moments: Moments | None = None, world: World | None = None) -> None:
        self.path = str(folder / "runs.db")
        self.world = world or real_world()
        os.makedirs(self.path + ".d", exist_ok=True)
        self.commands = Commands(self.path + ".d", new_place())
        self.file = File(self.path, create=True)
        self.file.db.execute("PRAGMA synchronous = OFF").fetchall()  # no power is cut here, but where a test says so
        self.moments = moments or Moments()
        self.store: Any = Mortal(Store(self.file), self.moments, {"commit", "create", "take_over"})
        self.identity = Driver(self.commands.place, os.getpid(), self.world.boot, "here")
        self.engine: Engine | None = None

    def start(self, text: str, id: str = "run", env: dict[str, str] | None = None, input: Any = None) -> Engine:
        plan = plan_of(text, Path(self.path).parent)
        now = self.world.now()
        first = Evaluator().value(plan["vars"], {"input": input or {}})
        types = {k: "any" if v is None else kind(v) for k, v in first.items()}
        run = Run(id, plan["name"], plan["version"], "ab" * 16, now, Status.RUNNING, None, input or {}, first, env or {}, types)
        pins = {"env": env or {}, "base": {"PATH": os.environ["PATH"]}, "durun": "test", "host": "here"}
        birth = Birth(canonical_text(plan), digest(plan), text, "plan.yaml", str(Path(self.path).parent), "bound", pins, 1)
        moment = Moment(now, self.world.clock(), self.world.boot, self.commands.place, self.world.draw(), self.world.reading())
        move = decide.begin(plan, run, moment, Evaluator())
        held = self.store.create(birth, move, self.identity, now)
        at = Checkpoint(run)
        engine = self._engine(held, plan, at)
        apply(at, move)
        engine.perform(move)
        return engine

    def take(self, no: int = 1) -> Engine:
        alive: Callable[[str], bool] = lambda place: driver_alive(self.path + ".d", place)  # noqa: E731
        sign: Callable[[str], tuple[str, int] | None] = lambda place: last_sign(self.path + ".d", place)  # noqa: E731
        held = self.store.take_over(no, self.identity, alive, self.world.now(), sign, self.world.reading())
        return self._engine(held, self.store.pinned(no).plan, self.store.load(no))

    def _engine(self, held: Any, plan: Any, at: Checkpoint) -> Engine:
        deliverer = Deliverer(self.commands, held.no, self.store.pinned(held.no), self.path, new_place, self.world.boot)
        performer: Any = Mortal(deliverer, self.moments, {"begin", "receive", "recover"})
        self.deliverer = deliverer
        self.engine = Engine(self.store, performer, self.world, plan, Evaluator(), held, at)
        if self.engine.turns is not None:
            self.engine.turns.alive = lambda place: driver_alive(self.path + ".d", place)
        return self.engine

    def die(self, *, keeper: bool = False, commands: bool = False) -> None:
        """This driver is gone: its lock and its socket close, and nothing is said to anybody."""
        if keeper:  # it begins nothing while its commands are looked for
            os.kill(self.commands.pid, signal.SIGSTOP if commands else signal.SIGKILL)
        groups = children_of(self.commands.pid) if commands else []
        for pid in groups:
            for kill in (os.kill, os.killpg):  # one that was just made has no group of its own yet
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        if keeper:
            os.kill(self.commands.pid, signal.SIGKILL)
        if self.engine is not None and self.deliverer._sender is not None:
            self.deliverer._sender.close()  # what was on the wire goes with its process
        self.commands._socket.close()
        os.close(self.commands._lock)
        self.file.close()
        if keeper:
            os.waitpid(self.commands.pid, 0)
        until(lambda: not any(state not in "ZX" for pid in groups for _, state, *_ in _group(pid) or ()))
        # what was just being executed closes its copy of the lock a moment later
        until(lambda: not driver_alive(self.path + ".d", self.commands.place))

    def leave_as_told(self) -> None:
        """As a process leaves that drove nothing."""
        self.commands.close(keep=False)
        self.file.close()

    def leave(self) -> None:
        """As a driver leaves that is done."""
        assert self.engine is not None
        self.store.let_go(self.engine.held)
        self.deliverer.close(keep=False)
        self.file.close()


class MortalSender(Sender):
    """Sends for real, and may die around the note that a request begins."""

    def __init__(self, folder: str, moments: Moments) -> None:
        super().__init__(folder)
        self._moments = moments

    def _note(self, t: Transfer) -> int:
        self._moments.pass_by("before the note")
        said = super()._note(t)
        self._moments.pass_by("after the note")
        return said


class DrivingRequests(Driving):
    def _engine(self, held: Any, plan: Any, at: Any) -> Any:
        engine = super()._engine(held, plan, at)
        self.deliverer._sender = MortalSender(self.path + ".d", self.moments)
        return engine


class DrivingMessages(Driving):
    """A driver that delivers too, and may die around each claim and each outcome."""

    def _engine(self, held: Any, plan: Any, at: Any) -> Any:
        engine = super()._engine(held, plan, at)
        store: Any = Mortal(Messages(self.file, Store(self.file).effect), self.moments, {"claim", "put"})
        alive = lambda place: driver_alive(self.path + ".d", place)  # noqa: E731
        engine.delivery = Delivery(
            store, held.no, at.run, engine.performer, engine._moment, self.identity.place, alive, lambda _: None
        )
        return engine


def children_of(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []

"""Commands that move a run: start and resume. And the one way in which a process becomes a driver."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from durun.cli.common import alive_in, document, exit_of, last_sign_in, where
from durun.cli.reader import out, out_json, say
from durun.engine import Engine, Signals, new_place, real_world
from durun.errors import ExpressionError, NeedsPerson, PlanRefused, StoreUnusable, Superseded, Usage
from durun.machine.model import Checkpoint, Move, Run, Status, apply
from durun.plan.canonical import Plan
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.file import File, make_folder
from durun.store.runs import Birth, Driver, Exists, Held, Pinned, Store

Json = Any

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
LANGUAGE = 1


# --- start ---


def start(
    plan: str, *, set: list[str] | None = None, input: str | None = None, id: str | None = None, no_wait: bool = False,
    dry_run: bool = False, quiet: bool = False, json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Start a run of a plan, and drive it. The first line on stdout is its id."""
    from durun.plan.load import load
    from durun.plan.schema import input_values

    if id is not None and not ID.fullmatch(id):
        raise Usage(f"{id[:60]!r} is no id: letters, digits, `.`, `_` and `-`, a letter or digit first, at most 128")
    loaded = load(text_of(plan), "stdin" if plan == "-" else plan)
    values = input_values(loaded.plan, _given(loaded.plan, set or [], input))
    birth = _birth(loaded.plan, loaded.source, plan, values)
    run, types = _newborn(loaded.plan, id, birth, values)
    if dry_run:
        say(f"{plan}: {len(loaded.plan['states'])} states, version {loaded.plan['version']}; all is well, nothing is stored")
        return 0
    path = where(db)
    with driver(path, create=True, quiet=quiet) as d:
        existing = d.store.id_of(run.id) if id is not None else None
        if existing is not None:
            return _again(d, existing, birth, run.id, no_wait=no_wait, json=json)
        try:
            return d.begin(loaded.plan, birth, run._replace(types=types), no_wait=no_wait, json=json)
        except Exists as e:  # somebody gave the same id a moment before
            return _again(d, (e.no, e.bound_to), birth, run.id, no_wait=no_wait, json=json)


def text_of(plan: str) -> bytes:
    try:
        if plan == "-":
            return sys.stdin.buffer.read()
        with open(plan, "rb") as f:
            return f.read(5 * 1024 * 1024)
    except OSError as e:
        raise PlanRefused(f"{plan} cannot be read: {os.strerror(e.errno or 0)}") from None


def _given(plan: Plan, pairs: list[str], file: str | None) -> Json:
    from durun.plan.data import read_json
    from durun.plan.schema import read_input

    given: dict[str, Json] = {}
    if file is not None:
        try:
            found = read_json(_read(file))
        except ValueError as e:
            raise PlanRefused(f"--input {file}: {e}") from None
        if not isinstance(found, dict):
            raise PlanRefused(f"--input {file}: it must be a JSON object, name to value")
        given |= found
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise Usage(f"-i {pair}: write it as NAME=VALUE")
        if text.startswith("@"):
            try:
                text = _read(text[1:]).decode("utf-8")
            except UnicodeDecodeError as e:
                raise PlanRefused(f"-i {pair}: the file is no UTF-8 text at byte {e.start}") from None
        given[name] = read_input(plan, name, text)
    return given


def _read(file: str) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read()
        with open(file, "rb") as f:
            return f.read()
    except OSError as e:
        raise PlanRefused(f"{file} cannot be read: {os.strerror(e.errno or 0)}") from None


def _birth(plan: Plan, source: str, file: str, values: Json) -> Birth:
    """What the run takes with it: plan, directory, environment."""
    from durun import __version__
    from durun.effects.boot import host
    from durun.outbox import PINNED
    from durun.plan.digest import canonical_text, digest

    missing = [name for name in plan["pins"]["env"] if name not in os.environ]
    if missing:
        raise PlanRefused(f"pins.env names {', '.join(missing)}, which the environment does not have")
    env = {name: _utf8(os.environ[name], f"pins.env: the value of {name}") for name in plan["pins"]["env"]}
    base = {name: os.environ[name] for name in PINNED if name in os.environ}
    for name, value in base.items():
        _utf8(value, f"the environment variable {name}")
    pins = {"env": env, "base": base, "durun": __version__, "host": host()}
    text, plan_digest = canonical_text(plan), digest(plan)
    try:
        at = "-" if file == "-" else os.path.abspath(file).encode("utf-8", "replace").decode()
        directory = _utf8(os.getcwd(), "the working directory")
    except FileNotFoundError:
        raise PlanRefused("the working directory is gone: a run needs one to run its commands in") from None
    return Birth(text, plan_digest, source, at, directory, digest({"plan": plan_digest, "input": values}), pins, LANGUAGE)


def _utf8(text: str, what: str) -> str:
    """The text, which goes with the run. Raises PlanRefused where it is no UTF-8: nothing is changed in silence."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PlanRefused(f"{what} is no UTF-8 text: {os.fsencode(text)!r}") from None
    return text


def _newborn(plan: Plan, id: str | None, birth: Birth, values: Json) -> tuple[Run, Json]:
    """The run before its first move, with the first values of its vars and the types they keep."""
    from durun.machine.clock import allowance
    from durun.plan.schema import kind, validate

    now = real_world().now()
    try:
        first = Evaluator().value(plan["vars"], {"input": values})
    except ExpressionError as e:
        raise PlanRefused(f"the first values of vars: {e}") from None
    problem = validate(plan["vars_schema"], first) if "vars_schema" in plan else None
    if problem is not None:
        raise PlanRefused(f"the first values of vars do not fit vars_schema: {problem}")
    try:
        allowance(plan, Evaluator(), {"input": values})
    except ExpressionError as e:
        raise PlanRefused(f"the timeout of the run: {e}") from None
    types = {name: "any" if value is None else kind(value) for name, value in first.items()}
    id = id or "".join(LETTERS[b % len(LETTERS)] for b in os.urandom(10))
    run = Run(
        id, plan["name"], plan["version"], os.urandom(16).hex(), now, Status.RUNNING, None, values, first, birth.pins["env"], types
    )
    return run, types


def _again(d: DriverProcess, existing: tuple[int, str], birth: Birth, id: str, *, no_wait: bool, json: bool) -> int:
    no, bound_to = existing
    if bound_to != birth.bound_to:
        raise PlanRefused(f"run {id} exists, with another plan or other input: take another id, or `durun resume {id}`")
    say(f"run {id} exists already, with this plan and input")
    out(id)
    return d.go_on(no, no_wait=no_wait, json=json)


# --- resume ---


def resume(runs: list[str], *, no_wait: bool = False, quiet: bool = False, json: bool = False, db: str | None = None) -> int:
    """Go on with a run where it stood: after a crash, a pause, a failure, or when its time has come."""
    codes = []
    with driver(where(db), create=False, quiet=quiet) as d:
        for no in [read.number(d.file, run) for run in runs]:
            codes.append(d.go_on(no, no_wait=no_wait, json=json))
            if d.signals.told:
                break
    return worst(codes)


def worst(codes: list[int]) -> int:
    """The exit code of several runs."""
    if len(codes) == 1:
        return codes[0]
    return next((code for code in (130, 143, 8, 1, 9, 6, 4, 10, 3) if code in codes), 0)


# --- a driver ---


class DriverProcess:
    """This process as a driver: its place and keeper, the file, and what it was told by signals."""

    def __init__(self, path: str, *, create: bool, quiet: bool) -> None:
        from durun.outbox import new_commands
        from durun.store.file import look

        look(path, create=create)
        make_folder(path + ".d")
        self.commands = new_commands(path + ".d", new_place())
        self.world = real_world()
        self.quiet = quiet
        self.signals = Signals()
        self.keep = False  # True while a run may have something under way: its notes are for whoever goes on
        try:
            self.file = File(path, create=create, say=say)
        except BaseException:
            self.commands.close(keep=False)
            raise
        self.store = Store(self.file)
        self.alive = alive_in(path)
        self.last_sign = last_sign_in(path)
        self.identity = Driver(self.commands.place, os.getpid(), self.world.boot, os.uname().nodename)
        self._deliverer: Any = None

    def begin(self, plan: Plan, birth: Birth, run: Run, *, no_wait: bool, json: bool) -> int:
        """Stores a new run, says its id, and drives it."""
        from durun.machine import decide

        evaluate, moment = Evaluator(), self._moment()
        move = decide.begin(plan, run, moment, evaluate)
        self.file.room()
        self.keep = True
        held = self.store.create(birth, move, self.identity, run.started_at)
        if not json:
            out(run.id)
        at = Checkpoint(run)
        engine = self._engine(held, plan, evaluate, at)
        apply(at, move)
        engine.watch(at, move)
        with self._watched():
            engine.perform(move)
            engine.drive(wait=not no_wait)
        return self._end(engine, json=json)

    def _moment(self) -> Any:
        from durun.machine.events import Moment

        w = self.world
        return Moment(w.now(), w.clock(), w.boot, self.commands.place, w.draw(), w.reading())

    def go_on(self, no: int, *, no_wait: bool, json: bool) -> int:
        """Takes a run over and drives it from where it stands."""
        summary = read.summary(self.file, no, self.alive)
        if summary.status in read.ENDED and summary.status != "failed":
            say(f"run {summary.id} is {summary.status} already: there is nothing to go on with")
            return self._show(no, json=json)
        engine = self.take(no)
        with self._watched():
            engine.take_up()
            engine.drive(wait=not no_wait)
        return self._end(engine, json=json)

    def take(self, no: int) -> Engine:
        """The engine of a run that this process holds from now on, until `let_go`. Raises Held."""
        held = self.store.take_over(no, self.identity, self.alive, self.world.now(), self.last_sign, self.world.reading())
        self.keep = True
        pinned = self.store.pinned(no)
        if pinned.language > LANGUAGE:
            self.store.let_go(held)
            self.keep = False
            made_by = pinned.pins["durun"]
            raise NeedsPerson(f"this run is stranded: its plan is of language {pinned.language}; durun {made_by} can go on with it")
        return self._engine(held, pinned.plan, Evaluator(), self.store.load(no), pinned)

    def _engine(self, held: Held, plan: Plan, evaluate: Evaluator, at: Checkpoint, pinned: Pinned | None = None) -> Engine:
        from durun.outbox import Deliverer

        preload(plan)
        pinned = pinned or self.store.pinned(held.no)
        if self._deliverer is not None:
            self.commands = self._deliverer.commands
        self._deliverer = Deliverer(self.commands, held.no, pinned, self.file.path, new_place, self.world.boot)
        engine = Engine(self.store, self._deliverer, self.world, plan, evaluate, held, at)
        engine.signals = self.signals
        engine.watch = self._say_move
        return engine

    def _say_move(self, _: Checkpoint, move: Move) -> None:
        if self.quiet:
            return
        from durun.render.text import moved

        for line in move.said:
            say(line)
        for e in move.history:
            line_ = moved(e.kind, e.state, e.attempt, e.data)
            if line_ is not None:
                say(line_)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While it drives, what the process is told goes to the engine."""
        try:
            with hearing(self.signals):
                yield
        except Superseded as e:
            say(f"{e}: this one stops here")
            raise SystemExit(6) from None

    def let_go(self, engine: Engine) -> None:
        """The run is nobody's from now on. What is still under way keeps its notes."""
        self.store.let_go(engine.held)
        self.keep = engine.performer is not None and engine.performer.busy
        if self.keep:
            id, keeper = engine.at.run.id, self._deliverer.commands.pid
            say(f"a command of run {id} has not ended: `durun resume {id}` waits for it; its keeper is {keeper} (`kill -CONT`)")

    def _end(self, engine: Engine, *, json: bool) -> int:
        self.let_go(engine)
        code = self._show(engine.held.no, json=json)
        ended = engine.at.run.status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
        return self.signals.exit if self.signals.told and not ended else code

    def _show(self, no: int, *, json: bool) -> int:
        doc = document(self.file, no)
        if json:
            out_json(doc)
        if not self.quiet:
            from durun.render.text import stands

            say(stands(doc))
        return exit_of(doc["status"])

    def close(self) -> None:
        if not self.keep:
            with suppress(StoreUnusable):  # a row that stays says nothing wrong
                self.store.forget_driver(self.identity.place)
        if self._deliverer is not None:
            self._deliverer.close(keep=self.keep)
        else:
            self.commands.close(keep=self.keep)
        self.file.close()


def preload(plan: Plan) -> None:
    """Imports all that driving this plan may need, before its first effect: what is installed later does not reach it."""
    for name in ("durun.machine.poll", "durun.plan.data", "durun.plan.units", "durun.render.document", "durun.render.text"):
        importlib.import_module(name)
    from durun.plan.expressions import needs_cel

    if needs_cel(plan):
        importlib.import_module("durun.plan.cel")
    if "vars_schema" in plan or any("schema" in state.get("output", {}) for state in plan["states"].values()):
        from durun.plan import schema

        schema.fault({})  # loads its library


@contextmanager
def driver(path: str, *, create: bool, quiet: bool) -> Iterator[DriverProcess]:
    """This process as a driver, and let go of at the end."""
    d = DriverProcess(path, create=create, quiet=quiet)
    try:
        yield d
    finally:
        d.close()


@contextmanager
def hearing(signals: Signals) -> Iterator[None]:
    """INT, TERM and HUP are told to the engine, whatever this process inherited; a HUP ignored at start stays ignored."""
    names = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGHUP: "TERM"}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del names[signal.SIGHUP]
    awake, wake = os.pipe()
    for fd in (awake, wake):
        os.set_blocking(fd, False)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signals.wake = awake
    old = {number: signal.signal(number, lambda n, _: signals.tell(names[signal.Signals(n)])) for number in names}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        signals.wake = None
        os.close(awake)
        os.close(wake)

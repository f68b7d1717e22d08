"""The command that goes on with a run, and the one way in which a process becomes a driver."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from durun.cli.common import (
    absent,
    alive_in,
    document,
    exit_of,
    last_sign_in,
    nowhere,
    on_terminal,
    opened,
    person,
    refuse_absent,
    where,
)  # fmt: skip
from durun.cli.reader import out, out_json, say
from durun.engine import Engine, Signals, new_place, real_world
from durun.errors import Held as HeldByAnother
from durun.errors import NeedsPerson, NotPossible, PlanRefused, Superseded, Usage
from durun.machine.events import Cancel, Compensate
from durun.machine.model import TERMINAL, Checkpoint, Move, Run, Status, apply
from durun.plan import LANGUAGE
from durun.plan.canonical import Plan, has_messages, has_requests, states_of
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.file import File, make_folder
from durun.store.runs import Birth, Driver, Exists, Grouped, Held, HoldChanged, Pinned, Pruned, Store

TYPE_CHECKING = False
if TYPE_CHECKING:  # rich comes with it, and is there only on a terminal
    from durun.cli.live import Live
    from durun.messages import Delivery

Json = Any


# --- resume ---


def resume(
    runs: list[str] | None = None, *, all: bool = False, concurrency: int = 4, from_: str | None = None,
    failed_items: bool = False, accept_drift: bool = False, detach: bool = False, after_restore: bool = False,
    wait: bool = False, no_wait: bool = False, quiet: bool = False, json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Go on with runs where they stood: after a crash, a pause, a failure, or when their time has come.

    With --all: the interrupted and due ones, and those that `pause --all` held; with --after-restore, those that were restored.

    With --failed-items: RUN, or RUN and a state of it; what failed there is done anew, though the run succeeded without it.
    """
    runs = list(dict.fromkeys(runs or []))
    state = from_
    if failed_items and len(runs) == 2:
        *runs, state = runs
    one_of(wait, no_wait)
    if bool(runs) == all:
        raise Usage("name the runs, or say --all")
    if from_ is not None and (len(runs) != 1 or failed_items):
        raise Usage("--from goes with one run" + ", and not with --failed-items" * failed_items)
    if failed_items and len(runs) != 1:
        raise Usage("--failed-items goes with one run, and at most one state of it")
    if accept_drift and len(runs) != 1:
        raise Usage("--accept-drift goes with one run")
    if concurrency < 1:
        raise Usage("--concurrency: at least 1")
    path = where(db)
    if wait and not detach and len(runs) != 1:
        raise Usage("--wait goes with one run, or with --detach: one that waits for a person would keep the others waiting")
    if runs:
        refuse_absent(path, runs[0])
    if len(runs) == 1 and not detach:
        with driver(path, create=False, quiet=quiet) as d:
            more: dict[str, Json] = {"start_at": state, "failed_items": failed_items}
            more |= {"accept_drift": accept_drift, "after_restore": after_restore}
            return d.go_on(read.number(d.file, runs[0]), no_wait=no_wait, sit=wait, json=json, **more)
    from durun.cli import several
    from durun.cli.background import send_off

    if absent(path):
        say(nowhere(db, "there is nothing to go on with"))
        if json:
            out_json({"runs": [], "exits": {}})
        return 0
    file = opened(db)
    named = dict.fromkeys(read.number(file, run) for run in runs)
    chosen = several.held_or_due(file, after_restore) if all else [(no, "any") for no in named]
    options: dict[str, Json] = {"no_wait": no_wait, "sit": wait, "after_restore": after_restore}
    if detach:
        options |= {"start_at": state, "failed_items": failed_items, "accept_drift": accept_drift}
        codes = [send_off(file, no, {**options, "take_up": how}, quiet=quiet) for no, how in chosen]
    else:
        more = {"after_restore": True} if after_restore else {}
        codes = several.drive(file, chosen, no_wait=no_wait, concurrency=concurrency, quiet=quiet, more=more)
    if json:
        docs = [document(file, no) for no, _ in chosen]
        exits = {doc["id"]: code for doc, code in zip(docs, codes, strict=False)}
        out_json(docs[0] if detach and not all and len(docs) == 1 else {"runs": docs, "exits": exits})
    return worst(codes)


def worst(codes: list[int]) -> int:
    """The exit code of several runs."""
    if len(codes) == 1:
        return codes[0]
    return next((code for code in (130, 143, 8, 1, 9, 6, 4, 10, 3) if code in codes), 0)


def one_of(wait: bool, no_wait: bool) -> None:
    if wait and no_wait:
        raise Usage("--wait and --no-wait: say one of them")


# --- a driver ---


def store_newborn(
    store: Store, plan: Plan, birth: Birth, run: Run, evaluate: Evaluator, driver: Driver | None
) -> tuple[Held, Move]:
    """Stores a new run with its first move. Without a driver its first intent waits; with the file held, it begins paused."""
    from durun.machine import decide
    from durun.machine.events import Moment, Pause

    w, queued = real_world(), False
    while True:
        hold = read.hold(store.file)
        place = driver.place if driver is not None and hold is None else None
        pause = Pause(hold.by, "all") if hold is not None else None
        moment = Moment(w.now(), w.clock(), w.boot, place, w.draw())
        move = decide.begin(plan, run, moment, evaluate, pause, birth.group if queued else None)
        store.file.room()
        try:
            return store.create(birth, move, driver, moment.now, held=hold is not None, queued=queued), move
        except HoldChanged:
            continue
        except Grouped:
            if plan["group"]["if_busy"] != "wait":
                raise
            queued = True


class DriverProcess:
    """This process as a driver: its place and keeper, the file, and what it was told by signals."""

    def __init__(self, path: str, *, create: bool, quiet: bool, file: File | None = None) -> None:
        from durun.outbox import new_commands
        from durun.store.file import look

        look(path, create=create)
        make_folder(path + ".d")
        self.commands = new_commands(path + ".d", new_place())
        self.world = real_world()
        self.quiet = quiet
        self.draws = not quiet and on_terminal(sys.stderr)  # False where other views or drivers share the terminal
        self.live: Live | None = None
        self.signals = Signals()
        self.held: Callable[[], None] = lambda: None  # called once a run is taken up
        self.superseded = False  # True: another driver has closed the gate of this one, for ever
        self.follows = True  # a run that another driver goes on with is waited for
        self.due: int | None = None  # ms until something of the run just left is due
        self.name = ""  # said before each line, where several runs are driven at once
        self.keep = False  # True while a run may have something under way: its notes are for whoever goes on
        try:
            self.file = file or File(path, create=create, say=self._say)
            self.file.say = self._say
        except BaseException:
            self.commands.close(keep=False)
            raise
        self.store = Store(self.file)
        self.alive = alive_in(path)
        self.last_sign = last_sign_in(path)
        self.identity = Driver(self.commands.place, os.getpid(), self.world.boot, os.uname().nodename)
        self._deliverer: Any = None
        self._noticed = False

    def begin(self, plan: Plan, birth: Birth, run: Run, *, no_wait: bool, json: bool, sit: bool = False) -> int:
        """Stores a new run, says its id, and drives it."""
        evaluate = Evaluator()
        self.notice()
        self.keep = True
        try:
            held, move = store_newborn(self.store, plan, birth, run, evaluate, self.identity)
        except (Exists, Pruned, PlanRefused):
            self.keep = False
            raise
        if not json:
            out(run.id)
        at = Checkpoint(run)
        engine = self._engine(held, plan, evaluate, at)
        apply(at, move)
        with self._watched(engine, json=json):
            engine.watch(at, move)
            engine.perform(move)
            self._drive(engine, wait=not no_wait, sit=sit, json=json)
        return self._end(engine, json=json)

    def _drive(self, engine: Engine, *, wait: bool, sit: bool, json: bool) -> None:
        """Drives a run; on a terminal whoever sits there is asked, and it goes on with what they say."""
        settled()
        engine.drive(wait=wait, sit=sit)
        if json or self.quiet or sit or not wait or not sys.stdin.isatty():
            return
        from durun.cli.ask import asked_here, somebody_is_here

        before = self.live.still if self.live is not None else lambda: None
        while somebody_is_here() and asked_here(engine, before):
            engine.drive(wait=wait)

    def _moment(self) -> Any:
        from durun.machine.events import Moment

        w = self.world
        return Moment(w.now(), w.clock(), w.boot, self.commands.place, w.draw(), w.reading())

    def notice(self) -> None:
        """Before a run is moved: whether the file is a backup or a copy. Asked once: while it is open here it stays what it is."""
        if not self._noticed:
            noticed(self.file)
            self._noticed = True

    def go_on(
        self, no: int, *, no_wait: bool, json: bool, sit: bool = False, start_at: str | None = None, take_up: str = "any",
        failed_items: bool = False, after_restore: bool = False, accept_drift: bool = False,
    ) -> int:  # fmt: skip
        """Takes a run over and drives it from where it stands. `take_up`: any, or only what is `paused`, or was `held`
        with the whole file, or none: then a run that was paused or has failed stays so. `failed_items`: those of a run that has
        succeeded, in `start_at` where one is named. `accept_drift`: a person goes on with
        what its tools say now."""
        self.notice()
        summary = read.summary(self.file, no, self.alive)
        if summary.status in read.ENDED and summary.status != "failed" and start_at is None and not failed_items:
            say(f"run {summary.id} is {summary.status} already: there is nothing to go on with")
            if no in read.undelivered(self.file):
                self.deliver(no)
            return self._show(no, json=json)
        if start_at is None and not failed_items and self._is_sat_out(summary):
            code = self._wake(summary, accept=accept_drift, json=json)
            if code is not None:
                return code
        engine = self.take(no, to_drive=True, after_restore=after_restore)
        with self._watched(engine, json=json), self._given_back(engine):
            engine.after_restore(person() if engine.at.run.restored is not None else "")
            then = self._looked_at(engine, accept=accept_drift)
            run = engine.at.run
            paused = take_up == "paused" and run.status is Status.PAUSED
            if take_up == "any" or paused or (take_up == "held" and run.status is Status.PAUSED and run.reason == "all"):
                engine.take_up(start_at, failed_items=failed_items)
            then()
            self.held()
            self._drive(engine, wait=not no_wait, sit=sit, json=json)
        self.due = engine.next_due() if engine.at.run.status is Status.WAITING else None
        return self._end(engine, json=json)

    def _looked_at(self, engine: Engine, *, accept: bool) -> Callable[[], None]:
        """Says what differs on disk, and asks the tools of a run that is taken up; what is given back is done once it is."""
        from durun.cli import pinned

        of = self.store.pinned(engine.held.no)
        said = "" if self.quiet else pinned.changes(of, of.pins.get("taken_at", engine.at.run.started_at))
        if said:
            say(f"{self.name}run {engine.at.run.id}: {said} since it started: it goes on with what it took with it")
        return pinned.ask_tools(engine, of, accept=accept)

    @contextmanager
    def _given_back(self, engine: Engine) -> Iterator[None]:
        """What is refused before anything was done leaves the run as it was, and nobody's."""
        try:
            yield
        except (NotPossible, PlanRefused, HeldByAnother):
            self.let_go(engine)
            raise

    def _is_sat_out(self, s: read.Summary) -> bool:
        """Whether another driver holds the run and only waits until a person lets it go on."""
        if s.driver in (None, self.identity.place) or s.status not in ("paused", "blocked"):
            return False
        return s.reason not in ("in_doubt", "keeps_dying") and self.alive(str(s.driver))

    def _wake(self, s: read.Summary, *, accept: bool, json: bool) -> int | None:
        """Has the driver that sits it out go on, and waits with it. None where that driver left and has not heard."""
        import time

        hold = read.hold(self.file)
        if hold is not None:
            raise NeedsPerson(f"all runs in {self.file.path} are held since {hold.since} by {hold.by}: `durun resume --all`")
        kind: str = "resume"
        data: Json = {}
        if s.reason == "drift":
            from durun.cli.pinned import word_of_drift

            kind, data = word_of_drift(self.store, s.no, accept=accept)
        self.store.add_note(s.no, kind, data, person(), self.world.now())
        while not self.signals.told:
            time.sleep(0.05)
            now = read.summary(self.file, s.no, self.alive)
            driven = now.driver is not None and self.alive(now.driver)
            heard = not self.store.notes(s.no)
            if not driven and not heard:
                return None
            if heard and not self.follows:
                say(f"run {s.id} goes on with the driver that holds it")
                return 0
            if not driven or (heard and now.status in (*read.ENDED, "blocked", "paused")):
                say(f"run {s.id} went on with the driver that held it")
                return self._show(s.no, json=json)
        return self.signals.exit

    def compensate(self, engine: Engine, event: Cancel | Compensate, *, json: bool) -> int:
        """Undoes what a run that this process holds has done, once nothing of it is under way."""
        with self._watched(engine, json=json), self._given_back(engine):
            engine.after_restore(event.by)
            engine.recover()
            if isinstance(event, Cancel) or engine.at.run.status not in (Status.COMPENSATING, Status.COMPENSATED):
                engine.move(event)  # what was interrupted while it compensated just goes on
            back = (engine.at.run.undoing or {}).get("rewind")
            if back is not None:  # it goes back to a state once that is undone, and then stands before it
                engine.until = lambda: engine.at.run.undoing is None
            engine.drive()
        if back is not None and engine.at.run.undoing is None:
            say(f"run {engine.at.run.id} stands before {back['state']} again")
        return self._end(engine, json=json)

    def take(self, no: int, *, to_drive: bool = False, after_restore: bool = False) -> Engine:
        """The engine of a run that this process holds from now on, until `let_go`. Raises Held, and with `to_drive` NeedsPerson
        where the whole file is held, or the run was restored and nobody says that it may go on."""
        self.notice()
        held = self.store.take_over(
            no, self.identity, self.alive, self.world.now(), self.last_sign, self.world.reading(), to_drive=to_drive
        )
        self.keep = True
        pinned, at = self.store.pinned(no), self.store.load(no)
        try:
            refuse_stranded(pinned, at.run.id)
            if to_drive and not after_restore:
                refuse_restored(at.run)
        except NeedsPerson:
            self.store.let_go(held, self.identity.place)
            self.keep = False
            raise
        return self._engine(held, pinned.plan, Evaluator(), at, pinned)

    def _engine(self, held: Held, plan: Plan, evaluate: Evaluator, at: Checkpoint, pinned: Pinned | None = None) -> Engine:
        from durun.outbox import Deliverer, with_files

        preload(plan, draws=self.draws)
        pinned = pinned or self.store.pinned(held.no)
        if self._deliverer is not None:
            self.commands = self._deliverer.commands
        self._deliverer = with_files(
            Deliverer(self.commands, held.no, pinned, self.file.path, new_place, self.world.boot), self.file
        )
        engine = Engine(self.store, self._deliverer, self.world, plan, evaluate, held, at)
        engine.signals = self.signals
        if engine.turns is not None:
            engine.turns.alive = self.alive
        engine.watch = self._say_move
        if has_messages(plan) or pinned.pins.get("messages"):
            engine.delivery = self._delivery(held.no, at.run)
        return engine

    def _tell(self, line: str) -> None:
        if not self.quiet:
            self._say(self.name + line)

    def _say_move(self, _: Checkpoint, move: Move) -> None:
        if self.quiet:
            return
        from durun.render.document import path_of
        from durun.render.text import moved

        for line in move.said:
            say(self.name + line)
        for e in move.history:
            line_ = moved(e.kind, path_of(e.scope, e.state), e.attempt, e.data)
            if line_ is not None:
                say(self.name + line_)

    @contextmanager
    def _watched(self, engine: Engine, *, json: bool) -> Iterator[None]:
        """While it drives, what the process is told goes to the engine, and a person at a terminal sees how it moves."""
        try:
            with hearing(self.signals), self._shown(engine, json=json):
                yield
        except Superseded as e:
            self.superseded = True
            raise HeldByAnother(f"{e}: this one stops here") from None

    @contextmanager
    def _shown(self, engine: Engine, *, json: bool) -> Iterator[None]:
        if json or not self.draws:
            yield
            return
        from durun.cli import live

        self.live = live.of_driver(engine, read.history(self.file, engine.held.no, engine.held.events - 50), self.file.folder)
        engine.watch, engine.tick = live.hear_move(self.live, engine), self.live.tick
        try:
            yield
        finally:
            self.live.close()
            self.live = None

    def _say(self, text: str) -> None:
        (self.live.say if self.live is not None else say)(text)

    def let_go(self, engine: Engine) -> None:
        """The run is nobody's from now on. What is still under way keeps its notes."""
        self.store.let_go(engine.held, self.identity.place)
        self.keep = engine.performer is not None and engine.performer.busy
        if self.keep:
            id, keeper = engine.at.run.id, self._deliverer.commands.pid
            way = "" if self.signals.background else " (`kill -CONT`)"
            say(f"a command of run {id} has not ended: `durun resume {id}` waits for it; its keeper is {keeper}{way}")

    def deliver(self, no: int) -> int:
        """Delivers what is due of a run's messages, whoever drives it. How many were given up."""
        from durun.messages import deliver
        from durun.outbox import Deliverer, with_files

        self.notice()
        pinned, run = self.store.pinned(no), self.store.load(no).run
        refuse_stranded(pinned, run.id)
        preload(pinned.plan)
        self._deliverer = with_files(Deliverer(self.commands, no, pinned, self.file.path, new_place, self.world.boot), self.file)
        delivery = self._delivery(no, run)
        self.keep = True
        deliver(delivery, self._deliverer, lambda: self.signals.told, self.signals.wake)
        self.keep, self.commands = self._deliverer.busy, self._deliverer.commands
        return delivery.given_up

    def _delivery(self, no: int, run: Run) -> Delivery:
        from durun.messages import Delivery
        from durun.store.messages import Messages

        messages = Messages(self.file, self.store.effect)
        return Delivery(messages, no, run, self._deliverer, self._moment, self.identity.place, self.alive, self._tell)

    def _undelivered(self, engine: Engine) -> None:
        """Says what of the run is still to be delivered."""
        if engine.delivery is None or self.quiet:
            return
        from durun.store.messages import counted

        found, id = counted(self.file, engine.held.no), engine.at.run.id
        if found["waiting"]:
            self._tell(f"messages left to be delivered: {found['waiting']}: `durun outbox deliver {id}`")
        if found["dead"]:
            self._tell(f"messages given up: {found['dead']}: `durun outbox ls {id}`")

    def _end(self, engine: Engine, *, json: bool) -> int:
        self.let_go(engine)
        self._undelivered(engine)
        code = self._show(engine.held.no, json=json)
        ended = engine.at.run.status in TERMINAL
        return self.signals.exit if self.signals.told and not ended else code

    def _show(self, no: int, *, json: bool) -> int:
        if self.quiet and not json:  # nobody reads more of it than how it stands
            return exit_of(read.summary(self.file, no, self.alive).status)
        doc = document(self.file, no)
        if json:
            out_json(doc)
        if not self.quiet:
            from durun.render.text import stands

            say(stands(doc, apart=on_terminal(sys.stderr)))
        return exit_of(doc["status"])

    def close(self) -> None:
        if self._deliverer is not None:
            self._deliverer.close(keep=self.keep)
        else:
            self.commands.close(keep=self.keep)
        self.file.close()


def noticed(file: File) -> None:
    """What is in flight in a backup or a copy is blocked, before anything is begun in it."""
    if not file.at_home():
        from durun.store import origin

        origin.notice(file, real_world().now())


def refuse_stranded(pinned: Pinned, id: str) -> None:
    """Raises NeedsPerson where this durun does not know the language of the run's plan."""
    if pinned.language > LANGUAGE:
        from durun.render.document import stranded

        raise NeedsPerson(f"run {id} is stranded: {stranded(pinned.language, pinned.pins['durun'])}")


def refuse_restored(run: Run) -> None:
    """Raises NeedsPerson where a run was in flight in a backup or a copy, and nobody has said that it may go on."""
    if run.restored is not None:
        from durun.render.text import since_restored

        raise NeedsPerson(
            f"run {run.id} is blocked (restored): {since_restored(run.restored)}: `durun resume {run.id} --after-restore`"
        )


def preload(plan: Plan, *, draws: bool = False) -> None:
    """Imports all that driving this plan may need, before its first effect: what is installed later does not reach it."""
    shared = ("durun.machine.limits", "durun.store.places") if "limits" in plan or "group" in plan else ()
    for name in (
        *shared,
        "durun.machine.poll",
        "durun.plan.data",
        "durun.plan.units",
        "durun.render.document",
        "durun.render.text",
        "gc",
    ):
        importlib.import_module(name)
    if draws:
        from durun.cli import ask, live  # noqa: F401  (whoever sits there may be asked)

        live.rehearse()
    if sys.stdin.isatty():
        importlib.import_module("durun.cli.ask")
    from durun.plan.expressions import needs_cel

    if has_requests(plan):
        importlib.import_module("durun.effects.http")
    if needs_cel(plan):
        importlib.import_module("durun.plan.cel")
    if "vars_schema" in plan or any(state["kind"] == "plan" or _has_schema(state) for state in states_of(plan)):
        from durun.plan import schema

        schema.fault({})  # loads its library


def _has_schema(state: Any) -> bool:
    return any("schema" in state.get(word, {}) for word in ("output", "wait", "approval"))


@contextmanager
def driver(path: str, *, create: bool, quiet: bool, file: File | None = None) -> Iterator[DriverProcess]:
    """This process as a driver, and let go of at the end. `file`: where it is open already."""
    d = DriverProcess(path, create=create, quiet=quiet, file=file)
    try:
        yield d
    finally:
        d.close()


def settled() -> None:
    """All that a driver needs is loaded, and stays: the collector looks at it no more, and comes only for what is made now."""
    import gc

    gc.freeze()
    gc.set_threshold(20_000, 20)


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

"""Commands that move a run: start and resume. And the one way in which a process becomes a driver."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from durun.cli.common import alive_in, document, exit_of, last_sign_in, on_terminal, opened, person, where
from durun.cli.reader import at_end, out, out_json, say
from durun.engine import Engine, Signals, new_place, real_world
from durun.errors import ExpressionError, NeedsPerson, NotPossible, PlanRefused, Superseded, Usage
from durun.errors import Held as HeldByAnother
from durun.machine.events import Cancel, Compensate
from durun.machine.model import TERMINAL, Checkpoint, Move, Run, Status, apply
from durun.plan import LANGUAGE
from durun.plan.canonical import Plan, has_messages, has_requests, has_tools, pinned_names, states_of
from durun.plan.expressions import Evaluator
from durun.plan.names import RUN_ID
from durun.store import read
from durun.store.file import File, make_folder
from durun.store.runs import Birth, Driver, Exists, Grouped, Held, HoldChanged, Pinned, Pruned, Store, refuse_drained, refuse_pruned

TYPE_CHECKING = False
if TYPE_CHECKING:  # rich comes with it, and is there only on a terminal
    from durun.cli.live import Live
    from durun.messages import Delivery
    from durun.plan.load import Loaded

Json = Any

LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


# --- start ---


def start(
    plan: str, *, set: list[str] | None = None, input: str | None = None, id: str | None = None, detach: bool = False,
    wait: bool = False, no_wait: bool = False, dry_run: bool = False, quiet: bool = False, json: bool = False,
    db: str | None = None,
) -> int:  # fmt: skip
    """Start a run of a plan, and drive it. The first line on stdout is its id."""
    from durun.plan.schema import input_values

    _one_of(wait, no_wait)
    if id is not None and not RUN_ID.fullmatch(id):
        raise Usage(f"{id[:60]!r} is no id: letters, digits, `.`, `_` and `-`, a letter or digit first, at most 128")
    path, text = where(db), text_of(plan)
    file = opened(path) if not dry_run and os.path.exists(path) else None
    found, source, mark, loaded = _read(text, "stdin" if plan == "-" else plan, file)
    values = input_values(found, _given(found, set or [], input))
    birth = birth_of(found, source, plan, values)
    birth = birth._replace(mark=mark, named=id is not None, group=_group(found, values))
    if loaded is not None and mark is None:
        from durun.cli.pinned import with_files

        birth = with_files(birth, loaded)
    run, types = newborn(found, id, birth.pins["env"], values)
    if has_tools(found) and (id is None or file is None or Store(file).id_of(id) is None):
        from durun.cli.pinned import words_of

        run = run._replace(tools=words_of(found, birth.pins["base"], birth.pins["env"], birth.directory))
    if dry_run:
        if os.path.exists(path):
            _would_be(opened(path), birth, id, run.name)
        states, version = len(found["states"]), found["version"]
        if json:
            out_json({"plan": run.name, "version": version, "states": states, "input": values, "stored": False})
        say(f"{plan}: {states} states, version {version}; all is well, nothing is stored")
        return 0
    run = run._replace(types=types)
    if detach:
        if file is None:
            file = File(path, create=True, say=say)
            at_end.append(file.close)
        return _start_detached(file, found, birth, run, id is not None, wait=wait, no_wait=no_wait, quiet=quiet, json=json)
    with driver(path, create=True, quiet=quiet, file=file) as d:
        existing = d.store.id_of(run.id) if id is not None else None
        if existing is not None:
            return _again(d, existing, birth, run.id, no_wait=no_wait, sit=wait, json=json)
        try:
            return d.begin(found, birth, run, no_wait=no_wait, sit=wait, json=json)
        except Grouped as e:
            return _busy(found, e, json=json)
        except Exists as e:  # somebody gave the same id a moment before
            return _again(d, (e.no, e.bound_to), birth, run.id, no_wait=no_wait, sit=wait, json=json)
        except Pruned as e:
            return _as_it_ended(e, birth, found, json=json)


def _group(plan: Plan, values: Json) -> str | None:
    """The name of the group of a run, where its plan has one. Raises PlanRefused."""
    if "group" not in plan:
        return None
    try:
        name = Evaluator().text(plan["group"]["name"], {"input": values})
    except ExpressionError as e:
        raise PlanRefused(f"the name of the group: {e}") from None
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise PlanRefused(f"the group {name[:60]!r} is no name: 1 to 200 characters that can be printed, not spaces alone")
    return name


def _read(text: bytes, name: str, file: File | None) -> tuple[Plan, str, str | None, Loaded | None]:
    """The plan of a text, the text, what it is known by from now on, and all that was read where it was. Raises PlanRefused."""
    from durun.cli import known

    mark = known.mark_of(text)
    before = read.checked(file, mark) if file is not None else None
    if before is not None:
        return *before, None, None
    from durun.plan.load import load

    loaded = load(text, name)
    return loaded.plan, loaded.source, mark if known.can_be(loaded.plan) else None, loaded


def _busy(plan: Plan, other: Grouped, *, json: bool) -> int:
    """Another run of the group has not ended: nothing is stored. Raises Held, unless the plan says to skip."""
    said = f"run {other.run} of the group {other.group} has not ended, it is {other.status}: nothing is stored"
    if plan["group"]["if_busy"] != "skip":
        raise HeldByAnother(f"{said}; `durun show {other.run}`")
    if json:
        out_json({"plan": plan["name"], "group": other.group, "run": other.run, "skipped": True, "stored": False})
    say(f"{said}, as the plan says (`if_busy: skip`)")
    return 0


def _would_be(file: File, birth: Birth, id: str | None, plan: str) -> None:
    """Raises PlanRefused where the id is taken, with another plan or other input, or where the plan is drained."""
    existing = Store(file).id_of(id) if id is not None else None
    if id is not None and existing is not None:
        return _bound(existing, birth, id)
    if id is not None:
        try:
            refuse_pruned(file, id)
        except Pruned as e:
            return _bound((0, e.bound_to), birth, id)
    refuse_drained(file, plan)


def _one_of(wait: bool, no_wait: bool) -> None:
    if wait and no_wait:
        raise Usage("--wait and --no-wait: say one of them")


def _start_detached(
    file: File, plan: Plan, birth: Birth, run: Run, named: bool, *, wait: bool, no_wait: bool, quiet: bool, json: bool
) -> int:
    """Stores the run, says its id, and has a driver in the background go on with it."""
    make_folder(file.folder)
    noticed(file)
    store = Store(file)
    existing = store.id_of(run.id) if named else None
    if existing is None:
        try:
            held = store_newborn(store, plan, birth, run, Evaluator(), None)[0]
            existing, new = (held.no, birth.bound_to), True
        except Grouped as e:
            return _busy(plan, e, json=json)
        except Exists as e:
            existing, new = (e.no, e.bound_to), False
        except Pruned as e:
            return _as_it_ended(e, birth, plan, json=json)
    else:
        new = False
    if not new:
        _bound(existing, birth, run.id)
    if not json:
        out(run.id)
    from durun.cli.background import send_off

    return send_off(file, existing[0], {"no_wait": no_wait, "sit": wait}, quiet=quiet, as_json=json)


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
            return store.create(birth, move, driver, run.started_at, held=hold is not None, queued=queued), move
        except HoldChanged:
            continue
        except Grouped:
            if plan["group"]["if_busy"] != "wait":
                raise
            queued = True


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
            found = read_json(read_file(file))
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
                text = read_file(text[1:]).decode("utf-8")
            except UnicodeDecodeError as e:
                raise PlanRefused(f"-i {pair}: the file is no UTF-8 text at byte {e.start}") from None
        given[name] = read_input(plan, name, text)
    return given


def read_file(file: str) -> bytes:
    """The whole of a file, or of stdin for `-`. Raises PlanRefused."""
    try:
        if file == "-":
            return sys.stdin.buffer.read()
        with open(file, "rb") as f:
            return f.read()
    except OSError as e:
        raise PlanRefused(f"{file} cannot be read: {os.strerror(e.errno or 0)}") from None


def birth_of(plan: Plan, source: str, file: str, values: Json) -> Birth:
    """What the run takes with it: plan, directory, environment."""
    import hashlib

    from durun import __version__
    from durun.effects.boot import host
    from durun.outbox import PINNED
    from durun.plan.digest import canonical_text, digest

    wanted = pinned_names(plan)
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise PlanRefused(f"pins.env names {', '.join(missing)}, which the environment does not have")
    env = {name: _utf8(os.environ[name], f"pins.env: the value of {name}") for name in wanted}
    secrets = _secrets(plan)
    base = {name: os.environ[name] for name in PINNED if name in os.environ}
    for name, value in base.items():
        _utf8(value, f"the environment variable {name}")
    texts = {"": hashlib.sha256(source.encode("utf-8")).hexdigest()}
    pins = {"env": env, "base": base, "durun": __version__, "host": host(), "uid": os.getuid(), "texts": texts}
    if secrets:
        pins["secrets"] = secrets
    text, plan_digest = canonical_text(plan), digest(plan)
    try:
        at = "-" if file == "-" else os.path.abspath(file).encode("utf-8", "replace").decode()
        directory = _utf8(os.getcwd(), "the working directory")
    except FileNotFoundError:
        raise PlanRefused("the working directory is gone: a run needs one to run its commands in") from None
    return Birth(text, plan_digest, source, at, directory, digest({"plan": plan_digest, "input": values}), pins, LANGUAGE)


def _secrets(plan: Plan) -> Json:
    """Where the secrets of a plan are read. Raises PlanRefused where one cannot be read now."""
    specs = plan.get("secrets", [])
    if specs:
        from durun.effects.secrets import Secrets
        from durun.machine.secrets import SHORTEST

        found = Secrets(list(specs), os.getcwd())
        unread = found.learn(run=True)
        if unread:
            raise PlanRefused("; ".join(unread))
        for name in found.short:
            say(f"the secret {name} has fewer than {SHORTEST} characters: it is not masked")
    return specs


def _utf8(text: str, what: str) -> str:
    """The text, which goes with the run. Raises PlanRefused where it is no UTF-8: nothing is changed in silence."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PlanRefused(f"{what} is no UTF-8 text: {os.fsencode(text)!r}") from None
    return text


def newborn(plan: Plan, id: str | None, env: Json, values: Json) -> tuple[Run, Json]:
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
    run = Run(id, plan["name"], plan["version"], os.urandom(16).hex(), now, Status.RUNNING, None, values, first, env, types)
    return run, types


def _again(d: DriverProcess, existing: tuple[int, str], birth: Birth, id: str, *, no_wait: bool, sit: bool, json: bool) -> int:
    _bound(existing, birth, id)
    if not json:
        out(id)
    return d.go_on(existing[0], no_wait=no_wait, sit=sit, json=json)


def _as_it_ended(pruned: Pruned, birth: Birth, plan: Plan, *, json: bool) -> int:
    """The id of a run that has ended and is gone: nothing begins, and it exits as that run did."""
    from durun.plan.units import show_moment

    _bound((0, pruned.bound_to), birth, pruned.id)
    ended = show_moment(pruned.ended_at)
    if json:
        out_json({"id": pruned.id, "plan": plan["name"], "status": pruned.status, "ended_at": ended, "pruned": True})
    else:
        out(pruned.id)
    say(f"run {pruned.id} {AS_ENDED[pruned.status]} at {ended}, and was pruned: nothing is begun")
    return exit_of(pruned.status)


AS_ENDED = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled", "compensated": "was compensated"}


def _bound(existing: tuple[int, str], birth: Birth, id: str) -> None:
    """An id that is given again means the same run, or is refused."""
    if existing[1] != birth.bound_to:
        raise PlanRefused(f"run {id} exists, with another plan or other input: take another id, or `durun resume {id}`")
    say(f"run {id} exists already, with this plan and input")


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
    _one_of(wait, no_wait)
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
    if len(runs) == 1 and not detach:
        with driver(path, create=False, quiet=quiet) as d:
            more: dict[str, Json] = {"start_at": state, "failed_items": failed_items}
            more |= {"accept_drift": accept_drift, "after_restore": after_restore}
            return d.go_on(read.number(d.file, runs[0]), no_wait=no_wait, sit=wait, json=json, **more)
    if wait and not detach:
        raise Usage("--wait goes with one run, or with --detach: one that waits for a person would keep the others waiting")
    from durun.cli import several
    from durun.cli.background import send_off

    file = opened(db)
    chosen = several.held_or_due(file, after_restore) if all else [(read.number(file, run), "any") for run in runs]
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


# --- a driver ---


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
            engine.drive()
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

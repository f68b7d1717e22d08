"""The command that begins a run: its plan read, its input, what it takes with it; then it is driven as any other."""

from __future__ import annotations

import os
from typing import Any

from durun.cli.common import exit_of, opened, read_file, text_of, where
from durun.cli.drive import DriverProcess, driver, noticed, one_of, store_newborn
from durun.cli.reader import at_end, out, out_json, say
from durun.engine import real_world
from durun.errors import ExpressionError, PlanRefused, Usage
from durun.errors import Held as HeldByAnother
from durun.machine.model import Run, Status
from durun.plan import LANGUAGE
from durun.plan.canonical import Plan, has_tools, pinned_names
from durun.plan.expressions import Evaluator
from durun.plan.names import RUN_ID
from durun.store import read
from durun.store.file import File, make_folder
from durun.store.runs import Birth, Exists, Grouped, Pruned, Store, refuse_drained, refuse_pruned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.plan.load import Loaded

Json = Any

LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


def start(
    plan: str, *, set: list[str] | None = None, input: str | None = None, id: str | None = None, detach: bool = False,
    wait: bool = False, no_wait: bool = False, dry_run: bool = False, quiet: bool = False, json: bool = False,
    db: str | None = None,
) -> int:  # fmt: skip
    """Start a run of a plan, and drive it. The first line on stdout is its id."""
    from durun.plan.schema import input_values

    one_of(wait, no_wait)
    if id is not None and not RUN_ID.fullmatch(id):
        raise Usage(f"{id[:60]!r} is no id: letters, digits, `.`, `_` and `-`, a letter or digit first, at most 128")
    one_stdin(plan, input, set)
    path, text = where(db), text_of(plan)
    file = opened(path) if not dry_run and os.path.exists(path) else None
    found, source, mark, loaded = _read(text, "stdin" if plan == "-" else plan, file)
    values = input_values(found, input_given(found, set or [], input))
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
            return _bound((GONE, e.bound_to), birth, id)
    refuse_drained(file, plan)


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


def one_stdin(plan: str, input: str | None, pairs: list[str] | None, *more: str | None) -> None:
    """Raises Usage where several things are to be read from stdin: who comes second would find nothing there."""
    given = [plan, input, *more, *(pair.partition("=@")[2] for pair in pairs or [])]
    if given.count("-") > 1:
        raise Usage("stdin can be read once: give the plan, --input and NAME=@- as files but for one of them")


def input_given(plan: Plan, pairs: list[str], file: str | None) -> Json:
    """The input as -i and --input give it. Raises PlanRefused, Usage."""
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
    named: set[str] = set()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise Usage(f"-i {pair}: write it as NAME=VALUE")
        if name in named:
            raise Usage(f"-i {name} is given twice: one value each")
        named.add(name)
        if text.startswith("@"):
            try:
                text = read_file(text[1:]).decode("utf-8")
            except UnicodeDecodeError as e:
                raise PlanRefused(f"-i {pair}: the file is no UTF-8 text at byte {e.start}") from None
        given[name] = read_input(plan, name, text)
    return given


def birth_of(plan: Plan, source: str, file: str, values: Json) -> Birth:
    """What the run takes with it: plan, directory, environment."""
    from durun import __version__
    from durun.effects.boot import host
    from durun.outbox import PINNED
    from durun.plan.digest import canonical_text, digest, sha256

    wanted = pinned_names(plan)
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise PlanRefused(f"pins.env names {', '.join(missing)}, which the environment does not have")
    env = {name: _utf8(os.environ[name], f"pins.env: the value of {name}") for name in wanted}
    secrets = _secrets(plan)
    base = {name: os.environ[name] for name in PINNED if name in os.environ}
    for name, value in base.items():
        _utf8(value, f"the environment variable {name}")
    texts = {"": sha256(source.encode("utf-8")).hexdigest()}
    pins = {"env": env, "base": base, "durun": __version__, "host": host(), "uid": os.getuid(), "texts": texts}
    if secrets:
        pins["secrets"] = secrets
    text, plan_digest = canonical_text(plan), digest(plan)
    try:
        # what came through a pipe (`<(…)`) is as gone as stdin
        at = os.path.abspath(file).encode("utf-8", "replace").decode() if file != "-" and os.path.isfile(file) else "-"
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

    _bound((GONE, pruned.bound_to), birth, pruned.id)
    ended = show_moment(pruned.ended_at)
    if json:
        out_json({"id": pruned.id, "plan": plan["name"], "status": pruned.status, "ended_at": ended, "pruned": True})
    else:
        out(pruned.id)
    say(f"run {pruned.id} {AS_ENDED[pruned.status]} at {ended}, and was pruned: nothing is begun")
    return exit_of(pruned.status)


GONE = 0  # the number of a run that was pruned: no run has it
AS_ENDED = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled", "compensated": "was compensated"}


def _bound(existing: tuple[int, str], birth: Birth, id: str) -> None:
    """An id that is given again means the same run, or is refused."""
    if existing[1] != birth.bound_to and existing[0] == GONE:
        way = f"take another id, or `durun db prune {id} --forget-id`"
        raise PlanRefused(f"run {id} existed, with another plan or other input, and was pruned: {way}")
    if existing[1] != birth.bound_to:
        raise PlanRefused(f"run {id} exists, with another plan or other input: take another id, or `durun resume {id}`")
    say(f"run {id} exists already, with this plan and input")

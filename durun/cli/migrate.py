"""migrate: a run in flight moves to another plan, as a whole or not at all."""

from __future__ import annotations

from typing import Any

from durun.cli.common import alive_in, document, now, opened, person, text_of, where
from durun.cli.control import nothing_lives
from durun.cli.drive import driver
from durun.cli.pinned import with_files, words_of
from durun.cli.reader import out_json, say
from durun.cli.start import birth_of
from durun.engine import real_world
from durun.errors import ExpressionError, NotPossible, PlanRefused, Usage
from durun.machine.events import Moment
from durun.machine.model import Checkpoint
from durun.pins import Migration, Wants, by_plan, secrets_missing
from durun.pins import migrate as moved
from durun.plan.canonical import Plan, has_messages
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.file import File
from durun.store.runs import Birth, Pinned, Store

Json = Any


def migrate(
    run: str, plan: str, *, map: list[str] | None = None, set: list[str] | None = None, dry_run: bool = False, json: bool = False,
    db: str | None = None,
) -> int:  # fmt: skip
    """Move a run in flight to another plan: nothing of it may be under way or in doubt. With --dry-run nothing is changed."""
    from durun.plan.load import load

    file = opened(db, of=run)
    no = read.number(file, run)
    loaded = load(text_of(plan), "stdin" if plan == "-" else plan)
    new, store = loaded.plan, Store(file)
    birth = with_files(birth_of(new, loaded.source, plan, {}), loaded)
    tools = words_of(new, birth.pins["base"], birth.pins["env"], birth.directory)
    wants = Wants(_pairs("--map", map), {}, person(), birth.pins["env"], tools)
    input = read.details(file, no)["input"]
    wants = wants._replace(set={name: _value(new, name, text, input) for name, text in _pairs("--set", set).items()})
    before = store.pinned(no)
    if dry_run:
        judged = _judged(store, no, before, new, wants, store.load(no))
    else:
        judged = _carried_out(db, no, birth, new, wants)
    _tell(file, no, before, birth, judged, dry=dry_run, as_json=json)
    return 0


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not name or (option == "--map" and not value):
            raise Usage(f"{option} {pair}: write it as {'OLD=NEW' if option == '--map' else 'VAR=VALUE'}")
        if name in found:
            raise Usage(f"{option} {pair}: {name} is given twice")
        found[name] = value
    return found


def _value(new: Plan, name: str, text: str, input: Json) -> Json:
    """The value that `--set NAME=TEXT` means, by the first value that the new plan gives the var."""
    from durun.plan.data import read_json

    if name not in new["vars"]:
        raise PlanRefused(f"--set {name}: the new plan has no var {name}; nothing was changed")
    try:
        first = Evaluator().value(new["vars"][name], {"input": input})
    except ExpressionError:
        first = None  # that is said of the migration as a whole
    if isinstance(first, str):
        return text.replace("${{", "$${{")
    try:
        return _literal(read_json(text))
    except ValueError as e:
        if first is None:
            return text.replace("${{", "$${{")
        raise PlanRefused(f"--set {name}: {text[:60]!a} is no JSON: {e}; nothing was changed") from None


def _literal(value: Json) -> Json:
    """A value in which nothing is an expression."""
    if isinstance(value, dict):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_literal(inner) for inner in value]
    return value.replace("${{", "$${{") if isinstance(value, str) else value


def _judged(store: Store, no: int, before: Pinned, new: Plan, wants: Wants, at: Checkpoint) -> Migration:
    """What the migration comes to. Raises NotPossible, PlanRefused."""
    id = at.run.id
    if store.notes(no):
        raise NotPossible(f"run {id}: something lies in its inbox: `durun resume {id}` hears it first; nothing was changed")
    gone = secrets_missing(before.plan, new)
    if gone and store.owed(no):
        said = f"the new plan has no secret {', '.join(gone)}, which what is still to be undone may need"
        raise PlanRefused(f"run {id} cannot be migrated: {said}; nothing was changed")
    w = real_world()
    moment = Moment(w.now(), w.clock(), w.boot, None, w.draw(), w.reading())
    return moved(before.plan, new, at, by_plan(new, at.run.version, wants), moment, Evaluator())


def _carried_out(db: str | None, no: int, birth: Birth, new: Plan, wants: Wants) -> Migration:
    """Takes the run, finds out how what was begun has ended, and moves it."""
    from durun.plan.digest import digest

    with driver(where(db), create=False, quiet=True) as d:
        engine = d.take(no)
        try:
            engine.hold = True
            engine.recover()
            nothing_lives(engine)
            before = d.store.pinned(no)
            judged = _judged(d.store, no, before, new, wants, engine.at)
            bound_to = digest({"plan": birth.plan_digest, "input": judged.input})
            pins = {**birth.pins, "taken_at": now()}
            pins = {**_left(before), **pins}
            birth = birth._replace(bound_to=bound_to, pins=pins)
            engine.held = d.store.migrate(engine.held, engine.at.run, birth, judged, now())
        finally:
            d.let_go(engine)
    return judged


def _left(before: Pinned) -> dict[str, Json]:
    """What its driver has to see to though the new plan says nothing of it: pinned files of undos, undelivered messages."""
    kept: dict[str, Json] = {}
    if has_messages(before.plan) or before.pins.get("messages"):
        kept["messages"] = True
    if "trees" in before.pins:
        kept["trees"] = {}
    return kept


def _tell(file: File, no: int, before: Pinned, birth: Birth, judged: Migration, *, dry: bool, as_json: bool) -> None:
    from durun.render.document import migration
    from durun.render.text import migrated

    s = read.summary(file, no, alive_in(file.path))
    doc = migration(s.id, before.digest, before.plan["version"], birth.plan_digest, judged.move.run.version, judged.report, dry=dry)
    if as_json:
        out_json(doc)
    say(migrated(doc))
    if not dry:
        after = document(file, no)
        ways = "".join(f"\n  {w['message']}: {w['command']}" for w in after["waiting_for"])
        say(f"run {s.id} is {after['status']}" + (ways or f": `durun resume {s.id}` goes on"))

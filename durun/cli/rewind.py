"""rewind: a run goes back to a state it has been in, once a person has said what becomes of all that it did since."""

from __future__ import annotations

from typing import Any

from durun.cli.common import document, opened, person, where
from durun.cli.control import nothing_lives
from durun.cli.drive import DriverProcess, driver, hearing
from durun.cli.reader import out_json, say
from durun.engine import Engine
from durun.errors import NotPossible, Usage
from durun.machine.events import Rewind
from durun.machine.scope import path_of
from durun.pins import refuse_now
from durun.plan.canonical import Plan
from durun.store import read
from durun.store.file import File
from durun.store.past import Since, rewinding, undelivered
from durun.store.runs import Store

Json = Any
HOW = {"done": "is done", "not_certain": "may have happened", "in_doubt": "may have happened", "not_done": "has failed"}


def rewind(
    run: str, state: str, *, undo: bool = False, repeat: bool = False, quiet: bool = False, json: bool = False,
    db: str | None = None,
) -> int:  # fmt: skip
    """Go back to a state that a run has been in, with its data as it was then. What it did since is undone first, or repeated."""
    file = opened(db, of=run)
    no = read.number(file, run)
    store = Store(file)
    at = store.load(no)
    if at.run.undoing is not None:
        refuse_now(at, "taken back")  # before anything is asked of a person
    event, since = _judged(store, no, state)
    left = undelivered(store, no) if undo else 0
    if left:  # an undoing run delivers nothing more, and what it left before that state is not to be forgotten
        id = read_id(file, no)
        raise NotPossible(
            f"run {id}: {left} of its messages are not delivered: `durun outbox deliver {id}` first, or `durun outbox drop`;"
            " nothing was changed"
        )
    _said(read_id(file, no), state, since, undo=undo, repeat=repeat, plan=store.pinned(no).plan)
    with driver(where(db), create=False, quiet=quiet) as d:
        engine = d.take(no, to_drive=undo)
        try:
            event = _carried_out(d, engine, no, state, undo=undo and bool(since))
        finally:
            d.let_go(engine)
    doc = document(file, no)
    if json:
        out_json(doc)
    if engine.at.run.undoing is not None:
        ways = "".join(f"\n  {w['message']}: {w['command']}" for w in doc["waiting_for"])
        say(f"run {doc['id']} is {doc['status']}: it goes back to {event.state} once what it did since is undone" + ways)
    else:
        way = next((w["command"] for w in doc["waiting_for"]), f"durun resume {doc['id']}")
        if doc["status"] in read.ENDED:
            say(f"run {doc['id']} went back to {event.state}, and is {doc['status']} again: `durun show {doc['id']}`")
        else:
            say(f"run {doc['id']} stands before {event.state} again: {way}")
        if left := 0 if undo else undelivered(store, no):
            say(
                f"{left} of its messages are still left to be delivered, beside those it leaves anew: `durun outbox ls {doc['id']}`"
            )
    return 0


def read_id(file: File, no: int) -> str:
    return read.summary(file, no, lambda _: False).id


def _judged(store: Store, no: int, state: str) -> tuple[Rewind, list[Since]]:
    """What it comes to. Raises NotPossible."""
    return rewinding(store, no, store.pinned(no).plan, store.load(no), state, person())


def _carried_out(d: DriverProcess, engine: Engine, no: int, state: str, *, undo: bool) -> Rewind:
    engine.hold = True
    engine.recover()
    nothing_lives(engine)
    if engine.at.run.status != "succeeded":
        refuse_now(engine.at, "taken back")
    event = rewinding(d.store, no, engine.plan, engine.at, state, person())[0]._replace(undo=undo)
    engine.move(event)
    if undo:
        engine.hold, engine.until = False, lambda: engine.at.run.undoing is None
        with hearing(d.signals):
            engine.drive()
    return event


def _said(id: str, state: str, since: list[Since], *, undo: bool, repeat: bool, plan: Plan) -> None:
    """Wants a word on what was done since. Raises Usage where there is none, or not enough."""
    if not since or repeat:
        return
    kept = [e for e in since if e.undo in (None, "not_needed") and not _repeatable(plan, e)]
    if undo and not kept:
        return
    lines = [
        f"  {path_of(e.scope, e.state)} (visit {e.visit}) {HOW[e.status]}"
        + ("" if e.undo in ("owed", "registered", "failed") else ", and has no undo")
        for e in since
    ]
    if undo:
        ways = "what has no undo would be begun again, with a new key: --undo --repeat undoes what it can and repeats all"
    else:
        ways = "say --undo, and it is undone first, or --repeat, and it is begun again with new visits and new keys"
    raise Usage(f"run {id}: since it came to {state} it has done this; {ways}; nothing was changed\n" + "\n".join(lines))


def _repeatable(plan: Plan, e: Since) -> bool:
    """Whether the plan says that an effect may be repeated."""
    from durun.machine.scope import level

    try:
        return bool(level(plan, e.scope)["states"][e.state].get("idempotent", False))
    except (KeyError, StopIteration):
        return False

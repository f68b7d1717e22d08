"""Commands by which people and programs outside take part: approve, reject, signal; and inbox, what waits for a person.

What is said is judged and recorded in one transaction. A living driver acts on it at its next move; where none lives the move is
made in that same transaction, and the next intent is left waiting for whoever resumes.
"""

from __future__ import annotations

import time
from typing import Any

from durun.cli.common import absent, alive_in, document, exit_of, now, nowhere, opened, person, read_file, where
from durun.cli.drive import driver, noticed, preload, refuse_stranded
from durun.cli.reader import out, out_json, say
from durun.engine import Told, real_world, tell
from durun.errors import Held, PlanRefused, Usage
from durun.machine.events import Alive, Answer, Signal, Word
from durun.plan.canonical import Plan
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

Json = Any
LARGEST = 16 * 1024 * 1024  # of a payload, as of an output
PATIENCE = 2.0  # s in which a living driver is awaited, so that one can say what followed


def approve(
    run: str, state: str | None = None, *, answer: str | None = None, data: str | None = None, note: str = "",
    by: str | None = None, digest: str | None = None, resume: bool = False, json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Answer an approval with a yes, or with the answer you name. STATE may be left out where one waits."""
    word = Answer(state, False, answer, _data(data), _text(note, "--note"), digest, _by(by))
    return _said(run, word, resume=resume, json=json, db=db)


def reject(
    run: str, state: str | None = None, *, answer: str | None = None, data: str | None = None, note: str = "",
    by: str | None = None, digest: str | None = None, resume: bool = False, json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Answer an approval with a no: the error `rejected` of its state. STATE may be left out where one waits."""
    word = Answer(state, True, answer, _data(data), _text(note, "--note"), digest, _by(by))
    return _said(run, word, resume=resume, json=json, db=db)


def signal(
    run: str, name: str, *, data: str | None = None, error: str | None = None, message: str = "", alive: bool = False,
    dedupe: str | None = None, by: str | None = None, resume: bool = False, json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Send a signal to a run: to the oldest wait for its name, or kept for one that is still to come."""
    from durun.plan.names import own_error

    if alive and (data is not None or error is not None or message or dedupe is not None):
        raise Usage("--alive brings nothing but a sign of life: leave the rest out")
    if error is None and message:
        raise Usage("--message goes with --error")
    if error is not None and (problem := own_error(error)):
        raise Usage(f"--error: {error!a} {problem}")
    who = _by(by)
    if alive:
        return _said(run, Alive(name, who), resume=resume, json=json, db=db)
    mark = None if dedupe is None else _text(dedupe, "--dedupe")
    word = Signal(name, _data(data), error, _text(message, "--message"), mark, who)
    return _said(run, word, resume=resume, json=json, db=db)


def inbox(*, json: bool = False, db: str | None = None) -> int:
    """List what waits for a person, over all runs, each with its command."""
    from durun.render import document as render
    from durun.render import text

    items: list[Json] = []
    there = not absent(where(db))
    if there:
        file = opened(db, brief=True)
        items = [item for s, d in read.for_people(file, alive_in(file.path)) for item in render.inbox(s, d, now())]
        dead = [render.message(m) for m in read.messages(file) if m["status"] == "dead"]
        items += [render.dead_letter(m, read.summary(file, read.number(file, m["run"]), alive_in(file.path))) for m in dead]
    if json:
        out_json({"inbox": items})
    elif items:
        out(text.inbox(items))
    else:
        say("nothing waits for a person" if there else nowhere(db, "nothing waits for a person"))
    return 0


# --- what is given ---


def _data(given: str | None) -> Json:
    from durun.plan.data import read_json

    if given is None:
        return None
    raw: str | bytes = read_file(given[1:]) if given.startswith("@") else given
    if len(raw) > LARGEST:
        raise PlanRefused("--data: it is over 16 MiB; send a path to a file instead; nothing was changed")
    try:
        return read_json(raw)
    except ValueError as e:
        raise Usage(f"--data holds no JSON: {e}; nothing was changed") from None


def _text(given: str, option: str) -> str:
    from durun.plan.data import clean

    try:
        clean(given)
    except ValueError as e:
        raise Usage(f"{option}: {e}") from None
    return given


def _by(given: str | None) -> str:
    return _text(person() if given is None else given, "--by")


# --- what becomes of it ---


def _said(id: str, word: Word, *, resume: bool, json: bool, db: str | None) -> int:
    file = opened(db, of=id)
    noticed(file)
    no, word = _meant(file, id, word)
    store = Store(file)
    pinned = store.pinned(no)
    refuse_stranded(pinned, read.summary(file, no, alive_in(file.path)).id)
    plan = pinned.plan
    preload(plan)
    alive = alive_in(file.path)
    told = tell(store, no, plan, word, real_world(), alive, Evaluator())
    if told.driven and not told.before:
        told = _heard(file, no, plan, told)
    status = read.summary(file, no, alive).status
    if not json:
        _say_moves(told)
    if resume and status not in read.ENDED:
        return _resumed(file, db, no, told, json=json)
    doc = document(file, no)
    if json:
        out_json(doc)
    from durun.cli.control import ended_alone, say_undelivered
    from durun.render.text import stands

    goes_on = ", and its driver goes on" if told.driven and doc["status"] != "paused" else ""
    say(told.before or f"run {doc['id']}: {_spelt(word)} is recorded{goes_on}")
    say(stands(doc))
    if ended_alone(doc):
        say_undelivered(doc)
    return exit_of(doc["status"]) if resume else 0


def _meant(file: File, id: str, word: Word) -> tuple[int, Word]:
    """The run that is spoken to. What is said to a child is said to the run that called it, and of the child's state or waits."""
    no, child = read.run_or_child(file, id)
    if child is None:
        return no, word
    if not isinstance(word, Answer):
        # no visit of another that stands where it stood, also where a migration has given that its name
        return no, word._replace(within=child.scope, visit=child.visit if child.until is None else 0)
    from durun.cli.child import meant

    of = meant(file, id, word.state, "asked")
    return no, word._replace(state=of.state, visit=of.visit)


def _spelt(word: Word) -> str:
    match word:
        case Signal():
            return f"the signal {word.name}"
        case Alive():
            return f"the sign of life of {word.name}"
    return "the no" if word.reject else "the answer"


def _heard(file: File, no: int, plan: Plan, told: Told) -> Told:
    """Waits a moment for the driver to act on it. One that has left meanwhile leaves it to this process."""
    store, alive, end = Store(file), alive_in(file.path), time.monotonic() + PATIENCE
    while time.monotonic() < end and store.notes(no):
        s = read.summary(file, no, alive)
        if s.driver is None or not alive(s.driver):
            return tell(store, no, plan, None, real_world(), alive, Evaluator())
        time.sleep(0.02)
    return told


def _say_moves(told: Told) -> None:
    from durun.render.document import path_of
    from durun.render.text import moved

    for move in told.moves:
        for e in move.history:
            line = moved(e.kind, path_of(e.scope, e.state), e.attempt, e.data)
            if line is not None:
                say(line)


def _resumed(file: File, db: str | None, no: int, told: Told, *, json: bool) -> int:
    """Drives on here; where another driver does already, it goes on there."""
    if told.before:
        say(told.before)
    path = file.path
    file.close()
    try:
        with driver(path, create=False, quiet=False) as d:
            return d.go_on(no, no_wait=False, json=json, take_up="paused")
    except Held as e:
        say(str(e))
        if json:
            out_json(document(opened(db), no))
        return 0

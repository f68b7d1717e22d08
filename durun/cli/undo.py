"""Compensation from the command line: a run's own effects undone, driven here or by whoever drives it."""

from __future__ import annotations

import time
from typing import Any

from durun.cli.common import alive_in, document, exit_of, length, now, opened, person, where
from durun.cli.control import judged, refused_since
from durun.cli.drive import driver
from durun.cli.reader import out_json, say
from durun.errors import NotPossible
from durun.machine.events import Cancel, Compensate
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

Json = Any


def compensate(
    run: str, *, force: bool = False, grace: str = "10s", quiet: bool = False, json: bool = False, db: str | None = None
) -> int:
    """Undo what a run has done, the youngest first. Exits by the run: 4 when it is compensated."""
    ms = length(grace, "--grace")
    file = opened(db, of=run)
    no = read.number(file, run)
    alive = alive_in(file.path)
    s = read.summary(file, no, alive)
    if s.status == "compensated":
        say(f"run {s.id} is compensated already")
        return _shown(file, no, json)
    return carried_out(file, db, no, Compensate(ms, person(), force), quiet=quiet, json=json)


def carried_out(file: File, db: str | None, no: int, event: Cancel | Compensate, *, quiet: bool, json: bool) -> int:
    """Undoes a run here, or has its driver do it and waits until it is through. Exits by the run."""
    alive, store = alive_in(file.path), Store(file)
    s = read.summary(file, no, alive)
    if s.driver is None or not alive(s.driver):
        return _here(db, no, event, quiet=quiet, json=json)
    judged(store, no, event)
    back = "rewind" in (store.load(no).run.undoing or {})
    seen = read.events(file, no)
    if isinstance(event, Cancel):
        kind, data = "cancel", {"grace": event.grace, "compensate": event.compensate}
    else:
        kind, data = "compensate", {"grace": event.grace, "force": event.force}
    if store.add_note(no, kind, data, event.by, now()) == 0:
        return _here(db, no, event, quiet=quiet, json=json)
    _follow(file, no, back=back)
    refused_since(file, no, seen, kind)
    return _shown(file, no, json)


def _here(db: str | None, no: int, event: Cancel | Compensate, *, quiet: bool, json: bool) -> int:
    with driver(where(db), create=False, quiet=quiet) as d:
        engine = d.take(no, to_drive=True, after_restore=True)
        try:
            return d.compensate(engine, event, json=json)
        except NotPossible:
            d.let_go(engine)
            raise


def _follow(file: File, no: int, *, back: bool) -> None:
    """Waits until the driver that has the run is through with it, or gone. `back`: the run goes back to a state, and then on."""
    alive, store = alive_in(file.path), Store(file)
    while True:
        s = read.summary(file, no, alive)
        if s.driver is None or not alive(s.driver) or (s.status in read.ENDED and not store.notes(no)):
            return
        if s.status in ("blocked", "paused") and not store.notes(no):
            return
        if back and not store.notes(no) and store.load(no).run.undoing is None:
            return
        time.sleep(0.05)


def _shown(file: File, no: int, json: bool) -> int:
    from durun.render.text import stands

    doc = document(file, no)
    if json:
        out_json(doc)
    say(stands(doc))
    return exit_of(doc["status"])

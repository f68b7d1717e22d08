"""Compensation from the command line: a run's own effects undone, driven here or by whoever drives it."""

from __future__ import annotations

import time
from typing import Any

from durun.cli.common import alive_in, document, exit_of, now, opened, person, where
from durun.cli.drive import driver
from durun.cli.reader import out_json, say
from durun.errors import NotPossible, Usage
from durun.machine.events import Compensate
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

Json = Any


def compensate(
    run: str, *, force: bool = False, grace: str = "10s", quiet: bool = False, json: bool = False, db: str | None = None
) -> int:
    """Undo what a run has done, the youngest first. Exits by the run: 4 when it is compensated."""
    from durun.plan.units import duration

    try:
        ms = duration(grace)
    except ValueError as e:
        raise Usage(f"--grace: {e}") from None
    file = opened(db)
    no = read.number(file, run)
    alive = alive_in(file.path)
    s = read.summary(file, no, alive)
    if s.status == "compensated":
        say(f"run {s.id} is compensated already")
        return _shown(file, no, json)
    if s.driver is None or not alive(s.driver):
        return _here(db, no, Compensate(ms, person(), force), quiet=quiet, json=json)
    if Store(file).add_note(no, "compensate", {"grace": ms, "force": force}, person(), now()) == 0:
        return _here(db, no, Compensate(ms, person(), force), quiet=quiet, json=json)
    _follow(file, no)
    return _shown(file, no, json)


def _here(db: str | None, no: int, event: Compensate, *, quiet: bool, json: bool) -> int:
    with driver(where(db), create=False, quiet=quiet) as d:
        engine = d.take(no, to_drive=True)
        try:
            return d.compensate(engine, event, json=json)
        except NotPossible:
            d.let_go(engine)
            raise


def _follow(file: File, no: int) -> None:
    """Waits until the driver that has the run is through with it, or gone."""
    alive, store = alive_in(file.path), Store(file)
    while True:
        s = read.summary(file, no, alive)
        if s.driver is None or not alive(s.driver) or (s.status in read.ENDED and not store.notes(no)):
            return
        if s.status == "blocked" and not store.notes(no):
            return
        time.sleep(0.05)


def _shown(file: File, no: int, json: bool) -> int:
    from durun.render.text import stands

    doc = document(file, no)
    if json:
        out_json(doc)
    say(stands(doc))
    return exit_of(doc["status"])

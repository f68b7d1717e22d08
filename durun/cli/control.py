"""Commands that ask something of a run: cancel and resolve.

With a driver alive they leave a note, which only the driver acts on. Without one they take the run over, make the move, leave the
next intent waiting, and let go.
"""

from __future__ import annotations

import time
from typing import Any

from durun.cli.common import alive_in, document, exit_of, now, opened, person, where
from durun.cli.drive import driver
from durun.cli.reader import out_json, say
from durun.errors import Held, NotPossible, Usage
from durun.machine.events import Cancel, Pause, Resolve
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

Json = Any


def cancel(run: str, *, grace: str = "10s", json: bool = False, db: str | None = None) -> int:
    """Cancel a run: stop what is under way, withdraw what has not begun. Exits by the run: 4 when it is cancelled."""
    from durun.plan.units import duration

    try:
        ms = duration(grace)
    except ValueError as e:
        raise Usage(f"--grace: {e}") from None
    file = opened(db)
    no = read.number(file, run)
    s = read.summary(file, no, alive_in(file.path))
    if s.status == "cancelled":
        say(f"run {s.id} is cancelled already")
        return _shown(file, no, json)
    if s.status in read.ENDED:
        raise NotPossible(f"run {s.id} has ended: it is already {s.status}; nothing was changed")
    for _ in range(3):  # a driver may come or go between the look and the act
        if _left_to_driver(file, no, "cancel", {"grace": ms}):
            _until(file, no, ended=True, seconds=ms / 1000 * 2 + 30)
            if read.summary(file, no, alive_in(file.path)).reason == "not_stopped":
                break
        if read.summary(file, no, alive_in(file.path)).status in read.ENDED or _cancel_here(db, no, ms):
            break
    after = read.summary(file, no, alive_in(file.path))
    if after.reason == "not_stopped":
        return _shown(file, no, json)
    if after.status not in read.ENDED:
        raise Held(f"run {s.id} is {after.status}: the cancel is noted, its driver has not acted on it yet: `durun show {s.id}`")
    if after.status != "cancelled":
        raise NotPossible(f"run {s.id} is {after.status}: the cancel came too late; nothing was changed")
    return _shown(file, no, json)


def _shown(file: File, no: int, json: bool) -> int:
    from durun.render.text import stands

    doc = document(file, no)
    if json:
        out_json(doc)
    doubts = [e["path"] for e in doc["effects"] if e["status"] in ("in_doubt", "not_certain")]
    say(stands(doc) + (f"; in doubt: {', '.join(doubts)}" if doubts else ""))
    return exit_of(doc["status"])


def _cancel_here(db: str | None, no: int, grace: int) -> bool:
    """No driver lives: this process takes the run over, stops what is left of it, and ends it. False where one came meanwhile."""
    with driver(where(db), create=False, quiet=True) as d:
        try:
            engine = d.take(no)
        except Held:
            return False
        engine.hold = True
        again = engine.at.run.cancel is None or engine.at.run.reason == "not_stopped"
        if again and engine.at.run.ended_at is None:
            engine.move(Cancel(grace, person()))
        if engine.at.run.ended_at is None:
            engine.drive()
        d.let_go(engine)
    return True


def _left_to_driver(file: File, no: int, kind: str, data: Json) -> bool:
    """Leaves a note where a driver lives. False where none does."""
    s = read.summary(file, no, alive_in(file.path))
    if s.driver is None or not alive_in(file.path)(s.driver):
        return False
    Store(file).add_note(no, kind, data, person(), now())
    return True


def _until(file: File, no: int, *, ended: bool, seconds: float) -> None:
    """Waits until the driver has acted on the note, or is gone."""
    end, alive = time.monotonic() + seconds, alive_in(file.path)
    while time.monotonic() < end:
        s = read.summary(file, no, alive)
        if s.status in read.ENDED or (not ended and not Store(file).notes(no)):
            return
        if s.driver is None or not alive(s.driver):
            return
        time.sleep(0.03)


def pause(run: str, *, json: bool = False, db: str | None = None) -> int:
    """Pause a run: what is under way ends, nothing more begins, and timers stand still until `resume`."""
    file = opened(db)
    no = read.number(file, run)
    s = read.summary(file, no, alive_in(file.path))
    if s.status in read.ENDED:
        raise NotPossible(f"run {s.id} has ended: it is already {s.status}; nothing was changed")
    if s.status == "paused":
        raise NotPossible(f"run {s.id} is paused already: `durun resume {s.id}` goes on")
    if _left_to_driver(file, no, "pause", {}):
        _until(file, no, ended=False, seconds=30)
    elif s.status != "paused":
        with driver(where(db), create=False, quiet=True) as d:
            engine = d.take(no)
            engine.hold = True
            try:
                engine.move(Pause(person()))
            finally:
                d.let_go(engine)
    doc = document(file, no)
    if json:
        out_json(doc)
    say(f"run {s.id} is {doc['status']}" + _then(doc))
    return 0


def resolve(
    run: str, state: str | None = None, *, happened: bool = False, retry: bool = False, fail: bool = False,
    output: str | None = None, note: str = "", json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Say of an effect in doubt that it happened, that it is to be begun again, or that it failed."""
    from durun.plan.data import read_json

    said = [how for how, given in (("happened", happened), ("retry", retry), ("fail", fail)) if given]
    if len(said) != 1:
        raise Usage("say one of --happened, --retry and --fail")
    if output is not None and not happened:
        raise Usage("--output goes with --happened")
    try:
        value = None if output is None else read_json(output)
    except ValueError as e:
        raise Usage(f"--output: {e}") from None
    event = Resolve(said[0], state, value, output is not None, note, person())
    file = opened(db)
    no = read.number(file, run)
    s = read.summary(file, no, alive_in(file.path))
    if s.driver is not None and alive_in(file.path)(s.driver):
        raise NotPossible(f"run {s.id} is {s.status}, and is being driven: nothing of it is in doubt now")
    _resolve_here(db, no, event)
    doc = document(file, no)
    if json:
        out_json(doc)
    say(f"run {s.id}: {event.how} is recorded; it is {doc['status']}" + _then(doc))
    return 0


def _then(doc: dict[str, Json]) -> str:
    return "" if doc["status"] in read.ENDED else f"; `durun resume {doc['id']}` goes on"


def _resolve_here(db: str | None, no: int, event: Resolve) -> None:
    with driver(where(db), create=False, quiet=True) as d:
        engine = d.take(no)
        try:
            engine.hold = True
            engine.recover()
            if engine.performer is not None and engine.performer.busy:
                raise NotPossible(
                    f"run {engine.at.run.id}: its command is still alive: `durun resume {engine.at.run.id}` waits for it"
                )
            engine.move(event)
        finally:
            d.let_go(engine)

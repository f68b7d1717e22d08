"""Commands that only look: ls, show, history, logs, output, wait."""

from __future__ import annotations

import os
import sys
import time

from durun.cli.common import alive_in, document, exit_of, opened
from durun.cli.reader import say
from durun.errors import NotPossible, Usage
from durun.store import read
from durun.store.file import File

STATUSES = (
    "running", "waiting", "blocked", "paused", "interrupted", "stranded", "compensating", "succeeded", "failed", "cancelled",
    "compensated",
)  # fmt: skip


def _json(value: object) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False))


def ls(
    *, status: list[str] | None = None, plan: str | None = None, limit: int = 20, all: bool = False, quiet: bool = False,
    json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """List runs, the newest first: those in flight, and the last that ended."""
    unknown = [s for s in status or [] if s not in STATUSES]
    if unknown:
        raise Usage(f"there is no status {unknown[0]!r}; there are {', '.join(STATUSES)}")
    from durun.cli.common import where

    if not os.path.exists(where(db)):
        lines = []
    else:
        file = opened(db)
        lines = read.listed(file, alive_in(file.path), statuses=status or [], plan=plan, limit=limit, everything=all)
    if json:
        from durun.render.document import line

        _json({"runs": [line(s) for s in lines]})
    elif quiet:
        print("".join(f"{s.id}\n" for s in lines), end="")
    elif lines:
        from durun.render.document import line
        from durun.render.text import table

        print(table([line(s) for s in lines]))
    else:
        say("no runs")
    return 0


def show(run: str, *, json: bool = False, db: str | None = None) -> int:
    """Show one run: what happened, what is certain, what is not, what can be done."""
    file = opened(db)
    doc = document(file, read.number(file, run))
    if json:
        _json(doc)
    else:
        from durun.render.text import show as drawn

        print(drawn(doc))
    return 0


def history(run: str, *, follow: bool = False, json: bool = False, db: str | None = None) -> int:
    """Print the history of a run, a line for each thing that happened."""
    from durun.render import document as doc
    from durun.render import text

    file = opened(db)
    no = read.number(file, run)
    found, after = [doc.event(e) for e in read.history(file, no)], 0
    if json:
        _json({"run": read.summary(file, no, alive_in(file.path)).id, "events": found})
        return 0
    while True:
        for e in found:
            print(text.event(e), flush=follow)
        after = found[-1]["no"] if found else after
        if not follow or read.summary(file, no, alive_in(file.path)).status in read.ENDED:
            return 0
        time.sleep(0.2)
        found = [doc.event(e) for e in read.history(file, no, after)]


def logs(run: str, state: str | None = None, *, db: str | None = None) -> int:
    """Print what the commands of a run wrote, as it was written: attempt by attempt, stdout before stderr."""
    file = opened(db)
    no = read.number(file, run)
    files = [(e["scope"], e["state"], e["data"]) for e in read.history(file, no) if e["kind"] == "attempt_ended"]
    paths = [
        data[word]
        for scope, name, data in files
        if state is None or state in (name, f"{scope}.{name}")
        for word in ("out", "err")
        if word in data
    ]
    paths += _live(file, no, state)
    for path in paths:
        _copy(os.path.join(file.folder, path))
    return 0


def _live(file: File, no: int, state: str | None) -> list[str]:
    """Where what is under way writes now."""
    from durun.effects.notes import Begun, Notes

    found = []
    for place, token, _, name in read.under_way(file, no):
        if state is None or state == name:
            notes = Notes(file.folder, place)
            notes.refresh()
            said = notes.of(token)
            if isinstance(said, Begun):
                found += [f"{place}/{said.out}", f"{place}/{said.err}"]
    return found


def _copy(path: str) -> None:
    sys.stdout.flush()
    try:
        with open(path, "rb") as f:
            while data := f.read(1 << 20):
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
    except FileNotFoundError:
        say(f"the log {path} is gone")


def output(run: str, state: str | None = None, *, db: str | None = None) -> int:
    """Print the output of a run, or of one of its states: a text as it is, anything else as JSON."""
    file = opened(db)
    no = read.number(file, run)
    there, value = read.output_of(file, no, state)
    if not there:
        s = read.summary(file, no, alive_in(file.path))
        what = f"state {state} of run {s.id}" if state else f"run {s.id}"
        raise NotPossible(f"{what} has no output; the run is {s.status}")
    if isinstance(value, str):
        print(value)
    else:
        _json(value)
    return 0


def wait(run: str, *, timeout: str | None = None, json: bool = False, db: str | None = None) -> int:
    """Wait until a run has ended, or waits for a person; exits by the run."""
    from durun.plan.units import duration

    try:
        end = None if timeout is None else time.monotonic() + duration(timeout) / 1000
    except ValueError as e:
        raise Usage(f"--timeout: {e}") from None
    file = opened(db)
    no = read.number(file, run)
    alive = alive_in(file.path)
    undriven: float | None = None
    while True:
        s = read.summary(file, no, alive)
        driven = s.driver is not None and alive(s.driver)
        undriven = None if driven else undriven or time.monotonic()
        if s.status in (*read.ENDED, "blocked", "paused"):
            return _ended(file, no, json, exit_of(s.status))
        if s.status == "waiting" and not driven and read.only_asks(file, no):
            return _ended(file, no, json, 3)
        if undriven is not None and time.monotonic() - undriven > 10:
            say(f"run {s.id} is {s.status}, and nobody drives it: durun resume {s.id}")
            return _ended(file, no, json, 3, quiet=True)
        if end is not None and time.monotonic() >= end:
            say(f"run {s.id} is {s.status}; it goes on")
            return _ended(file, no, json, 124, quiet=True)
        time.sleep(0.05)


def _ended(file: File, no: int, json: bool, code: int, *, quiet: bool = False) -> int:
    doc = document(file, no)
    if json:
        _json(doc)
    if not quiet:
        from durun.render.text import stands

        say(stands(doc))
    return code

"""`durun work`: one process that goes on with all that can go on, until it is told to stop."""

from __future__ import annotations

import sys
from typing import Any

from durun.cli.common import absent, alive_in, last_sign_in, nowhere, on_terminal, where
from durun.cli.reader import at_end, out_json, say
from durun.errors import NeedsPerson, Usage
from durun.store import read

Json = Any


def work(*, once: bool = False, concurrency: int = 100, quiet: bool = False, json: bool = False, db: str | None = None) -> int:
    """Take up every run that is interrupted, due or answered, and every message that is due, as long as it is not told to stop.

    With --once it leaves when nothing is left that could be done now. Told TERM, HUP or INT it leaves commands to their keeper.
    """
    if concurrency < 1:
        raise Usage("--concurrency: at least 1")
    if once and absent(where(db)):
        if not quiet:
            say(nowhere(db, "nothing can be done now"))
        if json:
            out_json({"moves": 0, "told": ""})
        return 0
    from durun.cli.drive import hearing, noticed, preload, refuse_stranded, settled
    from durun.engine import Signals, real_world
    from durun.store.file import File, make_folder
    from durun.store.runs import Pinned, Store
    from durun.work import Work

    file = File(where(db), create=True, say=say)  # a service may be there before the first run
    at_end.append(file.close)
    make_folder(file.folder)
    noticed(file)
    hold = read.hold(file)
    if hold is not None:
        held = f"all runs in {file.path} are held since {hold.since} by {hold.by}: `durun resume --all`"
        if once:
            raise NeedsPerson(held)
        say(held)

    def made(pinned: Pinned, id: str) -> None:
        refuse_stranded(pinned, id)
        if pinned.digest not in loaded:
            preload(pinned.plan)
            loaded.add(pinned.digest)

    loaded: set[str] = set()
    signals = Signals()
    signals.background = True
    w = Work(
        Store(file), real_world(), signals, alive_in(file.path), last_sign_in(file.path), lambda line: None if quiet else say(line),
        made, concurrency, _silent if quiet else _say_move,
    )  # fmt: skip
    settled()
    try:
        with hearing(signals):
            if not quiet and not once:
                stop = "Ctrl-C" if on_terminal(sys.stderr) else "TERM"
                say(f"working on {file.path}, {concurrency} runs at once at most; {stop} ends it, and what is under way goes on")
            w.run(once=once)
            if once and w.idle and not quiet and not signals.told:
                say(f"nothing of {file.path} can be done now")
    finally:
        w.close()
    if json:
        out_json({"moves": w.moved, "told": signals.told})
    return signals.exit if signals.told else 0


def _silent(_slot: Any, _at: Any, _move: Any) -> None:
    """Nothing is said."""


def _say_move(slot: Any, _at: Any, move: Any) -> None:
    """A line for each thing that happened, after the id of its run."""
    from durun.render.document import path_of
    from durun.render.text import moved, plain

    for line in move.said:
        say(f"{slot.id}: {line}")
    for e in move.history:
        line = moved(e.kind, path_of(e.scope, e.state), e.attempt, e.data)
        if line is not None:
            say(f"{slot.id}: {line}")
        elif e.kind in ("succeeded", "failed", "cancelled", "compensated"):
            error = (e.data or {}).get("error") or {}
            say(f"{slot.id}: {e.kind}" + (f": {plain(error.get('name', ''))}" if error else ""))

"""Commands about what runs have left to be delivered: outbox ls, show, deliver, retry, drop. A message is named RUN:NUMBER."""

from __future__ import annotations

import os
from typing import Any

from durun.cli.common import absent, alive_in, mask_of, now, nowhere, opened, where
from durun.cli.reader import out, out_json, say
from durun.errors import NeedsPerson, NoSuchRun, NotPossible, Usage
from durun.store import read
from durun.store.file import File

Json = Any
DEAD = ("dead",)  # what may be delivered after all


def outbox_ls(run: str | None = None, *, all: bool = False, json: bool = False, db: str | None = None) -> int:
    """List what is left to be delivered, the oldest first; with --all what was delivered, dropped or withdrawn too."""
    found = []
    there = not absent(where(db))
    if there or run is not None:
        file = opened(db, brief=True, of=run)
        found = _listed(file, None if run is None else read.number(file, run), everything=all)
    if json:
        out_json(_depth(found) | {"messages": found})
    elif found:
        from durun.render.text import messages

        out(messages(found))
    else:
        say("nothing is left to be delivered" if there else nowhere(db, "nothing is left to be delivered"))
    return 0


def _listed(file: File, no: int | None, *, everything: bool) -> list[Json]:
    from durun.render.document import message

    masks: dict[str, Any] = {}
    out = []
    for m in read.messages(file, no, everything=everything):
        if m["run"] not in masks:
            masks[m["run"]] = mask_of(file, read.number(file, m["run"]))
        out.append(masks[m["run"]].tree(message(m)))
    return out


def _depth(found: list[Json]) -> dict[str, Json]:
    """How many are left, how many of them were given up, and since when the oldest waits."""
    left = [m for m in found if m["status"] in ("waiting", "sending", "dead")]
    oldest = min((m["intended_at"] for m in left), default=None)
    age = None
    if oldest is not None:
        from durun.plan.units import moment

        age = max(0, now() - moment(oldest)) / 1000
    return {"depth": len(left), "dead": sum(m["status"] == "dead" for m in left), "oldest": oldest, "oldest_age": age}


def outbox_show(message: str, *, json: bool = False, db: str | None = None) -> int:
    """Show one message: its request as it is frozen, its key, how its attempts ended."""
    file = opened(db, brief=True, of=_run_of(message))
    no, effect = _named(file, message)
    found = next(m for m in _listed(file, no, everything=True) if m["effect"] == effect)
    found["request"] = mask_of(file, no).tree(read.request(file, no, effect))
    if json:
        out_json(found)
    else:
        from durun.render.text import message as drawn

        out(drawn(found))
    return 0


def outbox_deliver(
    runs: list[str] | None = None, *, concurrency: int = 4, quiet: bool = False, json: bool = False, db: str | None = None
) -> int:
    """Deliver what is due now: of these runs, or of all. Exits with 9 where something had to be given up."""
    from durun.cli import several
    from durun.cli.drive import driver, hearing
    from durun.store.messages import Messages
    from durun.store.runs import Store

    if concurrency < 1:
        raise Usage("--concurrency: at least 1")
    if not runs and absent(where(db)):
        if json:
            out_json(_depth([]) | {"messages": []})
        elif not quiet:
            say(nowhere(db, "nothing is left to be delivered"))
        return 0
    file = opened(db, of=runs[0] if runs else None)
    hold = read.hold(file)
    if hold is not None:
        raise NeedsPerson(f"all runs in {file.path} are held since {hold.since} by {hold.by}: `durun resume --all`")
    wanted = [read.number(file, run) for run in dict.fromkeys(runs or [])]
    due = Messages(file, Store(file).effect).waiting_runs(now())
    chosen = [no for no in due if not wanted or no in wanted]
    codes: list[int] = []
    if len(chosen) > 1:
        codes = several.deliver(file, chosen, concurrency=concurrency, quiet=quiet)
    elif chosen:
        with driver(where(db), create=False, quiet=quiet) as d, hearing(d.signals):
            codes = [9 if d.deliver(chosen[0]) else 0]
            codes = [d.signals.exit] if d.signals.told else codes
    left = _listed(file, wanted[0] if len(wanted) == 1 else None, everything=False)
    if json:
        out_json(_depth(left) | {"messages": left})
    elif not quiet:
        say(_after(chosen, left))
    return next((code for code in (130, 143, 8, 9) if code in codes), next((code for code in codes if code), 0))


def _after(chosen: list[int], left: list[Json]) -> str:
    waiting = sum(m["status"] != "dead" for m in left)
    dead = len(left) - waiting
    begun = "" if chosen else "nothing was due; "
    ways = f", {dead} given up: `durun outbox ls`" if dead else ""
    return f"{begun}{waiting} left to be delivered{ways}"


def outbox_retry(messages: list[str], *, new_key: bool = False, json: bool = False, db: str | None = None) -> int:
    """Have messages that were given up delivered after all: with a fresh budget and the same key. RUN alone means all of its."""
    from durun.machine import message
    from durun.machine.draft import uuid5
    from durun.machine.events import Moment

    def again(m: Any, e: Any) -> Any:
        key = uuid5(os.urandom(16).hex(), e.key) if new_key else None
        return message.again(m, e, Moment(now(), 0, "", None, 0.0), key)

    return _changed(messages, DEAD, again, "is delivered again as soon as it can be: `durun outbox deliver {}`", json=json, db=db)


def outbox_drop(messages: list[str], *, note: str = "", json: bool = False, db: str | None = None) -> int:
    """Give messages up for good: those behind them are delivered. RUN alone means all of its that were given up."""
    from durun.machine import message

    def dropped(m: Any, e: Any) -> Any:
        return message.dropped(m, e, note)

    return _changed(messages, ("dead", "waiting"), dropped, "is dropped", json=json, db=db)


def _changed(named: list[str], may: tuple[str, ...], decide: Any, said: str, *, json: bool, db: str | None) -> int:
    from durun.store.messages import Messages
    from durun.store.runs import Store

    if not named:
        raise Usage("name the messages as RUN:NUMBER, or runs: `durun outbox ls` lists them")
    file = opened(db, of=_run_of(named[0]))
    chosen = [one for name in dict.fromkeys(named) for one in _meant(file, name)]
    done = []
    for no, effect in chosen:
        id = read.summary(file, no, alive_in(file.path)).id
        Messages(file, Store(file).effect).change(no, effect, _only(f"{id}:{effect}", may, decide))
        say(f"message {id}:{effect} {said.format(id)}")
        done += [m for m in _listed(file, no, everything=True) if m["effect"] == effect]
    if json:
        out_json({"messages": done})
    return 0


def _only(name: str, may: tuple[str, ...], decide: Any) -> Any:
    def decided(m: Any, e: Any, over: bool) -> Any:
        if m.status not in may:
            raise NotPossible(f"message {name} is {m.status}: nothing was changed; `durun outbox show {name}`")
        if may is DEAD and over and m.ordered:
            why = "its run was cancelled or undone, and nothing of it begins any more"
            raise NotPossible(f"message {name}: {why}; nothing was changed; `durun outbox drop {name}`")
        return decide(m, e)

    return decided


def _meant(file: File, name: str) -> list[tuple[int, int]]:
    """(run, effect) of the messages that a name means: one, or all of a run that were given up."""
    if ":" in name:
        return [_named(file, name)]
    no = read.number(file, name)
    found = [m["effect"] for m in read.messages(file, no) if m["status"] == "dead"]
    if not found:
        raise NotPossible(f"no message of run {name} was given up: nothing was changed; `durun outbox ls {name} --all`")
    return [(no, effect) for effect in found]


def _run_of(name: str) -> str:
    """The run that a message is named by."""
    return name.rpartition(":")[0] or name


def _named(file: File, name: str) -> tuple[int, int]:
    run, _, number = name.rpartition(":")
    if not run or not (number.isascii() and number.isdigit()):
        raise Usage(f"{name!r} is no message: RUN:NUMBER, as `durun outbox ls` has it")
    from durun.store.messages import status_of

    no, effect = read.number(file, run), int(number[:15])
    if status_of(file, no, effect) is None:
        raise NoSuchRun(f"run {run} has no message {number[:20]}: `durun outbox ls {run} --all`")
    return no, effect

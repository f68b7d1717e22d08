"""The command drain: no new run of a plan begins, and those in flight go on to their end."""

from __future__ import annotations

import time

from durun.cli.common import alive_in, now, opened, person
from durun.cli.reader import out_json, say
from durun.errors import Usage
from durun.plan.names import PLAN
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

LONELY = 10.0  # s that a run which moves may have no driver, as `wait` gives it


def drain(plan: str, *, wait: bool = False, off: bool = False, json: bool = False, db: str | None = None) -> int:
    """Refuse new runs of a plan, by its name, until --off. Those in flight go on; an id that is known goes on, too.

    With --wait until none is in flight: exit 0, or 3 with the list where the rest only waits.
    """
    if wait and off:
        raise Usage("--wait and --off: say one of them")
    if not PLAN.fullmatch(plan):
        raise Usage(f"{plan!a} is no name of a plan: give the `name` that stands in it")
    file = opened(db)
    if off:
        done = Store(file).drain_off(plan)
        say(f"plan {plan} is drained no more: new runs of it begin" if done else f"plan {plan} is not drained: nothing was changed")
    else:
        new = Store(file).drain(plan, person(), now())
        drained = read.drained(file, plan)
        if new or drained is None:
            say(f"plan {plan} is drained: no new run of it begins until `durun drain {plan} --off`")
        else:
            say(f"plan {plan} is drained already, since {drained.since} by {drained.by}")
    left = _until_they_rest(file, plan) if wait else _in_flight(file, plan)
    if json:
        from durun.render.document import line

        drained = read.drained(file, plan)
        since = None if drained is None else {"since": drained.since, "by": drained.by}
        out_json({"plan": plan, "drained": since, "in_flight": [line(s) for s in left]})
    if not off:
        _say_left(plan, left, wait=wait)
    return 3 if wait and left else 0


def _say_left(plan: str, left: list[read.Summary], *, wait: bool) -> None:
    if not left:
        say(f"no run of plan {plan} is in flight")
    elif not wait:
        say(f"{len(left)} in flight: `durun drain {plan} --wait` waits for them, `durun ls --plan {plan}` names them")
    else:
        say(f"{len(left)} of plan {plan} only wait:")
        for s in left:
            said = f"{s.status} ({s.reason})" if s.reason else s.status
            say(f"  run {s.id} is {said}" + (f" in {s.state}" if s.state else "") + f": `durun show {s.id}`")


def _in_flight(file: File, plan: str) -> list[read.Summary]:
    alive = alive_in(file.path)
    return [read.summary(file, no, alive) for no in read.in_flight(file, plan)]


def _until_they_rest(file: File, plan: str) -> list[read.Summary]:
    """Waits until none is in flight, or none of them moves by itself: those that are left."""
    alone = time.monotonic()
    while True:
        left = _in_flight(file, plan)
        moving = [s for s in left if _moves(file, s)]
        interrupted = [s for s in left if s.status == "interrupted"]
        if not interrupted:
            alone = time.monotonic()
        if not moving and (not interrupted or time.monotonic() - alone > LONELY):
            return [s for s in left if s.status not in read.ENDED]
        time.sleep(0.1)


def _moves(file: File, s: read.Summary) -> bool:
    """Whether somebody drives it, and it is not a person or a signal that it waits for."""
    driven = s.driver is not None and alive_in(file.path)(s.driver)
    return driven and (s.status in ("running", "compensating") or (s.status == "waiting" and not read.only_asks(file, s.no)))

"""Commands that ask something of a run: cancel and resolve.

With a driver alive they leave a note, which only the driver acts on. Without one they take the run over, make the move, leave the
next intent waiting, and let go.
"""

from __future__ import annotations

import time
from collections.abc import Container
from typing import Any

from durun.cli.common import alive_in, document, exit_of, length, now, opened, person, where
from durun.cli.drive import DriverProcess, driver, hearing
from durun.cli.reader import out_json, say
from durun.engine import Engine, real_world
from durun.errors import Held, NotPossible, Usage
from durun.machine.decide import decide
from durun.machine.events import Cancel, Happening, Moment, Pause, Resolve
from durun.machine.scope import path_of
from durun.plan.expressions import Evaluator
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store

Json = Any


def cancel(run: str, *, grace: str = "10s", compensate: bool = False, json: bool = False, db: str | None = None) -> int:
    """Cancel a run: stop what is under way, withdraw what has not begun. Exits by the run: 4 when it is cancelled.

    With --compensate what it has done is undone then, as `compensate` does.
    """
    ms = length(grace, "--grace")
    file = opened(db, of=run)
    no = read.number(file, run)
    s = read.summary(file, no, alive_in(file.path))
    if s.status == "cancelled" and not compensate:
        say(f"run {s.id} is cancelled already")
        return _shown(file, no, json)
    if s.status in read.ENDED:
        then = f": `durun compensate {s.id}` undoes what it did" if compensate and s.status != "compensated" else ""
        raise NotPossible(f"run {s.id} has ended: it is already {s.status}{then}; nothing was changed")
    if compensate:
        from durun.cli.undo import carried_out

        return carried_out(file, db, no, Cancel(ms, person(), compensate=True), quiet=False, json=json)
    seen = read.events(file, no)
    for _ in range(3):  # a driver may come or go between the look and the act
        noted = _left_to_driver(file, no, "cancel", {"grace": ms})
        if noted:
            _until(file, no, ended=False, seconds=ms / 1000 * 2 + 30)
        if noted and _asked_since(file, no, seen):
            _until(file, no, ended=True, seconds=ms / 1000 * 2 + 30)
            _while_it_undoes(file, no)
        if _is_through(file, no, noted, seen) or _cancel_here(db, no, ms, seen):
            break
    if _asked_since(file, no, seen):
        _while_it_undoes(file, no)  # somebody may have resumed it since it was seen to stand paused
    after = read.summary(file, no, alive_in(file.path))
    if after.reason == "not_stopped" or after.status == "cancelled":
        return _shown(file, no, json, seen)
    if _asked_since(file, no, seen) and after.status not in ("succeeded", "failed"):
        return _shown(file, no, json, seen)  # what it had done may be undone after it
    if after.status not in read.ENDED and Store(file).notes(no):
        raise Held(f"run {s.id} is {after.status}: the cancel is noted, its driver has not acted on it yet: `durun show {s.id}`")
    why = next((e["data"]["why"] for e in read.history(file, no, seen) if e["data"].get("asked") == "cancel"), None)
    raise NotPossible(why or f"run {s.id} is {after.status}: the cancel came too late; nothing was changed")


def _asked_since(file: File, no: int, seen: int) -> bool:
    """Whether the run is being cancelled, or a cancel was accepted after that row of the history."""
    return read.is_cancelled(file, no) or any(read.history(file, no, seen, ("cancel_asked",)))


def _is_through(file: File, no: int, noted: bool, seen: int) -> bool:
    """Whether nothing is left to do here: it has ended, or its driver has heard, and has refused or cannot undo the rest without
    a person."""
    s = read.summary(file, no, alive_in(file.path))
    heard = noted and not Store(file).notes(no)
    stays = s.status in ("blocked", "paused", "compensating") or not _asked_since(file, no, seen)
    return s.status in read.ENDED or (heard and stays)


def _shown(file: File, no: int, json: bool, seen: int | None = None) -> int:
    """`seen`: the row of the history after which it was cancelled; what left the groups that were stopped since is named."""
    from durun.render.text import stands

    doc = document(file, no)
    if json:
        out_json(doc)
    for e in read.history(file, no, seen, ("attempt_ended",)) if seen is not None else ():
        if e["data"].get("left"):
            path = path_of(e["scope"], e["state"])
            say(f"run {doc['id']}: {path} left processes behind: {', '.join(map(str, e['data']['left']))}")
    doubts = [e["path"] for e in doc["effects"] if e["status"] in ("in_doubt", "not_certain")]
    say(stands(doc) + (f"; in doubt: {', '.join(doubts)}" if doubts else ""))
    say_undelivered(doc)
    return exit_of(doc["status"])


def say_undelivered(doc: dict[str, Json]) -> None:
    """What a run that has ended leaves, where nobody drives it who delivers that before it leaves."""
    dead = sum(m["status"] == "dead" for m in doc["messages"])
    if left := len(doc["messages"]) - dead:
        say(f"messages left to be delivered: {left}: `durun outbox deliver {doc['id']}`")
    if dead:
        say(f"messages given up: {dead}: `durun outbox ls {doc['id']}`")


def ended_alone(doc: dict[str, Json]) -> bool:
    """Whether a run has ended by what a person said of it, and no driver is there to deliver what it leaves."""
    return doc["status"] in read.ENDED and not driver_goes_on(doc)


def driver_goes_on(doc: dict[str, Json]) -> bool:
    """Whether a driver lives, and may begin something more."""
    return bool(doc["driver"] and doc["driver"]["alive"]) and doc["status"] != "paused"


def _cancel_here(db: str | None, no: int, grace: int, seen: int) -> bool:
    """No driver lives: this process takes the run over, stops what is left of it, and ends it; where what it had done is undone
    after a cancel, it does that too. False where a driver came meanwhile."""
    with driver(where(db), create=False, quiet=True) as d:
        try:
            engine = d.take(no)
        except Held:
            return False
        engine.hold = True
        try:
            engine.after_restore(person())
            run = engine.at.run
            heard = run.undoing is not None and _asked_since(d.file, no, seen)
            again = run.cancel is None or run.reason == "not_stopped"
            if again and run.ended_at is None and not heard:
                engine.move(Cancel(grace, person()))
            engine.hold = read.hold(d.file) is not None  # nothing begins after a cancel, but what undoes it
            if engine.at.run.ended_at is None:
                with hearing(d.signals):
                    engine.drive()
        finally:
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
        heard = not Store(file).notes(no)
        if s.status in read.ENDED or (heard and (not ended or s.status in ("blocked", "compensating", "paused"))):
            return
        if s.driver is None or not alive(s.driver):
            return
        time.sleep(0.03)


def _while_it_undoes(file: File, no: int) -> None:
    """Where the driver undoes what was cancelled: until it is through, or gone. An undo takes the time it takes."""
    alive = alive_in(file.path)
    while True:
        s = read.summary(file, no, alive)
        if s.status != "compensating" or s.driver is None or not alive(s.driver):
            return
        time.sleep(0.05)


def pause(run: str | None = None, *, plan: str | None = None, all: bool = False, json: bool = False, db: str | None = None) -> int:
    """Pause a run: what is under way ends, nothing more begins, and timers stand still until `resume`.

    With --plan all runs of a plan that have not ended. With --all the whole file: until `resume --all` no run goes on in it, also
    after a reboot, and what is started begins paused.
    """
    if sum((run is not None, plan is not None, all)) != 1:
        raise Usage("say which: a run, --plan NAME, or --all")
    file = opened(db, of=run)
    if run is not None:
        return _pause_one(file, db, read.number(file, run), json)
    before = read.hold(file) if all else None
    if all:
        Store(file).put_hold(person(), now())
    wanted = read.in_flight(file, plan)
    reason = "all" if all else ""
    _pause_each(file, db, [no for no in wanted if not _rests(read.summary(file, no, alive_in(file.path)), reason)], reason)
    return _paused(file, wanted, plan, json, before)


def _pause_one(file: File, db: str | None, no: int, json: bool) -> int:
    s = read.summary(file, no, alive_in(file.path))
    if s.status in read.ENDED:
        raise NotPossible(f"run {s.id} has ended: it is already {s.status}; nothing was changed")
    if s.reason == "restored":
        raise NotPossible(f"run {s.id} is blocked (restored): nothing of it moves before `durun resume {s.id} --after-restore`")
    if _rests(s, ""):
        raise NotPossible(f"run {s.id} is paused already: `durun resume {s.id}` goes on")
    _pause_each(file, db, [no], "")
    doc = document(file, no)
    if json:
        out_json(doc)
    say(f"run {s.id} is {doc['status']}" + _then(doc) + _once_free(file))
    return 0


def _rests(s: read.Summary, reason: str) -> bool:
    """Whether a pause changes nothing. One by itself does where a run is only held with the whole file: it outlasts that."""
    rests = s.status in read.ENDED or s.reason == "restored"
    return rests or (s.status == "paused" and (s.reason != "all" or reason == "all"))


def _once_free(file: File) -> str:
    return ", once `durun resume --all` has let the whole file go on" if read.hold(file) is not None else ""


def _pause_each(file: File, db: str | None, runs: list[int], reason: str) -> None:
    """Leaves the wish with each driver that lives, and makes the move for the runs that have none."""
    for _ in range(3):  # a driver may come or go between the look and the act
        noted = [no for no in runs if _left_to_driver(file, no, "pause", {"reason": reason})]
        alone = [no for no in runs if no not in noted]
        if alone:
            with driver(where(db), create=False, quiet=True) as d:
                for no in alone:
                    _pause_here(d, no, reason)
        end = time.monotonic() + 30
        for no in noted:
            _until(file, no, ended=False, seconds=max(0.0, end - time.monotonic()))
        runs = [no for no in runs if not _rests(read.summary(file, no, alive_in(file.path)), reason)]
        if not runs:
            return


def _pause_here(d: DriverProcess, no: int, reason: str) -> None:
    """No driver lives: this process takes the run over and pauses it. Nothing is done where one came meanwhile, or it has ended."""
    try:
        engine = d.take(no)
    except Held:
        return
    engine.hold = True
    try:
        run = engine.at.run
        if run.restored is not None:
            return
        if run.status not in (*read.ENDED, "paused") or (run.status == "paused" and run.reason == "all" and not reason):
            engine.move(Pause(person(), reason))
    finally:
        d.let_go(engine)


def _paused(file: File, runs: list[int], plan: str | None, json: bool, before: read.Hold | None) -> int:
    """What has become of the runs that were to be paused. `before`: the whole file was held already."""
    from durun.render.document import line

    after = [read.summary(file, no, alive_in(file.path)) for no in runs]
    hold = read.hold(file)
    if json:
        held = None if hold is None else {"since": hold.since, "by": hold.by}
        out_json({"held": held, "runs": [line(s) for s in after]})
    moving = [s for s in after if s.status not in (*read.ENDED, "paused")]
    for s in moving:
        say(f"run {s.id} is {s.status}: the pause is noted, its driver has not acted on it yet: `durun show {s.id}`")
    paused = sum(s.status == "paused" for s in after)
    if plan is None:
        already = f" already, since {before.since} by {before.by}" if before is not None else ""
        say(f"all runs in {file.path} are held{already} ({paused} in flight); `durun resume --all` lets them go on")
    elif not runs:
        say(f"no run of plan {plan} is in flight: nothing was changed")
    else:
        say(f"plan {plan}: {paused} paused; `durun resume RUN` goes on with one" + _once_free(file))
    return 6 if moving else 0


def resolve(
    run: str, state: str | None = None, *, happened: bool = False, retry: bool = False, fail: bool = False, undone: bool = False,
    output: str | None = None, note: str = "", json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """Say of an effect in doubt that it happened, that it is to be begun again, or that it failed.

    With --undone, of what a run that compensates could not undo: that it is undone all the same.
    """
    from durun.plan.data import read_json

    said = [how for how, given in (("happened", happened), ("retry", retry), ("fail", fail), ("undone", undone)) if given]
    if len(said) != 1:
        raise Usage("say one of --happened, --retry, --fail and --undone")
    if output is not None and not happened:
        raise Usage("--output goes with --happened")
    try:
        value = None if output is None else read_json(output)
    except ValueError as e:
        raise Usage(f"--output: {e}") from None
    file = opened(db, of=run)
    no, child = read.run_or_child(file, run)
    visit = been = None
    if child is not None:
        from durun.cli.child import meant

        phases = ["doubt", "lost"] + ["held"] * undone
        if happened and read.summary(file, no, alive_in(file.path)).status == "failed":
            phases.append("failed")  # what a person has done by hand
        _, state, visit, been = meant(file, run, state, *phases)
    s = read.summary(file, no, alive_in(file.path))
    failed = _failed_undos(file, s, state, been) if undone else {}
    event = Resolve(said[0], state, value, output is not None, note, person(), tuple(failed), visit)
    if s.driver is not None and alive_in(file.path)(s.driver):
        _resolve_there(file, s, event)
    else:
        _resolve_here(db, no, event)
    doc = document(file, no)
    if json:
        out_json(doc)
    then = "; its driver goes on" if driver_goes_on(doc) else _then(doc) + (_once_free(file) if doc["status"] == "paused" else "")
    of = f" of {', '.join(failed.values())}" if failed else ""
    say(f"run {s.id}: {event.how} is recorded{of}; it is {doc['status']}" + then)
    if ended_alone(doc):
        say_undelivered(doc)
    return 0


def _then(doc: dict[str, Json]) -> str:
    if doc["status"] == "blocked":
        return "".join(f"\n  {w['message']}: {w['command']}" for w in doc["waiting_for"])
    return "" if doc["status"] in read.ENDED else f"; `durun resume {doc['id']}` goes on"


def _failed_undos(file: File, s: read.Summary, state: str | None, been: Container[tuple[str, int]] | None) -> dict[int, str]:
    """What could not be undone, of the state that is named or the only one there is: effect -> its path and visit. `been`: of a
    child that is meant, what it has entered."""
    from durun.machine.scope import some, without_once
    from durun.render.document import path_of

    found = [(u["effect"], str(path_of(u["scope"], u["state"])), u["visit"]) for u in read.undos(file, s.no, "failed")]
    found = [one for one in found if been is None or (without_once(one[1]), one[2]) in been]
    paths = dict.fromkeys(path for _, path, _ in found)
    if state is None and len(paths) > 1:
        raise NotPossible(f"run {s.id}: several states could not be undone; name one of {some(list(paths))}")
    return {effect: f"{path} (visit {visit})" for effect, path, visit in found if state in (None, path, f"{path}~undo")}


def _resolve_there(file: File, s: read.Summary, event: Resolve) -> None:
    """A driver sits the doubt out, or goes on with what else there is: what it would refuse is refused here, else left to it."""
    store = Store(file)
    judged(store, s.no, event)
    seen = read.events(file, s.no)
    data = {name: value for name, value in event._asdict().items() if name != "by"}
    store.add_note(s.no, "resolve", data, event.by, now())
    _until(file, s.no, ended=False, seconds=30)
    refused_since(file, s.no, seen, "resolve")
    if store.notes(s.no):
        raise Held(f"run {s.id}: {event.how} is noted, its driver has not acted on it yet: `durun show {s.id}`")


def judged(store: Store, no: int, event: Happening) -> None:
    """What a driver would refuse is refused here, before it is left to it. Raises NotPossible."""
    w = real_world()
    decide(store.pinned(no).plan, store.load(no), event, Moment(w.now(), w.clock(), w.boot, None, w.draw()), Evaluator())


def refused_since(file: File, no: int, seen: int, asked: str) -> None:
    """Raises NotPossible where a driver refused what it was asked after that row of the history."""
    for e in read.history(file, no, seen, ("refused",)):
        if e["data"].get("asked") == asked:
            raise NotPossible(e["data"]["why"])


def nothing_lives(engine: Engine) -> None:
    """Raises NotPossible where a command of the run has not ended: only then it is known what there is to decide."""
    if engine.performer is not None and engine.performer.busy:
        id = engine.at.run.id
        raise NotPossible(f"run {id}: its command is still alive: `durun resume {id}` waits for it; nothing was changed")


def _resolve_here(db: str | None, no: int, event: Resolve) -> None:
    with driver(where(db), create=False, quiet=True) as d:
        engine = d.take(no)
        try:
            engine.hold = True
            engine.recover()
            nothing_lives(engine)
            engine.move(event)
            engine.settle_undoing()
        finally:
            d.let_go(engine)

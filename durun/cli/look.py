"""Commands that only look: ls, show, history, logs, output, wait."""

from __future__ import annotations

import errno
import os
import sys
import time

from durun.cli.common import (
    absent,
    alive_in,
    columns_of,
    document,
    exit_of,
    mask_of,
    now,
    nowhere,
    on_terminal,
    opened,
    still_there,
    where,
)
from durun.cli.reader import in_pieces, json_line, say, visible
from durun.errors import NotPossible, Usage
from durun.store import read
from durun.store.file import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from durun.store.children import Child

    Json = Any

ATTEMPTS = ("attempt_ended",)
STATUSES = (
    "running", "waiting", "blocked", "paused", "interrupted", "stranded", "compensating", "succeeded", "failed", "cancelled",
    "compensated",
)  # fmt: skip
MOST = 2**63 - 1  # of what SQLite counts


def _json(value: object) -> None:
    print(json_line(value))


def ls(
    *, status: list[str] | None = None, plan: str | None = None, limit: int = 20, all: bool = False, children: bool = False,
    quiet: bool = False, json: bool = False, db: str | None = None,
) -> int:  # fmt: skip
    """List runs, the newest first: those in flight, and the last that ended. With --children, below each those that it called."""
    unknown = [s for s in status or [] if s not in STATUSES]
    if unknown:
        raise Usage(f"there is no status {unknown[0]!r}; there are {', '.join(STATUSES)}")
    if limit < 0:
        raise Usage("--limit: at least 0")
    lines, hold, open_ = [], None, dict[int, tuple[int, int]]()
    parts: dict[int, list[dict[str, Json]]] = {}
    there = not absent(where(db))
    if there:
        file = opened(db, brief=True)
        hold = read.hold(file)
        lines = read.listed(file, alive_in(file.path), statuses=status or [], plan=plan, limit=min(limit, MOST), everything=all)
        open_ = read.undelivered(file)
        if children:
            from durun.cli import child

            parts = {s.no: child.lines(file, s) for s in lines}
    if json:
        from durun.render.document import line

        _json(
            {
                "runs": [one for s in lines for one in (line(s, open_.get(s.no, (0, 0))), *parts.get(s.no, []))],
                "held": None if hold is None else {"since": hold.since, "by": hold.by},
            }
        )
    elif quiet:
        print("".join(f"{id}\n" for s in lines for id in (s.id, *(one["id"] for one in parts.get(s.no, [])))), end="")
    elif lines:
        from durun.render.document import line
        from durun.render.text import table, table_now

        found = [one for s in lines for one in (line(s), *parts.get(s.no, []))]
        if on_terminal(sys.stdout):
            _painted(table_now(found, now(), columns_of(sys.stdout)))
        else:
            print(visible(table(found)))
    else:
        say("no runs" if there else nowhere(db, "no runs"))
    _say_stranded(lines, quiet=quiet or json)
    if not quiet and not json and (dead := sum(gone for _, gone in open_.values())):
        say(f"messages given up: {dead}: `durun outbox ls`")
    if hold is not None and not quiet and not json:
        say(f"all runs are held since {hold.since} by {hold.by}: `durun resume --all` lets them go on")
    return 0


def _say_stranded(lines: list[read.Summary], *, quiet: bool) -> None:
    """Loud: runs that this durun cannot go on with."""
    found = [s.id for s in lines if s.status == "stranded"]
    if found and not quiet:
        from durun import __version__

        many = f" and {len(found) - 3} more" if len(found) > 3 else ""
        say(
            f"{len(found)} stranded, which durun {__version__} is too old for: {', '.join(found[:3])}{many}:"
            f" `durun show {found[0]}` says which one can go on"
        )


def show(run: str, *, json: bool = False, db: str | None = None) -> int:
    """Show one run: what happened, what is certain, what is not, what can be done."""
    file = opened(db, brief=True, of=run)
    no, child = read.run_or_child(file, run)
    doc = _document(file, no, child)
    if json:
        _json(doc)
    else:
        doc["changed"] = _changes(file, no, doc) if child is None else ""
        doc["not_pinned"] = _not_pinned(file, no, doc) if child is None else []
        from durun.render.text import fitted
        from durun.render.text import show as drawn

        if on_terminal(sys.stdout):
            _painted(fitted(drawn(doc, now()), columns_of(sys.stdout)))
        else:
            print(visible(drawn(doc)))
    return 0


def _document(file: File, no: int, child: Child | None) -> dict[str, Json]:
    """A run, or a child of one, as `show --json` has it."""
    if child is None:
        return document(file, no)
    from durun.cli import child as part

    return part.document(file, child)


def _summary(file: File, no: int, child: Child | None, alive: Any) -> read.Summary:
    if child is None:
        return read.summary(file, no, alive)
    from durun.cli import child as part

    return part.summary(file, child, alive)


def _history(
    file: File, no: int, child: Child | None, after: int = 0, kinds: tuple[str, ...] = ()
) -> Iterable[dict[str, Json]]:  # fmt: skip
    if child is None:
        return read.history(file, no, after, kinds)
    from durun.store import children

    return [e for e in children.history(file, child, after) if not kinds or e["kind"] in kinds]


def _changes(file: File, no: int, doc: dict[str, Json]) -> str:
    """What differs on disk from what a run took with it, in words; of one that has ended nothing is asked."""
    if doc["status"] in read.ENDED and doc["status"] != "failed":
        return ""
    from durun.cli import disk
    from durun.plan.units import moment

    texts, taken_at = read.taken(file, no)
    pins = doc["pins"]
    since = taken_at if taken_at is not None else moment(doc["created_at"])
    return disk.changes(pins["file"], pins["directory"], texts, pins["files"], since)


def _not_pinned(file: File, no: int, doc: dict[str, Json]) -> list[str]:
    """What the commands of a run name that did not go with it; of one that has ended nothing is asked."""
    if doc["status"] in read.ENDED and doc["status"] != "failed":
        return []
    from durun.cli import disk

    return disk.not_pinned(read.plan_of(file, no), doc["pins"]["directory"])


def _painted(text: str) -> None:
    from durun.render.terminal import painted

    print(painted(visible(text), sys.stdout))


def history(run: str, *, follow: bool = False, json: bool = False, db: str | None = None) -> int:
    """Print the history of a run, a line for each thing that happened."""
    if follow and json:
        raise Usage("--json gives one document: say it without --follow")
    from durun.render import document as doc
    from durun.render import text

    file = opened(db, brief=not follow, of=run)
    no, child = read.run_or_child(file, run)
    mask = mask_of(file, no)
    if json:
        events = (mask.tree(doc.event(e)) for e in _history(file, no, child))
        in_pieces({"run": _summary(file, no, child, alive_in(file.path)).id, "events": events})
        return 0
    after = 0
    while True:
        child = _now(file, child)
        ended = not follow or _summary(file, no, child, alive_in(file.path)).status in read.ENDED  # asked first
        for e in _history(file, no, child, after):
            print(visible(text.event(mask.tree(doc.event(e)))), flush=follow)
            after = e["no"]
        if ended or _nobody_reads():
            return 0
        still_there(file, run)
        time.sleep(0.2)


def logs(run: str, state: str | None = None, *, follow: bool = False, json: bool = False, db: str | None = None) -> int:
    """Print what the commands of a run wrote, as it was written but for secrets: attempt by attempt, stdout before stderr.

    A pipe gets the bytes as they are; on a terminal what cannot be printed is made visible, so that no output does anything to it.
    With --follow it goes on, attempt after attempt, until the run has ended.
    """
    if follow and json:
        raise Usage("--json gives one document: say it without --follow")
    file = opened(db, brief=not follow, of=run)
    no, child = read.run_or_child(file, run)
    if json:
        return _logs_document(file, no, child, state)
    shown: dict[str, int] = {}
    mask, shown_to = mask_of(file, no, run=True), _terminal() if sys.stdout.isatty() else _write
    after, alive = 0, alive_in(file.path)
    while True:
        child = _now(file, child)
        ended = _summary(file, no, child, alive).status in read.ENDED  # asked first: what it wrote before that is printed below
        live = _live(file, no, child, state)  # before the history, where what ends meanwhile is found
        for e in _history(file, no, child, after, ATTEMPTS):
            after = e["no"]
            for path in _written(e, state):
                shown[path] = _copy(os.path.join(file.folder, path), shown.get(path, 0), mask, shown_to, whole=ended or not follow)
        for path in [path for of in (*_sent(file, no, child, state), *live) for path in (of["out"], of["err"]) if path]:
            shown[path] = _copy(os.path.join(file.folder, path), shown.get(path, 0), mask, shown_to, whole=ended or not follow)
        if not follow or ended:
            break
        if _nobody_reads():
            return 0
        still_there(file, run)
        time.sleep(0.2)
    if not any(shown.values()):
        if state is not None:
            _refuse_unknown(file, no, child, state)
        what = f"state {state}" if state else "no command"
        said = "has written nothing" if state else "has written anything"
        say(f"run {_summary(file, no, child, alive).id}: {what} {said}")
    return 0


def _refuse_unknown(file: File, no: int, child: Child | None, state: str) -> None:
    """Raises NotPossible where a run has been to no state that may be meant, and its plan has none."""
    from durun.cli.child import plan_of
    from durun.machine.scope import some
    from durun.plan.canonical import states_in
    from durun.store.runs import Store

    been = any(_meant(state, e["scope"], e["state"]) for e in _history(file, no, child) if e["state"] is not None)
    plan = Store(file).pinned(no).plan if child is None else plan_of(file, child)
    if child is not None and plan is None:
        if been:
            return
        raise NotPossible(
            f"run {child.id} has been to no state {state!r}, and the plan of its run does not call it from {child.path}"
        )
    first = state[: min(at for mark in "./[~" if (at := (state + mark).find(mark)) >= 0)]
    if been or first in plan["states"] or state in states_in(plan):
        return
    id = _summary(file, no, child, alive_in(file.path)).id
    raise NotPossible(f"run {id} has no state {state!r}; it has {some(list(plan['states']))}")


def _written(event: dict[str, Any], state: str | None) -> list[str]:
    """The files of an attempt that has ended, in order."""
    return [event["data"][word] for word in ("out", "err") if word in event["data"] and _of(event, state)]


def _sent(file: File, no: int, child: Child | None, state: str | None) -> list[dict[str, Any]]:
    """What the attempts of messages have written, which no row of the history tells of: one message after the other."""
    own = [{**of, "scope": _own_scope(child, of["scope"])} for of in read.written_by_messages(file, no)]
    return [of for of in own if of["scope"] is not None and _meant(state, of["scope"], of["state"])]


def _own_scope(child: Child | None, scope: str) -> str | None:
    """A scope of a run as the child of it has it that is looked at; None where it is none of that."""
    if child is None:
        return scope
    from durun.store.children import own_scope

    return own_scope(child, scope)


def _now(file: File, child: Child | None) -> Child | None:
    """A child as it is now: its run may be migrated while somebody looks."""
    if child is None:
        return None
    from durun.store.children import again

    return again(file, child)


def _of(event: dict[str, Any], state: str | None) -> bool:
    return _meant(state, event["scope"], event["state"])


def _meant(wanted: str | None, scope: str, state: str) -> bool:
    """Whether a state is the one wanted: by its path, by its name alone, or as a part of the branch, item, map or child named."""
    from durun.render.document import path_of

    path = str(path_of(scope, state))
    if wanted is None or wanted in (path, state):
        return True
    return path.startswith(wanted) and (wanted.endswith("/") or path[len(wanted)] in "./[")


def _logs_document(file: File, no: int, child: Child | None, state: str | None) -> int:
    from durun.render.document import path_of

    live = _live(file, no, child, state)  # asked first: what ends meanwhile is found in the history
    ended = [e for e in _history(file, no, child, 0, ATTEMPTS) if _of(e, state)]
    found = [{**e, **{word: e["data"].get(word) for word in ("out", "err")}} for e in ended] + _sent(file, no, child, state)
    have = {_attempt_of(e) for e in found}
    found += [of for of in live if _attempt_of(of) not in have]
    if state is not None and not found:
        _refuse_unknown(file, no, child, state)
    texts = [
        {
            "path": path_of(e["scope"], e["state"]),
            "visit": e["visit"],
            "attempt": e["attempt"],
            "stdout": _text(file, e["out"] or None),
            "stderr": _text(file, e["err"] or None),
            "under_way": e.get("under_way", False),
        }
        for e in found
    ]
    _json({"run": _summary(file, no, child, alive_in(file.path)).id, "logs": mask_of(file, no, run=True).tree(texts)})
    return 0


def _attempt_of(e: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(e[word] for word in ("scope", "state", "visit", "attempt"))


def _text(file: File, path: str | None) -> str | None:
    """What a file holds, as text; what is no UTF-8 is replaced. None where it is gone, or no file any more."""
    if path is None:
        return ""
    from durun.effects.locks import opened_log

    try:
        with opened_log(os.path.join(file.folder, path)) as f:
            return f.read().decode("utf-8", "replace")
    except OSError:
        return None


def _live(file: File, no: int, child: Child | None, state: str | None) -> list[dict[str, Any]]:
    """What is under way, with where it writes now; and what has ended by the keeper's note, of which no row tells yet."""
    from durun.effects.command import End
    from durun.effects.notes import Begun, Notes

    found = []
    for of in read.under_way(file, no):
        own = {**of, "scope": _own_scope(child, of["scope"])}
        if own["scope"] is not None and _meant(state, own["scope"], of["state"]):
            notes = Notes(file.folder, of["place"])
            notes.refresh()
            said = notes.of(of["token"])
            if isinstance(said, Begun):
                found.append({**own, "out": f"{of['place']}/{said.out}", "err": f"{of['place']}/{said.err}", "under_way": True})
            elif isinstance(said, End):
                found.append({**own, "out": said.out, "err": said.err})
    return found


def _terminal() -> Callable[[bytes], None]:
    """What writes to a terminal what a command wrote to its log."""
    from durun.render.terminal import Log

    log = Log()
    return lambda data: _write(log.shown(data))


def _copy(path: str, start: int, mask: Any, write: Callable[[bytes], None], *, whole: bool) -> int:
    """Prints a file from a place on, masked: the place it was printed up to. What may begin a secret waits for more."""
    from durun.effects.locks import opened_log

    sys.stdout.flush()
    try:
        file = opened_log(path)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ELOOP, errno.EINVAL):
            raise  # its disk fails
        say(f"the log {path} is gone" if e.errno == errno.ENOENT else f"{path} is no log any more: it is not read")
        return start
    with file as f:
        f.seek(start)
        kept = b""
        while data := f.read(1 << 20):
            ready, kept = mask.settled(kept + data)
            write(ready)
        if whole:
            write(mask.masked(kept))
            kept = b""
        return f.tell() - len(kept)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _nobody_reads() -> bool:
    """Whether the other end of stdout is closed: a command that is silent for hours would not find out by writing."""
    import select

    poll = select.poll()
    poll.register(1, 0)
    return any(what & (select.POLLERR | select.POLLNVAL) for _, what in poll.poll(0))


def output(run: str, state: str | None = None, *, json: bool = False, db: str | None = None) -> int:
    """Print the output of a run, or of one of its states: a text as it is, anything else as JSON."""
    file = opened(db, brief=True, of=run)
    no, child = read.run_or_child(file, run)
    there, value = read.output_of(file, no, state) if child is None else _given(file, child, state)
    if not there:
        s = _summary(file, no, child, alive_in(file.path))
        if state is not None:
            _refuse_unknown(file, no, child, state)
    if not there and not (state is None and s.status == "succeeded"):  # a plan without `output` gives null
        what = f"state {state} of run {s.id}" if state else f"run {s.id}"
        raise NotPossible(f"{what} has no output; the run is {s.status}")
    if json:
        _json({"run": _summary(file, no, child, alive_in(file.path)).id, "state": state, "output": value})
    elif isinstance(value, str):
        print(visible(value) if sys.stdout.isatty() else value)
    else:
        _json(value)
    return 0


def _given(file: File, child: Child, state: str | None) -> tuple[bool, Json]:
    """What a child gave, or a state of it: of one before the last that was called there, only what it gave itself is kept."""
    if state is None:
        doc = _document(file, child.run, child)
        return doc["output"] is not None, doc["output"]
    if child.until is not None:
        return False, None
    given = [read.output_of(file, child.run, scope + state) for _, scope in reversed(child.stood)]
    return next((one for one in given if one[0]), given[0])


def wait(run: str, *, timeout: str | None = None, json: bool = False, db: str | None = None) -> int:
    """Wait until a run has ended, or waits for a person; exits by the run."""
    from durun.plan.units import duration

    try:
        end = None if timeout is None else time.monotonic() + duration(timeout) / 1000
    except ValueError as e:
        raise Usage(f"--timeout: {e}") from None
    file = opened(db, of=run)
    no, child = read.run_or_child(file, run)
    alive = alive_in(file.path)
    undriven: float | None = None
    while True:
        child = _now(file, child)
        s = _summary(file, no, child, alive)
        driven = s.driver is not None and alive(s.driver)
        undriven = None if driven else undriven or time.monotonic()
        if s.status in (*read.ENDED, "blocked", "paused", "stranded"):
            return _ended(file, no, child, json, exit_of(s.status))
        if s.status == "waiting" and not driven and read.only_asks(file, no, "" if child is None else child.scope):
            return _ended(file, no, child, json, 3)
        over = end is not None and time.monotonic() >= end
        left = undriven is not None and time.monotonic() - undriven > 10
        if over or left:
            calling = s.id if child is None else read.summary(file, no, alive).id
            say(f"run {s.id} is {s.status}" + ("; it goes on" if driven else f", and nobody drives it: durun resume {calling}"))
            return _ended(file, no, child, json, 3 if left else 124, quiet=True)
        still_there(file, run)
        time.sleep(0.05)


def _ended(file: File, no: int, child: Child | None, json: bool, code: int, *, quiet: bool = False) -> int:
    doc = _document(file, no, child)
    if json:
        _json(doc)
    if not quiet:
        from durun.render.text import stands

        say(stands(doc))
    return code

"""Children by their ids: which run has called them and where, and what of its rows is theirs.

Rules:
- a child is a part of the run that called it; its rows are those of the scope it stands in, between its `child_begun` and the next
  one of the same state
- what it stood on goes when it has ended well: what is known then is what the history says, and its row there has what it gave
- the id of a run comes before that of a child, and a whole id before the beginning of one. Several children may have one id where
  the plan gives it; RUN:PATH, and RUN:PATH#VISIT, name each
"""

from __future__ import annotations

import re
from typing import Any

from durun.errors import NoSuchRun
from durun.machine.scope import child as inside
from durun.machine.scope import parts, path_of, without_once
from durun.store.file import File, rows
from durun.store.read import ENDED, Summary, place_of
from durun.values import NamedTuple

Json = Any
BEGUN = "SELECT run, no, at, scope, state, visit, data FROM history WHERE kind = 'child_begun'"
BY_PATH = re.compile(r"([^:]+):(.+?)/?(?:#([0-9]{1,9}))?")
ENDS = {
    "succeeded_inside": "succeeded",
    "failed_inside": "failed",
    "stopped_inside": "cancelled",
}  # a row about it -> one of its own


class Child(NamedTuple):
    """A child of the run `run`; `scope` is where it stands, `begun` the row of the history with which it began, `until` the one
    with which the next one there did."""

    id: str
    run: int
    path: str  # of the state that called it,
    visit: int  # and its visit
    scope: str
    begun: int
    until: int | None
    at: int
    plan: str
    version: str
    input: Json
    vars: Json


def find(file: File, id: str) -> Child | None:
    """The child of this id. Raises NoSuchRun where there are several."""
    by_path = BY_PATH.fullmatch(id)
    if by_path is not None:
        return _at_path(file, *by_path.groups())
    return _only(file, id, rows(file.db, f"{BEGUN} AND data ->> 'run' = ? ORDER BY run, no LIMIT 6", (id,)))


def beginning_with(file: File, id: str) -> Child | None:
    """The child whose id alone begins so."""
    sql = f"{BEGUN} AND data ->> 'run' >= ? AND data ->> 'run' < ? ORDER BY run, no LIMIT 6"
    return _only(file, id, rows(file.db, sql, (id, id + "\U0010ffff")))


def _only(file: File, id: str, found: list[tuple[Any, ...]]) -> Child | None:
    if len(found) > 1:
        names = ", ".join(_named(file, _child(file, row)) for row in found[:5])
        raise NoSuchRun(f"{id!r} fits several children: {names}{' …' if len(found) > 5 else ''}")
    return _child(file, found[0]) if found else None


def _at_path(file: File, run: str, path: str, visit: str | None) -> Child | None:
    """The child that a run's state called, in its last visit unless one is named."""
    scope, state = place_of(path)
    sql = f"{BEGUN} AND run = (SELECT no FROM runs WHERE id = ?) AND scope = ? AND state = ?"
    wanted = "" if visit is None else f" AND visit = {int(visit)}"
    found = rows(file.db, f"{sql}{wanted} ORDER BY no DESC LIMIT 1", (run, scope, state))
    return _child(file, found[0]) if found else None


def _named(file: File, child: Child) -> str:
    parent = rows(file.db, "SELECT id FROM runs WHERE no = ?", (child.run,))[0][0]
    return f"{parent}:{child.path}#{child.visit}"


def _child(file: File, row: tuple[Any, ...]) -> Child:
    run, no, _, scope, state, _, _ = row
    sql = "SELECT min(no) FROM history WHERE kind = 'child_begun' AND run = ? AND no > ? AND scope = ? AND state = ?"
    return _made(row, rows(file.db, sql, (run, no, scope, state))[0][0])


def _made(row: tuple[Any, ...], until: int | None) -> Child:
    import json

    run, no, at, scope, state, visit, data = row
    said, path = json.loads(data), path_of(scope, state)
    more = (said["plan"], said.get("version", ""), said.get("input", {}), said.get("vars", {}))
    return Child(said["run"], run, path, visit, inside(path), no, until, at, *more)


def of_run(file: File, run: int) -> list[tuple[Child, list[Json]]]:
    """All children that a run has called, in the order they began, each with its own history."""
    from durun.store import read

    begun = rows(file.db, f"{BEGUN} AND run = ? ORDER BY no", (run,))
    found: list[tuple[Child, list[Json]]] = []
    next_of: dict[tuple[str, str], int] = {}
    for row in reversed(begun):
        found.insert(0, (_made(row, next_of.get((row[3], row[4]))), []))
        next_of[row[3], row[4]] = row[1]
    began = {child.begun: (child, own) for child, own in found}
    standing: dict[str, tuple[Child, list[Json]]] = {}  # by its scope, the child that stands there as the history goes on
    for e in read.history(file, run) if found else []:
        if e["no"] in began:
            child, own = began[e["no"]]
            standing[child.scope] = child, own
            own.append(_own(child, e))
        for part in parts(e["scope"]):
            if part.kind == "child" and part.inner in standing:
                child, own = standing[part.inner]
                own.append(_own(child, e))
    return found


def history(file: File, child: Child, after: int = 0) -> list[Json]:
    """The rows of a child's own history after a number; they are numbered as in the run that called it."""
    import json

    names = ("no", "at", "kind", "scope", "state", "visit", "attempt", "data")
    low, high = bounds(child)
    until = "" if child.until is None else f" AND (no < {child.until} OR scope LIKE '%~')"  # an undo may come long after
    sql = (
        f"SELECT {', '.join(names)} FROM history WHERE run = ? AND no >= ?{until}"
        " AND (no = ? OR (scope >= ? AND scope < ?)) ORDER BY no"
    )
    found = rows(file.db, sql, (child.run, child.begun, child.begun, low, high))
    own = [_own(child, {**dict(zip(names[:-1], r[:-1], strict=True)), "data": json.loads(r[-1])}) for r in found]
    been = entered(own)
    return [e for e in own if e["no"] > after and (not e["scope"].endswith("~") or is_of(been, e["scope"], e["state"], e["visit"]))]


def entered(own: list[Json]) -> set[tuple[str, int]]:
    """(path, visit) of all that a child has entered: visits are never used again, so they tell it from the one before it."""
    return {(path_of(e["scope"], e["state"]), e["visit"]) for e in own if e["kind"] == "entered"}


def is_of(been: set[tuple[str, int]], scope: str, state: str, visit: int) -> bool:
    """Whether an effect, an undo or a position is of what was entered; scopes are the child's own."""
    path = scope[:-1] if scope.endswith("~") else path_of(scope, state)
    return (without_once(path), visit) in been


def bounds(child: Child) -> tuple[str, str]:
    """The scopes that lie in that of a child: from the first, before the second."""
    return child.scope, child.scope[:-1] + "0"


def _own(child: Child, e: Json) -> Json:
    """A row of the history as the child has it."""
    if e["no"] == child.begun:
        return {
            **e,
            "kind": "started",
            "scope": "",
            "state": None,
            "visit": None,
            "data": {"input": child.input, "vars": child.vars},
        }
    kind = ENDS.get(e["kind"], e["kind"]) if e["scope"] == child.scope else e["kind"]
    return {**e, "kind": kind, "scope": e["scope"][len(child.scope) :]}


# --- as a run of its own ---


def seen(child: Child, own: list[Json], s: Summary, d: Json) -> tuple[Summary, Json]:
    """A child as `read.summary` and `read.details` have a run, paths inside it its own; `s` and `d` are those of the run that
    called it, `own` its history."""
    from durun.machine.rewind import as_it_was

    been = entered(own)
    stands = _inside(child, d["positions"])
    root = next((p for p in stands if not p["scope"] and p["data"].get("child", {}).get("id") == child.id), None)
    stands = stands if root is not None else []
    then = as_it_was(own, own[-1]["no"] + 1)
    status, reason, ended_at = _how(own, root, stands, s, d)
    at: Json = root or next((e for e in reversed(own) if e["kind"] == "entered" and not e["scope"]), {})
    effects = [e for e in _inside(child, d["effects"]) if is_of(been, e["scope"], e["state"], e["visit"])]
    attempt = next((e["attempt"] for e in effects if root is not None and e["no"] == root["effect"]), None)
    due = root["due"] if root is not None else None
    where = (at.get("state"), at.get("visit"), attempt, due, s.driver, child.at, own[-1]["at"], ended_at, s.language)
    out = Summary((s.no, child.id, child.plan, child.version, status, reason, *where))
    ended_by = next((e["data"].get("error") for e in reversed(own) if e["kind"] == "failed" and not e["scope"]), None)
    more = {
        "input": child.input, "vars": root["data"].get("vars", then.vars) if root is not None else then.vars, "error": then.error,
        "ended_by": ended_by if status == "failed" else None, "output": _output(own) if status == "succeeded" else None,
        "positions": stands, "effects": effects, "signals": [], "messages": _inside(child, d["messages"]),
        "undo": [{**u, "child": None} for u in _inside(child, d["undo"]) if is_of(been, u["scope"], u["state"], u["visit"])],
    }  # fmt: skip
    return out, {**d, **more}


def _inside(child: Child, found: list[Json]) -> list[Json]:
    """Those that lie in the scope of a child, as it has them."""
    return [{**one, "scope": one["scope"][len(child.scope) :]} for one in found if one["scope"].startswith(child.scope)]


def _how(own: list[Json], root: Json, stands: list[Json], s: Summary, d: Json) -> tuple[str, str | None, int | None]:
    """(status, reason, when it ended): its own end, else what its run is where that says more, else what it does."""
    from durun.machine.draft import status_of
    from durun.machine.model import Phase, Position

    undoing = d["undoing"] is not None and "rewind" not in d["undoing"]
    if s.status == "compensated" or undoing:
        return s.status, s.reason, s.ended_at
    moves = root is not None and root["phase"] not in ("failed", "ended")
    if not moves and (end := _end(own)) is not None:
        return end["kind"], None, end["at"]
    if s.status in ENDED:
        return s.status if s.status != "succeeded" else "cancelled", None, s.ended_at
    if not moves:  # its run has gone back, or on, without it
        return "cancelled", None, own[-1]["at"]
    if s.status in ("paused", "interrupted", "stranded") or s.reason in ("restored", "drift", "not_stopped"):
        return s.status, s.reason, None
    places = []
    for p in stands:
        if p["phase"] not in ("failed", "ended"):
            more = {word: p["data"][word] for word in ("length", "cause", "doubts") if word in p["data"]}
            places.append(Position(p["scope"], p["state"], p["visit"], Phase(p["phase"]), due=p["due"], **more))
    status, reason = status_of(places)
    return str(status), reason, None


def _end(own: list[Json]) -> Json:
    """The row with which a child has ended, if it has."""
    return next((e for e in reversed(own) if not e["scope"] and e["kind"] in ENDS.values()), None)


def _output(own: list[Json]) -> Json:
    end = _end(own) or {"data": {}}
    return end["data"].get("gives", {}).get("output")

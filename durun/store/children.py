"""Children by their ids: which run has called them and where, and what of its rows is theirs.

Rules:
- a child is a part of the run that called it; its rows are those of the scope it stands in, between its `child_begun` and the next
  one of the same state
- a migration may give what is around it another name: it stands in another scope from there on, and what was written before stays
  where it was. What is undone is undone where it was done. So its rows are told by the scopes it has stood in, one after the other
- what it stood on goes when it has ended well: what is known then is what the history says, and its row there has what it gave
- the id of a run comes before that of a child, and a whole id before the beginning of one. Several children may have one id where
  the plan gives it; RUN:PATH, and RUN:PATH#VISIT, name each
"""

from __future__ import annotations

import re
from typing import Any

from durun.errors import NoSuchRun
from durun.machine.scope import child as inside
from durun.machine.scope import parts, path_of, renamed, without_once
from durun.store.file import File, rows
from durun.store.read import ENDED, Summary
from durun.values import NamedTuple

Json = Any
BEGUN = "SELECT run, no, at, scope, state, visit, data FROM history WHERE kind = 'child_begun'"
BY_PATH = re.compile(r"([^:]+):(.+?)/?(?:#([0-9]{1,9}))?")
LAST = 2**63 - 1  # no row of a history comes after it
ENDS = {
    "succeeded_inside": "succeeded",
    "failed_inside": "failed",
    "stopped_inside": "cancelled",
}  # a row about it -> one of its own


class Child(NamedTuple):
    """A child of the run `run`; `scope` is where it stands, or stood last, `begun` the row of the history with which it began,
    `until` the one with which the next one there did, or got its name. `stood`: (the row from which on, the scope)."""

    id: str
    run: int
    path: str  # of the state that called it, as it is named now,
    visit: int  # and its visit
    scope: str
    begun: int
    until: int | None
    stood: tuple[tuple[int, str], ...]
    at: int
    plan: str
    version: str
    input: Json
    vars: Json


class Life(NamedTuple):
    """Where a child has stood, as the history says: of `stood` and `until` see there."""

    visit: int
    stood: tuple[tuple[int, str], ...]
    until: int | None = None


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


def again(file: File, child: Child) -> Child:
    """A child as it is now: its run may have been migrated since it was found."""
    return _of_row(file, child.run, child.begun)


def _only(file: File, id: str, found: list[tuple[Any, ...]]) -> Child | None:
    if len(found) > 1:
        names = ", ".join(_named(file, _child(file, row)) for row in found[:5])
        raise NoSuchRun(f"{id!r} fits several children: {names}{' …' if len(found) > 5 else ''}")
    return _child(file, found[0]) if found else None


def _at_path(file: File, run: str, path: str, visit: str | None) -> Child | None:
    """The child that a run's state called, in its last visit unless one is named. A state is meant by the name it has now before
    one it had."""
    for (no,) in rows(file.db, "SELECT no FROM runs WHERE id = ?", (run,)):
        called = inside(path)
        lives = [(begun, life) for begun, life in _lives(file, no).items() if visit is None or life.visit == int(visit)]
        now = [begun for begun, life in lives if life.stood[-1][1] == called]
        before = [begun for begun, life in lives if called in [scope for _, scope in life.stood]]
        if now or before:
            return _of_row(file, no, max(now or before))
    return None


def _of_row(file: File, run: int, begun: int) -> Child:
    return _child(file, rows(file.db, f"{BEGUN} AND run = ? AND no = ?", (run, begun))[0])


def _named(file: File, child: Child) -> str:
    parent = rows(file.db, "SELECT id FROM runs WHERE no = ?", (child.run,))[0][0]
    return f"{parent}:{child.path}#{child.visit}"


def _child(file: File, row: tuple[Any, ...]) -> Child:
    run, no, *_ = row
    return _made(row, _lives(file, run)[no])


def _made(row: tuple[Any, ...], life: Life) -> Child:
    import json

    run, no, at, _, _, visit, data = row
    said, scope = json.loads(data), life.stood[-1][1]
    more = (said["plan"], said.get("version", ""), said.get("input", {}), said.get("vars", {}))
    return Child(said["run"], run, scope[:-1], visit, scope, no, life.until, life.stood, at, *more)


def _lives(file: File, run: int) -> dict[int, Life]:
    """The row with which each child of a run began -> where it has stood since."""
    sql = (
        "SELECT no, scope, state, visit, iif(kind = 'migrated', coalesce(data ->> 'map', '{}'), NULL) FROM history"
        " WHERE run = ? AND kind IN ('child_begun', 'migrated') ORDER BY no"
    )
    lives: dict[int, Life] = {}
    standing: dict[str, int] = {}  # scope -> the last that began there
    for no, scope, state, visit, names in rows(file.db, sql, (run,)):
        if names is not None:
            standing = _moved(lives, standing, no, names)
            continue
        at = inside(path_of(scope, state))
        if at in standing:
            lives[standing[at]] = lives[standing[at]]._replace(until=no)
        standing[at], lives[no] = no, Life(visit, ((no, at),))
    return lives


def _moved(lives: dict[int, Life], standing: dict[str, int], no: int, names: str) -> dict[str, int]:
    """Who stands where once states have other names. Where two have one now, the one that began before the other has ended."""
    import json

    read, found = json.loads(names), dict[str, int]()
    for scope, begun in sorted(standing.items(), key=lambda known: known[1]) if read else standing.items():
        to = renamed(scope, read)
        if to in found:
            lives[found[to]] = lives[found[to]]._replace(until=no)
        if to != scope:
            lives[begun] = lives[begun]._replace(stood=(*lives[begun].stood, (no, to)))
        found[to] = begun
    return found


def of_run(file: File, run: int) -> list[tuple[Child, list[Json]]]:
    """All children that a run has called, in the order they began, each with its own history."""
    from durun.store import read

    begun = rows(file.db, f"{BEGUN} AND run = ? ORDER BY no", (run,))
    lives = _lives(file, run) if begun else {}
    found: list[tuple[Child, list[Json]]] = [(_made(row, lives[row[1]]), []) for row in begun]
    began = {child.begun: (child, own) for child, own in found}
    standing: dict[str, tuple[Child, list[Json]]] = {}  # by its scope, the child that stands there as the history goes on
    done: dict[tuple[str, int], list[tuple[Child, list[Json]]]] = {}  # whose is what was entered: it may be undone long after
    for e in read.history(file, run) if found else []:
        if e["no"] in began:
            child, own = began[e["no"]]
            standing[child.stood[0][1]] = child, own
            own.append(_own(child, e))
        if e["kind"] == "migrated":
            last = sorted(standing.values(), key=lambda one: one[0].begun)
            standing = {_scope_at(child, e["no"]): (child, own) for child, own in last}
        if e["scope"].endswith("~"):
            around = done.get((without_once(e["scope"][:-1]), e["visit"]), [])
        else:
            around = [standing[p.inner] for p in parts(e["scope"]) if p.kind == "child" and p.inner in standing]
            if around and e["kind"] == "entered":
                done[path_of(e["scope"], e["state"]), e["visit"]] = around
        for child, own in around:
            own.append(_own(child, e))
    return found


def _scope_at(child: Child, no: int) -> str:
    return next(scope for first, scope in reversed(child.stood) if first <= no)


def history(file: File, child: Child, after: int = 0) -> list[Json]:
    """The rows of a child's own history after a number; they are numbered as in the run that called it. `within`: the scope of the
    child in which each was written."""
    import json

    names = ("no", "at", "kind", "scope", "state", "visit", "attempt", "data")
    last = [first for first, _ in child.stood[1:]] + [LAST if child.until is None else child.until]
    there, values = "(scope >= ? AND scope < ? AND (scope LIKE '%~' OR (no >= ? AND no < ?)))", list[Any]()
    for (first, scope), until in zip(child.stood, last, strict=True):
        values += [*_bounds(scope), first, until]  # an undo may come long after
    sql = (
        f"SELECT {', '.join(names)} FROM history WHERE run = ? AND no >= ?"
        f" AND (no = ? OR {' OR '.join([there] * len(last))}) ORDER BY no"
    )
    found = rows(file.db, sql, (child.run, child.begun, child.begun, *values))
    own = [_own(child, {**dict(zip(names[:-1], r[:-1], strict=True)), "data": json.loads(r[-1])}) for r in found]
    been = entered(own)
    return [
        e
        for e in own
        if e["no"] > after and (not e["scope"].endswith("~") or is_of(been, e["within"] + e["scope"], e["state"], e["visit"]))
    ]


def entered(own: list[Json]) -> set[tuple[str, int]]:
    """(path in its run, visit) of all that a child has entered: visits are never used again, so they tell it from the one before
    it. What was entered has effects, answers and undos under the path it had then."""
    return {(path_of(e["within"] + e["scope"], e["state"]), e["visit"]) for e in own if e["kind"] == "entered"}


def is_of(been: set[tuple[str, int]] | frozenset[tuple[str, int]], scope: str, state: str, visit: int) -> bool:
    """Whether an effect, an undo, or the position of one, is of what was entered."""
    path = scope[:-1] if scope.endswith("~") else path_of(scope, state)
    return (without_once(path), visit) in been


def positions(child: Child, been: set[tuple[str, int]] | frozenset[tuple[str, int]], found: list[Json]) -> list[Json]:
    """Those of a run's positions at which a child stands, and where what it did is undone."""
    stands = child.until is None and any(
        p["scope"] == child.scope and p["data"].get("child", {}).get("id") == child.id for p in found
    )
    return [
        p
        for p in found
        if (is_of(been, p["scope"], p["state"], p["visit"]) if p["scope"].endswith("~") else stands)
        and own_scope(child, p["scope"]) is not None
    ]


def own_scope(child: Child, scope: str) -> str | None:
    """A scope of its run, or a path, as the child has it; None where it does not lie where the child has stood."""
    return next((scope[len(within) :] for _, within in child.stood if scope.startswith(within)), None)


def bounds(child: Child) -> list[tuple[str, str]]:
    """The scopes that lie where a child has stood: each from the first, before the second."""
    return [_bounds(scope) for scope in dict.fromkeys(scope for _, scope in child.stood)]


def _bounds(scope: str) -> tuple[str, str]:
    return scope, scope[:-1] + "0"


def _own(child: Child, e: Json) -> Json:
    """A row of the history as the child has it."""
    if e["no"] == child.begun:
        more = {"kind": "started", "scope": "", "state": None, "visit": None, "data": {"input": child.input, "vars": child.vars}}
        return {**e, **more, "within": child.stood[0][1]}
    scope = own_scope(child, e["scope"]) or ""
    kind = e["kind"] if scope else ENDS.get(e["kind"], e["kind"])
    return {**e, "kind": kind, "scope": scope, "within": e["scope"][: len(e["scope"]) - len(scope)]}


# --- as a run of its own ---


def seen(child: Child, own: list[Json], s: Summary, d: Json) -> tuple[Summary, Json]:
    """A child as `read.summary` and `read.details` have a run, paths inside it its own; `s` and `d` are those of the run that
    called it, `own` its history."""
    from durun.machine.rewind import as_it_was

    been = entered(own)
    stands = _inside(child, positions(child, been, d["positions"]))
    root = next((p for p in stands if not p["scope"]), None)
    stands = stands if root is not None else []
    then = as_it_was(own, own[-1]["no"] + 1)
    status, reason, ended_at = _how(own, root, stands, s, d)
    at: Json = root or next((e for e in reversed(own) if e["kind"] == "entered" and not e["scope"]), {})
    effects = _inside(child, [e for e in d["effects"] if is_of(been, e["scope"], e["state"], e["visit"])])
    undo = [{**u, "child": None} for u in d["undo"] if is_of(been, u["scope"], u["state"], u["visit"])]
    attempt = next((e["attempt"] for e in effects if root is not None and e["no"] == root["effect"]), None)
    due = root["due"] if root is not None else None
    where = (at.get("state"), at.get("visit"), attempt, due, s.driver, child.at, own[-1]["at"], ended_at, s.language)
    out = Summary((s.no, child.id, child.plan, child.version, status, reason, *where))
    ended_by = next((e["data"].get("error") for e in reversed(own) if e["kind"] == "failed" and not e["scope"]), None)
    more = {
        "input": child.input, "vars": root["data"].get("vars", then.vars) if root is not None else then.vars, "error": then.error,
        "ended_by": ended_by if status == "failed" else None, "output": _output(own) if status == "succeeded" else None,
        "positions": stands, "effects": effects, "signals": [], "messages": _inside(child, d["messages"]),
        "undo": _inside(child, undo),
    }  # fmt: skip
    return out, {**d, **more}


def _inside(child: Child, found: list[Json]) -> list[Json]:
    """Those that lie where a child has stood, as it has them."""
    scopes = ((one, own_scope(child, one["scope"])) for one in found)
    return [{**one, "scope": scope} for one, scope in scopes if scope is not None]


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

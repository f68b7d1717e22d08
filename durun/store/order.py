"""The order in which what a run did is undone: reverse order of its beginning, with a child as one entry where it began.

Rules:
- what a child did is undone together: what its run began later comes first, then all of the child, the youngest first, then what
  came before it. So it is in a child of a child; and a child that is called again is another entry
- which child an effect belongs to is known by the history: the last that began there before its state was entered, also where a
  migration has given what is around it another name since
"""

from __future__ import annotations

from typing import Any

from durun.machine.scope import child, parts, path_of, renamed, without_once
from durun.store.file import File, rows
from durun.values import NamedTuple

Json = Any


class Began(NamedTuple):
    """An effect of a run, and when it began."""

    no: int
    scope: str
    state: str
    visit: int
    at: int


class Around(NamedTuple):
    """A child, as one entry: the row of the history with which it began, its id, who called it, as that is named now."""

    no: int
    at: int
    run: str
    path: str
    visit: int


def in_child(scope: str) -> bool:
    return "/" in scope and any(part.kind == "child" for part in parts(scope))


def oldest_first(file: File, run: int, effects: list[Began]) -> list[tuple[Began, tuple[Around, ...]]]:
    """The effects of a run, in the reverse of the order in which they are undone, each with the children around it."""
    around = _around(file, run, effects) if any(in_child(e.scope) for e in effects) else {}
    found = [(e, around.get(_visited(e), ())) for e in effects]
    first: dict[int, tuple[bool, int]] = {}  # of each child, what was begun first in it: where two began in the same millisecond
    for e, outer in found:
        for one in outer:
            first[one.no] = min(first.get(one.no, _number(e)), _number(e))
    return sorted(found, key=lambda one: [*((o.at, *first[o.no], o.no) for o in one[1]), (one[0].at, *_number(one[0]), 0)])


def _number(e: Began) -> tuple[bool, int]:
    """A once comes after its step, where both began in the same millisecond."""
    return e.no < 0, abs(e.no)


def _visited(e: Began) -> tuple[str, int]:
    return without_once(path_of(e.scope, e.state)), e.visit


def _around(file: File, run: int, effects: list[Began]) -> dict[tuple[str, int], tuple[Around, ...]]:
    """(path, visit) of each effect inside a child -> the children around it, the outermost first."""
    wanted = {_visited(e) for e in effects if in_child(e.scope)}
    sql = (
        "SELECT no, at, kind, scope, state, visit, data ->> iif(kind = 'migrated', 'map', 'run') FROM history WHERE run = ?"
        " AND (kind IN ('child_begun', 'migrated') OR (kind = 'entered' AND instr(scope, '/'))) ORDER BY no"
    )
    standing: dict[str, int] = {}
    known: dict[int, Around] = {}
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for no, at, kind, scope, state, visit, said in rows(file.db, sql, (run,)):
        if kind == "migrated":
            import json

            names = json.loads(said or "{}")
            # the last that began wins where two have one name now: those before it have ended
            standing = {renamed(scope, names): one for scope, one in sorted(standing.items(), key=lambda one: one[1])}
            known |= {one: known[one]._replace(path=scope[:-1]) for scope, one in standing.items()}
            continue
        path = path_of(scope, state)
        if kind == "child_begun":
            standing[child(path)], known[no] = no, Around(no, at, said, path, visit)
        elif (path, visit) in wanted:
            found[path, visit] = tuple(standing[part.inner] for part in parts(scope) if part.kind == "child")
    return {of: tuple(known[no] for no in around) for of, around in found.items()}

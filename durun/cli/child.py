"""A child, which is a part of the run that called it, as the commands that look have a run; and what is said to it.

`show`, `history`, `logs`, `output` and `wait` take its id; what answers a question takes it too, and acts on its run.
"""

from __future__ import annotations

from typing import Any

from durun.cli.common import alive_in, mask_of, now
from durun.errors import NotPossible
from durun.machine.scope import path_of, some, without_once
from durun.plan.digest import digest
from durun.render import document as render
from durun.store import children, read
from durun.store.children import Child
from durun.store.file import File, rows
from durun.values import NamedTuple

Json = Any
MANY = 200  # effects in a document, as of a run


def document(file: File, child: Child) -> dict[str, Json]:
    """A child as `show --json` has it: the document of a run, with paths inside the child, and `parent`."""
    alive = alive_in(file.path)
    of, d, s, own = _seen(file, child, alive)
    doc = render.run(s, own, now(), alive=s.driver is not None and bool(alive(s.driver)))
    plan = plan_of(file, child)
    if plan is not None:
        doc |= {"version": plan["version"], "digest": digest(plan)}
        env = {name: value for name, value in doc["pins"]["env"].items() if name in plan["pins"]["env"]}
        doc["pins"] |= {"plan": doc["digest"], "env": env, "file": _file(file, child, doc["pins"]["file"])}
    d["positions"] = children.positions(child, been := _been(file, child), d["positions"])
    doc |= {"waiting_for": _waiting_for(child, been, of, s, d), "parent": parent(of.id, child)}
    masked: dict[str, Json] = mask_of(file, child.run).tree(doc)
    return masked


def parent(run: str, child: Child) -> dict[str, Json]:
    """Who has called it, as documents have it."""
    return {"run": run, "path": child.path, "visit": child.visit}


def summary(file: File, child: Child, alive: Any) -> read.Summary:
    return _seen(file, child, alive)[2]


def lines(file: File, of: read.Summary) -> list[dict[str, Json]]:
    """The children of a run, as `ls --children` has them, in the order they began."""
    found = children.of_run(file, of.no)
    d = read.details(file, of.no) if found else {}
    out = []
    for child, own in found:
        s, _ = children.seen(child, own, of, {**d, "effects": [], "undo": [], "messages": []})
        out.append({**render.line(s), "parent": parent(of.id, child)})
    return out


def _seen(file: File, child: Child, alive: Any) -> tuple[read.Summary, Json, read.Summary, Json]:
    """What is known of the run that called it, and of it."""
    of, d = read.summary(file, child.run, alive), read.details(file, child.run, None)
    found = [e for at in children.bounds(child) for e in read.effects(file, child.run, 1 << 40, at)]
    d["effects"] = sorted(found, key=lambda e: e["intended_at"])
    s, own = children.seen(child, children.history(file, child), of, d)
    own["effects"] = own["effects"][-MANY:]
    return of, d, s, own


def plan_of(file: File, child: Child) -> Json:
    """The plan it walks through; None where its run has moved to another that does not call it."""
    from durun.machine import scope
    from durun.store.runs import Store

    try:
        return scope.plan_of(Store(file).pinned(child.run).plan, child.scope)
    except (KeyError, StopIteration, TypeError):
        return None


def _file(file: File, child: Child, calling: str) -> str:
    """Where its plan was read: it is named relative to the plan that calls it."""
    import os

    from durun.machine.scope import level, parts
    from durun.store.runs import Store

    plan = Store(file).pinned(child.run).plan
    for part in parts(child.scope):
        if part.kind == "child":
            named = level(plan, part.scope)["states"][part.state]["plan"]["file"]
            calling = os.path.normpath(os.path.join(os.path.dirname(calling), named))
    return calling


def _waiting_for(
    child: Child, been: frozenset[tuple[str, int]], of: read.Summary, s: read.Summary, d: Json
) -> list[dict[str, Json]]:
    """What it waits for, with the commands that go on: they name its run, which goes with it."""
    wanted = read.Summary(tuple(getattr(of, name) for name in read.Summary.__slots__))
    wanted.status, wanted.reason = s.status, s.reason
    undo = [u for u in d["undo"] if children.is_of(been, u["scope"], u["state"], u["visit"])]
    found = render.waiting_for(wanted, {**d, "undo": undo}, now()) if s.status not in read.ENDED else []
    return [{**w, **{word: _own(child, w[word]) for word in ("path", "name")}} for w in found]


def _been(file: File, child: Child) -> frozenset[tuple[str, int]]:
    """(path in its run, visit) of all that a child has entered: another may stand, or have stood, in the same place."""
    return frozenset(children.entered(children.history(file, child)))


def _own(child: Child, path: Json) -> Json:
    own = children.own_scope(child, path) if isinstance(path, str) else None
    return path if own is None else own


# --- what is said to it ---


class Meant(NamedTuple):
    """What is said to a run, or of a state of it; where a child was named, of a visit that is the child's own."""

    run: int
    state: str | None
    visit: int | None = None
    been: frozenset[tuple[str, int]] | None = None  # what the child has entered


def meant(file: File, id: str, state: str | None, *phases: str) -> Meant:
    """What of a run is spoken to. Of a child, a state that is not named is the only one that stands in one of these phases, or was
    answered last, or whose undo failed; another child that stands in the same place is never meant. Raises NotPossible."""
    no, child = read.run_or_child(file, id)
    if child is None:
        return Meant(no, state)
    been = _been(file, child)
    own = _standing(file, child, been, phases)
    if not own:
        before = _answered(file, child)[:1] if "asked" in phases else _not_undone(file, no) if "held" in phases else []
        own = [one for one in before if one in been]
    if state is not None:
        return _named(child, state, own, been)
    if len(own) == 1:
        return Meant(no, *own[0], been)
    paths = dict.fromkeys(_own(child, path) for path, _ in own)
    if len(paths) == 1:
        return Meant(no, own[0][0], None, been)
    more = f"several states wait; name one of {some(list(paths))}" if own else f"nothing of it waits for that; `durun show {id}`"
    raise NotPossible(f"child {child.id}: {more}")


def _named(child: Child, state: str, own: list[tuple[str, int]], been: frozenset[tuple[str, int]]) -> Meant:
    """The state that is named: in the visit in which it stands, else in the last one."""
    there = [one for one in own if state in (name := _own(child, one[0]), name.removesuffix("~undo"))]
    visits = there[:1] or [one for one in been if _own(child, one[0]) == _without_undo(state)]
    if not visits:
        raise NotPossible(f"child {child.id} has not been to {state}: `durun show {child.id}`; nothing was changed")
    path, visit = max(visits, key=lambda one: one[1])
    return Meant(child.run, path[: len(path) - len(_own(child, path))] + state, visit, been)


def _without_undo(path: str) -> str:
    return without_once(path.removesuffix("~undo"))


def _standing(file: File, child: Child, been: frozenset[tuple[str, int]], phases: tuple[str, ...]) -> list[tuple[str, int]]:
    """(path, visit) of what of a child stands in one of these phases."""
    found = children.positions(child, been, read.positions(file, child.run))
    return [(path_of(p["scope"], p["state"]), p["visit"]) for p in found if p["phase"] in phases]


def _answered(file: File, child: Child) -> list[tuple[str, int]]:
    sql = "SELECT no, scope, state, visit FROM answers WHERE run = ? AND scope >= ? AND scope < ?"
    found = [row for at in children.bounds(child) for row in rows(file.db, sql, (child.run, *at))]
    return [(path_of(*at), visit) for _, *at, visit in sorted(found, reverse=True)]


def _not_undone(file: File, run: int) -> list[tuple[str, int]]:
    return [(path_of(u["scope"], u["state"]), u["visit"]) for u in read.undos(file, run, "failed")]

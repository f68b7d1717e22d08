"""What comes most in a map, done in one go: the one command of an item has ended well, and the next item takes its place.

Rules:
- it leads to just what `walk` and `fan` lead to, row for row and in their order: they say what that is, and tests hold it to them
- where anything is out of the ordinary nothing is touched, and they are asked
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine import scope, walk
from durun.machine.draft import Draft
from durun.machine.events import Ended
from durun.machine.model import Effect, Event, Gone, Item, Phase, Position, StateRow
from durun.machine.outcome import DONE, OutputError, output_of
from durun.plan.canonical import Map, State

Json = Any

# what the state of an item may have: whatever else there is somebody else sees to
KNOWN = frozenset(
    ("kind", "description", "next", "catch", "assign", "max_visits", "act", "expect", "retry", "idempotent", "output")
)


def ended(d: Draft, p: Position, event: Ended) -> bool:
    """Whether a command that has ended was such a one; then all is done that follows."""
    if p.nth is None or event.stopped or event.left or not _is_plain(d, p):
        return False
    outer = d.position("")
    name = outer.state
    held = d.at.items.get(name)
    if held is None or p.nth >= len(held) or scope.item(name, held[p.nth].label) != p.scope:
        return False
    given = d.plan["states"][name].get("map")
    state = _only(given, p.state) if given is not None else None
    if given is None or state is None or event.status not in state["expect"] or not _goes_on(d, outer, given):
        return False
    inside, following = d.holders().get(name, {}), d.item(name, outer.begun)
    inner = scope.item(name, following.label)
    if len(inside) != given["concurrency"] or inside.get(p.scope) != 1 or following.status != "not_begun" or _is_known(d, inner, p):
        return False
    try:
        output = output_of(state, event)
    except OutputError:
        return False
    _end(d, p, event, output, "output" in given)
    d.move.positions[""] = outer = outer._replace(won=outer.won + 1, begun=outer.begun + 1)
    del inside[p.scope]
    inside[inner] = 1
    _begin(d, outer, following, inner, p.state, state)
    return True


def _is_plain(d: Draft, p: Position) -> bool:
    """Whether nothing is on its way to end the item, the run or its time, and nothing is shared with other runs."""
    run, move = d.run, d.move
    told = (
        p.stopping or p.onces or p.left is not None or run.cancel is not None or run.undoing is not None or run.over_at is not None
    )
    shared = "limits" in d.plan or "group" in d.plan
    changed = bool(move.fresh) or p.scope in move.positions or p.scope in move.gone
    return not (told or shared or changed or d.at.deep) and d.moment.place is not None


def _only(given: Map, name: str) -> State | None:
    """The one state of the items of a map, where it is a command that leads to the end and gives the item its output, if any."""
    state = given["states"].get(name)
    if state is None or len(given["states"]) > 1 or state["kind"] != "run" or not state.keys() <= KNOWN or state["assign"]:
        return None
    gives = given.get("output")
    return state if state["next"] == "succeeded" and gives in (None, f"${{{{ states.{name}.output }}}}") else None


def _goes_on(d: Draft, outer: Position, given: Map) -> bool:
    """Whether the map goes on with its next item whatever else it holds."""
    if outer.phase is not Phase.INSIDE or outer.stopping or outer.closing or outer.lost or outer.begun == outer.total:
        return False
    enough, changed = given["enough"], d.move.positions.values()
    waits = d.at.delayed or any(q is not None and q.phase is Phase.DELAYED for q in changed)  # perhaps for this very place
    return not waits and (enough is None or outer.won + 1 < enough)


def _is_known(d: Draft, inner: str, p: Position) -> bool:
    """Whether an item that is to begin has been there before; or the one that ends has held items itself."""
    before = inner in d.at.positions or inner in d.move.positions or inner in d.move.gone or (inner, p.state) in d.at.states
    below = scope.below(p.scope)
    return before or any(path.startswith(below) for path in d.at.items)


def _end(d: Draft, p: Position, event: Ended, output: Json, gives: bool) -> None:
    """The effect of an item is done, and the item with it."""
    assert p.effect is not None and p.nth is not None
    at, move, effect, row = d.at, d.move, d.effect(p.effect), d.row("", d.position("").state)
    how = {"how": DONE, "exit": event.status, **{k: v for k, v in (event.files or {}).items() if v}}
    done = effect._replace(status=DONE, exit=event.status, ended_at=d.moment.now, error=None)
    move.effects[effect.no] = done if output is None else done._replace(output=output, has_output=True)
    place = p.scope, p.state, p.visit
    move.history += (
        Event("attempt_ended", *place, effect.attempt, how),
        Event("left", *place, None, {"next": "succeeded", "effect": effect.no}),
        Event("succeeded_inside", *place, None, {}),
    )
    peak = max(p.visit, at.states[p.scope, p.state].peak)
    if peak > row.peak:
        d.put_row(row._replace(peak=peak))
    move.gone[p.scope] = Gone(at.within.get(p.scope, ()))
    item = d.item(row.state, p.nth)
    d.put_item(item._replace(status="succeeded", output=output if gives else None, error=None))


def _begin(d: Draft, outer: Position, item: Item, inner: str, name: str, state: State) -> None:
    """The next item begins, and its command."""
    moment, move, visit = d.moment, d.move, outer.floor + 1
    d.put_item(item._replace(status="begun"))
    d.put_row(StateRow(inner, name, visits=visit))
    move.history.append(Event("entered", inner, name, visit, None, {}))
    p = Position(inner, name, visit, Phase.READY, name, entered_at=moment.now, since=d.run.driven, nth=item.no)
    move.positions[inner] = p
    key = d.key_inside(outer, item.label, name, visit)
    names = d.names_with(inner, {"item": item.item, "index": item.no, "visit": visit, "key": key})
    try:
        frozen = walk.render(d, state["act"], names, capture="output" in state)
    except ExpressionError as e:
        target = walk.failed(d, p, "expression", str(e))
        if target is not None:
            walk.walk(d, inner, target, walk.MOVES)
        return
    no = d.run.next_effect
    d.set_run(next_effect=no + 1)
    move.effects[no] = Effect(
        no, inner, name, visit, "run", key, frozen, "begin", 1, moment.boot, moment.place, moment.now, moment.now
    )
    move.begin.append(no)
    failures = (0,) * len(state.get("retry", ()))
    move.positions[inner] = p._replace(phase=Phase.ACTING, target=None, effect=no, failures=failures)

"""States that hold others: `parallel` and `map` with their branches and items, and `plan` with its child.

Rules:
- a branch, an item and a child stand in scopes of their own; what they set stays inside, and what they give is kept by whoever
  holds them
- branches and items begin in their order, as many at once as there are places; one that waits or is blocked gives its place away,
  and an effect that finds no place waits for one
- when more have failed than may, nothing further begins, those under way go on to their end (`stop: now` has them stopped), and
  then the state has failed; once `enough` have succeeded the rest is stopped
- it ends as soon as either is decided and nothing inside it is under way
- what failed or was stopped keeps its position, so that a resume can take up just that
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from durun.errors import ExpressionError, PlanRefused
from durun.machine import poll, scope, timer, undo, walk
from durun.machine.draft import NONE, Draft, policy
from durun.machine.model import Item, Phase, Position, StateRow
from durun.machine.outcome import IN_DOUBT, NOT_DONE
from durun.plan.canonical import Plan, State
from durun.plan.names import RUN_ID

Json = Any
STOPPED = {"name": "stopped", "message": "it was stopped: what it is a part of was decided without it"}


# --- to begin ---


def enter(d: Draft, p: Position, state: State) -> str | None:
    """Works out what is inside, and begins as much of it as there are places. The next target where there is nothing."""
    path = scope.path_of(p.scope, p.state)
    found = _items(d, p, state, path)
    floor = _floor(d, p)
    d.enclose(p, found)
    p = d.put(p._replace(phase=Phase.INSIDE, target=None, floor=floor, total=len(found)))
    d.tell("begun_inside", p, total=len(found))
    return _on(d, p)


def _floor(d: Draft, p: Position) -> int:
    """The visits inside a state that earlier rounds of it have used up, and those of the states around it."""
    return max(d.row(p.scope, p.state).peak, walk.floor_of(d, p.scope))


def _items(d: Draft, p: Position, state: State, path: str) -> list[Item]:
    """The branches in the order written, or the items as the expression gives them, once. Raises ExpressionError."""
    if state["kind"] == "parallel":
        return [Item(path, n, b["name"], None) for n, b in enumerate(state["parallel"]["branches"])]
    given = state["map"]
    values = d.evaluate.expression(given["items"], d.names(p.scope, visit=p.visit))
    if not isinstance(values, list):
        raise ExpressionError(f"`{given['items']}`: the items of a map are a list, and this is none")
    if "label" not in given:
        return [Item(path, n, str(n), value) for n, value in enumerate(values)]
    found: dict[str, Item] = {}
    for n, value in enumerate(values):
        label = d.evaluate.text(given["label"], d.names(p.scope, visit=p.visit, item=value, index=n))
        if not scope.LABEL.fullmatch(label):
            raise ExpressionError(f"the label of item {n} must have 1 to 128 characters, without brackets and line ends")
        if label in found:
            raise ExpressionError(f"the items {found[label].no} and {n} have the same label, `{label[:60]}`")
        found[label] = Item(path, n, label, value)
    return list(found.values())


def _on(d: Draft, p: Position) -> str | None:
    """Ends the state if it is decided, else begins what finds a place."""
    path = scope.path_of(p.scope, p.state)
    if p.phase is not Phase.INSIDE:
        return None  # to stop the rest has ended it already
    if _under_way(p) == 0 and (p.closing or p.begun == p.total):
        return _end(d, p, path)
    begin_more(d, path)
    return None


def _under_way(p: Position) -> int:
    return p.begun - p.won - p.lost - p.gone


def begin_more(d: Draft, path: str) -> None:
    """Begins further branches or items, in order, as many as there are places."""
    outer, name = split(path)
    p = d.found(outer)
    if p is None or p.phase is not Phase.INSIDE or p.state != name or p.closing or d.run.cancel is not None:
        return
    if p.begun == p.total:
        return
    state = d.state(p)
    most = policy(state).get("concurrency")
    taken = _taken(d, path) if most is not None else 0
    while p.begun < p.total and (most is None or taken < most):
        made = d.item(path, p.begun)
        inner = scope.branch(path, made.label) if state["kind"] == "parallel" else scope.item(path, made.label)
        d.put_item(made._replace(status="begun"))
        start = d.level(inner)["start"]
        d.put(Position(inner, start, 0, Phase.READY, target=start, nth=p.begun, entered_at=d.moment.now))
        d.todo.append(inner)
        p = d.put(p._replace(begun=p.begun + 1))
        taken += 1


@lru_cache(maxsize=4096)
def split(path: str) -> tuple[str, str]:
    """The scope and the name of the state at a path; that of a once, which holds nothing, is none."""
    if scope.once_of(path) is not None:
        return "", ""
    at = max(path.rfind("."), path.rfind("/"))
    if at < 0:
        return "", path
    outer = path[:at] if path[at] == "." else path[: at + 1]
    return outer, path[at + 1 :]


def _taken(d: Draft, path: str) -> int:
    """Places that are held, or owed to an effect that waits for one."""
    held = d.holders().get(path, NONE)
    owed = set()
    for p in d.delayed():
        if scope.inside(p.scope, path) and _is_due(d, p):
            owed.add(next(part.inner for part in scope.parts(p.scope) if part.path == path))
    return len(held) + len(owed - held.keys())


def _is_due(d: Draft, p: Position) -> bool:
    """Whether an effect that waits to begin waits for nothing but its place."""
    now = d.moment
    return p.length is None or timer.is_over(p, d.run.paused_at, now.now, now.clock, now.boot)


def refill(d: Draft) -> None:
    """Wherever something inside has changed in this move, further branches or items may begin."""
    touched, d.touched = d.touched, set()
    for path in sorted(touched, key=lambda path: (-len(path), path)) if len(touched) > 1 else touched:
        begin_more(d, path)


# --- a child plan ---


def enter_child(d: Draft, p: Position, state: State) -> str | None:
    """Begins a child plan: its input worked out and checked, its id and namespace from the key of this visit."""
    from durun.plan.schema import input_values, kind

    given = state["plan"]
    plan: Plan = given["pinned"]
    names, key = d.names(p.scope, visit=p.visit), d.key(p)
    id = d.evaluate.text(given["id"], names) if "id" in given else f"{d.run.id}-{key[:8]}"
    if "id" in given and not RUN_ID.fullmatch(id):
        raise ExpressionError(
            f"{id[:80]!a} is no id of a child: letters, digits, `.`, `_` and `-`, a letter or digit first, at most 128"
        )
    if "id" in given:
        _refuse_taken(d, id)
    try:
        values = input_values(plan, d.evaluate.value(given["input"], names))
    except PlanRefused as e:
        raise ExpressionError(f"the input of {given['file']}: {e}") from None
    first = d.evaluate.value(plan["vars"], {"input": values})
    types = {name: "any" if value is None else kind(value) for name, value in first.items()}
    child = {"id": id, "input": values, "types": types, "namespace": key.replace("-", ""), "started_at": d.moment.now}
    inner = scope.child(scope.path_of(p.scope, p.state))
    row = d.row(p.scope, p.state)
    d.put_row(row._replace(child=id))
    d.enclose(p, [])
    d.put(p._replace(phase=Phase.INSIDE, target=None, floor=_floor(d, p), total=1, begun=1))
    d.put(Position(inner, plan["start"], 0, Phase.READY, vars=first, child=child, entered_at=d.moment.now))
    d.tell("child_begun", p, run=id, plan=plan["name"], version=plan["version"], input=values, vars=first)
    d.go(inner, plan["start"])
    return None


def _refuse_taken(d: Draft, id: str) -> None:
    """Raises ExpressionError where the id that a plan gives its child is that of the run, or of another child that stands."""
    if id == d.run.id:
        raise ExpressionError(f"the id {id} of a child is that of the run itself")
    for p in d.positions():
        if p.child is not None and p.child["id"] == id and d.stands(p):
            raise ExpressionError(f"the id {id} of a child is that of the one that {scope.parts(p.scope)[-1].path} has called")


# --- what has ended inside ---


def succeeded(d: Draft, inner: str, output: Json) -> None:
    """A branch, item or child came to its end."""
    part = scope.parts(inner)[-1]
    if part.kind in ("undo", "once"):
        return undo.undone(d, inner)
    p, stands = _count_visits(d, part, inner), d.position(inner)
    nth = stands.nth
    gives = {"output": output} if part.kind == "child" and output is not None else {}
    d.tell("succeeded_inside", stands, gives=gives)
    d.drop(inner)
    if part.kind == "child":
        d.put(p._replace(won=1))
        return walk.follow(d, p.scope, walk.leave(d, p, None, output=output))
    assert nth is not None
    d.put_item(d.item(part.path, nth)._replace(status="succeeded", output=output, error=None))
    _judge(d, d.put(p._replace(won=p.won + 1)))


def failed(d: Draft, inner: str, error: Json) -> None:
    """An error ended a branch, item or child. Its position stays, for whoever takes it up."""
    part = scope.parts(inner)[-1]
    if part.kind in ("undo", "once"):
        return undo.failed(d, inner, error)
    p = _count_visits(d, part, inner)
    stands = d.position(inner)
    phase = Phase.ENDED if stands.phase is Phase.ENDED else Phase.FAILED  # ended: the plan chose it, and would again
    d.put(timer.without(stands)._replace(phase=phase, asking=None, stopping=False))
    d.tell("failed_inside", stands, error=error)
    if part.kind == "child":
        said = walk.error_of(p, "child_failed", f"the child run {d.row(p.scope, p.state).child} failed: {error['name']}")
        d.put(p._replace(lost=1))
        return walk.follow(d, p.scope, walk.after_error(d, p, {**said, "output": error}, None))
    assert stands.nth is not None
    d.put_item(d.item(part.path, stands.nth)._replace(status="failed", error=error))
    _judge(d, d.put(p._replace(lost=p.lost + 1)))


def _count_visits(d: Draft, part: scope.Part, inner: str) -> Position:
    """The position of the state that holds a scope; its row remembers the highest visit inside, so that none is used again."""
    row = d.row(part.scope, part.state)
    peak = row.peak
    for name in d.level(inner)["states"]:
        of = d.row(inner, name)
        peak = max(peak, of.visits, of.peak)
    if peak > row.peak:
        d.put_row(row._replace(peak=peak))
    return d.position(part.scope)


def let_go_of_all(d: Draft) -> None:
    """Whatever stands inside a state goes, as the run begins anew elsewhere; the visits there remember that they have been."""
    for p in sorted(d.positions(), key=lambda p: -len(scope.parts(p.scope))):
        if not p.scope:
            continue
        part = scope.parts(p.scope)[-1]
        if part.kind not in ("undo", "once"):
            _count_visits(d, part, p.scope)
        d.drop(p.scope)


def _judge(d: Draft, p: Position) -> None:
    """Whether it is decided: enough have succeeded, or more have failed than may."""
    given = policy(d.state(p))
    if not p.closing:
        enough, lost = given["enough"], p.lost > _tolerated(given["failures"], p.total)
        if enough is not None and p.won >= enough:
            p = _close(d, p, "enough", stop=True)
        elif lost:
            p = _close(d, p, "failed", stop=given.get("stop") == "now")
    walk.follow(d, p.scope, _on(d, p))


def _tolerated(failures: int | str, total: int) -> int:
    if failures == "all":
        return total
    return total * int(failures[:-1]) // 100 if isinstance(failures, str) else failures


def _close(d: Draft, p: Position, why: str, *, stop: bool) -> Position:
    p = d.put(p._replace(closing=why))
    if stop:
        stop_inside(d, scope.path_of(p.scope, p.state))
    return d.position(p.scope)


def _end(d: Draft, p: Position, path: str) -> str | None:
    """All that ran inside has ended: its output, or its error. What succeeded is nobody's any more; what did not stays."""
    state = d.state(p)
    given = policy(state)
    if p.stopping:
        stopped(d, p)
        return None
    items = d.items_now(path)
    enough = given["enough"]
    left_out = p.gone > 0 and not p.closing and _is_left_out(d, p, path)
    if p.closing == "failed" or left_out or (enough is not None and p.won < enough):
        what = "branch" if state["kind"] == "parallel" else "item"
        return walk.after_error(d, p, walk.error_of(p, f"{what}_failed", _why(what, items, p, enough)), None)
    values = [i.output if i.status == "succeeded" else None for i in items]
    output = dict(zip((i.label for i in items), values, strict=True)) if state["kind"] == "parallel" else values
    if p.back_to is not None:
        return _back_to_the_end(d, p, output)
    return walk.leave(d, p, None, output=output)


def _is_left_out(d: Draft, p: Position, path: str) -> bool:
    """Whether something was stopped with the run and can still be taken up: only what stood beside it was put right."""
    return any(q.nth is not None and d.item(path, q.nth).status == "stopped" for q in _to_take_up(d, p)[0])


def _back_to_the_end(d: Draft, p: Position, output: Json) -> str | None:
    """Where failed items were taken up of a run that had succeeded: it ends in the state in which it had ended."""
    to = walk.leave(d, p, "succeeded", output=output)
    state, visit = p.back_to
    if to is not None and state in d.plan["states"]:
        d.put(Position("", state, visit, Phase.READY, entered_at=p.entered_at, since=p.since))
    return to


def _why(what: str, items: list[Item], p: Position, enough: int | None) -> str:
    first = next((i for i in items if i.status == "failed"), None)
    said = f"{p.won} of {enough} that were wanted succeeded" if enough is not None and p.closing != "failed" else ""
    if first is None and not said:
        return f"{what} {next(i.label for i in items if i.status == 'stopped')} was stopped before it had ended"
    if first is None:
        return said
    why = f"{what} {first.label} failed: {first.error['name']}: {first.error.get('message', '')}".rstrip(": ")
    return f"{said}; {why}" if said else why + (f" ({p.lost} failed in all)" if p.lost > 1 else "")


# --- to stop ---


def stop_inside(d: Draft, path: str) -> None:
    """Ends all that is inside a state: what has begun is stopped, what has not is withdrawn."""
    inner = [p for p in d.positions() if scope.inside(p.scope, path)]
    for p in inner:
        if p.phase is Phase.INSIDE:
            d.put(p._replace(stopping=True, closing="stopped"))
    for p in sorted(inner, key=lambda p: -len(p.scope)):
        now = d.found(p.scope)
        if now is not None and now.phase not in (Phase.FAILED, Phase.ENDED):
            _stop(d, now)


def _stop(d: Draft, p: Position) -> None:
    if p.phase is Phase.INSIDE:
        if _under_way(p) == 0:
            stopped(d, p)
        return
    no = p.asking if p.phase is Phase.PROBING else p.effect
    if no is not None and p.phase in (Phase.ACTING, Phase.PROBING) and d.effect(no).status == "begin":
        d.put(p._replace(stopping=True))
        d.move.stop.append(no)
        return
    stopped(d, p)


def stopped(d: Draft, p: Position) -> None:
    """A position inside a state that was decided without it stands still: withdrawn, and kept for whoever takes it up."""
    withdraw(d, p)
    p = d.put(timer.without(p)._replace(phase=Phase.FAILED, asking=None, stopping=False))
    part = scope.parts(p.scope)[-1]
    _count_visits(d, part, p.scope)
    d.tell("stopped_inside", p)
    outer = d.position(part.scope)
    if part.kind != "child":
        assert p.nth is not None
        d.put_item(d.item(part.path, p.nth)._replace(status="stopped", error=STOPPED))
    outer = d.put(outer._replace(gone=outer.gone + 1))
    if _under_way(outer) == 0 and outer.stopping:
        stopped(d, outer)
    elif _under_way(outer) == 0 and outer.closing:
        walk.follow(d, outer.scope, _end(d, outer, part.path))


def withdraw(d: Draft, p: Position) -> None:
    """What was intended here and has not begun never will, unless somebody takes it up."""
    for no in (p.effect, p.asking):
        effect = d.effect(no) if no is not None else None
        if effect is not None and effect.status == "waiting" and no == p.effect and poll.has_asked(d, p):
            poll.withdraw(d, p)
        elif effect is not None and effect.status == "waiting":
            how = "withdrawn" if effect.first_at is None else IN_DOUBT if p.unsure else NOT_DONE
            made = effect.attempt if how == "withdrawn" else max(1, effect.attempt - 1)  # the attempt it waited for was not made
            d.put_effect(effect._replace(status=how, attempt=made, ended_at=d.moment.now))
            if how == "withdrawn" and no == p.effect and "compensate" in d.state(p):
                d.put_undo_status(effect.no, "not_needed", None)  # should it be taken up, its end says anew what there is to undo


# --- to take up again ---


def can_take_up(d: Draft, p: Position) -> bool:
    """Whether a state that has failed may still succeed: what ended in it as the plan chose stays lost."""
    again, lost, _ = _to_take_up(d, p)
    given = policy(d.state(p))
    if not given:
        return bool(again)
    enough = given["enough"]
    possible = lost <= _tolerated(given["failures"], p.total) and (enough is None or p.total - lost >= enough)
    return possible and (bool(again) or p.begun < p.total)


def _to_take_up(d: Draft, p: Position) -> tuple[list[Position], int, int]:
    """What did not succeed inside and can be tried again; of what can not, how many failed and how many were stopped."""
    path = scope.path_of(p.scope, p.state)
    inner = [q for q in d.positions() if scope.inside(q.scope, path) and _holder(q.scope) == path]
    again = [q for q in inner if walk.can_take_up(d, q)]
    left = [d.item(path, q.nth).status for q in inner if q not in again and q.nth is not None]
    return again, left.count("failed"), left.count("stopped")


def take_up(d: Draft, p: Position) -> None:
    """Takes up what did not succeed inside a state that has failed; what has not begun begins in its turn."""
    path = scope.path_of(p.scope, p.state)
    inner, lost, gone = _to_take_up(d, p)
    row = d.row(p.scope, p.state)
    d.put_row(StateRow(p.scope, p.state, visits=p.visit, peak=row.peak, child=row.child))
    d.put(
        p._replace(
            phase=Phase.INSIDE,
            lost=lost,
            gone=gone,
            closing="again" if p.back_to else "",
            stopping=False,
            begun=p.begun,
            target=None,
        )
    )
    for q in inner:
        if q.nth is not None:
            d.put_item(d.item(path, q.nth)._replace(status="begun", error=None))
        walk.take_up(d, d.put(q._replace(stopping=False)))
    walk.follow(d, p.scope, _on(d, d.position(p.scope)))


def _holder(inner: str) -> str:
    return scope.parts(inner)[-1].path


def put_right(d: Draft, inner: str) -> None:
    """The states around a scope that has failed are under way again: one of their parts is being put right."""
    for part in reversed(scope.parts(inner)):
        p, stands = d.position(part.scope), d.position(part.inner)
        if stands.nth is not None:
            d.put_item(d.item(part.path, stands.nth)._replace(status="begun", error=None))
            # where the time of the run was over nobody has counted what was stopped
            how = [i.status for i in d.items_now(part.path)]
            p = p._replace(lost=how.count("failed"), gone=how.count("stopped"))
        else:
            p = p._replace(lost=p.lost - 1)
        d.put(p._replace(phase=Phase.INSIDE, closing="", stopping=False))

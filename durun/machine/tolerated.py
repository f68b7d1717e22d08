"""The failed items of a run that succeeded all the same: taken up anew, they and nothing else.

Rules:
- what failed inside a map or a parallel of the run itself, which its `failures` allowed for, keeps its position until that state is
  entered anew; what stood inside a branch, an item or a child that has succeeded is let go of with it, and cannot be taken up
- the visit of the state is the one it was, so keys and frozen requests are too; what was stopped or never begun stays so
- nothing is judged again: whatever becomes of them, the state has succeeded, does its `assign`, and the run goes on to its end
"""

from __future__ import annotations

from durun.errors import NotPossible, PlanRefused
from durun.machine import clock, walk
from durun.machine.draft import Draft
from durun.machine.model import Item, Phase, Position, StateRow, Status
from durun.machine.scope import branch, item, some


def take_up(d: Draft, state: str | None) -> None:
    """A person wants the failed items of a run that has succeeded tried again. Raises NotPossible, PlanRefused."""
    run = d.run
    if run.status is not Status.SUCCEEDED:
        way = f"; `durun resume {run.id}` takes up what did not succeed" if run.status is Status.FAILED else ""
        raise NotPossible(f"run {run.id} is {run.status}: only one that has succeeded has failed items to take up{way}")
    name = _meant(d, state)
    items = [d.item(name, n) for n in range(len(d.items(name)))]
    again = [(i, p) for i in items if i.status == "failed" and (p := _stands(d, name, i)) is not None and walk.can_take_up(d, p)]
    if not again:
        raise NotPossible(f"run {run.id}: what failed in {name} ended where its plan says it ends: there is nothing to take up")
    d.set_run(status=Status.RUNNING, reason=None, output=None, has_output=False, ended_at=None)
    clock.fresh(d)
    p = _inside(d, name, items, len(again))
    d.tell("resumed", p, None, failed_items=len(again))
    for failed, stands in again:
        d.put_item(failed._replace(status="begun", error=None))
        walk.take_up(d, stands)


def _meant(d: Draft, state: str | None) -> str:
    """The state of the run that is named, or the only one in which something failed that was allowed for."""
    run, found = d.run, [name for name in d.plan["states"] if _has_failed(d, name)]
    if state in found or (state is None and len(found) == 1):
        return state or found[0]
    if state is None and found:
        raise NotPossible(f"run {run.id}: several states have failed items; name one of {some(found)}")
    if state is None:
        raise NotPossible(f"run {run.id} succeeded without failed items of its own: there is nothing to take up")
    if state not in d.plan["states"] and any(mark in state for mark in ".[/~"):
        raise NotPossible(
            f"run {run.id}: {state} is no state of the run itself, and what stood inside one is let go of when that has succeeded"
        )
    if state not in d.plan["states"]:
        raise PlanRefused(
            f"run {run.id}: its plan has no state {state!r}; it has {some(list(d.plan['states']))}; nothing was changed"
        )
    raise NotPossible(f"run {run.id}: {state} has no failed items that it succeeded without: there is nothing to take up")


def _has_failed(d: Draft, name: str) -> bool:
    row = d.row("", name)
    holds = d.plan["states"][name]["kind"] in ("map", "parallel") and row.ended and row.error is None
    return holds and any(i.status == "failed" for i in d.items(name))


def _stands(d: Draft, name: str, of: Item) -> Position | None:
    inner = branch(name, of.label) if d.plan["states"][name]["kind"] == "parallel" else item(name, of.label)
    return d.found(inner)


def _inside(d: Draft, name: str, items: list[Item], again: int) -> Position:
    """The state as it stood when it had ended, but for those that are taken up; it remembers where the run has ended."""
    ended, row = d.position(""), d.row("", name)
    count = {word: sum(i.status == word for i in items) for word in ("succeeded", "failed", "stopped", "not_begun")}
    d.put_row(StateRow("", name, visits=row.visits, peak=row.peak))
    return d.put(
        Position(
            "", name, row.visits, Phase.INSIDE, entered_at=d.moment.now, since=d.run.driven, floor=row.peak, total=len(items),
            begun=len(items) - count["not_begun"], won=count["succeeded"], lost=count["failed"] - again, gone=count["stopped"],
            closing="again", back_to=[ended.state, ended.visit],
        )
    )  # fmt: skip

"""A move in the making: what was read, with what has changed so far laid over it, and what expressions see of both."""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import Any, Protocol

from durun.machine.events import Moment
from durun.machine.model import Checkpoint, Effect, Event, Move, Phase, Position, Run, StateRow, Status
from durun.plan.canonical import Plan, State

Json = Any
LIMIT = 100 * 1024  # of one value in argv or env


class Evaluate(Protocol):
    """What the machine needs of an evaluator of expressions; see `plan.expressions.Evaluator`."""

    def condition(self, source: str, names: dict[str, Json]) -> bool: ...
    def value(self, template: Json, names: dict[str, Json]) -> Json: ...
    def text(self, template: Json, names: dict[str, Json], *, limit: int | None = None) -> str: ...
    def argv(self, templates: list[Json], names: dict[str, Json]) -> list[str]: ...


class Draft:
    """One decision in the making. Reads fall through to the checkpoint; writes go to the move."""

    __slots__ = ("at", "evaluate", "moment", "move", "plan")

    def __init__(self, plan: Plan, at: Checkpoint, moment: Moment, evaluate: Evaluate) -> None:
        self.plan = plan
        self.at = at
        self.moment = moment
        self.evaluate = evaluate
        self.move = Move(at.run)

    # reads

    @property
    def run(self) -> Run:
        return self.move.run

    def position(self, scope: str) -> Position:
        found = self.move.positions.get(scope)
        return found if found is not None else self.at.positions[scope]

    def positions(self) -> list[Position]:
        gone = {scope for scope, p in self.move.positions.items() if p is None}
        merged = {**self.at.positions, **{s: p for s, p in self.move.positions.items() if p is not None}}
        return [p for scope, p in merged.items() if scope not in gone]

    def state(self, position: Position) -> State:
        return self.plan["states"][position.state]

    def row(self, scope: str, name: str) -> StateRow:
        key = (scope, name)
        return self.move.states.get(key) or self.at.states.get(key) or StateRow(scope, name)

    def effect(self, no: int) -> Effect:
        return self.move.effects.get(no) or self.at.effects[no]

    # writes

    def set_run(self, **changes: Any) -> None:
        self.move.run = self.move.run._replace(**changes)

    def put(self, position: Position) -> Position:
        self.move.positions[position.scope] = position
        return position

    def put_row(self, row: StateRow) -> None:
        self.move.states[row.scope, row.state] = row

    def put_effect(self, effect: Effect) -> Effect:
        self.move.effects[effect.no] = effect
        return effect

    def tell(self, kind: str, position: Position | None, attempt: int | None = None, **data: Json) -> None:
        """A row of the history; what is empty in `data` is left out."""
        data = {k: v for k, v in data.items() if v not in ("", None, {})}
        scope, state, visit = (position.scope, position.state, position.visit) if position else ("", None, None)
        self.move.history.append(Event(kind, scope, state, visit, attempt, data))

    def new_effect(self, position: Position, kind: str, key: str, request: Json) -> Effect:
        """An intent: to begin now where somebody drives on, else waiting."""
        no = self.run.next_effect
        self.set_run(next_effect=no + 1)
        effect = Effect(
            no,
            position.scope,
            position.state,
            position.visit,
            kind,
            key,
            request,
            "waiting",
            intended_at=self.moment.now,
        )
        return self.issue(effect)

    def issue(self, effect: Effect) -> Effect:
        """The intent as it stands here: bound to this boot and place, or left waiting for whoever drives on."""
        place = self.moment.place
        if place is None:
            return self.put_effect(effect._replace(status="waiting", boot=None, place=None))
        self.move.begin.append(effect.no)
        first = effect.first_at if effect.first_at is not None else self.moment.now
        return self.put_effect(effect._replace(status="begin", boot=self.moment.boot, place=place, first_at=first))

    # what expressions see

    def names(self, scope: str, **more: Json) -> dict[str, Json]:
        """The names an expression may use at this place; `more` are those of the moment (output, error, key, visit)."""
        run = self.run
        names: dict[str, Json] = {
            "input": run.input,
            "vars": run.vars,
            "error": run.error,
            "states": {name: self._seen(scope, name) for name in self.plan["states"]},
            "run": {"id": run.id, "name": run.name, "version": run.version, "started_at": moment_text(run.started_at)},
            "pins": {"env": run.env},
        }
        names.update(more)
        return names

    def _seen(self, scope: str, name: str) -> dict[str, Json]:
        row = self.row(scope, name)
        seen: dict[str, Json] = {"visits": row.visits}
        if row.ended:
            seen["error"] = row.error
            seen["exit"] = row.exit
            if row.error is None:
                seen["output"] = row.output
        return seen

    def key(self, position: Position, *more: str) -> str:
        """The idempotency key of this visit: derived once, then read from where it was stored."""
        path = f"{position.scope}.{position.state}" if position.scope else position.state
        return str(uuid.uuid5(uuid.UUID(hex=self.run.namespace), "/".join((f"{path}#{position.visit}", *more))))

    # the run as a whole

    def settle_status(self) -> None:
        """Works out the status of the run from where its positions stand."""
        run = self.run
        if run.status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.PAUSED):
            return
        status, reason = status_of(self.positions())
        if run.cancel is not None and "pids" in run.cancel:
            status, reason = Status.BLOCKED, "not_stopped"
        self.set_run(status=status, reason=reason, updated_at=self.moment.now)


def status_of(positions: list[Position]) -> tuple[Status, str | None]:
    """What a run that has not ended is doing: running while anything moves, else blocked, else waiting."""
    if any(moves(p) for p in positions):
        return Status.RUNNING, None
    for p in positions:
        if p.phase is Phase.HELD:
            return Status.BLOCKED, str(p.cause)
        if p.phase is Phase.DOUBT:
            return Status.BLOCKED, "keeps_dying" if p.doubts >= 3 else "in_doubt"
    return Status.WAITING, None


def moves(p: Position) -> bool:
    """Whether something is to be done here at once. An intent that nobody drove on to (no length) is."""
    if p.phase is Phase.DELAYED:
        return p.length is None
    if p.phase is Phase.PROBING:
        return p.due is None
    return p.phase in (Phase.READY, Phase.ACTING, Phase.LOST)


@lru_cache(maxsize=16)
def moment_text(ms: int) -> str:
    from durun.plan.units import show_moment

    return show_moment(ms)

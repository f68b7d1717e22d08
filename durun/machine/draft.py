"""A move in the making: what was read, with what has changed so far laid over it, and what expressions see of both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from durun.machine import scope as scopes
from durun.machine.events import Moment
from durun.machine.model import (
    TERMINAL,
    Checkpoint,
    Effect,
    Event,
    Gone,
    Holders,
    Item,
    Move,
    Phase,
    Position,
    StateRow,
    Status,
    Undo,
    copy_of,
    count,
    holders,
    holds,
    is_active,
    moves,
    taken_away,
)
from durun.plan.canonical import Level, Plan, State
from durun.plan.digest import sha1
from durun.plan.expressions import Lazily

Json = Any
Names = Mapping[str, Json]
LIMIT = 100 * 1024  # of one value in argv or env
NONE: dict[str, int] = {}


# the names that are known at every place of a plan
ALWAYS: dict[str, None] = dict.fromkeys(("input", "vars", "error", "states", "run", "pins"))


class Evaluate(Protocol):
    """What the machine needs of an evaluator of expressions; see `plan.expressions.Evaluator`."""

    def expression(self, source: str, names: Names) -> Json: ...
    def condition(self, source: str, names: Names) -> bool: ...
    def value(self, template: Json, names: Names) -> Json: ...
    def text(self, template: Json, names: Names, *, limit: int | None = None) -> str: ...
    def argv(self, templates: list[Json], names: Names) -> list[str]: ...


class Draft:
    """One decision in the making. Reads fall through to the checkpoint; writes go to the move."""

    __slots__ = ("_holders", "_levels", "_runs", "at", "evaluate", "moment", "move", "plan", "run", "todo", "touched")

    def __init__(self, plan: Plan, at: Checkpoint, moment: Moment, evaluate: Evaluate) -> None:
        self.plan = plan
        self.at = at
        self.moment = moment
        self.evaluate = evaluate
        self.run = at.run
        self.move = Move(at.run)
        self.touched: set[str] = set()  # paths of states inside which something has changed, since whoever looks last looked
        self.todo: list[str] = []  # scopes that stand READY and are to be walked on in this move
        self._holders: Holders | None = None
        self._levels: dict[str, Level] = {"": plan}
        self._runs: dict[str, tuple[Json, dict[str, Json]]] = {}  # scope of a plan -> (its child, `run` there)

    # reads

    def position(self, scope: str) -> Position:
        found = self.move.positions.get(scope) or self.found(scope)
        if found is None:
            raise KeyError(scope)
        return found

    def found(self, scope: str) -> Position | None:
        """The position of a scope, where it has one."""
        move = self.move
        if scope in move.positions:
            return move.positions[scope]
        if (move.fresh or move.gone) and taken_away(move, scope):
            return None
        return self.at.positions.get(scope)

    def positions(self) -> list[Position]:
        changed = self.move.positions
        if not changed and not self.move.fresh and not self.move.gone:
            return list(self.at.positions.values())
        kept = [p for scope, p in self.at.positions.items() if scope not in changed and not taken_away(self.move, scope)]
        return kept + [p for p in changed.values() if p is not None]

    def active(self) -> list[Position]:
        """The positions that have not failed or ended."""
        changed = self.move.positions
        kept = [p for scope, p in self.at.active.items() if scope not in changed and not taken_away(self.move, scope)]
        return kept + [p for p in changed.values() if p is not None and is_active(p)]

    def delayed(self) -> list[Position]:
        """The positions whose effect waits to begin."""
        changed = self.move.positions
        kept = [p for scope, p in self.at.delayed.items() if scope not in changed and not taken_away(self.move, scope)]
        return kept + [p for p in changed.values() if p is not None and p.phase is Phase.DELAYED]

    def stands(self, position: Position) -> bool:
        """Whether all that is around a position still stands where it holds it. What did not succeed inside a state that the run
        has left stays until that state is entered anew, and is nobody's."""
        around = ((part, self.found(part.scope)) for part in scopes.parts(position.scope))
        return all(outer is not None and outer.state == part.state for part, outer in around)

    def level(self, scope: str) -> Level:
        found = self._levels.get(scope)
        if found is None:
            found = self._levels[scope] = scopes.level(self.plan, scope, self._levels)
        return found

    def state(self, position: Position) -> State:
        if position.left is not None:
            return position.left["state"]["compensate"]  # type: ignore[no-any-return]
        level = self._levels.get(position.scope) or self.level(position.scope)
        return level["states"][position.state]

    def row(self, scope: str, name: str) -> StateRow:
        key, move = (scope, name), self.move
        found = move.states.get(key)
        if found is None and scope and (move.fresh or move.gone) and taken_away(move, scope):
            return StateRow(scope, name)
        return found or self.at.states.get(key) or StateRow(scope, name)

    def item(self, path: str, no: int) -> Item:
        """A branch or item of the state at this path."""
        return self.move.items.get((path, no)) or self.items(path)[no]

    def items(self, path: str) -> list[Item]:
        """The branches or items of a state, as they were read; `item` and `items_now` have what changed since."""
        return self.move.fresh[path] if path in self.move.fresh else self.at.items.get(path, [])

    def items_now(self, path: str) -> list[Item]:
        """All branches or items of a state, in their order."""
        found = list(self.items(path))
        for (of, no), item in self.move.items.items():
            if of == path:
                found[no] = item
        return found

    def effect(self, no: int) -> Effect:
        return self.move.effects.get(no) or self.at.effects[no]

    # writes

    def set_run(self, **changes: Any) -> None:
        self.run = self.move.run = self.run._replace(**changes)

    def put(self, position: Position) -> Position:
        stood = self.move.positions.get(position.scope) or self.found(position.scope)
        # what the scope has set and caught is changed by `set_vars` and `set_error` alone
        if stood is not None and not (stood.vars is position.vars and stood.error is position.error):
            position = position._replace(vars=stood.vars, error=stood.error)
        return self._put(position, stood)

    def _put(self, position: Position, stood: Position | None) -> Position:
        scope = position.scope
        if scope:
            self.touched.update(scopes.paths(scope))
            held, holding = stood is not None and holds(stood), holds(position)
            if held is not holding:
                count(self.holders(), scope, 1 if holding else -1)
        self.move.positions[scope] = position
        return position

    def drop(self, scope: str) -> None:
        """A branch, item or child that has ended leaves nothing behind but its result."""
        stood, move = self.found(scope), self.move
        self.touched.update(scopes.paths(scope))
        if stood is not None and holds(stood):
            count(self.holders(), scope, -1)
        below = scopes.below(scope)
        for key in [key for key in move.states if key[0] == scope or key[0].startswith(below)]:
            del move.states[key]
        for inner in [s for s in move.positions if s == scope or s.startswith(below)]:
            del move.positions[inner]
        inner_paths = {p for p in (*move.fresh, *self.at.items) if p.startswith(below)}
        rows = None if inner_paths or self.at.deep else self.at.within.get(scope, ())
        move.gone[scope] = Gone(rows, bool(inner_paths)).after(move.gone.get(scope))
        if not inner_paths:
            return
        for path in inner_paths & set(move.fresh):
            del move.fresh[path]
        for held in [key for key in move.items if key[0] in inner_paths]:
            del move.items[held]
        self._holders = holders(self.active())

    def go(self, scope: str, target: str) -> None:
        """On to a state, in this move."""
        p = self.position(scope)
        self._put(p._replace(phase=Phase.READY, target=target, effect=None, asking=None, due=None, length=None), p)
        self.todo.append(scope)

    def enclose(self, position: Position, items: list[Item]) -> None:
        """What a state holds from now on; what it held before is taken away, and what this move has changed of that."""
        path, scope, move = scopes.path_of(position.scope, position.state), position.scope, self.move
        floor = self.position(scopes.parts(scope)[-1].scope).floor if scope else 0
        # failed items that are taken up again go on above the visits of all, with what they held
        if position.visit > floor + 1 or self.position("").back_to is not None:
            move.fresh = {held: found for held, found in move.fresh.items() if not scopes.inside(held, path)}
            move.states = {key: row for key, row in move.states.items() if not scopes.inside(key[0], path)}
            move.items = {key: i for key, i in move.items.items() if key[0] != path and not scopes.inside(key[0], path)}
            move.positions = {inner: p for inner, p in move.positions.items() if not scopes.inside(inner, path)}
        move.fresh[path] = items
        self._holders = holders(self.active())

    def put_item(self, item: Item) -> None:
        self.move.items[item.path, item.no] = item

    def put_row(self, row: StateRow) -> None:
        self.move.states[row.scope, row.state] = row

    def put_effect(self, effect: Effect) -> Effect:
        self.move.effects[effect.no] = effect
        return effect

    def put_undo(self, undo: Undo) -> None:
        self.move.undos[undo.effect] = undo

    def put_undo_status(self, effect: int, status: str, by: int | None) -> None:
        self.move.undo_status[effect] = (status, by)

    def tell(self, kind: str, position: Position | None, attempt: int | None = None, **data: Json) -> None:
        """A row of the history; what is empty in `data` is left out."""
        if data:
            data = {k: v for k, v in data.items() if v or (v is not None and v not in ("", {}))}
        scope, state, visit = (position.scope, position.state, position.visit) if position else ("", None, None)
        self.move.history.append(Event(kind, scope, state, visit, attempt, data))

    def new_effect(self, position: Position, kind: str, key: str, request: Json, attempt: int = 1) -> Effect:
        """An intent: to begin now where somebody drives on, else waiting."""
        no = self.run.next_effect
        self.set_run(next_effect=no + 1)
        scope, state, visit, *_ = position
        return self.issue(Effect(no, scope, state, visit, kind, key, request, "waiting", attempt, intended_at=self.moment.now))

    def issue(self, effect: Effect) -> Effect:
        """The intent as it stands here: bound to this boot and place, or left waiting for whoever drives on."""
        place = self.moment.place
        if place is None or not self.fits(effect.scope) or not self._admitted(effect):
            return self.put_effect(effect._replace(status="waiting", boot=None, place=None))
        self.move.begin.append(effect.no)
        first = effect.first_at if effect.first_at is not None else self.moment.now
        return self.put_effect(effect._replace(status="begin", boot=self.moment.boot, place=place, first_at=first))

    def _admitted(self, effect: Effect) -> bool:
        """Whether the limit of its state, where it has one, has a place for it."""
        if "limits" not in self.plan:
            return True
        from durun.machine import limits

        return limits.admits(self, effect)

    # what expressions see

    def names(self, scope: str, **more: Json) -> Lazily:
        """The names an expression may use at this place; `more` are those of the moment (output, error, key, visit).

        Each is worked out when an expression reads it, so they are good until this move changes something.
        """
        given: dict[str, Json] = {}
        for part in scopes.own(scope):
            stands = self.found(part.inner) if part.kind == "item" else None
            if stands is not None:
                nth = stands.nth or 0
                given["item"], given["index"] = self.item(part.path, nth).item, nth
        given.update(more)
        return self.names_with(scope, given)

    def names_with(self, scope: str, given: dict[str, Json]) -> Lazily:
        """The same, where those are `given` that are not known everywhere."""
        return Lazily(ALWAYS, lambda name: self._named(scope, name), given)

    def _named(self, scope: str, name: str) -> Json:
        """What a name that is known everywhere stands for."""
        match name:
            case "vars":
                return self.vars(scope)
            case "states":
                return self._states(scope)
            case "error":
                return self._error(scope)
            case "pins":
                return {"env": {name: self.run.env[name] for name in scopes.plan_of(self.plan, scope)["pins"]["env"]}}
        child = self.child(scope)
        if name == "input":
            return child["input"] if child else self.run.input
        return self._run_of(scopes.plan_scope(scope), child)

    def _run_of(self, home: str, child: Json) -> dict[str, Json]:
        """`run`, as it is in all scopes of a plan: every command asks for it. A child that is called again is another one."""
        of, found = self._runs.get(home, (None, None))
        if found is None or of is not child:
            plan = scopes.plan_of(self.plan, home)
            found = {
                "id": child["id"] if child else self.run.id,
                "name": plan["name"],
                "version": plan["version"],
                "started_at": moment_text(child["started_at"] if child else self.run.started_at),
            }
            self._runs[home] = child, found
        return found

    def child(self, scope: str) -> Json:
        """The child plan that a scope belongs to, None where it belongs to the run's own."""
        home = scopes.plan_scope(scope)
        return self.position(home).child if home else None

    def vars(self, scope: str) -> dict[str, Json]:
        """The vars as a scope sees them: those of its plan, over them what the scopes around it and it itself have set."""
        home = scopes.plan_scope(scope)
        seen: dict[str, Json] = self.position(home).vars if home else self.run.vars
        if home == scope:
            return seen
        seen = dict(seen)
        for part in scopes.own(scope):
            stands = self.found(part.inner)
            seen.update((stands.vars if stands is not None else None) or {})
        return seen

    def types(self, scope: str) -> dict[str, str]:
        """The type each var keeps."""
        home = scopes.plan_scope(scope)
        return self.position(home).child["types"] if home else self.run.types  # type: ignore[no-any-return]

    def set_vars(self, scope: str, values: dict[str, Json]) -> None:
        """Sets vars where a scope keeps them: what a branch or item sets stays inside."""
        if not scope:
            self.set_run(vars={**self.run.vars, **values})
        else:
            p = self.position(scope)
            self._put(p._replace(vars={**(p.vars or {}), **values}), p)

    def set_error(self, scope: str, error: Json) -> None:
        """The last error that a catch took."""
        if not scope:
            self.set_run(error=error)
        else:
            p = self.position(scope)
            self._put(p._replace(error=error), p)

    def _error(self, scope: str) -> Json:
        home = scopes.plan_scope(scope)
        found = self.position(home).error if home else self.run.error
        for part in scopes.own(scope):
            inner = self.found(part.inner)
            found = inner.error if inner is not None and inner.error is not None else found
        return found

    def _states(self, scope: str) -> Lazily:
        """The states that can be read from here: those of this scope, then those around it."""
        where: dict[str, str] = {}
        for outer in (scopes.plan_scope(scope), *(part.inner for part in scopes.own(scope))):
            where.update(dict.fromkeys(self.level(outer)["states"], outer))
        return Lazily(where, lambda name: self._seen(where[name], name))

    def _seen(self, scope: str, name: str) -> Lazily | dict[str, Json]:
        row, kind = self.row(scope, name), self.level(scope)["states"][name]["kind"]
        seen: dict[str, Json] = {"visits": row.visits}
        if row.ended:
            seen["error"] = row.error
            seen["exit"] = row.exit
            if row.error is None:
                seen["output"] = row.output
        if row.child is not None:
            seen["run"] = row.child
        if kind not in ("parallel", "map") or not row.ended:
            return seen
        path = scopes.path_of(scope, name)
        return Lazily({**seen, "items": None}, lambda word: self.results(path) if word == "items" else seen[word])

    def results(self, path: str) -> list[Json]:
        """`states.NAME.items`: what became of each branch or item."""
        return [
            {"index": i.no, "item": i.item, "label": i.label, "status": i.status, "output": i.output, "error": i.error}
            for i in self.items_now(path)
        ]

    def key(self, position: Position, *more: str) -> str:
        """The idempotency key of this visit: derived once, then read from where it was stored."""
        return self._derived(position.scope, position.state, position.visit, *more)

    def key_inside(self, outer: Position, label: str, state: str, visit: int) -> str:
        """The same of a visit in an item of a map in which nothing else stands: its plan is the run's own."""
        return uuid5(self.run.namespace, f"{outer.state}#{outer.visit}[{label}].{state}#{visit}")

    def _derived(self, scope: str, name: str, visit: int, *more: str) -> str:
        """UUIDv5 over the path with the visits of all states around it, in the namespace of the run or the child."""
        home = scopes.plan_scope(scope)
        namespace = self.position(home).child["namespace"] if home else self.run.namespace
        around = ""
        for part in scopes.own(scope):
            visits = f"{part.state}#{self.position(part.scope).visit}"
            around += f"{visits}[{part.name}]." if part.kind == "item" else f"{visits}.{part.name}."
        return uuid5(namespace, "/".join((f"{around}{name}#{visit}", *more)))

    # places

    def holders(self) -> Holders:
        """Who holds a place, as it stands in this move; asked for before a position changes that."""
        if self._holders is None:
            changed = self.move.fresh or self.move.gone
            self._holders = holders(self.active()) if changed else copy_of(self.at.holders)
        return self._holders

    def fits(self, scope: str) -> bool:
        return not scope or fits(self.plan, self.holders(), scope)

    # the run as a whole

    def settle_status(self) -> None:
        """Works out the status of the run from where its positions stand."""
        run = self.run
        if run.status in TERMINAL or run.status is Status.PAUSED:
            return
        if run.undoing is not None:
            status, reason = status_of([p for p in self.positions() if p.scope.endswith("~")])
            if status is not Status.BLOCKED:
                failed = run.undoing["failed"]
                status, reason = (Status.BLOCKED, "undo_failed") if failed else (Status.COMPENSATING, None)
        else:
            touched = any(p is not None and moves(p) for p in self.move.positions.values())
            status, reason = (Status.RUNNING, None) if touched else status_of(self.active())
        if run.held_up():
            status, reason = Status.BLOCKED, "drift"
        if run.cancel is not None and "pids" in run.cancel:
            status, reason = Status.BLOCKED, "not_stopped"
        # the time is the same one, or it is not: a time that is not known yet cannot be compared
        if status is not run.status or reason != run.reason or self.moment.now is not run.updated_at:
            self.set_run(status=status, reason=reason, updated_at=self.moment.now)


def status_of(positions: list[Position]) -> tuple[Status, str | None]:
    """What a run that has not ended is doing: running while anything moves, else blocked, else waiting."""
    for p in positions:
        if moves(p):
            return Status.RUNNING, None
    for p in positions:
        if p.phase is Phase.HELD:
            return Status.BLOCKED, reason_of(p.cause)
        if p.phase is Phase.DOUBT:
            return Status.BLOCKED, "keeps_dying" if p.doubts >= 3 else "in_doubt"
    return Status.WAITING, None


def reason_of(cause: Json) -> str:
    """Why something cannot be begun, in one word."""
    return str(cause["name"] if isinstance(cause, dict) else cause)


def fits(plan: Plan, found: Holders, scope: str) -> bool:
    """Whether an effect may begin here now: in every map and parallel around it there is a place for its item or branch. There is
    one undo at a time, and what it undoes may have stood in a state that the plan has no more."""
    if scope.endswith("~"):
        return True
    for part in scopes.parts(scope):
        if part.kind == "once":
            continue
        most = policy(scopes.level(plan, part.scope)["states"][part.state]).get("concurrency")
        if most is None:
            continue
        inside = found.get(part.path, NONE)
        if len(inside) - (part.inner in inside) >= most:
            return False
    return True


def policy(state: State) -> dict[str, Json]:
    """What a state says of the branches or items it holds; nothing where it is a child."""
    return state.get("map") or state.get("parallel") or {}  # type: ignore[return-value]


def uuid5(namespace: str, name: str) -> str:
    """A UUID of version 5 (RFC 9562, 5.5) in a namespace of 32 hex digits; to import `uuid` costs an interpreter start."""
    raw = bytearray(sha1(bytes.fromhex(namespace) + name.encode(), usedforsecurity=False).digest()[:16])
    raw[6], raw[8] = raw[6] & 0x0F | 0x50, raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@lru_cache(maxsize=16)
def moment_text(ms: int) -> str:
    from durun.plan.units import show_moment

    return show_moment(ms)

"""What a run took with it: what of it is different now, and whether the run may move to another plan. Pure.

What lies on disk and what tools say is handed in; nothing here is written.

Rules:
- a run goes on with what it took; what differs on disk is said, and changes nothing
- a tool has drifted if it says something else than what is pinned of it, or says nothing any more
- a run moves to another plan as a whole or not at all, while nothing of it is under way and nothing is in doubt
- where it stands must be a state of the new plan of the same kind, under its own name or the one it is mapped to; a var keeps its
  value where that fits, a new one has its first value
- visits are counted on: a state that was under way and is not known as done is entered anew, with a new visit and so a new key; a
  wait that is the same goes on, a question whose text is the same stands
- what the new plan reads must be there: no state may be read that this run has not been through, on any way from where it stands
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from durun.errors import ExpressionError, NotPossible, PlanRefused
from durun.machine import asks, clock, doubt, fan, message, walk
from durun.machine import scope as scopes
from durun.machine.draft import Draft, Evaluate
from durun.machine.events import Moment
from durun.machine.model import TERMINAL, Checkpoint, Gone, Move, Phase, Position, StateRow, Status
from durun.machine.outcome import DONE, IN_DOUBT, NOT_CERTAIN
from durun.plan.canonical import ENDS, Level, Plan, State
from durun.plan.names import quoted
from durun.values import NamedTuple

Json = Any
Words = dict[str, Json]  # name of a tool -> {said: …} or {failed: …}
CONTAINERS = ("parallel", "map", "plan")
BARE = ("when", "until", "if", "items")


# --- drift ---


def drifted(pinned: Words, now: Words) -> list[Json]:
    """[{tool, was, now}] of the tools that say something else than is pinned of them; both sides are {said} or {failed}."""
    found = []
    for name, before in pinned.items():
        was = {key: value for key, value in before.items() if key != "seen"}
        if was != now[name]:
            found.append({"tool": name, "was": was, "now": now[name]})
    return found


def changed(pinned: Mapping[str, str], now: Mapping[str, str | None]) -> str:
    """In one line how files on disk differ from what was taken: path -> SHA-256, None where one is gone. '' where none does."""
    gone = [path for path in pinned if now[path] is None]
    other = [path for path, was in pinned.items() if now[path] is not None and now[path] != was]
    said = [f"{scopes.some(other)} {'has' if len(other) == 1 else 'have'} changed"] if other else []
    said += [f"{scopes.some(gone)} {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    return " and ".join(said)


# --- from one plan to another ---


class Wants(NamedTuple):
    """What a person says of a migration: old place -> new name, and var -> value, which may hold expressions over the old vars."""

    map: dict[str, str]
    set: dict[str, Json]
    by: str = ""
    env: Json = None  # pins.env as it is now
    tools: Json = None


class Migration(NamedTuple):
    move: Move
    input: Json
    types: dict[str, str]
    report: dict[str, Json]


def by_plan(new: Plan, version: str, given: Wants) -> Wants:
    """What the new plan says of runs of this version, under what a person says."""
    for entry in new.get("migrations", []):
        if version in entry["from"]:
            return given._replace(map={**entry["map"], **given.map}, set={**entry["set"], **given.set})
    return given


def migrate(old: Plan, new: Plan, at: Checkpoint, given: Wants, moment: Moment, evaluate: Evaluate) -> Migration:
    """The move to another plan. Raises NotPossible where the run cannot be moved now, PlanRefused where it cannot to this plan."""
    refuse_now(at, "migrated")
    if new["name"] != old["name"]:
        raise PlanRefused(f"run {at.run.id} is of the plan {old['name']}, and this is {new['name']}: another plan is another run")
    return _Mover(old, new, at, given, moment, evaluate).done()


def refuse_now(at: Checkpoint, word: str) -> None:
    """Raises NotPossible where something of a run is under way or in doubt, or it has ended for good."""
    run, where = at.run, f"run {at.run.id}"
    if run.status in TERMINAL and run.status is not Status.FAILED:
        raise NotPossible(f"{where} has ended: it is {run.status}; nothing was changed")
    if run.restored is not None:
        raise NotPossible(f"{where} is blocked (restored): first `durun resume {run.id} --after-restore`; nothing was changed")
    if run.undoing is not None or run.cancel is not None:
        raise NotPossible(f"{where} is being {'undone' if run.undoing is not None else 'stopped'}; nothing was changed")
    for p in at.positions.values():
        path = scopes.path_of(p.scope, p.state)
        no = p.asking if p.phase is Phase.PROBING else p.effect
        if p.phase in (Phase.LOST, Phase.DOUBT, Phase.PROBING):
            way = f"`durun resolve {run.id} {quoted(path)} --happened | --retry | --fail`, or `durun resume {run.id}`"
            raise NotPossible(f"{where}: whether {path} happened is not known: {way}; nothing was changed")
        if p.phase is Phase.ACTING or (no in at.effects and at.effects[no].status == "begin"):
            said = f"{path} is under way: `durun pause {run.id}` first, and once it has ended it can be {word}"
            raise NotPossible(f"{where}: {said}; nothing was changed")


def static(scope: str, state: str) -> str:
    """The path of a state in a plan: as that of a run, without the labels of items."""
    out = "".join(
        part.state + {"item": "[].", "child": "/", "branch": f".{part.name}."}.get(part.kind, "~") for part in scopes.parts(scope)
    )
    return out + state


class _Mover:
    """One migration in the making."""

    def __init__(self, old: Plan, new: Plan, at: Checkpoint, given: Wants, moment: Moment, evaluate: Evaluate) -> None:
        self.old, self.new, self.at, self.given, self.evaluate = old, new, at, given, evaluate
        self.id = at.run.id
        self.d = Draft(new, at, moment, evaluate)
        self.told: list[dict[str, Json]] = []  # what becomes of each position
        self.goes: list[tuple[str, str]] = []  # (scope, state) to be entered anew
        self.before = {path: (state, at_) for path, state, at_ in _flat(old, "", "")}
        self.after = {path: (state, at_) for path, state, at_ in _flat(new, "", "")}

    def done(self) -> Migration:
        self._check_map()
        input, first = self._input()
        vars, types = self._vars(first)
        run = self.at.run
        self.d.set_run(
            version=self.new["version"], input=input, vars=vars, types=types, env=self.given.env or {}, tools=self.given.tools,
            drift=None, updated_at=self.d.moment.now,
        )  # fmt: skip
        dropped = sorted(set(run.vars) - set(vars))
        set_now = {name: value for name, value in vars.items() if name not in run.vars or run.vars[name] != value}
        self.d.tell(
            "migrated", None, None, by=self.given.by, version=self.new["version"], before=run.version, map=self.given.map,
            vars=set_now, dropped=dropped,
        )  # fmt: skip
        moved = [p for p in self.at.positions.values() if self._stays(p)]  # before the items of what has another name are
        self._rows()
        self._items()
        for p in sorted(moved, key=lambda p: (len(scopes.parts(p.scope)), p.scope)):
            self._place(p)
        self._questions()
        self._references()
        if self.new.get("timeout") != self.old.get("timeout"):
            clock.fresh(self.d)
        self._walk()
        report = self._report(set_now, dropped)
        return Migration(self.d.move, input, types, report)

    def _refuse(self, why: str) -> PlanRefused:
        return PlanRefused(f"run {self.id} cannot be migrated: {why}; nothing was changed")

    # data

    def _check_map(self) -> None:
        into: set[str] = set()
        for path, name in self.given.map.items():
            if path not in self.before:
                raise self._refuse(f"--map {path}={name}: its plan has no state {path}; it has {scopes.some(list(self.before))}")
            level = scopes.level(self.new, self._moved(self.before[path][1]))
            if name not in level["states"]:
                raise self._refuse(
                    f"--map {path}={name}: there is no state {name} there; there are {scopes.some(list(level['states']))}"
                )
            if _head(path) + name in into:
                raise self._refuse(f"--map {path}={name}: another state is mapped to {name} already")
            into.add(_head(path) + name)

    def _input(self) -> tuple[Json, Json]:
        """The input as the new plan has it, and the first values of its vars."""
        from durun.plan.schema import input_values

        kept = {name: value for name, value in self.at.run.input.items() if name in self.new["input"]}
        try:
            input = input_values(self.new, kept)
            return input, self.evaluate.value(self.new["vars"], {"input": input})
        except PlanRefused as e:
            raise self._refuse(f"its input does not fit the new plan: {e}") from None
        except ExpressionError as e:
            raise self._refuse(f"the first values of vars: {e}") from None

    def _vars(self, first: dict[str, Json]) -> tuple[dict[str, Json], dict[str, str]]:
        from durun.plan.schema import validate

        for name in self.given.set:
            if name not in first:
                raise self._refuse(f"--set {name}: the new plan has no var {name}")
        names = {"vars": self.at.run.vars, "input": self.at.run.input}
        try:
            given = {name: self.evaluate.value(value, names) for name, value in self.given.set.items()}
        except ExpressionError as e:
            raise self._refuse(f"what is set: {e}") from None
        vars, types = self._kept(self.at.run.vars, first, given)
        if "vars_schema" in self.new and (problem := validate(self.new["vars_schema"], vars)):
            raise self._refuse(f"its vars would not fit vars_schema: {problem}; give them with --set")
        return vars, types

    def _kept(self, before: Json, first: Json, given: Json) -> tuple[dict[str, Json], dict[str, str]]:
        """Vars under a new plan, and their types: what is given, else what it was, else the first value."""
        from durun.plan.schema import kind

        types = {name: "any" if value is None else kind(value) for name, value in first.items()}
        vars = {name: given.get(name, before.get(name, value)) for name, value in first.items()}
        for name, value in vars.items():
            if types[name] not in ("any", kind(value)):
                said = f"vars.{name} is of the type {types[name]} in the new plan, and would be {kind(value)}"
                raise self._refuse(f"{said}: give it with --set {name}=VALUE")
        return vars, types

    # places

    def _name(self, scope: str, state: str) -> str:
        return self.given.map.get(static(scope, state), state)

    def _moved(self, scope: str) -> str:
        """A scope under the new plan: the same branches, items and children of the states that hold them."""
        outer = ""
        for part in scopes.parts(scope):
            name, was = self._name(part.scope, part.state), scopes.level(self.old, part.scope)["states"][part.state]
            state = scopes.level(self.new, outer)["states"].get(name)
            path = scopes.path_of(outer, name)
            if state is None:
                raise self._refuse(f"it stands inside {part.path}, which the new plan has not: say with --map where it is now")
            if state["kind"] != was["kind"]:
                raise self._refuse(f"it stands inside {part.path}, which is a {was['kind']}, and {path} is a {state['kind']}")
            if part.kind == "branch":
                names = [[b["name"] for b in one["parallel"]["branches"]] for one in (was, state)]
                if names[0] != names[1]:
                    raise self._refuse(f"it stands inside {part.path}, whose branches are others in the new plan")
                outer = scopes.branch(path, part.name)
            else:
                outer = scopes.item(path, part.name) if part.kind == "item" else scopes.child(path)
        return outer

    def _stays(self, p: Position) -> bool:
        """Whether a position goes along; what is left behind inside a state that was left is nobody's, and goes."""
        if self.d.stands(p):
            return True
        self.d.drop(p.scope)
        return False

    def _rows(self) -> None:
        """What is remembered of each state goes with its name; visits are never counted from the start again."""
        made: dict[tuple[str, str], StateRow] = {}
        for (scope, name), row in self.at.states.items():
            p = self.at.positions.get(scope)
            if scope and (p is None or not self.d.stands(p)):
                continue
            to = (self._moved(scope), self._name(scope, name))
            if to == (scope, name):
                continue
            other = made.get(to) or (self.at.states.get(to) if self._name(*to) == to[1] else None) or StateRow(*to)
            kept = row if row.ended or not other.ended else other
            there = self.at.states.get(to, other)  # also where it has another name now: its keys had this one in them
            most, peak = max(row.visits, other.visits, there.visits), max(row.peak, other.peak, there.peak)
            made[to] = kept._replace(scope=to[0], state=to[1], visits=most, peak=peak)
        for row in made.values():
            self.d.put_row(row)

    def _items(self) -> None:
        paths: dict[str, str] = {}
        for path in self.at.items:
            scope, name = fan.split(path)
            p = self.at.positions.get(scope)
            if not scope or (p is not None and self.d.stands(p)):
                paths[path] = scopes.path_of(self._moved(scope), self._name(scope, name))
        for path, to in paths.items():
            if path != to:
                self.d.move.fresh.setdefault(path, [])
                self.d.move.fresh[to] = [item._replace(path=to) for item in self.at.items[path]]
        self.d._holders = None  # who holds a place is counted anew, under the new names

    def _place(self, p: Position) -> None:
        """One position under the new plan."""
        scope, name = self._moved(p.scope), self._name(p.scope, p.state)
        level, path = scopes.level(self.new, scope), scopes.path_of(p.scope, p.state)
        if scope != p.scope:
            self.d.move.gone[p.scope] = Gone(None, items=True)
        p = self._inner_data(p, scope)
        goes_to = p.target if p.phase in (Phase.READY, Phase.FAILED) else None
        target = self._name(p.scope, goes_to) if goes_to is not None and goes_to not in ENDS else goes_to
        wanted = target if target is not None and target not in ENDS else name
        if wanted not in level["states"]:
            known = scopes.some(list(level["states"]))
            raise self._refuse(
                f"it stands in {path}, which the new plan has not: --map {quoted(static(p.scope, p.state))}=STATE; it has {known}"
            )
        was, state = scopes.level(self.old, p.scope)["states"][p.state], level["states"][wanted]
        name = name if name in level["states"] else wanted
        stands = p._replace(scope=scope, state=name, effect=None, asking=None, floor=self._floor(p, scope, name))
        match p.phase:
            case Phase.INSIDE:
                self._same_kind(path, was, state)
                self._put(stands, "kept")
            case Phase.ENDED:
                self._put(stands, "kept")
            case Phase.FAILED if was["kind"] in CONTAINERS and p.total and p.target is None:
                self._same_kind(path, was, state)
                self._put(stands, "kept")
            case Phase.FAILED:
                self._safe(p, path)
                self._put(stands._replace(target=target or wanted, failures=(), unsure=False, until=None, window=None), "anew")
            case Phase.WAITING | Phase.LISTENING if _bare(was) == _bare(state):
                self._put(stands, "kept")
            case Phase.ASKED if (scope, name) == (p.scope, p.state) and state["kind"] == "approval":
                self._put(stands, "asked")
            case Phase.QUEUED if "group" in p.wants:
                self._put(stands._replace(target=target or wanted), "kept")
            case Phase.READY:
                self._put(stands, "goes on")
                self.goes.append((scope, target or wanted))
            case _:
                self._safe(p, path)
                self._withdraw(self._old(p))
                self._anew(stands, wanted)

    def _floor(self, p: Position, scope: str, name: str) -> int:
        """The visits that are used up inside what a state holds, also by what had its new name, or that of a state around it."""
        if not p.total:
            return p.floor
        there = self.at.states.get((scope, name)) if (scope, name) != (p.scope, p.state) else None
        return max(p.floor, there.peak if there is not None else 0, walk.floor_of(self.d, scope))

    def _withdraw(self, p: Position) -> None:
        """What it waits to begin never will be, as the old plan sees it."""
        old = Draft(self.old, self.at, self.d.moment, self.evaluate)
        old.move = self.d.move
        fan.withdraw(old, p)

    def _old(self, p: Position) -> Position:
        return self.at.positions[p.scope]

    def _put(self, p: Position, how: str) -> None:
        self.d._put(p, self.d.found(p.scope))
        self.told.append({"path": scopes.path_of(p.scope, p.target if how == "anew" and p.target else p.state), "how": how})

    def _anew(self, p: Position, state: str) -> None:
        """The state is entered anew: a new visit, and with it a new key."""
        mine = {"nth": p.nth, "vars": p.vars, "error": p.error, "child": p.child}
        fresh = Position(p.scope, p.state, p.visit, Phase.READY, target=state, entered_at=self.d.moment.now, **mine)
        self._put(fresh, "anew")
        self.told[-1]["path"] = scopes.path_of(p.scope, state)
        self.goes.append((p.scope, state))

    def _same_kind(self, path: str, was: State, state: State) -> None:
        if was["kind"] != state["kind"]:
            raise self._refuse(f"it stands inside {path}, which is a {was['kind']}, and would be a {state['kind']}")

    def _safe(self, p: Position, path: str) -> None:
        """What may have happened is not begun again with another key, unless its plan says that it may be repeated."""
        effect = self.at.effects.get(p.effect) if p.effect is not None else None
        if effect is None or not (p.unsure or effect.status in (NOT_CERTAIN, IN_DOUBT, DONE)) or "poll" in self._state_of(p):
            return
        row = self.at.states.get((p.scope, p.state))
        if row is not None and (row.error or {}).get("name") == "unresolved":
            return  # a person has said that it did not happen
        if not doubt.idempotent(Draft(self.old, self.at, self.d.moment, self.evaluate), self._old(p)):
            said = "has happened" if effect.status == DONE else "may have happened"
            way = f"`durun resolve {self.id} {quoted(path)} --happened` or `durun resume {self.id}` first"
            raise NotPossible(f"run {self.id}: {path} {said}, and a new visit would have another key: {way}; nothing was changed")

    def _state_of(self, p: Position) -> State:
        return scopes.level(self.old, p.scope)["states"][p.state]

    def _inner_data(self, p: Position, scope: str) -> Position:
        """What a branch, item or child keeps of its own."""
        if p.child is not None:
            return self._child(p, scope)
        if not p.vars:
            return p
        plan = scopes.plan_of(self.new, scope)
        return p._replace(vars={name: value for name, value in p.vars.items() if name in plan["vars"]})

    def _child(self, p: Position, scope: str) -> Position:
        from durun.plan.schema import input_values

        plan: Plan = scopes.level(self.new, scope)  # type: ignore[assignment]
        try:
            input = input_values(plan, {k: v for k, v in p.child["input"].items() if k in plan["input"]})
            first = self.evaluate.value(plan["vars"], {"input": input})
        except (PlanRefused, ExpressionError) as e:
            raise self._refuse(f"the plan that {scope[:-1]} calls: {e}") from None
        vars, types = self._kept(p.vars or {}, first, {})
        return p._replace(vars=vars, child={**p.child, "input": input, "types": types})

    def _questions(self) -> None:
        """A question stands where its text is the same; else it is asked anew."""
        for p in [p for p in self.d.positions() if p.phase is Phase.ASKED]:
            stands = next(told for told in self.told if told["path"] == scopes.path_of(p.scope, p.state))
            try:
                same = asks.shown(self.d, p, self.d.state(p)) == p.wants
            except ExpressionError as e:
                raise self._refuse(f"what {stands['path']} asks: {e}") from None
            stands["how"] = "kept"
            if not same:
                self.told.remove(stands)
                self._anew(p, p.state)

    def _walk(self) -> None:
        """Enters what is entered anew, and leaves what it would begin waiting."""
        from durun.machine import limits  # not for whoever only resumes

        failed = self.at.run.status is Status.FAILED
        if not failed:
            for scope, state in self.goes:
                self.d.go(scope, state)
            walk.run_on(self.d)
        limits.settle(self.d)  # also where the new plan has none: who waited for a place waits no more
        self.d.settle_status()
        clock.settle(self.d)
        message.notify(self.d)
        if not failed and self.d.run.status in TERMINAL and self.d.run.status is not Status.SUCCEEDED:
            error = self.d.run.ended_by or {}
            raise self._refuse(f"it would end at once: {error.get('name')}: {error.get('message')}")

    # what is read

    def _references(self) -> None:
        """No state may be read that this run has not been through, on any way from where it stands."""
        for p in self.d.positions():
            level = scopes.level(self.new, p.scope)
            start = p.target if p.phase in (Phase.READY, Phase.FAILED) and p.target is not None else p.state
            if start in ENDS or p.phase is Phase.ENDED:
                continue
            ended = {name for name in level["states"] if self.d.row(p.scope, name).ended and name != start}
            for name, read in unread(level, start, ended):
                path = scopes.path_of(p.scope, name) if name else "its output"
                why = f"{path} reads {read}, and this run has not been through {read.split('.')[1]} on some way to there"
                raise self._refuse(f"{why}; --map STATE={start} says which of its states that was")

    # what a person is told

    def _renamed(self, path: str) -> str | None:
        """The static path of a state in the new plan; None where what is around it is there no more."""
        scope = self.before[path][1]
        try:
            return static(self._moved(scope), self._name(scope, path[len(_head(path)) :]))
        except PlanRefused:
            return None

    def _report(self, set_now: Json, dropped: list[str]) -> dict[str, Json]:
        before, after = self.before, self.after
        same = {path: to for path in before if (to := self._renamed(path)) is not None and to in after}
        differ = [path for path, to in same.items() if _bare(before[path][0]) != _bare(after[to][0])]
        ended = {static(*key) for key, row in self.at.states.items() if row.ended and row.error is None}
        return {
            "states": {
                "added": [path for path in after if path not in same.values()],
                "removed": [path for path in before if path not in same],
                "changed": differ,
                "done": [path for path in differ if path in ended],
            },
            "vars": {"set": set_now, "dropped": dropped},
            "positions": self.told,
        }


def _head(path: str) -> str:
    """What of a static path stands before the name of its state."""
    return path[: max(path.rfind("."), path.rfind("/")) + 1]


def _flat(level: Level, head: str, scope: str) -> Iterator[tuple[str, State, str]]:
    """Every state of a plan by its static path, with the scope it stands in (an item has no label there)."""
    for name, state in level["states"].items():
        yield head + name, state, scope
        path = scopes.path_of(scope, name)
        for b in state["parallel"]["branches"] if "parallel" in state else []:
            yield from _flat(b, f"{head}{name}.{b['name']}.", scopes.branch(path, b["name"]))
        if "map" in state:
            yield from _flat(state["map"], f"{head}{name}[].", scopes.item(path, "0"))
        if "plan" in state:
            yield from _flat(state["plan"]["pinned"], f"{head}{name}/", scopes.child(path))


def _bare(state: Any) -> Json:
    """A state as it is compared: without what is inside it, and without which files its plan pins."""
    if isinstance(state, dict):
        left_out = ("files", "states", "pinned") if "kind" not in state else ()
        return {key: _bare(value) for key, value in state.items() if key not in left_out}
    return [_bare(one) for one in state] if isinstance(state, list) else state


def unread(level: Level, start: str, ended: set[str]) -> Iterator[tuple[str, str]]:
    """(state, what it reads) wherever a state is read that has not ended on every way from `start`; '' is the level's output."""
    always = _always(level, start, ended)
    places: list[tuple[str, Json]] = [(name, level["states"][name]) for name in always if name in level["states"]]
    if "succeeded" in always and "output" in level:
        places.append(("", {"output": level["output"]}))
    for name, value in places:
        for read in _reads(value):
            if read[1] in level["states"] and read[1] != name and read[1] not in always[name or "succeeded"]:
                yield name, ".".join(read[:3])


def _always(level: Level, start: str, ended: set[str]) -> dict[str, set[str]]:
    """For each state and end that can be reached: the states that have ended on every way to it."""
    found: dict[str, set[str]] = {start: set(ended)}
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in level["states"]:
            continue
        state = level["states"][name]
        lines: list[Any] = [state, *state["catch"], *state.get("choice", [])]
        for to in {line["next"] for line in lines if "next" in line}:
            sure = (found[name] | {name}) - {to}
            now = sure if to not in found else found[to] & sure
            if to not in found or now != found[to]:
                found[to] = now
                todo.append(to)
    return found


def _reads(value: Json) -> Iterator[tuple[str, ...]]:
    """The paths `states.NAME.WORD` that must be there wherever an expression in this value is worked out."""
    todo: list[tuple[str, Json]] = [("", value)]
    while todo:
        key, one = todo.pop()
        if isinstance(one, dict):
            todo += [(word, inner) for word, inner in one.items() if word != "pinned"]
        elif isinstance(one, list):
            todo += [("", inner) for inner in one]
        elif isinstance(one, str) and (key in BARE or "${{" in one):
            yield from _of_text(one, bare=key in BARE)


def _of_text(text: str, *, bare: bool) -> Iterator[tuple[str, ...]]:
    from durun.plan.cel_syntax import Read, SyntaxFault
    from durun.plan.expressions import Hole, split

    try:
        sources = [text] if bare else [part.source for part in split(text) if isinstance(part, Hole)]
        for source in sources:
            paths = Read(source).paths
            for read in paths:
                asked = any(p.must < 3 and p.names[: p.must + 1] == read.names[: p.must + 1] for p in paths)
                if read.names[0] == "states" and read.must >= 3 and read.names[2] != "visits" and not asked:
                    yield tuple(map(str, read.names))
    except SyntaxFault:
        return


def secrets_missing(old: Plan, new: Plan) -> list[str]:
    """The secrets of a plan that another has not, by name."""
    there = [spec["name"] for spec in new.get("secrets", [])]
    return [spec["name"] for spec in old.get("secrets", []) if spec["name"] not in there]

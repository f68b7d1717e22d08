"""A run of branches, items and children in a real file, whose effects end as a test says; and random plans for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from durun.machine.decide import begin, decide, may_begin
from durun.machine.events import Cancel, Due, Ended, Go, Lost, Moment, OnceInDoubt, Resolve, Settle
from durun.machine.foresight import foresee, fulfilled, is_it
from durun.machine.model import TERMINAL, Checkpoint, Item, Move, Phase, Run, Status, apply
from durun.machine.scope import path_of
from durun.plan.check import read
from durun.plan.digest import canonical_text, digest
from durun.plan.expressions import Evaluator
from durun.store.file import File
from durun.store.runs import Birth, Driver, Store


def plan_of(states: dict[str, Any], *, children: dict[str, Any] | None = None, **more: Any) -> Any:
    data = {"durun": 1, "name": "inside", "start": next(iter(states)), "states": states, **more}
    plan, faults, _ = read(data, children=children or {})
    assert plan is not None, faults
    return plan


CALLED = {"run": ["x"], "retry": {"max_attempts": 2}, "next": "succeeded"}
CHILDREN = {  # what random plans call, by the file that they name
    "one.yaml": plan_of({"k": {"run": ["x"], "idempotent": True, "next": "l"}, "l": {"wait": "5s", "next": "m"}, "m": CALLED}),
    "two.yaml": plan_of(
        {"k": {"map": {"items": "[0, 1, 2]", "concurrency": 2, "failures": 1, "run": ["x"]}, "next": "l"}, "l": CALLED},
        output="${{ states.k.output }}",
    ),
}


def as_foreseen(plan: Any, at: Checkpoint, event: Any, moment: Moment) -> bool:
    """Whether an event was foreseen; then the move is held to be the one that is decided."""
    foreseen = foresee(plan, at, "boot", "place", Evaluator())
    if foreseen is None or not is_it(foreseen, event, moment):
        return False
    decided, found = decide(plan, at, event, moment, Evaluator()), fulfilled(foreseen, event, moment)
    for name in Move.__slots__:
        assert getattr(found, name) == getattr(decided, name), name
    return True


class World:
    """A run in a file, and what has been begun of it. Ends are given by the test; so many moves are stored together."""

    together = 1

    def __init__(self, plan: Any, folder: str | None = None) -> None:
        self.plan, self.evaluate, self.now = plan, Evaluator(), 1_000_000
        self.begun: list[tuple[str, str]] = []  # (path, key), in order
        self.store: Store | None = None
        run = Run("r", plan["name"], "1", "ab" * 16, self.now, Status.RUNNING, None, {}, plan["vars"], {}, {})
        run = run._replace(types=dict.fromkeys(plan["vars"], "integer"))
        move = begin(plan, run, self.moment(), self.evaluate)
        self.at = Checkpoint(run)
        if folder is not None:
            self.store = Store(File(str(Path(folder) / "runs.db"), create=True))
            self.store.file.db.execute("PRAGMA synchronous = OFF")  # no power is cut here
            birth = Birth(canonical_text(plan), digest(plan), "", "p", folder, "b", {"env": {}, "base": {}, "durun": "t"}, 1)
            self.held = self.store.create(birth, move, Driver("place", 1, "boot", "here"), self.now)
        self.took(move)
        self.stored = self.at.run
        self.kept: list[Move] = []  # moves that are not stored yet

    def moment(self) -> Moment:
        return Moment(self.now, self.now, "boot", "place", 0.5)

    def took(self, move: Any) -> None:
        apply(self.at, move)
        for no in move.begin:
            effect = move.effects[no]
            assert effect.status == "begin"
            self.begun.append((path_of(effect.scope, effect.state), effect.key))

    def give(self, event: Any) -> None:
        self.now += 1000
        as_foreseen(self.plan, self.at, event, self.moment())
        move = decide(self.plan, self.at, event, self.moment(), self.evaluate)
        self.took(move)
        self.kept = [*self.kept, move]
        if self.store is not None and (len(self.kept) >= self.together or self.at.run.status in TERMINAL):
            self.held, _ = self.store.commit(self.held, self.stored, lambda _: self.kept, self.now)
            self.stored, self.kept = self.at.run, []
            self.same(self.store.load(1))

    def same(self, stored: Checkpoint) -> None:
        assert stored.positions == self.at.positions
        assert stored.states == self.at.states, [
            (k, stored.states.get(k), self.at.states.get(k))
            for k in {*stored.states, *self.at.states}
            if stored.states.get(k) != self.at.states.get(k)
        ]
        assert stored.effects == self.at.effects
        assert stored.active == self.at.active
        assert stored.holders == self.at.holders
        assert stored.delayed == self.at.delayed
        assert {k: set(v) for k, v in stored.within.items()} == {k: set(v) for k, v in self.at.within.items()}
        assert {k: v for k, v in stored.items.items() if v} == {k: v for k, v in self.at.items.items() if v}
        assert stored.run == self.at.run._replace(updated_at=stored.run.updated_at)

    def open(self) -> list[int]:
        return [
            no
            for p in self.at.positions.values()
            for no in ([p.effect] if p.phase is Phase.ACTING else [p.asking] if p.phase is Phase.PROBING else [])
            if no is not None and self.at.effects[no].status == "begin"
        ]

    def end(self, path: str, status: int = 0, stopped: str = "", stdout: bytes | None = None) -> None:
        """The command of the state at a path ends."""
        (no,) = (no for no in self.open() if path_of(self.at.effects[no].scope, self.at.effects[no].state) == path)
        self.give(Ended(no, status, stopped, stdout=stdout))

    def items(self, path: str) -> list[Item]:
        return self.at.items[path]

    def statuses(self, path: str) -> list[str]:
        return [i.status for i in self.items(path)]

    def under_way(self) -> list[str]:
        return sorted(path_of(self.at.effects[no].scope, self.at.effects[no].state) for no in self.open())


@st.composite
def some_states(draw: Any, depth: int, prefix: str, calls: bool = False) -> tuple[str, dict[str, Any]]:
    """A start and one or two states that lead from the first to the end."""
    names = [f"{prefix}{n}" for n in range(draw(st.integers(1, 2)))]
    made: dict[str, Any] = {}
    for n, name in enumerate(names):
        kind = draw(
            st.sampled_from(["run", "run", "run", "wait", "pass"] + (["parallel", "map"] * 2 if depth else []) + ["plan"] * calls)
        )
        state: dict[str, Any] = {
            "next": names[n + 1] if n + 1 < len(names) else draw(st.sampled_from(["succeeded"] * 4 + ["failed"]))
        }
        if kind == "run":
            state |= {"run": ["x"], "idempotent": draw(st.booleans())}
            if draw(st.booleans()):
                state["retry"] = {"max_attempts": 2}
        elif kind in ("wait", "pass"):
            state |= {"wait": "5s"} if kind == "wait" else {"pass": {}}
        elif kind == "plan":
            state["plan"] = {"file": draw(st.sampled_from(sorted(CHILDREN)))}
        else:
            policy: dict[str, Any] = {"failures": draw(st.sampled_from([0, 0, 1, "50%", "all"]))}
            if draw(st.booleans()):
                policy["concurrency"] = draw(st.integers(1, 3))
            if draw(st.booleans()):
                policy["stop"] = "now"
            if draw(st.integers(0, 3)) == 0:
                policy["enough"] = draw(st.integers(1, 2))
            count = draw(st.integers(2, 4))
            if kind == "parallel":
                levels = [draw(some_states(depth=depth - 1, prefix=f"{name}_{k}_", calls=calls)) for k in range(count)]
                branches = {f"b{k}": {"start": s, "states": inner, "output": k} for k, (s, inner) in enumerate(levels)}
                state["parallel"] = {"branches": branches, **policy}
            else:
                start, inner = draw(some_states(depth=depth - 1, prefix=f"{name}_", calls=calls))
                state["map"] = {
                    "items": str(list(range(count))),
                    "start": start,
                    "states": inner,
                    "output": "${{ index }}",
                    **policy,
                }
        if kind != "pass" and draw(st.integers(0, 3)) == 0:
            state["catch"] = [{"on": ["any"], "next": "succeeded"}]
        made[name] = state
    return names[0], made


def happenings(world: World) -> list[Any]:
    """What may come next; there is always something that leads on."""
    found: list[Any] = []
    for no in world.open():
        e = world.at.effects[no]
        found.append(OnceInDoubt(e.scope, e.state, e.visit, e.attempt, "mail"))
        found += [Ended(no, 0)] * 4 + [Ended(no, 1), Ended(no, -15, "sibling"), Lost(no, "killed"), Ended(no, -2, "leaving")]
    for p in world.at.positions.values():
        match p.phase:
            case Phase.READY:
                found += [Go(p.scope)] * 2
            case Phase.LOST:
                found += [Settle(p.scope)] * 2
            case Phase.WAITING:
                found += [Due(p.scope)] * 2
            case Phase.DELAYED | Phase.PROBING if p.due is not None and may_begin(world.plan, world.at, p.scope):
                found += [Due(p.scope)] * 2
            case Phase.DOUBT:
                path = path_of(p.scope, p.state)
                paths = [path, *(f"{path}/once:{name}" for name in p.onces or ())]
                found += [Resolve(how, path) for path in paths for how in ("happened", "retry", "fail")]
    assert found, (world.at.run.status, world.at.positions)
    return [*found, Cancel()] if len(found) > 4 else found

"""Random plans through random histories: whatever may have happened is remembered, and nothing that happened is begun again."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from inside import as_foreseen

from durun.errors import NotPossible, PlanRefused
from durun.machine.decide import begin, decide
from durun.machine.events import Cancel, CouldNotStart, Due, Ended, Go, Lost, Moment, Moved, Pause, Resolve, Settle, TakeUp
from durun.machine.model import TERMINAL, Checkpoint, Phase, Run, Status, apply
from durun.plan.check import read
from durun.plan.expressions import Evaluator

NAMES = ["a", "b", "c", "d"]
ERRORS = [["any"], ["exit"], ["timeout", "killed"], ["in_doubt"], ["exit:1"], ["max_visits"]]


@st.composite
def states(draw: Any, n: int) -> dict[str, Any]:
    targets = st.sampled_from([*NAMES[:n], "succeeded", "failed"])
    kind = draw(st.sampled_from(["run", "run", "run", "wait", "pass", "choice"]))
    state: dict[str, Any] = {"max_visits": draw(st.integers(1, 6))}
    if kind == "choice":
        state["choice"] = [
            {"when": draw(st.sampled_from(["visit == 1", "vars.n > 2", "false"])), "next": draw(targets)},
            {"next": draw(targets)},
        ]
    else:
        state |= {"wait": {"wait": "1m"}, "pass": {"pass": {}}, "run": {"run": ["x"]}}[kind]
        state["next"] = draw(targets)
        state["assign"] = draw(st.sampled_from([{}, {"n": "${{ vars.n + 1 }}"}, {"n": "${{ states.?a.?output.orValue(1) }}"}]))
    state["catch"] = [
        {"on": on, "next": draw(targets)} for on in draw(st.lists(st.sampled_from(ERRORS), max_size=2, unique_by=str))
    ]
    state["catch"].sort(key=lambda c: c["on"] == ["any"])
    if kind == "run":
        if draw(st.booleans()):
            state["retry"] = {
                "max_attempts": draw(st.integers(1, 4)),
                "on": draw(st.sampled_from([["any"], ["exit"], ["timeout"]])),
            }
        state["idempotent"] = draw(st.sampled_from([False, False, True, "1h"]))
        if draw(st.booleans()):
            state["probe"] = {"run": ["y"]}
        if draw(st.booleans()):
            state["output"] = draw(st.sampled_from(["json", "text"]))
    return state


@st.composite
def plans(draw: Any) -> Any:
    n = draw(st.integers(1, 4))
    made = {name: draw(states(n)) for name in NAMES[:n]}
    reached, todo = set(), ["a"]
    while todo:
        name = todo.pop()
        if name in made and name not in reached:
            reached.add(name)
            state = made[name]
            todo += [state.get("next", "")] + [c["next"] for c in [*state["catch"], *state.get("choice", [])]]
    data = {"durun": 1, "name": "random", "vars": {"n": 0}, "start": "a", "states": {k: v for k, v in made.items() if k in reached}}
    for state in data["states"].values():
        if state.get("assign") == {"n": "${{ states.?a.?output.orValue(1) }}"} and "a" not in data["states"]:
            state["assign"] = {}
    plan, faults, _ = read(data)
    assert plan is not None, faults
    return plan


class Outside:
    """What has really been begun, and what was learnt of it."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, int], list[str]] = {}  # (state, visit) -> what became of each begin
        self.keys: dict[tuple[str, int], str] = {}
        self.allowed: set[tuple[str, int]] = set()  # a person or a probe said: again


@settings(max_examples=400)
@given(plan=plans(), data=st.data())
def test_whatever_may_have_happened_is_remembered_and_nothing_is_begun_twice(plan: Any, data: Any) -> None:
    evaluate, outside = Evaluator(), Outside()
    now = 1_000_000
    run = Run("r", "random", "1", "ab" * 16, now, Status.RUNNING, None, {}, {"n": 0}, {}, {"n": "integer"})
    at = Checkpoint(run)
    move = begin(plan, run, Moment(now, 0, "boot", "place", 0.5), evaluate)
    apply(at, move)
    watch(plan, at, move, outside)
    for _ in range(data.draw(st.integers(0, 40))):
        event = data.draw(st.sampled_from(happenings(at)))
        now += data.draw(st.sampled_from([0, 1000, 90_000]))
        place = data.draw(st.sampled_from(["place", "place", None]))
        learn(at, event, outside)
        before, moment = at.run.status, Moment(now, now, "boot", place, 0.5)
        as_foreseen(plan, at, event, moment)
        try:
            move = decide(plan, at, event, moment, evaluate)
        except (NotPossible, PlanRefused):
            assert at.run.status == before
            continue
        apply(at, move)
        watch(plan, at, move, outside)
        check(at, before)


def happenings(at: Checkpoint) -> list[Any]:
    """What could happen to a run that stands like this, and some things that could not."""
    (p,) = at.positions.values()
    found: list[Any] = [Cancel(), Pause(), TakeUp(), Go(""), Settle("")]
    if p.phase in (Phase.DELAYED, Phase.WAITING, Phase.PROBING):
        found += [Due("")] * 6
    for no in (p.asking or p.effect,):
        if no is not None and no in at.effects and at.effects[no].status == "begin" and p.phase in (Phase.ACTING, Phase.PROBING):
            ends = [
                Ended(no, s, w, stdout=b"7") for s, w in ((0, ""), (0, ""), (1, ""), (-9, ""), (-15, "timeout"), (-2, "leaving"))
            ]
            found += [
                *ends,
                *ends,
                Ended(no, 0),
                Ended(no, 0),
                CouldNotStart(no, 2, "program"),
                Lost(no, "x"),
                Lost(no, "x"),
                Moved(no),
            ]
    if p.phase in (Phase.DOUBT, Phase.LOST, Phase.FAILED):
        found += [Resolve(how, output=7, has_output=True) for how in ("happened", "retry", "fail")] * 3
    if p.phase is Phase.READY:
        found += [Go("")] * 5
    if p.phase is Phase.LOST:
        found += [Settle("")] * 5
    return found


def learn(at: Checkpoint, event: Any, outside: Outside) -> None:
    """What the world knows once this has happened."""
    (p,) = at.positions.values()
    where = (p.state, p.visit)
    if isinstance(event, Ended) and event.effect == p.effect and p.phase is Phase.ACTING and outside.begun.get(where):
        certain = event.status == 1 and event.stopped == ""
        outside.begun[where][-1] = "done" if event.status == 0 else "not" if certain else "unsure"
    elif isinstance(event, CouldNotStart | Moved) and event.effect == p.effect and outside.begun.get(where):
        outside.begun[where][-1] = "not"
    elif isinstance(event, Lost) and event.effect == p.effect and outside.begun.get(where):
        outside.begun[where][-1] = "unsure"
    elif isinstance(event, Ended) and event.effect == p.asking and event.status == 1 and not event.stopped:
        outside.begun[where] = ["not" if b == "unsure" else b for b in outside.begun.get(where, [])]
    elif isinstance(event, Resolve) and event.how == "retry" and p.phase in (Phase.DOUBT, Phase.LOST):
        outside.allowed.add(where)
        # also what is done may be begun again from now on: a person said so
        outside.begun[where] = ["not" if b in ("unsure", "done") else b for b in outside.begun.get(where, [])]


def watch(plan: Any, at: Checkpoint, move: Any, outside: Outside) -> None:
    """What a move begins: never what is done, never what may have happened unless it may be repeated."""
    for no in move.begin:
        effect = move.effects[no]
        if effect.status != "begin" or effect.kind != "run":
            continue
        where = (effect.state, effect.visit)
        state = plan["states"][effect.state]
        past = outside.begun.setdefault(where, [])
        if "unsure" in past or "done" in past:
            named = any("any" not in rule["on"] for rule in state["retry"])
            assert state["idempotent"] or where in outside.allowed or (named and "done" not in past), (where, past)
        outside.allowed.discard(where)
        assert outside.keys.setdefault(where, effect.key) == effect.key, "a key changed"
        past.append("under way")
    assert len(set(outside.keys.values())) == len(outside.keys), "two visits share a key"


def check(at: Checkpoint, before: Status) -> None:
    (p,) = at.positions.values()
    if before in (Status.SUCCEEDED, Status.CANCELLED):
        assert at.run.status is before, "an end was taken back"
    if at.run.status in TERMINAL:
        assert p.phase in (Phase.ENDED, Phase.FAILED)
        assert at.run.ended_at is not None
        assert not any(e.status in ("begin", "waiting") for e in at.effects.values())
    if at.run.status is Status.BLOCKED:
        assert at.run.reason in ("in_doubt", "keeps_dying")
    if p.phase is Phase.DOUBT and p.effect is not None:
        assert at.effects[p.effect].status in ("in_doubt", "not_certain", "done")

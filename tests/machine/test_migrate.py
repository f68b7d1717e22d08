"""From one plan to another: random plans, random positions, random edits; and what a migration keeps, says and refuses."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import World, happenings, plan_of, some_states

from durun.errors import NotPossible, PlanRefused
from durun.machine.events import Answer, Compensate, Due, Ended, Moment, NextUndo, NothingOwed, Pause, Resolve, TakeUp
from durun.machine.model import TERMINAL, Phase, Status
from durun.machine.scope import path_of
from durun.pins import Migration, Wants, migrate, unread
from durun.plan.check import read
from durun.plan.digest import canonical_text, digest
from durun.store.audit import audit
from durun.store.file import rows
from durun.store.runs import Birth

OK = {"next": "succeeded"}
RUN = {"run": ["x"], "idempotent": True}


def waits(next: str) -> dict[str, Any]:
    return {"wait": {"signal": "go"}, "next": next}


def move(world: World, new: Any, map: dict[str, str] | None = None, set: dict[str, Any] | None = None) -> Migration:
    """Moves a world to another plan, in its file where it has one. Raises what `migrate` does, and then nothing has changed."""
    before = copy.deepcopy({name: getattr(world.at, name) for name in ("run", "positions", "states", "items", "effects")})
    moment = world.moment()._replace(place=None)
    try:
        made = migrate(world.plan, new, world.at, Wants(map or {}, set or {}), moment, world.evaluate)
    finally:
        assert before == {name: getattr(world.at, name) for name in before}, "what is judged is not changed"
    if world.store is not None:
        birth = Birth(canonical_text(new), digest(new), "", "p", "/", "b", {"env": {}, "base": {}, "durun": "t"}, 1)
        world.held = world.store.migrate(world.held, world.at.run, birth, made, world.now)
        world.at = world.store.load(1)
        world.stored = world.at.run
    world.plan = new
    return made


# --- random plans, positions and edits ---


def levels(states: dict[str, Any], head: str = "") -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """(static path before its names, states, what holds them) of every level of a plan as it is written."""
    found: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [(head, states, None)]
    for name, state in states.items():
        for branch, inner in state.get("parallel", {}).get("branches", {}).items():
            found += [(h, s, o or inner) for h, s, o in levels(inner["states"], f"{head}{name}.{branch}.")]
        if "map" in state:
            found += [(h, s, o or state["map"]) for h, s, o in levels(state["map"]["states"], f"{head}{name}[].")]
    return found


def lead(states: dict[str, Any], old: str, new: str) -> None:
    for state in states.values():
        for line in [state, *state.get("catch", []), *state.get("choice", [])]:
            if line.get("next") == old:
                line["next"] = new


@st.composite
def edited(draw: Any, start: str, states: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The plan after one or two edits, and how states are mapped."""
    states, mapped = copy.deepcopy(states), dict[str, str]()
    for n in range(draw(st.integers(1, 2))):
        head, level, holder = draw(st.sampled_from(levels(states)))
        name = draw(st.sampled_from(sorted(level)))
        what = draw(st.sampled_from(["rename", "rename", "remove", "insert", "other", "kind", "nothing"]))
        if what == "rename" and not mapped and "parallel" not in level[name] and "map" not in level[name]:
            fresh = f"{name}_new{n}"
            level[fresh] = level.pop(name)
            lead(level, name, fresh)
            if draw(st.booleans()):
                mapped[head + name] = fresh
            start, holder = _started(start, holder, name, fresh, head)
        elif what == "remove" and len(level) > 1:
            to = level.pop(name).get("next", "succeeded")
            lead(level, name, to)
            if to in level:
                start, holder = _started(start, holder, name, to, head)
        elif what == "insert":
            fresh = f"{name}_in{n}"
            to, level[name]["next"] = level[name].get("next", "succeeded"), fresh
            level[fresh] = {**RUN, "next": to}
        elif what == "other" and "run" in level[name]:
            level[name]["run"] = ["y"]
        elif what == "kind":
            level[name] = {"wait": "7s", "next": level[name].get("next", "succeeded")}
    return start, states, mapped


def _started(start: str, holder: Any, old: str, new: str, head: str) -> tuple[str, Any]:
    if holder is not None and holder.get("start") == old:
        holder["start"] = new
    return (new if start == old and not head else start), holder


class Halting(World):
    """One whose driver leaves now and then: what has begun ends, and what would begin next is left waiting."""

    drives = True

    def moment(self) -> Moment:
        return super().moment()._replace(place="place" if self.drives else None)

    def halt(self, ends: Any) -> None:
        self.drives = False
        for _ in range(20):
            doubts = [path_of(p.scope, p.state) for p in self.at.positions.values() if p.phase is Phase.DOUBT]
            if self.at.run.status in TERMINAL or not (self.open() or doubts):
                break
            self.give(Ended(self.open()[0], ends(st.sampled_from([0, 0, 1]))) if self.open() else Resolve("fail", doubts[0]))
        self.drives = True


@settings(max_examples=60)
@given(drawn=some_states(depth=1, prefix="s"), data=st.data())
def test_a_run_moves_to_an_edited_plan_and_ends_or_it_is_refused_and_nothing_changes(drawn: Any, data: Any) -> None:
    start, states = drawn
    plan = plan_of({start: states[start], **states}, start=start)
    moved = 0
    with tempfile.TemporaryDirectory() as folder:
        world = Halting(plan, folder)
        assert world.store is not None
        for n in range(120):
            if n % 3 == 1 and moved < 2 and data.draw(st.booleans()):
                if data.draw(st.integers(0, 3)):
                    world.halt(data.draw)
                at, new, mapped = data.draw(edited(start, states))
                written = {"durun": 1, "name": "inside", "start": at, "states": new}
                made, _, _ = read(written)
                if made is not None:
                    held = world.store.held(1)
                    try:
                        move(world, made, mapped)
                        start, states, moved = at, new, moved + 1
                    except (NotPossible, PlanRefused):
                        assert world.store.held(1) == held and world.store.pinned(1).digest == digest(world.plan)
                        world.same(world.store.load(1))
            if world.at.run.status in TERMINAL:
                if world.at.run.status is not Status.FAILED or n > 100:
                    break
                try:
                    world.give(TakeUp())
                except NotPossible:
                    break
                continue
            world.give(data.draw(st.sampled_from(happenings(world))))
        if world.at.run.status in TERMINAL:
            stands = world.at.positions[""]
            assert stands.state in world.plan["states"], "it ends in a state that the new plan has"
        log = rows(world.store.file.db, "SELECT scope, state, visit, kind, key, status FROM effects WHERE run = 1")
        visits = [(scope, state, visit) for scope, state, visit, kind, _, _ in log if kind == "run"]
        assert len(visits) == len(set(visits)), "a visit is never counted twice"
        keys = [key for _, _, _, kind, key, _ in log if kind == "run"]
        assert len(keys) == len(set(keys)), "no two visits share a key"
        broken = audit(world.store.file).broken
        assert not broken, broken
        world.store.file.close()


# --- what is kept, entered anew, refused ---


def test_a_wait_that_is_the_same_goes_on_and_one_that_is_another_begins_anew() -> None:
    old = plan_of({"a": {"wait": "1h", "next": "b"}, "b": {**RUN, **OK}})
    world = World(old)
    due = world.at.positions[""].due
    world.now += 60_000
    made = move(world, plan_of({"a": {"wait": "1h", "next": "b"}, "b": {"run": ["y"], **OK}}))
    assert made.move.positions[""].due == due and made.report["positions"] == [{"path": "a", "how": "kept"}]
    world = World(old)
    made = move(world, plan_of({"a": {"wait": "2h", "next": "b"}, "b": {**RUN, **OK}}))
    stands = made.move.positions[""]
    assert stands is not None and stands.visit == 2 and stands.length == 7_200_000


def asks(text: str, **more: Any) -> dict[str, Any]:
    return {"a": {"approval": {"message": text}, "next": "b", **more}, "b": {**RUN, **OK}}


def test_a_question_stands_where_its_text_is_the_same_and_is_asked_anew_where_it_is_not() -> None:
    world = World(plan_of(asks("pay 3?"), vars={"n": 3}))
    shown = world.at.positions[""].wants["digest"]
    same = move(world, plan_of(asks("pay ${{ vars.n }}?"), vars={"n": 1})).move.positions[""]
    assert same is not None and same.wants["digest"] == shown and same.visit == 1
    world = World(plan_of(asks("pay 3?"), vars={"n": 3}))
    made = move(world, plan_of(asks("pay ${{ vars.n }} now?"), vars={"n": 1}))
    anew = made.move.positions[""]
    assert anew is not None and anew.visit == 2 and anew.wants["message"] == "pay 3 now?" and anew.wants["digest"] != shown
    assert [e.kind for e in made.move.history] == ["migrated", "entered", "asked"]


def test_an_effect_that_waits_for_another_try_is_entered_anew_with_another_key() -> None:
    world = World(plan_of({"a": {"run": ["x"], "retry": {"max_attempts": 3}, **OK}}), None)
    world.end("a", 1)
    [(_, key)] = world.begun
    made = move(world, plan_of({"a": {"run": ["y"], **OK}}))
    stands = made.move.positions[""]
    assert stands is not None and (stands.phase, stands.visit) == (Phase.DELAYED, 2)
    assert made.move.effects[1].status == "not_done" and made.move.effects[2].key != key
    assert made.move.effects[2].request["argv"] == ["y"] and made.report["positions"] == [{"path": "a", "how": "anew"}]


def test_what_may_have_happened_is_not_begun_with_another_key() -> None:
    for idempotent in (False, True):
        plan = plan_of({"a": {"run": ["x"], "idempotent": idempotent, "retry": {"on": ["timeout"]}, **OK}})
        world = World(plan)
        world.give(Ended(1, -15, "timeout"))
        if idempotent:
            assert move(world, plan_of({"a": {"run": ["y"], **OK}})).report["positions"][0]["how"] == "anew"
        else:
            with pytest.raises(NotPossible, match="may have happened"):
                move(world, plan_of({"a": {"run": ["y"], **OK}}))


def test_what_is_under_way_or_in_doubt_or_has_ended_is_not_moved() -> None:
    plan = plan_of({"a": {"run": ["x"], **OK}})
    world = World(plan)
    with pytest.raises(NotPossible, match="under way"):
        move(world, plan)
    world.give(Ended(1, -2, "leaving"))
    with pytest.raises(NotPossible, match="not known"):
        move(world, plan)
    done = World(plan)
    done.end("a")
    with pytest.raises(NotPossible, match="has ended"):
        move(done, plan)


def test_a_failed_run_goes_on_at_its_state_under_the_new_plan() -> None:
    world = World(plan_of({"a": {"run": ["x"], **OK}}))
    world.end("a", 1)
    made = move(world, plan_of({"b": {"run": ["y"], **OK}}), {"a": "b"})
    for_real = World(plan_of({"a": {"run": ["x"], **OK}}), tempfile.mkdtemp())
    for_real.end("a", 1)
    move(for_real, world.plan, {"a": "b"})
    assert for_real.at.run.status is Status.FAILED and made.move.run.status is Status.FAILED
    for_real.give(TakeUp())
    assert for_real.begun[-1][0] == "b" and for_real.at.positions[""].visit == 2


@pytest.mark.parametrize(
    ("states", "more", "said"),
    [
        ({"b": {**RUN, **OK}}, {}, "which the new plan has not: --map a=STATE"),
        ({"a": waits("b"), "b": {**RUN, **OK}}, {"vars": {"n": "text"}}, "give it with --set n=VALUE"),
        ({"a": waits("b"), "b": {**RUN, **OK}}, {"input": {"x": "string"}}, "its input does not fit"),
        (
            {"first": {**RUN, "output": "text", "next": "a"}, "a": waits("b"), "b": {"run": ["${{ states.first.output }}"], **OK}},
            {},
            "b reads states.first.output, and this run has not been through first",
        ),
        ({"a": waits("b"), "b": {**RUN, **OK}}, {"name": "other"}, "another plan is another run"),
    ],
)
def test_a_plan_that_does_not_fit_the_run_is_refused(states: Any, more: Any, said: str) -> None:
    world = World(plan_of({"a": waits("b"), "b": {**RUN, **OK}}, vars={"n": 1}))
    with pytest.raises(PlanRefused, match=said):
        move(world, plan_of(states, **more))


def test_states_are_read_as_far_as_the_run_has_been_through_them() -> None:
    old = {"a": {**RUN, "output": "text", "next": "w"}, "w": waits("b"), "b": {**RUN, **OK}}
    world = World(plan_of(old))
    world.give(Ended(1, 0, stdout=b"x"))
    reading = {**old, "b": {"run": ["${{ states.a.output }}", "${{ has(states.c.output) }}"], "next": "c"}, "c": {**RUN, **OK}}
    move(world, plan_of(reading))
    level = plan_of({**old, "b": {"run": ["${{ states.a.output }}"], **OK}})
    assert list(unread(level, "w", set())) == [("b", "states.a.output")]
    assert list(unread(level, "w", {"a"})) == []


def test_vars_keep_their_values_new_ones_have_their_first_and_what_is_set_wins() -> None:
    world = World(plan_of({"a": waits("b"), "b": {**RUN, **OK}}, vars={"n": 1, "gone": 2}))
    world.at.run = world.at.run._replace(vars={"n": 5, "gone": 7})
    new = plan_of({"a": waits("b"), "b": {**RUN, **OK}}, vars={"n": 1, "m": "${{ 'f' }}", "k": 0})
    made = move(world, new, set={"k": "${{ vars.gone + 1 }}"})
    assert made.move.run.vars == {"n": 5, "m": "f", "k": 8} and made.types == {"n": "integer", "m": "string", "k": "integer"}
    assert made.report["vars"] == {"set": {"m": "f", "k": 8}, "dropped": ["gone"]}


def test_visits_go_on_being_counted_under_another_name() -> None:
    old = plan_of({"a": {**RUN, "next": "w"}, "w": {"wait": {"signal": "go"}, "next": "a"}})
    world = World(old, tempfile.mkdtemp())
    world.end("a")
    move(world, plan_of({"b": {**RUN, "next": "w"}, "w": {"wait": {"signal": "go"}, "next": "b"}}), {"a": "b"})
    assert world.at.states["", "b"].visits == 1 and world.at.states["", "b"].ended
    move(world, old)
    assert world.at.states["", "a"].visits == 1, "one that comes back is counted on"


def test_what_was_done_is_undone_as_the_plan_said_under_which_it_was_done() -> None:
    undo = {"run": ["undo"], "retry": {"max_attempts": 2}}
    world = World(plan_of({"a": {"run": ["x"], "compensate": undo, "next": "w"}, "w": waits("succeeded")}), tempfile.mkdtemp())
    world.end("a")
    move(world, plan_of({"w": waits("succeeded")}))
    assert world.store is not None
    found = world.store.undo(1, 1)
    assert found is not None and found[1].request["left"]["state"]["compensate"]["retry"][0]["max_attempts"] == 2
    world.give(Compensate())
    world.give(NextUndo(*found))
    world.end("a~undo", 1)
    assert world.at.positions["a~"].phase is Phase.DELAYED, "its retry rule is the old plan's"
    assert [path for path, _ in world.begun] == ["a", "a~undo"]
    world.give(Due("a~"))
    world.end("a~undo", 1)
    world.give(NothingOwed(1))
    world.give(Compensate())
    found = world.store.undo(1, 1)
    assert found is not None
    world.give(NextUndo(*found))
    world.end("a~undo")
    world.give(NothingOwed(0))
    assert world.at.run.status is Status.COMPENSATED, "one that failed is tried again as the old plan's too"


@pytest.mark.parametrize("polls", [False, True])
def test_what_waits_to_begin_is_withdrawn_also_where_its_state_has_another_name(polls: bool, tmp_path: Path) -> None:
    """A first attempt never was; of a poll the round before is undone, should it come to that, as its own plan says."""
    a = {**RUN, "compensate": {"run": ["undo a"]}, **OK}
    a |= {"poll": {"until": "false", "every": "1h", "for": "9h"}} if polls else {}
    world = World(plan_of({"first": {**RUN, "next": "a"}, "a": a}), str(tmp_path))
    if polls:
        world.end("first")
        world.end("a")
    else:
        world.moment = lambda: World.moment(world)._replace(place=None)  # type: ignore[method-assign]
        world.end("first")
    assert world.at.effects[2].status == "waiting"
    move(world, plan_of({"first": {**RUN, "next": "b"}, "b": {**RUN, **OK}}), map={"a": "b"})
    assert world.store is not None
    found = world.store.effect(world.store.file.db, 1, 2)
    undos = rows(world.store.file.db, "SELECT status, request ->> 'left' IS NOT NULL FROM undos")
    assert (found.status, undos) == (("done", [("owed", 1)]) if polls else ("withdrawn", [("not_needed", 0)]))


def test_what_is_inside_a_map_goes_along_item_by_item() -> None:
    def each(name: str, inner: str, word: str) -> Any:
        do = {"start": inner, "states": {inner: {"run": [word], **OK}}}
        return plan_of({name: {"map": {"items": "[1, 2, 3]", "failures": 0, **do}, **OK}})

    world = World(each("m", "x", "old"), tempfile.mkdtemp())
    world.end("m[0].x")
    world.end("m[1].x", 1)
    world.end("m[2].x")
    made = move(world, each("mm", "y", "new"), {"m": "mm", "m[].x": "y"})
    assert {p["path"]: p["how"] for p in made.report["positions"]} == {"mm": "kept", "mm[1].y": "anew"}
    world.give(TakeUp())
    assert world.begun[-1][0] == "mm[1].y" and world.under_way() == ["mm[1].y"]
    world.end("mm[1].y")
    assert world.at.run.status is Status.SUCCEEDED


def test_a_paused_run_stays_paused_and_an_answer_is_taken_after_it() -> None:
    world = World(plan_of(asks("go?")), tempfile.mkdtemp())
    world.give(Pause("me"))
    move(world, plan_of(asks("go now?")))
    assert world.at.run.status is Status.PAUSED and world.at.positions[""].wants["message"] == "go now?"
    world.give(TakeUp())
    world.give(Answer(by="me", now=world.now, clock=world.now, boot="boot"))
    assert world.under_way() == ["b"]


def test_a_run_that_stands_ready_goes_on_where_it_would_have() -> None:
    loop = {"a": {"pass": {}, "next": "b"}, "b": {"pass": {}, "next": "a"}}
    world = World(plan_of(loop), tempfile.mkdtemp())
    assert world.at.positions[""].phase is Phase.READY, "after a thousand states it is committed"
    move(world, plan_of({**loop, "a": waits("b"), "b": {**RUN, **OK}}))
    assert world.at.positions[""].phase in (Phase.LISTENING, Phase.DELAYED)

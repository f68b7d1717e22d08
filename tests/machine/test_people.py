"""What the rules say of approvals and signals: who may answer when, which wait takes what, and which time is over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durun.errors import NotPossible, PlanRefused, Usage
from durun.machine.asks import said_before
from durun.machine.decide import begin, decide
from durun.machine.events import Alive, Answer, Cancel, Due, Ended, Moment, Pause, Signal, TakeUp
from durun.machine.model import TERMINAL, Checkpoint, Move, Phase, Run, Status, apply
from durun.plan.check import read
from durun.plan.expressions import Evaluator

NOW = Moment(1_000_000, 5_000, "boot", "place", 0.5)
SECOND = 1000


def plan_of(more: dict[str, Any] | None = None, **states: Any) -> Any:
    data = {"durun": 1, "name": "people", "start": next(iter(states)), "states": states, **(more or {})}
    plan, faults, _ = read(data)
    assert not faults, faults
    return plan


class Standing:
    """A run and its clock. `at` seconds are counted from its start."""

    def __init__(self, plan: Any, **run: Any) -> None:
        self.plan, self.moves = plan, []
        newborn = Run("r", "people", "1", "ab" * 16, 0, Status.RUNNING, None, {}, run.get("vars", {}), {}, run.get("types", {}))
        self.at = Checkpoint(newborn)
        self._take(begin(plan, newborn, NOW, Evaluator()))

    def _take(self, move: Move) -> Move:
        apply(self.at, move)
        self.moves.append(move)
        return move

    def moment(self, at: float) -> Moment:
        ms = round(at * SECOND)
        return NOW._replace(now=NOW.now + ms, clock=NOW.clock + ms)

    def __call__(self, event: Any, at: float = 0) -> Move:
        m = self.moment(at)
        if isinstance(event, Answer | Signal | Alive):
            event = event._replace(now=m.now, clock=m.clock, boot=m.boot)
        return self._take(decide(self.plan, self.at, event, m, Evaluator()))

    @property
    def here(self) -> Any:
        return self.at.positions[""]

    def output(self, state: str) -> Any:
        return self.at.states["", state].output


ASK = {"approval": {"message": "well?"}, "next": "succeeded"}


# --- approvals ---


def test_a_yes_goes_on_with_what_was_said_as_the_output() -> None:
    run = Standing(plan_of(ask=ASK))
    assert (run.at.run.status, run.here.phase) == (Status.WAITING, Phase.ASKED)
    move = run(Answer(by="ann", note="fine", data={"n": 1}))
    assert run.at.run.status is Status.SUCCEEDED
    assert run.output("ask") == {"answer": "yes", "data": {"n": 1}, "by": "ann", "note": "fine", "at": "1970-01-01T00:16:40.000Z"}
    assert [(a.state, a.visit, a.answer, a.by) for a in move.answers] == [("ask", 1, "yes", "ann")]


def test_a_no_is_the_error_rejected_with_what_was_said() -> None:
    run = Standing(plan_of(ask=ASK))
    run(Answer(reject=True, by="bob", note="too dear"))
    error = run.at.run.ended_by
    assert run.at.run.status is Status.FAILED
    assert (error["name"], error["message"], error["state"]) == ("rejected", "bob said no: too dear", "ask")
    assert error["output"] == {"answer": "no", "data": None, "by": "bob", "note": "too dear", "at": "1970-01-01T00:16:40.000Z"}
    caught = Standing(plan_of(ask={**ASK, "catch": [{"on": ["rejected"], "next": "succeeded"}]}))
    caught(Answer(reject=True, by="bob"))
    assert caught.at.run.status is Status.SUCCEEDED


def test_the_assign_of_an_approval_sees_the_answer() -> None:
    plan = plan_of({"vars": {"who": ""}}, ask={**ASK, "assign": {"who": "${{ output.by }}"}})
    run = Standing(plan, vars={"who": ""}, types={"who": "string"})
    run(Answer(by="ann"))
    assert run.at.run.vars == {"who": "ann"}


OPTIONS = {"message": "when?", "options": ["now", "later", {"name": "never", "reject": True}], "schema": {"type": "integer"}}


@pytest.mark.parametrize(
    ("answer", "refusal", "said"),
    [
        (Answer(answer="now"), PlanRefused, "null is not of the type integer"),
        (Answer(answer="now", data="x"), PlanRefused, "not of the type integer"),
        (Answer(data=1), Usage, "say which with --answer: now, later"),
        (Answer(answer="soon", data=1), PlanRefused, "'soon' is none of its answers: `durun approve` takes now, later"),
        (Answer(answer="never", data=1), Usage, "never is a no: `durun approve` takes now, later"),
        (Answer(reject=True, answer="now"), Usage, "now is no no: `durun reject` takes never"),
        (Answer(state="other"), NotPossible, "state other waits for no answer; name one that does: ask"),
        (Answer(answer="now", data=1, digest="0" * 16), NotPossible, "has the digest"),
    ],
)
def test_an_answer_that_is_none_is_refused_and_changes_nothing(answer: Answer, refusal: Any, said: str) -> None:
    run = Standing(plan_of(ask={"approval": OPTIONS, "next": "succeeded"}))
    with pytest.raises(refusal, match=said.replace("(", r"\(")):
        run(answer)
    assert run.here.phase is Phase.ASKED
    run(Answer(answer="later", data=2, digest=run.here.wants["digest"]))
    assert run.output("ask")["answer"] == "later"


def test_a_no_needs_no_form() -> None:
    run = Standing(plan_of(ask={"approval": OPTIONS, "next": "succeeded"}))
    run(Answer(reject=True))
    assert run.at.run.ended_by["output"]["answer"] == "never"


def test_a_question_that_cannot_be_worked_out_is_an_error() -> None:
    run = Standing(
        plan_of({"vars": {"n": None}}, ask={"approval": {"message": "${{ vars.n }}"}, "next": "succeeded"}), vars={"n": None}
    )
    assert run.at.run.ended_by["name"] == "expression"


def test_the_digest_speaks_of_the_visit_and_of_all_that_is_shown() -> None:
    again = [{"on": ["rejected"], "next": "ask"}]
    digests = set()
    for shown in ({}, {"data": 1}, {"options": ["yes", "no"]}, {"schema": {"type": "null"}}):
        run = Standing(plan_of(ask={"approval": {"message": "well?", **shown}, "catch": again, "next": "succeeded"}))
        digests.add(run.here.wants["digest"])
        if "options" not in shown:
            run(Answer(reject=True))
            digests.add(run.here.wants["digest"])
    assert len(digests) == 7


def test_an_answer_is_judged_by_when_it_was_given() -> None:
    plan = plan_of(ask={**ASK, "timeout": "10s", "catch": [{"on": ["timeout"], "next": "failed"}]})
    early, late = Standing(plan), Standing(plan)
    m = early.moment(9)
    given = Answer(by="ann", now=m.now, clock=m.clock, boot=m.boot)
    apply(early.at, decide(plan, early.at, given, early.moment(3600), Evaluator()))  # heard an hour later
    assert early.at.run.status is Status.SUCCEEDED
    with pytest.raises(NotPossible, match="the time to answer is over since"):
        late(Answer(by="ann"), at=10)
    late(Due(""), at=10)
    assert late.at.run.ended_by["name"] == "timeout"


def test_a_clock_that_is_set_back_gives_no_more_time_and_one_set_forward_takes_none() -> None:
    plan = plan_of(ask={**ASK, "timeout": "10s"})
    back, forward = Standing(plan), Standing(plan)
    with pytest.raises(NotPossible):
        decide(plan, back.at, Answer(now=0, clock=NOW.clock + 11_000, boot="boot"), NOW, Evaluator())
    decide(plan, forward.at, Answer(now=NOW.now + 10**9, clock=NOW.clock + 9_000, boot="boot"), NOW, Evaluator())


def test_while_a_run_is_paused_it_may_be_answered_and_its_time_stands_still() -> None:
    plan = plan_of(ask={**ASK, "timeout": "10s", "next": "work"}, work={"run": ["x"], "next": "succeeded"})
    run = Standing(plan)
    run(Pause(), at=4)
    late = run.moment(100)._replace(place=None)
    answer = Answer(by="ann", now=late.now, clock=late.clock, boot=late.boot)
    apply(run.at, decide(plan, run.at, answer, late, Evaluator()))
    assert run.at.run.status is Status.PAUSED and run.here.state == "work" and run.at.effects[1].status == "waiting"
    other = Standing(plan)
    other(Pause(), at=4)
    other(TakeUp(), at=100)
    with pytest.raises(NotPossible):
        other(Answer(), at=106.5)
    other(Answer(), at=105.5)
    over = Standing(plan)
    over(Pause(), at=12)  # its time was over before
    with pytest.raises(NotPossible):
        over(Answer(), at=13)


def test_what_is_asked_during_a_pause_has_its_whole_time() -> None:
    plan = plan_of(one={**ASK, "next": "two"}, two={**ASK, "timeout": "10s"})
    run = Standing(plan)
    run(Pause(), at=1)
    run(Answer(), at=100)
    assert run.here.state == "two"
    run(TakeUp(), at=200)
    assert run.here.due == run.moment(210).now


def test_a_failed_question_is_asked_anew_as_a_new_visit() -> None:
    run = Standing(plan_of(ask=ASK))
    run(Answer(reject=True))
    run(TakeUp())
    assert (run.here.phase, run.here.visit) == (Phase.ASKED, 2)
    run(Answer())
    assert run.at.run.status is Status.SUCCEEDED


def test_the_same_word_of_the_same_person_is_known_and_another_is_refused() -> None:
    run = Standing(plan_of(ask=ASK))
    (before,) = run(Answer(by="ann", data=1)).answers
    assert "ask (visit 1) is answered already: yes, by ann" in said_before("r", before, Answer(by="ann", data=1))
    assert said_before("r", before, Answer(by="ann", data=1, answer="yes", digest=before.digest))
    for other in (
        Answer(by="bob", data=1), Answer(by="ann", data=2), Answer(by="ann", data=1, reject=True),
        Answer(by="ann", data=1, answer="no"), Answer(by="ann", data=1, digest="x"),
    ):  # fmt: skip
        with pytest.raises(NotPossible, match="ann answered yes at"):
            said_before("r", before, other)


# --- signals ---


def word(**more: Any) -> dict[str, Any]:
    wait = {"signal": "go", **{k: more.pop(k) for k in ("schema", "heartbeat") if k in more}}
    return {"wait": wait, "next": "succeeded", **more}


def test_a_signal_ends_its_wait_with_its_payload() -> None:
    run = Standing(plan_of(a=word()))
    assert (run.at.run.status, run.here.phase) == (Status.WAITING, Phase.LISTENING)
    run(Signal("go", {"x": None}))
    assert run.at.run.status is Status.SUCCEEDED and run.output("a") == {"x": None}


def test_a_signal_without_a_payload_is_null() -> None:
    run = Standing(plan_of({"output": "${{ states.a.output }}"}, a=word()))
    run(Signal("go"))
    assert run.at.run.status is Status.SUCCEEDED and run.at.run.output is None


def test_a_signal_that_comes_before_its_wait_is_kept_for_it_first_in_first_out() -> None:
    run = Standing(plan_of(work={"run": ["x"], "next": "a"}, a=word(next="b"), b=word(next="c"), c=word()))
    for n in (1, 2):
        run(Signal("go", n))
    assert [s.payload for s in run.at.signals.values()] == [1, 2]
    run(Ended(1, 0))
    assert (run.output("a"), run.output("b"), run.here.state, run.at.signals) == (1, 2, "c", {})


def test_a_wait_takes_the_first_that_fits_it_and_leaves_the_others() -> None:
    plan = plan_of(work={"run": ["x"], "next": "a"}, a=word(schema="integer", next="b"), b=word(schema="string"))
    run = Standing(plan)
    for payload in ("text", 1, "more"):
        run(Signal("go", payload))
    with pytest.raises(PlanRefused, match="the payload of go does not fit"):
        run(Signal("go", None))
    run(Ended(1, 0))
    assert (run.output("a"), run.output("b")) == (1, "text")
    assert [e.data["signals"][0]["name"] for e in run.moves[-1].history if e.kind == "signals_left"] == ["go"]


def test_what_fits_another_wait_of_the_plan_is_kept_for_that() -> None:
    run = Standing(plan_of(a=word(schema="integer", next="b"), b=word(schema="string")))
    run(Signal("go", "early"))
    assert run.here.state == "a"
    run(Signal("go", 3))
    assert run.at.run.status is Status.SUCCEEDED and run.output("b") == "early"


def test_a_signal_may_bring_an_error_that_can_be_caught() -> None:
    run = Standing(plan_of(a=word(schema="integer", catch=[{"on": ["no_stock"], "next": "succeeded"}])))
    run(Signal("go", error="no_stock", message="sold out"))
    assert run.at.run.status is Status.SUCCEEDED
    run = Standing(plan_of(work={"run": ["x"], "next": "a"}, a=word()))
    run(Signal("go", error="no_stock", message="sold out"))
    run(Ended(1, 0))
    assert (run.at.run.ended_by["name"], run.at.run.ended_by["message"]) == ("no_stock", "sold out")


def test_a_name_the_plan_never_waits_for_and_a_run_that_has_ended_hear_nothing() -> None:
    run = Standing(plan_of(a=word()))
    with pytest.raises(NotPossible, match="never waits for a signal 'gone': it waits for go"):
        run(Signal("gone"))
    with pytest.raises(NotPossible, match="never waits for a signal 'gone'"):
        run(Alive("gone"))
    run(Signal("go"))
    with pytest.raises(NotPossible, match="has ended"):
        run(Signal("go"))
    with pytest.raises(NotPossible, match="has ended"):
        run(Alive("go"))
    cancelled = Standing(plan_of(work={"run": ["x"], "next": "a"}, a=word()))
    cancelled(Cancel())
    with pytest.raises(NotPossible, match="is being cancelled"):
        cancelled(Signal("go"))


def test_what_nobody_took_is_named_when_the_run_ends() -> None:
    run = Standing(plan_of(work={"run": ["x"], "catch": [{"on": ["any"], "next": "succeeded"}], "next": "a"}, a=word()))
    run(Signal("go", by="ann"))
    move = run(Ended(1, 1))
    assert run.at.run.status is Status.SUCCEEDED
    (told,) = [e for e in move.history if e.kind == "signals_left"]
    assert told.data["signals"] == [{"name": "go", "no": 1, "by": "ann"}]


def test_a_wait_whose_time_is_over_takes_nothing_though_nobody_has_noticed() -> None:
    run = Standing(plan_of(a=word(timeout="10s", catch=[{"on": ["timeout"], "next": "b"}]), b=word()))
    run(Signal("go", "late"), at=10)
    assert run.here.state == "a" and len(run.at.signals) == 1
    run(Due(""), at=11)
    assert run.at.run.status is Status.SUCCEEDED and run.output("b") == "late"


@pytest.mark.parametrize(
    ("state", "alive", "due", "error"),
    [
        (word(timeout="10s"), [], 10, "timeout"),
        (word(heartbeat="4s"), [], 4, "heartbeat"),
        (word(heartbeat="4s"), [3, 6, 9], 13, "heartbeat"),
        (word(heartbeat="4s", timeout="10s"), [], 4, "heartbeat"),
        (word(heartbeat="4s", timeout="10s"), [3, 6], 10, "timeout"),
        (word(heartbeat="4s", timeout="10s"), [3, 5], 9, "heartbeat"),
        (word(heartbeat="30s", timeout="10s"), [3, 6, 9], 10, "timeout"),
    ],
)
def test_a_wait_ends_by_its_time_or_by_silence(state: Any, alive: list[int], due: int, error: str) -> None:
    run = Standing(plan_of(a=state))
    for at in alive:
        run(Alive("go"), at=at)
    assert run.here.due == run.moment(due).now
    run(Due(""), at=due)
    assert run.at.run.ended_by["name"] == error


def test_a_sign_of_life_wants_a_wait_that_asks_for_one_and_is_not_over() -> None:
    run = Standing(plan_of(work={"run": ["x"], "next": "a"}, a=word(heartbeat="4s")))
    with pytest.raises(NotPossible, match="nothing of it waits for a sign of life of go"):
        run(Alive("go"))
    run(Ended(1, 0))
    run(Alive("go"), at=3)
    with pytest.raises(NotPossible):
        run(Alive("go"), at=7)
    with pytest.raises(NotPossible):
        Standing(plan_of(a=word(timeout="9s")))(Alive("go"))


def test_the_silence_counts_from_the_sign_of_life_not_from_when_it_was_heard() -> None:
    plan = plan_of(a=word(heartbeat="4s"))
    run = Standing(plan)
    m = run.moment(3)
    apply(run.at, decide(plan, run.at, Alive("go", "", m.now, m.clock, m.boot), run.moment(60), Evaluator()))
    assert run.here.due == run.moment(7).now


# --- histories nobody would think of ---


@st.composite
def chains(draw: Any) -> Any:
    """Waits and questions in a row that may lead back, so that names and states come again."""
    n = draw(st.integers(1, 5))
    names = [f"s{i}" for i in range(n)]
    made = {}
    for i, name in enumerate(names):
        to = draw(st.sampled_from([*names[: i + 2], "succeeded"])) if i + 1 == n else names[i + 1]
        kind = draw(st.sampled_from(["wait", "wait", "ask"]))
        if kind == "ask":
            made[name] = {"approval": {"message": "well?"}, "timeout": "20s", "next": to}
        else:
            made[name] = word(next=to)
            made[name]["wait"]["signal"] = draw(st.sampled_from(["x", "y"]))
            if draw(st.booleans()):
                made[name]["wait"]["schema"] = draw(st.sampled_from(["integer", "string"]))
            if draw(st.booleans()):
                made[name]["timeout"] = "30s"
        made[name]["catch"] = [{"on": ["any"], "next": to}]
        made[name]["max_visits"] = 3
    return plan_of(**made)


@settings(max_examples=300)
@given(plan=chains(), data=st.data())
def test_every_signal_is_taken_once_in_order_and_every_question_answered_once(plan: Any, data: Any) -> None:
    run = Standing(plan)
    sent: dict[int, tuple[str, Any]] = {}
    seconds = 0.0
    for _ in range(data.draw(st.integers(0, 25))):
        seconds += data.draw(st.sampled_from([0, 0, 5, 25]))
        payload = data.draw(st.sampled_from([1, "t"]))
        event = data.draw(
            st.sampled_from(
                [Signal("x", payload), Signal("y", payload), Signal("x", error="own"), Answer(), Answer(reject=True), Due("")]
            )
        )
        before, stood = run.at.run, run.here
        expected = run.at.run.next_signal
        try:
            run(event, at=seconds)
        except (NotPossible, PlanRefused):
            assert run.at.run == before and run.here == stood, "what was refused changed something"
            continue
        if isinstance(event, Signal):
            sent[expected] = (event.name, None if event.error else event.payload)
    taken = [s for move in run.moves for s in move.signals.values() if s.taken]
    assert len({s.no for s in taken}) == len(taken), "a signal was taken twice"
    assert len({s.taken for s in taken}) == len(taken), "a wait took two signals"
    assert {s.no for s in taken} | set(run.at.signals) == set(sent), "a signal was lost"
    answers = [(a.scope, a.state, a.visit) for move in run.moves for a in move.answers]
    assert len(set(answers)) == len(answers), "a question was answered twice"
    for move in run.moves:
        in_order(plan, move, run.moves)
    if run.at.run.status not in TERMINAL and run.here.phase is Phase.LISTENING:
        assert not any(fits(plan, run.here.state, s) for s in run.at.signals.values() if s.at < run.here.entered_at)


def fits(plan: Any, state: str, s: Any) -> bool:
    wait = plan["states"][state]["wait"]
    wanted = wait.get("schema", {}).get("type")
    return s.name == wait["signal"] and (s.error is not None or wanted in (None, "integer" if s.payload == 1 else "string"))


def in_order(plan: Any, move: Move, moves: list[Move]) -> None:
    """Whoever took a signal found no older one that fits, not taken before."""
    earlier: dict[int, Any] = {}
    for m in moves:
        for s in m.signals.values():
            if m is move and s.taken:
                older = [o for no, o in earlier.items() if no < s.no and o.taken is None and no not in m.signals]
                assert not any(fits(plan, s.taken[1], o) for o in older), "a younger signal was taken first"
        if m is move:
            return
        earlier |= m.signals

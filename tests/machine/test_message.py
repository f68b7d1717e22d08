"""What follows from how a delivery ended: the rules alone, with rows made here."""

from __future__ import annotations

from typing import Any

import pytest

from durun.machine import message
from durun.machine.events import Ended, Lost, Moment, Moved
from durun.machine.model import Effect, Message

AT = Moment(10_000, 10_000, "boot", "here", 0.0)
RULE = {
    "on": ["any"],
    "max_attempts": 3,
    "max_elapsed": None,
    "initial_interval": 10,
    "backoff": 1,
    "max_interval": 10,
    "jitter": "none",
}


def made(**more: Any) -> tuple[Message, Effect]:
    policy = {"retry": [RULE], "idempotent": True, "expect": [0], **more}
    return Message(1, policy=policy), Effect(1, "", "a", 1, "run", "k", {"script": ""}, "waiting")


def begun(**more: Any) -> message.Step:
    return message.begin(*made(**more), AT, "here")


def hear(step: message.Step, event: Any) -> message.Step:
    return message.heard(step.message, step.effect, event, AT, "here")


def test_what_an_earlier_attempt_may_have_done_is_not_forgotten_when_a_later_one_did_nothing() -> None:
    step = hear(begun(), Ended(1, -9, "timeout"))
    assert (step.message.status, step.effect.status) == ("waiting", "not_certain")
    step = hear(message.begin(*step[:2], AT, "here"), Ended(1, 1))
    assert step.effect.status == "in_doubt"
    step = hear(message.begin(*step[:2], AT, "here"), Ended(1, 1))
    assert (step.message.status, step.effect.status) == ("dead", "in_doubt")
    assert hear(hear(begun(), Ended(1, 1)), Ended(1, 1)).effect.status == "not_done"


def test_one_that_was_certainly_never_begun_is_begun_as_the_same_attempt_and_withdrawn_as_never_begun() -> None:
    step = hear(begun(), Moved(1))
    assert step.begin and step.effect.attempt == 1
    assert message.withdrawn(step).effect.status == "withdrawn"
    later = hear(message.begin(*hear(begun(), Ended(1, 1))[:2], AT, "here"), Moved(1))
    assert later.effect.attempt == 2 and message.withdrawn(later).effect.status == "not_done"
    unsure = hear(message.begin(*hear(begun(), Ended(1, -9, "timeout"))[:2], AT, "here"), Moved(1))
    assert message.withdrawn(unsure).effect.status == "in_doubt"


@pytest.mark.parametrize(("rules", "times"), [([], 1), ([RULE], 2)])
def test_a_doubt_is_repeated_out_of_the_budget_and_once_without_a_rule(rules: list[Any], times: int) -> None:
    step, repeats = begun(retry=rules), 0
    while (step := hear(step, Lost(1, "killed"))).begin:
        repeats += 1
    assert (step.message.status, step.effect.status, repeats) == ("dead", "in_doubt", times)


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_permanent_answer_gives_it_up_unless_a_rule_names_it(status: int) -> None:
    from durun.machine.events import Answered

    answer = Answered(1, status, {}, b"", host="far")
    for rules, ends in (([RULE], "dead"), ([{**RULE, "on": [f"http:{status}"]}], "waiting")):
        m, e = made(retry=rules)
        step = message.begin(m, e._replace(kind="http", request={"method": "POST", "expect": [[200, 299]]}), AT, "here")
        assert hear(step, answer).message.status == ends
    passing = Answered(1, 429, {"retry-after": "7"}, b"", host="far")
    m, e = made()
    step = message.begin(m, e._replace(kind="http", request={"method": "POST", "expect": [[200, 299]]}), AT, "here")
    assert hear(step, passing).message.due == AT.now + 7_000


def test_a_probe_that_cannot_say_is_asked_again_as_its_own_rules_allow() -> None:
    asked = {"request": {"argv": ["look"]}, "yes": [0], "no": [1], "retry": [RULE]}

    def doubtful() -> message.Step:
        m, e = made(retry=[])
        return hear(message.begin(m._replace(probe=asked), e, AT, "here"), Ended(1, -9, "timeout"))

    step = doubtful()
    assert step.begin and step.message.asking
    for n in (1, 2):
        step = hear(step, Ended(1, 2))
        assert (step.message.status, step.message.unanswered, step.message.due) == ("waiting", n, AT.now + 10)
        step = message.begin(*step[:2], AT, "here")
        assert step.begin and step.message.asking and step.message.probes == n + 1
    assert hear(step, Ended(1, 0)).message.status == "delivered"
    assert hear(step, Ended(1, 2)).message.status == "dead"  # its budget is used up, and nothing says that it may be sent again
    assert hear(doubtful(), Lost(1, "its keeper died")).message.status == "dead"


def test_with_a_new_key_it_is_another_act_and_what_is_known_of_the_one_before_stands_again_where_that_never_was() -> None:
    asked = {"request": {"argv": ["look", "k"]}, "yes": [0], "no": [1], "retry": []}
    m, e = made(retry=[])
    dead = hear(message.begin(m, e, AT, "here"), Ended(1, -9, "timeout"))
    assert (dead.message.status, dead.effect.status, dead.effect.attempt) == ("dead", "not_certain", 1)
    step = message.again(dead.message._replace(probe=asked), dead.effect, AT, "other")
    assert (step.effect.key, step.effect.attempt, step.message.unsure) == ("other", 2, False)
    assert step.message.probe is None, "it asked for the first key"
    never = message.withdrawn(hear(message.begin(*step[:2], AT, "here"), Moved(1)))
    for m, e in (never[:2], message.dropped(*step[:2], "")[:2]):
        assert (e.key, e.status, e.attempt, e.error, m.earlier) == ("k", "not_certain", 1, dead.effect.error, ())
    failed = hear(message.begin(*step[:2], AT, "here"), Ended(1, 1))
    assert (failed.effect.key, failed.effect.status, message.may_have(failed.message)) == ("other", "not_done", ["k"])
    m, e = message.dropped(*failed[:2], "")[:2]
    assert (e.key, e.status, e.attempt, m.earlier) == ("k", "not_certain", 2, ())
    sent = hear(message.begin(*step[:2], AT, "here"), Ended(1, 0))
    assert (sent.message.status, sent.effect.key, message.may_have(sent.message)) == ("delivered", "other", ["k"])
    certain = message.again(*hear(begun(retry=[]), Ended(1, 1))[:2], AT, "other")
    assert message.may_have(certain.message) == [] and message.dropped(*certain[:2], "").effect.status == "not_done"

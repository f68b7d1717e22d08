"""How the end of a request counts, what an answer gives, and what Retry-After asks for."""

from __future__ import annotations

from typing import Any

import pytest

from durun.errors import ExpressionError
from durun.machine.decide import begin, decide
from durun.machine.events import Answered, Cancel, CouldNotStart, Due, Lost, Moment, Settle
from durun.machine.model import Checkpoint, Phase, Run, Status, apply
from durun.machine.outcome import OutputError
from durun.machine.request import asked_to_wait, date, outcome_of, output_of, url
from durun.plan.check import read
from durun.plan.expressions import Evaluator

E = Evaluator()
GOOD = [[200, 299]]
NOW = Moment(1_000_000, 5_000, "boot", "place", 0.5)


def standing(**state: Any) -> Any:
    """A plan of one request, and its run with the request intended."""
    act = {"http": {"method": "POST", "url": "http://far/x"}, "next": "succeeded", **state}
    plan, faults, _ = read({"durun": 1, "name": "request", "start": "a", "states": {"a": act}})
    assert plan is not None, faults
    at = Checkpoint(Run("r", "t", "1", "ab" * 16, 0, Status.RUNNING, None, {}, {}, {}, {}))
    apply(at, begin(plan, at.run, NOW, E))
    return plan, at


@pytest.mark.parametrize(
    ("event", "how", "name"),
    [
        (Answered(1, 200), "done", ""), (Answered(1, 299), "done", ""), (Answered(1, 300), "not_certain", "http:300"),
        (Answered(1, 400), "not_done", "http:400"), (Answered(1, 408), "not_certain", "http:408"), (Answered(1, 499), "not_done", "http:499"),
        (Answered(1, 500), "not_certain", "http:500"), (Answered(1, 999), "not_certain", "http:999"),
        (Answered(1, None, sent=False, fault="network"), "not_done", "network"),
        (Answered(1, None, sent=False, fault="timeout"), "not_done", "network"),
        (Answered(1, None, fault="timeout"), "not_certain", "timeout"), (Answered(1, None, fault="network"), "not_certain", "network"),
        (Answered(1, 200, cut="it broke", too_large=True, fault="timeout"), "done", ""),
    ],
)  # fmt: skip
def test_a_status_line_decides_and_without_one_whether_anything_was_sent(event: Answered, how: str, name: str) -> None:
    outcome = outcome_of(GOOD, event)
    assert (outcome.how, outcome.name) == (how, name)


@pytest.mark.parametrize(("idempotent", "phase"), [(True, Phase.FAILED), (False, Phase.DOUBT)])
def test_one_that_went_out_without_an_answer_is_an_error_only_where_it_may_be_repeated(idempotent: bool, phase: Phase) -> None:
    plan, at = standing(idempotent=idempotent)
    move = decide(plan, at, Answered(1, None, fault="network", message="far: gone"), NOW, E)
    assert move.positions[""] and move.positions[""].phase is phase
    assert move.effects[1].status == ("not_certain" if idempotent else "in_doubt")


def test_an_idempotence_that_has_run_out_is_none() -> None:
    plan, at = standing(idempotent="1h")
    later = NOW._replace(now=NOW.now + 3_600_001)
    assert decide(plan, at, Answered(1, None, fault="network"), later, E).run.status is Status.BLOCKED


def test_three_that_break_in_one_visit_keep_dying() -> None:
    plan, at = standing(idempotent=True, retry={"max_attempts": 9})
    for _ in range(2):
        apply(at, decide(plan, at, Lost(1, "killed"), NOW, E))
        assert at.positions[""].phase is Phase.ACTING
    apply(at, decide(plan, at, Lost(1, "killed"), NOW, E))
    assert at.run.reason == "keeps_dying"


def test_one_stopped_by_cancel_without_an_answer_is_not_certain() -> None:
    plan, at = standing()
    apply(at, decide(plan, at, Cancel(), NOW, E))
    move = decide(plan, at, Answered(1, None, fault="network", stopped="cancel"), NOW, E)
    assert (move.run.status, move.effects[1].status) == (Status.CANCELLED, "not_certain")


def test_one_stopped_with_durun_is_in_doubt_and_not_counted_and_an_answer_that_came_counts() -> None:
    plan, at = standing()
    lost = decide(plan, at, Answered(1, None, fault="network", stopped="leaving"), NOW._replace(place=None), E)
    assert lost.positions[""] and (lost.positions[""].phase, lost.positions[""].doubts) == (Phase.LOST, 0)
    done = decide(plan, at, Answered(1, 200, {}, stopped="leaving"), NOW._replace(place=None), E)
    assert done.run.status is Status.SUCCEEDED


def test_a_secret_that_is_missing_holds_the_state_until_somebody_drives_again() -> None:
    plan, at = standing()
    apply(at, decide(plan, at, CouldNotStart(1, 0, "secret", why="the secret T is not there"), NOW, E))
    assert (at.run.status, at.run.reason, at.effects[1].attempt) == (Status.BLOCKED, "secret_missing", 1)
    move = decide(plan, at, Settle(""), NOW, E)
    assert move.begin == [1]


# --- Retry-After ---


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("3", 3000), (" 120 ", 120_000), ("0", 0), ("-1", 0), ("1.5", 0), ("", 0), ("soon", 0), ("9" * 400, 253_402_300_799_999 - 1_000_000),
        ("Thu, 01 Jan 1970 00:20:00 GMT", 200_000), ("Thursday, 01-Jan-26 00:00:00 GMT", 1_767_225_600_000 - 1_000_000),
        ("Thu Jan  1 00:20:00 1970", 200_000), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("Thu, 41 Jan 1970 00:00:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:20:00 CET", 0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_what_is_neither_asks_for_nothing(said: str, ms: int) -> None:
    assert asked_to_wait({"headers": {"retry-after": said}}, 1_000_000) == ms


@pytest.mark.parametrize("answer", [None, 5, [], {}, {"headers": None}, {"headers": {"retry-after": 5}}])
def test_where_nothing_was_asked_nothing_is_waited_for(answer: Any) -> None:
    assert asked_to_wait(answer, 0) == 0


def test_a_date_counts_from_the_clock_of_the_far_side_where_it_says_it() -> None:
    headers = {"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT", "date": "Thu, 01 Jan 2026 00:00:30 GMT"}
    assert asked_to_wait({"headers": headers}, 0) == 30_000
    assert date("Sun, 06 Nov 1994 08:49:37 GMT") == 784_111_777_000


def test_it_lengthens_the_delay_of_a_rule_beyond_its_longest_and_counts_against_the_elapsed() -> None:
    rule = {"on": "http:5xx", "max_attempts": 3, "initial_interval": "1s", "max_interval": "1s", "jitter": "none"}
    event = Answered(1, 503, {"retry-after": "60"})
    plan, at = standing(retry=rule)
    move = decide(plan, at, event, NOW, E)
    assert move.positions[""] and move.positions[""].due == NOW.now + 60_000
    plan, at = standing(retry={**rule, "max_elapsed": "59s"})
    assert decide(plan, at, event, NOW, E).run.status is Status.FAILED
    plan, at = standing(retry={**rule, "initial_interval": "1s"})
    shorter = decide(plan, at, Answered(1, 503, {"retry-after": "0"}), NOW, E)
    assert shorter.positions[""] and shorter.positions[""].due == NOW.now + 1000


def test_a_retry_keeps_key_and_request() -> None:
    plan, at = standing(retry={"on": "http:5xx"})
    before = at.effects[1]
    apply(at, decide(plan, at, Answered(1, 500, {}), NOW, E))
    apply(at, decide(plan, at, Due(""), NOW, E))
    after = at.effects[1]
    assert (after.key, after.request, after.attempt) == (before.key, before.request, 2)


@pytest.mark.parametrize(
    ("key", "said"),
    [("", "is empty"), (" ", "is empty"), ("a\nb", "a line break"), ("\x1b[2J", "a line break"), ("k" * 1001, "1000")],
)
def test_a_key_that_would_name_no_act_is_an_error_of_its_state_and_nothing_is_sent(key: str, said: str) -> None:
    asked = {"http": {"url": "http://far/x"}, "poll": {"until": "true", "for": "1m"}}
    for more in ({}, asked, {"background": True, "idempotent": True}):
        worked_out = "${{ ['" + key.replace("\n", "\\n").replace("\x1b", "\\u001b") + "'][0] }}"
        at = standing(key=worked_out, **more)[1]
        assert at.run.status is Status.FAILED and not at.effects, at.run
        assert at.run.error["name"] == "expression" and said in at.run.error["message"]
    act = {"run": ["x"], "key": key, "next": "succeeded"}
    plan, faults, _ = read({"durun": 1, "name": "request", "start": "a", "states": {"a": act}})
    assert plan is None and any(said in fault.message or "is empty" in fault.message for fault in faults), faults


# --- output ---


@pytest.mark.parametrize(
    ("body", "kind", "json", "text"),
    [
        (b"", "application/json", None, ""), (b'{"a": 1}', "application/json; charset=utf-8", {"a": 1}, '{"a": 1}'),
        (b"1", "text/plain", 1, "1"), (b"\xe4", "text/plain; charset=iso-8859-1", None, "ä"), (b"\xe4", "text/plain", None, None),
        (b"a\0b", "text/plain", None, None), (b"x", "text/plain; charset=nonsense", None, None), (b"NaN", "text/plain", None, "NaN"),
    ],
)  # fmt: skip
def test_a_body_is_text_where_it_is_text_and_json_where_it_reads_as_json(body: bytes, kind: str, json: Any, text: Any) -> None:
    output = output_of(Answered(1, 200, {"content-type": kind}, body))
    assert (output["json"], output["body"]) == (json, text)


@pytest.mark.parametrize("body", [b"{", b"NaN", b'{"a":1,"a":2}', b"\xff", b"[" * 200 + b"]" * 200, b'"\\ud800"'])
@pytest.mark.parametrize("kind", ["application/json", "Application/Problem+JSON"])
def test_what_is_called_json_and_is_none_is_invalid(body: bytes, kind: str) -> None:
    with pytest.raises(OutputError) as e:
        output_of(Answered(1, 200, {"content-type": kind}, body))
    assert e.value.name == "output_invalid"


# --- url ---


@pytest.mark.parametrize(
    "text", ["", "x", "ftp://x", "//x/y", "http://", "http:///x", "https://x/a#b", "http://x/\n", "file:///etc/passwd"]
)
def test_what_is_no_address_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        url(text)


def test_what_is_encoded_stays_and_what_may_not_stand_is_encoded() -> None:
    assert url("HTTPS://x/a%20b c?d=ü&e=\"'#".replace("#", "")) == "HTTPS://x/a%20b%20c?d=%C3%BC&e=%22'"

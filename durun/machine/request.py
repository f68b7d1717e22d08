"""Requests: how one is rendered, how its answer counts, and what its output is.

Rules:
- done: a status that was expected, whatever becomes of the body
- not done: any other 4xx but 408, and every fault before the first byte was sent
- not certain: 408, 5xx, any other status that was not expected; no status in time; and no status at all where the effect is
  idempotent
- in doubt: it went out, no status came, and it is not idempotent
- `Retry-After` is kept in full: it lengthens the delay of a rule or the time to the next round, and counts as elapsed
- a body that is no text is null in the output; one that was called JSON and is none is `output_invalid`
"""

from __future__ import annotations

import re
from typing import Any

from durun.errors import ExpressionError
from durun.machine import doubt, poll, walk
from durun.machine.draft import LIMIT, Draft, Names
from durun.machine.events import Answered
from durun.machine.model import Position
from durun.machine.outcome import DONE, NOT_CERTAIN, NOT_DONE, Outcome, OutputError, output_of_text
from durun.plan.canonical import State
from durun.plan.data import clean, read_json
from durun.plan.units import LAST, duration

Json = Any

BUSY = (429, 503)  # whose Retry-After speaks of all requests, not of this one
NOT_IN_URL = r'[^!-~]|["<>\\^`{|}]'
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# RFC 9110, 5.6.7: the form in use, and the two it had before
DATES = (
    r"[A-Z][a-z]{2}, (?P<d>\d\d) (?P<m>[A-Z][a-z]{2}) (?P<y>\d{4}) (?P<t>\d\d:\d\d:\d\d) GMT",
    r"[A-Z][a-z]+, (?P<d>\d\d)-(?P<m>[A-Z][a-z]{2})-(?P<y>\d\d) (?P<t>\d\d:\d\d:\d\d) GMT",
    r"[A-Z][a-z]{2} (?P<m>[A-Z][a-z]{2}) (?P<d>[ \d]\d) (?P<t>\d\d:\d\d:\d\d) (?P<y>\d{4})",
)


# --- to render ---


def render(d: Draft, act: Json, names: Names) -> Json:
    """A frozen request, with every expression worked out. Raises ExpressionError."""
    e = d.evaluate
    request: dict[str, Json] = {word: act[word] for word in ("method", "expect", "max_body")}
    if "key_header" in act:
        request["key_header"] = act["key_header"]
    request["url"] = url(e.text(act["url"], names, limit=LIMIT)) if act["url"] else ""  # its place is open
    request["headers"] = {k: one_line(k, e.text(v, names, limit=LIMIT)) for k, v in act["headers"].items()}
    for word in ("json", "body"):
        if word in act:
            request[word] = e.value(act[word], names)
    if "form" in act:
        request["form"] = {k: _field(e, v, names) for k, v in act["form"].items()}
    if "auth" in act:
        request["auth"] = {k: one_line(k, e.text(v, names, limit=LIMIT)) for k, v in act["auth"].items()}
    try:
        given = act["timeout"]
        request["timeout"] = given if isinstance(given, int) else duration(e.text(given, names))
    except ValueError as problem:
        raise ExpressionError(f"timeout: {problem}") from None
    return request


def _field(e: Any, given: Json, names: Names) -> Json:
    value = e.value(given, names)
    if isinstance(value, list):
        return [v if isinstance(v, str) else e.text(v, names) for v in value]
    return e.text(given, names)


def url(text: str) -> str:
    """An address to ask, with what may not stand in one percent-encoded. Raises ExpressionError."""
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ExpressionError("url: it holds a control character")
    if not re.match(r"https?://[^/?#]", text, re.I):
        raise ExpressionError("url: it must begin with http:// or https:// and a host")
    if "#" in text:
        raise ExpressionError("url: what stands after a `#` is never sent: write it as %23, or leave it out")
    return re.sub(NOT_IN_URL, lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def one_line(name: str, text: str) -> str:
    if re.search(r"[\r\n\0]", text):
        raise ExpressionError(f"{name}: it holds a line break, and a header is one line")
    return text


# --- how an answer counts ---


def outcome_of(expect: list[list[int]], event: Answered) -> Outcome:
    """How this end of a request counts. One that went out without an answer counts as if it were idempotent."""
    status = event.status
    if status is None:
        if not event.sent:
            return Outcome(NOT_DONE, "network", event.message)
        return Outcome(NOT_CERTAIN, event.fault or "network", event.message)
    if within(expect, status):
        return Outcome(DONE)
    certain = 400 <= status < 500 and status != 408
    return Outcome(NOT_DONE if certain else NOT_CERTAIN, f"http:{status}", f"{event.host} answered {status}")


def within(ranges: list[list[int]], status: int | None) -> bool:
    return status is not None and any(low <= status <= high for low, high in ranges)


def answered(d: Draft, p: Position, event: Answered) -> None:
    """The request of a position has ended."""
    assert p.effect is not None
    effect, state = d.effect(p.effect), d.state(p)
    if event.status is None and event.sent:
        if event.stopped == "leaving":
            return doubt.stopped(d, p)
        if not event.stopped and event.fault != "timeout" and not doubt.idempotent(d, p):
            return doubt.lost(d, p, event.message)
    outcome = outcome_of(effect.request["expect"], event)
    said = {"error": outcome.name, "message": outcome.message} if outcome.name else {}
    d.tell("attempt_ended", p, effect.attempt, how=outcome.how, status=event.status, stopped=event.stopped, **said)
    if "limit" in state and event.status in BUSY:
        from durun.machine import limits

        limits.hold_back(d, p, asked_to_wait({"headers": event.headers}, d.moment.now))
    if outcome.how == DONE:
        return walk.follow(d, p.scope, _done(d, p, event))
    if poll.goes_on(d, p):
        return walk.follow(d, p.scope, poll.not_yet(d, p, outcome, what_came(event)))
    walk.unsuccessful(d, p, error_of(p, effect.attempt, outcome.name, outcome.message, event), outcome.how)


def error_of(p: Position, attempt: int, name: str, message: str, event: Answered) -> dict[str, Json]:
    return walk.error_of(p, name, message, attempt=attempt, status=event.status, output=what_came(event))


def _done(d: Draft, p: Position, event: Answered) -> str | None:
    """The effect is done, whatever becomes of its body."""
    assert p.effect is not None
    effect = d.effect(p.effect)._replace(status=DONE, ended_at=d.moment.now, error=None)
    try:
        output = output_of(event)
    except OutputError as e:
        d.put_effect(effect)
        if poll.goes_on(d, p):
            return poll.not_yet(d, p, Outcome(DONE, e.name, e.message), what_came(event))
        return walk.after_error(d, p, error_of(p, effect.attempt, e.name, e.message, event), DONE)
    d.put_effect(effect._replace(output=output, has_output=True))
    if "poll" in d.state(p):
        return poll.answered(d, p, output)
    return walk.finish(d, p, output)


# --- what an answer holds ---


def output_of(event: Answered) -> Json:
    """{status, headers, json, body}. Raises OutputError."""
    _whole(event)
    return {"status": event.status, "headers": event.headers, **_contents(event)}


def _whole(event: Answered) -> None:
    if event.secret:
        raise OutputError("output_invalid", f"its answer holds the secret {event.secret}, and data is never changed in silence")
    if event.too_large:
        raise OutputError("output_too_large", f"the body {event.host} sent is over `max_body`")
    if event.cut:
        raise OutputError("output_invalid", f"the body {event.host} sent is not whole: {event.cut}")


def _contents(event: Answered) -> dict[str, Json]:
    kind, _, more = str(event.headers.get("content-type", "")).lower().partition(";")
    called_json = kind.strip() == "application/json" or kind.strip().endswith("+json")
    if not event.body:
        return {"json": None, "body": ""}
    body = _text(event.body, more)
    try:
        value = read_json(event.body)
    except ValueError as e:
        if called_json:
            raise OutputError("output_invalid", f"the body {event.host} sent is called JSON and is none: {e}") from None
        value = None
    return {"json": value, "body": body}


def _text(raw: bytes, more: str) -> str | None:
    """The body as text, or None where it is none."""
    charset = re.search(r'charset="?([a-z0-9_.:-]+)', more)
    try:
        text = raw.decode(charset[1] if charset else "utf-8")
        clean(text)
    except (LookupError, ValueError):
        return None
    return text


def what_came(event: Answered) -> Json:
    """The answer of a request that did not end well, for `error.output`; what is not whole is left out."""
    if event.status is None:
        return None
    if event.cut or event.too_large or event.secret:
        return {"status": event.status, "headers": event.headers, "json": None, "body": None}
    try:
        return output_of(event)
    except OutputError:
        return {"status": event.status, "headers": event.headers, "json": None, "body": _text(event.body, "")}


# --- Retry-After ---


def asked_to_wait(answer: Json, now: int) -> int:
    """Milliseconds that an answer asks to wait, 0 where it asks for nothing that can be read."""
    headers = answer.get("headers") if isinstance(answer, dict) else None
    said = headers.get("retry-after") if isinstance(headers, dict) else None
    if not isinstance(said, str):
        return 0
    most = max(0, LAST - now)
    if re.fullmatch(r"\d{1,400}", said.strip()):
        return min(int(said) * 1000, most)
    until = date(said)
    if until is None:
        return 0
    since = date(str(headers.get("date", ""))) if headers else None  # by the clock of the far side, where it says it
    return min(max(0, until - (since if since is not None else now)), most)


def date(text: str) -> int | None:
    """UTC ms of an HTTP date, or None where it is none."""
    found = next((m for form in DATES if (m := re.fullmatch(form, text.strip()))), None)
    if found is None or found["m"] not in MONTHS:
        return None
    from datetime import UTC, datetime

    year = int(found["y"]) + (2000 if len(found["y"]) == 2 else 0)
    hour, minute, second = map(int, found["t"].split(":"))
    try:
        at = datetime(year, MONTHS.index(found["m"]) + 1, int(found["d"]), hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * 1000


# --- a request as a probe ---


def said_by(probe: Json, event: Answered) -> str:
    """yes, no, or unknown."""
    if within(probe["yes"], event.status):
        return "yes"
    return "no" if within(probe["no"], event.status) else "unknown"


def output_for(state: State, event: Answered) -> Json:
    """What the answer of a probe that said yes gives to the state it speaks for. Raises OutputError."""
    if state["kind"] == "http":
        return output_of(event)
    if "output" not in state:
        return None
    _whole(event)
    return output_of_text(state, event.body, f"the body {event.host} sent")

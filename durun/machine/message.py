"""Messages: effects that a run leaves to be delivered, and goes on. What is left, and what follows from how a delivery ended.

Rules:
- the intent is stored in the move that passes its state, or that makes the change a `notify` tells of; its request, its probe and
  its undo are rendered there, once
- within a run they are delivered in the order of their intents, one after the other; one that was given up holds back those behind
  it, until somebody says what becomes of it. A `notify` waits for none and holds none back
- what ended well is delivered; a permanent answer (a 4xx but 408, 409, 425, 429) gives it up, unless a rule names it; anything
  else is tried again as the rules of its state say
- where nobody knows whether it happened its probe is asked; else it is sent again with its key, out of the retry budget (once
  without a rule)
- with a new key it is another act: what is known of it with the key before is kept, and stands again where with the new one
  certainly nothing has happened; its undo is rendered by the key that it then has, and where both acts may have happened a person
  is asked
- `max_elapsed` counts the delays that were asked for and the time the attempts took, not the time in which nobody delivered
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine import doubt, request, retry, undo, walk
from durun.machine import scope as scopes
from durun.machine.draft import Draft, uuid5
from durun.machine.events import Answered, CouldNotStart, Ended, Lost, Moment, Moved
from durun.machine.model import DELIVERED, TERMINAL, Effect, Message, Phase, Position, Status
from durun.machine.outcome import DONE, IN_DOUBT, NOT_CERTAIN, NOT_DONE, of_command, of_no_start
from durun.machine.timer import remaining
from durun.plan.canonical import State
from durun.plan.digest import canonical_text
from durun.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:  # it comes with a plan that has limits
    from durun.machine.limits import Limit

Json = Any

PASSING = (408, 409, 425, 429)  # the 4xx that say: later
KEPT = 100  # attempts of a message of which it is known where they have written
ENOUGH = 3  # doubts, after which it is given up
AS_IT_WAS = ("key", "status", "attempt", "first_at", "ended_at", "exit", "error")  # of an effect, with a key that it had before
TOLD = "notify:"  # how the effects of a `notify` are named, before the word of what they tell


# --- what a run leaves ---


def leave_behind(d: Draft, p: Position, state: State, key: str, frozen: Json) -> str:
    """The intent of an effect that nobody waits for: the state is passed. Where it leads to. Raises AssignError."""
    no = d.run.next_effect
    names = d.names(p.scope, visit=p.visit, key=key)
    d.set_run(next_effect=no + 1)
    effect = Effect(no, p.scope, p.state, p.visit, state["kind"], key, frozen, "waiting", intended_at=d.moment.now)
    message = Message(no, policy=policy(state, _limit(d, p, state)), probe=probe(d, state, names), due=d.moment.now)
    d.put_effect(effect)
    undo.register(d, p, effect)
    if "compensate" in state:
        message = message._replace(undo=undo.of_message(d, p._replace(effect=no)))
    d.move.messages[no] = message
    d.put_row(walk.ended(d.row(p.scope, p.state), p, effect=no))
    changed = walk.assign(d, p, state["assign"], output=None, key=key)
    return walk.left(d, p, state["next"], changed, effect=no, background=True)


def _limit(d: Draft, p: Position, state: State) -> Json:
    """[name, most, rate, period] of what it takes a place of, None where it takes none."""
    if "limit" not in state:
        return None
    from durun.machine import limits

    found = limits.of_state(d, p.scope, state)
    return None if found is None else list(found)


def policy(state: Json, limit: Json = None) -> Json:
    """What of a state decides how a delivery counts and whether it is tried again."""
    kept = {"retry": state.get("retry", []), "idempotent": state.get("idempotent", False)}
    if "expect" in state:
        kept["expect"] = state["expect"]
    if limit is not None:
        kept["limit"] = limit
    if "script" in state["act"]:
        kept["act"] = {"script": ""}  # how the shell's own exit codes are read
    return kept


def probe(d: Draft, state: Json, names: Json) -> Json:
    """{request, yes, no, retry} of what finds out whether it happened; None where there is none, or it cannot be rendered."""
    if "probe" not in state:
        return None
    given = state["probe"]
    try:
        frozen = walk.render(d, given, names, capture=False)
    except ExpressionError:
        return None  # nobody can be asked: what is in doubt is then for a person
    return {"request": frozen, "yes": given["yes"], "no": given["no"], "retry": given.get("retry", [])}


def notify(d: Draft) -> None:
    """What this move has to tell, as the plan's `notify` says, in the same commit."""
    wanted = d.plan.get("notify")
    happened = _happened(d) if wanted else []
    for word, path in happened:
        for given in wanted or []:
            if word in given["on"]:
                _tell_of(d, given, word, path)


def _happened(d: Draft) -> list[tuple[str, str | None]]:
    """(word, path) of what this move has changed that somebody may be told of."""
    found: list[tuple[str, str | None]] = []
    for scope, p in d.move.positions.items():
        before = d.at.positions.get(scope)
        fresh = p is not None and (before is None or (before.phase, before.visit) != (p.phase, p.visit))
        word = {Phase.ASKED: "approval", Phase.LISTENING: "signal"}.get(p.phase) if p is not None and fresh else None
        if p is not None and word is not None:
            found.append((word, scopes.path_of(p.scope, p.state)))
    run, before_run = d.run, d.at.run
    if run.status is not before_run.status and (run.status in TERMINAL or run.status is Status.BLOCKED):
        found.append((str(run.status), None))
    return found


def _tell_of(d: Draft, given: Json, word: str, path: str | None) -> None:
    no = d.run.next_effect
    key = uuid5(d.run.namespace, f"{TOLD}{word}/{no}")
    try:
        frozen = walk.render(d, given["act"], d.names(""), capture=False)
    except ExpressionError as e:
        d.tell("not_told", None, None, of=word, path=path, why=str(e))
        return
    d.set_run(next_effect=no + 1)
    d.put_effect(Effect(no, "", f"{TOLD}{word}", 1, given["kind"], key, frozen, "waiting", intended_at=d.moment.now))
    d.move.messages[no] = Message(no, ordered=False, policy=policy(given), due=d.moment.now)
    d.tell("told", None, None, of=word, path=path, effect=no)


# --- to deliver ---


class Step(NamedTuple):
    """What follows for a message: its rows, and whether its effect (or its probe) is to begin now."""

    message: Message
    effect: Effect
    begin: bool = False


def due_in(m: Message, at: Moment) -> int:
    """Milliseconds until a message may be delivered."""
    if m.due is None:
        return 0
    return remaining(m.due, m.length, (m.boot, m.clock), (at.now, at.clock, at.boot))


def begin(m: Message, e: Effect, at: Moment, place: str) -> Step:
    """A message that waits and is due is begun here: its probe first, where it may have happened."""
    if m.unsure and m.probe is not None:
        return _ask(m, e, at, place)
    return _attempt(m, e, at, place)


def _attempt(m: Message, e: Effect, at: Moment, place: str, *, counted: bool = False) -> Step:
    """The next attempt; `counted`: the one that was to begin, and certainly has not."""
    attempt = e.attempt if counted or e.first_at is None else e.attempt + 1
    first = e.first_at if e.first_at is not None else at.now
    effect = e._replace(status="begin", attempt=attempt, boot=at.boot, place=place, first_at=first, ended_at=None, exit=None)
    stands = m._replace(status="sending", asking=False, due=None, length=None, boot=at.boot, clock=at.clock)
    return Step(stands, effect, True)


def _ask(m: Message, e: Effect, at: Moment, place: str) -> Step:
    stands = m._replace(status="sending", asking=True, probes=m.probes + 1, due=None, length=None, boot=at.boot, clock=at.clock)
    if not m.unanswered:
        stands = stands._replace(asked_at=m.elapsed)
    return Step(stands, e._replace(boot=at.boot, place=place), True)


def heard(m: Message, e: Effect, event: Any, at: Moment, place: str) -> Step:
    """How a delivery, or the probe of one, has ended."""
    if isinstance(event, Moved):
        if m.asking:
            return _ask(m, e, at, place)
        return _attempt(m, e, at, place, counted=True)
    m = m._replace(elapsed=m.elapsed + _took(m, at), boot=None, clock=None)
    if m.asking:
        return _probed(m, e, event, at, place)
    if isinstance(event, Ended) and event.files:
        m = m._replace(logs=(*m.logs, [e.attempt, event.files["out"], event.files["err"]])[-KEPT:])
    if isinstance(event, Lost):
        return _in_doubt(m, e, event.why, at, place)
    if isinstance(event, Ended | Answered) and event.stopped == "leaving" and not _well(m, e, event):
        return Step(m._replace(status="waiting", due=at.now, unsure=True), _ended(e, IN_DOUBT, at))
    unanswered = isinstance(event, Answered) and event.status is None and event.sent and event.fault != "timeout"
    if unanswered and not event.stopped and not repeatable(m, e, at):
        return _in_doubt(m, e, event.message, at, place)
    return _counted(m, e, event, at, place)


def limit_of(m: Message) -> Limit | None:
    """What it takes a place of while it is delivered, with the numbers of its plan."""
    if "limit" not in m.policy:
        return None
    from durun.machine import limits

    return limits.Limit(*m.policy["limit"])


def held_back(m: Message, event: Any, at: Moment) -> int:
    """Milliseconds for which an answer asks that the whole limit be left alone."""
    if "limit" not in m.policy or not isinstance(event, Answered) or event.status not in request.BUSY:
        return 0
    from durun.machine import limits

    return min(request.asked_to_wait({"headers": event.headers}, at.now), limits.LONGEST)


def _took(m: Message, at: Moment) -> int:
    return max(0, at.clock - m.clock) if m.boot == at.boot and m.clock is not None else 0


def _well(m: Message, e: Effect, event: Ended | Answered) -> bool:
    if isinstance(event, Ended):
        return of_command(m.policy, event).how == DONE
    return request.outcome_of(e.request["expect"], event).how == DONE


def _counted(m: Message, e: Effect, event: Any, at: Moment, place: str) -> Step:
    error: dict[str, Json] = {"attempt": e.attempt, "exit": None}
    if isinstance(event, Answered):
        outcome = request.outcome_of(e.request["expect"], event)
        error |= {"status": event.status, "output": request.what_came(event)}
    elif isinstance(event, CouldNotStart):
        if event.what in ("directory", "secret"):
            name = {"directory": "cwd_gone", "secret": "secret_missing"}[event.what]
            why = event.why or "its directory is gone"
            return _give_up(m, _ended(e, NOT_DONE, at, {**error, "name": name, "message": why}))
        outcome = of_no_start(event, e.request)
    else:
        outcome = of_command(m.policy, event)
        error |= {"exit": outcome.exit, "stderr": event.stderr}
    if outcome.how == DONE:
        return Step(m._replace(status=DELIVERED, due=None, length=None), _ended(e, DONE, at)._replace(exit=outcome.exit))
    error |= {"name": outcome.name, "message": outcome.message}
    known = IN_DOUBT if outcome.how == NOT_DONE and m.unsure else outcome.how  # an earlier attempt may have done it
    m, e = m._replace(unsure=m.unsure or outcome.how == NOT_CERTAIN), _ended(e, known, at, error)
    if outcome.how == NOT_CERTAIN and m.probe is not None:
        return _ask(m, e, at, place)
    return _again(m, e, outcome.how, at)


def _ended(e: Effect, how: str, at: Moment, error: Json = None) -> Effect:
    return e._replace(status=how, ended_at=at.now, error=error, exit=error.get("exit") if error else None)


def repeatable(m: Message, e: Effect, at: Moment) -> bool:
    word = m.policy["idempotent"]
    if isinstance(word, bool):
        return word
    return e.first_at is None or 0 <= at.now - e.first_at <= word


def _again(m: Message, e: Effect, how: str, at: Moment) -> Step:
    """Later, where a rule allows it; else it is given up."""
    error, rules = e.error, m.policy["retry"]
    by_name = how == NOT_CERTAIN and not repeatable(m, e, at)
    status = error.get("status")
    permanent = how == NOT_DONE and status is not None and 400 <= status < 500 and status not in PASSING
    n = retry.find_rule(rules, error["name"], by_name=by_name or permanent)
    if n is None:
        return _give_up(m, e)
    counts = m.failures or (0,) * len(rules)
    counts = (*counts[:n], counts[n] + 1, *counts[n + 1 :])
    asked = request.asked_to_wait(error.get("output"), at.now)
    wait = max(retry.delay(rules[n], counts[n], at.draw), asked)
    if not retry.allowed(rules[n], counts[n], m.elapsed, wait):
        return _give_up(m._replace(failures=counts), e)
    stands = m._replace(status="waiting", asking=False, failures=counts, elapsed=m.elapsed + wait)
    return Step(stands._replace(due=at.now + wait, length=wait, boot=at.boot, clock=at.clock), e)


def withdrawn(step: Step) -> Step:
    """What its run, which was cancelled or is undone, makes of it: what was not delivered by now is delivered no more."""
    m, e = step.message, step.effect
    if m.status != "waiting" and not step.begin:
        return step
    if e.status == "begin":  # it was to begin only now
        first = 1 + (m.earlier[-1][AS_IT_WAS.index("attempt")] if m.earlier else 0)
        e = e._replace(status=IN_DOUBT if m.unsure else "withdrawn" if e.attempt == first else NOT_DONE)
    m, e = taken_back(m, e)
    return Step(m._replace(status="withdrawn", asking=False, due=None, length=None), e)


def taken_back(m: Message, e: Effect) -> tuple[Message, Effect]:
    """One that nobody delivers any more, as it was with the key before as long as with this one certainly nothing has happened."""
    while m.earlier and (e.status in ("waiting", "withdrawn") or (e.status == NOT_DONE and not m.unsure and may_have(m))):
        before = dict(zip(AS_IT_WAS, m.earlier[-1], strict=True))
        if e.status == NOT_DONE:
            before["attempt"] = e.attempt
        e = e._replace(boot=None, place=None, **before)
        m = m._replace(earlier=m.earlier[:-1], unsure=e.status != NOT_DONE)
    return m, e


def may_have(m: Message) -> list[str]:
    """The keys it had before with which it may have happened."""
    earlier = (dict(zip(AS_IT_WAS, before, strict=True)) for before in m.earlier)
    return [before["key"] for before in earlier if before["status"] != NOT_DONE]


def known_undo(m: Message, how: str) -> Json:
    """What becomes of its undo by how its effect ended, once nobody delivers it any more.

    None where it stays registered, to be settled when it must be.
    """
    if m.undo is None or m.status == "sending":
        return None
    if m.status == "waiting":  # with a new key nothing of it is known yet
        return {"status": "registered", "request": m.undo["later"]} if m.earlier and "later" in m.undo else None
    keys = may_have(m)
    gone = m.status in ("dropped", "withdrawn") and (how == "withdrawn" or (how == NOT_DONE and "failed" not in m.undo))
    if gone and not keys:
        return {"status": "not_needed"}  # nobody can deliver it after all, as one that was given up
    if m.earlier:  # what was rendered with the intent speaks of the first key
        return {"status": "registered", "keys": keys}
    return m.undo.get({DONE: "done", NOT_DONE: "failed", NOT_CERTAIN: "in_doubt", IN_DOUBT: "in_doubt"}.get(how, ""))


def _give_up(m: Message, e: Effect) -> Step:
    return Step(m._replace(status="dead", asking=False, due=None, length=None), e)


def _in_doubt(m: Message, e: Effect, why: str, at: Moment, place: str) -> Step:
    """Nobody knows whether it was delivered."""
    error = {"name": "in_doubt", "message": why, "attempt": e.attempt, "exit": None}
    m, e = m._replace(doubts=m.doubts + 1, unsure=True), _ended(e, IN_DOUBT, at, error)
    if m.doubts >= ENOUGH:
        return _give_up(m, e)
    if m.probe is not None:
        return _ask(m, e, at, place)
    return _repeat(m, e, at, place)


def _repeat(m: Message, e: Effect, at: Moment, place: str) -> Step:
    """Again at once, as nobody can say: with its key, where it may be repeated, and paid for out of the budget."""
    rules = m.policy["retry"]
    if not repeatable(m, e, at):
        return _give_up(m, e)
    if not rules:
        return _attempt(m, e, at, place) if m.doubts <= 1 else _give_up(m, e)
    counts = retry.paid(rules, m.failures or (0,) * len(rules))
    return _give_up(m, e) if counts is None else _attempt(m._replace(failures=counts), e, at, place)


def _probed(m: Message, e: Effect, event: Any, at: Moment, place: str) -> Step:
    """What its probe says of it."""
    said = _said(m.probe, event)
    if isinstance(event, Ended | Answered) and event.stopped == "leaving":
        return Step(m._replace(status="waiting", asking=False, due=at.now, unsure=True), e)
    if said == "unknown" and not isinstance(event, Lost) and (later := _ask_later(m, event, at)) is not None:
        return Step(later, e)
    m = m._replace(unanswered=0)
    if said == "yes":
        return Step(m._replace(status=DELIVERED, asking=False, due=None, length=None), _ended(e, DONE, at))
    if said == "no":
        error = e.error or {"name": "in_doubt", "message": "it did not happen, as its probe says", "exit": None}
        m, e = m._replace(asking=False, unsure=False), _ended(e, NOT_DONE, at, error)
        return _again(m, e, NOT_DONE, at) if error["name"] != "in_doubt" else _attempt(m, e, at, place)
    m = m._replace(asking=False)
    if e.error is not None and e.error["name"] != "in_doubt":
        return _again(m, e, NOT_CERTAIN, at)
    return _repeat(m, e, at, place)


def _ask_later(m: Message, event: Ended | Answered | CouldNotStart, at: Moment) -> Message | None:
    """Where the probe's own rules ask once more: it waits for that, as one that may have happened."""
    rules, asked = m.probe.get("retry", []), m.unanswered + 1
    n = retry.find_rule(rules, doubt.unanswered(event), by_name=False)
    if n is None:
        return None
    wait = retry.delay(rules[n], asked, at.draw)
    if isinstance(event, Answered):
        wait = max(wait, request.asked_to_wait(request.what_came(event), at.now))
    if not retry.allowed(rules[n], asked, m.elapsed - m.asked_at, wait):
        return None
    m = m._replace(status="waiting", asking=False, unsure=True, unanswered=asked, elapsed=m.elapsed + wait)
    return m._replace(due=at.now + wait, length=wait, boot=at.boot, clock=at.clock)


def _said(given: Json, event: Any) -> str:
    if isinstance(event, Answered):
        return request.said_by(given, event)
    if not isinstance(event, Ended) or event.stopped:
        return "unknown"
    return "yes" if event.status in given["yes"] else "no" if event.status in given["no"] else "unknown"


# --- what a person says of it ---


def again(m: Message, e: Effect, at: Moment, key: str | None) -> Step:
    """A person has one that was given up delivered after all, with a fresh budget; with a new key where it shall be another act."""
    fresh = m._replace(status="waiting", failures=(), doubts=0, elapsed=0, unanswered=0, due=at.now, length=None, asking=False)
    if key is None:
        return Step(fresh, e)
    probe = None if m.probe is not None and e.key in canonical_text(m.probe["request"]) else m.probe  # that asks for the key before
    known = e._replace(status=IN_DOUBT) if m.unsure and e.status == NOT_DONE else e
    fresh = fresh._replace(unsure=False, probe=probe, earlier=(*m.earlier, [getattr(known, name) for name in AS_IT_WAS]))
    other = e._replace(key=key, status="waiting", attempt=e.attempt + 1, error=None, exit=None, ended_at=None, first_at=None)
    return Step(fresh, other._replace(boot=None, place=None))


def dropped(m: Message, e: Effect, note: str) -> Step:
    """A person says that it is delivered no more; what may have happened of it is left as it is known."""
    m, e = taken_back(m, e)
    effect = e._replace(status="withdrawn") if e.status == "waiting" else e
    return Step(m._replace(status="dropped", due=None, length=None, note=note), effect)

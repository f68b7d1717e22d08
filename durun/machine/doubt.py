"""When nobody can say whether an effect happened: who is asked, what may be repeated, when a person decides.

The order: the state's probe; else, where it is idempotent, again with the same key, out of the retry budget (once without a
rule); else a catch that names `in_doubt`; else the run is blocked until somebody resolves it. Three doubts in one visit are
blocked at once: what keeps dying is not begun a fourth time.
"""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError, NotPossible, PlanRefused
from durun.machine import clock, fan, once_step, poll, request, retry, stopping, timer, undo, walk
from durun.machine.draft import Draft
from durun.machine.events import Answered, CouldNotStart, Ended, Resolve
from durun.machine.model import Phase, Position, Status
from durun.machine.outcome import DONE, IN_DOUBT, NOT_CERTAIN, NOT_DONE, OutputError, given_by_hand, of_no_start, output_of
from durun.machine.scope import once_of
from durun.plan.canonical import State

Json = Any
ENOUGH = 3  # doubts in one visit


def idempotent(d: Draft, p: Position) -> bool:
    """Whether the effect of this position may be repeated with its key, now."""
    word = d.state(p).get("idempotent", False)
    if isinstance(word, bool):
        return word
    assert p.effect is not None
    first = d.effect(p.effect).first_at
    return first is None or 0 <= d.moment.now - first <= word  # a clock that was set back proves nothing


def doubtful(d: Draft, p: Position) -> None:
    """The effect of a position is in doubt, and its undo waits until that is settled."""
    assert p.effect is not None
    d.put_effect(d.effect(p.effect)._replace(status=IN_DOUBT, ended_at=d.moment.now))
    undo.learnt(d, p, IN_DOUBT)


def lost(d: Draft, p: Position, why: str) -> None:
    """Nobody knows how the effect ended. It is settled at once, unless the run was told to stop."""
    no = p.effect
    assert no is not None
    p = d.put(p._replace(doubts=p.doubts + 1, cause=None))
    doubtful(d, p)
    d.tell("in_doubt", p, d.effect(no).attempt, why=why)
    if d.run.cancel is not None:
        return cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    if "poll" in d.state(p):
        return walk.follow(d, p.scope, poll.not_yet(d, p, None))
    settle(d, p)


def stopped(d: Draft, p: Position) -> None:
    """durun itself was stopped, and ended the command with it: in doubt, not counted, settled when somebody drives on."""
    assert p.effect is not None
    doubtful(d, p)
    d.tell("in_doubt", p, d.effect(p.effect).attempt, why="it was stopped together with durun")
    if d.run.cancel is not None:
        return cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    d.put(p._replace(phase=Phase.LOST, due=None, cause=None))


def settle(d: Draft, p: Position) -> None:
    """The first way there is to find out, to repeat, or to ask."""
    if d.run.cancel is not None:
        return cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    if p.doubts >= ENOUGH:
        return block(d, p)
    if "probe" in d.state(p):
        return ask(d, p)
    _unknown(d, p)


def _unknown(d: Draft, p: Position) -> None:
    """There is no answer to be had."""
    assert p.effect is not None
    effect, state = d.effect(p.effect), d.state(p)
    if p.cause is not None:
        return walk.follow(d, p.scope, walk.after_error(d, p, p.cause, NOT_CERTAIN))
    if idempotent(d, p):
        counts = _spend(state, p)
        if counts is not None:
            return walk.again(d, p._replace(failures=counts, unsure=True))
    if any("in_doubt" in catch["on"] for catch in state["catch"]):
        error = _doubt_error(p, effect.attempt, "in_doubt", "it is not known whether it happened")
        return walk.follow(d, p.scope, walk.after_error(d, p, error, IN_DOUBT))
    block(d, p)


def _doubt_error(p: Position, attempt: int, name: str, message: str) -> dict[str, Json]:
    return walk.error_of(p, name, message, attempt=attempt)


def _spend(state: State, p: Position) -> tuple[int, ...] | None:
    """The failure counts with this repeat paid for, or None where the budget has none left. Without a rule: once."""
    rules = state.get("retry", [])
    if not rules:
        return p.failures if p.doubts <= 1 else None
    return retry.paid(rules, p.failures)


def block(d: Draft, p: Position) -> None:
    d.put(p._replace(phase=Phase.DOUBT, asking=None, due=None))
    d.tell("blocked", p, reason="keeps_dying" if p.doubts >= ENOUGH else "in_doubt")


# --- the probe ---


def ask(d: Draft, p: Position) -> None:
    """Intends the probe: an effect of its own, whose answer settles the doubt."""
    assert p.effect is not None
    effect, probe = d.effect(p.effect), d.state(p)["probe"]
    try:
        frozen = effect.request.get("asks")
        if frozen is None:
            names = d.names(p.scope, visit=p.visit, key=effect.key)
            frozen = walk.render(d, probe, names, capture="output" in d.state(p))
        elif "why" in frozen:
            raise ExpressionError(frozen["why"])
    except ExpressionError as e:
        d.tell("probe_unknown", p, why=str(e))
        return _unknown(d, p)
    asking = d.new_effect(p, "probe", effect.key, frozen)
    due = d.moment.now if asking.status == "waiting" else None
    d.put(p._replace(phase=Phase.PROBING, asking=asking.no, due=due, asked_since=d.run.driven))


def ask_again(d: Draft, p: Position) -> None:
    """The probe itself was lost: a question may be asked again, but not for ever."""
    assert p.asking is not None
    d.put_effect(d.effect(p.asking)._replace(status=IN_DOUBT, ended_at=d.moment.now))
    if d.run.cancel is not None:
        return cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    p = d.put(p._replace(doubts=p.doubts + 1, asking=None))
    if p.settling:
        return undo.ask_person(d, p) if p.doubts >= ENOUGH else undo.ask_probe(d, p)
    if p.doubts >= ENOUGH:
        return block(d, p)
    ask(d, p)


def answered(d: Draft, p: Position, event: Ended | Answered | CouldNotStart) -> None:
    """The probe has ended: it happened, it did not, or it is still not known."""
    state = d.state(p)
    assert p.asking is not None and p.effect is not None
    if p.settling:
        state = undo.original(d, p)
    probe, asked = state["probe"], d.effect(p.asking)
    exit = event.status if isinstance(event, Ended) and not event.stopped and event.status >= 0 else None
    if isinstance(event, Answered):
        said = request.said_by(probe, event)
    else:
        said = "unknown" if exit is None else "yes" if exit in probe["yes"] else "no" if exit in probe["no"] else "unknown"
    d.put_effect(asked._replace(status=DONE if said != "unknown" else NOT_CERTAIN, exit=exit, ended_at=d.moment.now))
    status = event.status if isinstance(event, Answered) else None
    d.tell("probed", p, asked.attempt, answer=said, exit=exit, status=status)
    left = not isinstance(event, CouldNotStart) and event.stopped == "leaving" and said == "unknown"
    if p.settling:
        again = not left and said == "unknown" and _probe_again(d, p, event)
        return None if again else undo.answered(d, p, "left" if left else said, event)
    if left and d.run.cancel is None:
        d.put(p._replace(phase=Phase.LOST, asking=None))
        return None
    if (d.run.cancel is not None or p.stopping) and said != "yes":
        _answer_while_stopping(d, p, said)
        return None
    if said == "yes":
        assert not isinstance(event, CouldNotStart)
        return _it_happened(d, p, event)
    if said == "no":
        return _it_did_not(d, p)
    if _probe_again(d, p, event):
        return None
    return _unknown(d, p._replace(asking=None))


def _answer_while_stopping(d: Draft, p: Position, said: str) -> None:
    assert p.effect is not None
    if said == "no":
        d.put_effect(d.effect(p.effect)._replace(status=NOT_DONE))
        undo.learnt(d, p, NOT_DONE)
    if d.run.cancel is not None:
        return cancelled(d)
    fan.stopped(d, p)


def _it_happened(d: Draft, p: Position, event: Ended | Answered) -> None:
    assert p.effect is not None
    effect = d.effect(p.effect)._replace(status=DONE, ended_at=d.moment.now, error=None)
    p = d.put(p._replace(asking=None, cause=None))
    try:
        output = request.output_for(d.state(p), event) if isinstance(event, Answered) else output_of(d.state(p), event)
    except OutputError as e:
        d.put_effect(effect)
        error = _doubt_error(p, effect.attempt, e.name, f"the probe said it happened, but {e.message}")
        return walk.follow(d, p.scope, walk.after_error(d, p, error, DONE))
    d.put_effect(effect._replace(output=output, has_output=output is not None))
    return walk.follow(d, p.scope, walk.finish(d, p, output))


def _it_did_not(d: Draft, p: Position) -> None:
    assert p.effect is not None
    d.put_effect(d.effect(p.effect)._replace(status=NOT_DONE))
    undo.learnt(d, p, NOT_DONE)
    if p.cause is not None:
        cause = p.cause
        p = p._replace(asking=None, cause=None, unsure=False)
        return walk.follow(d, p.scope, walk.after_error(d, p, cause, NOT_DONE))
    return walk.again(d, p._replace(asking=None, unsure=False))


def _probe_again(d: Draft, p: Position, event: Ended | Answered | CouldNotStart) -> bool:
    """Whether the probe's own retry rules ask once more."""
    assert p.asking is not None
    state = undo.original(d, p) if p.settling else d.state(p)
    asked, rules = d.effect(p.asking), state["probe"].get("retry", [])
    at = retry.find_rule(rules, unanswered(event), by_name=False)
    if at is None:
        return False
    wait = retry.delay(rules[at], asked.attempt, d.moment.draw)
    if isinstance(event, Answered):
        wait = max(wait, request.asked_to_wait(request.what_came(event), d.moment.now))
    if not retry.allowed(rules[at], asked.attempt, d.run.driven - p.asked_since, wait):
        return False
    d.put_effect(asked._replace(status="waiting", attempt=asked.attempt + 1, boot=None, place=None))
    d.put(walk.timed(d, p, d.moment.now + wait, wait))
    return True


def unanswered(event: Ended | Answered | CouldNotStart) -> str:
    """The name of the error, for the probe's own rules, with which it did not say whether it happened."""
    if isinstance(event, Answered):
        return request.outcome_of([], event).name
    return of_no_start(event).name if isinstance(event, CouldNotStart) else event.stopped or f"exit:{event.status}"


# --- a person, and the end by cancel ---


def resolve(d: Draft, p: Position, event: Resolve) -> None:
    """What a person says of a doubt, or of a failed state that they did by hand."""
    if p.phase is Phase.FAILED and p.target not in (None, p.state):  # it was left: what follows it has failed
        raise NotPossible(f"run {d.run.id}: state {p.state} is over: `durun resume {d.run.id}` goes on with what follows it")
    if p.phase is Phase.FAILED and event.how != "happened":
        raise NotPossible(f"run {d.run.id} has failed, nothing is in doubt: `durun resume {d.run.id}` begins {p.state} again")
    if p.effect is None:
        raise NotPossible(f"run {d.run.id}: state {p.state} had begun nothing that could have happened")
    if p.phase is Phase.FAILED:
        d.set_run(status=Status.RUNNING, ended_by=None, ended_at=None)
        fan.put_right(d, p.scope)
        clock.fresh(d)
    event = once_step.meant(d, p, event)
    d.tell("resolved", p, None, how=event.how, by=event.by, note=event.note, once=once_of(event.state))
    if once_step.resolve(d, p, event):
        return None
    if event.how == "retry":
        # it may be begun again; that it did not happen nobody has said
        return walk.again(d, p._replace(failures=(0,) * len(p.failures), doubts=0, unsure=True))
    if event.how == "fail":
        error = _doubt_error(p, d.effect(p.effect).attempt, "unresolved", event.note or "a person said that it failed")
        return walk.follow(d, p.scope, walk.after_error(d, p, error, None))
    return _by_hand(d, p, event)


def _by_hand(d: Draft, p: Position, event: Resolve) -> None:
    state, run = d.state(p), d.run
    if "output" in state and not event.has_output:
        raise PlanRefused(f"run {run.id}: state {p.state} gives an output; say what it was with --output JSON")
    try:
        output = given_by_hand(state, event.output)
    except OutputError as e:
        raise PlanRefused(f"run {run.id}: state {p.state}: {e.message}") from None
    assert p.effect is not None
    done = d.effect(p.effect)._replace(status=DONE, error=None, ended_at=d.moment.now)
    d.put_effect(done._replace(output=output, has_output=output is not None))
    p = d.put(p._replace(asking=None, cause=None, due=None))
    walk.follow(d, p.scope, walk.finish(d, p, output))


def told_to_stop(d: Draft, p: Position) -> None:
    """Where a position that was told to stop has come to the end of what was under way."""
    if d.run.cancel is not None:
        return cancelled(d)
    fan.stopped(d, p)


def under_way(d: Draft, p: Position) -> bool:
    """Whether something has been begun here whose end is not known yet."""
    if p.phase not in (Phase.ACTING, Phase.PROBING):
        return False
    no = p.asking if p.phase is Phase.PROBING else p.effect
    return no is not None and d.effect(no).status == "begin"


def withdraw(d: Draft) -> None:
    """Wherever nothing is under way, nothing begins any more."""
    for p in d.positions():
        if not under_way(d, p) and p.phase is not Phase.ENDED:
            fan.withdraw(d, p)
            d.put(timer.without(p)._replace(phase=Phase.ENDED))


def cancelled(d: Draft) -> None:
    """Once nothing of the run is under way any more it is cancelled, and nothing of it begins after this."""
    if stopping.is_over(d.run):
        return stopping.ended(d)
    withdraw(d)
    if any(under_way(d, p) for p in d.positions()) or undo.after_cancel(d):
        return
    now = d.moment.now
    d.set_run(status=Status.CANCELLED, reason=None, ended_at=now, updated_at=now)
    d.tell("cancelled", d.position(""), None, by=(d.run.cancel or {}).get("by"))

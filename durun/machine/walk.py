"""How a run goes from state to state: entering one, what its effect brings, where an error leads, and how it ends."""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine import clock, doubt, poll, retry, stopping
from durun.machine.draft import LIMIT, Draft
from durun.machine.events import CouldNotStart, Ended
from durun.machine.model import Phase, Position, StateRow, Status
from durun.machine.outcome import (
    DONE,
    IN_DOUBT,
    NOT_CERTAIN,
    Outcome,
    OutputError,
    of_command,
    of_no_start,
    output_of,
)
from durun.plan.canonical import ENDS, Act, State
from durun.plan.schema import kind, validate

Json = Any
MOVES = 1000  # states passed through in one move before it is committed


# --- going on ---


def walk(d: Draft, scope: str, target: str) -> None:
    """Enters states from `target` on until one has something to wait for, or the run ends."""
    at: str | None = target
    for _ in range(MOVES):
        if at is None:
            return
        if at in ENDS:
            return end(d, scope, at)
        at = _enter(d, scope, at)
    if at is not None:
        d.put(d.position(scope)._replace(phase=Phase.READY, target=at, effect=None, asking=None))


def _enter(d: Draft, scope: str, name: str) -> str | None:
    """Enters a state: the next target, or None where it stands still (or the run has ended)."""
    state = d.plan["states"][name]
    visit = d.row(scope, name).visits + 1
    d.put_row(StateRow(scope, name, visits=visit))
    p = d.put(Position(scope, name, visit, Phase.READY, target=name, entered_at=d.moment.now, since=d.run.driven))
    d.tell("entered", p)
    if visit > state["max_visits"]:
        return failed(d, p, "max_visits", f"it was entered more than {state['max_visits']} times")
    return begin_state(d, p)


def begin_state(d: Draft, p: Position) -> str | None:
    """What a state does on being entered (or taken up again where it had not begun anything)."""
    state = d.state(p)
    try:
        match state["kind"]:
            case "run":
                return _intend(d, p, state)
            case "wait":
                return _wait(d, p, state)
            case "choice":
                return _choose(d, p, state)
            case "fail":
                return _fail_state(d, p, state)
            case _:
                return leave(d, p, None)
    except ExpressionError as e:
        return failed(d, p, "expression", str(e))


def _choose(d: Draft, p: Position, state: State) -> str | None:
    names = d.names(p.scope, visit=p.visit)
    for branch in state["choice"]:
        if "when" not in branch or d.evaluate.condition(branch["when"], names):
            return leave(d, p, branch["next"])
    return failed(d, p, "no_choice", "none of its conditions was true")


def _fail_state(d: Draft, p: Position, state: State) -> str | None:
    fail, names = state["fail"], d.names(p.scope, visit=p.visit)
    error = {
        "name": fail["error"],
        "message": d.evaluate.text(fail.get("message", ""), names),
        "state": p.state,
        "visit": p.visit,
    }
    if "data" in fail:
        error["output"] = d.evaluate.value(fail["data"], names)
    d.put(p._replace(phase=Phase.ENDED, target=None))
    return _end_failed(d, p, error)


def _wait(d: Draft, p: Position, state: State) -> str | None:
    from durun.plan.units import duration, moment

    wait, names, now = state["wait"], d.names(p.scope, visit=p.visit), d.moment.now
    try:
        if "at" in wait:
            due, length = moment(d.evaluate.text(wait["at"], names)), None
        else:
            lasts = wait["lasts"]
            length = lasts if isinstance(lasts, int) else duration(d.evaluate.text(lasts, names))
            due = now + length
    except ValueError as e:
        raise ExpressionError(str(e)) from None
    d.put(timed(d, p._replace(phase=Phase.WAITING, target=None), due, length))
    d.tell("waiting", p, due=due)
    return None


def timed(d: Draft, p: Position, due: int, length: int | None) -> Position:
    m = d.moment
    return p._replace(due=due, length=length, set_at=m.now, boot=m.boot, clock=m.clock)


def waited(d: Draft, p: Position) -> None:
    """A timer has come."""
    d.tell("due", p)
    follow(d, p.scope, leave(d, _untimed(p), None))


def _untimed(p: Position) -> Position:
    return p._replace(due=None, length=None, set_at=None, boot=None, clock=None)


def follow(d: Draft, scope: str, target: str | None) -> None:
    """Goes on to where a state led, if it led anywhere. A run that was told to stop goes nowhere."""
    if target is None:
        return
    if d.run.cancel is not None:
        if stopping.is_over(d.run):  # where it would have gone is where it is taken up
            d.put(d.position(scope)._replace(phase=Phase.READY, target=target, effect=None, asking=None))
        return doubt.cancelled(d)
    if stopping.has_no_time(d.run):
        d.put(d.position(scope)._replace(phase=Phase.READY, target=target, effect=None, asking=None))
        return stopping.time_over(d)
    walk(d, scope, target)


# --- an effect ---


def _intend(d: Draft, p: Position, state: State) -> str | None:
    """The intent of a command: request and key frozen here, once, in the move that leads to it."""
    key = _key(d, p, state)
    names = d.names(p.scope, visit=p.visit, key=key)
    request = render(d, state["act"], names, capture="output" in state)
    effect = d.new_effect(p, "run", key, request)
    stands = p._replace(target=None, effect=effect.no, failures=(0,) * len(state.get("retry", [])))
    d.put(_issued(d, poll.begin(d, stands) if "poll" in state else stands))
    return None


def _key(d: Draft, p: Position, state: State) -> str:
    if "poll" in state:
        return poll.key_of(d, p, 1)
    if "key" in state:
        return d.evaluate.text(state["key"], d.names(p.scope, visit=p.visit))
    return d.key(p)


def _issued(d: Draft, p: Position) -> Position:
    """Where a position stands once its intent is issued: acting, or waiting for whoever drives on."""
    if d.moment.place is None:
        return _untimed(p)._replace(phase=Phase.DELAYED, due=d.moment.now)
    return _untimed(p)._replace(phase=Phase.ACTING)


def render(d: Draft, act: Act, names: dict[str, Json], *, capture: bool) -> Json:
    """A frozen request: what the command is, with every expression worked out. Raises ExpressionError."""
    from durun.plan.units import duration

    e = d.evaluate
    request: dict[str, Json] = {"env": {k: e.text(v, names, limit=LIMIT) for k, v in act["env"].items()}}
    if "argv" in act:
        request["argv"] = e.argv(act["argv"], names)
        if not request["argv"]:
            raise ExpressionError("the command is empty: its list has no word")
    else:
        request["script"], request["shell"] = act["script"], act.get("shell", "sh")
    if "cwd" in act:
        request["cwd"] = e.text(act["cwd"], names)
    if "stdin" in act:
        request["stdin"] = e.value(act["stdin"], names)
    for word in ("timeout", "heartbeat"):
        given = act.get(word)
        if isinstance(given, int):
            request[word] = given
        elif given is not None:
            try:
                request[word] = duration(e.text(given, names))
            except ValueError as problem:
                raise ExpressionError(f"{word}: {problem}") from None
    if capture:
        request["capture"] = True
    return request


def begin_waiting(d: Draft, p: Position) -> None:
    """From waiting to beginning: a commit of its own, so that a reboot cannot take it for one that ran."""
    if p.phase is Phase.PROBING:
        assert p.asking is not None
        d.issue(d.effect(p.asking))
        d.put(_untimed(p))
    else:
        assert p.effect is not None
        if poll.is_over(d, p):
            return follow(d, p.scope, poll.late(d, p))
        d.issue(d.effect(p.effect))
        d.put(_issued(d, p._replace(cause=None)))


def again(d: Draft, p: Position, **effect_changes: Json) -> None:
    """Another attempt of the same effect, now: same key, same request, counted on."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    attempt = effect.attempt + (effect.first_at is not None)  # one that was never begun is not counted
    d.issue(effect._replace(attempt=attempt, ended_at=None, error=None, exit=None, **effect_changes))
    d.put(_issued(d, p._replace(asking=None, cause=None)))
    d.tell("again", p, attempt)


def acted(d: Draft, p: Position, event: Ended | CouldNotStart) -> None:
    """The command of a position has ended."""
    state = d.state(p)
    assert p.effect is not None
    effect = d.effect(p.effect)
    if isinstance(event, CouldNotStart) and event.what == "directory":
        return _hold(d, p, "cwd_gone")
    outcome = of_no_start(event) if isinstance(event, CouldNotStart) else of_command(state, event)
    _tell_end(d, p, effect.attempt, event, outcome)
    if isinstance(event, Ended) and event.stopped == "leaving" and outcome.how != DONE:
        return doubt.stopped(d, p)
    if outcome.how == DONE:
        assert isinstance(event, Ended)
        return follow(d, p.scope, _done(d, p, event, outcome))
    if "poll" in state and d.run.cancel is None:
        return follow(d, p.scope, poll.not_yet(d, p, outcome))
    error = _error(p, outcome.name, outcome.message, attempt=effect.attempt, exit=outcome.exit)
    error["stderr"] = event.stderr if isinstance(event, Ended) else ""
    unsuccessful(d, p, error, outcome.how)


def _hold(d: Draft, p: Position, reason: str) -> None:
    """Something must be mended before it can be begun: nothing has happened, and nothing is used up."""
    assert p.effect is not None
    d.put_effect(d.effect(p.effect)._replace(status="waiting", boot=None, place=None))
    if d.run.cancel is not None:
        return doubt.cancelled(d)
    d.put(p._replace(phase=Phase.HELD, cause=reason))
    d.tell("blocked", p, None, reason=reason)


def moved(d: Draft, p: Position, no: int) -> None:
    """An intent that was certainly never begun: issued again here, left waiting, or withdrawn with a run that was cancelled."""
    if d.run.cancel is not None:
        d.put_effect(d.effect(no)._replace(status="waiting"))
        return doubt.cancelled(d)
    d.issue(d.effect(no))
    if p.phase is Phase.ACTING:
        d.put(_issued(d, p))
    elif d.moment.place is None:
        d.put(p._replace(due=d.moment.now))


def _tell_end(d: Draft, p: Position, attempt: int, event: Ended | CouldNotStart, outcome: Outcome) -> None:
    data: dict[str, Json] = {"how": outcome.how}
    if outcome.name:
        data["error"], data["message"] = outcome.name, outcome.message
    if isinstance(event, Ended):
        data["exit"] = outcome.exit
        data.update({k: v for k, v in (event.files or {}).items() if v})
        if event.stopped:
            data["stopped"] = event.stopped
        if event.left:
            data["left"] = list(event.left)
            d.move.said.append(f"{p.state} left processes behind: {', '.join(map(str, event.left))}")
    d.tell("attempt_ended", p, attempt, **data)


def _done(d: Draft, p: Position, event: Ended, outcome: Outcome) -> str | None:
    """The effect is done, whatever becomes of its output."""
    state = d.state(p)
    assert p.effect is not None
    effect = d.effect(p.effect)._replace(status=DONE, exit=outcome.exit, ended_at=d.moment.now, error=None)
    try:
        output = output_of(state, event)
    except OutputError as e:
        d.put_effect(effect)
        return done_but(d, p, e.name, e.message)
    d.put_effect(effect._replace(output=output, has_output=output is not None))
    if "poll" in state:
        return poll.answered(d, p, output)
    return finish(d, p, output)


def finish(d: Draft, p: Position, output: Json, changed: dict[str, Json] | None = None) -> str | None:
    """The effect is done and its output whole: assign (unless `changed` says it was done), and go on to `next`."""
    assert p.effect is not None
    effect, before = d.effect(p.effect), d.row(p.scope, p.state)
    d.put_row(StateRow(p.scope, p.state, p.visit, True, output, effect.no, output is not None, None, effect.exit))
    if changed is None:
        try:
            changed = assign(d, p, d.state(p)["assign"], output=output, key=effect.key)
        except AssignError as e:
            d.put_row(before)
            return done_but(d, p, e.name, e.message)
    return _left(d, p, d.state(p)["next"], changed, effect=effect.no)


def leave(d: Draft, p: Position, target: str | None) -> str | None:
    """A state without an effect has ended well: its `assign` is done. The target it leads to."""
    state, before = d.state(p), d.row(p.scope, p.state)
    d.put_row(StateRow(p.scope, p.state, p.visit, True))
    try:
        changed = assign(d, p, state["assign"])
    except AssignError as e:
        d.put_row(before)
        return failed(d, p, e.name, e.message)
    return _left(d, p, target if target is not None else state["next"], changed)


def _left(d: Draft, p: Position, to: str, changed: dict[str, Json], **more: Json) -> str:
    d.tell("left", p, None, next=to, vars=changed, **more)
    return to


class AssignError(Exception):
    """Vars that cannot be assigned: `name` is expression or vars_invalid."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name, self.message = name, message


def assign(d: Draft, p: Position, wanted: dict[str, Json], **more: Json) -> dict[str, Json]:
    """Works out all values with the vars as they were before, checks their types, sets them. Raises AssignError."""
    if not wanted:
        return {}
    names = d.names(p.scope, visit=p.visit, **more)
    try:
        values = {name: d.evaluate.value(template, names) for name, template in wanted.items()}
    except ExpressionError as e:
        raise AssignError("expression", str(e)) from None
    for name, value in values.items():
        kept = d.run.types.get(name, "any")
        if kept not in ("any", kind(value)):
            raise AssignError("vars_invalid", f"vars.{name} keeps the type of its first value, {kept}: not {kind(value)}")
    after = {**d.run.vars, **values}
    problem = validate(d.plan["vars_schema"], after) if "vars_schema" in d.plan else None
    if problem is not None:
        raise AssignError("vars_invalid", f"the vars would not fit vars_schema: {problem}")
    d.set_run(vars=after)
    return values


def done_but(d: Draft, p: Position, name: str, message: str) -> str | None:
    """The effect is done, but what it gave cannot be used: committed as done, and an error all the same."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    error = _error(p, name, message, attempt=effect.attempt, exit=effect.exit)
    return after_error(d, p, error, DONE)


# --- errors ---


def _error(p: Position, name: str, message: str, **more: Json) -> dict[str, Json]:
    return {"name": name, "message": message, "state": p.state, "visit": p.visit, **more}


def failed(d: Draft, p: Position, name: str, message: str) -> str | None:
    """A state that has no effect to repeat has an error."""
    return after_error(d, p, _error(p, name, message), None)


def unsuccessful(d: Draft, p: Position, error: dict[str, Json], how: str) -> None:
    """The effect ended, but not well."""
    assert p.effect is not None
    d.put_effect(d.effect(p.effect)._replace(status=how, exit=error.get("exit"), ended_at=d.moment.now, error=error))
    if d.run.cancel is not None:
        return doubt.cancelled(d)
    if how == NOT_CERTAIN and "probe" in d.state(p):
        return doubt.ask(d, p._replace(cause=error))
    follow(d, p.scope, after_error(d, p, error, how))


def after_error(d: Draft, p: Position, error: dict[str, Json], how: str | None) -> str | None:
    """Again, if a rule allows it; else where a catch leads; else the run has failed. `how`: None where nothing was begun."""
    if how is not None and d.run.cancel is None and _try_again(d, p, error, how):
        return None
    d.put_row(StateRow(p.scope, p.state, p.visit, True, effect=p.effect, error=error, exit=error.get("exit")))
    for catch in d.state(p)["catch"]:
        if retry.matches(catch["on"], error["name"]):
            return _caught(d, p, error, catch["assign"], catch["next"])
    d.put(p._replace(phase=Phase.FAILED, asking=None, cause=None))
    return _end_failed(d, p, error)


def _try_again(d: Draft, p: Position, error: dict[str, Json], how: str) -> bool:
    rules = d.state(p).get("retry", [])
    assert p.effect is not None
    effect = d.effect(p.effect)
    by_name = how == DONE or (how in (NOT_CERTAIN, IN_DOUBT) and not doubt.idempotent(d, p))
    at = retry.find_rule(rules, error["name"], by_name=by_name)
    if at is None:
        return False
    failures = p.failures[at] + 1
    wait = retry.delay(rules[at], failures, d.moment.draw)
    if not retry.allowed(rules[at], failures, clock.elapsed(d, p), wait):
        return False
    counts = (*p.failures[:at], failures, *p.failures[at + 1 :])
    due = d.moment.now + wait
    unsure = p.unsure or how in (NOT_CERTAIN, IN_DOUBT)
    stands = p._replace(phase=Phase.DELAYED, failures=counts, asking=None, cause=error, unsure=unsure)
    d.put(timed(d, stands, due, wait))
    d.put_effect(effect._replace(status="waiting", attempt=effect.attempt + 1, error=error, boot=None, place=None))
    d.tell("retry_at", p, effect.attempt + 1, due=due, error=error["name"])
    return True


def _caught(d: Draft, p: Position, error: dict[str, Json], wanted: dict[str, Json], to: str) -> str | None:
    d.set_run(error=error)
    try:
        changed = assign(d, p, wanted, error=error)
    except AssignError as e:
        d.put(p._replace(phase=Phase.FAILED, asking=None, cause=None))
        return _end_failed(d, p, _error(p, e.name, f"in its catch: {e.message}"))
    d.tell("caught", p, None, error=error, next=to, vars=changed)
    if to == "failed":
        d.put(p._replace(phase=Phase.FAILED, asking=None, cause=None))
        return _end_failed(d, p, error)
    return to


# --- the end ---


def _end_failed(d: Draft, p: Position, error: dict[str, Json]) -> str | None:
    stands = d.position(p.scope)
    d.put(stands._replace(due=None, length=None))
    d.set_run(status=Status.FAILED, reason=None, error=error, ended_by=error, ended_at=d.moment.now, updated_at=d.moment.now)
    d.tell("failed", p, error=error)
    return None


def end(d: Draft, scope: str, target: str) -> None:
    """The run goes to one of its built-in ends."""
    p = d.position(scope)
    if target == "failed":
        d.put(p._replace(phase=Phase.ENDED, target=None))
        _end_failed(d, p, d.run.error or _error(p, "failed", f"state {p.state} led to failed"))
        return
    try:
        output = d.evaluate.value(d.plan["output"], d.names(scope)) if "output" in d.plan else None
    except ExpressionError as e:
        d.put(p._replace(phase=Phase.FAILED, target=target, effect=None, asking=None))
        _end_failed(d, p, _error(p, "expression", f"in the output of the plan: {e}"))
        return
    d.put(_untimed(p)._replace(phase=Phase.ENDED, target=None))
    now = d.moment.now
    has = "output" in d.plan
    d.set_run(status=Status.SUCCEEDED, reason=None, output=output, has_output=has, ended_at=now, updated_at=now)
    d.tell("succeeded", p)

"""How a run goes from state to state: entering one, what its effect brings, where an error leads, and how it ends."""

from __future__ import annotations

from typing import Any

from durun.errors import ExpressionError
from durun.machine import asks, clock, doubt, fan, message, once_step, poll, request, retry, secrets, signals, stopping, undo
from durun.machine import scope as scopes
from durun.machine.draft import LIMIT, Draft, Names, reason_of
from durun.machine.events import CouldNotStart, Ended
from durun.machine.model import TERMINAL, Effect, Phase, Position, StateRow, Status
from durun.machine.outcome import (
    DONE,
    IN_DOUBT,
    NOT_CERTAIN,
    NOT_DONE,
    Outcome,
    OutputError,
    of_command,
    of_no_start,
    output_of,
)
from durun.plan.canonical import ENDS, Act, State, files_of
from durun.plan.schema import kind, validate

Json = Any
MOVES = 1000  # states passed through in one move before it is committed


# --- going on ---


def run_on(d: Draft) -> None:
    """Walks on wherever this move has led, and begins what has found a place meanwhile, until all stands still."""
    budget = MOVES
    if not d.todo:
        fan.refill(d)  # what stands still now, in a delay or a doubt, has given its place to another
    while d.todo and budget > 0:
        while d.todo and budget > 0:
            scope = d.todo.pop(0)
            p = d.found(scope)
            if p is not None and p.phase is Phase.READY and d.run.status not in TERMINAL and d.run.cancel is None:
                budget = walk(d, scope, p.target or "", budget)
        fan.refill(d)


def walk(d: Draft, scope: str, target: str, budget: int) -> int:
    """Enters states from `target` on until one has something to wait for, or the scope ends. What is left of the budget."""
    at: str | None = target
    while budget > 0:
        if at is None:
            return budget
        if at in ENDS:
            end(d, scope, at)
            return budget
        at = _enter(d, scope, at)
        budget -= 1
    if at is not None:
        d.put(d.position(scope)._replace(phase=Phase.READY, target=at, effect=None, asking=None))
    return 0


def _enter(d: Draft, scope: str, name: str) -> str | None:
    """Enters a state: the next target, or None where it stands still (or its scope has ended)."""
    state = d.level(scope)["states"][name]
    before, stood = d.row(scope, name), d.found(scope)
    floor = floor_of(d, scope)
    visit = max(before.visits, floor) + 1
    d.put_row(StateRow(scope, name, visits=visit, peak=before.peak))
    kept: dict[str, Json] = {}
    if scope and stood is not None:  # what belongs to the branch, the item or the child stays with it
        kept = {"nth": stood.nth, "vars": stood.vars, "error": stood.error, "child": stood.child, "stopping": stood.stopping}
    p = Position(scope, name, visit, Phase.READY, target=name, entered_at=d.moment.now, since=d.run.driven, **kept)
    d.put(p)
    d.tell("entered", p)
    if visit - floor > state["max_visits"]:
        return failed(d, p, "max_visits", f"it was entered more than {state['max_visits']} times")
    return begin_state(d, p)


def floor_of(d: Draft, scope: str) -> int:
    """The visits that earlier rounds of the state around this scope have used up."""
    return d.position(scopes.parts(scope)[-1].scope).floor if scope else 0


def begin_state(d: Draft, p: Position) -> str | None:
    """What a state does on being entered (or taken up again where it had not begun anything)."""
    state = d.state(p)
    try:
        match state["kind"]:
            case "run" | "http":
                return _intend(d, p, state)
            case "wait":
                return signals.begin(d, p, state) if "signal" in state["wait"] else _wait(d, p, state)
            case "approval":
                asks.begin(d, p, state)
                return None
            case "choice":
                return _choose(d, p, state)
            case "fail":
                return _fail_state(d, p, state)
            case "parallel" | "map":
                return fan.enter(d, p, state)
            case "plan":
                return fan.enter_child(d, p, state)
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
    said = d.evaluate.text(fail.get("message", ""), names)
    error = error_of(p, fail["error"], said, output=d.evaluate.value(fail.get("data"), names))
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
    if p.due is None and p.set_at is None and p.length is None:
        return p
    return p._replace(due=None, length=None, set_at=None, boot=None, clock=None)


def follow(d: Draft, scope: str, target: str | None) -> None:
    """Goes on to where a state led, if it led anywhere. What was told to stop goes nowhere but to its end."""
    if target is None:
        return
    if d.run.cancel is not None:
        if stopping.is_over(d.run):  # where it would have gone is where it is taken up
            d.put(d.position(scope)._replace(phase=Phase.READY, target=target, effect=None, asking=None))
        return doubt.cancelled(d)
    p = d.position(scope)
    if p.stopping and target not in ENDS:
        return fan.stopped(d, p._replace(target=target, effect=None))  # whoever takes it up goes on from there
    if stopping.has_no_time(d.run):
        d.put(p._replace(phase=Phase.READY, target=target, effect=None, asking=None))
        return stopping.time_over(d)
    d.go(scope, target)


# --- an effect ---


def _intend(d: Draft, p: Position, state: State) -> str | None:
    """The intent of a command or request: what it is and key frozen here, once, in the move that leads to it."""
    if "limit" in state and "background" not in state and not _has_room(d, p, state):
        return None
    key = _key(d, p, state)
    names = d.names(p.scope, visit=p.visit, key=key)
    frozen = render(d, state["act"], names, capture="output" in state)
    if state.get("background"):
        try:
            return message.leave_behind(d, p, state, key, frozen)
        except AssignError as e:
            return failed(d, p, e.name, e.message)
    stands = p
    if "poll" in state:
        stands = poll.begin(d, p)  # what may not be worked out comes before the intent: none is left behind
    effect = d.new_effect(p, state["kind"], key, frozen)
    if "compensate" in state:
        undo.register(d, p, effect)
    d.put(issued(d, stands, effect, target=None, failures=(0,) * len(state.get("retry", ()))))
    return None


def _has_room(d: Draft, p: Position, state: State) -> bool:
    """Whether the limit of a state has a place for it now; else it is queued, with nothing rendered."""
    from durun.machine import limits

    if limits.has_room(d, p, state):
        return True
    d.put(limits.queued(d, p))
    return False


def _key(d: Draft, p: Position, state: State) -> str:
    if "poll" in state:
        return poll.key_of(d, p, 1)
    return own_key(d, p, state["key"]) if "key" in state else d.key(p)


def own_key(d: Draft, p: Position, template: str) -> str:
    """The key that the plan itself gives an act. Raises ExpressionError, also where what comes of it is none."""
    from durun.plan.names import no_key

    key = d.evaluate.text(template, d.names(p.scope, visit=p.visit))
    if (wrong := no_key(key)) is not None:
        raise ExpressionError(f"its key {wrong}")
    return key


def issued(d: Draft, p: Position, effect: Effect | None = None, **changes: Json) -> Position:
    """Where a position stands once its intent is issued: acting, or waiting for whoever drives on, or for a place. `changes`: what
    else is different then."""
    if effect is None:
        assert p.effect is not None
        effect = d.effect(p.effect)
    if effect.status != "waiting":
        return _untimed(p)._replace(phase=Phase.ACTING, effect=effect.no, **changes)
    if "limit" in d.state(p):
        from durun.machine import limits

        return limits.queued(d, p._replace(effect=effect.no, **changes))
    return _untimed(p)._replace(phase=Phase.DELAYED, due=d.moment.now, effect=effect.no, **changes)


def render(d: Draft, act: Act, names: Names, *, capture: bool) -> Json:
    """What is frozen of an effect: every expression worked out, the places of secrets left open. Raises ExpressionError."""
    if not d.plan.get("secrets"):
        return _render(d, act, names, capture=capture)
    bare, found = secrets.taken_out(act)
    frozen = _render(d, bare, names, capture=capture)
    if found:
        frozen["open"] = secrets.open_places(d.evaluate, found, names)
    return frozen


def _render(d: Draft, act: Act, names: Names, *, capture: bool) -> Json:
    if "method" in act:
        return request.render(d, act, names)
    return _render_command(d, act, names, capture=capture)


def _below(path: str) -> str:
    from durun.plan.names import outside

    if (wrong := outside(path)) is not None:
        raise ExpressionError(f"its directory, {path[:200]}, {wrong}")
    return path


def _render_command(d: Draft, act: Act, names: Names, *, capture: bool) -> Json:
    e = d.evaluate
    run = names["run"]["id"]
    frozen: dict[str, Json] = {} if run == d.run.id else {"run": run}
    frozen["env"] = {k: e.text(v, names, limit=LIMIT) for k, v in act["env"].items()}
    if "argv" in act:
        frozen["argv"] = e.argv(act["argv"], names)
        if not frozen["argv"]:
            raise ExpressionError("the command is empty: its list has no word")
    else:
        frozen["script"], frozen["shell"] = act["script"], act.get("shell", "sh")
    if "cwd" in act:
        frozen["cwd"] = _below(e.text(act["cwd"], names))
    if "stdin" in act:
        frozen["stdin"] = e.value(act["stdin"], names)
    for word in ("timeout", "heartbeat"):
        given = act.get(word)
        if isinstance(given, int):
            frozen[word] = given
        elif given is not None:
            frozen[word] = _length(word, e.text(given, names))
    if capture:
        frozen["capture"] = True
    if "files" in act:
        frozen["files"] = act["files"]
        frozen |= _pinned(frozen.get("argv", []), files_of(d.plan, act["files"]))
    return frozen


def _length(word: str, text: str) -> int:
    from durun.plan.units import duration

    try:
        return duration(text)
    except ValueError as problem:
        raise ExpressionError(f"{word}: {problem}") from None


def _pinned(argv: list[str], files: Json) -> dict[str, Json]:
    """Which words of a command stand for the pinned copy of a file: those that are just its path."""
    places = [n for n, word in enumerate(argv) if word.removeprefix("./") in files]
    return {"pinned": places} if places else {}


def begin_waiting(d: Draft, p: Position) -> None:
    """From waiting to beginning: a commit of its own, so that a reboot cannot take it for one that ran."""
    if p.phase is Phase.PROBING:
        assert p.asking is not None
        asking = d.issue(d.effect(p.asking))
        d.put(_untimed(p)._replace(due=d.moment.now if asking.status == "waiting" else None))
    else:
        assert p.effect is not None
        if poll.is_over(d, p):
            return follow(d, p.scope, poll.late(d, p))
        d.issue(d.effect(p.effect))
        d.put(issued(d, p._replace(cause=None)))


def again(d: Draft, p: Position, **effect_changes: Json) -> None:
    """Another attempt of the same effect, now: same key, same request, counted on."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    attempt = effect.attempt + (effect.first_at is not None)  # one that was never begun is not counted
    d.issue(effect._replace(attempt=attempt, ended_at=None, error=None, exit=None, **effect_changes))
    d.put(issued(d, p._replace(asking=None, cause=None, onces=None, failed=False)))
    d.tell("again", p, attempt)


def acted(d: Draft, p: Position, event: Ended | CouldNotStart) -> None:
    """The command of a position has ended."""
    state = d.state(p)
    assert p.effect is not None
    effect = d.effect(p.effect)
    if isinstance(event, CouldNotStart) and event.what == "directory":
        within = effect.request.get("cwd")
        return _hold(d, p, {"name": "cwd_gone", "message": f"its directory, {within}, is gone"} if within else "cwd_gone")
    if isinstance(event, CouldNotStart) and event.what == "secret":
        return _hold(d, p, {"name": "secret_missing", "message": event.why})
    outcome = of_no_start(event, effect.request) if isinstance(event, CouldNotStart) else of_command(state, event)
    _tell_end(d, p, effect.attempt, event, outcome)
    if isinstance(event, Ended) and event.stopped == "leaving" and outcome.how != DONE:
        return doubt.stopped(d, p)
    if outcome.how == DONE:
        assert isinstance(event, Ended)
        return follow(d, p.scope, _done(d, p, state, event, outcome))
    if poll.goes_on(d, p):
        return follow(d, p.scope, poll.not_yet(d, p, outcome))
    if p.onces:
        return once_step.left_in_doubt(d, p._replace(failed=outcome.how == NOT_DONE))
    error = error_of(p, outcome.name, outcome.message, attempt=effect.attempt, exit=outcome.exit)
    error["stderr"] = event.stderr if isinstance(event, Ended) else ""
    unsuccessful(d, p, error, outcome.how)


def _hold(d: Draft, p: Position, cause: Json) -> None:
    """Something must be mended before it can be begun: nothing has happened, and nothing is used up."""
    assert p.effect is not None
    d.put_effect(_not_begun(d.effect(p.effect)))
    if d.run.cancel is not None:
        return doubt.cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    d.put(p._replace(phase=Phase.HELD, cause=cause))
    why = cause["message"] if isinstance(cause, dict) else None
    d.tell("blocked", p, None, reason=reason_of(cause), why=why)


def _not_begun(effect: Effect) -> Effect:
    """An intent that waits once more, as its attempt was certainly not made: where that was to be the first, nothing ever began."""
    first = effect.first_at if effect.attempt > 1 else None
    return effect._replace(status="waiting", boot=None, place=None, first_at=first)


def moved(d: Draft, p: Position, no: int) -> None:
    """An intent that was certainly never begun: issued again here, left waiting, or withdrawn with a run that was cancelled."""
    effect = d.put_effect(_not_begun(d.effect(no)))
    if d.run.cancel is not None:
        return doubt.cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    effect = d.issue(effect)
    if p.phase is Phase.ACTING:
        d.put(issued(d, p))
    elif effect.status == "waiting":
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
            d.move.said.append(f"{scopes.path_of(p.scope, p.state)} left processes behind: {', '.join(map(str, event.left))}")
    d.tell("attempt_ended", p, attempt, **data)


def _done(d: Draft, p: Position, state: State, event: Ended, outcome: Outcome) -> str | None:
    """The effect is done, whatever becomes of its output."""
    assert p.effect is not None
    effect = d.effect(p.effect)._replace(status=DONE, exit=outcome.exit, ended_at=d.moment.now, error=None)
    try:
        output = output_of(state, event)
    except OutputError as e:
        d.put_effect(effect)
        if poll.goes_on(d, p):
            return poll.not_yet(d, p, Outcome(DONE, e.name, e.message, outcome.exit))
        return done_but(d, p, e.name, e.message)
    d.put_effect(effect if output is None else effect._replace(output=output, has_output=True))
    if "poll" in state:
        return poll.answered(d, p, output)
    return finish(d, p, output)


def finish(d: Draft, p: Position, output: Json, changed: dict[str, Json] | None = None) -> str | None:
    """The effect is done and its output whole: assign (unless `changed` says it was done), and go on to `next`."""
    assert p.effect is not None
    effect, before, state = d.effect(p.effect), d.row(p.scope, p.state), d.state(p)
    d.put_row(ended(before, p, output=output, effect=effect.no, has_output=output is not None, exit=effect.exit))
    if changed is None:
        try:
            changed = assign(d, p, state["assign"], output=output, key=effect.key)
        except AssignError as e:
            d.put_row(before)
            return done_but(d, p, e.name, e.message)
    if "compensate" in state:
        undo.learnt(d, p, DONE, output=output)
    if "pivot" in state:
        undo.passed(d, p)
    return left(d, p, state["next"], changed, effect=effect.no)


def leave(d: Draft, p: Position, target: str | None, **given: Json) -> str | None:
    """A state without an effect has ended well (`output`: with this one): its `assign` is done. The target it leads to."""
    state, before = d.state(p), d.row(p.scope, p.state)
    d.put_row(ended(before, p, **given, has_output=given.get("output") is not None))
    try:
        changed = assign(d, p, state["assign"], **given)
    except AssignError as e:
        d.put_row(before)
        return failed(d, p, e.name, e.message)
    return left(d, p, target if target is not None else state["next"], changed)


def ended(before: StateRow, p: Position, **how: Json) -> StateRow:
    """The row of a state that has ended anew; what was counted of its visits stays."""
    return StateRow(p.scope, p.state, p.visit, True, peak=before.peak, child=before.child, **how)


def left(d: Draft, p: Position, to: str, changed: dict[str, Json], **more: Json) -> str:
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
    types = d.types(p.scope)
    for name, value in values.items():
        kept = types.get(name, "any")
        if kept not in ("any", kind(value)):
            raise AssignError("vars_invalid", f"vars.{name} keeps the type of its first value, {kept}: not {kind(value)}")
    schema = scopes.plan_of(d.plan, p.scope).get("vars_schema")
    problem = None if schema is None else validate(schema, {**d.vars(p.scope), **values})
    if problem is not None:
        raise AssignError("vars_invalid", f"the vars would not fit vars_schema: {problem}")
    d.set_vars(p.scope, values)
    return values


def done_but(d: Draft, p: Position, name: str, message: str) -> str | None:
    """The effect is done, but what it gave cannot be used: committed as done, and an error all the same."""
    assert p.effect is not None
    effect = d.effect(p.effect)
    error = error_of(p, name, message, attempt=effect.attempt, exit=effect.exit)
    return after_error(d, p, error, DONE)


# --- errors ---


def error_of(p: Position, name: str, message: str, **more: Json) -> dict[str, Json]:
    """An error as a plan reads it: what means nothing of it is null, so that a catch of several may ask for it."""
    fields = dict.fromkeys(("attempt", "exit", "status", "output", "stderr"))
    return {"name": name, "message": message, "state": p.state, "visit": p.visit, **fields, **more}


def failed(d: Draft, p: Position, name: str, message: str) -> str | None:
    """A state that has no effect to repeat has an error."""
    return after_error(d, p, error_of(p, name, message), None)


def unsuccessful(d: Draft, p: Position, error: dict[str, Json], how: str) -> None:
    """The effect ended, but not well."""
    assert p.effect is not None
    known = IN_DOUBT if how == NOT_DONE and p.unsure else how  # an earlier attempt may have done what this one did not
    d.put_effect(d.effect(p.effect)._replace(status=known, exit=error.get("exit"), ended_at=d.moment.now, error=error))
    undo.learnt(d, p, known, error=error)
    if d.run.cancel is not None:
        return doubt.cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    if how == NOT_CERTAIN and "probe" in d.state(p):
        return doubt.ask(d, p._replace(cause=error))
    follow(d, p.scope, after_error(d, p, error, how))


def after_error(d: Draft, p: Position, error: dict[str, Json], how: str | None) -> str | None:
    """Again, if a rule allows it; else where a catch leads; else the run has failed. `how`: None where nothing was begun."""
    if how == DONE and undo.is_undo(p):
        return "succeeded"  # it is undone, and what it gave is of no use to anybody
    if how == DONE:
        undo.learnt(d, p, DONE, error=error)
        undo.passed(d, p)
    if how is not None and d.run.cancel is None and not p.stopping and _try_again(d, p, error, how):
        return None
    d.put_row(ended(d.row(p.scope, p.state), p, effect=p.effect, error=error, exit=error.get("exit")))
    for catch in d.state(p)["catch"] if p.back_to is None else ():  # nothing behind it is entered again
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
    if error["name"].startswith("http:"):
        wait = max(wait, request.asked_to_wait(error.get("output"), d.moment.now))
    if not retry.allowed(rules[at], failures, clock.elapsed(d, p), wait):
        return False
    counts = (*p.failures[:at], failures, *p.failures[at + 1 :])
    due = d.moment.now + wait
    unsure = p.unsure or how != NOT_DONE
    stands = p._replace(phase=Phase.DELAYED, failures=counts, asking=None, cause=error, unsure=unsure)
    d.put(timed(d, stands, due, wait))
    d.put_effect(effect._replace(status="waiting", attempt=effect.attempt + 1, error=error, boot=None, place=None))
    d.tell("retry_at", p, effect.attempt + 1, due=due, error=error["name"])
    return True


def _caught(d: Draft, p: Position, error: dict[str, Json], wanted: dict[str, Json], to: str) -> str | None:
    d.set_error(p.scope, error)
    try:
        changed = assign(d, p, wanted, error=error)
    except AssignError as e:
        d.put(p._replace(phase=Phase.FAILED, asking=None, cause=None))
        return _end_failed(d, p, error_of(p, e.name, f"in its catch: {e.message}"))
    d.tell("caught", p, None, error=error, next=to, vars=changed)
    if to == "failed":
        d.put(p._replace(phase=Phase.FAILED, asking=None, cause=None))
        return _end_failed(d, p, error)
    return to


# --- the end ---


def _end_failed(d: Draft, p: Position, error: dict[str, Json]) -> str | None:
    """An error that nothing took, or that led to `failed`: it ends the run, or the branch, item or child it is in.

    A run that was told to stop ends by that, also where what it did last cannot be used."""
    stands = d.put(d.position(p.scope)._replace(due=None, length=None))
    if d.run.cancel is not None and d.run.undoing is None:
        if stands.nth is not None and stopping.is_over(d.run):  # as `stopping.ended` leaves the others
            path = scopes.parts(p.scope)[-1].path
            d.put_item(d.item(path, stands.nth)._replace(status="stopped", error=fan.STOPPED))
        doubt.cancelled(d)
        return None
    if p.scope:
        fan.failed(d, p.scope, error)
        return None
    d.set_run(error=error, ended_by=error, updated_at=d.moment.now)
    d.tell("failed", stands, error=error)
    if not undo.after_error(d):
        d.set_run(status=Status.FAILED, reason=None, ended_at=d.moment.now)
    return None


def end(d: Draft, scope: str, target: str) -> None:
    """A scope goes to one of its built-in ends."""
    p = d.position(scope)
    if target == "failed":
        error = p.error if scope else d.run.error
        d.put(p._replace(phase=Phase.ENDED, target=None))
        _end_failed(d, p, error or error_of(p, "failed", f"state {p.state} led to failed"))
        return
    if target == "compensated":
        return undo.begin(d, "plan")
    level = d.level(scope)
    try:
        output = d.evaluate.value(level["output"], d.names(scope)) if "output" in level else None
    except ExpressionError as e:
        d.put(p._replace(phase=Phase.FAILED, target=target, effect=None, asking=None))
        _end_failed(d, p, error_of(p, "expression", f"in the output of {_named(scope)}: {e}"))
        return
    if not scope or scope.endswith("~"):  # what stands inside another state leaves nothing but what it gave
        d.put(_untimed(p)._replace(phase=Phase.ENDED, target=None))
    if scope:
        return fan.succeeded(d, scope, output)
    now, has = d.moment.now, "output" in level
    d.set_run(status=Status.SUCCEEDED, reason=None, output=output, has_output=has, ended_at=now, updated_at=now)
    d.tell("succeeded", p)


def _named(scope: str) -> str:
    return scope if scope and not scope.endswith("/") else "the plan"


# --- to take up again ---


def can_take_up(d: Draft, p: Position) -> bool:
    """Whether an error ended it here, so that it can be tried again. Where the plan chose to end there is nothing to try."""
    if p.phase is not Phase.FAILED:
        return False
    holds = d.state(p)["kind"] in ("parallel", "map", "plan") and p.total > 0
    return p.target is not None or not holds or fan.can_take_up(d, p)


def take_up(d: Draft, p: Position) -> None:
    """A state whose error ended its scope, with a fresh budget: again what may be repeated, else a person is asked."""
    p = p._replace(failures=(0,) * len(p.failures), doubts=0, cause=None, asking=None)
    p = d.put(p._replace(entered_at=d.moment.now, since=d.run.driven))
    if p.target is not None:
        return d.go(p.scope, p.target)
    what = d.state(p)["kind"]
    if what in ("wait", "approval"):
        return d.go(p.scope, p.state)  # asked anew: a new visit
    if what in ("parallel", "map", "plan") and p.total:
        return fan.take_up(d, p)
    if p.effect is None:
        p = d.put(p._replace(phase=Phase.READY, target=p.state))
        return follow(d, p.scope, begin_state(d, p))
    if "poll" in d.state(p):
        return follow(d, p.scope, poll.taken_up(d, p))
    how = d.effect(p.effect).status
    if how == DONE and not doubt.idempotent(d, p):
        return doubt.block(d, p)
    if how in (NOT_CERTAIN, IN_DOUBT):
        d.put_effect(d.effect(p.effect)._replace(status=IN_DOUBT))
        return doubt.settle(d, p)
    return again(d, p._replace(unsure=p.unsure or how == DONE))

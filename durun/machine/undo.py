"""Compensation: what has been done is undone, in reverse order of its beginning, one at a time.

Rules:
- an undo is registered with the intent of its effect, and rendered when it is known how that ended: it sees what was there then
- `owed`: it is to be undone; `registered`: whether it happened is not known yet; `not_needed`, `undone`, and `failed` say the rest
- what is in doubt is settled before anything older is undone: the probe of the state is asked, else a person; the probe is
  rendered when the doubt arises, and what the undo may read is kept from then: vars go on, and branches and items go away
- an undo is an effect of its own, with a key, retries and a probe; one that fails for good stays owed while the others go on, and
  then the run is blocked until somebody compensates again or says that it is undone
- the log of undos is read from the file one by one, the youngest first: the edge hands each in with an event
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durun.errors import ExpressionError, NotPossible, PlanRefused
from durun.machine import control, doubt, fan, request, scope, walk
from durun.machine.draft import Draft
from durun.machine.events import Answered, Compensate, CouldNotStart, Ended, NextUndo, NothingOwed, Resolve, TakeUp
from durun.machine.model import Effect, Phase, Position, Run, Status, Undo
from durun.machine.outcome import DONE, IN_DOUBT, NOT_DONE, OutputError, given_by_hand, output_of
from durun.plan.canonical import State

Json = Any


# --- the log ---


def register(d: Draft, p: Position, effect: Effect) -> None:
    """With the intent: what will have to be undone should it happen."""
    state = d.state(p)
    if "compensate" in state:
        d.put_undo(Undo(effect.no, "registered", key=d.key(p, "undo") if "key" not in state else f"{effect.key}/undo"))


def learnt(d: Draft, p: Position, how: str, output: Json = None, error: Json = None) -> None:
    """It is known, or not, how the effect ended: the undo is rendered, not needed, or waits until it is settled."""
    state = d.state(p)
    if "compensate" not in state or p.effect is None:
        return
    word = {DONE: "done", NOT_DONE: "failed"}.get(how, "in_doubt")
    effect = d.effect(p.effect)
    key = d.key(p, "undo") if "key" not in state else f"{effect.key}/undo"
    if word in state["compensate"]["after"]:
        d.put_undo(_seeing_its_end(d, p, effect, key, output, error))
    elif word != "in_doubt":
        d.put_undo(Undo(effect.no, "not_needed", key=key))
    else:
        d.put_undo(Undo(effect.no, "registered", _for_later(d, p, effect, key, error), key))


def _seeing_its_end(d: Draft, p: Position, effect: Effect, key: str, output: Json, error: Json) -> Undo:
    """The undo rendered: it sees the state that it undoes as ended, also where an error ended it and it may be tried again."""
    before, names = d.row(p.scope, p.state), d.names(p.scope, visit=p.visit, output=output, error=error)
    if error is not None:
        d.put_row(walk.ended(before, p, effect=effect.no, error=error, exit=error.get("exit")))
    try:
        return rendered(d, d.state(p), effect, key, names)
    finally:
        if error is not None:
            d.put_row(before)


ONCE: Any = {"probe": {"yes": [0], "no": [1]}}  # what takes the place of a state for a once
SEEN = ("input", "vars", "error", "item", "index", "run", "pins")  # what an undo may read beside what its own effect gave


def of_message(d: Draft, p: Position) -> Json:
    """What becomes of the undo of an effect that nobody waits for, by how that will have ended: all of it is rendered now.

    Until then it is registered: what has not been delivered has nothing to be undone.
    """
    state, effect = d.state(p), d.effect(p.effect or 0)
    key = d.move.undos[effect.no].key
    d.put_undo(Undo(effect.no, "registered", _for_later(d, p, effect, key, None), key))
    names = d.names(p.scope, visit=p.visit, output=None, error=None)
    ends = {word: rendered(d, state, effect, key, names)._asdict() for word in state["compensate"]["after"]}
    if {"failed", "in_doubt"} & set(ends):  # should a person have one that was given up delivered with a new key, it is as now
        ends["later"] = d.move.undos[effect.no].request
    return {"done": {"status": "not_needed"}, **ends}


def _for_later(d: Draft, p: Position, effect: Effect, key: str, error: Json) -> Json:
    """What settles a doubt when the run compensates: the probe, the undo as far as it can be rendered now, what both may read."""
    state, names = d.state(p), d.names(p.scope, visit=p.visit, error=error, key=effect.key)
    later: dict[str, Json] = {"seen": {name: names[name] for name in SEEN if name in names}}
    if "probe" in state:
        try:
            later["probe"] = walk.render(d, state["probe"], names, capture="output" in state)
        except ExpressionError as e:
            later["why"] = str(e)
    made = rendered(d, state, effect, key, {**names, "output": None})
    return {**later, "undo": made.request} if made.request is not None else later


def rendered(d: Draft, state: State, effect: Effect, key: str, names: Mapping[str, Json]) -> Undo:
    undo, names = state["compensate"], {**names, "key": key, "undo_key": effect.key}
    try:
        if "if" in undo and not d.evaluate.condition(undo["if"], names):
            return Undo(effect.no, "not_needed", key=key)
        request = walk.render(d, undo["act"], names, capture="output" in undo)
    except ExpressionError as e:
        return Undo(effect.no, "owed", None, key, f"it cannot be rendered: {e}")
    if "probe" in undo and scope.plan_scope(effect.scope):
        request["asks"] = _asks(d, undo, names)
    return Undo(effect.no, "owed", request, key)


def _asks(d: Draft, undo: State, names: Mapping[str, Json]) -> Json:
    """What asks whether an undo in a child has happened: what it may read goes with the child, so it is rendered with the undo."""
    try:
        return walk.render(d, undo["probe"], names, capture="output" in undo)
    except ExpressionError as e:
        return {"why": str(e)}


def passed(d: Draft, p: Position) -> None:
    """A state that is a point of no return has done what it does."""
    if d.state(p).get("pivot"):
        d.set_run(pivot=scope.path_of(p.scope, p.state))


# --- to begin ---


def wanted(d: Draft, event: Compensate) -> None:
    """A person wants what was done undone; what is under way is cancelled first."""
    run = d.run
    if run.status is Status.COMPENSATED:
        raise NotPossible(f"run {run.id} is compensated already")
    if run.undoing is not None:  # whoever began that was let past the point of no return, if it has passed one
        if run.status is Status.COMPENSATING:
            raise NotPossible(f"run {run.id} is compensating already")
        if run.status is Status.PAUSED:
            control.take_up(d, TakeUp())
        d.tell("compensating", None, None, by=event.by)
        d.move.owed_again = True
        d.set_run(undoing={**run.undoing, "failed": False})
        return
    turns_back(run, force=event.force)
    if run.status is Status.PAUSED:
        d.set_run(status=Status.RUNNING, paused_at=None)
    begun = [p for p in d.positions() if doubt.under_way(d, p)]
    if begun:
        d.set_run(cancel={"grace": event.grace, "by": event.by, "at": d.moment.now, "then": "compensate"})
        d.move.stop = [no for p in begun if (no := p.asking or p.effect) is not None]
        return doubt.withdraw(d)
    begin(d, event.by or "a person")


def turns_back(run: Run, *, force: bool) -> None:
    """Raises NotPossible where a run has passed its point of no return, and is not forced back."""
    if run.pivot is not None and not force:
        said = f"`durun compensate {run.id} --force` undoes it all the same"
        raise NotPossible(f"run {run.id} has passed its point of no return, {run.pivot}: {said}; nothing was changed")


def begin(d: Draft, by: str) -> None:
    """From here on the run only undoes."""
    doubt.withdraw(d)
    d.move.withdraw = True
    d.todo.clear()
    paused = d.run.status is Status.PAUSED  # nothing is undone before somebody resumes it
    status, reason = (Status.PAUSED, d.run.reason) if paused else (Status.COMPENSATING, None)
    d.set_run(status=status, reason=reason, undoing={"by": by, "failed": False}, cancel=None, ended_at=None, drift=None)
    d.tell("compensating", None, None, by=by)


def after_error(d: Draft) -> bool:
    """Whether an error that nothing took is followed by compensation, as the plan says, and then it has begun."""
    if d.plan.get("on_error") != "compensate" or d.run.pivot is not None or d.run.undoing is not None:
        return False
    begin(d, "on_error")
    return True


def after_cancel(d: Draft) -> bool:
    """The same of a cancel."""
    asked = (d.run.cancel or {}).get("then") == "compensate"
    if not asked and (d.plan.get("on_cancel") != "compensate" or d.run.pivot is not None):
        return False
    begin(d, (d.run.cancel or {}).get("by") or "on_cancel")
    return True


# --- one after the other ---


def standing(d: Draft) -> Position | None:
    """The undo that is under way, or asks."""
    return next((p for p in d.positions() if is_undo(p)), None)


def is_undo(p: Position) -> bool:
    return p.scope.endswith("~")


def take_next(d: Draft, event: NextUndo) -> None:
    """The youngest that is left: undone, or settled first."""
    if d.run.undoing is None or standing(d) is not None:
        raise NotPossible(f"run {d.run.id}: there is nothing to undo now")
    effect, undo = event.effect, event.undo
    inner = scope.undo(scope.path_of(effect.scope, effect.state))
    left = (undo.request or {}).get("left")
    if left is not None:  # the plan says something else of this state by now, or nothing
        undo = undo._replace(request={k: v for k, v in undo.request.items() if k != "left"} or None)
    stands = Position(inner, "undo", effect.visit, Phase.READY, effect=effect.no, entered_at=d.moment.now, settling=True, left=left)
    p = d.put(stands)
    d.put_effect(effect)
    if undo.status == "registered":
        return _settle(d, p, effect, undo)
    _act(d, p, undo)


def _act(d: Draft, p: Position, undo: Undo) -> None:
    if undo.request is None:
        d.put_undo(_kept(p, undo._replace(status="failed")))
        d.tell("undo_failed", p, error={"name": "expression", "message": undo.error})
        return d.drop(p.scope)
    state = d.state(p)
    d.put_undo(_kept(p, undo))
    d.tell("undoing", p, None, effect=undo.effect)
    made = d.new_effect(p, "undo", undo.key, undo.request, undo.attempt)
    failures = (0,) * len(state.get("retry", []))
    stands = p._replace(effect=made.no, of=undo.effect, settling=False, owed=None, failures=failures, target=None)
    d.put(walk.issued(d, stands))


def _kept(p: Position, undo: Undo) -> Undo:
    """As it is stored: should it fail and be tried again, the plan of its state is named still."""
    return undo if p.left is None else undo._replace(request={**(undo.request or {}), "left": p.left["plan"]})


def _settle(d: Draft, p: Position, effect: Effect, undo: Undo) -> None:
    """Whether it happened is not known: its probe is asked, else a person."""
    p = d.put(p._replace(of=effect.no, target=None, owed={**(undo.request or {}), "key": undo.key}))
    if p.owed.get("keys"):
        return _of_several_keys(d, p, effect, p.owed["keys"])
    if effect.status in ("waiting", "withdrawn"):
        return not_needed(d, p)
    if effect.status == NOT_DONE:
        return did_not_happen(d, p)
    if effect.status == DONE:
        return happened(d, p, effect.output)
    if "why" in p.owed:
        d.tell("probe_unknown", p, why=p.owed["why"])
    ask_probe(d, p)


def _of_several_keys(d: Draft, p: Position, effect: Effect, keys: list[str]) -> None:
    """A message that may have been delivered with one key, and was then left with another: a person says what of it is undone."""
    if effect.status in (NOT_DONE, "withdrawn"):  # the last certainly was not
        *keys, last = keys
        effect = d.put_effect(effect._replace(key=last, status=IN_DOUBT))
    keys = [key for key in keys if key != effect.key]
    other = f"; it may have been delivered with other keys too: {', '.join(keys)}" if keys else ""
    how = "was" if effect.status == DONE else "may have been"
    d.tell("probe_unknown", p, why=f"it {how} delivered with the key {effect.key}{other}")
    ask_person(d, p)


def ask_probe(d: Draft, p: Position) -> None:
    """The probe as it was rendered when the doubt arose; a person where there is none."""
    assert p.effect is not None
    if "probe" not in p.owed:
        return ask_person(d, p)
    asking = d.new_effect(p, "probe", d.effect(p.effect).key, p.owed["probe"])
    due = d.moment.now if asking.status == "waiting" else None
    d.put(p._replace(phase=Phase.PROBING, asking=asking.no, due=due))


def original(d: Draft, p: Position) -> State:
    """The state whose effect an undo position is about."""
    if p.left is not None:
        return p.left["state"]  # type: ignore[no-any-return]
    part = scope.parts(p.scope)[-1]
    if part.kind == "once":
        return ONCE  # type: ignore[no-any-return]
    return d.level(part.scope)["states"][part.state]


def ask_person(d: Draft, p: Position) -> None:
    d.put(p._replace(phase=Phase.DOUBT, asking=None, due=None, target=None))
    d.tell("blocked", p, reason="in_doubt")


def answered(d: Draft, p: Position, said: str, event: Ended | Answered | CouldNotStart) -> None:
    """The probe of what was in doubt has answered: it happened, it did not, or a person must say."""
    no = p.effect
    assert no is not None
    p = d.put(p._replace(asking=None))
    if said == "left":  # durun is being stopped: it is asked again by whoever goes on
        return d.drop(p.scope)
    if said == "no":
        return did_not_happen(d, p)
    if said != "yes" or isinstance(event, CouldNotStart):
        return ask_person(d, p)
    try:
        state = original(d, p)
        output = request.output_for(state, event) if isinstance(event, Answered) else output_of(state, event)
    except OutputError:
        return ask_person(d, p)
    if state is ONCE and isinstance(event, Ended):
        output = (event.stdout or b"").decode("utf-8", "replace")
    happened(d, p, output)


def happened(d: Draft, p: Position, output: Json) -> None:
    """What was in doubt did happen: it is undone now, unless the plan only undoes what has ended otherwise."""
    assert p.effect is not None
    if d.effect(p.effect).kind == "once":
        return _once_happened(d, p, output)
    effect = d.put_effect(d.effect(p.effect)._replace(status=DONE, output=output, has_output=output is not None))
    if (row := d.row(effect.scope, effect.state)).effect == effect.no:
        d.put_row(row._replace(has_output=effect.has_output))
    _settled(d, p, effect, output, "done")


def did_not_happen(d: Draft, p: Position) -> None:
    """What was in doubt did not: there is something to undo only where the plan says so of what has failed."""
    assert p.effect is not None
    if d.effect(p.effect).status == DONE:  # with another key it was delivered: that stays so, and is not to be undone
        return not_needed(d, p)
    effect = d.put_effect(d.effect(p.effect)._replace(status=NOT_DONE))
    _settled(d, p, effect, None, "failed")


def _settled(d: Draft, p: Position, effect: Effect, output: Json, word: str) -> None:
    """It is known by now how the effect ended: its undo is rendered by what was kept of then, and begun, if it has one."""
    state = original(d, p)
    if "compensate" not in state or word not in state["compensate"]["after"]:
        return not_needed(d, p)
    seen = {"output": output, "error": None, **p.owed.get("seen", {}), "visit": p.visit}
    around = scope.parts(p.scope)[-1].scope
    if all(d.found(part.inner) is not None for part in scope.parts(around)):
        seen = {**d.names(around), **seen}
    undo = rendered(d, state, effect, p.owed["key"], seen)
    if undo.status == "not_needed":
        return not_needed(d, p)
    if undo.request is None and p.owed.get("undo") is not None:
        undo = undo._replace(request=p.owed["undo"], error="")
    _act(d, p, undo)


def _once_happened(d: Draft, p: Position, output: Json) -> None:
    """The same of a once: its undo was frozen with the call, and gets what it printed."""
    assert p.effect is not None
    output = "" if output is None else output
    effect = d.put_effect(d.effect(p.effect)._replace(status=DONE, output=output, has_output=True))
    _act(d, p, Undo(effect.no, "owed", {**p.owed["undo"], "stdin": output}, p.owed["key"]))


def not_needed(d: Draft, p: Position) -> None:
    assert p.effect is not None
    d.put_undo_status(p.effect, "not_needed", None)
    d.tell("undo_not_needed", p, None, effect=p.effect)
    d.drop(p.scope)


def undone(d: Draft, inner: str) -> None:
    """An undo has done its work."""
    p = d.position(inner)
    assert p.of is not None
    by = p.effect if p.effect is not None else d.row(inner, "undo").effect  # one that has left its state names none
    d.tell("undone", p, None, effect=p.of, by=by)
    d.put_undo_status(p.of, "undone", by)
    d.drop(inner)


def failed(d: Draft, inner: str, error: Json) -> None:
    """An undo has failed for good: it stays owed, and the others go on."""
    p = d.position(inner)
    assert p.of is not None
    d.tell("undo_failed", p, None, effect=p.of, error=error)
    d.put_undo_status(p.of, "failed", p.effect)
    d.drop(inner)


def ended(d: Draft, event: NothingOwed) -> None:
    """Nothing is left to undo; what could not be undone is for a person."""
    if d.run.undoing is None or standing(d) is not None:
        raise NotPossible(f"run {d.run.id}: it is undoing, or does not compensate at all")
    if event.failed:
        d.set_run(undoing={**d.run.undoing, "failed": True})
        d.tell("blocked", None, None, reason="undo_failed")
        return
    if "rewind" in d.run.undoing:
        from durun.machine import rewind

        assert event.back is not None
        return rewind.back(d, event.back)
    d.set_run(status=Status.COMPENSATED, reason=None, undoing=None, ended_at=d.moment.now, updated_at=d.moment.now)
    d.tell("compensated", None, None)


# --- a person ---


def _meant(p: Position, state: str | None) -> bool:
    """Whether a person who names this state means the undo that stands here: by its own path, or that of what it undoes."""
    return state in (None, scope.path_of(p.scope, p.state), scope.parts(p.scope)[-1].path)


def _by_hand(d: Draft, p: Position, event: Resolve) -> None:
    """A person says that it happened: what it gave is held to its state, and is there for its undo."""
    state, path = original(d, p), scope.parts(p.scope)[-1].path
    if "output" in state and not event.has_output:
        raise PlanRefused(f"run {d.run.id}: state {path} gives an output; say what it was with --output JSON; nothing was changed")
    try:
        output = given_by_hand(state, event.output)
    except OutputError as e:
        raise PlanRefused(f"run {d.run.id}: state {path}: {e.message}; nothing was changed") from None
    happened(d, p, output)


def resolve(d: Draft, event: Resolve) -> None:
    """What a person says while a run compensates: of what is in doubt, or of an undo that failed."""
    p = standing(d)
    asked = (Phase.DOUBT, Phase.LOST, *((Phase.HELD,) if event.how == "undone" else ()))
    if p is not None and not (p.phase in asked and _meant(p, event.state) and event.visit in (None, p.visit)):
        p = None
    of = list(event.effects) if p is None and event.how == "undone" else None
    d.tell("resolved", p, None, how=event.how, by=event.by, note=event.note, effects=of)
    if p is None:
        if event.how != "undone" or not event.effects:
            raise NotPossible(
                f"run {d.run.id}: nothing of it is in doubt; an undo that failed takes --undone, or `durun compensate {d.run.id}`"
            )
        for no in event.effects:
            d.put_undo_status(no, "undone", None)
        d.set_run(undoing={**(d.run.undoing or {}), "failed": False})
        return
    if event.how == "undone":
        fan.withdraw(d, p)
        d.put_undo_status(p.of if p.of is not None else p.effect or 0, "undone", None)
        return d.drop(p.scope)
    if p.settling:
        if event.how == "happened":
            return _by_hand(d, p, event)
        if event.how == "fail":
            return did_not_happen(d, p)
        raise NotPossible(f"run {d.run.id} compensates: nothing is begun again; say --happened, --fail or --undone")
    if event.how == "fail":
        return failed(d, p.scope, {"name": "unresolved", "message": event.note or "a person said that it failed"})
    if event.how == "happened":
        assert p.effect is not None
        d.put_effect(d.effect(p.effect)._replace(status=DONE, error=None, ended_at=d.moment.now))
        return undone(d, p.scope)
    walk.again(d, p._replace(failures=(0,) * len(p.failures), doubts=0, unsure=True))

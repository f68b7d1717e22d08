"""What a once in doubt does to the step whose command called for it, and what a person says of it.

A call that was told of a doubt leaves a note; if the command then fails, the step is in doubt with its once. Its catch may name
`in_doubt`; else the run is blocked, and what is said of a once is recorded before the step is begun again. Where the step itself
may have happened too (it was lost, or its end is not certain), that is asked of it on its own, unless it may be repeated.
"""

from __future__ import annotations

from durun.errors import NotPossible
from durun.machine import doubt, fan, retry, walk
from durun.machine import scope as scopes
from durun.machine.draft import Draft
from durun.machine.events import OnceInDoubt, Resolve
from durun.machine.model import Phase, Position
from durun.machine.outcome import IN_DOUBT


def told(d: Draft, event: OnceInDoubt) -> None:
    """A call was told that its once is in doubt. It counts as long as the attempt that called is under way."""
    p = d.found(event.scope)
    if p is None or (p.state, p.visit, p.phase) != (event.state, event.visit, Phase.ACTING) or p.effect is None:
        return
    if d.effect(p.effect).attempt == event.attempt and event.name not in (p.onces or ()):
        d.put(p._replace(onces=[*(p.onces or ()), event.name]))


def left_in_doubt(d: Draft, p: Position) -> None:
    """The command of a step has failed after it was told of a doubt: the step is in doubt with it."""
    assert p.effect is not None
    attempt = d.effect(p.effect).attempt
    doubt.doubtful(d, p)
    d.tell("in_doubt", p, attempt, why=f"its once {', '.join(p.onces)} is in doubt")
    if d.run.cancel is not None:
        return doubt.cancelled(d)
    if p.stopping:
        return fan.stopped(d, p)
    if any(retry.matches(catch["on"], "in_doubt") for catch in d.state(p)["catch"]):
        error = walk.error_of(p, "in_doubt", f"whether {', '.join(p.onces)} happened is not known", attempt=attempt)
        return walk.follow(d, p.scope, walk.after_error(d, p, error, IN_DOUBT))
    doubt.block(d, p)


def meant(d: Draft, p: Position, event: Resolve) -> Resolve:
    """Who names no state and says that it happened speaks of what is asked for, the once; of the whole step only who names it."""
    if event.state is not None or event.how != "happened" or not p.onces or p.phase is Phase.FAILED:
        return event
    path = scopes.path_of(p.scope, p.state)
    if len(p.onces) > 1:
        ways = scopes.some([f"{path}{scopes.ONCE}{name}" for name in p.onces])
        raise NotPossible(f"run {d.run.id}: several onces are in doubt; name one of {ways}")
    return event._replace(state=f"{path}{scopes.ONCE}{p.onces[0]}")


def resolve(d: Draft, p: Position, event: Resolve) -> bool:
    """What a person says of the onces in doubt of a step. Whether that is all: then the step is begun again, and asks for
    them, or it is in doubt itself, and stays so."""
    name = scopes.once_of(event.state)
    if name is not None and (name not in (p.onces or ()) or p.phase is Phase.FAILED):  # failed: nothing asks for it any more
        raise NotPossible(f"run {d.run.id}: once {name} of {scopes.path_of(p.scope, p.state)} is not in doubt")
    if not p.onces or (name is None and event.how == "fail"):
        return False
    assert p.effect is not None
    output = event.output if name is not None and event.has_output else None
    d.move.onces.append((p.effect, name, event.how, output))
    if name is None or event.how == "fail":
        return False
    if p.failed or doubt.idempotent(d, p):
        walk.again(d, p._replace(failures=(0,) * len(p.failures), doubts=0, unsure=p.unsure or not p.failed))
    else:
        d.put(p._replace(onces=[its for its in p.onces if its != name] or None))
    return True

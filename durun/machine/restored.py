"""A run that was in flight in a file that is a backup or a copy: what it did since that was made is not known here.

Rules:
- it is blocked (`restored`) whatever its positions say, and nothing is decided of it until a person lets it go on
- then each intent that had not ended may have been begun and have ended elsewhere: it is in doubt, and is settled as any doubt.
  What was to begin now is found out, or lost, by the edge; what waits is lost here
- a question may be asked again: probes, and the rounds of a poll, go on; and so do timers and waits
- an idempotency that lasts counts from the intent: when it was first begun is not known
"""

from __future__ import annotations

from durun.errors import NotPossible
from durun.machine import doubt
from durun.machine.draft import Draft
from durun.machine.events import AfterRestore, Happening
from durun.machine.model import Phase, Run, Status

WHY = "it may have been begun, and have ended, where this file was taken from"


def refuse(run: Run, event: Happening) -> None:
    """Raises NotPossible for all that does not let the run go on."""
    if not isinstance(event, AfterRestore):
        raise NotPossible(f"run {run.id} is blocked (restored): first `durun resume {run.id} --after-restore`; nothing was changed")


def go_on(d: Draft, event: AfterRestore) -> None:
    """The run is again what it was, with all in doubt that may have happened elsewhere."""
    was = d.run.restored
    if was is None:
        raise NotPossible(f"run {d.run.id} is {d.run.status}: it is in no file that was restored or copied")
    d.set_run(restored=None, status=Status(was["status"]), reason=was["reason"])
    d.tell("resumed", None, None, by=event.by, after=was["why"])
    for scope in [p.scope for p in d.positions() if p.phase in (Phase.DELAYED, Phase.HELD)]:
        _lost(d, scope)


def _lost(d: Draft, scope: str) -> None:
    p = d.found(scope)
    if p is None or p.effect is None or "poll" in d.state(p):
        return
    effect = d.effect(p.effect)
    if effect.status == "waiting":
        first = effect.first_at if effect.first_at is not None else effect.intended_at
        d.put_effect(effect._replace(first_at=first))
        doubt.lost(d, p, WHY)

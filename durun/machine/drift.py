"""What happens when a pinned tool says something else of itself than it did: a person looks at it, or it is noted.

Rules:
- asked at each resume; what a run undoes is not held up
- `on_drift: ask`: nothing goes on until a person has accepted what the tools say now, or they say again what they said before
- `on_drift: continue`: it is noted once for each new word, and what is pinned stays as it was
"""

from __future__ import annotations

from durun.errors import NotPossible
from durun.machine.draft import Draft
from durun.machine.events import AcceptDrift, Drifted
from durun.machine.model import TERMINAL, Status


def found(d: Draft, event: Drifted) -> None:
    """What the tools say now has been asked."""
    run = d.run
    if not event.found:
        if run.drift is not None:
            d.set_run(drift=None)
            d.tell("drift_over", None)
        return
    if d.plan.get("on_drift") != "continue":
        if run.drift != event.found:
            d.tell("drifted", None, None, tools=event.found)
        return d.set_run(drift=event.found)
    tools = dict(run.tools)
    fresh = [one for one in event.found if tools.get(one["tool"], {}).get("seen") != one["now"]]
    if fresh:
        d.tell("drifted", None, None, tools=fresh)
        d.set_run(tools={**tools, **{one["tool"]: {**tools.get(one["tool"], {}), "seen": one["now"]} for one in fresh}})


def accepted(d: Draft, event: AcceptDrift) -> None:
    """From here on the tools are those of today."""
    run = d.run
    if run.status in TERMINAL and run.status is not Status.FAILED:
        raise NotPossible(f"run {run.id} has ended: it is {run.status}; nothing was changed")
    d.set_run(tools=event.words, drift=None)
    d.tell("drift_accepted", None, None, by=event.by, tools=event.found)

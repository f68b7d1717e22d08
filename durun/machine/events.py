"""What can happen to a run, as data. The engine makes these from the world; `decide` answers them."""

from __future__ import annotations

from typing import Any, NamedTuple

Json = Any


class Moment(NamedTuple):
    """What the machine may not find out by itself: time, chance, and where an intent would be begun."""

    now: int  # UTC ms
    clock: int  # ms of the boot's clock, suspend counted
    boot: str
    place: str | None  # None: nobody drives on, so a new intent is left waiting
    draw: float  # in [0, 1)
    awake: int | None = None  # ms of the boot's clock, suspend not counted; None: as `clock`


class Go(NamedTuple):
    """Go on from a READY position."""

    scope: str


class Due(NamedTuple):
    """The time of a DELAYED or WAITING position has come."""

    scope: str


class Ended(NamedTuple):
    """A command ended. `stopped` says who ended it: '', timeout, heartbeat, cancel, or leaving (durun itself was stopped)."""

    effect: int
    status: int  # exit code, or minus the number of a signal
    stopped: str = ""
    stdout: bytes | None = None  # only where the state declares an output
    data: bytes | None = None  # what it wrote to $DURUN_OUTPUT
    too_large: bool = False
    stderr: str = ""
    files: Json = None  # where its output lies: {out, err}
    left: tuple[int, ...] = ()  # pids it left behind
    at: int | None = None  # where another driver began it: when it ended, by the clock of its boot without suspend


class CouldNotStart(NamedTuple):
    effect: int
    errno: int
    what: str
    full: bool = False


class Lost(NamedTuple):
    """It was to begin, or had begun, and nobody can say whether or how it ended."""

    effect: int
    why: str


class Moved(NamedTuple):
    """An intent that was certainly never begun is issued again, by this boot and place."""

    effect: int


class Settle(NamedTuple):
    """Somebody drives again: settle a LOST position."""

    scope: str


class TakeUp(NamedTuple):
    """A person resumes a run that failed or was paused."""


class Cancel(NamedTuple):
    grace: int = 10_000
    by: str = ""


class Pause(NamedTuple):
    by: str = ""


class TimeOver(NamedTuple):
    """The time that the plan gives the run is over."""


class RanOn(NamedTuple):
    """A command that a dead driver began is alive: it ran all the time in which nobody drove."""

    effect: int


class Rebooted(NamedTuple):
    """Somebody drives in another boot than the one in which waits were set."""


class NotStopped(NamedTuple):
    """What was to be stopped lives on after the last signal. `keeper`: the pid of its keeper, where that stands still."""

    pids: tuple[int, ...]
    keeper: int | None = None


class Resolve(NamedTuple):
    """A person settles a doubt. how: happened | retry | fail."""

    how: str
    state: str | None = None
    output: Json = None
    has_output: bool = False
    note: str = ""
    by: str = ""


Happening = (
    Go | Due | Ended | CouldNotStart | Lost | Moved | Settle | TakeUp | Cancel | Pause | Resolve
    | TimeOver | RanOn | Rebooted | NotStopped
)  # fmt: skip

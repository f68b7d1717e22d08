"""What can happen to a run, as data. The engine makes these from the world; `decide` answers them."""

from __future__ import annotations

from typing import Any

from durun.machine.model import Effect, StateRow, Undo
from durun.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.machine.limits import Places

Json = Any


class Moment(NamedTuple):
    """What the machine may not find out by itself: time, chance, and where an intent would be begun."""

    now: int  # UTC ms
    clock: int  # ms of the boot's clock, suspend counted
    boot: str
    place: str | None  # None: nobody drives on, so a new intent is left waiting
    draw: float  # in [0, 1)
    awake: int | None = None  # ms of the boot's clock, suspend not counted; None: as `clock`
    places: Places | None = None  # what is free of the limits of the plan; None: nobody has looked


class Go(NamedTuple):
    """Go on from a READY position."""

    scope: str


class Due(NamedTuple):
    """The time of a DELAYED or WAITING position has come."""

    scope: str


class Looked(NamedTuple):
    """Something that waits for a place of a limit, or for its group, may begin."""


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
    secret: str = ""  # the secret whose value is in its output
    low: bool = False  # it failed, and less than 16 MiB was free on the disk of its logs then
    at: int | None = None  # where another driver began it: when it ended, by the clock of its boot without suspend


class CouldNotStart(NamedTuple):
    effect: int
    errno: int
    what: str
    full: bool = False
    why: str = ""  # where `what` is a secret, or what it takes along is too long


class Answered(NamedTuple):
    """A request ended, with an answer or without. `stopped` says who ended it: '', cancel, or leaving."""

    effect: int
    status: int | None  # None: no status line came
    headers: Json = None  # name in lower case -> value
    body: bytes = b""  # as much of it as came
    cut: str = ""  # why the body is not whole; '' where it is
    too_large: bool = False
    sent: bool = True  # whether its begin was noted, so that a byte of it may have gone out
    fault: str = ""  # network or timeout, where no status line came
    message: str = ""
    host: str = ""
    stopped: str = ""
    secret: str = ""  # the secret whose value is in its answer


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
    """A person resumes a run that failed or was paused; with `state`, one that failed is entered anew there. With `failed_items`,
    those of one that succeeded, in that state or the only one that has some."""

    state: str | None = None
    failed_items: bool = False


class AfterRestore(NamedTuple):
    """A person lets a run go on that was in flight in a file that is a backup or a copy."""

    by: str = ""


class Cancel(NamedTuple):
    grace: int = 10_000
    by: str = ""
    compensate: bool = False


class Compensate(NamedTuple):
    """A person wants what was done undone."""

    grace: int = 10_000
    by: str = ""
    force: bool = False


class NextUndo(NamedTuple):
    """The youngest effect that is still to be undone."""

    effect: Effect
    undo: Undo


class Rewind(NamedTuple):
    """A person wants the run back at a state of its own, with its data as it was before a row of the history."""

    state: str
    before: int
    vars: Json
    error: Json
    rows: tuple[StateRow, ...]  # what was remembered of its states
    effects: tuple[int, ...]  # those begun since
    undo: bool = False  # undone first
    by: str = ""


class NothingOwed(NamedTuple):
    """Nothing is left to undo, but what failed. `back`: where the run goes then, where it is to be rewound."""

    failed: int
    back: Rewind | None = None


class Pause(NamedTuple):
    """`reason` is `all` where the whole file is held, '' where this run alone was meant."""

    by: str = ""
    reason: str = ""


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


class Drifted(NamedTuple):
    """What the pinned tools say now, at a resume. `found`: [{tool, was, now}] of those that say something else than before."""

    found: Json
    words: Json  # name -> {said} or {failed}


class AcceptDrift(NamedTuple):
    """A person goes on with the tools as they are now."""

    found: Json
    words: Json
    by: str = ""


class Resolve(NamedTuple):
    """A person settles a doubt. how: happened | retry | fail | undone; `effects`: those whose undo had failed; `visit`: of the
    state, where another visit of it is not meant."""

    how: str
    state: str | None = None
    output: Json = None
    has_output: bool = False
    note: str = ""
    by: str = ""
    effects: tuple[int, ...] = ()
    visit: int | None = None


class Answer(NamedTuple):
    """A person answers an approval. `answer` None: the only one of that kind; `now, clock, boot`: when it was given; `visit`: where
    another one of the state is not meant."""

    state: str | None = None
    reject: bool = False
    answer: str | None = None
    data: Json = None
    note: str = ""
    digest: str | None = None
    by: str = ""
    now: int = 0
    clock: int = 0
    boot: str = ""
    visit: int | None = None


class Signal(NamedTuple):
    """Word from outside: a payload, or an error of this name. `within`: the scope of the child it is for, and the visit that called
    it; '' where it is for the whole run."""

    name: str
    payload: Json = None
    error: str | None = None
    message: str = ""
    dedupe: str | None = None
    by: str = ""
    now: int = 0
    clock: int = 0
    boot: str = ""
    within: str = ""
    visit: int = 0


class OnceInDoubt(NamedTuple):
    """A call of `durun once` in this attempt was told that it is not known whether it happened before."""

    scope: str
    state: str
    visit: int
    attempt: int
    name: str
    by: str = ""


class Alive(NamedTuple):
    """A sign of life for the waits for a signal of this name, of the whole run or of one child."""

    name: str
    by: str = ""
    now: int = 0
    clock: int = 0
    boot: str = ""
    within: str = ""
    visit: int = 0


Word = Answer | Signal | Alive  # from people and programs outside: judged when it is given, and never refused after that
Happening = (
    Go
    | Due
    | Looked
    | Ended
    | Answered
    | CouldNotStart
    | Lost
    | Moved
    | Settle
    | TakeUp
    | AfterRestore
    | Cancel
    | Pause
    | Resolve
    | Compensate
    | NextUndo
    | NothingOwed
    | TimeOver
    | RanOn
    | Rebooted
    | NotStopped
    | OnceInDoubt
    | Drifted
    | AcceptDrift
    | Rewind
    | Word
)

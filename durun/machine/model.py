"""What the machine knows of a run: the checkpoint, and the deltas that lead from one to the next.

Rules:
- every value is frozen; a move is a set of new rows, and `apply` lays them over the checkpoint that was read
- a position is a row by scope: '' is the run itself; a branch or an item has the path that leads to it
- times are integer UTC milliseconds, lengths integer milliseconds
- nothing here reads a clock, a file or a random number
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

Json = Any

__all__ = ["Checkpoint", "Effect", "Event", "Move", "Phase", "Position", "Run", "StateRow", "Status", "replace"]


class Status(StrEnum):
    """What is stored of a run. `interrupted` and `stranded` are worked out by whoever looks."""

    RUNNING = "running"
    WAITING = "waiting"
    BLOCKED = "blocked"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Phase(StrEnum):
    """Where a position stands within its state."""

    READY = "ready"  # about to go to `target`; nothing is under way
    ACTING = "acting"  # its effect is intended, and begins now or has begun
    DELAYED = "delayed"  # its effect is intended and waits: a retry delay, a pause, or nobody drove on
    WAITING = "waiting"  # a timer
    LOST = "lost"  # its effect is in doubt, and that is not settled yet
    PROBING = "probing"  # a probe is asked whether its effect happened
    DOUBT = "doubt"  # its effect is in doubt, and a person must say
    HELD = "held"  # its effect cannot be begun until a person has mended something; `cause` says what
    FAILED = "failed"  # its error ended the run
    ENDED = "ended"  # the run ended here as the plan says


class Position(NamedTuple):
    """One place of a run. `failures` counts, for each retry rule, the failures it has matched in this visit."""

    scope: str
    state: str
    visit: int
    phase: Phase
    target: str | None = None  # READY: where it goes next
    effect: int | None = None  # the effect of this visit
    asking: int | None = None  # PROBING: the effect of the probe
    failures: tuple[int, ...] = ()
    doubts: int = 0
    due: int | None = None  # DELAYED, WAITING: UTC ms
    length: int | None = None  # of a relative wait or delay
    set_at: int | None = None  # when the wait was set: UTC ms
    boot: str | None = None  # and in which boot,
    clock: int | None = None  # at which reading of its clock that counts suspend: ms
    entered_at: int = 0
    since: int = 0  # the run's driven time when it was entered or taken up: what `max_elapsed` counts from
    asked_since: int = 0  # PROBING: the same, when the probe was first asked
    round: int = 0  # of a poll
    streak: int = 0  # how often in a row its condition held
    until: int | None = None  # when no further round may begin: UTC ms
    window: Json = None  # of a poll: [length, boot, clock] as they were when `until` was set
    unsure: bool = False  # an earlier attempt of this visit may have happened
    cause: Json = None  # PROBING, LOST, DOUBT: the error that left the doubt, where there was one


class StateRow(NamedTuple):
    """What is remembered of a state: how often it was visited, and how it ended last."""

    scope: str
    state: str
    visits: int = 0
    ended: bool = False
    output: Json = None
    effect: int | None = None  # the output is stored with this effect
    has_output: bool = False
    error: Json = None
    exit: int | None = None


class Effect(NamedTuple):
    """One row of the effect log: everything ever intended towards the outside.

    status: waiting | begin | done | not_done | not_certain | in_doubt | withdrawn
    """

    no: int
    scope: str
    state: str
    visit: int
    kind: str  # run | probe
    key: str
    request: Json
    status: str
    attempt: int = 1
    boot: str | None = None
    place: str | None = None
    intended_at: int = 0
    first_at: int | None = None
    ended_at: int | None = None
    exit: int | None = None
    error: Json = None
    output: Json = None
    has_output: bool = False


class Event(NamedTuple):
    """A row of the history."""

    kind: str
    scope: str
    state: str | None
    visit: int | None
    attempt: int | None
    data: Json


class Run(NamedTuple):
    """The run as a whole. `error` is the last one; `ended_by` is the error that ended it."""

    id: str
    name: str
    version: str
    namespace: str  # 32 hex digits: what its keys are derived in
    started_at: int
    status: Status
    reason: str | None
    input: Json
    vars: Json
    env: Json  # pins.env: name -> value at start
    types: Json  # the type each var keeps: name -> a word of JSON Schema, or any
    output: Json = None
    has_output: bool = False
    error: Json = None
    ended_by: Json = None
    cancel: Json = None  # {grace, by, at} once somebody asked for it
    paused_at: int | None = None
    driven: int = 0  # ms in which it was driven or its commands ran, as far as that is known
    awake: int | None = None  # the reading from which its time counts on; None: it does not count now
    awake_boot: str | None = None  # in this boot
    gap: Json = None  # [boot, from, to]: readings between which nobody drove, in which its commands may have run on
    over_at: int | None = None  # the driven time at which the run's own timeout is over
    next_effect: int = 1
    updated_at: int = 0
    ended_at: int | None = None


@dataclass(slots=True)
class Checkpoint:
    """All that is needed to go on. Only `apply` changes it, after its move has been stored."""

    run: Run
    positions: dict[str, Position] = field(default_factory=dict)
    states: dict[tuple[str, str], StateRow] = field(default_factory=dict)
    effects: dict[int, Effect] = field(default_factory=dict)  # those a position refers to


@dataclass(slots=True)
class Move:
    """One decision: the rows that change, the intents to begin, the commands to stop, and what history says of it."""

    run: Run
    positions: dict[str, Position | None] = field(default_factory=dict)
    states: dict[tuple[str, str], StateRow] = field(default_factory=dict)
    effects: dict[int, Effect] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    stop: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # plain lines for whoever watches


def apply(at: Checkpoint, move: Move) -> None:
    """Lays a stored move over the checkpoint it was decided on."""
    at.run = move.run
    for scope, position in move.positions.items():
        if position is None:
            at.positions.pop(scope, None)
        else:
            at.positions[scope] = position
    at.states.update(move.states)
    at.effects.update(move.effects)
    open_ones = {n for p in at.positions.values() for n in (p.effect, p.asking) if n is not None}
    for no in [n for n in at.effects if n not in open_ones]:
        del at.effects[no]

"""What the machine knows of a run: the checkpoint, and the deltas that lead from one to the next.

Rules:
- every value is frozen; a move is a set of new rows, and `apply` lays them over the checkpoint that was read
- a position is a row by scope: '' is the run itself; a branch, an item or a child has the path that leads to it
- what a branch or item sets is kept with its position, and goes with it; what became of it is a row of its container
- times are integer UTC milliseconds, lengths integer milliseconds
- nothing here reads a clock, a file or a random number
- the two that are filled bit by bit are written out: `dataclasses` costs more to import than the rest of a driver's rooms
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from durun.machine.scope import inside, parts, path_of, under, undo
from durun.values import NamedTuple, StrEnum

Json = Any
Holders = dict[str, dict[str, int]]

__all__ = [
    "KINDS",
    "Answered",
    "Checkpoint",
    "Effect",
    "Event",
    "Gone",
    "Item",
    "Message",
    "Move",
    "Phase",
    "Position",
    "Run",
    "Sent",
    "Shares",
    "StateRow",
    "Status",
    "Undo",
]


# what a row of the history can be of: a closed list, each with its data in `durun docs database`
KINDS = (
    "started", "entered", "left", "waiting", "due", "attempt_ended", "retry_at", "again", "in_doubt", "probed", "probe_unknown",
    "blocked", "resolved", "caught", "assigned", "cancel_asked", "refused", "paused", "resumed", "succeeded", "failed",
    "cancelled", "begun_inside", "child_begun", "succeeded_inside", "failed_inside", "stopped_inside", "compensating", "undoing",
    "undone", "undo_failed", "undo_not_needed", "compensated", "asked", "answered", "listening", "signal", "taken", "signals_left",
    "time_over", "told", "not_told", "queued", "drifted", "drift_accepted", "drift_over", "migrated", "rewound",
)  # fmt: skip


class Status(StrEnum):
    """What is stored of a run. `interrupted` and `stranded` are worked out by whoever looks."""

    RUNNING = "running"
    WAITING = "waiting"
    BLOCKED = "blocked"
    PAUSED = "paused"
    COMPENSATING = "compensating"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATED = "compensated"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.COMPENSATED})


class Phase(StrEnum):
    """Where a position stands within its state."""

    READY = "ready"  # about to go to `target`; nothing is under way
    ACTING = "acting"  # its effect is intended, and begins now or has begun
    DELAYED = "delayed"  # its effect is intended and waits: a retry delay, a pause, or nobody drove on
    QUEUED = "queued"  # it waits for a place of its limit, or the run for its group
    WAITING = "waiting"  # a timer
    ASKED = "asked"  # a person is asked
    LISTENING = "listening"  # a signal
    LOST = "lost"  # its effect is in doubt, and that is not settled yet
    PROBING = "probing"  # a probe is asked whether its effect happened
    DOUBT = "doubt"  # its effect is in doubt, and a person must say
    HELD = "held"  # its effect cannot be begun until a person has mended something; `cause` says what
    INSIDE = "inside"  # its branches, its items or its child are under way
    FAILED = "failed"  # its error ended the run, or its branch or item
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
    due: int | None = None  # DELAYED, WAITING: UTC ms; QUEUED: since when
    length: int | None = None  # of a relative wait or delay
    set_at: int | None = None  # when the wait was set: UTC ms
    boot: str | None = None  # and in which boot,
    clock: int | None = None  # at which reading of its clock that counts suspend: ms
    entered_at: int = 0
    since: int = 0  # the run's driven time when it was entered or taken up: what `max_elapsed` counts from
    asked_since: int = 0  # PROBING: the same, when the probe was first asked
    round: int = 0  # of a poll
    streak: int = 0  # how often in a row its condition held
    before: Json = None  # [status, key] of the round before the one that waits
    until: int | None = None  # when no further round may begin: UTC ms
    window: Json = None  # of a poll: [length, boot, clock] as they were when `until` was set
    unsure: bool = False  # an earlier attempt of this visit may have happened
    cause: Json = None  # PROBING, LOST, DOUBT: the error that left the doubt, where there was one
    nth: int | None = None  # which branch or item this is, in the order of its container
    vars: Json = None  # what this branch or item has set; of a child all its vars
    error: Json = None  # the last error that a catch took here
    child: Json = None  # of a child plan: {id, input, types, namespace, started_at}
    stopping: bool = False  # a sibling or its container has it stopped
    floor: int = 0  # INSIDE: the visits of earlier rounds, which inner ones count on from
    total: int = 0  # INSIDE: branches or items,
    begun: int = 0  # how many of them have begun,
    won: int = 0  # have succeeded,
    lost: int = 0  # have failed,
    gone: int = 0  # were stopped
    of: int | None = None  # of an undo: the effect it undoes
    settling: bool = False  # of an undo: whether its effect happened is asked first
    owed: Json = None  # of an undo that is settled first: [request, key, error], rendered as far as it could be
    closing: str = ""  # INSIDE: nothing more begins, because of: failed | enough | stopped | again
    back_to: Json = None  # INSIDE: [state, visit] in which the run had ended, where failed items were taken up after that
    wants: Json = None  # ASKED: the question; LISTENING: the signal and its longest silence; QUEUED: its limit or group
    left: Json = None  # of an undo: {plan, state}, its state as the plan had it which the run has left meanwhile
    beyond: int | None = None  # LISTENING: ms of its whole time beyond `due`; None where it may wait for ever
    onces: Json = None  # the names of those of this attempt that are in doubt
    failed: bool = False  # with them: its own command has ended, and nothing but them is in doubt


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
    peak: int = 0  # the highest number of a visit inside it
    child: str | None = None  # the id of the child run its last visit started


class Item(NamedTuple):
    """A branch of a parallel or an item of a map. status: not_begun | begun | succeeded | failed | stopped

    `path` is that of the state that holds it, `no` counts from 0.
    """

    path: str
    no: int
    label: str
    item: Json = None
    status: str = "not_begun"
    output: Json = None
    error: Json = None


class Effect(NamedTuple):
    """One row of the effect log: everything ever intended towards the outside. Onces have numbers below 0; see `once`.

    status: waiting | begin | done | not_done | not_certain | in_doubt | withdrawn
    """

    no: int
    scope: str
    state: str
    visit: int
    kind: str  # run | http | probe | undo | once
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


class Undo(NamedTuple):
    """What is to be undone of an effect. status: registered | owed | undone | not_needed | failed"""

    effect: int
    status: str
    request: Json = None  # rendered when it was known how the effect ended
    key: str = ""
    error: str = ""  # why it could not be rendered
    attempt: int = 1  # the number of its next one: it failed as often before


DELIVERED = "delivered"


class Message(NamedTuple):
    """An effect that its run does not wait for. status: waiting | sending | delivered | dead | dropped | withdrawn"""

    effect: int
    status: str = "waiting"
    ordered: bool = True  # False: it waits for no other, and holds none back
    policy: Json = None  # {retry, idempotent, expect}: how a delivery counts, and whether it is tried again
    probe: Json = None  # {request, yes, no, retry}, rendered with the intent
    undo: Json = None  # how it ended: done | failed | in_doubt -> what becomes of its undo then, rendered with the intent
    due: int | None = None  # waiting: UTC ms,
    length: int | None = None  # with the delay that was asked for,
    boot: str | None = None  # the boot in which that was,
    clock: int | None = None  # and the reading of its clock; sending: when it was begun
    failures: tuple[int, ...] = ()  # for each rule, those it has matched
    doubts: int = 0
    elapsed: int = 0  # ms of delays and attempts so far
    probes: int = 0  # how often its probe was asked
    unanswered: int = 0  # how often of late it could not say,
    asked_at: int = 0  # and what had elapsed when it was first asked
    asking: bool = False  # sending: it is the probe that is under way
    unsure: bool = False  # an earlier attempt may have happened
    note: str = ""  # why a person dropped it
    logs: tuple[Json, ...] = ()  # [attempt, out, err]: where the last attempts that ended have written
    earlier: tuple[Json, ...] = ()  # what was known of it with each key that it had before this one, as `AS_IT_WAS` names it


class Sent(NamedTuple):
    """A signal that was sent to the run. `taken` is the scope, state and visit of the wait that took it."""

    no: int
    name: str
    payload: Json
    error: str | None
    message: str
    dedupe: str | None
    by: str
    at: int
    taken: tuple[str, str, int] | None = None


class Answered(NamedTuple):
    """What a person said to an approval: one for each visit, never changed."""

    scope: str
    state: str
    visit: int
    answer: str
    reject: bool
    data: Json
    by: str
    note: str
    digest: str
    at: int


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
    cancel: Json = None  # {grace, by, at, then} once somebody asked for it
    undoing: Json = None  # {by, failed} while it compensates
    pivot: str | None = None  # the point of no return it has passed
    paused_at: int | None = None
    restored: Json = None  # {why, at, from, status, reason} of one in flight in a file that is a backup or a copy
    driven: int = 0  # ms in which it was driven or its commands ran, as far as that is known
    awake: int | None = None  # the reading from which its time counts on; None: it does not count now
    awake_boot: str | None = None  # in this boot
    gap: Json = None  # [boot, from, to]: readings between which nobody drove, in which its commands may have run on
    over_at: int | None = None  # the driven time at which the run's own timeout is over
    next_effect: int = 1
    next_signal: int = 1
    updated_at: int = 0
    ended_at: int | None = None
    tools: Json = None  # what each pinned tool says of itself: name -> {said} or {failed}, perhaps {seen}
    drift: Json = None  # [{tool, was, now}] where that is something else now, and a person must look

    def held_up(self) -> bool:
        """Whether nothing goes on until a person has looked at what its tools say now."""
        return self.drift is not None and self.cancel is None and self.undoing is None


class Checkpoint:
    """All that is needed to go on. Only `apply` changes it, after its move has been stored.

    `active`, `delayed`, `holders`, `within` and `deep` follow from the rest: without them each move of a map would look at all of
    its items that are under way or have failed.
    """

    __slots__ = ("active", "deep", "delayed", "effects", "holders", "items", "positions", "run", "signals", "states", "within")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        run: Run,
        positions: dict[str, Position] | None = None,
        states: dict[tuple[str, str], StateRow] | None = None,
        effects: dict[int, Effect] | None = None,
        items: dict[str, list[Item]] | None = None,
        signals: dict[int, Sent] | None = None,
    ) -> None:
        self.run = run
        self.positions = {} if positions is None else positions
        self.states = {} if states is None else states
        self.effects = {} if effects is None else effects  # those a position refers to
        self.items = {} if items is None else items  # by the path of the state that holds them
        self.signals = {} if signals is None else signals  # those nobody has taken, in the order they came
        self.active = {scope: p for scope, p in self.positions.items() if is_active(p)}
        self.delayed = {scope: p for scope, p in self.active.items() if p.phase is Phase.DELAYED}
        self.holders = holders(self.active.values())
        self.within: dict[str, tuple[str, ...]] = {}  # the states that have a row, by scope
        for scope, name in self.states:
            self.within[scope] = (*self.within.get(scope, ()), name)
        self.deep = any(is_deep(scope) for scope in (*self.positions, *self.within))  # scopes lie in scopes, or did

    def copy(self) -> Checkpoint:
        """One that a move can be laid over while this one stays as it is stored; what items there are is shared."""
        made = Checkpoint(self.run, effects=dict(self.effects), items=dict(self.items), signals=dict(self.signals))
        made.positions, made.states = dict(self.positions), dict(self.states)
        made.active, made.within, made.deep = dict(self.active), dict(self.within), self.deep
        made.delayed, made.holders = dict(self.delayed), copy_of(self.holders)
        return made

    def __eq__(self, other: object) -> bool:
        same = ("active", "delayed", "effects", "holders", "items", "positions", "run", "signals", "states")
        return isinstance(other, Checkpoint) and all(getattr(self, name) == getattr(other, name) for name in same)


class Gone(NamedTuple):
    """What a scope that has ended leaves to be taken away: its position, the rows of its states, and all that lies inside it."""

    rows: tuple[str, ...] | None  # the states that have one, where nothing lies inside it; None: something may
    items: bool = False  # whether that may be items

    def after(self, before: Gone | None) -> Gone:
        """The same, where it had ended before in what is stored together."""
        if before is None:
            return self
        known = None if self.rows is None or before.rows is None else tuple(dict.fromkeys(before.rows + self.rows))
        return Gone(known, self.items or before.items)


class Shares:
    """What a move changes of what all runs share: places of limits, and who waits for one."""

    __slots__ = ("boot", "clock", "ended", "held", "left", "queued", "taken")

    def __init__(self, boot: str, clock: int) -> None:
        self.boot, self.clock = boot, clock
        self.taken: dict[int, tuple[str, int]] = {}  # effect -> (limit, the ms in which its rate counts)
        self.ended: list[int] = []  # effects whose place is given back
        self.queued: dict[str, tuple[str, int]] = {}  # scope -> (limit, since when)
        self.left: list[str] = []  # scopes that wait no more
        self.held: dict[str, int] = {}  # limit -> ms for which it is held back


class Move:
    """One decision: the rows that change, the intents to begin, the commands to stop, and what history says of it."""

    __slots__ = (
        "answers", "begin", "effects", "fresh", "gone", "history", "items", "messages", "onces", "owed_again", "positions", "run",
        "said", "shares", "signals", "states", "stop", "undo_status", "undos", "withdraw",
    )  # fmt: skip

    def __init__(self, run: Run, history: list[Event] | None = None) -> None:
        self.run = run
        self.positions: dict[str, Position | None] = {}
        self.states: dict[tuple[str, str], StateRow] = {}
        self.effects: dict[int, Effect] = {}
        self.fresh: dict[str, list[Item]] = {}  # containers entered anew: what was inside is taken away first
        self.items: dict[tuple[str, int], Item] = {}
        self.gone: dict[str, Gone] = {}  # scopes that have ended: what was inside them is taken away
        self.undos: dict[int, Undo] = {}
        self.undo_status: dict[int, tuple[str, int | None]] = {}  # effect -> (status, the effect that undid it)
        self.owed_again = False  # undos that failed are owed again
        self.onces: list[tuple[int, str | None, str, Json]] = []  # what a person says: (effect of the step, name, how, output)
        self.signals: dict[int, Sent] = {}
        self.messages: dict[int, Message] = {}
        self.withdraw = False  # messages that were not begun are withdrawn
        self.answers: list[Answered] = []
        self.history = [] if history is None else history
        self.begin: list[int] = []
        self.stop: list[int] = []
        self.shares: Shares | None = None  # where the plan has limits
        self.said: list[str] = []  # plain lines for whoever watches


OVER = frozenset((Phase.FAILED, Phase.ENDED))
MOVING = frozenset((Phase.READY, Phase.ACTING, Phase.LOST))


def is_active(p: Position) -> bool:
    """Whether something is still to happen at a position by itself, or when somebody is heard."""
    return p.phase not in OVER


def moves(p: Position) -> bool:
    """Whether something is to be done here at once. An intent that nobody drove on to (no length) is."""
    return p.phase in MOVING or holds(p) or (p.phase is Phase.DELAYED and p.length is None)


def holds(p: Position) -> bool:
    """Whether a position holds a place of the maps and parallels around it: something of it is under way, or about to be."""
    return p.phase in MOVING or (p.phase is Phase.PROBING and p.due is None)


def holders(positions: Iterable[Position]) -> Holders:
    """For each state that holds branches or items: those that hold a place, each with the number of positions in it that do."""
    found: Holders = {}
    for p in positions:
        if p.scope and holds(p):
            count(found, p.scope, 1)
    return found


def copy_of(found: Holders) -> Holders:
    return {path: dict(inside) for path, inside in found.items()}


def count(found: Holders, scope: str, more: int) -> None:
    """Keeps the holders true where one more position holds a place (1), or one less (-1)."""
    for part in parts(scope):
        inside = found.setdefault(part.path, {})
        left = inside.get(part.inner, 0) + more
        if left:
            inside[part.inner] = left
        else:
            del inside[part.inner]
            if not inside:
                del found[part.path]


def is_deep(scope: str) -> bool:
    """Whether a scope lies in another that may end before it is taken away."""
    return len(parts(scope)) > 1


def apply(at: Checkpoint, move: Move) -> None:
    """Lays a stored move over the checkpoint it was decided on."""
    at.run = move.run
    if move.fresh or move.gone:
        _take_away(at, move)
    for (path, no), item in move.items.items():
        at.items[path][no] = item
    at.effects.update(move.effects)
    at.signals.update(move.signals)
    for no in [n for n, sent in move.signals.items() if sent.taken is not None]:
        del at.signals[no]
    for scope, position in move.positions.items():
        _place(at, scope, position)
    for scope, name in move.states:
        if (scope, name) not in at.states:
            at.within[scope] = (*at.within.get(scope, ()), name)
            at.deep = at.deep or is_deep(scope)
    at.states.update(move.states)
    for no in move.effects:
        _drop_unless_referred(at, no)


def _take_away(at: Checkpoint, move: Move) -> None:
    """What was inside a state that is entered anew, and inside scopes that have ended."""
    states, positions = list(move.gone), list(move.gone)
    if at.deep or move.fresh:
        states = [scope for scope in at.within if taken_away(move, scope)]
        positions = [scope for scope in at.positions if taken_away(move, scope)]
    for scope in states:
        for name in at.within.pop(scope, ()):
            del at.states[scope, name]
    if move.fresh or any(left.items for left in move.gone.values()):
        for path in [path for path in at.items if _has_gone(move, path)]:
            del at.items[path]
    for scope in positions:
        _place(at, scope, None)
    for path, items in move.fresh.items():
        at.items[path] = list(items)


def _has_gone(move: Move, path: str) -> bool:
    """Whether the state at a path, which holds items, was inside what this move takes away."""
    return any(under(path, outer) for outer in move.gone) or any(inside(path, outer) for outer in move.fresh)


def taken_away(move: Move, scope: str) -> bool:
    """Whether what was stored of a scope is taken away by this move."""
    fresh, gone = move.fresh, move.gone
    if fresh or gone:
        for part in parts(scope):
            if part.inner in gone or part.path in fresh:
                return True
    return False


def _place(at: Checkpoint, scope: str, position: Position | None) -> None:
    """A position as it stands now; the effects that none refers to any longer go."""
    before = at.positions.pop(scope, None)
    at.active.pop(scope, None)
    if scope:
        _count(at, scope, before, position)
    if before is not None and before.phase is Phase.DELAYED:
        at.delayed.pop(scope, None)
    if position is not None:
        at.positions[scope] = position
        if position.phase not in OVER:
            at.active[scope] = position
            if position.phase is Phase.DELAYED:
                at.delayed[scope] = position
    if before is not None and not (before.effect is None and before.asking is None):
        for no in (before.effect, before.asking):
            _drop_unless_referred(at, no)


def _count(at: Checkpoint, scope: str, before: Position | None, position: Position | None) -> None:
    """What follows where a position inside a state changes."""
    held, holding = before is not None and holds(before), position is not None and holds(position)
    if held is not holding:
        count(at.holders, scope, 1 if holding else -1)
    at.deep = at.deep or (position is not None and is_deep(scope))


def _drop_unless_referred(at: Checkpoint, no: int | None) -> None:
    effect = at.effects.get(no) if no is not None else None
    if effect is None:
        return
    p = at.positions.get(effect.scope)
    if p is not None and no in (p.effect, p.asking):
        return
    p = at.positions.get(undo(path_of(effect.scope, effect.state)))
    if p is not None and no in (p.effect, p.asking):
        return
    del at.effects[effect.no]

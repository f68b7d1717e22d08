"""Places: what all runs of a file share by name, and how a state comes by its place. And a run that waits for its group.

Rules:
- a place belongs to an attempt: it is taken in the move that begins it, and given back in the move that knows its end
- one that was certainly never begun asks anew: when it begins in the end is what its rate counts
- what is free comes in with the moment, as the file says inside the transaction of the move; without it nothing is free
- a state that finds no place stands queued with nothing rendered; an effect that was rendered before (a retry, a round of a
  poll) queues as it is
- who waits longest comes first, over all runs; a newcomer begins at once only where there is room beside all who wait
- `Retry-After` on a 429 or 503 holds the whole limit back, a day at most: one mistaken answer must not hold all runs for years
- a run that waits for its group stands queued before its first state; its own time has not begun
"""

from __future__ import annotations

from typing import Any

from durun.machine import clock, walk
from durun.machine import scope as scopes
from durun.machine.draft import Draft
from durun.machine.model import TERMINAL, Checkpoint, Effect, Move, Phase, Position, Shares, Status, taken_away
from durun.plan.canonical import Plan, State, states_of
from durun.values import NamedTuple

Json = Any
LONGEST = 86_400_000  # ms that an answer may hold a limit back


class Limit(NamedTuple):
    """A limit with the numbers of one plan."""

    name: str
    most: int | None  # at once
    rate: int | None = None  # begun
    period: int = 0  # in so many ms


class Room(NamedTuple):
    """What is free of a limit. `queue` has those who wait, the longest first: a scope of this run, or a ticket of another."""

    free: int | None  # places; None: there is no end of them
    left: int | None  # how many may still begin in this period
    wait: int  # ms until it is worth to look again; 0: when something ends
    queue: tuple[str | tuple[int, str, int], ...] = ()

    def first(self) -> tuple[str | tuple[int, str, int], ...]:
        """Those who may begin now."""
        known = [max(0, n) for n in (self.free, self.left) if n is not None]
        return () if self.wait > 0 else self.queue[: min(known, default=None)]


class Places(NamedTuple):
    """What the file says of the limits of a run's plans, at one moment."""

    mine: dict[int, str]  # effects of this run that hold a place -> the limit
    rooms: dict[Limit, Room]
    turn: bool = False  # of a run that waits for its group: nobody of it is before this one


# --- what a plan says ---


def limits_of(plan: Plan) -> tuple[Limit, ...]:
    """The limits of a plan and of those it calls, with the numbers each gives them."""
    if "limits" not in plan:
        return ()
    plans = [plan, *(state["plan"]["pinned"] for state in states_of(plan) if "plan" in state)]
    return tuple(dict.fromkeys(_limit(one, name) for one in plans for name in one.get("limits", {})))


def _limit(plan: Plan, name: str) -> Limit:
    given = plan["limits"][name]
    rate, period = given.get("rate", (None, 0))
    return Limit(name, given.get("concurrency"), rate, period)


def of_state(d: Draft, scope: str, state: State) -> Limit | None:
    """The limit of a state, with the numbers of its plan."""
    return _limit(scopes.plan_of(d.plan, scope), state["limit"]) if "limit" in state else None


def _of_effect(d: Draft, effect: Effect) -> Limit | None:
    """The limit of an effect: probes and undos have none."""
    if effect.kind not in ("run", "http"):
        return None
    state = d.level(effect.scope)["states"].get(effect.state)
    return of_state(d, effect.scope, state) if state is not None else None


# --- to take a place ---


def admits(d: Draft, effect: Effect) -> bool:
    """Whether an effect may begin now; its place is taken with this."""
    limit = _of_effect(d, effect)
    if limit is None:
        return True
    if not _has_turn(d, limit, effect.scope):
        return False
    _shares(d).taken[effect.no] = (limit.name, limit.period)
    return True


def has_room(d: Draft, p: Position, state: State) -> bool:
    """Whether a state would find a place now."""
    limit = of_state(d, p.scope, state)
    return limit is None or (d.moment.place is not None and d.fits(p.scope) and _has_turn(d, limit, p.scope))


def queued(d: Draft, p: Position) -> Position:
    """The position in the queue of its limit; one that stands there keeps its turn."""
    name = d.state(p)["limit"]
    if p.phase is Phase.QUEUED:
        return p
    if d.moment.places is not None and d.moment.place is not None:
        d.tell("queued", p, None, limit=name)
    stands = p._replace(phase=Phase.QUEUED, target=None, due=d.moment.now, length=None, set_at=None, boot=None, clock=None)
    return stands._replace(wants={"limit": name})


def hold_back(d: Draft, p: Position, ms: int) -> None:
    """The far side asks to be left alone for so long: no run begins anything under this limit before."""
    name = d.state(p).get("limit")
    if name is not None and ms > 0:
        _shares(d).held[name] = min(ms, LONGEST)


def _shares(d: Draft) -> Shares:
    if d.move.shares is None:
        d.move.shares = Shares(d.moment.boot, d.moment.clock)
    return d.move.shares


def _gave_back(d: Draft, no: int) -> bool:
    """Whether an attempt that held a place has ended in this move."""
    changed, shares = d.move.effects.get(no), d.move.shares
    return changed is not None and (changed.status != "begin" or (shares is not None and no in shares.taken))


def _has_turn(d: Draft, limit: Limit, scope: str) -> bool:
    places, shares = d.moment.places, d.move.shares
    room = places.rooms.get(limit) if places is not None else None
    if places is None or room is None or room.wait > 0 or (shares is not None and limit.name in shares.held):
        return False
    taken = sum(name == limit.name for name, _ in shares.taken.values()) if shares is not None else 0
    freed = sum(name == limit.name and _gave_back(d, no) for no, name in places.mine.items())
    ahead = _ahead(d, room, scope)
    return (room.free is None or ahead < room.free + freed - taken) and (room.left is None or ahead < room.left - taken)


def _ahead(d: Draft, room: Room, scope: str) -> int:
    """How many wait before this one."""
    found = 0
    for waits in room.queue:
        if waits == scope:
            break
        found += not isinstance(waits, str) or _is_queued(d.found(waits))
    return found


def _is_queued(p: Position | None) -> bool:
    return p is not None and p.phase is Phase.QUEUED


# --- when something may have become free ---


def settle(d: Draft) -> None:
    """Begins what has its turn, and notes what this move takes and gives back, and who waits from now on."""
    while _begin_more(d):
        walk.run_on(d)
    _note_ends(d)
    _note_queue(d)


def _begin_more(d: Draft) -> bool:
    places, run = d.moment.places, d.run
    if places is None or d.moment.place is None or run.cancel is not None or run.undoing is not None:
        return False
    if run.status in TERMINAL or run.status is Status.PAUSED:
        return False
    root = d.found("")
    if root is not None and waits_for_group(root):
        return places.turn and _begin_run(d, root)
    found = False
    for limit, room in places.rooms.items():
        for scope in room.queue:
            p = d.found(scope) if isinstance(scope, str) else None
            if p is None or p.phase is not Phase.QUEUED or of_state(d, p.scope, d.state(p)) != limit:
                continue
            if has_room(d, p, d.state(p)):
                _begin(d, p)
                found = True
    return found


def _begin(d: Draft, p: Position) -> None:
    """A state has its turn: what it waits to begin is begun, or worked out only now."""
    p = p._replace(due=None, wants=None)
    if p.effect is not None:
        return walk.begin_waiting(d, p._replace(phase=Phase.DELAYED))
    p = d.put(p._replace(phase=Phase.READY, since=d.run.driven))  # what it waited does not count as an outage
    walk.follow(d, p.scope, walk.begin_state(d, p))


def _note_ends(d: Draft) -> None:
    for no, effect in d.move.effects.items():
        before = d.at.effects.get(no)
        if before is not None and before.status == "begin" and _gave_back(d, no) and _of_effect(d, effect) is not None:
            _shares(d).ended.append(no)


def _note_queue(d: Draft) -> None:
    for scope, p in d.move.positions.items():
        before = d.at.positions.get(scope)
        if p is not None and p.phase is Phase.QUEUED and "limit" in p.wants:
            _shares(d).queued[scope] = (p.wants["limit"], p.due or 0)
        elif _is_queued(before):
            _shares(d).left.append(scope)
    if d.move.fresh or d.move.gone:
        changed = d.move.positions
        queued = [scope for scope, p in d.at.active.items() if p.phase is Phase.QUEUED and scope not in changed]
        left = [scope for scope in queued if taken_away(d.move, scope)]
        if left:
            _shares(d).left += left


def after(places: Places, move: Move) -> Places:
    """The places as the next move of the same commit finds them."""
    shares = move.shares
    if shares is None:
        return places
    ended = [places.mine[no] for no in shares.ended if no in places.mine]
    taken = [name for name, _ in shares.taken.values()]
    mine = {no: name for no, name in places.mine.items() if no not in shares.ended}
    mine |= {no: name for no, (name, _) in shares.taken.items()}
    rooms = {}
    for limit, room in places.rooms.items():
        free = None if room.free is None else room.free + ended.count(limit.name) - taken.count(limit.name)
        left = None if room.left is None else room.left - taken.count(limit.name)
        queue = tuple(one for one in room.queue if one not in shares.left)
        rooms[limit] = Room(free, left, max(room.wait, shares.held.get(limit.name, 0)), queue)
    return places._replace(mine=mine, rooms=rooms)


def is_worth(at: Checkpoint, places: Places) -> bool:
    """Whether something that waits may begin now, as far as the limits say."""
    root = at.positions.get("")
    if root is not None and waits_for_group(root):
        return places.turn
    return any(isinstance(one, str) for room in places.rooms.values() for one in room.first())


# --- the group of a run ---


def waits_for_group(p: Position) -> bool:
    return p.phase is Phase.QUEUED and "group" in p.wants


def queue_run(d: Draft, group: str) -> None:
    """The run is stored, and begins when nobody of its group is before it."""
    p = d.position("")
    d.put(p._replace(phase=Phase.QUEUED, due=d.moment.now, wants={"group": group}))
    d.tell("queued", p, None, group=group)


def _begin_run(d: Draft, root: Position) -> bool:
    d.put(root._replace(phase=Phase.READY, due=None, wants=None, entered_at=d.moment.now))
    clock.fresh(d)
    d.todo.append("")
    return True

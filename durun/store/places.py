"""What all runs of the file share: places of limits, who waits for one, and groups. Rows and counts, no decisions.

Rules:
- a place is open as long as its attempt is under way; closed ones are kept for as long as the rate of a plan may count them
- ages are told by the clock of the boot, which counts suspend and is never set; what was noted in another boot is bound to this
  one when a driver begins, so that a clock set back lengthens nothing
- who waits counts only where a living driver can begin it: none that died, stands paused, or lets its turn pass holds others up
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import apsw

from durun.machine.events import Moment
from durun.machine.limits import Limit, Places, Room
from durun.machine.model import Shares
from durun.machine.timer import remaining
from durun.store.file import File, rows
from durun.values import NamedTuple

Json = Any
Ticket = tuple[int, str, int]  # run, scope, since
OPEN = "status NOT IN ('succeeded', 'failed', 'cancelled', 'compensated')"
CLAIM = "LEFT JOIN messages m ON m.run = p.run AND m.effect = p.effect"  # who delivers need not be who drives
SOME = 64  # who waits, read at once


class Asking(NamedTuple):
    """Who asks what is free."""

    run: int
    alive: Callable[[str], bool]  # whether the driver of a place lives
    able: Callable[[str], bool]  # whether a scope of this run could begin what it waits for
    passed: frozenset[Ticket] = frozenset()  # those who let their turn pass


class Holder(NamedTuple):
    """A place whose run nobody drives, with what tells whether its attempt lives."""

    no: int
    token: str
    kind: str
    key: str
    boot: str | None
    place: str | None


def look(db: apsw.Connection, limits: Iterable[Limit], asking: Asking, m: Moment) -> Places:
    """What is free of these limits now, and who waits."""
    mine = dict(rows(db, "SELECT effect, name FROM places WHERE run = ? AND open = 1", (asking.run,)))
    return Places(mine, {limit: _room(db, limit, asking, m, list(mine.values()).count(limit.name)) for limit in limits})


def _room(db: apsw.Connection, limit: Limit, asking: Asking, m: Moment, own: int) -> Room:
    free, left = None, None
    wait = _held_back(db, limit.name, m)
    if limit.most is not None:
        free = limit.most - int(rows(db, "SELECT count(*) FROM places WHERE name = ? AND open = 1", (limit.name,))[0][0])
    if limit.rate is not None:
        since = "SELECT clock FROM places WHERE name = ? AND boot = ? AND clock > ? ORDER BY clock DESC LIMIT ?"
        sql = f"SELECT count(*), min(clock) FROM ({since})"
        begun, first = rows(db, sql, (limit.name, m.boot, m.clock - limit.period, limit.rate))[0]
        left = limit.rate - begun
        if left <= 0:
            wait = max(wait, first + limit.period - m.clock)
    known = [n for n in (free, left) if n is not None]
    return Room(free, left, wait, tuple(_queue(db, limit.name, asking, max(0, min(known, default=0)) + own + 1)))


def _held_back(db: apsw.Connection, name: str, m: Moment) -> int:
    found = rows(db, "SELECT until, length, boot, clock FROM limits WHERE name = ? AND until IS NOT NULL", (name,))
    if not found:
        return 0
    until, length, boot, clock = found[0]
    return max(0, remaining(until, length, (boot, clock), (m.now, m.clock, m.boot)))


def _queue(db: apsw.Connection, name: str, asking: Asking, enough: int) -> list[str | Ticket]:
    """The first of those who wait and can begin, at least so many where there are."""
    sql = (
        "SELECT q.run, q.scope, q.since, r.status = 'paused', r.driver FROM queue q JOIN runs r ON r.no = q.run"
        " WHERE q.name = ? AND (q.since, q.run, q.scope) > (?, ?, ?) ORDER BY q.since, q.run, q.scope LIMIT ?"
    )
    out: list[str | Ticket] = []
    alive: dict[str, bool] = {}
    last: tuple[int, int, str] = (-1, -1, "")
    while len(out) < enough:
        found = rows(db, sql, (name, *last, SOME))
        for run, scope, since, paused, driver in found:
            last = (since, run, scope)
            if run == asking.run:
                out += [scope] if asking.able(scope) else []
                continue
            if driver is not None and driver not in alive:
                alive[driver] = asking.alive(driver)
            if driver is not None and alive[driver] and not paused and (run, scope, since) not in asking.passed:
                out.append((run, scope, since))
        if len(found) < SOME:
            break
    return out


def write(db: apsw.Connection, run: int, shares: Shares, now: int) -> None:
    """What a move takes, gives back, and who waits from now on."""
    for effect in shares.ended:
        db.execute("UPDATE places SET open = 0 WHERE run = ? AND effect = ? AND open = 1", (run, effect))
    for effect, (name, period) in shares.taken.items():
        db.execute(
            "INSERT INTO limits (name, period) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET period = excluded.period"
            " WHERE period < excluded.period",
            (name, period),
        )
        db.execute("UPDATE places SET open = 0 WHERE run = ? AND effect = ? AND open = 1", (run, effect))
        db.execute(
            "DELETE FROM places WHERE name = ?1 AND open = 0 AND boot = ?2"
            " AND clock <= ?3 - (SELECT period FROM limits WHERE name = ?1)",
            (name, shares.boot, shares.clock),
        )
        db.execute(
            "INSERT INTO places (name, run, effect, at, boot, clock, open) VALUES (?, ?, ?, ?, ?, ?, 1)",
            (name, run, effect, now, shares.boot, shares.clock),
        )
    for scope in shares.left:
        db.execute("DELETE FROM queue WHERE run = ? AND scope = ?", (run, scope))
    for scope, (name, since) in shares.queued.items():
        db.execute("INSERT OR REPLACE INTO queue (run, scope, name, since) VALUES (?, ?, ?, ?)", (run, scope, name, since))
    for name, length in shares.held.items():
        _hold_back(db, name, length, shares, now)


def _hold_back(db: apsw.Connection, name: str, length: int, shares: Shares, now: int) -> None:
    """Until the later of what is asked now and what was asked before."""
    if _held_back(db, name, Moment(now, shares.clock, shares.boot, None, 0.0)) < length:
        db.execute(
            "INSERT INTO limits (name, period, until, length, boot, clock) VALUES (?, 0, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE"
            " SET until = excluded.until, length = excluded.length, boot = excluded.boot, clock = excluded.clock",
            (name, now + length, length, shares.boot, shares.clock),
        )


def take(db: apsw.Connection, run: int, effect: int, limit: Limit, alive: Callable[[str], bool], m: Moment) -> bool:
    """Takes a place for a message, where one is free beside all who wait; whether it did. In a transaction that writes."""
    room = look(db, [limit], Asking(run, alive, lambda _: False), m).rooms[limit]
    known = [n for n in (room.free, room.left) if n is not None]
    if room.wait > 0 or len(room.queue) >= min(known, default=len(room.queue) + 1):
        return False
    shares = Shares(m.boot, m.clock)
    shares.taken[effect] = (limit.name, limit.period)
    write(db, run, shares, m.now)
    return True


def give(db: apsw.Connection, run: int, effect: int, limit: Limit, held_back: int, m: Moment) -> None:
    """Gives the place of a message back; `held_back`: ms for which an answer asks that nobody takes one."""
    shares = Shares(m.boot, m.clock)
    shares.ended.append(effect)
    if held_back > 0:
        shares.held[limit.name] = held_back
    write(db, run, shares, m.now)


def bind(file: File, m: Moment) -> None:
    """What was noted in another boot is told by the clock of this one from now on."""
    if not rows(file.db, "SELECT 1 FROM places WHERE boot <> ? LIMIT 1", (m.boot,)):
        return
    with file.write() as db:
        db.execute(
            "UPDATE places SET at = min(at, ?1), clock = ?2 - (?1 - min(at, ?1)), boot = ?3 WHERE boot <> ?3",
            (m.now, m.clock, m.boot),
        )


# --- places whose runs nobody drives ---


def undriven(file: File, names: Iterable[str], alive: Callable[[str], bool]) -> list[Holder]:
    """Open places of runs that nobody drives."""
    found, asked = [], dict[str, bool]()
    sql = (
        "SELECT p.no, coalesce(m.place, r.driver), r.no || '.' || e.no || '.' || e.attempt, e.kind, e.key, e.boot, e.place"
        f" FROM places p JOIN runs r ON r.no = p.run CROSS JOIN effects e ON e.run = p.run AND e.no = p.effect {CLAIM}"
        " WHERE p.name = ? AND p.open = 1"
    )
    for name in names:
        for no, driver, *more in rows(file.db, sql, (name,)):
            if driver is not None and driver not in asked:
                asked[driver] = alive(driver)
            if driver is None or not asked[driver]:
                found.append(Holder(no, *more))
    return found


def give_back(file: File, holders: list[Holder], alive: Callable[[str], bool]) -> None:
    """These attempts have ended, though nobody who drives has seen it. Whoever takes such a run up asks for a place anew."""
    with file.write() as db:
        for holder in holders:
            sql = f"SELECT coalesce(m.place, driver) FROM places p JOIN runs r ON p.run = r.no {CLAIM} WHERE p.no = ?"
            driver = rows(db, sql, (holder.no,))
            if driver and (driver[0][0] is None or not alive(driver[0][0])):
                db.execute("UPDATE places SET open = 0 WHERE no = ?", (holder.no,))


# --- groups ---


# of all that ever were of a group few are in flight: these are looked through, and the others never
IN_FLIGHT = f"FROM runs r CROSS JOIN grouped g ON g.run = r.no WHERE r.{OPEN} AND g.name ="


def before(db: apsw.Connection, group: str, run: int | None) -> tuple[str, str] | None:
    """(id, status) of the run of a group that has not ended and is before this one; of any, where the run is not stored yet."""
    sql = f"SELECT r.id, r.status {IN_FLIGHT} ?{'' if run is None else ' AND g.run < ?'} ORDER BY +r.no LIMIT 1"
    found = rows(db, sql, (group,) if run is None else (group, run))
    return found[0] if found else None


def other(db: apsw.Connection, run: int) -> tuple[str, str, str] | None:
    """(group, id, status) of another run of its group that has not ended, where the run has a group."""
    of = "(SELECT name FROM grouped WHERE run = ?1)"
    found = rows(db, f"SELECT g.name, r.id, r.status {IN_FLIGHT} {of} AND r.no <> ?1 ORDER BY +r.no LIMIT 1", (run,))
    return found[0] if found else None

"""The time a position has left, and a position that has left it.

Rules:
- a time is due in UTC; a relative one also keeps its length, so that a clock set back never lengthens it
- within one boot its clock decides, which counts suspend; after a reboot what is left is at most the stored length
- while a run is paused the time of its timers stands still
"""

from __future__ import annotations

from durun.machine.model import Position


def left(p: Position, now: int, clock: int, boot: str) -> int:
    """Milliseconds until a position is due."""
    assert p.due is not None
    if p.length is None:
        return p.due - now
    if p.boot == boot and p.clock is not None:
        return p.length - (clock - p.clock)
    return min(p.due - now, p.length)


def left_when(p: Position, paused_at: int | None, now: int, clock: int, boot: str) -> int:
    """The same, where the run may be paused: then what was left when it was."""
    assert p.due is not None
    return left(p, now, clock, boot) if paused_at is None else p.due - max(paused_at, p.set_at or 0)


def is_over(p: Position, paused_at: int | None, now: int, clock: int, boot: str) -> bool:
    return p.due is not None and left_when(p, paused_at, now, clock, boot) <= 0


def without(p: Position) -> Position:
    """The position with nothing of what it waited for."""
    return p._replace(due=None, length=None, set_at=None, boot=None, clock=None, wants=None, beyond=None)

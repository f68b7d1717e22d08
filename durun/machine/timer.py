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
    return remaining(p.due, p.length, (p.boot, p.clock), (now, clock, boot))


def remaining(due: int, length: int | None, was: tuple[str | None, int | None], at: tuple[int, int, str]) -> int:
    """The same of a time that was set at a reading `was` of a boot and its clock; `at` is (now, clock, boot)."""
    now, clock, boot = at
    if length is None:
        return due - now
    if was[0] == boot and was[1] is not None:
        return min(length, length - (clock - was[1]))
    return min(due - now, length)


def left_when(p: Position, paused_at: int | None, now: int, clock: int, boot: str) -> int:
    """The same, where the run may be paused: then what was left when it was."""
    assert p.due is not None
    return left(p, now, clock, boot) if paused_at is None else p.due - max(paused_at, p.set_at or 0)


def is_over(p: Position, paused_at: int | None, now: int, clock: int, boot: str) -> bool:
    return p.due is not None and left_when(p, paused_at, now, clock, boot) <= 0


def without(p: Position) -> Position:
    """The position with nothing of what it waited for."""
    return p._replace(due=None, length=None, set_at=None, boot=None, clock=None, wants=None, beyond=None)

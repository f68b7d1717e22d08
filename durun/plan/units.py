"""Durations, sizes and times, as a plan spells them. Durations are integer ms, times integer UTC ms."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
LONGEST = 100 * 366 * 86_400_000  # a hundred years: longer is a mistake
DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?!s))?(?:(\d{1,9})s)?(?:(\d{1,12})ms)?")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration(text: str) -> int:
    """Milliseconds of `250ms 30s 5m 2h 7d 1h30m`. Raises ValueError."""
    found = DURATION.fullmatch(text)
    if not text or found is None or not any(found.groups()):
        raise ValueError(f"`{text}` is no duration; write 250ms, 30s, 5m, 2h, 7d or 1h30m")
    total = sum(int(n) * UNITS[unit] for n, unit in zip(found.groups(), UNITS, strict=True) if n)
    if total > LONGEST:
        raise ValueError(f"`{text}` is longer than a hundred years")
    return total


def show_duration(ms: int) -> str:
    """The duration in its largest units: 90000 -> 1m30s."""
    parts, left = [], ms
    for unit, size in UNITS.items():
        n, left = divmod(left, size)
        if n:
            parts.append(f"{n}{unit}")
    return "".join(parts[:2]) or "0s"


def size(text: str) -> int:
    """Bytes of `64KiB 1MiB`. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,12})(B|KiB|MiB|GiB)", text)
    if found is None:
        raise ValueError(f"`{text}` is no size; write 64KiB or 1MiB")
    return int(found.group(1)) * SIZES[found.group(2)]


def moment(text: str) -> int:
    """UTC milliseconds of an RFC 3339 time, which must carry its offset. Raises ValueError."""
    if MOMENT.fullmatch(text) is None:
        raise ValueError(f"`{text}` is no time; write it as 2026-11-30T09:00:00+01:00, with its offset")
    try:
        at = datetime.fromisoformat(text.replace(" ", "T").upper())
    except ValueError as e:
        raise ValueError(f"`{text}` is no time: {e}") from None
    return (at - EPOCH) // timedelta(milliseconds=1)


def show_moment(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, as 2026-11-30T08:00:00.000Z."""
    at = EPOCH + timedelta(milliseconds=ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"

"""Durations, sizes and times, as a plan spells them. Durations are integer ms, times integer UTC ms from 1970 to 9999.

Each has one spelling. What might mean two things (a bare number, `1:30`, a time without offset) is refused, and so is what can
only be a mistake: a duration over a hundred years, a time before 1970.

What only shows a time is light to import: `ls` does.
"""

from __future__ import annotations

import time

UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
LONGEST = 100 * 366 * 86_400_000  # a hundred years
LAST = 253_402_300_799_999  # the end of the year 9999
SPELLING = "write 250ms, 30s, 5m, 2h, 7d or 1h30m"
DURATION = r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m(?!s))?(?:([0-9]{1,9})s)?(?:([0-9]{1,15})ms)?"
MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"


def duration(text: str) -> int:
    """Milliseconds of `250ms 30s 5m 2h 7d 1h30m`; units fall, each once; `0s` is one. Raises ValueError."""
    import re

    found = re.fullmatch(DURATION, text)
    if found is None or not any(found.groups()):
        raise ValueError(f"{_quoted(text)} is no duration; {SPELLING}")
    total = sum(int(n) * UNITS[unit] for n, unit in zip(found.groups(), UNITS, strict=True) if n)
    if total > LONGEST:
        raise ValueError(f"{_quoted(text)} is longer than a hundred years")
    return total


def show_duration(ms: int) -> str:
    """The duration in its two largest units, what is left cut off: 90000 -> 1m30s."""
    parts, left = [], max(0, ms)
    for unit, size in UNITS.items():
        n, left = divmod(left, size)
        if n:
            parts.append(f"{n}{unit}")
    return "".join(parts[:2]) or "0s"


RATES = {"s": 1000, "m": 60_000, "h": 3_600_000}
MOST = 10_000  # in a unit: what was begun in it is remembered one by one


def rate(text: str) -> tuple[int, int]:
    """(how many, in how many ms) of `25/s`, `100/m` or `1000/h`. Raises ValueError."""
    number, slash, unit = text.partition("/")
    if not slash or unit not in RATES or not (number.isascii() and number.isdigit() and 0 < len(number) <= 9) or int(number) == 0:
        raise ValueError(f"{_quoted(text)} is no rate; write 25/s, 100/m or 1000/h")
    if int(number) > MOST:
        raise ValueError(f"{_quoted(text)}: at most {MOST} in a unit; write it for a shorter one")
    return int(number), RATES[unit]


def size(text: str) -> int:
    """Bytes of `64KiB 1MiB`. Raises ValueError."""
    import re

    found = re.fullmatch(r"([0-9]{1,12})(B|KiB|MiB|GiB)", text)
    if found is None:
        raise ValueError(f"{_quoted(text)} is no size; write 64KiB or 1MiB")
    return int(found.group(1)) * SIZES[found.group(2)]


def moment(text: str) -> int:
    """UTC milliseconds of an RFC 3339 time, which must carry its offset. Raises ValueError."""
    import re
    from datetime import UTC, datetime, timedelta

    if re.fullmatch(MOMENT, text) is None:
        raise ValueError(f"{_quoted(text)} is no time; write it as 2026-11-30T09:00:00+01:00, with its offset")
    try:
        at = datetime.fromisoformat(text.replace(" ", "T").upper())
    except ValueError as e:
        raise ValueError(f"{_quoted(text)} is no time: {e}") from None
    ms = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if not 0 <= ms <= LAST:
        raise ValueError(f"{_quoted(text)} does not lie between the years 1970 and 9999")
    return ms


def show_moment(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, as 2026-11-30T08:00:00.000Z."""
    seconds, ms = divmod(ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03d}Z"


def _quoted(text: str) -> str:
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}…`"

"""Durations, sizes and times have one spelling each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durun.plan.units import LAST, LONGEST, duration, moment, rate, show_duration, show_moment, size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005), ("90m", 5_400_000), ("0s", 0), ("36500d", 3_153_600_000_000),
    ],
)  # fmt: skip
def test_a_duration_is_read_as_milliseconds(text: str, ms: int) -> None:
    assert duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "PT1H30M", "30", "1:30", "", "s", "30 s", "1.5h", "-5s", "+5s", "30m1h", "1h1h", "5S", "5min", "1w", "٣s", "30s\n", "1e3s",
        "9" * 500 + "s",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_quoted_and_the_spelling_is_given(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration; write 250ms, 30s, 5m, 2h, 7d or 1h30m") as e:
        duration(text)
    assert text[:20] in str(e.value)
    assert len(str(e.value)) < 150


@pytest.mark.parametrize("text", ["36601d", "999999999d", "876001h1000000m"])
def test_a_duration_over_a_hundred_years_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match=f"`{text}` is longer than a hundred years"):
        duration(text)


@given(st.integers(0, LONGEST))
def test_a_duration_is_shown_in_its_two_largest_units(ms: int) -> None:
    shown = show_duration(ms)
    assert duration(shown) <= ms < duration(shown) + max(1000, ms // 24)


def test_durations_are_shown_as_they_are_spelt() -> None:
    assert [show_duration(ms) for ms in (0, 250, 90_000, 5_400_000, 90_061_000, -5)] == [
        "0s",
        "250ms",
        "1m30s",
        "1h30m",
        "1d1h",
        "0s",
    ]


def test_a_size_is_read_as_bytes() -> None:
    assert [size(text) for text in ("5B", "64KiB", "1MiB", "2GiB")] == [5, 65_536, 1_048_576, 2_147_483_648]
    for text in ("64", "64KB", "64kib", "1.5MiB", "", "-1B"):
        with pytest.raises(ValueError, match="is no size; write 64KiB or 1MiB"):
            size(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
        ("2026-11-30T09:00:00+01:00", "2026-11-30T08:00:00.000Z"),
        ("2026-11-30 09:00:00.1239z", "2026-11-30T09:00:00.123Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000Z"),
    ],
)
def test_a_time_is_read_and_shown_in_utc(text: str, shown: str) -> None:
    assert show_moment(moment(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T09:00:00", "2026-11-30", "2026-11-30T09:00Z", "09:00", "", "2026-13-01T00:00:00Z", "2026-11-30T25:00:00Z",
        "20261130T090000Z", "2026-11-30T09:00:00+25:00", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59-01:00", "٢026-11-30T09:00:00Z",
    ],
)  # fmt: skip
def test_a_time_without_offset_or_outside_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time|between the years 1970 and 9999"):
        moment(text)


@given(st.integers(0, LAST))
def test_what_is_shown_is_read_back_as_the_same_time(ms: int) -> None:
    assert moment(show_moment(ms)) == ms


@pytest.mark.parametrize(("text", "found"), [("25/s", (25, 1000)), ("1/m", (1, 60_000)), ("10000/h", (10_000, 3_600_000))])
def test_a_rate_is_read_as_how_many_in_how_many_milliseconds(text: str, found: tuple[int, int]) -> None:
    assert rate(text) == found


@pytest.mark.parametrize(
    "text", ["", "25", "25/", "/s", "0/s", "-1/s", "2.5/s", "25/S", "25/d", "25 /s", "25/s\n", "٣/s", "1e3/s", "9999999999/s"]
)
def test_what_is_no_rate_is_quoted_and_the_spelling_is_given(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate; write 25/s, 100/m or 1000/h"):
        rate(text)

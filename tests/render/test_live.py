"""The view as a function: from what is known of a run to the lines a person sees."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from durun.machine.model import Phase, Position
from durun.render.live import ASCII, FINAL, KEPT, TALL, Line, Story, View, cut, harmless, last_line, lines, span, tree

NOW = 1_000_000


def at(state: str, phase: Phase = Phase.ACTING, scope: str = "", **more: Any) -> Position:
    return Position(scope, state, 1, phase, entered_at=more.pop("entered_at", NOW - 14_000), **more)


def view(*positions: Position, story: Story | None = None, **more: Any) -> View:
    return View("r1", "release 1.4", more.pop("status", "running"), None, NOW - 133_000, NOW, positions, story or Story(), **more)


def text(frame: list[Line]) -> list[str]:
    return ["".join(said for said, _ in line) for line in frame]


def told(story: Story, *rows: tuple[Any, ...], at: int = 0) -> Story:
    """Rows of the history: (kind, state, data, ms since the one before)."""
    for kind, state, data, later in rows:
        at += later
        story.hear(kind, "", state, data.pop("attempt", None), data, at)
    return story


def left(effect: int = 1, to: str = "b") -> dict[str, Any]:
    return {"next": to, "vars": {}, "effect": effect}


def test_what_is_done_what_is_under_way_and_its_last_line_of_output() -> None:
    story = told(
        Story(), ("entered", "fetch", {}, 0), ("left", "fetch", left(), 1200), ("entered", "test", {}, 0),
        ("retry_at", "test", {"attempt": 2, "due": 5000, "error": "exit:1"}, 2000),
        ("caught", "test", {"error": {"name": "exit:1"}, "next": "report"}, 62_000),
    )  # fmt: skip
    frame = lines(
        view(at("deploy"), story=story, attempts=lambda _: 2, tail=lambda _: "uploading layer 4/9", hint="Ctrl-C pauses"), 80, 24
    )
    assert text(frame) == [
        "r1  release 1.4  running  2m13s  1 done",
        "  ✓ fetch      1.2s",
        "  ✗ test      1m04s  exit:1, on to report",
        "  ▸ deploy      14s  attempt 2",
        "      uploading layer 4/9",
        "  Ctrl-C pauses",
    ]


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (at("a", Phase.WAITING, due=NOW + 89_500, length=100_000), "in 1m30s  a timer"),
        (at("a", Phase.DELAYED, due=NOW + 3000, length=4000, cause={"name": "exit:1"}), "in 3s  exit:1, then attempt 3"),
        (at("a", Phase.DELAYED, due=NOW + 3000, length=4000, round=8), "in 3s  then round 8"),
        (at("a", Phase.QUEUED, due=NOW, wants={"limit": "pay"}), "a place of the limit pay"),
        (at("a", Phase.QUEUED, due=NOW, wants={"group": "g"}), "another run of the group g"),
        (at("a", Phase.DELAYED, due=NOW), "about to begin, attempt 3"),
        (at("a", Phase.ACTING, round=8, streak=2), "14s  round 8, held 2 in a row"),
        (at("a", Phase.PROBING), "14s  in doubt: its probe is asked"),
        (at("a", Phase.DOUBT), "in doubt: a person must say whether it happened"),
        (at("a", Phase.HELD, cause="cwd_gone"), "cannot begin: cwd_gone"),
    ],
)
def test_each_way_to_stand_has_its_words(position: Position, said: str) -> None:
    shown = text(lines(view(position, attempts=lambda _: 3), 80, 24))[1]
    assert " ".join(shown.split()[2:]) == " ".join(said.split())


def test_a_clock_set_back_never_lengthens_a_countdown() -> None:
    p = at("a", Phase.WAITING, due=NOW + 3_600_000, length=5000)
    assert "in 5s" in text(lines(view(p), 80, 24))[1]


def test_of_a_run_that_is_paused_it_is_said_what_is_left_and_no_time_runs_down() -> None:
    p = at("a", Phase.WAITING, due=NOW - 60_000, length=5000)
    assert "5s left" in text(lines(view(p, status="paused"), 80, 24))[1]


@pytest.mark.parametrize("width", [2, 5, 10, 20, 39, 40, 79, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 24])
def test_no_line_is_wider_and_no_frame_is_higher_than_the_terminal(width: int, height: int) -> None:
    story = Story()
    for n in range(9):
        told(story, ("entered", f"{'ein_langer_name_' * 4}{n}", {}, 0), ("left", f"{'ein_langer_name_' * 4}{n}", left(), 10**7))
    items = [at("charge", scope=f"each[日本語の顧客-{n}-{'x' * n}]") for n in range(30)]
    v = view(at("each"), *items, story=story, tail=lambda _: "日本語" * 60, hint="Ctrl-C ends watching; the run goes on")
    frame = lines(v, width, height)
    assert 1 <= len(frame) <= min(height, TALL)
    assert all(sum(cell_len(said) for said, _ in line) <= width for line in frame)


def test_nothing_that_comes_from_outside_reaches_the_terminal_as_an_order() -> None:
    nasty = "\x1b[2J\x1b]0;title\x07 \x9b31m \x1b[31mred\x1b[0m \x08\x08 \u202eevil \x1bc \x1b] \x7f\n"
    story = told(Story(), ("entered", "a", {}, 0), ("failed", "a", {"error": {"name": nasty}}, 5))
    v = view(at("b"), at("c", scope=f"b[{nasty}]"), story=story, tail=lambda _: nasty)._replace(plan=nasty)
    frame = text(lines(v, 200, 24))
    assert all(line.isprintable() for line in frame), frame
    assert all(line.isprintable() for line in story.final())
    assert any("red" in line for line in frame)


def test_a_progress_bar_shows_what_it_last_said() -> None:
    assert last_line("one\n 10 %\r 20 %\r\x1b[32m 30 %\x1b[0m\r\x1b[K") == "\x1b[32m 30 %\x1b[0m"
    assert harmless(last_line("a\tb\n\n  \n")) == "a b"
    assert last_line("") == ""


def test_positions_are_a_tree_by_scope_also_where_a_label_holds_dots() -> None:
    places = [
        at("book"), at("search", scope="book.flight"), at("each", scope="book.hotel"), at("ask", scope="book.hotel.each[a.example.com]"),
        at("ask", scope="book.hotel.each[b]"),
    ]  # fmt: skip
    assert [(r.depth, r.name) for r in tree(places, 20) if r.at is not None] == [
        (0, "book"), (1, "flight.search"), (1, "hotel.each"), (2, "[a.example.com].ask"), (2, "[b].ask"),
    ]  # fmt: skip


def test_of_thousands_the_ones_that_move_are_shown_and_the_rest_counted() -> None:
    phases = [Phase.ENDED] * 4000 + [Phase.ACTING] * 4 + [Phase.DOUBT] * 2 + [Phase.READY, Phase.DELAYED] * 2000
    items = [at("charge", phase, scope=f"each[{n}]") for n, phase in enumerate(phases)]
    frame = text(lines(view(at("each"), *items), 80, 24))
    assert len(frame) <= TALL
    assert [line.split()[1] for line in frame[2:6]] == [f"[{n}].charge" for n in range(4000, 4004)]
    shown = sum(".charge" in line for line in frame)
    assert frame[-1].strip().startswith(f"… {len(items) - shown} more: ")
    assert "2 waiting for a person" in frame[-1] and "4000 ended" in frame[-1]


def test_several_branches_share_the_room_and_none_of_the_positions_is_forgotten() -> None:
    places = [at("all")]
    for b in "abcd":
        places += [at("each", scope=f"all.{b}"), *(at("x", scope=f"all.{b}.each[{n}]") for n in range(500))]
    rows = tree(places, 18, {"delayed": 7})
    assert len(rows) <= 18
    assert sum(1 if r.at is not None else sum(r.more.values()) for r in rows) == len(places) + 7
    assert {r.at.scope for r in rows if r.at is not None} >= {"", "all.a", "all.b"}


def test_states_that_only_decide_are_neither_listed_nor_counted() -> None:
    story = told(
        Story(), ("entered", "pick", {}, 0), ("left", "pick", {"next": "b", "vars": {}}, 0), ("entered", "rest", {}, 0),
        ("waiting", "rest", {"due": 2000}, 0), ("due", "rest", {}, 2000), ("left", "rest", {"next": "c", "vars": {}}, 0),
    )  # fmt: skip
    assert (story.count, [d.path for d in story.done], story.final()) == (1, ["rest"], ["rest: done (2.0s)"])


def test_the_end_of_a_long_run_keeps_what_mattered_and_counts_the_rest() -> None:
    story = Story()
    for n in range(10_000):
        told(story, ("entered", f"s{n}", {}, 0), at=n * 10)
        if n == 7000:
            told(story, ("attempt_ended", "s7000", {"how": "not_done", "error": "exit:1", "message": "exit 1"}, 1), at=n * 10)
        told(story, ("left", f"s{n}", left(), 5), at=n * 10)
        assert len(story.kept) <= KEPT
    final = story.final()
    assert len(final) <= FINAL
    assert "s7000: exit:1 (exit 1)" in final and final[-1] == "s9999: done (0.0s)"
    counted = sum(int(line[1:].split()[0]) for line in final if line.startswith("("))
    assert counted + sum(": done" in line for line in final) == story.count == 10_000


def test_trouble_without_end_is_bounded_too_and_says_where_the_rest_is() -> None:
    story = Story()
    for n in range(5000):
        told(story, ("attempt_ended", "a", {"how": "not_done", "error": "exit:1", "message": str(n)}, 1))
    final = story.final()
    assert len(final) == FINAL and final[-1] == "a: exit:1 (4999)"
    assert final[0] == f"({5000 - FINAL + 1} more lines: `durun history` has all)"


def test_a_terminal_without_utf8_gets_plain_marks() -> None:
    story = told(Story(), ("entered", "a", {}, 0), ("left", "a", left(), 5))
    frame = text(lines(view(at("b", entered_at=NOW), at("c" * 90, scope="b.x"), story=story, hint="h" * 90), 40, 24, ASCII))
    assert all(line.isascii() for line in frame)


def test_spans_and_cuts() -> None:
    assert [span(ms) for ms in (0, 420, 9999, 12_345, 64_000, 7_500_000, 273_600_000)] == [
        "0.0s", "0.4s", "10.0s", "12s", "1m04s", "2h05m", "3d04h",
    ]  # fmt: skip
    assert span(1001, whole=True, up=True) == "2s"
    assert text([cut([("abcdef", ""), ("ghi", "dim")], 5, "…")]) == ["abcd…"]
    assert text([cut([("ab", ""), ("   ", "")], 5, "…")]) == ["ab"]


def test_a_run_that_stands_nowhere_yet_has_its_head_and_no_more() -> None:
    assert text(lines(view(), 80, 24)) == ["r1  release 1.4  running  2m13s"]

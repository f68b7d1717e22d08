"""Open places and the mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from durun.machine.secrets import MASK, Mask, filled, open_places, shown, taken_out
from durun.plan.expressions import Evaluator

values = st.lists(st.text("abcx", min_size=6, max_size=9), min_size=1, max_size=3, unique=True)


def stream(mask: Mask, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Masks a text that comes in pieces, as `durun logs` does."""
    kept = b""
    for piece in pieces:
        ready, kept = mask.settled(kept + piece)
        yield ready
    if kept:
        yield mask.masked(kept)


@given(
    values,
    st.lists(st.one_of(st.text("abcx", max_size=6), st.integers(0, 2)), max_size=8),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_however_the_text_is_cut_what_comes_out_is_the_same_and_holds_no_value(known, parts, cuts):
    mask = Mask((f"S{n}", value) for n, value in enumerate(known))
    text = "".join(part if isinstance(part, str) else known[part % len(known)] for part in parts).encode()
    at = sorted({0, len(text), *(min(c, len(text)) for c in cuts)})
    out = b"".join(stream(mask, (text[a:b] for a, b in pairwise(at))))
    assert out == b"".join(stream(mask, [text]))
    assert out.decode() == mask.text(text.decode())
    assert not any(value.encode() in out for value in known)


def test_the_longest_value_wins_where_two_begin_at_one_place():
    mask = Mask([("A", "secret"), ("B", "secret-and-more")])
    assert b"".join(stream(mask, [b"<secret-and-", b"more> <secret-an>"])) == b"<***> <***-an>"


def test_a_short_value_hides_nothing_and_an_empty_mask_changes_nothing():
    assert Mask([("A", "short")]).text("short") == "short"
    assert list(stream(Mask(), [b"a", b"b"])) == [b"a", b"b"]
    assert Mask().tree({"a": [1]}) == {"a": [1]}


def test_keys_and_texts_at_any_depth_are_masked_and_nothing_else():
    assert Mask([("A", "secret")]).tree({"secret": [{"a": "my secret", "n": 5, "b": None}]}) == {
        MASK: [{"a": "my ***", "n": 5, "b": None}]
    }


def test_whose_value_data_holds_is_told_also_where_json_spells_it_otherwise():
    mask = Mask([("A", 'pa"ss\\word'), ("B", "geheim-ü")])
    assert mask.holder(b"nothing", None) == ""
    assert mask.holder(b'[{"x": "a pa\\"ss\\\\word"}]') == "A"
    assert mask.holder(None, b'{"geheim-\\u00fc": 1}') == "B"
    assert mask.holder("geheim-ü".encode()) == "B"


def test_a_frozen_request_keeps_the_place_open_and_is_filled_when_it_is_sent():
    act = {
        "url": "http://x/${{ secrets.A }}/${{ input.n }}",
        "json": {"a": [{"b": "${{ secrets.B }}"}, "$${{ secrets.A }}", "${{ input.n }}"]},
    }
    bare, found = taken_out(act)
    names = {"input": {"n": 5}}
    frozen = {**Evaluator().value(bare, names), "open": open_places(Evaluator(), found, names)}
    assert frozen["json"] == {"a": [{"b": ""}, "${{ secrets.A }}", 5]}
    assert frozen["open"] == [[["url"], ["http://x/", {"secret": "A"}, "/", "5"]], [["json", "a", 0, "b"], [{"secret": "B"}]]]
    full = filled(frozen, {"A": "${{ secrets.B }}", "B": "b"}.__getitem__)
    assert full == {"url": "http://x/${{ secrets.B }}/5", "json": {"a": [{"b": "b"}, "${{ secrets.A }}", 5]}}
    assert frozen["json"]["a"][0]["b"] == ""
    assert shown(frozen, "url") == "http://x/${{ secrets.A }}/5"

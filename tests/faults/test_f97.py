"""YAML and what is checked before anything begins: no value changes in silence, and every fault has its place."""

from __future__ import annotations


def faults(place, text):
    """(line, message) of every fault of a plan; the plan is refused by check and by start, and nothing is made."""
    place.write("bad.yaml", text)
    place.durun("start", "bad.yaml", exit=7)
    assert not place.db.exists()
    return [(f["line"], f["message"]) for f in place.durun("check", "bad.yaml", "--json", exit=7).json["faults"]]


HEAD = "durun: 1\nname: fault\nstart: a\n"


def test_f97_the_output_of_a_state_that_cannot_have_been_visited_is_found_before_anything_begins(place):
    text = (
        HEAD
        + "states:\n  a: {run: [echo, '${{ states.b.output }}'], next: b}\n  b: {run: ['true'], output: text, next: succeeded}\n"
    )
    assert any(line == 5 for line, _ in faults(place, text))

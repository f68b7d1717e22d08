"""YAML and what is checked before anything begins: no value changes in silence, and every fault has its place."""

from __future__ import annotations

import json
import sys

import pytest


def faults(place, text):
    """(line, message) of every fault of a plan; the plan is refused by check and by start, and nothing is made."""
    place.write("bad.yaml", text)
    place.durun("start", "bad.yaml", exit=7)
    assert not place.db.exists()
    return [(f["line"], f["message"]) for f in place.durun("check", "bad.yaml", "--json", exit=7).json["faults"]]


HEAD = "durun: 1\nname: fault\nstart: a\n"


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (HEAD + "states: {a: {pass: {}, next: succeeded}}\nstates: {a: {pass: {}, next: succeeded}}\n", 4, 5),
        (HEAD + "states:\n  a: {pass: {}, next: succeeded}\n  b: {pass: {}, next: a}\n  a: {pass: {}, next: b}\n", 5, 7),
        (HEAD + "states:\n  a:\n    run: ['true']\n    env:\n      A: 1\n      A: 2\n    next: succeeded\n", 8, 9),
        (HEAD + "vars: {x: {1: a,\n  '1': b}}\nstates: {a: {pass: {}, next: succeeded}}\n", 4, 5),
        (HEAD + "vars: {x: {k: a,\n  \"\\x6b\": b}}\nstates: {a: {pass: {}, next: succeeded}}\n", 4, 5),
    ],
)  # fmt: skip
def test_f94_a_key_given_twice_is_refused_with_both_its_lines(place, text, first, second):
    found = [(line, message) for line, message in faults(place, text) if "twice" in message]
    assert len(found) == 1
    line, message = found[0]
    assert line == second
    assert f"line {first}" in message


PLAIN = {
    "COUNTRY": "no", "AT": "12:30:00", "MODE": "017", "DAY": "2024-01-01", "ON": "on", "YES": "Yes", "UNDER": "1_000", "EIGHT": "08",
    "HEX": "0x1F", "BIG": "12e5678", "BIN": "0b11", "PLUS": "+1", "NAN": ".nan", "INF": ".inf", "OCT": "0o17", "DOT": "1.", "UP": "True",
    "NONE": "NULL", "STAMP": "2024-01-01T10:00:00Z", "TILDE": "~", "LONG": "12345678901234567890",
}  # fmt: skip


def test_f95_a_command_is_given_the_words_that_were_written(place):
    env = "".join(f"      {name}: {word}\n" for name, word in PLAIN.items())
    place.write("show.py", f"import json, os, sys; print(json.dumps([[os.environ[n] for n in {list(PLAIN)!r}], sys.argv[1:]]))")
    words = ", ".join(PLAIN.values())
    text = (
        HEAD
        + f"states:\n  a:\n    run: [{sys.executable}, show.py, {words}]\n    output: json\n    next: succeeded\n    env:\n{env}"
    )
    place.write("plan.yaml", text)
    done = place.durun("start", "plan.yaml")
    assert place.durun("output", done.id, "a").json == [list(PLAIN.values())] * 2


@pytest.mark.parametrize(("word", "value"), [(w, w) for w in ("no", "on", "017", "12:30", "2026-11-30", "1_000", "0x1F", ".inf")]
                         + [("1.5", 1.5), ("-3", -3), ("true", True), ("null", None), ("1e3", 1000.0), ("123456789012345678901", 123456789012345678901)])  # fmt: skip
def test_f95_only_what_json_calls_so_is_a_number_a_boolean_or_null(place, word, value):
    done = place.durun("start", place.plan("a: {pass: {}, next: succeeded}", head=f"vars: {{x: {word}}}"))
    got = json.loads(place.durun("show", done.id, "--json").out)["vars"]["x"]
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ("a:\n    run: ['true']\n    timeout: 1:30\n    next: succeeded", 7),
        ("a:\n    run: ['true']\n    env: {N: null}\n    next: succeeded", 7),
        ("a:\n    run: ['true', null]\n    next: succeeded", 6),
        ("on: {pass: {}, next: a}\n  a: {pass: {}, next: 1}", 6),
        ("a:\n    run: ['true']\n    timeout: 90\n    next: succeeded", 7),
    ],
)
def test_f95_a_word_that_could_be_read_in_two_ways_is_refused_at_its_place(place, bad, line):
    assert line in [at for at, _ in faults(place, HEAD + "states:\n  " + bad + "\n")]


def test_f95_an_own_name_that_other_readers_call_true_stays_a_name(place):
    done = place.durun("start", place.plan("on: {pass: {}, next: no}\nno: {run: ['true'], next: succeeded}", start="on"))
    assert [e["path"] for e in place.history(done.id, "entered")] == ["on", "no"]


@pytest.mark.parametrize(
    ("states", "line", "word"),
    [
        ("a: {run: ['true'], next: bee}\n  b: {pass: {}, next: succeeded}", 5, "bee"),
        ("a: {comand: ['true'], run: ['true'], next: succeeded}", 5, "comand"),
        ("a: {run: ['true'], retrys: {}, next: succeeded}", 5, "did you mean `retry`"),
        ("a: {run: ['true'], next: b}\n  b: {run: [echo, '${{ states.q.output }}'], next: succeeded}", 6, "q"),
        ("a: {run: [echo, '${{ input.nobody }}'], next: succeeded}", 5, "nobody"),
        ("a: {run: [echo, '${{ vars.nobody }}'], next: succeeded}", 5, "nobody"),
        ("a: {run: [echo, '${{ vars.x + }}'], next: succeeded}", 5, ""),
        ("a: {run: ['true'], next: succeeded}\n  b: {run: ['true'], next: succeeded}", 6, "b"),
        ("a: {run: ['true']}", 5, "next"),
        ("a: {run: ['true'], wait: 1s, next: succeeded}", 5, ""),
        ("a: {run: ['true'], assign: {nobody: 1}, next: succeeded}", 5, "nobody"),
        ("a: {run: ['true'], catch: [{on: nonsence:1, next: succeeded}], next: succeeded}", 5, "nonsence"),
    ],
)
def test_f97_what_never_existed_is_found_before_anything_begins(place, states, line, word):
    found = faults(place, HEAD + "states:\n  " + states + "\n")
    assert any(at == line and word in message for at, message in found), found


def test_f97_all_faults_are_told_at_once_each_drawn_at_its_place(place):
    text = HEAD + "stats: 1\nstates:\n  a: {run: ['true'], nxt: b}\n  b: {run: [echo, '${{ vars.q }}'], timeout: soon, next: c}\n"
    place.write("bad.yaml", text)
    said = place.durun("check", "bad.yaml", exit=7).err
    assert all(f"bad.yaml:{line}:" in said for line in (4, 6, 7))
    assert "^" in said
    assert len(faults(place, text)) >= 4


def test_f97_an_input_that_is_not_named_or_missing_or_of_another_type_is_refused(place):
    plan = place.plan("a: {pass: {}, next: succeeded}", head="input: {n: integer}")
    for words in ([], ["-i", "m=1"], ["-i", "n=x"], ["-i", "n=1.5"], ["-i", "n=1", "-i", "q=2"]):
        place.durun("start", plan, *words, exit=7)
    assert not place.db.exists()


def test_f97_a_choice_that_nothing_fits_is_an_error_with_its_name(place):
    done = place.durun("start", place.plan("a: {run: ['true'], next: b}\nb: {choice: [{when: input.x > 1, next: succeeded}]}", head="input: {x: {type: integer, default: 0}}"), exit=1)  # fmt: skip
    assert place.show(done.id)["error"]["name"] == "no_choice"


def test_f97_the_output_of_a_state_that_cannot_have_been_visited_is_found_before_anything_begins(place):
    text = (
        HEAD
        + "states:\n  a: {run: [echo, '${{ states.b.output }}'], next: b}\n  b: {run: ['true'], output: text, next: succeeded}\n"
    )
    assert any(line == 5 for line, _ in faults(place, text))

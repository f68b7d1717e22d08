"""What a call of `durun once` comes to, and the paths and keys of onces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durun.errors import PlanRefused, Usage
from durun.machine import scope
from durun.machine.once import ASK, BEGIN, DOUBT, TELL, WAIT, Call, Said, Seen, judge, key_of, named, undo_key_of
from durun.store.read import place_of

CALL = Call("mail", ["send"], 2)
PROBED, REPEATED = CALL._replace(probe="sent"), CALL._replace(idempotent=True)
SEEN = Seen(-1, "begin", 1, ["send"], "f")
STEP = "306c84cd-c357-517e-a80b-3b1358417ccc"
NAMES = st.from_regex(scope.LABEL, fullmatch=True).filter(lambda n: not any("\ud800" <= c <= "\udfff" for c in n))
PATHS = ["a", "fan.left.a", "each[x/y.z~].a", "call/a", "each[k/once:v].call/fan.right.a"]


@pytest.mark.parametrize(
    ("status", "attempt", "alive", "call", "said", "verdict"),
    [
        ("done", 1, False, CALL, None, TELL),
        ("done", 1, False, PROBED, None, TELL),
        ("not_done", 2, False, CALL, None, TELL),
        ("not_done", 1, False, CALL, None, BEGIN),
        ("not_done", 1, False, PROBED, None, BEGIN),
        ("not_certain", 2, False, REPEATED, None, TELL),
        ("not_certain", 1, False, CALL, None, DOUBT),
        ("not_certain", 1, False, PROBED, None, ASK),
        ("not_certain", 1, False, REPEATED, None, BEGIN),
        ("begin", 1, True, REPEATED, None, WAIT),
        ("begin", 2, True, PROBED, None, WAIT),
        ("begin", 2, False, CALL, None, DOUBT),
        ("begin", 2, False, PROBED, None, ASK),
        ("begin", 2, False, PROBED, "no", BEGIN),
        ("begin", 2, False, PROBED, "unknown", DOUBT),
        ("begin", 2, False, PROBED._replace(idempotent=True), "unknown", BEGIN),
        ("in_doubt", 1, False, CALL, None, DOUBT),
        ("in_doubt", 2, False, REPEATED, None, BEGIN),
        ("in_doubt", 1, False, PROBED, "no", BEGIN),
    ],
)
def test_a_call_comes_to_what_is_known_of_it(
    status: str, attempt: int, alive: bool, call: Call, said: str | None, verdict: str
) -> None:
    seen = SEEN._replace(status=status, attempt=attempt, alive=alive)
    assert judge(seen, call, None if said is None else Said("f", said)) == verdict


def test_what_was_never_called_is_begun_and_what_a_probe_said_of_another_begin_counts_for_nothing() -> None:
    assert judge(None, CALL) == BEGIN
    assert judge(SEEN, PROBED, Said("another", "no")) == ASK


@pytest.mark.parametrize("status", ["begin", "done", "not_done", "not_certain", "in_doubt"])
def test_another_command_is_refused_however_the_first_stands(status: str) -> None:
    with pytest.raises(PlanRefused, match="was another command before: 'send'"):
        judge(SEEN._replace(status=status), CALL._replace(argv=["send", ""]))


@given(NAMES, st.sampled_from(PATHS))
def test_the_path_of_a_once_is_read_in_one_way(name: str, path: str) -> None:
    assert named(name) == name
    full = f"{path}/once:{name}"
    assert (scope.once_of(full), scope.without_once(full), scope.once_of(path)) == (name, path, None)
    part = scope.parts(scope.undo(full))[-1]
    assert (part.kind, part.path, part.inner) == ("once", full, scope.undo(full))
    assert scope.parts(scope.undo(full))[:-1] == scope.parts(part.scope)
    assert scope.path_of(*place_of(path)) == path


@given(NAMES, NAMES)
def test_names_that_differ_have_keys_that_differ_also_from_those_of_the_step_and_of_undos(one: str, other: str) -> None:
    for step in (STEP, "inv-7"):
        keys = [step, undo_key_of(step), key_of(step, one), undo_key_of(key_of(step, one))]
        assert len(set(keys)) == 4
        assert (key_of(step, one) == key_of(step, other)) == (one == other)


@pytest.mark.parametrize("name", ["", "a[", "]", "\n", "\x7f", "x" * 129, "\udcff"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Usage):
        named(name)

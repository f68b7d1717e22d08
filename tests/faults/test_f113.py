import pytest


@pytest.mark.parametrize(
    "states",
    ["a: {pass: {}, next: failed}", "a: {fail: {error: sad, message: no}}", "a: {choice: [{when: 'false', next: succeeded}]}"],
)
def test_f113_a_run_whose_first_move_ends_it_as_failed_exits_with_1(place, states):
    place.durun("start", place.plan(states), "--id", "r", exit=1)
    assert place.show("r")["status"] == "failed"

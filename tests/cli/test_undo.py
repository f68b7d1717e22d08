"""Compensation with the real program: what is undone, what is owed, what failed, and what a person says of it."""

from __future__ import annotations

import json
import signal
import sqlite3
from typing import Any

import pytest
from program import Program, until

TRIP = """
HEAD
start: flight
states:
  flight:
    run: 'echo book flight >> "$LEDGER"'
    compensate: {run: 'echo drop flight >> "$LEDGER"'}
    next: hotel
  hotel:
    run: 'echo book hotel >> "$LEDGER"'
    compensate: {run: 'test ! -e "$LEDGER.full"; echo drop hotel >> "$LEDGER"'}
    next: pay
  pay: {run: 'exit 3', next: succeeded}
"""
RESTS = TRIP.replace("  pay: {run: 'exit 3', next: succeeded}", "  pay: {wait: 1h, next: succeeded}")
BOOKED = ["book flight", "book hotel"]
UNDONE = [*BOOKED, "drop hotel", "drop flight"]


def trip(durun: Program, plan: str = TRIP, **head: str) -> None:
    durun.plan(plan.replace("HEAD", "\n".join(f"{k}: {v}" for k, v in head.items())))


def logged(doc: dict[str, Any]) -> list[tuple[str, str]]:
    return [(u["path"], u["status"]) for u in doc["undo"]]


def full(durun: Program, yes: bool = True) -> None:
    """While it is there the hotel cannot be dropped."""
    mark = durun.folder / "ledger.full"
    mark.touch() if yes else mark.unlink()


def test_a_run_that_failed_names_what_may_be_undone_and_compensate_undoes_it_the_youngest_first(durun: Program) -> None:
    trip(durun)
    run = durun.start(1)
    doc = durun.show(run)
    assert logged(doc) == [("hotel", "owed"), ("flight", "owed")] and doc["undoing"] is None
    shown = durun("show", run).stdout
    assert "2 to be undone" in shown and f"durun compensate {run}" in shown
    doc = json.loads(durun("compensate", run, "--json", exit=4).stdout)
    assert logged(doc) == [("hotel", "undone"), ("flight", "undone")] and doc["status"] == "compensated"
    kinds = {e["no"]: (e["kind"], e["path"]) for e in doc["effects"]}
    assert [kinds[u["by"]] for u in doc["undo"]] == [("undo", "hotel~undo"), ("undo", "flight~undo")]
    assert [kinds[u["effect"]] for u in doc["undo"]] == [("run", "hotel"), ("run", "flight")]
    assert durun.lines() == UNDONE
    assert "2 undone" in durun("show", run).stdout and "can do" not in durun("show", run).stdout
    assert "compensated already" in durun("compensate", run, exit=4).stderr
    assert durun.lines() == UNDONE


def test_nothing_to_undo_is_an_empty_log_and_no_command(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'exit 3', next: succeeded}}\n")
    run = durun.start(1)
    assert durun.show(run)["undo"] == []
    assert "  undo " not in durun("show", run).stdout and "compensate" not in durun("show", run).stdout


def test_what_did_not_happen_needs_no_undo(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'exit 3', compensate: {run: 'echo drop >> \"$LEDGER\"'}, next: succeeded}}\n")
    run = durun.start(1)
    assert logged(durun.show(run)) == [("a", "not_needed")]
    assert "1 nothing to undo" in durun("show", run).stdout and "durun compensate" not in durun("show", run).stdout
    durun("compensate", run, exit=4)
    assert durun.lines() == []


def test_an_undo_that_fails_stays_owed_while_the_others_go_on_and_a_person_is_told_both_ways_out(durun: Program) -> None:
    trip(durun, on_error="compensate")
    full(durun)
    said = durun("start", "plan.yaml", exit=9).stderr
    run = durun.the_run()
    doc = durun.show(run)
    assert (doc["status"], doc["reason"]) == ("blocked", "undo_failed")
    assert logged(doc) == [("hotel", "failed"), ("flight", "undone")] and doc["undo"][0]["error"]["name"] == "exit:1"
    [wanted] = doc["waiting_for"]
    assert wanted["kind"] == "undo_failed" and wanted["path"] == "hotel"
    for text in (said, durun("show", run).stdout, durun("inbox").stdout, durun("resume", run, exit=9).stderr):
        assert f"durun compensate {run}" in text and f"durun resolve {run} hotel --undone" in text
    assert "cancel" not in durun("show", run).stdout.partition("can do")[2], "what it undoes is not cut short"
    assert json.loads(durun("inbox", "--json").stdout)["inbox"][0]["command"] == wanted["command"]
    assert durun.lines() == [*BOOKED, "drop flight"]

    full(durun, False)
    durun("compensate", run, exit=4)
    assert durun.lines() == [*BOOKED, "drop flight", "drop hotel"]
    assert logged(durun.show(run)) == [("hotel", "undone"), ("flight", "undone")]
    assert durun("inbox").stdout == ""
    tries = [
        (e["path"], e["attempt"], e["key"]) for e in durun.show(run)["effects"] if e["kind"] == "undo" and "hotel" in e["path"]
    ]
    assert [attempt for _, attempt, _ in tries] == [1, 2] and len({key for *_, key in tries}) == 1, "a repeat can be told"


@pytest.mark.parametrize("state", [[], ["hotel"], ["hotel~undo"]])
def test_a_person_says_that_it_is_undone_and_where_nothing_is_left_the_run_is_compensated(durun: Program, state: list[str]) -> None:
    trip(durun, on_error="compensate")
    full(durun)
    run = durun.start(9)
    said = durun("resolve", run, *state, "--undone", "--note", "by telephone").stderr
    assert "undone is recorded of hotel (visit 1); it is compensated" in said
    doc = durun.show(run)
    assert doc["status"] == "compensated" and logged(doc) == [("hotel", "undone"), ("flight", "undone")]
    assert durun.lines() == [*BOOKED, "drop flight"]
    [resolved] = [e for e in json.loads(durun("history", run, "--json").stdout)["events"] if e["kind"] == "resolved"]
    assert (resolved["how"], resolved["note"]) == ("undone", "by telephone")
    assert resolved["effects"] == [u["effect"] for u in doc["undo"] if u["path"] == "hotel"]


def test_of_several_that_could_not_be_undone_one_is_named(durun: Program) -> None:
    trip(durun, TRIP.replace("'echo drop flight", '\'test ! -e "$LEDGER.full"; echo drop flight'), on_error="compensate")
    full(durun)
    run = durun.start(9)
    assert "name one of hotel, flight" in durun("resolve", run, "--undone", exit=10).stderr
    assert "flight could not be undone" in durun("resolve", run, "hotel", "--undone").stderr, "it says what is left"
    assert durun.show(run)["status"] in ("blocked", "interrupted")
    durun("resolve", run, "nowhere", "--undone", exit=10)
    durun("resolve", run, "flight", "--undone")
    assert durun.show(run)["status"] == "compensated" and durun.lines() == BOOKED


def test_where_it_ends_a_run_what_is_left_to_be_delivered_is_said_with_it(durun: Program) -> None:
    durun.plan(
        "notify: [{on: [compensated], run: 'true'}]\non_error: compensate\nstart: a\nstates:\n"
        "  a: {run: 'true', compensate: {run: 'exit 3'}, next: b}\n  b: {run: 'exit 3', next: succeeded}\n"
    )
    run = durun.start(9)
    said = durun("resolve", run, "a", "--undone").stderr
    assert f"it is compensated\nmessages left to be delivered: 1: `durun outbox deliver {run}`\n" in said


def test_undone_is_said_of_nothing_that_does_not_compensate(durun: Program) -> None:
    trip(durun)
    run = durun.start(1)
    assert "does not compensate" in durun("resolve", run, "--undone", exit=10).stderr
    durun("resolve", run, "--undone", "--fail", exit=2)
    assert "does not compensate" in durun("resolve", run, "hotel", "--undone", exit=10).stderr
    durun("resolve", run, "--undone", "--output", "1", exit=2)
    assert logged(durun.show(run)) == [("hotel", "owed"), ("flight", "owed")]


def test_an_undo_that_cannot_be_worked_out_says_why(durun: Program) -> None:
    durun.plan(
        "on_error: compensate\ninput: {v: {default: null}}\nstart: a\nstates:\n"
        "  a: {run: 'true', compensate: {run: [drop, '${{ input.v.id }}']}, next: b}\n  b: {run: 'exit 3', next: succeeded}\n"
    )
    run = durun.start(9)
    [undo] = durun.show(run)["undo"]
    assert (undo["status"], undo["error"]["name"]) == ("failed", "expression") and "input.v.id" in undo["error"]["message"]
    assert "could not be undone" in durun("show", run).stdout
    durun("resolve", run, "a", "--undone")
    assert durun.show(run)["status"] == "compensated"


@pytest.mark.parametrize("how", ["waiting", "paused", "failed", "driven"])
def test_cancel_with_compensate_undoes_what_was_done(durun: Program, how: str) -> None:
    trip(durun, TRIP if how == "failed" else RESTS)
    if how == "failed":
        run = durun.start(1)
        said = durun("cancel", run, "--compensate", exit=10).stderr
        assert "already failed" in said and f"durun compensate {run}" in said and durun.lines() == BOOKED
        return
    driven = durun.begin("start", "plan.yaml", "--wait") if how == "driven" else None
    run = until(lambda: durun("ls", "-q").stdout.strip()) if driven else durun.start(3, "--no-wait")
    until(lambda: durun.show(run)["state"] == "pay")
    if how == "paused":
        durun("pause", run)
    durun("cancel", run, "--compensate", exit=4)
    assert durun.show(run)["status"] == "compensated" and durun.lines() == UNDONE
    if driven:
        assert driven.wait(30) == 4


@pytest.mark.parametrize("driven", [False, True])
def test_a_plan_may_say_that_a_cancel_compensates(durun: Program, driven: bool) -> None:
    trip(durun, RESTS, on_cancel="compensate")
    drives = durun.begin("start", "plan.yaml", "--wait") if driven else None
    run = until(lambda: durun("ls", "-q").stdout.strip()) if driven else durun.start(3, "--no-wait")
    until(lambda: durun.show(run)["state"] == "pay")
    durun("cancel", run, exit=4)
    assert durun.show(run)["status"] == "compensated" and durun.lines() == UNDONE
    if drives:
        assert drives.wait(30) == 4


def test_a_cancelled_run_is_compensated_later_and_a_succeeded_one_too(durun: Program) -> None:
    trip(durun, RESTS)
    run = durun.start(3, "--no-wait")
    durun("cancel", run, exit=4)
    assert durun.show(run)["status"] == "cancelled" and f"durun compensate {run}" in durun("show", run).stdout
    durun("compensate", run, exit=4)
    assert durun.lines() == UNDONE
    trip(durun, TRIP.replace("exit 3", "exit 0"))
    run = durun.start()
    assert f"durun compensate {run}" in durun("show", run).stdout
    durun("compensate", run, exit=4)
    assert durun.lines() == UNDONE * 2


@pytest.mark.parametrize("driven", [False, True])
def test_behind_the_point_of_no_return_only_force_undoes(durun: Program, driven: bool) -> None:
    trip(durun, RESTS.replace("    next: pay", "    pivot: true\n    next: pay"))
    drives = durun.begin("start", "plan.yaml", "--wait") if driven else None
    run = until(lambda: durun("ls", "-q").stdout.strip()) if driven else durun.start(3, "--no-wait")
    until(lambda: durun.show(run)["state"] == "pay")
    for words in (("compensate", run), ("cancel", run, "--compensate")):
        said = durun(*words, exit=10).stderr
        assert "point of no return, hotel" in said and f"durun compensate {run} --force" in said
    assert durun.lines() == BOOKED and durun.show(run)["status"] == "waiting"
    durun("compensate", run, "--force", exit=4)
    assert durun.lines() == UNDONE
    if drives:
        assert drives.wait(30) == 4


def test_what_could_not_be_undone_behind_the_point_of_no_return_is_undone_by_the_command_that_is_named(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: ':', pivot: true, compensate: {run: 'test -e mended && echo undo a >> $LEDGER'}, next: succeeded}\n"
    )
    id = durun.start(0)
    durun("compensate", id, exit=10)
    durun("compensate", id, "--force", exit=9)
    assert f"durun compensate {id} | durun resolve {id} a --undone" in durun("inbox").stdout
    (durun.folder / "mended").write_text("")
    durun("compensate", id, exit=4)
    assert durun.lines() == ["undo a"]


def test_a_living_driver_hears_that_something_is_undone(durun: Program) -> None:
    trip(durun, on_error="compensate")
    full(durun)
    driven = durun.begin("start", "plan.yaml", "--wait")
    until(lambda: (durun.folder / "runs.db").exists() and "undo_failed" in durun("ls").stdout)
    run = durun.the_run()
    assert "its driver goes on" in durun("resolve", run, "hotel", "--undone").stderr or durun.show(run)["status"] == "compensated"
    assert driven.wait(30) == 4 and durun.lines() == [*BOOKED, "drop flight"]


ASKS = """
start: a
states:
  a:
    run: 'echo a >> "$LEDGER"; if [ ! -e "$LEDGER.go" ]; then sleep 60; fi'
    compensate: {run: 'echo drop a >> "$LEDGER"'}
    next: succeeded
"""


@pytest.mark.parametrize(("how", "log", "lines"), [("--happened", "undone", ["a", "drop a"]), ("--fail", "not_needed", ["a"])])
def test_a_doubt_is_asked_of_a_person_before_it_is_undone(durun: Program, how: str, log: str, lines: list[str]) -> None:
    durun.plan(ASKS)
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    durun.kill_all()
    begun.communicate()
    run = durun.the_run()
    durun("compensate", run, exit=9)
    doc = durun.show(run)
    assert logged(doc) == [("a", "registered")] and doc["undoing"]["failed"] is False
    [wanted] = doc["waiting_for"]
    assert wanted["message"] == "whether a happened is not known"
    assert wanted["command"] == f"durun resolve {run} 'a~undo' --happened | --fail | --undone"
    assert "nothing is begun again" in durun("resolve", run, "--retry", exit=10).stderr
    durun("resolve", run, "other", how, exit=10)
    durun("resolve", run, "a~undo", how)
    if durun.show(run)["status"] != "compensated":
        durun("resume", run, exit=4)
    assert durun.lines() == lines and logged(durun.show(run)) == [("a", log)]


def test_an_undo_cut_by_ctrl_c_is_in_doubt_and_the_question_is_of_the_undo(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a:\n    run: 'echo a >> \"$LEDGER\"'\n"
        "    compensate: {run: 'echo drop >> \"$LEDGER\"; sleep 60'}\n    next: succeeded\n"
    )
    run = durun.start()
    begun = durun.begin("compensate", run)
    until(lambda: len(durun.lines()) == 2)
    durun.kill_all()
    begun.communicate()
    assert durun.show(run)["status"] == "interrupted"
    assert durun("show", run).stdout.partition("can do")[2].split() == ["durun", "resume", run]
    durun("resume", run, exit=9)
    [wanted] = durun.show(run)["waiting_for"]
    assert wanted["message"] == "whether a was undone is not known" and "--retry" in wanted["command"]
    durun("resolve", run, "a~undo", "--happened")
    doc = durun.show(run)
    assert doc["status"] == "compensated" and durun.lines() == ["a", "drop"]
    assert [(e["path"], e["status"]) for e in doc["effects"]] == [("a", "done"), ("a~undo", "done")]


def test_what_was_done_inside_is_undone_too_and_named_by_its_path(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text(
        "durun: 1\nname: child\npins: {env: [LEDGER]}\nstart: s\nstates:\n"
        "  s: {run: 'echo do s >> \"$LEDGER\"', compensate: {run: 'echo drop s >> \"$LEDGER\"'}, next: succeeded}\n"
    )
    durun.plan(
        "on_error: compensate\nstart: each\nstates:\n"
        "  each:\n    map:\n      items: '[\"x.y/z\"]'\n      label: '${{ item }}'\n      start: do\n      states:\n"
        "        do: {run: 'echo do it >> \"$LEDGER\"', compensate: {run: 'echo drop it >> \"$LEDGER\"'}, next: succeeded}\n"
        "    next: call\n  call: {plan: {file: child.yaml}, next: bad}\n  bad: {run: 'exit 3', next: succeeded}\n"
    )
    run = durun.start(4)
    doc = durun.show(run)
    assert logged(doc) == [("call/s", "undone"), ("each[x.y/z].do", "undone")]
    assert [e["path"] for e in doc["effects"] if e["kind"] == "undo"] == ["call/s~undo", "each[x.y/z].do~undo"]
    assert durun.lines() == ["do it", "do s", "drop s", "drop it"]


def test_the_order_of_the_log_is_that_of_beginning_and_not_of_numbers(durun: Program) -> None:
    trip(durun)
    run = durun.start(1)
    db = sqlite3.connect(durun.db)
    db.execute("UPDATE effects SET first_at = first_at + 60000 WHERE state = 'flight'")
    db.commit()
    db.close()
    assert logged(durun.show(run)) == [("flight", "owed"), ("hotel", "owed")]
    durun("compensate", run, exit=4)
    assert durun.lines() == [*BOOKED, "drop flight", "drop hotel"]


def test_ctrl_c_while_another_driver_undoes_leaves_it_undoing(durun: Program) -> None:
    trip(durun, RESTS.replace("echo drop hotel", 'until [ -e "$LEDGER.go" ]; do sleep 0.05; done; echo drop hotel'))
    driven = durun.begin("start", "plan.yaml", "--wait")
    run = until(lambda: durun("ls", "-q").stdout.strip())
    until(lambda: durun.show(run)["state"] == "pay")
    asks = durun.begin("compensate", run)
    until(lambda: durun.show(run)["status"] == "compensating")
    asks.send_signal(signal.SIGINT)
    assert asks.wait(30) == 130
    (durun.folder / "ledger.go").touch()
    assert driven.wait(30) == 4 and durun.lines() == UNDONE


GIVES = """
start: a
states:
  a:
    run: 'echo a >> "$LEDGER"; if [ ! -e "$LEDGER.go" ]; then sleep 60; fi; echo seat-7'
    output: {format: text, schema: {type: string, pattern: seat}}
    compensate: {run: 'echo "drop $SEAT" >> "$LEDGER"', env: {SEAT: '${{ output }}'}}
    next: succeeded
"""


def test_who_says_while_it_is_undone_that_it_happened_says_what_it_gave(durun: Program) -> None:
    durun.plan(GIVES)
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    durun.kill_all()
    begun.communicate()
    run = durun.the_run()
    durun("compensate", run, exit=9)
    assert "state a gives an output; say what it was with --output JSON" in durun("resolve", run, "--happened", exit=7).stderr
    assert "does not fit the schema" in durun("resolve", run, "--happened", "--output", '"row-1"', exit=7).stderr
    assert logged(durun.show(run)) == [("a", "registered")], "nothing was changed"
    durun("resolve", run, "--happened", "--output", '"seat-7"')
    durun("resume", run, exit=4)
    assert durun.lines() == ["a", "drop seat-7"]


def test_compensate_goes_on_with_what_was_interrupted_while_it_compensated(durun: Program) -> None:
    trip(durun, TRIP.replace("echo drop hotel", 'echo drop hotel >> "$LEDGER"; sleep 1; true'))
    run = durun.start(1)
    begun = durun.begin("compensate", run)
    until(lambda: len(durun.lines()) == 3)
    begun.kill()
    begun.communicate()
    assert durun.show(run)["status"] == "interrupted"
    said = durun("compensate", run, exit=4).stderr
    assert f"run {run} is compensated" in said and durun.lines() == UNDONE


def test_an_undo_whose_secret_is_gone_for_good_has_a_way_out(durun: Program) -> None:
    durun.plan(
        "secrets: [TOKEN]\nstart: a\nstates:\n  a:\n    run: 'echo a >> \"$LEDGER\"'\n"
        "    compensate: {run: 'echo drop', env: {T: '${{ secrets.TOKEN }}'}}\n    next: succeeded\n"
    )
    run = durun("start", "plan.yaml", env={"TOKEN": "a-secret"}).stdout.strip()
    said = durun("compensate", run, exit=9).stderr
    [wanted] = durun.show(run)["waiting_for"]
    assert wanted["kind"] == "secret_missing"
    assert wanted["command"] == f"durun resume {run} | durun resolve {run} 'a~undo' --undone" and wanted["command"] in said
    assert "nothing of it is in doubt" in durun("resolve", run, "--happened", exit=10).stderr
    durun("resolve", run, "a~undo", "--undone")
    doc = durun.show(run)
    assert doc["status"] == "compensated" and logged(doc) == [("a", "undone")]
    assert [e["status"] for e in doc["effects"]] == ["done", "withdrawn"], "it never began"


def test_of_an_undo_that_was_killed_it_is_said_that_it_may_have_happened(durun: Program) -> None:
    durun.plan("start: a\nstates:\n  a: {run: 'true', compensate: {run: 'kill -9 $$'}, next: b}\n"
               "  b: {run: 'true', compensate: {run: 'exit 1'}, next: succeeded}\n")  # fmt: skip
    durun("start", "plan.yaml", "--id", "r")
    said = {line.split(": durun")[0] for line in durun("compensate", "r", exit=9).stderr.splitlines() if "durun resolve" in line}
    sure, unsure = sorted(said, key=len)
    assert "b could not be undone: exit:1" in sure and "may be undone" not in sure
    assert "a could not be undone: killed:KILL" in unsure and "may be undone all the same" in unsure

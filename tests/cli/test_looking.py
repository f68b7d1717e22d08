"""What the commands that look say of runs: in which order, as of now, and as data."""

from __future__ import annotations

import json
import re
from typing import Any

from program import Program, until

from durun.render.text import stands

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def waits(durun: Program, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = durun.show(id)["waiting_for"]
    return found


def test_items_that_wait_are_named_in_their_order(durun: Program) -> None:
    durun.plan("""
start: each
states:
  each:
    map: {items: '[9, 1, 2, 3, 4, 5, 6, 7, 8, 0, 10]', concurrency: 20, start: ask, states: {ask: {approval: {message: hm}, next: succeeded}}}
    next: succeeded
""")
    id = durun.start(3)
    paths = [f"each[{n}].ask" for n in range(11)]
    assert [w["path"] for w in waits(durun, id)] == paths
    assert [w["path"] for w in json.loads(durun("inbox", "--json").stdout)["inbox"]] == paths


def test_what_failed_within_the_tolerance_can_be_taken_up_and_show_says_how(durun: Program) -> None:
    durun.plan("""
start: each
states:
  each:
    map: {items: '["x", "y"]', failures: all, run: 'test -e ok'}
    next: succeeded
""")
    id = durun.start()
    (command,) = [line.split("can do")[1].split() for line in durun("show", id).stdout.splitlines() if "can do" in line]
    assert command == ["durun", "resume", id, "--failed-items"]
    (durun.folder / "ok").touch()
    durun(*command[1:])
    assert "can do" not in durun("show", id).stdout


def test_times_in_a_history_are_times(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    id = durun.start(3, "--no-wait")
    (row,) = [e for e in json.loads(durun("history", id, "--json").stdout)["events"] if e["kind"] == "waiting"]
    assert row["due"] == waits(durun, id)[0]["until"] and MOMENT.fullmatch(row["due"])
    assert f"due={row['due']}" in durun("history", id).stdout
    assert row["due"] in durun("report", id).stdout
    assert durun("history", id, "--follow", "--json", exit=2).stdout


def test_a_run_that_succeeded_gives_null_where_its_plan_gives_nothing(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    id = durun.start()
    assert durun("output", id).stdout == "null\n"
    assert json.loads(durun("output", id, "--json").stdout) == {"run": id, "state": None, "output": None}
    assert "logs" not in durun("show", id).stdout


def test_what_is_held_is_told_as_a_document_too(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    durun.start()
    durun("pause", "--all")
    for command in (("work", "--once"), ("outbox", "deliver")):
        said = json.loads(durun(*command, "--json", exit=9).stdout)
        assert said["error"]["code"] == "needs_person" and "durun resume --all" in said["error"]["message"]


def test_what_a_message_wrote_is_in_the_logs_attempt_by_attempt_until_it_is_pruned(durun: Program) -> None:
    durun.plan("""
start: a
states:
  a:
    run: 'echo to $DURUN_ATTEMPT; echo no >&2; test $DURUN_ATTEMPT = 2'
    background: true
    idempotent: true
    retry: {initial_interval: 10ms}
    next: b
  b: {run: 'echo b', next: succeeded}
""")
    id = durun.start()
    until(lambda: not durun.show(id)["messages"] or durun("outbox", "deliver", exit=None) is None)
    assert durun("logs", id, "a").stdout == "to 1\nno\nto 2\nno\n"
    assert durun("logs", id).stdout == "b\nto 1\nno\nto 2\nno\n"
    logs = json.loads(durun("logs", id, "a", "--json").stdout)["logs"]
    assert logs == [
        {"path": "a", "visit": 1, "attempt": n, "stdout": f"to {n}\n", "stderr": "no\n", "under_way": False} for n in (1, 2)
    ]
    assert json.loads(durun("db", "prune", id, "--json").stdout)["logs"] == {"files": 5, "bytes": 18}


def test_who_looks_at_what_nobody_drives_is_told_the_command_that_goes_on(durun: Program) -> None:
    durun.plan("start: a\nstates:\n  a: {approval: {message: hm}, next: b}\n  b: {wait: 1h, next: succeeded}\n")
    id = durun.start(3)
    twice = json.loads(durun("resume", id, id[:5], "--json", exit=3).stdout)["runs"]
    assert [run["id"] for run in twice] == [id]  # of two beginnings of one id one run is meant
    said = durun("watch", id, exit=3).stderr  # at once: only a person moves it
    assert "nobody" not in said and f"durun approve {id} a" in said
    durun("approve", id)
    assert f"nobody drives it: durun resume {id}" in durun("wait", id, "--timeout", "10ms", exit=124).stderr
    assert "there is no file nope, and there is no run 'nope'" in durun("graph", "nope", exit=5).stderr


def test_what_is_refused_of_a_pruned_id_or_of_a_backup_says_the_way_on_and_makes_nothing(durun: Program) -> None:
    durun.plan("input: {n: integer}\nstart: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    durun.start(0, "--id", "r", "-i", "n=1")
    durun("db", "prune", "r")
    said = durun("start", "plan.yaml", "--id", "r", "-i", "n=2", exit=7).stderr
    assert "was pruned" in said and "`durun db prune r --forget-id`" in said
    said = durun("db", "restore", "plan.yaml", "--db", "new.db", exit=8).stderr
    assert "nothing was changed" in said and not (durun.folder / "new.db").exists()


def test_help_speaks_of_its_command_and_what_is_given_is_what_is_meant(durun: Program) -> None:
    assert "Leave when nothing is left" in durun("work", "--help").stdout
    durun.plan("input: {n: integer}\nstart: a\nstates: {a: {run: 'true', next: succeeded}}\n")
    assert "is no name of a plan" in durun("drain", "plan.yaml", exit=2).stderr
    for words in (("start", "plan.yaml", "--input", "-", "-i", "n=@-"), ("simulate", "-", "-i", "n=@-")):
        assert "stdin can be read once" in durun(*words, exit=2, input="{}").stderr
    for command in ("start", "simulate"):
        assert "-i n is given twice" in durun(command, "plan.yaml", "-i", "n=1", "-i", "n=2", exit=2).stderr


def test_however_many_runs_are_asked_for_those_there_are_are_listed(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {pass: {}, next: succeeded}}\n")
    id = durun.start()
    assert durun("ls", "-q", "--limit", 10**30).stdout.split() == [id]
    assert durun("ls", "--limit", -1, exit=2).stderr == "--limit: at least 0\n"


def test_a_run_that_ends_as_it_is_born_has_one_time_for_that(durun: Program) -> None:
    durun.plan("vars: {n: 1}\nstart: a\nstates:\n  a: {pass: {}, assign: {n: '${{ vars.n + 1 }}'}, next: succeeded}\n")
    id = durun.start()
    shown, last = durun.show(id), json.loads(durun("history", id, "--json").stdout)["events"][-1]
    assert shown["ended_at"] == shown["updated_at"] == last["at"]
    assert json.loads(durun("ls", "--json").stdout)["runs"][0]["updated_at"] == last["at"]


def test_a_plan_that_came_through_a_pipe_is_never_said_to_be_gone(durun: Program) -> None:
    plan = durun.plan("start: a\nstates: {a: {wait: {signal: go}, next: succeeded}}\n").read_text()
    id = durun("start", "/dev/stdin", "-q", input=plan, exit=3).stdout.strip()
    assert "since it started" not in durun("resume", id, exit=3).stderr and "/dev" not in durun("show", id).stdout


def test_a_state_that_a_plan_has_not_is_named_as_that_also_where_its_output_is_asked_for(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: [echo], next: b}, b: {wait: {signal: go}, next: succeeded}}\n")
    id = durun.start(3)
    for word in ("output", "logs"):
        assert durun(word, id, "aa", exit=10).stderr == f"run {id} has no state 'aa'; it has a, b\n"
    assert durun("output", id, "b", exit=10).stderr == f"state b of run {id} has no output; the run is waiting\n"


def test_before_there_is_a_database_nothing_is_left_to_be_delivered_and_work_can_begin(durun: Program) -> None:
    assert json.loads(durun("outbox", "ls", "--json").stdout)["messages"] == [] and not durun.db.exists()
    assert "can be done now" in durun("work", "--once").stderr
    assert durun("ls", "-q").stdout == "" and not durun.db.exists()


def test_who_waits_for_a_place_is_named_also_where_the_holder_stands_at_a_path_like_it() -> None:
    held = "a place of the limit pay, held by run L (p.y.s)"
    w = {"path": "p.y.s", "kind": "limit", "name": "pay", "message": held, "until": None, "command": "durun resume M"}
    said = stands({"id": "M", "status": "waiting", "reason": None, "state": "p", "waiting_for": [w]})
    assert f"  p.y.s: {held}: durun resume M" in said

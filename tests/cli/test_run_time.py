"""The time of a run, what does not let itself be stopped, and vars that have a schema: seen from the command line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from program import Program, until

SLEEPS = """
timeout: TIME
start: work
states:
  work:
    run: |
      echo "$DURUN_ATTEMPT $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"
      if [ ! -e "$LEDGER.done" ]; then
        trap 'echo heard >> "$LEDGER"; exit 1' TERM
        while :; do sleep 0.05; done
      fi
    idempotent: true
    retry: {max_attempts: 5, initial_interval: 1ms}
    catch: [{on: any, next: succeeded}]
    next: succeeded
"""


def test_a_run_whose_time_is_over_is_stopped_and_fails_and_resume_gives_it_all_its_time(durun: Program) -> None:
    durun.plan(SLEEPS.replace("TIME", "2s"))
    done = durun("start", "plan.yaml", exit=1)
    run = done.stdout.splitlines()[0]
    assert "the time of the run is over" in done.stderr
    shown = durun.show(run)
    assert (shown["status"], shown["error"]["name"], shown["error"]["state"]) == ("failed", "run_timeout", "work")
    assert shown["effects"][0]["status"] == "not_certain"
    assert durun.lines()[1:] == ["heard"]
    assert durun.processes() == []
    (durun.folder / "ledger.done").touch()
    durun("resume", run)
    first, _, second = durun.lines()
    assert second == first.replace("1 ", "2 ", 1)


def test_a_run_that_waits_is_ended_in_its_time(durun: Program) -> None:
    durun.plan("timeout: 300ms\nstart: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    run = durun.start(1)
    assert durun.show(run)["error"]["name"] == "run_timeout"


def test_the_time_of_a_run_may_come_from_its_input_and_one_that_is_none_starts_nothing(durun: Program) -> None:
    durun.plan("input: {t: string}\n" + SLEEPS.replace("TIME", "'${{ input.t }}'"))
    assert "is no duration" in durun("start", "plan.yaml", "-i", "t=soon", exit=7).stderr
    assert durun("ls", "-q", "--all", exit=None).stdout == ""
    assert durun.show(durun.start(1, "-i", "t=200ms"))["error"]["name"] == "run_timeout"


KEEPER = "\nstart: a\nstates: {a: {run: 'echo $$ >> \"$LEDGER\"; exec sleep 60', next: succeeded}}\n"


def test_a_command_that_cannot_be_stopped_blocks_its_run_and_is_named_and_cancel_tries_again(durun: Program) -> None:
    durun.plan(KEEPER)
    begun = durun.begin("start", "plan.yaml")
    run = begun.stdout.readline().strip()
    (pid,) = until(durun.lines)
    keeper = int(until(lambda: parent(int(pid))))
    os.kill(keeper, signal.SIGSTOP)
    said = durun("cancel", run, "--grace", "100ms", exit=9).stderr
    assert f"{pid} did not end" in said and f"kill -CONT {keeper}" in said and f"durun cancel {run}" in said
    assert begun.wait(30) == 9
    shown = durun.show(run)
    assert (shown["status"], shown["reason"], shown["ended_at"]) == ("blocked", "not_stopped", None)
    assert shown["waiting_for"][0]["command"] == f"durun cancel {run}"
    assert f"durun cancel {run}" in durun("inbox").stdout
    assert Path(f"/proc/{pid}").exists()
    os.kill(keeper, signal.SIGCONT)
    durun("cancel", run, "--grace", "100ms", exit=4)
    assert durun.show(run)["status"] == "cancelled"
    until(lambda: not durun.processes())
    begun.communicate()


def parent(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


@pytest.mark.parametrize("first", ["5", "'${{ input.n }}'"])
def test_first_values_of_vars_that_do_not_fit_their_schema_start_nothing(durun: Program, first: str) -> None:
    durun.plan(
        f"input: {{n: {{type: integer, default: 5}}}}\nvars: {{n: {first}}}\nvars_schema: {{properties: {{n: {{maximum: 3}}}}}}\n"
        "start: a\nstates: {a: {pass: , next: succeeded}}\n"
    )
    assert "do not fit" in durun("start", "plan.yaml", exit=7).stderr
    assert "do not fit" in durun("start", "plan.yaml", "--dry-run", exit=7).stderr


def test_vars_that_would_not_fit_their_schema_are_an_error_that_can_be_caught(durun: Program) -> None:
    durun.plan(
        "vars: {n: 0}\nvars_schema: {$defs: {few: {maximum: 3}}, properties: {n: {$ref: '#/$defs/few'}}}\noutput: '${{ vars.n }}'\n"
        "start: a\nstates:\n  a: {run: [echo, '7'], output: json, assign: {n: '${{ output }}'}, next: failed,"
        " catch: [{on: vars_invalid, next: succeeded}]}\n"
    )
    run = durun.start()
    assert durun("output", run).stdout == "0\n"
    shown = durun.show(run)
    assert shown["effects"][0]["status"] == "done"


def test_a_run_that_is_being_stopped_since_its_time_is_over_is_whole_for_db_check(durun: Program) -> None:
    durun.plan(
        "timeout: 1s\nstart: m\nstates:\n  m: {map: {items: '[1, 2]', start: c, states: {c: {choice: [{when: item == 1, next: w}, {next: x}]},\n"
        "    w: {wait: {signal: s}, next: succeeded},\n"
        "    x: {run: \"trap '' TERM; until test -e go; do sleep 0.1; done\", idempotent: true, next: succeeded}}}, next: succeeded}\n"
    )
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.seen("r") and '"time_over"' in durun("history", "r", "--json").stdout)
    durun("db", "check")
    (durun.folder / "go").touch()
    assert driver.wait(30) == 1


def test_a_branch_that_ends_well_when_the_time_is_over_does_not_keep_the_end_of_another_from_being_seen(durun: Program) -> None:
    durun.plan(
        "timeout: 1s\nstart: fan\nstates:\n  fan:\n    next: succeeded\n    parallel:\n      branches:\n"
        "        l: {start: x, states: {x: {run: \"trap 'exit 0' TERM; while :; do sleep 0.05; done\", idempotent: true, next: succeeded}}}\n"
        "        r: {start: y, states: {y: {run: \"trap 'sleep 0.5; exit 0' TERM; while :; do sleep 0.05; done\", idempotent: true, next: succeeded}}}\n"
    )
    run = durun.start(1)
    doc = durun.show(run)
    assert (doc["status"], doc["error"]["name"]) == ("failed", "run_timeout")
    assert [e["status"] for e in doc["effects"]] == ["done", "done"]
    durun("resume", run)

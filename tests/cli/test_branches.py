"""Runs that stand in several places: paused, stopped by Ctrl-C, held up, asked about, and gone on with, from the command line."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from program import Program, until
from receiver import Receiver

SLOW = """
          trap 'echo "int $N" >> "$LEDGER"; exit 3' INT
          trap 'echo "term $N" >> "$LEDGER"; exit 3' TERM
          echo "begun $N" >> "$LEDGER"
          until test -e "$LEDGER.go"; do sleep 0.02; done
          echo "done $N" >> "$LEDGER"
"""
EACH = f"""
start: each
states:
  each:
    map:
      items: '[0, 1, 2, 3]'
      concurrency: 3
      start: do
      states:
        do:
          run: |{SLOW.replace(chr(10), chr(10) + "  ")}
          env: {{N: '${{{{ item }}}}'}}
          idempotent: true
          next: rest
        rest: {{wait: 1ms, next: after}}
        after: {{run: 'echo "after $N" >> "$LEDGER"', env: {{N: '${{{{ item }}}}'}}, next: succeeded}}
    next: succeeded
"""


def count(durun: Program, word: str) -> int:
    return sum(line.startswith(word) for line in durun.lines())


def go(durun: Program) -> None:
    Path(f"{durun.ledger}.go").touch()


def test_a_pause_lets_what_is_under_way_end_and_begins_nothing_in_any_item(durun: Program) -> None:
    durun.plan(EACH)
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: count(durun, "begun") == 3)
    pausing = durun.begin("pause", "r")
    until(lambda: durun.show("r")["status"] == "paused")
    go(durun)
    assert (driver.wait(60), pausing.wait(60)) == (9, 0)
    driver.communicate(), pausing.communicate()
    assert Counter(line.split()[0] for line in durun.lines()) == {"begun": 3, "done": 3}
    assert durun.show("r")["status"] == "paused"
    durun("resume", "r")
    assert Counter(line.split()[0] for line in durun.lines()) == {"begun": 4, "done": 4, "after": 4}


@pytest.mark.parametrize("word", ["INT", "TERM"])
def test_what_durun_is_told_reaches_every_command_once_and_a_resume_goes_on_with_all_of_them(durun: Program, word: str) -> None:
    durun.plan(EACH)
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: count(durun, "begun") == 3)
    os.kill(driver.pid, getattr(signal, f"SIG{word}"))
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode == (130 if word == "INT" else 143), said
    assert sorted(line for line in durun.lines() if line.startswith(word.lower())) == [f"{word.lower()} {n}" for n in range(3)]
    assert durun.show("r")["status"] == ("paused" if word == "INT" else "interrupted")
    assert [e["status"] for e in durun.show("r")["effects"]] == ["in_doubt"] * 3
    go(durun)
    durun("resume", "r")
    assert Counter(line.split()[0] for line in durun.lines()) == {"begun": 7, word.lower(): 3, "done": 4, "after": 4}


def test_a_second_ctrl_c_kills_every_command(durun: Program) -> None:
    durun.plan(EACH.replace("exit 3' INT", "' INT"))
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: count(durun, "begun") == 3)
    os.kill(driver.pid, signal.SIGINT)
    until(lambda: count(durun, "int") == 3)
    os.kill(driver.pid, signal.SIGINT)
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode == 130 and count(durun, "term") == 0, said
    assert durun.show("r")["status"] == "paused"
    until(lambda: not durun.processes())


def test_where_the_folder_is_gone_every_branch_is_held_and_goes_on_once_it_is_back(durun: Program) -> None:
    branch = "{{start: {0}, states: {{{0}: {{run: 'echo {0} >> \"$LEDGER\"', cwd: sub, next: succeeded}}}}}}"
    durun.plan(
        f"start: fan\nstates:\n  fan:\n    parallel: {{branches: {{x: {branch.format('a')}, y: {branch.format('b')}}}}}\n    next: succeeded\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=9)
    doc = durun.show("r")
    assert (doc["reason"], [w["path"] for w in doc["waiting_for"]]) == ("cwd_gone", ["fan.x.a", "fan.y.b"])
    durun("resume", "r", exit=9)
    (durun.folder / "sub").mkdir()
    durun("resume", "r")
    assert sorted(durun.lines()) == ["a", "b"]


def test_a_driver_that_sits_out_what_is_held_goes_on_in_every_branch_when_it_is_told_to(durun: Program) -> None:
    branch = "{{start: {0}, states: {{{0}: {{run: 'echo {0} >> \"$LEDGER\"', cwd: sub, next: succeeded}}}}}}"
    durun.plan(
        f"start: fan\nstates:\n  fan:\n    parallel: {{branches: {{x: {branch.format('a')}, y: {branch.format('b')}}}}}\n    next: succeeded\n"
    )
    driver = durun.begin("start", "plan.yaml", "--id", "r", "--wait")
    until(lambda: [w["kind"] for w in durun.seen("r").get("waiting_for", [])] == ["cwd_gone"] * 2)
    (durun.folder / "sub").mkdir()
    durun("resume", "r")
    assert driver.wait(60) == 0
    driver.communicate()
    assert sorted(durun.lines()) == ["a", "b"]


def test_an_undo_whose_secret_is_missing_waits_for_it_and_the_others_with_it(durun: Program, receiver: Receiver) -> None:
    """The secret is filled in when the undo is sent, as it is then; it stands nowhere in the file."""
    durun.env |= {"URL": receiver.url, "TOKEN": "first-value-of-it"}
    sent = "auth: {bearer: '${{ secrets.TOKEN }}'}"
    undo = f"compensate: {{http: {{method: DELETE, url: '${{{{ pins.env.URL }}}}/NAME', {sent}}}}}"
    act = f"{{http: {{method: POST, url: '${{{{ pins.env.URL }}}}/NAME', {sent}}}, {undo}, next: succeeded}}"
    x, y = (f"{{start: {n}, states: {{{n}: {act.replace('NAME', n)}}}}}" for n in "ab")
    durun.plan(
        f"pins: {{env: [URL]}}\nsecrets: [TOKEN]\nstart: fan\nstates:\n  fan: {{parallel: {{branches: {{x: {x}, y: {y}}}}}, next: succeeded}}\n"
    )
    durun("start", "plan.yaml", "--id", "r")
    del durun.env["TOKEN"]
    durun("compensate", "r", exit=9)
    assert durun.show("r")["reason"] == "secret_missing"
    assert sorted(receiver.lines()) == ["POST /a", "POST /b"]
    durun.env["TOKEN"] = "second-value-of-it"
    durun("compensate", "r", exit=4)
    assert receiver.lines()[2:] == ["DELETE /b", "DELETE /a"]
    assert [came.headers["authorization"] for came in receiver.came[2:]] == ["Bearer second-value-of-it"] * 2
    assert b"value-of-it" not in b"".join(path.read_bytes() for path in durun.folder.glob("runs.db*") if path.is_file())


def test_a_map_that_is_entered_again_and_fails_there_is_taken_up_in_that_round(durun: Program) -> None:
    durun.plan("""
vars: {round: 0}
start: more
states:
  more: {choice: [{when: vars.round < 3, next: each}, {next: succeeded}]}
  each:
    map:
      items: '[0, 1]'
      start: do
      states:
        do:
          run: 'echo "$ROUND.$N $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; test "$ROUND.$N" != 1.0 || test -e "$LEDGER.go"'
          env: {N: '${{ item }}', ROUND: '${{ vars.round }}'}
          next: succeeded
    assign: {round: '${{ vars.round + 1 }}'}
    next: more
""")
    run = durun.start(1)
    go(durun)
    durun("resume", run)
    words = Counter(line.split()[0] for line in durun.lines())
    assert words == {"0.0": 1, "0.1": 1, "1.0": 2, "1.1": 1, "2.0": 1, "2.1": 1}
    keys = {line.split()[0]: line.split()[1] for line in durun.lines()}
    assert len(set(keys.values())) == 6, "each round has keys of its own, and an attempt has none"


def test_from_a_state_on_what_was_left_inside_is_gone(durun: Program) -> None:
    durun.plan("""
start: first
states:
  first: {run: 'echo first >> "$LEDGER"', next: each}
  each:
    map: {items: '[0, 1]', run: 'echo "$N $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; test "$N" = 0 || test -e "$LEDGER.go"', env: {N: '${{ item }}'}}
    next: succeeded
""")
    run = durun.start(1)
    go(durun)
    durun("resume", run, "--from", "first")
    lines = [line.split()[0] for line in durun.lines()]
    assert Counter(lines) == {"first": 2, "0": 2, "1": 2}, "a new visit, and with it both items anew"
    assert len({line.split()[1] for line in durun.lines() if line[0] in "01"}) == 4
    assert [p["path"] for p in durun.show(run)["positions"]] == ["each"]


def test_doubts_questions_and_answers_inside_a_child_are_named_by_their_path(durun: Program) -> None:
    durun.plan(
        "start: say\nstates:\n  say: {run: 'echo say >> \"$LEDGER\"; sleep 60', next: ask}\n"
        "  ask: {approval: {message: 'and?'}, next: succeeded}\n",
        "child.yaml",
    )
    durun.plan("start: call\nstates: {call: {plan: {file: child.yaml}, next: succeeded}}\n")
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.lines())
    durun.kill_all()
    driver.communicate()
    durun("resume", "r", exit=9)
    (asked,) = durun.show("r")["waiting_for"]
    assert asked["path"] == "call/say" and "durun resolve r call/say" in asked["command"]
    durun("resolve", "r", "call/say", "--happened")
    durun("resume", "r", exit=3)
    durun("approve", "r", "call/ask", "--by", "ann")
    assert "is answered already: yes, by ann" in durun("approve", "r", "call/ask", "--by", "ann").stderr
    assert "ann answered yes" in durun("reject", "r", "call/ask", exit=10).stderr
    durun("resume", "r")
    assert durun.lines() == ["say"]


def test_a_plan_that_compensates_of_its_own_is_not_called_without_a_word(durun: Program) -> None:
    durun.plan("on_error: compensate\nstart: a\nstates: {a: {run: 'true', next: succeeded}}\n", "warned.yaml")
    durun.plan("start: a\nstates: {a: {run: 'true', catch: [{on: any, next: compensated}], next: succeeded}}\n", "refused.yaml")
    for name, exit in (("warned", 0), ("refused", 7)):
        durun.plan(f"start: call\nstates: {{call: {{plan: {{file: {name}.yaml}}, next: succeeded}}}}\n")
        said = durun("check", "plan.yaml", exit=exit)
        assert ("is not heard where it is called" if exit == 0 else "cannot be called") in said.stdout + said.stderr
    durun.plan("on_error: compensate\nstart: call\nstates: {call: {plan: {file: warned.yaml}, next: succeeded}}\n")
    assert "not heard" not in durun("check", "plan.yaml").stdout + durun("check", "plan.yaml").stderr

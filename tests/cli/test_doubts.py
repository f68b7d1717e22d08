"""A machine that dies inside a command, seen from the command line: probe, idempotent, resolve, catch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from program import Program, until

SLEEPS = """
start: charge
states:
  charge:
    run: |
      echo "$DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"
      if [ ! -e "$LEDGER.seen" ]; then : > "$LEDGER.seen"; sleep 60; fi
    MORE
    next: succeeded
  other: {run: 'echo other >> "$LEDGER"', next: succeeded}
"""


def plan(more: str = "", other: str = "") -> str:
    text = SLEEPS.replace("    MORE\n", "".join(f"    {line}\n" for line in more.splitlines()))
    return text if "other" in more else "\n".join(line for line in text.splitlines() if "other:" not in line) + "\n"


def die_inside(durun: Program, text: str) -> str:
    """Starts the plan, and everything dies inside its first command."""
    durun.plan(text)
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    run = begun.stdout.readline().strip()
    durun.kill_all()
    begun.communicate()
    return run


def test_of_a_done_effect_whose_end_could_not_be_used_nobody_says_that_it_is_not_known_to_have_happened(durun: Program) -> None:
    durun.plan(
        "vars: {n: 1}\nstart: a\nstates: {a: {run: 'echo x', output: text, assign: {n: '${{ output }}'}, next: succeeded}}\n"
    )
    id = durun.start(1)
    blocked = durun("resume", id, exit=9)
    assert "a has happened, and what it gave could not be used: durun resolve" in blocked.stderr
    assert "not known" not in blocked.stderr + durun("show", id).stdout + durun("inbox").stdout


def test_the_probe_of_an_effect_has_that_effect_s_key(durun: Program) -> None:
    run = die_inside(durun, plan('probe: {run: \'grep -qx "$DURUN_IDEMPOTENCY_KEY" "$LEDGER"\'}'))
    durun("resume", run)
    assert len(durun.lines()) == 1
    assert [e["answer"] for e in json.loads(durun("history", run, "--json").stdout)["events"] if e["kind"] == "probed"] == ["yes"]


def test_a_doubt_that_nothing_settles_is_blocked_and_says_what_goes_on(durun: Program) -> None:
    run = die_inside(durun, plan())
    assert durun("ls", "--json").stdout and json.loads(durun("ls", "--json").stdout)["runs"][0]["status"] == "interrupted"
    said = durun("resume", run, exit=9).stderr
    assert f"durun resolve {run}" in said
    shown = durun.show(run)
    assert (shown["status"], shown["reason"], shown["state"]) == ("blocked", "in_doubt", "charge")
    assert shown["waiting_for"][0]["kind"] == "in_doubt"
    durun("resume", run, exit=9)
    assert len(durun.lines()) == 1


@pytest.mark.parametrize(("how", "exit", "lines"), [("--happened", 0, 1), ("--retry", 0, 2), ("--fail", 1, 1)])
def test_a_person_settles_it(durun: Program, how: str, exit: int, lines: int) -> None:
    run = die_inside(durun, plan())
    durun("resume", run, exit=9)
    durun("resolve", run, how)
    if durun.show(run)["status"] not in ("succeeded", "failed"):
        durun("resume", run, exit=exit)
    shown = durun.show(run)
    assert shown["status"] == ("failed" if how == "--fail" else "succeeded")
    assert len(durun.lines()) == lines and len(set(durun.lines())) == 1
    if how == "--fail":
        assert shown["error"]["name"] == "unresolved"


def test_it_can_be_settled_without_a_resume_before(durun: Program) -> None:
    run = die_inside(durun, plan())
    durun("resolve", run, "--happened")
    assert durun.show(run)["status"] == "succeeded"


def test_happened_wants_the_output_that_the_state_declares(durun: Program) -> None:
    run = die_inside(durun, plan("output: {format: json, schema: integer}"))
    durun("resume", run, exit=9)
    assert "--output" in durun("resolve", run, "--happened", exit=7).stderr
    durun("resolve", run, "--happened", "--output", '"text"', exit=7)
    assert durun.show(run)["status"] == "blocked"
    durun("resolve", run, "--happened", "--output", "7")
    assert durun("output", run, "charge").stdout.strip() == "7"


@pytest.mark.parametrize(
    ("declared", "wrong", "right"),
    [
        ("text", ["7", "null", '["a"]'], '"a\\nb"'),
        ("lines", ['"a"', '["a", 7]', "{}"], '["a", "b"]'),
        ("{format: text, schema: {maxLength: 2}}", ['"abc"', "7"], '"ab"'),
    ],
)
def test_what_a_person_says_that_it_gave_is_of_the_form_that_the_state_declares(
    durun: Program, declared: str, wrong: list[str], right: str
) -> None:
    durun.plan(f"start: a\nstates: {{a: {{run: 'exit 4', output: {declared}, next: succeeded}}}}\n")
    run = durun.start(1)
    for value in wrong:
        said = durun("resolve", run, "--happened", "--output", value, exit=7)
        assert f"run {run}: state a: its output" in said.stderr
    assert durun.show(run)["status"] == "failed"
    durun("resolve", run, "--happened", "--output", right)
    assert json.loads(durun("output", run, "a", "--json").stdout)["output"] == json.loads(right)


def test_a_catch_that_names_the_doubt_takes_it(durun: Program) -> None:
    run = die_inside(durun, plan("catch: [{on: [in_doubt], next: other}]"))
    durun("resume", run)
    assert durun.lines()[1:] == ["other"]


def test_three_doubts_in_one_visit_are_blocked(durun: Program) -> None:
    text = plan("idempotent: true\nretry: {max_attempts: 50}").replace("if [ ! -e", "if true || [ ! -e")
    run = die_inside(durun, text)
    for n in (2, 3):
        begun = durun.begin("resume", run)
        until(lambda n=n: len(durun.lines()) == n)
        durun.kill_all()
        begun.communicate()
    durun("resume", run, exit=9)
    assert durun.show(run)["reason"] == "keeps_dying"
    assert len(durun.lines()) == 3 and len(set(durun.lines())) == 1


def test_resolve_says_no_where_nothing_is_in_doubt(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {pass: {}, next: succeeded}}\n")
    run = durun.start()
    durun("resolve", run, "--retry", exit=10)
    durun("resolve", run, exit=2)
    durun("resolve", run, "--retry", "--fail", exit=2)


@pytest.mark.parametrize(
    ("states", "words", "said"),
    [
        ("a: {run: 'exit 4', next: succeeded}", ["b", "--happened"], "its state b has not; name one that has: a"),
        ("a: {fail: {error: no, message: No}}", ["--happened"], "there is no state of it that could be taken as done by hand"),
        (
            "a: {map: {items: '[1, 2]', run: 'exit 4'}, next: succeeded}",
            ["--happened"],
            "several of its states have; name one of a[0].run, a[1].run",
        ),
    ],
)
def test_of_a_run_that_has_failed_nobody_says_that_it_could_be_in_doubt(
    durun: Program, states: str, words: list[str], said: str
) -> None:
    durun.plan(f"start: a\nstates: {{{states}}}\n")
    run = durun.start(1)
    refused = durun("resolve", run, *words, exit=10).stderr
    assert f"run {run} has failed: " in refused and "in doubt" not in refused
    assert said in refused


@pytest.mark.parametrize("how", ["--happened", "--retry"])
def test_where_what_a_run_gives_has_failed_its_last_state_is_over(durun: Program, how: str) -> None:
    durun.plan("start: a\nstates: {a: {run: 'echo 0', output: json, next: succeeded}}\noutput: '${{ 1 / states.a.output }}'\n")
    run = durun.start(1)
    refused = durun("resolve", run, how, *(["--output", "1"] if how == "--happened" else []), exit=10)
    assert refused.stderr == f"run {run}: state a is over: `durun resume {run}` goes on with what follows it\n"


def test_a_failed_state_can_be_taken_as_done_by_hand(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'exit 4', next: b}, b: {run: 'echo b >> \"$LEDGER\"', next: succeeded}}\n")
    run = durun.start(1)
    durun("resolve", run, "--happened", "--note", "did it myself")
    durun("resume", run)
    assert durun.lines() == ["b"] and durun.show(run)["status"] == "succeeded"


# --- the driver alone ---


def test_a_command_goes_on_without_its_driver_and_its_end_is_taken(durun: Program) -> None:
    durun.plan("""
start: slow
states:
  slow: {run: 'echo a >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done; echo end', output: text, next: succeeded}
output: '${{ states.slow.output }}'
""")
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    run = begun.stdout.readline().strip()
    begun.kill()
    begun.communicate()
    assert durun.show(run)["status"] == "interrupted"
    (durun.folder / "ledger.go").touch()
    durun("resume", run)
    assert durun.lines() == ["a"] and durun("output", run).stdout == "end\n"


def test_a_second_driver_is_refused_and_told_who_holds_the_run(durun: Program) -> None:
    durun.plan("start: slow\nstates: {slow: {run: 'echo a >> \"$LEDGER\"; sleep 60', next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    assert str(begun.pid) in durun("resume", durun.the_run(), exit=6).stderr
    os.kill(begun.pid, signal.SIGSTOP)
    durun("resume", durun.the_run(), exit=6)
    os.kill(begun.pid, signal.SIGCONT)
    durun("cancel", durun.the_run(), exit=4)
    assert begun.wait(20) == 4
    assert durun.lines() == ["a"]


def the_keeper_dies(durun: Program) -> None:
    """And with it all that it holds; its driver lives."""
    keeper = next(p for p in durun.processes() if b"keeper.py" in Path(f"/proc/{p}/cmdline").read_bytes())
    os.kill(keeper, signal.SIGSTOP)
    for pid in durun.processes():
        with contextlib.suppress(OSError):  # it may be gone
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(keeper):
                os.killpg(pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)


def test_a_doubt_of_a_paused_run_is_resolved_though_its_driver_sits_there(durun: Program) -> None:
    durun.plan(plan())
    begun = durun.begin("start", "plan.yaml", "--wait")
    until(durun.lines)
    run = begun.stdout.readline().strip()
    durun("pause", run)
    the_keeper_dies(durun)
    until(lambda: [w["kind"] for w in durun.show(run)["waiting_for"]][:1] == ["in_doubt"])
    assert "it is succeeded" in durun("resolve", run, "--happened").stderr
    assert begun.wait(20) == 0 and len(durun.lines()) == 1


def test_a_doubt_of_one_branch_is_resolved_while_another_goes_on(durun: Program) -> None:
    durun.plan("""
start: both
states:
  both:
    parallel:
      branches:
        one: {start: a, states: {a: {run: 'echo a >> "$LEDGER"; exec sleep 60', next: succeeded}}}
        two: {start: b, states: {b: {run: 'echo b >> "$LEDGER"; while [ ! -e go ]; do sleep 0.05; done', idempotent: true, next: succeeded}}}
    next: succeeded
""")
    begun = durun.begin("start", "plan.yaml")
    until(lambda: sorted(durun.lines()) == ["a", "b"])
    run = begun.stdout.readline().strip()
    the_keeper_dies(durun)
    until(lambda: sorted(durun.lines()) == ["a", "b", "b"])
    until(lambda: [w["path"] for w in durun.show(run)["waiting_for"]] == ["both.one.a"])
    assert durun.show(run)["status"] == "running"
    assert "it is running; its driver goes on" in durun("resolve", run, "--happened").stderr
    assert "nothing of it is in doubt" in durun("resolve", run, "--happened", exit=10).stderr
    (durun.folder / "go").touch()
    assert begun.wait(20) == 0 and sorted(durun.lines()) == ["a", "b", "b"]


@pytest.mark.parametrize("alive", ["driver", "keeper", "nobody"])
def test_cancel_ends_the_run_whoever_is_left(durun: Program, alive: str) -> None:
    durun.plan(
        "start: slow\nstates: {slow: {run: 'echo $$ >> \"$LEDGER\"; sleep 60; :', next: after}, after: {run: 'echo no >> \"$LEDGER\"', next: succeeded}}\n"
    )
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    run = durun.the_run()
    if alive == "keeper":
        begun.kill()
        begun.communicate()
    if alive == "nobody":
        durun.kill_all()
        begun.communicate()
    durun("cancel", run, exit=4)
    assert durun.show(run)["status"] == "cancelled"
    until(lambda: not durun.processes())
    assert len(durun.lines()) == 1
    durun("resume", run, exit=4)
    durun("cancel", run, exit=4)


def test_ctrl_c_pauses_a_run_and_resume_settles_what_was_stopped(durun: Program) -> None:
    run = None
    durun.plan(plan("idempotent: true"))
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    os.kill(begun.pid, signal.SIGINT)
    assert begun.wait(30) == 130
    run = durun.the_run()
    shown = durun.show(run)
    assert (shown["status"], shown["effects"][0]["status"]) == ("paused", "in_doubt")
    durun("resume", run)
    assert len(durun.lines()) == 2 and len(set(durun.lines())) == 1


def test_term_interrupts_a_run_and_does_not_pause_it(durun: Program) -> None:
    durun.plan(plan("idempotent: true"))
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    os.kill(begun.pid, signal.SIGTERM)
    assert begun.wait(30) == 143
    assert durun.show(durun.the_run())["status"] == "interrupted"
    assert not durun.processes()
    durun("resume", durun.the_run())


def test_ctrl_c_lets_a_run_that_only_waits_go_on_waiting(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml")
    until(lambda: durun.db.exists() and durun("ls", "-q", exit=None).stdout.strip())
    until(lambda: durun.show(durun.the_run())["driver"])
    os.kill(begun.pid, signal.SIGINT)
    assert begun.wait(30) == 130
    assert durun.show(durun.the_run())["status"] == "waiting"


def test_a_closed_stdout_never_stops_a_driver(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'sleep 0.3; echo a >> \"$LEDGER\"', next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml")
    begun.stdout.close()
    begun.stderr.close()
    assert begun.wait(30) == 0
    assert durun.lines() == ["a"]


def test_wait_says_how_it_stands(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'until [ -e \"$LEDGER.go\" ]; do sleep 0.05; done', next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml")
    until(lambda: durun.db.exists() and durun("ls", "-q", exit=None).stdout.strip())
    run = durun.the_run()
    durun("wait", run, "--timeout", "200ms", exit=124)
    (durun.folder / "ledger.go").touch()
    durun("wait", run)
    begun.communicate()


def test_a_directory_below_that_is_gone_is_named(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', cwd: below/here, next: succeeded}}\n")
    assert "its directory, below/here, is gone: durun resume" in durun("start", "plan.yaml", exit=9).stderr


def test_the_working_directory_that_is_gone_blocks_until_it_is_back(durun: Program) -> None:
    where = durun.folder / "there"
    where.mkdir()
    durun.plan("start: a\nstates: {a: {run: 'exit 1', next: succeeded}}\n")
    run = durun("start", durun.folder / "plan.yaml", cwd=where, exit=1).stdout.split()[0]
    where.rmdir()
    said = durun("resume", run, exit=9).stderr
    assert "cwd_gone" in said and str(where) in said
    where.mkdir()
    durun("resume", run, exit=1)


def test_json_holds_what_is_promised(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'exit 3', next: succeeded}}\n")
    run = durun.start(1)
    promised = [
        "id",
        "plan",
        "version",
        "status",
        "reason",
        "state",
        "visit",
        "attempt",
        "created_at",
        "updated_at",
        "ended_at",
        "input",
        "vars",
        "output",
        "error",
        "waiting_for",
    ]
    shown: dict[str, Any] = durun.show(run)
    assert not {*promised, "positions", "effects", "undo", "pins", "driver"} - set(shown)
    assert shown["error"]["name"] == "exit:3" and shown["error"]["state"] == "a"
    failed = json.loads(durun("show", "nope", "--json", exit=5).stdout)
    assert failed["error"]["exit"] == 5


def test_a_run_of_a_newer_language_is_stranded_and_says_which_durun_can_go_on(durun: Program) -> None:
    import apsw

    durun.plan("start: a\nstates: {a: {run: 'exit 1', next: succeeded}}\n")
    run = durun.start(1)
    db = apsw.Connection(str(durun.db))
    db.execute("UPDATE runs SET language = 9, pins = json_set(pins, '$.durun', '7.0')")
    db.close()
    assert "7.0" in durun("resume", run, exit=9).stderr


def test_what_driving_needs_is_imported_before_the_first_effect(durun: Program) -> None:
    """An upgrade under a living driver does not reach it: no module is imported after the first command has begun."""
    durun.plan("""
vars: {i: 0}
start: a
states:
  a: {run: 'echo a >> "$LEDGER"; exit 3', retry: {max_attempts: 2, initial_interval: 10ms}, catch: [{on: [exit], next: b}], next: b}
  b: {run: 'echo 1', output: json, assign: {i: '${{ output + vars.i }}'}, poll: {until: output == 1, for: 1s}, idempotent: true, next: c}
  c: {wait: 10ms, next: succeeded}
output: '${{ vars.i + 1 }}'
""")
    code = (
        "import sys, durun.outbox as o\n"
        "begin, seen = o.Deliverer.begin, []\n"
        "def first(self, *a, **more):\n"
        "    seen.append(set(sys.modules)) if not seen else None\n"
        "    return begin(self, *a, **more)\n"
        "o.Deliverer.begin = first\n"
        "from durun.cli import main\n"
        "sys.argv = ['durun', 'start', 'plan.yaml']\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "print(sorted(m for m in set(sys.modules) - seen[0]))\n"
    )
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], cwd=durun.folder, env=durun.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("alive", [True, False], ids=["with its driver", "without"])
def test_pause_lets_what_is_under_way_end_and_begins_nothing_more(durun: Program, alive: bool) -> None:
    durun.plan("""
start: a
states:
  a: {run: 'echo a >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done', next: b}
  b: {run: 'echo b >> "$LEDGER"', next: succeeded}
""")
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    run = durun.the_run()
    if not alive:
        begun.kill()
        begun.communicate()
    durun("pause", run)
    assert durun.show(run)["status"] == "paused"
    (durun.folder / "ledger.go").touch()
    if alive:
        assert begun.wait(30) == 9
    assert durun.lines() == ["a"]
    durun("pause", run, exit=10)
    durun("resume", run)
    assert durun.lines() == ["a", "b"]


def test_a_paused_timer_stands_still(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {wait: 1h, next: succeeded}}\n")
    durun("start", "plan.yaml", "--no-wait", exit=3)
    run = durun.the_run()
    durun("pause", run)
    durun("resume", run, "--no-wait", exit=3)
    assert durun.show(run)["waiting_for"][0]["kind"] == "timer"

"""Control from the command line: --wait, resume of many, resume --from, pause of a plan and of the whole file."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime
from typing import Any

import apsw
import pytest
from program import Program, until

WAITS = "start: a\nstates: {a: {wait: 1h, next: succeeded}}\n"
STEP = """
start: a
states:
  a: {run: 'echo a >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done', next: b}
  b: {run: 'echo b >> "$LEDGER"', next: succeeded}
"""
FAILS = """
vars: {n: 0}
start: a
states:
  a: {run: 'echo a >> "$LEDGER"', assign: {n: '${{ vars.n + 1 }}'}, next: b}
  b: {run: 'echo b >> "$LEDGER"; test -e "$LEDGER.go"', next: succeeded}
output: '${{ vars.n }}'
"""
DIES = 'start: a\nstates: {a: {run: \'echo a >> "$LEDGER"; test -e "$LEDGER.go" || kill -9 $$\', next: b}, b: {run: \'echo b >> "$LEDGER"\', next: succeeded}}\n'


def go(durun: Program) -> None:
    (durun.folder / "ledger.go").touch()


def status(durun: Program, run: str) -> str:
    return str(durun.show(run)["status"])


def doubtful(durun: Program, *args: Any) -> str:
    """A run that is blocked: its command was killed with the machine, and nobody knows."""
    durun.plan(STEP)
    begun = durun.begin("start", "plan.yaml", *args)
    until(durun.lines)
    durun.kill_all()
    begun.communicate()
    run = durun.the_run()
    durun("resume", run, exit=9)
    return run


# --- resume --from ---


def test_a_cancel_names_the_process_that_left_its_group(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'setsid sleep 60 & echo $! >> $LEDGER; exec sleep 60', next: succeeded}}\n")
    begun = durun.begin("start", "plan.yaml", "--id", "r")
    [pid] = until(durun.lines)
    until(lambda: os.getpgid(int(pid)) == int(pid))
    assert f"a left processes behind: {pid}" in durun("cancel", "r", exit=4).stderr
    begun.communicate()


def test_from_begins_a_failed_run_at_a_state_that_is_named_as_a_new_visit_with_a_new_key(durun: Program) -> None:
    durun.plan(FAILS)
    run = durun.start(1)
    go(durun)
    durun("resume", run, "--from", "a")
    assert durun.lines() == ["a", "b", "a", "b"]
    doc = durun.show(run)
    assert doc["output"] == 2  # the data is as it was, and goes on from there
    assert [(e["path"], e["visit"], e["attempt"]) for e in doc["effects"]] == [("a", 1, 1), ("b", 1, 1), ("a", 2, 1), ("b", 2, 1)]
    assert len({e["key"] for e in doc["effects"]}) == 4


def test_from_goes_on_where_the_plan_itself_chose_to_end(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {fail: {error: mine}}, b: {run: 'echo b >> \"$LEDGER\"', next: succeeded}, c: {choice: [{next: b}]}}\n".replace(
        "start: a", "start: d").replace("{a: {fail", "{d: {choice: [{when: 'input.x', next: c}, {next: a}]}, a: {fail").replace("start: d", "input: {x: {type: boolean, default: false}}\nstart: d"))  # fmt: skip
    run = durun.start(1)
    assert "--from" in durun("resume", run, exit=10).stderr
    assert f"durun resume {run} --from STATE" in durun("show", run).stdout, "what would be refused is not offered"
    durun("resume", run, "--from", "b")
    assert durun.lines() == ["b"]


@pytest.mark.parametrize(
    ("state", "code", "said"), [("nowhere", 7, "no state 'nowhere'; it has a, b"), ("succeeded", 7, "no state")]
)
def test_from_a_state_that_is_not_there_is_refused_and_changes_nothing(durun: Program, state: str, code: int, said: str) -> None:
    durun.plan(FAILS)
    run = durun.start(1)
    before = durun("history", run).stdout
    assert said in durun("resume", run, "--from", state, exit=code).stderr
    assert durun("history", run).stdout == before and durun.show(run)["driver"] is None
    go(durun)
    durun("resume", run)


def test_from_is_refused_for_a_run_that_has_not_failed(durun: Program) -> None:
    durun.plan(FAILS)
    go(durun)
    run = durun.start()
    assert "succeeded" in durun("resume", run, "--from", "a", exit=10).stderr
    assert durun.lines() == ["a", "b"]
    durun.plan(WAITS)
    run = durun.start(3, "--no-wait")
    assert "is waiting" in durun("resume", run, "--from", "a", exit=10).stderr


def test_from_the_very_state_of_which_nobody_knows_whether_it_happened_is_refused(durun: Program) -> None:
    durun.plan(DIES)
    run = durun.start(1)
    assert "is not known" in durun("resume", run, "--from", "a", exit=10).stderr
    assert durun.lines() == ["a"]
    durun("resume", run, "--from", "b")  # from another state it goes on, and what may have happened stays in the log
    assert durun.lines() == ["a", "b"]
    assert durun.show(run)["effects"][0]["status"] == "not_certain"


# --- --wait ---


def test_with_wait_a_driver_sits_a_doubt_out_and_goes_on_when_a_person_has_said_what_happened(durun: Program) -> None:
    run = doubtful(durun)
    sitting = durun.begin("resume", "--wait", run)
    until(lambda: (durun.show(run)["driver"] or {}).get("alive"))
    durun("resolve", run, "--happened")
    assert sitting.wait(30) == 0
    assert durun.lines() == ["a", "b"]


def test_what_a_driver_that_sits_would_refuse_is_refused_to_its_sender(durun: Program) -> None:
    durun.plan(
        "start: a\nstates: {a: {run: 'echo a >> \"$LEDGER\"; sleep 60', output: {format: json, schema: {type: integer}}, next: succeeded}}\n"
    )
    begun = durun.begin("start", "plan.yaml")
    until(durun.lines)
    durun.kill_all()
    begun.communicate()
    run = durun.the_run()
    sitting = durun.begin("resume", "--wait", run)
    until(lambda: status(durun, run) == "blocked" and durun.show(run)["driver"]["alive"])
    assert "--output" in durun("resolve", run, "--happened", exit=7).stderr
    assert "schema" in durun("resolve", run, "--happened", "--output", '"x"', exit=7).stderr
    assert status(durun, run) == "blocked"
    durun("resolve", run, "--happened", "--output", "3")
    assert sitting.wait(30) == 0


def test_with_wait_a_driver_sits_a_pause_out_and_resume_lets_it_go_on(durun: Program) -> None:
    durun.plan(STEP)
    sitting = durun.begin("start", "--wait", "plan.yaml")
    until(durun.lines)
    run = durun.the_run()
    durun("pause", run)
    go(durun)
    until(lambda: "attempt_ended" in durun("history", run).stdout)
    assert status(durun, run) == "paused" and sitting.poll() is None
    resumed = durun("resume", run)
    assert "went on with the driver that held it" in resumed.stderr
    assert sitting.wait(30) == 0
    assert durun.lines() == ["a", "b"]


def test_with_wait_a_directory_that_is_gone_is_sat_out(durun: Program) -> None:
    there = durun.folder / "there"
    there.mkdir()
    durun.plan("start: a\nstates: {a: {run: 'echo a >> \"$LEDGER\"', cwd: there, next: succeeded}}\n")
    there.rmdir()
    sitting = durun.begin("start", "--wait", "plan.yaml")
    run = until(lambda: durun("ls", "-q").stdout.strip())
    until(lambda: status(durun, run) == "blocked")
    there.mkdir()
    durun("resume", run)
    assert sitting.wait(30) == 0


def test_a_driver_that_sits_burns_no_core_and_leaves_when_it_is_told(durun: Program) -> None:
    run = doubtful(durun)
    sitting = durun.begin("resume", "--wait", run)
    until(lambda: (durun.show(run)["driver"] or {}).get("alive"))

    def spent() -> float:
        fields = (open(f"/proc/{sitting.pid}/stat").read()).rpartition(")")[2].split()  # noqa: SIM115
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, at = spent(), time.monotonic()
    time.sleep(2)
    assert (spent() - before) / (time.monotonic() - at) < 0.2
    sitting.send_signal(signal.SIGTERM)
    assert sitting.wait(30) == 143
    assert status(durun, run) == "blocked"


def test_a_driver_that_sits_hears_a_cancel(durun: Program) -> None:
    run = doubtful(durun)
    sitting = durun.begin("resume", "--wait", run)
    until(lambda: (durun.show(run)["driver"] or {}).get("alive"))
    durun("cancel", run, exit=4)
    assert sitting.wait(30) == 4


def test_resume_detached_of_what_a_driver_sits_out_lets_that_driver_go_on(durun: Program) -> None:
    durun.plan(STEP)
    sitting = durun.begin("start", "--wait", "plan.yaml")
    until(durun.lines)
    run = durun.the_run()
    durun("pause", run)
    go(durun)
    until(lambda: "attempt_ended" in durun("history", run).stdout)
    durun("resume", "--detach", run)
    assert sitting.wait(30) == 0


def test_a_resume_left_to_a_driver_that_died_before_it_heard_is_made_by_whoever_comes_next(durun: Program) -> None:
    durun.plan(STEP)
    sitting = durun.begin("start", "--wait", "plan.yaml")
    until(durun.lines)
    run = durun.the_run()
    durun("pause", run)
    go(durun)
    until(lambda: "attempt_ended" in durun("history", run).stdout)
    sitting.send_signal(signal.SIGSTOP)  # it holds its run, and hears nothing
    resuming = durun.begin("resume", run)
    db = apsw.Connection(str(durun.db))
    until(lambda: list(db.execute("SELECT kind FROM notes")) == [("resume",)])
    db.close()
    sitting.kill()
    assert resuming.wait(30) == 0
    assert durun.lines() == ["a", "b"]


def test_wait_and_no_wait_are_not_said_together(durun: Program) -> None:
    durun.plan(WAITS)
    durun("start", "plan.yaml", "--wait", "--no-wait", exit=2)
    durun("resume", "a", "b", "--wait", exit=2)


# --- resume of several ---


def test_resume_of_several_goes_on_with_each_though_one_is_refused(durun: Program) -> None:
    durun.plan(FAILS)
    for id in ("x", "y"):
        durun("start", "plan.yaml", "--id", id, exit=1)
    go(durun)
    durun.plan("start: a\nstates: {a: {fail: {error: mine}}}\n", "ends.yaml")
    durun("start", "ends.yaml", "--id", "m", exit=1)
    done = durun("resume", "x", "m", "y", "--json", exit=10)
    found = json.loads(done.stdout)
    assert found["exits"] == {"x": 0, "m": 10, "y": 0}
    assert [r["status"] for r in found["runs"]] == ["succeeded", "failed", "succeeded"]
    assert "x: b: done" in done.stderr and "nothing to take up" in done.stderr
    durun("resume", "x", "no-such-run", exit=5)


def test_several_runs_are_driven_at_once_and_none_waits_behind_one_that_only_waits(durun: Program) -> None:
    durun.plan(WAITS, "waits.yaml")
    durun("start", "waits.yaml", "--id", "long", "--no-wait", exit=3)
    durun.plan(FAILS)
    for id in ("x", "y"):
        durun("start", "plan.yaml", "--id", id, exit=1)
    go(durun)
    begun = durun.begin("resume", "long", "x", "y")
    until(lambda: status(durun, "x") == status(durun, "y") == "succeeded")
    assert begun.poll() is None  # it sits the timer out
    begun.send_signal(signal.SIGTERM)
    assert begun.wait(30) == 143
    assert status(durun, "long") == "waiting"


def test_all_takes_what_is_interrupted_or_due_and_nothing_else(durun: Program) -> None:
    durun.plan(
        "input: {t: string}\nstart: a\nstates: {a: {wait: '${{ input.t }}', next: b}, b: {run: 'echo $WHO >> \"$LEDGER\"', env: {WHO: '${{ run.id }}'}, next: succeeded}}\n"
    )
    durun("start", "plan.yaml", "--id", "due", "-i", "t=1ms", "--no-wait", exit=None)
    durun("start", "plan.yaml", "--id", "soon", "-i", "t=300ms", "--no-wait", exit=3)
    durun("start", "plan.yaml", "--id", "later", "-i", "t=1h", "--no-wait", exit=3)
    durun("start", "plan.yaml", "--id", "paused", "-i", "t=1h", "--no-wait", exit=3)
    durun("pause", "paused")
    durun.plan(STEP, "step.yaml")
    begun = durun.begin("start", "step.yaml", "--id", "cut")
    until(lambda: "a" in durun.lines())
    durun.kill_all()
    begun.communicate()
    go(durun)
    until(lambda: durun.show("soon")["waiting_for"][0]["until"] < datetime.now(UTC).isoformat())
    durun("resume", "--all", exit=9)  # the one that was cut is in doubt
    assert [status(durun, r) for r in ("later", "cut", "paused")] == ["waiting", "blocked", "paused"]
    assert sorted(durun.lines()) == ["a", "due", "soon"]
    assert "nothing to go on with" in durun("resume", "--all").stderr
    durun("resume", "--all", "x", exit=2)
    durun("resume", exit=2)


def test_one_at_a_time_takes_runs_in_turn_and_comes_back_to_what_is_due(durun: Program) -> None:
    durun.plan(
        "input: {w: string}\nstart: a\nstates:\n"
        "  a: {run: 'echo a$WHO >> \"$LEDGER\"; test -e \"$LEDGER.go\"', env: {WHO: '${{ run.id }}'}, next: w}\n"
        "  w: {wait: '${{ input.w }}', next: b}\n"
        "  b: {run: 'echo b$WHO >> \"$LEDGER\"', env: {WHO: '${{ run.id }}'}, next: succeeded}\n"
    )
    for id, w in (("x", "1500ms"), ("y", "1ms")):
        durun("start", "plan.yaml", "--id", id, "-i", f"w={w}", exit=1)
    go(durun)
    done = durun("resume", "x", "y", "--concurrency", "1", "--json")
    assert json.loads(done.stdout)["exits"] == {"x": 0, "y": 0}
    assert durun.lines()[2:] == ["ax", "ay", "by", "bx"]


def test_ctrl_c_stops_all_that_is_under_way_and_names_what_was_not_gone_on_with(durun: Program) -> None:
    durun.plan('start: a\nstates: {a: {run: \'echo a >> "$LEDGER"; test -e "$LEDGER.go" && sleep 60\', next: succeeded}}\n')
    for id in ("x", "y", "z"):
        durun("start", "plan.yaml", "--id", id, exit=1)
    go(durun)
    begun = durun.begin("resume", "x", "y", "z", "--concurrency", "2")
    until(lambda: len(durun.lines()) == 5)
    begun.send_signal(signal.SIGINT)
    assert begun.wait(40) == 130
    assert "run z was not gone on with" in begun.stderr.read()
    assert [status(durun, r) for r in ("x", "y", "z")] == ["paused", "paused", "failed"]
    until(lambda: not durun.processes())


def test_a_worker_that_is_killed_costs_its_run_alone(durun: Program) -> None:
    durun.plan(STEP)
    for id in ("x", "y"):
        begun = durun.begin("start", "plan.yaml", "--id", id)
        until(lambda: "a" in durun.lines())
        begun.kill()
        begun.communicate()
        durun.ledger.unlink()
    resuming = durun.begin("resume", "--all", "--concurrency", "1")
    until(lambda: any((durun.show(r)["driver"] or {}).get("alive") for r in ("x", "y")))
    first = next(r for r in ("x", "y") if (durun.show(r)["driver"] or {}).get("alive"))
    worker = next(p for p in durun.processes() if b"cli.background" in open(f"/proc/{p}/cmdline", "rb").read())  # noqa: SIM115
    os.kill(worker, signal.SIGKILL)
    go(durun)
    assert resuming.wait(40) == 8
    assert sorted(status(durun, r) for r in ("x", "y")) == ["interrupted", "succeeded"] and status(durun, first) == "interrupted"
    durun("resume", "--all")
    assert status(durun, first) == "succeeded"


# --- pause ---


def test_pause_of_a_plan_pauses_its_runs_driven_or_not_and_no_others(durun: Program) -> None:
    durun.plan(WAITS)
    durun("start", "plan.yaml", "--id", "x", "--no-wait", exit=3)
    driven = durun.begin("start", "plan.yaml", "--id", "y")
    durun.plan("name: other\n" + WAITS, "other.yaml")
    durun("start", "other.yaml", "--id", "z", "--no-wait", exit=3)
    until(lambda: durun("ls", "-q", "--status", "waiting").stdout.count("\n") == 3)
    found = json.loads(durun("pause", "--plan", "test", "--json").stdout)
    assert {r["id"]: r["status"] for r in found["runs"]} == {"x": "paused", "y": "paused"} and found["held"] is None
    assert driven.wait(30) == 9
    assert status(durun, "z") == "waiting"
    assert "nothing was changed" in durun("pause", "--plan", "none").stderr
    durun("pause", exit=2)
    durun("pause", "x", "--all", exit=2)


def test_the_whole_file_is_held_until_resume_all(durun: Program) -> None:
    durun.plan(STEP)
    driven = durun.begin("start", "plan.yaml", "--id", "driven")
    until(durun.lines)
    durun.plan(WAITS, "waits.yaml")
    durun("start", "waits.yaml", "--id", "alone", "--no-wait", exit=3)
    durun("start", "waits.yaml", "--id", "mine", "--no-wait", exit=3)
    durun("pause", "mine")
    durun("pause", "--all")
    said = durun("pause", "--all").stderr
    assert "held already, since" in said and len(said.splitlines()) == 1 + ("driver has not acted" in said)
    go(durun)
    assert driven.wait(30) == 9
    assert {r: (status(durun, r), durun.show(r)["reason"]) for r in ("driven", "alone", "mine")} == {
        "driven": ("paused", "all"), "alone": ("paused", "all"), "mine": ("paused", None),
    }  # fmt: skip
    # nothing goes on, and what is started is kept
    for run in ("driven", "alone", "mine"):
        assert "durun resume --all" in durun("resume", run, exit=9).stderr
    begun = durun("start", "plan.yaml", "--id", "born", exit=9)
    assert begun.stdout == "born\n" and "durun resume --all" in begun.stderr and status(durun, "born") == "paused"
    assert "durun resume --all" in durun("start", "--detach", "plan.yaml", "--id", "sent", exit=9).stderr
    assert durun.lines() == ["a"]
    assert "held" in durun("ls").stderr
    durun("resume", "--all", "--no-wait", exit=3)  # the one that waits an hour
    assert durun.lines().count("b") == 3 and status(durun, "mine") == "paused" and status(durun, "alone") == "waiting"
    assert "held" not in durun("ls").stderr
    durun("resume", "mine", "--no-wait", exit=3)


def test_a_run_that_is_paused_while_the_file_is_held_stays_paused_when_it_is_held_no_more(durun: Program) -> None:
    durun.plan(WAITS)
    durun.plan("name: other\n" + WAITS, "other.yaml")
    for plan, run in (("plan.yaml", "one"), ("other.yaml", "two"), ("other.yaml", "three")):
        durun("start", plan, "--id", run, "--no-wait", exit=3)
    durun("pause", "three")
    durun("pause", "--all")
    assert "durun resume --all" in durun("pause", "two").stderr
    assert "paused already" in durun("pause", "two", exit=10).stderr
    assert "other: 2 paused" in durun("pause", "--plan", "other").stderr
    durun("resume", "--all", "--no-wait", exit=3)
    assert {run: status(durun, run) for run in ("one", "two", "three")} == {"one": "waiting", "two": "paused", "three": "paused"}
    durun("resume", "two", "--no-wait", exit=3)
    durun("db", "check")


def test_a_driver_that_sits_out_the_hold_hears_that_its_run_is_paused_by_itself(durun: Program) -> None:
    durun.plan(WAITS)
    sits = durun.begin("start", "plan.yaml", "--id", "x", "--wait")
    until(lambda: durun("ls", "-q", "--status", "waiting").stdout)
    durun("pause", "--all")
    durun("pause", "x")
    durun("resume", "--all")
    assert (status(durun, "x"), durun.show("x")["reason"]) == ("paused", None)
    sits.kill()
    sits.wait(30)


def test_a_timer_stands_still_while_the_file_is_held(durun: Program) -> None:
    durun.plan(WAITS)
    run = durun.start(3, "--no-wait")

    def due() -> datetime:
        return datetime.fromisoformat(durun.show(run)["waiting_for"][0]["until"])

    before = due()
    assert json.loads(durun("ls", "--json").stdout)["runs"][0]["due"]
    durun("pause", "--all")
    paused = datetime.now(UTC)
    assert json.loads(durun("ls", "--json").stdout)["runs"][0]["due"] is None
    time.sleep(1)
    resumed = datetime.now(UTC)
    durun("resume", "--all", "--no-wait", exit=3)
    assert due() - before >= resumed - paused


STAND_STILL = """
start: all
states:
  all:
    parallel:
      branches:
        timer: {start: t, states: {t: {wait: 2h, next: succeeded}}}
        asks: {start: q, states: {q: {approval: {message: 'Well?'}, timeout: 2h, next: succeeded}}}
        hears: {start: s, states: {s: {wait: {signal: go}, timeout: 2h, next: succeeded}}}
        again: {start: r, states: {r: {run: 'exit 3', retry: {initial_interval: 2h, max_interval: 2h, jitter: none}, next: succeeded}}}
        at: {start: u, states: {u: {wait: {at: '2999-01-01T00:00:00Z'}, next: succeeded}}}
    next: succeeded
"""


def test_of_a_time_that_stands_still_it_is_said_what_is_left_and_never_when_it_comes(durun: Program) -> None:
    durun.plan(STAND_STILL)
    run = durun.start(3, "--no-wait")

    def times(found: list[Any], come: str = "until") -> dict[str, tuple[str | None, float | None]]:
        return {w["path"]: (w[come], w["left"]) for w in found if w[come] or w["left"] is not None}

    moving = {"all.timer.t", "all.asks.q", "all.hears.s", "all.again.r"}
    goes = durun.show(run)
    assert moving | {"all.at.u"} == {path for path, (until, left) in times(goes["waiting_for"]).items() if until and left is None}
    durun("pause", run)
    doc = durun.show(run)
    for found in (times(doc["waiting_for"]), times(doc["positions"], "due")):
        assert found.pop("all.at.u") == ("2999-01-01T00:00:00.000Z", None)
        assert set(found) == moving and all(until is None and 7000 < left <= 7200 for until, left in found.values() if left)
    assert durun.show(run)["waiting_for"] == doc["waiting_for"]
    asked = json.loads(durun("inbox", "--json").stdout)["inbox"][0]
    assert (asked["path"], asked["until"], asked["left"]) == ("all.asks.q", *times(doc["waiting_for"])["all.asks.q"])
    for text in (durun("show", run).stdout, durun("inbox").stdout, durun("report", run).stdout):
        assert "Well?, 1h59m left" in text and doc["updated_at"][:4] + "-" not in text.partition("Well?")[2].partition("\n")[0]
    durun("resume", run, "--no-wait", exit=3)
    assert set(times(durun.show(run)["waiting_for"])) == moving | {"all.at.u"}
    assert all(until for until, _ in times(durun.show(run)["waiting_for"]).values())


def test_while_the_file_is_held_a_run_can_be_cancelled(durun: Program) -> None:
    durun.plan(WAITS)
    run = durun.start(3, "--no-wait")
    durun("pause", "--all")
    durun("cancel", run, exit=4)
    durun("resume", "--all")


def test_a_driver_that_sits_goes_on_when_the_file_is_held_no_more(durun: Program) -> None:
    durun.plan(STEP)
    sitting = durun.begin("start", "--wait", "plan.yaml")
    until(durun.lines)
    durun("pause", "--all")
    go(durun)
    until(lambda: "attempt_ended" in durun("history", durun.the_run()).stdout)
    assert "whole file" not in durun("resume", durun.the_run(), exit=9).stdout
    durun("resume", "--all")
    assert sitting.wait(30) == 0

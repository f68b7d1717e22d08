"""`durun once` with the real program: effects that a step's own command makes, each done once, told to later calls, and undone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from program import Program, until


@pytest.fixture
def steps(durun: Program) -> Program:
    """`./once` is `durun once` for the scripts of steps; `./do WORD…` writes its words into the ledger and prints them."""
    script(durun, "once", f'exec {sys.executable} -m durun once "$@"')
    script(durun, "do", 'echo "$@" >> "$LEDGER"; echo "did $*"')
    return durun


def script(durun: Program, name: str, text: str) -> None:
    path = durun.folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def step(durun: Program, text: str, **more: Any) -> None:
    """A plan of one step that runs a script; `more` are its keys, and those of the plan where they begin with `plan_`."""
    head = {k.removeprefix("plan_"): v for k, v in more.items() if k.startswith("plan_")}
    state = {"run": text, "next": "succeeded", **{k: v for k, v in more.items() if not k.startswith("plan_")}}
    durun.plan("".join(f"{k}: {json.dumps(v)}\n" for k, v in head.items()) + f"start: a\nstates: {json.dumps({'a': state})}\n")


def onces(durun: Program, run: str) -> dict[str, Any]:
    """The onces of a run, by path."""
    return {e["path"]: e for e in durun.show(run)["effects"] if e["kind"] == "once"}


def logs(durun: Program, run: str) -> tuple[str, str]:
    """What its attempts wrote: (stdout, stderr)."""
    found = json.loads(durun("logs", run, "--json").stdout)["logs"]
    return "".join(each["stdout"] or "" for each in found), "".join(each["stderr"] or "" for each in found)


def killed_once(durun: Program, file: str = "pids") -> None:
    """Kills with -9 a call of `durun once`, and then its command: the command has written both pids into a file."""
    until(lambda: (durun.folder / file).exists() and (durun.folder / file).read_text().endswith("\n"))
    for pid in (durun.folder / file).read_text().split():
        os.kill(int(pid), signal.SIGKILL)


# --- done once ---


def test_a_once_inside_another_one_belongs_to_the_step(steps: Program) -> None:
    script(steps, "outer", "./once inner -- ./do inner; test $DURUN_ATTEMPT = 2")
    step(steps, "./once outer -- ./outer", retry={"initial_interval": "1ms"})
    run = steps.start()
    assert steps.lines() == ["inner"]
    assert {path: e["status"] for path, e in onces(steps, run).items()} == {"a/once:outer": "done", "a/once:inner": "done"}


def test_what_was_done_is_told_to_every_later_call_in_whatever_attempt(steps: Program) -> None:
    step(steps, "./once mail -- ./do mail; ./once mail -- ./do mail; test $DURUN_ATTEMPT = 3", retry={"initial_interval": "1ms"})
    run = steps.start()
    assert steps.lines() == ["mail"]
    assert logs(steps, run)[0] == "did mail\n" * 6
    [(path, once)] = onces(steps, run).items()
    assert (path, once["no"], once["status"], once["attempt"], once["exit"]) == ("a/once:mail", -1, "done", 1, 0)


def test_a_script_that_lets_nobody_run_what_it_makes_keeps_no_later_once_from_its_folder(steps: Program) -> None:
    step(steps, "umask 0177; ./once a -- ./do a")
    steps.start()
    assert (steps.folder / "runs.db.d" / "once").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_used_and_a_directory_that_is_gone_begin_nothing_and_are_said(steps: Program) -> None:
    text = 'mkdir gone; cd gone; rmdir ../gone; ../once a -- true || echo $?; cd ..; DURUN_VISIT=99999999999999999999 ./once c -- true || echo $?; : > "$DURUN_DB.d/once"; ./once b -- true || echo $?'
    step(steps, text)
    out, err = logs(steps, steps.start())
    assert out == "2\n2\n8\n"
    assert "the working directory is gone" in err and "cannot be used: Not a directory" in err


def test_bytes_are_told_as_they_were_printed(steps: Program) -> None:
    raw = bytes(range(256)) * 40
    (steps.folder / "raw").write_bytes(raw)
    step(steps, "./once raw -- cat raw > first; ./once raw -- cat raw > second; ./once none -- true | wc -c > third")
    steps.start()
    assert (steps.folder / "first").read_bytes() == (steps.folder / "second").read_bytes() == raw
    assert (steps.folder / "third").read_text().strip() == "0"


def test_a_new_visit_does_it_anew_with_another_key_and_so_does_each_item(steps: Program) -> None:
    say = "./once key -- sh -c 'echo $DURUN_IDEMPOTENCY_KEY | tee -a \"$LEDGER\"'"
    states = {
        "a": {"run": say, "next": "b"},
        "b": {"choice": [{"when": "states.a.visits < 2", "next": "a"}, {"next": "c"}]},
        "c": {"map": {"items": "[1, 2]", "run": say}, "next": "succeeded"},
    }
    steps.plan(f"start: a\nstates: {json.dumps(states)}\n")
    run = steps.start()
    assert len(set(steps.lines())) == len(steps.lines()) == 4
    assert {e["key"] for e in onces(steps, run).values()} <= set(steps.lines())
    assert {"a/once:key", "c[0].run/once:key", "c[1].run/once:key"} == set(onces(steps, run))


def test_a_key_of_the_plan_is_added_to(steps: Program) -> None:
    step(steps, "./once a/b -- sh -c 'echo $DURUN_IDEMPOTENCY_KEY >> \"$LEDGER\"'", key="inv-7")
    steps.start()
    assert steps.lines() == ["inv-7/once/a/b"]


def test_it_works_in_a_child_plan(steps: Program) -> None:
    steps.plan(
        "durun: 1\nname: child\nstart: say\nstates: {say: {run: './once x --undo \"./do undo\" -- ./do child', next: succeeded}}\n",
        "child.yaml",
    )
    steps.plan("start: call\nstates: {call: {plan: {file: child.yaml}, next: succeeded}}\n")
    run = steps.start()
    assert set(onces(steps, run)) == {"call/say/once:x"}
    steps("compensate", run, exit=4)
    assert steps.lines() == ["child", "undo"]


def test_each_round_of_a_poll_has_onces_of_its_own(steps: Program) -> None:
    poll = {"until": "int(output) >= 2", "every": "1ms", "for": "1m"}
    step(steps, './once x -- ./do x >&2; wc -l < "$LEDGER"', poll=poll, idempotent=True, output="text")
    steps.start()
    assert steps.lines() == ["x", "x"]


def test_it_works_in_the_background_also_after_the_run_has_gone_on(steps: Program) -> None:
    text = "./once x -- ./do x; ./once y -- ./do y; test $DURUN_ATTEMPT = 3"
    step(steps, text, background=True, idempotent=True, retry={"initial_interval": "1ms"})
    run = steps.start()
    assert steps.lines() == ["x", "y"]
    assert {path: e["attempt"] for path, e in onces(steps, run).items()} == {"a/once:x": 1, "a/once:y": 1}


def test_output_prints_what_was_recorded(steps: Program) -> None:
    step(steps, "./once a/b~c -- ./do x; ./once bad -- false || true; ./once none -- true")
    run = steps.start()
    assert steps("output", run, "a/once:a/b~c").stdout == "did x\n"
    assert steps("output", run, "a/once:none").stdout == "\n"
    for name in ("bad", "no"):
        steps("output", run, f"a/once:{name}", exit=10)


# --- failures ---


def test_a_failure_is_told_to_its_attempt_and_begun_again_with_the_same_key_in_a_later_one(steps: Program) -> None:
    bad = "./once bad -- sh -c 'echo $DURUN_IDEMPOTENCY_KEY >> \"$LEDGER\"; echo out; test -e ok || exit 3'"
    step(steps, f"{bad} || echo $?; {bad} || {{ echo $?; touch ok; exit 1; }}", retry={"initial_interval": "1ms"})
    run = steps.start()
    assert len(steps.lines()) == 2 and len(set(steps.lines())) == 1
    assert logs(steps, run)[0] == "out\n3\nout\n3\n" + "out\nout\n"
    assert "once bad has failed in this attempt (exit 3)" in logs(steps, run)[1]
    assert onces(steps, run)["a/once:bad"]["attempt"] == 2


def test_what_cannot_be_started_is_a_failure_as_a_shell_has_it(steps: Program) -> None:
    step(
        steps, "./once no -- ./nothing || echo $?; touch plain; ./once not -- ./plain || echo $?; ./once no -- ./nothing || echo $?"
    )
    run = steps.start()
    assert logs(steps, run)[0] == "127\n126\n127\n"
    assert onces(steps, run)["a/once:no"]["error"]["name"] == "not_found"


def test_another_command_under_a_used_name_is_refused(steps: Program) -> None:
    step(steps, "./once x -- ./do x; ./once x -- ./do y || echo $?")
    run = steps.start()
    assert steps.lines() == ["x"] and logs(steps, run)[0].endswith("7\n")
    assert "once x was another command before: './do x'" in logs(steps, run)[1]


def test_an_output_that_is_too_large_is_refused_not_cut(steps: Program) -> None:
    big = "./once big --undo './do undo' -- sh -c 'echo >> \"$LEDGER\"; head -c 16777217 /dev/zero'"
    step(steps, f"{big} || echo $?; {big} || echo $?; ./once fits -- head -c 16777216 /dev/zero | wc -c")
    run = steps.start()
    assert logs(steps, run)[0] == "1\n1\n16777216\n" and len(steps.lines()) == 1
    once = onces(steps, run)["a/once:big"]
    assert once["status"] == "done" and once["error"]["name"] == "output_too_large"
    steps("compensate", run, exit=9)
    assert "over 16 MiB" in steps("show", run).stdout, "an undo that has nothing to go by is owed, and says so"
    steps("resolve", run, "a/once:big", "--undone")
    assert steps.show(run)["status"] == "compensated"


def test_no_secret_is_stored_with_a_call_or_its_record(steps: Program) -> None:
    steps.env["TOKEN"] = "very-secret"
    text = './once a -- echo "$T" || echo $?; ./once b -- sh -c \'echo "$T"\' || echo $?; ./once c -- true'
    step(steps, text, env={"T": "${{ secrets.TOKEN }}"}, plan_secrets=["TOKEN"])
    run = steps.start()
    assert logs(steps, run)[0] == "7\n1\n"
    assert "the secret TOKEN is in the call" in logs(steps, run)[1] and "its output holds the secret TOKEN" in logs(steps, run)[1]
    for path in [steps.db, *steps.folder.glob("runs.db-wal"), *steps.folder.glob("runs.db.d/once/*")]:
        assert b"very-secret" not in path.read_bytes(), path


# --- when it works ---


def test_outside_of_a_step_it_is_wrong_usage(steps: Program) -> None:
    said = steps("once", "x", "--", "true", exit=2).stderr
    assert "inside the command of a step" in said and "DURUN_RUN_ID" in said
    for words in (["once"], ["once", "x"], ["once", "x", "--"], ["once", "x", "--json", "--", "true"]):
        steps(*words, exit=2)
    assert not steps.db.exists()


@pytest.mark.parametrize(
    ("word", "value"), [("ATTEMPT", "2"), ("VISIT", "2"), ("STATE", "b"), ("IDEMPOTENCY_KEY", "k"), ("RUN_ID", "none")]
)
def test_what_is_not_the_current_attempt_begins_nothing(steps: Program, word: str, value: str) -> None:
    step(steps, f"DURUN_{word}={value} ./once x -- ./do x || echo $?")
    run = steps.start()
    assert logs(steps, run)[0] == "75\n" and "nothing was begun" in logs(steps, run)[1]
    assert steps.lines() == [] and onces(steps, run) == {}


def test_an_orphan_of_a_step_that_timed_out_begins_nothing_any_more(steps: Program) -> None:
    orphan = "setsid sh -c 'until test -e go; do sleep 0.05; done; ./once late -- ./do late; echo $? > said' > /dev/null 2>&1 &"
    step(
        steps,
        f"test $DURUN_ATTEMPT = 2 && exit 0; {orphan}\nsleep 60",
        timeout="2s",
        idempotent=True,
        retry={"initial_interval": "1ms"},
    )
    steps.start()
    (steps.folder / "go").touch()
    said = steps.folder / "said"
    until(lambda: said.exists() and said.read_text())
    assert said.read_text() == "75\n" and steps.lines() == []


def test_while_a_run_is_cancelled_nothing_more_begins_in_it(steps: Program) -> None:
    step(steps, "trap './once clean -- ./do clean || echo $? > said; exit 1' TERM; touch ready; sleep 60 & wait")
    begun = steps.begin("start", "plan.yaml", "-q")
    until((steps.folder / "ready").exists)
    steps("cancel", steps.the_run(), exit=4)
    begun.communicate()
    assert (steps.folder / "said").read_text() == "75\n" and steps.lines() == []


def test_an_undo_has_no_onces(steps: Program) -> None:
    step(steps, "true", compensate={"run": "./once x -- ./do x || echo $? > said"})
    steps("compensate", steps.start(), exit=4)
    assert (steps.folder / "said").read_text() == "2\n"


@pytest.mark.parametrize("name", ["", "a[b", "a]b", "a\nb", "x" * 129])
def test_what_can_be_no_name_is_refused(steps: Program, name: str) -> None:
    (steps.folder / "name").write_text(name + ".")
    step(steps, 'n=$(cat name); ./once "${n%.}" -- ./do x || echo $?')
    run = steps.start()
    assert logs(steps, run)[0] == "2\n" and "is no name of a once" in logs(steps, run)[1] and steps.lines() == []


# --- several at once ---


def test_of_several_calls_at_once_one_does_it_and_the_others_wait_for_it(steps: Program) -> None:
    step(steps, "for n in 1 2 3 4 5 6; do ./once x -- sh -c './do x; sleep 0.5' > out.$n & done; wait")
    steps.start()
    assert steps.lines() == ["x"]
    assert [(steps.folder / f"out.{n}").read_text() for n in range(1, 7)] == ["did x\n"] * 6


def test_calls_of_many_names_at_once_are_each_done_once(steps: Program) -> None:
    step(steps, "for n in 1 2 3 4 5 6 1 2 3 4 5 6; do ./once x$n -- ./do $n & done; wait")
    run = steps.start()
    assert sorted(steps.lines()) == ["1", "2", "3", "4", "5", "6"]
    assert sorted(e["no"] for e in onces(steps, run).values()) == [-6, -5, -4, -3, -2, -1]


# --- in doubt ---

PIDS = "echo $PPID $$ > pids; exec sleep 60"  # of the call and of its command
DIES = f"./once x OPTIONS -- sh -c './do x; test -e ok && exit; {PIDS}'"  # both are killed while it runs


def in_doubt(durun: Program, options: str = "", after: str = "", **more: Any) -> str:
    """A run whose once is in doubt: the first call and its command are killed, the second call is of the same attempt."""
    text = DIES.replace("OPTIONS", options)
    step(durun, f"test $DURUN_ATTEMPT = 1 && {{ {text} || true; }}; {text}{after}", **more)
    begun = durun.begin("start", "plan.yaml")
    killed_once(durun)
    out, _ = begun.communicate(timeout=60)
    return out.splitlines()[0]


def test_in_doubt_it_begins_nothing_and_its_step_is_blocked_with_the_once_named(steps: Program) -> None:
    run = in_doubt(steps)
    doc = steps.show(run)
    assert steps.lines() == ["x"] and (doc["status"], doc["reason"]) == ("blocked", "in_doubt")
    [wanted] = doc["waiting_for"]
    assert wanted["path"] == "a/once:x" and wanted["command"].startswith(f"durun resolve {run} a/once:x --happened")
    assert onces(steps, run)["a/once:x"]["status"] == "in_doubt"
    for text in (steps("show", run).stdout, steps("inbox").stdout, logs(steps, run)[1]):
        assert "whether once x of a happened is not known" in text


def test_a_person_says_that_it_happened_and_the_step_is_told_what_it_gave(steps: Program) -> None:
    run = in_doubt(steps, "--undo 'cat >> undone'")
    steps("resolve", run, "a/once:x", "--happened", "--output", '"by hand"')
    assert steps.show(run)["status"] in ("running", "interrupted")
    steps("resume", run)
    assert steps.lines() == ["x"] and logs(steps, run)[0].endswith("by hand\n")
    [said] = [e for e in json.loads(steps("history", run, "--json").stdout)["events"] if e["kind"] == "resolved"]
    assert (said["how"], said["once"]) == ("happened", "x")
    steps("compensate", run, exit=4)
    assert (steps.folder / "undone").read_text() == "by hand\n"


@pytest.mark.parametrize("state", [["a/once:x"], ["a"], []])
def test_a_person_says_that_it_is_to_be_begun_again(steps: Program, state: list[str]) -> None:
    run = in_doubt(steps)
    (steps.folder / "ok").touch()  # from now on its command ends well
    steps("resolve", run, *state, "--retry")
    steps("resume", run)
    assert steps.lines() == ["x", "x"] and onces(steps, run)["a/once:x"]["status"] == "done"


def test_a_person_says_that_it_failed_for_good_and_that_all_of_it_happened(steps: Program) -> None:
    run = in_doubt(steps, "--undo 'cat >> undone'")
    assert "once y of a is not in doubt" in steps("resolve", run, "a/once:y", "--retry", exit=10).stderr
    steps("resolve", run, "a/once:x", "--fail")
    doc = steps.show(run)
    assert doc["status"] == "failed" and doc["error"]["name"] == "unresolved"
    assert [(u["path"], u["status"]) for u in doc["undo"]] == [("a/once:x", "not_needed")]


def test_without_a_state_it_is_the_once_that_happened_and_the_rest_of_its_step_is_not_passed_over(steps: Program) -> None:
    run = in_doubt(steps, after="; ./do after")
    steps("resolve", run, "--happened")
    steps("resume", run)
    assert steps.lines() == ["x", "after"] and onces(steps, run)["a/once:x"]["status"] == "done"


def test_a_step_that_happened_by_hand_has_done_its_onces(steps: Program) -> None:
    run = in_doubt(steps, "--undo './do undo'", "; ./do after")
    steps("resolve", run, "a", "--happened")
    steps("resume", run)
    assert [(u["path"], u["status"]) for u in steps.show(run)["undo"]] == [("a/once:x", "owed")]
    steps("compensate", run, exit=4)
    assert steps.lines() == ["x", "undo"]


@pytest.mark.parametrize(("exit", "lines", "status"), [(0, 1, "succeeded"), (1, 2, "succeeded"), (7, 1, "blocked")])
def test_in_doubt_the_probe_is_asked(steps: Program, exit: int, lines: int, status: str) -> None:
    script(steps, "probe", f'touch ok; echo "asked $DURUN_IDEMPOTENCY_KEY"; exit {exit}')
    text = DIES.replace("OPTIONS", "--probe ./probe")
    step(steps, f"{text} || true; {text}")
    begun = steps.begin("start", "plan.yaml")
    killed_once(steps)
    run = begun.communicate(timeout=60)[0].splitlines()[0]
    assert len(steps.lines()) == lines and steps.show(run)["status"] == status
    if exit == 0:
        assert logs(steps, run)[0].endswith(f"asked {onces(steps, run)['a/once:x']['key']}\n")


def test_in_doubt_it_is_begun_again_where_it_is_idempotent(steps: Program) -> None:
    text = DIES.replace("OPTIONS", "--idempotent")
    step(steps, f"{text} || touch ok; {text}; {text}")
    begun = steps.begin("start", "plan.yaml")
    killed_once(steps)
    begun.communicate(timeout=60)
    assert begun.returncode == 0 and steps.lines() == ["x", "x"]


def test_a_command_that_outlives_its_call_is_waited_for(steps: Program) -> None:
    text = "./once x -- sh -c 'echo $PPID > pids; until test -e go; do sleep 0.05; done; ./do x'"
    step(steps, f"{text} || ./once x -- true || touch other; {{ sleep 0.5; touch go; }} & {text} || echo $? > said")
    begun = steps.begin("start", "plan.yaml", "-q")
    killed_once(steps)
    begun.communicate(timeout=60)
    assert (steps.folder / "other").exists()
    assert steps.lines() == ["x"] and (steps.folder / "said").read_text() == "75\n"


def test_what_a_signal_ended_is_a_failure_in_its_attempt_and_in_doubt_in_a_later_one(steps: Program) -> None:
    text = "./once x -- sh -c './do x; kill -KILL $$'"
    step(steps, f"{text} || echo $?; {text} || {{ echo $?; exit 1; }}", retry={"initial_interval": "1ms"})
    run = steps.start(9)
    assert steps.lines() == ["x"] and logs(steps, run)[0] == "did x\n137\ndid x\n137\n" + "75\n75\n"
    assert onces(steps, run)["a/once:x"]["status"] == "in_doubt"


def test_a_step_that_goes_on_without_it_is_done(steps: Program) -> None:
    run = in_doubt(steps, after=" || ./do without")
    assert steps.show(run)["status"] == "succeeded" and steps.lines() == ["x", "without"]


def test_a_catch_that_names_in_doubt_is_heard(steps: Program) -> None:
    run = in_doubt(steps, catch=[{"on": ["in_doubt"], "next": "succeeded"}])
    assert steps.show(run)["status"] == "succeeded" and steps.show(run)["error"]["name"] == "in_doubt"


def test_a_step_that_was_killed_with_its_once_asks_for_it_when_it_is_begun_again(steps: Program) -> None:
    text = "./once x -- sh -c './do x; test $DURUN_ATTEMPT -ge 3 || sleep 60'"
    step(steps, text, timeout="2s", idempotent=True, retry={"initial_interval": "1ms"})
    run = steps.start(9)
    assert steps.lines() == ["x"] and [w["path"] for w in steps.show(run)["waiting_for"]] == ["a/once:x"]
    steps("resolve", run, "--retry")
    steps("resume", run)
    assert steps.lines() == ["x", "x"]


def test_a_step_that_was_itself_lost_is_not_begun_again_because_its_once_is_settled(steps: Program) -> None:
    text = DIES.replace("OPTIONS", "")
    step(steps, f"{text} || true; {text} || {{ ./do charge; touch charged; sleep 60; }}")
    steps.begin("start", "plan.yaml")
    killed_once(steps)
    until((steps.folder / "charged").exists)
    steps.kill_all()
    run = steps.the_run()
    steps("resume", run, exit=9)
    assert [w["path"] for w in steps.show(run)["waiting_for"]] == ["a/once:x", "a"]
    said = steps("resolve", run, "a/once:x", "--happened").stderr
    assert "whether a happened is not known" in said and "once x" not in said
    steps("resume", run, exit=9)
    assert steps.lines() == ["x", "charge"] and onces(steps, run)["a/once:x"]["status"] == "done"
    steps("resolve", run, "a", "--happened")
    steps("resume", run)
    assert steps.lines() == ["x", "charge"]


def test_a_step_that_a_signal_ended_may_have_happened_beside_its_once(steps: Program) -> None:
    text = DIES.replace("OPTIONS", "")
    step(steps, f"{text} || true; {text} || {{ ./do charge; kill -KILL $$; }}")
    begun = steps.begin("start", "plan.yaml")
    killed_once(steps)
    begun.communicate(timeout=60)
    run = steps.the_run()
    steps("resolve", run, "a/once:x", "--retry")
    assert [w["path"] for w in steps.show(run)["waiting_for"]] == ["a"]
    (steps.folder / "ok").touch()
    steps("resolve", run, "a", "--retry")
    steps("resume", run)
    assert steps.lines() == ["x", "charge", "x"]


def test_in_doubt_in_the_background_the_ways_out_are_those_of_a_message(steps: Program) -> None:
    dies = "./once x -- sh -c './do x; test -e ok && exit; kill -KILL $PPID $$'"
    step(steps, f"{dies} || true; {dies}", background=True, idempotent=True)
    run = steps.start()
    said = steps("outbox", "show", f"{run}:1").stdout
    assert f"when the step has failed: durun outbox retry {run}:1 --new-key | durun outbox drop {run}:1" in said
    (steps.folder / "ok").touch()
    steps("outbox", "retry", f"{run}:1", "--new-key")
    steps("outbox", "deliver")
    assert steps.lines() == ["x", "x"] and steps.show(run)["messages"] == []


# --- undone ---


def test_undos_of_onces_have_their_place_among_those_of_states(steps: Program) -> None:
    plan = {
        "one": {"run": "./do one", "compensate": {"run": "./do drop one"}, "next": "two"},
        "two": {
            "run": "./once p --undo 'echo p \"$(cat)\" $E >> $LEDGER' -- ./do p; ./once q -- ./do q; ./once r --undo './do drop r' -- ./do r",
            "env": {"E": "of its state"}, "compensate": {"run": "./do drop two"}, "next": "three",
        },
        "three": {"run": "./do three", "compensate": {"run": "./do drop three"}, "next": "last"},
        "last": {"fail": {"error": "done"}},
    }  # fmt: skip
    steps.plan(f"on_error: compensate\nstart: one\nstates: {json.dumps(plan)}\n")
    run = steps.start(4)
    assert steps.lines() == ["one", "p", "q", "r", "three", "drop three", "drop r", "p did p of its state", "drop two", "drop one"]
    paths = [u["path"] for u in steps.show(run)["undo"]]
    assert paths == ["three", "two/once:r", "two/once:p", "two", "one"]
    assert {"two/once:p~undo", "two/once:r~undo"} <= {e["path"] for e in steps.show(run)["effects"]}


def test_bytes_that_are_no_text_reach_the_undo_as_they_were(steps: Program) -> None:
    raw = bytes(range(256))
    (steps.folder / "raw").write_bytes(raw)
    step(steps, "./once x --undo 'cat > undone; echo $DURUN_UNDO_KEY $DURUN_IDEMPOTENCY_KEY > keys' -- cat raw")
    run = steps.start()
    steps("compensate", run, exit=4)
    assert (steps.folder / "undone").read_bytes() == raw
    keys = (steps.folder / "keys").read_text().split()
    assert keys[0] == onces(steps, run)["a/once:x"]["key"] and keys[1] == steps.show(run)["undo"][0]["key"] != keys[0]


def test_an_undo_that_fails_is_named_and_done_again(steps: Program) -> None:
    step(steps, "./once 'a b/c~' --undo 'test -e ok; ./do undo' -- ./do x")
    run = steps.start()
    said = steps("compensate", run, exit=9).stderr
    assert f"durun resolve {run} 'a/once:a b/c~' --undone" in said
    (steps.folder / "ok").touch()
    steps("compensate", run, exit=4)
    assert steps.lines() == ["x", "undo"]


@pytest.mark.parametrize(("how", "lines"), [("--happened", ["x", "undo"]), ("--fail", ["x"])])
def test_a_doubt_is_settled_before_it_is_undone(steps: Program, how: str, lines: list[str]) -> None:
    run = in_doubt(steps, "--undo './do undo'")
    steps("compensate", run, exit=9)
    [wanted] = steps.show(run)["waiting_for"]
    assert wanted["path"] == "a~undo" or wanted["path"] == "a/once:x~undo"
    assert "whether a/once:x happened is not known" in wanted["message"]
    steps("resolve", run, "a/once:x", how)
    steps("compensate", run, exit=None)
    assert steps.show(run)["status"] == "compensated" and steps.lines() == lines
    assert onces(steps, run)["a/once:x"]["status"] == {"--happened": "done", "--fail": "not_done"}[how]


@pytest.mark.parametrize(("exit", "lines"), [(0, ["x", "undo asked"]), (1, ["x"])])
def test_a_probe_settles_the_doubt_of_what_is_to_be_undone(steps: Program, exit: int, lines: list[str]) -> None:
    step(steps, DIES.replace("OPTIONS", f"--undo './do undo $(cat)' --probe 'echo asked; exit {exit}'"))
    begun = steps.begin("start", "plan.yaml")
    killed_once(steps)
    run = begun.communicate(timeout=60)[0].splitlines()[0]
    assert begun.returncode == 1
    steps("compensate", run, exit=None)
    assert steps.show(run)["status"] == "compensated" and steps.lines() == lines


def test_a_once_that_a_step_left_behind_is_waited_for_before_it_is_undone(steps: Program) -> None:
    step(
        steps,
        "setsid ./once x --undo './do undo' -- sh -c 'touch begun; until test -e go; do sleep 0.05; done; ./do x' &\nuntil test -e begun; do sleep 0.05; done",
    )
    run = steps.start()
    undoing = steps.begin("compensate", run)
    until(lambda: steps.show(run)["status"] == "compensating")
    assert onces(steps, run)["a/once:x"]["status"] == "begin"
    (steps.folder / "go").touch()
    undoing.communicate(timeout=60)
    assert undoing.returncode == 4 and steps.lines() == ["x", "undo"]


# --- start-up ---


def test_a_call_loads_neither_typer_nor_what_reads_plans(steps: Program) -> None:
    code = "import sys; from durun.cli import reader; reader.run(sys.argv[1:]); print(*sys.modules, file=open('loaded', 'w'))"
    (steps.folder / "code.py").write_text(code)
    step(steps, f"{sys.executable} code.py once x -- ./do x")
    steps.start()
    loaded = set((steps.folder / "loaded").read_text().split())
    assert steps.lines() == ["x"] and "durun.store.calls" in loaded
    assert (
        not {"typer", "click", "rich", "pydantic", "ruamel.yaml", "cel_expr_python", "jsonschema_rs", "durun.engine", "subprocess"}
        & loaded
    )


def test_help_says_what_it_takes(steps: Program) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "durun", "once", "--help"], env=steps.env, capture_output=True, text=True, check=True
    )
    assert all(word in said.stdout for word in ("--idempotent", "--probe", "--undo"))

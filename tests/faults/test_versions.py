"""Faults of runs that outlive their software: files, tools and plans that change under a run in flight."""

from __future__ import annotations

import pytest

WAITS = "a: {run: 'sh $DURUN_FILES/do.sh; test -e mended', idempotent: true, next: succeeded}"


def test_f67_show_says_that_the_plan_has_changed(place):
    plan = place.plan("a: {wait: {signal: go}, next: b}\nb: {run: 'echo b >> ticks', next: succeeded}")
    run = place.durun("start", plan, exit=3).id
    digest = place.show(run)["digest"]
    assert "since" not in place.durun("show", run).out
    place.plan("a: {wait: {signal: go}, next: c}\nc: {run: 'echo c >> ticks', next: succeeded}")
    said = place.durun("show", run).out
    assert digest[:12] in said and "plan.yaml has changed since" in said
    place.durun("signal", run, "go", "--resume")
    assert place.lines("ticks") == ["b"]


def test_f67_what_a_run_undoes_is_what_its_own_plan_says(place):
    plan = place.plan("a: {run: 'true', compensate: {run: 'echo old >> ticks'}, next: b}\nb: {wait: {signal: go}, next: succeeded}")
    run = place.durun("start", plan, exit=3).id
    place.plan("a: {run: 'true', compensate: {run: 'echo new >> ticks'}, next: b}\nb: {wait: {signal: go}, next: succeeded}")
    place.durun("compensate", run, exit=4)
    assert place.lines("ticks") == ["old"]


def test_f68_a_pinned_script_that_changes_between_failure_and_resume_is_the_old_one(place):
    place.write("do.sh", "echo old >> ticks\n")
    plan = place.plan(WAITS, head="pins: {files: [do.sh]}")
    run = place.durun("start", plan, exit=1).id
    place.write("do.sh", "echo new >> ticks\n")
    place.write("mended", "")
    assert "do.sh has changed since it started" in place.durun("resume", run).err
    assert place.lines("ticks") == ["old", "old"]


def test_f68_what_commands_name_and_is_not_pinned_is_said_to_be(place):
    for name in ("do.sh", "more.sh", "tools/x", "no"):
        place.write(name, "true")
    states = """
a: {wait: {signal: go}, next: b}
b: {run: [sh, do.sh, '${{ run.id }}'], probe: {run: 'sh ./more.sh /bin/no gone.sh no; "$DURUN_FILES/do.sh"'}, next: c}
c: {run: [tools/x], next: succeeded}
"""
    run = place.durun("start", place.plan(states, head="pins: {files: [do.sh]}"), exit=3).id
    said = [line for line in place.durun("show", run).out.splitlines() if "not pinned" in line]
    assert said == ["  on disk  more.sh, tools/x: not pinned, taken as it is when it is used"]


@pytest.mark.parametrize("name", ["do.sh", "./do.sh"])
def test_f68_a_word_that_is_a_pinned_path_is_the_pinned_copy(place, name):
    place.write("do.sh", "echo $1 old >> ticks\n")
    plan = place.plan(
        f"a: {{wait: {{signal: go}}, next: b}}\nb: {{run: [sh, {name}, x], next: succeeded}}", head="pins: {files: [do.sh]}"
    )
    run = place.durun("start", plan, exit=3).id
    place.write("do.sh", "echo $1 new >> ticks\n")
    place.durun("signal", run, "go", "--resume")
    assert place.lines("ticks") == ["x old"]


def test_f68_a_tool_whose_version_changes_is_asked_about(place):
    place.write("version", "1.0")
    plan = place.plan(
        "a: {wait: {signal: go}, next: b}\nb: {run: 'echo b >> ticks', next: succeeded}", head="pins: {tools: {it: [cat, version]}}"
    )
    run = place.durun("start", plan, exit=3).id
    place.write("version", "2.0")
    place.durun("signal", run, "go")
    held = place.durun("resume", run, exit=9)
    assert '"1.0"' in held.err and '"2.0"' in held.err and not place.lines("ticks")
    place.durun("resume", run, "--accept-drift")
    [accepted] = place.history(run, "drift_accepted")
    assert accepted["by"] and place.lines("ticks") == ["b"]


def test_f70_a_run_keeps_its_keys_and_its_digest_whatever_becomes_of_the_plan(place):
    body = "a: {run: 'echo $DURUN_IDEMPOTENCY_KEY >> keys; test -e mended', idempotent: true, next: succeeded}"
    run = place.durun("start", place.plan(body), exit=1).id
    digest = place.show(run)["digest"]
    place.plan(body.replace("idempotent", "description: other, idempotent"))
    place.write("mended", "")
    place.durun("resume", run)
    assert len(place.lines("keys")) == 2 and len(set(place.lines("keys"))) == 1
    assert place.show(run)["digest"] == digest


def test_f72_an_id_given_again_with_another_pinned_file_is_refused(place):
    place.write("do.sh", "true\n")
    plan = place.plan("a: {run: [sh, do.sh], next: succeeded}", head="pins: {files: [do.sh]}")
    place.durun("start", plan, "--id", "k")
    place.durun("start", plan, "--id", "k")
    place.write("do.sh", "false\n")
    assert "another plan" in place.durun("start", plan, "--id", "k", exit=7).err


def test_f78_what_runs_is_the_script_that_was_approved(place):
    place.write("deploy.sh", "echo old $1 >> ticks\n")
    plan = place.plan(
        "a: {approval: {message: 'run deploy.sh?'}, next: b}\nb: {run: [sh, deploy.sh, '${{ states.a.output.answer }}'], next: succeeded}",
        head="pins: {files: [deploy.sh]}",
    )
    run = place.durun("start", plan, exit=3).id
    place.write("deploy.sh", "echo new $1 >> ticks\n")
    place.durun("approve", run, "--resume")
    assert place.lines("ticks") == ["old yes"]

"""Branches, items and children with the real program: what a person sees, and what takes up what did not succeed."""

from __future__ import annotations

import json
import signal

from program import Program, until

CHILD = """
durun: 1
name: child
pins: {env: [LEDGER]}
input: {n: integer}
output: '${{ input.n * 2 }}'
start: say
states:
  say: {run: 'echo "say $N $DURUN_RUN_ID" >> "$LEDGER"', env: {N: '${{ input.n }}'}, next: succeeded}
"""


def test_a_child_has_an_id_of_its_own_and_is_part_of_the_run_that_called_it(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text(CHILD)
    durun.plan(
        "output: '${{ states.call.run }}'\nstart: call\nstates:\n  call: {plan: {file: child.yaml, input: {n: 2}}, next: succeeded}\n"
    )
    run = durun.start()
    child = durun("output", run).stdout.strip()
    assert child.startswith(run + "-")
    assert durun.lines() == [f"say 2 {child}"], "its commands are told its id"
    assert durun.show(child)["parent"] == {"run": run, "path": "call", "visit": 1}
    said = durun("cancel", child, exit=10).stderr
    assert f"{child} is a child of run {run}" in said and f"durun show {child}" in said


def test_a_child_of_an_item_that_has_ended_is_known_and_the_id_a_plan_gives_is_one(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text(CHILD)
    durun.plan(
        "input: {id: string}\nstart: each\nstates:\n  each:\n    map:\n      items: '[1]'\n      start: call\n      states:\n"
        "        call: {plan: {file: child.yaml, input: {n: 2}, id: '${{ input.id }}'}, next: succeeded}\n    next: succeeded\n"
    )
    run = durun.start(0, "-i", "id=the-child")
    shown = durun.show("the-child")
    assert shown["parent"] == {"run": run, "path": "each[0].call", "visit": 1} and shown["status"] == "succeeded"
    for id in ("../up", "a b", "", "x" * 129):
        said = durun("start", "plan.yaml", "-i", f"id={id}", exit=1).stderr
        assert "is no id of a child" in said and durun.lines() == ["say 2 the-child"]


def test_a_child_that_is_wrong_or_calls_itself_is_refused_before_anything_begins(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text(CHILD.replace("next: succeeded", "next: nowhere"))
    call = "start: call\nstates:\n  call: {plan: {file: child.yaml, input: {n: 2}}, next: succeeded}\n"
    durun.plan(call)
    said = durun("check", "plan.yaml", exit=7)
    assert "child.yaml is refused" in said.stdout + said.stderr and "nowhere" in said.stdout + said.stderr
    (durun.folder / "child.yaml").write_text(CHILD)
    durun.plan(call.replace("n: 2", "m: 2"))
    said = durun("check", "plan.yaml", exit=7)
    assert "`m` is no input of child.yaml" in said.stdout + said.stderr and "wants the input `n`" in said.stdout + said.stderr
    durun.plan(call.replace("child.yaml", "plan.yaml").replace(", input: {n: 2}", ""))
    said = durun("check", "plan.yaml", exit=7)
    assert "is called by itself" in said.stdout + said.stderr


def test_an_input_that_does_not_fit_the_child_is_an_error_of_the_call(durun: Program) -> None:
    (durun.folder / "child.yaml").write_text(CHILD)
    durun.plan(
        "input: {v: {}}\nstart: call\nstates:\n  call: {plan: {file: child.yaml, input: {n: '${{ input.v }}'}}, next: succeeded}\n"
    )
    run = durun.start(1, "-i", "v=nonsense")
    error = durun.show(run)["error"]
    assert error["name"] == "expression" and "the input of child.yaml" in error["message"]


def test_resume_of_a_failed_map_does_just_what_did_not_succeed(durun: Program) -> None:
    durun.plan(
        "start: each\nstates:\n  each:\n    map:\n      items: '[1, 2, 3, 4]'\n      concurrency: 2\n      failures: all\n      enough: 4\n"
        '      run: \'echo "$X" >> "$LEDGER"; test "$X" != 2 || test -e mended\'\n      env: {X: \'${{ item }}\'}\n    next: succeeded\n'
    )
    run = durun.start(1)
    shown = durun.show(run)
    assert shown["error"]["name"] == "item_failed" and "3 of 4" in shown["error"]["message"]
    (durun.folder / "mended").touch()
    durun("resume", run)
    assert sorted(durun.lines()) == ["1", "2", "2", "3", "4"]


def test_ctrl_c_with_several_commands_under_way_pauses_and_resume_goes_on_with_each(durun: Program) -> None:
    durun.plan(
        "start: each\nstates:\n  each:\n    map:\n      items: '[1, 2, 3]'\n      concurrency: 3\n"
        "      run: 'echo \"$X\" >> \"$LEDGER\"; test -e go || sleep 60'\n      env: {X: '${{ item }}'}\n      idempotent: true\n    next: succeeded\n"
    )
    process = durun.begin("start", "plan.yaml")
    until(lambda: len(durun.lines()) == 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    run = durun.the_run()
    assert durun.show(run)["status"] == "paused"
    (durun.folder / "go").touch()
    durun("resume", run)
    assert sorted(durun.lines()) == ["1", "1", "2", "2", "3", "3"]


def test_concurrency_is_kept_after_a_crash(durun: Program) -> None:
    durun.plan(
        "start: each\nstates:\n  each:\n    map:\n      items: '[1, 2, 3, 4, 5, 6]'\n      concurrency: 2\n"
        '      run: \'echo + >> "$LEDGER"; sleep 0.3; echo - >> "$LEDGER"\'\n      idempotent: true\n    next: succeeded\n'
    )
    durun.begin("start", "plan.yaml")
    until(lambda: len(durun.lines()) >= 3)
    durun.kill_all()
    before = len(durun.lines())
    durun("resume", durun.the_run())
    now = peak = 0
    for line in durun.lines()[before:]:
        now += 1 if line == "+" else -1
        peak = max(peak, now)
    assert peak == 2


def test_failed_items_of_a_run_that_succeeded_are_taken_up_and_nothing_behind_them(durun: Program) -> None:
    durun.plan(
        "output: '${{ states.each.items.map(i, i.status) }}'\nstart: each\nstates:\n  each:\n    map:\n      items: '[1, 2, 3]'\n"
        '      failures: 50%\n      run: \'echo "$X" >> "$LEDGER"; test "$X" != 2 || test -e mended\'\n      env: {X: \'${{ item }}\'}\n'
        "    next: after\n  after: {run: 'echo after >> \"$LEDGER\"', next: succeeded}\n"
    )
    run = durun.start(0)
    before = durun.show(run)
    assert before["output"] == ["succeeded", "failed", "succeeded"]
    assert "no state 'other'" in durun("resume", run, "other", "--failed-items", exit=7).stderr
    for state in ("after", "each[1].do"):
        durun("resume", run, "--failed-items", state, exit=10)
    assert durun.show(run) == before, "nothing was changed"
    (durun.folder / "mended").touch()
    durun("resume", run, "--failed-items")
    assert sorted(durun.lines()) == ["1", "2", "2", "3", "after"]
    shown = durun.show(run)
    assert shown["output"] == ["succeeded"] * 3 and (shown["status"], shown["state"]) == ("succeeded", "after")
    assert len({e["key"] for e in shown["effects"]}) == 4 and [e["attempt"] for e in shown["effects"]].count(2) == 1
    assert "nothing to take up" in durun("resume", run, "--failed-items", "each", exit=10).stderr


def test_failed_items_taken_up_survive_a_death(durun: Program) -> None:
    durun.plan(
        "output: '${{ states.each.items.map(i, i.status) }}'\nstart: each\nstates:\n  each:\n    map:\n      items: '[1, 2]'\n"
        "      failures: 1\n      idempotent: true\n      env: {X: '${{ item }}'}\n"
        '      run: \'echo "$X" >> "$LEDGER"; test "$X" != 2 || test -e mended || exit 1; test "$X" != 2 || test -e go || sleep 60\'\n'
        "    next: after\n  after: {run: 'echo after >> \"$LEDGER\"', next: succeeded}\n"
    )
    run = durun.start(0)
    (durun.folder / "mended").touch()
    durun.begin("resume", run, "--failed-items", "each")
    until(lambda: durun.lines().count("2") == 2)
    durun.kill_all()
    assert durun.show(run)["status"] == "interrupted"
    (durun.folder / "go").touch()
    durun("resume", run)
    assert sorted(durun.lines()) == ["1", "2", "2", "2", "after"]
    assert durun.show(run)["output"] == ["succeeded"] * 2


def test_failed_items_are_taken_up_of_one_run_that_succeeded_alone(durun: Program) -> None:
    durun.plan(
        "start: each\nstates:\n  each:\n    map:\n      items: '[1]'\n      failures: all\n      start: no\n"
        "      states: {no: {fail: {error: gone, message: x}}}\n    next: last\n  last: {run: 'test -e mended', next: succeeded}\n"
    )
    run = durun.start(1)
    assert f"durun resume {run}" in durun("resume", run, "--failed-items", exit=10).stderr
    (durun.folder / "mended").touch()
    durun("resume", run)
    assert "where its plan says it ends" in durun("resume", run, "--failed-items", exit=10).stderr
    durun("resume", "--all", "--failed-items", exit=2)
    durun("resume", run, "--failed-items", "--from", "last", exit=2)


def test_an_item_that_fails_though_its_command_ended_well_has_a_line_of_its_own(durun: Program) -> None:
    durun.plan(
        "durun: 1\nname: lines\nstart: each\nstates:\n  each:\n    map:\n      items: '[1, 2, 3]'\n      failures: all\n      start: pick\n"
        "      states:\n        pick: {choice: [{when: 'item == 1', next: odd}, {when: 'item == 2', next: ends}, {next: bad}]}\n"
        '        odd: {run: \'echo "no {" > "$DURUN_OUTPUT"\', next: succeeded}\n'
        "        ends: {fail: {error: mine, message: no more}}\n        bad: {run: exit 3, next: succeeded}\n    next: succeeded\n"
    )
    said = durun("start", "plan.yaml").stderr.splitlines()
    assert sorted(line.partition(" (")[0] for line in said if "each[" in line and "done" not in line) == [
        "each[0].odd: output_invalid", "each[1].ends: mine", "each[2].bad: exit:3",
    ]  # fmt: skip


def test_a_child_that_is_called_again_in_the_same_move_is_another_run(durun: Program) -> None:
    durun.plan(
        'durun: 1\nname: child\nstart: x\nstates:\n  x: {run: \'echo "$DURUN_RUN_ID" >> "$LEDGER"\', next: succeeded}\n'
        "output: '${{ run.id }}'\n",
        "child.yaml",
    )
    durun.plan(
        "durun: 1\nname: calls\npins: {env: [LEDGER]}\nvars: {ids: []}\nstart: call\nstates:\n"
        "  call: {plan: {file: child.yaml}, assign: {ids: '${{ vars.ids + [output] }}'}, next: more}\n"
        "  more: {choice: [{when: 'size(vars.ids) < 3', next: call}, {next: succeeded}]}\noutput: '${{ vars.ids }}'\n"
    )
    run = durun.start()
    ids = json.loads(durun("output", run).stdout)
    assert len(set(ids)) == 3 and durun.lines() == ids

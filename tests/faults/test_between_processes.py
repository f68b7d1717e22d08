"""What only several processes at once can show, and what is never inferred from a file."""

from __future__ import annotations

import random

from program import Program, until


def test_f30_whatever_processes_ask_of_one_run_at_once_it_keeps_one_outcome(durun: Program) -> None:
    """Resume, pause and cancel at random from many processes: only promised answers, one end, no effect twice."""
    chance = random.Random(30)
    durun.plan("""
vars: {i: 0}
start: more
states:
  more: {choice: [{when: vars.i < 8, next: work}, {next: succeeded}]}
  work: {run: 'echo "$DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; sleep 0.05', assign: {i: '${{ vars.i + 1 }}'}, next: more}
""")
    begun = [durun.begin("start", "plan.yaml", "--id", "r")]
    until(durun.lines)
    for n in range(24):
        word = "cancel" if n == 20 else chance.choice(["resume", "resume", "pause"])
        begun.append(durun.begin(word, "r"))
        if n % 4 == 3:
            begun[-1].wait(60)
    for process in begun:
        said = process.communicate(timeout=60)[1]
        assert process.returncode in (0, 4, 6, 9, 10), (process.returncode, said)
        assert "Traceback" not in said
    shown = durun.show("r")
    if shown["status"] not in ("succeeded", "cancelled"):
        durun("cancel", "r", exit=4)
        shown = durun.show("r")
    import json

    kinds = [e["kind"] for e in json.loads(durun("history", "r", "--json").stdout)["events"]]
    assert sum(kind in ("succeeded", "failed", "cancelled") for kind in kinds) == 1
    # what came in the same moment as the end is refused in the same commit, after it
    assert [kind for kind in kinds if kind != "refused"][-1] == shown["status"]
    assert len(durun.lines()) == len(set(durun.lines())), "an effect was begun twice"


def test_f32_no_transaction_is_open_while_a_command_runs(durun: Program) -> None:
    durun.plan(
        'start: a\nstates: {a: {run: \'echo a >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done\', next: succeeded}}\n'
    )
    slow = durun.begin("start", "plan.yaml", "--id", "slow")
    until(durun.lines)
    durun.plan("start: b\nstates: {b: {run: 'true', next: succeeded}}\n", "quick.yaml")
    for n in range(3):
        said = durun("start", "quick.yaml", "--id", f"quick{n}").stderr
        assert "another process is writing" not in said
    assert durun.show("slow")["status"] == "running"
    (durun.folder / "ledger.go").touch()
    assert slow.wait(60) == 0
    slow.communicate()


def test_f50_success_is_a_committed_row_and_never_a_file(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', output: json, next: succeeded}}\n")
    run = durun.start(1)
    assert durun.show(run)["error"]["name"] == "output_invalid"
    durun.plan(
        """
start: a
states:
  a: {run: 'printf "{\\"half\\":" > "$DURUN_OUTPUT"; echo half >> "$LEDGER"; sleep 60; echo 1}', next: succeeded}
""",
        "half.yaml",
    )
    half = durun.begin("start", "half.yaml", "--id", "half")
    until(durun.lines)
    durun.kill_all()
    half.communicate()
    durun("resume", "half", exit=9)
    assert durun.show("half")["reason"] == "in_doubt"

"""Ten processes at one run at the same time: they answer, cancel, signal, pause and resume, and one driver moves it.

Whatever they do: each ends with one of its promised exit codes and says why, a question has one answer, nothing is begun twice or
beside another driver, what was done is undone where the run was cancelled, and the file is whole after each round.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from typing import Any

import pytest
from program import Program, until

from durun.store.audit import audit
from durun.store.file import File

WANTED = int(os.environ.get("CROWD_ROUNDS", "0"))  # by scripts/crowd: just so many
ROUNDS, AT_LEAST, SECONDS = WANTED or 50, WANTED or 6, 8.0  # as many rounds as fit, on a machine with other work to do
PLAN = """
on_cancel: compensate
start: fan
states:
  fan:
    parallel:
      branches:
        gate:
          start: ask
          states:
            ask: {approval: {message: 'ship?'}, catch: [{on: rejected, next: no}], next: yes}
            yes: {run: 'echo "yes $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER.$DURUN_RUN_ID"', next: succeeded}
            no: {run: 'echo "no $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER.$DURUN_RUN_ID"', next: succeeded}
        word:
          start: hear
          states: {hear: {wait: {signal: go}, next: succeeded}}
        work:
          start: do
          states:
            do:
              run: |
                mkdir "$LEDGER.$DURUN_RUN_ID.alone" || echo "beside another" >> "$LEDGER.$DURUN_RUN_ID"
                echo "do $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER.$DURUN_RUN_ID"
                trap 'rmdir "$LEDGER.$DURUN_RUN_ID.alone"; exit 7' TERM INT
                sleep 0.05
                rmdir "$LEDGER.$DURUN_RUN_ID.alone"
              catch: [{on: exit, next: again}]
              next: again
              compensate:
                after: [done, failed, in_doubt]
                run: 'echo "undone $OF" >> "$LEDGER.$DURUN_RUN_ID"'
                env: {OF: '${{ undo_key }}'}
            again: {choice: [{when: states.do.visits < 4, next: do}, {next: succeeded}]}
    next: succeeded
"""
ORDERS: dict[str, tuple[tuple[str, ...], set[int]]] = {  # what is asked, and its promised exit codes
    "approve": (("approve",), {0, 10}),
    "approve and go on": (("approve", "--resume"), {0, 1, 3, 4, 6, 9, 10}),
    "reject": (("reject", "fan.gate.ask"), {0, 10}),
    "signal": (("signal", "go"), {0, 10}),
    "signal and go on": (("signal", "go", "--resume"), {0, 1, 3, 4, 6, 9, 10}),
    "pause": (("pause",), {0, 6, 10}),
    "resume": (("resume",), {0, 1, 3, 4, 6, 9, 10}),
    "cancel": (("cancel",), {4, 6, 9, 10}),
}
CROWD = ("approve", "reject", "approve and go on", "reject", "signal", "signal and go on", "pause", "resume", "resume")


def held(durun: Program, run: str, said: list[tuple[str, int, str]]) -> str:
    """What must hold of a run after its round; its status."""
    doc: dict[str, Any] = durun.show(run)
    events = json.loads(durun("history", run, "--json").stdout)["events"]
    lines = (durun.folder / f"ledger.{run}").read_text().splitlines()
    assert [e["no"] for e in events] == list(range(1, len(events) + 1))
    assert "beside another" not in lines, "two drivers began something at one time"
    begun = [line.split()[1] for line in lines if not line.startswith("undone")]
    assert len(set(begun)) == len(begun), "something was begun twice"
    answers = [e for e in events if e["kind"] == "answered"]
    assert len(answers) <= 1
    gave = sum(exit == 0 and "is recorded" in text for name, exit, text in said if name in ("approve", "reject"))
    assert gave <= len(answers), (said, answers)
    ends = [e["kind"] for e in events if e["kind"] in ("succeeded", "failed", "cancelled", "compensated")]
    assert ends == [doc["status"]], "a run ends once"
    if doc["status"] == "compensated":
        undone = [line.split()[1] for line in lines if line.startswith("undone")]
        done = [line.split()[1] for line in reversed(lines) if line.startswith("do ")]
        assert [key for key in undone if key in done] == done
        cut_short = {e["key"] for e in doc["effects"] if e["status"] != "done"}  # before it could say anything
        assert len(set(undone)) == len(undone) and set(undone) - set(done) <= cut_short
    file = File(str(durun.db), create=False)
    broken = audit(file).broken
    file.close()
    assert not broken, broken
    return str(doc["status"])


@pytest.mark.parametrize("driven", [True, False], ids=["a driver lives", "nobody drives"])
def test_ten_processes_at_one_run_leave_one_outcome(durun: Program, driven: bool) -> None:
    durun.plan(PLAN)
    chance, end, ended, rounds = random.Random(10), time.monotonic() + SECONDS / 2, Counter[str](), 0
    while rounds < ROUNDS // 2 and (rounds < AT_LEAST // 2 or time.monotonic() < end or not ended["compensated"]):
        run, rounds = f"r{rounds}", rounds + 1
        names = chance.sample(CROWD, len(CROWD))
        if rounds % 3:
            names.insert(chance.randrange(2, len(names)), "cancel")
        driver = durun.begin("start", "plan.yaml", "--id", run, *(["--wait"] if driven else []))
        if driven:
            until((durun.folder / f"ledger.{run}").exists)
        else:
            assert driver.wait(60) == 3
        begun = [(name, durun.begin(ORDERS[name][0][0], run, *ORDERS[name][0][1:])) for name in names]
        said = []
        for name, process in begun:
            text = process.communicate(timeout=120)[1]
            assert "Traceback" not in text and "fault of its own" not in text, text
            assert process.returncode in ORDERS[name][1], (name, process.returncode, text)
            assert text.strip(), f"{name} says nothing"
            said.append((name, process.returncode, text))
        durun("resume", run, "--no-wait", exit=None)
        durun("cancel", run, exit=None)
        late = time.monotonic() + 60  # a pause may be heard after all that: whoever waits for the driver resumes the run
        while driver.poll() is None and time.monotonic() < late:
            if durun.show(run)["status"] == "paused":
                durun("resume", run, "--no-wait", exit=None)
            time.sleep(0.05)
        text = driver.communicate(timeout=120)[1]
        assert "Traceback" not in text and driver.returncode in (0, 1, 3, 4, 6, 9), (driver.returncode, text)
        ended[held(durun, run, said)] += 1
    assert rounds >= AT_LEAST // 2 and ended["compensated"], ended


def test_of_many_that_wait_some_are_named_and_what_holds_the_whole_run_first(durun: Program) -> None:
    durun.plan("input: {xs: array}\nstart: m\nstates:\n  m:\n    map: {items: input.xs, concurrency: 100, start: ask, states: "
               "{ask: {approval: {message: ok?}, next: succeeded}}}\n    next: succeeded\n")  # fmt: skip
    said = durun("start", "plan.yaml", "--id", "r", "-i", f"xs={list(range(41))}", exit=3).stderr.splitlines()
    assert sum(": durun approve r " in line for line in said) == 20 and said[-1] == "  and 21 more: durun show r --json"
    durun("pause", "r")
    shown = [line for line in durun("show", "r").stdout.splitlines() if line.startswith("  waits") or "more:" in line]
    assert len(shown) == 21 and shown[0] == "  waits    it is paused" and shown[-1].endswith("and 22 more: durun show r --json")
    assert len(durun.show("r")["waiting_for"]) == 42

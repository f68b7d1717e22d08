"""Messages by the real program: what a run leaves, who delivers it, what a person says of what was given up."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest
from program import Program, until

PLAN = """
notify: [{on: [succeeded, failed], run: 'echo "told of $DURUN_STATE" >> "$LEDGER"'}]
start: a
states:
  a:
    run: 'echo "a $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; test -e well'
    background: true
    idempotent: true
    next: b
  b: {run: 'echo b >> "$LEDGER"', background: true, idempotent: true, next: c}
  c: {run: 'echo c >> "$LEDGER"', next: succeeded}
"""
SLOW = """
start: a
states:
  a:
    run: 'echo begun >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done; echo "a $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'
    background: true
    idempotent: true
    retry: {max_attempts: 5}
    next: succeeded
"""


def listed(durun: Program, *more: str) -> list[tuple[str, str]]:
    return [(m["path"], m["status"]) for m in json.loads(durun("outbox", "ls", "--json", *more).stdout)["messages"]]


def test_what_is_given_up_holds_back_its_own_run_until_somebody_says_what_becomes_of_it(durun: Program) -> None:
    durun.plan(PLAN)
    said = durun("start", "plan.yaml", "--id", "r")
    assert "a: not delivered, and given up: exit:1" in said.stderr
    assert "durun outbox retry r:1" in said.stderr and "messages left to be delivered: 1" in said.stderr
    assert "run r succeeded" in said.stderr, "the run's own status does not change"
    assert [line for line in durun.lines() if line == "b"] == []
    assert "told of notify:succeeded" in durun.lines(), "a notify waits for none"
    durun.plan(PLAN.replace("test -e well", "true"), "other.yaml")
    durun("start", "other.yaml", "--id", "other")
    assert "b" in durun.lines(), "another run is not held back"
    run = json.loads(durun("ls", "--json").stdout)["runs"]
    assert {r["id"]: (r["undelivered"], r["dead"]) for r in run} == {"r": (1, 1), "other": (0, 0)}
    assert "messages given up: 1" in durun("ls").stderr
    assert listed(durun) == [("a", "dead"), ("b", "waiting")]
    doc = json.loads(durun("outbox", "ls", "--json").stdout)
    assert (doc["depth"], doc["dead"]) == (2, 1) and doc["oldest_age"] > 0 and doc["messages"][1]["behind"] == "r:1"
    assert [w["kind"] for w in json.loads(durun("inbox", "--json").stdout)["inbox"]] == ["dead_letter"]
    durun("outbox", "deliver")
    assert listed(durun) == [("a", "dead"), ("b", "waiting")]

    (durun.folder / "well").touch()
    before = {line for line in durun.lines() if line.startswith("a ")}
    durun("outbox", "retry", "r:1")
    durun("outbox", "deliver", "r")
    assert listed(durun) == []
    assert [line for line in durun.lines() if line in before] and len(
        {x for x in durun.lines() if x.startswith("a ")} - before
    ) <= 1
    assert listed(durun, "--all")[:2] == [("a", "delivered"), ("b", "delivered")]
    durun("outbox", "retry", "r:1", exit=10)
    durun("outbox", "drop", "r:1", exit=10)
    durun("outbox", "show", "r:7", exit=5)
    durun("outbox", "show", "nonsense", exit=2)


def test_dropped_it_is_never_delivered_and_a_new_key_is_another_act(durun: Program) -> None:
    durun.plan(PLAN)
    durun("start", "plan.yaml", "--id", "r", "-q")
    (key,) = {line.split()[1] for line in durun.lines() if line.startswith("a ")}
    durun("outbox", "retry", "r", "--new-key")
    durun("outbox", "deliver", exit=9)
    keys = [line.split()[1] for line in durun.lines() if line.startswith("a ")]
    assert keys[0] == key and keys[1] != key
    durun("outbox", "drop", "r", "--note", "by phone")
    said = json.loads(durun("outbox", "show", "r:1", "--json").stdout)
    assert (said["status"], said["note"]) == ("dropped", "by phone") and said["request"]["shell"] == "sh"
    durun("outbox", "deliver")
    assert len(keys) == len([line for line in durun.lines() if line.startswith("a ")]) and "b" in durun.lines()


IN_ITS_TEXT = """
durun: 1
name: text
start: a
states:
  a:
    run: 'echo "$DURUN_IDEMPOTENCY_KEY $(cat) $TOLD" >> "$LEDGER"; exit 1'
    stdin: {id: '${{ key }}'}
    env: {TOLD: 'k-${{ key }}'}
    background: true
    idempotent: true
    next: succeeded
"""


def test_a_new_key_stands_also_where_the_request_holds_the_key_in_its_text(durun: Program) -> None:
    durun.plan(IN_ITS_TEXT)
    durun("start", "plan.yaml", "--id", "r", "-q")
    durun("outbox", "retry", "r:1", "--new-key")
    durun("outbox", "deliver", exit=9)
    keys = [line.split()[0] for line in durun.lines()]
    assert keys[0] != keys[1] and durun.lines() == [f'{key} {{"id":"{key}"}} k-{key}' for key in keys]
    durun("outbox", "retry", "r:1", "--new-key")
    durun("outbox", "drop", "r:1")
    effect = json.loads(durun("outbox", "show", "r:1", "--json").stdout)
    assert effect["request"]["stdin"] == {"id": keys[1]}, "what was never sent leaves no trace"
    assert durun("db", "check").returncode == 0


def test_a_deliverer_that_stands_still_keeps_its_claim_and_one_that_died_loses_it(durun: Program) -> None:
    durun.plan(SLOW)
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.lines() == ["begun"])
    os.kill(driver.pid, signal.SIGSTOP)
    assert "nothing was due" in durun("outbox", "deliver").stderr or listed(durun) == [("a", "sending")]
    assert durun.lines() == ["begun"]
    os.kill(driver.pid, signal.SIGCONT)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    other = durun.begin("outbox", "deliver", "r")
    until(lambda: any(b"deliver" in open(f"/proc/{p}/cmdline", "rb").read() for p in durun.processes()))  # noqa: SIM115
    (durun.folder / "ledger.go").touch()
    assert other.wait(60) == 0
    other.communicate()
    assert [line.split()[0] for line in durun.lines()] == ["begun", "a"], "its keeper lived: it is begun once"
    durun("outbox", "deliver")
    assert listed(durun) == []
    assert durun.show("r")["effects"][0]["status"] == "done"


def test_a_cancel_withdraws_what_was_not_begun_and_a_pause_holds_it(durun: Program) -> None:
    states = PLAN.replace("c: {run: 'echo c >> \"$LEDGER\"', next: succeeded}", "c: {wait: 1h, next: succeeded}").replace(
        "[succeeded, failed]", "[cancelled]"
    )
    states = states.replace("idempotent: true", "idempotent: true, compensate: {run: 'echo undone'}").replace(
        "true, compensate: {run: 'echo undone'}\n", "true\n    compensate: {run: 'echo undone'}\n"
    )
    durun.plan(states)
    durun("start", "plan.yaml", "--id", "r", "--no-wait", exit=3)
    assert listed(durun) == [("a", "dead"), ("b", "waiting")]
    durun("pause", "r")
    (durun.folder / "well").touch()
    durun("outbox", "retry", "r")
    assert "0 left" not in durun("outbox", "deliver").stderr and listed(durun) == [("a", "waiting"), ("b", "waiting")]
    assert "durun outbox deliver r" in durun("cancel", "r", exit=4).stderr
    durun("outbox", "deliver")
    assert [s for _, s in listed(durun, "--all")] == ["withdrawn", "withdrawn", "delivered"]
    assert "b" not in durun.lines() and "told of notify:cancelled" in durun.lines()
    doc = durun.show("r")
    assert [e["status"] for e in doc["effects"]] == ["not_done", "withdrawn", "done"]
    assert [u["status"] for u in doc["undo"]] == ["not_needed"] * 2, "nothing is said to be undone of what can happen no more"


def test_what_was_delivered_is_undone_in_its_order(durun: Program) -> None:
    durun.plan(
        """
start: a
states:
  a: {run: 'true', compensate: {run: 'echo undo-a >> "$LEDGER"', idempotent: true}, next: b}
  b: {run: 'true', background: true, idempotent: true, compensate: {run: 'echo undo-b >> "$LEDGER"', idempotent: true}, next: c}
  c:
    run: 'exit 1'
    background: true
    idempotent: true
    compensate: {run: 'echo undo-c >> "$LEDGER"', idempotent: true}
    next: d
  d: {run: 'true', background: true, idempotent: true, compensate: {run: 'echo undo-d >> "$LEDGER"', idempotent: true}, next: succeeded}
"""
    )
    durun("start", "plan.yaml", "--id", "r")
    durun("compensate", "r", exit=4)
    assert durun.lines() == ["undo-b", "undo-a"], "what was never delivered is not undone"
    assert listed(durun, "--all") == [("b", "delivered"), ("c", "dead"), ("d", "withdrawn")]
    assert json.loads(durun("outbox", "ls", "--json").stdout)["messages"][0]["command"] == "durun outbox drop r:3"
    assert "nothing of it begins any more" in durun("outbox", "retry", "r", exit=10).stderr
    durun("outbox", "drop", "r")
    assert listed(durun) == []
    undo = {u["path"]: u["status"] for u in durun.show("r")["undo"]}
    assert undo == {"a": "undone", "b": "undone", "c": "not_needed", "d": "not_needed"}


UNDONE = SLOW.replace("    next: succeeded", "    compensate: {run: 'echo undone >> \"$LEDGER\"'}\n    next: b")


def test_what_another_delivers_when_a_run_is_undone_is_waited_for_and_then_undone(durun: Program) -> None:
    durun.plan(UNDONE + "  b: {pass: {}, next: succeeded}\n")
    killed = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.lines() == ["begun"])
    killed.kill()
    killed.communicate()
    delivers = durun.begin("outbox", "deliver")
    db = apsw.Connection(str(durun.db))
    until(lambda: db.execute("SELECT fence FROM messages").fetchall() == [(2,)])
    db.close()
    undone_in_the_end(durun, durun.begin("compensate", "r"))
    delivers.communicate(timeout=60)


def test_what_is_under_way_when_an_error_has_a_run_undone_is_waited_for_and_then_undone(durun: Program) -> None:
    durun.plan(
        "on_error: compensate\n" + UNDONE + "  b: {run: 'until [ -s \"$LEDGER\" ]; do sleep 0.05; done; exit 1', next: succeeded}\n"
    )
    undone_in_the_end(durun, durun.begin("start", "plan.yaml", "--id", "r"))


def undone_in_the_end(durun: Program, undoing: Any) -> None:
    until(lambda: durun.seen("r").get("status") not in (None, "running", "succeeded"))
    assert durun.show("r")["status"] == "compensating"
    Path(f"{durun.ledger}.go").touch()
    undoing.communicate(timeout=60)
    assert undoing.returncode == 4 and [line.split()[0] for line in durun.lines()] == ["begun", "a", "undone"]


def test_a_number_is_written_in_plain_digits(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'true', background: true, idempotent: true, next: succeeded}}\n")
    durun("start", "plan.yaml", "--id", "r")
    assert "is no message" in durun("outbox", "show", "r:\N{SUPERSCRIPT ONE}", exit=2).stderr
    assert "not a valid int" in durun("ls", "--limit", "\N{SUPERSCRIPT ONE}", exit=2).stderr


def test_what_a_message_wrote_before_it_failed_is_shown_and_a_cancel_names_it_as_given_up(durun: Program) -> None:
    text = "start: a\nstates:\n  a: {run: 'seq 9 >&2; exit 3', background: true, idempotent: true, next: b}\n"
    durun.plan(text + "  b: {wait: 1h, next: succeeded}\n")
    durun("start", "plan.yaml", "--id", "r", "--no-wait", exit=3)
    said = durun("outbox", "show", "r:1").stdout
    assert "stderr   5\n" in said and "stderr   9\n" in said and "stderr   4\n" not in said
    said = durun("cancel", "r", exit=4).stderr
    assert "messages given up: 1" in said and "left to be delivered" not in said


def test_whoever_is_told_is_told_once_of_each_change(durun: Program) -> None:
    durun.plan(
        """
notify:
  - {on: [approval, blocked], run: 'echo "$DURUN_STATE" >> "$LEDGER"'}
  - {on: succeeded, run: [sh, -c, 'echo "$0" >> "$LEDGER"', 'all of ${{ run.id }} with ${{ states.ask.output.answer }}']}
  - {on: [approval], run: [echo, '${{ states.ask.output.answer }}']}
start: ask
states:
  ask: {approval: {message: well?}, next: work}
  work: {run: 'kill -9 $PPID $$', next: succeeded}
"""
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    assert durun.lines() == ["notify:approval"]
    assert "nobody is told" in durun("history", "r").stdout or [
        e for e in json.loads(durun("history", "r", "--json").stdout)["events"] if e["kind"] == "not_told"
    ]
    durun("approve", "r", "--resume", exit=9)
    assert durun.lines() == ["notify:approval", "notify:blocked"]
    durun("resolve", "r", "--happened")
    durun("resume", "r")
    assert durun.lines()[-1] == "all of r with yes" and len(durun.lines()) == 3


def test_what_is_delivered_takes_a_place_of_its_limit_whoever_delivers_it(durun: Program) -> None:
    durun.plan(
        """
limits: {one: {concurrency: 1}}
start: hold
states:
  hold: {wait: 1h, next: a}
  a:
    run: 'echo + >> "$LEDGER"; sleep 0.2; echo - >> "$LEDGER"; test -e well'
    limit: one
    background: true
    idempotent: true
    next: b
  b: {run: 'true', limit: one, next: succeeded}
"""
    )
    (durun.folder / "well").touch()
    db_due = "UPDATE positions SET due = 1, data = '{}' WHERE phase = 'waiting'"
    for n in range(3):
        durun("start", "plan.yaml", "--id", f"r{n}", "--no-wait", "-q", exit=3)
    db = apsw.Connection(str(durun.db))
    db.execute(db_due)
    db.close()
    drivers = [durun.begin("resume", f"r{n}", "-q") for n in range(3)]
    others = [durun.begin("outbox", "deliver", "--concurrency", "2", "-q") for _ in range(2)]
    for process in (*drivers, *others):
        process.communicate(timeout=60)
    end = 0
    while listed(durun) and end < 20:
        durun("outbox", "deliver", "-q")
        end += 1
    held = 0
    for line in durun.lines():
        held += 1 if line == "+" else -1
        assert 0 <= held <= 1, durun.lines()
    assert durun.lines().count("+") == 3 and listed(durun) == []
    assert {r["status"] for r in json.loads(durun("ls", "--json").stdout)["runs"]} == {"succeeded"}


def test_what_a_plan_undoes_of_a_doubt_or_a_failure_is_not_undone_of_what_was_never_begun(durun: Program) -> None:
    undo = "compensate: {after: [done, failed, in_doubt], run: 'echo undo-NAME >> \"$LEDGER\"', idempotent: true}"
    durun.plan(
        f"""
start: fails
states:
  fails: {{run: 'exit 3', background: true, idempotent: true, {undo.replace("NAME", "fails")}, next: never}}
  never: {{run: 'true', background: true, idempotent: true, {undo.replace("NAME", "never")}, next: rest}}
  rest: {{wait: 1h, next: succeeded}}
"""
    )
    durun("start", "plan.yaml", "--id", "r", "--no-wait", exit=3)
    assert listed(durun) == [("fails", "dead"), ("never", "waiting")]
    durun("compensate", "r", exit=4)
    assert durun.lines() == ["undo-fails"]


def test_what_a_plan_undoes_of_a_failure_is_undone_also_of_one_that_waits_to_be_tried_again(durun: Program) -> None:
    undo = "compensate: {after: [AFTER], run: 'echo undo-AFTER >> \"$LEDGER\"', idempotent: true}"
    for after, command in (("failed", "exit 3"), ("in_doubt", "kill -KILL $$"), ("done", "exit 3")):
        durun.plan(
            f"""
name: {after.replace("_", "-")}
start: tells
states:
  tells:
    run: '{command}'
    background: true
    idempotent: true
    retry: {{max_attempts: 9, initial_interval: 9h, max_interval: 9h, jitter: none}}
    {undo.replace("AFTER", after)}
    next: rest
  rest: {{wait: 1h, next: succeeded}}
"""
        )
        durun("start", "plan.yaml", "--id", after, "--no-wait", exit=3)
    assert [status for _, status in listed(durun)] == ["waiting"] * 3
    durun("cancel", "failed", exit=4)
    for after in ("failed", "in_doubt", "done"):
        durun("compensate", after, exit=4)
    assert durun.lines() == ["undo-failed", "undo-in_doubt"]


KEYED = """
on_cancel: compensate
start: a
states:
  a:
    run: 'echo "sent $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; exit $(cat how)'
    background: true
    idempotent: true
    compensate: {AFTERrun: [sh, -c, 'echo "undone $0" >> "$LEDGER"', '${{ undo_key }}'], idempotent: true}
    next: rest
  rest: {wait: 1h, next: succeeded}
"""
NOT_CERTAIN = 137


def keyed(durun: Program, *ends: int, after: str = "") -> list[str]:
    """A run whose message was given up with each of these ends but the last, and has a new key after each: those that were sent."""
    durun.ledger.unlink(missing_ok=True)
    durun.plan(KEYED.replace("AFTER", after))
    for n, end in enumerate(ends):
        (durun.folder / "how").write_text(f"{end}\n")
        durun(*(("outbox", "deliver", "r") if n else ("start", "plan.yaml", "--id", "r", "--no-wait")), exit=None)
        if n < len(ends) - 1:
            durun("outbox", "retry", "r:1", "--new-key")
    keys = [line.removeprefix("sent ") for line in durun.lines()]
    assert len(set(keys)) == len(ends) and durun.show("r")["effects"][0]["attempt"] == len(ends)
    return keys


def doubt(durun: Program) -> dict[str, Any]:
    found: dict[str, Any] = durun.show("r")["waiting_for"][0]
    return found


@pytest.mark.parametrize("ends", ["drop", "cancel", "compensate"])
@pytest.mark.parametrize("after", ["", "after: [done, failed, in_doubt], "])
def test_of_one_with_a_new_key_that_was_never_sent_what_was_sent_before_is_owed_its_undo(
    durun: Program, ends: str, after: str
) -> None:
    (key,) = keyed(durun, NOT_CERTAIN, after=after)
    durun("outbox", "retry", "r:1", "--new-key")
    if ends == "drop":
        durun("outbox", "drop", "r:1")
        assert durun.show("r")["effects"][0]["key"] == key
    durun("cancel" if ends == "cancel" else "compensate", "r", exit=4 if after else 9)
    if not after:
        assert doubt(durun)["message"] == "whether a happened is not known"
        durun("resolve", "r", "a", "--happened")
        durun("resume", "r", exit=4)
    assert durun.lines() == [f"sent {key}", f"undone {key}"]


def test_of_one_that_did_nothing_with_the_key_before_what_it_did_with_the_new_one_is_undone(durun: Program) -> None:
    keys = keyed(durun, 3, 0)
    durun("compensate", "r", exit=4)
    assert durun.lines()[2:] == [f"undone {keys[1]}"]


@pytest.mark.parametrize(("last", "undone"), [(0, 1), (3, 0)])
def test_of_one_that_may_have_been_sent_with_two_keys_a_person_says_what_is_undone(durun: Program, last: int, undone: int) -> None:
    keys = keyed(durun, NOT_CERTAIN, last)
    durun("compensate", "r", exit=9)
    assert keys[0] in doubt(durun)["message"]
    durun("resolve", "r", "a", "--happened")
    durun("resume", "r", exit=4)
    assert durun.lines()[2:] == [f"undone {keys[undone]}"], "of one that did nothing with its new key it is the one before"


def test_of_one_that_was_sent_with_a_new_key_a_person_may_say_that_nothing_is_to_be_undone(durun: Program) -> None:
    keyed(durun, NOT_CERTAIN, 0)
    durun("compensate", "r", exit=9)
    durun("resolve", "r", "a", "--fail")
    durun("resume", "r", exit=4)
    doc = durun.show("r")
    assert (len(durun.lines()), doc["effects"][0]["status"], doc["undo"][0]["status"]) == (2, "done", "not_needed")

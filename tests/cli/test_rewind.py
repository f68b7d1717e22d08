"""rewind: back to a state, with the data as it was then; what was done since is undone or begun again."""

from __future__ import annotations

import json
import os
import re
import sys

from program import Program, until

PLAN = """
vars: {n: 0, seen: []}
start: a
states:
  a:
    run: 'echo a $DURUN_IDEMPOTENCY_KEY >> $LEDGER; echo out'
    output: text
    assign: {n: '${{ vars.n + 1 }}'}
    compensate: {run: [sh, -c, 'echo "undo a $1" >> $LEDGER', x, '${{ output }}']}
    next: ask
  ask: {approval: {message: 'again?', schema: {type: object}}, assign: {seen: '${{ vars.seen + [output.data.k] }}'}, next: b}
  b:
    run: 'echo b $N $DURUN_IDEMPOTENCY_KEY >> $LEDGER; test -e mended'
    env: {N: '${{ vars.n }} ${{ size(vars.seen) }} ${{ states.ask.output.data.k }} ${{ states.a.output }}'}
    compensate: {run: 'echo undo b >> $LEDGER', after: [done, failed]}
    next: w
  w: {wait: {signal: go}, next: b}
"""


def words(durun: Program) -> list[str]:
    return [re.sub(r" [0-9a-f-]{36}$", "", line) for line in durun.lines()]


def begun(durun: Program) -> str:
    durun.plan(PLAN)
    id = durun.start(3)
    durun("approve", id, "--data", '{"k": "one"}', "--resume", exit=1)
    assert words(durun) == ["a", "b 1 1 one out"]
    return id


def test_what_was_done_since_has_to_be_decided_on(durun: Program) -> None:
    id = begun(durun)
    before = durun.show(id)
    said = durun("rewind", id, "a", exit=2).stderr
    assert "a (visit 1) is done" in said and "--undo" in said and "--repeat" in said
    assert durun.show(id) == before
    assert "has been in a, ask, b" in durun("rewind", id, "w", exit=10).stderr


def test_undo_compensates_what_was_done_since_and_then_goes_back(durun: Program) -> None:
    id = begun(durun)
    durun("rewind", id, "a", "--undo")
    assert words(durun)[2:] == ["undo b", "undo a out"]
    doc = durun.show(id)
    assert doc["vars"] == {"n": 0, "seen": []} and doc["state"] == "a" and doc["error"] is None and doc["undoing"] is None
    (durun.folder / "mended").write_text("")
    durun("resume", id, exit=3)
    assert words(durun)[4:] == ["a"] and durun.show(id)["vars"]["n"] == 1
    durun("approve", id, "--data", '{"k": "two"}', "--resume", exit=3)
    assert words(durun)[5:] == ["b 1 1 two out"]
    keys = [line.split()[-1] for line in durun.lines() if line.split()[0] in "ab"]
    assert len(keys) == len(set(keys)), "new visits have new keys"
    durun("compensate", id, exit=4)
    assert words(durun)[6:] == ["undo b", "undo a out"], "what was undone before is not undone again"


def test_repeat_begins_again_with_new_keys_and_keeps_what_was_done_in_the_log(durun: Program) -> None:
    id = begun(durun)
    (durun.folder / "mended").write_text("")
    durun("rewind", id, "b", "--repeat")
    assert durun.show(id)["vars"] == {"n": 1, "seen": ["one"]}
    durun("resume", id, exit=3)
    assert words(durun)[2:] == ["b 1 1 one out"], "an answer of then is there"
    durun("rewind", id, "ask", "--repeat", "--json")
    assert durun.show(id)["waiting_for"][0]["kind"] == "approval" and durun.show(id)["vars"] == {"n": 1, "seen": []}
    durun("approve", id, "--data", '{"k": "two"}', "--resume", exit=3)
    assert words(durun)[3:] == ["b 1 1 two out"]
    durun("compensate", id, exit=4)
    assert words(durun)[4:] == ["undo b", "undo b", "undo b", "undo a out"]


def test_a_run_may_go_back_more_than_once_and_its_data_is_that_of_then(durun: Program) -> None:
    id = begun(durun)
    durun("rewind", id, "ask", "--repeat")
    durun("approve", id, "--data", '{"k": "two"}', "--resume", exit=1)
    durun("rewind", id, "b", "--repeat")
    assert durun.show(id)["vars"] == {"n": 1, "seen": ["two"]}
    durun("resume", id, exit=1)
    assert words(durun)[-1] == "b 1 1 two out"
    rewound = [e for e in json.loads(durun("history", id, "--json").stdout)["events"] if e["kind"] == "rewound"]
    assert [e["to"] for e in rewound] == ["ask", "b"] and all(e["by"] for e in rewound)


def test_what_waited_to_begin_when_it_goes_back_never_will(durun: Program) -> None:
    id = begun(durun)
    assert f"durun approve {id} ask --data JSON | " in durun("rewind", id, "ask", "--repeat").stderr
    durun("rewind", id, "a", "--repeat")
    assert f"before a again: durun resume {id}" in durun("rewind", id, "a", "--repeat").stderr
    status = {e["visit"]: e["status"] for e in durun.show(id)["effects"] if e["path"] == "a"}
    assert status == {1: "done", 2: "withdrawn", 3: "waiting"}
    durun("resume", id, exit=3)
    assert words(durun)[2:] == ["a"]


def test_what_has_no_undo_is_not_repeated_without_a_word(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: 'echo a >> $LEDGER', next: b}\n  b: {run: 'echo b >> $LEDGER', compensate: {run: 'echo undo b >> $LEDGER'}, next: w}\n  w: {wait: {signal: go}, next: succeeded}\n"
    )
    id = durun.start(3)
    assert "a (visit 1) is done, and has no undo" in durun("rewind", id, "a", "--undo", exit=2).stderr
    durun("rewind", id, "a", "--undo", "--repeat")
    durun("resume", id, exit=3)
    assert durun.lines() == ["a", "b", "undo b", "a", "b"]


def test_an_undo_that_fails_blocks_and_the_run_goes_back_once_that_is_settled(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: 'echo a >> $LEDGER', compensate: {run: 'test -e mended && echo undo a >> $LEDGER'}, next: w}\n  w: {wait: {signal: go}, next: succeeded}\n"
    )
    id = durun.start(3)
    durun("rewind", id, "a", "--undo")
    doc = durun.show(id)
    assert (doc["status"], doc["reason"]) == ("blocked", "undo_failed") and doc["undoing"]["rewind"]["state"] == "a"
    for asked in ([], ["--repeat"], ["--undo"]):
        assert "is being undone" in durun("rewind", id, "a", *asked, exit=10).stderr
    (durun.folder / "mended").write_text("")
    assert "stands before a again" in durun("compensate", id, exit=3).stderr
    assert durun.lines() == ["a", "undo a"] and durun.show(id)["state"] == "a"
    durun("resume", id, exit=3)
    assert durun.lines() == ["a", "undo a", "a"] and durun.show(id)["status"] == "waiting"


def test_a_run_that_has_succeeded_is_taken_back_and_one_that_was_cancelled_is_not(durun: Program) -> None:
    durun.plan(
        "start: a\noutput: done\nstates:\n  a: {run: 'echo a >> $LEDGER', idempotent: true, next: b}\n  b: {wait: {signal: go}, next: succeeded}\n"
    )
    id = durun.start(3)
    durun("signal", id, "go", "--resume")
    durun("rewind", id, "b")
    doc = durun.show(id)
    assert doc["status"] == "waiting" and doc["output"] is None and doc["ended_at"] is None
    durun("signal", id, "go", "--resume")
    assert durun("output", id).stdout.strip() == "done"
    other = durun.start(3)
    durun("cancel", other, exit=4)
    assert "cancelled" in durun("rewind", other, "a", "--repeat", exit=10).stderr


def test_nothing_goes_back_over_a_migration(durun: Program) -> None:
    id = begun(durun)
    durun.plan(PLAN.replace("w: {wait", "w: {description: x, wait"))
    durun("migrate", id, "plan.yaml")
    assert "under another plan" in durun("rewind", id, "a", "--repeat", exit=10).stderr


def test_a_run_that_has_not_failed_is_not_told_to_begin_again_at_a_state(durun: Program) -> None:
    plan = "start: a\nversion: '1'\nstates:\n  a: {run: 'true', next: w}\n  w: {wait: {signal: go}, next: succeeded}\n"
    durun.plan(plan)
    id = durun.start(3)
    durun.plan(plan.replace("'1'", "'2'"))
    durun("migrate", id, "plan.yaml")
    assert f"once it has failed, `durun resume {id} --from a`" in durun("rewind", id, "a", "--repeat", exit=10).stderr
    assert "only one that failed" in durun("resume", id, "--from", "a", exit=10).stderr


def test_a_state_that_a_migration_renamed_was_there_under_another_plan(durun: Program) -> None:
    durun.plan("start: a\nstates:\n  a: {run: 'true', next: b}\n  b: {run: 'false', next: succeeded}\n")
    id = durun.start(1)
    durun.plan("start: c\nstates:\n  c: {run: 'true', next: d}\n  d: {run: 'false', next: succeeded}\n")
    durun("migrate", id, "plan.yaml", "--map", "a=c", "--map", "b=d")
    said = durun("rewind", id, "a", "--repeat", exit=10).stderr
    assert "never" not in said and "the one it has now has no such state" in said
    assert f"under another plan: `durun resume {id} --from c`" in durun("rewind", id, "c", "--repeat", exit=10).stderr
    assert "has never been in 'nowhere'" in durun("rewind", id, "nowhere", "--repeat", exit=10).stderr


def test_killed_while_it_undoes_it_goes_on_and_goes_back_once(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: 'echo a >> $LEDGER', compensate: {run: 'echo undo a >> $LEDGER; while test ! -e go; do sleep 0.05; done', idempotent: true}, next: w}\n  w: {wait: {signal: go}, next: succeeded}\n"
    )
    id = durun.start(3)
    going = durun.begin("rewind", id, "a", "--undo")
    until(lambda: "undo a" in durun.lines())
    os.kill(going.pid, 9)
    going.communicate()
    (durun.folder / "go").write_text("")
    durun("resume", id, exit=3)
    assert durun.lines() == ["a", "undo a", "a"] and durun.show(id)["status"] == "waiting"


def test_what_was_not_begun_before_it_went_back_is_not_waited_for(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: 'echo a >> $LEDGER', compensate: {run: 'echo undo a >> $LEDGER'}, next: w}\n  w: {pass: {}, next: failed}\n"
    )
    id = durun.start(1)
    said = durun("resume", id, exit=10).stderr
    assert f"durun resume {id} --from STATE" in said and f"durun rewind {id} STATE" in said
    assert "is failed again" in durun("rewind", id, "w").stderr
    durun("rewind", id, "a", "--repeat")
    durun("rewind", id, "a", "--repeat")
    doc = durun.show(id)
    assert [e["status"] for e in doc["effects"]] == ["done", "withdrawn", "waiting"]
    assert [(u["visit"], u["status"]) for u in doc["undo"]] == [(3, "registered"), (2, "not_needed"), (1, "owed")]
    durun("cancel", id, exit=4)
    assert [u["status"] for u in durun.show(id)["undo"]] == ["not_needed", "not_needed", "owed"]
    durun("compensate", id, exit=4)
    assert durun.lines() == ["a", "undo a"]


def test_what_was_done_once_inside_a_step_is_undone_with_it(durun: Program) -> None:
    once = f"{sys.executable} -m durun once"
    durun.plan(
        f"""
start: a
states:
  a: {{run: '{once} x --undo "echo undo x >> $LEDGER" -- true; {once} y -- true', idempotent: true, next: w}}
  w: {{wait: {{signal: go}}, next: succeeded}}
"""
    )
    id = durun.start(3)
    said = durun("rewind", id, "a", "--undo", exit=2).stderr
    assert "a/once:y (visit 1) is done, and has no undo" in said
    durun("rewind", id, "a", "--undo", "--repeat")
    assert durun.lines() == ["undo x"]
    assert [(u["path"], u["status"]) for u in durun.show(id)["undo"]] == [("a/once:x", "undone")]


def test_messages_that_are_not_delivered_are_named(durun: Program) -> None:
    durun.plan(
        """
start: a
states:
  a: {run: 'test -e well', background: true, idempotent: true, next: w}
  w: {wait: {signal: go}, next: succeeded}
"""
    )
    id = durun.start(3)
    assert f"`durun outbox deliver {id}` first, or `durun outbox drop`" in durun("rewind", id, "a", "--undo", exit=10).stderr
    assert "2 of its messages are still left to be delivered" in durun("rewind", id, "a", "--repeat").stderr


def test_what_a_map_gave_in_an_earlier_round_is_not_asked_for_where_the_run_goes_back_to_it(durun: Program) -> None:
    durun.plan("""
vars: {n: 0, got: []}
start: each
states:
  each:
    map: {items: '[vars.n, vars.n + 10]', start: s, states: {s: {pass: , next: succeeded}}, output: '${{ item }}'}
    assign: {n: '${{ vars.n + 1 }}', got: '${{ vars.got + output }}'}
    next: more
  more: {choice: [{when: vars.n < 2, next: each}, {next: succeeded}]}
output: '${{ vars.got }}'
""")
    run = durun.start()
    durun("rewind", run, "each", "--repeat")
    durun("resume", run)
    assert durun.show(run)["output"] == [0, 10, 1, 11]


def test_what_stood_inside_a_state_when_the_run_went_back_counts_its_visits_on(durun: Program) -> None:
    durun.plan("""
start: each
states:
  each:
    map:
      items: '[0]'
      start: fan
      states:
        fan:
          parallel: {branches: {b: {start: ask, states: {ask: {approval: {message: m}, next: w}, w: {wait: {signal: go}, next: succeeded}}}}}
          next: succeeded
    next: succeeded
""")
    run = durun.start(3)
    for visit in (1, 2, 3):
        durun("approve", run, "each[0].fan.b.ask")
        told = json.loads(durun("history", run, "--json").stdout)["events"]
        entered = [e["visit"] for e in told if (e["kind"], e["path"]) == ("entered", "each[0].fan.b.ask")]
        assert entered == [*range(1, visit + 1)], "one that never ended keeps its number too"
        durun("rewind", run, "each", "--repeat")
        durun("resume", run, exit=3)


def test_compensate_does_not_wait_for_a_driver_that_goes_on_from_the_state_to_which_it_went_back(durun: Program) -> None:
    durun.plan(
        "start: a\nstates:\n  a: {run: 'echo a >> $LEDGER', compensate: {run: 'test -e mended && echo undo a >> $LEDGER'}, next: w}\n  w: {wait: {signal: go}, next: succeeded}\n"
    )
    id = durun.start(3)
    durun("rewind", id, "a", "--undo")
    driver = durun.begin("resume", id, "--wait")
    until(lambda: (durun.show(id)["driver"] or {}).get("alive"))
    (durun.folder / "mended").write_text("")
    durun("compensate", id, exit=None)
    until(lambda: durun.lines() == ["a", "undo a", "a"])
    durun("cancel", id, exit=4)
    assert driver.wait(30) == 4


def test_an_answer_is_what_it_was_also_where_nothing_is_filled_in_and_a_message_has_no_end_of_its_own(durun: Program) -> None:
    """What is empty is left out of the history, and a driver hears an answer later than it was given."""
    durun.plan("""
start: ask
states:
  ask: {approval: {message: hm}, next: tell}
  tell: {run: 'true', background: true, idempotent: true, next: n}
  n: {choice: [{when: visit == 1, next: b}, {next: w}]}
  b: {run: 'cat >> $LEDGER; echo >> $LEDGER', stdin: '${{ [states.ask.output, states.tell.exit] }}', next: ask}
  w: {wait: {signal: go}, next: succeeded}
""")
    id = durun.start(3)
    durun("approve", id, "--data", "{}", "--resume", exit=3)
    durun("approve", id, "--data", '"x"', "--resume", exit=3)
    durun("rewind", id, "b", "--repeat")
    durun("resume", id, exit=3)
    first, again = durun.lines()
    assert first == again and json.loads(first)[0]["data"] == {}

"""`durun db check`: it finds nothing in a file that is whole, and each thing that is broken on purpose."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from program import Program, until

from durun.store.audit import INVARIANTS, audit
from durun.store.file import File

LONG = "# " + "x" * 300
PLAN = f"""
vars: {{n: 0}}
start: a
states:
  a: {{run: 'echo a >> "$LEDGER"', output: text, assign: {{n: '${{{{ vars.n + 1 }}}}'}}, next: w}}
  w: {{wait: 1ms, next: b}}
  b: {{run: "{LONG}\\nexit 3", catch: [{{on: [exit], next: c}}], next: succeeded}}
  c: {{run: 'echo c >> "$LEDGER"', next: rest}}
  rest: {{wait: 1h, next: succeeded}}
"""
EACH = """
start: m
states:
  m:
    map:
      items: '["x.y"]'
      label: '${{ item }}'
      start: p
      states: {p: {parallel: {branches: {l: {start: w, states: {w: {wait: {signal: go}, next: succeeded}}}}}, next: succeeded}}
    next: succeeded
"""
DOUBT = "start: a\nstates: {a: {run: 'echo d >> \"$LEDGER\"; sleep 60', probe: {run: 'sleep 0.2; exit 7'}, next: succeeded}}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file with a run that waits, one whose branch in an item does, one that has succeeded, one that has failed, and one in doubt."""
    durun = Program(tmp_path_factory.mktemp("made"))
    durun.plan(PLAN)
    durun("start", "plan.yaml", "--id", "waits", "--no-wait", exit=3)
    durun("resume", "waits", "--no-wait", exit=3)  # a wait of 1 ms may not have been over for who began it
    durun.plan("start: a\nstates: {a: {run: 'true', next: succeeded}}\n", "ok.yaml")
    durun("start", "ok.yaml", "--id", "ended")
    durun.plan(f"start: a\nstates: {{a: {{run: '{sys.executable} -m durun once x -- true', next: succeeded}}}}\n", "once.yaml")
    durun("start", "once.yaml", "--id", "once")
    durun.plan("start: a\nstates: {a: {run: 'false', next: succeeded}}\n", "bad.yaml")
    durun("start", "bad.yaml", "--id", "fails", exit=1)
    durun.plan("start: a\nstates: {a: {run: 'false', background: true, idempotent: true, next: succeeded}}\n", "leaves.yaml")
    durun("start", "leaves.yaml", "--id", "leaves")
    durun.plan(EACH, "each.yaml")
    durun("start", "each.yaml", "--id", "each", exit=3)
    durun.plan(DOUBT, "doubt.yaml")
    begun = durun.begin("start", "doubt.yaml", "--id", "doubt")
    until(lambda: "d" in durun.lines())
    durun.kill_all()
    begun.communicate()
    durun("resume", "doubt", exit=9)
    db = apsw.Connection(str(durun.db))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    yield durun.db
    durun.end()


@pytest.fixture
def whole(durun: Program, made: Path) -> Program:
    shutil.copy(made, durun.db)
    durun.audited = False
    return durun


def break_it(durun: Program, *statements: str) -> None:
    db = apsw.Connection(str(durun.db))
    db.execute("PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON").fetchall()
    for statement in statements:
        db.execute(statement).fetchall()
        assert db.changes() or statement.startswith(("DROP", "CREATE")), statement
    db.close()


def found(durun: Program, exit: int) -> Any:
    return json.loads(durun("db", "check", "--json", exit=exit).stdout)


def test_a_whole_file_is_well_and_says_what_was_looked_at(whole: Program) -> None:
    doc = found(whole, 0)
    assert doc["broken"] == [] and doc["looked_at"]["runs"] == 7
    assert doc["looked_at"]["effects"] == len(whole.show("waits")["effects"]) + 1 + 1 + 1 + 2 + 2
    said = whole("db", "check")
    assert said.stdout == "" and "well" in said.stderr and "7 runs" in said.stderr


WAITS = "(SELECT no FROM runs WHERE id = 'waits')"
ENDED = "(SELECT no FROM runs WHERE id = 'ended')"
LEAVES = "(SELECT no FROM runs WHERE id = 'leaves')"
ONCE = "(SELECT no FROM runs WHERE id = 'once')"
FAILS = "(SELECT no FROM runs WHERE id = 'fails')"
DOUBTFUL = "(SELECT no FROM runs WHERE id = 'doubt')"
EACH_ONE = "(SELECT no FROM runs WHERE id = 'each')"
BREAKS = [
    ("integrity", None, "UPDATE runs SET status = 'asleep' WHERE id = 'waits'"),
    ("foreign_keys", None, "UPDATE runs SET driver = 'nobody' WHERE id = 'waits'"),
    ("schema", None, "DROP INDEX runs_open"),
    ("schema", None, "CREATE TABLE mine (x)"),
    ("onces", "once", f"DELETE FROM onces WHERE run = {ONCE}"),
    ("onces", "once", f"UPDATE onces SET stdout = NULL WHERE run = {ONCE}"),
    ("onces", "once", f"UPDATE onces SET step = 7 WHERE run = {ONCE}"),
    ("onces", "once", f"UPDATE effects SET kind = 'run' WHERE run = {ONCE} AND no = -1"),
    ("json_well_formed", "waits", "UPDATE runs SET vars = '{' WHERE id = 'waits'"),
    ("json_well_formed", "ended", f"UPDATE history SET data = 'x' WHERE run = {ENDED} AND no = 1"),
    ("json_well_formed", "ended", f"UPDATE effects SET output = 'x' WHERE run = {ENDED}"),
    ("digests", "ended", "UPDATE plans SET canonical = canonical || ' ' WHERE digest = (SELECT plan FROM runs WHERE id = 'ended')"),
    ("digests", None, "UPDATE literals SET text = 'exit 0'"),
    ("digests", None, "UPDATE literals SET text = x'00'"),
    ("position", "waits", f"DELETE FROM positions WHERE run = {WAITS}"),
    ("position", "waits", "UPDATE runs SET state = 'a' WHERE id = 'waits'"),
    ("position", "waits", "UPDATE runs SET due = 1 WHERE id = 'waits'"),
    ("states_of_the_plan", "waits", f"UPDATE states SET state = 'gone' WHERE run = {WAITS} AND state = 'w'"),
    ("states_of_the_plan", "ended", f"UPDATE positions SET state = 'gone' WHERE run = {ENDED}"),
    ("ended", "ended", "UPDATE runs SET ended_at = NULL WHERE id = 'ended'"),
    ("ended", "waits", "UPDATE runs SET ended_at = 5 WHERE id = 'waits'"),
    ("ended", "ended", f"UPDATE effects SET status = 'begin' WHERE run = {ENDED}"),
    ("ended", "ended", f"UPDATE positions SET phase = 'acting' WHERE run = {ENDED}"),
    ("ended", "ended", f"INSERT INTO notes (run, kind, data, by, at) VALUES ({ENDED}, 'cancel', '{{}}', 'me', 1)"),
    ("messages", "leaves", f"UPDATE messages SET status = 'delivered' WHERE run = {LEAVES}"),
    ("messages", "leaves", f"UPDATE messages SET place = 'here' WHERE run = {LEAVES}"),
    ("messages", "leaves", f"UPDATE messages SET due = 7 WHERE run = {LEAVES}"),
    ("messages", "leaves", f"UPDATE messages SET effect = 7 WHERE run = {LEAVES}"),
    ("paused", "waits", "UPDATE runs SET status = 'paused' WHERE id = 'waits'"),
    ("driver", "waits", "UPDATE runs SET driver = 'nobody' WHERE id = 'waits'"),
    ("effect_of_a_position", "fails", f"UPDATE positions SET effect = 9 WHERE run = {FAILS}"),
    ("effect_of_a_position", "fails", f"UPDATE effects SET state = 'other' WHERE run = {FAILS}"),
    ("effect_of_a_position", "doubt", f"UPDATE effects SET status = 'not_done' WHERE run = {DOUBTFUL} AND kind = 'run'"),
    ("effect_of_a_position", "doubt", f"UPDATE positions SET asking = 9 WHERE run = {DOUBTFUL}"),
    ("effect_of_a_position", "doubt", f"UPDATE positions SET phase = 'probing', asking = 2 WHERE run = {DOUBTFUL}"),
    ("under_way", "waits", f"UPDATE effects SET status = 'waiting', place = NULL WHERE run = {WAITS} AND no = 1"),
    ("under_way", "fails", f"UPDATE effects SET status = 'begin', place = NULL WHERE run = {FAILS}"),
    ("under_way", "fails", f"UPDATE effects SET status = 'waiting', place = 'x' WHERE run = {FAILS}"),
    ("effect_numbers", "waits", f"DELETE FROM effects WHERE run = {WAITS} AND no = 2"),
    ("effect_numbers", "ended", "UPDATE runs SET next_effect = 1 WHERE id = 'ended'"),
    ("keys", "waits", f"UPDATE effects SET key = 'same' WHERE run = {WAITS} AND no < 3"),
    ("keys", "ended", f"UPDATE effects SET key = '' WHERE run = {ENDED}"),
    ("scripts", "waits", "DELETE FROM literals"),
    ("visits", "ended", f"UPDATE states SET visits = 0 WHERE run = {ENDED}"),
    ("visits", "ended", f"UPDATE states SET effect = 7 WHERE run = {ENDED}"),
    ("items", "waits", f"UPDATE positions SET phase = 'inside', data = json_set(data, '$.total', 2) WHERE run = {WAITS}"),
    ("begun", "each", f"DELETE FROM positions WHERE run = {EACH_ONE} AND scope = 'm[x.y]'"),
    ("begun", "each", f"DELETE FROM positions WHERE run = {EACH_ONE} AND scope = 'm[x.y].p.l'"),
    ("begun", "each", f"UPDATE positions SET scope = 'm[x].p.l' WHERE run = {EACH_ONE} AND scope = 'm[x.y].p.l'"),
    ("undos", "ended", f"INSERT INTO undos (run, effect, status, key, error) VALUES ({ENDED}, 7, 'owed', 'k', '')"),
    ("places", "ended", f"INSERT INTO places (name, run, effect, at, boot, clock, open) VALUES ('l', {ENDED}, 1, 1, 'b', 1, 1)"),
    ("queue", "waits", f"INSERT INTO queue (run, scope, name, since) VALUES ({WAITS}, '', 'l', 1)"),
    ("queue", "waits", f"UPDATE positions SET phase = 'queued', data = '{{\"wants\": {{\"limit\": \"l\"}}}}' WHERE run = {WAITS}"),
    ("groups", "doubt", f"INSERT INTO grouped (run, name) VALUES ({WAITS}, 'g'), ({DOUBTFUL}, 'g')"),
    ("history_without_gaps", "waits", f"DELETE FROM history WHERE run = {WAITS} AND no = 2"),
    ("large", "ended", "UPDATE runs SET input = NULL WHERE id = 'ended'"),
    ("large", "waits", f"INSERT INTO large (run, what, text) VALUES ({WAITS}, 'vars', '{{}}')"),
    ("history_without_gaps", "ended", "UPDATE runs SET events = events + 1 WHERE id = 'ended'"),
    ("history_without_gaps", "ended", f"UPDATE history SET no = no - 1 WHERE run = {ENDED}"),
    ("history_kinds", "ended", f"UPDATE history SET kind = 'dreamt' WHERE run = {ENDED} AND no = 1"),
    ("history_kinds", "ended", f"UPDATE history SET data = json_set(data, '$.effect', 9) WHERE run = {ENDED} AND kind = 'left'"),
    ("of_a_run", "number 77", f"UPDATE history SET run = 77 WHERE run = {ENDED}"),
    ("status", "waits", "UPDATE runs SET status = 'running' WHERE id = 'waits'"),
    ("status", "doubt", "UPDATE runs SET reason = 'cwd_gone' WHERE id = 'doubt'"),
    ("status", "waits", f"UPDATE positions SET data = '[]' WHERE run = {WAITS}"),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "run", "statement"), BREAKS)
def test_what_is_broken_is_named_with_its_run(whole: Program, invariant: str, run: str | None, statement: str) -> None:
    break_it(whole, statement)
    file = File(str(whole.db), create=False)
    broken = audit(file).broken
    file.close()
    assert (invariant, run) in [(b.invariant, b.run) for b in broken], broken


def test_every_invariant_was_broken_here() -> None:
    assert {name for name, _, _ in BREAKS} == {*INVARIANTS, "status"}


def test_what_is_broken_is_said_with_exit_8_and_in_json(whole: Program) -> None:
    break_it(whole, f"DELETE FROM history WHERE run = {WAITS} AND no = 2")
    said = whole("db", "check", exit=8)
    assert said.stdout.startswith("history_without_gaps: run waits: ") and "broken in 1" in said.stderr
    doc = found(whole, 8)
    assert [(b["invariant"], b["run"]) for b in doc["broken"]] == [("history_without_gaps", "waits")]


def test_a_file_damaged_within_is_found(whole: Program) -> None:
    db = apsw.Connection(str(whole.db))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    [(page,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'history'").fetchall()
    [(size,)] = db.execute("PRAGMA page_size").fetchall()
    db.close()
    data = bytearray(Path(whole.db).read_bytes())
    data[(page - 1) * size : page * size] = b"\xa5" * size
    Path(whole.db).write_bytes(data)
    said = whole("db", "check", exit=8)
    assert "Traceback" not in said.stderr and "fault of its own" not in said.stderr


def test_a_file_that_is_not_there_is_exit_8(durun: Program) -> None:
    assert json.loads(durun("db", "check", "--json", exit=8).stdout)["error"]["code"] == "store_unusable"


def test_it_can_be_asked_while_runs_are_driven(durun: Program) -> None:
    durun.plan(
        "vars: {n: 0}\nstart: a\nstates: {a: {run: ['true'], assign: {n: '${{ vars.n + 1 }}'}, next: c}, c: {choice: [{when: 'vars.n < 150', next: a}, {next: succeeded}]}}\n"
    )
    begun = durun.begin("start", "plan.yaml")
    asked = 0
    while begun.poll() is None:
        if durun.db.exists():
            asked += durun("db", "check", exit=None).returncode == 0
    assert begun.wait(30) == 0 and asked
    assert found(durun, 0)["broken"] == []


def test_a_length_of_a_poll_that_is_none_leaves_no_intent_behind(durun: Program) -> None:
    durun.plan(
        "input: {d: {type: string, default: nonsense}}\nstart: a\nstates: {a: {run: ['true'], idempotent: true, poll: {until: 'true', for: '${{ input.d }}'}, next: succeeded}}\n"
    )
    assert durun.show(durun.start(1))["error"]["name"] == "expression"
    assert found(durun, 0)["looked_at"]["effects"] == 0

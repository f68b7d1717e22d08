"""Moves in the file: one commit a step, the fence, notes, and a checkpoint that is read as it was written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import Driving

from durun.engine import real_world
from durun.errors import Held, Superseded
from durun.machine.events import Cancel
from durun.machine.model import Status

LOOP = """
durun: 1
name: loop
vars: {i: 0, seen: []}
start: more
states:
  more:
    choice: [{when: vars.i < 20, next: work}, {next: succeeded}]
  work:
    run: [/bin/true]
    assign: {i: '${{ vars.i + 1 }}', seen: '${{ vars.seen + [{"at": vars.i, "big": 1.5}] }}'}
    next: more
"""
FAILS = """
durun: 1
name: fails
vars: {n: null}
start: a
states:
  a: {run: [sh, -c, 'echo "{\\"x\\": [1, null, 2.5]}"'], output: json, assign: {n: '${{ output }}'}, next: b}
  b: {run: 'echo oops >&2; exit 3', retry: {max_attempts: 5, initial_interval: 1h}, next: succeeded}
"""
MAP = """
durun: 1
name: many
start: each
states:
  each: {map: {items: '[1, 2, 3, 4, 5]', run: [/bin/true], concurrency: 2}, next: succeeded}
"""
STEP = {"positions", "states", "effects", "history", "runs"}


def test_a_step_is_one_commit(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    statements: list[str] = []
    driving.file.db.trace_v2(0x01, lambda event: statements.append(event["sql"]))  # SQLITE_TRACE_STMT
    driving.start(LOOP).drive()
    begun = [s for s in statements if s.startswith("BEGIN")]
    assert set(begun) <= {"BEGIN IMMEDIATE", "BEGIN"}
    writes = [s for s in begun if s == "BEGIN IMMEDIATE"]
    assert len(writes) == 21, "20 steps: the birth, and one commit for each end"
    driving.leave()


@pytest.mark.parametrize(("plan", "tables"), [(LOOP, STEP), (MAP, {*STEP, "items"})])
def test_what_a_step_writes_needs_no_table_of_its_own(tmp_path: Path, plan: str, tables: set[str]) -> None:
    driving = Driving(tmp_path)
    engine = driving.start(plan)
    statements: set[str] = set()
    driving.file.db.trace_v2(0x01, lambda event: statements.add(event["sql"]))
    engine.drive()
    driving.file.db.trace_v2(0, None)
    at_its_end = {s for s in statements if s.startswith("UPDATE runs") and " status = ?" in s}  # once a run
    written = [s for s in statements - at_its_end if s.startswith(("INSERT INTO", "UPDATE", "DELETE"))]
    assert {word for s in written for word in s.split()[1:3]} >= tables
    for statement in written:
        names = [row[1] for row in driving.file.db.execute("EXPLAIN " + statement, (None,) * statement.count("?"))]
        assert "OpenEphemeral" not in names, f"SQLite would build and drop a table for each row: {statement}"
    driving.leave()


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    engine = driving.start(FAILS)
    engine.drive(wait=False)
    again = driving.store.load(1)
    assert again.run == engine.at.run._replace(updated_at=again.run.updated_at)
    assert again.positions == engine.at.positions
    assert again.effects == engine.at.effects
    assert dict(again.states.items()) == engine.at.states
    driving.leave()


def test_history_is_numbered_without_gaps_and_can_rebuild_the_vars(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    engine = driving.start(LOOP)
    engine.drive()
    rows = driving.file.db.execute("SELECT no, json_extract(data, '$.vars.i') FROM history ORDER BY no").fetchall()
    assert [no for no, _ in rows] == list(range(1, len(rows) + 1))
    assert [i for _, i in rows if i is not None] == list(range(21))
    driving.leave()


def test_a_superseded_driver_finds_out_at_its_next_write(tmp_path: Path) -> None:
    first = Driving(tmp_path)
    engine = first.start(FAILS)
    engine.drive(wait=False)
    os.close(os.dup(first.commands._lock))
    second = Driving(tmp_path)
    with pytest.raises(Held, match="is driven by process"):
        second.take()
    second.store.take_over(1, second.identity, lambda place: False, real_world().now())
    before = driving_rows(first)
    with pytest.raises(Superseded):
        engine.move(Cancel())
    assert driving_rows(first) == before
    second.file.close()
    second.commands.close(keep=False)
    first.deliverer.close(keep=False)
    first.file.close()


def driving_rows(driving: Driving) -> list[object]:
    return driving.file.db.execute("SELECT seq, events, status FROM runs").fetchall()


def test_a_note_binds_the_next_driver_and_withdraws_what_has_not_begun(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    engine = driving.start(LOOP)
    driving.store.add_note(1, "cancel", {"grace": 1000}, "somebody", 0)
    engine.drive()
    assert engine.at.run.status is Status.CANCELLED
    assert driving.store.notes(1) == []
    effects = driving.file.db.execute("SELECT status FROM effects ORDER BY no").fetchall()
    assert effects == [("done",), ("withdrawn",)]
    driving.leave()


def test_a_note_that_is_not_possible_is_said_to_be_so_and_dropped(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    engine = driving.start(LOOP)
    data = {"how": "retry", "state": None, "output": None, "has_output": False, "note": ""}
    driving.store.add_note(1, "resolve", data, "somebody", 0)
    engine.drive()
    assert engine.at.run.status is Status.SUCCEEDED
    assert driving.store.notes(1) == []
    refused = driving.file.db.execute("SELECT data FROM history WHERE kind = 'refused'").fetchall()
    assert len(refused) == 1
    driving.leave()


def test_a_long_script_is_stored_once(tmp_path: Path) -> None:
    script = "# " + "x" * 3000 + "\n    true"
    text = LOOP.replace("run: [/bin/true]", "run: |\n      # " + "x" * 3000 + "\n      true")
    assert script
    driving = Driving(tmp_path)
    driving.start(text).drive()
    longest = driving.file.db.execute("SELECT max(length(request)), count(*) FROM effects").fetchall()
    assert longest[0][0] < 500 and longest[0][1] == 20
    assert driving.file.db.execute("SELECT count(*) FROM literals").fetchall() == [(1,)]
    driving.leave()


def test_a_note_to_a_run_that_has_ended_binds_nobody(tmp_path: Path) -> None:
    driving = Driving(tmp_path)
    driving.start(LOOP).drive()
    assert driving.store.add_note(1, "cancel", {"grace": 1000}, "somebody", 0) == 0
    assert driving.store.notes(1) == []
    driving.leave()


def test_a_place_that_cannot_be_made_is_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    from durun.errors import StoreUnusable
    from durun.outbox import new_commands

    with pytest.raises(StoreUnusable, match="cannot be used"):
        new_commands(str(tmp_path / "no" / "such"), "place")

"""What a run holds that is long lies beside its row, and its moves cost the same as those of a run that holds little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import Driving
from program import Program

from durun.store.audit import audit
from durun.store.file import File

LOOP = """
durun: 1
name: loop
input: {given: string}
vars: {i: 0, kept: KEPT}
start: work
states:
  work: {run: [/bin/true], next: more}
  more: {choice: [{when: visit < 12, next: work}, {next: succeeded}]}
"""
CHANGES = """
durun: 1
name: changes
input: {given: string}
vars: {text: short}
start: grow
states:
  grow: {pass: {}, assign: {text: '${{ input.given }}'}, next: first}
  first: {approval: {message: 'Go on?'}, next: shrink}
  shrink: {pass: {}, assign: {text: ''}, next: second}
  second: {approval: {message: 'Go on?'}, next: last}
  last: {pass: {}, assign: {text: '${{ input.given }}'}, next: succeeded}
"""
GIVEN = "é" * 30_000


@pytest.mark.parametrize("kept", ["''", "'${{ input.given }}'"])
def test_a_large_input_and_large_vars_cost_a_move_nothing(tmp_path: Path, kept: str) -> None:
    def pages(size: int) -> tuple[int, int]:
        """(written, read) by the moves of a run with so much input."""
        (tmp_path / str(size)).mkdir()
        driving = Driving(tmp_path / str(size))
        engine = driving.start(LOOP.replace("KEPT", kept), input={"given": "x" * size})
        kinds = apsw.SQLITE_DBSTATUS_CACHE_WRITE, apsw.SQLITE_DBSTATUS_CACHE_MISS
        before = [driving.file.db.status(kind)[0] for kind in kinds]
        engine.drive()
        written, read = (driving.file.db.status(kind)[0] - was for kind, was in zip(kinds, before, strict=True))
        driving.leave()
        return written, read

    small, large = pages(10), pages(2_000_000)
    assert small[0] > 12, "each move is written"
    assert large[0] <= small[0] * 1.2, "the pages of what does not change are not written"
    once = 2 * 2_000_000 // 4096  # the event of its birth holds them too: whoever looks for a place beside it may read that
    assert large[1] <= small[1] + 1.2 * once, "nor are they read with each move"


def held(durun: Program) -> tuple[Any, ...]:
    """(the run holds its input, its vars, in its row; what lies beside it)."""
    db = apsw.Connection(str(durun.db), flags=apsw.SQLITE_OPEN_READONLY)
    [(input, vars)] = db.execute("SELECT input IS NOT NULL, vars IS NOT NULL FROM runs WHERE id = 'r'").fetchall()
    beside = [what for (what,) in db.execute("SELECT what FROM large ORDER BY what")]
    [seen] = db.execute("SELECT input ->> 'given', vars ->> 'text' FROM run WHERE id = 'r'").fetchall()
    db.close()
    shown = durun.show("r")
    assert seen == (shown["input"]["given"], shown["vars"]["text"]), "the view, and what is shown"
    assert shown["input"] == {"given": GIVEN}
    file = File(str(durun.db), create=False)
    assert audit(file).broken == []
    file.close()
    return bool(input), bool(vars), beside, shown["vars"]["text"]


def test_vars_lie_beside_the_row_while_they_are_large(durun: Program) -> None:
    durun.plan(CHANGES)
    (durun.folder / "in.json").write_text(json.dumps({"given": GIVEN}))
    durun("start", "plan.yaml", "--id", "r", "--input", "in.json", "--no-wait", exit=3)
    assert held(durun) == (False, False, ["input", "vars"], GIVEN)
    durun("approve", "r", "first", "--resume", exit=3)
    assert held(durun) == (False, True, ["input"], "")
    durun("approve", "r", "second", "--resume")
    assert held(durun) == (False, False, ["input", "vars"], GIVEN)
    durun("start", "plan.yaml", "--id", "r", "--input", "in.json")  # the same run once more: it is there
    durun("db", "prune", "r")
    db = apsw.Connection(str(durun.db), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.execute("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM large)").fetchall() == [(0, 0)]
    db.close()


def test_an_input_that_a_migration_makes_small_or_large_is_where_it_belongs(durun: Program) -> None:
    plan = "durun: 1\nname: m\ninput: {MORE a: {type: string, default: x}}\nstart: ok\nstates: {ok: {approval: {message: 'On?'}, next: succeeded}}\n"
    durun.plan(plan.replace("MORE", ""))
    durun.plan(plan.replace("MORE", f"b: {{type: string, default: '{GIVEN}'}},"), "more.yaml")
    durun("start", "plan.yaml", "--id", "r", "--no-wait", exit=3)
    assert durun.show("r")["input"] == {"a": "x"}
    durun("migrate", "r", "more.yaml")
    assert durun.show("r")["input"] == {"a": "x", "b": GIVEN}
    durun("approve", "r", "ok", "--resume")
    durun("db", "check")

"""--json: one document in place of other stdout, for each command, errors too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from program import Program

from durun.cli.reader import COMMANDS, function

PLAN = "output: '${{ states.a.output }}'\nstart: a\nstates: {a: {run: 'echo hello', output: text, next: succeeded}}\n"
WAITS = "start: a\nstates: {a: {wait: 1h, next: succeeded}}\n"
FAILS = "start: a\nstates: {a: {run: 'exit 3', next: succeeded}}\n"

ASKS = "start: a\nstates:\n  a: {approval: {message: 'Go on?'}, next: b}\n  b: {wait: {signal: word}, next: succeeded}\n"
LEAVES = "start: a\nstates: {a: {run: 'false', background: true, idempotent: true, next: succeeded}}\n"

WELL = [  # command line, exit, a key of the document
    ("start plan.yaml", 0, "id"),
    ("start plan.yaml --id ok", 0, "id"),
    ("start plan.yaml --dry-run", 0, "stored"),
    ("start plan.yaml --detach", 0, "id"),
    ("start fails.yaml", 1, "id"),
    ("start waits.yaml --no-wait", 3, "id"),
    ("resume ok", 0, "id"),
    ("resume ok waits --no-wait", 3, "runs"),
    ("resume --all", 0, "runs"),
    ("resume fails --detach", 0, "id"),
    ("ls", 0, "runs"),
    ("show ok", 0, "id"),
    ("history ok", 0, "events"),
    ("logs ok", 0, "logs"),
    ("output ok", 0, "output"),
    ("output ok a", 0, "output"),
    ("wait ok", 0, "id"),
    ("wait waits --timeout 10ms", 124, "id"),
    ("cancel waits", 4, "id"),
    ("cancel waits --compensate", 4, "id"),
    ("pause waits", 0, "id"),
    ("pause --plan test", 0, "runs"),
    ("pause --all", 0, "held"),
    ("resolve fails --happened", 0, "id"),
    ("watch ok", 0, "id"),
    ("approve asks", 0, "id"),
    ("reject asks", 0, "id"),
    ("signal asks word", 0, "id"),
    ("inbox", 0, "inbox"),
    ("outbox ls leaves --all", 0, "messages"),
    ("work --once", 0, "moves"),
    ("outbox show leaves:1", 0, "request"),
    ("outbox deliver", 0, "depth"),
    ("outbox retry leaves --new-key", 0, "messages"),
    ("outbox drop leaves:1", 0, "messages"),
    ("compensate ok", 4, "id"),
    ("migrate waits waits.yaml --dry-run", 0, "states"),
    ("rewind fails a --repeat", 0, "id"),
    ("check plan.yaml", 0, "faults"),
    ("check bad.yaml", 7, "faults"),
    ("db path", 0, "path"),
    ("db check", 0, "broken"),
    ("db backup other.db", 0, "backup"),
    ("db restore b.db", 0, "blocked"),
    ("db prune", 0, "pruned"),
    ("db prune ok", 0, "pruned"),
    ("db prune --older-than 1d", 0, "pruned"),
    ("drain test", 0, "in_flight"),
    ("drain test --wait", 3, "in_flight"),
    ("drain test --off", 0, "drained"),
    ("init", 0, "templates"),
    ("init hello", 0, "files"),
    ("graph plan.yaml", 0, "nodes"),
    ("graph ok", 0, "nodes"),
    ("schema", 0, "$defs"),
    ("simulate plan.yaml", 0, "steps"),
    ("report ok", 0, "run"),
    ("docs", 0, "pages"),
    ("docs plan", 0, "text"),
]
REFUSED = [
    ("start bad.yaml", 7),
    ("start none.yaml", 7),
    ("start plan.yaml -i x", 2),
    ("start plan.yaml -i x=1", 7),
    ("start plan.yaml --id ///", 2),
    ("start waits.yaml --id ok", 7),
    ("start", 2),
    ("start waits.yaml --id ok --detach", 7),
    ("resume none", 5),
    ("resume", 2),
    ("resume fails --from nowhere", 7),
    ("resume ok --from a", 10),
    ("ls --status dreaming", 2),
    ("show none", 5),
    ("show ok --db /dev/null", 8),
    ("show", 2),
    ("history none", 5),
    ("logs none", 5),
    ("output waits", 10),
    ("outbox ls none", 5),
    ("work --once --concurrency 0", 2),
    ("outbox show leaves:9", 5),
    ("outbox show leaves", 2),
    ("outbox retry ok", 10),
    ("outbox drop nothing:1", 5),
    ("outbox deliver none", 5),
    ("wait none", 5),
    ("wait ok --timeout soon", 2),
    ("cancel ok", 10),
    ("pause ok", 10),
    ("cancel fails --compensate", 10),
    ("compensate none", 5),
    ("watch none", 5),
    ("approve ok", 10),
    ("reject asks nowhere", 10),
    ("signal asks never", 10),
    ("signal asks word --data {", 2),
    ("resolve fails --undone", 10),
    ("pause", 2),
    ("resolve ok --happened", 10),
    ("resolve ok", 2),
    ("check none.yaml", 7),
    ("db check --db /nowhere/x.db", 8),
    ("db backup plan.yaml", 10),
    ("db backup /nowhere/b.db", 8),
    ("db restore none.db", 2),
    ("db restore plan.yaml", 8),
    ("db prune none", 5),
    ("db prune waits", 10),
    ("drain test --wait --off", 2),
    ("logs ok nowhere", 10),
    ("init nothing", 2),
    ("init hello plan.yaml", 10),
    ("graph none", 5),
    ("graph bad.yaml", 7),
    ("schema --out none/x", 10),
    ("simulate bad.yaml", 7),
    ("simulate plan.yaml --answers none", 7),
    ("report none", 5),
    ("docs nothing", 2),
    ("nonsense", 2),
    ("show ok --nonsense", 2),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    durun = Program(tmp_path_factory.mktemp("made"))
    durun.plan(PLAN)
    durun.plan(WAITS, "waits.yaml")
    durun.plan(FAILS, "fails.yaml")
    durun.plan(ASKS, "asks.yaml")
    durun.plan("start: nowhere\nstates: {}\n", "bad.yaml")
    durun("start", "plan.yaml", "--id", "ok")
    durun("start", "waits.yaml", "--id", "waits", "--no-wait", exit=3)
    durun("start", "fails.yaml", "--id", "fails", exit=1)
    durun("start", "asks.yaml", "--id", "asks", exit=3)
    durun.plan(LEAVES, "leaves.yaml")
    durun("start", "leaves.yaml", "--id", "leaves")
    db = apsw.Connection(str(durun.db))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    durun("db", "backup", "b.db")
    yield durun.folder
    durun.end()


@pytest.fixture
def runs(durun: Program, made: Path) -> Program:
    for file in [durun.db.name, "b.db", *(p.name for p in made.glob("*.yaml"))]:
        shutil.copy(made / file, durun.folder / file)
    durun.adopt()
    return durun


def document(text: str) -> Any:
    assert text.endswith("\n") and text.count("\n") == 1
    return json.loads(text)


@pytest.mark.parametrize(("line", "exit", "key"), WELL)
def test_a_command_gives_one_document_and_nothing_else_on_stdout(runs: Program, line: str, exit: int, key: str) -> None:
    assert key in document(runs(*line.split(), "--json", exit=exit).stdout)


@pytest.mark.parametrize(("line", "exit"), REFUSED)
def test_a_refusal_is_one_document_too(runs: Program, line: str, exit: int) -> None:
    done = runs(*line.split(), "--json", exit=exit)
    found = document(done.stdout)
    if "faults" not in found:
        assert found["error"]["exit"] == exit and found["error"]["message"].splitlines()[0] in done.stderr


def test_every_command_takes_json_and_is_tried_here() -> None:
    tried = {name for name in COMMANDS for line, *_ in WELL if f"{line} ".startswith(name + " ")}
    takes = {name for name in COMMANDS if "json" in (function(name).__kwdefaults__ or {})}
    assert tried == takes == set(COMMANDS) - {"once"}  # the stdout of a once is that of its command

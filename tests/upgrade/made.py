"""A database with a run in each status, as text: what a release leaves behind for the tests of those that come after it.

`python tests/upgrade/made.py > tests/upgrade/N.sql`, with N the version of the file, is done once for each version that is released.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import apsw
import apsw.shell

sys.path.insert(0, str(Path(__file__).parent.parent))

from program import Program, until

HANGS = 'echo "$DURUN_RUN_ID $DURUN_STATE" >> "$LEDGER"; until [ -e "$LEDGER.go" ]; do sleep 0.05; done'
PLANS = {
    "hangs": f"start: a\nstates: {{a: {{run: '{HANGS}', next: b}}, b: {{run: 'echo b', next: succeeded}}}}\n",
    "asks": "start: a\nstates: {a: {approval: {message: 'Go on?'}, next: succeeded}}\n",
    "waits": "start: a\nstates: {a: {wait: 1s, next: succeeded}}\n",
    "ends": "output: '${{ states.a.output }}'\nvars: {n: 7, s: null, l: [1, 2.5], o: {k: true}, big: 9007199254740993}\n"
    "start: a\nstates: {a: {run: 'echo \"é ü\"', output: text, next: succeeded}}\n",
    "fails": "start: a\nstates: {a: {run: 'test -e \"$LEDGER.go\"', retry: {max_attempts: 2, initial_interval: 1ms}, next: succeeded}}\n",
    "undoes": "on_error: compensate\nstart: a\nstates:\n  a: {run: 'true', compensate: {run: 'echo undo'}, next: b}\n"
    "  b: {run: 'false', next: succeeded}\n",
    "undoing": "on_error: compensate\nstart: a\nstates:\n"
    f"  a: {{run: 'true', compensate: {{run: '{HANGS}', idempotent: true}}, next: b}}\n  b: {{run: 'false', next: succeeded}}\n",
}
STATUSES = {
    "interrupted": "running", "asks": "waiting", "timed": "waiting", "blocked": "blocked", "paused": "paused",
    "compensating": "compensating", "succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled",
    "compensated": "compensated",
}  # fmt: skip


def made(durun: Program) -> str:
    """The statements that make such a database."""
    for name, text in PLANS.items():
        durun.plan(text, f"{name}.yaml")
    durun("start", "ends.yaml", "--id", "succeeded")
    durun("start", "fails.yaml", "--id", "failed", exit=1)
    durun("start", "undoes.yaml", "--id", "compensated", exit=4)
    for id in ("asks", "paused", "cancelled"):
        durun("start", "asks.yaml", "--id", id, exit=3)
    durun("pause", "paused")
    durun("cancel", "cancelled", exit=4)
    durun("start", "waits.yaml", "--id", "timed", "--no-wait", exit=3)
    durun.begin("start", "hangs.yaml", "--id", "blocked")
    until(lambda: "blocked a" in durun.lines(), 60)
    durun.kill_all()
    durun("resume", "blocked", exit=9)
    durun.begin("start", "hangs.yaml", "--id", "interrupted")
    durun.begin("start", "undoing.yaml", "--id", "compensating")
    until(lambda: {"interrupted a", "compensating a~undo"} <= set(durun.lines()), 60)
    durun.kill_all()
    said = io.StringIO()
    db = apsw.Connection(str(durun.db))
    marks = [f"PRAGMA {name}={db.execute(f'PRAGMA {name}').fetchall()[0][0]};" for name in ("application_id", "user_version")]
    shell = apsw.shell.Shell(stdout=said, db=db)
    shell.process_command(".dump")
    db.close()
    return "\n".join([said.getvalue(), *marks, ""])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(made(Program(Path(folder))))

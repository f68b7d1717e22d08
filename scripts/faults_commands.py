"""What scripts/faults does a fault to unless it is told another kind: a plan of commands, and its promises."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator

from faults_kinds import Json, Kind
from faults_place import LINE, Place

LEFT = ["-e", "trace=recvfrom", "-e", "inject=recvfrom:signal=KILL:when=3"]  # how a driver dies that another resumes
PLAN = f"""
durun: 1
name: faults
pins: {{env: [LEDGER]}}
vars: {{n: 0, seen: 0}}
output: '${{{{ {{"n": vars.n, "seen": vars.seen}} }}}}'
start: first
states:
  first: {{run: '{LINE}', next: gives}}
  gives:
    run: [sh, -c, '{LINE}; cat']
    stdin: '{{"n": 3}}'
    output: json
    assign: {{n: '${{{{ output.n }}}}'}}
    next: flaky
  flaky:
    run: '{LINE}; test "$(grep -c ^flaky "$LEDGER")" -ge 2'
    retry: {{max_attempts: 5, initial_interval: 20ms, jitter: none}}
    next: rest
  rest: {{wait: 30ms, next: decide}}
  decide: {{choice: [{{when: vars.n == 3, next: looks}}, {{next: failed}}]}}
  looks:
    run: '{LINE}; grep -c ^looks "$LEDGER"'
    output: json
    idempotent: true
    poll: {{until: output >= 2, every: 20ms, for: 10m}}
    assign: {{seen: '${{{{ output }}}}'}}
    next: again
  again: {{run: '{LINE}; echo said; echo complained >&2', idempotent: true, next: asks}}
  asks:
    run: '{LINE}'
    probe: {{run: 'touch "$LEDGER"; grep -q "$DURUN_IDEMPOTENCY_KEY" "$LEDGER"'}}
    next: writes
  writes:
    run: |
      # a script that is long enough to be stored once, by its digest, and not with each request that has it: {"x" * 200}
      {LINE}
      echo '"written"' > "$DURUN_OUTPUT"
    timeout: 1m
    next: succeeded
"""
ONCE = ("first", "gives", "asks", "writes")
GIVES = {"gives": {"n": 3}, "writes": "written"}
STATES = (*ONCE, "flaky", "looks", "again")


MARKED = (
    ("driver", "kill", "mkdir", ""), ("driver", "kill", "openat", "journal"), ("driver", "kill EIO", "openat", "runs.db-wal"),
    ("driver", "kill ENOSPC EIO+", "fdatasync", ""), ("driver", "kill ENOSPC+ EIO", "pwrite64", "runs.db-wal"),
    ("driver", "kill", "sendto", "begin"), ("driver", "kill", "recvfrom", "ended"), ("driver", "kill", "unlink", "journal"),
    ("driver", "EIO", "pread64", "runs.db>"),
    ("keeper", "kill ENOSPC EIO+", "openat", "out"), ("keeper", "kill EIO+ ENOSPC+", "pwrite64", "about"),
    ("keeper", "kill EIO", "pwrite64", "begun"), ("keeper", "kill EIO+", "pwrite64", "ended"), ("keeper", "kill", "write", "ended"),
    ("keeper", "kill+ EIO+", "openat", "gate"), ("keeper", "EIO", "pread64", "gen.out|[0-9].out"), ("keeper", "kill", "wait4", ""),
    ("resume", "kill EIO", "pwrite64", "gate"), ("resume", "kill", "fdatasync", ""), ("resume", "EIO", "openat", "gate"), ("resume", "EIO", "pread64", "runs.db>"),
)  # fmt: skip


class Commands(Kind):
    """Commands of every policy: once, by a retry, polled, repeated with a key, asked for; with and without an output."""

    name = "commands"
    marked = MARKED
    files = {"plan.yaml": PLAN}

    def leave(self, place: Place, who: str) -> None:
        """A run whose driver was killed while its command ran."""
        if who == "resume":
            place.trace("driver", self.start("r"), place.folder / "left.log", LEFT)

    def resolve(self, place: Place, doc: Json, doubt: Json, wrong: list[str]) -> None:
        state = doubt["path"]
        effect = next(e for e in reversed(doc["effects"]) if e["path"] == state and e["kind"] == "run")
        mine = [line for line in place.lines() if line[3] == effect["key"]]
        happened = bool(mine)
        if state == "flaky":
            happened = len(mine) >= 2 and any(line[2] == str(effect["attempt"]) for line in mine)
        output = ["--output", json.dumps(GIVES[state])] if happened and state in GIVES else []
        exit, _, err = place.durun("resolve", "r", state, "--happened" if happened else "--retry", *output)
        if exit not in (0, 10):
            wrong.append(f"resolve {state}: exit {exit}:\n{err}")

    def of_ledger(self, place: Place) -> Iterator[str]:
        lines = place.lines()
        yield from in_ledger(lines)
        yield from in_file(place, lines)


def in_ledger(lines: list[list[str]]) -> Iterator[str]:
    """Each side effect once; more only where the plan allows it, and then with its key."""
    keys: dict[str, set[str]] = {}
    for state, visit, _, key in lines:
        keys.setdefault(key, set()).add(f"{state}#{visit}")
    times = Counter(line[0] for line in lines)
    for state in ONCE:
        if times[state] != 1:
            yield f"{state} happened {times[state]} times"
    if times["flaky"] != 2:
        yield f"flaky was tried {times['flaky']} times, not 2"
    if not times["again"] or times["looks"] < 2:
        yield f"again {times['again']} times, looks {times['looks']} times"
    for key, of in keys.items():
        if len(of) != 1:
            yield f"the key {key} is of {sorted(of)}"
    for state in ("flaky", "again"):
        if len({line[3] for line in lines if line[0] == state}) > 1:
            yield f"{state} changed its key"
    rounds = [(line[2], line[3]) for line in lines if line[0] == "looks"]
    if len({round for round, _ in rounds}) != len(rounds) or len({key for _, key in rounds}) != len(rounds):
        yield f"rounds of the poll, each with a number and a key of its own: {rounds}"
    if any(line[1] != "1" for line in lines):
        yield "a state was visited again"


def in_file(place: Place, lines: list[list[str]]) -> Iterator[str]:
    """The database says of each side effect what the ledger says."""
    db = sqlite3.connect(f"file:{place.db}?mode=ro", uri=True)
    try:
        runs = db.execute("SELECT id, status, output FROM run").fetchall()
        if runs != [("r", "succeeded", runs[0][2])] or json.loads(runs[0][2])["n"] != 3:
            yield f"the run is {runs}"
        yield from of_effects(db, lines)
    finally:
        db.close()


def of_effects(db: sqlite3.Connection, lines: list[list[str]]) -> Iterator[str]:
    rows = db.execute("SELECT state, visit, attempt, key, status FROM effect WHERE kind = 'run'").fetchall()
    effects = {state: (visit, attempt, key, status) for state, visit, attempt, key, status in rows}
    if len(rows) != len(effects) or set(effects) != set(STATES):
        yield f"effects: {rows}"
        return
    last = {line[0]: line for line in lines}
    for state, (visit, attempt, key, status) in effects.items():
        if status != "done":
            yield f"{state} is {status}"
        if last.get(state) != [state, str(visit), str(attempt), key]:
            yield f"{state}: the effect log has attempt {attempt}, key {key}; the ledger {last.get(state)}"
    told = Counter()
    for state, kind, data in db.execute("SELECT state, kind, data FROM event WHERE kind IN ('attempt_ended','probed','resolved')"):
        data = json.loads(data)
        told[state] += {"attempt_ended": data.get("how") == "done", "probed": data.get("answer") == "yes"}.get(
            kind, data.get("how") == "happened"
        )
    if wrong := {state: told[state] for state in STATES if told[state] != (1 if state != "looks" else told[state] or 1)}:
        yield f"told as done: {wrong}"

"""One run survives anything: killed or failing at each call of its driver or keeper, from outside, by strace. Run by scripts/faults.

A case is WHO:FAULT:CALL:N. WHO is the driver, its keeper, or a later driver that resumes what one left that was killed; with `all`
everything dies in the moment in which the driver does. FAULT is kill, kill+ (so dies each keeper the driver begins), or an error that
the call gives: once (ENOSPC, EIO), or from then on (ENOSPC+, EIO+). A process that is killed just
before its Nth call is one that was killed anywhere after the call before: between two calls that change something nothing can be
seen from outside, so the calls that change something are all moments there are.

Side effects go into a ledger, a file outside of durun. After the fault the run is resumed, and a person who is asked answers by the
ledger. In the end: each side effect once, or where the plan allows a repeat with its key; ledger and effect log agree; history has
no gaps; the database is whole; nothing is left running; the run has succeeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

CANNOT = 77  # exit: nothing can be traced here
LIMIT = 90.0  # s after which a command hangs
LINE = 'echo "$DURUN_STATE $DURUN_VISIT $DURUN_ATTEMPT $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'
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

# the calls that change something, or are the moment in which another process is told or heard
CHANGE = (
    "write", "pwrite64", "writev", "fdatasync", "fsync", "ftruncate", "fallocate", "openat", "rename", "unlink", "unlinkat", "mkdir",
    "rmdir", "clone", "clone3", "vfork", "execve", "sendto", "sendmsg", "recvfrom", "recvmsg", "read", "flock", "fcntl", "kill", "wait4",
    "waitid", "socketpair", "shutdown", "close", "exit_group",
)  # fmt: skip
QUIET = ("read", "fcntl", "close")  # of a driver: nothing of what they do is seen by anybody else
FAILING = ("write", "pwrite64", "fdatasync", "fsync", "ftruncate", "fallocate", "openat", "mkdir")
FAILING_BADLY = (*FAILING, "pread64", "unlink", "rmdir")  # by a disk that is broken, not full
WRITES = re.compile(r"O_CREAT|O_WRONLY|O_RDWR")
LEFT = ["-e", "trace=recvfrom", "-e", "inject=recvfrom:signal=KILL:when=3"]  # how a driver dies that another resumes
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
START = ["start", "plan.yaml", "--id", "r"]
AS_KEEPER = "import sys; sys.executable = sys.argv.pop(1); from durun.cli import main; main()"
SENSE = re.compile(r"resume|free some|again|mend|look at|wait")


class Case(NamedTuple):
    who: str
    fault: str
    call: str
    n: int

    def __str__(self) -> str:
        return f"{self.who}:{self.fault}:{self.call}:{self.n}"

    @classmethod
    def read(cls, text: str) -> Case:
        who, fault, call, n = text.split(":")
        return cls(who, fault, call, int(n))

    @property
    def inject(self) -> str:
        """What strace is told."""
        if self.fault.startswith("kill"):
            return f"inject={self.call}:signal=KILL:when={self.n}"
        return f"inject={self.call}:error={self.fault.rstrip('+')}:when={self.n}{'+' if self.fault.endswith('+') else ''}"

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.who, self.fault, self.call


class Found(NamedTuple):
    """What became of a case."""

    case: Case
    fired: bool
    doubts: int
    exit: int
    wrong: tuple[str, ...]
    folder: Path


class Place:
    """A folder with a plan, a database and a ledger; the program run in it as a person would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ledger, self.db = folder, folder / "ledger", folder / "runs.db"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.yaml").write_text(PLAN)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DURUN_")}
        self.env = {**kept, "DURUN_DB": str(self.db), "LEDGER": str(self.ledger), "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, words: list[str]) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; -100 for one that hangs."""
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace",
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.end()
            out, err = process.communicate()
            return -100, out, err
        return process.returncode, out, err

    def durun(self, *words: str) -> tuple[int, str, str]:
        return self.run([sys.executable, "-m", "durun", *words])

    def trace(self, who: str, log: Path, strace: list[str], *, always: bool = False) -> tuple[int, str, str]:
        """`durun start` with its driver, or its keeper, under strace."""
        words = ["strace", "-qq", "-y", "-s", "160", *strace]
        if who != "keeper":
            given = ["resume", "r"] if who == "resume" else START
            return self.run([*words, "-o", str(log), sys.executable, "-m", "durun", *given])
        python = self.folder / "python"
        first = "" if always else f'mkdir {shlex.quote(str(self.folder / "traced"))} 2>/dev/null || exec {sys.executable} "$@"\n'
        python.write_text(f'#!/bin/sh\n{first}exec {shlex.join(words)} -D -o "{log}.$$" {sys.executable} "$@"\n')
        python.chmod(0o700)
        return self.run([sys.executable, "-c", AS_KEEPER, str(python), *START])

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def processes(self) -> list[int]:
        """Living processes that carry this folder in their environment."""
        mark, found = f"DURUN_DB={self.db}\0".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX" and mark in (
                        entry / "environ"
                    ).read_bytes() + b"\0":
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def end(self) -> None:
        """As if the power went: all that is alive stops at one moment, then is gone."""
        end, stopped = time.monotonic() + 20, set[int]()
        while (fresh := set(self.processes()) - stopped) and time.monotonic() < end:
            for pid in fresh:
                send(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            send(pid, signal.SIGKILL)
        while self.processes() and time.monotonic() < end:
            time.sleep(0.01)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# --- one case ---


def life(case: Case, folder: Path) -> Found:
    """A run with its fault, resumed until it has ended, and held to its promises."""
    place, wrong = Place(folder), list[str]()
    log = folder / "strace.log"
    leave(place, case.who)
    words = ["-e", f"trace={case.call}", "-e", case.inject]
    exit, _, err = place.trace(case.who, log, words, always=case.fault.endswith("+"))
    (folder / "stderr").write_text(err)
    logs = "".join(p.read_text(errors="replace") for p in sorted(folder.glob("strace.log*")))
    fired = "+++ killed by SIGKILL" in logs if case.fault.startswith("kill") else "(INJECTED)" in logs
    if case.who == "all":
        place.end()
    wrong += first_end(case, fired, exit, err)
    doubts = finish(place, wrong)
    if doubts and case.who in ("driver", "resume"):
        wrong.append("a person was asked, though the keeper lived and knew")
    wrong += promises(place)
    place.end()
    return Found(case, fired, doubts, exit, tuple(wrong), folder)


def leave(place: Place, who: str) -> None:
    """For one who resumes: a run whose driver was killed while its command ran."""
    if who == "resume":
        place.trace("driver", place.folder / "left.log", LEFT)


def first_end(case: Case, fired: bool, exit: int, err: str) -> Iterator[str]:
    """How the command that met the fault may end."""
    if "Traceback" in err or "fault of its own" in err:
        yield f"a traceback, or a fault of its own:\n{err}"
    elif exit == -100:
        yield f"it hangs:\n{err}"
    elif case.fault.startswith("kill"):
        allowed = (0,) if not fired else (0, 9) if case.who == "keeper" else (-9,)
        allowed += (8,) if case.fault == "kill+" else ()  # each keeper died before it began anything
        if exit not in allowed:
            yield f"exit {exit}:\n{err}"
    elif exit == 9 and "not whole" in err:
        return  # it has happened, and what it gave could not be read: a person is asked
    elif exit not in (0, 8):
        yield f"exit {exit}, not 0 or 8:\n{err}"
    elif exit == 8 and not SENSE.search(err) and case.call != "write":
        yield f"exit 8 without a word of what to do:\n{err}"


def finish(place: Place, wrong: list[str]) -> int:
    """Goes on as a person would who finds the run somewhere. How often they were asked."""
    asked = 0
    for _ in range(30):
        exit, _, err = place.durun("resume", "r")
        if exit in (5, 8):  # it was never stored, so whoever wanted it starts it
            exit, _, err = place.durun(*START)
        if exit == 0:
            return asked
        if exit == 9:
            asked += answer(place, wrong)
        else:
            wrong.append(f"resume: exit {exit}:\n{err}")
            return asked
    wrong.append("the run never ended")
    return asked


def answer(place: Place, wrong: list[str]) -> int:
    """A person who is asked looks into the ledger."""
    doc = json.loads(place.durun("show", "r", "--json")[1])
    doubts = [w for w in doc["waiting_for"] if w["kind"] in ("in_doubt", "keeps_dying")]
    for doubt in doubts:
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
    if not doubts:
        wrong.append(f"blocked, and nothing is asked: {doc['status']} {doc['reason']} {doc['waiting_for']}")
    return len(doubts)


# --- the promises ---


def promises(place: Place) -> Iterator[str]:
    lines = place.lines()
    yield from of_ledger(lines)
    if place.db.exists():
        yield from of_file(place, lines)
    end = time.monotonic() + 20
    while (left := place.processes()) and time.monotonic() < end:
        time.sleep(0.05)
    if left:
        yield f"left running: {[(pid, cmdline(pid)) for pid in left]}"


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def of_ledger(lines: list[list[str]]) -> Iterator[str]:
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


def of_file(place: Place, lines: list[list[str]]) -> Iterator[str]:
    """The database is whole, and says of each side effect what the ledger says."""
    db = sqlite3.connect(f"file:{place.db}?mode=ro", uri=True)
    try:
        if (whole := db.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
            yield f"integrity_check: {whole}"
        if broken := db.execute("PRAGMA foreign_key_check").fetchall():
            yield f"foreign_key_check: {broken}"
        runs = db.execute("SELECT id, status, output FROM run").fetchall()
        if runs != [("r", "succeeded", runs[0][2])] or json.loads(runs[0][2])["n"] != 3:
            yield f"the run is {runs}"
        numbers = [no for (no,) in db.execute("SELECT no FROM event WHERE run = 'r' ORDER BY no")]
        if numbers != list(range(1, len(numbers) + 1)) or db.execute("SELECT events FROM runs").fetchall() != [(len(numbers),)]:
            yield f"history is numbered {numbers}"
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


# --- which cases there are ---


def calls_of(who: str, folder: Path) -> dict[str, list[tuple[int, str]]]:
    """What the driver or the keeper of a run without a fault calls from its first touch of the database's folder on: (N, line)."""
    place = Place(folder)
    leave(place, who)
    exit, _, err = place.trace(who, folder / "strace.log", [])
    wrong = [*([] if exit == 0 else [f"exit {exit}: {err}"]), *promises(place)]
    if wrong:
        raise SystemExit("without a fault: " + "; ".join(wrong))
    (log,) = folder.glob("strace.log*")
    count, found, begun = Counter[str](), dict[str, list[tuple[int, str]]](), False
    for line in log.read_text(errors="replace").splitlines():
        call = line.partition("(")[0]
        count[call] += 1
        begun = begun or (str(place.db) + ".d" in line and call != "execve")
        if begun and call in (*CHANGE, *FAILING_BADLY):
            found.setdefault(call, []).append((count[call], line))
    place.end()
    return found


def marked_cases(folder: Path) -> list[Case]:
    """The first and the last of those calls at which most is at stake."""
    cases, calls = [], {who: calls_of(who, folder / f"calls-{who}") for who in ("driver", "keeper", "resume")}
    for who, faults, call, what in MARKED:
        of = calls[who].get(call, [])
        numbers = [n for n, line in of if re.search(what, line)]
        if not numbers:
            raise SystemExit(f"no {who} calls {call} with {what}: {[line for _, line in of][:5]}")
        cases += [Case(who, fault, call, n) for fault in faults.split() for n in sorted({numbers[0], numbers[-1]})]
    return cases


def every_case(folder: Path, wanted: argparse.Namespace) -> list[Case]:
    cases = []
    for who in ("driver", "keeper", "resume"):
        for call, found in calls_of(who, folder / f"calls-{who}").items():
            numbers = [n for n, _ in found]
            if call in CHANGE and (who == "keeper" or call not in QUIET):
                cases += [Case(who, "kill", call, n) for n in numbers]
                cases += [Case("all", "kill", call, n) for n in numbers if who == "driver"]
                cases += [Case(who, "kill+", call, n) for n in numbers if who == "keeper"]
            if who == "keeper" and call == "write":  # its answers, which go to no disk
                continue
            if call in FAILING_BADLY:
                numbers = [n for n, line in found if call != "openat" or WRITES.search(line)]
                faults = [*(["ENOSPC", "ENOSPC+"] if call in FAILING else []), "EIO", "EIO+"]
                # a driver reads its own modules by the same call: on a full disk, reading goes on
                once = call == "openat" and who != "keeper"
                cases += [Case(who, fault, call, n) for fault in faults for n in numbers if not (once and fault.endswith("+"))]
    return [
        c for c in cases
        if (not wanted.who or c.who in wanted.who) and (not wanted.fault or c.fault in wanted.fault)
        and (not wanted.call or c.call in wanted.call)
    ]  # fmt: skip


# --- all of them, or some ---


class Tally:
    """What was found, kind by kind."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.found: list[Found] = []

    def add(self, found: Found) -> None:
        self.found.append(found)
        if len(self.found) % 100 == 0:
            print(f"{len(self.found)} cases", file=sys.stderr, flush=True)
        if found.wrong:
            again = f"scripts/faults --case {found.case}" + ("" if self.seed is None else f"   (drawn by --seed {self.seed})")
            print(f"VIOLATION {found.case}: strace -e {found.case.inject}\n  {again}\n  kept: {found.folder}", flush=True)
            for wrong in found.wrong:
                print("  " + wrong.rstrip().replace("\n", "\n    "), flush=True)
        else:
            shutil.rmtree(found.folder, ignore_errors=True)

    def lines(self) -> Iterator[str]:
        kinds: dict[tuple[str, str, str], list[Found]] = {}
        for found in self.found:
            kinds.setdefault(found.case.kind, []).append(found)
        yield f"{'kind':<28} {'calls':>6} {'fired':>6} {'exit 8':>6} {'doubts':>6} {'violations':>10}"
        for kind, of in [*sorted(kinds.items()), (("all", "", ""), self.found)]:
            name = " ".join(kind) if kind[1] else "everything"
            counts = len(of), sum(f.fired for f in of), sum(f.exit == 8 for f in of), sum(f.doubts for f in of)
            yield f"{name:<28} {counts[0]:>6} {counts[1]:>6} {counts[2]:>6} {counts[3]:>6} {sum(bool(f.wrong) for f in of):>10}"


def beyond(cases: list[Case], found: list[Found]) -> list[Case]:
    """The next call of each kind whose last one still was there: a series ends where nothing fires any more."""
    last = {c.kind: max(d.n for d in cases if d.kind == c.kind) for c in cases}
    fired = {(f.case.kind, f.case.n) for f in found if f.fired}
    openat = [k for k in last if k[2] == "openat" and k[1] != "kill"]  # only those that write
    return [Case(*kind, n + 1) for kind, n in last.items() if (kind, n) in fired and kind not in openat]


def enumerate_all(cases: list[Case], folder: Path, jobs: int, tally: Tally) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        while cases:
            found = []
            for one in pool.map(lambda c: life(c, folder / str(c).replace(":", "-")), cases):
                tally.add(one)
                found.append(one)
            cases = beyond(cases, found)


def draw(cases: list[Case], folder: Path, jobs: int, tally: Tally, budget: float) -> None:
    """As many as fit into the budget, in the order that the seed gives."""
    random.Random(tally.seed).shuffle(cases)
    end, left = time.monotonic() + budget, iter(cases)

    def work() -> None:
        for case in left_until(end, left):
            tally.add(life(case, folder / str(case).replace(":", "-")))

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()


def left_until(end: float, left: Iterator[Case]) -> Iterator[Case]:
    while time.monotonic() < end and (case := next(left, None)) is not None:
        yield case


# --- much output ---

MUCH = """
durun: 1
name: much
input: {much: string, more: string}
start: logs
states:
  logs:
    run: head -c "$MUCH" /dev/zero | tr "\\0" "\\377"
    env: {MUCH: '${{ input.much }}'}
    next: data
  data:
    run: [head, -c, '${{ input.more }}', /dev/zero]
    output: text
    catch: [{on: [output_too_large], next: fails}]
    next: fails
  fails:
    run: head -c "$MORE" /dev/zero | tr "\\0" "\\377" >&2; exit 3
    env: {MORE: '${{ input.more }}'}
    catch: [{on: ['exit:3'], next: stands}]
    next: stands
  stands: {run: 'echo up > up; until [ -e go ]; do sleep 0.02; done', next: succeeded}
"""
DRIVER, KEEPER = 60, 16  # MiB that they may have at their peak
TAILS = 128 << 10  # bytes: the last 4 KiB of what a command complained go with its error, wherever that is told


def size(text: str) -> int:
    return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)


def much(bytes_: int) -> int:
    """A run that prints much beside one that prints nothing: memory and database stay as they are, and its logs can be read."""
    folder = Path(tempfile.mkdtemp(prefix="durun-output-"))
    little, lot = (measure(folder / str(n), n) for n in (0, bytes_))
    print(f"{'':<24} {'nothing':>10} {bytes_:>14}")
    for name in little:
        print(f"{name:<24} {little[name]:>10} {lot[name]:>14}")
    wrong = [name for name in little if lot[name] > little[name] * 1.3 + TAILS * ("database" in name)]
    wrong += [name for name, most in (("driver, KiB", DRIVER), ("keeper, KiB", KEEPER)) if lot[name] > most * 1024]
    shutil.rmtree(folder, ignore_errors=True)
    print(*(f"VIOLATION {name}" for name in wrong), sep="\n")
    return 1 if wrong else 0


def measure(folder: Path, bytes_: int) -> dict[str, int]:
    """Peak memory of the driver and of its keeper, and the size of the database; raises where the run or its logs are not right."""
    place, more = Place(folder), min(bytes_, 256 << 20)
    (folder / "plan.yaml").write_text(MUCH)
    words = [sys.executable, "-m", "durun", "start", "plan.yaml", "--id", "r", "-i", f"much={bytes_}", "-i", f"more={more}"]
    process = subprocess.Popen(words, cwd=folder, env=place.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (folder / "up").exists():
        if process.poll() is not None:
            raise SystemExit(f"exit {process.returncode}: {process.communicate()[1]}")
        time.sleep(0.05)
    (keeper,) = [pid for pid in place.processes() if "keeper.py" in cmdline(pid)]
    found = {"driver, KiB": peak(process.pid), "keeper, KiB": peak(keeper)}
    (folder / "go").touch()
    err = process.communicate()[1]
    found["database, bytes"] = sum(p.stat().st_size for p in folder.glob("runs.db*") if p.is_file())
    logs = subprocess.Popen(
        [sys.executable, "-m", "durun", "logs", "r", "logs"], env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert logs.stdout is not None
    printed = sum(len(part) for part in iter(lambda: logs.stdout.read(1 << 20), b""))
    shown = [place.durun(*of) for of in (["show", "r"], ["history", "r"], ["show", "r", "--json"])]
    errors = {e["path"]: e["error"] for e in json.loads(shown[2][1])["effects"]}
    if process.returncode or printed != bytes_ or any(exit or "Traceback" in err for exit, _, err in shown) or "Traceback" in err:
        raise SystemExit(f"exit {process.returncode}, {printed} of {bytes_} bytes in its log: {err} {shown}")
    if bytes_ > 16 << 20 and "output_too_large" not in shown[1][1]:
        raise SystemExit(f"an output over 16 MiB is taken: {errors}")
    return found


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def may_trace() -> str:
    """Why strace cannot be used here; '' where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="scripts/faults", description="One run survives anything.")
    p.add_argument("--seed", type=int, help="draw cases by this seed (with --budget)")
    p.add_argument("--budget", type=float, help="seconds after which no further case begins")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--case", action="append", default=[], type=Case.read, help="WHO:FAULT:CALL:N")
    p.add_argument("--who", action="append", default=[], choices=["driver", "keeper", "resume", "all"])
    p.add_argument("--fault", action="append", default=[], choices=["kill", "kill+", "ENOSPC", "ENOSPC+", "EIO", "EIO+"])
    p.add_argument("--call", action="append", default=[])
    p.add_argument("--marked", action="store_true", help="the calls at which most is at stake, alone")
    p.add_argument("--output", type=size, help="instead of all this: a command that prints so much (256M, 10G)")
    p.add_argument("--list", action="store_true", help="only say which cases there are")
    return p.parse_args()


def main() -> int:
    wanted = options()
    if wanted.output is not None:
        return much(wanted.output)
    if why := may_trace():
        print(why, file=sys.stderr)
        return CANNOT
    folder = Path(tempfile.mkdtemp(prefix="durun-faults-"))
    seed = random.randrange(1 << 32) if wanted.budget is not None and wanted.seed is None else wanted.seed
    tally = Tally(seed)
    cases = wanted.case or (marked_cases(folder) if wanted.marked else every_case(folder, wanted))
    if wanted.list:
        print(*cases, sep="\n")
        return 0
    begun = time.monotonic()
    if wanted.budget is not None:
        draw(cases, folder, wanted.jobs, tally, wanted.budget)
    elif wanted.case or wanted.marked:
        with ThreadPoolExecutor(wanted.jobs) as pool:
            for found in pool.map(lambda c: life(c, folder / str(c).replace(":", "-")), cases):
                tally.add(found)
    else:
        enumerate_all(cases, folder, wanted.jobs, tally)
    print(*tally.lines(), sep="\n")
    print(
        f"{len(tally.found)} of {len(cases)} cases in {time.monotonic() - begun:.0f} s"
        + (f", seed {seed}" if seed is not None else "")
    )
    if any(f.wrong for f in tally.found):
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

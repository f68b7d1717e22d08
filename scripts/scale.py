"""What commands cost in a file that has grown, beside the same in one that has not. Run by scripts/scale.

A run of each kind is made by durun itself, and copied by SQL as often as asked. Each figure is the median of all rounds and their
range, in milliseconds, turn by turn in both files, so that what else the machine does meets both; peaks of memory are of the one
process, without its keeper. What is copied has the logs of its original: no files are made for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

DURUN = str(Path(sys.executable).parent / "durun")
PARTS = ("runs", "history", "map")
YEAR = 365 * 24 * 3600 * 1000  # ms over which the runs that have ended are spread
KEEP = {"origin", "plans", "checked", "literals", "files", "trees", "drivers", "pruned", "drains", "hold", "limits", "places"}

ORDER = """
durun: 1
name: NAME
input: {order: {type: integer, default: 7}}
vars: {price: 0}
start: look
states:
  look:
    run: [sh, -c, 'echo "{\\"price\\": 12}"']
    output: json
    assign: {price: '${{ output.price }}'}
    compensate: {run: [/bin/true]}
    next: dear
  dear: {choice: [{when: vars.price > 100, next: failed}, {next: pay}]}
  pay: {run: [WORK], compensate: {run: [/bin/true]}, next: succeeded}
"""
GROUPED = ORDER.replace("vars:", "group: {name: orders, if_busy: refuse}\nvars:", 1)
TIMER = "durun: 1\nname: timer\nstart: w\nstates: {w: {wait: 30d, next: a}, a: {run: [/bin/true], next: succeeded}}\n"
ASKS = "durun: 1\nname: asks\nstart: ok\nstates: {ok: {approval: {message: 'Go on?'}, next: a}, a: {run: [/bin/true], next: succeeded}}\n"
STEPS = "durun: 1\nname: NAME\nstart: a\nstates: {a: {run: 'touch NAME.begun; test -e go || sleep 60', idempotent: WHETHER, next: succeeded}}\n"
DEAD = """
durun: 1
name: tells
start: a
states: {a: {background: true, idempotent: true, run: ['false'], retry: {max_attempts: 1}, next: succeeded}}
"""
LONG = """
durun: 1
name: long
vars: {i: 0}
start: more
states:
  more: {choice: [{when: vars.i < 6, next: work}, {next: gate}], max_visits: 1000000000}
  work: {run: [/bin/true], assign: {i: '${{ vars.i + 1 }}'}, compensate: {run: [/bin/true]}, max_visits: 1000000000, next: more}
  gate: {approval: {message: 'More?'}, max_visits: 1000000000, next: one}
  one: {run: [/bin/true], idempotent: true, max_visits: 1000000000, next: gate}
"""
MAP = """
durun: 1
name: many
input: {items: array}
start: each
states:
  # killed twice, an item may have been under way both times
  each: {map: {items: input.items, concurrency: 8, run: [/bin/true], idempotent: true, retry: {max_attempts: 5}}, next: succeeded}
"""


class Place:
    """A fresh folder with a database of its own."""

    def __init__(self, above: str | None, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"durun-scale-{name}-", dir=above))
        self.db = self.path / "d.db"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DURUN_")}
        self.env = {**kept, "DURUN_DB": str(self.db)}

    def plan(self, text: str, name: str = "p") -> str:
        (self.path / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def begin(self, *words: str, out: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [DURUN, *words], env=self.env, cwd=self.path, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str, exits: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [DURUN, *words], env=self.env, cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode not in exits:
            raise SystemExit(f"durun {' '.join(words)}: {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    @contextlib.contextmanager
    def sql(self, cache: int = 2) -> Iterator[apsw.Connection]:
        """The file, for rows that are made or changed by hand: without a sync, and in the log of writes no longer afterwards. With
        so many MiB of memory: what is begun later counts it as its own."""
        db = apsw.Connection(str(self.db))
        db.execute(f"PRAGMA synchronous=OFF; PRAGMA cache_size=-{cache * 1000}").fetchall()
        db.execute("BEGIN").fetchall()
        yield db
        db.execute("COMMIT").fetchall()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.close()

    def size(self) -> float:
        return sum(p.stat().st_size for p in (self.db, Path(f"{self.db}-wal")) if p.exists()) / 1024 / 1024

    def gone(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def apart(act: Callable[[], None]) -> None:
    """In a process of its own: what a command takes up begins with what the process that begins it has had."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise SystemExit("the file could not be made")


# --- measuring ---


class Figures:
    """The table, line by line as it is measured."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        print(f"{'':<58} {'small file':>24} {'grown file':>26} {'':>7}   peak MiB", flush=True)

    def line(self, name: str, small: list[float], grown: list[float], peak: tuple[float, float] | None) -> None:
        ratio = f"{statistics.median(grown) / statistics.median(small):.2f}x" if small and grown else ""
        peaks = f"{peak[0]:.0f} -> {peak[1]:.0f}" if peak is not None else ""
        print(f"{name:<58} {shown(small):>24} {shown(grown):>26} {ratio:>7}   {peaks}", flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def both(
        self, name: str, small: Place, grown: Place, words: tuple[str, ...], exits: tuple[int, ...] = (0,),
        before: Callable[[Place], object] = lambda _: None, rounds: int | None = None, head: bool = False,
    ) -> None:  # fmt: skip
        """A command in both files, turn by turn. `before` is done each time and not counted; `head`: only its beginning is read."""
        took: dict[Place, list[float]] = {small: [], grown: []}
        peaks = {small: 0.0, grown: 0.0}
        for _ in range(rounds or self.rounds):
            for place in (small, grown):
                before(place)
                seconds, peak = timed(place, words, exits, head=head)
                took[place].append(seconds)
                peaks[place] = max(peaks[place], peak)
        self.line(name, took[small], took[grown], (peaks[small], peaks[grown]))


def shown(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    ms = [1000 * s for s in seconds]
    return f"{statistics.median(ms):.0f} ({min(ms):.0f}-{max(ms):.0f})"


def timed(place: Place, words: tuple[str, ...], exits: tuple[int, ...], *, head: bool = False) -> tuple[float, float]:
    """(seconds, its peak of memory in MiB) of one command. Waited for by its number alone: what it used is told of no other."""
    out = os.open(place.path / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    begun = time.perf_counter()
    process = place.begin(*words, out=subprocess.PIPE if head else out)
    if head:
        assert process.stdout is not None
        process.stdout.read(400)
        process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    os.close(out)
    if process.returncode not in exits:
        raise SystemExit(f"durun {' '.join(words)}: exit {process.returncode}\n{(place.path / 'out').read_text()[-2000:]}")
    return took, used.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024)


def killed(place: Place, words: tuple[str, ...], when: Callable[[], bool]) -> None:
    """A command that is killed, with all that it began, as soon as something is so."""
    process = place.begin(*words)
    while not when():
        if process.poll() is not None:
            raise SystemExit(f"durun {' '.join(words)}: it ended with {process.returncode} before it could be killed")
        time.sleep(0.01)
    mark = f"DURUN_DB={place.db}".encode()
    for number in (signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL):  # all at one moment: a driver that sees its keeper die goes on
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), number)
    process.wait()


# --- runs ---


def copies(db: apsw.Connection, of: str, count: int, age: Callable[[int], int] | None = None) -> None:
    """So many more runs like this one, with all its rows. `age`: how long ago, in ms, each of them began."""
    if count <= 0:
        return
    [(no,)] = db.execute("SELECT no FROM runs WHERE id = ?", (of,)).fetchall()
    [(last,)] = db.execute("SELECT max(no) FROM runs").fetchall()
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    own = {"no": f"{last} + i", "id": "lower(hex(randomblob(6)))", "driver": "NULL"}
    if age is not None:
        oldest, newest = age(0), age(1)
        own |= {name: f"{name} - ({oldest} + i * {newest - oldest} / {count})" for name in ("created_at", "updated_at", "ended_at")}
    names = [row[1] for row in db.execute("PRAGMA table_info(runs)").fetchall()]
    chosen = ", ".join(own.get(name, name) for name in names)
    db.execute(
        f"{numbers} INSERT INTO runs ({', '.join(names)}) SELECT {chosen} FROM n, (SELECT * FROM runs WHERE no = {no})"
    ).fetchall()
    for table, column, more in belonging(db):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall() if row[1] not in (*more, column)]
        if db.execute(f"SELECT 1 FROM {table} WHERE {column} = {no} LIMIT 1").fetchall():
            listed = ", ".join((column, *names))
            chosen = ", ".join((f"{last} + i", *names))
            db.execute(
                f"{numbers} INSERT INTO {table} ({listed}) SELECT {chosen} FROM n, (SELECT * FROM {table} WHERE {column} = {no})"
            ).fetchall()


def belonging(db: apsw.Connection) -> list[tuple[str, str, tuple[str, ...]]]:
    """(table, the column that names the run, columns that number themselves) of all that belongs to a run."""
    found = []
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall():
        if table in KEEP or table == "runs":
            continue
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall()]
        if "run" in names:
            alone = tuple(row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall() if row[5] and row[2] == "INTEGER")
            found.append((table, "run", alone if alone == ("no",) else ()))
    return found


def newborn(above: str | None, name: str) -> Place:
    """A file with one run of each kind, named after its kind."""
    place = Place(above, name)
    order = {"NAME": "order", "WORK": "/bin/true"}
    place.run("start", place.plan(filled(ORDER, order), "order"), "-q", "--id", "done")
    place.run("start", place.plan(filled(ORDER, {"NAME": "rare", "WORK": "/bin/true"}), "rare"), "-q", "--id", "rare")
    place.run("start", place.plan(filled(ORDER, {"NAME": "order", "WORK": "/bin/false"})), "-q", "--id", "bad", exits=(1,))
    place.run("start", place.plan(filled(GROUPED, {"NAME": "grouped", "WORK": "/bin/true"}), "grouped"), "-q", "--id", "grouped")
    place.run("start", "order.yaml", "-q", "--id", "undone")
    place.run("compensate", "undone", "-q", exits=(4,))
    place.run("start", place.plan(TIMER, "timer"), "-q", "--no-wait", "--id", "timer", exits=(3,))
    place.run("start", place.plan(ASKS, "asks"), "-q", "--id", "asks", exits=(3,))
    place.run("start", place.plan(DEAD, "tells"), "-q", "--id", "tells", exits=(0, 9))
    for id, again in (("interrupted", "true"), ("doubt", "false")):
        plan = place.plan(filled(STEPS, {"NAME": id, "WHETHER": again}), id)
        killed(place, ("start", plan, "-q", "--id", id), (place.path / f"{id}.begun").exists)
    (place.path / "go").touch()
    place.run("resume", "doubt", "-q", exits=(9,))
    return place


def filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def grow(place: Place, runs: int, live: int) -> None:
    """The file with so many runs that have ended over a year, and so many in flight."""
    with place.sql(200) as db:

        def over_a_year(n: int) -> int:
            return YEAR if n == 0 else 3_600_000

        copies(db, "rare", min(10, runs // 100), lambda _: YEAR)
        copies(db, "undone", min(15, runs // 100), lambda _: YEAR)
        copies(db, "done", runs * 88 // 100, over_a_year)
        copies(db, "grouped", runs * 10 // 100, over_a_year)
        copies(db, "bad", runs * 2 // 100, lambda _: YEAR)
        copies(db, "timer", live * 60 // 100)
        copies(db, "asks", live * 20 // 100)
        copies(db, "doubt", live * 10 // 100)
        copies(db, "interrupted", live * 10 // 100)
        copies(db, "tells", live * 2 // 100)


def due(place: Place, count: int) -> None:
    """So many of the timers come to their end."""
    with place.sql() as db:
        chosen = f"(SELECT no FROM runs WHERE name = 'timer' AND status = 'waiting' ORDER BY no LIMIT {count})"
        db.execute(f"UPDATE positions SET due = 1, data = json_remove(data, '$.length') WHERE run IN {chosen}").fetchall()
        db.execute(f"UPDATE runs SET due = 1 WHERE no IN {chosen}").fetchall()


def of_runs(figures: Figures, asked: argparse.Namespace) -> None:
    small, grown = newborn(asked.folder, "small"), newborn(asked.folder, "grown")
    few = max(2, min(20, asked.live // 10))
    try:
        with small.sql() as db:
            copies(db, "timer", (figures.rounds + 1) * 2 * few)
        began = time.perf_counter()
        apart(lambda: grow(grown, asked.runs, asked.live))
        with grown.sql() as db:
            copies(db, "timer", (figures.rounds + 1) * 2 * few)
            kinds = ("runs", "effects", "undos", "history")
            counted = ", ".join(f"{db.execute(f'SELECT count(*) FROM {t}').fetchall()[0][0]:,} {t}" for t in kinds)
        figures.say(f"-- runs: {counted}: {grown.size():,.0f} MiB, made in {time.perf_counter() - began:.0f} s")
        measure_runs(figures, small, grown, few)
    finally:
        small.gone()
        grown.gone()


def measure_runs(figures: Figures, small: Place, grown: Place, few: int) -> None:
    def both(name: str, *words: str, exits: tuple[int, ...] = (0,), **more: object) -> None:
        figures.both(name, small, grown, words, exits, **more)  # type: ignore[arg-type]

    both("ls", "ls")
    both("ls -q | head", "ls", "-q", head=True)
    both("ls --json", "ls", "--json")
    both("ls --status failed", "ls", "--status", "failed")
    both("ls --status compensated (the oldest)", "ls", "--status", "compensated")
    both("ls --plan rare -q (the oldest)", "ls", "--plan", "rare", "-q")
    both("ls --plan rare --status failed (none)", "ls", "--plan", "rare", "--status", "failed")
    both("ls --plan order --status succeeded -q", "ls", "--plan", "order", "--status", "succeeded", "-q")
    both("show", "show", "done")
    both("history", "history", "done")
    both("output", "output", "done", "look")
    both("wait (of one that has ended)", "wait", "done")
    both("inbox", "inbox")
    both("outbox ls", "outbox", "ls")
    both("start", "start", "order.yaml", "-q")
    both("start --dry-run", "start", "order.yaml", "--dry-run")
    both("start, of a group", "start", "grouped.yaml", "-q")
    both("start --id (given again)", "start", "order.yaml", "-q", "--id", "done")
    both("approve --resume", "approve", "asks", "--resume", before=asked_again)
    both("resume (of one that failed)", "resume", "bad", "-q", exits=(1,))
    both(f"resume --all, {few} due (first: all that is interrupted)", "resume", "--all", "-q", before=lambda p: due(p, few))
    both(f"work --once, {few} due", "work", "--once", "-q", before=lambda p: due(p, few))
    both("work --once, nothing to do", "work", "--once", "-q")
    both("report", "report", "done")
    both("db backup", "db", "backup", "b.db", before=lambda p: (p.path / "b.db").unlink(missing_ok=True), rounds=1)
    for place in (small, grown):
        (place.path / "b.db").unlink(missing_ok=True)
    both("db check", "db", "check", rounds=1)
    both("db prune RUN", "db", "prune", "gone", before=one_more)
    both("db prune --older-than 366d (nothing is)", "db", "prune", "--older-than", "366d", rounds=2)
    while_pruned(figures, grown)


def asked_again(place: Place) -> None:
    """A run that asks, in place of the one that was answered."""
    with place.sql() as db:
        db.execute("UPDATE runs SET id = 'asks' || no WHERE id = 'asks'").fetchall()
    place.run("start", "asks.yaml", "-q", "--id", "asks", exits=(3,))


def one_more(place: Place) -> None:
    place.run("start", "order.yaml", "-q", "--id", "gone")
    with place.sql() as db:
        db.execute("DELETE FROM pruned; UPDATE runs SET named = 0 WHERE id = 'gone'").fetchall()


def while_pruned(figures: Figures, place: Place) -> None:
    """A part is pruned, and meanwhile runs are started one after the other: how long the longest took."""
    before, count = place.size(), ended(place)
    began = time.perf_counter()
    process = place.begin("db", "prune", "--older-than", "330d")
    slowest, started = 0.0, 0
    while process.poll() is None:
        seconds, _ = timed(place, ("start", "order.yaml", "-q"), (0,))
        slowest, started = max(slowest, seconds), started + 1
    took = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"durun db prune: exit {process.returncode}")
    figures.say(
        f"db prune --older-than 330d: {count + started - ended(place):,} runs in {took:.1f} s; {started} starts meanwhile, the"
        f" slowest took {slowest * 1000:.0f} ms; {before:,.0f} -> {place.size():,.0f} MiB"
    )
    seconds, peak = timed(place, ("db", "prune", "--older-than", "320d"), (0,))
    figures.say(
        f"db prune --older-than 320d, alone: {count + started - ended(place):,} runs in all, {seconds:.1f} s, peak {peak:.0f} MiB;"
        f" {place.size():,.0f} MiB"
    )


def ended(place: Place) -> int:
    with place.sql() as db:
        return int(db.execute("SELECT count(*) FROM runs").fetchall()[0][0])


# --- history ---


def lengthen(place: Place, visits: int) -> None:
    """The run has been to `work` so many times more: its history, its effects and its undos, as durun would have written them."""
    with place.sql(200) as db:
        [(run,)] = db.execute("SELECT no FROM runs WHERE id = 'long'").fetchall()
        names = ["at", "kind", "scope", "state", "visit", "attempt", "data"]
        all_rows = db.execute(f"SELECT no, {', '.join(names)} FROM history WHERE run = ? ORDER BY no", (run,)).fetchall()
        tail = next(i for i, row in enumerate(all_rows) if row[4] == "more" and row[5] == 7)  # work was visited six times
        round_ = all_rows[tail - 5 : tail]
        into = f"INSERT INTO history (run, no, {', '.join(names)}) VALUES ({run}, ?,?,?,?,?,?,?,?)"
        shift = visits * len(round_)
        db.execute("DELETE FROM history WHERE run = ? AND no >= ?", (run, all_rows[tail][0])).fetchall()

        def more() -> Iterator[tuple[object, ...]]:
            for k in range(1, visits + 1):
                for no, at, kind, scope, state, visit, attempt, data in round_:
                    said = data.replace('"effect":6', f'"effect":{6 + k}').replace('"i":6', f'"i":{6 + k}')
                    yield no + len(round_) * k, at, kind, scope, state, visit + k, attempt, said
            for no, at, kind, scope, state, visit, attempt, data in all_rows[tail:]:
                yield no + shift, at, kind, scope, state, visit + visits if state == "more" else visit, attempt, data

        db.executemany(into, more())
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {visits})"
        for table, own in (
            ("effects", {"no": "6 + i", "visit": "6 + i", "key": "key || '-' || i"}),
            ("undos", {"effect": "6 + i", "key": "key || '-' || i"}),
        ):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall()]
            chosen = ", ".join(own.get(name, name) for name in names)
            key = "no" if table == "effects" else "effect"
            db.execute(
                f"{numbers} INSERT INTO {table} ({', '.join(names)}) SELECT {chosen} FROM n,"
                f" (SELECT * FROM {table} WHERE run = {run} AND {key} = 6)"
            ).fetchall()
        db.execute(
            "UPDATE runs SET events = events + ?, next_effect = next_effect + ?, vars = json_set(vars, '$.i', ?) WHERE no = ?",
            (shift, visits, 6 + visits, run),
        ).fetchall()
        db.execute("UPDATE states SET visits = visits + ? WHERE run = ? AND state IN ('more', 'work')", (visits, run)).fetchall()
        db.execute("UPDATE states SET effect = 6 + ? WHERE run = ? AND state = 'work'", (visits, run)).fetchall()


def of_history(figures: Figures, asked: argparse.Namespace) -> None:
    small, grown = Place(asked.folder, "small"), Place(asked.folder, "grown")
    try:
        for place in (small, grown):
            place.run("start", place.plan(LONG), "-q", "--id", "long", exits=(3,))
        began = time.perf_counter()
        apart(lambda: lengthen(grown, asked.visits))
        figures.say(f"-- history: {asked.visits:,} visits: {grown.size():,.0f} MiB, made in {time.perf_counter() - began:.0f} s")
        measure_history(figures, small, grown)
    finally:
        small.gone()
        grown.gone()


def measure_history(figures: Figures, small: Place, grown: Place) -> None:
    def both(name: str, *words: str, exits: tuple[int, ...] = (0,), **more: object) -> None:
        figures.both(name, small, grown, words, exits, **more)  # type: ignore[arg-type]

    both("db check", "db", "check", rounds=1)
    both("show", "show", "long")
    both("show --json", "show", "long", "--json")
    both("ls", "ls")
    both("inbox", "inbox")
    both("history | head", "history", "long", head=True)
    both("history (all of it)", "history", "long", rounds=1)
    both("history --json", "history", "long", "--json", rounds=1)
    both("logs", "logs", "long", rounds=1)
    both("output RUN STATE", "output", "long", "work", exits=(0, 10))
    both("graph", "graph", "long", rounds=1)
    both("report", "report", "long", rounds=1)
    both("report --json", "report", "long", "--json", rounds=1)
    both("wait", "wait", "long", "--timeout", "0s", exits=(3, 124))
    both("approve --resume: one more step", "approve", "long", "gate", "--resume", exits=(3,))
    both("resume (it asks already)", "resume", "long", "-q", exits=(3,))
    both("rewind RUN one --repeat", "rewind", "long", "one", "--repeat", "-q", rounds=1)
    both("resume", "resume", "long", "-q", exits=(3,), rounds=1)
    both("migrate --dry-run", "migrate", "long", "p.yaml", "--dry-run", rounds=1)
    both("cancel (nothing is undone)", "cancel", "long", exits=(4,), rounds=1)
    undone(figures, small, grown)
    both("db prune RUN (as it stands: refused)", "db", "prune", "long", exits=(10,))
    for place in (small, grown):
        with place.sql() as db:
            db.execute("UPDATE undos SET status = 'undone' WHERE status = 'owed'").fetchall()
    both("db prune RUN", "db", "prune", "long", rounds=1)


def undone(figures: Figures, small: Place, grown: Place) -> None:
    """A compensation is begun, and killed after its first undos: the time until these were done."""
    took: dict[Place, float] = {}
    for place in (small, grown):
        began = time.perf_counter()
        killed(place, ("compensate", "long", "-q"), lambda: count_undone(place) >= 5)  # noqa: B023  (called before the next)
        took[place] = time.perf_counter() - began
        place.run("cancel", "long", exits=(4, 10))
        with place.sql() as db:
            db.execute("UPDATE runs SET status = 'failed', reason = NULL, undoing = NULL, driver = NULL, ended_at = updated_at")
            db.execute("UPDATE positions SET phase = 'failed', effect = NULL, asking = NULL WHERE scope = ''")
            db.execute("DELETE FROM positions WHERE scope <> ''")
            db.execute("UPDATE effects SET status = 'withdrawn', place = NULL WHERE status IN ('begin', 'waiting')")
    figures.line("compensate, until 5 are undone", [took[small]], [took[grown]], None)


def count_undone(place: Place) -> int:
    db = apsw.Connection(str(place.db), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(10_000)
    try:
        return len(db.execute("SELECT 1 FROM undos WHERE run = 1 AND status = 'undone' LIMIT 5").fetchall())
    finally:
        db.close()


# --- a map ---


def of_map(figures: Figures, asked: argparse.Namespace) -> None:
    small, grown = Place(asked.folder, "small"), Place(asked.folder, "grown")
    count = {small: min(200, asked.items), grown: asked.items}
    try:
        for place in (small, grown):
            (place.path / "items.json").write_text(json.dumps({"items": [f"host-{n}" for n in range(count[place])]}))
            place.plan(MAP)
            half = count[place] // 2
            began = time.perf_counter()
            killed(place, ("start", "p.yaml", "-q", "--input", "items.json", "--id", "many"), lambda: items_done(place) >= half)  # noqa: B023
            took = time.perf_counter() - began
            figures.say(f"-- map: {count[place]:,} items, the first half in {took:.1f} s, then killed: {place.size():,.1f} MiB")
        for name, words, exits in (
            ("show (in the middle)", ("show", "many"), (0,)),
            ("history | head", ("history", "many"), (0,)),
            ("output RUN ITEM", ("output", "many", "each[1]"), (0, 10)),
            ("ls", ("ls",), (0,)),
            ("wait", ("wait", "many", "--timeout", "0s"), (3, 124)),
        ):
            figures.both(name, small, grown, words, exits, head=name.endswith("head"))
        resumed(figures, small, grown)
        figures.both("resume to the end", small, grown, ("resume", "many", "-q"), (0,), rounds=1)
        figures.both("show (ended)", small, grown, ("show", "many"), (0,))
        figures.both("output RUN", small, grown, ("output", "many", "each"), (0,), rounds=1)
    finally:
        small.gone()
        grown.gone()


def resumed(figures: Figures, small: Place, grown: Place) -> None:
    """How long a resume takes until one more item is done."""
    took: dict[Place, list[float]] = {small: [], grown: []}
    for _ in range(min(3, figures.rounds)):
        for place in (small, grown):
            before = items_done(place)
            began = time.perf_counter()
            killed(place, ("resume", "many", "-q"), lambda: items_done(place) > before)  # noqa: B023
            took[place].append(time.perf_counter() - began)
    figures.line("resume after the kill, until one more item is done", took[small], took[grown], None)


def items_done(place: Place) -> int:
    if not place.db.exists():
        return 0
    db = apsw.Connection(str(place.db), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(10_000)
    try:
        found = db.execute("SELECT data ->> 'won' FROM positions WHERE run = 1 AND scope = '' AND phase = 'inside'").fetchall()
        return int(found[0][0] or 0) if found else 0
    except apsw.SQLError:
        return 0
    finally:
        db.close()


def main() -> None:
    wanted = argparse.ArgumentParser(prog="scripts/scale", description="what durun costs in a file that has grown")
    for name, default in (("runs", 1_000_000), ("live", 5_000), ("visits", 1_000_000), ("items", 100_000), ("rounds", 5)):
        wanted.add_argument(f"--{name}", type=int, default=default)
    wanted.add_argument("--folder")
    wanted.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; none named: all")
    asked = wanted.parse_args()
    if unknown := [part for part in asked.parts if part not in PARTS]:
        wanted.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    figures = Figures(max(1, asked.rounds))
    for part in asked.parts or PARTS:
        {"runs": of_runs, "history": of_history, "map": of_map}[part](figures, asked)
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()

"""The figures, each a ratio in one run: durun beside its floor. Run by scripts/bench.

What is compared is run turn by turn, so that what else the machine does meets both. A slow disk brings ratios to a step nearer to
one, a busy processor takes them up: the load is told with them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import bench_peers

DURUN = str(Path(sys.executable).parent / "durun")
ROUNDS = int(sys.argv[1])
ROWS = sys.argv[2:]  # the rows that are wanted; none: all but the peers
STEPS = bench_peers.STEPS

LOOP = """
durun: 1
name: loop
vars: {i: 0}
start: more
states:
  more: {choice: [{when: vars.i < COUNT, next: work}, {next: LAST}]}
  work: {run: ACT, assign: {i: '${{ vars.i + 1 }}'}, next: more}
EXTRA
"""
ONE = "durun: 1\nname: one\nstart: a\nstates: {a: {run: [/bin/true], next: succeeded}}\n"
MANY = """
durun: 1
name: many
input: {items: array}
start: each
states:
  each: {map: {items: input.items, run: [/bin/true, '${{ item }}'], idempotent: true, concurrency: 8}, next: succeeded}
"""


def loop(count: int, act: str = "[/bin/true]", last: str = "succeeded", extra: str = "") -> str:
    return LOOP.replace("COUNT", str(count)).replace("ACT", act).replace("LAST", last).replace("EXTRA", extra)


class Place:
    """A fresh folder with a database of its own."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="durun-bench-"))
        self.env = {**os.environ, "DURUN_DB": str(self.path / "d.db")}

    def plan(self, text: str) -> str:
        (self.path / "p.yaml").write_text(text)
        return str(self.path / "p.yaml")

    def run(self, *words: str, check: bool = True) -> float:
        begun = time.perf_counter()
        done = subprocess.run([DURUN, *words], env=self.env, cwd=self.path, capture_output=True, text=True)
        if check and done.returncode:
            raise SystemExit(f"durun {' '.join(words)}: {done.returncode}\n{done.stderr}")
        return time.perf_counter() - begun

    def gone(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def floor_of(steps: int, words: list[str]) -> float:
    """posix_spawn, waitpid and one commit at FULL, so many times; what is printed goes to one file."""
    place = Place()
    db = apsw.Connection(str(place.path / "floor.db"))
    db.execute("PRAGMA journal_mode=WAL").fetchall()
    db.execute("PRAGMA synchronous=FULL").fetchall()
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x TEXT)")
    printed = [(os.POSIX_SPAWN_OPEN, 1, str(place.path / "printed"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)]
    begun = time.perf_counter()
    for n in range(steps):
        os.waitpid(os.posix_spawn(words[0], words, os.environ, file_actions=printed), 0)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 200))
        db.execute("COMMIT")
    took = time.perf_counter() - begun
    db.close()
    place.gone()
    return took


def step_of(act: str) -> float:
    """Seconds that STEPS more steps cost a driver: a long run less a short one."""
    took = []
    for count in (5, STEPS + 5):
        place = Place()
        took.append(place.run("start", place.plan(loop(count, act)), "-q"))
        place.gone()
    return took[1] - took[0]


def ratios(name: str, goal: str, over: Callable[[], float], under: Callable[[], float]) -> None:
    found = []
    for _ in range(ROUNDS):
        found.append(over() / under())
    show(name, goal, f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})")


def show(name: str, goal: str, found: str) -> None:
    print(f"{name:<74} {goal:>14}   {found}", flush=True)


def bare() -> float:
    begun = time.perf_counter()
    for _ in range(10):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - begun) / 10


def steps() -> None:
    ratios(
        "a step of /bin/true, against spawn + one commit",
        "1.4 (1.6)",
        lambda: step_of("[/bin/true]"),
        lambda: floor_of(STEPS, ["/bin/true"]),
    )
    ratios(
        "the same with a line of output",
        "1.6 (2.5)",
        lambda: step_of("[/bin/echo, x]"),
        lambda: floor_of(STEPS, ["/bin/echo", "x"]),
    )


def commits() -> None:
    """Counted: write transactions by SQLite's own trace, syncs by strace where it is there."""
    if shutil.which("strace") is None:
        show("syncs a step (strace is not here: not counted)", "1.05", "-")
        return
    counts = []
    for count in (10, 210):
        place = Place()
        log = place.path / "syncs"
        words = [
            "strace",
            "-f",
            "-qq",
            "-e",
            "trace=fdatasync,fsync",
            "-o",
            str(log),
            DURUN,
            "start",
            place.plan(loop(count)),
            "-q",
        ]
        subprocess.run(words, env=place.env, cwd=place.path, check=True, capture_output=True)
        counts.append(sum("sync(" in line and "resumed" not in line for line in log.read_text().splitlines()))
        place.gone()
    show("syncs a step (counted by strace over 200 steps)", "1.05", f"{(counts[1] - counts[0]) / 200:.3f}")


def growth() -> None:
    sizes = []
    for count in (100, 1100):
        place = Place()
        place.run("start", place.plan(loop(count)), "-q")
        db = apsw.Connection(str(place.path / "d.db"))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.close()
        sizes.append((place.path / "d.db").stat().st_size)
        place.gone()
    show("growth of the database a step, KiB", "1.5", f"{(sizes[1] - sizes[0]) / 1000 / 1024:.2f}")


def resume() -> None:
    """A run that failed at its end is resumed: with 10 finished visits, and with 10,000."""
    extra = "  end: {run: ['false'], next: succeeded}"
    places = {}
    for count in (10, 10_000 - 1):
        place = places[count] = Place()
        text = loop(count, last="end", extra=extra)
        place.run("start", place.plan(text), "-q", "--id", "r", check=False)
    ratios(
        "resume with 10,000 finished visits, against with 10", "1.1",
        lambda: places[9_999].run("resume", "r", "-q", check=False), lambda: places[10].run("resume", "r", "-q", check=False),
    )  # fmt: skip
    for place in places.values():
        place.gone()


def listing() -> None:
    place = Place()
    place.run("start", place.plan(loop(1)), "-q")
    db = apsw.Connection(str(place.path / "d.db"))
    names = [r[1] for r in db.execute("PRAGMA table_info(runs)").fetchall() if r[1] not in ("no", "id")]
    with db:
        db.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) INSERT INTO runs (id, {', '.join(names)})"
            f" SELECT 'run' || i, {', '.join(names)} FROM n, (SELECT * FROM runs LIMIT 1)"
        )
    db.close()
    ratios("`durun ls` with 10,000 runs, piped, against python -c pass", "2 (3)", lambda: place.run("ls"), bare)
    place.gone()


def one_step() -> None:
    def first() -> float:
        place = Place()
        took = place.run("start", place.plan(ONE), "-q")
        place.gone()
        return took

    ratios("`durun start` of a one-step plan in a new file, against python -c pass", "15", first, bare)
    place = Place()
    plan = place.plan(ONE)
    place.run("start", plan, "-q")
    ratios("the same plan once more, in the same file", "15", lambda: place.run("start", plan, "-q"), bare)
    place.gone()


def items(count: int) -> tuple[Place, list[str]]:
    """A place, and the words that start a map over so many items in it."""
    place = Place()
    (place.path / "items.json").write_text(json.dumps({"items": [str(n) for n in range(count)]}))
    return place, ["start", place.plan(MANY), "-q", "--input", "items.json"]


def fan() -> None:
    """The whole of both, with durun's start in it."""

    def ours() -> float:
        place, words = items(1000)
        took = place.run(*words)
        place.gone()
        return took

    def xargs() -> float:
        names = "".join(f"{n}\n" for n in range(1000))
        begun = time.perf_counter()
        subprocess.run(["xargs", "-P8", "-n1", "/bin/true"], input=names, text=True, check=True)
        return time.perf_counter() - begun

    ratios("map over 1,000 commands, 8 at once, against xargs -P8", "1.3", ours, xargs)


def crowd() -> None:
    """50 processes that start a run in one file at once: what each waits for the file, as SQLite's busy handler tells."""
    slowest, failed = [], 0
    for _ in range(ROUNDS):
        place = Place()
        plan, log = place.plan(ONE), place.path / "waits"
        place.run("start", plan, "-q")
        words = [sys.executable, "-c", WAITS, str(log), "start", plan, "-q"]
        quiet = {"env": place.env, "cwd": place.path, "stdout": subprocess.DEVNULL}
        crowd = [subprocess.Popen(words, **quiet) for _ in range(50)]  # type: ignore[call-overload]
        failed += sum(process.wait() != 0 for process in crowd)
        slowest.append(max(map(float, log.read_text().split()), default=0.0))
        place.gone()
    show("50 processes that start runs in one file at once: failed", "0", str(failed))
    show(
        "longest that one of them waited for the file, s", "1",
        f"{statistics.median(slowest):.2f} ({min(slowest):.2f}-{max(slowest):.2f})",
    )  # fmt: skip


# a durun that writes down how long each of its transactions waited to begin
WAITS = """
import sys, time
from durun.store import file
log, sys.argv[1:] = sys.argv[1], sys.argv[2:]
enter = file.Write.__enter__
def timed(self):
    begun = time.monotonic()
    try:
        return enter(self)
    finally:
        with open(log, 'a') as f:
            f.write(f'{time.monotonic() - begun:.4f}\\n')
file.Write.__enter__ = timed
from durun.cli import main
main()
"""


def peak_of(words: list[str], place: Place) -> tuple[str, str]:
    """Peaks in MiB of a driver and of its keeper, looked at while it runs: of all that is mapped, and of what is its own."""
    process = subprocess.Popen([DURUN, *words], env=place.env, cwd=place.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    driver = keeper = (0, 0)
    while process.poll() is None:
        driver = max(driver, high_water(process.pid))
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        except OSError:
            children = []
        for child in children:
            if is_keeper(child):  # before it has executed it is still its driver's image
                keeper = max(keeper, high_water(int(child)))
        time.sleep(0.02)
    return mib(driver), mib(keeper)


def mib(peak: tuple[int, int]) -> str:
    return f"{peak[0] / 1024:.1f}, {peak[1] / 1024:.1f} its own"


def is_keeper(pid: str) -> bool:
    try:
        return b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def high_water(pid: int) -> tuple[int, int]:
    """(VmHWM, RssAnon) in KiB. How much of a library counts to the first hangs on how its file lies in the page cache."""
    try:
        found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(found["VmHWM"].split()[0]), int(found["RssAnon"].split()[0])
    except (OSError, KeyError, ValueError):
        return 0, 0


def memory() -> None:
    if not Path("/proc/self/status").exists():
        show("memory (no /proc here: not measured)", "-", "-")
        return
    place = Place()
    driver, keeper = peak_of(["start", place.plan(loop(1000)), "-q"], place)
    show("peak of a driver after start, 1,000 steps, MiB", "60", driver)
    show("peak of its keeper, MiB", "10", keeper)
    place.gone()
    place, words = items(10_000)
    driver, keeper = peak_of(words, place)
    show("peak of a driver of a map over 10,000 commands, and its keeper, MiB", "-", f"{driver}; {keeper}")
    place.gone()
    place = Place()
    plain = "\n".join(f"  s{n}: {{run: [/bin/true], next: {f's{n + 1}' if n < 999 else 'succeeded'}}}" for n in range(1000))
    text = "durun: 1\nname: plain\nstart: s0\nstates:\n" + plain.replace("run: [/bin/true]", "run: [/bin/false]", 1) + "\n"
    place.run("start", place.plan(text), "-q", "--id", "r", check=False)
    db = apsw.Connection(str(place.path / "d.db"))
    db.execute("UPDATE effects SET request = replace(request, '/bin/false', '/bin/true')")
    db.close()
    driver, keeper = peak_of(["resume", "r", "-q"], place)
    show("peak of a driver after resume, 1,000 steps without expressions, MiB", "40", driver)
    status = json.loads(subprocess.run([DURUN, "show", "r", "--json"], env=place.env, capture_output=True, text=True).stdout)[
        "status"
    ]
    if status != "succeeded":
        raise SystemExit(f"the run that was measured is {status}")
    place.gone()


TWENTY = "durun: 1\nname: twenty\nstart: w\nstates:\n  w: {wait: 1h, next: s0}\n" + "".join(
    f"  s{n}: {{run: [/bin/true], next: {f's{n + 1}' if n < 19 else 'succeeded'}}}\n" for n in range(20)
)


def many(place: Place, count: int) -> None:
    """So many runs that wait for an hour, made by SQL of one that does."""
    place.run("start", place.plan(TWENTY), "-q", "--no-wait", check=False)
    db = apsw.Connection(str(place.path / "d.db"))
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    for table, key in (("runs", "no"), ("positions", "run"), ("states", "run"), ("history", "run")):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall() if row[1] not in (key, "id")]
        own = ("id, ", "'run' || i, ") if table == "runs" else ("", "")
        db.execute(
            f"{numbers} INSERT INTO {table} ({key}, {own[0]}{', '.join(names)}) SELECT i, {own[1]}{', '.join(names)}"
            f" FROM n, (SELECT * FROM {table} WHERE {key} = 1)"
        ).fetchall()
    db.close()


def due(place: Place) -> None:
    db = apsw.Connection(str(place.path / "d.db"))
    db.execute("UPDATE positions SET due = 1, data = '{}'; UPDATE runs SET due = 1")
    db.close()


def work() -> None:
    """200 runs of 20 steps that are ready at once under one `durun work`, beside one run of as many steps; and 10,000 that wait."""

    def all_at_once() -> float:
        place = Place()
        many(place, 200)
        due(place)
        took = place.run("work", "--once", "-q")
        place.gone()
        return took / 4000

    def alone() -> float:
        return step_of("[/bin/true]") / STEPS

    ratios("a step of 200 runs of 20 steps under one work, against one run alone", "-", all_at_once, alone)
    if shutil.which("strace") is not None:
        place = Place()
        many(place, 200)
        due(place)
        log = place.path / "syncs"
        words = ["strace", "-f", "-qq", "-e", "trace=fdatasync,fsync", "-o", str(log), DURUN, "work", "--once", "-q"]
        subprocess.run(words, env=place.env, cwd=place.path, check=True, capture_output=True)
        synced = sum("sync(" in line and "resumed" not in line for line in log.read_text().splitlines())
        show("syncs a step of these 4,000 (counted by strace)", "below 1", f"{synced / 4000:.3f}")
        place.gone()
    if not Path("/proc/self/status").exists():
        return
    place = Place()
    many(place, 10_000)
    process = subprocess.Popen(
        [DURUN, "work", "-q"], env=place.env, cwd=place.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(3)  # what starting costs is over
    before, begun = processor(process.pid), time.perf_counter()
    time.sleep(10)
    share = (processor(process.pid) - before) / (time.perf_counter() - begun) * 100
    peak = mib(high_water(process.pid))
    process.terminate()
    process.wait()
    show("peak of one work with 10,000 runs that wait, MiB", "150", peak)
    show("its idle share of a core, per cent over 10 s", "2", f"{share:.2f}")
    place.gone()


def processor(pid: int) -> float:
    """Seconds of processor time of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def peers() -> None:
    """A step of /bin/true in others, against the same floor."""
    ready, missing = bench_peers.ready()
    for name in missing:
        show(f"a step of /bin/true in {name}", "-", "not here: it cannot be installed")
    steps = {"durun": lambda: step_of("[/bin/true]"), **ready}
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        floor = floor_of(STEPS, ["/bin/true"])
        for name, step in steps.items():
            found.setdefault(name, []).append(step() / floor)
    for name, times in found.items():
        said = f"{statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f})"
        show(f"a step in {name}", "-", said)


ALL: dict[str, Callable[[], None]] = {
    "steps": steps, "commits": commits, "resume": resume, "ls": listing, "start": one_step, "map": fan, "crowd": crowd, "work": work,
    "memory": memory, "growth": growth,
}  # fmt: skip


def main() -> None:
    wanted = ROWS or list(ALL)
    print(f"durun on Python {sys.version.split()[0]}, SQLite {apsw.sqlite_lib_version()}, {os.cpu_count()} cores, {ROUNDS} rounds")
    print(f"{'what':<74} {'goal (least)':>14}   {'found: median (range)'}")
    for name in wanted:
        {**ALL, "peers": peers}[name]()
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


main()

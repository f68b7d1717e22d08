"""The figures, each a ratio in one run: durun beside its floor. Run by scripts/bench."""

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

DURUN = str(Path(sys.executable).parent / "durun")
ROUNDS = int(sys.argv[1])
STEPS = 300

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
    """posix_spawn, waitpid and one commit at FULL, so many times."""
    place = Place()
    db = apsw.Connection(str(place.path / "floor.db"))
    db.execute("PRAGMA journal_mode=WAL").fetchall()
    db.execute("PRAGMA synchronous=FULL").fetchall()
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x TEXT)")
    begun = time.perf_counter()
    for n in range(steps):
        os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)
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
    def once() -> float:
        place = Place()
        took = place.run(
            "start", place.plan("durun: 1\nname: one\nstart: a\nstates: {a: {run: [/bin/true], next: succeeded}}\n"), "-q"
        )
        place.gone()
        return took

    ratios("`durun start` of a one-step plan, against python -c pass", "15", once, bare)


def peak_of(words: list[str], place: Place) -> tuple[int, int]:
    """VmHWM in KiB of a driver and of its keeper, looked at while it runs."""
    process = subprocess.Popen([DURUN, *words], env=place.env, cwd=place.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    driver = keeper = 0
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
    return driver, keeper


def is_keeper(pid: str) -> bool:
    try:
        return b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def high_water(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def memory() -> None:
    if not Path("/proc/self/status").exists():
        show("memory (no /proc here: not measured)", "-", "-")
        return
    place = Place()
    driver, keeper = peak_of(["start", place.plan(loop(1000)), "-q"], place)
    show("peak of a driver after start, 1,000 steps, MiB", "60", f"{driver / 1024:.1f}")
    show("peak of its keeper, MiB", "10", f"{keeper / 1024:.1f}")
    place.gone()
    place = Place()
    plain = "\n".join(f"  s{n}: {{run: [/bin/true], next: {f's{n + 1}' if n < 999 else 'succeeded'}}}" for n in range(1000))
    text = "durun: 1\nname: plain\nstart: s0\nstates:\n" + plain.replace("run: [/bin/true]", "run: [/bin/false]", 1) + "\n"
    place.run("start", place.plan(text), "-q", "--id", "r", check=False)
    db = apsw.Connection(str(place.path / "d.db"))
    db.execute("UPDATE effects SET request = replace(request, '/bin/false', '/bin/true')")
    db.close()
    driver, keeper = peak_of(["resume", "r", "-q"], place)
    show("peak of a driver after resume, 1,000 steps without expressions, MiB", "40", f"{driver / 1024:.1f}")
    status = json.loads(subprocess.run([DURUN, "show", "r", "--json"], env=place.env, capture_output=True, text=True).stdout)[
        "status"
    ]
    if status != "succeeded":
        raise SystemExit(f"the run that was measured is {status}")
    place.gone()


def main() -> None:
    print(f"durun on Python {sys.version.split()[0]}, SQLite {apsw.sqlite_lib_version()}, {os.cpu_count()} cores, {ROUNDS} rounds")
    print(f"{'what':<74} {'goal (least)':>14}   {'found: median (range)'}")
    steps()
    commits()
    resume()
    listing()
    one_step()
    memory()
    growth()


main()

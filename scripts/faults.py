"""A run survives anything: killed or failing at each call of its driver or keeper, from outside, by strace. Run by scripts/faults.

A case is KIND:WHO:FAULT:CALL:N. KIND is what the run does (see faults_kinds and faults_commands). WHO is the driver, its keeper, a
later driver that resumes what one left that was killed, the first `durun once` of a step, a `durun work`, or a
`durun outbox deliver`; with `all` everything dies in the moment in which the driver does. FAULT is kill, kill+ (so dies each keeper
the driver begins), or an error that the call gives: once (ENOSPC, EIO), or from then on (ENOSPC+, EIO+). A process that is killed just
before its Nth call is one that was killed anywhere after the call before: between two calls that change something nothing can be
seen from outside, so the calls that change something are all moments there are.

Side effects go into a ledger, a file outside of durun. After the fault the run is resumed, and a person who is asked answers by the
ledger. In the end: each side effect once, or where the plan allows a repeat with its key; ledger and effect log agree; history has
no gaps; the database is whole; nothing is left running; the run has ended as its plan says.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from faults_commands import Commands
from faults_kinds import KINDS as OTHERS
from faults_kinds import Kind
from faults_output import much, size

CANNOT = 77  # exit: nothing can be traced here
KINDS: dict[str, Kind] = {Commands.name: Commands(), **OTHERS}

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
TOGETHER = 5  # cases of one kind that are drawn one after the other
ALONE = ("driver", "worker", "deliverer")  # with whom everything may die
SENSE = re.compile(r"resume|free some|again|mend|look at|wait")


class Case(NamedTuple):
    kind: str
    who: str
    fault: str
    call: str
    n: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.who}:{self.fault}:{self.call}:{self.n}"

    @classmethod
    def read(cls, text: str) -> Case:
        *kind, who, fault, call, n = text.split(":")
        return cls(kind[0] if kind else Commands.name, who, fault, call, int(n))

    @property
    def inject(self) -> str:
        """What strace is told."""
        if self.fault.startswith("kill"):
            return f"inject={self.call}:signal=KILL:when={self.n}"
        return f"inject={self.call}:error={self.fault.rstrip('+')}:when={self.n}{'+' if self.fault.endswith('+') else ''}"

    @property
    def series(self) -> tuple[str, str, str, str]:
        return self.kind, self.who, self.fault, self.call


class Found(NamedTuple):
    """What became of a case."""

    case: Case
    fired: bool
    doubts: int
    exit: int
    wrong: tuple[str, ...]
    folder: Path


# --- one case ---


def life(case: Case, folder: Path) -> Found:
    """A run with its fault, resumed until it has ended, and held to its promises."""
    kind, wrong = KINDS[case.kind], list[str]()
    place = kind.place(folder)
    try:
        kind.leave(place, case.who)
        words = ["-e", f"trace={case.call}", "-e", case.inject]
        exit, _, err = place.trace(case.who, kind.words(case.who), folder / "strace.log", words, always=case.fault.endswith("+"))
        (folder / "stderr").write_text(err)
        logs = "".join(p.read_text(errors="replace") for p in sorted(folder.glob("strace.log*")))
        fired = "+++ killed by SIGKILL" in logs if case.fault.startswith("kill") else "(INJECTED)" in logs
        if case.who == "all":
            place.end()
        wrong += first_end(case, kind, fired, exit, err)
        asked = kind.finish(place, exit, wrong)
        if case.who not in ("all", "keeper") and (without := set(asked) - kind.asked):
            wrong.append(f"a person was asked of {sorted(without)}, though somebody lived who knew")
        wrong += kind.promises(place)
    finally:
        place.close()
    return Found(case, fired, len(asked), exit, tuple(wrong), folder)


def first_end(case: Case, kind: Kind, fired: bool, exit: int, err: str) -> Iterator[str]:
    """How the command that met the fault may end."""
    if "Traceback" in err or "fault of its own" in err:
        yield f"a traceback, or a fault of its own:\n{err}"
    elif exit == -100:
        yield f"it hangs:\n{err}"
    elif case.fault.startswith("kill"):
        allowed = (kind.exit,) if not fired else (kind.exit, 9) if case.who in ("keeper", "once") else (-9,)
        allowed += (8,) if case.fault == "kill+" else ()  # each keeper died before it began anything
        if exit not in allowed:
            yield f"exit {exit}:\n{err}"
    elif exit == 9 and ("not whole" in err or case.who == "once"):
        return  # it has happened, and what it gave could not be read or recorded: a person is asked
    elif exit not in (kind.exit, 8):
        yield f"exit {exit}, not {kind.exit} or 8:\n{err}"
    elif exit == 8 and not SENSE.search(err) and case.call != "write":
        yield f"exit 8 without a word of what to do:\n{err}"


# --- which cases there are ---


def calls_of(kind: Kind, who: str, folder: Path, *, begun: bool = False) -> dict[str, list[tuple[int, str]]]:
    """What who may meet a fault calls in a run without one, from its first touch of the database's folder on: (N, line).

    With `begun` that of a driver only from the begin of its first effect on: what comes before is the same for every kind.
    """
    place, wrong = kind.place(folder), list[str]()
    try:
        kind.leave(place, who)
        exit, _, err = place.trace(who, kind.words(who), folder / "strace.log", [])
        wrong += [] if exit == kind.exit else [f"exit {exit}: {err}"]
        kind.finish(place, exit, wrong)
        wrong += kind.promises(place)
    finally:
        place.close()
    if wrong:
        raise SystemExit(f"{kind.name}, without a fault: " + "; ".join(wrong))
    (log,) = folder.glob("strace.log*")
    mark = str(place.db) + (".d" if who in ("driver", "keeper", "resume") else "")
    count, found, touched, waits = Counter[str](), dict[str, list[tuple[int, str]]](), False, begun and who in ALONE
    for line in log.read_text(errors="replace").splitlines():
        call = line.partition("(")[0]
        count[call] += 1
        touched = touched or (mark in line and call != "execve")
        waits = waits and not (count["fdatasync"] and (call == "sendto" or "/requests>" in line))
        if touched and not waits and call in (*CHANGE, *FAILING_BADLY):
            found.setdefault(call, []).append((count[call], line))
    return found


def marked_cases(kind: Kind, folder: Path) -> list[Case]:
    """The first and the last of those calls at which most is at stake."""
    cases, calls = (
        [],
        {who: calls_of(kind, who, folder / f"calls-{kind.name}-{who}") for who in sorted({m[0] for m in kind.marked})},
    )
    for who, faults, call, what in kind.marked:
        of = calls[who].get(call, [])
        numbers = [n for n, line in of if re.search(what, line)]
        if not numbers:
            raise SystemExit(f"{kind.name}: no {who} calls {call} with {what}: {[line for _, line in of][:5]}")
        cases += [Case(kind.name, who, fault, call, n) for fault in faults.split() for n in sorted({numbers[0], numbers[-1]})]
    return cases


def chosen(wanted: argparse.Namespace, who: str) -> bool:
    return not wanted.who or who in wanted.who or ("all" in wanted.who and who in ALONE)


def every_case(kind: Kind, folder: Path, wanted: argparse.Namespace, who: str) -> list[Case]:
    cases = []
    for call, found in calls_of(kind, who, folder / f"calls-{kind.name}-{who}", begun=wanted.begun).items():
        cases += cases_at(kind.name, who, call, found)
    return [
        c for c in cases
        if (not wanted.who or c.who in wanted.who) and (not wanted.fault or c.fault in wanted.fault)
        and (not wanted.call or c.call in wanted.call)
    ]  # fmt: skip


def cases_at(kind: str, who: str, call: str, found: list[tuple[int, str]]) -> Iterator[Case]:
    """Every fault at these calls of one name."""
    numbers = [n for n, _ in found]
    if call in CHANGE and (who == "keeper" or call not in QUIET):
        for name, fault, has in ((who, "kill", True), ("all", "kill", who in ALONE), (who, "kill+", who == "keeper")):
            yield from (Case(kind, name, fault, call, n) for n in numbers if has)
    if call not in FAILING_BADLY or (who == "keeper" and call == "write"):  # its answers, which go to no disk
        return
    numbers = [n for n, line in found if call != "openat" or WRITES.search(line)]
    for fault in (*(("ENOSPC", "ENOSPC+") if call in FAILING else ()), "EIO", "EIO+"):
        # a driver reads its own modules by the same call: on a full disk, reading goes on
        if not (call == "openat" and who != "keeper" and fault.endswith("+")):
            yield from (Case(kind, who, fault, call, n) for n in numbers)


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
        kinds: dict[tuple[str, ...], list[Found]] = {}
        for found in self.found:
            kinds.setdefault(found.case.series, []).append(found)
        yield f"{'kind':<36} {'calls':>6} {'fired':>6} {'exit 8':>6} {'doubts':>6} {'violations':>10}"
        for kind, of in [*sorted(kinds.items()), (("everything",), self.found)]:
            counts = len(of), sum(f.fired for f in of), sum(f.exit == 8 for f in of), sum(f.doubts for f in of)
            yield f"{' '.join(kind):<36} {counts[0]:>6} {counts[1]:>6} {counts[2]:>6} {counts[3]:>6} {sum(bool(f.wrong) for f in of):>10}"


def beyond(cases: list[Case], found: list[Found]) -> list[Case]:
    """The next call of each series whose last one still was there: a series ends where nothing fires any more."""
    last = {c.series: max(d.n for d in cases if d.series == c.series) for c in cases}
    fired = {(f.case.series, f.case.n) for f in found if f.fired}
    openat = [k for k in last if k[3] == "openat" and k[2] != "kill"]  # only those that write
    return [Case(*of, n + 1) for of, n in last.items() if (of, n) in fired and of not in openat]


def cases_of(kinds: list[Kind], folder: Path, wanted: argparse.Namespace) -> list[Case]:
    if wanted.marked:
        return [case for kind in kinds for case in marked_cases(kind, folder)]
    return [case for kind in kinds for who in kind.who if chosen(wanted, who) for case in every_case(kind, folder, wanted, who)]


def enumerate_all(cases: list[Case], folder: Path, jobs: int, tally: Tally, *, further: bool) -> None:
    """All of them; with `further` also what lies behind the last call that was seen."""
    with ThreadPoolExecutor(jobs) as pool:
        while cases:
            found = []
            for one in pool.map(lambda c: life(c, folder / str(c).replace(":", "-")), cases):
                tally.add(one)
                found.append(one)
            cases = beyond(cases, found) if further else []


def draw(cases: Iterator[Case], folder: Path, jobs: int, tally: Tally, budget: float) -> None:
    """As many as fit into the budget."""
    end, lock = time.monotonic() + budget, threading.Lock()

    def work() -> None:
        while time.monotonic() < end:
            with lock:
                case = next(cases, None)
            if case is None:
                return
            tally.add(life(case, folder / str(case).replace(":", "-")))

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()


def drawn(kinds: list[Kind], folder: Path, wanted: argparse.Namespace, chance: random.Random) -> Iterator[Case]:
    """All cases in the order that chance gives: a few of one kind and one who, then of the next; each is looked at when it is due."""
    pairs = [(kind, who) for kind in kinds for who in kind.who if chosen(wanted, who)]
    chance.shuffle(pairs)
    left: dict[tuple[str, str], list[Case]] = {}
    while pairs:
        for kind, who in list(pairs):
            at = kind.name, who
            if at not in left:
                left[at] = every_case(kind, folder, wanted, who)
                chance.shuffle(left[at])
            part, left[at] = left[at][:TOGETHER], left[at][TOGETHER:]
            yield from part
            if not left[at]:
                pairs.remove((kind, who))


def may_trace() -> str:
    """Why strace cannot be used here; '' where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="scripts/faults", description="A run survives anything.")
    p.add_argument("--seed", type=int, help="draw cases by this seed (with --budget)")
    p.add_argument("--budget", type=float, help="seconds after which no further case begins")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--case", action="append", default=[], type=Case.read, help="KIND:WHO:FAULT:CALL:N")
    p.add_argument("--kind", action="append", default=[], choices=[*KINDS, "all"], help="what the run does (commands)")
    p.add_argument(
        "--who", action="append", default=[], choices=["driver", "keeper", "resume", "once", "worker", "deliverer", "all"]
    )
    p.add_argument("--fault", action="append", default=[], choices=["kill", "kill+", "ENOSPC", "ENOSPC+", "EIO", "EIO+"])
    p.add_argument("--call", action="append", default=[])
    p.add_argument("--marked", action="store_true", help="the calls at which most is at stake, alone")
    p.add_argument("--begun", action="store_true", help="of a driver only the calls from the begin of its first effect on")
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
    kinds = [kind for kind in KINDS.values() if kind.name in (wanted.kind or [Commands.name]) or "all" in wanted.kind]
    begun = time.monotonic()
    if wanted.budget is not None and not wanted.case and not wanted.marked:
        draw(drawn(kinds, folder, wanted, random.Random(seed)), folder, wanted.jobs, tally, wanted.budget)
    elif cases := wanted.case or cases_of(kinds, folder, wanted):
        if wanted.list:
            print(*cases, sep="\n")
            return 0
        enumerate_all(cases, folder, wanted.jobs, tally, further=not wanted.case and not wanted.marked)
    print(*tally.lines(), sep="\n")
    print(f"{len(tally.found)} cases in {time.monotonic() - begun:.0f} s" + (f", seed {seed}" if seed is not None else ""))
    if any(f.wrong for f in tally.found):
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random plans under random deaths, held to their promises. Run by scripts/torture.

A round draws a plan of all kinds of states from its seed, starts runs of it, and for a while does to them what it draws: kill -9, INT,
TERM, HUP, STOP and CONT to a driver, a `durun work`, a deliverer, a keeper or a command, a disk that is full for a while, a write or a
sync that fails, and commands of people in between. Then nobody is killed any more, whoever is asked answers by what the ledgers say, and the runs are brought to their end. What must hold:

- whatever has happened is in the log of effects, with its key, and what is said to be done has happened
- nothing has happened twice that may not, and no attempt of anything has
- each run has ended, a failed one with a reason; no message is left; `db check` finds nothing
- no process is left, nothing hung, and nothing was a fault of durun's own

A seed repeats the plan and what is intended with it; when each thing falls is up to the machine.
"""

# ruff: noqa: ARG002  (every kind of state is drawn with the same words)
from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import apsw
from program import COMMAND, Program, until
from receiver import Act, Handler, Receiver, answer, drop

Json = Any
Plan = dict[str, Any]
DO = """#!/bin/sh
# do WORD SECONDS BAD: happens once more, and fails the first BAD times
echo "$1 $DURUN_IDEMPOTENCY_KEY $DURUN_ATTEMPT $DURUN_RUN_ID" >> "$LEDGER"
test "$2" = 0 || sleep "$2"
n=$(grep -c " $DURUN_IDEMPOTENCY_KEY " "$LEDGER")
echo "$n"
test "$n" -gt "$3"
"""
HAPPENED = '#!/bin/sh\ngrep -q " $KEY " "$LEDGER"\n'
ONCE = f'#!/bin/sh\nexec {" ".join(COMMAND)} once "$@"\n'
CODES = {*range(11), 75, 124, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
ENDED = ("succeeded", "failed", "cancelled", "compensated")
LONG = 60.0  # s that nothing takes
ONLY_ONCE = ("x", "p")  # first letter of a word: may not happen twice


# --- plans ---


class Drawn:
    """States of all kinds, drawn by chance; each has a name of its own in the whole plan."""

    def __init__(self, chance: Random, far: str) -> None:
        self.chance, self.far, self.count = chance, far, 0

    def plan(self) -> Plan:
        start, states = self.states(self.chance.randint(3, 7), 2)
        plan: Plan = {
            "durun": 1,
            "name": "torture",
            "pins": {"env": ["LEDGER"]},
            "vars": {"n": 0},
            "start": start,
            "states": states,
        }
        plan["limits"] = {"shared": {"concurrency": self.chance.randint(1, 2)}}
        for key in ("on_error", "on_cancel"):
            if self.chance.random() < 0.4:
                plan[key] = "compensate"
        if self.chance.random() < 0.3:
            plan["notify"] = [{"on": ["succeeded", "failed", "blocked"], "run": ["./do", "i:notify", "0", "0"], "retry": rule(9)}]
        return plan

    def states(self, count: int, depth: int) -> tuple[str, dict[str, Any]]:
        names = [self.name() for _ in range(count)]
        found = {}
        for n, name in enumerate(names):
            kinds = [kind for kind in KINDS if (depth or kind not in NESTED) and (n + 1 == count or kind != "fail")]
            state = getattr(self, "_" + self.chance.choice(kinds))(name, depth)
            following = names[n + 1] if n + 1 < count else "succeeded"
            if "choice" in state:
                state["choice"].append({"next": following})
            elif "fail" not in state:
                state["next"] = following
            found[name] = state
        return names[0], found

    def name(self) -> str:
        self.count += 1
        return f"s{self.count}"

    def pause(self) -> str:
        return self.chance.choice(("0", "0.1", "0.3", "0.5", "0.8"))

    def do(self, policy: str, name: str, bad: int = 0) -> list[str]:
        return ["./do", f"{policy}:{name}", self.pause(), str(bad)]

    def undo(self, name: str) -> dict[str, Any]:
        if self.chance.random() < 0.5:
            return {}
        if self.chance.random() < 0.5:
            return {"compensate": {"run": self.do("i", name + "~"), "idempotent": True, "retry": rule(9)}}
        return {"compensate": {"run": self.do("x", name + "~")}}

    def _x(self, name: str, depth: int) -> Plan:
        state = {"run": self.do("x", name), **self.undo(name)}
        return {**state, "limit": "shared"} if self.chance.random() < 0.2 else state

    def _r(self, name: str, depth: int) -> Plan:
        return {"run": self.do("r", name, self.chance.randint(1, 2)), "retry": rule(4), **self.undo(name)}

    def _i(self, name: str, depth: int) -> Plan:
        state = {"run": self.do("i", name), "idempotent": True, "retry": rule(9), **self.undo(name)}
        return {**state, "limit": "shared"} if self.chance.random() < 0.3 else state

    def _p(self, name: str, depth: int) -> Plan:
        return {"run": self.do("p", name), "probe": {"run": ["./happened"], "env": {"KEY": "${{ key }}"}}, **self.undo(name)}

    def _caught(self, name: str, depth: int) -> Plan:
        return {"run": self.do("x", name, 99), "catch": [{"on": ["exit"], "next": "succeeded"}]}

    def _counted(self, name: str, depth: int) -> Plan:
        return {
            "run": self.do("i", name),
            "output": "json",
            "idempotent": True,
            "retry": rule(9),
            "assign": {"n": "${{ vars.n + output }}"},
        }

    def _poll(self, name: str, depth: int) -> Plan:
        poll = {"until": "output >= 1", "every": "30ms", "times": self.chance.randint(1, 3), "for": "1h"}
        return {"run": ["./do", f"l:{name}", "0", "0"], "output": "json", "idempotent": True, "poll": poll}

    def _once(self, name: str, depth: int) -> Plan:
        lines = "\n".join(f"./once m{n} -- {' '.join(self.do('x', f'{name}.m{n}'))} > /dev/null" for n in range(2))
        return {"run": lines, "idempotent": True, "retry": rule(9)}

    def _background(self, name: str, depth: int) -> Plan:
        if self.chance.random() < 0.5:
            return {"run": self.do("i", name), "background": True, "idempotent": True, "retry": rule(9)}
        return {"http": self.post("i", name), "background": True, "idempotent": True, "retry": rule(9)}

    def _http(self, name: str, depth: int) -> Plan:
        return {"http": self.post("x", name)}

    def _again(self, name: str, depth: int) -> Plan:
        return {"http": self.post("i", name), "idempotent": True, "retry": rule(9)}

    def post(self, policy: str, name: str) -> Plan:
        return {"method": "POST", "url": f"{self.far}/{policy}:{name}", "json": {"name": name}}

    def _wait(self, name: str, depth: int) -> Plan:
        return {"wait": f"{self.chance.randint(1, 400)}ms"}

    def _signal(self, name: str, depth: int) -> Plan:
        return {"wait": {"signal": "go"}}

    def _approval(self, name: str, depth: int) -> Plan:
        return {"approval": {"message": "Go on?"}}

    def _pass(self, name: str, depth: int) -> Plan:
        return {"pass": {}, "assign": {"n": "${{ vars.n + 1 }}"}}

    def _choice(self, name: str, depth: int) -> Plan:
        return {"choice": [{"when": "vars.n > 5", "next": "succeeded"}]}

    def _fail(self, name: str, depth: int) -> Plan:
        return {"fail": {"error": "no_luck"}}

    def _parallel(self, name: str, depth: int) -> Plan:
        branches = {}
        for n in range(self.chance.randint(2, 3)):
            start, states = self.states(self.chance.randint(1, 2), depth - 1)
            branches[f"b{n}"] = {"start": start, "states": states}
        return {"parallel": {"branches": branches, **self.policy()}}

    def _map(self, name: str, depth: int) -> Plan:
        start, states = self.states(self.chance.randint(1, 2), depth - 1)
        items = str(list(range(self.chance.randint(1, 5))))
        return {
            "map": {"items": items, "start": start, "states": states, "concurrency": self.chance.randint(1, 3), **self.policy()}
        }

    def policy(self) -> Plan:
        said: Plan = {}
        if self.chance.random() < 0.3:
            said["failures"] = self.chance.choice((1, "50%", "all"))
        if self.chance.random() < 0.2:
            said["stop"] = "now"
        if self.chance.random() < 0.15:
            said["enough"] = 1
        return said

    def _plan(self, name: str, depth: int) -> Plan:
        start, states = self.states(self.chance.randint(1, 2), 0)
        states = {n: {k: v for k, v in s.items() if k != "limit"} for n, s in states.items()}
        child = {"durun": 1, "name": "child", "pins": {"env": ["LEDGER"]}, "vars": {"n": 0}, "start": start, "states": states}
        return {"plan": {"file": f"{name}.yaml"}, "x-child": child}


NESTED = ("parallel", "map", "plan")
KINDS = [*"xxxiiirrpp", "caught", "counted", "poll", "once", "once", "background", "background", "http", "again", "wait", "signal"]
KINDS += ["approval", "pass", "choice", "fail", *NESTED, *NESTED]


def rule(attempts: int) -> Plan:
    return {"max_attempts": attempts, "initial_interval": "20ms", "backoff": 1, "jitter": "none"}


def smaller(plan: Plan) -> Iterator[Plan]:
    """The plan with one state less, what led to it leading on; or without one of the words that are the whole plan's."""
    for key in ("notify", "on_error", "on_cancel"):
        if key in plan:
            yield {k: v for k, v in plan.items() if k != key}
    for level in levels(plan):
        for name in level["states"]:
            if len(level["states"]) > 1:
                made = json.loads(json.dumps(plan))
                drop_state(next(one for one in levels(made) if name in one["states"]), name)
                yield made


def levels(level: Plan) -> Iterator[Plan]:
    """Whatever has a start and states, from outside inwards."""
    yield level
    for state in level["states"].values():
        inner = [*state.get("parallel", {}).get("branches", {}).values(), state.get("map"), state.get("x-child")]
        for one in inner:
            if one:
                yield from levels(one)


def drop_state(level: Plan, name: str) -> None:
    gone = level["states"].pop(name)
    onward = gone.get("next") or (gone["choice"][-1]["next"] if "choice" in gone else "succeeded")
    level["start"] = onward if level["start"] == name else level["start"]
    for state in level["states"].values():
        for place in (state, *state.get("choice", ()), *state.get("catch", ())):
            if place.get("next") == name:
                place["next"] = onward


# --- a round ---


class Wrong(Exception):
    """A promise that was not kept."""


class Disk(NamedTuple):
    """A small disk of its own for a database, so that it can be full."""

    folder: Path

    @classmethod
    def mounted(cls, folder: Path) -> Disk | None:
        """None where nobody may mount one."""
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
        try:
            return cls(folder) if subprocess.run(words, capture_output=True).returncode == 0 else None
        except OSError:
            return None

    @contextlib.contextmanager
    def full(self, left: int) -> Iterator[None]:
        filler = self.folder / "filler"
        try:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as f:
                free = os.statvfs(self.folder)
                f.truncate(0)
                os.posix_fallocate(f.fileno(), 0, max(1, free.f_bavail * free.f_frsize - left))
            yield
        finally:
            filler.unlink(missing_ok=True)

    def gone(self) -> Path:
        """What lies on it is kept beside it: where."""
        kept = self.folder.with_name("kept")
        shutil.copytree(self.folder, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        return kept


class Round:
    """One plan in a folder of its own, and all that is done to its runs."""

    def __init__(self, folder: Path, seed: str, seconds: float) -> None:
        self.folder, self.seed, self.seconds = folder, seed, seconds
        folder.mkdir(parents=True)
        self.durun = Program(folder)
        self.durun.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.disk = Disk.mounted(folder / "disk")
        if self.disk is not None:  # else the disk is never full
            self.durun.db = self.disk.folder / "runs.db"
            self.durun.env["DURUN_DB"] = str(self.durun.db)
        self.chance = Random(f"{seed} chaos")
        self.far, self.works, self.lock = Receiver(), Counter[tuple[str, str | None]](), threading.Lock()
        self.moody(Random(f"{seed} far"))
        self.runs = [f"r{n}" for n in range(self.chance.choice((1, 1, 2)))]
        self.begun: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.still: list[int] = []
        self.seen: dict[int, float] = {}  # processes of durun, and since when
        self.story: list[str] = []
        self.wrong: list[str] = []
        for name, text in (("do", DO), ("happened", HAPPENED), ("once", ONCE)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)

    def write(self, plan: Plan | None) -> Plan:
        """Writes the plan, or draws it; the far side is found where it is now."""
        if plan is None:
            plan = Drawn(Random(f"{self.seed} plan"), "http://far").plan()
        for level in levels(plan):
            for name, state in level["states"].items():
                if "x-child" in state:
                    (self.folder / f"{name}.yaml").write_text(self.placed(plain(state["x-child"])))
        (self.folder / "plan.yaml").write_text(self.placed(plain(plan)))
        (self.folder / "drawn.json").write_text(json.dumps(plan, indent=1))
        return plan

    def placed(self, plan: Plan) -> str:
        return json.dumps(plan, indent=1).replace("http://far", self.far.url)

    # the far side

    def moody(self, chance: Random | None) -> None:
        """What the far side does with requests; without chance it is well."""

        def act(h: Handler) -> None:
            with self.lock:
                mood = chance.random() if chance else 1.0
            key, path = h.came.key, h.came.path
            does = mood >= 0.1 if mood < 0.2 else mood >= 0.3  # dropped before and after the work; 503 or 500 without it
            if does:
                with self.lock:
                    self.works[path, key] += 1
            acts: list[tuple[float, Act]] = [
                (0.1, drop(after=False)),
                (0.2, drop(after=True)),
                (0.25, answer(503)),
                (0.3, answer(500)),
            ]
            if mood >= 0.9 and chance:
                time.sleep(0.3)
            next((one for limit, one in acts if mood < limit), answer(200, {"ok": True}))(h)

        self.far.say(act)

    # what is done

    def begin(self, *words: str) -> None:
        log = (self.folder / f"{len(self.begun)}.log").open("wb")
        process = subprocess.Popen(
            [*COMMAND, *words], cwd=self.folder, env=self.durun.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        log.close()
        self.begun.append((" ".join(words), process))
        self.seen[process.pid] = time.monotonic()
        self.tell(f"durun {' '.join(words)} ({process.pid})")

    def tell(self, what: str) -> None:
        self.story.append(what)

    def torture(self) -> None:
        """For some seconds everything happens."""
        for run in self.runs:
            self.begin("start", "plan.yaml", "--id", run, *self.chance.choice(((), ("--wait",), ("--detach",), ("-q",))))
        if self.chance.random() < 0.9:  # else it may be killed before it is stored
            self.happens(LONG)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            if self.chance.random() < 0.6:
                self.happens(1.0)
            time.sleep(self.chance.choice((0, 0, 0.01, 0.03, 0.1)))
            self.chance.choice((self.hurt, self.hurt, self.hurt, self.say, self.say, self.fill, self.fail))()
            if self.still and self.chance.random() < 0.5:
                self.send(self.still.pop(0), signal.SIGCONT)
        while self.still:
            self.send(self.still.pop(0), signal.SIGCONT)

    def happens(self, seconds: float) -> None:
        """Waits until something happens in the world, or so long: to be killed while it starts is no news."""
        before, end = self.marks(), time.monotonic() + seconds
        while self.marks() == before and time.monotonic() < end and self.durun.processes():
            time.sleep(0.01)

    def marks(self) -> tuple[int, int]:
        return len(self.lines()), sum(self.works.values())

    def hurt(self) -> None:
        kinds: dict[str, list[int]] = {}
        now, patience = time.monotonic(), self.chance.choice((0, 0.3, 0.8, 1.5))
        for pid in self.durun.processes():
            kind = kind_of(pid)
            ripe = kind in ("command", "keeper", "once") or now - self.seen.setdefault(pid, now) >= patience
            if ripe and pid not in self.still:
                kinds.setdefault(kind, []).append(pid)
        draw, whom, how = self.chance.random(), self.chance.random(), self.chance.random()
        if not kinds:
            return
        leading = [kind for kind in ("driver", "work") if kind in kinds] if draw < 0.4 else []
        kind = sorted(leading or kinds)[int(draw * 7919) % len(leading or kinds)]
        pid = sorted(kinds[kind])[int(whom * len(kinds[kind]))]
        number = signal.SIGKILL if how < 0.6 else self.chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP))
        self.tell(f"{number.name} to {kind} {pid}")
        if number == signal.SIGSTOP:
            self.still.append(pid)
        self.send(pid, number)

    def fill(self) -> None:
        """The disk is full for a while, or nearly: ledgers and commands have another."""
        left, long = self.chance.choice((0, 0, 1 << 20, 17 << 20)), self.chance.choice((0.02, 0.1, 0.4))
        if self.disk is not None:
            self.tell(f"{left} bytes are free")
            with self.disk.full(left):
                time.sleep(long)

    def fail(self) -> None:
        """A write or a sync of a driver, a worker or a `once` fails."""
        fault, call = self.chance.choice(("EIO", "ENOSPC")), self.chance.choice(("pwrite64", "fdatasync", "openat"))
        when, draw = self.chance.randint(1, 6), self.chance.random()
        found = sorted(pid for pid in self.durun.processes() if kind_of(pid) in ("driver", "work", "deliverer", "once"))
        if not found or shutil.which("strace") is None:
            return
        pid = found[int(draw * len(found))]
        self.tell(f"{call} number {when} gives {fault} to {kind_of(pid)} {pid}")
        words = ["strace", "-qq", "-o", "/dev/null", "-P", str(self.durun.db) + "-wal", "-P", str(self.durun.db)]
        inject = f"inject={call}:error={fault}:when={when}"
        tracing = subprocess.Popen([*words, "-e", f"trace={call}", "-e", inject, "-p", str(pid)], stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracing.wait(0.3)
        tracing.terminate()
        tracing.wait()

    def send(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def say(self) -> None:
        run = self.chance.choice(self.runs)
        words = [
            ("resume", run),
            ("resume", run, "--detach"),
            ("resume", "--all"),
            ("work", "--once"),
            ("work",),
            ("outbox", "deliver"),
        ]
        words += [
            ("start", "plan.yaml", "--id", run),
            ("pause", run),
            ("approve", run),
            ("signal", run, "go"),
            ("show", run, "--json"),
        ]
        words += [("resume", run)] * 3
        if self.chance.random() < 0.1:
            words = [("cancel", run, "--grace", "1s"), ("compensate", run)]
        if sum(process.poll() is None for _, process in self.begun) < 5:
            self.begin(*self.chance.choice(words))

    # how it ends

    def call(self, *words: str) -> tuple[int, str, str]:
        self.tell(f"durun {' '.join(words)}")
        try:
            done = self.durun(*words, exit=None, limit=LONG)
        except subprocess.TimeoutExpired:
            raise Wrong(f"`durun {' '.join(words)}` hangs") from None
        self.story[-1] += f": {done.returncode} {done.stderr.strip()[-300:]}"
        self.own_fault(" ".join(words), done.returncode, done.stderr)
        return done.returncode, done.stdout, done.stderr

    def own_fault(self, words: str, code: int, said: str) -> None:
        # a signal that falls into the start of the interpreter is not ours
        if code not in CODES or ("Traceback" in said and "/durun/" in said) or "fault of its own" in said:
            self.wrong.append(f"`durun {words}` exits {code}:\n{said[-3000:]}")

    def settle(self) -> None:
        """Whoever is under way is let end, and the runs are brought to theirs."""
        self.moody(None)
        for words, process in self.begun:
            if words.startswith("work") and process.poll() is None:
                self.send(process.pid, signal.SIGTERM)
        for run in self.runs:
            self.finish(run)
        for words, process in self.begun:
            try:
                code = process.wait(LONG)
            except subprocess.TimeoutExpired:
                raise Wrong(f"`durun {words}` ({process.pid}) does not end") from None
            number = next(n for n, (_, one) in enumerate(self.begun) if one is process)
            self.own_fault(words, code, (self.folder / f"{number}.log").read_text(errors="replace"))
        self.deliver()

    def finish(self, run: str) -> None:
        failed, end = 0, time.monotonic() + 3 * LONG
        while time.monotonic() < end:
            code, out, err = self.call("show", run, "--json")
            if code in (5, 8):
                self.call("start", "plan.yaml", "--id", run)
                continue
            if code:
                raise Wrong(f"show exits {code}: {err}")
            doc = json.loads(out)
            if doc["status"] in ENDED and not (doc["status"] == "failed" and failed < 4):
                return
            failed += doc["status"] == "failed"
            if not self.people(run, doc):
                code = self.call("resume", run)[0]
                if doc["status"] == "failed" and code == 10:
                    return
                time.sleep(0.1 if code == 6 else 0)
        raise Wrong(f"{run} never ended: it is {doc['status']} {doc['reason']}: {doc['waiting_for']}")

    def people(self, run: str, doc: Json) -> bool:
        """A person does what they are asked; whether anything was."""
        did = False
        for w in doc["waiting_for"]:
            match w["kind"]:
                case "approval":
                    self.call("approve", run, w["path"])
                case "signal":
                    self.call("signal", run, "go")
                case "in_doubt" | "keeps_dying":
                    self.resolve(run, doc, w)
                case "undo_failed" if self.is_undone(doc, w["path"]):
                    self.call("resolve", run, w["path"], "--undone")
                case "undo_failed" | "not_stopped":
                    self.call(*w["command"].split(" | ")[0].split()[1:])
                case _:
                    continue
            did = True
        return did

    def is_undone(self, doc: Json, path: str) -> bool:
        """Whether an undo that failed has happened all the same, where it may not happen again: it was killed, say."""
        tried = [e for e in doc["effects"] if e["kind"] == "undo" and e["path"].removesuffix("~undo") == path]
        return any(line[1] == tried[-1]["key"] and line[0][0] in ONLY_ONCE for line in self.lines()) if tried else False

    def resolve(self, run: str, doc: Json, w: Json) -> None:
        """They look into the ledgers, and say what has happened."""
        path = w["path"]
        of = {path, path.removesuffix("~undo")} if "--undone" in w["command"] else {path}  # what is undone, or its undo
        effect = next((e for e in reversed(doc["effects"]) if e["path"] in of and e["kind"] != "probe"), None)
        if effect is None:
            raise Wrong(f"{path} is in doubt, and no effect is there: {doc['effects']}")
        there = effect["key"] in self.happened()
        no = "--fail" if "--retry" not in w["command"] else "--retry"
        if self.of_onces(doc, path):
            self.call("resolve", run, path, "--retry")
        elif not there:
            self.call("resolve", run, path, no)
        elif self.call("resolve", run, path, "--happened")[0] == 7:
            self.call("resolve", run, path, "--happened", "--output", "1")

    def of_onces(self, doc: Json, path: str) -> bool:
        """Whether a state is one whose work is all in onces, so that it may be begun again."""
        return any(e["kind"] == "once" and e["path"].rpartition("/once:")[0] == path for e in doc["effects"])

    def happened(self) -> set[str | None]:
        return {line[1] for line in self.lines()} | {key for (_, key), n in self.works.items() if n}

    def lines(self) -> list[list[str]]:
        return [line.split(" ") for line in self.durun.lines()]

    def deliver(self) -> None:
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            left = json.loads(self.call("outbox", "ls", "--json")[1])["messages"]
            if not left:
                return
            for m in left:
                if m["status"] == "dead":
                    self.call("outbox", "retry", f"{m['run']}:{m['effect']}")
            self.call("outbox", "deliver")
        raise Wrong(f"not delivered: {left}")

    # what must hold

    def promises(self) -> Iterator[str]:
        code, out, err = self.call("db", "check")
        if code:
            yield f"db check exits {code}:\n{out}{err}"
        yield from self.of_ledgers()
        try:
            until(lambda: not self.durun.processes(), 30)
        except AssertionError:
            left = {pid: cmdline(pid) for pid in self.durun.processes()}
            if left:
                yield f"left running: {left}"

    def of_ledgers(self) -> Iterator[str]:
        db = apsw.Connection(str(self.durun.db), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            effects = list(db.execute("SELECT key, kind, state, status, request FROM effect WHERE kind <> 'probe'"))
            told = list(db.execute("SELECT id, status, error FROM run"))
        finally:
            db.close()
        for id, status, error in told:
            if status not in ENDED or (status == "failed" and not error):
                yield f"{id} is {status}, with the error {error}"
        lines, keys = self.lines(), {effect[0] for effect in effects}
        for word, key, attempt, _ in lines:
            if key not in keys and word[0] != "l":  # the log keeps the key of the last round of a poll
                yield f"{word} has happened at attempt {attempt}, and no effect has its key {key}"
        for (path, key), times in self.works.items():
            if key not in keys:
                yield f"{path} has come, and no effect has its key {key}"
            if times > 1 and path[1] in ONLY_ONCE:
                yield f"{path} with the key {key} has happened {times} times"
        yield from self.twice(lines)
        there = self.happened()
        for key, kind, state, status, request in effects:
            acts = "./once" not in request and ("./do" in request or self.far.url in request)
            if status == "done" and acts and key not in there:
                yield f"{kind} {state} with the key {key} is done, and has not happened"

    def twice(self, lines: list[list[str]]) -> Iterator[str]:
        times = Counter((word, key) for word, key, *_ in lines)
        for (word, key), n in times.items():
            if n > 1 and word[0] in ONLY_ONCE:
                yield f"{word} with the key {key} has happened {n} times"
        for (word, key, attempt, _), n in Counter(map(tuple, lines)).items():
            if n > 1:
                yield f"attempt {attempt} of {word} with the key {key} was begun {n} times"

    def live(self, plan: Plan | None = None) -> list[str]:
        """The whole round; what is wrong with it."""
        try:
            self.write(plan)
            code, _, err = self.call("check", "plan.yaml")
            if code:
                raise Wrong(f"the plan is refused: {err}")
            self.torture()
            self.settle()
            self.wrong += self.promises()
        except Wrong as e:
            self.wrong.append(str(e))
        finally:
            self.durun.end()
            self.far.close()
            if self.disk is not None:
                self.durun.db = self.disk.gone() / "runs.db"
            (self.folder / "story").write_text("\n".join(self.story) + "\n")
        return self.wrong


def plain(plan: Plan) -> Plan:
    """The plan as durun reads it: a child is a file of its own."""
    made: Plan = json.loads(json.dumps(plan))
    for level in levels(made):
        for state in level["states"].values():
            state.pop("x-child", None)
    return made


def kind_of(pid: int) -> str:
    said = cmdline(pid)
    words = {"keeper.py": "keeper", "durun work": "work", "outbox deliver": "deliverer", "durun once": "once", "-m durun": "driver"}
    return next((kind for word, kind in words.items() if word in said), "command")


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


# --- the command ---


def main() -> int:
    given = argparse.ArgumentParser(prog="scripts/torture")
    given.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    given.add_argument("--rounds", type=int)
    given.add_argument("--seconds", type=float, help="no round is begun after so many (600, unless rounds are given)")
    given.add_argument("--each", type=float, default=3.0, help="seconds of torture in a round (3)")
    given.add_argument("--plan", type=Path, help="this plan, a drawn.json, in place of a drawn one")
    given.add_argument("--keep", action="store_true", help="the folders of good rounds stay too")
    given.add_argument("--shrink", action="store_true", help="look for the smallest plan that fails with this seed")
    args = given.parse_args()
    if args.seconds is None:
        args.seconds = 600.0 if args.rounds is None else float("inf")
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # the round that is cut short takes its processes with it
    base = Path(tempfile.mkdtemp(prefix="durun-torture-"))
    plan = json.loads(args.plan.read_text()) if args.plan else None
    return shrink(base, args, plan) if args.shrink else rounds(base, args, plan)


def rounds(base: Path, args: argparse.Namespace, plan: Plan | None) -> int:
    began, count, bad = time.monotonic(), 0, 0
    while time.monotonic() - began < args.seconds and (args.rounds is None or count < args.rounds):
        seed = args.seed + count
        one = Round(base / str(seed), str(seed), args.each)
        wrong = one.live(plan)
        count += 1
        bad += bool(wrong)
        for what in wrong:
            print(f"seed {seed}: {what}", flush=True)
        if wrong:
            print(f"  scripts/torture --seed {seed} --rounds 1; its folder: {one.folder}", flush=True)
        elif not args.keep:
            shutil.rmtree(one.folder)
    print(f"{count} rounds from seed {args.seed}, {bad} of them bad, in {time.monotonic() - began:.0f} s")
    return int(bad > 0)


def shrink(base: Path, args: argparse.Namespace, plan: Plan | None) -> int:
    """Drops one state after the other as long as it still fails; each plan has three tries, since time differs."""
    tries = 0

    def fails(plan: Plan | None) -> Round | None:
        nonlocal tries
        for _ in range(3):
            tries += 1
            one = Round(base / str(tries), str(args.seed), args.each)
            if one.live(plan):
                return one
            shutil.rmtree(one.folder)
        return None

    found = fails(plan)
    if found is None:
        print(f"seed {args.seed} does not fail in three tries")
        return 0
    going: Callable[[], Plan] = lambda: json.loads((found.folder / "drawn.json").read_text())  # noqa: E731
    while smallest := next((one for less in smaller(going()) if (one := fails(less))), None):
        found = smallest
        left = sum(len(level["states"]) for level in levels(going()))
        print(f"{left} states still fail: {found.folder}/plan.yaml", flush=True)
    print("\n".join(found.wrong))
    print(f"the smallest plan that was found to fail, after {tries} rounds: {found.folder}/plan.yaml")
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""What scripts/faults does a fault to: a plan for each kind of effect, how a person brings its runs to their end, and its promises.

What holds for each kind: whatever is in the ledger has its key in the log of effects and the other way round; what may happen once
has, what may be repeated was with the same key, no attempt of anything was begun twice; the runs have ended as the plan says, with
nothing left to deliver; history has no gaps and `db check` finds nothing; nothing is left running.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults_place import LINE, Place, cmdline

from durun.store.audit import audit
from durun.store.file import File

Json = Any
LEAVES = ["resume", "work"]  # who meets a run that another left
ONCE, AGAIN = "once", "again"  # how often: once, or more than once with one key
TRIED = "retry: {max_attempts: 5, initial_interval: 20ms, jitter: none}"


class Kind:
    """One plan, its runs, and what must hold of them. `happens`: word of the ledger -> how often; `asked`: what may be in doubt
    though only its driver died; `exit`: how a run ends; `left`: the fdatasync before which a driver is killed whose run
    another resumes."""

    name = ""
    files: dict[str, str] = {}
    runs: tuple[str, ...] = ("r",)
    who: tuple[str, ...] = ("driver", "keeper", "resume")
    happens: dict[str, str] = {}
    asked: frozenset[str] = frozenset()
    exit = 0
    left = 10
    far = False
    marked: tuple[tuple[str, str, str, str], ...] = ()  # who, faults, call, and what its line holds, where most is at stake

    def place(self, folder: Path) -> Place:
        made = Place(folder, self.files)
        if self.far:
            made.with_far_side()
        return made

    def start(self, run: str) -> list[str]:
        return ["start", "plan.yaml", "--id", run]

    def words(self, who: str) -> list[str]:
        """The command that meets the fault."""
        return ["resume", "r"] if who == "resume" else self.start("r")

    def leave(self, place: Place, who: str) -> None:
        """What there is before the fault: for one who resumes, a run whose driver was killed."""
        if who == "resume":
            words = ["-e", "trace=fdatasync", "-e", f"inject=fdatasync:signal=KILL:when={self.left}"]
            exit, _, err = place.trace("driver", self.start("r"), place.folder / "left.log", words)
            if exit != -9 or not place.lines():
                raise SystemExit(f"{self.name}: the driver that is to be resumed was not killed in its midst, exit {exit}: {err}")

    # how it goes on

    def finish(self, place: Place, exit: int, wrong: list[str]) -> list[str]:
        """Goes on as a person would who finds the runs somewhere, whose command ended so. What they were asked about."""
        return [] if exit == self.exit else [path for run in self.runs for path in self.end(place, run, wrong)]

    def end(self, place: Place, run: str, wrong: list[str]) -> list[str]:
        asked: list[str] = []
        for _ in range(40):
            exit, _, err = place.durun("resume", run)
            if exit in (5, 8):  # it was never stored, so whoever wanted it starts it
                exit, _, err = place.durun(*self.start(run))
            if exit == self.exit:
                return asked
            if exit == 3:  # it only waits for a time
                place.durun("resume", run, "--wait")
            elif exit == 9:
                asked += self.answer(place, run, wrong)
            else:
                wrong.append(f"resume {run}: exit {exit}:\n{err}")
                return asked
        wrong.append(f"{run} never ended")
        return asked

    def answer(self, place: Place, run: str, wrong: list[str]) -> list[str]:
        """A person who is asked looks into the ledger."""
        doc = json.loads(place.durun("show", run, "--json")[1])
        doubts = [w for w in doc["waiting_for"] if w["kind"] in ("in_doubt", "keeps_dying", "undo_failed")]
        for doubt in doubts:
            self.resolve(place, doc, doubt, wrong)
        if not doubts:
            wrong.append(f"blocked, and nothing is asked: {doc['status']} {doc['reason']} {doc['waiting_for']}")
        return [doubt["path"] for doubt in doubts]

    def resolve(self, place: Place, doc: Json, doubt: Json, wrong: list[str]) -> None:
        path = doubt["path"]
        of = {path, path + "~undo"} if "--undone" in doubt["command"] else {path}
        effect = next(e for e in reversed(doc["effects"]) if e["path"] in of and e["kind"] != "probe")
        happened = any(line[3] == effect["key"] for line in place.lines())
        no = "--retry" if "--retry" in doubt["command"] else "--fail"
        yes = "--undone" if "--undone" in doubt["command"] and "--happened" not in doubt["command"] else "--happened"
        words = ["resolve", doc["id"], path, yes if happened else no]
        gives = self.gave(path) if happened and yes == "--happened" else None
        exit, _, err = place.durun(*words, *([] if gives is None else ["--output", json.dumps(gives)]))
        if exit not in (0, 10):
            wrong.append(f"{' '.join(words)}: exit {exit}:\n{err}")

    def gave(self, path: str) -> Json:  # noqa: ARG002
        """What a person says that it gave; None where nobody reads it."""
        return None

    # what must hold

    def promises(self, place: Place) -> Iterator[str]:
        if place.db.exists():
            yield from self.of_ledger(place)
            yield from of_file(place)
        else:
            yield "no database"
        end = time.monotonic() + 20
        while (alive := place.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        if alive:
            yield f"left running: {[(pid, cmdline(pid)) for pid in alive]}"

    def of_ledger(self, place: Place) -> Iterator[str]:
        lines, keys = place.lines(), dict[str, str]()
        wanted = {word: often for run in self.docs(place) for word, often in self.expected(run).items()}
        for run in self.docs(place):
            of = self.status(run)
            if of:
                yield of
            for effect in run["effects"]:
                word = self.word(run, effect["path"])
                if effect["kind"] != "probe" and word in wanted:
                    if effect["status"] != "done":
                        yield f"{word} is {effect['status']}"
                    if keys.setdefault(effect["key"], word) != word:
                        yield f"the key {effect['key']} is of {word} and of {keys[effect['key']]}"
        for word, often in wanted.items():
            mine = [line for line in lines if line[0] == word]
            if not mine or (often == ONCE and len(mine) > 1):
                yield f"{word} happened {len(mine)} times"
            if len({line[3] for line in mine}) > 1 and often in (ONCE, AGAIN):
                yield f"{word} changed its key"
            if unknown := [line for line in mine if keys.get(line[3]) != word]:
                yield f"{word}: the log of effects has no such key: {unknown}"
            if word not in keys.values():
                yield f"the log of effects has no {word}"
        for line, n in Counter(map(tuple, lines)).items():
            if n > 1 and line[2] != "-":
                yield f"an attempt was begun {n} times: {line}"
            if line[0] not in wanted:
                yield f"what is that in the ledger: {line}"

    def docs(self, place: Place) -> list[Json]:
        return [json.loads(place.durun("show", run, "--json")[1]) for run in self.runs]

    def status(self, run: Json) -> str:
        ends = {0: "succeeded", 4: "compensated"}[self.exit]
        return "" if run["status"] == ends else f"{run['id']} is {run['status']}: {run['error']}"

    def expected(self, run: Json) -> dict[str, str]:  # noqa: ARG002
        return self.happens

    def word(self, run: Json, path: str) -> str:  # noqa: ARG002
        return path


def of_file(place: Place) -> Iterator[str]:
    """The database is whole, and the history of each run is numbered without a gap."""
    file = File(str(place.db), create=False)
    try:
        yield from (f"db check: {broken}" for broken in audit(file).broken)
    finally:
        file.close()
    db = sqlite3.connect(f"file:{place.db}?mode=ro", uri=True)
    try:
        if (whole := db.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
            yield f"integrity_check: {whole}"
        if broken := db.execute("PRAGMA foreign_key_check").fetchall():
            yield f"foreign_key_check: {broken}"
        numbers: dict[str, list[int]] = {}
        for run, no in db.execute("SELECT run, no FROM event ORDER BY run, no"):
            numbers.setdefault(run, []).append(no)
        for run, found in numbers.items():
            if found != list(range(1, len(found) + 1)):
                yield f"history of {run} is numbered {found}"
    finally:
        db.close()


def head(name: str, start: str, env: str = "LEDGER", more: str = "") -> str:
    return f"durun: 1\nname: {name}\npins: {{env: [{env}]}}\n{more}start: {start}\nstates:\n"


def post(word: str, method: str = "POST") -> str:
    return f"http: {{method: {method}, url: '${{{{ pins.env.FAR }}}}/{word}'}}"


class Http(Kind):
    """A request of each kind: once, again with its key, one that fails first, one that is asked for, one that may be repeated."""

    name = "http"
    far = True
    who = ("driver", "resume")
    happens = {"pay": ONCE, "again": AGAIN, "flaky": AGAIN, "asks": ONCE, "puts": AGAIN}
    asked = frozenset({"pay"})
    marked = (
        ("driver", "kill ENOSPC EIO", "write", "requests"),
        ("driver", "kill", "sendto", "POST|PUT"),
        ("driver", "kill ENOSPC EIO", "fdatasync", ""),
    )
    files = {
        "plan.yaml": head("http", "pay", "LEDGER, FAR", "vars: {n: 0}\n")
        + f"""
  pay: {{{post("pay")}, assign: {{n: '${{{{ output.json.n }}}}'}}, next: again}}
  again: {{{post("again")}, idempotent: true, {TRIED}, next: flaky}}
  flaky: {{{post("flaky")}, idempotent: true, {TRIED}, next: asks}}
  asks: {{{post("asks")}, probe: {{http: {{method: HEAD, url: '${{{{ pins.env.FAR }}}}/asked', headers: {{Idempotency-Key: '${{{{ key }}}}'}}}}}}, next: puts}}
  puts: {{{post("puts", "PUT")}, next: succeeded}}
"""
    }

    def gave(self, path: str) -> Json:
        return {"status": 200, "headers": {}, "json": {"n": 1}, "body": ""} if path == "pay" else None


class Undo(Kind):
    """An error sends the run back: undos by command and by request, those that may be repeated and those that may not."""

    name = "undo"
    far = True
    exit = 4
    happens = {
        "a": ONCE, "b": ONCE, "c": AGAIN, "a~undo": ONCE, "b~undo": AGAIN, "c~undo": AGAIN,
    }  # fmt: skip
    asked = frozenset({"b", "b~undo"})
    left = 15
    marked = (
        ("driver", "kill ENOSPC", "fdatasync", ""),
        ("driver", "EIO", "write", "requests"),
        ("keeper", "kill", "pwrite64", "ended"),
    )
    files = {
        "plan.yaml": head("undo", "a", "LEDGER, FAR", "on_error: compensate\n")
        + f"""
  a: {{run: '{LINE}', compensate: {{run: '{LINE}'}}, next: b}}
  b: {{{post("b")}, compensate: {{{post("b~undo", "DELETE")}}}, next: c}}
  c: {{run: '{LINE}', idempotent: true, {TRIED}, compensate: {{run: '{LINE}', idempotent: true, {TRIED}}}, next: ends}}
  ends: {{fail: {{error: no_luck}}}}
"""
    }


class Background(Kind):
    """Messages by command and by request, one that is asked for, and a notify, delivered by the driver."""

    name = "background"
    far = True
    happens = {"a": ONCE, "m": AGAIN, "sends": AGAIN, "asks": ONCE, "b": ONCE, "told": AGAIN}
    left = 11
    marked = (("driver", "kill ENOSPC", "fdatasync", ""), ("driver", "EIO", "write", "requests"))
    files = {
        "plan.yaml": head("background", "a", "LEDGER, FAR", f"notify: [{{on: [succeeded], {post('told')}, {TRIED}}}]\n")
        + f"""
  a: {{run: '{LINE}', next: m}}
  m: {{run: '{LINE}', background: true, idempotent: true, {TRIED}, next: sends}}
  sends: {{{post("sends")}, background: true, idempotent: true, {TRIED}, next: asks}}
  asks: {{run: '{LINE}', background: true, probe: {{run: 'grep -q "$KEY" "$LEDGER"', env: {{KEY: '${{{{ key }}}}'}}}}, {TRIED}, next: b}}
  b: {{run: '{LINE}', next: succeeded}}
"""
    }

    def word(self, run: Json, path: str) -> str:  # noqa: ARG002
        return "told" if path.startswith("notify:") else path

    def finish(self, place: Place, exit: int, wrong: list[str]) -> list[str]:
        asked = super().finish(place, exit, wrong)
        for _ in range(10):
            left = json.loads(place.durun("outbox", "ls", "--json")[1])["messages"]
            for message in left:
                if message["status"] == "dead":
                    if message["error"]["name"] != "in_doubt":  # it is after three doubts, where each keeper dies
                        wrong.append(f"a message was given up: {message}")
                    place.durun("outbox", "retry", f"{message['run']}:{message['effect']}")
            if left:
                place.durun("outbox", "deliver")
        return asked


LATER = "retry: {max_attempts: 5, initial_interval: 1s, jitter: none}"


class Deliver(Background):
    """Messages of a run that has ended, the first of which failed at first, delivered by one `durun outbox deliver`."""

    name = "deliver"
    who = ("deliverer",)
    happens = {"a": ONCE, "m": AGAIN, "sends": AGAIN, "asks": ONCE, "b": ONCE}
    marked = (("deliverer", "kill ENOSPC EIO", "fdatasync", ""), ("deliverer", "EIO", "write", "requests"))
    files = {
        "plan.yaml": head("deliver", "a", "LEDGER, FAR")
        + f"""
  a: {{run: '{LINE}', next: m}}
  m: {{run: '{LINE}; test "$DURUN_ATTEMPT" -gt 1', background: true, idempotent: true, {LATER}, next: sends}}
  sends: {{{post("sends")}, background: true, idempotent: true, {TRIED}, next: asks}}
  asks: {{run: '{LINE}', background: true, probe: {{run: 'grep -q "$KEY" "$LEDGER"', env: {{KEY: '${{{{ key }}}}'}}}}, {TRIED}, next: b}}
  b: {{run: '{LINE}', next: succeeded}}
"""
    }

    def words(self, who: str) -> list[str]:  # noqa: ARG002
        return ["outbox", "deliver"]

    def leave(self, place: Place, who: str) -> None:  # noqa: ARG002
        exit, _, err = place.durun(*self.start("r"))
        if exit:
            raise SystemExit(f"the run whose messages are left did not succeed, exit {exit}: {err}")
        while not any(line[0] == "m" for line in place.lines()):  # whoever drove it has left before the first was begun
            place.durun("outbox", "deliver")
        time.sleep(1.2)  # now it is due again


class Onces(Kind):
    """A step that does two things by `durun once`; the process of the first call meets the fault."""

    name = "once"
    who = ("once",)
    happens = {"s/once:one": ONCE, "s/once:two": ONCE, "s/once:three": AGAIN, "b": ONCE}
    asked = frozenset({"s/once:one", "s/once:two"})
    marked = (
        ("once", "kill ENOSPC EIO", "fdatasync", ""),
        ("once", "ENOSPC EIO", "openat", "O_EXCL"),
        ("once", "kill", "wait4", ""),
    )
    files = {
        "plan.yaml": head("once", "s", "LEDGER, ONCE")
        + f"""
  s:
    run: |
      line='echo "s/once:$0 $DURUN_VISIT $DURUN_ATTEMPT $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; echo "$0"'
      test "$($ONCE one -- sh -c "$line" one)" = one
      test "$($ONCE two --probe 'grep -q "$DURUN_IDEMPOTENCY_KEY" "$LEDGER" && echo two' -- sh -c "$line" two)" = two
      $ONCE three --idempotent -- sh -c "$line" three
    idempotent: true
    {TRIED}
    next: b
  b: {{run: '{LINE}', next: succeeded}}
"""
    }

    def gave(self, path: str) -> Json:
        return path.rpartition(":")[2]


class Map(Kind):
    """Eight items, four at once, each with a command that may not be repeated and one that may."""

    name = "map"
    who = ("driver", "keeper", "resume")
    happens = {f"each[{n}].act": ONCE for n in range(8)} | {f"each[{n}].again": AGAIN for n in range(8)} | {"b": ONCE}
    left = 12
    marked = (("driver", "kill ENOSPC", "fdatasync", ""), ("keeper", "kill", "pwrite64", "about"))
    files = {
        "plan.yaml": head("map", "each")
        + f"""
  each:
    map:
      items: '[0, 1, 2, 3, 4, 5, 6, 7]'
      concurrency: 4
      start: act
      states:
        act: {{run: '{LINE}', next: again}}
        again: {{run: '{LINE}', idempotent: true, {TRIED}, next: succeeded}}
    next: b
  b: {{run: '{LINE}', next: succeeded}}
"""
    }


class Child(Kind):
    """A plan that calls another one."""

    name = "child"
    happens = {"a": ONCE, "calls/x": ONCE, "calls/y": AGAIN, "b": ONCE}
    who = ("driver", "keeper", "resume")
    left = 11
    marked = (("driver", "kill ENOSPC EIO", "fdatasync", ""),)
    files = {
        "plan.yaml": head("parent", "a")
        + f"  a: {{run: '{LINE}', next: calls}}\n  calls: {{plan: {{file: child.yaml}}, next: b}}\n  b: {{run: '{LINE}', next: succeeded}}\n",
        "child.yaml": head("child", "x")
        + f"  x: {{run: '{LINE}', next: y}}\n  y: {{run: '{LINE}', idempotent: true, {TRIED}, next: succeeded}}\n",
    }


class Work(Kind):
    """Three runs, each with a message, driven by one `durun work`."""

    name = "work"
    who = ("worker",)
    runs = ("r1", "r2", "r3")
    marked = (("worker", "kill ENOSPC EIO", "fdatasync", ""), ("worker", "ENOSPC+", "pwrite64", "runs.db-wal"))
    files = {
        "plan.yaml": head("work", "w")
        + f"""
  w: {{wait: 1s, next: a}}
  a: {{run: '{LINE.replace("$DURUN_STATE", "$DURUN_RUN_ID/$DURUN_STATE")}', next: m}}
  m: {{run: '{LINE.replace("$DURUN_STATE", "$DURUN_RUN_ID/$DURUN_STATE")}', background: true, idempotent: true, {TRIED}, next: b}}
  b: {{run: '{LINE.replace("$DURUN_STATE", "$DURUN_RUN_ID/$DURUN_STATE")}', next: succeeded}}
"""
    }

    def words(self, who: str) -> list[str]:  # noqa: ARG002
        return ["work", "--once"]

    def leave(self, place: Place, who: str) -> None:  # noqa: ARG002
        for run in self.runs:
            exit, _, err = place.durun(*self.start(run), "--no-wait")
            if exit != 3:
                raise SystemExit(f"{run} does not wait, exit {exit}: {err}")
        time.sleep(1)  # now all are due

    def finish(self, place: Place, exit: int, wrong: list[str]) -> list[str]:
        if not exit:
            return []
        again, _, err = place.durun("work", "--once")
        if again:
            wrong.append(f"work --once: exit {again}:\n{err}")
        return super().finish(place, exit, wrong)

    def expected(self, run: Json) -> dict[str, str]:
        return {f"{run['id']}/a": ONCE, f"{run['id']}/m": AGAIN, f"{run['id']}/b": ONCE}

    def word(self, run: Json, path: str) -> str:
        return f"{run['id']}/{path}"


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Http(), Undo(), Background(), Deliver(), Onces(), Map(), Child(), Work())}

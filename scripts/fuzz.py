"""Broken and odd inputs of all kinds, each given to a durun of its own. Run by scripts/fuzz.

durun is loaded once and forked for each input, so that it ends, hangs or dies for each alone. What must hold of every one: an exit
code that is documented, no fault of durun's own, an end within seconds, JSON where JSON was asked for. And what is told as done is:
a plan that is found to hold can be drawn, an expression gives JSON or says what is wrong, a payload is read back as it was given.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torture

Json = Any
ROOT = Path(__file__).parents[1]
CODES = {*range(11), 75, 124}
LONG = 20.0  # s


class Done(NamedTuple):
    code: int  # below 0: of a signal; -100: it hung
    out: str
    err: str


class Forked:
    """durun in a folder of its own, loaded once, forked for each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in [name for name in os.environ if name.startswith("DURUN_")]:
            del os.environ[name]
        os.environ |= {"DURUN_DB": str(folder / "runs.db"), "LEDGER": str(folder / "ledger"), "NO_COLOR": "1", "COLUMNS": "200"}
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        for path in sorted((ROOT / "durun").rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if name not in ("durun.__main__", "durun.effects.keeper") and "templates" not in path.parts:
                importlib.import_module(name)

    def __call__(self, *words: str, stdin: bytes = b"") -> Done:
        def durun() -> None:
            from durun.cli import process

            sys.argv = ["durun", *words]
            process()

        return self.fork(durun, stdin)

    def fork(self, act: Callable[[], None], stdin: bytes = b"") -> Done:
        out, err, given = (self.folder / name for name in ("out", "err", "in"))
        given.write_bytes(stdin)
        pid = os.fork()
        if pid == 0:
            self._child(act, out, err, given)
        code = self._end(pid)
        return Done(code, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def _child(self, act: Callable[[], None], out: Path, err: Path, given: Path) -> None:
        try:
            os.setsid()
            os.chdir(self.folder)
            os.dup2(os.open(given, os.O_RDONLY), 0)
            for fd, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
            act()
        except SystemExit as e:
            os._exit(e.code if isinstance(e.code, int) else 1)
        except BaseException:  # noqa: BLE001 - as the interpreter does at its end
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)

    def _end(self, pid: int) -> int:
        end, pause = time.monotonic() + LONG, 0.001
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -100


def of_call(done: Done, words: tuple[str, ...] = (), allowed: set[int] | None = None) -> Iterator[str]:
    """What may hold of no call."""
    if done.code == -100:
        yield "it hangs"
    elif done.code not in (allowed or CODES):
        yield f"exit {done.code}: {done.err[-2000:]}"
    if "Traceback" in done.err or "fault of its own" in done.err:
        yield f"a fault of its own: {done.err[-2000:]}{last_bug()}"
    asked = "--json" in words and "--help" not in words  # who asks for help is given it
    if asked and done.code >= 0 and done.code != 2 and not is_json(done.out):
        yield f"no JSON: {done.out[:300]!r} {done.err[-300:]}"


def last_bug() -> str:
    logs = sorted(Path(os.environ["TMPDIR"]).glob("durun-bug-*.log"), key=lambda p: p.stat().st_mtime)
    return logs[-1].read_text()[-2500:] if logs else ""


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# --- what is odd ---

ODD: list[Json] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.1, 1e308, -0.0, "", " ", "a", "null", "\0", "\ud800", "ä" * 300,
    "x" * 5000, "${{", "}}", "${{ }}", "${{ vars }}", "${{ secrets.A }}", "$${{ x }}", "${{ 1/0 }}", "5s", "-5s", "99999999999d", "1e5s", "50%", "101%",
    [], {}, [[]], [None], {"": 1}, {"a": {}}, {"run": "true"}, "succeeded", "failed", "compensated", "any", "*", "http:5xx", "exit:99999", "/etc/passwd", "../x", "-", "--", "on",
]  # fmt: skip
BITS = [b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\r", b"\t", b"&a ", b"*a", b"<<: ", b"!!python/object:os ", b"%YAML 1.1\n", b"---\n", b"...\n", b"? ", b": ", b"- ",
        b"| ", b"> ", b"[", b"]", b"{", b"}", b"'", b'"', b"#", b"${{ ", b" }}", b"!!binary ", b"\xe2\x80\xa8", b"1_000", b".inf", b".nan", b"0x1f", b"2026-11-30"]  # fmt: skip


def turned(text: bytes, chance: Random) -> bytes:
    """A text with some bytes, pieces or lines out of their place."""
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(text) + 1), chance.randint(0, 12)
        lines = text.split(b"\n")
        match chance.randrange(6):
            case 0:
                text = text[:at] + chance.choice(BITS) + text[at:]
            case 1:
                text = text[:at] + text[at + length :]
            case 2:
                text = text[:at] + bytes([chance.randrange(256)]) + text[at + 1 :]
            case 3:
                text = text[:at] + text[at : at + length] * chance.randint(2, 40) + text[at + length :]
            case 4:
                lines.insert(chance.randrange(len(lines)), chance.choice(lines))
                text = b"\n".join(lines)
            case 5:
                lines[chance.randrange(len(lines))] = chance.choice(lines)
                text = b"\n".join(lines)
    return text


def places(tree: Json) -> list[tuple[Json, Any]]:
    """Every place in a tree: (what holds it, its key)."""
    inside = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    return [(tree, key) for key, _ in inside] + [place for _, one in inside for place in places(one)]


def grown(tree: Json, chance: Random) -> Json:
    """A tree in which some places hold something odd, are gone, or hold what stands elsewhere."""
    tree = json.loads(json.dumps(tree))
    for _ in range(chance.randint(1, 3)):
        all = places(tree)
        if not all:
            return tree
        holder, key = chance.choice(all)
        other, its = chance.choice(all)
        match chance.randrange(5):
            case 0 | 1:
                holder[key] = chance.choice(ODD)
            case 2:
                del holder[key]
            case 3:
                holder[key] = json.loads(json.dumps(other[its]))
            case 4 if isinstance(holder, dict):
                holder[str(chance.choice([its, chance.choice(ODD)]))] = holder.pop(key)
    return tree


def expression(chance: Random, depth: int = 4) -> str:
    """A text that is nearly an expression."""
    deeper = lambda: expression(chance, depth - 1)  # noqa: E731
    if depth == 0 or chance.random() < 0.25:
        return chance.choice(ATOMS)
    match chance.randrange(12):
        case 0 | 1:
            return f"{deeper()} {chance.choice(OPERATORS)} {deeper()}"
        case 2:
            return f"({deeper()})"
        case 3:
            return f"{chance.choice(CALLS)}({', '.join(deeper() for _ in range(chance.choice((1, 1, 1, 2, 0))))})"
        case 4:
            return f"{deeper()}.{chance.choice(MEMBERS)}({', '.join(deeper() for _ in range(chance.choice((0, 1, 1, 2))))})"
        case 5 | 6:
            return f"{deeper()}.{chance.choice(MACROS)}({chance.choice('xyz')}, {deeper()})"
        case 7:
            return f"{deeper()}[{deeper()}]"
        case 8:
            return f"{deeper()}.{chance.choice(('', '?'))}{chance.choice(NAMES)}"
        case 9:
            return f"{deeper()} ? {deeper()} : {deeper()}"
        case 10:
            return "[" + ", ".join(deeper() for _ in range(chance.randint(0, 3))) + "]"
        case _:
            return "{" + ", ".join(f"{deeper()}: {deeper()}" for _ in range(chance.randint(0, 2))) + "}"


NAMES = ["a", "b", "list", "text", "n", "big", "none", "deep", "in", "x", "item"]
ATOMS = [
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "9223372036854775808",
    "0x10",
    "1u",
    "1.5",
    "1e400",
    "true",
    "null",
    '"a"',
    "'ä'",
    "b'x'",
    'r"\\"',
    '""',
    "[]",
    "{}",
    "x",
    "y",
]
ATOMS += [f"vars.{name}" for name in NAMES] + [
    "vars",
    "input.a",
    "item",
    "run.id",
    "states.s.output",
    "error",
    "duration('1h')",
    "timestamp('2026-11-30T00:00:00Z')",
    "type(1)",
]
OPERATORS = ["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in"]
CALLS = [
    "size",
    "has",
    "sum",
    "sort",
    "flatten",
    "keys",
    "json",
    "int",
    "double",
    "string",
    "bool",
    "type",
    "dyn",
    "math.greatest",
    "uint",
    "bytes",
    "!",
    "-",
    "optional.of",
]
MEMBERS = [
    "size",
    "contains",
    "startsWith",
    "matches",
    "split",
    "join",
    "format",
    "orValue",
    "replace",
    "substring",
    "lowerAscii",
    "charAt",
    "reverse",
    "getHours",
    "map",
]
MACROS = ["map", "filter", "all", "exists", "exists_one"]
VARS: Json = {
    "a": 1,
    "b": {"a": [1, 2], "in": 3},
    "list": [3, 1, 2],
    "text": "ä\n\U0001f600",
    "n": 1.5,
    "big": 2**63,
    "none": None,
    "deep": [[[[1]]]],
    "x": True,
}


# --- the kinds ---


class Fuzz:
    """Inputs of each kind, drawn by a seed. Each kind gives what is wrong with one input."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, Random(seed)
        self.durun = Forked(folder)
        self.texts = [p.read_bytes() for p in sorted((ROOT / "durun" / "templates").glob("*/*.yaml"))]
        for page in sorted((ROOT / "durun" / "docs").glob("*.md")):
            self.texts += [found.encode() for found in re.findall(r"```yaml\n(durun: 1\n.*?)```", page.read_text(), re.DOTALL)]
        self.input: Json = None
        self._prepared = False

    def plan(self) -> Iterator[str]:
        chance, path = self.chance, self.folder / "plan.yaml"
        if chance.random() < 0.5:
            drawn = torture.plain(torture.Drawn(chance, "http://127.0.0.1:9").plan())
            text = json.dumps(grown(drawn, chance), ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        else:
            text = turned(chance.choice(self.texts), chance)
        self.input = text
        path.write_bytes(text)
        words = ("check", str(path), *(("--json",) if chance.random() < 0.3 else ()))
        done = self.durun(*words)
        yield from of_call(done, words, {0, 7})
        if done.code == 0:
            words = (("graph", str(path)), ("start", str(path), "--dry-run"))[chance.randrange(2)]
            yield from of_call(self.durun(*words), words, {0} if words[0] == "graph" else {0, 7})

    def expression(self) -> Iterator[str]:
        text = expression(self.chance)
        if self.chance.random() < 0.3:
            text = turned(text.encode(), self.chance).decode("utf-8", "replace")
        self.input = text
        plan = {
            "durun": 1,
            "name": "e",
            "vars": VARS,
            "start": "s",
            "states": {"s": {"choice": [{"when": text, "next": "succeeded"}, {"next": "failed"}]}},
        }
        if "}}" not in text:
            plan["output"] = "${{ " + text + " }}"
        path = self.folder / "plan.yaml"
        path.write_text(json.dumps(plan))
        yield from of_call(self.durun("check", str(path)), (), {0, 7})
        yield from of_call(self.durun.fork(lambda: worked_out(text)), (), {0})

    def words(self) -> Iterator[str]:
        """Words of the command line in any order, over a file with runs of many kinds."""
        self._prepare()
        chance = self.chance
        first = chance.choice(COMMANDS_).split()
        rest = [str(chance.choice(WORDS)) for _ in range(chance.randint(0, 5))]
        words = tuple(
            word.replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for word in (*first, *rest)
        )
        self.input = words
        yield from of_call(self.durun(*words, stdin=chance.choice((b"", b"{}", b"\xff", b"durun: 1\n"))), words)

    def payload(self) -> Iterator[str]:
        """A signal's payload is read back as it was given, or refused."""
        self._prepare()
        chance = self.chance
        value = grown({"a": chance.choice(ODD), "b": [chance.choice(ODD), {"c": chance.choice(ODD)}]}, chance)
        text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
        if chance.random() < 0.2:
            text = "[" * (depth := chance.randint(1, 3000)) + "]" * depth
        if chance.random() < 0.4:
            text = turned(text.encode("utf-8", "surrogatepass"), chance).decode("utf-8", "surrogateescape")
        self.input = text
        name = f"fuzz-{chance.randrange(10**9)}"
        (self.folder / "data").write_bytes(text.encode("utf-8", "surrogateescape" if is_utf8(text) else "surrogatepass"))
        plan = {
            "durun": 1,
            "name": "p",
            "start": "s",
            "states": {"s": {"wait": {"signal": "go"}, "next": "succeeded"}},
            "output": "${{ states.s.output }}",
        }
        (self.folder / "payload.yaml").write_text(json.dumps(plan))
        yield from of_call(self.durun("start", "payload.yaml", "--id", name, "-q"), (), {3})
        sent = self.durun("signal", name, "go", "--data", "@data")
        yield from of_call(sent, (), {0, 2, 7})
        if sent.code == 0:
            yield from of_call(self.durun("resume", name, "-q"), (), {0})
            back = self.durun("output", name)
            given = json.loads((self.folder / "data").read_bytes())
            there = json.loads(back.out) if is_json(back.out) else back.out[:-1]
            if back.code or (there != given and back.out[:-1] != given):
                yield f"it was given {text[:300]!r} and is {back.out[:300]!r}"

    def bytes(self) -> Iterator[str]:
        """A file with bytes turned over is refused, found broken, or still holds."""
        self._prepare()
        chance, copy = self.chance, self.folder / "copy" / "runs.db"
        shutil.rmtree(copy.parent, ignore_errors=True)
        copy.parent.mkdir()
        content = bytearray((self.folder / "runs.db").read_bytes())
        changes = {
            chance.choice((chance.randrange(len(content)), chance.randrange(200))): chance.randrange(256)
            for _ in range(chance.choice((1, 1, 3, 30)))
        }
        for at, byte in changes.items():
            content[at] = byte
        if chance.random() < 0.15:
            content = content[: chance.randrange(len(content))]
        copy.write_bytes(content)
        self.input = changes
        check = self.durun("db", "check", "--db", str(copy))
        yield from of_call(check)
        for words in chance.sample(LOOKS, 3):
            done = self.durun(*words, "--db", str(copy))
            if check.code == 8 and done.code == 1 and "please report" in done.err:
                continue  # in one line; that the file is damaged `db check` says
            for what in of_call(done, words):
                yield f"{words}: {what}"

    def _prepare(self) -> None:
        """A file with runs that have ended, wait, ask, are blocked and paused."""
        if self._prepared:
            return
        self._prepared = True
        head: Json = {"durun": 1, "name": "p", "start": "s"}
        states: Json = {
            "done": {"s": {"run": ["true"], "idempotent": True, "next": "succeeded"}},
            "bad": {"s": {"run": ["false"], "next": "succeeded"}},
            "asks": {"s": {"approval": {"message": "ok?"}, "next": "succeeded"}},
            "waits": {"s": {"wait": {"signal": "go"}, "next": "succeeded"}},
            "doubt": {"s": {"run": "kill -9 $$", "next": "succeeded"}},
            "each": {
                "s": {
                    "map": {"items": "[1, 2]", "start": "i", "states": {"i": {"run": ["false"], "next": "succeeded"}}},
                    "next": "succeeded",
                }
            },
            "left": {"s": {"run": ["false"], "idempotent": True, "background": True, "next": "succeeded"}},
        }
        for name, one in states.items():
            (self.folder / f"{name}.yaml").write_text(json.dumps({**head, "states": one}))
            self.durun("start", f"{name}.yaml", "--id", name, "-q")
        self.durun("resume", "doubt", "-q")


def is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def worked_out(text: str) -> None:
    """Works an expression out as a driver would: JSON, or a refusal."""
    from durun.errors import ExpressionError
    from durun.plan.expressions import Evaluator

    try:
        found = Evaluator().expression(text, {"vars": VARS, "input": {"a": 1}, "states": {}, "error": None})
    except ExpressionError:
        return
    json.dumps(found, allow_nan=False)


COMMANDS_ = ["start", "resume", "ls", "show", "inbox", "history", "logs", "output", "approve", "reject", "signal", "resolve", "cancel", "compensate", "pause", "rewind", "migrate",
             "drain", "outbox ls", "outbox show", "outbox retry", "outbox drop", "outbox deliver", "check", "graph", "schema", "init", "docs", "db path", "db check", "db backup", "db prune",
             "once", "", "nonsense", "work --once", "wait --timeout 1ms", "watch done"]  # fmt: skip
RUNS = ["done", "bad", "asks", "waits", "doubt", "each", "left", "d", "nobody"]
OPTIONS = ["--json", "-q", "--all", "--limit", "--status", "--plan", "--id", "-i", "a=1", "a=@-", "--input", "--answer", "yes", "--data", "{}", "[", "@data", "--note", "--by", "--digest",
           "--happened", "--retry", "--fail", "--undone", "--output", "--grace", "0s", "--compensate", "--force", "--undo", "--repeat", "--map", "s=t", "--set", "--dry-run", "--older-than", "1d",
           "--from", "--failed-items", "--no-wait", "--help", "--version", "--db", "--error", "x", "--message", "--alive", "--dedupe", "--after-restore", "--accept-drift"]  # fmt: skip
WORDS: list[Json] = [
    *RUNS,
    *RUNS,
    *OPTIONS,
    *OPTIONS,
    *(one for one in ODD if isinstance(one, str | int)),
    "s",
    "s[0]",
    "s[0].i",
    "s~undo",
    "s/once:x",
    "go",
    "done.yaml",
    "bad.yaml",
    "doubt:1",
    "left:1",
    "left:x",
]
LOOKS = [("ls", "--all"), ("ls", "--json"), ("show", "done", "--json"), ("show", "each"), ("history", "bad"), ("output", "done"), ("resume", "asks", "--no-wait"), ("signal", "waits", "go"),
         ("inbox",), ("logs", "bad"), ("start", "done.yaml"), ("outbox", "ls"), ("db", "backup", "other.db"), ("compensate", "bad"), ("db", "prune", "done")]  # fmt: skip
KINDS = ("plan", "expression", "words", "payload", "bytes")


def main() -> int:
    given = argparse.ArgumentParser(prog="scripts/fuzz")
    given.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    given.add_argument("--seconds", type=float, default=300.0)
    given.add_argument("--count", type=int, help="so many inputs of each kind in place of a time")
    given.add_argument("--kind", choices=KINDS, action="append")
    args = given.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="durun-fuzz-")).resolve()
    fuzz, count, bad = Fuzz(folder, args.seed), Counter[str](), Counter[str]()
    end, kinds = time.monotonic() + args.seconds, args.kind or KINDS
    while any(count[kind] < args.count for kind in kinds) if args.count else time.monotonic() < end:
        for kind in kinds:
            count[kind] += 1
            for what in getattr(fuzz, kind)():
                bad[kind] += 1
                print(f"{kind}: {fuzz.input!r:.1500}\n  {what}", flush=True)
    said = ", ".join(f"{count[kind]} of {kind}" for kind in kinds)
    print(f"seed {args.seed}: {sum(count.values())} inputs ({said}), {sum(bad.values())} of them bad")
    if not bad:
        shutil.rmtree(folder)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

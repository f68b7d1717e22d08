"""The folder a case of scripts/faults has for itself: a database, a ledger, a far side, and the program run there as a person would.

The ledger is a file outside of durun. A line of it is WORD VISIT ATTEMPT KEY: a command writes it itself, a request is written down by
the far side (its path is the word, and it knows no attempt).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from receiver import Handler, Receiver

LIMIT = 90.0  # s after which a command hangs
LINE = 'echo "$DURUN_STATE $DURUN_VISIT $DURUN_ATTEMPT $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'
STRACE = ["strace", "-qq", "-y", "-s", "160"]
AS_KEEPER = "import sys; sys.executable = sys.argv.pop(1); from durun.cli import main; main()"


class Place:
    """A folder with plans, a database and a ledger; the program run in it as a person would."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder, self.ledger, self.db = folder, folder / "ledger", folder / "runs.db"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DURUN_")}
        self.env = {**kept, "DURUN_DB": str(self.db), "LEDGER": str(self.ledger), "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.env["ONCE"] = f"{sys.executable} -m durun once"
        self.far: Receiver | None = None

    def with_far_side(self) -> None:
        """A far side that writes down each request that came, with its key, and answers with how often it has come."""
        self.far = Receiver()
        self.env["FAR"] = self.far.url

        def act(h: Handler) -> None:
            word, key = h.came.path.lstrip("/"), h.came.key or "-"
            if h.came.method == "HEAD":  # a probe: has it come?
                h.send(200 if any(line[3] == key for line in self.lines()) else 404, b"", {})
                return
            with self.far.lock, self.ledger.open("a") as f:
                f.write(f"{word} 1 - {key}\n")
            n = sum(line[0] == word for line in self.lines())
            bad = word == "flaky" and n < 2
            h.send(503 if bad else 200, b'{"n": %d}' % n, {"Content-Type": "application/json"})

        self.far.say(act)

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

    def trace(self, who: str, words: list[str], log: Path, strace: list[str], *, always: bool = False) -> tuple[int, str, str]:
        """A command of durun, with its process, its keeper or the first `once` of its steps under strace."""
        traced = [*STRACE, *strace]
        if who == "keeper":
            python = self.script(
                "python", shlex.join([*traced, "-D"]) + f' -o "{log}.$$" {sys.executable} "$@"', "" if always else sys.executable
            )
            return self.run([sys.executable, "-c", AS_KEEPER, str(python), *words])
        if who == "once":
            once = f"{sys.executable} -m durun once"
            self.env["ONCE"] = str(self.script("once", shlex.join(traced) + f' -o "{log}.$$" {once} "$@"', once))
            try:
                return self.run([sys.executable, "-m", "durun", *words])
            finally:
                self.env["ONCE"] = once
        return self.run([*traced, "-o", str(log), sys.executable, "-m", "durun", *words])

    def script(self, name: str, traced: str, else_: str) -> Path:
        """A script that traces the first who calls it, and is `else_` for all others; without that it traces all."""
        first = f'mkdir {shlex.quote(str(self.folder / "traced"))} 2>/dev/null || exec {else_} "$@"\n' if else_ else ""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{first}exec {traced}\n")
        path.chmod(0o700)
        return path

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

    def close(self) -> None:
        self.end()
        if self.far is not None:
            self.far.close()


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""

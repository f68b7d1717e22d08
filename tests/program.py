"""The real program, run as a person runs it: a folder of its own, exit codes checked, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

COMMAND = [sys.executable, "-m", "durun"]


class Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "runs.db"
        self.ledger = folder / "ledger"
        self.audited = True  # at the end of the test
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DURUN_")}
        self.env = {**kept, "DURUN_DB": str(self.db), "LEDGER": str(self.ledger), "NO_COLOR": "1", "COLUMNS": "200"}

    def plan(self, text: str, name: str = "plan.yaml") -> Path:
        """Writes a plan; what every plan needs may be left out."""
        head = "".join(f"{k}: {v}\n" for k, v in (("durun", 1), ("name", "test")) if f"\n{k}:" not in "\n" + text)
        if "pins:" not in text:
            head += "pins: {env: [LEDGER]}\n"
        path = self.folder / name
        path.write_text(head + text)
        return path

    def __call__(
        self,
        *args: Any,
        exit: int | None = 0,
        input: str | None = None,
        env: dict[str, str] | None = None,
        limit: float = 60,
        **more: Any,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *map(str, args)], cwd=more.pop("cwd", self.folder), env={**self.env, **(env or {})}, input=input,
            stdin=None if input is not None else subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=limit, **more,
        )  # fmt: skip
        if exit is not None:
            assert done.returncode == exit, f"exit {done.returncode}, not {exit}\n{done.stdout}\n{done.stderr}"
        return done

    def begin(self, *args: Any, **more: Any) -> subprocess.Popen[str]:
        """Begins a command in the background, in a session of its own."""
        return subprocess.Popen(
            [*COMMAND, *map(str, args)], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True, **more,
        )  # fmt: skip

    def start(self, exit: int = 0, *args: Any) -> str:
        """Starts plan.yaml; the id."""
        return self("start", "plan.yaml", *args, exit=exit).stdout.splitlines()[0]

    def show(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("show", run, "--json").stdout)
        return found

    def seen(self, run: str) -> dict[str, Any]:
        """A run as far as it is stored yet: nothing as long as it, or the file, is not there."""
        found: dict[str, Any] = {}
        if self.db.exists():
            said = self("show", run, "--json", exit=None)
            found = json.loads(said.stdout) if said.returncode == 0 else {}
        return found

    def lines(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def adopt(self) -> None:
        """The file is a copy of another, and stands here for that: nothing else will ever be done with the other."""
        db, there = apsw.Connection(str(self.db)), self.db.stat()
        db.execute("UPDATE origin SET path = ?, device = ?, inode = ?", (str(self.db), there.st_dev, there.st_ino)).fetchall()
        db.close()

    def the_run(self) -> str:
        """The id of the only run."""
        ids = self("ls", "-q", "--all").stdout.split()
        assert len(ids) == 1, ids
        return str(ids[0])

    def kill_all(self) -> None:
        """As if the power went: everything that carries this folder stops at one moment, then is gone."""
        stopped: set[int] = set()
        while fresh := set(self.processes()) - stopped:
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if stopped:
            until(lambda: not set(self.processes()) & stopped)

    def processes(self) -> list[int]:
        """Living processes that carry this folder in their environment."""
        mark, found = f"DURUN_DB={self.db}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX" and mark in (
                        entry / "environ"
                    ).read_bytes():
                        found.append(int(entry.name))
        return found

    def end(self) -> None:
        self.kill_all()


def until(true: Callable[[], Any], seconds: float = 20) -> Any:
    """Waits for something, with a deadline."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.01)
    found = true()
    assert found, "it never came"
    return found

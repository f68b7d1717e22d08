"""The real program in a folder of its own.

`place.durun(...)` runs a command and holds its exit code to what was expected; `place.begin(...)` leaves it running;
`place.until(...)` waits with a deadline. Whatever a test leaves alive is found by a token in its environment and killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DEADLINE = 60.0  # s: far beyond what anything here needs, so that a slow machine fails nothing


class Done(NamedTuple):
    exit: int
    out: str
    err: str
    raw: bytes

    @property
    def id(self) -> str:
        """The first line of stdout: the id of the run that was started."""
        return self.out.splitlines()[0]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Place:
    """A fresh folder with a database, and everything that a test does in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "durun.db"
        self.token = uuid.uuid4().hex
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DURUN_")}
        self.env |= {"DURUN_DB": str(self.db), "FAULTS_TOKEN": self.token, "NO_COLOR": "1"}
        self.argv = [sys.executable, "-m", "durun"]
        self._begun: list[subprocess.Popen[bytes]] = []

    # files

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def plan(self, states: str, name: str = "plan.yaml", head: str = "", start: str = "a") -> str:
        """A plan of these states; `head` holds further keys of the plan."""
        body = "\n".join("  " + line for line in states.strip("\n").splitlines())
        self.write(name, f"durun: 1\nname: fault\n{head}\nstart: {start}\nstates:\n{body}\n")
        return str(self.folder / name)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    # the program

    def begin(self, *args: str, **more: Any) -> subprocess.Popen[bytes]:
        """A command left running; stdin is /dev/null and the folder is its directory unless said."""
        given: dict[str, Any] = {
            "cwd": self.folder, "env": self.env, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
        }  # fmt: skip
        process = subprocess.Popen([*self.argv, *args], **(given | more))
        self._begun.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], exit: int | tuple[int, ...] | None = 0) -> Done:
        """Waits until a command has ended, and holds its exit code to what was expected."""
        raw, err = process.communicate(timeout=DEADLINE)
        done = Done(
            process.returncode, (raw or b"").decode("utf-8", "replace"), (err or b"").decode("utf-8", "replace"), raw or b""
        )
        codes = (exit,) if isinstance(exit, int) else exit
        assert codes is None or done.exit in codes, f"exit {done.exit}, not {exit}\n{done.out}\n{done.err}"
        assert "Traceback" not in done.err, done.err
        return done

    def durun(self, *args: str, exit: int | tuple[int, ...] | None = 0, **more: Any) -> Done:
        given = more.pop("input", None)
        if given is None:
            return self.end(self.begin(*args, **more), exit)
        process = self.begin(*args, **(more | {"stdin": subprocess.PIPE}))
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        process.stdin = None
        return self.end(process, exit)

    def show(self, run: str) -> Any:
        return self.durun("show", run, "--json").json

    def history(self, run: str, kind: str | None = None) -> list[Any]:
        events = self.durun("history", run, "--json").json["events"]
        return [e for e in events if kind in (None, e["kind"])]

    def runs(self) -> list[Any]:
        return self.durun("ls", "--all", "--json").json["runs"]

    # waiting and killing

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """The first true answer. Fails once the deadline is over."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            found = holds()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"never came: {what}")

    def there(self, name: str) -> str:
        """Waits for a file with a whole line in it, and gives its text."""
        path = self.folder / name
        return self.until(
            lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), f"the file {name}"
        ).strip()

    def alive(self, pid: int) -> bool:
        """Whether a process lives; a zombie is dead."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                return f.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        except OSError:
            return False

    def processes(self) -> dict[int, str]:
        """Everything alive that came out of this place: pid -> its command line."""
        found, wanted = {}, f"FAULTS_TOKEN={self.token}".encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    environ = Path(f"/proc/{entry}/environ").read_bytes()
                    line = Path(f"/proc/{entry}/cmdline").read_bytes()
                except OSError:
                    continue
                if wanted in environ.split(b"\0") and self.alive(int(entry)):
                    found[int(entry)] = line.replace(b"\0", b" ").decode("utf-8", "replace")
        return found

    def keepers(self) -> list[int]:
        return [pid for pid, line in self.processes().items() if "keeper.py" in line]

    def commands(self) -> list[int]:
        """What plans began: neither the program itself nor a keeper."""
        return [pid for pid, line in self.processes().items() if "keeper.py" not in line and "-m durun" not in line]

    def kill_all(self) -> None:
        """A power cut, as far as processes go: the keeper first, so that it notes nothing more."""
        for pid in [*self.keepers(), *self.processes()]:
            self.kill(pid)
        self.until(lambda: not self.processes(), "the end of all processes")
        for process in self._begun:
            if process.poll() is None:
                process.wait(DEADLINE)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def close(self) -> None:
        for _ in range(50):
            left = self.processes()
            if not left:
                break
            for pid in left:
                self.kill(pid)
            time.sleep(0.02)
        for process in self._begun:
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def strace() -> str:
    """The path of strace, which must be able to trace here."""
    found = shutil.which("strace")
    if found is None or subprocess.run([found, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("strace is not here, or may not trace")
    return found


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("wants root")

"""A driver's side of its commands, with requests in short; whatever a test leaves alive is found by its folder and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from program import until

from durun.effects.command import KEEPER, Commands, Report, Request
from durun.effects.notes import Begun, Notes


class Driver:
    def __init__(self, folder: Path, place: str = "one") -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.place = folder, place
        self.commands = Commands(str(folder), place)
        self.heard: list[Report] = []

    def begin(self, token: str, *argv: str, env: dict[str, str] | None = None, cwd: str | None = None, **more: Any) -> int:
        number = self.commands.next_number()
        request = Request(token, list(argv), {"T": str(self.folder), **(env or {})}, cwd or str(self.folder), **more)
        self.commands.begin(request, number)
        return number

    def run(self, token: str, *argv: str, **more: Any) -> Any:
        self.begin(token, *argv, **more)
        return self.report()

    def report(self, seconds: float = 30) -> Any:
        end = time.monotonic() + seconds
        while not self.heard and time.monotonic() < end:
            self.heard += self.commands.receive(0.2)
        assert self.heard, "the keeper said nothing"
        return self.heard.pop(0)

    def die(self) -> None:
        """As kill -9 would: nothing is said, the lock and the socket close."""
        self.commands._socket.close()
        os.close(self.commands._lock)

    def kill_keeper(self) -> None:
        os.kill(self.commands.pid, signal.SIGKILL)
        os.waitpid(self.commands.pid, 0)

    def notes(self) -> Notes:
        return Notes.take_over(str(self.folder), self.place)

    def peek(self) -> Notes:
        """The journal as it is, with its gate left open."""
        notes = Notes(str(self.folder), self.place)
        notes.refresh()
        return notes

    def begun(self, token: str) -> Begun:
        """Waits until a command has its pid noted."""
        return until(lambda: isinstance(said := self.peek().of(token), Begun) and said.pid and said)

    def there(self, name: str) -> str:
        """Waits for a file with a whole line in it."""
        path = self.folder / name
        return until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text())

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def of_folder(folder: Path) -> list[int]:
    """Pids of what carries this folder in its environment or words, but this process; zombies are dead."""
    mark, found = str(folder).encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() or mark in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def end_all(folder: Path) -> None:
    for pid in of_folder(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """`make(folder, place)`: a driver with its keeper, in a folder below this test's own."""
    yield lambda folder=tmp_path, place="one": Driver(folder, place)
    end_all(tmp_path)


@pytest.fixture
def driver(make: Callable[..., Driver]) -> Driver:
    return make()


@pytest.fixture
def alive() -> Callable[[Path], list[int]]:
    """`alive(folder)`: pids of what came out of a folder."""
    return of_folder


HEAD = """
import os, resource, signal, sys, time
from durun.effects.command import Commands, Request, End, Full, NoStart
folder = os.environ['T']
def report(c):
    found = c.receive(30)
    assert found, 'the keeper said nothing'
    return found
def ask(c, token, *argv, **more):
    c.begin(Request(token, list(argv), {}, folder, **more), c.next_number())
c = Commands(folder, 'one')
"""


def apart(folder: Path, code: str, wrapper: str = "exec") -> str:
    """Runs a driver in another process, begun by a shell, and gives what it prints."""
    words = ["/bin/sh", "-c", f'{wrapper} "$0" -c "$1"', sys.executable, HEAD + code + "c.close(keep=False)\n"]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(KEEPER))), "T": str(folder)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def in_a_process_of_its_own() -> Callable[..., str]:
    """`in_a_process_of_its_own(folder, code, wrapper)`: the code with `c`, its commands; the wrapper is a shell's."""
    return apart

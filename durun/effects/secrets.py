"""Secrets are read here, when they are used, and stay in memory: from the environment, from a file, or from what a command prints.

Nothing else in durun reads one, and nobody writes one. A value is UTF-8 text, one newline at its end taken off, and not empty.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import time
from typing import Any
from weakref import WeakSet

from durun.machine.secrets import SHORTEST, Mask

Json = Any
PATIENCE = 30.0  # s for the command of a secret
LOOK = 0.02  # s between looks at whether it has ended
LARGEST = 1024 * 1024  # bytes
masks: WeakSet[Mask] = WeakSet()  # of all that were read in this process, for a report of a fault


class SecretMissing(Exception):
    """A secret cannot be read; the message says which and why, never what it is."""


def _leave_no_core() -> None:
    """From now on this process holds a secret: should it die of a fault, its memory goes into no file."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if soft:
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


class Secrets:
    """The secrets of one plan. `mask` knows every value that was read; `directory` is where relative paths begin."""

    def __init__(self, specs: list[Json], directory: str) -> None:
        self._specs = {spec["name"]: spec for spec in specs}
        self._directory = directory
        self.mask = Mask()
        masks.add(self.mask)
        self.names = tuple(self._specs)
        self.short: set[str] = set()  # those whose value is too short to be masked

    def value(self, name: str) -> str:
        """What a secret is now. Raises SecretMissing."""
        spec = self._specs[name]
        if "file" in spec:
            value = self._of_file(name, spec["file"])
        elif "run" in spec:
            value = self._of_command(name, spec["run"])
        elif name in os.environ:
            value = os.fsencode(os.environ[name])
        else:
            raise SecretMissing(f"the secret {name} is not in the environment")
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            raise SecretMissing(f"the secret {name} is no UTF-8 text") from None
        if not text or "\0" in text:
            raise SecretMissing(f"the secret {name} is {'no text' if text else 'empty'}")
        self.mask.learn(name, text)
        _leave_no_core()
        if len(text) < SHORTEST:
            self.short.add(name)
        return text

    def learn(self, *, run: bool = False) -> list[str]:
        """Reads what is at hand, so that the mask knows it; with `run` commands are asked too. Why some could not be read."""
        unread = []
        for name, spec in self._specs.items():
            if run or "run" not in spec:
                try:
                    self.value(name)
                except SecretMissing as e:
                    unread.append(str(e))
        return unread

    def _of_file(self, name: str, path: str) -> bytes:
        try:
            # a pipe that nobody writes into is not waited for
            fd = os.open(os.path.join(self._directory, os.path.expanduser(path)), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as f:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise SecretMissing(f"the secret {name}: {path} is no file, and it is read more than once")
                found = f.read(LARGEST + 1)
        except OSError as e:
            raise SecretMissing(f"the secret {name}: {path} cannot be read: {os.strerror(e.errno or 0)}") from None
        if len(found) > LARGEST:
            raise SecretMissing(f"the secret {name}: {path} is over 1 MiB")
        return found.removesuffix(b"\n")

    def _of_command(self, name: str, run: Json) -> bytes:
        import subprocess

        argv = ["/bin/sh", "-eu", "-c", run, "durun"] if isinstance(run, str) else [str(word) for word in run]
        try:
            process = subprocess.Popen(
                argv, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as e:
            raise SecretMissing(f"the secret {name}: its command cannot be begun: {os.strerror(e.errno or 0)}") from None
        with process:
            found = _heard(process)
        if found is not None and len(found) > LARGEST:
            raise SecretMissing(f"the secret {name}: its command printed over 1 MiB")
        if found is None:
            raise SecretMissing(f"the secret {name}: its command gave no answer within {PATIENCE:.0f} s")
        if process.returncode != 0:
            raise SecretMissing(f"the secret {name}: its command ended with {process.returncode}")
        return found.removesuffix(b"\n")


def _heard(process: Any) -> bytes | None:
    """What a command prints until it ends, whatever it leaves behind; None where its time is over. One that goes on for too long,
    or prints too much, is ended with all that it began."""
    out, fd, end = b"", process.stdout.fileno(), time.monotonic() + PATIENCE
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    closed = False
    while len(out) <= LARGEST and time.monotonic() < end:
        ended = process.poll() is not None
        ready = not closed and poller.poll(0 if ended else LOOK * 1000)
        data = os.read(fd, LARGEST + 1) if ready else b""
        out += data
        if ended and not data:
            return out
        if ready and not data:
            closed = True
        elif closed:
            time.sleep(LOOK)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return out if len(out) > LARGEST else None

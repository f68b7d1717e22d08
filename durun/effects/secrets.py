"""Secrets are read here, when they are used, and stay in memory: from the environment, from a file, or from what a command prints.

Nothing else in durun reads one, and nobody writes one. A value is UTF-8 text, one newline at its end taken off, and not empty.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from durun.machine.secrets import SHORTEST, Mask

Json = Any
PATIENCE = 30.0  # s for the command of a secret
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
            with open(os.path.join(self._directory, os.path.expanduser(path)), "rb") as f:
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
            done = subprocess.run(
                argv, cwd=self._directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False,
                start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SecretMissing(f"the secret {name}: its command gave no answer within {PATIENCE:.0f} s") from None
        except OSError as e:
            raise SecretMissing(f"the secret {name}: its command cannot be begun: {os.strerror(e.errno or 0)}") from None
        if done.returncode != 0:
            raise SecretMissing(f"the secret {name}: its command ended with {done.returncode}")
        return done.stdout[: LARGEST + 1].removesuffix(b"\n")

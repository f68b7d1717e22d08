"""What pinned tools say of themselves: their stdout, at start and at each resume.

All are asked at once, each in a session of its own, with the environment that the run's commands have. Who has not ended after
10 s is killed with its group, and has failed. The end of a tool counts, not that of what it leaves behind with its stdout.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future

Json = Any
Question = tuple[dict[str, list[str]], dict[str, str], tuple[str, ...], str]  # what `asked` takes
PATIENCE = 10.0  # s for all of them
LARGEST = 16 * 1024  # bytes of one
LOOK = 0.05  # s between looks at whether one has ended
SIDE_BY_SIDE = 8  # questions at a time


def asked(tools: dict[str, list[str]], env: dict[str, str], without: tuple[str, ...], directory: str) -> dict[str, Json]:
    """Name -> {said: its words} or {failed: why it has none}. `env` lies over the environment, `without` is taken out of it."""
    around = {name: value for name, value in os.environ.items() if name not in without} | env
    cwd = directory if os.path.isdir(directory) else "/"
    begun = {name: _begin(argv, around, cwd) for name, argv in tools.items()}
    said = _read({name: one for name, one in begun.items() if not isinstance(one, dict)}, time.monotonic() + PATIENCE)
    return {name: one if isinstance(one, dict) else said[name] for name, one in begun.items()}


def without_secrets(words: dict[str, Json], specs: list[Json], directory: str) -> dict[str, Json]:
    """What tools have said, but for what holds the value of a secret: that is not known of them, since none is ever stored."""
    if not specs:
        return words
    from durun.effects.secrets import Secrets

    secrets = Secrets(specs, directory)
    secrets.learn()
    holds = {name: secrets.mask.holder(word.get("said", "").encode()) for name, word in words.items()}
    failed = {name: {"failed": f"it said the secret {secret}, and none is ever stored"} for name, secret in holds.items() if secret}
    return {**words, **failed}


def _begin(argv: list[str], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes] | dict[str, Json]:
    try:
        return subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as e:
        why = os.strerror(e.errno or 0) if isinstance(e, OSError) else str(e)
        return {"failed": f"{argv[0]} cannot be begun: {why}"}


def _read(begun: dict[str, subprocess.Popen[bytes]], end: float) -> dict[str, Json]:
    """Hears all of them side by side, until each has ended, has closed its stdout or said too much, or the time is over."""
    heard = dict.fromkeys(begun, b"")
    with selectors.DefaultSelector() as open_ones:
        for name, process in begun.items():
            assert process.stdout is not None
            open_ones.register(process.stdout, selectors.EVENT_READ, name)
        while open_ones.get_map() and (left := end - time.monotonic()) > 0:
            heard_of = [key.data for key in open_ones.get_map().values()]
            ended = {name for name in heard_of if begun[name].poll() is not None}
            ready = {key.fd for key, _ in open_ones.select(min(left, LOOK) if not ended else 0)}
            for key in list(open_ones.get_map().values()):
                data = os.read(key.fd, LARGEST + 1) if key.fd in ready else b""
                heard[key.data] += data
                over = not data and (key.fd in ready or key.data in ended)
                if over or len(heard[key.data]) > LARGEST:
                    open_ones.unregister(key.fileobj)
    return {name: _word(process, heard[name], end) for name, process in begun.items()}


def _word(process: subprocess.Popen[bytes], out: bytes, end: float) -> Json:
    try:
        over = len(out) > LARGEST
        code = process.wait(0 if over else max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return {"failed": f"it said more than {LARGEST >> 10} KiB" if over else f"it had not ended after {PATIENCE:.0f} s"}
    finally:
        if process.stdout is not None:
            process.stdout.close()
    if code != 0:
        return {"failed": f"it ended with {code}" if code > 0 else f"a signal ended it ({-code})"}
    if over:
        return {"failed": f"it said more than {LARGEST >> 10} KiB"}
    text = out.decode("utf-8", "backslashreplace").replace("\0", "\\x00").strip()
    return {"said": text} if text else {"failed": "it said nothing on stdout"}


class Beside:
    """Asks the tools of runs while this process does something else. Those that are asked alike at one time are asked once."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        self._answers: dict[int, Future[dict[str, Json]]] = {}  # by run
        self._open: list[tuple[Question, Future[dict[str, Json]]]] = []

    @property
    def busy(self) -> bool:
        return bool(self._answers)

    def ask(self, run: int, question: Question) -> None:
        self._open = [(asked_for, answer) for asked_for, answer in self._open if not answer.done()]
        alike = next((answer for asked_for, answer in self._open if asked_for == question), None)
        if alike is None:
            alike = self._pool.submit(asked, *question)
            self._open.append((question, alike))
        self._answers[run] = alike

    def knows(self, run: int) -> bool | None:
        """Whether a run's tools have said what they say by now; None where they were not asked."""
        return self._answers[run].done() if run in self._answers else None

    def words(self, run: int) -> dict[str, Json]:
        """What they have said; to be asked anew for another time."""
        return self._answers.pop(run).result()

    def only(self, runs: Collection[int]) -> None:
        """Forgets what was asked for other runs than these."""
        self._answers = {no: answer for no, answer in self._answers.items() if no in runs}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

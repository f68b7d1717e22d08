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
from typing import Any

Json = Any
PATIENCE = 10.0  # s for all of them
LARGEST = 16 * 1024  # bytes of one
LOOK = 0.05  # s between looks at whether one has ended


def asked(tools: dict[str, list[str]], env: dict[str, str], without: tuple[str, ...], directory: str) -> dict[str, Json]:
    """Name -> {said: its words} or {failed: why it has none}. `env` lies over the environment, `without` is taken out of it."""
    around = {name: value for name, value in os.environ.items() if name not in without} | env
    cwd = directory if os.path.isdir(directory) else "/"
    begun = {name: _begin(argv, around, cwd) for name, argv in tools.items()}
    said = _read({name: one for name, one in begun.items() if not isinstance(one, dict)}, time.monotonic() + PATIENCE)
    return {name: one if isinstance(one, dict) else said[name] for name, one in begun.items()}


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

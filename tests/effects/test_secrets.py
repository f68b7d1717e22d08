"""The command of a secret: what is left of it when it is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import until

from durun.effects import secrets

HANGS = "trap '' TERM; sleep 600 & (trap '' TERM HUP; sleep 600 & echo $$ $! > inner; wait) & echo $$ $! > outer; PRINTS; wait"


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie that nobody fetches is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class Begun:
    """What a command has begun, by what it wrote into the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pids(self) -> set[int]:
        """All of them, once both files are written; none before."""
        texts = [path.read_text() if path.exists() else "" for path in (self.folder / "inner", self.folder / "outer")]
        return {int(word) for text in texts for word in text.split()} if all(text.endswith("\n") for text in texts) else set()


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Begun]:
    made = Begun(tmp_path)
    yield made
    for pid in filter(alive, made.pids()):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("prints", "said"), [(":", "gave no answer within"), ("until [ -e inner ]; do sleep 0.02; done; yes", "printed over 1 MiB")]
)
def test_the_command_of_a_secret_is_ended_with_all_that_it_began(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, prints: str, said: str
) -> None:
    found = secrets.Secrets([{"name": "TOKEN", "run": HANGS.replace("PRINTS", prints)}], str(begun.folder))
    for patience in (1.0, 10.0, 100.0):  # on a machine that has much to do it may not have come so far
        monkeypatch.setattr(secrets, "PATIENCE", patience)
        with pytest.raises(secrets.SecretMissing) as refused:
            found.value("TOKEN")
        if begun.pids() and said in str(refused.value):
            break
    assert said in str(refused.value)
    assert len(begun.pids()) == 3, "the shell, its child, and what that began"
    until(lambda: not any(map(alive, begun.pids())))

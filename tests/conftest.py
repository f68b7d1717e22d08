"""The real program in a folder of its own."""

from __future__ import annotations

import compileall
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from program import Program
from receiver import Receiver

import durun as package
from durun.store.audit import audit
from durun.store.file import File

LONG = ("crash", "templates", "faults", "cli", "store")  # rooms by how long a test of them takes
sys.set_int_max_str_digits(0)
settings.register_profile("shared", deadline=None)  # a machine that is shared stands still now and then
settings.load_profile("shared")


def pytest_configure(config: pytest.Config) -> None:
    """The program lies here compiled, as where it is installed: it is begun thousands of times, also where the environment keeps
    Python from writing what it has compiled."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(str(Path(package.__file__).parent), quiet=2, rx=re.compile(r"/templates/[^/]+/"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rooms with long tests first: what is left for the end is short, and no worker waits for another."""
    items.sort(key=lambda item: LONG.index(room) if (room := item.path.parent.name) in LONG else len(LONG))


@pytest.fixture
def durun(tmp_path: Path) -> Iterator[Program]:
    """`durun("start", "plan.yaml", exit=0)` runs the installed program; nothing of it is left at the end, and whatever was
    done to it, what must hold in its file holds (unless a test that breaks it says `durun.audited = False`)."""
    program = Program(tmp_path)
    yield program
    program.end()
    if program.audited and program.db.is_file():
        file = File(str(program.db), create=False)
        broken = audit(file).broken
        file.close()
        assert not broken, broken


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A far side on loopback that answers 200 until it is told otherwise."""
    made = Receiver()
    yield made
    made.close()

"""The real program in a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import Program
from receiver import Receiver

sys.set_int_max_str_digits(0)


@pytest.fixture
def durun(tmp_path: Path) -> Iterator[Program]:
    """`durun("start", "plan.yaml", exit=0)` runs the installed program; nothing of it is left at the end."""
    program = Program(tmp_path)
    yield program
    program.end()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A far side on loopback that answers 200 until it is told otherwise."""
    made = Receiver()
    yield made
    made.close()

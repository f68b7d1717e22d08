"""A plan that was checked before is known by its text, so that its next start needs neither YAML nor the shapes.

Rules:
- what was found of a text holds for this durun alone: its version, and the files that check a plan as they lie here, are part of
  the mark
- a plan that calls others or pins files is always read anew: those may have changed while its own text has not
- nothing that was refused is remembered, and a plan is remembered in the transaction that stores its run
"""

from __future__ import annotations

import os

from durun import __version__, plan
from durun.plan.canonical import Plan, states_of
from durun.plan.digest import sha256


def mark_of(text: bytes) -> str:
    """What a text is known by to this durun."""
    said = [__version__]
    with os.scandir(os.path.dirname(plan.__file__)) as found:
        for entry in sorted(found, key=lambda entry: entry.name):
            if entry.name.endswith(".py"):
                there = entry.stat()
                said.append(f"{entry.name} {there.st_size} {there.st_mtime_ns}")
    return sha256("\n".join(said).encode() + b"\0" + text).hexdigest()


def can_be(found: Plan) -> bool:
    """Whether a plan may be known by its text alone."""
    return "files" not in found["pins"] and not any("plan" in state for state in states_of(found))

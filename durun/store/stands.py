"""The order in which the places where a run stands are told: as its branches and items begin, not by the text of their paths."""

from __future__ import annotations

from durun.machine.scope import parts
from durun.store.file import File, rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any


def in_order(file: File, run: int, positions: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Positions of a run, a state before what stands in it, branches and items by their numbers."""
    found = rows(file.db, "SELECT path, label, no FROM items WHERE run = ?", (run,))
    numbers = {(path, label): no for path, label, no in found}

    def place(p: dict[str, Json]) -> list[tuple[str, int]]:
        return [(part.state, numbers.get((part.path, part.name), -1)) for part in parts(p["scope"])]

    return sorted(positions, key=place)

"""Commands about plans and about the file: check, db path."""

from __future__ import annotations

import sys

from durun.cli.common import text_of, where
from durun.cli.reader import json_line, out, say, visible


def check(plan: str, *, json: bool = False) -> int:
    """Check a plan: every fault with its line, and what is worth a warning. Exits with 0 or 7."""
    from durun.plan.load import PlanFaults, draw, load

    name = "stdin" if plan == "-" else plan
    try:
        loaded = load(text_of(plan), name)
    except PlanFaults as e:
        if not json:
            raise
        out(_document([f._asdict() for f in e.faults], []))
        return e.exit
    if json:
        out(_document([], [w._asdict() for w in loaded.warnings]))
        return 0
    for warning in loaded.warnings:
        say(draw(warning._replace(message=f"warning: {warning.message}"), loaded.source))
    say(f"{name}: well; {len(loaded.plan['states'])} states, version {loaded.plan['version']}")
    return 0


def _document(faults: list[dict[str, object]], warnings: list[dict[str, object]]) -> str:
    return json_line({"faults": faults, "warnings": warnings})


def db_path(*, json: bool = False, db: str | None = None) -> int:
    """Print where the database lies."""
    if json:
        from durun.cli.reader import out_json

        out_json({"path": where(db), "folder": where(db) + ".d"})
    else:
        print(visible(where(db)) if sys.stdout.isatty() else where(db))
    return 0

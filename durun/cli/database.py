"""Commands about the database file: db check."""

from __future__ import annotations

from durun.cli.common import opened
from durun.cli.reader import out, out_json, say


def db_check(*, json: bool = False, db: str | None = None) -> int:
    """Check the database: the file, and what must hold for every run in it. Exits with 0 or 8."""
    from durun.errors import StoreUnusable
    from durun.store.audit import audit

    file = opened(db)
    found = audit(file)
    if json:
        out_json(
            {
                "path": file.path,
                "looked_at": found.looked_at,
                "invariants": found.invariants,
                "broken": [b._asdict() for b in found.broken],
            }
        )
    else:
        for b in found.broken:
            out(f"{b.invariant}: " + (f"run {b.run}: " if b.run else "") + b.what)
    counted = ", ".join(f"{count} {name}" for name, count in found.looked_at.items())
    if found.broken:
        say(f"{file.path}: what must hold is broken in {len(found.broken)}; looked at {counted}: restore a backup, or report this")
        return StoreUnusable.exit
    say(f"{file.path}: well; looked at {counted}, and {len(found.invariants)} invariants hold")
    return 0

"""Commands about the database file as a whole: db check, db backup, db restore."""

from __future__ import annotations

import os

from durun.cli.common import alive_in, now, opened, where
from durun.cli.reader import at_end, out, out_json, say
from durun.errors import StoreUnusable, Usage


def db_check(*, json: bool = False, db: str | None = None) -> int:
    """Check the database: the file, and what must hold for every run in it. Exits with 0 or 8."""
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


def db_backup(file: str, *, json: bool = False, db: str | None = None) -> int:
    """Write a backup of the database into a new file, also while runs are driven. Logs are not in it."""
    import shlex

    from durun.store.backup import backup

    source, to = opened(db), os.path.abspath(file)
    size = backup(source, to, now())
    if json:
        out_json({"path": source.path, "backup": to, "bytes": size, "without": source.folder})
    say(f"{source.path}: backed up into {to}, {size} bytes, all that its runs need to go on; what commands printed is in")
    say(f"  {source.folder}, and is not in it; `durun db restore {shlex.quote(to)}` puts it back")
    return 0


def db_restore(file: str, *, json: bool = False, db: str | None = None) -> int:
    """Put a backup in the place of what the database holds. What was in flight in it is blocked until you say --after-restore."""
    from durun.plan.units import show_moment
    from durun.store.backup import away, checked, restore
    from durun.store.file import File

    source, at, path = os.path.abspath(file), now(), where(db)
    if not os.path.exists(source):
        raise Usage(f"there is no file {source}: nothing was changed")
    if not os.path.exists(path):  # what is refused makes none
        with checked(os.path.realpath(source)):
            pass
    try:
        target = File(path, create=True, say=say)
    except StoreUnusable as e:
        raise StoreUnusable(f"{e}; or {away(path)}") from None
    at_end.append(target.close)
    kept = f"{path}.before-{show_moment(at).replace(':', '').replace('.', '')}"
    found = restore(source, target, alive_in(path), at, kept)
    if json:
        out_json(
            {
                "path": path,
                "restored_from": source,
                "backup_at": None if found.backup_at is None else show_moment(found.backup_at),
                "kept": found.kept,
                "runs": found.runs,
                "blocked": found.blocked,
            }
        )
    say(f"{path}: restored from {source}; runs in it: {found.runs}, of them in flight: {found.blocked}")
    if found.kept is not None:
        say(f"what was there before is in {found.kept}")
    if found.blocked:
        say("what is in flight is blocked (restored): what it did since the backup is not known; look at it with `durun ls`,")
        say("  then `durun resume RUN --after-restore`, or `durun resume --all --after-restore`")
    return 0

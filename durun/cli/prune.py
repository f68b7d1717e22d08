"""The command db prune: what has ended is taken away."""

from __future__ import annotations

from typing import Any

from durun.cli.common import alive_in, now, opened
from durun.cli.reader import out_json, say
from durun.effects.pinned import sweep
from durun.errors import NoSuchRun, NotPossible, Usage
from durun.store import read
from durun.store.file import File
from durun.store.pinned import known

Json = Any
WHY = {
    "in_flight": "has not ended: it is {status}",
    "owed": "owes undos: `durun compensate {id}` or `durun resolve {id} STATE --undone` first",
    "undelivered": "has something that is not delivered yet: `durun outbox ls {id}`",
}


def db_prune(
    run: str | None = None, *, older_than: str | None = None, forget_id: bool = False, shrink: bool = False, json: bool = False,
    db: str | None = None,
) -> int:  # fmt: skip
    """Take away runs that have ended with nothing owed, with their logs and their history; of an id given with --id it is kept
    how it ended."""
    from durun.plan.units import duration
    from durun.store.prune import prune

    try:
        age = 0 if older_than is None else duration(older_than)
    except ValueError as e:
        raise Usage(f"--older-than: {e}") from None
    if run is not None and older_than is not None:
        raise Usage("name a run, or say --older-than")
    file = opened(db, of=run)
    alive, at = alive_in(file.path), now()
    only = None if run is None else _named(file, run, forget_id)
    if only == 0:
        if json:
            out_json({"path": file.path, "pruned": [], "forgotten": 1})
        say(f"run {run} was pruned before: its id is forgotten now, and begins a new run when it is given again")
        return 0
    found = prune(file, alive, at, only=only, before=at - age + 1, forget=forget_id, shrink=shrink)
    sweep(file.folder, known(file))
    if json:
        out_json(
            {
                "path": file.path, "pruned": found.ids, "kept": found.kept, "ids_kept": found.remembered,
                "forgotten": found.forgotten, "logs": {"files": found.files, "bytes": found.bytes},
                "database": {"before": found.size[0], "after": found.size[1], "shrunk": found.shrunk, "free": found.free},
            }
        )  # fmt: skip
    _say(file, found)
    return 0


def _named(file: File, run: str, forget_id: bool) -> int:
    """The number of a run that may be pruned; 0 where it was before, and its id is forgotten here."""
    from durun.store.prune import forget, why_kept

    try:
        no = read.number(file, run)
    except NoSuchRun:
        if forget_id and forget(file, run):
            return 0
        raise
    why = why_kept(file, no)
    if why is not None:
        s = read.summary(file, no, alive_in(file.path))
        raise NotPossible(f"run {s.id} {WHY[why].format(id=s.id, status=s.status)}; nothing was changed")
    return no


def _say(file: File, found: Any) -> None:
    if found.finished:
        say(f"{file.path}: what an earlier prune had left of runs is gone too: {found.finished}")
    if not (found.ids or found.files or found.forgotten or found.finished):
        say(f"{file.path}: nothing to prune")
    else:
        ids = f"; ids remembered: {found.remembered}" if found.remembered else ""
        ids += f"; ids forgotten: {found.forgotten}" if found.forgotten else ""
        say(f"{file.path}: runs pruned: {len(found.ids)}; files of logs: {found.files} ({_kib(found.bytes)}){ids}")
        before, after = found.size
        if before > after:
            say(f"the database gave back {_kib(before - after)}: it has {_kib(after)}")
        elif found.ids and not found.shrunk:
            say(f"{_kib(found.free)} are free in the database, and are used again by what comes; a later prune gives them back")
            say("  where no driver lives; of a large one only `durun db prune --shrink` does, and nobody can write meanwhile")
    for why, ids in found.kept.items():
        many = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        what = {"owed": "owe undos (`durun show RUN`)", "undelivered": "have something undelivered (`durun outbox ls`)"}[why]
        say(f"kept, since they {what}: {', '.join(ids[:5])}{many}")


def _kib(size: int) -> str:
    return f"{size} bytes" if size < 10_000 else f"{size / 1024:.0f} KiB" if size < 10_000_000 else f"{size / 1024 / 1024:.0f} MiB"

"""What every command needs: the file, the run, who drives it, and what to say of it."""

from __future__ import annotations

import os
import sys
import time

from durun.cli.reader import at_end, say
from durun.errors import NoSuchRun, PlanRefused, StoreUnusable, Usage
from durun.store import read
from durun.store.file import File, default_path, folder_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    Json = Any
EXITS = {
    "succeeded": 0,
    "failed": 1,
    "cancelled": 4,
    "compensated": 4,
    "waiting": 3,
    "interrupted": 3,
    "blocked": 9,
    "paused": 9,
    "stranded": 9,
    "running": 6,  # another driver goes on with it
    "compensating": 6,
}
COLUMNS = 80  # of a terminal that does not say


def where(db: str | None) -> str:
    """The path of the database a command means."""
    path = db or default_path()
    if "\0" in path:
        raise Usage("the path of a database holds no NUL")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise Usage(f"the path of a database must be UTF-8 text: {os.fsencode(path)!r} is none") from None
    if os.path.islink(path) and (whose := os.lstat(path).st_uid) not in (0, os.geteuid()):
        raise StoreUnusable(f"{path} is a link that another user has put there (uid {whose}): durun does not follow it")
    return os.path.realpath(path)


def absent(path: str) -> bool:
    """Whether nothing lies where a database would: what cannot be looked at may be there."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def nowhere(db: str | None, so: str) -> str:
    """What is said where there is no database; one that nobody has named and that is not there yet is not spoken of."""
    return f"there is no database at {where(db)}: {so}" if db is not None or "DURUN_DB" in os.environ else so


def refuse_absent(path: str, run: str) -> None:
    """Raises NoSuchRun where a run is looked for and there is no database that could have it."""
    if absent(path):
        raise NoSuchRun(f"there is no run {run!r}: there is no database at {path}; `durun start` makes one")


def opened(db: str | None, *, brief: bool = False, of: str | None = None) -> File:
    """The database, which must be there. `brief`: to look at it and leave, on a full disk too; `of`: the run that is looked for.
    Raises StoreUnusable, and NoSuchRun where there is none that could have that run."""
    path = where(db)
    if of is not None:
        refuse_absent(path, of)
    file = File(path, create=False, brief=brief, say=say)
    at_end.append(file.close)
    return file


def still_there(file: File, run: str) -> None:
    """Raises StoreUnusable where a file that is looked at for long lies no more where it was opened: nothing new comes into it."""
    file.same_file(f"run {run} is looked at no more; --db names where it lies now")


def alive_in(path: str) -> Any:
    """Whether the driver of a place lives, asked of its lock."""
    from durun.effects.locks import driver_alive

    folder = folder_of(path)
    return lambda place: driver_alive(folder, place)


def last_sign_in(path: str) -> Any:
    """The last sign of life that the driver of a place left."""
    from durun.effects.locks import last_sign

    folder = folder_of(path)
    return lambda place: last_sign(folder, place)


def document(file: File, no: int, at: int | None = None, many: int = read.MANY) -> dict[str, Json]:
    """A run as `show --json` has it: now, or as far as it was decided `at` a time; with so many undos at most."""
    from durun.render import document

    alive = alive_in(file.path)
    summary = read.summary(file, no, alive)
    details = read.details(file, no, many)
    look_at_onces(file, no, details["effects"])
    driven = summary.driver is not None and bool(alive(summary.driver))
    doc = document.run(summary, details, now() if at is None else at, alive=driven)
    masked: dict[str, Json] = mask_of(file, no).tree(doc)
    return masked


def look_at_onces(file: File, no: int, effects: list[dict[str, Json]]) -> None:
    """A once without an end whose process is gone is in doubt, though nobody has had reason to write it yet."""
    for e in effects:
        if e["kind"] == "once" and e["status"] == "begin":
            from durun.effects.locks import once_alive
            from durun.store.onces import begun

            name = begun(file, no, e["no"])
            if name is not None and not once_alive(file.folder, name):
                e["status"] = "in_doubt"


class NoMask:
    """Where a run has no secrets nothing is hidden, and nothing is imported for it."""

    def tree(self, value: Json) -> Json:
        return value

    def settled(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def masked(self, data: bytes) -> bytes:
        return data


def mask_of(file: File, no: int, *, run: bool = False) -> Any:
    """What hides the values of a run's secrets, as far as they can be read here; with `run` their commands are asked too."""
    specs, directory = read.secrets(file, no)
    if not specs:
        return NoMask()
    from durun.effects.secrets import Secrets

    found = Secrets(specs, directory)
    for problem in found.learn(run=run):
        if run:
            say(f"{problem}: what it was is not masked here")
    return found.mask


def exit_of(status: str) -> int:
    """The exit code that a run's status gives to the commands that exit by the run."""
    return EXITS.get(status, 1)


def on_terminal(stream: TextIO) -> bool:
    """Whether a person looks at a terminal there that can be drawn on."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    except ValueError:  # closed
        return False


def columns_of(stream: TextIO) -> int:
    """How wide a terminal is."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    except OSError:
        return COLUMNS


def text_of(plan: str) -> bytes:
    """The text of a plan, or as much of it as shows that it is too long. Raises PlanRefused."""
    return read_file(plan, 5 * 1024 * 1024)


def read_file(file: str, most: int = -1) -> bytes:
    """The whole of a file, or of stdin for `-`, or so much of it. Raises PlanRefused."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(most)
        with open(file, "rb") as f:
            return f.read(most)
    except OSError as e:
        raise PlanRefused(f"{file} cannot be read: {os.strerror(e.errno or 0)}") from None


def length(given: str, option: str) -> int:
    """The milliseconds of a duration that an option is given. Raises Usage."""
    from durun.plan.units import duration

    try:
        return duration(given)
    except ValueError as e:
        raise Usage(f"{option}: {e}") from None


def now() -> int:
    return time.time_ns() // 1_000_000


def person() -> str:
    """Who gave a command, for the record."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

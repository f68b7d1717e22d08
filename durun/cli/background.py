"""What runs in the processes that durun puts beside itself: a driver in the background, and a worker for several runs.

Neither is a command: `python -m durun.cli.background DATABASE RUN OPTIONS` drives one run after its caller has gone, and
`… DATABASE` drives one run after the other, as lines come in. Told TERM or HUP, the first leaves its command to the keeper.
"""

from __future__ import annotations

import json
import os
import sys

from durun.cli.common import alive_in, document, exit_of
from durun.cli.reader import guarded, out_json, prepare, say
from durun.errors import StoreUnusable
from durun.store import read
from durun.store.file import File, make_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

# --- in the process beside ---


def main() -> None:
    prepare()
    path, *more = sys.argv[1:]
    sys.exit(guarded(lambda: alone(path, int(more[0]), json.loads(more[1])) if more else serve(path, quiet=False), as_json=False))


def alone(path: str, no: int, options: dict[str, Any]) -> int:
    """Drives one run, whose caller hears that it is held and leaves."""
    from durun.cli.drive import driver
    from durun.effects.background import READY, say_ready

    os.set_inheritable(READY, False)
    with driver(path, create=False, quiet=False) as d:
        d.signals.background = True
        d.held, d.follows = say_ready, False
        return d.go_on(no, json=False, **options)


def serve(path: str, *, quiet: bool) -> int:
    """Drives the runs that are named, line by line, until no more come or it is told to stop."""
    from durun.cli.drive import driver, hearing
    from durun.errors import Refusal

    with driver(path, create=False, quiet=quiet) as d, hearing(d.signals):
        d.follows = False
        for line in sys.stdin:
            asked = json.loads(line)
            no, d.quiet, d.due = asked.pop("no"), asked.pop("quiet"), None
            d.name = f"{read.summary(d.file, no, d.alive).id}: "
            try:
                if asked["take_up"] == "deliver":
                    code = 9 if d.deliver(no) else 0
                else:
                    code = d.go_on(no, json=False, **asked)
            except StoreUnusable:
                raise
            except Refusal as e:
                say(str(e))
                if d.superseded:
                    return e.exit  # it can begin nothing more: another worker takes its place
                code = e.exit
            os.write(1, json.dumps({"no": no, "code": code, "due": d.due}).encode() + b"\n")
            if d.signals.told:
                return d.signals.exit
    return 0


# --- in the process that wants one ---


def send_off(file: File, no: int, options: Json, *, quiet: bool, as_json: bool = False) -> int:
    """Has a driver in the background go on with a run: 0 once it holds the run, or somebody else does."""
    from durun.effects.background import Background

    s = read.summary(file, no, alive_in(file.path))
    if s.status in read.ENDED and s.status != "failed" and not options.get("failed_items"):
        say(f"run {s.id} is {s.status} already: there is nothing to go on with")
        return _shown(file, no, exit_of(s.status), as_json)
    hold = read.hold(file)
    if hold is not None:
        say(f"run {s.id} is {s.status}: all runs in {file.path} are held since {hold.since} by {hold.by}: `durun resume --all`")
        return _shown(file, no, 9, as_json)
    make_folder(file.folder)
    log = os.path.join(file.folder, f"{no}.driver.log")
    try:
        driver = Background("durun.cli.background", [file.path, str(no), json.dumps(options)], log)
    except OSError as e:
        raise StoreUnusable(f"run {s.id}: no driver could be begun: {os.strerror(e.errno or 0)}: `durun resume {s.id}`") from None
    code = 0
    if driver.holds():
        if not quiet:
            say(f"run {s.id} goes on in process {driver.pid}, which writes to {log}: `durun wait {s.id}`, `durun show {s.id}`")
    else:
        code, said = driver.ended()
        now = read.summary(file, no, alive_in(file.path))
        if now.driver is not None and alive_in(file.path)(now.driver):
            say(f"run {s.id} is {now.status}: another process drives it")
            code = 0
        elif code == 0:
            say(said)
        else:
            say(said or f"its driver ended with {code}")
            say(f"run {s.id} is {now.status}: no driver goes on with it in the background: `durun resume {s.id}`")
            code = code if code in (3, 4, 5, 6, 7, 8, 9, 10) else 8
    return _shown(file, no, code, as_json)


def _shown(file: File, no: int, code: int, as_json: bool) -> int:
    if as_json:
        out_json(document(file, no))
    return code


if __name__ == "__main__":
    main()

"""watch: a run that another process drives, seen as its driver shows it. It only reads, and leaves the run alone.

The file is asked whether anything was written a few times a second, and read only then.
"""

from __future__ import annotations

import select
import sys
import time
from typing import Any

from durun.cli.common import alive_in, document, exit_of, now, on_terminal, opened, still_there
from durun.cli.drive import hearing
from durun.cli.reader import out_json, say
from durun.engine import Signals
from durun.machine.model import Position
from durun.render.document import path_of
from durun.render.text import moved, plain, stands
from durun.store import read
from durun.store.file import File
from durun.store.runs import Store, UnderWay

TYPE_CHECKING = False
if TYPE_CHECKING:  # rich comes with it, and is there only on a terminal
    from durun.cli.bystander import Bystander
    from durun.cli.live import Live
    from durun.render.live import View

Json = Any

LOOK = 0.2  # s between looks at the file
PATIENCE = 10.0  # s in which somebody may take up a run that nobody drives
BEFORE = 50  # rows of history from before, for a view
MANY = 200  # positions that are read, where there are more


def watch(run: str, *, json: bool = False, db: str | None = None) -> int:
    """Watch a run that another process drives until it has ended, or waits for a person; exits by the run."""
    file = opened(db, of=run)
    no = read.number(file, run)
    signals = Signals()
    with hearing(signals):
        watched = Watched(file, no, drawn=on_terminal(sys.stderr) and not json)
        if not json and sys.stdin.isatty():
            watched.asks(signals)
        try:
            while not signals.told and not watched.over():
                still_there(file, run)
                select.select([w for w in (signals.wake,) if w is not None], [], [], LOOK)
        finally:
            watched.close()
    doc = document(file, no)
    if json:
        out_json(doc)
    if signals.told:
        driven = doc["driver"] is not None and doc["driver"]["alive"]
        say(f"run {doc['id']} is {doc['status']}; it goes on unwatched" if driven else stands(doc, apart=watched.drawn))
        return signals.exit
    say(stands(doc, apart=watched.drawn))
    return exit_of(doc["status"])


class Watched:
    """What is known of a run that somebody else drives."""

    def __init__(self, file: File, no: int, *, drawn: bool) -> None:
        self.file, self.no, self.drawn = file, no, drawn
        self.store, self.alive = Store(file), alive_in(file.path)
        self.summary = read.summary(file, no, self.alive)
        self.live: Live | None = None
        self._seen = -1
        self._after = read.events(file, no)
        self._undriven: float | None = None
        self._told = False
        self._bystander: Bystander | None = None
        self._stands: tuple[list[tuple[Position, UnderWay | None]], dict[str, int]] = ([], {})
        if self.summary.status in read.ENDED:
            return
        if drawn:
            self.live = self._view()
        else:
            where = f" in state {plain(self.summary.state)}" if self.summary.state else ""
            say(f"run {self.summary.id} is {self.summary.status}{where}")

    def _view(self) -> Live:
        from durun.cli.live import Live, Tails
        from durun.render.live import Story, View

        story, tails = Story(), Tails(self.file.folder)
        for e in read.history(self.file, self.no, self._after - BEFORE):
            story.hear(e["kind"], e["scope"], e["state"], e["attempt"], e["data"], e["at"])
        story.kept.clear()  # that was before anybody watched

        def shown() -> View:
            s, (stands, unseen) = self.summary, self._stands
            acting = {p.scope: e for p, e in stands if e is not None}
            hint = "Ctrl-C ends watching; the run goes on"
            if self._undriven is not None:
                hint = f"nobody drives this run: `durun resume {s.id}` goes on"
            return View(
                s.id, f"{s.name} {s.version}", s.status, s.reason, s.created_at, now(), [p for p, _ in stands], story,
                lambda p: acting[p.scope].attempt if p.scope in acting else 1,
                lambda p: self._tail(tails, acting.get(p.scope)), hint, unseen,
            )  # fmt: skip

        return Live(story, shown)

    def _tail(self, tails: Any, e: UnderWay | None) -> str:
        return "" if e is None or e.place is None else str(tails.of(e.place, f"{self.no}.{e.no}.{e.attempt}"))

    def over(self) -> bool:
        """Looks, shows what is new, and says whether the run has ended or waits for a person, or nobody takes it up."""
        changed = self.store.changed()
        if changed != self._seen:
            self._seen = changed
            self._read()
        s = self.summary
        driven = s.driver is not None and self.alive(s.driver)
        if not driven and self._undriven is None:
            self.summary = s = read.summary(self.file, self.no, self.alive)
            self._undriven = time.monotonic()
        elif driven and self._undriven is not None:
            self.summary = s = read.summary(self.file, self.no, self.alive)
            self._undriven, self._told = None, False
        if s.status in (*read.ENDED, "blocked", "paused", "stranded"):
            self._read()  # rows that were written between the look at the history and that at the run
            return True
        asking = not driven and s.status == "waiting" and self._bystander is None and read.only_asks(self.file, self.no)
        if asking:  # nobody here could be asked, and nothing else moves it
            self._read()
            return True
        undriven = 0.0 if self._undriven is None else time.monotonic() - self._undriven
        if undriven > 1 and self.live is None and not self._told:
            self._told = True
            say(f"nobody drives run {s.id}, it is {s.status}: `durun resume {s.id}` goes on")
        if self.live is not None:
            self.live.tick()
        if self._bystander is not None and self._bystander.asks(self.live.still if self.live is not None else lambda: None):
            self._undriven = time.monotonic()  # whoever takes it up has just been given a reason
            return False
        return undriven > PATIENCE

    def asks(self, signals: Signals) -> None:
        """A person sits at this terminal: they are asked what the run asks."""
        from durun.cli.bystander import Bystander

        if self.summary.status not in (*read.ENDED, "stranded"):
            self._bystander = Bystander(self.file, self.no, signals)

    def _read(self) -> None:
        """What has been written since: rows of the history, the run in a line, and where it stands."""
        for e in read.history(self.file, self.no, self._after):
            self._after = e["no"]
            if self.live is not None:
                self.live.hear(e["kind"], e["scope"], e["state"], e["attempt"], e["data"], e["at"])
            elif (line := moved(e["kind"], path_of(e["scope"], e["state"]), e["attempt"], e["data"])) is not None:
                say(line)
        self.summary = read.summary(self.file, self.no, self.alive)
        if self.live is not None:
            self._stands = self.store.standing(self.no, MANY)

    def close(self) -> None:
        if self.live is not None:
            self.live.close()

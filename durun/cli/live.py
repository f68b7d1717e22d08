"""A live view on this process's terminal: what it is fed with, how often it is drawn, and what it leaves behind.

Drawing never decides anything and writes nothing but the terminal. It comes at most eight times a second, and takes at most a
twentieth of the time. This module, and rich with it, is imported only where there is a terminal, and before the first effect.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from durun.cli.reader import say
from durun.effects.command import tail
from durun.effects.notes import Begun, Notes, Nothing
from durun.engine import Engine
from durun.machine.model import Checkpoint, Move, Position, Status
from durun.render.live import Story, View, last_line, lines
from durun.render.terminal import Screen, foreground

EVERY = 0.125  # s between frames at least
SHARE = 20  # a frame that took t is followed by another after 20 t at the earliest
LOG = 2048  # bytes at the end of a log in which its last line is looked for
QUICK = 300  # ms that a command must have lived before its log is looked for


class Tails:
    """The last line each command under way has printed, read from the end of its log."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, tuple[str, str]] = {}
        self._sought: set[str] = set()

    def of(self, place: str, token: str) -> str:
        files = self._files.get(token)
        if files is None:
            files = self._find(place, token)
            if files is None:
                return ""
        newest = max(files, key=self._written)
        return last_line(tail(self._folder, newest, LOG)) if self._written(newest) else ""

    def _find(self, place: str, token: str) -> tuple[str, str] | None:
        said = Notes.lately(self._folder, place).of(token)
        if isinstance(said, Nothing) and token not in self._sought:  # it may have begun long ago: once, the whole journal
            self._sought.add(token)
            notes = Notes(self._folder, place)
            notes.refresh()
            said = notes.of(token)
        if not isinstance(said, Begun):
            return None
        if len(self._files) > 1000:
            self._files.clear()
            self._sought.clear()
        self._files[token] = (f"{place}/{said.out}", f"{place}/{said.err}")
        return self._files[token]

    def _written(self, path: str) -> float:
        """When something was last printed there; 0 where nothing was."""
        try:
            there = os.stat(os.path.join(self._folder, path))
        except OSError:
            return 0.0
        return there.st_mtime if there.st_size else 0.0


class Live:
    """The view of one run. `shown` gives what a frame shows, or None where there is nothing yet."""

    def __init__(self, story: Story, shown: Callable[[], View]) -> None:
        self.story, self._shown = story, shown
        self._screen = Screen()
        self._next = time.monotonic() + EVERY  # what is over at once gets no frame
        self._drawn = False
        self._before = signal.signal(signal.SIGCONT, lambda *_: self._screen.forget())

    @property
    def drawing(self) -> bool:
        return foreground(sys.stderr.fileno())

    def hear(self, kind: str, scope: str, state: str | None, attempt: int | None, data: Any, at: int) -> None:
        line = self.story.hear(kind, scope, state, attempt, data, at)
        if line is not None and not self.drawing:
            say(line)

    def tick(self) -> None:
        """A frame, if it is time for one."""
        began = time.monotonic()
        if began < self._next:
            return
        if not self.drawing:
            self._screen.forget()
            self._next = began + EVERY
            return
        self._screen.draw(lines(self._shown(), *self._screen.size(), self._screen.painter.marks))
        took = time.monotonic() - began
        self._next = began + max(EVERY, SHARE * took)

    def still(self) -> None:
        """The last frame before a person is asked below it: what stands there is so, and the next comes on a new place."""
        self._next = 0.0
        self.tick()
        self._screen.forget()

    def say(self, text: str) -> None:
        """A line for people, above the view."""
        self._screen.clear()
        say(text)

    def close(self) -> None:
        """The view goes; what mattered stays."""
        drawing = self.drawing
        if drawing:
            self._screen.close()
        signal.signal(signal.SIGCONT, self._before)
        if drawing:
            for line in self.story.final():
                say(line)


def of_driver(engine: Engine, before: Iterable[dict[str, Any]], folder: str) -> Live:
    """The view of the run this process drives: all from its own checkpoint, and the ends of the logs."""
    story, tails = Story(), Tails(folder)
    for e in before:
        story.hear(e["kind"], e["scope"], e["state"], e["attempt"], e["data"], e["at"])
    story.kept.clear()  # that was said when it happened

    def last(p: Position) -> str:
        no = p.asking if p.asking is not None else p.effect
        effect = engine.at.effects.get(no) if no is not None else None
        if effect is None or effect.place is None or engine.world.now() - story.since(p) < QUICK:
            return ""
        return tails.of(effect.place, f"{engine.held.no}.{effect.no}.{effect.attempt}")

    def attempts(p: Position) -> int:
        effect = engine.at.effects.get(p.effect) if p.effect is not None else None
        return effect.attempt if effect is not None else 1

    def shown() -> View:
        run = engine.at.run
        status = "stopping" if engine.signals.told else "cancelling" if run.cancel else str(run.status)
        return View(
            run.id, f"{run.name} {run.version}", status, run.reason, run.started_at, engine.world.now(),
            list(engine.at.positions.values()), story, attempts, last, hint(engine),
        )  # fmt: skip

    return Live(story, shown)


def hint(engine: Engine) -> str:
    """What Ctrl-C does now."""
    if engine.signals.told:
        return "" if engine.signals.told == "KILL" else "Ctrl-C again ends at once what has not ended"
    if engine.at.run.status is Status.RUNNING:
        return "Ctrl-C stops what is under way and pauses the run"
    return "Ctrl-C leaves the run to wait by itself"


def hear_move(live: Live, engine: Engine) -> Callable[[Checkpoint, Move], None]:
    """What the engine tells of each move, told to a view."""

    def heard(_: Checkpoint, move: Move) -> None:
        now = engine.world.now()
        for line in move.said:
            live.story.keep(line)
        for e in move.history:
            live.hear(e.kind, e.scope, e.state, e.attempt, e.data, now)

    return heard


def rehearse() -> None:
    """Draws a frame nowhere, so that all that drawing needs is imported."""
    import io

    from durun.render.live import Done
    from durun.render.terminal import Painter

    story = Story()
    story.done.append(Done("a", 1, "exit:1", "b"))
    view = View("run", "plan 1", "running", None, 0, 1, [], story, hint="é")
    painter = Painter(io.StringIO())
    for line in lines(view, 20, 8, painter.marks):
        painter.paint(line)

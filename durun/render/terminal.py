"""The terminal: whether a view may be drawn on it, and how frames come and go.

Rules:
- the cursor is never hidden and no mode is left on: a driver that is killed leaves a terminal that can be used, with the cursor
  on the line below the last frame
- a frame is one write; lines are cut to the width, and the terminal is told not to wrap while they are drawn
- nothing here waits for a terminal: one that is held (Ctrl-S, a dead connection) gets no frames until it takes them again
- a process in the background draws nothing
- colours are rich's business: NO_COLOR is honoured, and what the terminal can do is asked there
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from durun.render.live import ASCII, PRETTY, STATUS_STYLES, Line
from durun.render.text import plain

CUT_OFF = 1  # column at the right edge that stays free: some terminals wrap when it is written


def foreground(fd: int) -> bool:
    """Whether this process may draw: it is in the foreground of the terminal, or the terminal is not its own."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


def speaks_utf8() -> bool:
    """Whether the terminal shows UTF-8, by the locale the user set for it."""
    said = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    return "utf8" in said.lower().replace("-", "")


class Painter:
    """Turns lines into what the terminal of a stream understands."""

    def __init__(self, stream: IO[str]) -> None:
        self.console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.plain = bool(os.environ.get("NO_COLOR"))
        self.marks = PRETTY if speaks_utf8() else ASCII

    def paint(self, line: Line) -> str:
        if self.plain:
            return "".join(text for text, _ in line)
        with self.console.capture() as got:
            self.console.print(Text.assemble(*line), end="")
        return got.get()


STATUS = re.compile("|".join(rf"\b{word}\b" for word in STATUS_STYLES))
DOUBT = re.compile(r"\b(in doubt|not certain|under way)\b")


def painted(text: str, stream: IO[str]) -> str:
    """What `ls` and `show` print, with the few words coloured that matter: how a run stands, and what is not certain."""
    painter = Painter(stream)
    lines = text.split("\n")
    at = lines[0].find("STATUS") if lines[0].startswith("ID ") else -1
    return "\n".join(painter.paint(_coloured(line, at, first=i == 0)) for i, line in enumerate(lines))


def _coloured(line: str, at: int, *, first: bool) -> Line:
    if first:
        return [(line, "bold")]
    if at >= 0 or line.startswith("  status "):
        found = STATUS.search(line, max(at, 0))
        if found is not None and (at < 0 or found.start() == at):
            return [(line[: found.start()], ""), (found[0], STATUS_STYLES[found[0]]), (line[found.end() :], "")]
    elif line.startswith("    ") and (doubt := DOUBT.search(line)) is not None:
        return [(line[: doubt.start()], ""), (doubt[0], "bold yellow"), (line[doubt.end() :], "")]
    return [(line, "")]


class Log:
    """What a command wrote, for a terminal: lines and tabs stay, everything else that cannot be printed is made visible."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def shown(self, data: bytes) -> bytes:
        """The next piece of it; what may be the beginning of a character waits for more."""
        text = self._decoder.decode(data).replace("\r\n", "\n")
        return "".join(c if c in "\n\t" else plain(c) for c in text).encode("utf-8", "backslashreplace")


class Screen:
    """The lower end of a terminal, where a frame is drawn over the one before."""

    def __init__(self, stream: IO[str] = sys.stderr) -> None:
        self._stream, self._fd = stream, stream.fileno()
        self.painter = Painter(stream)
        self._rows: list[int] = []  # widths of the lines that stand there now
        self._wide = self.size()[0] + CUT_OFF
        self._rest = b""  # of a frame the terminal did not take whole
        try:
            flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            self._own: int | None = os.open(os.ttyname(self._fd), flags)
        except OSError:
            self._own = None

    def size(self) -> tuple[int, int]:
        """(columns, rows) that a frame may fill."""
        try:
            columns, rows = os.get_terminal_size(self._fd)
        except OSError:
            columns, rows = 0, 0
        return max(2, (columns or 80) - CUT_OFF), max(1, (rows or 24) - 1)

    def draw(self, frame: list[Line]) -> None:
        """Puts a frame in the place of the one before."""
        if not self._flush():
            return
        painted = [self.painter.paint(line) for line in frame]
        data = self._back() + "\x1b[?7l" + "".join(f"{line}\x1b[K\r\n" for line in painted) + "\x1b[J\x1b[?7h"
        self._rows = [sum(cell_len(text) for text, _ in line) for line in frame]
        self._rest = data.encode("utf-8", "replace")
        self._flush()

    def _back(self) -> str:
        """To the beginning of the frame that stands there. A terminal made narrower has wrapped its lines, and remembers that it
        did until they are erased."""
        wide = self.size()[0] + CUT_OFF
        up = sum(max(1, -(-cells // wide)) for cells in self._rows)
        erased = "\x1b[J" if wide != self._wide else ""
        self._wide = wide
        return f"\r\x1b[{up}A{erased}" if up else "\r"

    def _flush(self) -> bool:
        """Whether all that was to be written is."""
        own = self._own
        if own is None:
            with contextlib.suppress(OSError):
                os.write(self._fd, self._rest)
            self._rest = b""
            return True
        while self._rest:
            try:
                self._rest = self._rest[os.write(own, self._rest) :]
            except BlockingIOError:
                return False
            except OSError:  # it is gone: nobody looks
                self._rest = b""
        return True

    def forget(self) -> None:
        """What stands there is somebody else's now: the next frame begins on a new place."""
        self._rows = []

    def clear(self) -> None:
        """Takes the frame away: what is written next stands in its place."""
        rest = self._rest + (self._back() + "\x1b[J\x1b[?7h").encode() if self._rows else self._rest
        self._rows, self._rest = [], b""
        try:
            self._stream.flush()
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except (OSError, ValueError):
            return

    def close(self) -> None:
        self.clear()
        if self._own is not None:
            os.close(self._own)
            self._own = None

"""The live view: from what is known of a run to the lines a person sees while it moves. Pure.

Rules:
- it is fed with rows of the history, by the driver as it commits them, by whoever watches as they are read; what it keeps is
  bounded, however long the run
- where the run stands comes as positions, drawn as a tree by scope: those that move first, then a count
- a line is a list of (text, style), cut to the width it is given, never wrapped
- whatever comes from outside is shown with its control characters made visible
- states that only decide (a choice, a pass) are no work: they are neither listed nor counted
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from durun.machine.model import Phase, Position
from durun.render.document import path_of
from durun.render.text import moved, plain
from durun.values import NamedTuple

Json = Any
Line = list[tuple[str, str]]
Children = Mapping[str | None, list[Position]]  # by the scope of the position they hang under; None: the run itself

DONE_SHOWN = 5
KEPT = 60  # lines kept for the end, before what was plain is folded
FINAL = 20  # lines at the end, beside where the run stands
TALL = 22  # lines of the view at most
PRETTY = {"done": "✓", "failed": "✗", "moving": "▸", "waiting": "◦", "asks": "?", "cut": "…", "more": "…"}
ASCII = {"done": "+", "failed": "x", "moving": ">", "waiting": "-", "asks": "?", "cut": "~", "more": "..."}
STYLES = {"done": "green", "failed": "red", "moving": "bold", "waiting": "yellow", "asks": "bold yellow"}
STATUS_STYLES = {
    "running": "bold", "waiting": "yellow", "blocked": "bold yellow", "paused": "yellow", "interrupted": "bold yellow",
    "stranded": "bold red", "compensating": "bold", "succeeded": "green", "failed": "red", "cancelled": "yellow",
    "compensated": "yellow",
}  # fmt: skip
MOVING = (Phase.ACTING, Phase.PROBING, Phase.READY, Phase.INSIDE)
ASKS = (Phase.DOUBT, Phase.LOST, Phase.HELD)
OVER = (Phase.ENDED, Phase.FAILED)
# what a program writes to colour its text or to move about: sequences by their shape, whole
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Za-z]")


# --- what has happened ---


class Done(NamedTuple):
    """A state that has ended: well where `error` is empty. `took` is ms, None where its beginning was not seen."""

    path: str
    took: int | None
    error: str = ""
    to: str = ""
    attempt: int = 1


class Kept(NamedTuple):
    """A line for the end, or a count of states that were done (`text` empty), or of lines left out (`n` below 0)."""

    text: str
    plain: bool = False
    n: int = 0


class Entered(NamedTuple):
    state: str
    at: int
    since: int  # the attempt under way
    works: bool
    attempt: int = 1


class Story:
    """What has happened so far, as far as a view tells of it."""

    def __init__(self) -> None:
        self.done: deque[Done] = deque(maxlen=DONE_SHOWN)
        self.count = 0
        self.kept: list[Kept] = []
        self._entered: dict[str, Entered] = {}

    def hear(self, kind: str, scope: str, state: str | None, attempt: int | None, data: Json, at: int) -> str | None:
        """Takes in a row of the history; the line a driver says for it, if it says one."""
        path = path_of(scope, state)
        line = moved(kind, path, attempt, data)
        entered = self._entered.get(scope)
        match kind:
            case "entered" if state is not None:
                self._entered[scope] = Entered(state, at, at, False)
            case "waiting" if entered is not None:
                self._entered[scope] = entered._replace(works=True)
            case "again" | "resumed" if entered is not None:
                self._entered[scope] = entered._replace(since=at, attempt=attempt or entered.attempt)
            case "retry_at" if entered is not None:
                self._entered[scope] = entered._replace(since=data["due"], attempt=attempt or entered.attempt)
            case "left":
                self._left(scope, path or "", data, at)
            case "caught" | "failed" if kind == "caught" or (entered is not None and entered.state == state):
                self._ended(scope, path or "", at, plain(data["error"]["name"]), data.get("next", ""))
        if line is not None and kind not in ("left", "waiting"):
            self.keep(line)
        return line

    def _left(self, scope: str, path: str, data: Json, at: int) -> None:
        entered = self._entered.get(scope)
        if "effect" not in data and not (entered is not None and entered.works):
            self._entered.pop(scope, None)
            return
        self._ended(scope, path, at)
        self.count += 1
        if data.get("background"):
            self.keep(f"{path}: left to be delivered", plain=True)
            return
        took, attempt = self.done[-1].took, self.done[-1].attempt
        more = [f"attempt {attempt}"] * (attempt > 1) + ([span(took)] if took is not None else [])
        self.keep(f"{path}: done" + (f" ({', '.join(more)})" if more else ""), plain=True)

    def _ended(self, scope: str, path: str, at: int, error: str = "", to: str = "") -> None:
        entered = self._entered.pop(scope, None)
        took, attempt = (None, 1) if entered is None else (at - entered.at, entered.attempt)
        self.done.append(Done(path, took, error, to, attempt))

    def since(self, p: Position) -> int:
        """When what is under way at a position began."""
        entered = self._entered.get(p.scope)
        return max(p.entered_at, entered.since) if entered is not None and entered.state == p.state else p.entered_at

    def keep(self, text: str, *, plain: bool = False) -> None:
        """A line that belongs to what is left on the screen at the end."""
        self.kept.append(Kept(text, plain, 1 if plain else 0))
        if len(self.kept) > KEPT:
            self.kept = folded(self.kept, KEPT // 2)

    def final(self) -> list[str]:
        """What the screen keeps of the run: the moves that mattered, the last ones whole."""
        out = []
        for k in folded(self.kept, FINAL):
            if k.text:
                out.append(k.text)
            elif k.n > 0:
                out.append(f"({k.n} {'state' if k.n == 1 else 'states'} done)")
            else:
                out.append(f"({-k.n} more {'line' if k.n == -1 else 'lines'}: `durun history` has all)")
        return out


def folded(kept: list[Kept], most: int) -> list[Kept]:
    """At most so many lines: what went well is counted first, oldest first; then what is oldest is left out."""
    if len(kept) <= most:
        return kept
    out: list[Kept] = []
    spare = len(kept) - most
    for k in kept:
        if spare > 0 and k.plain and out and not out[-1].text and out[-1].n > 0:
            out[-1] = out[-1]._replace(n=out[-1].n + k.n)
            spare -= 1
        else:
            out.append(Kept("", True, k.n) if spare > 0 and k.plain else k)
    if len(out) > most:
        dropped = out[: len(out) - most + 1]
        lines = sum(1 if k.text else 0 if k.n > 0 else -k.n for k in dropped)
        done = sum(k.n for k in dropped if k.plain)
        left_out = [Kept("", False, -lines)] if lines else [Kept("", True, done)]
        out = left_out + out[len(out) - most + 1 :]
    return out


# --- where it stands ---


class View(NamedTuple):
    """All that a frame shows. Times are UTC ms; `attempts` and `tail` are asked only of positions that are shown."""

    id: str
    plan: str
    status: str
    reason: str | None
    started: int
    now: int
    positions: Sequence[Position]
    story: Story
    attempts: Callable[[Position], int] = lambda _: 1
    tail: Callable[[Position], str] = lambda _: ""
    hint: str = ""
    unseen: Mapping[str, int] = {}  # phase -> how many positions there are beside those given


class Row(NamedTuple):
    """A row of the tree: a position, or how many more there are of each kind."""

    depth: int
    at: Position | None
    more: Mapping[str, int] = {}
    name: str = ""  # its path below the position it hangs under


def kind_of(phase: str) -> str:
    """What a phase means for a person: moving, asks, waiting, failed or ended."""
    if phase in MOVING:
        return "moving"
    if phase in ASKS:
        return "asks"
    if phase in OVER:
        return "failed" if phase == Phase.FAILED else "ended"
    return "waiting"


ORDER = {"moving": 0, "asks": 1, "waiting": 2, "failed": 3, "ended": 4}


def tree(positions: Iterable[Position], room: int, unseen: Mapping[str, int] | None = None) -> list[Row]:
    """The positions as rows by scope, at most `room` of them: under each the ones that move first, then a count."""
    everything = list(positions)
    stands = {path_of(p.scope, p.state): p.scope for p in everything}
    children: dict[str | None, list[Position]] = {None: []}
    for p in everything:
        children.setdefault(_above(p.scope, stands) if p.scope else None, []).append(p)
    rows: list[Row] = []
    _grow(rows, children, _shares(children, room), None, "", unseen or {})
    if len(rows) > room:
        cut = rows[room - 1 :]
        more = Counter(kind_of(r.at.phase) for r in cut if r.at is not None)
        for r in cut:
            more.update(r.more)
        rows = [*rows[: room - 1], Row(0, None, more)]
    return rows


def _shares(children: Children, room: int) -> dict[str | None, list[Position]]:
    """Which positions are shown under each: level by level, half of what room is left, and those that need little first."""
    shown: dict[str | None, list[Position]] = {}
    level: list[str | None] = [None]
    while level:
        deeper = any(p.scope in children for above in level for p in children[above] if p.scope != above)
        left = max(len(level), room // 2) if deeper and level != [None] else room
        for nth, above in enumerate(sorted(level, key=lambda scope: len(children[scope]))):
            here, share = children[above], left // (len(level) - nth)
            shown[above] = here if len(here) <= share and (above is None or _all_open(here)) else _first(here, max(0, share - 1))
            used = len(shown[above]) + (len(here) > len(shown[above]))
            left, room = left - used, room - used
        level = [p.scope for above in level for p in shown[above] if p.scope in children and p.scope not in shown]
    return shown


def _all_open(here: Sequence[Position]) -> bool:
    return not any(p.phase in OVER for p in here)


def _first(here: Sequence[Position], n: int) -> list[Position]:
    """So many that have not ended: those that move, those that wait for a person, the others; in the order they stand in."""
    order = sorted(range(len(here)), key=lambda i: (ORDER[kind_of(here[i].phase)], i))[:n]
    return [here[i] for i in sorted(order) if here[i].phase not in OVER]


def _above(scope: str, stands: Mapping[str | None, str]) -> str:
    """The scope of the position that a scope hangs under: the longest path it begins with. Labels may hold dots."""
    for at in range(len(scope) - 1, 0, -1):
        if scope[at] in ".[/~" and scope[:at] in stands:
            return stands[scope[:at]]
    return ""


def _grow(
    rows: list[Row], children: Children, shown: Children, scope: str | None, above: str, unseen: Mapping[str, int], depth: int = 0
) -> None:  # fmt: skip
    here = shown.get(scope, [])
    for p in here:
        path = str(path_of(p.scope, p.state))
        rows.append(Row(depth, p, name=path.removeprefix(above).lstrip(".")))
        if p.scope != scope and p.scope in children:
            _grow(rows, children, shown, p.scope, path, {}, depth + 1)
    drawn = {p.scope for p in here}
    more = Counter(kind_of(q.phase) for p in children[scope] if p.scope not in drawn for q in _with_all_below(children, p))
    for phase, n in unseen.items():
        more[kind_of(phase)] += n
    if more.total() > 0:
        rows.append(Row(depth, None, +more))


def _with_all_below(children: Children, p: Position) -> Iterator[Position]:
    yield p
    for q in children.get(p.scope, []) if p.scope else []:
        yield from _with_all_below(children, q)


# --- lines ---


def lines(v: View, width: int, height: int, marks: Mapping[str, str] = PRETTY) -> list[Line]:
    """The lines of a frame, each at most `width` cells wide, at most `height` of them."""
    height = max(1, min(height, TALL))
    head, foot = _head(v), [[("  " + v.hint, "dim")]] if v.hint and height >= 6 else []
    room = height - 1 - len(foot)
    rows = [r for r in tree(v.positions, max(1, room - 2), v.unseen) if r.at is None or r.depth or r.at.phase not in OVER]
    several = sum(r.at is not None for r in rows) > 1
    spare = max(0, room - len(rows) - (0 if several else 1))
    done = list(v.story.done)[-spare:] if spare else []
    names = [d.path for d in done] + ["  " * r.depth + r.name for r in rows if r.at is not None]
    column = min(max((cell_len(plain(n)) for n in names), default=0), max(8, width // 2 - 8))
    out = [head, *(_done(d, column, marks) for d in done)]
    for r in rows:
        out += [_more(r, marks)] if r.at is None else _stands(v, r, column, several, marks)
    return [cut(line, width, marks["cut"]) for line in [*out, *foot][:height]]


def _head(v: View) -> Line:
    status = v.status + (f" ({v.reason})" if v.reason else "")
    said = [(plain(v.id), "bold"), ("  " + plain(v.plan), ""), ("  " + status, STATUS_STYLES.get(v.status, ""))]
    tail = f"  {span(max(0, v.now - v.started), whole=True)}"
    return [*said, (tail + (f"  {v.story.count} done" if v.story.count else ""), "dim")]


def _done(d: Done, column: int, marks: Mapping[str, str]) -> Line:
    mark = "failed" if d.error else "done"
    took = "" if d.took is None else span(d.took)
    said: Line = [(f"  {marks[mark]} ", STYLES[mark]), (_column(plain(d.path), column, marks), ""), (f"  {took:>7}", "dim")]
    if d.error:
        said.append((f"  {d.error}" + (f", on to {d.to}" if d.to else ""), STYLES[mark]))
    elif d.attempt > 1:
        said.append((f"  attempt {d.attempt}", "dim"))
    return said


def _stands(v: View, r: Row, column: int, several: bool, marks: Mapping[str, str]) -> list[Line]:
    p = r.at
    assert p is not None
    kind = kind_of(p.phase)
    name = _column("  " * r.depth + plain(r.name), column, marks)
    row: Line = [(f"  {marks.get(kind, ' ')} ", STYLES.get(kind, "")), (name, STYLES.get(kind, ""))]
    time, said = what(p, v.now, v.story.since(p), v.attempts(p), frozen=v.status == "paused")
    row.append((f"  {time:>7}", ""))
    if said:
        row.append((f"  {said}", STYLES.get(kind, "") if kind != "moving" else ""))
    tail = harmless(v.tail(p) if kind == "moving" else last_line(p.cause.get("stderr", "")) if isinstance(p.cause, dict) else "")
    if tail and several:
        row.append((f"  {tail}", "dim"))
    return [row, [(f"      {tail}", "dim")]] if tail and not several else [row]


def what(p: Position, now: int, since: int, attempt: int, *, frozen: bool = False) -> tuple[str, str]:
    """(time, words) of a position: elapsed where something is under way, what is left where something is awaited. `frozen`: its
    run is paused, and what is left stays so."""
    elapsed = span(max(0, now - since), whole=True)
    left = "" if p.due is None else "in " + span(_left(p, now), whole=True, up=True)
    if p.due is not None and frozen and p.length is not None:
        left = span(p.length, whole=True, up=True) + " left"
    nth = f"attempt {attempt}" if attempt > 1 else ""
    if p.round:
        nth = f"round {p.round}" + (f", held {p.streak} in a row" if p.streak else "")
    cause = plain(p.cause["name"]) if isinstance(p.cause, dict) else plain(p.cause) if p.cause else ""
    match p.phase:
        case Phase.ACTING:
            return elapsed, nth
        case Phase.DELAYED if p.length is None:
            return "", "about to begin" + (f", {nth}" if nth else "")
        case Phase.DELAYED:
            return left, ", ".join(w for w in (cause, f"then {nth}" if nth else "") if w)
        case Phase.WAITING:
            return left, "a timer"
        case Phase.QUEUED:
            word, name = next(iter(p.wants.items()))
            return "", f"a place of the limit {name}" if word == "limit" else f"another run of the group {plain(name)}"
        case Phase.PROBING:
            return elapsed, "in doubt: its probe is asked"
        case Phase.LOST:
            return "", "in doubt"
        case Phase.DOUBT:
            return "", "in doubt: a person must say whether it happened"
        case Phase.HELD:
            return "", f"cannot begin: {cause}"
        case Phase.INSIDE:
            lost = f", {p.lost} failed" if p.lost else ""
            return elapsed, f"{p.won} of {p.total} done{lost}" + (", stopping the rest" if p.closing else "")
        case Phase.READY:
            return "", ""
    return elapsed, ""


def _left(p: Position, now: int) -> int:
    """What is left until a position is due; a clock set back never lengthens it."""
    assert p.due is not None
    return max(0, p.due - now if p.length is None else min(p.due - now, p.length))


def _more(r: Row, marks: Mapping[str, str]) -> Line:
    words = {"moving": "moving", "asks": "waiting for a person", "waiting": "waiting", "failed": "failed", "ended": "ended"}
    counts = ", ".join(f"{r.more[k]} {words[k]}" for k in ORDER if r.more.get(k))
    return [("    " + "  " * r.depth, ""), (f"{marks['more']} {sum(r.more.values())} more: {counts}", "dim")]


# --- words and widths ---


def span(ms: int, *, whole: bool = False, up: bool = False) -> str:
    """A length for people: 0.4s, 12s, 1m04s, 2h05m, 3d04h. `whole`: no tenths; `up`: what is begun counts."""
    if ms < 10_000 and not whole:
        return f"{ms / 1000:.1f}s"
    s = -(-ms // 1000) if up else ms // 1000
    for size, unit, below, part in ((86_400, "d", "h", 3600), (3600, "h", "m", 60), (60, "m", "s", 1)):
        if s >= size:
            return f"{s // size}{unit}{s % size // part:02d}{below}"
    return f"{s}s"


def harmless(text: str) -> str:
    """A line of a command's output as it may be shown: colours and the like left out, everything else made visible."""
    return plain(ESCAPES.sub("", text).replace("\t", " ").strip())


def last_line(text: str) -> str:
    """The last line of an output that says something; a progress bar writes many with returns between."""
    for line in reversed(re.split(r"[\r\n]+", text)):
        if harmless(line):
            return line
    return ""


def _column(text: str, width: int, marks: Mapping[str, str]) -> str:
    return set_cell_size(text if cell_len(text) <= width else _short(text, width, marks["cut"]), width)


def _short(text: str, width: int, mark: str) -> str:
    """A path too long: its end says more than its beginning."""
    while text and cell_len(text) > width - cell_len(mark):
        text = text[1:]
    return mark + text


def cut(line: Line, width: int, mark: str) -> Line:
    """The line, cut to so many cells with a mark where something is missing; blanks at its end go."""
    total = sum(cell_len(text) for text, _ in line)
    out: Line = []
    room = width if total <= width else width - cell_len(mark)
    for text, style in line:
        if room <= 0:
            break
        fits = text if cell_len(text) <= room else set_cell_size(text, room)
        out.append((fits, style))
        room -= cell_len(fits)
    if total > width:
        out.append((mark, "dim"))
    while out and not out[-1][0].strip():
        out.pop()
    return [*out[:-1], (out[-1][0].rstrip(), out[-1][1])] if out else out

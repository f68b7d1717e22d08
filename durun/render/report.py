"""A run as a report for people: what it was, what happened and when, what is certain and what is not, and who decided what.

Rules:
- one list of sections is made of a run, and Markdown and HTML only spell it; the document for programs has the same in fields
- nothing in it depends on when it is made: the same run gives the same report
- whatever comes from outside is shown with its control characters made visible, and means nothing to Markdown or HTML
- a history of many rows, and many effects, are shown by their beginning and their end, and it is said how much is left out; the
  document has all of them
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from durun.plan.units import show_duration
from durun.render import document as doc
from durun.render.text import UNDO, can_do, moved, plain
from durun.values import NamedTuple

Json = Any
Row = tuple[str, ...]

MOST = 1000  # rows of the history at its beginning, and at its end
LONG = 300  # characters of a value in a table
DECISIONS = (
    "answered", "signal", "resolved", "cancel_asked", "paused", "resumed", "compensating", "drift_accepted", "migrated", "rewound",
    "refused",
)  # fmt: skip
CERTAIN = {"done": "done", "not_done": "not done", "withdrawn": "never begun"}
UNCERTAIN = {
    "in_doubt": "in doubt: begun, and how it ended is not known",
    "not_certain": "not certain: it ended with an error, and may have happened all the same",
    "begin": "under way, or its end is not seen yet",
    "waiting": "not begun yet",
}


class Facts(NamedTuple):
    """Short words, each with its value."""

    of: list[tuple[str, str]]


class Table(NamedTuple):
    head: Row
    rows: Sequence[Row]


class Code(NamedTuple):
    """A value as JSON, or text as it was printed."""

    text: str
    language: str = ""


class Words(NamedTuple):
    text: str


class Section(NamedTuple):
    title: str
    parts: list[Facts | Table | Code | Words]


class Told(NamedTuple):
    """What a report has beside the run itself. What may be long is asked for: it is never whole in memory."""

    by: str | None
    host: str | None
    drift: list[str]
    messages: list[Json]
    events: int  # rows of the history
    history: Callable[..., Iterator[Json]]  # after a number, of some kinds
    counted: dict[str, int]  # effects by their status
    effects: Callable[..., Iterator[Json]]  # of some statuses
    last: Callable[[int], list[Json]]  # so many effects


class Shown(NamedTuple):
    """The same as people see it: of long lists the beginning and the end, and how many rows are left out between them."""

    by: str | None
    host: str | None
    messages: list[Json]
    history: list[Json]
    history_left: int
    decisions: list[Json]
    drifted: list[Json]
    counted: dict[str, int]
    effects: list[Json]
    effects_left: int
    uncertain: list[Json]


def document(run: dict[str, Json], more: Told) -> dict[str, Json]:
    """`report --json`: what `show --json` has, with all of the history, all effects and messages, and who decided what."""
    return {
        "run": run, "started_by": more.by, "host": more.host, "history": more.history(), "effects": more.effects(),
        "certain": (_named(e) for e in more.effects(tuple(CERTAIN))),
        "not_certain": (_named(e) for e in more.effects(tuple(UNCERTAIN))),
        "decisions": more.history(0, DECISIONS), "messages": more.messages, "drift": more.drift,
    }  # fmt: skip


def _named(e: dict[str, Json]) -> dict[str, Json]:
    return {name: e[name] for name in ("no", "path", "visit", "kind", "status", "key")}


def for_people(more: Told) -> Shown:
    """What of it people see."""
    events, left = list(islice(more.history(), MOST)), max(0, more.events - 2 * MOST)
    events += more.history(max(MOST, more.events - MOST))
    effects, count = list(islice(more.effects(), 2 * MOST)), sum(more.counted.values())
    if count > 2 * MOST:
        effects = effects[:MOST] + more.last(MOST)
    return Shown(
        more.by, more.host, more.messages, events, left, list(more.history(0, DECISIONS)),
        list(more.history(0, ("drifted", "drift_accepted"))), more.counted, effects, max(0, count - 2 * MOST),
        list(islice(more.effects(tuple(UNCERTAIN)), MOST)),
    )  # fmt: skip


def sections(run: dict[str, Json], more: Shown) -> list[Section]:
    """The report, part by part."""
    found = [_summary(run, more), _data(run), _error(run), _certainty(more), _decisions(more.decisions)]
    found += [_timeline(more), _effects(more), _undos(run), _messages(more.messages), _pins(run, more)]
    return [section for section in found if section is not None]


def _summary(run: dict[str, Json], more: Shown) -> Section:
    status = run["status"] + (f" ({run['reason']})" if run["reason"] else "")
    facts = [("status", status), ("plan", f"{run['plan']} {run['version']}"), ("plan digest", run["digest"])]
    if run["state"]:
        facts.append(("state", f"{run['state']} (visit {run['visit']}, attempt {run['attempt'] or 1})"))
    facts.append(("started", f"{run['created_at']}" + (f" by {more.by}" if more.by else "")))
    facts.append(("ended" if run["ended_at"] else "last move", run["ended_at"] or run["updated_at"]))
    facts.append(("where", f"{run['pins']['directory']}" + (f" on {more.host}" if more.host else "")))
    parts: list[Any] = [Facts(facts)]
    for w in run["waiting_for"]:
        left = f", {show_duration(round(w['left'] * 1000))} left" if w["left"] is not None else ""
        until = f", until {w['until']}" if w["until"] else left
        at = f"{w['path']}: " if w["path"] else ""
        parts += [Words(f"It waits: {at}{w['message']}{until}."), Code(w["command"].replace(" | ", "\n"), "sh")]
    if run["status"] not in ("waiting", "blocked") and (ways := can_do(run)):
        parts += [Words("What can be done:"), Code("\n".join(ways), "sh")]
    return Section("Summary", parts)


def _data(run: dict[str, Json]) -> Section:
    parts: list[Any] = [Words("Input:"), _json(run["input"])]
    parts += [Words("Vars, as they stand:"), _json(run["vars"])] if run["vars"] else []
    parts += [Words("Output:"), _json(run["output"])] if run["output"] is not None else []
    return Section("Data", parts)


def _error(run: dict[str, Json]) -> Section | None:
    error = run["error"]
    if not error or run["status"] == "succeeded":
        return None
    known = [
        (word, str(error[word])) for word in ("name", "message", "state", "visit", "attempt", "exit") if error.get(word) is not None
    ]
    parts: list[Any] = [Facts(known)]
    if error.get("stderr"):
        parts += [Words("The end of what it wrote to stderr:"), Code(error["stderr"].rstrip("\n"))]
    if error.get("output") is not None:
        parts += [Words("What it gave:"), _json(error["output"])]
    return Section("Error", parts)


def _certainty(more: Shown) -> Section:
    """What is known to have happened, and what is not."""
    if not more.effects:
        return Section("What is certain, and what is not", [Words("Nothing was begun towards the outside.")])
    sure = ", ".join(f"{more.counted[word]} {said}" for word, said in CERTAIN.items() if word in more.counted) or "nothing"
    parts: list[Any] = [Words(f"Certain: {sure}.")]
    if more.uncertain:
        rows = [(_where(e), UNCERTAIN[e["status"]], _name(e["error"]), e["key"]) for e in more.uncertain]
        parts += [Words("Not certain:"), Table(("what", "what is known", "error", "key"), rows)]
    else:
        parts.append(Words("Of everything that was begun it is known how it ended."))
    return Section("What is certain, and what is not", parts)


def _decisions(history: list[Json]) -> Section | None:
    """What people and programs said: answers, signals, and what else was asked of the run."""
    rows = []
    for e in history:
        if not (e["kind"] == "resumed" and set(e) == {"no", "at", "kind", "path", "visit", "attempt"}):
            rows.append((e["at"], str(e.get("by", "")), _decided(e), str(e.get("note", ""))))
    return Section("Who decided what", [Table(("at", "by", "what", "note"), rows)]) if rows else None


def _decided(e: Json) -> str:
    """What somebody said, in a few words."""
    path = f"{e['path']}: " if e["path"] else ""
    match e["kind"]:
        case "answered":
            return f"{path}{e['answer']}" + (f", with {_cut(_text(e['data']))}" if e.get("data") is not None else "")
        case "signal":
            return f"the signal {e['signal']}" + (f", with the error {e['error']}" if e.get("error") else "")
        case "resolved":
            return f"{path}{e['how']}"
        case "cancel_asked":
            return "cancel"
        case "refused":
            return f"{e['asked']}, which was refused: {e['why']}"
        case "migrated":
            return f"to another plan, from version {e.get('before')} to {e.get('version')}"
        case "rewound":
            return f"back to {e['to']}"
        case "drift_accepted":
            return f"goes on with {', '.join(one['tool'] for one in e['tools'])} as now"
    return str(e["kind"]) + (f" ({e['reason']})" if e.get("reason") else "") + (f" at {e['to']}" if e.get("to") else "")


def _timeline(more: Shown) -> Section:
    rows = [(str(e["no"]), e["at"], _where(e) if e["path"] else "", *_happened(e)) for e in more.history]
    if more.history_left:
        rows.insert(MOST, ("", "", "", "…", f"{more.history_left} rows are left out"))
    return Section("What happened", [Table(("no", "at", "where", "what", "more"), rows)])


def _happened(e: Json) -> tuple[str, str]:
    """(what, more) of a row of the history."""
    rest = {
        k: v for k, v in e.items() if k not in ("no", "at", "kind", "path", "visit", "attempt", "out", "err", "digest", "effect")
    }
    said = "" if "due" in rest else moved(e["kind"], e["path"], e["attempt"], rest) or ""
    if said and e["path"] and said.startswith(f"{plain(e['path'])}: "):
        said = said[len(plain(e["path"])) + 2 :]
    again = f", attempt {e['attempt']}" if (e["attempt"] or 1) > 1 else ""
    rest = {**({"how": rest["how"]} if "how" in rest else {}), **rest}  # what matters first
    return e["kind"].replace("_", " ") + again, said or _cut(", ".join(f"{name} {_said(value)}" for name, value in rest.items()))


def _said(value: Json) -> str:
    """A value of a row; of an error what it is called."""
    return _name(value) if isinstance(value, dict) and {"name", "message"} <= set(value) else _text(value)


def _effects(more: Shown) -> Section | None:
    rows = []
    for e in more.effects:
        status = {**CERTAIN, "in_doubt": "in doubt", "not_certain": "not certain", "begin": "under way", "waiting": "waits"}[
            e["status"]
        ]
        exit = "" if e["exit"] is None else str(e["exit"])
        began, ended = str(e["intended_at"] or ""), str(e["ended_at"] or "")
        rows.append((_where(e), e["kind"], status, str(e["attempt"]), exit, _name(e["error"]), began, ended, e["key"]))
    if more.effects_left:
        rows.insert(MOST, ("…", "", f"{more.effects_left} are left out", "", "", "", "", "", ""))
    head = ("what", "kind", "status", "attempt", "exit", "error", "intended", "ended", "key")
    return Section("Effects", [Table(head, rows)]) if rows else None


def _undos(run: dict[str, Json]) -> Section | None:
    rows = [(_where(u), UNDO[u["status"]], _name(u["error"]), u["key"]) for u in run["undo"]]
    return Section("Undos, the youngest first", [Table(("of", "status", "error", "key"), rows)]) if rows else None


def _messages(messages: list[Json]) -> Section | None:
    head = ("message", "of", "status", "attempt", "error", "ended", "note", "key")
    rows = [
        (m["message"], m["path"], m["status"], str(m["attempt"]), _name(m["error"]), str(m["ended_at"] or ""), m["note"], m["key"])
        for m in messages
    ]
    return Section("What was left to be delivered", [Table(head, rows)]) if rows else None


def _pins(run: dict[str, Json], more: Shown) -> Section:
    pins = run["pins"]
    facts = [("plan from", pins["file"]), ("durun", pins["durun"])]
    facts += [(f"tool {name}", str(said)) for name, said in pins["tools"].items()]
    facts += [(f"variable {name}", value) for name, value in pins["env"].items()]
    parts: list[Any] = [Facts(facts)]
    if pins["files"]:
        parts.append(Table(("file", "SHA-256"), [(name, str(of)) for name, of in sorted(pins["files"].items())]))
    drifted = [said for e in more.drifted for said in [_drift(e)] if said]
    if drifted:
        parts += [Words("Drift:"), Table(("at", "what"), drifted)]
    return Section("What the run took with it", parts)


def _drift(e: Json) -> tuple[str, str]:
    said = "; ".join(doc.drifts(e["tools"]))
    return e["at"], f"{said}" + (f"; accepted by {e.get('by', '')}" if e["kind"] == "drift_accepted" else "")


# --- words ---


def _where(e: Json) -> str:
    return f"{e['path']}" + (f" #{e['visit']}" if (e["visit"] or 1) > 1 else "")


def _name(error: Json) -> str:
    if not error:
        return ""
    return _cut(f"{error.get('name', '')}" + (f": {error['message']}" if error.get("message") else ""))


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _cut(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 1] + "…"


def _json(value: Json) -> Code:
    return Code(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True), "json")


def _lines(text: str) -> str:
    """Text of several lines with everything else that cannot be printed made visible."""
    return "\n".join(plain(line) for line in text.split("\n"))


# --- Markdown ---

MARKS = re.compile(r"[\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown(title: str, found: list[Section]) -> str:
    """The report in Markdown, with tables as GitHub has them."""
    out = [f"# {_for_markdown(title)}"]
    for section in found:
        out += ["", f"## {section.title}"]
        for part in section.parts:
            out += ["", *_in_markdown(part)]
    return "\n".join(out)


def _in_markdown(part: Facts | Table | Code | Words) -> Iterator[str]:
    match part:
        case Facts(of):
            yield from (f"- {_for_markdown(word)}: {_for_markdown(value)}" for word, value in of)
        case Table(head, rows):
            yield f"| {' | '.join(head)} |"
            yield f"| {' | '.join('---' for _ in head)} |"
            yield from (f"| {' | '.join(map(_for_markdown, row))} |" for row in rows)
        case Code(text, language):
            shown = _lines(text)
            longest = max((len(run) for run in re.findall("`+", shown)), default=0)
            fence = "`" * max(3, longest + 1)
            yield from (f"{fence}{language}", shown, fence)
        case Words(text):
            yield _for_markdown(text)


def _for_markdown(text: str) -> str:
    return MARKS.sub(lambda found: f"\\{found[0]}", plain(text))


# --- HTML ---

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "table{border-collapse:collapse;margin:.5rem 0}td,th{border:1px solid #ccc;padding:.2rem .5rem;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}pre{background:#f5f5f5;padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}dt{font-weight:600}"
)


def html(title: str, found: list[Section]) -> str:
    """The report as one page that needs nothing else: no script, and nothing is fetched."""
    out = ["<!DOCTYPE html>", '<html lang="en">', '<meta charset="utf-8">', f"<title>{_for_html(title)}</title>"]
    out += [f"<style>{STYLE}</style>", f"<h1>{_for_html(title)}</h1>"]
    for section in found:
        out.append(f"<h2>{_for_html(section.title)}</h2>")
        for part in section.parts:
            out += _in_html(part)
    return "\n".join([*out, "</html>"])


def _in_html(part: Facts | Table | Code | Words) -> Iterator[str]:
    match part:
        case Facts(of):
            yield "<dl>" + "".join(f"<dt>{_for_html(word)}</dt><dd>{_for_html(value)}</dd>" for word, value in of) + "</dl>"
        case Table(head, rows):
            yield "<table><tr>" + "".join(f"<th>{_for_html(cell)}</th>" for cell in head) + "</tr>"
            yield from ("<tr>" + "".join(f"<td>{_for_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            yield "</table>"
        case Code(text, _):
            yield f"<pre>{_escaped(_lines(text))}</pre>"
        case Words(text):
            yield f"<p>{_for_html(text)}</p>"


def _for_html(text: str) -> str:
    return _escaped(plain(text))


def _escaped(text: str) -> str:
    import html

    return html.escape(text)

"""Text for people: lists, one run, its history, and the lines a driver says while it moves.

Whatever comes from outside is shown with its control characters made visible: no name or message can move a cursor.
"""

from __future__ import annotations

from durun.plan.units import moment, show_duration, show_moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Json = Any

MANY = 20  # of what a run waits for, named one by one
WAITS = {"approval": 1, "signal": 1, "timer": 2, "delay": 2, "limit": 2, "group": 2}  # what is named last, where there are too many
HEADS = ("ID", "PLAN", "STATUS", "STATE", "UPDATED")


def plain(text: Json) -> str:
    """Text with control characters made visible."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def ago(ms: int, now: int) -> str:
    return show_duration(max(0, now - ms) // 1000 * 1000) + " ago"


def coming(ms: int, now: int) -> str:
    return "due now" if ms <= now else "in " + show_duration(-(-(ms - now) // 1000) * 1000)


def table(lines: list[dict[str, Json]]) -> str:
    """`ls`: one line a run, columns as wide as they need."""
    rows = [HEADS] + [(_id(r), r["plan"], r["status"] + _reason(r), r["state"] or "", r["updated_at"]) for r in lines]
    return "\n".join(columns([[plain(c) for c in row] for row in rows]))


def _id(r: dict[str, Json]) -> str:
    """The id of a run in a list; that of a child is set below the run that called it."""
    return ("  " if r["parent"] else "") + str(r["id"])


def table_now(lines: list[dict[str, Json]], now: int, width: int) -> str:
    """`ls` for a person at a terminal: how long ago, what is due when, and no line wider than the terminal.

    What is cut loses its end, and an id that is cut is still one that can be typed.
    """
    rows = [list(HEADS)]
    for r in lines:
        due = r["due"] if r["status"] == "waiting" else None
        status = r["status"] + _reason(r) + (f", {coming(moment(due), now)}" if due else "")
        rows.append([plain(c) for c in (_id(r), r["plan"], status, r["state"] or "", ago(moment(r["updated_at"]), now))])
    over = sum(max(len(row[i]) for row in rows) + 2 for i in range(len(HEADS))) - 2 - width
    for i, least in ((1, 12), (3, 12), (0, 24), (1, 4), (3, 5), (0, 10)):
        widest = max(len(row[i]) for row in rows)
        keep = min(widest, max(least, widest - max(0, over)))
        over -= widest - keep
        rows = [[*row[:i], row[i][:keep], *row[i + 1 :]] for row in rows]
    return "\n".join(line[:width] for line in columns(rows))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def show(doc: dict[str, Json], now: int | None = None) -> str:
    """`show`: what happened, what is certain, what is not, what can be done. With `now`, for a person at a terminal."""
    out = [f"{doc['id']}  {doc['plan']} {plain(doc['version'])}", f"  status   {doc['status']}{_reason(doc)}"]
    if doc["parent"]:
        of = doc["parent"]
        out.append(f"  child of {of['run']}, called by {plain(of['path'])} (visit {of['visit']})")
    if doc["state"]:
        out.append(f"  state    {doc['state']} (visit {doc['visit']}, attempt {doc['attempt'] or 1})")
    if now is None:
        out.append(f"  started  {doc['created_at']}" + (f", ended {doc['ended_at']}" if doc["ended_at"] else ""))
    else:
        out += _times(doc, now)
    out += _pins(doc)
    if doc["error"] and doc["status"] != "succeeded":
        out += [f"  error    {plain(doc['error']['name'])}: {plain(doc['error'].get('message', ''))}"]
        out += [f"           {plain(line)}" for line in (doc["error"].get("stderr") or "").rstrip().split("\n")[-3:] if line]
    if doc["output"] is not None:
        from durun.plan.digest import canonical_text

        out.append(f"  output   {plain(canonical_text(doc['output']))[:200]}")
    for w in _named(doc):
        out.append(f"  waits    {_where(w, doc)}{plain(w['message'])}{_until(w, now)}")
        out += [f"           {line}" for line in _shown(w)]
        out.append(f"           {w['command']}")
    out += [f"           {more}" for more in _more(doc)]
    if doc["signals"]:
        out.append(f"  signals  {', '.join(plain(s['name']) for s in doc['signals'])} (not taken)")
    if doc["messages"]:
        out.append("  to be delivered")
        out += [f"    {plain(m['path'])} {m['status']}, attempt {m['attempt']}: {_way(m)}" for m in doc["messages"]]
    if doc["effects"]:
        out.append("  effects" + (f"  (the last 20 of {len(doc['effects'])})" if len(doc["effects"]) > 20 else ""))
        out += [_effect(e) for e in doc["effects"][-20:]] if now is None else _effects(doc["effects"][-20:], now)
    if doc["undo"]:
        out += _undos(doc["undo"])
    out += [f"  {'can do' if i == 0 else '      '}   {command}" for i, command in enumerate(can_do(doc))]
    return "\n".join(out)


def _pins(doc: dict[str, Json]) -> list[str]:
    """What the run took with it, and what of it is another on disk by now."""
    pins = doc["pins"]
    out = [
        f"  plan     {doc['digest'][:12]}, from {plain(pins['file'])}"
        if pins["file"] != "-"
        else f"  plan     {doc['digest'][:12]}"
    ]
    if pins["files"]:
        out.append(f"  files    {_first(list(pins['files']))}")
    if doc.get("not_pinned"):
        out.append(f"  on disk  {_first(doc['not_pinned'])}: not pinned, taken as it is when it is used")
    out += [f"  tool     {plain(name)}: {plain(said)}" for name, said in pins["tools"].items() if said is not None]
    if doc.get("changed"):
        out.append(f"           {plain(doc['changed'])} since: the run goes on with what it took with it")
    return out


def _first(names: list[str]) -> str:
    return ", ".join(map(plain, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _where(w: dict[str, Json], doc: dict[str, Json]) -> str:
    """Which branch or item it is that waits, where neither its message nor its command says so."""
    inside = w["path"] is not None and w["path"] != doc["state"]
    said = w["command"] if w["kind"] == "limit" else w["message"] + w["command"]  # it names the path of who holds the place
    return f"{plain(w['path'])}: " if inside and w["path"] not in said else ""


def _until(w: dict[str, Json], now: int | None = None) -> str:
    """Until when it waits, where its message does not say it; of a paused run what is left of that."""
    if w.get("left") is not None:
        return f", {show_duration(round(w['left'] * 1000))} left"
    if not w["until"] or w["until"] in w["message"]:
        return ""
    return f", until {w['until']}" if now is None else f", {coming(moment(w['until']), now)}"


def _times(doc: dict[str, Json], now: int) -> list[str]:
    out = [f"  started  {ago(moment(doc['created_at']), now)}, {doc['created_at']}"]
    if doc["ended_at"]:
        out.append(f"  ended    {ago(moment(doc['ended_at']), now)}, {doc['ended_at']}")
    return out


def _effects(effects: list[dict[str, Json]], now: int) -> list[str]:
    """The effects as columns; the key where a person must look for what became of it."""
    rows = []
    for e in effects:
        name = e["path"] + (f" #{e['visit']}" if e["visit"] > 1 else "") + (f" ({e['kind']})" if e["kind"] != "run" else "")
        began, ended = moment(e["intended_at"]), moment(e["ended_at"]) if e["ended_at"] else None
        took = show_duration(ended - began) if ended is not None else f"begun {ago(began, now)}" if e["status"] == "begin" else ""
        attempt = f"attempt {e['attempt']}" if e["attempt"] > 1 else ""
        rows.append([plain(name), _how(e), took, attempt])
    out = []
    for line, e in zip(columns(rows), effects, strict=True):
        out.append(f"    {line}")
        if e["status"] in ("in_doubt", "not_certain"):
            out.append(f"      key {plain(e['key'])}")
    return out


def _how(e: dict[str, Json]) -> str:
    said = "under way, or its end is not seen yet" if e["status"] == "begin" else str(e["status"]).replace("_", " ")
    return said + (f", {plain(e['error']['name'])}" if e["error"] else "")


def fitted(text: str, width: int) -> str:
    """`show` within a terminal: what is long goes on below its beginning; a command stays whole, so that it can be copied."""
    import textwrap

    out = []
    for line in text.split("\n"):
        if len(line) <= width or "durun " in line or width < 40:
            out.append(line)
        elif line.startswith(" " * 11):
            out.append(line[: width - 1] + "…")
        else:
            out += textwrap.wrap(line, width, subsequent_indent=" " * 11, drop_whitespace=True, break_on_hyphens=False)
    return "\n".join(out)


def _shown(w: dict[str, Json]) -> list[str]:
    """What belongs to a question, beside its message."""
    if w["kind"] != "approval":
        return []
    from durun.plan.digest import canonical_text

    out = [f"data     {plain(canonical_text(w['data']))}"] if w["data"] is not None else []
    out.append("answers  " + ", ".join(f"{o['name']}{' (a no)' if o['reject'] else ''}" for o in w["options"]))
    return [*out, f"digest   {w['digest']}"]


def inbox(items: list[dict[str, Json]]) -> str:
    """`inbox`: what waits for a person, each with its command."""
    out = []
    for w in items:
        out.append(f"{w['run']}  {w['plan']}  {w['path'] or ''}: {plain(w['message'])}{_until(w)}")
        out += [f"    {line}" for line in (*_shown(w), w["command"])]
    return "\n".join(out)


def question(wants: dict[str, Json], path: str) -> str:
    """What a person at the terminal is asked."""
    from durun.plan.digest import canonical_text

    out = [f"{path}: {plain(wants['message'])}"]
    if wants.get("data") is not None:
        out.append(f"  {plain(canonical_text(wants['data']))}")
    return "\n".join([*out, f"  {' / '.join(o['name'] for o in wants['options'])} (nothing: leave it waiting)"])


def _reason(doc: dict[str, Json]) -> str:
    return f" ({doc['reason']})" if doc["reason"] else ""


def _effect(e: dict[str, Json]) -> str:
    said = {"begin": "under way, or its end is not seen yet", "in_doubt": "in doubt", "not_certain": "not certain"}
    how = said.get(e["status"], e["status"].replace("_", " "))
    name = f", {plain(e['error']['name'])}" if e["error"] else ""
    what = " (probe)" if e["kind"] == "probe" else ""
    return f"    {e['path']} visit {e['visit']}{what}: {how}{name}, attempt {e['attempt']}, key {e['key']}"


UNDO = {
    "owed": "to be undone", "registered": "to be undone, if it happened", "undone": "undone", "not_needed": "nothing to undo",
    "failed": "could not be undone",
}  # fmt: skip


def _undos(undo: list[dict[str, Json]]) -> list[str]:
    """The log of undos: how many of each kind, and the last 20, those not settled first; a child is one, its parts below."""
    out = ["  undo     " + _counted(undo)]
    entries: list[list[dict[str, Json]]] = []
    for u in undo:
        if u["child"] is not None and entries and entries[-1][0]["child"] == u["child"]:
            entries[-1].append(u)
        else:
            entries.append([u])
    shown = 0
    for parts in sorted(entries, key=lambda parts: all(u["status"] in ("undone", "not_needed") for u in parts)):
        child = parts[0]["child"]
        if child is not None and shown < 20:
            out.append(f"    {plain(child['path'])} visit {child['visit']}, child {plain(child['run'])}: {_counted(parts)}")
        out += ["  " * (child is not None) + _undo(u) for u in parts[: 20 - shown]]
        shown = min(20, shown + len(parts))
    return out


def _counted(undo: list[dict[str, Json]]) -> str:
    count = [(said, sum(u["status"] == status for u in undo)) for status, said in UNDO.items()]
    return ", ".join(f"{n} {said}" for said, n in count if n)


def _undo(u: dict[str, Json]) -> str:
    error = f", {plain(u['error']['name'])}: {plain(u['error'].get('message', ''))}" if u["error"] else ""
    key = f", key {u['key']}" if u["status"] == "failed" else ""
    return f"    {plain(u['path'])} visit {u['visit']}: {UNDO[u['status']]}{error.removesuffix(': ')}{key}"


def can_do(doc: dict[str, Json]) -> list[str]:
    """The commands that go on from here."""
    id = doc["id"]
    if doc["parent"]:  # it goes with the run that called it
        return [f"durun show {doc['parent']['run']}"]
    may_undo = any(u["status"] in ("owed", "registered", "failed") for u in doc["undo"])
    undo = [f"durun compensate {id}"] if may_undo else []
    match doc["status"]:
        case "failed":
            stands = any(p["path"] == doc["state"] and p["phase"] == "failed" for p in doc["positions"])
            ways = [f"durun resume {id}"]
            if not stands:  # where its plan ended it there is nothing to take up
                ways = [f"durun resume {id} --from STATE", f"durun rewind {id} STATE"]
            wrote = any(e["kind"] == "run" and e["path"][: _first_mark(e["path"])] == doc["state"] for e in doc["effects"])
            logs = [f"durun logs {id} {doc['state']}"] if wrote else []
            return [*ways, *undo, *logs, f"durun history {id}"]
        case "succeeded":
            return [*_failed_items(doc), *undo]
        case "cancelled":
            return undo
        case "paused" if doc["reason"] == "all":
            return ["durun resume --all", f"durun cancel {id}", *undo]
        case "interrupted" | "paused" | "waiting" | "blocked":
            if doc["reason"] == "restored":
                return [f"durun resume {id} --after-restore", f"durun cancel {id}", *undo]
            resume = [f"durun resume {id}"] if doc["status"] in ("interrupted", "paused") else []
            if doc["undoing"]:  # what it undoes is not cut short
                return [*resume, *(undo if doc["reason"] == "undo_failed" else [])]
            return [*resume, f"durun cancel {id}", *undo]
    return []


def _failed_items(doc: dict[str, Json]) -> list[str]:
    """The commands that take up what a run succeeded without."""
    states = dict.fromkeys(p["path"][: _first_mark(p["path"])] for p in doc["positions"] if p["phase"] == "failed")
    return [f"durun resume {doc['id']} --failed-items" + (f" {state}" if len(states) > 1 else "") for state in states]


def _first_mark(path: str) -> int:
    """Where the state of the run itself ends in a path."""
    return min(at for mark in "./[~" if (at := (path + mark).find(mark)) >= 0)


def since_restored(restored: dict[str, Json]) -> str:
    """What is not known of a run that was in flight in a backup or a copy."""
    if restored["why"] == "copied":
        return f"this file is a copy of {plain(restored['from'])}, and what the run did there since it was made is not known here"
    at = restored.get("backup_at")
    since = f"after {show_moment(at)}, when the backup was made," if at is not None else "after the backup was made"
    return f"what it did {since} is not known here"


def event(e: dict[str, Json]) -> str:
    """A line of `history`."""
    rest = {k: v for k, v in e.items() if k not in ("no", "at", "kind", "path", "visit", "attempt")}
    where = f" {e['path']}#{e['visit']}" if e["path"] else ""
    attempt = f" attempt {e['attempt']}" if e["attempt"] else ""
    from durun.plan.digest import canonical_text

    more = " ".join(f"{k}={plain(v if isinstance(v, str) else canonical_text(v))}" for k, v in rest.items())
    return f"{e['no']:>5}  {e['at']}  {e['kind']:<13}{where}{attempt}{'  ' + more if more else ''}"


THOUGH_DONE = ("output_invalid", "output_too_large", "vars_invalid", "expression")  # the errors of an attempt that ended well


def moved(kind: str, state: str | None, attempt: int | None, data: dict[str, Json]) -> str | None:
    """The line a driver says for a row of history, or None where it says nothing. `state` is a path."""
    state = plain(state)
    match kind:
        case "left" if data.get("background"):
            return f"{state}: left to be delivered" + (f", on to {data['next']}" if data["next"] != "succeeded" else "")
        case "left":
            return f"{state}: done, on to {data['next']}" if data["next"] != "succeeded" else f"{state}: done"
        case "attempt_ended" if data["how"] != "done":
            return f"{state}: {plain(data.get('error', ''))} ({plain(data.get('message', ''))})"
        case "failed_inside" if data["error"].get("attempt") is None or data["error"]["name"] in THOUGH_DONE:
            return f"{state}: {plain(data['error']['name'])} ({plain(data['error'].get('message') or 'it ends so')})"
        case "retry_at":
            return f"{state}: attempt {attempt} at {show_moment(data['due'])}"
        case "again":
            return f"{state}: attempt {attempt}, with the same key"
        case "waiting":
            return f"{state}: waits until {show_moment(data['due'])}"
        case "queued" if "group" in data:
            return f"waits for another run of the group {plain(data['group'])}"
        case "queued":
            return f"{state}: waits for a place of the limit {data['limit']}"
        case "in_doubt":
            return f"{state}: in doubt, {plain(data['why'])}"
        case "probed":
            return f"{state}: its probe says {data['answer']}"
        case "caught":
            return f"{state}: {plain(data['error']['name'])} is caught, on to {data['next']}"
        case "time_over":
            return f"{state}: the time of the run is over"
        case "drifted":
            from durun.render.document import drifts

            return "; ".join(plain(one) for one in drifts(data["tools"]))
        case "drift_accepted":
            return f"{plain(data.get('by', ''))} goes on with {', '.join(one['tool'] for one in data['tools'])} as now"
        case "rewound":
            return f"back to {data['to']}"
        case "drift_over":
            return "the tools say again what they said before"
        case "cancel_asked":
            return "cancel is asked for"
        case "compensating":
            return "compensating: what was done is undone, the youngest first"
        case "undo_failed":
            return f"{state}: it could not be undone: {plain(data['error']['name'])} ({plain(data['error'].get('message', ''))})"
        case "asked":
            return f"{state}: asks: {plain(data.get('message', ''))}"
        case "answered":
            return f"{state}: {plain(data.get('by', ''))} says {data['answer']}"
        case "listening":
            return f"{state}: waits for the signal {data['signal']}"
        case "taken":
            return f"{state}: takes the signal {data['signal']}"
        case "told":
            return f"{plain(data.get('path') or 'the run')}: whoever is to be told of `{data['of']}` will be"
        case "not_told":
            return f"nobody is told of `{data['of']}`: {plain(data['why'])}"
        case "signals_left":
            return f"nobody took the signals {', '.join(s['name'] for s in data['signals'])}"
    return None


def _way(m: dict[str, Json]) -> str:
    return str(m["command"]) if m["command"] else f"behind {m['behind']}" if m["behind"] else "it is being sent"


def messages(found: list[dict[str, Json]]) -> str:
    """What is left to be delivered, as a table."""
    rows = [["MESSAGE", "STATE", "STATUS", "ATTEMPT", "DUE", "WHY"]]
    for m in found:
        why = f"behind {m['behind']}" if m["behind"] else plain(m["error"]["name"]) if m["error"] else ""
        rows.append([m["message"], plain(m["path"]), m["status"], str(m["attempt"]), m["due"] or "", why])
    return "\n".join(columns(rows))


def message(m: dict[str, Json]) -> str:
    """One message."""
    import json

    out = [f"{m['message']}  {plain(m['path'])}", f"  status   {m['status']}, attempt {m['attempt']}", f"  key      {m['key']}"]
    out += [f"  {word:8} {m[of]}" for word, of in (("due", "due"), ("left", "intended_at"), ("ended", "ended_at")) if m[of]]
    if m["error"]:
        out.append(f"  error    {plain(m['error']['name'])}: {plain(m['error'].get('message', ''))}")
        out += [f"  stderr   {plain(line)}" for line in (m["error"].get("stderr") or "").splitlines()[-STDERR:]]
    out += [f"  note     {plain(m['note'])}"] if m["note"] else []
    out.append("  request  " + json.dumps(m["request"], ensure_ascii=False, sort_keys=True))
    out += [f"  can do   {m['command']}"] if m["command"] else []
    return "\n".join(out)


STDERR = 5  # lines of what a message wrote before it failed
HOW = {
    "kept": "stands as it did", "anew": "is entered anew: a new visit, with a new key", "goes on": "is where it goes on",
}  # fmt: skip


def migrated(doc: dict[str, Json]) -> str:
    """What a migration comes to: states, vars, and where the run stands then."""
    word = "would move" if doc["dry_run"] else "has moved"
    out = [f"run {doc['run']} {word} from version {plain(doc['from']['version'])} to {plain(doc['to']['version'])}"]
    states = doc["states"]
    for kind in ("added", "removed", "changed"):
        if states[kind]:
            done = [f"{path} (done already)" if kind == "changed" and path in states["done"] else path for path in states[kind]]
            out.append(f"  {kind:<9}{', '.join(done)}")
    from durun.plan.digest import canonical_text

    if doc["vars"]["set"]:
        out.append("  vars     " + ", ".join(f"{name} = {plain(canonical_text(v))[:60]}" for name, v in doc["vars"]["set"].items()))
    if doc["vars"]["dropped"]:
        out.append(f"  dropped  {', '.join(doc['vars']['dropped'])}")
    out += [f"  {plain(p['path'])} {HOW[p['how']]}" for p in doc["positions"]]
    return "\n".join(out) + ("\nnothing was changed" if doc["dry_run"] else "")


def stands(doc: dict[str, Json], *, apart: bool = False) -> str:
    """Where a run stands now, and the command that goes on: the last line of a driver. `apart`: each command on its own line."""
    id, status = doc["id"], doc["status"]
    match status:
        case "succeeded":
            return f"run {id} succeeded"
        case "failed":
            e = doc["error"] or {}
            said = plain(e.get("message", ""))
            return (
                f"run {id} failed in state {e.get('state', doc['state'])}: {plain(e.get('name', ''))}{': ' + said if said else ''}"
            )
        case "cancelled" | "compensated":
            return f"run {id} is {status}"
        case "running" | "compensating":
            return f"run {id} is {status}: its driver goes on: `durun wait {id}`"
    between = "\n  " if apart else ": "
    wants = [f"{_where(w, doc)}{plain(w['message'])}{_until(w)}{between}{w['command']}" for w in _named(doc)]
    return f"run {id} is {status}{_reason(doc)}" + "".join(f"\n  {w}" for w in [*wants, *_more(doc)])


def _named(doc: dict[str, Json]) -> list[dict[str, Json]]:
    """What is named of all that a run waits for, as a map may have thousands: what blocks it, then questions, then time."""
    found: list[dict[str, Json]] = doc["waiting_for"]
    return found if len(found) <= MANY else sorted(found, key=lambda w: WAITS.get(w["kind"], 0))[:MANY]


def _more(doc: dict[str, Json]) -> list[str]:
    left = len(doc["waiting_for"]) - MANY
    return [f"and {left} more: durun show {plain(doc['id'])} --json"] if left > 0 else []

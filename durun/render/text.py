"""Text for people: lists, one run, its history, and the lines a driver says while it moves.

Whatever comes from outside is shown with its control characters made visible: no name or message can move a cursor.
"""

from __future__ import annotations

from durun.plan.units import show_duration, show_moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any


def plain(text: Json) -> str:
    """Text with control characters made visible."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def ago(ms: int, now: int) -> str:
    return show_duration(max(0, now - ms) // 1000 * 1000) + " ago"


def table(lines: list[dict[str, Json]]) -> str:
    """`ls`: one line a run, columns as wide as they need."""
    heads = ("ID", "PLAN", "STATUS", "STATE", "UPDATED")
    rows = [
        (r["id"], r["plan"], r["status"] + (f" ({r['reason']})" if r["reason"] else ""), r["state"] or "", r["updated_at"])
        for r in lines
    ]
    widths = [max(len(plain(row[i])) for row in [heads, *rows]) for i in range(len(heads))]
    return "\n".join("  ".join(plain(c).ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows])


def show(doc: dict[str, Json]) -> str:
    """`show`: what happened, what is certain, what is not, what can be done."""
    out = [f"{doc['id']}  {doc['plan']} {plain(doc['version'])}", f"  status   {doc['status']}{_reason(doc)}"]
    if doc["state"]:
        out.append(f"  state    {doc['state']} (visit {doc['visit']}, attempt {doc['attempt'] or 1})")
    out.append(f"  started  {doc['created_at']}" + (f", ended {doc['ended_at']}" if doc["ended_at"] else ""))
    if doc["error"] and doc["status"] != "succeeded":
        out += [f"  error    {plain(doc['error']['name'])}: {plain(doc['error'].get('message', ''))}"]
        out += [f"           {plain(line)}" for line in (doc["error"].get("stderr") or "").rstrip().split("\n")[-3:] if line]
    if doc["output"] is not None:
        from durun.plan.digest import canonical_text

        out.append(f"  output   {plain(canonical_text(doc['output']))[:200]}")
    for w in doc["waiting_for"]:
        out.append(f"  waits    {plain(w['message'])}" + (f", until {w['until']}" if w["until"] else ""))
        out.append(f"           {w['command']}")
    if doc["effects"]:
        out.append("  effects")
        out += [_effect(e) for e in doc["effects"][-20:]]
    out += [f"  can do   {command}" for command in can_do(doc)]
    return "\n".join(out)


def _reason(doc: dict[str, Json]) -> str:
    return f" ({doc['reason']})" if doc["reason"] else ""


def _effect(e: dict[str, Json]) -> str:
    said = {"begin": "under way, or its end is not seen yet", "in_doubt": "in doubt", "not_certain": "not certain"}
    how = said.get(e["status"], e["status"].replace("_", " "))
    name = f", {plain(e['error']['name'])}" if e["error"] else ""
    what = f" ({e['kind']})" if e["kind"] != "run" else ""
    return f"    {e['path']} visit {e['visit']}{what}: {how}{name}, attempt {e['attempt']}, key {e['key']}"


def can_do(doc: dict[str, Json]) -> list[str]:
    """The commands that go on from here."""
    id = doc["id"]
    match doc["status"]:
        case "failed":
            return [f"durun resume {id}", f"durun logs {id} {doc['state']}", f"durun history {id}"]
        case "interrupted" | "paused":
            return [f"durun resume {id}", f"durun cancel {id}"]
        case "waiting" | "blocked":
            return [f"durun cancel {id}"]
    return []


def event(e: dict[str, Json]) -> str:
    """A line of `history`."""
    rest = {k: v for k, v in e.items() if k not in ("no", "at", "kind", "path", "visit", "attempt")}
    where = f" {e['path']}#{e['visit']}" if e["path"] else ""
    attempt = f" attempt {e['attempt']}" if e["attempt"] else ""
    from durun.plan.digest import canonical_text

    more = " ".join(f"{k}={plain(v if isinstance(v, str) else canonical_text(v))}" for k, v in rest.items())
    return f"{e['no']:>5}  {e['at']}  {e['kind']:<13}{where}{attempt}{'  ' + more if more else ''}"


def moved(kind: str, state: str | None, attempt: int | None, data: dict[str, Json]) -> str | None:
    """The line a driver says for a row of history, or None where it says nothing."""
    match kind:
        case "left":
            return f"{state}: done, on to {data['next']}" if data["next"] != "succeeded" else f"{state}: done"
        case "attempt_ended" if data["how"] != "done":
            return f"{state}: {plain(data.get('error', ''))} ({plain(data.get('message', ''))})"
        case "retry_at":
            return f"{state}: attempt {attempt} at {show_moment(data['due'])}"
        case "again":
            return f"{state}: attempt {attempt}, with the same key"
        case "waiting":
            return f"{state}: waits until {show_moment(data['due'])}"
        case "in_doubt":
            return f"{state}: in doubt, {plain(data['why'])}"
        case "probed":
            return f"{state}: its probe says {data['answer']}"
        case "caught":
            return f"{state}: {plain(data['error']['name'])} is caught, on to {data['next']}"
        case "time_over":
            return f"{state}: the time of the run is over"
        case "cancel_asked":
            return "cancel is asked for"
    return None


def stands(doc: dict[str, Json]) -> str:
    """Where a run stands now, and the command that goes on: the last line of a driver."""
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
        case "cancelled":
            return f"run {id} is cancelled"
    wants = [f"{plain(w['message'])}{', until ' + w['until'] if w['until'] else ''}: {w['command']}" for w in doc["waiting_for"]]
    return f"run {id} is {status}{_reason(doc)}" + "".join(f"\n  {w}" for w in wants)

"""JSON documents: one function with explicit fields for each. Fields are added, never renamed."""

from __future__ import annotations

from durun.plan.units import show_moment
from durun.store.read import Summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Json = Any


def when(ms: int | None) -> str | None:
    return None if ms is None else show_moment(ms)


def path_of(scope: str, state: str | None) -> str | None:
    if not scope or state is None:
        return state
    return f"{scope}{state}" if scope.endswith(("/", "~")) else f"{scope}.{state}"


def line(s: Summary, undelivered: tuple[int, int] = (0, 0)) -> dict[str, Json]:
    """A run in `ls --json`. Nothing of one that is paused is due."""
    due = when(None if s.status == "paused" else s.due)
    return {
        "id": s.id, "plan": s.name, "version": s.version, "status": s.status, "reason": s.reason, "state": s.state,
        "visit": s.visit, "attempt": s.attempt, "due": due, "created_at": when(s.created_at),
        "updated_at": when(s.updated_at), "ended_at": when(s.ended_at), "undelivered": undelivered[0], "dead": undelivered[1],
        "parent": None,
    }  # fmt: skip


def run(s: Summary, d: dict[str, Json], now: int, *, alive: bool) -> dict[str, Json]:
    """A run in `show --json` and wherever `--json` speaks of one."""
    pins = d["pins"]
    return {
        "id": s.id, "plan": s.name, "version": s.version, "digest": d["plan"], "status": s.status, "reason": s.reason,
        "state": s.state, "visit": s.visit, "attempt": s.attempt, "created_at": when(s.created_at),
        "updated_at": when(s.updated_at), "ended_at": when(s.ended_at), "input": d["input"], "vars": d["vars"],
        "output": d["output"], "error": d["ended_by"] if d["ended_by"] is not None else d["error"],
        "waiting_for": waiting_for(s, d, now), "positions": [_position(p, s.status) for p in d["positions"]],
        "signals": [{**sent, "at": when(sent["at"])} for sent in d["signals"]],
        "effects": [effect(e) for e in d["effects"]], "undo": [_undo(u) for u in d["undo"]], "undoing": d["undoing"],
        "messages": [message(m) for m in d["messages"]],
        "pins": {
            "env": pins["env"], "directory": d["directory"], "plan": d["plan"], "file": d["file"], "durun": pins["durun"],
            "files": {f"{_folder_of(at)}{path}": of for at, tree in d["files"].items() for path, of in tree.items()},
            "tools": {name: word.get("said") for name, word in (d["tools"] or {}).items()},
        },
        "driver": {"place": s.driver, "alive": alive} if s.driver else None, "parent": None,
    }  # fmt: skip


def _folder_of(file: str) -> str:
    """The folder of a plan that is called, as the start of a path."""
    return file[: file.rfind("/") + 1]


def drifts(found: list[dict[str, Json]]) -> list[str]:
    """What tools said when the run took them with it and what they say now, side by side."""
    return [f"{one['tool']} said {_words(one['was'])}, and now {_words(one['now'])}" for one in found]


def _words(word: dict[str, Json]) -> str:
    if "failed" in word:
        return f"nothing ({word['failed']})"
    return f'"{word["said"]}"'


def waiting_for(s: Summary, d: dict[str, Json], now: int) -> list[dict[str, Json]]:
    """What a run waits for, each with what goes on. A question or a signal whose time is over is waited for no more."""
    if s.status == "stranded":
        return [_wanted(s.state, s.status, s.state, stranded(s.language, d["pins"]["durun"]), None, f"durun resume {s.id}")]
    if s.reason == "restored":
        from durun.render.text import since_restored

        said = since_restored(d["restored"])
        ways = f"durun resume {s.id} --after-restore | durun cancel {s.id}"
        return [_wanted(s.state, "restored", s.state, said, None, ways)]
    found = []
    done = {e["no"] for e in d["effects"] if e["status"] == "done"}
    for p in d["positions"]:
        path = path_of(p["scope"], p["state"])
        cause = p["data"].get("cause")
        match p["phase"]:
            case "waiting":
                found.append(_wanted(path, "timer", path, "a timer", p["due"], f"durun resume {s.id}", frozen(p, s.status)))
            case "delayed" if p["data"].get("length") is not None:
                said = f"the next attempt, after {cause['name']}" if isinstance(cause, dict) else "the next round"
                found.append(_wanted(path, "delay", path, said, p["due"], f"durun resume {s.id}", frozen(p, s.status)))
            case "asked" | "listening" if p["due"] is not None and p["due"] <= now and s.status != "paused":
                found.append(_over(s.id, path, p))
            case "queued":
                found.append(_queued(s.id, path, p["data"]["wants"], d.get("shared", {})))
            case "asked":
                found.append(_asked(s.id, path, p, frozen(p, s.status)))
            case "listening":
                name = p["data"]["wants"]["signal"]
                said, command = f"the signal {name}", f"durun signal {s.id} {name}"
                found.append(_wanted(path, "signal", name, said, p["due"], command, frozen(p, s.status)))
            case "doubt" if p["data"].get("onces"):
                found += [_once_in_doubt(s, path, name) for name in p["data"]["onces"]]
                found += [] if p["data"].get("failed") else [_doubt(s, path, False, done=False)]
            case "doubt":
                keys = (p["data"].get("owed") or {}).get("keys", ())
                found.append(_doubt(s, path, p["data"].get("settling", False), done=p["effect"] in done, keys=keys))
            case "held":
                ways = f" | durun resolve {s.id} {_word(path)} --undone" if str(path).endswith("~undo") else ""
                found.append(_held(path, cause, d["directory"], f"durun resume {s.id}{ways}"))
    if s.reason == "not_stopped":
        found.append(_wanted(s.state, s.reason, s.state, not_stopped(d["cancel"] or {}), None, f"durun cancel {s.id}"))
    if s.reason == "drift":
        for one, said in zip(d["drift"] or [], drifts(d["drift"] or []), strict=True):
            found.append(_wanted(s.state, "drift", one["tool"], said, None, f"durun resume {s.id} --accept-drift"))
    if s.reason == "undo_failed":
        found += _not_undone(s.id, d["undo"], {e["no"] for e in d["effects"] if e["status"] in ("not_certain", "in_doubt")})
    if s.status == "paused" and s.reason == "all":
        found.append(_wanted(s.state, s.status, s.state, "the whole file is held", None, "durun resume --all"))
    elif s.status in ("interrupted", "paused"):
        said = "nobody drives it" if s.status == "interrupted" else "it is paused"
        found.append(_wanted(s.state, s.status, s.state, said, None, f"durun resume {s.id}"))
    return found


def _over(id: str, path: str | None, p: dict[str, Json]) -> dict[str, Json]:
    """A time that has come, and nobody has gone on since."""
    what = "to answer" if p["phase"] == "asked" else f"for the signal {p['data']['wants']['signal']}"
    return _wanted(path, "timer", path, f"the time {what} is over since {when(p['due'])}", p["due"], f"durun resume {id}")


def stranded(language: int, by: str) -> str:
    """Why this durun cannot go on with a run, and which can. `by`: the one that started it."""
    from durun import __version__
    from durun.plan import LANGUAGE

    what = f"its plan is of language {language}, and this durun ({__version__}) knows {LANGUAGE}"
    return f"{what}: durun {by}, which started it, or a later one can go on with it"


def _queued(id: str, path: Json, wants: Json, shared: dict[str, Json]) -> dict[str, Json]:
    """What a limit or a group has no place for now, and who holds it."""
    word, name = next(iter(wants.items()))
    found = shared.get(f"{word} {name}", {})
    if word == "group":
        before = [f"run {run}, which is {status}" for run, status in found.get("before", [])]
        return _wanted(path, word, name, f"the group {name}" + "".join(f": {run}" for run in before), None, f"durun resume {id}")
    if found.get("until"):
        return _wanted(path, word, name, f"the limit {name}, which an answer holds back", found["until"], f"durun resume {id}")
    held = [f"run {run} ({path_of(scope, state)})" for run, scope, state in found.get("holders", [])]
    more = " and others" if len(held) > 3 else ""
    said = f"a place of the limit {name}" + (f", held by {', '.join(held[:3])}{more}" if held else "")
    return _wanted(path, word, name, said, None, f"durun resume {id}")


def _held(path: Json, cause: Json, directory: str, command: str) -> dict[str, Json]:
    """What has to be mended before something can be begun."""
    if isinstance(cause, dict):
        return _wanted(path, cause["name"], path, cause["message"], None, command)
    return _wanted(path, str(cause), path, f"{directory} is gone", None, command)


def not_stopped(cancel: dict[str, Json]) -> str:
    """What outlived the last signal, with the way out where its keeper is the reason."""
    pids = ", ".join(map(str, cancel.get("pids") or ()))
    said = f"{pids} did not end when stopped" if pids else "its command did not end when stopped"
    keeper = cancel.get("keeper")
    return said + (f": its keeper stands still (`kill -CONT {keeper}`)" if keeper else "")


def _doubt(s: Summary, path: Json, settling: bool, *, done: bool, keys: Iterable[str] = ()) -> dict[str, Json]:
    """What only a person knows: of an effect, of one that is to be undone, or of an undo. `done`: how to go on after it; `keys`:
    those with which a message may have been delivered before it had another."""
    of = path.removesuffix("~undo")
    said = f"whether {of} happened is not known" if settling or of == path else f"whether {of} was undone is not known"
    if keys:
        said = f"whether {of} happened with the key {', '.join(keys)} is not known, before it had another"
    if done and of == path and not settling:
        said = f"{of} has happened, and what it gave could not be used"
    ways = "--happened | --fail | --undone" if settling else "--happened | --retry | --fail"
    return _wanted(path, s.reason or "in_doubt", path, said, None, f"durun resolve {s.id} {_word(path)} {ways}")


def _once_in_doubt(s: Summary, path: Json, name: str) -> dict[str, Json]:
    """A once whose step has failed since nobody knows whether it happened."""
    of = f"{path}/once:{name}"
    said = f"whether once {name} of {path} happened is not known"
    return _wanted(of, s.reason or "in_doubt", of, said, None, f"durun resolve {s.id} {_word(of)} --happened | --retry | --fail")


def _word(path: str | None) -> str:
    """A path as a word for the shell."""
    import shlex

    return shlex.quote(path or "")


def _not_undone(id: str, undo: list[dict[str, Json]], unsure: set[int]) -> list[dict[str, Json]]:
    """What could not be undone, once for each state. `unsure`: the effects of which it is not certain that they did not happen."""
    failed = {path_of(u["scope"], u["state"]): u for u in reversed(undo) if u["status"] == "failed"}
    out = []
    for path, u in failed.items():
        error = u["error"] or {}
        why = ": ".join(str(error[word]) for word in ("name", "message") if error.get(word))
        said = f"{path} could not be undone" + (f": {why}" if why else "")
        said += "; it may be undone all the same, and `compensate` begins it again" if u["by"] in unsure else ""
        command = f"durun compensate {id} | durun resolve {id} {_word(path)} --undone"
        out.append(_wanted(path, "undo_failed", path, said, None, command))
    return out


def _asked(id: str, path: str | None, p: dict[str, Json], left: int | None) -> dict[str, Json]:
    """A question, with what a person has to see before they answer."""
    wants = p["data"]["wants"]
    commands = []
    for word, no in (("approve", False), ("reject", True)):
        names = [option["name"] for option in wants["options"] if option["reject"] == no]
        more = f" --answer {'|'.join(names)}" if len(names) > 1 else ""
        more += " --data JSON" if "schema" in wants and not no else ""
        commands += [f"durun {word} {id} {_word(path)}{more}"] if names else []
    return {
        **_wanted(path, "approval", path, wants["message"], p["due"], " | ".join(commands), left),
        "data": wants.get("data"), "options": wants["options"], "schema": wants.get("schema"), "digest": wants["digest"],
        "visit": p["visit"],
    }  # fmt: skip


def inbox(s: Summary, d: dict[str, Json], now: int) -> list[dict[str, Json]]:
    """What of a run waits for a person, as `inbox --json` has it."""
    wanted = [w for w in waiting_for(s, d, now) if w["kind"] not in ("timer", "delay", "limit", "group", "signal", "interrupted")]
    return [{"run": s.id, "plan": s.name, "status": s.status, "updated_at": when(s.updated_at), **w} for w in wanted]


def dead_letter(m: dict[str, Json], s: Summary) -> dict[str, Json]:
    """A message that was given up, as `inbox --json` has it."""
    error = m["error"] or {}
    said = f"{m['path']} could not be delivered: {error.get('name', '')}"
    wanted = _wanted(m["path"], "dead_letter", m["message"], said, None, str(m["command"]))
    return {"run": s.id, "plan": s.name, "status": s.status, "updated_at": when(s.updated_at), **wanted}


def _wanted(
    path: Json, kind: str, name: Json, message: str, until: int | None, command: str, left: int | None = None
) -> dict[str, Json]:  # fmt: skip
    """`left`: of a time that stands still, what is left of it; there is no `until` then."""
    until, seconds = (until, None) if left is None else (None, left / 1000)
    return {
        "path": path, "kind": kind, "name": name, "message": message, "until": when(until), "left": seconds, "command": command,
    }  # fmt: skip


def frozen(p: dict[str, Json], status: str) -> int | None:
    """Milliseconds that a position still waits, once its run is resumed; None where its time goes on, or it waits for none.

    A time that was named in UTC comes when it comes, also while the run is paused.
    """
    return p["data"].get("length") if status == "paused" and p["due"] is not None else None


def _position(p: dict[str, Json], status: str) -> dict[str, Json]:
    left = frozen(p, status)
    return {
        "path": path_of(p["scope"], p["state"]), "state": p["state"], "visit": p["visit"], "phase": p["phase"],
        "effect": p["effect"], "due": when(p["due"] if left is None else None), "left": None if left is None else left / 1000,
    }  # fmt: skip


def effect(e: dict[str, Json]) -> dict[str, Json]:
    """A row of the effect log, as `show --json` and `report --json` have it."""
    return {
        "no": e["no"], "path": path_of(e["scope"], e["state"]), "visit": e["visit"], "kind": e["kind"], "key": e["key"],
        "status": e["status"], "attempt": e["attempt"], "exit": e["exit"], "error": e["error"],
        "intended_at": when(e["intended_at"]), "ended_at": when(e["ended_at"]),
    }  # fmt: skip


def _undo(u: dict[str, Json]) -> dict[str, Json]:
    return {
        "effect": u["effect"], "path": path_of(u["scope"], u["state"]), "visit": u["visit"], "status": u["status"], "key": u["key"],
        "error": u["error"], "by": u["by"], "child": u["child"],
    }  # fmt: skip


def message(m: dict[str, Json]) -> dict[str, Json]:
    """What is left to be delivered, as `outbox ls --json` and `show --json` have it."""
    name = f"{m['run']}:{m['effect']}"
    behind = None if m["behind"] is None else f"{m['run']}:{m['behind']}"
    drop = f"durun outbox drop {name}"
    ways = {
        "dead": drop if m["over"] else f"durun outbox retry {name} | {drop}",
        "waiting": None if behind else f"durun outbox deliver {m['run']}",
    }
    return {
        "message": name, "run": m["run"], "effect": m["effect"], "path": path_of(m["scope"], m["state"]), "kind": m["kind"],
        "status": m["status"], "attempt": m["attempt"], "due": when(m["due"]), "key": m["key"], "error": m["error"],
        "intended_at": when(m["intended_at"]), "ended_at": when(m["ended_at"]), "note": m["note"],
        "behind": behind, "command": ways.get(m["status"]),
    }  # fmt: skip


def migration(
    id: str, before: str, from_version: str, after: str, to_version: str, report: dict[str, Json], *, dry: bool
) -> dict[str, Json]:
    """What a migration comes to, as `migrate --json` has it."""
    return {
        "run": id, "dry_run": dry, "from": {"version": from_version, "digest": before},
        "to": {"version": to_version, "digest": after}, "states": report["states"], "vars": report["vars"],
        "positions": report["positions"],
    }  # fmt: skip


def event(e: dict[str, Json]) -> dict[str, Json]:
    """A row of `history --json`."""
    data = e["data"] if "due" not in e["data"] else {**e["data"], "due": when(e["data"]["due"])}
    return {
        "no": e["no"], "at": when(e["at"]), "kind": e["kind"], "path": path_of(e["scope"], e["state"]), "visit": e["visit"],
        "attempt": e["attempt"], **data,
    }  # fmt: skip

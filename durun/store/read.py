"""Questions people and scripts ask of the file: plain rows, no decisions, and light to import."""

from __future__ import annotations

from durun.errors import NoSuchRun, NotPossible
from durun.plan import LANGUAGE
from durun.store.file import File, each, rows

TYPE_CHECKING = False
if TYPE_CHECKING:  # nothing that scripts poll waits for typing or json to load
    from collections.abc import Callable, Iterator
    from typing import Any

    from durun.store.children import Child

    Json = Any

# as the index of runs in flight says it. Sort what it finds by +no: by no SQLite would rather read all runs than sort the few
OPEN = "status NOT IN ('succeeded', 'failed', 'cancelled', 'compensated')"
CLOSED = "status IN ('succeeded', 'failed', 'cancelled', 'compensated')"  # as the indexes of runs that have ended say it
UNDELIVERED = "status IN ('waiting', 'sending', 'dead')"  # as the index of open messages says it
EFFECT = ("no", "scope", "state", "visit", "kind", "key", "status", "attempt", "intended_at", "ended_at", "exit", "error")
MANY = 200  # effects, and undos, in the document of a run
PAGE = 1000  # rows of a long list that are read at a time
OVER = "((cancel IS NOT NULL AND cancel ->> 'error' IS NULL) OR undoing IS NOT NULL OR status IN ('cancelled', 'compensated'))"
ENDED = ("succeeded", "failed", "cancelled", "compensated")
SUMMARY = "no, id, name, version, status, reason, state, visit, attempt, due, driver, created_at, updated_at, ended_at, language"


class Summary:
    """A run in a list; `status` is what a person should see: interrupted where nobody drives what moves, stranded where its plan
    is of a language that this durun does not know."""

    __slots__ = tuple(SUMMARY.split(", "))
    no: int
    id: str
    name: str
    version: str
    status: str
    reason: str | None
    state: str | None
    visit: int | None
    attempt: int | None
    due: int | None
    driver: str | None
    created_at: int
    updated_at: int
    ended_at: int | None
    language: int

    def __init__(self, row: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, row, strict=True):
            setattr(self, name, value)


def _value(text: str | None) -> Json:
    import json

    return None if text is None else json.loads(text)


def number(file: File, id: str) -> int:
    """The number of the run with this id, or with this as the beginning of its id alone. Raises NoSuchRun, and NotPossible where
    it is that of a child, which is moved with its run."""
    no, child = run_or_child(file, id)
    if child is not None:
        parent = summary(file, no, lambda _: True).id
        said = f"{child.id} is a child of run {parent}, called by {child.path}, and goes with it"
        raise NotPossible(f"{said}: name {parent}; `durun show {child.id}` shows it")
    return no


def run_or_child(file: File, id: str) -> tuple[int, Child | None]:
    """The number of the run that an id means, and the child of it, where it is that of one. Raises NoSuchRun."""
    found = rows(file.db, "SELECT no FROM runs WHERE id = ?", (id,))
    if found:
        return int(found[0][0]), None
    from durun.store import children

    child = children.find(file, id)
    if child is not None:
        return child.run, child
    sql = "SELECT no, id FROM runs WHERE id >= ? AND id < ? ORDER BY id LIMIT 6"
    found = rows(file.db, sql, (id, id + "\U0010ffff")) if id else []
    if len(found) > 1:
        raise NoSuchRun(f"{id!r} fits several runs: {', '.join(r[1] for r in found[:5])}{' …' if len(found) > 5 else ''}")
    if found:
        return int(found[0][0]), None
    child = children.beginning_with(file, id) if id else None
    if child is not None:
        return child.run, child
    _not_pruned(file, id)
    raise NoSuchRun(f"there is no run {id!r} in {file.path}: `durun ls --all` lists them")


def checked(file: File, mark: str) -> tuple[Json, str] | None:
    """The plan that a text with this mark was found to hold, and the text."""
    found = rows(file.db, "SELECT canonical, source FROM checked JOIN plans ON digest = plan WHERE mark = ?", (mark,))
    return (_value(found[0][0]), found[0][1]) if found else None


class Hold:
    """The whole file is held, or a plan is drained: since when (RFC 3339), and by whom."""

    __slots__ = ("by", "since")

    def __init__(self, by: str, at: int) -> None:
        from durun.plan.units import show_moment

        self.by, self.since = by, show_moment(at)


def hold(file: File) -> Hold | None:
    """Whether `pause --all` holds the whole file."""
    found = rows(file.db, "SELECT by, at FROM hold")
    return Hold(*found[0]) if found else None


def drained(file: File, plan: str) -> Hold | None:
    """Whether new runs of a plan are refused."""
    found = rows(file.db, "SELECT by, at FROM drains WHERE name = ?", (plan,))
    return Hold(*found[0]) if found else None


def in_flight(file: File, plan: str | None = None) -> list[int]:
    """The numbers of all runs that have not ended, the oldest first."""
    of_plan = "" if plan is None else " AND name = ?"
    return [r[0] for r in rows(file.db, f"SELECT no FROM runs WHERE {OPEN}{of_plan} ORDER BY +no", (plan,) if plan else ())]


def to_take_up(file: File, alive: Callable[[str], bool], now: int, *, restored: bool = False) -> list[Summary]:
    """What `resume --all` goes on with, the oldest first: interrupted runs, those whose time has come, those that were held
    with the whole file, and those in whose inbox something lies. What a living driver holds is not among them, but for what
    it sits out only because the file was held. What was restored is, where a person says so."""
    sql = (
        f"SELECT {SUMMARY} FROM runs WHERE {OPEN} AND (status IN ('running', 'compensating')"
        " OR (status IN ('waiting', 'blocked') AND no IN"
        " (SELECT run FROM positions INDEXED BY positions_due WHERE due <= ? UNION SELECT run FROM queue))"
        " OR (status = 'paused' AND reason = 'all') OR reason = 'restored' OR no IN (SELECT run FROM notes))"
        f" AND ({int(restored)} OR reason IS NOT 'restored') ORDER BY +no"
    )
    asked: dict[str | None, bool] = {None: False}
    found = _seen(rows(file.db, sql, (now,)), alive)
    for s in found:
        if s.driver not in asked:
            asked[s.driver] = alive(str(s.driver))
    return [s for s in found if not asked[s.driver] or s.status == "paused"]


def to_work(file: File, alive: Callable[[str], bool], now: int) -> list[int]:
    """The runs that `work` may go on with, those first that were due first: interrupted, due, or with something in their inbox;
    nothing of what a living driver holds."""
    may = f"{OPEN} AND status <> 'paused' AND restored IS NULL AND drift IS NULL"
    sql = (
        f"SELECT no, driver, 0 d FROM runs WHERE {may} AND status IN ('running', 'compensating')"
        " UNION SELECT run, driver, min(p.due) FROM positions p INDEXED BY positions_due CROSS JOIN runs ON runs.no = run"
        f" WHERE p.due <= ? AND {may} GROUP BY run"
        f" UNION SELECT run, driver, 0 FROM queue JOIN runs ON runs.no = run WHERE {may}"
        f" UNION SELECT run, driver, 0 FROM notes JOIN runs ON runs.no = run WHERE {OPEN} AND restored IS NULL ORDER BY d, no"
    )
    if hold(file) is not None:
        return []
    asked: dict[str | None, bool] = {None: False}
    found: dict[int, None] = {}
    for no, driver, _ in rows(file.db, sql, (now,)):
        if driver not in asked:
            asked[driver] = alive(driver)
        if not asked[driver]:
            found[no] = None
    return list(found)


def with_tools(file: File, runs: list[int]) -> list[int]:
    """Those of these runs whose tools are asked before they go on."""
    sql = "SELECT no FROM runs WHERE no IN (SELECT value FROM json_each(?)) AND tools IS NOT NULL AND undoing IS NULL"
    return [no for (no,) in rows(file.db, sql, (str(runs),))]


def next_due(file: File, now: int) -> int | None:
    """When something is due next (UTC ms) that is not due yet: a wait of a run, or a message."""
    found = rows(file.db, "SELECT min(due) FROM positions WHERE due > ?", (now,))[0][0]
    message = rows(file.db, f"SELECT min(due) FROM messages WHERE {UNDELIVERED} AND due > ?", (now,))[0][0]
    return min((at for at in (found, message) if at is not None), default=None)


def _not_pruned(file: File, id: str) -> None:
    """Raises NoSuchRun where a run of this id has ended, and was taken away."""
    from durun.plan.units import show_moment

    for status, ended_at, pruned_at in rows(file.db, "SELECT status, ended_at, pruned_at FROM pruned WHERE id = ?", (id,)):
        how = f"it is {status} since {show_moment(ended_at)}, and was pruned at {show_moment(pruned_at)}"
        raise NoSuchRun(f"run {id} is gone: {how}; `durun db prune {id} --forget-id` forgets it altogether")


def summary(file: File, no: int, alive: Callable[[str], bool]) -> Summary:
    return _seen(rows(file.db, f"SELECT {SUMMARY} FROM runs WHERE no = ?", (no,)), alive)[0]


def listed(
    file: File, alive: Callable[[str], bool], *, statuses: list[str], plan: str | None, limit: int, everything: bool
) -> list[Summary]:
    """Runs, the newest first: those in flight and the last `limit` that ended, or all."""
    of_plan, plans = ("", ()) if plan is None else (" AND name = ?", (plan,))
    sql = f"SELECT {SUMMARY} FROM runs WHERE"
    moving = sorted({s for shown in statuses for s in (("running", "compensating") if shown == "interrupted" else (shown,))})
    wanted = "" if not statuses or "stranded" in statuses else f" AND status IN ({','.join('?' * len(moving))})"
    found = rows(file.db, f"{sql} {OPEN}{of_plan}{wanted}", (*plans, *(moving if wanted else ())))
    last = -1 if everything else limit
    if statuses or plans:  # each status by itself: then an index has the last of them
        for status in [s for s in ENDED if s in statuses or not statuses]:
            found += rows(file.db, f"{sql} {CLOSED} AND status = ?{of_plan} ORDER BY no DESC LIMIT ?", (status, *plans, last))
    else:
        found += rows(file.db, f"{sql} NOT ({OPEN}) ORDER BY no DESC LIMIT ?", (last,))
    seen = _seen(_newest(found, last), alive)
    return [s for s in seen if s.status in statuses] if statuses else seen


def _newest(found: list[tuple[Any, ...]], last: int) -> list[tuple[Any, ...]]:
    """The newest first; of those that have ended so many."""
    out = []
    for row in sorted(found, key=lambda r: -r[0]):
        if row[4] in ENDED:
            if last == 0:
                continue
            last -= 1
        out.append(row)
    return out


def _seen(found: list[tuple[Any, ...]], alive: Callable[[str], bool]) -> list[Summary]:
    """Liveness is asked once a driver, not once a run."""
    asked: dict[str | None, bool] = {None: False}
    out = []
    for row in found:
        s = Summary(row)
        if s.status in ("running", "compensating"):
            if s.driver not in asked:
                asked[s.driver] = alive(str(s.driver))
            if not asked[s.driver]:
                s.status = "interrupted"
        if s.language > LANGUAGE and s.status not in ENDED:
            s.status, s.reason = "stranded", None
        out.append(s)
    return out


def details(file: File, no: int, many: int | None = MANY) -> dict[str, Json]:
    """Everything `show` tells of a run, as plain data; of its effects the last, and of its undos so many."""
    db = file.db
    names = "input, vars, output, error, ended_by, pins, plan, file, directory, namespace, cancel, undoing, restored, fence, seq"
    names += ", events, tools, drift"
    row = rows(db, f"SELECT {names} FROM runs WHERE no = ?", (no,))[0]
    out = dict(zip(names.split(", "), row, strict=True))
    for name in ("input", "vars"):
        if out[name] is None:
            from durun.store import large

            out[name] = large.of(db, no, name)
    for name in ("input", "vars", "output", "error", "ended_by", "pins", "cancel", "undoing", "restored", "tools", "drift"):
        out[name] = _value(out[name])
    out["files"] = _pinned_files(file, out["pins"]["trees"]) if "trees" in out["pins"] else {}
    out["positions"] = positions(file, no)
    out["shared"] = shared(file, no, out["positions"])
    out["effects"] = effects(file, no, MANY)
    out["undo"] = undos(file, no, limit=many)
    out["messages"] = messages(file, no)
    kept = rows(db, "SELECT name, by, at FROM signals WHERE run = ? AND visit IS NULL ORDER BY no", (no,))
    out["signals"] = [dict(zip(("name", "by", "at"), r, strict=True)) for r in kept]
    return out


def positions(file: File, no: int) -> list[dict[str, Json]]:
    """Where a run stands."""
    names = ("scope", "state", "visit", "phase", "effect", "due", "data")
    found = rows(file.db, f"SELECT {', '.join(names)} FROM positions WHERE run = ?", (no,))
    out = [{**dict(zip(names[:-1], r[:-1], strict=True)), "data": _value(r[-1])} for r in found]
    if len(out) < 2:
        return out
    from durun.store.stands import in_order

    return in_order(file, no, out)


def shared(file: File, no: int, positions: list[dict[str, Json]]) -> dict[str, Json]:
    """Of each limit, and of the group, that something of a run waits for: who is before it, the first few, and until when the
    limit is held back. Nothing where nothing waits for one."""
    found: dict[str, Json] = {}
    for p in positions:
        if p["phase"] != "queued":
            continue
        for word, name in p["data"]["wants"].items():
            key = f"{word} {name}"
            if key not in found:
                found[key] = _limit(file, name) if word == "limit" else _group(file, no, name)
    return found


def _limit(file: File, name: str) -> Json:
    sql = (
        "SELECT r.id, e.scope, e.state FROM places p JOIN runs r ON r.no = p.run"
        " CROSS JOIN effects e ON e.run = p.run AND e.no = p.effect WHERE p.name = ? AND p.open = 1 ORDER BY p.no LIMIT 4"
    )
    until = rows(file.db, "SELECT until FROM limits WHERE name = ? AND until > unixepoch() * 1000", (name,))
    return {"holders": rows(file.db, sql, (name,)), "until": until[0][0] if until else None}


def _group(file: File, no: int, name: str) -> Json:
    from durun.store import places

    first = places.before(file.db, name, no)
    return {"before": [first] if first is not None else []}


def _pinned_files(file: File, trees: dict[str, str]) -> dict[str, dict[str, str]]:
    """File of a plan -> path -> SHA-256 of the files it pins."""
    sql = "SELECT path, digest FROM trees WHERE tree = ? ORDER BY path"
    return {at: dict(rows(file.db, sql, (tree,))) for at, tree in trees.items()}


def effects(file: File, no: int, limit: int, scopes: tuple[str, str] | None = None) -> list[dict[str, Json]]:
    """The last effects of a run, in the order they were intended; `scopes`: those alone that stand from the first, before the
    second."""
    names = EFFECT
    sql = f"SELECT {', '.join(names)} FROM effects WHERE run = ?" + " AND scope >= ? AND scope < ?" * (scopes is not None)
    of = (no, *(scopes or ()))
    found = rows(file.db, f"{sql} AND no > 0 ORDER BY no DESC LIMIT ?", (*of, limit))
    out = [dict(zip(names, r, strict=True)) for r in reversed(found)]
    if onces := rows(file.db, f"{sql} AND no < 0 ORDER BY no LIMIT ?", (*of, limit)):
        out += [dict(zip(names, r, strict=True)) for r in reversed(onces)]
        out = sorted(out, key=lambda e: e["intended_at"])[-limit:]  # their numbers are of two kinds
    for e in out:
        e["error"] = _value(e["error"])
    return out


def every_effect(file: File, no: int, statuses: tuple[str, ...] = ()) -> Iterator[dict[str, Json]]:
    """All effects of a run, or those of some statuses, in the order they were intended; some are read at a time."""
    from heapq import merge

    yield from merge(_in_order(file, no, 1, statuses), _in_order(file, no, -1, statuses), key=lambda e: e["intended_at"])


def _in_order(file: File, no: int, way: int, statuses: tuple[str, ...]) -> Iterator[dict[str, Json]]:
    """Its effects from the first upwards, or those of onces from -1 downwards."""
    which = f" AND status IN ({','.join('?' * len(statuses))})" if statuses else ""
    further, order = (">", "") if way > 0 else ("<", " DESC")
    sql = f"SELECT {', '.join(EFFECT)} FROM effects WHERE run = ? AND no {further} ?{which} ORDER BY no{order}"
    last = 0
    while found := rows(file.db, f"{sql} LIMIT ?", (no, last, *statuses, PAGE)):
        last = found[-1][0]
        for r in found:
            e = dict(zip(EFFECT, r, strict=True))
            yield {**e, "error": _value(e["error"])}


def effects_by_status(file: File, no: int) -> dict[str, int]:
    """How many effects of a run have each status."""
    return dict(rows(file.db, "SELECT status, count(*) FROM effects WHERE run = ? GROUP BY status", (no,)))


def undos(file: File, no: int, status: str | None = None, limit: int | None = None) -> list[dict[str, Json]]:
    """The log of undos of a run, or those of a status, in the order in which they are undone: the youngest first, and what a child
    did together. With a limit so many: those first that are not over, and that failed; of each the youngest.

    `error` is that of the undo; `by` is the effect that undid it, or tried to; `child` is the child of the run that it is of.
    """
    some = None if limit is None else _some_undos(file, no, limit)
    which = " AND u.status = ?" * (status is not None) + " AND u.effect IN (SELECT value FROM json_each(?))" * (some is not None)
    sql = (
        "SELECT u.effect, e.scope, e.state, e.visit, u.status, u.key, coalesce(e.first_at, e.intended_at), b.error, u.error, u.by"
        " FROM undos u"
        " CROSS JOIN effects e ON e.run = u.run AND e.no = u.effect LEFT JOIN effects b ON b.run = u.run AND b.no = u.by"
        f" WHERE u.run = ?{which} ORDER BY coalesce(e.first_at, e.intended_at) DESC, e.no > 0, abs(e.no) DESC"
    )
    values = (no, *([] if status is None else [status]), *([] if some is None else [str(some)]))
    out = []
    for *row, error, unfit, by in rows(file.db, sql, values):
        said = _value(error) if error is not None else {"name": "expression", "message": unfit} if unfit else None
        names = ("effect", "scope", "state", "visit", "status", "key", "began")
        out.append({**dict(zip(names, row, strict=True)), "error": said, "by": by, "child": None})
    return _with_children(file, no, out) if any("/" in u["scope"] for u in out) else out


def _some_undos(file: File, no: int, limit: int) -> list[int] | None:
    """The effects of those undos of a run that matter, where it has more than so many; else None."""
    if len(rows(file.db, "SELECT effect FROM undos WHERE run = ? LIMIT ?", (no, limit + 1))) <= limit:
        return None
    chosen: list[int] = []
    for which in ("status = 'failed'", "status IN ('owed', 'registered')", "status IN ('undone', 'not_needed')"):
        if which != "status = 'failed'" or rows(file.db, "SELECT 1 FROM runs WHERE no = ? AND undoing IS NOT NULL", (no,)):
            sql = f"SELECT effect FROM undos WHERE run = ? AND {which} ORDER BY effect DESC LIMIT ?"
            chosen += [effect for (effect,) in rows(file.db, sql, (no, limit - len(chosen)))]
    return chosen


def _with_children(file: File, no: int, found: list[dict[str, Json]]) -> list[dict[str, Json]]:
    from durun.store import order

    by_effect, out = {u["effect"]: u for u in found}, []
    began = [order.Began(u["effect"], u["scope"], u["state"], u["visit"], u["began"]) for u in found]
    for e, around in reversed(order.oldest_first(file, no, began)):
        child = {"run": around[0].run, "path": around[0].path, "visit": around[0].visit} if around else None
        out.append({**by_effect[e.no], "child": child})
    return out


def plan_of(file: File, no: int) -> Json:
    """The plan of a run, in its canonical form."""
    import json

    return json.loads(rows(file.db, "SELECT canonical FROM plans JOIN runs ON plan = digest WHERE no = ?", (no,))[0][0])


def messages(file: File, no: int | None = None, *, everything: bool = False) -> list[dict[str, Json]]:
    """What is left to be delivered, or all that ever was: the messages of a run or of the whole file, the oldest first."""
    names = (
        "run",
        "effect",
        "scope",
        "state",
        "kind",
        "status",
        "attempt",
        "due",
        "intended_at",
        "ended_at",
        "error",
        "key",
        "data",
        "over",
    )
    where = ["1" if everything else f"m.{UNDELIVERED}", "1" if no is None else "m.run = ?"]
    sql = (
        "SELECT r.id, m.effect, e.scope, e.state, e.kind, m.status, e.attempt, m.due, e.intended_at, e.ended_at, e.error, e.key,"
        f" m.data, m.ordered AND EXISTS (SELECT 1 FROM runs WHERE no = m.run AND {OVER})"
        " FROM messages m JOIN runs r ON r.no = m.run CROSS JOIN effects e ON e.run = m.run AND e.no = m.effect"
        f" WHERE {' AND '.join(where)} ORDER BY e.intended_at, m.run, m.effect"
    )
    out = [dict(zip(names, row, strict=True)) for row in rows(file.db, sql, () if no is None else (no,))]
    stuck: dict[str, int] = {}  # the first of each run that was given up: it holds back those behind it
    for m in out:
        ordered = not m["state"].startswith("notify:")
        m["behind"] = stuck.get(m["run"]) if ordered and m["status"] in ("waiting", "sending") else None
        if ordered and m["status"] == "dead":
            stuck.setdefault(m["run"], m["effect"])
        m["error"], m["note"] = _value(m["error"]), _value(m.pop("data")).get("note", "")
    return out


def written_by_messages(file: File, no: int) -> list[dict[str, Json]]:
    """Where the attempts of a run's messages have written: {scope, state, visit, attempt, out, err}."""
    names = ("scope", "state", "visit", "attempt", "out", "err")
    sql = (
        "SELECT scope, state, visit, l.value ->> 0, l.value ->> 1, l.value ->> 2 FROM messages m"
        " CROSS JOIN effects e ON e.run = m.run AND e.no = m.effect, json_each(m.data, '$.logs') l"
        " WHERE m.run = ? ORDER BY m.effect, l.key"
    )
    return [dict(zip(names, row, strict=True)) for row in rows(file.db, sql, (no,))]


def request(file: File, no: int, effect: int) -> Json:
    """The frozen request of an effect, with the places of secrets open."""
    found = _value(rows(file.db, "SELECT request FROM effects WHERE run = ? AND no = ?", (no, effect))[0][0])
    if "script_of" in found:
        found["script"] = rows(file.db, "SELECT text FROM literals WHERE digest = ?", (found.pop("script_of"),))[0][0]
    return found


def undelivered(file: File) -> dict[int, tuple[int, int]]:
    """run -> (how many of its messages are still to be delivered, how many were given up)."""
    sql = f"SELECT run, sum(status <> 'dead'), sum(status = 'dead') FROM messages WHERE {UNDELIVERED} GROUP BY run"
    return {run: (waiting, dead) for run, waiting, dead in rows(file.db, sql)}


def history(file: File, no: int, after: int = 0, kinds: tuple[str, ...] = ()) -> Iterator[dict[str, Json]]:
    """The rows of a run's history after a number, or those of some kinds. They may be millions, so some are read at a time; between
    two reads the file is let go."""
    names = ("no", "at", "kind", "scope", "state", "visit", "attempt", "data")
    which = f" AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
    sql = f"SELECT {', '.join(names)} FROM history WHERE run = ? AND no > ?{which} ORDER BY no LIMIT ?"
    while found := rows(file.db, sql, (no, after, *kinds, PAGE)):
        for r in found:
            yield {**dict(zip(names[:-1], r[:-1], strict=True)), "data": _value(r[-1])}
        after = found[-1][0]
        if len(found) < PAGE:
            return


def visits(file: File, no: int) -> Iterator[tuple[str, str, int]]:
    """(scope, state, how often it was entered) of each state that a run has been to: counted in the file, however often."""
    counted = "SELECT scope, state, count(DISTINCT visit) FROM history"
    yield from each(file.db, f"{counted} WHERE run = ? AND kind = 'entered' GROUP BY scope, state", (no,))


def events(file: File, no: int) -> int:
    """How many rows a run's history has."""
    return int(rows(file.db, "SELECT events FROM runs WHERE no = ?", (no,))[0][0])


def place_of(path: str) -> tuple[str, str]:
    """The scope and the name of the state at a path. A label may hold any mark but a bracket."""
    at = max(path.rfind(mark, path.rfind("]") + 1) for mark in "./~")
    return (path[: at + (path[at] != ".")], path[at + 1 :]) if at >= 0 else ("", path)


def _part_at(path: str) -> tuple[str, str]:
    """The path of the state that holds a branch or item, and the name or label of that."""
    at = path.rfind("[") if path.endswith("]") else -1
    return (path[:at], path[at + 1 : -1]) if at >= 0 else place_of(path)


def output_of(file: File, no: int, path: str | None) -> tuple[bool, Json]:
    """(whether there is one, the output) of a run, or by path of a state, a branch, an item or a child.

    Of a state in a branch, item or child that has ended, the output of its last effect is what there still is.
    """
    if path is None:
        text = rows(file.db, "SELECT output FROM runs WHERE no = ?", (no,))[0][0]
        return text is not None, _value(text)
    path = path.removesuffix("/")  # a child gives what the state that calls it gives
    if "/once:" in path[path.rfind("]") + 1 :] and not path.endswith("~undo"):
        return _printed_by(file, no, path)
    of_state = (
        "SELECT s.ended AND s.error IS NULL, coalesce(s.output, e.output) FROM states s"
        " LEFT JOIN effects e ON e.run = s.run AND e.no = s.effect WHERE s.run = ? AND s.scope = ? AND s.state = ?"
    )
    of_part = "SELECT status = 'succeeded', output FROM items WHERE run = ? AND path = ? AND label = ?"
    of_effect = (
        "SELECT status = 'done' AND output IS NOT NULL, output FROM effects WHERE run = ? AND scope = ? AND state = ?"
        " AND kind IN ('run', 'http', 'undo') ORDER BY no DESC LIMIT 1"
    )
    for sql, at in ((of_state, place_of(path)), (of_part, _part_at(path)), (of_effect, place_of(path))):
        found = rows(file.db, sql, (no, *at))
        if found:
            return bool(found[0][0]), _value(found[0][1])
    return False, None


def _printed_by(file: File, no: int, path: str) -> tuple[bool, Json]:
    """What a once printed the last time it was done, as text."""
    of_step = path[: path.index("/once:", path.rfind("]") + 1)]
    scope, state = place_of(of_step)
    sql = (
        "SELECT status = 'done' AND stdout IS NOT NULL, stdout FROM effects JOIN onces ON onces.run = effects.run AND effect = no"
        " WHERE effects.run = ? AND scope = ? AND state = ? ORDER BY no LIMIT 1"
    )
    found = rows(file.db, sql, (no, scope, state + path[len(of_step) :]))
    return (bool(found[0][0]), (found[0][1] or b"").decode("utf-8", "replace").removesuffix("\n")) if found else (False, None)


def secrets(file: File, no: int) -> tuple[list[Json], str]:
    """(where the secrets of a run are read, the directory it runs in)."""
    text, directory = rows(file.db, "SELECT json_extract(pins, '$.secrets'), directory FROM runs WHERE no = ?", (no,))[0]
    return _value(text) or [], directory


def for_people(file: File, alive: Callable[[str], bool]) -> list[tuple[Summary, dict[str, Json]]]:
    """The runs in flight of which something may wait for a person, the oldest first, each with its positions."""
    asks = "SELECT 1 FROM positions p WHERE p.run = runs.no AND p.phase IN ('asked', 'doubt', 'held')"
    of_all = "reason IN ('undo_failed', 'restored', 'drift', 'not_stopped')"
    wants = f"status = 'paused' OR {of_all} OR language > {LANGUAGE} OR EXISTS ({asks})"
    columns = ", ".join(f"runs.{name.strip()}" for name in SUMMARY.split(","))
    columns += ", drift, directory, restored, cancel, pins ->> '$.durun'"
    sql = f"SELECT {columns} FROM runs WHERE {OPEN} AND ({wants}) ORDER BY +no"
    found = rows(file.db, sql)
    out = []
    for s, row in zip(_seen([row[:-5] for row in found], alive), found, strict=True):
        failed = undos(file, s.no, "failed") if s.reason == "undo_failed" else []
        sql = "SELECT no, status FROM effects WHERE run = ? AND no IN (SELECT effect FROM positions WHERE run = ?)"
        effects = [{"no": no, "status": status} for no, status in rows(file.db, sql, (s.no, s.no))]
        drift, directory, restored, cancel, durun = row[-5:]
        more = {
            "directory": directory,
            "undo": failed,
            "restored": _value(restored),
            "cancel": _value(cancel),
            "pins": {"durun": durun},
        }
        out.append((s, {"positions": positions(file, s.no), "effects": effects, "drift": _value(drift), **more}))
    return out


def is_cancelled(file: File, no: int) -> bool:
    """Whether a cancel of a run was accepted."""
    return bool(rows(file.db, "SELECT 1 FROM runs WHERE no = ? AND cancel IS NOT NULL", (no,)))


def taken(file: File, no: int) -> tuple[dict[str, str], int | None]:
    """(SHA-256 of the texts of a run's plan and of those it calls, by file; when they were taken, where it was after its birth)."""
    sql = "SELECT json_extract(pins, '$.texts'), json_extract(pins, '$.taken_at') FROM runs WHERE no = ?"
    texts, at = rows(file.db, sql, (no,))[0]
    return _value(texts) or {}, at


def only_asks(file: File, no: int, within: str = "") -> bool:
    """Whether a run (or what of it is in this scope) stands nowhere but where a person is asked or a signal is waited for."""
    sql = "SELECT DISTINCT phase FROM positions WHERE run = ? AND substr(scope, 1, ?) = ?"
    phases = {row[0] for row in rows(file.db, sql, (no, len(within), within))} - {"ended", "failed", "inside"}
    return bool(phases) and phases <= {"asked", "listening"}


def asks(file: File, no: int) -> bool:
    """Whether a person is asked anywhere in a run."""
    return bool(rows(file.db, "SELECT 1 FROM positions WHERE run = ? AND phase = 'asked' LIMIT 1", (no,)))


def under_way(file: File, no: int) -> list[dict[str, Json]]:
    """{scope, state, visit, attempt, place, token} of what is to begin or has begun."""
    names = ("scope", "state", "visit", "attempt", "place", "no")
    sql = f"SELECT {', '.join(names)} FROM effects WHERE run = ? AND status = 'begin' AND place IS NOT NULL ORDER BY no"
    found = [dict(zip(names, row, strict=True)) for row in rows(file.db, sql, (no,))]
    return [{**of, "token": f"{no}.{of['no']}.{of['attempt']}"} for of in found]

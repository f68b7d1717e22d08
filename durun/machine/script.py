"""A script of answers: what the world would say to a plan, written down before. Pure.

Rules:
- a path names what is answered: a state (`pay`, `fan.left.pull`, `each[web-1].push`, `call/send`), its probe (`pay/probe`), its
  undo (`pay~undo`). A path with `[]` speaks of every item that has no answers of its own
- a path has a list of answers, taken one after the other; when they are used up, and where there are none, all goes well: a
  command gives null (where it declares text or lines: none of them), a request its first expected status without a body, a probe
  says yes, a person says the first yes, a signal brings null
- what is not in the plan, and what says nothing to what it is given to, is refused, all of it at once
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

from durun.machine.events import Answered, CouldNotStart, Ended, Lost
from durun.machine.model import Effect
from durun.plan.canonical import Level, Plan
from durun.plan.digest import canonical_text
from durun.plan.names import own_error
from durun.values import NamedTuple

Json = Any

LABEL = re.compile(r"\[[^\[\]]*\]")
WHY = "the script says that it is in doubt"
# what an answer may say to each kind, with the errors it may name
KEYS = {
    "run": ({"exit", "signal", "output", "stderr", "error"}, {"timeout", "heartbeat", "not_found", "in_doubt"}),
    "http": ({"status", "output", "error"}, {"timeout", "network", "in_doubt"}),
    "approval": ({"answer", "data", "note", "by", "error"}, {"timeout"}),
    "signal": ({"output", "message", "error"}, {"timeout", "heartbeat"}),
}
ALONE = ("exit", "signal", "status", "error", "answer")  # of these an answer says one


class Place(NamedTuple):
    """Something in a plan that is answered: its kind, the state, probe or undo itself, and whether it is a probe."""

    kind: str
    of: Json
    probe: bool = False


class WrongAnswers(Exception):
    """Answers that do not fit the plan, each in words."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Script:
    """The answers to one walk through a plan."""

    def __init__(self, plan: Plan, given: Json) -> None:
        """Raises WrongAnswers with everything that is wrong with `given`."""
        known = dict(places(plan, ""))
        faults = list(_faults(given, known))
        if faults:
            raise WrongAnswers(faults)
        self._given: dict[str, list[Json]] = {path: one if isinstance(one, list) else [one] for path, one in given.items()}
        self._known = known
        self._used: dict[str, int] = {}  # by path, as it was met

    def place(self, path: str) -> Place:
        return self._known[LABEL.sub("[]", path)]

    def next(self, path: str) -> Json:
        """The next answer at a path; {} where all goes well."""
        key = path if path in self._given else LABEL.sub("[]", path)
        at = self._used.get(path, 0)
        self._used[path] = at + 1
        answers = self._given.get(key, [])
        return answers[at] if at < len(answers) else {}

    def peek(self, path: str) -> Json:
        """The same, which stays the next one."""
        found = self.next(path)
        self._used[path] -= 1
        return found

    def left(self) -> list[tuple[str, int]]:
        """(path, how many) of the answers that nothing asked for."""
        used: dict[str, int] = {}
        for path, n in self._used.items():
            key = path if path in self._given else LABEL.sub("[]", path)
            used[key] = max(used.get(key, 0), n)
        found = [(path, len(answers) - used.get(path, 0)) for path, answers in self._given.items()]
        return [(path, n) for path, n in found if n > 0]


# --- what there is to answer ---


def places(level: Level, outer: str) -> Iterator[tuple[str, Place]]:
    """Everything in a plan that is answered, by its path without labels."""
    for name, state in level["states"].items():
        at = f"{outer}{name}"
        kind = state["kind"]
        if "background" in state:  # it counts as delivered, and its undo is one like any other
            yield from _of_undo(at, state)
        elif kind in ("run", "http"):
            yield from _of_effect(at, state)
        elif kind == "approval":
            yield at, Place("approval", state)
        elif "signal" in state.get("wait", {}):
            yield at, Place("signal", state)
        elif "parallel" in state:
            for branch in state["parallel"]["branches"]:
                yield from places(branch, f"{at}.{branch['name']}.")
        elif "map" in state:
            yield from places(state["map"], f"{at}[].")
        elif "plan" in state:
            yield from places(state["plan"]["pinned"], f"{at}/")


def _of_effect(at: str, state: Json) -> Iterator[tuple[str, Place]]:
    yield at, Place(state["kind"], state)
    if "probe" in state:
        probe = state["probe"]
        yield f"{at}/probe", Place("http" if "method" in probe else "run", probe, True)
    yield from _of_undo(at, state)


def _of_undo(at: str, state: Json) -> Iterator[tuple[str, Place]]:
    if "compensate" in state:
        yield from _of_effect(f"{at}~undo", state["compensate"])


def _faults(given: Json, known: dict[str, Place]) -> Iterator[str]:
    if not isinstance(given, dict):
        yield "the answers are a mapping: a path to a list of answers"
        return
    for path, answers in given.items():
        place = known.get(LABEL.sub("[]", path))
        if place is None:
            yield f"{path[:80]!r} is nothing in this plan that is answered{_near(path, known)}"
            continue
        for n, answer in enumerate(answers if isinstance(answers, list) else [answers]):
            problem = _problem(answer, place)
            if problem:
                yield f"{path}, answer {n + 1}: {problem}"


def _near(path: str, known: dict[str, Place]) -> str:
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(path, known, 1, 0.6)
    return f"; did you mean `{near[0]}`?" if near else f"; there are {', '.join(known)}" if 0 < len(known) <= 10 else ""


def _problem(answer: Json, place: Place) -> str | None:
    """What is wrong with one answer, or None."""
    keys, errors = KEYS[place.kind]
    if not isinstance(answer, dict):
        return f"a mapping with {', '.join(sorted(keys))} is wanted"
    unknown = [key for key in answer if key not in keys]
    if unknown:
        return f"`{unknown[0][:40]}` says nothing to it: there are {', '.join(sorted(keys))}"
    both = [key for key in ALONE if key in answer]
    if len(both) > 1:
        return f"{' and '.join(both)}: say one of them"
    return next((said for key, value in answer.items() if (said := _unfit(key, value, place, errors))), None)


def _unfit(key: str, value: Json, place: Place, errors: set[str]) -> str | None:
    number = isinstance(value, int) and not isinstance(value, bool)
    match key:
        case "exit" if not number or not 0 <= value <= 255:
            return "`exit` is a number from 0 to 255"
        case "status" if not number or not 100 <= value <= 999:
            return "`status` is a number from 100 to 999"
        case "signal" if value not in signal.Signals.__members__ and f"SIG{value}" not in signal.Signals.__members__:
            return "`signal` is the name of one, such as TERM"
        case "error" if value not in errors and (place.kind != "signal" or not isinstance(value, str) or own_error(value)):
            more = ", or a name of your own" if place.kind == "signal" else ""
            return f"`error` is one of {', '.join(sorted(errors))}{more}"
        case "error" if place.kind in ("approval", "signal") and not _has_time(value, place.of):
            return f"it has no {value}: it waits for ever"
        case "stderr" | "note" | "by" | "message" if not isinstance(value, str):
            return f"`{key}` is a text"
        case "answer" if value not in _names(place.of):
            return f"`answer` is one of {', '.join(_names(place.of))}"
        case "output" if place.kind == "http" and not (isinstance(value, dict) and set(value) <= {"headers", "json", "body"}):
            return "`output` of a request has `headers`, `json` and `body`"
    return None


def _names(state: Json) -> list[str]:
    return [option["name"] for option in state["approval"]["options"]]


def _has_time(error: str, state: Json) -> bool:
    """Whether a wait can end so; one that ends with an error of one's own can."""
    return error not in ("timeout", "heartbeat") or "timeout" in state or error in state.get("wait", {})


# --- what an answer comes to ---


def end_of(effect: Effect, place: Place, answer: Json) -> Ended | Answered | CouldNotStart | Lost:
    """How an effect ends, as an answer says."""
    if answer.get("error") == "in_doubt":
        return Lost(effect.no, WHY)
    return _request(effect, place, answer) if place.kind == "http" else _command(effect, place, answer)


def _command(effect: Effect, place: Place, answer: Json) -> Ended | CouldNotStart:
    said = {"stderr": answer.get("stderr", "")}
    if answer.get("error") == "not_found":
        return CouldNotStart(effect.no, 2, (effect.request.get("argv") or ["sh"])[0])
    if "error" in answer:
        return Ended(effect.no, -signal.SIGTERM, answer["error"], **said)
    if "signal" in answer:
        return Ended(effect.no, -signal.Signals[f"SIG{answer['signal'].removeprefix('SIG')}"], **said)
    well = place.of["yes"] if place.probe else place.of.get("expect", [0])
    nothing = {"text": "", "lines": []}.get(place.of.get("output", {}).get("format"))
    gives = "output" in answer or effect.request.get("capture")
    data = canonical_text(answer.get("output", nothing)).encode() if gives else None
    return Ended(effect.no, answer.get("exit", well[0]), data=data, **said)


def _request(effect: Effect, place: Place, answer: Json) -> Answered:
    host = re.sub(r"^https?://([^/?]*).*", r"\1", str(effect.request["url"])) or "the far side"
    if "error" in answer:
        fault, sent = answer["error"], answer["error"] == "timeout"
        said = "the time for the request was over" if sent else "no connection came about"
        return Answered(effect.no, None, sent=sent, fault=fault, message=said, host=host)
    well = place.of["yes"] if place.probe else effect.request["expect"]
    given = answer.get("output", {})
    body = given.get("body", canonical_text(given["json"]) if "json" in given else "")
    headers = {"content-type": "application/json"} if "json" in given else {}
    headers |= {name.lower(): str(value) for name, value in (given.get("headers") or {}).items()}
    return Answered(effect.no, answer.get("status", well[0][0]), headers, str(body).encode(), host=host)

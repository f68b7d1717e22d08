"""`durun once`: effects that a step's own command makes and journals. What a call comes to. Pure.

Rules:
- a once belongs to a visit (of a poll: to a round): its key follows from the key of the step and its name
- done once: from then on its record is told. A failure is told to the attempt that saw it, and begun again in a later one
- what was ended by a signal (or says so as a shell does) may have happened: in a later attempt it is in doubt, as what was begun
  and has no end
- in doubt: its probe is asked; else, if it is idempotent, it is begun again; else nothing is begun, and the step is told so
- its row is written by its own process, never by the driver of the run: the effects of onces are numbered downwards from -1, so
  that neither ever takes a number of the other
- a step that fails after it was told of a doubt is in doubt itself; see `once_step`
"""

from __future__ import annotations

import re
from typing import Any

from durun.errors import PlanRefused, Usage
from durun.machine.draft import uuid5
from durun.machine.outcome import DONE, NOT_CERTAIN, NOT_DONE
from durun.machine.scope import LABEL
from durun.values import NamedTuple

Json = Any

BEGIN, TELL, WAIT, ASK, DOUBT = "begin", "tell", "wait", "ask", "doubt"
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Call(NamedTuple):
    """What a process wants done once."""

    name: str
    argv: list[str]
    attempt: int  # of the step
    idempotent: bool = False
    probe: str | None = None
    undo: str | None = None


class Seen(NamedTuple):
    """What is stored of it. `file` is the one that its process holds locked; `alive`: whether it does."""

    no: int
    status: str
    attempt: int
    argv: list[str]
    file: str
    alive: bool = False


class Said(NamedTuple):
    """What a probe said (no, unknown) of the one that held this file."""

    file: str
    answer: str


def judge(seen: Seen | None, call: Call, said: Said | None = None) -> str:
    """What a call comes to: begin it, tell its record, wait for it, ask its probe, or leave it in doubt. Raises PlanRefused."""
    if seen is None:
        return BEGIN
    if seen.argv != call.argv:
        raise PlanRefused(f"once {call.name} was another command before: {some(seen.argv)}; give this one a name of its own")
    if seen.status == DONE:
        return TELL
    if seen.status in (NOT_DONE, NOT_CERTAIN) and seen.attempt == call.attempt:
        return TELL
    if seen.status == NOT_DONE:
        return BEGIN
    if seen.status == "begin" and seen.alive:
        return WAIT
    answer = said.answer if said is not None and said.file == seen.file else None
    if call.probe is not None and answer is None:
        return ASK
    return BEGIN if answer == "no" or call.idempotent else DOUBT


def some(argv: list[str]) -> str:
    """A command for a message: not all of a long one."""
    text = " ".join(argv)
    return repr(text if len(text) <= 80 else text[:80] + "…")


def named(name: str) -> str:
    """The name, where it can be one. Raises Usage."""
    if not LABEL.fullmatch(name) or any("\ud800" <= c <= "\udfff" for c in name):
        raise Usage(f"{name!a} is no name of a once: 1 to 128 characters of UTF-8, no brackets, no control characters")
    return name


def key_of(step: str, name: str) -> str:
    """The key of a once, from that of its step. One that the plan gives is added to."""
    return uuid5(step.replace("-", ""), f"once/{name}") if UUID.fullmatch(step) else f"{step}/once/{name}"


def undo_key_of(key: str) -> str:
    return uuid5(key.replace("-", ""), "undo") if UUID.fullmatch(key) else f"{key}/undo"


def for_later(call: Call, step: Json, key: str, cwd: str) -> Json:
    """What undoes it and what settles a doubt, frozen: scripts in its directory, with the environment that the plan gave its step.

    What it printed is added as stdin when it is undone.
    """
    open_ = [place for place in step.get("open", []) if place[0][0] == "env"]
    frozen = {"env": {**step["env"], "DURUN_UNDO_KEY": key}, "cwd": cwd, "shell": "sh"}
    frozen |= {"open": open_} if open_ else {}
    frozen |= {"run": step["run"]} if "run" in step else {}
    later: dict[str, Json] = {"undo": {**frozen, "script": call.undo}}
    if call.probe is not None:
        later["probe"] = {**frozen, "script": call.probe, "capture": True}
    return later

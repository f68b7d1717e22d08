"""A person at the terminal is asked there and then, while others may answer too.

An empty line or Ctrl-D leaves the question waiting, Ctrl-C leaves durun. What cannot be an answer is asked again.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any, Protocol

from durun.cli.common import person
from durun.cli.reader import say
from durun.engine import Engine, Signals
from durun.errors import NotPossible, Refusal
from durun.machine import asks
from durun.machine.events import Answer
from durun.machine.model import TERMINAL, Checkpoint, Position
from durun.machine.scope import path_of

Json = Any
LOOK = 0.2  # s between looks at what others say


class Asking(Protocol):
    """What a question needs of the run it is about: an engine, or who only watches."""

    @property
    def at(self) -> Checkpoint: ...
    @property
    def signals(self) -> Signals: ...
    def listen(self) -> bool: ...
    def answered(self, answer: Answer) -> None: ...


def somebody_is_here() -> bool:
    """Whether a person sits at this terminal and talks to durun: what reads in the background is stopped by the system."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def asked_here(engine: Engine, before: Callable[[], None]) -> bool:
    """Asks what stands, with `before` called first. Whether something came of it, so that the run is to be driven on."""
    if engine.at.run.status in TERMINAL or engine.signals.told:
        return False
    standing = asks.standing(engine.at, None)
    if standing:
        before()
    for p in standing:
        if not one(engine, p):
            return False
        if engine.at.positions.get(p.scope) != p:
            return True
    return False


def one(engine: Asking, p: Position) -> bool:
    """Asks one question until it is answered, here or elsewhere. False where it is left waiting."""
    from durun.render.text import question

    path = path_of(p.scope, p.state)
    say(question(p.wants, path))
    while True:
        given = _line(engine, p)
        if given is None:
            return True
        if not given:
            return False
        try:
            answer = _answer(engine, p, given)
            if answer is None:
                return engine.at.positions.get(p.scope) != p
            engine.answered(answer)
            return True
        except NotPossible as e:
            say(str(e))
            return True
        except (Refusal, ValueError) as e:
            say(str(e))


def _answer(engine: Asking, p: Position, given: str) -> Answer | None:
    """What was typed, as an answer; None where the question is gone or left. Raises ValueError."""
    from durun.plan.data import read_json

    near = [option for option in p.wants["options"] if option["name"].lower().startswith(given.lower())]
    exact = [option for option in near if option["name"].lower() == given.lower()]
    if len(exact or near) != 1:
        raise ValueError(f"answer one of {', '.join(option['name'] for option in p.wants['options'])}")
    option = (exact or near)[0]
    data: Json = None
    if "schema" in p.wants and not option["reject"]:
        say("  what is to be filled in, as JSON:")
        text = _line(engine, p)
        if not text:
            return None
        data = read_json(text)
    path = path_of(p.scope, p.state)
    return Answer(path, option["reject"], option["name"], data, digest=p.wants["digest"], by=person())


def _line(engine: Asking, p: Position) -> str | None:
    """A line from the terminal, '' for none; None where the question has gone meanwhile."""
    wake = engine.signals.wake
    while True:
        ready, _, _ = select.select([0] if wake is None else [0, wake], [], [], LOOK)
        if engine.signals.told:
            return ""
        if 0 in ready:
            try:
                return os.read(0, 65536).decode("utf-8", "replace").strip()
            except OSError:  # the terminal is gone
                return ""
        while engine.listen():
            pass
        if engine.at.positions.get(p.scope) != p:
            return None

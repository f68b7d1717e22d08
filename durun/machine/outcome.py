"""How an effect ended: done, not done, or not certain; and what its output is.

Rules:
- done: the exit is one of those expected
- not done: any other exit, or a program that could not be started; where its arguments and its environment are too long for the
  system that is the error `expression`, as one value that is too long for them
- not certain: it was ended by a signal, a timeout or a silence; or a script gave the shell's word for a signal (129 to 159)
- what durun ended but ended well all the same is done
- nothing is ever cut and then used
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

from durun.errors import ExpressionError
from durun.machine.events import CouldNotStart, Ended
from durun.plan.canonical import State
from durun.plan.data import read_json
from durun.values import NamedTuple

Json = Any

DONE, NOT_DONE, NOT_CERTAIN, IN_DOUBT = "done", "not_done", "not_certain", "in_doubt"


class Outcome(NamedTuple):
    how: str
    name: str = ""
    message: str = ""
    exit: int | None = None


class OutputError(Exception):
    """An output that cannot be used: `name` is output_invalid or output_too_large."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message


def signal_name(number: int) -> str:
    """KILL for 9; the number where the system has no name for it."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def of_command(state: State, ended: Ended) -> Outcome:
    """How this end of a command counts. A disk that was full then is named, without a guess at what it did."""
    outcome = _of_command(state, ended)
    if ended.low and outcome.how != DONE:
        return outcome._replace(message=f"{outcome.message}; less than 16 MiB was free on the disk of its logs when it ended")
    return outcome


def _of_command(state: State, ended: Ended) -> Outcome:
    exit = ended.status if ended.status >= 0 else None
    if exit is not None and exit in state.get("expect", [0]):
        return Outcome(DONE, exit=exit)
    if ended.stopped == "timeout":
        return Outcome(NOT_CERTAIN, "timeout", "it was stopped: its time was over", exit)
    if ended.stopped == "heartbeat":
        return Outcome(NOT_CERTAIN, "heartbeat", "it was stopped: it gave no sign of life", exit)
    if exit is None:
        name = signal_name(-ended.status)
        return Outcome(NOT_CERTAIN, f"killed:{name}", f"it was ended by the signal {name}")
    if ended.stopped:
        return Outcome(NOT_CERTAIN, f"exit:{exit}", f"it was stopped, and ended with exit {exit}", exit)
    shell = "script" in state.get("act", {})
    return Outcome(NOT_CERTAIN if shell and 129 <= exit <= 159 else NOT_DONE, f"exit:{exit}", f"exit {exit}", exit)


def of_no_start(event: CouldNotStart, request: Json = None) -> Outcome:
    """`request`: what was to be started, so that its program is named."""
    if event.errno == errno.E2BIG:
        return Outcome(NOT_DONE, "expression", event.why or f"it could not be started: {os.strerror(event.errno)}")
    what = event.what
    if what == "program" and request is not None:
        what = request["argv"][0] if request.get("argv") else request.get("shell", what)
    return Outcome(NOT_DONE, "not_found", f"it could not be started: {what}: {os.strerror(event.errno)}")


def output_of(state: State, event: Ended) -> Json:
    """What the command gave, by its `$DURUN_OUTPUT` or its declared output; null where neither is. Raises OutputError."""
    if event.secret:
        raise OutputError("output_invalid", f"its output holds the secret {event.secret}, and data is never changed in silence")
    if event.too_large:
        raise OutputError("output_too_large", "its output is over 16 MiB; give a path to a file instead")
    declared = state.get("output")
    if event.data is not None:
        value = _json(event.data, "$DURUN_OUTPUT")
    elif declared is None:
        return None
    else:
        value = _by_format(declared["format"], event.stdout or b"")
    return fitting(state, value)


def output_of_text(state: State, raw: bytes, where: str) -> Json:
    """What a text gives that stands for the stdout of a state with a declared output. Raises OutputError."""
    return fitting(state, _by_format(state["output"]["format"], raw, where))


def given_by_hand(state: State, value: Json) -> Json:
    """What a person says that it gave, where it is of the declared format and fits its schema. Raises OutputError."""
    format = state["output"]["format"] if "output" in state else "json"
    if format == "text" and not isinstance(value, str):
        raise OutputError("output_invalid", f"its output is a text: a JSON string, not {_kind(value)}")
    if format == "lines" and not (isinstance(value, list) and all(isinstance(line, str) for line in value)):
        raise OutputError("output_invalid", "its output is lines: a JSON list of strings, and nothing else")
    return fitting(state, value)


def _kind(value: Json) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else "a number"


def fitting(state: State, value: Json) -> Json:
    """The value, where the schema of the state's output takes it. Raises OutputError."""
    declared = state.get("output")
    if declared is not None and "schema" in declared:
        from durun.plan.schema import validate

        problem = validate(declared["schema"], value)
        if problem is not None:
            raise OutputError("output_invalid", f"its output does not fit the schema: {problem}")
    return value


def _by_format(format: str, raw: bytes, where: str = "stdout") -> Json:
    if format == "json":
        return _json(raw, where)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise OutputError("output_invalid", f"its output is no UTF-8 text at byte {e.start}") from None
    if "\0" in text:
        raise OutputError("output_invalid", "its output holds a NUL byte, so it is no text")
    if format == "lines":
        lines = text.split("\n")
        return lines[:-1] if lines[-1] == "" else lines
    return text.removesuffix("\n")


def _json(raw: bytes, where: str) -> Json:
    try:
        return read_json(raw)
    except (ValueError, ExpressionError) as e:
        raise OutputError("output_invalid", f"{where} holds no JSON: {e}") from None

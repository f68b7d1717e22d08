"""`durun once`: a command of a step that is done once, whatever becomes of the step."""

from __future__ import annotations

import os
import sys
import time
from shlex import quote as quoted

from durun.cli.common import now, opened
from durun.cli.reader import say
from durun.effects import once as effect
from durun.effects.locks import once_alive
from durun.errors import NotNow, PlanRefused, StoreUnusable, Usage
from durun.machine import once as rules
from durun.machine.outcome import DONE, NOT_CERTAIN, NOT_DONE, signal_name
from durun.store import read
from durun.store.calls import Calls, Found, Record, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

TOLD = ("RUN_ID", "DB", "STATE", "VISIT", "ATTEMPT", "IDEMPOTENCY_KEY")
LOOK = 0.02  # s between looks at a call that is under way elsewhere


def once(name: str, command: list[str], *, idempotent: bool = False, probe: str | None = None, undo: str | None = None) -> int:
    """Inside a step, do a command once: later calls of any attempt print what it printed, and exit alike.

    A failure is begun again, with the same key, by a later attempt. Where nobody knows whether it happened, the probe is asked, or
    it is begun again if it is idempotent; else nothing is begun, and the exit is 75.
    """
    step = _step()
    file = opened(None)
    call = rules.Call(rules.named(name), _words(command), step.attempt, idempotent, probe, undo)
    calls = Calls(file, step, lambda held: once_alive(file.folder, held))
    mask = _mask(calls, calls.current())
    hidden = mask.holder(*(os.fsencode(text) for text in (name, *command, probe or "", undo or "")))
    if hidden:
        raise PlanRefused(f"once {name}: the secret {hidden} is in the call, and none is ever stored: pass it by the environment")
    return _act(calls, call, mask)


def _step() -> Step:
    """The attempt of a step that this process belongs to, as its environment says. Raises Usage."""
    told = {word: os.environ.get(f"DURUN_{word}", "") for word in TOLD}
    missing = [f"DURUN_{word}" for word, value in told.items() if not value]
    if missing:
        raise Usage(f"`durun once` works inside the command of a step, where {', '.join(missing)} would be set")
    if not all(told[word].isdecimal() and len(told[word]) < 16 for word in ("VISIT", "ATTEMPT")):
        raise Usage("DURUN_VISIT and DURUN_ATTEMPT are numbers: leave them as durun set them")
    if told["STATE"].endswith("~undo"):
        raise Usage(f"{told['STATE']} is an undo: `durun once` works inside steps alone")
    return Step(told["RUN_ID"], told["STATE"], int(told["VISIT"]), int(told["ATTEMPT"]), told["IDEMPOTENCY_KEY"])


def _words(command: list[str]) -> list[str]:
    try:
        "\0".join(command).encode("utf-8")
    except UnicodeEncodeError as e:
        raise Usage(f"{e.object[:60]!a} is no UTF-8 text, and a command is stored as text") from None
    if not command[0]:
        raise Usage("the command is an empty word")
    return command


def _mask(calls: Calls, found: Found) -> Any:
    """What knows the values of the run's secrets, as far as this process can read them."""
    specs, directory = read.secrets(calls.file, found.run)
    if not specs:
        return NoMask()
    from durun.effects.secrets import Secrets

    secrets = Secrets(specs, directory)
    secrets.learn()
    for (word, variable, *_), parts in found.request.get("open", []):
        if word == "env" and variable in os.environ:
            secrets.mask.learn(next(part["secret"] for part in parts if not isinstance(part, str)), os.environ[variable])
    return secrets.mask


class NoMask:
    """Where a run has no secrets nothing can hold one, and nothing is imported to look for it."""

    def holder(self, *_data: bytes | None) -> str:
        return ""


def _act(calls: Calls, call: rules.Call, mask: Any) -> int:
    """Does what the call comes to, as often as it comes to something else meanwhile."""
    said: rules.Said | None = None
    while True:
        verdict, seen = calls.look(call, said)
        if verdict == rules.BEGIN:
            ended = _begin(calls, call, said, seen, mask)
            if ended is not None:
                return ended
        elif verdict == rules.DOUBT:
            if calls.doubt(call, said, now()) == rules.DOUBT:
                return _in_doubt(calls.step, call, calls.current())
        elif seen is not None and verdict == rules.TELL:
            return _tell(call, calls.record(calls.current().run, seen.no))
        elif seen is not None and verdict == rules.WAIT:
            while once_alive(calls.file.folder, seen.file):
                time.sleep(LOOK)
        elif seen is not None:
            said = _ask(calls, call, seen, mask)


def _begin(calls: Calls, call: rules.Call, said: rules.Said | None, seen: rules.Seen | None, mask: Any) -> int | None:
    """Begins the command, and records its end. None where it is not to begin any more."""
    key, cwd, output = rules.key_of(calls.step.key, call.name), _directory(call), _output(calls)
    try:
        begun = calls.begin(call, said, output.name, cwd, now())
        if begun is None:
            return None
        if seen is not None:
            effect.forget(calls.file.folder, seen.file)
        try:
            end = effect.run(call.argv, output, {**os.environ, "DURUN_IDEMPOTENCY_KEY": key})
            record = _record(end, mask)
            recorded = calls.ended(*begun, output.name, record, now())
        except (StoreUnusable, OSError) as e:
            raise StoreUnusable(_unrecorded(calls.step, call, e)) from None
        if not recorded:
            raise NotNow(f"run {calls.step.run}: once {call.name} was settled by somebody else meanwhile")
    finally:
        output.drop()
    return _tell(call, record, fresh=True)


def _output(calls: Calls) -> effect.Output:
    try:
        return effect.Output(calls.file.folder)
    except OSError as e:
        where = f"{calls.file.folder} cannot be used: {os.strerror(e.errno or 0)}"
        raise StoreUnusable(f"run {calls.step.run}: {where}: nothing was begun; mend that, then the same again") from None


def _directory(call: rules.Call) -> str:
    try:
        return os.getcwd()
    except OSError:
        raise Usage(
            f"once {call.name}: the working directory is gone, and nothing was begun: call it in one that is there"
        ) from None


def _unrecorded(step: Step, call: rules.Call, error: StoreUnusable | OSError) -> str:
    """Of a command that has ended, and nobody will know how."""
    later = "its probe is asked" if call.probe else "it is begun again, with the same key"
    if not (call.probe or call.idempotent):
        later = "a person is asked what happened"
    why = error.strerror if isinstance(error, OSError) else str(error).partition(": nothing more is begun")[0]
    said = f"run {step.run}: once {call.name} of {step.path} has ended, and how could not be recorded ({why})"
    return f"{said}: mend that, then `durun resume {step.run}`; in a later attempt {later}"


def _record(end: effect.End, mask: Any) -> Record:
    """What is recorded of an end. Only an exit of 0 is final; nothing is ever cut and then told."""
    if end.errno:
        error = {"name": "not_found", "message": f"it could not be started: {os.strerror(end.errno)}"}
        return Record(NOT_DONE, end.status, error, b"")
    unusable = None
    if end.stdout is None:
        unusable = {"name": "output_too_large", "message": "its output is over 16 MiB; give a path to a file instead"}
    elif hidden := mask.holder(end.stdout):
        unusable = {"name": "output_invalid", "message": f"its output holds the secret {hidden}, and none is ever stored"}
    if end.status == 0:
        return Record(DONE, 0, unusable, None if unusable else end.stdout)
    stdout = b"" if unusable else end.stdout
    if end.status < 0:
        name = signal_name(-end.status)
        return Record(NOT_CERTAIN, None, {"name": f"killed:{name}", "message": f"it was ended by the signal {name}"}, stdout)
    how = NOT_CERTAIN if 129 <= end.status <= 159 else NOT_DONE  # a shell's word for a signal
    return Record(how, end.status, {"name": f"exit:{end.status}", "message": f"exit {end.status}"}, stdout)


def _tell(call: rules.Call, record: Record, *, fresh: bool = False) -> int:
    """Prints what was recorded, and exits as it did."""
    sys.stdout.flush()
    if record.stdout:
        sys.stdout.buffer.write(record.stdout)
    if record.status == DONE:
        if record.stdout is None:
            say(f"once {call.name} is done, but {record.error['message']}")
            return 1
        return 0
    if not fresh:
        say(f"once {call.name} has failed in this attempt ({record.error['message']}): a later one begins it again")
    elif record.error["name"] == "not_found":
        say(f"once {call.name}: {record.error['message']}")
    return record.exit if record.exit is not None else 128 + _number(record.error["name"])


def _number(name: str) -> int:
    import signal

    word = name.removeprefix("killed:")
    return int(word) if word.isdigit() else int(signal.Signals[f"SIG{word}"])


def _in_doubt(step: Step, call: rules.Call, found: Found) -> int:
    """Nobody knows whether it happened: a person must say, unless the step goes on without it."""
    path, left = quoted(f"{step.path}/once:{call.name}"), f"{step.run}:{found.no}"
    ways = f"durun resolve {step.run} {path} --happened | --retry | --fail"
    if not found.awaited:
        ways = f"durun outbox retry {left} --new-key | durun outbox drop {left}"
    raise NotNow(
        f"run {step.run}: whether once {call.name} of {step.path} happened is not known, nothing was begun; when the step has"
        f" failed: {ways}"
    )


def _ask(calls: Calls, call: rules.Call, seen: rules.Seen, mask: Any) -> rules.Said | None:
    """Asks the probe what became of it: yes is recorded at once, with what the probe printed."""
    key, output = rules.key_of(calls.step.key, call.name), _output(calls)
    try:
        argv = ["/bin/sh", "-eu", "-c", str(call.probe), "durun"]
        end = effect.run(argv, output, {**os.environ, "DURUN_IDEMPOTENCY_KEY": key})
    finally:
        output.drop()
    if end.status != 0 or end.errno:
        return rules.Said(seen.file, "no" if end.status == 1 else "unknown")
    calls.ended(calls.current().run, seen.no, seen.file, _record(end, mask), now())
    effect.forget(calls.file.folder, seen.file)
    return None

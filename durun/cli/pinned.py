"""What a run takes with it, gathered at its start; what is different now, said at each resume."""

from __future__ import annotations

import os
from collections.abc import Callable

from durun import outbox
from durun.cli.common import person
from durun.cli.reader import say
from durun.engine import tools_now
from durun.errors import PlanRefused
from durun.plan.canonical import tools_of, trees_of
from durun.store.runs import Birth, Pinned, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from durun.engine import Engine
    from durun.plan.canonical import Plan
    from durun.plan.load import Loaded

    Json = Any


# --- at the start ---


def with_files(birth: Birth, loaded: Loaded) -> Birth:
    """The birth with the content of the pinned files, and the digests of the plans that are called. Raises PlanRefused."""
    pins = {**birth.pins, "texts": {**birth.pins["texts"], **loaded.called}}
    if not loaded.pinned:
        return birth._replace(pins=pins)
    from durun.plan.digest import digest
    from durun.plan.files import contents

    trees = {digest(manifest): manifest for _, manifest in loaded.pinned}
    files = contents(loaded.pinned)
    _hold_no_secret(loaded, files, birth.directory)
    return birth._replace(pins={**pins, "trees": trees_of(loaded.plan)}, trees=trees, files=files)


def _hold_no_secret(loaded: Loaded, files: dict[str, bytes], directory: str) -> None:
    """Raises PlanRefused where a file that would be stored holds the value of a secret."""
    specs = loaded.plan.get("secrets", [])
    if not specs:
        return
    from durun.effects.secrets import Secrets

    secrets = Secrets(specs, directory)
    secrets.learn()
    for _, manifest in loaded.pinned:
        for path, (of, _) in manifest.items():
            if hidden := secrets.mask.holder(files[str(of)]):
                raise PlanRefused(f"pins.files: {path} holds the secret {hidden}, and none is ever stored; nothing was changed")


def words_of(plan: Plan, base: dict[str, str], env: dict[str, str], directory: str) -> Json:
    """What the tools of a plan say of themselves; None where it pins none. Raises PlanRefused where one says nothing."""
    tools = tools_of(plan)
    if not tools:
        return None
    words = _asked(tools, plan, base, env, directory)
    silent = [f"{name}: {word['failed']}" for name, word in words.items() if "failed" in word]
    if silent:
        raise PlanRefused(f"pins.tools: {'; '.join(silent)}; nothing was changed")
    return words


def _asked(tools: Json, plan: Plan, base: dict[str, str], env: dict[str, str], directory: str) -> dict[str, Json]:
    from durun.effects.tools import asked, without_secrets

    return without_secrets(asked(tools, *outbox.environment(plan, base, env), directory), plan.get("secrets", []), directory)


# --- at a resume ---


def changes(pinned: Pinned, since: int) -> str:
    """What differs on disk from what a run took with it when it was born, in words; '' where nothing does."""
    from durun.cli import disk

    files: dict[str, str] = {}
    if "trees" in pinned.pins:
        from durun.plan.canonical import plans_of

        for file, plan in plans_of(pinned.plan):
            for path, (digest, _) in plan["pins"].get("files", {}).items():
                files[os.path.normpath(os.path.join(os.path.dirname(file), path))] = digest
    return disk.changes(pinned.file, pinned.directory, pinned.pins.get("texts", {}), files, since)


def ask_tools(engine: Engine, pinned: Pinned, *, accept: bool) -> Callable[[], None]:
    """Asks the tools of a run that is taken up; what that leads to is done by the call that is given back, once it is taken up."""
    from durun.machine.events import AcceptDrift

    run = engine.at.run
    event = tools_now(pinned, run) if accept or run.undoing is None else None
    if accept and event is not None and event.found:
        engine.move(AcceptDrift(event.found, event.words, person()))
        return lambda: None
    if accept:
        say(f"run {run.id}: nothing of it has drifted")
    if event is None or (not event.found and run.drift is None):
        return lambda: None
    if not event.found:
        engine.move(event)
        return lambda: None
    engine.hold = True

    def told() -> None:
        engine.hold = False
        engine.move(event)

    return told


def word_of_drift(store: Store, no: int, *, accept: bool) -> tuple[str, Json]:
    """(kind, data) of the note for the driver that sits a drift out: what the tools say now, accepted or not."""
    event = tools_now(store.pinned(no), store.load(no).run)
    if event is None:
        return "resume", {}
    return ("accept_drift" if accept else "drifted"), {"found": event.found, "words": event.words}

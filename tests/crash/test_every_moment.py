"""kill -9 at every moment of a plan with retries, a loop, a choice, a timer and a caught error.

Every moment is enumerated: before and after each commit, each begin, each end heard, each intent recovered. Three ways to die:
the driver alone, the driver and its keeper, and these two with the command. Afterwards each effect has happened as often as it
would have without a crash, or a person was asked and answers by what the ledger says.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from harness import Died, Driving, Moments

from durun.engine import real_world
from durun.machine.events import Resolve
from durun.machine.model import Phase, Status
from durun.store.audit import audit

PLAN = """
durun: 1
name: every-moment
pins: {env: [LEDGER]}
vars: {i: 0, why: none}
output: '${{ {"i": vars.i, "why": vars.why} }}'
start: more
states:
  more:
    choice:
      - {when: vars.i < 2, next: work}
      - {next: rest}
  work:
    run: 'echo "work-$DURUN_VISIT $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'
    assign: {i: '${{ vars.i + 1 }}'}
    next: more
  rest: {wait: 30ms, next: flaky}
  flaky:
    run: 'echo "flaky-$DURUN_ATTEMPT $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; n=$(grep -c ^flaky "$LEDGER"); test "$n" -ge 3'
    retry: {max_attempts: 5, initial_interval: 10ms, backoff: 1, jitter: none}
    next: breaks
  breaks:
    run: 'echo "breaks $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; exit 7'
    catch: [{on: ['exit:7'], assign: {why: '${{ error.name }}'}, next: sums}]
    next: failed
  sums:
    run: 'echo "sums $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; echo 42'
    output: json
    next: succeeded
"""
WORDS = {"work-1": 1, "work-2": 1, "flaky": 3, "breaks": 1, "sums": 1}
DEATHS = {
    "driver": {},
    "driver and keeper": {"keeper": True},
    "driver, keeper and command": {"keeper": True, "commands": True},
}


def words(ledger: Path) -> Counter[str]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Counter(line.split()[0].split("-")[0] if line.startswith("flaky") else line.split()[0] for line in lines)


def keys(ledger: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in ledger.read_text().splitlines():
        word, key = line.split()
        found.setdefault(word.split("-")[0] if word.startswith("flaky") else word, set()).add(key)
    return found


def life(folder: Path, at: int | None, death: dict[str, bool]) -> tuple[Moments, int]:
    """A run whose driver dies at one moment, and is taken up by others until it ends. How often a person was asked."""
    ledger, moments = folder / "ledger", Moments(at)
    driving = Driving(folder, moments=moments)
    try:
        engine = driving.start(PLAN, env={"LEDGER": str(ledger)})
        engine.drive()
        driving.leave()
        return moments, 0
    except Died:
        driving.die(**death)
    return moments, finish(folder, ledger)


def finish(folder: Path, ledger: Path) -> int:
    """Others take the run up until it has ended; a person who is asked looks into the ledger."""
    asked = 0
    for _ in range(10):
        driving = Driving(folder)
        broken = audit(driving.file).broken  # what a death leaves is whole
        assert not broken, broken
        if driving.store.id_of("run") is None:
            engine = driving.start(PLAN, env={"LEDGER": str(ledger)})
        else:
            engine = driving.take()
        engine.drive()
        status = engine.at.run.status
        if status is Status.BLOCKED:
            asked += 1
            answer(engine, ledger)
        driving.leave()
        if status is Status.SUCCEEDED:
            assert engine.at.run.output == {"i": 2, "why": "exit:7"}
            return asked
    raise AssertionError(f"the run never ended: it is {status}")


def answer(engine, ledger: Path) -> None:
    """A person says what the ledger says."""
    (position,) = engine.at.positions.values()
    assert position.phase is Phase.DOUBT
    key = engine.at.effects[position.effect].key
    attempt = engine.at.effects[position.effect].attempt
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    mine = [line for line in lines if line.endswith(key)]
    happened = any(line.startswith(f"flaky-{attempt} ") for line in mine) if position.state == "flaky" else bool(mine)
    fails = position.state == "breaks" or (position.state == "flaky" and words(ledger)["flaky"] < 3)
    engine.hold = True
    if not happened or (fails and position.state == "flaky"):
        engine.move(Resolve("retry"))
    elif fails:
        # it happened and would have failed: its catch takes exit:7 alone, so a person lets it run to that end again
        ledger.write_text("".join(f"{line}\n" for line in lines if not line.endswith(key)))
        engine.move(Resolve("retry"))
    else:
        engine.move(Resolve("happened", output=42 if position.state == "sums" else None, has_output=position.state == "sums"))


def count(tmp_path: Path) -> int:
    folder = tmp_path / "count"
    folder.mkdir()
    return life(folder, None, {})[0].seen


@pytest.mark.parametrize("death", DEATHS)
def test_a_run_survives_a_kill_at_every_moment(tmp_path: Path, death: str) -> None:
    total = count(tmp_path)
    assert total >= 45, "the plan has fewer moments than it should"
    asked = 0
    for at in range(total):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        moments, times = life(folder, at, DEATHS[death])
        asked += times
        place = f"killed ({death}) at moment {at}, {moments.names[-1]}"
        assert words(folder / "ledger") == WORDS, f"{place}: {words(folder / 'ledger')}"
        assert all(len(found) == 1 for found in keys(folder / "ledger").values()), f"{place}: an effect changed its key"
    if death == "driver":
        assert asked == 0, "the keeper lives, so nothing is ever in doubt"


def test_a_run_survives_a_driver_that_dies_again_and_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    for at in range(400):
        driving = Driving(tmp_path, moments=Moments(at % 9 + 1))
        try:
            engine = driving.take() if driving.store.id_of("run") else driving.start(PLAN, env={"LEDGER": str(ledger)})
            engine.drive()
        except Died:
            driving.die()
            continue
        driving.leave()
        break
    else:
        raise AssertionError("it never came to its end")
    assert engine.at.run.status is Status.SUCCEEDED
    assert words(ledger) == WORDS


def test_nothing_is_left_running(tmp_path: Path) -> None:
    life(tmp_path, 20, {})
    marks = [p for p in Path("/proc").iterdir() if p.name.isdigit() and int(p.name) != os.getpid()]
    left = []
    for p in marks:
        try:
            if str(tmp_path).encode() in (p / "cmdline").read_bytes():
                left.append(p.name)
        except OSError:
            continue
    assert not left


def test_a_request_in_the_socket_of_a_dead_driver_is_begun_once_by_the_next(tmp_path: Path) -> None:
    """The first keeper is stopped with the request unread; the second driver begins it; then the first goes on."""
    ledger = tmp_path / "ledger"
    first = Driving(tmp_path)
    os.kill(first.commands.pid, signal.SIGSTOP)
    first.start(PLAN, env={"LEDGER": str(ledger)})
    first.die()
    second = Driving(tmp_path)
    engine = second.take()
    engine.recover()
    os.kill(first.commands.pid, signal.SIGCONT)
    engine.drive()
    second.leave()
    assert os.waitpid(first.commands.pid, 0)[1] == 0
    assert engine.at.run.status is Status.SUCCEEDED and words(ledger) == WORDS


def test_after_another_boot_an_end_that_was_noted_is_taken(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    first = Driving(tmp_path)
    first.start(PLAN, env={"LEDGER": str(ledger)})
    journal = Path(f"{first.path}.d/{first.commands.place}/journal")
    while journal.read_bytes().count(b"\n") < 3:
        time.sleep(0.01)
    first.die(keeper=True, commands=True)
    second = Driving(tmp_path, world=real_world()._replace(boot="another boot"))
    engine = second.take()
    engine.drive()
    second.leave()
    assert engine.at.run.status is Status.SUCCEEDED and words(ledger) == WORDS


@pytest.mark.parametrize("gone", ["journal", "place"])
def test_where_the_notes_are_gone_the_effect_is_in_doubt(tmp_path: Path, gone: str) -> None:
    ledger = tmp_path / "ledger"
    first = Driving(tmp_path)
    first.start(PLAN, env={"LEDGER": str(ledger)})
    first.die(keeper=True, commands=True)
    place = Path(first.path + ".d") / first.commands.place
    if gone == "journal":
        (place / "journal").unlink()
    else:
        shutil.rmtree(place)
    second = Driving(tmp_path)
    engine = second.take()
    engine.drive()
    assert (engine.at.run.status, engine.at.run.reason) == (Status.BLOCKED, "in_doubt")
    second.leave()


def test_an_intent_of_another_boot_is_in_doubt_though_no_note_says_that_it_began(tmp_path: Path) -> None:
    """Notes are not synced, so after a reboot a missing one proves nothing."""
    first = Driving(tmp_path)
    os.kill(first.commands.pid, signal.SIGSTOP)
    first.start(PLAN, env={"LEDGER": str(tmp_path / "ledger")})
    first.die(keeper=True)
    second = Driving(tmp_path, world=real_world()._replace(boot="another boot"))
    engine = second.take()
    engine.drive()
    assert (engine.at.run.status, engine.at.run.reason) == (Status.BLOCKED, "in_doubt")
    second.leave()

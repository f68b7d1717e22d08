"""What of a run's time is counted when its driver dies: with real keepers and commands, and a clock that the test can move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Driving
from program import until

from durun.effects.boot import awake_ms, boot_id
from durun.effects.notes import Notes
from durun.engine import World
from durun.machine.model import Status

HOUR = 3_600_000
PLAN = """
durun: 1
name: driven
timeout: 1h
pins: {env: [LEDGER]}
start: a
states:
  a: {run: 'echo a >> "$LEDGER"; WORK', idempotent: true, retry: {max_attempts: 9, initial_interval: 1ms}, next: succeeded}
"""


class Ahead:
    """A clock that runs, and that the test puts forward."""

    def __init__(self) -> None:
        self.by = 0

    def __call__(self) -> int:
        return awake_ms() + self.by


@pytest.fixture
def ahead() -> Ahead:
    return Ahead()


@pytest.fixture
def world(ahead: Ahead) -> World:
    return World(boot=boot_id(), awake=ahead)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever a test left going is let go on to its end."""
    yield
    (tmp_path / "go").touch()


def begun(folder: Path, world: World, work: str) -> Driving:
    driving = Driving(folder, world=world)
    driving.start(PLAN.replace("WORK", work.replace("GO", str(folder / "go"))), env={"LEDGER": str(folder / "ledger")})
    until((folder / "ledger").exists)
    return driving


WAITS = "while [ ! -e GO ]; do sleep 0.02; done"


def test_time_in_which_nobody_drove_and_nothing_ran_is_not_counted(tmp_path: Path, world: World, ahead: Ahead) -> None:
    begun(tmp_path, world, WAITS).die(keeper=True, commands=True)
    (tmp_path / "go").touch()
    ahead.by += 2 * HOUR
    later = Driving(tmp_path, world=world)
    later.take().drive()
    assert later.engine is not None and later.engine.at.run.status is Status.SUCCEEDED
    assert later.engine.at.run.driven < HOUR
    later.leave()


def test_time_up_to_the_last_sign_of_the_dead_driver_is_counted(tmp_path: Path, world: World, ahead: Ahead) -> None:
    driving = begun(tmp_path, world, WAITS)
    ahead.by += 2 * HOUR
    assert driving.engine is not None
    driving.engine._sign()
    driving.die(keeper=True, commands=True)
    ahead.by += HOUR
    later = Driving(tmp_path, world=world)
    later.take().drive()
    assert later.engine is not None and later.engine.at.run.error["name"] == "run_timeout"
    assert 2 * HOUR <= later.engine.at.run.driven < 3 * HOUR
    later.leave()


def test_a_command_that_ended_after_its_driver_is_counted_to_its_end_and_not_beyond(
    tmp_path: Path, world: World, ahead: Ahead
) -> None:
    driving = begun(tmp_path, world, "sleep 0.7")
    driving.die()
    notes = Notes(str(tmp_path / "runs.db.d"), driving.commands.place)
    until(lambda: not notes.keeper_alive())
    ahead.by += 2 * HOUR
    later = Driving(tmp_path, world=world)
    later.take().drive()
    assert later.engine is not None and later.engine.at.run.status is Status.SUCCEEDED
    assert 600 <= later.engine.at.run.driven < HOUR
    assert (tmp_path / "ledger").read_text() == "a\n"
    later.leave()


def test_a_command_that_still_runs_has_used_the_time_and_is_stopped_when_there_is_none_left(
    tmp_path: Path, world: World, ahead: Ahead
) -> None:
    begun(tmp_path, world, WAITS).die()
    ahead.by += 2 * HOUR
    later = Driving(tmp_path, world=world)
    later.take().drive()
    assert later.engine is not None
    run = later.engine.at.run
    assert (run.status, run.error["name"]) == (Status.FAILED, "run_timeout") and run.driven >= 2 * HOUR
    assert later.engine.at.effects[1].status == "not_certain"
    later.engine.take_up()
    (tmp_path / "go").touch()
    later.engine.drive()
    assert later.engine.at.run.status is Status.SUCCEEDED
    later.leave()


def test_waits_set_in_another_boot_are_bound_to_this_one_once(tmp_path: Path) -> None:
    plan = "durun: 1\nname: driven\nstart: a\nstates: {a: {wait: 300ms, next: succeeded}}\n"
    now = [10**12]
    before = Driving(tmp_path, world=World(now=lambda: now[0], boot="before"))
    before.start(plan)
    before.die(keeper=True)
    now[0] -= HOUR  # and it stands still: only the clock of the boot can bring the wait to its end
    later = Driving(tmp_path, world=World(now=lambda: now[0], boot="after"))
    later.take().drive()
    assert later.engine is not None and later.engine.at.run.status is Status.SUCCEEDED
    later.leave()

"""kill -9 at every moment of a plan of requests, towards a far side that honours keys.

The moments are those of the driver (each commit, begin, end and recovery), and of each request itself: before and after its
begin is noted, with the connection standing and nothing sent. However often it dies, the far side has done each thing once, no
request changed its key, and where nobody could know a person was asked.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import Died, DrivingRequests, Moments
from receiver import Receiver, answer, drop

from durun.errors import Superseded
from durun.machine.events import Resolve
from durun.machine.model import Phase, Status

PLAN = """
durun: 1
name: requests
pins: {env: [URL]}
vars: {at: 0}
output: '${{ {"paid": states.pay.output.status, "at": vars.at} }}'
start: pay
states:
  pay:
    http: {method: POST, url: '${{ pins.env.URL }}/pay', json: {amount: 5}}
    next: put
  put:
    http: {method: PUT, url: '${{ pins.env.URL }}/put', body: x}
    next: asked
  asked:
    http: {method: POST, url: '${{ pins.env.URL }}/asked'}
    probe: {http: {url: '${{ pins.env.URL }}/was/${{ key }}'}}
    next: flaky
  flaky:
    http: {method: POST, url: '${{ pins.env.URL }}/flaky'}
    idempotent: true
    retry: {on: ['http:503', network], max_attempts: 9, initial_interval: 10ms, jitter: none}
    next: poll
  poll:
    http: {url: '${{ pins.env.URL }}/jobs?after=${{ vars.at }}'}
    poll: {until: output.json.at >= 2, every: 5ms, for: 1m}
    assign: {at: '${{ output.json.at }}'}
    next: succeeded
"""
PATHS = ["/pay", "/put", "/asked", "/flaky"]


class Far(Receiver):
    """Honours keys: the same key gets the same answer, and its work is done once. /flaky is busy twice, then drops once."""

    def _next(self, came: Any) -> Any:
        with self.lock:
            self.came.append(came)
            times = len([c for c in self.came if c.path == came.path])
        if came.path.startswith("/was/"):
            return answer(200 if came.path[5:] in self.done else 404)
        if came.path.startswith("/jobs"):
            return poll_answer(int(came.path.split("=")[1]) + 1)
        if came.path == "/flaky" and times < 3:
            return answer(503)
        if came.path == "/flaky" and times == 3:
            return drop(after=True)
        return answer(200)


def poll_answer(at: int) -> Any:
    return lambda h: h.send(200, b'{"at": %d}' % at, {"Content-Type": "application/json"})


def life(folder: Path, far: Far, at: int | None) -> tuple[Moments, list[str]]:
    """A run whose driver dies at one moment, taken up by others until it ends; the states a person was asked about."""
    moments, asked = Moments(at), []
    for n in range(20):
        driving = DrivingRequests(folder, moments=moments if n == 0 else Moments())
        try:
            there = driving.store.id_of("run") is not None
            engine = driving.take() if there else driving.start(PLAN, env={"URL": far.url})
            engine.drive()
        except Died:
            driving.die()
            continue
        status = engine.at.run.status
        if status is Status.BLOCKED:
            (position,) = engine.at.positions.values()
            assert position.phase is Phase.DOUBT
            asked.append(position.state)
            assert position.effect is not None
            engine.hold = True
            engine.move(
                Resolve("happened" if engine.at.effects[position.effect].key in far.done else "retry", output={"status": 200})
            )
        driving.leave()
        if status is Status.SUCCEEDED:
            assert engine.at.run.output == {"paid": 200, "at": 2}
            return moments, asked
    raise AssertionError("the run never ended")


def test_a_run_of_requests_survives_a_kill_at_every_moment(tmp_path: Path) -> None:
    total, asked = 0, set()
    for at in (None, *range(200)):
        if at is not None and at >= total:
            break
        folder, far = tmp_path / f"{at}", Far()
        folder.mkdir()
        try:
            moments, states = life(folder, far, at)
        finally:
            far.close()
        total = total or moments.seen
        where = f"killed at moment {at}, {moments.names[-1]}"
        for path in PATHS:
            keys = {came.key for came in far.came if came.path == path}
            assert len(keys) == 1, f"{where}: {path} changed its key"
            assert far.done.count(*keys) == 1, f"{where}: {path} was done {far.done.count(*keys)} times"
        assert len([c for c in far.came if c.path == "/pay"]) <= (2 if "pay" in states else 1), (
            f"{where}: /pay was sent again unasked"
        )
        asked |= set(states)
    assert total >= 40, "the plan has fewer moments than it should"
    assert asked == {"pay"}, "only what can neither be repeated nor probed is asked about"


@pytest.mark.parametrize("gone", ["requests", "place"])
def test_where_the_notes_of_a_request_are_gone_it_is_in_doubt(tmp_path: Path, gone: str) -> None:
    far = Far()
    first = DrivingRequests(tmp_path, moments=Moments(3))
    with pytest.raises(Died):
        first.start(PLAN, env={"URL": far.url}).drive()
    first.die(keeper=True)
    place = Path(first.path + ".d") / first.commands.place
    shutil.rmtree(place) if gone == "place" else (place / "requests").unlink()
    second = DrivingRequests(tmp_path)
    engine = second.take()
    engine.drive()
    assert (engine.at.run.status, engine.at.run.reason) == (Status.BLOCKED, "in_doubt")
    second.leave()
    far.close()


def test_a_request_of_another_boot_is_in_doubt_though_no_note_says_that_it_began(tmp_path: Path) -> None:
    far = Far()
    first = DrivingRequests(tmp_path, moments=Moments(2))
    with pytest.raises(Died):
        first.start(PLAN, env={"URL": far.url}).drive()
    first.die()
    assert not far.came
    second = DrivingRequests(tmp_path, world=first.world._replace(boot="another boot"))
    engine = second.take()
    engine.drive()
    assert (engine.at.run.status, engine.at.run.reason) == (Status.BLOCKED, "in_doubt")
    assert not far.came
    second.leave()
    far.close()


def test_a_request_whose_gate_closes_while_it_connects_is_never_sent(tmp_path: Path) -> None:
    """The one who takes over closes the gate; what the old driver still had to send stays unsent, though it goes on."""
    far = Far()
    first = DrivingRequests(tmp_path)
    engine = first.start(PLAN, env={"URL": far.url})
    (Path(first.path + ".d") / first.commands.place / "gate").write_bytes(b"x")
    with pytest.raises(Superseded):
        engine.drive()
    assert not far.came
    first.die()
    assert not life(tmp_path, far, None)[1]
    assert [c.path for c in far.came].count("/pay") == 1
    far.close()

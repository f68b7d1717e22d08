"""kill -9 at every moment in which a driver leaves and delivers messages: none is lost, none has two keys, and their order holds.

The moments: before and after each commit, each claim, each outcome that is stored, each begin, each end heard, each recovery.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness import Died, Driving, DrivingMessages, Moments, Mortal
from receiver import Receiver, answer, drop, half

from durun.effects.locks import driver_alive
from durun.engine import new_place, real_world
from durun.machine.events import Moment
from durun.machine.model import Status
from durun.messages import Delivery, deliver
from durun.outbox import Deliverer
from durun.store import read
from durun.store.audit import audit
from durun.store.messages import Messages
from durun.store.runs import Store

PLAN = """
durun: 1
name: messages
pins: {env: [LEDGER]}
start: a
notify: [{on: [succeeded], run: 'echo "told $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'}]
states:
  a: {run: 'echo "a $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', background: true, idempotent: true, next: b}
  b:
    run: 'echo "b $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; test "$(grep -c "^b" "$LEDGER")" -ge 2'
    background: true
    idempotent: true
    retry: {max_attempts: 9, initial_interval: 10ms, jitter: none}
    next: work
  work: {run: 'sleep 0.05', idempotent: true, next: c}
  c:
    run: 'echo "c $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'
    background: true
    probe: {run: 'grep -q "^c" "$LEDGER"'}
    next: succeeded
"""


def life(folder: Path, plan: str, at: int | None, death: dict[str, bool]) -> tuple[Moments, DrivingMessages]:
    """A run whose driver dies at one moment, and is taken up by others until it has ended and all is delivered."""
    folder.mkdir()
    moments, env = Moments(at), {"LEDGER": str(folder / "ledger")}
    driving = DrivingMessages(folder, moments=moments)
    try:
        driving.start(plan, env=env).drive()
        driving.leave()
    except Died:
        driving.die(**death)
    driving = DrivingMessages(folder)
    until = time.monotonic() + 30
    while True:
        broken = audit(driving.file).broken
        assert not broken, broken
        engine = driving.take() if driving.store.id_of("run") is not None else driving.start(plan, env=env)
        engine.drive()
        if engine.at.run.status is Status.SUCCEEDED and not read.undelivered(driving.file):
            assert not audit(driving.file).broken
            return moments, driving
        assert engine.at.run.status in (Status.SUCCEEDED, Status.RUNNING), engine.at.run
        assert time.monotonic() < until, read.messages(driving.file)
        driving.leave()
        driving = DrivingMessages(folder)


def moments_of(folder: Path, plan: str) -> list[str]:
    moments, driving = life(folder, plan, None, {})
    driving.leave()
    return moments.names


@pytest.mark.parametrize("death", [{}, {"keeper": True}, {"keeper": True, "commands": True}], ids=["driver", "keeper", "commands"])
def test_at_every_moment_each_command_is_delivered_in_order_with_one_key(tmp_path: Path, death: dict[str, bool]) -> None:
    names = moments_of(tmp_path / "whole", PLAN)
    assert {"before claim", "after claim", "before put", "after put", "before recover"} - set(names) == {"before recover"}
    for at in range(len(names)):
        moments, driving = life(tmp_path / str(at), PLAN, at, death)
        driving.leave()
        if moments.seen < at:
            continue  # two things happened at once this time
        lines = [line.split() for line in (tmp_path / str(at) / "ledger").read_text().splitlines()]
        keys = {word: {key for w, key in lines if w == word} for word, _ in lines}
        assert {word: len(found) for word, found in keys.items()} == {"a": 1, "b": 1, "c": 1, "told": 1}, (at, names[at])
        first = list(dict.fromkeys(word for word, _ in lines if word != "told"))
        assert first == ["a", "b", "c"], (at, names[at], lines)
        if not death:  # its keeper lives: what was begun is never begun again
            count = [sum(w == word for w, _ in lines) for word in ("a", "b", "c", "told")]
            assert count == [1, 2, 1, 1], (at, names[at], lines)


POST = """
durun: 1
name: post
pins: {env: [LEDGER, FAR]}
start: a
states:
  a:
    http: {method: POST, url: '${{ pins.env.FAR }}/a', json: {n: 1}}
    idempotent: true
    background: true
    retry: {max_attempts: 9, initial_interval: 10ms, jitter: none}
    next: b
  b:
    http: {method: POST, url: '${{ pins.env.FAR }}/b', json: {n: 2}}
    idempotent: true
    background: true
    retry: {max_attempts: 9, initial_interval: 10ms, jitter: none}
    next: succeeded
"""
WAYS = {
    "answered": [],
    "dropped": [drop(after=True)],
    "500": [answer(500)],
    "503": [answer(503, headers={"Retry-After": "0"})],
    "409": [answer(409)],
    "half": [half()],
}


@pytest.mark.parametrize("way", WAYS)
def test_at_every_moment_a_request_reaches_a_far_side_that_fails_with_one_key_and_one_text(tmp_path: Path, way: str) -> None:
    def lived(name: str, at: int | None) -> tuple[Moments, Receiver]:
        far = Receiver()
        far.say(*WAYS[way], answer())
        plan = POST.replace("pins: {env: [LEDGER, FAR]}", "pins: {env: [LEDGER]}").replace("${{ pins.env.FAR }}", far.url)
        moments, driving = life(tmp_path / name, plan, at, {})
        driving.leave()
        far.close()
        return moments, far

    names = lived("whole", None)[0].names
    for at in range(len(names)):
        _, far = lived(str(at), at)
        by_path: dict[str, set[tuple[str | None, bytes]]] = {}
        for came in far.came:
            by_path.setdefault(came.path, set()).add((came.key, came.body))
        assert {path: len(found) for path, found in by_path.items()} == {"/a": 1, "/b": 1}, (at, names[at], far.came)
        assert list(dict.fromkeys(came.path for came in far.came)) == ["/a", "/b"]


def delivered_alone(folder: Path, plan: str, at: int | None, *, keeper: bool) -> list[str]:
    """A run leaves its messages; somebody who does not drive it delivers them, dies at one moment, and others go on."""
    folder.mkdir()
    driving = Driving(folder)
    engine = driving.start(plan, env={"LEDGER": str(folder / "ledger")})
    engine.drive()
    driving.leave()
    moments, lives = Moments(at), 0
    until = time.monotonic() + 30
    while True:
        driving = Driving(folder, moments=None if lives else moments)
        lives += 1
        store: Any = Mortal(Messages(driving.file, Store(driving.file).effect), driving.moments, {"claim", "put"})
        driving.deliverer = Deliverer(driving.commands, 1, driving.store.pinned(1), driving.path, new_place, driving.world.boot)
        outbox: Any = Mortal(driving.deliverer, driving.moments, {"begin", "receive", "recover"})
        alive = lambda place: driver_alive(str(folder / "runs.db.d"), place)  # noqa: E731
        w, place = driving.world, driving.commands.place
        delivery = Delivery(
            store, 1, driving.store.load(1).run, outbox,
            lambda w=w, place=place: Moment(w.now(), w.clock(), w.boot, place, w.draw(), w.reading()), place, alive, lambda _: None,
        )  # fmt: skip
        try:
            deliver(delivery, outbox, lambda: "")
            driving.deliverer.close(keep=False)
        except Died:
            driving.engine = engine  # there is one, so what is on the wire goes with its process
            driving.die(keeper=keeper)
            continue
        broken = audit(driving.file).broken
        assert not broken, broken
        left = read.undelivered(driving.file)
        driving.file.close()
        if not left:
            return moments.names
        assert time.monotonic() < until, left


@pytest.mark.parametrize("keeper", [False, True], ids=["deliverer", "deliverer and keeper"])
def test_at_every_moment_of_one_who_only_delivers_each_command_keeps_its_key_and_its_place(tmp_path: Path, keeper: bool) -> None:
    names = delivered_alone(tmp_path / "whole", PLAN, None, keeper=False)
    for at in range(len(names)):
        delivered_alone(tmp_path / str(at), PLAN, at, keeper=keeper)
        lines = [line.split() for line in (tmp_path / str(at) / "ledger").read_text().splitlines()]
        assert len({(word, key) for word, key in lines}) == 4, (at, names[at], lines)
        assert list(dict.fromkeys(word for word, _ in lines if word != "told")) == ["a", "b", "c"]


@pytest.mark.parametrize("way", WAYS)
def test_at_every_moment_of_one_who_only_delivers_a_far_side_sees_one_key(tmp_path: Path, way: str) -> None:
    names: list[str] = []
    for at in [None, *range(40)]:
        if at is not None and at >= len(names):
            break
        far = Receiver()
        far.say(*WAYS[way], answer())
        plan = POST.replace("pins: {env: [LEDGER, FAR]}", "pins: {env: [LEDGER]}").replace("${{ pins.env.FAR }}", far.url)
        seen = delivered_alone(tmp_path / str(at), plan, at, keeper=False)
        names = names or seen
        far.close()
        found = {(came.path, came.key, came.body) for came in far.came}
        assert len(found) == 2 and far.came[0].path == "/a", (at, names, far.came)


def test_half_an_hour_without_the_far_side_loses_nothing_where_the_rule_says_an_hour(tmp_path: Path) -> None:
    """The clock is moved, nobody sleeps; a budget counts what was asked for, not the time in which nobody delivered."""
    far = Receiver()
    plan = POST.replace("pins: {env: [LEDGER, FAR]}", "pins: {env: [LEDGER]}").replace("${{ pins.env.FAR }}", far.url)
    plan = plan.replace("max_attempts: 9, initial_interval: 10ms", "max_elapsed: 1h, initial_interval: 1s, max_interval: 5m")
    shift, tries = [0], 0
    far.say(*[answer(503)] * 10, answer())
    world = real_world()
    world = world._replace(now=lambda w=world: w.now() + shift[0], clock=lambda w=world: w.clock() + shift[0])
    env = {"LEDGER": str(tmp_path / "ledger")}
    while shift[0] < 1_800_000:
        driving = DrivingMessages(tmp_path, world=world)
        engine = driving.take() if tries else driving.start(plan, env=env)
        engine.drive()
        driving.leave()
        tries += 1
        shift[0] += 180_000
    for _ in range(40):
        driving = DrivingMessages(tmp_path, world=world)
        driving.take().drive()
        left = read.undelivered(driving.file)
        driving.leave()
        shift[0] += 180_000
        if not left:
            break
    far.close()
    assert not left
    assert len({came.key for came in far.came}) == 2 and len(far.came) >= 10
    assert [came.path for came in far.came][-1] == "/b"

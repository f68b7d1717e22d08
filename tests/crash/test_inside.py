"""kill -9 at every moment of a plan with a map at two places, branches side by side and a child plan.

As in test_every_moment: every moment is enumerated, afterwards each effect has happened once, with one key, or a person was asked
and answered by what the ledger says.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness import Died, Driving, Moments

from durun.engine import World
from durun.machine.events import Resolve
from durun.machine.model import Phase, Status

CHILD = """
durun: 1
name: child
input: {who: string}
output: '${{ "child of " + input.who }}'
start: say
states:
  say: {run: 'echo "say $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', next: succeeded}
"""
PLAN = """
durun: 1
name: inside
pins: {env: [LEDGER]}
output: '${{ [states.each.output, states.fan.output, states.call.output] }}'
start: each
states:
  each:
    map:
      items: '["a", "b", "c"]'
      label: '${{ item }}'
      concurrency: 2
      start: do
      states:
        do:
          run: 'echo "item-$X $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"'
          env: {X: '${{ item }}'}
          next: rest
        rest: {wait: 20ms, next: succeeded}
      output: '${{ item }}'
    next: fan
  fan:
    parallel:
      branches:
        left: {start: l, states: {l: {run: 'echo "left $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', next: succeeded}}, output: 1}
        right:
          start: r
          states:
            r: {run: 'echo "right $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; exit 3', catch: [{on: ['exit:3'], next: succeeded}], next: failed}
          output: '${{ error.name }}'
    next: call
  call: {plan: {file: child.yaml, input: {who: me}}, next: succeeded}
"""
OUTPUT = [["a", "b", "c"], {"left": 1, "right": "exit:3"}, "child of me"]
WORDS = ["item-a", "item-b", "item-c", "left", "right", "say"]
DEATHS = {"driver": {}, "driver, keeper and commands": {"keeper": True, "commands": True}}


def life(folder: Path, at: int | None, death: dict[str, bool]) -> tuple[Moments, int]:
    ledger, moments = folder / "ledger", Moments(at)
    (folder / "child.yaml").write_text(CHILD)
    driving = Driving(folder, moments=moments)
    try:
        engine = driving.start(PLAN, env={"LEDGER": str(ledger)})
        engine.drive()
        driving.leave()
        assert engine.at.run.output == OUTPUT
        return moments, 0
    except Died:
        driving.die(**death)
    return moments, finish(folder, ledger)


def finish(folder: Path, ledger: Path) -> int:
    asked = 0
    for _ in range(12):
        driving = Driving(folder)
        there = driving.store.id_of("run") is not None
        engine = driving.take() if there else driving.start(PLAN, env={"LEDGER": str(ledger)})
        engine.drive()
        status = engine.at.run.status
        if status is Status.BLOCKED:
            asked += 1
            answer(engine, ledger)
        driving.leave()
        if status is Status.SUCCEEDED:
            assert engine.at.run.output == OUTPUT
            return asked
    raise AssertionError(f"the run never ended: it is {status}")


def answer(engine, ledger: Path) -> None:
    """A person says of each doubt what the ledger says."""
    engine.hold = True
    doubts = [p for p in engine.at.positions.values() if p.phase is Phase.DOUBT]
    assert doubts
    for p in doubts:
        key = engine.at.effects[p.effect].key
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        happened = any(line.endswith(key) for line in lines)
        if happened and p.state == "r":  # its end was exit 3: it runs to that again
            ledger.write_text("".join(f"{line}\n" for line in lines if not line.endswith(key)))
            happened = False
        path = f"{p.scope}{p.state}" if p.scope.endswith("/") else f"{p.scope}.{p.state}"
        engine.move(Resolve("happened" if happened else "retry", path))


@pytest.mark.parametrize("death", DEATHS)
def test_branches_items_and_children_survive_a_kill_at_every_moment(tmp_path: Path, death: str) -> None:
    first = tmp_path / "count"
    first.mkdir()
    total = life(first, None, {})[0].seen
    assert total >= 25, "the plan has fewer moments than it should"
    asked = 0
    for at in range(total):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        moments, times = life(folder, at, DEATHS[death])
        asked += times
        lines = (folder / "ledger").read_text().splitlines()
        place = f"killed ({death}) at moment {at}, {moments.names[-1]}"
        assert Counter(line.split()[0] for line in lines) == Counter(WORDS), f"{place}: {lines}"
        assert len({line.split()[1] for line in lines}) == len(WORDS), f"{place}: a key was used twice"
    if death == "driver":
        assert asked == 0, "the keeper lives, so nothing is ever in doubt"


def test_what_is_held_in_several_items_of_which_the_first_comes_too_late_ends_as_the_plan_says(tmp_path: Path) -> None:
    poll = "run: 'rmdir \"$PWD\"; exit 1', cwd: '${{ item }}', idempotent: true, poll: {until: 'true', every: 1ms, for: 1h}"
    clock = [1_000_000_000]
    world = World(lambda: clock[0], lambda: clock[0], lambda: 0.5, "boot")
    for name in "abc":
        (tmp_path / name).mkdir()
    first = Driving(tmp_path, world=world)
    each = f"{{map: {{items: 'input.of', stop: now, {poll}}}, next: succeeded}}"
    text = f"durun: 1\nname: held\ninput: {{of: array}}\nstart: each\nstates:\n  each: {each}\n"
    engine = first.start(text, input={"of": ["a", "b", "c"]})
    engine.tick = lambda: clock.__setitem__(0, clock[0] + 10)
    engine.drive()
    assert engine.at.run.reason == "cwd_gone"
    first.leave()
    clock[0] += 7_200_000
    second = Driving(tmp_path, world=world)
    engine = second.take()
    engine.drive()
    assert (engine.at.run.status, [i.status for i in engine.at.items["each"]]) == (Status.FAILED, ["failed", "stopped", "stopped"])
    second.leave()

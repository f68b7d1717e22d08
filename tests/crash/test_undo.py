"""kill -9 at every moment of a compensation, of a cancel, of an answer inside a branch, and of a map that stops its items.

As in test_every_moment: the moments of the driver are enumerated, those of what goes before are not counted. Whoever takes the run
up comes to the one end there is; what happened is undone once, with one key, the youngest first; where nobody could know, a person
is asked and says what the ledger says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Died, Driving, Moments, Mortal
from program import until

from durun.effects.locks import driver_alive
from durun.engine import Engine, tell
from durun.errors import NotPossible
from durun.machine.events import Answer, Cancel, Compensate, Resolve, TakeUp
from durun.machine.model import Phase, Status
from durun.machine.scope import path_of
from durun.plan.expressions import Evaluator

DEATHS = {"driver": {}, "driver and keeper": {"keeper": True}, "driver, keeper and commands": {"keeper": True, "commands": True}}
ALIVE = {"driver"}  # where the keeper lives nothing is ever in doubt
HEAD = "durun: 1\nname: {}\npins: {{env: [LEDGER, GATE]}}\n"


def does(name: str, undo: str = "", **more: Any) -> str:
    """A state that writes its name and key, and an undo that writes those of its own beside the key of what it undoes."""
    key = "$DURUN_IDEMPOTENCY_KEY"
    words = [f"""run: 'echo "do-{name} {key}" >> "$LEDGER"'"""]
    line = f'echo "undo-{name} {key} $OF" >> "$LEDGER"'
    env = "env: {OF: '${{ undo_key }}'}"
    match undo:
        case "asks":
            words.append(f"compensate: {{run: '{line}', {env}}}")
        case "probes":
            probe = """probe: {run: 'grep -q "$KEY" "$LEDGER"', env: {KEY: '${{ key }}'}}"""
            words.append(f"compensate: {{run: '{line}', {env}, {probe}}}")
        case "repeats":
            words.append(f"""compensate: {{run: 'grep -q "{key}" "$LEDGER" || {line}', {env}, idempotent: true}}""")
    return ", ".join([*words, *(f"{k}: {v}" for k, v in {"next": "succeeded", **more}.items())])


CHILD = f"durun: 1\nname: child\nstart: inner\nstates: {{inner: {{{does('inner', 'probes')}}}}}\n"
PLAN = f"""{HEAD.format("undone")}
start: a
states:
  a: {{{does("a", "asks", next="fan")}}}
  fan:
    parallel:
      branches:
        left: {{start: l, states: {{l: {{{does("left", "probes")}}}}}}}
        right: {{start: r, states: {{r: {{{does("right", "repeats")}}}}}}}
    next: each
  each:
    map: {{items: '[1, 2]', concurrency: 1, start: do, states: {{do: {{{does("item", "asks")}}}}}}}
    next: call
  call: {{plan: {{file: child.yaml}}, next: bad}}
  bad: {{run: exit 1, next: succeeded}}
"""
DONE = Counter({"a": 1, "left": 1, "right": 1, "item": 2, "inner": 1})


class Folder:
    """One run in a folder of its own, its ledger, and how it is brought to an end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.ledger, self.gate, self.asked = folder, folder / "ledger", folder / "gate", 0
        (folder / "child.yaml").write_text(CHILD)

    def start(self, plan: str, driving: Driving) -> Engine:
        return driving.start(plan, env={"LEDGER": str(self.ledger), "GATE": str(self.gate)})

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def words(self, begin: str) -> Counter[str]:
        return Counter(line[0].removeprefix(begin) for line in self.lines() if line[0].startswith(begin))

    def has(self, key: str) -> bool:
        return any(key in line[1:2] for line in self.lines())

    def finish(self, end: Status, event: Any = None, plan: str = "") -> Driving:
        """Driver after driver, and a person where one is asked, until it has ended so. The last of them, to look at.

        `event`: what was asked of it, said again where it was not heard. `plan`: the run begins here where it did not yet.
        """
        for _ in range(20):
            driving = Driving(self.folder)
            engine = driving.take() if driving.store.id_of("run") is not None else self.start(plan, driving)
            run = engine.at.run
            if event is not None and run.status is not end and run.undoing is None and run.cancel is None:
                engine.recover()
                engine.move(event)
                event = None if isinstance(event, TakeUp) else event
            engine.drive()
            status = engine.at.run.status
            if status is end:
                return driving
            assert status is Status.BLOCKED, status
            self.answer(engine)
            driving.leave()
        raise AssertionError(f"it never ended: it is {status}, {engine.at.positions}")

    def answer(self, engine: Engine) -> None:
        """A person says of each doubt what the ledger says."""
        engine.hold = True
        for p in [p for p in engine.at.positions.values() if p.phase is Phase.DOUBT]:
            self.asked += 1
            there = self.has(engine.at.effects[p.effect].key)
            how = "happened" if there else "fail" if p.settling else "retry"
            engine.move(Resolve(how, path_of(p.scope, p.state)))

    def undone_in_order(self, driving: Driving) -> None:
        """What happened is undone once, the youngest first."""
        effects = driving.file.db.execute("SELECT key FROM effects WHERE kind = 'run' ORDER BY coalesce(first_at, intended_at), no")
        began = [key for (key,) in effects]
        done = {line[1] for line in self.lines() if line[0].startswith("do-")}
        undone = [line[2] for line in self.lines() if line[0].startswith("undo-")]
        assert undone == [key for key in reversed(began) if key in done]
        assert not driving.store.owed(1) and not driving.store.failed_undos(1)


def every_moment(tmp_path: Path, death: str, life: Callable[[Folder, Moments], None], least: int) -> int:
    """Lives once undisturbed to count the moments, then dies at each of them. How often a person was asked."""
    counted, asked = Moments(), 0
    life(Folder(tmp_path / "count"), counted)
    assert counted.seen >= least, f"there are fewer moments than there should be: {counted.names}"
    for at in range(counted.seen):
        moments, folder = Moments(at), Folder(tmp_path / f"{at}")
        try:
            life(folder, moments)
        except AssertionError as e:
            raise AssertionError(f"killed ({death}) at moment {at}, {moments.names[-1:]}: {folder.lines()}") from e
        asked += folder.asked
    return asked


def compensation(folder: Folder, moments: Moments, death: dict[str, bool]) -> None:
    driving = Driving(folder.folder)
    engine = folder.start(PLAN, driving)
    engine.drive()
    driving.leave()
    assert engine.at.run.status is Status.FAILED and folder.words("do-") == DONE
    driving = Driving(folder.folder, moments=moments)
    try:
        engine = driving.take()
        engine.move(Compensate())
        engine.drive()
        driving.leave()
    except Died:
        driving.die(**death)
    last = folder.finish(Status.COMPENSATED, event=Compensate())
    assert folder.words("do-") == folder.words("undo-") == DONE
    folder.undone_in_order(last)
    last.leave()


@pytest.mark.parametrize("death", DEATHS)
def test_a_compensation_survives_a_kill_at_every_moment(tmp_path: Path, death: str) -> None:
    asked = every_moment(tmp_path, death, lambda folder, moments: compensation(folder, moments, DEATHS[death]), least=30)
    if death in ALIVE:
        assert asked == 0, "the keeper lives, so nothing is ever in doubt"


SLOW = """trap 'exit 7' TERM; echo "do-{0} $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"; while :; do sleep 0.02; done"""
UNDO = """compensate: {{run: 'echo "undo-{0} $DURUN_IDEMPOTENCY_KEY $OF" >> "$LEDGER"', env: {{OF: '${{{{ undo_key }}}}'}}}}"""


def slow(name: str) -> str:
    """A state whose command goes on until it is stopped."""
    return f'run: "{SLOW.format(name).replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}", {UNDO.format(name)}, next: succeeded'


CANCELLED = f"""{HEAD.format("cancelled")}
on_cancel: compensate
start: a
states:
  a: {{{does("a", "asks", next="fan")}}}
  fan:
    parallel:
      branches:
        left: {{start: l, states: {{l: {{{slow("left")}}}}}}}
        right: {{start: r, states: {{r: {{{slow("right")}}}}}}}
        rest: {{start: w, states: {{w: {{wait: 1h, next: x}}, x: {{{does("never")}}}}}}}
    next: succeeded
"""


def cancel(folder: Folder, moments: Moments, death: dict[str, bool]) -> None:
    at, moments.at = moments.at, None
    driving = Driving(folder.folder, moments=moments)
    engine = folder.start(CANCELLED, driving)
    until(lambda: (engine._go() or engine._wait(None) or True) and {"left", "right"} <= set(folder.words("do-")))
    moments.seen, moments.at, moments.names[:] = 0, at, []
    try:
        engine.move(Cancel(10_000))
        engine.drive()
        driving.leave()
    except Died:
        driving.die(**death)
    last = folder.finish(Status.COMPENSATED, event=Cancel(10_000))
    assert folder.words("do-") == folder.words("undo-") == Counter(a=1, left=1, right=1)
    folder.undone_in_order(last)
    last.leave()


@pytest.mark.parametrize("death", DEATHS)
def test_a_cancel_that_is_followed_by_undos_survives_a_kill_at_every_moment(tmp_path: Path, death: str) -> None:
    asked = every_moment(
        tmp_path, death, lambda folder, moments: cancel(folder, moments, DEATHS[death]), least=6
    )  # both ends may be heard at once
    assert asked > 0, "whether a command that was stopped had done its work is for a person to say"


# --- an answer inside a branch ---

GATED = f"""{HEAD.format("gated")}
start: fan
states:
  fan:
    parallel:
      branches:
        gate: {{start: ask, states: {{ask: {{approval: {{message: ship?}}, next: ship}}, ship: {{{does("ship")}}}}}}}
        other: {{start: also, states: {{also: {{approval: {{message: and?}}, next: more}}, more: {{{does("more")}}}}}}}
        work: {{start: w, states: {{w: {{{does("work")}}}}}}}
    next: succeeded
"""


def say(driving: Driving, store: Any, by: str, state: str) -> str:
    """What `approve` does, with a store that may die. What was said before, where it was."""
    alive = lambda place: driver_alive(driving.path + ".d", place)  # noqa: E731
    return tell(store, 1, store.pinned(1).plan, Answer(state, by=by), driving.world, alive, Evaluator()).before


@pytest.mark.parametrize("driven", [False, True])
def test_an_answer_inside_a_branch_survives_a_kill_at_every_moment_of_being_given(tmp_path: Path, driven: bool) -> None:
    for at in range(2):
        folder = Folder(tmp_path / f"{at}")
        driving = Driving(folder.folder)
        engine = folder.start(GATED, driving)
        engine.drive()
        if not driven:
            driving.leave()
        giver = Driving(folder.folder)
        with pytest.raises(Died):
            say(giver, Mortal(giver.store._inner, Moments(at), {"hear"}), "ann", "fan.gate.ask")
        giver.die()
        again = Driving(folder.folder)
        assert bool(say(again, again.store, "ann", "fan.gate.ask")) is (at == 1), "it was there when it had been committed"
        with pytest.raises(NotPossible):
            say(again, again.store, "bob", "fan.gate.ask")
        again.die()
        if driven:
            engine.drive()
            driving.leave()
        last = folder.finish(Status.WAITING)
        assert folder.words("do-") == Counter(ship=1, work=1), "the other question still stands"
        assert not say(last, last.store, "bob", "fan.other.also")
        last.leave()
        folder.finish(Status.SUCCEEDED).leave()
        assert folder.words("do-") == Counter(ship=1, work=1, more=1)


def answered(folder: Folder, moments: Moments, death: dict[str, bool]) -> None:
    at, moments.at = moments.at, None
    driving = Driving(folder.folder, moments=moments)
    engine = folder.start(GATED, driving)
    engine.drive()
    giver = Driving(folder.folder)
    say(giver, giver.store, "ann", "fan.gate.ask")
    giver.leave_as_told()
    moments.seen, moments.at, moments.names[:] = 0, at, []
    try:
        engine.drive()
        driving.leave()
    except Died:
        driving.die(**death)
    last = folder.finish(Status.WAITING)
    assert folder.words("do-") == Counter(ship=1, work=1)
    assert say(last, last.store, "ann", "fan.gate.ask"), "it was given once and for all"
    last.leave()


@pytest.mark.parametrize("death", DEATHS)
def test_an_accepted_answer_inside_a_branch_survives_a_driver_that_dies_at_any_moment_after_it(tmp_path: Path, death: str) -> None:
    every_moment(tmp_path, death, lambda folder, moments: answered(folder, moments, DEATHS[death]), least=6)


# --- a map that stops its items ---

STOPS = f"""{HEAD.format("stops")}
start: each
states:
  each:
    map:
      items: '[0, 1, 2, 3, 4, 5]'
      concurrency: 4
      stop: now
      start: do
      states:
        do:
          run: |
            trap 'exit 7' TERM
            grep -q "$DURUN_IDEMPOTENCY_KEY" "$LEDGER" || echo "do-$N $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"
            while ! test -e "$GATE"; do sleep 0.02; test "$N" != 1 || test "$(wc -l < "$LEDGER")" -lt 4 || exit 1; done
          env: {{N: '${{{{ item }}}}'}}
          idempotent: true
          next: after
        after: {{run: 'echo "after-$N $DURUN_IDEMPOTENCY_KEY" >> "$LEDGER"', env: {{N: '${{{{ item }}}}'}}, next: succeeded}}
    next: succeeded
"""


def stops(folder: Folder, moments: Moments, death: dict[str, bool]) -> None:
    folder.ledger.touch()
    driving = Driving(folder.folder, moments=moments)
    try:
        folder.start(STOPS, driving).drive()
        driving.leave()
    except Died:
        driving.die(**death)
    last = folder.finish(Status.FAILED, plan=STOPS)
    at = last.store.load(1)
    statuses = [item.status for item in at.items["each"]]
    begun = {int(name) for name in folder.words("do-")}
    assert statuses[1] == "failed" and set(statuses[4:]) == {"not_begun"}, statuses
    assert begun == {0, 1, 2, 3} and not folder.words("after-"), "nothing began after it was decided"
    assert not any(e.status in ("begin", "waiting") for e in at.effects.values())
    last.leave()
    folder.gate.touch()
    folder.finish(Status.SUCCEEDED, event=TakeUp()).leave()
    assert folder.words("do-") == folder.words("after-") == Counter({str(n): 1 for n in range(6)}), "each item once, with one key"


@pytest.mark.parametrize("death", ["driver", "driver, keeper and commands"])
def test_a_map_that_stops_its_items_survives_a_kill_at_every_moment(tmp_path: Path, death: str) -> None:
    every_moment(tmp_path, death, lambda folder, moments: stops(folder, moments, DEATHS[death]), least=15)


def test_an_undo_that_failed_and_is_owed_again_while_others_are_left_comes_before_those_that_are_older(tmp_path: Path) -> None:
    def undo(name: str) -> str:
        return f"compensate: {{run: 'echo {name} >> \"$LEDGER\"; test {name} != c || test -e mended'}}"

    text = (
        f"{HEAD.format('again')}start: a\nstates:\n  a: {{run: 'true', {undo('a')}, next: b}}\n"
        f"  b: {{run: 'kill -9 $$', {undo('b')}, catch: [{{on: [killed], next: c}}], next: c}}\n"
        f"  c: {{run: 'true', {undo('c')}, next: compensated}}\n"
    )
    driving = Driving(tmp_path)
    engine = driving.start(text, env={"LEDGER": str(tmp_path / "ledger"), "GATE": ""})
    engine.drive()
    assert engine.at.run.reason == "in_doubt", "whether b happened; c could not be undone"
    (tmp_path / "mended").touch()
    engine.move(Compensate())
    engine.move(Resolve("happened"))
    engine.drive()
    assert engine.at.run.status is Status.COMPENSATED
    assert (tmp_path / "ledger").read_text().split() == ["c", "b", "c", "a"]
    driving.leave()

"""The power goes at any moment: in every image the disk may hold then, nothing is forgotten that durun had said or begun.

A driver works for real while what it asks of the disk is recorded; its log is put back into the database every few pages, so that
this falls into cuts too. An image is opened as after a reboot: what was begun is in it as intended, what was acted on is recorded,
and what must hold in a file holds. From some of them others go on to the end: nothing happens twice that may not.

`scripts/powercut` looks at all of them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from harness import DrivingMessages
from powercut import Cut, Disk, Made, Recorder, cuts

from durun.cli.once import once
from durun.engine import real_world
from durun.errors import Refusal
from durun.machine.events import Resolve
from durun.machine.model import TERMINAL, Phase, Status
from durun.machine.once import key_of
from durun.machine.scope import path_of
from durun.store import read
from durun.store.audit import audit
from durun.store.file import File, rows

PLAN = """
durun: 1
name: power
pins: {env: []}
on_error: compensate
start: a
states:
  a:
    run: 'echo "a $DURUN_IDEMPOTENCY_KEY" >> ledger'
    compensate: {run: 'echo "undo $DURUN_IDEMPOTENCY_KEY" >> ledger'}
    next: told
  told: {run: 'echo "told $DURUN_IDEMPOTENCY_KEY" >> ledger', background: true, idempotent: true, next: each}
  each:
    map:
      items: '[1, 2, 3]'
      concurrency: 2
      start: do
      states:
        do:
          run: 'echo "item $DURUN_IDEMPOTENCY_KEY" >> ledger'
          compensate: {run: 'echo "undo $DURUN_IDEMPOTENCY_KEY" >> ledger', idempotent: true}
          next: rest
        rest: {wait: 10ms, next: succeeded}
    next: calls
  calls:
    run: |
      env | grep ^DURUN_ > asks.new; mv asks.new asks
      until test -e told; do sleep 0.005; done
      said=$(cat told); rm told; exit "$said"
    idempotent: true
    next: again
  again:
    run: 'echo "again $DURUN_IDEMPOTENCY_KEY" >> ledger; test "$(grep -c ^again ledger)" -ge 2'
    retry: {max_attempts: 9, initial_interval: 10ms, jitter: none}
    next: bad
  bad: {fail: {error: no_luck}}
"""
ALLOWED = {"told", "again"}  # may happen more than once with their key
WORDS = {"a": 1, "told": 1, "item": 3, "once": 1, "undo": 4}
CALL = ["sh", "-c", 'echo "once $DURUN_IDEMPOTENCY_KEY" >> ledger']
PROBE = 'grep -q "^once $DURUN_IDEMPOTENCY_KEY" ledger'


class Fact(NamedTuple):
    """What was said or done by then. An effect that was begun, or a run or a message as it was told to be."""

    kind: str
    what: tuple[Any, ...]


class Telling:
    """The performer of a run; that it begins an effect is a fact before it does."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, run: Any, effect: Any, *, more: bool = False) -> None:
        self._recorder.fact(Fact("begun", (abs(effect.no), effect.attempt, effect.key)))
        self._inner.begin(run, effect, more=more)


class Recording(DrivingMessages):
    """A driver that says what it has begun, and what it was told is stored."""

    recorder: Recorder

    def _engine(self, held: Any, plan: Any, at: Any) -> Any:
        engine = super()._engine(held, plan, at)
        fact = self.recorder.fact
        fact(Fact("run", (held.seq, str(at.run.status))))
        engine.performer = engine.delivery._performer = Telling(engine.performer, self.recorder)
        engine.watch = lambda at, _: fact(Fact("run", (engine.held.seq, str(at.run.status))))
        messages = engine.delivery._messages
        put = messages._inner.put

        def stored(*args: Any, **more: Any) -> Any:
            after = put(*args, **more)
            fact(Fact("message", (after.effect.no, after.message.status)))
            return after

        messages._inner.put = stored
        return engine


def drive(engine: Any, folder: Path, fact: Callable[[Fact], None] = lambda _: None) -> None:
    """Drives, and calls `durun once` when the command of a step asks for it: in this process, so that it is recorded too."""
    asks = folder / "asks"
    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(engine.drive)
        while not driving.done():
            time.sleep(0.002)
            if asks.exists():
                answer_call(folder, dict(line.split("=", 1) for line in asks.read_text().splitlines()), fact)
        driving.result()


def answer_call(folder: Path, told: dict[str, str], fact: Callable[[Fact], None]) -> None:
    (folder / "asks").unlink()
    here = os.getcwd()
    os.chdir(folder)
    os.environ.update(told)
    try:
        said = once("act", CALL, probe=PROBE)
        fact(Fact("once", (key_of(told["DURUN_IDEMPOTENCY_KEY"], "act"), said)))
    except Refusal as e:
        said = e.exit
    finally:
        os.chdir(here)
        for name in told:
            os.environ.pop(name, None)
    (folder / "told.new").write_text(str(said))
    os.rename(folder / "told.new", folder / "told")


class Record(NamedTuple):
    folder: Path
    log: list[Any]
    ledger: bytes

    def cuts(self) -> Iterator[Cut]:
        return cuts(self.log, self.ledger)


def record(folder: Path, *, synchronous: str = "FULL", pages: int = 12) -> Record:
    """One life of a run, from the birth of its file to its end."""
    folder.mkdir()
    ledger = folder / "ledger"
    recorder = Recorder(folder, lambda: ledger.read_bytes() if ledger.exists() else b"")
    try:
        Recording.recorder = recorder
        driving = Recording(folder)
        for pragma in (f"synchronous={synchronous}", f"wal_autocheckpoint={pages}"):
            driving.file.db.execute(f"PRAGMA {pragma}").fetchall()
        engine = driving.start(PLAN)
        drive(engine, folder, recorder.fact)
        driving.leave()
    finally:
        recorder.stop()
    assert engine.at.run.status is Status.COMPENSATED, engine.at.run
    return Record(folder, recorder.log, ledger.read_bytes())


def found_after(folder: Path) -> None:
    """What a reboot leaves of a folder: nothing of it."""
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def lay_out(folder: Path, cut: Cut, image: Disk) -> None:
    found_after(folder)
    image.lay_out(folder)
    (folder / "ledger").write_bytes(cut.seen)


def wrong(folder: Path, cut: Cut, image: Disk) -> list[str]:
    """What an image lacks, or has broken."""
    lay_out(folder, cut, image)
    file = File(str(folder / "runs.db"), create=True)
    try:
        return [*map(str, audit(file).broken), *forgotten(file, cut)]
    finally:
        file.close()


def forgotten(file: File, cut: Cut) -> Iterator[str]:
    effects = {no: row for no, *row in rows(file.db, "SELECT no, status, attempt, key FROM effects")}
    for kind, what in cut.facts:
        if kind == "begun":
            no, attempt, key = what
            status, stored, its = effects.get(no, ("not there", 0, key))
            if its != key or (stored, status != "waiting") < (attempt, True):
                yield f"attempt {attempt} of effect {no} was begun, and it is {status} at attempt {stored}"
    moves = [what for kind, what in cut.facts if kind == "run"]
    if moves:
        seq, status = moves[-1]
        stored = rows(file.db, "SELECT seq, status FROM runs WHERE id = 'run'")
        if not stored or stored[0][0] < seq:
            yield f"the run was {status} after move {seq}, and it is {stored or 'not there'}"
    messages = dict(rows(file.db, "SELECT effect, status FROM messages"))
    for no, status in dict(what for kind, what in cut.facts if kind == "message").items():
        if status == "delivered" and messages.get(no) != status:
            yield f"the message {no} was {status}, and it is {messages.get(no, 'not there')}"
    keys = {key for _, _, key in effects.values()}
    for key, said in (what for kind, what in cut.facts if kind == "once"):
        if said == 0 and ("done", key) not in {(status, its) for status, _, its in effects.values()}:
            yield f"the once {key} was told as done, and it is not recorded"
    for word, key in lines(cut.seen):
        if key not in keys:
            yield f"{word} has happened, and no effect has its key"


def lines(ledger: bytes) -> list[list[str]]:
    return [line.split() for line in ledger.decode().splitlines()]


def go_on(folder: Path, cut: Cut, image: Disk) -> None:
    """After the reboot others take the run up, and a person is asked, until it has ended; nothing happened twice that may not."""
    lay_out(folder, cut, image)
    ledger = folder / "ledger"
    for n in range(20):
        driving = DrivingMessages(folder, world=real_world()._replace(boot=f"boot {n > 0}"))
        engine = driving.take() if driving.store.id_of("run") is not None else driving.start(PLAN)
        drive(engine, folder)
        if engine.at.run.status is Status.BLOCKED:
            answer(engine, ledger)
        over = engine.at.run.status in TERMINAL and not read.undelivered(driving.file)
        broken = audit(driving.file).broken
        driving.leave()
        assert not broken, broken
        if over:
            break
    assert over and engine.at.run.status is Status.COMPENSATED, engine.at.run
    found = lines(ledger.read_bytes())
    for key, times in Counter(key for _, key in found).items():
        assert times == 1 or {word for word, its in found if its == key} <= ALLOWED | {"undo"}, (key, found)
    assert {word: len({key for its, key in found if its == word}) for word in WORDS} == WORDS, found
    assert sum(word == "again" for word, _ in found) >= 2


def answer(engine: Any, ledger: Path) -> None:
    """A person says of each doubt what the ledger says."""
    engine.hold = True
    keys = {key for _, key in lines(ledger.read_bytes())}
    for p in [p for p in engine.at.positions.values() if p.phase is Phase.DOUBT]:
        there = engine.at.effects[p.effect].key in keys and p.state != "again"
        engine.move(Resolve("happened" if there else "retry", path_of(p.scope, p.state)))


def all_wrong(at: Record, chance: Random, few: int | None) -> tuple[int, list[str]]:
    """(how many images were looked at, what is wrong in them)."""
    count, found = 0, list[str]()
    for n, cut in enumerate(at.cuts()):
        for name, image in cut.images(chance, few):
            count += 1
            found += [f"cut {n}, {name}: {what}" for what in wrong(at.folder, cut, image)]
    return count, found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return record(tmp_path_factory.mktemp("power") / "run")


def test_in_no_image_of_a_power_cut_is_anything_forgotten(recorded: Record) -> None:
    count, found = all_wrong(recorded, Random(1), 1)
    assert count > 100
    assert not found, found[:5]


def test_whatever_is_left_of_a_file_whose_birth_was_cut_short_is_born_anew(recorded: Record) -> None:
    births = list(recorded.cuts())[:6]  # up to the first sync of the WAL
    assert any("wal" in name for name in births[-1].disk.names | {op.name: 0 for op in births[-1].pending if isinstance(op, Made)})
    for cut in births:
        for name, image in cut.images(Random(3)):
            assert not wrong(recorded.folder, cut, image), name


def test_the_folders_that_are_made_for_a_file_are_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = list[str](), os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    File(str(tmp_path / "a" / "b" / "runs.db"), create=True).close()
    assert synced == [str(tmp_path / "a"), str(tmp_path)]
    File(str(tmp_path / "a" / "other.db"), create=True).close()
    assert len(synced) == 2


def test_from_an_image_of_a_power_cut_a_run_goes_on_and_repeats_nothing_that_it_may_not(recorded: Record) -> None:
    chance = Random(2)
    for cut in chance.sample(list(recorded.cuts()), 6):
        _, image = chance.choice(list(cut.images(chance, 1)))
        go_on(recorded.folder, cut, image)


def test_the_same_look_finds_what_is_forgotten_where_commits_are_not_synced(tmp_path: Path) -> None:
    _, found = all_wrong(record(tmp_path / "run", synchronous="NORMAL"), Random(1), 1)
    assert any("was begun" in what for what in found), "it would not notice"
    assert any("happened, and no effect" in what for what in found)

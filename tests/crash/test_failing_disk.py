"""A disk that is full, or fails, at a call at which much is at stake: by strace, for effects that no keeper notes.

scripts/faults does this at each call of each kind of effect. Here it is done where something is to be said: what stands where, how the
run goes on, and that nothing is lost or repeated then.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from program import COMMAND, Program, until
from receiver import Receiver

from durun.effects.command import Commands
from durun.effects.http import Sender, prepared
from durun.effects.notes import Begun, Notes

needs_strace = pytest.mark.skipif(sys.platform != "linux" or shutil.which("strace") is None, reason="needs strace")
ONCE = """
start: s
pins: {env: [LEDGER, ONCE]}
states:
  s:
    run: '$ONCE one -- sh -c "echo one >> \\"\\$LEDGER\\"; echo said"'
    idempotent: true
    next: succeeded
"""


def strace(inject: str, *more: str) -> list[str]:
    call = inject.partition("=")[2].partition(":")[0]
    return ["strace", "-qq", "-o", "/dev/null", *more, "-e", f"trace={call}", "-e", inject]


@needs_strace
@pytest.mark.parametrize(("error", "said"), [("ENOSPC", "is full"), ("EIO", "Input/output error")])
def test_a_request_whose_begin_cannot_be_noted_is_not_sent(durun: Program, receiver: Receiver, error: str, said: str) -> None:
    durun.plan(f"start: a\nstates: {{a: {{http: {{method: POST, url: '{receiver.url}/a'}}, next: succeeded}}}}\n")
    words = [*strace(f"inject=write:error={error}:when=2"), *COMMAND, "start", "plan.yaml", "--id", "r", "-q"]  # the first: its id
    done = subprocess.run(words, cwd=durun.folder, env=durun.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, said in done.stderr, "then resume" in done.stderr) == (8, True, True), done.stderr
    assert not receiver.came
    durun("resume", "r")
    assert receiver.lines() == ["POST /a"]


@needs_strace
@pytest.mark.parametrize(
    ("call", "path", "command"),
    [
        ("execve", "bin/tool", "run: [bin/tool]"),
        ("chdir", "there", "run: [tool], cwd: there"),
        ("newfstatat", "there/tool", "run: [tool]"),
    ],
)
def test_a_disk_that_fails_as_a_command_is_begun_is_no_fault_of_the_command(
    durun: Program, call: str, path: str, command: str
) -> None:
    for name in ("bin", "there"):
        (durun.folder / name).mkdir()
    tool = durun.folder / "bin" / "tool"
    tool.write_text('#!/bin/sh\necho done >> "$LEDGER"\n')
    tool.chmod(0o755)
    durun.env["PATH"] = f"{durun.folder / 'there'}:{durun.folder / 'bin'}:{durun.env['PATH']}"
    durun.plan(f"start: a\nstates: {{a: {{{command}, catch: [{{on: [any], next: failed}}], next: succeeded}}}}\n")
    fails = strace(f"inject={call}:error=EIO", "-f", "-P", path, "-P", str(durun.folder / path))
    done = subprocess.run(
        [*fails, *COMMAND, "start", "plan.yaml", "--id", "r", "-q"], cwd=durun.folder, env=durun.env, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, "Input/output error" in done.stderr, durun.lines()) == (8, True, []), done.stderr
    durun("resume", "r")
    assert durun.lines() == ["done"]


def test_what_is_noted_behind_a_torn_line_is_believed(tmp_path: Path, receiver: Receiver) -> None:
    commands = Commands(str(tmp_path), "one")
    requests = tmp_path / "one" / "requests"
    requests.write_bytes(b"0badcafe about\t1.")
    request: dict[str, Any] = {"method": "POST", "url": receiver.url, "headers": {}, "timeout": 30_000, "max_body": 1024}
    sender = Sender(str(tmp_path))
    sender.begin("1.2.1", "one", prepared(request, "key"), request, "far")
    end = time.monotonic() + 30
    while not (ended := sender.act()) and time.monotonic() < end:
        time.sleep(0.005)
    sender.close()
    commands.close(keep=True)
    assert [answer.status for answer in ended] == [200]  # type: ignore[union-attr]
    assert isinstance(Notes.take_over(str(tmp_path), "one", "requests").of("1.2.1"), Begun)


@needs_strace
def test_of_a_once_whose_end_cannot_be_recorded_it_is_said_what_comes(durun: Program) -> None:
    fails = strace("inject=fdatasync:error=ENOSPC:when=2+", "-P", f"{durun.db}-wal")  # the first: that it begins
    durun.env["ONCE"] = " ".join([*fails, *COMMAND, "once"])
    durun.plan(ONCE)
    run = durun.start(1)
    logs = durun("logs", run, "s")
    said = logs.stdout + logs.stderr
    assert "once one of s has ended, and how could not be recorded" in said and "a person is asked" in said, said
    durun("resume", run, exit=9)
    durun("resolve", run, "s/once:one", "--happened", "--output", '"said"')
    durun("resume", run)
    assert durun.lines() == ["one"] and durun("output", run, "s/once:one").stdout == "said\n"


BESIDE = """
start: both
states:
  both:
    parallel:
      branches:
        long: {start: x, states: {x: {run: 'until [ -e go ]; do sleep 0.02; done; echo x >> "$LEDGER"', next: succeeded}}}
        short:
          start: y
          states:
            y: {run: 'echo y >> "$LEDGER"; until [ -e next ]; do sleep 0.02; done', next: z}
            z: {run: 'echo z >> "$LEDGER"', next: succeeded}
    next: succeeded
"""


def words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""  # it has ended meanwhile


def keeper_of(durun: Program) -> int:
    (keeper,) = [pid for pid in durun.processes() if "keeper.py" in words_of(pid)]
    return keeper


@contextmanager
def traced(pid: int, inject: str, path: Path) -> Iterator[None]:
    """A process to whom a call on a path fails."""
    tracer = subprocess.Popen([*strace(inject, "-P", str(path)), "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: tracer.poll() is not None or "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text())
        if tracer.poll() is not None:
            pytest.skip(f"strace may not attach: {tracer.communicate()[1]}")
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


@needs_strace
def test_an_output_that_cannot_be_looked_at_is_not_taken_for_one_that_is_no_file(durun: Program) -> None:
    wait = "until [ -e go ]; do sleep 0.02; done"
    durun.plan(
        f'start: a\nstates: {{a: {{run: \'echo "$DURUN_OUTPUT" >> "$LEDGER"; {wait}; echo 7 > "$DURUN_OUTPUT"\', next: succeeded}}}}\n'
    )
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    given = Path(until(durun.lines)[0])
    with traced(keeper_of(durun), "inject=newfstatat,openat:error=EIO", given):
        (durun.folder / "go").touch()
        _, err = driver.communicate(timeout=60)
    assert (driver.returncode, durun.show("r")["reason"]) == (9, "in_doubt"), err
    assert "what it wrote to $DURUN_OUTPUT is not whole" in durun("history", "r").stdout


@needs_strace
def test_a_keeper_that_cannot_read_its_gate_begins_nothing_and_keeps_what_runs(durun: Program) -> None:
    durun.plan(BESIDE)
    driver = durun.begin("start", "plan.yaml", "--id", "r")
    until(durun.lines)
    keeper = keeper_of(durun)
    gate = next(durun.db.with_name("runs.db.d").glob("*/gate"))
    with traced(keeper, "inject=pread64:error=EIO", gate):
        (durun.folder / "next").touch()
        _, err = driver.communicate(timeout=60)
    assert (driver.returncode, "Input/output error" in err) == (8, True), err
    (durun.folder / "go").touch()
    durun("resume", "r")
    assert sorted(durun.lines()) == ["x", "y", "z"]

"""The keeper: what it begins, how it ends it, what it leaves for the next driver, and that a closed gate stays closed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from program import until

from durun.effects.command import CAPTURE, Commands, End, KeeperGone, NoStart, Refused, Request, read_whole, tail
from durun.effects.locks import driver_alive
from durun.effects.notes import Begun, Notes, Nothing, Stuck


class Driver:
    """A driver's side of its commands, with requests in short."""

    def __init__(self, folder: Path, place: str = "one") -> None:
        self.folder = folder
        self.commands = Commands(str(folder), place)
        self.place = place

    def begin(self, token: str, *argv: str, env: dict[str, str] | None = None, cwd: str | None = None, **more: Any) -> None:
        number = self.commands.next_number()
        request = Request(token, list(argv), {"T": str(self.folder), **(env or {})}, cwd or str(self.folder), **more)
        self.commands.begin(request, number)

    def run(self, token: str, *argv: str, **more: Any) -> Any:
        self.begin(token, *argv, **more)
        return self.report()

    def report(self, seconds: float = 30) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for report in self.commands.receive(0.2):
                return report
        raise AssertionError("the keeper said nothing")

    def die(self) -> None:
        """As kill -9 would: nothing is said, the lock and the socket close."""
        self.commands._socket.close()
        os.close(self.commands._lock)

    def notes(self) -> Notes:
        return Notes.take_over(str(self.folder), self.place)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    end_all(tmp_path)


def end_all(folder: Path) -> None:
    """Nothing that carries this folder is left."""
    mark = str(folder).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() or mark in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


def sh(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


# --- how a command ends ---


def test_exits_and_signals_are_told_apart(driver: Driver) -> None:
    assert driver.run("a", "true").status == 0
    assert driver.run("b", *sh("exit 42")).status == 42
    assert driver.run("c", *sh("kill -SEGV $$")).status == -signal.SIGSEGV
    assert driver.run("d", "no-such-program") == NoStart("d", 2, "program")
    (driver.folder / "plain").write_text("text")
    assert driver.run("e", str(driver.folder / "plain")) == NoStart("e", 13, "program")
    assert driver.run("f", "true", cwd="/no/such/folder") == NoStart("f", 2, "directory")


def test_a_program_is_looked_for_along_the_path_of_the_command_itself(driver: Driver) -> None:
    tool = driver.folder / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 5\n")
    tool.chmod(0o755)
    assert driver.run("a", "tool", env={"PATH": f"{tool.parent}:/bin"}).status == 5


def test_a_timeout_ends_the_whole_group_and_says_so(driver: Driver) -> None:
    script = "sh -c 'while :; do echo x >> $T/beat; sleep 0.05; done' & wait"
    end = driver.run("a", *sh(script), timeout=300)
    assert (end.stopped, end.status) == ("timeout", -signal.SIGTERM)
    size = (driver.folder / "beat").stat().st_size
    time.sleep(0.3)
    assert (driver.folder / "beat").stat().st_size == size


def test_what_ignores_term_is_killed_after_the_grace(driver: Driver) -> None:
    driver.begin("a", *sh("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    until(lambda: list(driver.folder.glob("one/*.out")) and (driver.folder / "one/1.out").stat().st_size)
    driver.commands.stop("a", [("TERM", 200), ("KILL", 0)], "cancel")
    end = driver.report()
    assert (end.stopped, end.status) == ("cancel", -signal.SIGKILL)


def test_what_ends_well_after_term_keeps_its_exit(driver: Driver) -> None:
    driver.begin("a", *sh("trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"))
    until(lambda: (driver.folder / "one/1.out").exists() and (driver.folder / "one/1.out").stat().st_size)
    driver.commands.stop("a", [("TERM", 5000), ("KILL", 0)], "cancel")
    assert driver.report()[1:3] == (0, "cancel")


def test_silence_ends_a_command_and_a_sign_of_life_does_not(driver: Driver) -> None:
    assert driver.run("a", "sleep", "60", heartbeat=300).stopped == "heartbeat"
    number = driver.commands._number + 1
    path = driver.commands.alive_path(number)
    assert driver.run("b", *sh(f"for i in 1 2 3 4 5 6 7 8; do sleep 0.15; : > {path}; done"), heartbeat=600).stopped == ""


def test_what_a_command_leaves_behind_is_named_and_does_not_hold_it_up(driver: Driver) -> None:
    begun = time.monotonic()
    end = driver.run("a", *sh("sleep 60 & echo done"))
    assert time.monotonic() - begun < 20
    assert end.status == 0 and len(end.left) == 1
    os.kill(end.left[0], signal.SIGKILL)


def test_an_output_file_that_somebody_still_holds_is_not_used_again(driver: Driver) -> None:
    first = driver.run("a", *sh("(sleep 0.5; echo late) & exit 0"))
    second = driver.run("b", *sh("echo mine; sleep 1"))
    assert first.status == second.status == 0
    assert (driver.folder / second.out).read_text() == "mine\n"


def test_silent_commands_make_no_files(driver: Driver) -> None:
    for n in range(50):
        driver.run(str(n), "true")
    assert len(list((driver.folder / "one").glob("*.out"))) == 1


# --- what a command sees ---


def test_a_command_sees_three_descriptors_and_default_signals(driver: Driver) -> None:
    probe = "import os, signal; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4]); " + (
        "print([n for n in ('INT','QUIT','CHLD','HUP','TERM') if signal.getsignal(getattr(signal, 'SIG' + n)) == signal.SIG_IGN]); "
        "print(os.getsid(0) == os.getpid() == os.getpgid(0))"
    )
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(keep, True)
    try:
        other = Driver(driver.folder, "two")
        end = other.run("a", sys.executable, "-S", "-c", probe)
    finally:
        signal.signal(signal.SIGINT, old)
        os.close(keep)
    assert (driver.folder / end.out).read_text() == "[0, 1, 2, 3]\n[]\nTrue\n"


def test_stdin_is_empty_unless_given_and_may_be_large(driver: Driver) -> None:
    assert driver.run("a", "cat").out == ""
    data = os.urandom(1 << 20)
    end = driver.run("b", "cat", stdin=data, capture=True)
    assert read_whole(str(driver.folder), end.out, end.out_size, end.out_crc) == data


def test_the_caller_s_descriptors_are_not_held_by_the_keeper(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    driver = Driver(tmp_path)
    driver.begin("a", "sleep", "60")
    os.close(write)
    assert os.read(read, 1) == b"", "somebody still holds the other end"
    os.close(read)
    end_all(tmp_path)


def test_output_is_kept_as_it_was_and_changed_output_is_not_believed(driver: Driver) -> None:
    end = driver.run("a", *sh(r"printf 'a\377b\n'; head -c 3000000 /dev/urandom; echo END"), capture=True)
    data = read_whole(str(driver.folder), end.out, end.out_size, end.out_crc)
    assert data is not None and data.startswith(b"a\xffb\n") and data.endswith(b"END\n")
    with open(driver.folder / end.out, "r+b") as f:
        f.write(b"A")
    assert read_whole(str(driver.folder), end.out, end.out_size, end.out_crc) is None


def test_much_output_flows_and_only_the_end_of_stderr_is_read(driver: Driver) -> None:
    end = driver.run("a", *sh("head -c 200000000 /dev/zero; head -c 100000 /dev/zero | tr '\\0' e >&2; exit 1"))
    assert end.out_size == 200_000_000 > CAPTURE
    assert len(tail(str(driver.folder), end.err)) == 4096


# --- what the next driver finds ---


def test_nothing_was_begun_that_was_not_asked_for(driver: Driver) -> None:
    driver.die()
    assert driver.notes().of("never") == Nothing()


def test_a_command_that_ended_after_its_driver_died_is_found_ended(driver: Driver) -> None:
    driver.begin("a", *sh("until [ -e $T/go ]; do sleep 0.02; done; echo out; exit 7"), capture=True)
    until(lambda: isinstance(peek(driver).of("a"), Begun))
    driver.die()
    notes = driver.notes()
    said = notes.of("a")
    assert isinstance(said, Begun) and notes.keeper_alive() and notes.alive(said, "key")
    (driver.folder / "go").touch()
    until(lambda: notes.refresh() or isinstance(notes.of("a"), End))
    end = notes.of("a")
    assert isinstance(end, End) and end.status == 7
    assert read_whole(str(driver.folder), end.out, end.out_size, end.out_crc) == b"out\n"
    until(lambda: not notes.keeper_alive())


def peek(driver: Driver) -> Notes:
    notes = Notes(str(driver.folder), driver.place)
    notes.refresh()
    return notes


def test_a_program_that_could_not_be_started_is_found_so(driver: Driver) -> None:
    driver.run("a", "no-such-program")
    driver.die()
    assert driver.notes().of("a") == NoStart("a", 2, "program")


def test_without_keeper_what_lives_is_seen_by_its_group(driver: Driver) -> None:
    driver.begin("a", *sh("exec >/dev/null 2>&1; sleep 60"))
    begun = until(lambda: (b := peek(driver).of("a")) and isinstance(b, Begun) and b.pid and b)
    os.kill(driver.commands.pid, signal.SIGKILL)
    assert isinstance(driver.report(), KeeperGone)
    driver.die()
    notes = driver.notes()
    assert not notes.keeper_alive() and notes.alive(begun, "key")
    os.killpg(begun.pid, signal.SIGKILL)
    until(lambda: not notes.alive(begun, "key"))


def test_without_keeper_what_left_its_group_is_seen_by_its_output(driver: Driver) -> None:
    driver.begin(
        "a", sys.executable, "-S", "-c", "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)", capture=True
    )
    end = driver.report()
    assert isinstance(end, End)
    begun = Begun("a", None, 0.0, 0.0, "1.out", "1.err")
    assert peek(driver).alive(begun, "no such key")


def test_a_pid_of_another_process_is_not_taken_for_ours(driver: Driver) -> None:
    import subprocess

    from durun.effects.notes import ours

    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert ours(Begun("a", stranger.pid, now - 0.5, now, "x", "y"), "key")
        assert not ours(Begun("a", stranger.pid, now - 500, now - 400, "x", "y"), "key")
    finally:
        stranger.kill()
        stranger.wait()


def test_a_journal_cut_at_any_byte_says_nothing_that_is_not_whole(driver: Driver) -> None:
    driver.run("a", "true")
    driver.run("b", *sh("exit 3"))
    driver.die()
    path = driver.folder / "one" / "journal"
    until(lambda: not peek(driver).keeper_alive())
    whole = path.read_bytes().rstrip(b"\0")
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut] + bytes(100))
        assert not isinstance(peek(driver).of("b"), End), cut
        assert isinstance(peek(driver).of("a"), End)
    for at in range(last, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not isinstance(peek(driver).of("b"), End), at


def test_a_later_driver_has_a_command_stopped_through_the_control_file(driver: Driver) -> None:
    driver.begin("a", "sleep", "60")
    begun = until(lambda: (b := peek(driver).of("a")) and isinstance(b, Begun) and b.pid and b)
    driver.die()
    notes = driver.notes()
    notes.ask_stop(begun, "key", [("TERM", 1000), ("KILL", 0)], "cancel")
    until(lambda: notes.refresh() or isinstance(notes.of("a"), End))
    end = notes.of("a")
    assert isinstance(end, End) and (end.status, end.stopped) == (-15, "cancel")


def test_the_keeper_goes_when_its_driver_is_gone_and_nothing_runs(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.run("a", "true")
    driver.die()
    until(lambda: not peek(driver).keeper_alive())
    assert os.waitpid(driver.commands.pid, 0)[1] == 0


def test_the_keeper_ignores_int_term_hup_and_quit(driver: Driver) -> None:
    driver.run("a", "true")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(driver.commands.pid, number)
    assert driver.run("b", "true").status == 0


def test_a_driver_s_lock_says_whether_it_lives(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    assert driver_alive(str(tmp_path), "one")
    driver.die()
    until(lambda: not driver_alive(str(tmp_path), "one"))  # a process that is just being executed closes its copy a moment later
    assert not driver_alive(str(tmp_path), "no-such-place")


def test_a_driver_that_leaves_tidily_leaves_its_logs_alone(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.run("a", "true")
    end = driver.run("b", "echo", "hi")
    driver.commands.close(keep=False)
    left = {p.name for p in (tmp_path / "one").iterdir()}
    assert not left & {"lock", "journal", "gate", "control"}
    assert (tmp_path / end.out).read_text() == "hi\n"


# --- the gate ---


def tick(driver: Driver) -> list[str]:
    path = driver.folder / "ticks"
    return path.read_text().splitlines() if path.exists() else []


def test_after_the_gate_is_closed_nothing_more_begins(driver: Driver) -> None:
    driver.run("a", "true")
    notes = driver.notes()
    assert isinstance(driver.run("b", *sh("echo b >> $T/ticks")), Refused)
    assert isinstance(driver.run("c", *sh("echo c >> $T/ticks")), Refused)
    assert notes.of("b") == Nothing()
    assert tick(driver) == []


@pytest.mark.parametrize("stopped", [False, True], ids=["keeper awake", "keeper stopped with the request in its socket"])
def test_a_request_in_the_socket_of_a_dead_driver_is_begun_once(tmp_path: Path, stopped: bool) -> None:
    """The one who takes over begins it exactly where the old keeper's notes say that it never will."""
    begun_by_old = 0
    for n in range(25):
        folder = tmp_path / str(n)
        folder.mkdir()
        driver = Driver(folder)
        driver.run("warm", "true")
        if stopped:
            os.kill(driver.commands.pid, signal.SIGSTOP)
        driver.begin("a", *sh("echo a >> $T/ticks"))
        driver.die()
        if not stopped:
            time.sleep(n % 5 * 0.0004)
        notes = driver.notes()
        said = notes.of("a")
        if stopped:
            assert said == Nothing()
            os.kill(driver.commands.pid, signal.SIGCONT)
        if said == Nothing():
            second = Driver(folder, "two")
            assert second.run("a", *sh("echo a >> $T/ticks")).status == 0
            second.commands.close(keep=False)
        else:
            begun_by_old += 1
        until(lambda notes=notes: not notes.keeper_alive())
        notes.refresh()
        assert tick(driver) == ["a"], f"round {n}: {tick(driver)}, {said}"
    assert begun_by_old == 0 if stopped else True


def test_a_keeper_that_stands_still_inside_its_gate_is_reported_not_overrun(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    from durun.effects import notes as module

    monkeypatch.setattr(module, "PATIENCE", 0.2)
    driver.run("a", "true")
    gate = os.open(driver.folder / "one" / "gate", os.O_RDONLY)
    fcntl.flock(gate, fcntl.LOCK_SH)
    with pytest.raises(Stuck):
        driver.notes()
    os.close(gate)
    assert driver.notes().of("a").status == 0


def test_what_the_keeper_has_begun_when_the_gate_closes_is_noted(tmp_path: Path) -> None:
    """Whatever moment the gate is closed at: the command is either noted as begun, or never begins."""
    for n in range(40):
        folder = tmp_path / str(n)
        folder.mkdir()
        driver = Driver(folder)
        driver.run("warm", "true")
        driver.begin("a", *sh("echo a >> $T/ticks"))
        time.sleep(n * 0.00005)
        said = driver.notes().of("a")
        driver.die()
        os.waitpid(driver.commands.pid, 0)
        if said == Nothing():
            assert tick(driver) == [], n
        else:
            assert isinstance(said, Begun | End) and tick(driver) == ["a"], n

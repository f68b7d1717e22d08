"""What the next driver finds in the notes of a dead one's keeper: every row of the table, and that nothing is begun twice."""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from program import until

from durun.effects import boot
from durun.effects import notes as module
from durun.effects.boot import boot_id
from durun.effects.command import Commands, End, KeeperGone, NoStart, Refused, read_whole
from durun.effects.locks import driver_alive, last_sign
from durun.effects.notes import Begun, Notes, Nothing, Stuck, ours
from durun.machine.model import Effect
from durun.outbox import Adopted, Deliverer, ran
from durun.store.runs import Pinned

STOP = [("TERM", 5000), ("KILL", 0)]
HERE = (boot.boot_id(), os.readlink("/proc/self/ns/pid")) if sys.platform == "linux" else ("-", "-")


def sh(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def line(*words: object) -> bytes:
    said = "\t".join(map(str, words)).encode()
    return b"%08x %s\n" % (binascii.crc32(said), said)


def place_with(folder: Path, *lines: bytes) -> Notes:
    """A place whose keeper is dead and noted just this."""
    (folder / "old").mkdir(exist_ok=True)
    (folder / "old" / "gate").touch()
    (folder / "old" / "journal").write_bytes(b"".join(lines) + bytes(4096))
    return Notes.take_over(str(folder), "old")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True, env={"DURUN_IDEMPOTENCY_KEY": "a key"})
    yield process
    process.kill()
    process.wait()


# --- the table: keeper dead or alive, and what its journal says ---


def test_of_what_was_not_asked_for_nothing_is_noted(driver: Any) -> None:
    driver.run("a", "true")
    driver.die()
    assert driver.notes().of("never") == Nothing() == driver.notes().of("")


def test_a_place_that_is_not_there_is_gone(tmp_path: Path) -> None:
    assert Notes.take_over(str(tmp_path), "never").gone
    (tmp_path / "half").mkdir()
    assert Notes.take_over(str(tmp_path), "half").gone


def test_a_command_that_ended_after_its_driver_died_is_found_ended(driver: Any, alive: Callable[[Path], list[int]]) -> None:
    driver.begin("a", *sh("until [ -e $T/go ]; do sleep 0.02; done; echo out; exit 7"), capture=True)
    driver.begun("a")
    driver.die()
    notes = driver.notes()
    said = notes.of("a")
    assert isinstance(said, Begun) and notes.keeper_alive() and notes.alive(said, "key")
    (driver.folder / "go").touch()
    until(lambda: notes.refresh() or isinstance(notes.of("a"), End))
    end = notes.of("a")
    assert isinstance(end, End) and end.status == 7
    assert read_whole(str(driver.folder), end.out, end.out_size, end.out_crc) == b"out\n"
    assert os.waitpid(driver.commands.pid, 0)[1] == 0 and not notes.keeper_alive() and alive(driver.folder) == []


def test_the_notes_say_in_the_same_words_what_the_driver_heard(driver: Any) -> None:
    heard = [driver.run("a", *sh("echo x; echo y >&2; sleep 60 & exit 4"), capture=True), driver.run("b", "no-such-program")]
    driver.die()
    assert [driver.notes().of("a"), driver.notes().of("b")] == heard
    assert heard[1] == NoStart("b", 2, "program")


def test_without_keeper_what_lives_is_seen_by_its_group(driver: Any) -> None:
    driver.begin("a", *sh("exec >/dev/null 2>&1; echo up >$T/up; sleep 60"))
    driver.there("up")
    begun = driver.begun("a")
    os.kill(driver.commands.pid, signal.SIGKILL)
    assert isinstance(driver.report(), KeeperGone)
    driver.die()
    notes = driver.notes()
    assert not notes.keeper_alive() and notes.alive(begun, "key")
    notes.ask_stop(begun, "key", STOP, "cancel")
    until(lambda: not notes.alive(begun, "key"))
    assert isinstance(notes.of("a"), Begun), "nobody saw how it ended"


def test_without_keeper_what_left_its_group_is_seen_by_its_output(driver: Any) -> None:
    code = "import os, time; os.fork() and time.sleep(60); os.setsid(); open(os.environ['T'] + '/up', 'w').write('up\\n'); time.sleep(60)"
    driver.begin("a", sys.executable, "-S", "-c", code)
    driver.there("up")
    begun = driver.begun("a")
    driver.kill_keeper()
    os.killpg(begun.pid, signal.SIGKILL)
    notes = driver.notes()
    assert not ours(begun, "key") or until(lambda: not ours(begun, "key"))
    assert notes.alive(begun, "key")


def test_without_keeper_what_is_dead_is_in_doubt(driver: Any) -> None:
    driver.begin("a", "sleep", "60")
    begun = driver.begun("a")
    driver.kill_keeper()
    os.killpg(begun.pid, signal.SIGKILL)
    notes = driver.notes()
    until(lambda: not notes.alive(begun, "key"))
    assert notes.of("a") == begun and not notes.keeper_alive()


def test_what_has_only_its_intent_noted_is_looked_for_by_its_key(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    notes = place_with(tmp_path, line("keeper", "", 1, *HERE), line("about", "a", "1.out", "1.err"))
    said = notes.of("a")
    assert said == Begun("a", None, 0.0, 0.0, "1.out", "1.err")
    until(lambda: notes.alive(said, "a key"))  # a moment after its fork it is not executed yet
    assert not notes.alive(said, "another key")
    assert notes.found(said, "a key") == said, "a key alone does not make it the command"
    notes.ask_stop(said, "key", STOP, "cancel")
    assert stranger.poll() is None, "a key alone is no leave to signal"


def test_a_begin_that_was_put_off_is_none(tmp_path: Path) -> None:
    about, off = line("about", "a", "1.out", "1.err"), line("not_yet", "a", 11)
    assert place_with(tmp_path, about, off).of("a") == Nothing()
    assert isinstance(place_with(tmp_path, about, off, about).of("a"), Begun)


# --- whose a pid is ---


def test_a_pid_of_another_process_is_not_taken_for_ours(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    """F05."""
    assert ours(Begun("a", stranger.pid, now() - 0.5, now(), "x", "y"), "key")
    old = line("begun", "a", stranger.pid, now() - 500, now() - 400)
    notes = place_with(tmp_path, line("keeper", "", 1, *HERE), line("about", "a", "1.out", "1.err"), old)
    said = notes.of("a")
    assert isinstance(said, Begun) and said.pid == stranger.pid and not notes.alive(said, "key")
    notes.ask_stop(said, "key", [("KILL", 0)], "cancel")
    time.sleep(0.05)
    assert stranger.poll() is None


@pytest.mark.parametrize("where", [("another boot", HERE[1]), (HERE[0], "pid:[1]"), None], ids=["boot", "namespace", "unknown"])
def test_a_pid_of_another_boot_or_namespace_is_never_signalled(
    tmp_path: Path, stranger: subprocess.Popen[bytes], where: tuple[str, str] | None
) -> None:
    same = line("begun", "a", stranger.pid, now() - 0.5, now() + 0.5)
    notes = place_with(tmp_path, line("keeper", "", 1, *where) if where else b"", line("about", "a", "1.out", "1.err"), same)
    said = notes.of("a")
    assert isinstance(said, Begun) and not notes.alive(said, "key")
    notes.ask_stop(said, "key", [("KILL", 0)], "cancel")
    time.sleep(0.05)
    assert stranger.poll() is None


def test_a_boot_has_a_name_and_a_clock() -> None:
    assert boot.boot_id() == boot.boot_id() != ""
    assert 0 < boot.boot_ms() <= boot.boot_ms()


# --- the journal ---


def test_a_journal_cut_at_any_byte_says_nothing_that_is_not_whole(driver: Any) -> None:
    driver.run("a", "true")
    driver.run("b", *sh("echo x; exit 3"))
    driver.die()
    os.waitpid(driver.commands.pid, 0)
    path = driver.folder / "one" / "journal"
    whole = path.read_bytes().rstrip(b"\0")
    order = [Nothing, Begun, Begun, End]
    ends = [m.end() for m in re.finditer(rb"\n", whole) if b"\tb\t" in whole[: m.end()].splitlines()[-1]]
    for cut in range(ends[0] - 10, len(whole) + 1):
        for rest in (b"", bytes(100)):
            path.write_bytes(whole[:cut] + rest)
            said = driver.peek().of("b")
            assert isinstance(said, order[sum(cut >= end for end in ends)]), (cut, said)
            assert isinstance(driver.peek().of("a"), End)


def test_a_journal_with_any_bit_wrong_is_believed_but_for_that_record(driver: Any) -> None:
    driver.run("a", *sh("exit 3"))
    end = driver.run("b", *sh("exit 4"))
    driver.die()
    path = driver.folder / "one" / "journal"
    whole = path.read_bytes().rstrip(b"\0")
    begin = whole.index(b" ended\ta") - 8
    for at in range(begin, whole.index(b"\n", begin) + 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert isinstance(driver.peek().of("a"), Begun), at
        assert driver.peek().of("b") == end or whole[at] == 10, at


def test_a_line_that_looked_torn_while_it_was_written_is_read_again(tmp_path: Path) -> None:
    first, second, third = line("about", "a", "1.out", "1.err"), line("nostart", "a", 2, "program"), line("about", "b", "x", "y")
    notes = place_with(tmp_path, first, bytes(len(second) - 9), second[-9:], third)
    assert isinstance(notes.of("a"), Begun) and isinstance(notes.of("b"), Begun)
    (tmp_path / "old" / "journal").write_bytes(first + second + third)
    notes.refresh()
    assert notes.of("a") == NoStart("a", 2, "program")


def test_a_long_journal_is_read_in_a_moment(tmp_path: Path) -> None:
    lines = []
    for n in range(20_000):
        lines += [
            line("about", f"1.{n}.1", "1.out", "1.err"),
            line("begun", f"1.{n}.1", 99, 1.5, 1.6),
            line("nostart", f"1.{n}.1", 2, "program"),
        ]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "journal").write_bytes(b"".join(lines))
    begun = time.perf_counter()
    crc = [binascii.crc32(one) for one in lines]
    floor = time.perf_counter() - begun
    begun = time.perf_counter()
    notes = Notes.take_over(str(tmp_path), "old")
    assert notes.of("1.19999.1") == notes.of("1.3.1")._replace(token="1.19999.1")
    assert time.perf_counter() - begun < max(0.05, 10 * floor), crc[0]


# --- a keeper without its driver ---


def test_a_later_driver_has_a_command_stopped_through_the_control_file(driver: Any) -> None:
    driver.begin("a", "sleep", "60")
    begun = driver.begun("a")
    driver.die()
    notes = driver.notes()
    with open(driver.folder / "one" / "control", "a") as f:
        f.write("nonsense\na\tHUP:1\tx\na\tTERM:x\tx\n\n\t\t\n")
    notes.ask_stop(begun, "key", [("TERM", 1000), ("KILL", 0)], "cancel by\n hand")
    until(lambda: notes.refresh() or isinstance(notes.of("a"), End))
    end = notes.of("a")
    assert isinstance(end, End) and (end.status, end.stopped) == (-15, "cancel by hand")


@pytest.mark.parametrize("limit", ["timeout", "heartbeat"])
def test_without_its_driver_the_keeper_still_enforces(driver: Any, limit: str, alive: Callable[[Path], list[int]]) -> None:
    driver.begin("a", *sh("trap '' TERM; echo up >$T/up; while :; do sleep 0.02; done"), **{limit: 500}, grace=300)
    driver.there("up")
    driver.die()
    notes = driver.notes()
    until(lambda: notes.refresh() or isinstance(notes.of("a"), End))
    end = notes.of("a")
    assert isinstance(end, End) and (end.status, end.stopped) == (-signal.SIGKILL, limit)
    assert os.waitpid(driver.commands.pid, 0)[1] == 0 and alive(driver.folder) == []


def test_a_keeper_goes_when_its_driver_is_gone_and_nothing_runs(driver: Any) -> None:
    driver.run("a", "true")
    driver.die()
    assert os.waitpid(driver.commands.pid, 0)[1] == 0 and not driver.peek().keeper_alive()


def test_a_driver_killed_with_answers_unread_loses_no_note(make: Callable[..., Any], tmp_path: Path) -> None:
    """The kernel says "reset" to the keeper then, before the last requests: they are read all the same."""
    for n in range(15):
        driver = make(tmp_path / str(n))
        for k in range(20):
            driver.begin(str(k), "true")
        until(lambda driver=driver: isinstance(driver.peek().of("3"), End))
        driver.begin("last", *sh("exit 3"))
        driver.die()
        assert os.waitpid(driver.commands.pid, 0)[1] == 0
        assert all(isinstance(driver.notes().of(str(k)), End) for k in range(20))
        assert driver.notes().of("last").status == 3


# --- the gate ---


def test_after_the_gate_is_closed_nothing_more_begins(driver: Any) -> None:
    driver.run("a", "true")
    notes = driver.notes()
    for token in "bc":
        assert driver.run(token, *sh("echo x >> $T/ticks")) == Refused(token)
    notes.refresh()
    assert notes.of("b") == Nothing() and driver.lines("ticks") == []


@pytest.mark.parametrize("stopped", [False, True], ids=["keeper awake", "keeper stopped with the request in its socket"])
def test_a_request_in_the_socket_of_a_dead_driver_is_begun_once(make: Callable[..., Any], tmp_path: Path, stopped: bool) -> None:
    """The one who takes over begins it exactly where the old keeper's notes say that it never will."""
    for n in range(40):
        driver = make(tmp_path / str(n))
        driver.run("warm", "true")
        if stopped:
            os.kill(driver.commands.pid, signal.SIGSTOP)
        driver.begin("a", *sh("echo a >> $T/ticks"))
        driver.die()
        if not stopped:
            time.sleep(n * 0.00005)
        said = driver.notes().of("a")
        if stopped:
            assert said == Nothing()
            os.kill(driver.commands.pid, signal.SIGCONT)
        begun_once(make, driver, said)


def begun_once(make: Callable[..., Any], driver: Any, said: object) -> None:
    """Does what the one who takes over does, lets the old keeper end, and holds that it was begun once."""
    if said == Nothing():
        second = make(driver.folder, "two")
        assert second.run("a", *sh("echo a >> $T/ticks")).status == 0
        second.commands.close(keep=False)
    assert os.waitpid(driver.commands.pid, 0)[1] == 0
    assert driver.lines("ticks") == ["a"], said


def test_a_keeper_that_stands_still_inside_its_gate_is_reported_not_overrun(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    driver.run("a", "true")
    gate = os.open(driver.folder / "one" / "gate", os.O_RDONLY)
    fcntl.flock(gate, fcntl.LOCK_SH)
    with pytest.raises(Stuck, match=f"kill -CONT {driver.commands.pid}"):
        driver.notes()
    os.close(gate)
    assert driver.notes().of("a").status == 0


def traced(pid: int, *words: str) -> subprocess.Popen[bytes]:
    """strace on a keeper, attached when this returns."""
    tracer = subprocess.Popen(["strace", "-qq", *words, "-p", str(pid)], stderr=subprocess.DEVNULL)
    until(lambda: f"TracerPid:\t{tracer.pid}" in Path(f"/proc/{pid}/status").read_text() or tracer.poll() is not None)
    if tracer.poll() is not None:
        pytest.skip("strace may not attach here")
    return tracer


def moments(driver: Any, log: Path) -> list[tuple[str, int]]:
    """Every system call of a keeper from the request to the note of the pid, each with how often it was called by then."""
    driver.run("warm", "true")
    tracer = traced(driver.commands.pid, "-o", str(log))
    driver.run("a", *sh("echo a >> $T/ticks"))
    tracer.terminate()
    tracer.wait()
    names = [m.group(1) for text in log.read_text().splitlines() if (m := re.match(r"(\w+)\(", text))]
    unlock = next(n for n, text in enumerate(log.read_text().splitlines()) if "LOCK_UN" in text and "flock" in text)
    quiet = (
        "mmap",
        "munmap",
        "mprotect",
        "brk",
        "prlimit64",
        "rt_sigprocmask",
        "rt_sigaction",
        "rt_sigreturn",
        "poll",
        "restart_syscall",
    )
    return [(name, names[: n + 1].count(name)) for n, name in enumerate(names[: unlock + 2]) if name not in quiet]


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("blow", ["STOP", "KILL"])
def test_at_every_moment_of_a_begin_a_takeover_finds_what_is_so(
    make: Callable[..., Any], tmp_path: Path, blow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper stops, or dies, at each of its system calls; then the next driver takes over and begins what it may."""
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    points = moments(make(tmp_path / "dry"), tmp_path / "log")
    assert len(points) > 10
    for name, when in points:
        driver = make(tmp_path / f"{name}{when}")
        driver.run("warm", "true")
        tracer = traced(driver.commands.pid, "-o", "/dev/null", "-e", f"inject={name}:signal=SIG{blow}:when={when}")
        driver.begin("a", *sh("echo a >> $T/ticks"))
        if blow == "KILL":
            until(lambda driver=driver: not driver.peek().keeper_alive())
            driver.die()
            os.waitpid(driver.commands.pid, 0)
            tracer.wait()
            in_doubt_or_never(make, driver)
        else:
            until(lambda pid=driver.commands.pid: stands_still(pid))
            driver.die()
            tracer.kill()
            tracer.wait()
            begun_once(make, driver, take_over(driver))


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def take_over(driver: Any) -> object:
    """What a takeover finds of a keeper that stands still; where it stands inside its gate, after it was let go on."""
    with contextlib.suppress(Stuck):
        said = driver.notes().of("a")
        os.kill(driver.commands.pid, signal.SIGCONT)
        return said
    os.kill(driver.commands.pid, signal.SIGCONT)
    return until(lambda: said_by(driver))


def said_by(driver: Any) -> object:
    """What is noted, or None: the patience is short here, and a keeper that was let go on may need a while."""
    with contextlib.suppress(Stuck):
        said = driver.notes().of("a")
        return None if isinstance(said, Nothing) else said
    return None


def in_doubt_or_never(make: Callable[..., Any], driver: Any) -> None:
    """After the death of the keeper "nothing" is said only of what never ran and never will."""
    notes = driver.notes()
    said = notes.of("a")
    if said == Nothing():
        assert driver.lines("ticks") == []
        second = make(driver.folder, "two")
        assert second.run("a", *sh("echo a >> $T/ticks")).status == 0
        second.commands.close(keep=False)
        assert driver.lines("ticks") == ["a"]
    elif isinstance(said, Begun):
        until(lambda: not notes.alive(said, "no such key"))
        assert len(driver.lines("ticks")) <= 1


# --- time awake ---


def test_the_ends_and_begins_that_are_noted_are_told_by_the_clock_that_stands_still_in_sleep(driver: Any) -> None:
    before = time.monotonic()
    driver.begin("a", *sh("sleep 0.2"))
    begun, end = driver.begun("a"), driver.report()
    assert before <= begun.awake <= end.at / 1000 <= time.monotonic()
    assert end.at / 1000 - begun.awake >= 0.19


@pytest.mark.parametrize("ran", [0, 7200])
def test_a_timeout_holds_where_the_keeper_is_dead_and_counts_no_sleep(
    driver: Any, ran: int, alive: Callable[[Path], list[int]]
) -> None:
    driver.begin(
        "a", *sh("trap 'echo heard >> $T/ticks; exit 0' TERM; echo up > $T/up; while :; do sleep 0.05; done"), timeout=3_600_000
    )
    driver.there("up")
    begun = driver.begun("a")
    driver.kill_keeper()
    driver.die()
    effect = Effect(1, "", "a", 1, "run", "key", {"timeout": 3_600_000}, "begin", place="one")
    later = make_deliverer(driver.folder)
    later._enforce(Adopted(effect, driver.notes(), begun._replace(awake=begun.awake - ran), (), 0.0))
    if ran:
        until(lambda: driver.lines("ticks") == ["heard"])
    else:
        assert alive(driver.folder) and not later._killed
        os.killpg(begun.pid, signal.SIGKILL)
    later.close(keep=False)
    until(lambda: not alive(driver.folder))


def test_how_long_a_command_ran_is_told_without_sleep_and_with_it_only_where_nothing_else_is_noted() -> None:
    begun = Begun("a", 7, 100.0, 100.1, "", "", awake=50.0)
    assert ran(begun, awake=60.0, boot=7300.0) == 10.0
    assert ran(begun._replace(awake=None), awake=60.0, boot=110.0) == 10.0


def make_deliverer(folder: Path) -> Deliverer:
    pinned = Pinned({}, "", "", str(folder), {"base": {}, "env": {}}, "", 1)
    return Deliverer(Commands(str(folder), "two"), 1, pinned, str(folder / "db"), lambda: "three", boot_id())


def test_a_sign_of_life_is_read_and_one_that_is_none_says_nothing(driver: Any) -> None:
    assert last_sign(str(driver.folder), "one") is None
    driver.commands.sign(f"{12345:020d} the-boot\n")
    assert last_sign(str(driver.folder), "one") == ("the-boot", 12345)
    assert driver_alive(str(driver.folder), "one")
    (driver.folder / "one" / "lock").write_bytes(b"\0" * 40)
    assert last_sign(str(driver.folder), "one") is None and last_sign(str(driver.folder), "nowhere") is None

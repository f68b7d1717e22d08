"""The keeper: what it begins, what a command sees, how it is stopped and ends, and what stays behind."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import until

from durun.effects import command
from durun.effects.command import CAPTURE, End, KeeperGone, NoStart, Request, read_whole, tail
from durun.effects.locks import driver_alive

STOP = [("TERM", 5000), ("KILL", 0)]


def sh(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


def py(code: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code


def text(driver: Any, path: str) -> str:
    return str((driver.folder / path).read_text()) if path else ""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- how a command ends ---


def test_exits_and_signals_are_told_apart(driver: Any) -> None:
    """F114."""
    assert driver.run("a", "true").status == 0
    assert driver.run("b", *sh("exit 42")).status == 42
    assert driver.run("c", *sh("kill -SEGV $$")).status == -signal.SIGSEGV
    assert driver.run("d", *sh("kill -KILL $$")).status == -signal.SIGKILL


def test_what_could_not_be_started_is_told_by_what_was_wrong(driver: Any) -> None:
    (driver.folder / "plain").write_text("text")
    assert driver.run("a", "no-such-program") == NoStart("a", 2, "program")
    assert driver.run("b", str(driver.folder / "plain")) == NoStart("b", 13, "program")
    assert driver.run("c", "true", cwd="/no/such/folder") == NoStart("c", 2, "directory")
    assert driver.run("d", "") == NoStart("d", 2, "program")
    assert driver.run("e", "true", env={"A": "x" * (1 << 22)}) == NoStart("e", 7, "program")


def test_a_request_that_no_system_takes_does_not_end_the_keeper(driver: Any) -> None:
    assert driver.run("a", "true", cwd="/nul\0byte") == NoStart("a", 22, "directory")
    assert driver.run("b", "true", "nul\0byte") == NoStart("b", 22, "program")
    assert driver.run("c", "true", env={"LONE": "\ud800"}) == NoStart("c", 22, "environment")
    assert driver.run("d", "true", env={"A=B": "x"}) == NoStart("d", 22, "program")
    driver.commands.begin(Request("e", [], {}, "/"), driver.commands.next_number())
    assert driver.report() == NoStart("e", 2, "program")
    assert driver.run("f", "true").status == 0
    assert len(list((driver.folder / "one").glob("*.out"))) == 1, "what did not begin needs no file"


def test_a_program_is_looked_for_along_the_path_of_the_command_itself(driver: Any) -> None:
    tool = driver.folder / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 5\n")
    tool.chmod(0o755)
    assert driver.run("a", "tool", env={"PATH": f"{tool.parent}:/bin"}).status == 5
    assert driver.run("b", "./tool", cwd=str(tool.parent)).status == 5


def test_a_driver_that_ignores_child_and_int_signals_still_hears_the_true_exit(
    tmp_path: Path, in_a_process_of_its_own: Callable[..., str]
) -> None:
    """F07, F17: a shell begins a background job with INT ignored, and CHLD ignored outlives exec."""
    code = (
        "c.close(keep=False)\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nc = Commands(folder, 'two')\n"
        "ask(c, 'a', '/bin/sh', '-c', 'exit 3')\nprint(report(c)[0].status)\n"
        "ask(c, 'b', 'grep', '-E', 'Sig(Ign|Blk)', '/proc/self/status')\nend = report(c)[0]\n"
        "# 32 and 33 are the C library's own\n"
        "print({int(line.split()[1], 16) & ~(3 << 31) for line in open(os.path.join(folder, end.out))})\n"
    )
    assert in_a_process_of_its_own(tmp_path, code, "trap '' INT QUIT HUP USR1 WINCH; exec") == "3\n{0}\n"


def test_many_at_once_all_end(driver: Any) -> None:
    """F09: a spawn is bounded, and none of them hangs."""
    for n in range(300):
        driver.begin(str(n), *sh(f"exit {n % 7}"))
    ends = {e.token: e.status for e in (driver.report() for _ in range(300))}
    assert ends == {str(n): n % 7 for n in range(300)}


def test_a_shortage_of_descriptors_is_waited_for(tmp_path: Path, in_a_process_of_its_own: Callable[..., str]) -> None:
    code = (
        "c.close(keep=False)\nresource.setrlimit(resource.RLIMIT_NOFILE, (72, 72))\nc = Commands(folder, 'two')\n"
        "for n in range(100): ask(c, str(n), '/bin/sh', '-c', 'sleep 0.1; exit 4')\n"
        "ends = []\nwhile len(ends) < 100: ends += report(c)\n"
        "print({(type(e).__name__, e.status) for e in ends})\n"
    )
    assert in_a_process_of_its_own(tmp_path, code) == "{('End', 4)}\n"


# --- what a command sees ---


def test_a_command_sees_three_descriptors_and_a_session_of_its_own(make: Callable[..., Any]) -> None:
    keep = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(keep, True)
    try:
        driver = make()
        probe = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))), os.getsid(0) == os.getpid() == os.getpgid(0))"
        end = driver.run("a", *py(probe))
    finally:
        os.close(keep)
    assert text(driver, end.out) == "[0, 1, 2, 3] True\n"  # 3 is the folder that was listed


def test_the_keeper_has_nothing_open_that_was_the_driver_s(make: Callable[..., Any], tmp_path: Path) -> None:
    """F41, and a caller that reads to the end of a pipe, or holds a lock, does not wait for what survives."""
    read, write = os.pipe()
    db = os.open(tmp_path / "runs.db", os.O_RDWR | os.O_CREAT)
    for fd in (write, db):
        os.set_inheritable(fd, True)
    driver = make()
    driver.begin("a", "sleep", "60")
    begun = driver.begun("a")
    os.close(write)
    assert os.read(read, 1) == b"", "somebody still holds the other end"
    for pid in (driver.commands.pid, begun.pid):
        assert not [link for link in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(link).endswith("runs.db")]
    os.close(read)
    os.close(db)


def test_the_environment_is_the_driver_s_with_changes(driver: Any) -> None:
    end = driver.run("a", *sh('echo "$A ${HOME-none} $PATH"'), env={"A": "a\udcffb"}, without=("HOME",))
    assert (driver.folder / end.out).read_bytes() == f"a\udcffb none {os.environ['PATH']}\n".encode("utf-8", "surrogateescape")


def test_stdin_is_empty_unless_given_and_may_be_large(driver: Any) -> None:
    """F25."""
    assert driver.run("a", "cat").out == ""
    data = os.urandom(1 << 20)
    end = driver.run("b", "cat", stdin=data, capture=True)
    assert read_whole(str(driver.folder), end.out, end.out_size, end.out_crc) == data
    assert driver.run("c", "true", stdin=data).status == 0, "one that does not read it"
    assert not (driver.folder / "one" / "stdin").exists()


# --- output ---


def test_output_is_kept_as_it_was_and_changed_output_is_not_believed(driver: Any) -> None:
    """F23."""
    end = driver.run("a", *sh(r"printf 'a\377b\n'; head -c 3000000 /dev/urandom; echo END"), capture=True)
    data = read_whole(str(driver.folder), end.out, end.out_size, end.out_crc)
    assert data is not None and data.startswith(b"a\xffb\n") and data.endswith(b"END\n")
    with open(driver.folder / end.out, "r+b") as f:
        f.write(b"A")
    assert read_whole(str(driver.folder), end.out, end.out_size, end.out_crc) is None


def test_much_output_flows_and_only_the_end_of_stderr_is_read(driver: Any) -> None:
    """F20."""
    end = driver.run("a", *sh("head -c 200000000 /dev/zero; head -c 100000 /dev/zero | tr '\\0' e >&2; exit 1"))
    assert end.out_size == 200_000_000 > CAPTURE and end.err_size == 100_000
    assert len(tail(str(driver.folder), end.err)) == 4096
    status = Path(f"/proc/{driver.commands.pid}/status").read_text()
    assert int(status.split("VmHWM:")[1].split()[0]) < 40_000, "the keeper held it in memory"


def test_what_was_written_to_the_output_file_is_told_with_its_checksum(driver: Any) -> None:
    end = driver.run("a", *sh(f"echo 7 > {driver.commands.data_path(1)}"))
    assert read_whole(str(driver.folder), end.data, end.data_size, end.data_crc) == b"7\n"
    assert driver.run("b", "true").data_size is None
    assert driver.run("c", *sh(f"mkfifo {driver.commands.data_path(3)}")).status == 0


def test_commands_that_print_nothing_share_their_files(driver: Any) -> None:
    for n in range(50):
        driver.run(str(n), "true")
    first, second = driver.run("x", "echo", "1"), driver.run("y", "echo", "2")
    assert (text(driver, first.out), text(driver, second.out)) == ("1\n", "2\n")
    found = sorted(p.name for p in (driver.folder / "one").glob("*.*"))
    assert [name for name in found if name != "3.out"] == ["1.err", "1.out", "2.out"]  # 3.out: made ahead for one that prints


def test_output_that_becomes_data_has_a_file_nobody_had_before(driver: Any) -> None:
    driver.run("a", "true")
    assert driver.run("b", "echo", "1", capture=True).out == "one/2.out"


def test_an_output_file_that_somebody_still_holds_is_not_used_again(driver: Any) -> None:
    first = driver.run("a", *sh("(until [ -e $T/go ]; do sleep 0.02; done; echo late; echo x >$T/said) & exit 0"))
    driver.begin("b", *sh("echo mine; until [ -e $T/said ]; do sleep 0.02; done"))
    (driver.folder / "go").touch()
    second = driver.report()
    assert first.status == second.status == 0 and text(driver, second.out) == "mine\n"


def test_nor_one_that_was_opened_anew_by_what_left_its_group(driver: Any) -> None:
    """It holds no lock and is in no group: only the kernel knows that the file is open."""
    daemon = (
        "import os, time; at = os.environ['T']; fd = os.open('/proc/self/fd/1', os.O_WRONLY | os.O_APPEND)\n"
        "os.fork() and os._exit(0); os.setsid(); [os.close(n) for n in (0, 1, 2)]; open(at + '/up', 'w').write('up\\n')\n"
        "while not os.path.exists(at + '/go'): time.sleep(0.02)\n"
        "os.write(fd, b'late'); open(at + '/said', 'w').write('x')"
    )
    driver.run("a", sys.executable, "-S", "-c", daemon)
    driver.there("up")
    driver.begin("b", *sh("until [ -e $T/said ]; do sleep 0.02; done"))
    (driver.folder / "go").touch()
    assert driver.report().out == ""


# --- what it leaves behind ---


def test_what_a_command_leaves_behind_is_named_and_does_not_hold_it_up(driver: Any) -> None:
    """F02."""
    begun = time.monotonic()
    end = driver.run("a", *sh("sleep 60 & echo done"))
    assert time.monotonic() - begun < 20
    assert end.status == 0 and len(end.left) == 1 and end.stopped == ""
    assert state_of(end.left[0]) not in "ZX", "it was not touched"


def test_what_left_the_group_is_named_by_its_output(driver: Any) -> None:
    code = "import os, time; pid = os.fork()\nif pid: print(pid, flush=True); os._exit(0)\nos.setsid(); time.sleep(60)"
    end = driver.run("a", *py(code))
    assert end.left == (int(text(driver, end.out)),)


def test_a_reader_of_a_log_is_not_taken_for_what_was_left(driver: Any) -> None:
    driver.begin("a", *sh("echo up; sleep 60 & until [ -e $T/go ]; do sleep 0.02; done"))
    until(lambda: driver.begun("a") and (driver.folder / "one/1.out").stat().st_size)
    with open(driver.folder / "one/1.out", "rb"):
        (driver.folder / "go").touch()
        left = driver.report().left
    assert len(left) == 1 and os.getpid() not in left


# --- to stop ---


def test_a_timeout_ends_the_whole_group_and_says_so(driver: Any) -> None:
    """F01."""
    end = driver.run("a", *sh("sh -c 'sh -c \"while :; do echo x >> $T/beat; sleep 0.02; done\"' & wait"), timeout=300)
    assert (end.stopped, end.status) == ("timeout", -signal.SIGTERM)
    size = (driver.folder / "beat").stat().st_size
    time.sleep(0.2)
    assert (driver.folder / "beat").stat().st_size == size


def test_a_stop_waits_until_the_whole_group_is_gone(driver: Any) -> None:
    driver.begin("a", *sh("(trap '' TERM; echo up >$T/up; sleep 0.6; echo late >$T/late) & sleep 60"))
    driver.there("up")
    driver.commands.stop("a", STOP, "cancel")
    end = driver.report()
    assert end.stopped == "cancel" and end.left == () and (driver.folder / "late").exists()


def test_what_ignores_term_is_killed_after_the_grace(driver: Any) -> None:
    driver.begin("a", *sh("trap '' TERM; echo up > $T/up; while :; do sleep 0.05; done"))
    driver.there("up")
    driver.commands.stop("a", [("TERM", 200), ("KILL", 0)], "cancel")
    end = driver.report()
    assert (end.stopped, end.status) == ("cancel", -signal.SIGKILL)


def test_what_ends_well_after_term_keeps_its_exit(driver: Any) -> None:
    """F13, F15: it has the time to clean up."""
    driver.begin("a", *sh("trap 'sleep 0.5; echo x >$T/clean; exit 0' TERM; echo up >$T/up; while :; do sleep 0.02; done"))
    driver.there("up")
    driver.commands.stop("a", STOP, "cancel")
    assert driver.report()[1:3] == (0, "cancel") and (driver.folder / "clean").exists()


def test_a_second_wish_to_stop_hastens_and_does_not_signal_twice(driver: Any) -> None:
    """F12: a tool that cleans up on the first INT and gives up on the second hears one."""
    driver.begin("a", *sh("trap 'echo int >>$T/ints' INT; trap '' TERM; while :; do echo x >>$T/beat; sleep 0.02; done"))
    driver.there("beat")
    for _ in range(3):
        driver.commands.stop("a", [("INT", 60_000), ("TERM", 60_000), ("KILL", 0)], "leaving")
        driver.there("ints")
        beats = len(driver.lines("beat"))
        until(lambda beats=beats: len(driver.lines("beat")) > beats + 3)
    driver.commands.stop("a", [("TERM", 60_000), ("KILL", 0)], "cancel")
    driver.commands.stop("a", [("TERM", 0), ("KILL", 0)], "cancel")
    assert driver.report()[1:3] == (-signal.SIGKILL, "leaving")
    assert driver.lines("ints") == ["int"]


def test_kill_is_immediate_whatever_grace_is_running(driver: Any) -> None:
    driver.begin("a", *sh("trap '' INT TERM; echo up >$T/up; while :; do sleep 0.02; done"))
    driver.there("up")
    driver.commands.stop("a", [("INT", 60_000), ("KILL", 0)], "leaving")
    driver.commands.stop("a", [("KILL", 0)], "leaving")
    assert driver.report().status == -signal.SIGKILL


def test_every_way_to_stop_sends_the_same(make: Callable[..., Any], tmp_path: Path) -> None:
    """F18."""
    traps = 'for s in INT TERM HUP QUIT; do trap "echo $s >>$T/got; exit 9" $s; done; '
    for way in ("timeout", "heartbeat", "cancel", "control"):
        driver = make(tmp_path / way)
        limit = {way: 600} if way in ("timeout", "heartbeat") else {}
        driver.begin("a", *sh(traps + "echo up >$T/up; while :; do sleep 0.02; done"), **limit)
        driver.there("up")
        if way == "cancel":
            driver.commands.stop("a", STOP, way)
        if way == "control":
            begun = driver.begun("a")
            driver.die()
            driver.peek().ask_stop(begun, "key", STOP, "control")
        end = until(lambda driver=driver: isinstance(said := driver.peek().of("a"), End) and said)
        assert (end.status, end.stopped, driver.lines("got")) == (9, way, ["TERM"])


def test_an_end_that_came_before_the_wish_to_stop_is_its_own(driver: Any) -> None:
    driver.begin("a", *sh("until [ -e $T/go ]; do sleep 0.02; done; exit 3"))
    pid = driver.begun("a").pid
    os.kill(driver.commands.pid, signal.SIGSTOP)
    until(lambda: state_of(driver.commands.pid) == "T")
    (driver.folder / "go").touch()
    until(lambda: state_of(pid) == "Z")
    driver.commands.stop("a", STOP, "cancel")
    os.kill(driver.commands.pid, signal.SIGCONT)
    assert driver.report()[1:3] == (3, "")


def test_a_stopped_process_hears_term(driver: Any) -> None:
    driver.begin("a", "sleep", "60")
    os.kill(driver.begun("a").pid, signal.SIGSTOP)
    driver.commands.stop("a", STOP, "cancel")
    assert driver.report().status == -signal.SIGTERM


def test_a_zombie_that_nobody_reaps_does_not_hold_up_the_end(driver: Any) -> None:
    """Somebody outside the group keeps a dead member of it, as an init that does not reap would."""
    code = (
        "import os, time\nif os.fork() == 0:\n  z = os.fork()\n  if z == 0: os._exit(0)\n  os.setsid(); print(z, flush=True)\n"
        "  open(os.environ['T'] + '/up', 'w').write('up\\n'); time.sleep(60)\ntime.sleep(60)"
    )
    driver.begin("a", sys.executable, "-S", "-c", code)
    driver.there("up")
    zombie = int((driver.folder / "one/1.out").read_text())
    until(lambda: state_of(zombie) == "Z")
    driver.commands.stop("a", [("TERM", 60_000), ("KILL", 0)], "cancel")
    end = driver.report(10)
    assert end.status == -signal.SIGTERM and len(end.left) == 1, "what left the group is named"
    assert state_of(zombie) == "Z"


def test_silence_ends_a_command_and_a_sign_of_life_does_not(driver: Any) -> None:
    assert driver.run("a", "sleep", "60", heartbeat=300).stopped == "heartbeat"
    path = driver.commands.alive_path(2)
    assert driver.run("b", *sh(f"for i in 1 2 3 4 5 6 7; do sleep 0.15; : > {path}; done"), heartbeat=800).stopped == ""
    assert driver.run("c", *sh("for i in 1 2 3 4 5 6 7; do sleep 0.15; echo x >&2; done"), heartbeat=800).stopped == ""


# --- the keeper itself ---


def test_the_keeper_ignores_int_term_hup_and_quit(driver: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(driver.commands.pid, number)  # also before it has begun to ignore them
    driver.run("a", "true")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGIO):
        os.kill(driver.commands.pid, number)
    assert driver.run("b", "true").status == 0


def test_a_keeper_that_dies_is_said_once(driver: Any) -> None:
    driver.begin("a", "sleep", "60")
    driver.begun("a")
    os.kill(driver.commands.pid, signal.SIGKILL)
    assert isinstance(driver.report(), KeeperGone)
    driver.begin("b", "true")
    assert driver.commands.receive(0.1) == []


def test_a_gate_that_is_being_closed_does_not_hold_up_what_runs(driver: Any) -> None:
    """Who closes it may be stopped just then: timeouts hold, and a request waits, also for its own stop."""
    driver.begin("a", "sleep", "60", timeout=500)
    driver.begun("a")
    gate = os.open(driver.folder / "one" / "gate", os.O_RDWR)
    fcntl.flock(gate, fcntl.LOCK_EX)
    driver.begin("b", "sleep", "60")
    driver.begin("c", "true")
    driver.commands.stop("b", STOP, "cancel")
    assert driver.report()[:3] == ("a", -signal.SIGTERM, "timeout")
    os.close(gate)
    assert {driver.report()[:3] for _ in "bc"} == {("b", -signal.SIGTERM, "cancel"), ("c", 0, "")}


def test_a_driver_s_lock_says_whether_it_lives(driver: Any) -> None:
    assert driver_alive(str(driver.folder), "one")
    driver.die()
    until(lambda: not driver_alive(str(driver.folder), "one"))  # what is just being executed closes its copy a moment later
    assert not driver_alive(str(driver.folder), "no-such-place")


def test_a_driver_that_leaves_tidily_leaves_its_logs_alone(driver: Any) -> None:
    driver.run("a", "true")
    end = driver.run("b", "echo", "hi")
    driver.commands.close(keep=False)
    assert {p.name for p in (driver.folder / "one").iterdir()} == {"1.out"} and text(driver, end.out) == "hi\n"


def test_a_driver_that_leaves_with_nothing_printed_leaves_nothing(driver: Any) -> None:
    driver.run("a", "true")
    driver.commands.close(keep=False)
    assert not (driver.folder / "one").exists()


def test_a_driver_that_leaves_while_something_runs_leaves_the_notes(driver: Any) -> None:
    driver.begin("a", *sh("until [ -e $T/go ]; do sleep 0.02; done"))
    driver.begun("a")
    driver.commands.close(keep=False)
    (driver.folder / "go").touch()
    until(lambda: isinstance(driver.peek().of("a"), End))


def test_a_keeper_that_stands_still_does_not_hold_up_the_leaving(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PARTING", 0.2)
    driver.run("a", "true")
    os.kill(driver.commands.pid, signal.SIGSTOP)
    driver.commands.close(keep=False)
    assert (driver.folder / "one" / "journal").exists()
    os.kill(driver.commands.pid, signal.SIGCONT)
    assert os.waitpid(driver.commands.pid, 0)[1] == 0


def test_what_is_more_than_is_asked_for_waits_for_the_next_look(driver: Any) -> None:
    for token in "abcde":
        driver.begin(token, "true")
    until(lambda: all(f"ended\t{token}" in _journal(driver) for token in "abcde"))
    heard: list[str] = []
    while len(heard) < 5:
        found = driver.commands.receive(30, 2)
        assert 1 <= len(found) <= 2 and all(report.status == 0 for report in found)
        heard += [report.token for report in found]
    assert sorted(heard) == list("abcde") and not driver.commands.has_more
    assert driver.commands.receive(0, 2) == []


def test_one_that_was_told_to_stop_does_not_keep_the_ends_of_others_from_being_told(driver: Any) -> None:
    driver.begin(
        "stays", *py("import signal, time; signal.signal(15, signal.SIG_IGN); open('on', 'w').write('on\\n'); time.sleep(60)")
    )
    driver.there("on")
    driver.commands.stop("stays", [("TERM", 60_000), ("KILL", 0)], "cancel")
    for token in "abc":
        assert driver.run(token, "true").status == 0
    driver.commands.stop("stays", [("KILL", 0)], "cancel")
    assert driver.report().status == -signal.SIGKILL


def test_the_pid_of_one_that_was_told_to_stop_stays_its_own_while_others_run(driver: Any) -> None:
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); open('on', 'w').write('on\\n'); time.sleep(60)"
    driver.begin("stays", *sh(f'{sys.executable} -I -S -c "{child}" & wait'))
    driver.begin("other", "sleep", "60")
    driver.there("on")
    pid, other = driver.begun("stays").pid, driver.begun("other").pid
    driver.commands.stop("stays", [("TERM", 60_000), ("KILL", 0)], "cancel")
    until(lambda: state_of(pid) == "Z")
    assert driver.run("more", "true").status == 0 and state_of(pid) == "Z", "what is left of its group is signalled by this pid"
    driver.commands.stop("stays", [("KILL", 0)], "cancel")
    assert driver.report().status == -signal.SIGTERM
    os.killpg(other, signal.SIGKILL)
    assert driver.report().status == -signal.SIGKILL


def _journal(driver: Any) -> str:
    return str((driver.folder / driver.place / "journal").read_bytes().decode("utf-8", "replace"))

"""What a person sees: the real program in a terminal of 80 columns and 24 rows, recorded at each stage.

The terminal is tmux's. A line that was wrapped comes joined, so that one that is too long shows as what it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from program import Program, until

TMUX = shutil.which("tmux")
needs_tmux = pytest.mark.skipif(TMUX is None, reason="tmux is not here")

RELEASE = """
name: release
version: '1.4'
start: fetch
states:
  fetch: {run: 'echo fetch >> "$LEDGER"', next: deploy}
  deploy:
    run: |
      echo deploy >> "$LEDGER"
      printf 'part 1 of 3\\n\\033[31mpart 2\\033[0m\\007 \\033]0;owned\\007of 3 \\302\\233?25l\\n'
      until [ -e "$LEDGER.go" ]; do sleep 0.1; done
    next: announce
  announce:
    run: 'echo announce >> "$LEDGER"; until [ -e "$LEDGER.end" ]; do sleep 0.1; done'
    next: succeeded
"""


class Terminal:
    """A shell in a terminal. `durun` in it is the program under test, with the database of the test."""

    def __init__(self, durun: Program, width: int = 80) -> None:
        self.durun = durun
        self._socket = Path(tempfile.mkdtemp(prefix="durun-tmux-")) / "s"
        script = durun.folder / "bin" / "durun"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexport DURUN_DB={durun.db} LEDGER={durun.ledger}\nexec {sys.executable} -m durun "$@"\n')
        script.chmod(0o755)
        self._env = {k: v for k, v in durun.env.items() if k not in ("DURUN_DB", "NO_COLOR", "COLUMNS", "LINES", "TMUX")}
        self._env |= {
            "PATH": f"{script.parent}:{self._env['PATH']}",
            "PS1": "$ ",
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
            "ENV": "",
        }
        self._env |= {"SHELL": "/bin/sh"}
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "24", "/bin/sh")
        self.until(lambda: "$" in self.screen(), "a prompt")

    def tmux(self, *words: str) -> str:
        done = subprocess.run([str(TMUX), "-u", "-S", str(self._socket), *words], cwd=self.durun.folder, env=self._env,
                              capture_output=True, text=True, check=True, timeout=30)  # fmt: skip
        return done.stdout

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-J").rstrip("\n")

    def colours(self) -> str:
        return self.tmux("capture-pane", "-p", "-e")

    def type(self, line: str) -> None:
        """A command on an empty screen."""
        self.tmux("send-keys", "-l", f"clear; {line}")
        self.tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        self.tmux("send-keys", key)

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if holds():
                return
            time.sleep(0.05)
        raise AssertionError(f"never came: {what}\n{self.screen()}")

    def sees(self, *words: str) -> str:
        """Waits until all of this is on the screen; the screen, which must be clean."""
        self.until(lambda: all(word in self.screen() for word in words), repr(words))
        seen = self.screen()
        assert all(line.isprintable() for line in seen.split("\n")), repr(seen)
        for garbage in ("[?7", "\\x1b", "[31m", "^["):
            assert garbage not in seen, seen
        assert max(map(len, seen.split("\n"))) <= 80, seen
        return seen

    def sees_prompt(self, *words: str) -> str:
        """The same, once the shell is back; the terminal is as it was."""
        self.until(lambda: self.screen().split("\n")[-1].strip() == "$", "a prompt")
        seen = self.sees(*words)
        assert self.tmux("display-message", "-p", "#{cursor_flag} #{wrap_flag}").split() == ["1", "1"]
        return seen

    def kill(self, *marks: bytes) -> None:
        """kill -9 of the driver, or the keeper, that has one of these in its command line."""
        for pid in self.durun.processes():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if any(mark in line for mark in marks):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.tmux("kill-server")
        shutil.rmtree(self._socket.parent)


@pytest.fixture
def terminal(durun: Program) -> Iterator[Terminal]:
    made = Terminal(durun)
    yield made
    made.close()


DRIVER, KEEPER = b"\0-m\0durun\0", b"keeper.py"


@needs_tmux
def test_start_crash_look_resume_in_doubt_resolve_and_the_end(terminal: Terminal, durun: Program) -> None:
    durun.plan(RELEASE)

    terminal.type("durun start plan.yaml --id r1")
    seen = terminal.sees("r1  release 1.4  running", "✓ fetch", "▸ deploy", "part 2\\x07 of 3 \\x9b?25l", "Ctrl-C stops")
    assert seen.count("part ") == 1
    assert terminal.tmux("display-message", "-p", "#{pane_title}").strip() != "owned"

    terminal.kill(DRIVER, KEEPER)
    terminal.sees_prompt("Killed", "▸ deploy")

    terminal.type("durun ls; durun show r1")
    seen = terminal.sees_prompt("interrupted", "under way, or its end is not seen yet", "durun resume r1")
    assert seen.split("\n")[0].split() == ["ID", "PLAN", "STATUS", "STATE", "UPDATED"]
    assert seen.split("\n")[1].split()[:4] == ["r1", "release", "interrupted", "deploy"]
    assert seen.split("\n")[1].endswith(" ago")

    terminal.type("durun resume r1; echo code $?")
    terminal.sees("running", "✓ fetch", "▸ deploy", "part 2\\x07 of 3")
    (durun.folder / "ledger.go").touch()
    seen = terminal.sees_prompt(
        "run r1 is blocked (in_doubt)", "\n  durun resolve r1 deploy --happened | --retry | --fail", "code 9"
    )
    assert "▸" not in seen and "Ctrl-C" not in seen
    assert "deploy: in doubt, its keeper died, and nobody saw how it ended" in seen

    terminal.type("durun ls; durun show r1")
    terminal.sees_prompt("blocked (in_doubt)", "in doubt", "\n      key ", "whether deploy happened is not known")

    terminal.type("durun resolve r1 --happened")
    terminal.sees_prompt("run r1: happened is recorded", "`durun resume r1` goes on")

    terminal.type("durun resume r1; echo code $?")
    terminal.sees("2 done", "✓ deploy", "▸ announce")
    (durun.folder / "ledger.end").touch()
    seen = terminal.sees_prompt("announce: done (", "run r1 succeeded", "code 0")
    assert "▸" not in seen and "Ctrl-C" not in seen
    assert durun.lines() == ["fetch", "deploy", "announce"]


@needs_tmux
def test_ctrl_c_leaves_the_terminal_as_it_was_and_says_how_to_go_on(terminal: Terminal, durun: Program) -> None:
    durun.plan(RELEASE)
    terminal.type("durun start plan.yaml --id r1; echo code $?")
    terminal.sees("▸ deploy", "part 2\\x07 of 3")
    terminal.press("C-c")
    seen = terminal.sees_prompt("run r1 is paused", "durun resume r1", "code 130", "fetch: done (")
    assert "▸" not in seen
    terminal.type("stty -a | grep -ow -e -echo -e -icanon; echo $(stty -a | grep -ow echo) is on")
    assert "-echo" not in terminal.sees_prompt("echo is on").split("\n", 1)[1]


@needs_tmux
def test_what_stands_above_a_question_is_how_the_run_stands(terminal: Terminal, durun: Program) -> None:
    durun.plan(
        "start: first\nstates:\n"
        "  first: {run: sleep 1, next: ask}\n  ask: {approval: {message: 'Go on?'}, next: last}\n"
        "  last: {run: sleep 1, next: succeeded}\n"
    )
    terminal.type("durun start plan.yaml --id r1")
    seen = terminal.sees("✓ first", "ask: Go on?", "yes / no")
    assert "▸ first" not in seen and seen.count("r1  test") == 1
    terminal.tmux("send-keys", "yes", "Enter")
    terminal.sees("▸ last")
    terminal.sees_prompt("last: done (", "run r1 succeeded")


@needs_tmux
def test_a_terminal_made_narrower_gets_a_narrower_view_and_no_pieces_of_the_old(terminal: Terminal, durun: Program) -> None:
    durun.plan(RELEASE.replace("fetch", "fetch_what_is_needed_from_where_it_lies"))
    terminal.type("durun start plan.yaml --id r1")
    terminal.sees("▸ deploy", "part 2\\x07 of 3")
    terminal.tmux("resize-window", "-x", "30", "-y", "24")
    terminal.until(lambda: "▸ deploy" in terminal.screen() and max(map(len, terminal.screen().split("\n"))) <= 30, "a narrow view")
    seen = terminal.screen()
    assert seen.count("r1  release") == seen.count("▸ deploy") == seen.count("✓") == 1
    terminal.tmux("resize-window", "-x", "80", "-y", "24")
    terminal.until(lambda: "pauses the run" in terminal.screen(), "a wide view")
    assert terminal.screen().count("r1  release") == 1
    (durun.folder / "ledger.go").touch()
    (durun.folder / "ledger.end").touch()
    terminal.sees_prompt("run r1 succeeded")


@needs_tmux
def test_a_terminal_that_is_held_does_not_hold_the_run(terminal: Terminal, durun: Program) -> None:
    states = "".join(
        f"  s{n}: {{run: 'echo {n} >> \"$LEDGER\"; sleep 0.05', next: {f's{n + 1}' if n < 99 else 'succeeded'}}}\n"
        for n in range(100)
    )
    durun.plan(f"start: s0\nstates:\n{states}")
    terminal.type("durun start plan.yaml --id r1")
    terminal.sees("▸ s")
    terminal.press("C-s")
    terminal.until(lambda: len(durun.lines()) == 100, "the end of the run")
    terminal.press("C-q")
    terminal.sees_prompt("states done)", "s99: done", "run r1 succeeded")


@needs_tmux
def test_in_the_background_it_says_plain_lines_and_in_the_foreground_it_draws_below_what_the_shell_said(
    terminal: Terminal, durun: Program
) -> None:
    durun.plan(RELEASE)
    terminal.type("durun start plan.yaml --id r1")
    terminal.sees("▸ deploy")
    terminal.press("C-z")
    terminal.sees_prompt("Stopped")
    terminal.type("bg")
    terminal.sees("durun start")
    (durun.folder / "ledger.go").touch()
    seen = terminal.sees("deploy: done, on to announce")
    assert "▸" not in seen
    terminal.tmux("send-keys", "-l", "echo hello; fg")
    terminal.press("Enter")
    assert "\nhello\n" in terminal.sees("▸ announce")
    (durun.folder / "ledger.end").touch()
    terminal.sees_prompt("\nhello\n", "run r1 succeeded")


@needs_tmux
def test_watch_shows_what_another_process_drives_and_leaves_it_alone(terminal: Terminal, durun: Program) -> None:
    durun.plan(RELEASE)
    driver = durun.begin("start", "plan.yaml", "--id", "r1")
    until(lambda: "deploy" in durun.lines())
    terminal.type("durun watch r1; echo code $?")
    terminal.sees("r1  release 1.4  running", "✓ fetch", "▸ deploy", "part 2\\x07 of 3", "Ctrl-C ends watching")
    terminal.press("C-c")
    terminal.sees_prompt("run r1 is running; it goes on unwatched", "code 130")
    assert driver.poll() is None
    terminal.type("durun watch r1; echo code $?")
    terminal.sees("▸ deploy", "part 2\\x07 of 3")
    (durun.folder / "ledger.go").touch()
    terminal.sees("✓ deploy", "▸ announce")
    terminal.kill(DRIVER + b"start", KEEPER)
    driver.communicate()
    terminal.sees("interrupted", "nobody drives this run: `durun resume r1` goes on")
    (durun.folder / "ledger.end").touch()
    durun("resume", "r1", exit=9)
    seen = terminal.sees_prompt("announce: in doubt", "run r1 is blocked", "code 9")
    assert "Ctrl-C" not in seen and "deploy: done (" in seen


@needs_tmux
def test_a_dumb_terminal_gets_plain_lines_and_no_color_is_obeyed(terminal: Terminal, durun: Program) -> None:
    durun.plan(RELEASE)
    (durun.folder / "ledger.go").touch()
    (durun.folder / "ledger.end").touch()
    terminal.type("TERM=dumb durun start plan.yaml --id r1")
    terminal.sees_prompt("fetch: done, on to deploy", "run r1 succeeded")
    (durun.folder / "ledger.end").unlink()
    terminal.type("NO_COLOR=1 durun start plan.yaml --id r2")
    terminal.sees("▸ announce", "✓ fetch")
    assert "\x1b[" not in terminal.colours()
    (durun.folder / "ledger.end").touch()
    terminal.sees_prompt("run r2 succeeded")
    terminal.type("durun ls")
    terminal.sees_prompt("succeeded")
    assert "\x1b[32msucceeded" in terminal.colours()


# --- without tmux: a bare terminal, whose bytes are read ---

PTY = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def bytes_on_a_terminal(durun: Program, *argv: str) -> str:
    env = {k: v for k, v in durun.env.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    ran = subprocess.run([sys.executable, "-c", PTY, *argv], cwd=durun.folder, env=env, stdin=subprocess.DEVNULL,
                         capture_output=True, timeout=120, check=True)  # fmt: skip
    return ran.stdout.decode()


def test_frames_are_few_however_fast_it_moves_and_the_cursor_is_never_hidden(durun: Program) -> None:
    states = "".join(f"  s{n}: {{run: ['true'], next: {f's{n + 1}' if n < 299 else 'succeeded'}}}\n" for n in range(300))
    durun.plan(f"start: s0\nstates:\n{states}")
    began = time.monotonic()
    said = bytes_on_a_terminal(durun, sys.executable, "-m", "durun", "start", "plan.yaml", "--id", "r1")
    frames = said.count("\x1b[?7l")
    assert frames <= 8 * (time.monotonic() - began) + 1
    assert said.count("\x1b[?7l") <= said.count("\x1b[?7h")
    assert "\x1b[?25l" not in said and "\x1b[?1049" not in said
    final = said.rpartition("\x1b[J")[2].replace("\r", "").splitlines() if frames else said.replace("\r", "").splitlines()
    assert final[-1] == "run r1 succeeded" and final[-2].startswith("s299: done (") and len(final) <= 25


def test_all_that_drawing_needs_is_there_before_the_first_effect(durun: Program) -> None:
    durun.plan("""
start: a
states:
  a: {run: 'echo out; sleep 1; false', next: succeeded, retry: {max_attempts: 2, initial_interval: 300ms}, catch: [{on: [any], next: b}]}
  b: {run: ['true'], next: succeeded}
""")
    code = (
        "import sys, durun.outbox as o\n"
        "begin, seen = o.Deliverer.begin, []\n"
        "def first(self, *a):\n"
        "    seen.append(set(sys.modules))\n"
        "    return begin(self, *a)\n"
        "o.Deliverer.begin = first\n"
        "from durun.cli import main\n"
        "sys.argv = ['durun', 'start', 'plan.yaml', '--id', 'r1']\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert 'rich.console' in sys.modules\n"
        "print('late:', sorted(m for m in set(sys.modules) - seen[0]))\n"
    )
    assert "\r\nlate: []\r\n" in bytes_on_a_terminal(durun, sys.executable, "-c", code)

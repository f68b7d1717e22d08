"""What comes from outside reaches no terminal as anything but text, and means nothing to Markdown, HTML, Mermaid or Graphviz."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import pytest
from program import COMMAND, Program

EVIL = "\x1b]52;c;Zm9v\x07\x1b]8;;http://x\x1b\\\x1b[2J\x9b31m\u202e\u2066\r\x08\x7f"  # clipboard, link, erase, CSI, turned text
LABEL = "\x9b2J\u202e\x85<b>|`"  # of an item: no brackets, and nothing below 32
MARKUP = '</td><script>alert(1)</script><img src=x onerror=y> | `x` ~~~ [a](javascript:b) "]; click n1 " --> %%{init}%% <!-- &#60;'
DRAWN = re.compile(r"\x1b\[(\?7[lh]|[0-9;]*[mKJA])")  # what durun itself says to a terminal

PLAN = """
start: look
input: {v: string, label: string}
output: '${{ input.v }}'
states:
  look:
    run: 'printf "%s\\n" "$V"; printf "%s\\n" "$V" >&2; exit 3'
    env: {V: '${{ input.v }}'}
    catch: [{on: any, next: each, assign: {}}]
    next: each
  each: {map: {items: '[input.v]', label: '${{ input.label }}', run: ['true']}, next: ask}
  ask:
    approval: {message: 'Pay ${{ input.v }}?', data: '${{ input.v }}'}
    next: end
  end: {fail: {error: bad, message: '${{ input.v }}', data: '${{ input.v }}'}}
"""


def hostile(text: str) -> list[str]:
    """What in a text could do something to a terminal."""
    return sorted({repr(c) for c in text if not c.isprintable() and c != "\n"})


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A run that carries what is hostile in its input, output, label, question, answer, signal and error."""
    program = Program(tmp_path_factory.mktemp("evil"))
    program.plan(PLAN)
    value = EVIL + MARKUP[:60]
    (program.folder / "in.json").write_text(json.dumps({"v": value, "label": LABEL}))
    program.said = program("start", "plan.yaml", "--input", "in.json", "--id", "r", exit=3).stderr  # type: ignore[attr-defined]
    yield program
    program.end()


LOOKS = [
    ["ls"], ["show", "r"], ["history", "r"], ["inbox"], ["report", "r"], ["report", "r", "--format", "html"], ["graph", "r"],
    ["graph", "r", "--format", "dot"], ["show", "r", "--json"], ["history", "r", "--json"], ["logs", "r", "--json"],
]  # fmt: skip


Line = Callable[..., str]


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], Line]:
    """A command line that is carried out in this process, as in any other: what it prints."""
    from durun.cli import reader

    def of(program: Program) -> Line:
        monkeypatch.chdir(program.folder)
        monkeypatch.setattr(reader, "prepare", lambda: None)  # what it sets is set for the whole process
        for name, value in program.env.items():
            monkeypatch.setenv(name, value)

        def run(*words: str) -> str:
            capfd.readouterr()
            code = reader.run([word.replace("\0", "") for word in words])
            said = "".join(capfd.readouterr())
            assert said or code == 0, words
            return said

        return run

    return of


def test_nothing_a_run_carries_reaches_what_is_shown_of_it_raw(evil: Program, line: Callable[[Program], Line]) -> None:
    assert not hostile(evil.said)  # type: ignore[attr-defined]
    run = line(evil)
    for words in LOOKS:
        assert not hostile(run(*words)), words
    assert json.loads(run("show", "r", "--json"))["input"]["v"].startswith(EVIL), "and JSON is the same to who reads it"


def test_a_pipe_gets_what_a_command_wrote_byte_by_byte(evil: Program) -> None:
    raw = subprocess.run([*COMMAND, "logs", "r", "look"], cwd=evil.folder, env=evil.env, capture_output=True, timeout=60).stdout
    assert raw.startswith(EVIL.encode())


ITS_OWN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


def on_a_terminal(program: Program, *words: str, typed: bytes = b"", after: str = "") -> str:
    """What a command writes to a terminal. `typed` is typed once `after` is to be seen."""
    ours, theirs = pty.openpty()
    env = {**program.env, "TERM": "xterm-256color", "LANG": "C.UTF-8", "COLUMNS": "100"}
    child = subprocess.Popen(
        [sys.executable, "-c", ITS_OWN, *COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=program.folder,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    got = b""
    end = time.monotonic() + 60
    with contextlib.suppress(OSError):  # the end, on Linux
        while time.monotonic() < end and (data := os.read(ours, 65536)):
            got += data
            if typed and after in got.decode("utf-8", "replace"):
                os.write(ours, typed)
                typed = b""
    child.wait(30)
    os.close(ours)
    return got.decode("utf-8", "replace")


def hostile_to_terminal(text: str) -> list[str]:
    """What does more than durun's own drawing: colours, up, erase a line, and the ends of lines that the terminal adds."""
    return hostile(DRAWN.sub("", text).replace("\r\n", "\n").replace("\r", ""))


@pytest.mark.parametrize("words", [["show", "r"], ["logs", "r", "look"], ["ls"]], ids=lambda words: words[0])
def test_on_a_terminal_nothing_of_it_is_raw(evil: Program, words: list[str]) -> None:
    seen = on_a_terminal(evil, *words)
    assert not hostile_to_terminal(seen)
    assert r"\x1b]52" in seen or words == ["ls"]


def test_a_question_and_a_failure_that_carry_it_are_asked_and_told_as_text(durun: Program) -> None:
    durun.plan(PLAN)
    (durun.folder / "in.json").write_text(json.dumps({"v": EVIL, "label": LABEL}))
    seen = on_a_terminal(durun, "start", "plan.yaml", "--input", "in.json", "--id", "q", typed=b"yes\n", after="yes / no")
    assert "Pay" in seen and "failed" in seen
    assert not hostile_to_terminal(seen)


WORDS = [
    ["show", EVIL], ["show", f"--{EVIL}"], [EVIL], ["start", EVIL], ["ls", "--db", EVIL], ["show", "--db", EVIL, "r"],
    ["output", "r", EVIL], ["wait", "r", "--timeout", EVIL], ["start", "plan.yaml", "-i", f"{EVIL}=x"],
    ["drain", EVIL], ["pause", "--plan", EVIL], ["resolve", "r", EVIL, "--fail"], ["db", "backup", EVIL], ["check", EVIL],
    ["approve", "r", "--by", EVIL, "--note", EVIL], ["signal", "r", EVIL], ["migrate", "r", "plan.yaml", "--map", f"{EVIL}=x"],
]  # fmt: skip


def test_no_word_of_a_command_line_comes_back_raw_in_what_is_said_of_it(evil: Program, line: Callable[[Program], Line]) -> None:
    run = line(evil)
    for words in WORDS:
        assert not hostile(run(*words)), words


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert all(name in ("lang", "charset") for name, _ in attrs), (tag, attrs)


def test_markup_is_text_in_a_report_and_in_a_drawing(durun: Program, line: Callable[[Program], Line]) -> None:
    durun.plan(
        f"start: a\nversion: {json.dumps(MARKUP)}\nstates: {{a: {{approval: {{message: {json.dumps(MARKUP)}}}, next: b}},"
        f" b: {{choice: [{{when: {json.dumps(json.dumps(MARKUP) + ' == run.id')}, next: succeeded}}, {{next: failed}}]}}}}\n"
    )
    durun("start", "plan.yaml", "--id", "r", exit=3)
    tags, run = Tags(), line(durun)
    tags.feed(run("report", "r", "--format", "html"))
    assert not tags.found & {"script", "img", "a"} and {"table", "h1", "title"} <= tags.found
    markdown = run("report", "r")
    outside = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    assert not re.findall(r"(?<!\\)(?:\\\\)*[<`]|(?<!\\)\]\(", outside)
    drawn = run("graph", "r")
    assert not re.findall(r"(?m)^ *(click|%%)|<(?!br/>)", drawn)
    assert all(line.count('"') % 2 == 0 for line in drawn.splitlines()[3:])
    dot = run("graph", "r", "--format", "dot")
    assert all(len(re.findall(r'(?<!\\)"', line.replace("\\\\", ""))) % 2 == 0 for line in dot.splitlines())

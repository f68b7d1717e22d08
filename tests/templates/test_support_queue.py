"""The template that answers a mailbox, run for real against an SMTP server on loopback, and killed: each mail is sent once."""

from __future__ import annotations

import json
import mailbox
import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, Message
from pathlib import Path
from typing import Any

import pytest
from program import Program, until

import durun as package

TEMPLATE = Path(package.__file__).parent / "templates" / "support-queue"
PLAN, TOOL = TEMPLATE / "plan.yaml", TEMPLATE / "desk.py"


class Post(socketserver.ThreadingTCPServer):
    """A server that takes mail, and fails as it is told: one word of `faults` for each mail that is handed in.

    take-drop: it has the mail, and the connection is gone before it says so; drop: gone, and it has not; 451: not now;
    take-hold, hold: the same as the first two, but the connection stands until the sender is gone.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, store: Path) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.store, self.faults, self.held = store, list[str](), threading.Event()
        self.lock = threading.Lock()
        self.mails: list[Message] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that was killed is no news."""

    def take(self, raw: bytes) -> None:
        with self.lock:
            self.mails.append(message_from_bytes(raw))
            with self.store.open("a") as f:
                f.write(self.mails[-1]["Message-ID"] + "\n")

    def to(self) -> list[str]:
        return sorted(mail["To"] for mail in self.mails)


class Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        post: Post = self.server  # type: ignore[assignment]
        self._say("220 here")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"QUIT":
                return self._say("221 bye")
            if word != b"DATA":
                self._say("250 well")
                continue
            with post.lock:
                fault = post.faults.pop(0) if post.faults else ""
            self._say("354 go on")
            raw = b""
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                raw += line[1:] if line.startswith(b".") else line
            if line and fault in ("", "take-drop", "take-hold"):
                post.take(raw)
            if fault.endswith("hold"):
                post.held.set()
                self.rfile.read()
            if fault.endswith(("hold", "drop")):
                return None
            self._say("451 not now" if fault == "451" else "250 taken")
        return None

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


@pytest.fixture
def post(durun: Program) -> Iterator[Post]:
    made = Post(durun.folder / "arrived")
    yield made
    made.shutdown()
    made.server_close()


PEOPLE = ["ann@example.org", "bob@example.org", "eve@example.org"]
SENT = 'test -e arrived || exit 1; grep -qxF -e "$MESSAGE_ID" arrived'


def mails(durun: Program) -> None:
    box = mailbox.mbox(str(durun.folder / "box"))
    for n, who in enumerate(PEOPLE):
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = f"Ünal <{who}>", "support@localhost", f"Frage {n}"
        mail["Message-ID"] = f"<{n}@example.org>"
        mail.set_content(f"It is broken, {who}.\n.\nFrom here on too.\n")
        box.add(mail)
    again = EmailMessage()
    again["From"], again["Message-ID"], again["Auto-Submitted"] = "robot@example.org", "<r@example.org>", "auto-replied"
    box.add(again)
    box.close()


@pytest.fixture
def desk(durun: Program, post: Post) -> list[Any]:
    """The words that start the plan. What thinks answers out leaves a line in the ledger for each."""
    mails(durun)
    (durun.folder / "bin").mkdir()
    (durun.folder / "bin" / "durun").write_text(f'#!/bin/sh\nexec {sys.executable} -m durun "$@"\n')
    (durun.folder / "bin" / "durun").chmod(0o755)
    durun.env["PATH"] = f"{durun.folder / 'bin'}{os.pathsep}{durun.env['PATH']}"
    answer = 'echo thought >> "$LEDGER"; printf "Dear customer, you wrote:\\n.\\n"; sed "s/^/> /"'
    values = {
        "mailbox": "box", "answer": answer, "smtp": f"127.0.0.1:{post.server_address[1]}", "tool": TOOL, "python": sys.executable,
    }  # fmt: skip
    return ["start", PLAN, "-q", *(word for k, v in values.items() for word in ("-i", f"{k}={v}"))]


def all_answered(durun: Program, post: Post) -> None:
    """Everybody has one answer, thought out once, and the journal says so."""
    run = durun.the_run()
    assert len(json.loads(durun("output", run).stdout)["answered"]) == 3, durun("history", run).stdout
    assert post.to() == PEOPLE and len({mail["Message-ID"] for mail in post.mails}) == 3
    assert sorted((durun.folder / "answered.log").read_text().split()) == [f"<{n}@example.org>" for n in range(3)]
    for mail in post.mails:
        assert mail["Subject"].startswith("Re: Frage") and mail["Auto-Submitted"] == "auto-replied"
        text = mail.get_payload(decode=True).decode().replace("\r\n", "\n")
        assert f"> It is broken, {mail['To']}.\n> .\n" in text and text.startswith("Dear customer, you wrote:\n.\n")


def test_each_message_is_answered_once(durun: Program, post: Post, desk: list[Any]) -> None:
    run = durun(*desk).stdout.splitlines()[0]
    all_answered(durun, post)
    assert json.loads(durun("output", run).stdout) == {"messages": 3, "answered": ["1", "2", "3"]}
    assert durun.lines() == ["thought"] * 3


def test_a_server_that_says_not_now_is_asked_again_and_the_answer_is_not_thought_out_anew(
    durun: Program, post: Post, desk: list[Any]
) -> None:
    post.faults = ["451", "451"]
    durun(*desk)
    all_answered(durun, post)
    assert durun.lines() == ["thought"] * 3


def test_what_nobody_knows_is_looked_for_where_the_plan_says_how(durun: Program, post: Post, desk: list[Any]) -> None:
    post.faults = ["take-drop", "drop", "take-drop"]
    durun(*desk, "-i", f"sent={SENT}")
    all_answered(durun, post)
    assert durun.lines() == ["thought"] * 3


def test_what_nobody_knows_is_left_to_a_person_where_it_does_not(durun: Program, post: Post, desk: list[Any]) -> None:
    post.faults = ["take-drop", "drop"]
    run = durun(*desk, exit=9).stdout.splitlines()[0]
    wanted = durun.show(run)["waiting_for"]
    assert len(wanted) == 2
    for each in wanted:
        effect = next(e for e in durun.show(run)["effects"] if e["path"] == each["path"])
        arrived = f"<{effect['key']}@support-queue>" in post.store.read_text()
        durun("resolve", run, each["path"], "--happened" if arrived else "--retry")
    durun("resume", run)
    all_answered(durun, post)


@pytest.mark.parametrize("fault", ["take-hold", "hold"])
def test_killed_while_a_mail_is_on_its_way_it_is_sent_once(durun: Program, post: Post, desk: list[Any], fault: str) -> None:
    post.faults = [fault]
    begun = durun.begin(*desk, "-i", f"sent={SENT}")
    assert post.held.wait(60)
    durun.kill_all()
    begun.communicate()
    durun("resume", durun.the_run())
    all_answered(durun, post)


@pytest.mark.parametrize("thought", [1, 3])
def test_killed_while_it_thinks_everybody_has_one_answer(durun: Program, post: Post, desk: list[Any], thought: int) -> None:
    begun = durun.begin(*desk, "-i", f"sent={SENT}")
    until(lambda: len(durun.lines()) >= thought)
    durun.kill_all()
    begun.communicate()
    durun("resume", durun.the_run())
    all_answered(durun, post)

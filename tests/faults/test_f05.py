"""Processes: groups, orphans, what they leave behind, who owns a run."""

from __future__ import annotations

import binascii
import marshal
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest


@pytest.mark.parametrize("leader_lives", [False])
def test_f05_a_stranger_with_a_recycled_pid_is_never_signalled_and_keeps_nothing_alive(place, leader_lives):
    """The notes and the database are made to name a process that was begun long after the step was."""
    place.begin("start", place.plan("a: {run: 'echo $$ > up; sleep 300', next: succeeded}"), "--id", "r")
    place.there("up")
    place.kill_all()
    script = (
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "if child and len(sys.argv) > 1: sys.exit()\n"
        "time.sleep(300)"
    )
    words = [] if leader_lives else ["ends"]
    stranger = subprocess.Popen([sys.executable, "-c", script, *words], start_new_session=True, stdout=subprocess.PIPE)
    try:
        child = int(stranger.stdout.readline())
        if not leader_lives:
            stranger.wait(30)
        forge(place, stranger.pid)
        assert [r["status"] for r in place.runs()] == ["interrupted"]
        place.durun("cancel", "r", exit=4)
        assert place.alive(child)
        assert place.alive(stranger.pid) is leader_lives
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait(30)
        stranger.stdout.close()


def forge(place, pid):
    """Every place where a pid is kept says `pid`, as if the number had been used again."""
    with apsw.Connection(str(place.db)) as db:
        db.execute("UPDATE drivers SET pid = ?", (pid,)).fetchall()
    for journal in Path(f"{place.db}.d").glob("*/journal"):
        lines = []
        for line in journal.read_bytes().split(b"\n"):
            words = line.split(b" ")
            if len(words) == 2:
                record = marshal.loads(bytes.fromhex(words[1].decode()))
                if record[0] == "begun":
                    record = (*record[:2], pid, record[3] - 5000, record[4] - 5000)
                    payload = marshal.dumps(record, 2).hex().encode()
                    line = b"%08x %s" % (binascii.crc32(payload), payload)
            lines.append(line)
        journal.write_bytes(b"\n".join(lines))

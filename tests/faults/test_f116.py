"""The command line: exit codes, pipes, machine output, and ids."""

from __future__ import annotations

import subprocess

import pytest


def piped(place, *words, shell='"$@" | head -n 1; echo "code ${PIPESTATUS[0]}"', **env):
    argv = ["bash", "-c", shell, "bash", *place.argv, *words]
    ran = subprocess.run(argv, cwd=place.folder, env=place.env | env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr and "BrokenPipe" not in ran.stderr, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("shell", ['"$@" >&-; echo "code $?"', '"$@" >&- 2>&-; echo "code $?"'])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_f116_a_stdout_that_was_never_open_stops_no_run(place, shell, words):
    plan = place.plan("a: {run: 'echo a >> ticks; sleep 0.3', next: b}\nb: {run: 'echo b >> ticks', next: succeeded}")
    assert piped(place, "start", plan, "--id", "r", *words, shell=shell)[-1] == "code 0"
    assert place.lines("ticks") == ["a", "b"]
    for look in (["ls"], ["ls", "--json"], ["show", "r"], ["history", "r"], ["wait", "r"], ["resume", "r"]):
        assert piped(place, *look, shell=shell)[-1] in ("code 0", "code 141"), look

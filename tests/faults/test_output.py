"""Output: any size, any bytes, never cut and then used; and nobody eats the caller's stdin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1024 * 1024
WRITE = "import os, sys\nfor _ in range(int(sys.argv[1])): os.write(1, b'a' * 65537); os.write(2, b'b' * int(sys.argv[2]))"


def peak(pid):
    """The most memory a process has held, in KiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1))


@pytest.mark.parametrize("output", ["", "output: text,"])
def test_f20_output_above_the_size_of_a_pipe_ends_with_its_command(place, output):
    place.write("write.py", WRITE)
    plan = place.plan(f"a: {{run: [{sys.executable}, write.py, 16, '65537'], {output} next: succeeded}}")
    done = place.durun("start", plan)
    assert place.durun("logs", done.id).raw == b"a" * 65537 * 16 + b"b" * 65537 * 16
    if output:
        assert place.durun("output", done.id, "a").out == "a" * 65537 * 16 + "\n"


def test_f20_a_hundred_mebibytes_of_output_take_no_memory_of_driver_or_keeper(place):
    place.write("write.py", WRITE)
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, write.py, '${{{{ input.times }}}}', '0'], next: b}}
b: {{run: 'echo up > up; while [ ! -e go ]; do sleep 0.05; done', next: succeeded}}
""",
        head="input: {times: integer}",
    )
    peaks = []
    for times in ("1", "1600"):
        process = place.begin("start", plan, "-i", f"times={times}")
        place.there("up")
        peaks.append([peak(process.pid), *map(peak, place.keepers())])
        place.write("go", "")
        place.end(process)
        for name in ("go", "up"):
            (place.folder / name).unlink()
    little, much = peaks
    assert len(little) == len(much) == 2
    assert all(b < a * 1.5 for a, b in zip(little, much, strict=True)), peaks


def test_f22_three_mebibytes_of_json_reach_the_next_step_whole(place):
    place.write("make.py", "import json; print(json.dumps(['x' * 40] * 70000))")
    place.write("count.py", "import json, sys; print(len(json.load(sys.stdin)))")
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, make.py], output: json, next: b}}
b: {{run: [{sys.executable}, count.py], stdin: '${{{{ states.a.output }}}}', output: json, next: succeeded}}
"""
    )
    done = place.durun("start", plan)
    assert place.durun("output", done.id, "b").json == 70000


@pytest.mark.parametrize("way", ["stdout", "$DURUN_OUTPUT"])
def test_f22_an_output_above_the_limit_is_an_error_and_never_flows_on(place, way):
    place.write(
        "make.py",
        "import os, sys\nf = open(os.environ['DURUN_OUTPUT'], 'w') if sys.argv[1:] else sys.stdout\nf.write('[' + '1,' * (9 << 20) + '1]')",
    )
    words = "" if way == "stdout" else ", file"
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, make.py{words}], output: json, next: b}}
b: {{run: 'echo b >> ticks', next: succeeded}}
"""
    )
    done = place.durun("start", plan, exit=1)
    assert place.show(done.id)["error"]["name"] == "output_too_large"
    assert place.show(done.id)["effects"][0]["status"] == "done"
    assert not place.lines("ticks")


BYTES = "import os, sys; os.write(1, b'a\\xffb\\n\\0' + bytes(range(256)) * 1000 + b'END\\n'); os.write(2, b'\\xfe\\0oops\\n'); sys.exit(int(sys.argv[1]))"


def test_f23_bytes_that_are_no_utf8_are_kept_as_they_are_and_break_no_command(place):
    place.write("bytes.py", BYTES)
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, bytes.py, 0], next: b}}
b: {{run: [{sys.executable}, bytes.py, 4], next: succeeded}}
"""
    )
    done = place.durun("start", plan, exit=1)
    raw = b"a\xffb\n\0" + bytes(range(256)) * 1000 + b"END\n" + b"\xfe\0oops\n"
    assert place.durun("logs", done.id, "a").raw == raw
    assert place.show(done.id)["error"]["stderr"].endswith("oops\n")
    assert place.history(done.id, "attempt_ended")
    place.durun("show", done.id)
    place.durun("history", done.id)


@pytest.mark.parametrize("form", ["text", "lines", "json"])
def test_f23_an_output_that_is_no_utf8_is_refused_and_not_changed(place, form):
    place.write("bytes.py", BYTES)
    plan = place.plan(f"a: {{run: [{sys.executable}, bytes.py, 0], output: {form}, next: succeeded}}")
    done = place.durun("start", plan, exit=1)
    assert place.show(done.id)["error"]["name"] == "output_invalid"


def test_f25_a_loop_that_reads_lines_starts_a_run_for_each(place):
    plan = place.plan("a: {run: 'cat; echo tick >> ticks', output: text, next: succeeded}", head="input: {n: integer}")
    script = 'printf "1\\n2\\n3\\n" | while read n; do "$@" start "$PLAN" -i n=$n -q; done'
    argv = ["sh", "-c", script, "sh", *place.argv]
    ran = subprocess.run(
        argv, cwd=place.folder, env={**place.env, "PLAN": plan}, capture_output=True, text=True, timeout=60, check=True
    )
    assert len(ran.stdout.splitlines()) == 3
    assert place.lines("ticks") == ["tick"] * 3
    assert all(place.durun("output", id, "a").out == "\n" for id in ran.stdout.split())


def test_f25_an_open_silent_stdin_holds_nothing_up(place):
    process = place.begin("start", place.plan("a: {run: [cat], next: succeeded}"), stdin=subprocess.PIPE)
    assert process.wait(60) == 0


def test_f25_a_plan_and_an_input_come_from_stdin_where_a_dash_says_so(place):
    text = Path(place.plan("a: {run: ['true'], next: succeeded}")).read_bytes()
    place.durun("start", "-", input=text)
    plan = place.plan("a: {run: ['true'], next: succeeded}", head="input: {t: string}")
    done = place.durun("start", plan, "-i", "t=@-", input=b"from stdin")
    assert place.show(done.id)["input"] == {"t": "from stdin"}

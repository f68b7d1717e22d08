"""Secrets reach what the plan names and nothing else: not the file, not a log of durun's, not a list of processes, not a message."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import pytest
from receiver import answer, does, drop, late, then

SECRET = "s3cr3t-value-0123"
HEAD = "secrets: [TOKEN]"


def everywhere(place) -> list[str]:
    """All files of the folder that hold the secret."""
    return [str(p) for p in place.folder.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]


def durun_s_own(place) -> list[str]:
    """The same without the logs, which lie as their commands printed them."""
    return [p for p in everywhere(place) if not p.endswith((".out", ".err"))]


@pytest.fixture
def token(place):
    place.env["TOKEN"] = SECRET
    return SECRET


def said_anywhere(place, run="r") -> str:
    """What durun prints of a run, in every way it has."""
    words = (["show", run], ["show", run, "--json"], ["history", run], ["history", run, "--json"], ["logs", run], ["ls", "--json"])
    return "".join(done.out + done.err for done in (place.durun(*w) for w in words))


# --- where they go ---


def test_f102_a_request_carries_a_secret_and_nobody_writes_it(place, receiver, token):
    states = f"""
a:
  http:
    method: POST
    url: '{receiver.url}/hook/${{{{ secrets.TOKEN }}}}?x=${{{{ input.x }}}}'
    headers: {{Authorization: 'Bearer ${{{{ secrets.TOKEN }}}}'}}
    json: {{a: ['${{{{ secrets.TOKEN }}}}', 'n ${{{{ input.x }}}} ${{{{ secrets.TOKEN }}}}'], b: '${{{{ input.x }}}}'}}
  next: b
b: {{http: {{method: POST, url: '{receiver.url}', form: {{t: '${{{{ secrets.TOKEN }}}}'}}, auth: {{user: me, password: '${{{{ secrets.TOKEN }}}}'}}}}, next: c}}
c: {{http: {{method: POST, url: '{receiver.url}', body: '<${{{{ secrets.TOKEN }}}}>', auth: {{bearer: '${{{{ secrets.TOKEN }}}}'}}}}, next: succeeded}}
"""
    place.durun("start", place.plan(states, head=HEAD + "\ninput: {x: integer}"), "--id", "r", "-i", "x=5")
    a, b, c = receiver.came
    assert a.path == f"/hook/{token}?x=5"
    assert a.headers["authorization"] == c.headers["authorization"] == f"Bearer {token}"
    assert json.loads(a.body) == {"a": [token, f"n 5 {token}"], "b": 5}
    assert (b.body, c.body) == (f"t={token}".encode(), f"<{token}>".encode())
    assert not everywhere(place)
    assert token not in said_anywhere(place)


def test_f104_a_command_is_given_a_secret_by_its_environment_and_stdin_and_no_other_command_has_it(place):
    value = place.env["TOKEN"] = "a)b'c\"d$(e `x` \\ %s"
    states = (
        'a: {run: \'printf %s "$T" > env; cat > in; printf %s "${TOKEN-none}" > own; ps -ef > ps 2>/dev/null || true\','
        " env: {T: '${{ secrets.TOKEN }}'}, stdin: '${{ secrets.TOKEN }}', next: b}\n"
        "b: {run: 'printf %s \"${TOKEN-none}\" > other', next: c}\n"
        "c: {run: 'printf %s \"$TOKEN\" > named', env: {TOKEN: '${{ secrets.TOKEN }}'}, next: succeeded}"
    )
    place.durun("start", place.plan(states, head=HEAD))
    found = {name: (place.folder / name).read_text() for name in ("env", "in", "own", "other", "named")}
    assert found == {"env": value, "in": value, "own": "none", "other": "none", "named": value}
    assert value not in (place.folder / "ps").read_text()


def test_f104_the_list_of_processes_shows_no_secret_while_a_request_or_a_command_has_it(place, receiver, token):
    go = threading.Event()
    receiver.say(late(until=go))
    states = f"a: {{http: {{url: '{receiver.url}', headers: {{X: '${{{{ secrets.TOKEN }}}}'}}}}, next: b}}\nb: {{run: 'echo $$ > up; while [ ! -e go ]; do sleep 0.05; done', env: {{T: '${{{{ secrets.TOKEN }}}}'}}, next: succeeded}}"
    process = place.begin("start", place.plan(states, head=HEAD))
    place.until(lambda: receiver.came, "the request")
    assert not [line for line in place.processes().values() if token in line]
    go.set()
    place.there("up")
    lines = place.processes()
    assert len(lines) >= 3
    assert not [line for line in lines.values() if token in line]
    place.write("go", "")
    place.end(process)


@pytest.mark.parametrize(
    "source",
    [
        "{name: TOKEN, file: below/token}",
        "{name: TOKEN, run: [sh, -c, 'cat below/token']}",
        "{name: TOKEN, run: 'cat below/token'}",
    ],
)
def test_a_secret_comes_from_a_file_or_a_command_and_is_read_when_it_is_used(place, receiver, source):
    place.write("below/token", SECRET + "\n")
    states = (
        f"a: {{http: {{method: POST, url: '{receiver.url}', body: '${{{{ secrets.TOKEN }}}}'}}, next: b}}\n"
        "b: {run: 'printf 0-second-value > below/token', next: c}\n"
        f"c: {{http: {{method: POST, url: '{receiver.url}', body: '${{{{ secrets.TOKEN }}}}'}}, next: succeeded}}"
    )
    place.durun("start", place.plan(states, head=f"secrets: [{source}]"))
    assert [c.body for c in receiver.came] == [SECRET.encode(), b"0-second-value"]
    assert not everywhere(place)


# --- what is missing ---


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("TOKEN", "not in the environment"), ("{name: TOKEN, file: nowhere}", "nowhere cannot be read"),
        ("{name: TOKEN, run: [sh, -c, 'exit 3']}", "ended with 3"), ("{name: TOKEN, run: [nowhere]}", "cannot be begun"),
        ("{name: TOKEN, file: empty}", "is empty"),
    ],
)  # fmt: skip
def test_a_secret_that_is_missing_at_start_is_refused_and_nothing_is_stored(place, source, said):
    place.write("empty", "\n")
    done = place.durun("start", place.plan("a: {run: 'true', next: succeeded}", head=f"secrets: [{source}]"), exit=7)
    assert "TOKEN" in done.err
    assert said in done.err
    assert not place.db.exists() or not place.runs()


@pytest.mark.parametrize("kind", ["http", "run"])
def test_a_secret_that_is_missing_later_blocks_the_run_until_it_is_back(place, receiver, token, kind):
    use = {
        "http": f"http: {{method: POST, url: '{receiver.url}', body: '${{{{ secrets.TOKEN }}}}'}}",
        "run": "run: 'echo x >> ticks; test -n \"$T\"', env: {T: '${{ secrets.TOKEN }}'}",
    }[kind]
    states = f"w: {{run: 'exit 1', catch: [{{on: any, next: v}}], next: a}}\nv: {{wait: 1ms, next: x}}\nx: {{run: 'test -e mended', next: a}}\na: {{{use}, next: succeeded}}"
    place.durun("start", place.plan(states, head=HEAD, start="w"), "--id", "r", exit=1)
    place.write("mended", "")
    without = {k: v for k, v in place.env.items() if k != "TOKEN"}
    for _ in range(2):
        done = place.durun("resume", "r", exit=9, env=without)
        assert "TOKEN is not in the environment" in done.err
        assert "durun resume r" in done.err
    run = place.show("r")
    assert (run["status"], run["reason"]) == ("blocked", "secret_missing")
    assert run["waiting_for"][0]["kind"] == "secret_missing"
    place.durun("resume", "r")
    assert [c.body for c in receiver.came] == ([token.encode()] if kind == "http" else [])
    assert place.show("r")["effects"][-1]["attempt"] == 1, "nothing was used up"


def test_a_secret_that_makes_no_request_blocks_the_run_without_being_said(place, receiver):
    place.env["TOKEN"] = "first-line\nsecond-line"
    states = f"a: {{http: {{url: '{receiver.url}', headers: {{X: '${{{{ secrets.TOKEN }}}}'}}}}, next: succeeded}}"
    done = place.durun("start", place.plan(states, head=HEAD), exit=9)
    assert "line break" in done.err
    assert "second-line" not in done.err
    assert not receiver.came


# --- what check refuses ---


@pytest.mark.parametrize(
    "state",
    [
        "run: [echo, '${{ secrets.TOKEN }}']", "run: ['true'], cwd: '${{ secrets.TOKEN }}'", "run: ['true'], key: '${{ secrets.TOKEN }}'",
        "run: ['true'], assign: {v: '${{ secrets.TOKEN }}'}", "run: ['true'], timeout: '${{ secrets.TOKEN }}'",
        "http: {url: 'http://x'}, assign: {v: '${{ secrets.TOKEN }}'}",
        "run: ['true'], env: {T: '${{ secrets.TOKEN + \"x\" }}'}", "run: ['true'], env: {T: '${{ size(secrets.TOKEN) }}'}",
        "http: {url: '${{ secrets }}'}", "run: ['true'], env: {T: '${{ secrets.OTHER }}'}", "wait: '${{ secrets.TOKEN }}'",
        "http: {url: 'http://x', method: '${{ secrets.TOKEN }}'}", "choice: [{when: secrets.TOKEN == 'x', next: succeeded}]",
    ],
)  # fmt: skip
def test_a_secret_anywhere_else_and_anything_worked_out_from_one_is_refused(place, state):
    state += "" if state.startswith("choice") else ", next: succeeded"
    done = place.durun("check", place.plan(f"a: {{{state}}}", head=f"{HEAD}\nvars: {{v: null}}"), exit=7)
    assert "plan.yaml:" in done.err


def test_a_secret_in_the_output_of_the_plan_or_its_vars_or_that_is_pinned_too_is_refused(place):
    for head in (
        HEAD + "\noutput: '${{ secrets.TOKEN }}'",
        HEAD + "\nvars: {v: '${{ secrets.TOKEN }}'}",
        HEAD + "\npins: {env: [TOKEN]}",
    ):
        place.durun("check", place.plan("a: {run: ['true'], next: succeeded}", head=head), exit=7)


# --- what is printed and what comes back ---


def test_f102_a_value_that_is_printed_in_pieces_is_masked_in_logs_and_errors(place, token):
    script = f'{sys.executable} -u -c "import sys, time; t = sys.stdin.read(); [(w(t[:7]), f(), time.sleep(0.02), w(t[7:] + chr(10)), f()) for w, f in ((sys.stdout.write, sys.stdout.flush), (sys.stderr.write, sys.stderr.flush))]"; exit 3'
    place.write("script", script)
    states = "a: {run: 'sh script', stdin: '${{ secrets.TOKEN }}', next: succeeded}"
    done = place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    assert token not in done.out + done.err
    logs = place.durun("logs", "r").out
    assert logs == "***\n***\n"
    assert place.show("r")["error"]["stderr"] == "***\n"
    assert token not in said_anywhere(place)
    assert everywhere(place)
    assert not durun_s_own(place)


def test_f102_a_value_across_the_edge_of_what_an_error_keeps_is_masked(place, token):
    states = "a: {run: 'printf %s \"$T\" >&2; head -c 4090 /dev/zero | tr \"\\0\" y >&2; exit 1', env: {T: '${{ secrets.TOKEN }}'}, next: succeeded}"
    place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    kept = place.show("r")["error"]["stderr"]
    assert len(kept) <= 4096
    assert kept.strip("*y") == ""


def test_f104_what_a_shell_prints_of_itself_is_masked(place, token):
    states = "a: {run: 'set -x; : \"$T\"; exit 1', env: {T: '${{ secrets.TOKEN }}'}, next: succeeded}"
    done = place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    assert token not in done.err + said_anywhere(place)
    assert "***" in place.durun("logs", "r").out


def test_f102_a_short_secret_is_said_to_be_short_and_hides_nothing(place):
    place.env["TOKEN"] = "}"
    done = place.durun("start", place.plan("a: {run: 'echo \"{ } }\"', next: succeeded}", head=HEAD), "--id", "r")
    assert "fewer than 6" in done.err
    assert place.durun("logs", "r").out == "{ } }\n"


def test_f102_a_secret_of_several_lines_hides_itself_and_no_line_of_its_own(place):
    place.env["TOKEN"] = "-----BEGIN-----\n}\nabc\n-----END-----"
    states = 'a: {run: \'echo "}"; echo abc; printf "%s\\n" "$T"\', env: {T: \'${{ secrets.TOKEN }}\'}, next: succeeded}'
    place.durun("start", place.plan(states, head=HEAD), "--id", "r")
    assert place.durun("logs", "r").out == "}\nabc\n***\n"


@pytest.mark.parametrize("form", ["text", "lines", "json"])
def test_an_output_of_a_command_that_holds_a_secret_is_invalid_and_not_stored(place, token, form):
    states = (
        f'a: {{run: \'printf "\\"<%s>\\"\\n" "$T"\', env: {{T: \'${{{{ secrets.TOKEN }}}}\'}}, output: {form}, next: succeeded}}'
    )
    place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    run = place.show("r")
    assert (run["error"]["name"], run["effects"][0]["status"]) == ("output_invalid", "done")
    assert "TOKEN" in run["error"]["message"]
    assert not durun_s_own(place)


def test_an_output_that_spells_a_secret_in_another_way_is_invalid_too(place):
    value = place.env["TOKEN"] = 'pass"word\\ü'
    place.write("w.py", "import json, os; json.dump({'x': [os.environ['T']]}, open(os.environ['DURUN_OUTPUT'], 'w'))")
    states = f"a: {{run: [{sys.executable}, w.py], env: {{T: '${{{{ secrets.TOKEN }}}}'}}, next: succeeded}}"
    place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    assert place.show("r")["error"]["name"] == "output_invalid"
    assert value not in said_anywhere(place)


@pytest.mark.parametrize("way", ["body", "header", "json with escapes"])
def test_an_answer_that_holds_a_secret_is_invalid_and_not_stored(place, receiver, token, way):
    receiver.say(
        {
            "body": answer(200, raw=f"you said {token}".encode()),
            "header": answer(200, headers={"X-Echo": token}),
            "json with escapes": answer(200, raw=json.dumps({"e": token}).replace("s3", "\\u00733").encode(), headers={"Content-Type": "application/json"}),
        }[way]
    )  # fmt: skip
    states = f"a: {{http: {{method: POST, url: '{receiver.url}', auth: {{bearer: '${{{{ secrets.TOKEN }}}}'}}}}, next: succeeded}}"
    place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    run = place.show("r")
    assert (run["error"]["name"], run["effects"][0]["status"]) == ("output_invalid", "done")
    assert not everywhere(place)
    assert token not in said_anywhere(place)


def test_an_error_of_a_far_side_that_repeats_a_secret_keeps_nothing_of_it(place, receiver, token):
    receiver.say(answer(403, {"error": f"bad token {token}"}, {"X-Echo": token}))
    states = f"a: {{http: {{method: POST, url: '{receiver.url}', auth: {{bearer: '${{{{ secrets.TOKEN }}}}'}}}}, next: succeeded}}"
    done = place.durun("start", place.plan(states, head=HEAD), "--id", "r", exit=1)
    error = place.show("r")["error"]
    assert (error["name"], error["output"]["status"], error["output"]["body"]) == ("http:403", 403, None)
    assert not everywhere(place)
    assert token not in done.err + said_anywhere(place)


def test_a_network_error_names_the_host_as_the_plan_wrote_it(place):
    place.env["HOST"] = "s3cr3t-value-0123.invalid"
    states = "a: {http: {url: 'http://${{ secrets.HOST }}/x'}, next: succeeded}"
    done = place.durun("start", place.plan(states, head="secrets: [HOST]"), "--id", "r", exit=1)
    assert "${{ secrets.HOST }}: its name cannot be resolved" in place.show("r")["error"]["message"]
    assert SECRET not in done.err + said_anywhere(place)
    assert not everywhere(place)


# --- over a crash ---


def test_f48_a_request_sent_again_after_a_kill_carries_the_secret_of_that_time(place, receiver, token):
    process = []

    def kill():
        place.until(lambda: process, "the driver")
        process[0].kill()

    receiver.say(then(does(kill), drop(after=True)), answer(200))
    states = f"a: {{http: {{method: POST, url: '{receiver.url}', json: {{t: '${{{{ secrets.TOKEN }}}}', at: '${{{{ run.started_at }}}}'}}}}, idempotent: true, next: succeeded}}"
    process.append(place.begin("start", place.plan(states, head=HEAD), "--id", "r"))
    process[0].wait(60)
    assert not everywhere(place)
    place.durun("resume", "r", env={**place.env, "TOKEN": "another-value"})
    first, second = (json.loads(c.body) for c in receiver.came)
    assert (first["t"], second["t"]) == (token, "another-value")
    assert first["at"] == second["at"], "all else was frozen"
    assert len(set(receiver.keys())) == 1


def test_a_secret_is_never_cut_and_neither_a_pipe_nor_what_its_command_left_behind_is_waited_for(place):
    os.mkfifo(place.folder / "pipe")
    plan = "a: {run: 'printf %s \"$T\" | wc -c > size', env: {T: '${{ secrets.TOKEN }}'}, next: succeeded}"
    for source, said in (
        ("{name: TOKEN, run: 'yes'}", "its command printed over 1 MiB"),
        ("{name: TOKEN, file: pipe}", "pipe is no file"),
    ):
        assert said in place.durun("start", place.plan(plan, head=f"secrets: [{source}]"), exit=7).err
    left = "{name: TOKEN, run: 'sleep 60 & echo $! > left; echo tok-5c1e77'}"
    place.durun("start", place.plan(plan, head=f"secrets: [{left}]"))
    assert (place.folder / "size").read_text().strip() == "10"
    os.kill(int((place.folder / "left").read_text()), signal.SIGKILL)

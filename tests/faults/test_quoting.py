"""Values and names: nothing is run as code, nothing stays unresolved, nothing leads out of the folder."""

from __future__ import annotations

import os
import sys

import pytest

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1], os.environ['V'], sys.stdin.read()]))"
PLAN = f"""
a: {{run: [{sys.executable}, show.py, '${{{{ input.v }}}}'], env: {{V: '${{{{ input.v }}}}'}}, stdin: '${{{{ input.v }}}}', output: json, next: b}}
b: {{run: 'printf %s "$V"; echo', env: {{V: '${{{{ states.a.output[0] }}}}'}}, output: text, next: succeeded}}
"""


@pytest.mark.parametrize(
    "value",
    ["it's late", "'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "a\nb\n\ntouch pwned", "-rf", "--", "", " ", '"\\"', "${{ vars.x }}", "$${{ x }}", "*", "~", "\u2028 \U0001f600 e\u0301", "%s %d", "x" * 90_000],
    ids=lambda v: repr(v)[:20].replace("/", "_"),
)  # fmt: skip
def test_f98_f99_a_value_reaches_argv_env_and_stdin_as_it_is_and_is_never_run(place, value):
    place.write("show.py", SHOW)
    place.write("in.json", __import__("json").dumps({"v": value}))
    done = place.durun("start", place.plan(PLAN, head="input: {v: string}"), "--input", "in.json")
    assert place.durun("output", done.id, "a").json == [value] * 3
    assert place.durun("output", done.id, "b").out == value.rstrip("\n") + "\n"
    assert not (place.folder / "pwned").exists()


@pytest.mark.parametrize("where", ["run: \"echo '${{ vars.x }}'\"", "run: 'true', probe: {run: 'test ${{ vars.x }}'}"])
def test_f98_an_expression_in_a_script_is_refused_with_the_advice_to_use_env(place, where):
    said = place.durun("check", place.plan(f"a: {{{where}, next: succeeded}}", head="vars: {x: ''}"), exit=7).err
    assert "env" in said
    assert "shell" in said


@pytest.mark.parametrize(
    ("states", "head"),
    [
        ("a: {run: ['true'], output: json, next: b}\nb: {run: [echo, '${{ states.a.output.missing }}'], next: succeeded}", ""),
        ("a: {run: ['echo', '{}'], output: json, next: b}\nb: {run: [echo, '${{ states.a.output.missing }}'], next: succeeded}", ""),
        ("a: {run: ['exit 1'], catch: [{on: any, next: b}], output: json, next: b}\nb: {run: [echo, '${{ states.a.output }}'], next: succeeded}", ""),
        ("b: {run: [echo, '${{ vars.nothing }}'], next: succeeded}", "vars: {nothing: null}"),
        ("b: {run: [echo, '${{ vars.list }}!'], next: succeeded}", "vars: {list: [1]}"),
    ],
)  # fmt: skip
def test_f101_what_cannot_be_resolved_is_an_error_with_its_name_and_never_literal_text(place, states, head):
    states = states.replace("b: {run: [echo,", "b: {run: [./note,")
    place.write("note", '#!/bin/sh\necho "$@" >> ticks\n')
    (place.folder / "note").chmod(0o755)
    plan = place.plan(states, head=head, start=states[0])
    refused = place.durun("start", plan, exit=(1, 7))
    if refused.exit == 1:
        assert place.show(refused.id)["error"]["name"] in ("expression", "output_invalid")
    assert not place.lines("ticks")


def test_f101_a_default_is_given_where_the_plan_asks_for_one(place):
    plan = place.plan(
        """
a: {run: [echo, '{}'], output: json, next: b}
b: {run: [echo, '${{ states.a.output.?missing.orValue("none") }}', '$${{ kept }}'], output: text, next: succeeded}
"""
    )
    done = place.durun("start", plan)
    assert place.durun("output", done.id, "b").out == "none ${{ kept }}\n"


@pytest.mark.parametrize(
    "id", ["../../x", "/etc/x", "a/b", ".hidden", "-rf", "a\nb", "a b", "", "é", "\U0001f600", "x" * 129, "..", "a\x1b[31m"]
)
def test_f105_an_id_that_is_no_name_is_refused_and_makes_nothing(place, id):
    before = sorted(p.name for p in place.folder.parent.iterdir())
    plan = place.plan("a: {run: ['true'], next: succeeded}")
    place.durun("start", plan, f"--id={id}", exit=2)
    assert not place.db.exists()
    assert sorted(p.name for p in place.folder.parent.iterdir()) == before


def test_f105_a_name_that_some_systems_reserve_and_one_of_128_are_names_like_others(place):
    plan = place.plan("a: {run: 'echo out', next: succeeded}")
    for id in ("CON", "a..b", "x" * 128):
        place.durun("start", plan, "--id", id)
        assert place.durun("logs", id).out == "out\n"
        assert not [p for p in place.folder.rglob("*") if id in p.name]


@pytest.mark.parametrize("words", [["../../etc/passwd"], ["r", "../../../etc/passwd"], ["r", "/etc/passwd"]])
@pytest.mark.parametrize("command", ["logs", "output", "show"])
def test_f105_a_path_is_no_run_and_no_state_to_look_at(place, command, words):
    place.durun("start", place.plan("a: {run: 'echo out', next: succeeded}"), "--id", "r")
    if command == "show" and len(words) == 2:
        words = words[1:]
    done = place.durun(command, *words, exit=(0, 2, 5, 10))
    assert not done.out


@pytest.mark.parametrize("name", ["../y", "a/b", "A", "a-b", "1a", "a" * 65, "in", "é"])
def test_f105_a_state_that_is_no_name_is_refused(place, name):
    place.durun("check", place.plan(f"'{name}': {{run: ['true'], next: succeeded}}", start=f"'{name}'"), exit=7)


@pytest.mark.parametrize("where", ["run: [./note, '${{ vars.x }}']", "run: [./note], env: {X: '${{ vars.x }}'}"])
def test_f107_a_value_too_long_for_argv_or_env_is_refused_with_advice_before_anything_is_begun(place, where):
    place.write("note", "#!/bin/sh\necho x >> ticks\n")
    (place.folder / "note").chmod(0o755)
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, -c, 'print("y" * 140000)'], output: text, assign: {{x: '${{{{ output }}}}'}}, next: b}}
b: {{{where}, next: succeeded}}
""",
        head="vars: {x: ''}",
    )
    done = place.durun("start", plan, exit=1)
    error = place.show(done.id)["error"]
    assert (error["name"], error["state"]) == ("expression", "b")
    assert "stdin" in error["message"]
    assert not place.lines("ticks")


def test_f107_many_values_that_are_too_long_together_are_an_error_and_no_run_is_left_hanging(place):
    words = ", ".join(["'${{ vars.x }}'"] * 60)
    plan = place.plan(
        f"a: {{run: [{sys.executable}, -c, 'print(\"y\" * 90000)'], output: text, assign: {{x: '${{{{ output }}}}'}}, next: b}}\n"
        f"b: {{run: [echo, {words}], next: succeeded}}",
        head="vars: {x: ''}",
    )
    done = place.durun("start", plan, exit=1)
    shown = place.show(done.id)
    assert (shown["status"], shown["error"]["state"]) == ("failed", "b")
    said, most = shown["error"], f"{os.sysconf('SC_ARG_MAX') // 1024:,} KiB"
    assert said["name"] == "expression" and most in said["message"] and "by `stdin`" in said["message"]
    assert shown["effects"][1]["status"] == "not_done"


def test_f107_a_large_list_reaches_a_command_by_stdin(place):
    plan = place.plan(
        f"""
a: {{run: [{sys.executable}, -c, 'import json; print(json.dumps(["z" * 40] * 5000))'], output: json, next: b}}
b: {{run: [wc, -c], stdin: '${{{{ states.a.output }}}}', output: json, next: succeeded}}
"""
    )
    done = place.durun("start", plan)
    assert place.durun("output", done.id, "b").json >= 5000 * 42

"""A plan, a name or a payload from somewhere else: refused at its place or harmless, and never a hang, a file or a request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from program import Program

from durun.errors import ExpressionError, Refusal
from durun.machine import once
from durun.machine.request import one_line, url
from durun.plan.expressions import Evaluator
from durun.plan.load import PlanFaults, load

HEAD = "durun: 1\nname: {name}\nstart: a\n"
STATE = "states: {a: {run: ['true'], next: succeeded}}\n"
NAMES = {
    "up": "../../x", "root": "/etc/x", "nul": "a\\0b", "line end": "a\\nb", "escape": "a\\e[31m", "turned": "a\\u202eb", "dash": "-rf",
    "long": "a" * 10_000, "empty": "", "dot": ".", "blank": "a b", "tilde": "~", "c1": "a\\u009b31m",
}  # fmt: skip
PLACES = {
    "plan": HEAD.replace("{name}", "NAME") + STATE,
    "state": HEAD + "states: {NAME: {run: ['true'], next: succeeded}, a: {pass: {}, next: NAME}}\n",
    "next": HEAD + "states: {a: {run: ['true'], next: NAME}}\n",
    "input": HEAD + "input: {NAME: string}\n" + STATE,
    "var": HEAD + "vars: {NAME: 1}\n" + STATE,
    "branch": HEAD
    + "states: {a: {parallel: {branches: {NAME: {start: b, states: {b: {run: ['true'], next: succeeded}}}}}, next: succeeded}}\n",
    "limit": HEAD + "states: {a: {run: ['true'], limit: NAME, next: succeeded}}\n",
    "signal": HEAD + "states: {a: {wait: {signal: NAME}, next: succeeded}}\n",
    "secret": HEAD + "secrets: [NAME]\n" + STATE,
    "error": HEAD + "states: {a: {fail: {error: NAME}}}\n",
    "option": HEAD + "states: {a: {approval: {message: x, options: ['y', NAME]}, next: succeeded}}\n",
    "tool": HEAD + "pins: {tools: {NAME: ['true']}}\n" + STATE,
    "variable": HEAD + "states: {a: {run: ['true'], env: {NAME: x}, next: succeeded}}\n",
    "header": HEAD + "states: {a: {http: {url: 'http://x', headers: {NAME: x}}, next: succeeded}}\n",
    "method": HEAD + "states: {a: {http: {url: 'http://x', method: NAME}, next: succeeded}}\n",
    "pinned file": HEAD + "pins: {files: [NAME]}\n" + STATE,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_is_none_is_refused_wherever_a_plan_has_one(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    taken = []
    for what, name in NAMES.items():
        text = PLACES[place].replace("{name}", "x").replace("NAME", f'"{name}"')
        try:
            load(text.encode(), "plan.yaml")
            taken.append(what)
        except PlanFaults:
            pass
    assert taken == HARMLESS.get(place, [])


HARMLESS = {"secret": ["long"], "header": ["dash", "dot", "tilde"]}  # a variable there is not; what RFC 9110 calls a name


BOMBS = {
    "aliases that grow": "x-a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"x-{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefgh"))
    + STATE,
    "depth": f"x-a: {'[' * 50_000}{']' * 50_000}\n{STATE}",
    "an alias of itself": f"x-a: &a [*a]\n{STATE}",
    "a tag that makes an object": f"x-a: !!python/object/apply:os.system ['touch pwned']\n{STATE}",
    "a tag that reads a file": f"x-a: !include /etc/passwd\n{STATE}",
    "a merge": f"x-a: &a {{b: 1}}\nx-c: {{<<: *a}}\n{STATE}",
    "a schema from a file": "input: {v: {$ref: 'file:///etc/passwd'}}\n" + STATE,
    "a schema from the network": "input: {v: {$ref: 'http://127.0.0.1:9/x'}}\n" + STATE,
    "a schema deep inside from the network": "input: {v: {items: {anyOf: [{$dynamicRef: 'http://127.0.0.1:9/x'}]}}}\n" + STATE,
    "a schema of its own from the network": "input: {v: {$schema: 'http://127.0.0.1:9/x', type: string}}\n" + STATE,
    "a pinned file above": "pins: {files: [../x]}\n" + STATE,
    "a pinned file by its whole path": "pins: {files: [/etc/passwd]}\n" + STATE,
    "a plan above that calls this one": "states: {a: {plan: {file: plan.yaml}, next: succeeded}}\n",
    "an integer without end": f"x-a: {'9' * 20_000}\nvars: {{v: {'9' * 20_000}}}\n{STATE}",
    "another document": f"{STATE}---\na: b\n",
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_plan_that_would_grow_reach_out_or_never_end_is_refused(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(HEAD.replace("{name}", "x") + BOMBS[what])
    with pytest.raises(PlanFaults):
        load((tmp_path / "plan.yaml").read_bytes(), "plan.yaml")
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_a_pinned_file_that_is_a_link_out_of_the_folder_or_no_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    folder.mkdir()
    (tmp_path / "shadow").write_text("root:x")
    (folder / "up").symlink_to("..")
    (folder / "shadow").symlink_to(tmp_path / "shadow")
    (folder / "zero").symlink_to("/dev/zero")
    os.mkfifo(folder / "fifo")
    for name in ("shadow", "zero", "fifo", "up/shadow"):
        text = HEAD.replace("{name}", "x") + f"pins: {{files: [{name}]}}\n{STATE}"
        (folder / "plan.yaml").write_text(text)
        with pytest.raises(PlanFaults):
            load(text, str(folder / "plan.yaml"))


LONG = """
from durun.plan.expressions import Evaluator
from durun.plan.schema import validate
for pattern in ("^(a+)+$", "^(?=a)(a|a)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"):
    assert validate({"type": "string", "pattern": pattern}, "a" * 40 + "!"), pattern
    assert not validate({"type": "object", "patternProperties": {pattern: {"type": "integer"}}}, {"a" * 40 + "!": "x"}), pattern
    if "?=" not in pattern:  # RE2 knows no such thing
        assert Evaluator().expression(f"input.v.matches('{pattern}')", {"input": {"v": "a" * 50000 + "!"}}) is False, pattern
"""


def test_a_pattern_or_an_expression_that_would_run_for_ever_is_given_up() -> None:
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    many = list(range(500))
    with pytest.raises(ExpressionError):
        Evaluator().expression("input.l.map(x, input.l.map(y, input.l.map(z, x + y + z)))", {"input": {"l": many}})


@pytest.mark.parametrize(
    "name", [n for what, n in NAMES.items() if what not in ("up", "root", "turned", "dash", "dot", "blank", "tilde", "c1")]
)
def test_a_name_of_a_once_that_is_none_is_refused(name: str) -> None:
    name = name.replace("\\0", "\0").replace("\\n", "\n").replace("\\e", "\x1b")
    with pytest.raises(Refusal):
        once.named(name)


def test_a_header_or_an_address_that_holds_a_second_line_makes_no_request() -> None:
    for text in ("x\r\nHost: evil", "x\nX: y", "x\rX: y", "x\0"):
        with pytest.raises(ExpressionError):
            one_line("X", text)
        with pytest.raises(ExpressionError):
            url(f"http://host/{text}")
    for text in ("file:///etc/passwd", "ftp://x/", "gopher://x/", "http:///x", "//x", "javascript:x"):
        with pytest.raises(ExpressionError):
            url(text)


def test_ids_labels_and_paths_that_are_none_are_refused_where_a_run_works_them_out(durun: Program) -> None:
    child = "durun: 1\nname: c\nstart: a\nstates: {a: {run: ['true'], next: succeeded}}\n"
    (durun.folder / "c.yaml").write_text(child)
    evil = ["../../x", "/etc/x", "a\x1b[31m", "-rf", "", "a" * 10_000, "a\nb"]
    durun.plan(
        "input: {bad: {type: array}}\nstart: ids\nstates:\n"
        "  ids: {map: {items: input.bad, failures: all, start: s, states: {s: {plan: {file: c.yaml, id: '${{ item }}'}, next: succeeded}}}, next: labels}\n"
        "  labels: {map: {items: input.bad, label: '${{ item }}', run: ['true']}, catch: [{on: expression, next: succeeded}], next: failed}\n"
    )
    (durun.folder / "in.json").write_text(json.dumps({"bad": evil}))
    run = durun.start(0, "--input", "in.json")
    doc = durun.show(run)
    assert durun("output", run, "ids").stdout == json.dumps([None] * len(evil)) + "\n"
    assert not doc["effects"], "nothing was begun for any of them"
    assert not [path for path in (*durun.folder.rglob("x"), durun.folder.parent / "x") if path.exists()]

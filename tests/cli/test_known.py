"""A plan that was checked before is known by its text: what that saves, and what is read anew all the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from program import Program

HEAVY = {"ruamel.yaml", "durun.plan.check", "durun.plan.shapes"}
ONE = "start: a\nstates: {a: {run: ['true'], next: succeeded}}\n"


def loaded_by(durun: Program, *words: object) -> set[str]:
    """The heavy modules that a call imports."""
    code = (
        f"import sys; from durun.cli import reader; reader.run({[str(w) for w in words]!r})\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=durun.env, cwd=durun.folder, capture_output=True, text=True, check=True)
    return HEAVY & set(done.stderr.split())


def test_the_second_start_of_a_plan_needs_neither_yaml_nor_the_shapes(durun: Program) -> None:
    plan = durun.plan(ONE)
    assert loaded_by(durun, "start", plan, "-q") == HEAVY
    assert loaded_by(durun, "start", plan, "-q") == set()
    found = json.loads(durun("ls", "--json").stdout)["runs"]
    assert [run["status"] for run in found] == ["succeeded", "succeeded"]
    assert len({run["version"] for run in found}) == 1


def test_a_plan_that_has_changed_is_checked_anew(durun: Program) -> None:
    durun("start", durun.plan(ONE), "-q")
    plan = durun.plan(ONE.replace("['true']", "['true', x]"))
    assert loaded_by(durun, "start", plan, "-q") == HEAVY
    durun("start", durun.plan(ONE.replace("succeeded", "nowhere")), exit=7)


def test_a_plan_that_was_refused_is_refused_again(durun: Program) -> None:
    durun("start", durun.plan(ONE), "-q")
    plan = durun.plan(ONE.replace("succeeded", "nowhere"))
    for _ in range(2):
        durun("start", plan, exit=7)


def test_a_plan_that_calls_another_is_read_with_it_each_time(durun: Program) -> None:
    durun.audited = False  # what stood inside a child goes when it ends, which `db check` does not allow for
    durun.plan(ONE, "child.yaml")
    plan = durun.plan("start: call\nstates: {call: {plan: {file: child.yaml}, next: succeeded}}\n")
    durun("start", plan, "-q")
    durun.plan("start: a\nstates: {a: {fail: {error: changed, message: x}}}\n", "child.yaml")
    durun("start", plan, "-q", exit=1)


def test_another_durun_checks_for_itself(durun: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from durun.cli import known

    before = known.mark_of(b"text")
    assert known.mark_of(b"text") == before and known.mark_of(b"texts") != before
    monkeypatch.setattr(known, "__version__", "0.0.0")
    assert known.mark_of(b"text") != before


def test_the_input_of_a_known_plan_is_checked_like_that_of_a_new_one(durun: Program) -> None:
    plan = durun.plan("input: {n: integer}\n" + ONE)
    durun("start", plan, "-q", "-i", "n=1")
    durun("start", plan, "-q", "-i", "n=x", exit=7)
    durun("start", plan, "-q", exit=7)

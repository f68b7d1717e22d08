"""The JSON Schema of the plan language: what `check` takes fits it, and what a schema can refuse it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from inside import some_states
from program import Program

import durun as package
from durun.cli.pages import pages, text
from durun.plan import model
from durun.plan.check import read
from durun.plan.language import schema

ROOT = Path(package.__file__).parent
MADE = schema()
FITS = jsonschema_rs.Draft202012Validator(MADE)
WRITTEN = [block for page in pages() for block in re.findall(r"```yaml\n(.*?)```", text(page), re.DOTALL)]
WRITTEN += [path.read_text() for path in sorted(ROOT.glob("templates/*/plan.yaml"))]


def plan(states: Any, **more: Any) -> dict[str, Any]:
    return {"durun": 1, "name": "p", "start": "a", "states": states, **more}


def state(**keys: Any) -> dict[str, Any]:
    return plan({"a": {"next": "succeeded", **keys}})


def why(data: Any) -> list[str]:
    return [f"{error.instance_path}: {error.message}" for error in FITS.iter_errors(data)]


def test_it_is_a_schema() -> None:
    jsonschema_rs.meta.validate(MADE)
    assert MADE["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("written", WRITTEN, ids=[re.search(r"^name: (\S+)", w, re.MULTILINE)[1] for w in WRITTEN])  # type: ignore[index]
def test_every_plan_of_the_documentation_and_of_the_templates_fits(written: str) -> None:
    from durun.plan.load import Lines, _compose, _plain  # as `load` reads it: `on` is a text, 1.0 a number

    data, _ = _plain(_compose(written, Lines(written), []))
    assert why(data) == []


@settings(max_examples=25)
@given(some_states(depth=2, prefix="s"))
def test_every_plan_that_check_takes_fits(made: tuple[str, dict[str, Any]]) -> None:
    data = {"durun": 1, "name": "p", "start": made[0], "states": made[1]}
    assert read(data)[0] is not None and why(data) == []


RUN = {"run": ["x"]}
TAKEN = [
    state(**RUN, timeout="${{ input.t }}", retry={"on": ["exit:7", "killed:TERM", "http:5xx", "*"], "max_elapsed": "1h30m"}, idempotent="24h"),
    state(**RUN, retry=[{"on": "timeout"}], output={"format": "json", "schema": {"type": "array"}}, expect=3, stdin={"a": 1}),
    state(run="exit 1", shell="bash", probe={"run": "x", "yes": 0, "no": [1, 2]}, compensate={"after": "done", "run": ["x"], "if": "true"}),
    state(http={"url": "${{ pins.env.X }}/a", "expect": ["200-299", 404], "auth": {"bearer": "x"}}, probe={"http": {"url": "http://x"}}),
    state(wait={"signal": "go", "heartbeat": "1m", "schema": "string"}, timeout="1h"), state(wait="5s"), state(**{"pass": None}),
    state(wait={"at": "2026-11-30T09:00:00+01:00"}),
    state(approval={"message": "?", "options": ["yes", {"name": "no", "reject": True}], "schema": "any"}),
    state(map={"items": "[1]", "run": ["x"], "retry": {"max_attempts": 2}, "concurrency": 2, "failures": "10%"}),
    state(map={"items": "[1]", "plan": {"file": "other.yaml"}}),
    state(**RUN, poll={"until": "true", "for": "1m"}, idempotent=True),
    state(**RUN, background=True, idempotent=True),
    plan({"a": {"fail": {"error": "mine"}}}, **{"x-anything": [1]}, secrets=["A", {"name": "B", "file": "/b"}], limits={"l": {"rate": "5/s"}}),
    plan({"a": {"choice": [{"when": "true", "next": "succeeded"}, {"next": "failed"}]}}, notify=[{"on": "failed", "run": ["x"]}]),
    plan({"a": {"fail": {"error": "e"}}}, input={"a": "any", "b": {"type": "number", "default": 1}, "c": True}, vars={"v": None}),
    plan({"a": {"fail": {"error": "e"}}}, migrations=[{"from": "1", "map": {"a": "b"}}], pins={"tools": {"t": ["t", "--version"]}}),
]  # fmt: skip


@pytest.mark.parametrize("data", TAKEN)
def test_every_way_to_write_a_value_is_taken(data: Any) -> None:
    assert why(data) == []


REFUSED = [
    state(**RUN, wait="5s"), state(), state(**RUN, tiemout="5s"), state(**RUN, approval={}), plan({"a": RUN}), state(**RUN, timeout=5),
    state(**RUN, timeout="5 s"), state(**RUN, timeout=None), state(run="echo ${{ input.x }}"), state(run=[]), state(run=["x"], shell="sh"),
    state(http={"url": "x.org"}), state(http={"url": "http://x", "json": 1, "body": "b"}), state(http={"url": "http://x"}, env={"A": "b"}),
    state(http={"url": "http://x", "auth": {}}), state(http={"url": "http://x", "method": "get"}), state(http={"url": "http://x", "expect": [99]}),
    state(wait="5s", timeout="1h"), state(wait={"signal": "go", "at": "now"}), state(**RUN, retry={"max_attempts": 0}),
    state(**RUN, retry={"on": "exit:256"}), state(**RUN, catch=[{"on": ["run_timeout"], "next": "a"}]), state(**RUN, catch=[{"on": []}]),
    state(**RUN, poll={"until": "true"}), state(**RUN, poll={"until": "true", "for": "1m"}, retry={}), state(**RUN, env={"DURUN_X": "1"}),
    state(**RUN, env={"A": None}), state(**RUN, background=True, output="json"), state(map={"items": "[1]"}),
    state(map={"items": "[1]", "run": ["x"], "http": {"url": "http://x"}}), state(map={"items": "[1]", "run": ["x"], "compensation": {}}),
    state(parallel={"branches": {}}), state(parallel={"branches": {"b": {"start": "x"}}}), state(approval={"message": "?", "options": []}),
    state(**RUN, compensate={"run": ["x"], "http": {"url": "http://x"}}), state(**RUN, compensate={"timeout": "5s"}),
    plan({"a": {"fail": {"error": "timeout"}}}), plan({"a": {"fail": {"error": "x"}, "next": "b"}}), plan({"succeeded": {"fail": {"error": "x"}}}),
    plan({"A": {"fail": {"error": "x"}}}), plan({}), {**state(**RUN), "durun": 2}, {**state(**RUN), "name": "P"},
    {**state(**RUN), "input": {"in": "string"}}, {**state(**RUN), "input": {"a": "strng"}}, {**state(**RUN), "sates": {}},
    {**state(**RUN), "limits": {"l": {}}}, {**state(**RUN), "limits": {"l": {"rate": "5"}}}, {**state(**RUN), "on_error": "undo"},
    {**state(**RUN), "secrets": [{"name": "A", "file": "a", "run": "b"}]}, {**state(**RUN), "notify": [{"on": ["done"], "run": ["x"]}]},
    {**state(**RUN), "pins": {"env": ["A-B"]}}, {**state(**RUN), "group": {"if_busy": "wait"}}, {k: v for k, v in state(**RUN).items() if k != "start"},
]  # fmt: skip


@pytest.mark.parametrize("data", REFUSED)
def test_what_a_schema_can_refuse_is_refused_as_check_does(data: Any) -> None:
    assert why(data) != [] and read(data)[1] != []


def test_every_shape_is_in_it_with_all_its_keys() -> None:
    shapes = [one for one in vars(model).values() if isinstance(one, type) and issubclass(one, model.Shape)]
    for shape in shapes:
        if shape not in (model.Shape, model.Policy, model.Plan, model.Map):
            wanted = {field.alias or name for name, field in shape.model_fields.items()}
            assert set(MADE["$defs"][shape.__name__]["properties"]) == wanted, shape


def test_the_command_prints_it_with_what_each_key_means_or_writes_it(durun: Program) -> None:
    printed = json.loads(durun("schema").stdout)
    said = {key: value["description"] for key, value in printed["$defs"]["State"]["properties"].items()}
    assert said["limit"].startswith("the limit it takes a place of") and said["fail"].startswith("{error, message, data}")
    assert "plan.json" in durun("schema", "--out", "plan.json").stderr
    assert json.loads((durun.folder / "plan.json").read_text()) == printed
    assert json.loads(durun("schema", "--out", "again.json", "--json").stdout) == {"file": str(durun.folder / "again.json")}
    assert "cannot be written" in durun("schema", "--out", "none/plan.json", exit=10).stderr

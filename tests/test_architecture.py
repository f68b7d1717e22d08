"""The rooms, held by a look at the syntax trees: imports go one way, and each outside door has one room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import durun

ROOT = Path(durun.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py") if "templates" not in p.parts)

# a room may import itself, `values`, and these
MAY = {
    "values": set(),
    "errors": set(),
    "plan": {"errors"},
    "machine": {"errors", "plan"},
    "pins": {"errors", "plan", "machine"},
    "store": {"errors", "plan", "machine"},
    "effects": {"errors", "plan", "machine"},
    "outbox": {"errors", "plan", "machine", "store", "effects"},
    "messages": {"errors", "plan", "machine", "store", "effects", "outbox"},
    "turns": {"errors", "plan", "machine", "store", "effects", "outbox"},
    "engine": {"errors", "plan", "machine", "pins", "store", "effects", "outbox", "messages", "turns"},
    "work": {"errors", "plan", "machine", "store", "effects", "outbox", "messages", "engine", "turns"},
    "render": {"errors", "plan", "machine", "store"},
    "cli": {
        "errors",
        "plan",
        "machine",
        "pins",
        "store",
        "effects",
        "outbox",
        "messages",
        "turns",
        "engine",
        "work",
        "render",
    },
}
DOORS = {
    "apsw": ("store",),
    "ruamel": ("plan/load",),
    "pydantic": ("plan/model", "plan/misshapen"),
    "cel_expr_python": ("plan/cel",),
    "jsonschema_rs": ("plan/schema",),
    "typer": ("cli",),
    "rich": ("render", "cli"),
    "subprocess": ("effects",),
    "pycurl": ("effects",),
    "sqlite3": (),
}
HEAVY = (
    "plan.load",
    "plan.check",
    "plan.model",
    "plan.form",
    "plan.language",
    "plan.misshapen",
)  # only cli may import these: a driver that resumes does not


def place(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


@pytest.mark.parametrize("path", FILES, ids=place)
def test_imports_go_one_way(path: Path) -> None:
    room = place(path).split("/")[0]
    if room in ("__init__", "__main__"):
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "durun" and len(parts) > 1 and (ROOT / parts[1]).exists() | (ROOT / f"{parts[1]}.py").exists():
            assert parts[1] in (room, "values") or parts[1] in MAY[room], f"{place(path)} imports {name}"
            if name.removeprefix("durun.") in HEAVY:
                assert room in ("cli", "plan"), f"{place(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_each_outside_door_has_one_room(path: Path) -> None:
    for name in imports(path):
        rooms = DOORS.get(name.split(".")[0])
        if rooms is not None:
            assert any(place(path).startswith(room) for room in rooms), f"{place(path)} imports {name}"


def test_the_machine_reads_no_clock_file_or_chance() -> None:
    for path in FILES:
        if place(path).startswith("machine/"):
            bad = {"time", "random", "subprocess", "socket", "threading", "asyncio", "logging"} & {
                n.split(".")[0] for n in imports(path)
            }
            assert not bad, f"{place(path)} imports {bad}"
            assert "open(" not in path.read_text()


def test_the_keeper_imports_nothing_that_is_not_built_in_or_a_c_module() -> None:
    allowed = {
        "__future__",
        "_signal",
        "binascii",
        "errno",
        "fcntl",
        "marshal",
        "posix",
        "select",
        "sys",
        "time",
        "typing",
        "typing.Any",
    }
    names = set(imports(ROOT / "effects" / "keeper.py"))
    assert {n for n in names if not n.startswith("__future__")} <= allowed


def loaded_by(*words: str) -> set[str]:
    code = (
        f"import sys; sys.argv = ['durun', *{list(words)!r}]\n"
        "from durun.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return set(done.stderr.split())


def test_what_scripts_poll_loads_neither_typer_nor_pydantic_nor_yaml_nor_cel(tmp_path: Path) -> None:
    db = str(tmp_path / "runs.db")
    plan = tmp_path / "p.yaml"
    plan.write_text("durun: 1\nname: p\nstart: a\nstates: {a: {pass: {}, next: succeeded}}\n")
    subprocess.run(
        [sys.executable, "-m", "durun", "start", str(plan), "--id", "x", "-q", "--db", db], check=True, capture_output=True
    )
    for words in (["ls"], ["show", "x"], ["wait", "x"], ["history", "x"], ["ls", "--json"]):
        loaded = loaded_by(*words, "--db", db)
        assert "apsw" in loaded, words
        heavy = {"typer", "click", "pydantic", "ruamel.yaml", "cel_expr_python", "rich", "jsonschema_rs"} & loaded
        assert not heavy, (words, heavy)
    light = {"re", "enum", "datetime", "json", "typing", "dataclasses", "pathlib", "contextlib", "functools"}
    there = set(
        subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True).stdout.split()
    )
    assert not light & (loaded_by("ls", "--db", db) - there)


def test_a_plan_that_is_well_formed_is_read_without_the_library_of_its_shapes(tmp_path: Path) -> None:
    plan = tmp_path / "p.yaml"
    head = "durun: 1\nname: p\ninput: {n: {type: integer, default: 1, description: how many}}\n"
    plan.write_text(f"{head}start: a\nstates: {{a: {{run: ['true'], retry: {{max_attempts: 2}}, next: succeeded}}}}\n")
    for words in (["check", str(plan)], ["start", str(plan), "--dry-run"], ["start", str(plan), "-q"], ["graph", str(plan)]):
        loaded = loaded_by(*words, *(["--db", str(tmp_path / "runs.db")] if "start" in words else []))
        assert "durun.plan.shapes" in loaded, words
        assert not {"pydantic", "pydantic_core", "jsonschema_rs", "durun.plan.model", "durun.plan.misshapen"} & loaded, words


def test_what_only_looks_at_a_plan_loads_nothing_that_drives_a_run(tmp_path: Path) -> None:
    plan = tmp_path / "p.yaml"
    plan.write_text("durun: 1\nname: p\nstart: a\nstates: {a: {run: ['true'], next: succeeded}}\n")
    for words in (["check", str(plan)], ["graph", str(plan)]):
        assert not {"durun.engine", "durun.outbox", "durun.effects.command"} & loaded_by(*words), words


def test_what_is_wrong_with_a_plan_is_said_without_a_search_for_plugins_of_that_library(tmp_path: Path) -> None:
    plan = tmp_path / "p.yaml"
    plan.write_text("durun: 1\nname: p\nstart: a\nstates: {a: {run: ['true'], timeout: 5, next: succeeded}}\n")
    loaded = loaded_by("check", str(plan))
    assert {"pydantic", "ruamel.yaml"} <= loaded
    assert not {"importlib.metadata", "email.message", "pydantic.plugin._loader"} & loaded


def test_a_driver_that_resumes_loads_neither_pydantic_nor_yaml_and_cel_only_for_expressions(tmp_path: Path) -> None:
    db = str(tmp_path / "runs.db")
    plan = tmp_path / "p.yaml"
    plan.write_text("durun: 1\nname: p\nstart: a\nstates: {a: {run: ['false'], next: succeeded}}\n")
    subprocess.run(
        [sys.executable, "-m", "durun", "start", str(plan), "--id", "x", "-q", "--db", db], capture_output=True, check=False
    )
    loaded = loaded_by("resume", "x", "--db", db)
    assert "durun.engine" in loaded
    assert not {"durun.machine.limits", "durun.store.places"} & loaded, "this plan shares nothing"
    assert not {"typer", "pydantic", "ruamel.yaml", "cel_expr_python", "jsonschema_rs", "dataclasses", "inspect", "uuid"} & loaded

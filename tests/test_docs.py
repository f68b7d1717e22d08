"""The documentation cannot rot: what the code has is in it, and what it shows is real.

What must be documented is read from the code and from the file it makes, never from a list kept here.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from program import Program

import durun as package
from durun.cli.common import EXITS
from durun.cli.pages import pages, text
from durun.cli.reader import COMMANDS, SHORT, function
from durun.errors import Refusal
from durun.machine.model import KINDS, Phase, Status
from durun.plan import model
from durun.plan.names import BUILT_IN
from durun.plan.words import ALWAYS, FITS
from durun.plan.words import KINDS as KINDS_OF_STATE
from durun.store.file import VERSION, statements

ROOT = Path(package.__file__).parent
README = (ROOT.parent / "README.md").read_text() if (ROOT.parent / "README.md").exists() else ""
PAGES = {name: text(name) for name in pages()}
ALL = {"README": README, **PAGES}


def words(page: str) -> set[str]:
    """What a page says in code marks, word by word."""
    return {word for code in re.findall(r"`([^`\n]+)`", page) for word in re.split(r"[,\s]+", code)}


def blocks(language: str) -> list[tuple[str, str]]:
    return [(name, block) for name, page in ALL.items() for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)]


def rows(page: str) -> dict[str, str]:
    """First cell of each row of its tables, word by word -> the whole row."""
    found: dict[str, str] = {}
    for line in page.splitlines():
        if line.startswith("| "):
            for word in words(line.split("|")[1]):
                found[word] = line
    return found


def trees(*rooms: str) -> Iterator[ast.AST]:
    for room in rooms:
        for path in sorted(ROOT.glob(room)):
            yield ast.parse(path.read_text())


def calls(*rooms: str) -> Iterator[tuple[str, ast.Call]]:
    for tree in trees(*rooms):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node


def refusals(kind: type[Refusal] = Refusal) -> list[type[Refusal]]:
    return [one for child in kind.__subclasses__() for one in (child, *refusals(child))]


def options(name: str) -> set[str]:
    return {"--" + option.rstrip("_").replace("_", "-") for option in function(name).__kwdefaults__ or {}}


# --- commands and exit codes ---


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown_and_each_of_its_options_named(name: str) -> None:
    page = PAGES["commands"]
    assert f"\ndurun {name}" in page
    said = set(re.findall(r"--[a-z-]+", page))
    assert options(name) <= said, options(name) - said


def test_every_short_option_is_named() -> None:
    assert all(f"`{short}` is `{long}`" in PAGES["commands"] for short, long in SHORT.items())


def exit_codes() -> set[int]:
    found = {0, *EXITS.values(), *(kind.exit for kind in refusals())}
    for tree in trees("cli/*.py", "engine.py"):
        for node in ast.walk(tree):
            wanted: list[ast.expr] = []
            if isinstance(node, ast.Return) and node.value is not None:
                wanted = [node.value, *(node.value.args if isinstance(node.value, ast.Call) else [])]
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr == "exit" for t in node.targets):
                wanted = [node.value]
            for value in wanted:
                values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                found |= {v.value for v in values if isinstance(v, ast.Constant) and type(v.value) is int}
    return found


def test_every_exit_code_has_a_row_and_no_row_is_of_a_code_that_there_is_not() -> None:
    table = PAGES["commands"].partition("## Exit codes")[2]
    documented = {int(n) for n in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert {124, 130, 143} <= exit_codes() and exit_codes() == documented
    assert all(re.search(rf"\b{code}\b", README) for code in documented) or not README


def test_every_refusal_has_its_code_and_its_exit() -> None:
    there = rows(PAGES["errors"])
    for kind in refusals():
        assert f"| {kind.exit} |" in there[kind.code], kind


# --- errors ---


def error_names() -> set[str]:
    """Every name that the rules give to an error, and every one that is kept for durun."""
    at = {"failed": 2, "_error": 1, "done_but": 2, "OutputError": 0, "AssignError": 0, "_doubt_error": 2, "Outcome": 1}
    found = set(BUILT_IN)
    for name, call in calls("machine/*.py"):
        place = at.get(name)
        if place is not None and len(call.args) > place:
            value = call.args[place]
            if isinstance(value, ast.Constant):
                found.add(str(value.value))
            elif isinstance(value, ast.JoinedStr):
                found.add(str(getattr(value.values[0], "value", "")).rstrip(":"))
    return found - {""}


def test_every_name_of_an_error_is_documented() -> None:
    assert {"exit", "killed", "not_found", "max_visits", "unresolved", "output_too_large", "vars_invalid"} <= error_names()
    documented = {word.partition(":")[0] for word in words(PAGES["errors"])}
    assert error_names() <= documented, error_names() - documented


# --- the file ---


def told() -> dict[str, set[str]]:
    """Kind of event -> the data it is told with."""
    found: dict[str, set[str]] = {}
    for name, call in calls("machine/*.py", "engine.py", "pins.py"):
        if name in ("tell", "Event") and call.args and isinstance(call.args[0], ast.Constant):
            data = {k.arg for k in call.keywords if k.arg}
            if name == "Event" and isinstance(call.args[-1], ast.Dict):
                data = {str(k.value) for k in call.args[-1].keys if isinstance(k, ast.Constant)}
            found.setdefault(str(call.args[0].value), set()).update(data)
    return found


def test_every_kind_of_event_that_can_be_told_is_in_the_closed_list_and_documented_with_its_data() -> None:
    there = rows(PAGES["database"].partition("## Kinds of event")[2])
    assert set(told()) == set(KINDS) == set(there)
    for kind, data in told().items():
        assert data <= words(there[kind]), (kind, data - words(there[kind]))


def test_what_an_end_of_an_attempt_says_is_documented() -> None:
    [tree] = trees("machine/walk.py")
    [function_] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_tell_end"]
    said = {str(n.slice.value) for n in ast.walk(function_) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)}
    row = rows(PAGES["database"].partition("## Kinds of event")[2])["attempt_ended"]
    assert {"error", "stopped", "left"} <= said <= words(row)


@pytest.fixture(scope="module")
def made() -> Iterator[apsw.Connection]:
    db = apsw.Connection(":memory:")
    for version in range(1, VERSION + 1):
        for statement in statements(version):
            db.execute(statement).fetchall()
    yield db
    db.close()


def test_every_column_of_every_view_is_documented(made: apsw.Connection) -> None:
    views = [name for (name,) in made.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")]
    assert views
    for view in views:
        section = re.split(r"\n##+ ", PAGES["database"].partition(f"\n### {view}\n")[2])[0]
        columns = {name for _, name, *_ in made.execute(f"PRAGMA table_info({view})")}
        assert columns <= set(rows(section)), (view, columns - set(rows(section)))
        assert set(rows(section)) <= columns, (view, set(rows(section)) - columns)


def legal(made: apsw.Connection, table: str, column: str) -> set[str]:
    """The values that the file allows."""
    [(sql,)] = made.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,))
    found = re.search(rf"{column} +TEXT NOT NULL CHECK \((.*?)\)", sql, re.DOTALL)
    assert found is not None
    return set(re.findall(rf"{column} = '([a-z_]+)'", found[1]))


def test_every_status_phase_and_kind_that_the_file_allows_is_documented(made: apsw.Connection) -> None:
    assert legal(made, "effects", "status") | set(Phase) | set(Status) <= words(PAGES["json"])
    assert legal(made, "effects", "kind") <= words(rows(PAGES["database"])["kind"]) | words(PAGES["database"])


# --- documents ---


def test_every_field_of_a_run_is_documented(durun: Program) -> None:
    durun.plan(
        "start: a\nstates: {a: {run: 'exit 3', compensate: {run: 'true'}, catch: [{on: [any], next: b}], next: b}, b: {wait: 1h, next: succeeded}}\n"
    )
    doc = durun.show(durun.start(3, "--no-wait"))
    there = rows(PAGES["json"].partition("## Others")[0])
    assert set(doc) <= set(there), set(doc) - set(there)
    for field in ("waiting_for", "positions", "effects", "undo", "pins"):
        [sample] = [doc[field]] if isinstance(doc[field], dict) else doc[field]
        [listed] = re.findall(r"`\{([^}]*)\}`", there[field])
        assert set(sample) == set(listed.split(", ")), field
    line = json.loads(durun("ls", "--json").stdout)
    assert set(line["runs"][0]) <= words(rows(PAGES["json"])["ls"]) and {"runs", "held"} == set(line)


# --- the plan language ---


def keys(shape: type[model.Shape]) -> set[str]:
    return {field.alias or name for name, field in shape.model_fields.items()}


def test_every_key_a_plan_may_have_is_documented() -> None:
    page = PAGES["plan"]
    examples = "".join(block for name, block in blocks("yaml") if name == "plan")
    said = (
        words(page)
        | set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`\n]*`", page))))
        | set(re.findall(r"([a-z_]+):", examples))
    )
    for shape in (
        model.Plan,
        model.State,
        model.Defaults,
        model.Rule,
        model.Catch,
        model.Probe,
        model.Poll,
        model.Fail,
        model.Pins,
        model.Http,
        model.Auth,
        model.HttpProbe,
        model.SecretOf,
        model.Heard,
        model.Approval,
        model.Option,
        model.Parallel,
        model.Map,
        model.Branch,
        model.Child,
        model.Compensation,
        model.Notify,
    ):
        assert keys(shape) <= said, (shape, keys(shape) - said)


def test_every_kind_of_state_has_a_row_and_every_key_of_one_too() -> None:
    there = rows(PAGES["plan"])
    assert set(KINDS_OF_STATE) <= set(there)
    for key in keys(model.State) - set(KINDS_OF_STATE):
        kinds = there[key].split("|")[2]
        fits = {kind for kind in KINDS_OF_STATE if key in FITS[kind] | ALWAYS}
        said = set(re.findall(r"[a-z]+", kinds))
        said = set(KINDS_OF_STATE) if "all" in said else said
        said -= set(re.findall(r"but ([a-z]+)", kinds))
        assert said == fits, key


# --- what it shows ---


@pytest.mark.parametrize(("page", "plan"), blocks("yaml"))
def test_every_plan_in_the_documentation_passes_check(durun: Program, page: str, plan: str) -> None:
    assert plan.startswith("durun: 1"), "an example is a whole plan"
    for other in (block for name, block in blocks("yaml") if name == page):  # one may call another of its page, by its name
        (durun.folder / f"{re.search(r'^name: (.*)$', other, re.MULTILINE)[1]}.yaml").write_text(other)  # type: ignore[index]
    said = durun("check", "-", input=plan)
    assert "warning" not in said.stderr


def shown() -> list[tuple[str, str]]:
    return [
        (page, line) for page, block in blocks("sh") for line in block.splitlines() if line.strip() and not line.startswith("#")
    ]


@pytest.mark.parametrize(("page", "line"), shown())
def test_every_shell_example_names_real_commands_and_options(page: str, line: str) -> None:
    said = shlex.split(line, comments=True)
    if said[0] != "durun":
        assert (ROOT.parent / said[0]).is_file(), line
        return
    name = next(n for n in (" ".join(said[1:3]), said[1]) if n in COMMANDS)
    said = said[: said.index("--")] if "--" in said else said  # what follows is another program's
    given = [SHORT.get(word, word).partition("=")[0] for word in said if word.startswith("-") and len(word) > 1]
    assert set(given) <= options(name), line


def test_every_command_named_in_the_text_is_real() -> None:
    for page, content in ALL.items():
        for code in re.findall(r"`durun ([^`]+)`", content):
            name = code.split()[0]
            assert name in COMMANDS or " ".join(code.split()[:2]) in COMMANDS or name.isupper(), (page, code)
            if not name.isupper() and page != "README":
                known = options(name if name in COMMANDS else " ".join(code.split()[:2]))
                assert {SHORT.get(o, o) for o in re.findall(r"(?<!\S)--?[a-z][a-z-]*", code)} <= known, (page, code)


def test_docs_lists_the_pages_and_prints_one_as_it_is_where_nobody_looks(durun: Program) -> None:
    listed = durun("docs").stdout
    assert [line.split()[0] for line in listed.splitlines()] == sorted(PAGES) and "\x1b" not in listed
    for page, content in PAGES.items():
        assert durun("docs", page).stdout == content
    assert "there are commands, crash" in durun("docs", "nothing", exit=2).stderr


def test_a_page_is_drawn_on_a_terminal(durun: Program) -> None:
    import os
    import pty
    import subprocess

    from program import COMMAND

    ours, theirs = pty.openpty()
    shown = subprocess.Popen([*COMMAND, "docs", "errors"], stdout=theirs, env={**durun.env, "TERM": "xterm"}, cwd=durun.folder)
    os.close(theirs)
    got = b""
    try:
        while data := os.read(ours, 65536):
            got += data
    except OSError:  # the end, on Linux
        pass
    os.close(ours)
    assert shown.wait(30) == 0 and b"| ---" not in got and "no_choice" in got.decode()

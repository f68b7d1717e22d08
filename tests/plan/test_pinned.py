"""Files and tools that a plan pins: what patterns name, what is refused and where, what is worth a warning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from durun.plan.files import Unpinnable, found, matched
from durun.plan.load import Loaded, PlanFaults, load

HEAD = "durun: 1\nname: p\nstart: a\n"


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def loaded(folder: Path, pins: str, states: str = "a: {pass: {}, next: succeeded}") -> Loaded:
    path = folder / "plan.yaml"
    path.write_text(f"{HEAD}pins: {pins}\nstates: {{{states}}}\n")
    return load(path.read_bytes(), str(path))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.txt", ["a.txt"]),
        ("*.txt", ["a.txt", "b.txt"]),
        ("./d//x.md", ["d/x.md"]),
        ("d/*", ["d/x.md"]),
        ("d/**", ["d/e/f/y.md", "d/x.md"]),
        ("**/*.md", ["d/e/f/y.md", "d/x.md"]),
        ("d/**/y.md", ["d/e/f/y.md"]),
        ("d/.h/*", ["d/.h/z"]),
        ("[ab].txt", ["a.txt", "b.txt"]),
    ],
)
def test_a_pattern_names_files(tmp_path: Path, pattern: str, names: list[str]) -> None:
    write(tmp_path, "a.txt", "b.txt", "d/x.md", "d/e/f/y.md", "d/.h/z", ".env")
    assert matched(str(tmp_path), pattern) == names


def test_a_link_within_the_folder_is_followed_and_makes_no_circle(tmp_path: Path) -> None:
    write(tmp_path, "d/x", "e/y")
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "d" / "y").symlink_to("../e/y")
    assert {"d/x", "d/y"} <= set(matched(str(tmp_path), "d/**"))
    assert found(str(tmp_path), [(0, "d/y")])[0]["d/y"] == found(str(tmp_path), [(0, "e/y")])[0]["e/y"]


def test_a_link_that_leads_nowhere_keeps_nothing_beside_it_from_being_pinned(tmp_path: Path) -> None:
    write(tmp_path, "d/x")
    (tmp_path / "d" / "circle").symlink_to("circle")
    (tmp_path / "d" / "gone").symlink_to("nothing")
    assert matched(str(tmp_path), "d/x") == ["d/x"]
    for name in ("circle", "gone"):
        [(_, why)] = found(str(tmp_path), [(0, f"d/{name}")])[1]
        assert why.startswith(f"d/{name} cannot be read")


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "d/../../x", "gone", "d", "none/**", "out", "dir/x", "pipe"])
def test_what_leads_out_or_is_no_file_is_refused(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "plans"
    write(folder, "d/x")
    write(tmp_path, "x", "secret/x")
    (folder / "out").symlink_to(tmp_path / "x")
    (folder / "dir").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    manifest, faults = found(str(folder), [(3, pattern)])
    assert not manifest and [n for n, _ in faults] == [3]


def test_every_fault_stands_at_its_pattern(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    with pytest.raises(PlanFaults) as e:
        loaded(tmp_path, "{files: [a.txt, gone.txt, ../b]}")
    assert [(f.line, f.column) for f in e.value.faults] == [(4, 23), (4, 33)]
    assert "`gone.txt` matches no file" in e.value.faults[0].message


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as f:
        f.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(PlanFaults, match="too large to be pinned"):
        loaded(tmp_path, "{files: [large]}")


def test_content_and_mode_are_part_of_the_digest_and_the_version(tmp_path: Path) -> None:
    write(tmp_path, "a.sh")
    versions = [loaded(tmp_path, "{files: [a.sh]}").plan["version"]]
    (tmp_path / "a.sh").write_text("other")
    versions.append(loaded(tmp_path, "{files: [a.sh]}").plan["version"])
    (tmp_path / "a.sh").chmod(0o755)
    versions.append(loaded(tmp_path, "{files: [a.sh]}").plan["version"])
    (tmp_path / "a.sh").chmod(0o775)  # who may write says nothing: nobody writes to what is pinned
    versions.append(loaded(tmp_path, "{files: [a.sh]}").plan["version"])
    assert len(set(versions[:3])) == 3 and versions[3] == versions[2]


def test_each_plan_has_the_files_of_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path, "x.txt", "sub/x.txt")
    (tmp_path / "sub" / "child.yaml").write_text(
        f"{HEAD}pins: {{files: [x.txt]}}\nstates: {{a: {{pass: {{}}, next: succeeded}}}}\n"
    )
    found = loaded(tmp_path, "{files: [x.txt]}", "a: {plan: {file: sub/child.yaml}, next: succeeded}")
    child = found.plan["states"]["a"]["plan"]["pinned"]
    assert found.plan["pins"]["files"]["x.txt"] != child["pins"]["files"]["x.txt"]
    assert set(found.called) == {"sub/child.yaml"} and len(found.pinned) == 2


@pytest.mark.parametrize(
    ("run", "column"),
    [
        ("'cat a.txt'", 24),
        ("'cat ./a.txt'", 24),
        ("'cat $DURUN_FILES/a.txt'", None),
        ("'cat \"$DURUN_FILES/a.txt\"'", None),
        ("'cat \"${DURUN_FILES}\"/a.txt'", None),
        ("'cat a.txt.bak xa.txt b/a.txt2'", None),
        ("[cat, a.txt]", None),
        ("[cat, ./a.txt]", None),
        ("[cat, --file=a.txt]", 32),
        ("[sh, -c, 'cat $DURUN_FILES/a.txt']", None),
    ],
)
def test_a_command_that_means_the_file_on_disk_is_warned_of(tmp_path: Path, run: str, column: int | None) -> None:
    write(tmp_path, "a.txt")
    found = loaded(tmp_path, "{files: [a.txt]}", f"a: {{run: {run}, idempotent: true, next: succeeded}}")
    assert [w.column for w in found.warnings] == ([column] if column else []), found.warnings
    assert all("$DURUN_FILES/a.txt" in w.message for w in found.warnings)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ("{tools: {pay: pay}}", "a tool is asked by a list of words"),
        ("{tools: {pay: []}}", "a tool is asked by a list of words"),
        ("{tools: {pay: ['${{ input.x }}']}}", "no expression may stand here"),
        ("{tools: {'p y': [pay]}}", "no name of a tool"),
        ("{files: [a.txt], tools: {pay: [sh, a.txt]}}", "is pinned with its content"),
        ("{files: ['${{ input.x }}']}", "no expression may stand here"),
        ("{files: a.txt}", "a list is wanted here"),
    ],
)
def test_a_pin_that_says_nothing_is_refused(tmp_path: Path, pins: str, message: str) -> None:
    write(tmp_path, "a.txt")
    with pytest.raises(PlanFaults) as e:
        loaded(tmp_path, pins)
    assert message in str(e.value) and len(e.value.faults) == 1


def test_unpinnable_names_what_it_is_about(tmp_path: Path) -> None:
    with pytest.raises(Unpinnable, match=r"write `d/\*\*`"):
        (tmp_path / "d").mkdir()
        matched(str(tmp_path), "d")

"""What durun makes is for its owner alone, and nothing that lies in its way, or is put there by a command, leads it astray."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import Program

from durun.cli.common import where
from durun.effects.pinned import Trees
from durun.errors import NotPossible, StoreUnusable
from durun.store.backup import backup
from durun.store.file import File, make_folder

OTHER = 65534  # a user who has nothing here
EVERYTHING = """
name: modes
pins: {files: [pin/**]}
start: a
states:
  a:
    run: 'echo out; echo err >&2; echo {} > "$DURUN_OUTPUT"; touch "$DURUN_HEARTBEAT"; "$PY" -m durun once o -- echo hi'
    env: {PY: 'PYTHON'}
    stdin: x
    next: m
  m: {run: 'exit 1', background: true, idempotent: true, next: w}
  w: {wait: {signal: go}, next: succeeded}
""".replace("PYTHON", sys.executable)


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("wants root")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can get to, as pytest's own is not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def reachable(path: Path, top: Path) -> bool:
    """Whether somebody else can do anything with a file, by its mode and those of the folders around it."""
    above = [one for one in path.parents if one.is_relative_to(top)]
    return bool(path.lstat().st_mode & 0o077) and all(one.stat().st_mode & 0o011 for one in above)


BUG = """
import sys
from durun.cli import main, look
def ls(**k): raise ZeroDivisionError
ls.__kwdefaults__ = {}
look.ls = ls; sys.argv[1:] = ["ls"]; main()
"""


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_all_that_is_made_is_for_its_owner_alone_whatever_the_umask(open_folder: Path, umask: int) -> None:
    program = Program(open_folder)
    program.db = open_folder / "state" / "deep" / "runs.db"
    program.env |= {"DURUN_DB": str(program.db), "TMPDIR": str(open_folder / "tmp")}
    for name in ("tmp", "pin"):
        (open_folder / name).mkdir()
    (open_folder / "pin" / "f.sh").write_text("echo f")
    program.plan(EVERYTHING)
    given = set(open_folder.rglob("*"))
    try:
        program("start", "plan.yaml", "--id", "r", exit=3, umask=umask)
        program("start", "plan.yaml", "--detach", umask=umask)
        program("db", "backup", "b.db", umask=umask)
        program.kill_all()
        program("db", "restore", "b.db", umask=umask)
        subprocess.run([sys.executable, "-c", BUG], env=program.env, capture_output=True, timeout=60, umask=umask)
    finally:
        program.kill_all()
    made = set(open_folder.rglob("*")) - given
    names = " ".join(map(str, made))
    for part in ("runs.db", ".before-", "b.db", ".driver.log", "/files/", "durun-bug-", ".out", ".json", "/once", "/writers"):
        assert part in names, part
    assert not [(str(path), oct(path.stat().st_mode)) for path in made if reachable(path, open_folder)]
    assert not [path for path in made if path.suffix in (".db", ".out", ".err", ".log") and path.stat().st_mode & 0o177]


def test_a_database_in_a_folder_that_everybody_may_write_to_is_made_and_said_to_be_in_danger(tmp_path: Path) -> None:
    said: list[str] = []
    os.chmod(tmp_path, 0o777)
    File(str(tmp_path / "runs.db"), create=True, say=said.append).close()
    os.chmod(tmp_path, 0o1777)
    File(str(tmp_path / "other.db"), create=True, say=said.append).close()
    assert [line for line in said if "chmod o-w" in line] == said and len(said) == 1


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("what", ["link", "fifo", "another user's"])
def test_what_lies_where_the_log_of_the_database_would_be_is_not_written_to(tmp_path: Path, end: str, what: str) -> None:
    db, victim = tmp_path / "runs.db", tmp_path / "victim"
    victim.write_text("mine")
    at = tmp_path / f"runs.db{end}"
    if what == "link":
        at.symlink_to(victim)
    elif what == "fifo":
        os.mkfifo(at)
    elif os.geteuid() == 0:
        at.write_bytes(b"")
        os.chown(at, OTHER, OTHER)
    else:
        pytest.skip("wants root")
    for _ in range(2):  # where there is no database yet, and where there is one
        with pytest.raises(StoreUnusable, match=r"is no file|another user"):
            File(str(db), create=True)
        db.touch()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("way", ["another user's", "a link to another user's", "others may write"])
def test_a_folder_of_logs_and_notes_that_somebody_else_could_have_filled_is_refused(tmp_path: Path, way: str) -> None:
    folder, elsewhere = tmp_path / "runs.db.d", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if way == "others may write":
        folder.mkdir()
        folder.chmod(0o770)
    elif os.geteuid() != 0:
        pytest.skip("wants root")
    else:
        folder.symlink_to(elsewhere) if "link" in way else folder.mkdir()
        os.chown(elsewhere if "link" in way else folder, OTHER, OTHER)
    with pytest.raises(StoreUnusable, match=r"another user|other users"):
        make_folder(str(folder))
    file = File(str(tmp_path / "runs.db"), create=True)
    with pytest.raises(StoreUnusable):
        file.write()
    file.close()
    assert not os.listdir(elsewhere)


def test_a_link_to_a_database_is_followed_unless_another_user_made_it(tmp_path: Path, root: None) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "runs.db")
    assert where(str(link)) == str(tmp_path / "runs.db")
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(StoreUnusable, match="another user"):
        where(str(link))


@pytest.mark.parametrize("what", ["link", "dangling link", "folder", "fifo"])
def test_a_backup_takes_the_place_of_nothing(tmp_path: Path, what: str) -> None:
    file, to, victim = File(str(tmp_path / "runs.db"), create=True), tmp_path / "b.db", tmp_path / "victim"
    if what == "link":
        victim.write_text("mine")
    if "link" in what:
        to.symlink_to(victim)
    else:
        to.mkdir() if what == "folder" else os.mkfifo(to)
    with pytest.raises(NotPossible):
        backup(file, str(to), 0)
    file.close()
    assert (victim.read_text() == "mine") if what == "link" else not victim.exists()


def test_links_where_pinned_files_are_laid_out_are_taken_away_and_not_followed(tmp_path: Path) -> None:
    import hashlib

    held = b"echo mine"
    tree = {"d/f.sh": (hashlib.sha256(held).hexdigest(), 0o555)}
    trees = Trees(str(tmp_path), lambda _: tree, lambda _: held)
    victims = tmp_path / "victims"
    (victims / "d").mkdir(parents=True)
    (victims / "d" / "f.sh").write_text("theirs")
    root = Path(trees.at("tree"))
    for at, to in ((root / "d" / "f.sh", victims / "d" / "f.sh"), (root / "d", victims / "d"), (root, victims)):
        for folder in (root.parent, root, root / "d"):
            folder.chmod(0o700)
        subprocess.run(["rm", "-rf", str(at)], check=True)
        at.symlink_to(to)
        assert Path(trees.at("tree"), "d", "f.sh").read_bytes() == held
        assert not at.is_symlink()
    assert (victims / "d" / "f.sh").read_text() == "theirs"


SWAPS = {
    "link": 'ln -s "$VICTIM" "$DURUN_OUTPUT"', "fifo": 'mkfifo "$DURUN_OUTPUT"', "folder": 'mkdir "$DURUN_OUTPUT"',
    "device": 'ln -s /dev/zero "$DURUN_OUTPUT"',
}  # fmt: skip


def test_a_command_that_puts_something_else_in_the_place_of_its_output_has_no_output(durun: Program) -> None:
    """And none is read for it: what it may not read itself, from inside a container say, it does not get by us."""
    victim = durun.folder / "victim"
    victim.write_text('"what only durun may read"')
    states = "".join(
        f"  {name}: {{run: '{script}', env: {{VICTIM: '{victim}'}}, catch: [{{on: output_invalid, next: {following}}}], next: failed}}\n"
        for (name, script), following in zip(SWAPS.items(), [*list(SWAPS)[1:], "logs"], strict=True)
    )
    states += "  logs: {run: 'cd \"${DURUN_OUTPUT%/*}\"; echo mine; for f in *.out; do rm $f; mkfifo $f; done', next: links}\n"
    states += f"  links: {{run: 'cd \"${{DURUN_OUTPUT%/*}}\"; echo mine; for f in *.out; do rm $f; ln -s {victim} $f; done', next: succeeded}}\n"
    durun.plan(f"start: link\nstates:\n{states}")
    run = durun.start()
    done = durun("logs", run)
    assert "is no log any more" in done.stderr and "only durun" not in done.stdout
    assert "only durun" not in durun("report", run, "--json").stdout + durun("logs", run, "--json").stdout
    assert b"only durun" not in durun.db.read_bytes()


def test_a_command_has_three_descriptors_and_none_of_ours(durun: Program) -> None:
    durun.plan("start: a\nstates: {a: {run: 'ls -l /proc/$$/fd', output: text, next: succeeded}}\n")
    said = durun("output", durun.start(), "a").stdout
    there = [line.split(" -> ") for line in said.splitlines() if " -> " in line]
    numbers = {left.split()[-1] for left, _ in there}
    assert {"0", "1", "2"} <= numbers
    assert not [right for _, right in there if "socket:" in right or "journal" in right or right.startswith(str(durun.db) + "-")]


# --- another user of the machine ---

AS_OTHER = """
import json, os, sqlite3, sys
from pathlib import Path
import durun.cli.look, durun.cli.people, durun.cli.drive, durun.cli.start, durun.cli.reader, durun.effects.command, durun.store.alone
import encodings.idna, getpass, platformdirs, durun.plan.load, durun.cli.known, durun.store.read, durun.errors
from durun.cli import main
db, paths, lines = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
os.setgroups([]); os.setgid(OTHER); os.setuid(OTHER); os.chdir("/")
for path in paths:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.open(path, flags); print("opened", path)
        except OSError:
            pass
for way in (lambda: os.listdir(f"{db}.d"), lambda: os.mkdir(f"{db}.d/x"), lambda: os.unlink(db), lambda: os.rename(f"{db}.d", "/tmp/x"),
            lambda: sqlite3.connect(db).execute("INSERT INTO notes DEFAULT VALUES")):
    try:
        way(); print("a way")
    except (OSError, sqlite3.Error):
        pass
os.dup2(1, 2)
for words in lines:
    print(f"{words[0]}:", flush=True)
    if not os.fork():
        main(words)
    print("exit", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
""".replace("OTHER", str(OTHER))


def test_another_user_reads_nothing_puts_nothing_in_and_is_told_whose_it_is(open_folder: Path, root: None) -> None:
    program = Program(open_folder)
    program.plan(
        "start: a\nstates: {a: {run: 'echo secret-of-mine', next: w}, w: {approval: {message: 'yes?'}, next: succeeded}}\n"
    )
    program("start", "plan.yaml", "--id", "r", exit=3)
    paths = [str(path) for path in [program.db, *open_folder.rglob("runs.db*")] if path.is_file()]
    paths += [str(path) for path in Path(f"{program.db}.d").rglob("*") if path.is_file()]
    assert len(paths) > 2
    lines = [["show", "r"], ["approve", "r"], ["resume", "r"], ["start", str(open_folder / "plan.yaml")]]
    argv = [sys.executable, "-c", AS_OTHER, str(program.db), json.dumps(paths), json.dumps(lines)]
    said = subprocess.run(argv, env=program.env, capture_output=True, text=True, timeout=60).stdout
    refused = f"{program.db} belongs to another user (uid {os.geteuid()}); durun does not write to it\nexit 8\n"
    assert said == "".join(f"{words[0]}:\n{refused}" for words in lines)
    assert program.show("r")["status"] == "waiting"


def test_a_file_of_ours_in_a_folder_of_all_is_left_alone_by_who_owns_the_folder_entry(open_folder: Path) -> None:
    """In /tmp, which everybody may write to and nobody may rename in, a database is as safe as elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        os.chmod(open_folder, 0o1777)
    said: list[str] = []
    file = File(str(open_folder / "runs.db"), create=True, say=said.append)
    make_folder(file.folder)
    file.close()
    assert not said and stat.S_IMODE(os.stat(file.folder).st_mode) == 0o700


def test_the_programs_own_folder_is_not_searched_for_modules(durun: Program) -> None:
    """A folder in which durun is called, and PYTHONPATH for what holds the commands, hold nothing that is run."""
    program, hostile = Path(sys.executable).parent / "durun", durun.folder / "hostile"
    if not program.exists():
        pytest.skip("the program is not installed here")
    hostile.mkdir()
    note = f"open({str(durun.folder / 'ran')!r}, 'ab').write(open('/proc/self/cmdline', 'rb').read() + b'\\n')\n"
    names = ("json", "apsw", "durun", "select", "fcntl", "binascii", "signal", "sitecustomize", "usercustomize")
    for name in names:
        (durun.folder / f"{name}.py").write_text(note)
    for name in ("select", "fcntl", "binascii", "usercustomize"):
        (hostile / f"{name}.py").write_text(note)
    (durun.folder / "startup.py").write_text(note)
    durun.plan("start: a\nstates: {a: {run: ['true'], next: succeeded}}\n")
    env = {**durun.env, "PYTHONSTARTUP": str(durun.folder / "startup.py"), "PYTHONINSPECT": ""}
    done = subprocess.run([program, "start", "plan.yaml", "--id", "r", "--detach"], cwd=durun.folder, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    subprocess.run([program, "wait", "r"], cwd="/", env=env, check=True, capture_output=True)
    assert not (durun.folder / "ran").exists()
    # PYTHONPATH and PYTHONHOME are the user's own word for durun itself; the keeper listens to neither
    late = (
        f"import os; from durun.cli import main; os.environ |= {{'PYTHONHOME': '/nowhere', 'PYTHONPATH': {str(hostile)!r}}}; main()"
    )
    done = subprocess.run([sys.executable, "-c", late, "start", durun.folder / "plan.yaml"], cwd="/", env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not (durun.folder / "ran").exists()

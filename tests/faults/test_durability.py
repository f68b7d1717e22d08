"""The file: where it must not lie, a full disk, other users, other versions, a birth cut short, and what it costs to open it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import durun
from durun.store.file import REMOTE, File, file_system

TICK = "a: {run: 'echo tick >> ticks', next: succeeded}"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "afs", "9p", "virtiofs", "fuse.sshfs", "fuseblk"])
def test_f34_the_kind_of_a_file_system_is_read_from_the_table_of_mounts(place, kind):
    device = os.stat(place.folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    table = place.write("mounts", f"21 1 0:4 / /proc rw shared:1 - proc proc rw\n22 1 {number} / / rw,x - {kind} host:/export rw\n")
    assert file_system(str(place.folder), str(table)) == kind
    assert kind in REMOTE or kind.startswith("fuse.")


@pytest.fixture
def networked(place, root):
    """argv in front of a command that sees /proc say its files lie on NFS."""
    proc = place.folder / "proc"
    for name in ("self", "sys/kernel/random"):
        (proc / name).mkdir(parents=True)
    shutil.copy("/proc/sys/kernel/random/boot_id", proc / "sys/kernel/random/boot_id")
    table = Path("/proc/self/mountinfo").read_text()
    device = os.stat(place.folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [re.sub(r" - \S+", " - nfs4", line) if line.split()[2] == number else line for line in table.splitlines()]
    (proc / "self/mountinfo").write_text("\n".join(lines) + "\n")
    argv = ["unshare", "-m", "sh", "-c", f'mount --bind {proc} /proc && exec "$@"', "sh"]
    if subprocess.run([*argv, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system lets nobody make a mount namespace")
    return argv


def test_f34_a_file_on_a_network_file_system_is_refused_and_not_one_byte_changes(place, networked):
    plan, plain = place.plan(TICK), place.argv
    place.durun("start", plan, "--id", "r")
    before = everything(place)
    place.argv = [*networked, *plain]
    for words in every_command(place, plan):
        assert "network" in place.durun(*words, exit=8).err
    assert everything(place) == before
    assert place.lines("ticks") == ["tick"]


@pytest.fixture
def small(place, root):
    """A disk of 24 MiB."""
    folder = place.folder / "small"
    folder.mkdir()
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False).returncode
        != 0
    ):
        pytest.skip("this system lets nobody mount")
    place.db = folder / "durun.db"
    place.env["DURUN_DB"] = str(place.db)
    yield folder
    place.close()
    subprocess.run(["umount", "-l", folder], check=True)


FILL = """
a: {run: 'echo a >> ticks; dd if=/dev/zero of=small/filler bs=64k 2> said || :', next: b}
b: {run: 'echo b >> ticks', next: succeeded}
"""


def test_f38_on_a_full_disk_nothing_more_begins_and_a_resume_with_room_loses_and_doubles_nothing(place, small):
    plan = place.plan(FILL)
    full = place.durun("start", plan, "--id", "r", exit=8)
    assert "resume" in full.err
    assert len(full.err.splitlines()) < 8
    assert place.lines("ticks") == ["a"]
    assert place.durun("resume", "r", exit=8).err
    assert place.lines("ticks") == ["a"]
    (small / "filler").unlink()
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "b"]


def test_f38_what_is_stored_can_be_looked_at_on_a_disk_without_a_byte_left_and_nothing_else_can_be_done(place, small):
    place.durun("start", place.plan("a: {run: 'echo a >> ticks', next: ask}\nask: {approval: {message: hm}, next: succeeded}"),
                "--id", "r", exit=3)  # fmt: skip
    subprocess.run(["dd", "if=/dev/zero", f"of={small}/filler", "bs=1k"], capture_output=True, check=False)
    for words in (
        ["ls"],
        ["show", "r"],
        ["inbox"],
        ["history", "r"],
        ["output", "r", "a"],
        ["logs", "r"],
        ["outbox", "ls"],
        ["report", "r"],
    ):
        place.durun(*words)
    assert place.show("r")["status"] == "waiting"
    assert "is full" in place.durun("approve", "r", exit=8).err
    (small / "filler").unlink()
    place.durun("approve", "r")


def test_f38_where_too_little_is_free_no_message_is_begun_and_with_room_each_is_delivered_once(place, small):
    plan = place.plan(FILL.replace("bs=64k", "bs=64k count=190").replace("next:", "background: true, idempotent: true, next:"))
    assert "16 MiB" in place.durun("start", plan, "--id", "r", exit=8).err
    for words in (["outbox", "deliver"], ["work", "--once"]):
        assert place.durun(*words, exit=8).err
    assert place.lines("ticks") == ["a"]
    (small / "filler").unlink()
    place.durun("outbox", "deliver")
    assert place.lines("ticks") == ["a", "b"]


def test_f38_a_command_that_meets_the_full_disk_with_its_own_output_loses_nothing_of_the_run(place, small):
    plan = place.plan(
        """
a: {run: 'echo a >> ticks; dd if=/dev/zero of=small/filler bs=64k 2> said || :; head -c 1000000 /dev/zero || :', next: b}
b: {run: 'echo b >> ticks', next: succeeded}
"""
    )
    place.durun("start", plan, "--id", "r", exit=8)
    (small / "filler").unlink()
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "b"]


def test_f38_a_command_that_failed_while_the_disk_of_its_logs_was_full_says_so_and_guesses_nothing_more(place, small):
    place.durun("start", place.plan(FILL.replace("|| :'", "'")), "--id", "r", exit=8)
    (small / "filler").unlink()
    assert "less than 16 MiB was free" in place.durun("resume", "r", exit=1).err
    assert place.show("r")["error"]["name"] == "exit:1"
    assert "less than 16 MiB was free" in place.durun("show", "r").out
    place.durun("start", place.plan("a: {run: 'exit 1', next: succeeded}"), "--id", "s", exit=1)
    assert place.show("s")["error"]["message"] == "exit 1"


def test_f38_nothing_begins_where_little_is_free_although_a_commit_would_still_fit(place, small):
    fill = FILL.replace("bs=64k", "bs=64k count=192")
    place.durun("start", place.plan(fill), "--id", "r", exit=8)
    assert place.lines("ticks") == ["a"]
    assert "free" in place.durun("resume", "r", exit=8).err
    (small / "filler").unlink()
    place.durun("resume", "r")
    assert place.lines("ticks") == ["a", "b"]


def everything(place):
    """The bytes of all that lies beside the database, and of itself."""
    found = [p for p in place.folder.rglob("*") if p.is_file() and "durun.db" in str(p)]
    return {str(p.relative_to(place.folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(found)}


def every_command(place, plan):
    return [
        ["start", plan], ["start", plan, "--id", "r"], ["resume", "r"], ["ls"], ["ls", "--json"], ["show", "r"], ["history", "r"],
        ["logs", "r"], ["output", "r"], ["wait", "r", "--timeout", "1s"], ["cancel", "r"], ["resolve", "r", "--retry"],
        ["db", "backup", "b.db"], ["db", "restore", plan], ["db", "prune"], ["drain", "fault"],
    ]  # fmt: skip


def test_f40_another_users_file_is_refused_and_nothing_is_left_beside_it(place, root):
    plan = place.plan(TICK)
    place.durun("start", plan, "--id", "r")
    os.chown(place.db, 54321, 54321)
    before = everything(place)
    for words in every_command(place, plan):
        assert "another user" in place.durun(*words, exit=8).err
    assert everything(place) == before


def test_f40_a_user_who_may_not_read_the_file_is_told_so(place, root):
    try:
        subprocess.run([*place.argv, "--help"], user=54321, cwd="/", env=place.env, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot run this program from here")
    plan = place.plan(TICK)
    place.durun("start", plan, "--id", "r")
    for words in (["ls"], ["show", "r"], ["resume", "r"]):
        refused = place.durun(*words, exit=8, user=54321, cwd="/")
        assert str(place.db) in refused.err


def test_f40_files_are_the_owners_alone_whatever_the_umask(place):
    place.durun("start", place.plan("a: {run: 'echo out; echo {} > \"$DURUN_OUTPUT\"', next: succeeded}"), umask=0)
    assert place.db.stat().st_mode & 0o777 == 0o600
    made = list(Path(f"{place.db}.d").rglob("*"))
    for path in made:
        if path.is_dir():
            assert path.stat().st_mode & 0o077 == 0, path
    assert Path(f"{place.db}.d").stat().st_mode & 0o777 == 0o700


def test_f41_once_sqlite_has_the_file_open_nobody_else_in_the_process_opens_it(place, strace):
    """Closing any other descriptor of it would drop SQLite's locks."""
    plan = place.plan("a: {run: 'echo a', output: text, next: b}\nb: {wait: 1ms, next: succeeded}")
    place.durun("start", plan)
    place.argv = [strace, "-o", "trace", "-e", "trace=openat,open,creat", *place.argv]
    place.durun("start", plan)
    name = f'"{place.db}"'
    opened = [line for line in (place.folder / "trace").read_text().splitlines() if name in line or f'"{place.db}-wal"' in line]
    connected = next(n for n, line in enumerate(opened) if "NOFOLLOW" in line)
    assert not [line for line in opened[connected:] if "NOFOLLOW" not in line], opened


def test_f41_a_command_inherits_no_descriptor_but_its_three(place):
    holder = "import os, sys; fd = os.open('held', os.O_CREAT); os.dup2(fd, 9); os.set_inheritable(9, True); os.execv(sys.argv[1], sys.argv[1:])"
    place.argv = [sys.executable, "-c", holder, *place.argv]
    done = place.durun(
        "start", place.plan("a: {run: 'ls /proc/$$/fd', output: lines, next: succeeded}"), pass_fds=(), close_fds=False
    )
    place.argv = place.argv[3:]
    assert set(place.durun("output", done.id, "a").json) <= {"0", "1", "2"}


def set_version(place, version):
    db = apsw.Connection(str(place.db))
    db.execute(f"PRAGMA user_version={version}").fetchall()
    db.close()


def test_f125_a_newer_file_is_refused_by_every_command_and_not_one_byte_changes(place):
    plan = place.plan(TICK)
    place.durun("start", plan, "--id", "r")
    set_version(place, 99)
    before = everything(place)
    for words in every_command(place, plan):
        refused = place.durun(*words, exit=8)
        assert "newer durun" in refused.err
        assert everything(place) == before, words
    assert place.lines("ticks") == ["tick"]


@pytest.mark.parametrize("what", ["another program's database", "no database", "cut short", "damaged head"])
def test_f125_a_file_that_is_not_durun_s_is_refused_and_not_one_byte_changes(place, what):
    plan = place.plan(TICK)
    if what == "another program's database":
        db = apsw.Connection(str(place.db))
        db.execute("CREATE TABLE notes (text)").fetchall()
        db.close()
    else:
        place.durun("start", plan, "--id", "r")
        whole = place.db.read_bytes()
        place.db.write_bytes(
            {"no database": b"hello\n" * 50, "cut short": whole[:60], "damaged head": b"X" * 100 + whole[100:]}[what]
        )
    before = everything(place)
    for words in every_command(place, plan):
        place.durun(*words, exit=8)
        assert everything(place) == before, words


BIRTHS = """
import os, signal, sys
import apsw
from durun.store.file import File
call, folder = sys.argv[1:]
base = apsw.vfs_names()[0]

class Deadly(apsw.VFS):
    left = 0
    def pass_by(self, what):
        self.left -= what == call
        if what == call and not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
    def xOpen(self, name, flags):
        return DeadlyFile(base, name, flags)
    def xDelete(self, *given):
        self.pass_by("delete")
        super().xDelete(*given)

class DeadlyFile(apsw.VFSFile):
    def xWrite(self, *given):
        deadly.pass_by("write")
        super().xWrite(*given)
    def xSync(self, *given):
        deadly.pass_by("sync")
        super().xSync(*given)

deadly = Deadly("deadly", base, makedefault=True)
for deadly.left in range(1, 1000):
    os.mkdir(f"{folder}/{deadly.left}")
    if not (pid := os.fork()):
        File(f"{folder}/{deadly.left}/durun.db", create=True).close()
        os._exit(0)
    if (ended := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) != -signal.SIGKILL:
        sys.exit(ended)
"""


@pytest.mark.parametrize("call", ["write", "sync", "delete"])
def test_f126_a_birth_killed_at_any_write_leaves_the_file_wholly_old_or_wholly_new(place, call):
    """For each n a process that is killed just before its n-th such call of SQLite to the system, until there is none of this number."""
    File(str(place.db), create=True).close()
    whole, births = schema(place.db), place.folder / "births"
    births.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BIRTHS, call, str(births)], env=place.env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    last = len(list(births.iterdir()))
    for n in range(1, last + 1):
        path = births / str(n) / "durun.db"
        assert schema(path) in ([whole] if n == last else ([], whole)), f"after {call} number {n}"
        File(str(path), create=True).close()
        assert schema(path) == whole
    assert last >= {"write": 100, "sync": 6, "delete": 2}[call]
    place.durun("start", place.plan(TICK))


def schema(path):
    """What the file holds, and its marks; nothing where it is not born."""
    if not path.exists():
        return []
    db = apsw.Connection(str(path))
    found = db.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    marks = [db.execute(f"PRAGMA {word}").fetchall()[0] for word in ("user_version", "application_id")]
    db.close()
    return found + marks if found or marks != [(0,), (0,)] else []


READS = """
import sys
from durun.cli import reader
code = reader.run(sys.argv[1:])
sys.stdout.flush()
print(dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())["rchar"], file=sys.stderr)
sys.exit(code)
"""


def bytes_read(place, *words, exit=0):
    """Bytes that a command read, from files and everywhere: what it costs, without a clock."""
    plain, place.argv = place.argv, [sys.executable, "-c", READS]
    try:
        return int(place.durun(*words, exit=exit).err.splitlines()[-1])
    finally:
        place.argv = plain


def fill(place, sql, *values):
    db = apsw.Connection(str(place.db))
    for pragma in ("synchronous=OFF", "foreign_keys=OFF"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("BEGIN IMMEDIATE").fetchall()
    db.execute(sql, values).fetchall()
    db.execute("COMMIT").fetchall()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def columns(place, table):
    db = apsw.Connection(str(place.db))
    found = [row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall()]
    db.close()
    return found


def multiply(place, runs):
    """Copies of run 1 that have ended, each with the history of ten steps."""
    names = columns(place, "runs")
    taken = ", ".join({"no": "n", "id": "'copy' || n", "driver": "NULL"}.get(name, name) for name in names)
    counted = f"WITH RECURSIVE c(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c WHERE n < {runs + 1})"
    fill(place, f"{counted} INSERT INTO runs ({', '.join(names)}) SELECT {taken} FROM c, runs WHERE no = 1")
    names = columns(place, "history")
    taken = ", ".join({"run": "n", "no": "history.no + 100 * k"}.get(name, name) for name in names)
    ten = "t(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM t WHERE k < 9)"
    fill(place, f"{counted}, {ten} INSERT INTO history ({', '.join(names)}) SELECT {taken} FROM c, t, history WHERE run = 1")


def test_f108_looking_at_runs_costs_the_same_however_many_there_have_been(place):
    place.durun("start", place.plan(TICK), "--id", "r")
    asked = [["ls"], ["ls", "--json"], ["ls", "--status", "running"], ["ls", "-q", "--limit", "5"]]
    multiply(place, 30)
    few = [bytes_read(place, *words) for words in asked]
    fill(place, "DELETE FROM history WHERE run > 1")
    fill(place, "DELETE FROM runs WHERE no > 1")
    multiply(place, 5000)
    many = [bytes_read(place, *words) for words in asked]
    slower = {" ".join(w): (a, b) for w, a, b in zip(asked, few, many, strict=True) if b > a + 300_000}
    assert not slower
    assert len(place.durun("ls", "--json").json["runs"]) == 20


def test_f108_looking_at_one_run_costs_the_same_however_many_there_have_been(place):
    place.durun("start", place.plan(TICK), "--id", "r")
    asked = [["show", "r"], ["show", "r", "--json"], ["history", "r"], ["logs", "r"], ["wait", "r"]]
    multiply(place, 30)
    few = [bytes_read(place, *words) for words in asked]
    fill(place, "DELETE FROM history WHERE run > 1")
    fill(place, "DELETE FROM runs WHERE no > 1")
    multiply(place, 5000)
    many = [bytes_read(place, *words) for words in asked]
    slower = {" ".join(w): (a, b) for w, a, b in zip(asked, few, many, strict=True) if b > a + 300_000}
    assert not slower
    assert len(place.durun("ls", "--json").json["runs"]) == 20
    assert len(place.durun("ls", "--json", "--limit", "3").json["runs"]) == 3


LONG = """
a: {{pass: {{}}, assign: {{n: '${{{{ vars.n + 1 }}}}'}}, next: b}}
b: {{run: ["true"], next: more}}
more: {{choice: [{{when: vars.n < {n}, next: a}}, {{next: rest}}]}}
rest: {{wait: {{at: '2000-01-01T00:00:00Z'}}, next: c}}
c: {{run: [test, -e, mended], next: succeeded}}
"""


def test_f110_a_step_costs_the_same_bytes_and_a_resume_the_same_reads_however_long_the_history(place):
    sizes, reads = [], []
    for n in (100, 1000):
        place.db.unlink(missing_ok=True)
        (place.folder / "mended").unlink(missing_ok=True)
        done = place.durun("start", place.plan(LONG.format(n=n), head="vars: {n: 0}"), "-q", exit=1)
        sizes.append(place.db.stat().st_size)
        place.write("mended", "")
        reads.append(bytes_read(place, "resume", done.id, "-q"))
    a_step = (sizes[1] - sizes[0]) / 900
    assert a_step < 4096
    assert (sizes[1] - sizes[0]) < 12 * sizes[0]
    assert reads[1] < reads[0] + 300_000, reads


def test_f111_opening_a_large_file_costs_no_more_than_opening_a_small_one(place):
    plan = place.plan(TICK)
    place.durun("start", plan, "--id", "r")
    asked = [["ls"], ["start", plan, "-q"], ["resume", "r"]]
    small = [bytes_read(place, *words) for words in asked]
    fill(place, "INSERT INTO literals WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 60)"
         " SELECT 'd' || n, hex(zeroblob(500000)) FROM c")  # fmt: skip
    assert place.db.stat().st_size > 50_000_000
    large = [bytes_read(place, *words) for words in asked]
    assert all(b < a + 300_000 for a, b in zip(small, large, strict=True)), (small, large)


def test_f111_no_ordinary_command_checks_the_whole_file():
    for path in Path(durun.__file__).parent.rglob("*.py"):
        if "integrity_check" in path.read_text() or "quick_check" in path.read_text():
            assert path.parent.name == "cli" or path.parent.name == "store", path
    assert "integrity_check" not in (Path(durun.__file__).parent / "store" / "file.py").read_text()


def test_f34_on_a_network_file_system_nothing_is_made(place, networked):
    plan = place.plan(TICK)
    place.argv = [*networked, *place.argv]
    refused = place.durun("start", plan, exit=8)
    assert "network" in refused.err
    assert not [p.name for p in place.folder.iterdir() if p.name.startswith("durun.db")]

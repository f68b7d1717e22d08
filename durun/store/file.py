"""The database file: where it lies, how it is born, and when it is refused.

Rules:
- SQLite in WAL mode with synchronous=FULL; every write is BEGIN IMMEDIATE, and nothing is open across a call to the outside
- birth: synchronous=EXTRA until the switch to WAL is on the disk, since FULL deletes the rollback journal of that switch without
  syncing its folder, and a power cut could bring the journal back and the tables away
- refused before anything is written: newer, foreign, damaged, not writable, another user's, on a network file system; and where
  what belongs to it (its log, its folder) is another user's, or may be written by one
- a trigger or a view in the file does nothing: durun has no use for either, and a file may come from elsewhere
- in this process nobody else opens the file: closing another descriptor of it would drop SQLite's locks. The look at its
  header comes before the first connection, and not again while there is one
- what may be lost in a power cut without saying anything wrong is committed without a sync
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

import apsw

from durun.errors import TOO_FEW, StoreUnusable

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and contextlib cost an `ls` more than its query
    from collections.abc import Callable, Iterator
    from typing import Any

APPLICATION = 0x6475726E  # "durn"
VERSION = 1
HASTE = 0.1  # s of waiting after which it asks more often
PATIENCE = 30.0  # s that a writer waits for another's lock
QUIET = 5.0  # s before it says that it waits
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "virtiofs", "fuse", "fuseblk", "ceph"})
FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = 16 * 1024 * 1024  # bytes that must be free before anything begins
BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps beside the file
OTHERS = stat.S_IWGRP | stat.S_IWOTH
SWITCHES = (
    (apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1), (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1), (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0), (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
)  # fmt: skip
_connected: dict[tuple[int, int], int] = {}  # how many connections this process has to a file


def default_path() -> str:
    """`$DURUN_DB`, else durun.db in the user's state directory."""
    named = os.environ.get("DURUN_DB")
    if named:
        return named
    from platformdirs import user_state_dir

    return os.path.join(user_state_dir("durun"), "durun.db")


def folder_of(path: str) -> str:
    """The folder of logs, locks and notes that belongs to a database."""
    return os.path.realpath(path) + ".d"


class File:
    """One connection to the database of a path, checked, born or migrated as need be. Raises StoreUnusable."""

    def __init__(
        self, path: str, *, create: bool, say: Callable[[str], None] | None = None, private: bool = False,
        brief: bool = False,
    ) -> None:  # fmt: skip
        """`private`: nobody else knows the file. `brief`: it is only read, and closed at once."""
        self.path = os.path.realpath(path)
        self.folder = self.path + ".d"
        self.say = say or (lambda text: print(text, file=sys.stderr))
        existed = look(self.path, create=create)
        if not existed:
            _make(self.path)
            self._say_if_open_to_all()
        here = os.stat(self.path)
        _refuse_another_user(self.path, here)
        self.identity = (here.st_dev, here.st_ino)  # as long as this process has it open
        self._is_open = False
        self._waited_since: float | None = None
        self._private = private
        self._shared: int | None = None  # the descriptor by which every writer says that it writes
        with failing(self.path):
            self.db = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        self._is_open = True
        _connected[self.identity] = _connected.get(self.identity, 0) + 1
        try:
            self._ready_to(look=brief)
        except BaseException:
            self.close()
            raise

    def _say_if_open_to_all(self) -> None:
        """A folder in which everybody may put another file in the place of this one cannot be made safe from here."""
        folder = os.path.dirname(self.path)
        mode = os.stat(folder).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            from durun.plan.names import quoted

            way = f"`chmod o-w {quoted(folder)}`"
            self.say(f"{folder} may be written by everybody, who can then take the database away: {way}")

    def close(self) -> None:
        self.db.close()
        if self._shared is not None:
            os.close(self._shared)
            self._shared = None
        if self._is_open:
            self._is_open = False
            _connected[self.identity] -= 1

    def _wait(self, calls: int) -> bool:
        now = time.monotonic()
        if calls == 0 or self._waited_since is None:
            self._waited_since = now
            self._told = False
        waited = now - self._waited_since
        if waited > QUIET and not self._told:
            self._told = True
            self.say(f"another process is writing to {self.path}; waiting up to {PATIENCE:.0f} s")
        if waited > PATIENCE:
            return False
        most = 0.004 if waited < HASTE else 0.0005  # s: who has waited long asks more often than who has just come
        time.sleep((0.2 + os.urandom(1)[0] / 255) * most)
        return True

    def _ready_to(self, *, look: bool) -> None:
        """Where the disk is full, and nobody has it open, it can be looked at by a connection that shares nothing with others."""
        with failing(self.path, self.db):
            try:
                self._prepare()
                self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
                return
            except apsw.Error as e:
                if not look or not is_full(e, self.db.system_errno):
                    raise
        self.db.close()
        with failing(self.path):
            self.db = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
            self.db.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
            self._prepare()  # and as it closes it writes nothing

    def _prepare(self) -> None:
        for what, how in SWITCHES:
            self.db.config(what, how)
        self.db.set_busy_handler(self._wait)
        self._ready()

    def _ready(self) -> None:
        version = _number(self.db, "user_version")
        if version != VERSION:
            self._birth_or_migrate()
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"journal_size_limit={8 * 1024 * 1024}", "fullfsync=1"):
            self.db.execute(f"PRAGMA {pragma}").fetchall()

    def _look_at_marks(self) -> None:
        self.db.execute("BEGIN")  # one view of all three: another process may be giving birth to the file now
        try:
            self._refuse_foreign()
        finally:
            self.db.execute("COMMIT")

    def _birth_or_migrate(self) -> None:
        self._look_at_marks()
        before = _number(self.db, "user_version")
        if before == VERSION:
            return  # another process has given birth to it meanwhile
        if before > 0:
            from durun.store import alone

            self._shared = alone.taken_alone(self.path, self.db, before)
            alone.keep(self.path, self.db, before)
        self.db.execute("PRAGMA synchronous=EXTRA").fetchall()
        self._to_wal()
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self._refuse_foreign()
            born = _number(self.db, "user_version") == 0
            for version in range(_number(self.db, "user_version") + 1, VERSION + 1):
                for statement in statements(version):
                    self.db.execute(statement).fetchall()
            if born:
                origin = "INSERT INTO origin (one, path, device, inode) VALUES (1, ?, ?, ?)"
                self.db.execute(origin, (self.path, *self.identity)).fetchall()
            self.db.execute(f"PRAGMA application_id={APPLICATION}").fetchall()
            self.db.execute(f"PRAGMA user_version={VERSION}").fetchall()
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise
        if self._shared is not None:
            alone.let_others(self._shared)

    def _refuse_foreign(self) -> None:
        version, application = _number(self.db, "user_version"), _number(self.db, "application_id")
        tables = self.db.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
        refuse_by_marks(self.path, version, application, empty=tables == 0)

    def _to_wal(self) -> None:
        """The switch to WAL wants the file alone and does not ask the busy handler, so it is asked again here."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if self.db.execute("PRAGMA journal_mode=WAL").fetchall()[0][0] == "wal":
                    return
            except apsw.BusyError:
                pass
            if time.monotonic() > end:
                raise StoreUnusable(f"{self.path} is busy: another process has held it for {PATIENCE:.0f} s")
            time.sleep(0.0005 + os.urandom(1)[0] / 27_000)

    def keep_a_log(self) -> None:
        """A backup that was put here as it was keeps none yet: before the first write to it, it does from now on."""
        if not os.path.exists(self.path + "-wal"):
            with failing(self.path, self.db):
                self.db.execute("PRAGMA synchronous=EXTRA").fetchall()
                self._to_wal()
                self.db.execute("PRAGMA synchronous=FULL").fetchall()

    def at_home(self) -> bool:
        """Whether it is, where it lies, the file it says it is; `origin` knows what it may be else."""
        return rows(self.db, "SELECT path, device, inode FROM origin") == [(self.path, *self.identity)]

    def write(self, *, synced: bool = True) -> Write:
        """One transaction: all of it, or nothing. Without `synced` a power cut may take it back. Raises StoreUnusable."""
        self.same_file()
        if self._shared is None and not self._private:
            from durun.store.alone import shared

            self._shared = shared(self.folder)
            self.keep_a_log()
            if _number(self.db, "user_version") != VERSION:
                raise StoreUnusable(f"{self.path} was brought to another version by another durun: start this command again")
        return Write(self, synced)

    def same_file(self, so: str = "nothing more is begun") -> None:
        """Raises StoreUnusable where another file, or none, lies where it was opened; `so`: what follows from that."""
        try:
            there = os.stat(self.path)
        except OSError as e:
            raise StoreUnusable(f"{self.path} is gone: {os.strerror(e.errno or 0)}; {so}") from None
        if (there.st_dev, there.st_ino) != self.identity:
            raise StoreUnusable(f"{self.path} is another file than the one this process opened; {so}")

    def room(self) -> None:
        """Raises StoreUnusable where too little is free to begin anything."""
        try:
            try:
                free = os.statvfs(self.folder)
            except FileNotFoundError:
                free = os.statvfs(os.path.dirname(self.path))
        except OSError as e:
            raise StoreUnusable(f"{self.path} is gone: {os.strerror(e.errno or 0)}; nothing more is begun") from None
        if free.f_bavail * free.f_frsize < ROOM:
            raise StoreUnusable(f"less than 16 MiB is free on the disk of {self.path}: nothing is begun; free some, then resume")


def rows(db: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows a query gives; none is left open. Raises StoreUnusable."""
    try:
        return list(db.execute(sql, values))
    except (apsw.Error, UnicodeDecodeError) as e:
        said = in_our_words(db.filename, e, db.system_errno)
        if said is None:
            raise
        raise StoreUnusable(said) from None


def each(db: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The rows of a query one by one, however many there are; the file is being read until the last. Raises StoreUnusable."""
    try:
        yield from db.execute(sql, values)
    except (apsw.Error, UnicodeDecodeError) as e:
        said = in_our_words(db.filename, e, db.system_errno)
        if said is None:
            raise
        raise StoreUnusable(said) from None


class Write:
    """A transaction that is committed where its block ends well, and rolled back where it does not."""

    def __init__(self, file: File, synced: bool) -> None:
        self._db, self._failing, self._synced = file.db, failing(file.path, file.db), synced

    def __enter__(self) -> apsw.Connection:
        with self._failing:
            if not self._synced:
                self._db.execute("PRAGMA synchronous=NORMAL").fetchall()
            self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        with self._failing:
            try:
                if error is not None:
                    raise error
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if not self._synced:
                    self._db.execute("PRAGMA synchronous=FULL").fetchall()


class failing:
    """Turns what SQLite says into durun's words."""

    def __init__(self, path: str, db: apsw.Connection | None = None) -> None:
        self._path, self._db = path, db

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        said = None if error is None else in_our_words(self._path, error, self._db.system_errno if self._db else 0)
        if said is not None:
            raise StoreUnusable(said) from None


def in_our_words(path: str, error: BaseException, number: int = 0) -> str | None:
    """What an error of SQLite means for a person, or None where it is none, or a bug of ours. `number` is the system's errno."""
    if is_full(error, number):
        return f"the disk of {path} is full: nothing more is begun; free some, then resume"
    if isinstance(error, apsw.Error) and number == errno.EIO:  # also where SQLite takes what it could not read for damage
        return f"{path} cannot be read or written ({os.strerror(number)}): nothing more is begun; look at its disk, then resume"
    if isinstance(error, apsw.Error) and number == errno.EMFILE:
        return TOO_FEW
    match error:
        case apsw.BusyError():
            return f"{path} is busy: another process has held it for {PATIENCE:.0f} s"
        case apsw.CorruptError() | apsw.NotADBError() | UnicodeDecodeError():  # text that is no text was never stored
            return damaged(path)
        case apsw.SQLError() if str(error) in ("unsupported file format", "malformed JSON"):
            return damaged(path)
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return f"{path} cannot be opened for writing: look at its owner, its mode and its folder"
        case apsw.IOError() | apsw.ProtocolError():
            why = os.strerror(number) if number else error
            return f"{path} cannot be read or written ({why}): nothing more is begun; mend that, then resume"
    return None


def is_full(error: BaseException, number: int) -> bool:
    """Whether an error of SQLite says that there is no room on the disk."""
    return isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError | apsw.CantOpenError) and number in FULL)


def damaged(path: str) -> str:
    """SQLite says the same where the disk did not give what it was asked for."""
    return f"{path} is damaged, or no database: look at its disk, then the same again; where it stays so, restore a backup"


def refuse_by_marks(path: str, version: int, application: int, *, empty: bool) -> None:
    """Refuses a file of a newer durun, or one that is not durun's."""
    if application == APPLICATION and version > VERSION:
        raise StoreUnusable(f"{path} was made by a newer durun (file version {version}, this one knows {VERSION}): upgrade durun")
    if application == APPLICATION and (version < 0 or (version == 0 and not empty)):  # its birth is one transaction
        raise StoreUnusable(damaged(path))
    if application != APPLICATION and not (empty and application == 0 and version == 0):
        raise StoreUnusable(f"{path} is a database, but not one of durun: name another with --db or $DURUN_DB")


def look(path: str, *, create: bool) -> bool:
    """Looks at what lies there before SQLite does. False where nothing does. Raises StoreUnusable."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        if not create:
            raise StoreUnusable(f"there is no database at {path}: `durun start` makes one") from None
        _refuse_planted(path)
        above = os.path.dirname(path)
        while not os.path.exists(above):
            above = os.path.dirname(above)
        _refuse_remote(above)
        return False
    except OSError as e:
        raise StoreUnusable(f"{path} cannot be used: {os.strerror(e.errno or 0)}; mend that, then the same again") from None
    if not stat.S_ISREG(there.st_mode):
        raise StoreUnusable(f"{path} is no file")
    _refuse_another_user(path, there)
    _refuse_planted(path)
    if not _connected.get((there.st_dev, there.st_ino)):
        _refuse_remote(path)
        look_at_header(path, there.st_size)
    return True


def _refuse_another_user(path: str, there: os.stat_result) -> None:
    if there.st_uid != os.geteuid():
        raise StoreUnusable(f"{path} belongs to another user (uid {there.st_uid}); durun does not write to it")


def _refuse_planted(path: str) -> None:
    """SQLite would write into what lies there under the name of its log, whoever put it there and wherever it leads."""
    for end in BESIDE:
        try:
            there = os.lstat(path + end)
        except OSError:
            continue
        _refuse_another_user(path + end, there)
        if not stat.S_ISREG(there.st_mode):
            raise StoreUnusable(f"{path}{end} is no file: move it away, then the same again")


def look_at_header(path: str, size: int, way: str = "name another with --db or $DURUN_DB") -> None:
    if size == 0:
        return
    try:
        with open(path, "rb") as f:
            head = f.read(100)
    except OSError as e:
        raise StoreUnusable(f"{path} cannot be read: {os.strerror(e.errno or 0)}; mend that, then the same again") from None
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        if _is_to_be_undone(path):
            return
        raise StoreUnusable(f"{path} is damaged, or no database: {way}")
    version, application = (int.from_bytes(head[at : at + 4], "big", signed=True) for at in (60, 68))
    if application or version:
        refuse_by_marks(path, version, application, empty=False)


def _is_to_be_undone(path: str) -> bool:
    """Whether SQLite will first take back what a power cut left half written: a file that was just being born may be torn."""
    try:
        return os.stat(path + "-journal").st_size > 0
    except OSError:
        return False


def _refuse_remote(path: str) -> None:
    kind = file_system(path)
    if kind in REMOTE or kind.startswith("fuse."):
        raise StoreUnusable(
            f"{path} lies on a network file system ({kind}), where locks cannot be trusted: name a local one with --db"
        )


def file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str:
    """The kind of file system a path lies on; '' where the system does not say."""
    try:
        device = os.stat(path).st_dev
        with open(mounts, encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


def _make(path: str) -> None:
    folder = os.path.dirname(path)
    above = folder
    while not os.path.exists(above):
        above = os.path.dirname(above)
    try:
        _made(folder)
        _refuse_remote(folder)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        while folder != above:  # SQLite syncs the folder of its file; what that lies in is ours
            folder = os.path.dirname(folder)
            _sync(folder)
    except OSError as e:
        raise StoreUnusable(f"{path} cannot be made: {os.strerror(e.errno or 0)}; mend that, then the same again") from None


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: str) -> None:
    """Makes the folder of logs, locks and notes. What lies there is believed, so nobody else may write to it.

    Raises StoreUnusable.
    """
    try:
        _made(folder)
        there = os.stat(folder)
    except OSError as e:
        raise StoreUnusable(f"{folder} cannot be made: {os.strerror(e.errno or 0)}; mend that, then the same again") from None
    _refuse_another_user(folder, there)
    if there.st_mode & OTHERS:
        from durun.plan.names import quoted

        raise StoreUnusable(f"{folder} may be written by other users: `chmod go-w {quoted(folder)}`, then the same again")


def _made(folder: str) -> None:
    """A folder, with those it lies in as far as they are missing: each for its owner alone, whatever the umask."""
    if os.path.isdir(folder):
        return
    if not os.path.exists(os.path.dirname(folder)):
        _made(os.path.dirname(folder))
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:  # by another process, just now
        if not os.path.isdir(folder):
            raise


def statements(version: int) -> list[str]:
    """The statements that lead to this version of the file, told apart by SQLite's own rules."""
    where = os.path.join(os.path.dirname(__file__), "migrations", f"{version}.sql")
    with open(where, encoding="utf-8") as f:
        text = f.read()
    found, rest = [], ""
    for line in text.splitlines(keepends=True):
        rest += line
        if line.rstrip().endswith(";") and apsw.complete(rest):
            found.append(rest)
            rest = ""
    if rest.strip():
        found.append(rest)
    return found


def _number(db: apsw.Connection, pragma: str) -> int:
    value: Any = db.execute(f"PRAGMA {pragma}").fetchall()[0][0]
    return int(value)

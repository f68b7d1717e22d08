"""The keeper: the process that begins a driver's commands, holds them, and outlives the driver.

Run with `-I -S`, it imports only what is built into the interpreter or a C module beside it, and is one file, however long: its
driver hands it over whole before the first effect, so that an upgrade under it cannot give it halves of two versions.

Rules:
- all that may fail is made ready first; then the note, then the spawn. The end is noted in space reserved before; only this
  process writes the journal
- between looking at the gate and the note of the pid the gate is held shared: whoever takes over closes it for ever, and from
  then on nothing more begins here. While it is being closed a request waits
- one way to stop: signal, grace, next signal, to the whole group; the end is noted when the group is gone. A second wish to
  stop can only hasten it
- only the keeper signals a group, and before it has reaped the leader
- the end of the command ends it, not the end of its output; what it leaves behind is named
- a disk that is full or fails and a resource that is short are no fault of the command: the first is reported as such, the second
  waits for a command to end
- an end that cannot be noted is told all the same: the driver, which lives, can commit it
- timeouts and silences are measured by the clock that stands still while the machine sleeps; when a command was begun is noted
  by the one that does not, since the start of a process is told by it
- without a driver it goes on until its last command has ended, looking at the control file five times a second

Started as: -c BOOT keeper.py FOLDER, with descriptor 3 the socket to the driver and 4 the journal, locked.
"""

from __future__ import annotations

import _signal as signals  # type: ignore[import-not-found]
import binascii
import errno
import fcntl
import marshal
import posix
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Request = dict[str, Any]
    Env = dict[bytes, bytes]
    Steps = list[tuple[str, int]]

SOCKET, JOURNAL = 3, 4
CHUNK = 65536  # bytes of the journal reserved at a time
PER_JOB = 4096  # bytes that must be there for each live command
CAPTURE = 16 * 1024 * 1024  # bytes of an output that becomes data
READ = 1 << 16
TOGETHER = 16  # commands that are begun behind one look at the gate
MOMENT = 0.02  # s between looks at what gives no sign when it changes
FULL = (errno.ENOSPC, errno.EDQUOT)
OURS = ("its output", "its stdin", "its notes")  # what we make for a command: that it cannot be made is no fault of the command
FAILS = (errno.EIO, getattr(errno, "EUCLEAN", errno.EIO))  # a disk, or what lies on it, is broken: no fault of the command either
ROOM = 16 * 1024 * 1024  # bytes below which a disk counts as full
SHORT = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
NAMES = {"INT": signals.SIGINT, "TERM": signals.SIGTERM, "KILL": signals.SIGKILL}
RANK = {"": 0, "INT": 1, "TERM": 2, "KILL": 3}
DEFAULT = [number for number in signals.valid_signals() if number not in (signals.SIGKILL, signals.SIGSTOP)]


class Job:
    """One live command."""

    def __init__(self, token: str, pid: int, files: tuple[File, File], request: Request, now: float) -> None:
        self.token, self.pid, self.files, self.request = token, pid, files, request
        self.begun = self.sign = self.looked = now
        self.deadline = None if request["timeout"] is None else now + request["timeout"] / 1000
        self.silence = None if request["heartbeat"] is None else request["heartbeat"] / 1000
        self.seen: object = (0, 0, 0)
        self.stopped = ""
        self.sent = ""  # the last signal of the way to stop
        self.steps: Steps = []  # (signal, ms until the next)
        self.next_step: float | None = None
        self.status: int | None = None  # of the leader, once it is dead

    def is_timed(self) -> bool:
        """Whether there is something to look at though no command has died."""
        return self.deadline is not None or self.silence is not None or bool(self.stopped) or self.status is not None


class File:
    """An output file, kept open here to look at its size and at who else has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fd = posix.open(name, posix.O_RDWR | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o600)

    def size(self) -> int:
        return posix.fstat(self.fd).st_size

    def held(self) -> bool:
        """Whether anybody still has it as its output: the lock that a command inherits is there."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        except OSError:
            return True
        return False

    def alone(self) -> bool:
        """Whether nobody else has it open, also not anew through /dev/stdout. Only Linux can say that: a lease is given."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except AttributeError:
            return not self.held()
        except OSError as e:
            return e.errno != errno.EAGAIN and not self.held()
        return True

    def for_command(self) -> int:
        """A description of its own, locked shared, that the command inherits and whoever it leaves behind keeps.

        Opened just before the spawn: what is open longer is for a moment held by every other command that is begun meanwhile.
        """
        fd = posix.open(self.name, posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd


class Journal:
    """Records, each one line with the checksum of what it says, written into space reserved before."""

    def __init__(self) -> None:
        self.at = self.reserved = 0

    def reserve(self, live: int) -> None:
        want = self.at + PER_JOB * (live + 2)
        while self.reserved < want:
            if hasattr(posix, "posix_fallocate"):
                try:
                    posix.posix_fallocate(JOURNAL, self.reserved, CHUNK)
                except OSError as e:
                    if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                        raise
                    write_all(JOURNAL, bytes(CHUNK), self.reserved)
            else:
                write_all(JOURNAL, bytes(CHUNK), self.reserved)
            self.reserved += CHUNK

    def note(self, *words: object) -> bytes:
        said = said_of(words)
        line = b"%08x %s\n" % (binascii.crc32(said), said)
        write_all(JOURNAL, line, self.at)
        self.at += len(line)
        return said

    def note_if_it_can_be(self, *words: object) -> bytes:
        """A record of what has happened already: a disk that fails costs the record, not the answer."""
        for _ in range(2):
            try:
                return self.note(*words)
            except OSError:
                pass
        return said_of(words)


def said_of(words: tuple[object, ...]) -> bytes:
    return "\t".join(map(str, words)).encode("utf-8", "surrogateescape")


def write_all(fd: int, data: bytes, at: int) -> None:
    while data:
        n = posix.pwrite(fd, data, at)
        data, at = data[n:], at + n


class Keeper:
    def __init__(self, folder: str) -> None:
        posix.chdir(folder)
        self.gate = posix.open("gate", posix.O_RDONLY | posix.O_CLOEXEC)
        self.here = posix.open(".", posix.O_RDONLY | posix.O_CLOEXEC)
        self.null = posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
        self.journal = Journal()
        self.jobs: dict[str, Job] = {}
        self.waiting: list[Request] = []
        self.pool: dict[str, list[File]] = {"out": [], "err": []}
        self.spare: dict[str, File | None] = {}  # of each kind that was printed to: one made ahead, never used
        self.made = {"out": 0, "err": 0}
        self.without: tuple[str, ...] = ()
        self.base: Env = posix.environ
        self.incoming, self.outgoing = b"", b""
        self.orphan = self.closed = self.introduced = self.reset = False
        self.control_at = 0

    # the loop

    def run(self) -> None:
        read, write = posix.pipe()
        for fd in (read, write, SOCKET):
            posix.set_blocking(fd, False)
        signals.set_wakeup_fd(write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(read, select.POLLIN)
        poll.register(SOCKET, select.POLLIN)
        writing = False
        try:
            self.introduce()
        except OSError:
            pass  # a full disk: again before the first command
        while self.jobs or self.waiting or not self.orphan:
            self.flush()
            if not self.orphan and bool(self.outgoing) != writing:
                writing = not writing
                poll.modify(SOCKET, select.POLLIN | (select.POLLOUT if writing else 0))
            died = False
            for fd, what in poll.poll(self.patience()):
                if fd == read:
                    posix.read(read, READ)
                    died = True  # one of the commands at least
                    continue
                if what & select.POLLOUT:
                    self.flush()
                if what & ~select.POLLOUT:
                    self.hear()
                    if self.orphan:
                        poll.unregister(SOCKET)
            now = time.monotonic()
            if died:
                died = not self.look_at_the_dead(now)
            for job in list(self.jobs.values()):
                if died or job.is_timed():
                    self.look(job, now)
            waiting, self.waiting = self.waiting, []
            self.begin_all(waiting)
            if self.orphan:
                self.obey()
            elif self.jobs:
                self.make_ahead()
        self.tidy()

    def patience(self) -> int:
        """Milliseconds until something has to be looked at."""
        now = time.monotonic()
        wait = MOMENT if self.waiting else 0.2 if self.orphan else 60.0
        for job in self.jobs.values():
            if job.status is not None:
                wait = min(wait, MOMENT)
            elif job.next_step is not None:
                wait = min(wait, job.next_step - now)
            else:
                if job.deadline is not None:
                    wait = min(wait, job.deadline - now)
                if job.silence is not None:
                    wait = min(wait, max(MOMENT, job.silence / 10))
        return max(0, int(wait * 1000) + 1)

    # the driver

    def hear(self) -> None:
        while not self.orphan:
            most = READ * 16 if self.incoming else READ  # to make room for more costs more than to read what is mostly there
            try:
                data = posix.read(SOCKET, most)
            except BlockingIOError:
                break
            except OSError as e:
                # said once when the driver died with answers unread: its last requests still lie behind it
                if e.errno == errno.ECONNRESET and not self.reset:
                    self.reset = True
                    continue
                data = b""
            self.orphan = not data
            self.incoming += data
            if 0 < len(data) < most:  # that was all; what comes now is told by the next look
                break
        begins: list[Request] = []
        while len(self.incoming) >= 4:
            length = int.from_bytes(self.incoming[:4], "big")
            if len(self.incoming) < 4 + length:
                break
            request = marshal.loads(self.incoming[4 : 4 + length])
            self.incoming = self.incoming[4 + length :]
            if request["kind"] == "begin":
                begins.append(request)
                continue
            self.begin_all(begins)
            begins = []
            self.stop(request["token"], request["steps"], request["why"])
        self.begin_all(begins)

    def answer(self, said: bytes) -> None:
        """Goes out with the next round, together with what else there is to say: each piece wakes the driver."""
        if not self.orphan:
            self.outgoing += len(said).to_bytes(4, "big") + said

    def flush(self) -> None:
        while self.outgoing:
            try:
                n = posix.write(SOCKET, self.outgoing)
            except OSError as e:
                if e.errno in (errno.EPIPE, errno.ECONNRESET):
                    self.outgoing = b""
                return
            self.outgoing = self.outgoing[n:]

    def obey(self) -> None:
        """What a later driver wrote into the control file: TOKEN, SIGNAL:MS,SIGNAL:MS and why, with tabs between."""
        try:
            fd = posix.open("control", posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=self.here)
        except OSError:
            return
        try:
            data = posix.pread(fd, READ, self.control_at)
        except OSError:  # it is looked at again
            data = b""
        posix.close(fd)
        end = data.rfind(b"\n") + 1
        self.control_at += end
        for line in data[:end].decode("utf-8", "replace").splitlines():
            try:
                token, way, why = line.split("\t")
                steps = [(name, int(ms)) for name, ms in (step.split(":") for step in way.split(","))]
            except ValueError:
                continue
            if all(name in NAMES for name, _ in steps):
                self.stop(token, steps, why)

    # to begin

    def begin_all(self, requests: list[Request]) -> None:
        """Begins what came together. Whoever takes over waits for the gate, and not for all of it."""
        for at in range(0, len(requests), TOGETHER):
            self.begin(requests[at : at + TOGETHER])

    def begin(self, requests: list[Request]) -> None:
        """Begins these, behind one look at the gate."""
        if not self.closed:
            try:
                fcntl.flock(self.gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # it is being closed: soon it is, or who closed it has died
                self.waiting += requests
                return
            try:
                self.closed = bool(posix.pread(self.gate, 1, 0))
            except OSError as e:  # nobody knows whether it is closed: nothing is begun, and what runs goes on
                fcntl.flock(self.gate, fcntl.LOCK_UN)
                for request in requests:
                    self.answer(b"full\t%s\t%d" % (request["token"].encode(), e.errno or errno.EIO))
                return
            try:
                for request in requests if not self.closed else ():
                    self.begin_inside(request, request["token"])
            finally:
                fcntl.flock(self.gate, fcntl.LOCK_UN)
        if self.closed:
            for request in requests:
                self.answer(b"refused\t" + request["token"].encode())

    def begin_inside(self, request: Request, token: str) -> None:
        """Makes all ready, notes, spawns, notes. Whatever goes wrong is noted or answered as what it is."""
        files: list[File] = []
        opened: list[int] = []
        what, noted = "its output", False
        try:
            self.journal.reserve(len(self.jobs))
            self.introduce()
            files.append(self.take("out", request["capture"]))
            files.append(self.take("err", False))
            what = "its stdin"
            stdin = self.null
            if request["stdin"] is not None:
                stdin = self.stdin(request["stdin"])
                opened.append(stdin)
            what = "its output"
            inherited = [stdin]
            for file in files:
                inherited.append(file.for_command())
                opened.append(inherited[-1])
            what = "environment"
            env = self.environ(request)
            what = "directory"
            posix.chdir(request["cwd"])
            what = "program"
            words = [word.encode("utf-8", "surrogateescape") for word in request["argv"]]
            actions = [(posix.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(inherited)]
            program = find(words[0] if words else b"", env)
            what = "its notes"
            self.journal.note("about", token, files[0].name, files[1].name, "%d.alive" % request["n"])
            what, noted, before = "program", True, clock()
            pid = posix.posix_spawn(program, words, env, file_actions=actions, setsid=True, setsigdef=DEFAULT, setsigmask=[])
            self.jobs[token] = Job(token, pid, (files[0], files[1]), request, time.monotonic())
        except (OSError, ValueError) as e:
            number = getattr(e, "errno", None) or errno.EINVAL
            later = number in SHORT and bool(self.tidy() or self.jobs)
            return self.not_begun(request, number, what, noted, later)
        finally:
            for fd in opened:
                posix.close(fd)
            posix.fchdir(self.here)
            if token not in self.jobs:
                for file in files:
                    self.give_back(file, file.alone() and not file.size())
        self.journal.note_if_it_can_be("begun", token, pid, before, clock(), time.monotonic())
        if "stop" in request:
            self.go_on_to_stop(self.jobs[token], *request["stop"])

    def not_begun(self, request: Request, number: int, what: str, noted: bool, later: bool) -> None:
        token = request["token"]
        if later or number in FULL or number in SHORT or number in FAILS or what in OURS:
            if noted:
                self.journal.note_if_it_can_be("not_yet", token, number)
            if later:
                self.waiting.append(request)
            else:
                self.answer(b"full\t%s\t%d" % (token.encode(), number))
        else:
            self.answer(self.journal.note_if_it_can_be("nostart", token, number, what))

    def environ(self, request: Request) -> Env:
        """The driver's environment without what is taken out, and over it what the request says."""
        if request["without"] != self.without:
            self.without, self.base = request["without"], posix.environ.copy()
            for name in self.without:
                self.base.pop(name.encode("utf-8", "surrogateescape"), None)
        env = self.base.copy()
        for name, value in request["env"].items():
            env[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
        return env

    def introduce(self) -> None:
        """Notes who this is: whoever finds a pid here must know in which boot and which PID namespace it means something."""
        if not self.introduced:
            self.journal.reserve(0)
            self.journal.note("keeper", "", posix.getpid(), *where())
            self.introduced = True

    def take(self, kind: str, fresh: bool) -> File:
        if self.pool[kind] and not fresh:
            return self.pool[kind].pop()
        spare = self.spare.get(kind)
        if spare is not None:
            self.spare[kind] = None
        return spare or self.make(kind)

    def make(self, kind: str) -> File:
        self.made[kind] += 1
        return File("%d.%s" % (self.made[kind], kind))

    def make_ahead(self) -> None:
        """While commands run: a file for the next one that prints, since to make one is the slowest part of a beginning."""
        for kind, spare in self.spare.items():
            if spare is None:
                try:
                    self.spare[kind] = self.make(kind)
                except OSError:  # the disk is full, or fails: who needs one will find out
                    return

    def give_back(self, file: File, unused: bool) -> None:
        """An output file that stayed empty and that nobody has any more is used again: making files is what costs."""
        kind = file.name.rpartition(".")[2]
        if unused:
            self.pool[kind].append(file)
        else:
            posix.close(file.fd)
            self.spare.setdefault(kind, None)

    def stdin(self, data: bytes) -> int:
        """A file without a name: a pipe would hang where it is longer than the pipe and not read."""
        fd = posix.open("stdin", posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o600)
        try:
            posix.unlink("stdin")
            write_all(fd, data, 0)
        except OSError:
            posix.close(fd)
            raise
        return fd

    # to stop

    def stop(self, token: str, steps: Steps, why: str) -> None:
        for request in self.waiting:
            if request["token"] == token:
                request["stop"] = steps, why
        if token in self.jobs:
            self.look(self.jobs[token], time.monotonic())  # an end that came before is not one that was made
        if token in self.jobs:
            self.go_on_to_stop(self.jobs[token], steps, why)

    def go_on_to_stop(self, job: Job, steps: Steps, why: str) -> None:
        """Goes over to a harsher way to stop, or hastens the one that is gone already."""
        job.stopped = job.stopped or why.replace("\t", " ").replace("\n", " ")
        if job.next_step is None or RANK[steps[0][0]] > RANK[job.sent]:
            job.steps = list(steps)
            self.step(job)
        else:
            job.next_step = min(job.next_step, time.monotonic() + steps[0][1] / 1000)

    def step(self, job: Job) -> None:
        """The next signal of the way to stop, to the whole group; what outlives all of them gets KILL again."""
        job.sent, grace = job.steps.pop(0) if job.steps else ("KILL", 1000)
        signal_group(job.pid, NAMES[job.sent])
        signal_group(job.pid, signals.SIGCONT)  # one that was stopped hears nothing else
        job.next_step = time.monotonic() + (grace if job.steps or job.sent != "KILL" else 1000) / 1000

    # to end

    def look_at_the_dead(self, now: float) -> bool:
        """Whether these were all there is to look at. Where one was told to stop its leader stays, so that its pid is ours."""
        if any(job.stopped for job in self.jobs.values()):
            return False
        jobs = {job.pid: job for job in self.jobs.values()}
        while jobs:
            pid, status = posix.waitpid(-1, posix.WNOHANG)
            if not pid:
                break
            job = jobs.pop(pid, None)
            if job is not None:
                job.status = posix.waitstatus_to_exitcode(status)
                self.look(job, now)
        return True

    def look(self, job: Job, now: float) -> None:
        if job.status is None:
            job.status = leader_status(job.pid, leave=bool(job.stopped))
        if not job.stopped:
            if job.status is None:
                return self.look_at_time(job, now)
            return self.ended(job, [] if group_gone(job.pid) else others(job.pid))
        if job.status is not None and not others(job.pid):
            reap(job.pid)
            return self.ended(job, [])
        if job.next_step is not None and now >= job.next_step:
            self.step(job)

    def look_at_time(self, job: Job, now: float) -> None:
        way = [("TERM", job.request["grace"]), ("KILL", 0)]
        if job.deadline is not None and now >= job.deadline:
            self.go_on_to_stop(job, way, "timeout")
        elif job.silence is not None and now - job.looked >= min(1.0, job.silence / 10):
            job.looked = now
            seen = (job.files[0].size(), job.files[1].size(), touched(job.request["alive"]))
            if seen != job.seen:
                job.seen, job.sign = seen, now
            elif now - job.sign >= job.silence:
                self.go_on_to_stop(job, way, "heartbeat")

    def ended(self, job: Job, left: list[int]) -> None:
        del self.jobs[job.token]
        out, err = job.files
        alone = out.alone(), err.alone()
        sizes = out.size(), err.size()  # of one that is alone it is the last
        for file in (file for file, nobody in zip(job.files, alone, strict=True) if not nobody and file.held()):
            left = left + [pid for pid in holders(file.fd) if pid not in left]
        crc = sum_of(out.fd) if job.request["capture"] and sizes[0] else 0
        said = self.journal.note_if_it_can_be(
            "ended", job.token, job.status, job.stopped, ",".join(map(str, sorted(left)[:20])),
            out.name if sizes[0] else "", err.name if sizes[1] else "", *sizes, crc,
            "%d.json" % job.request["n"], *file_sum(job.request["data"]), int((time.monotonic() - job.begun) * 1000),
            int(bool(job.status) and self.little_room()),
            int(time.monotonic() * 1000),
        )  # fmt: skip
        self.answer(said)
        if not self.jobs:
            self.flush()  # nothing that it could go together with
        for file, nobody, size in zip(job.files, alone, sizes, strict=True):
            self.give_back(file, nobody and not size)

    def little_room(self) -> bool:
        """Whether the disk of the logs is full, or nearly: why a command failed may then be lost with what it could not print."""
        try:
            found = posix.fstatvfs(self.here)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < ROOM

    def tidy(self) -> int:
        """Takes the empty files away; how many there were."""
        unused = [*self.pool["out"], *self.pool["err"], *(file for file in self.spare.values() if file is not None)]
        self.pool, self.spare = {"out": [], "err": []}, {}
        for file in unused:
            posix.close(file.fd)
            try:
                posix.unlink(file.name)
            except OSError:
                pass
        return len(unused)


def clock() -> float:
    return time.clock_gettime(CLOCK)


def where() -> tuple[str, str]:
    """This boot and this PID namespace; '-' where the system has no word for it."""
    try:
        fd = posix.open("/proc/sys/kernel/random/boot_id", posix.O_RDONLY | posix.O_CLOEXEC)
        boot = posix.read(fd, 100).decode().strip()
        posix.close(fd)
        return boot, posix.readlink("/proc/self/ns/pid")
    except OSError:
        return "-", "-"


def touched(path: bytes) -> int:
    try:
        return posix.stat(path).st_mtime_ns
    except OSError:
        return 0


def sum_of(fd: int) -> int:
    """The checksum of what becomes data; -1, which fits nothing, where it cannot be read."""
    crc, at = 0, 0
    while at <= CAPTURE:
        try:
            data = posix.pread(fd, READ * 16, at)
        except OSError:
            return -1
        if not data:
            break
        crc = binascii.crc32(data, crc)
        at += len(data)
    return crc


def file_sum(path: bytes) -> tuple[int, int]:
    """Size and checksum of what was written to $DURUN_OUTPUT; size -1 where nothing was, -2 where it is no file to read."""
    try:
        # a link is not followed: who may only put names into this folder would have us read what it may not
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOFOLLOW)
    except FileNotFoundError:
        return -1, 0
    except OSError as e:  # something is there, and where it cannot be looked at that is not the command's fault
        return (1, -1) if e.errno in (*FAILS, *FULL, *SHORT) else (-2, 0)
    try:
        found = posix.fstat(fd)
        if found.st_mode & 0o170000 != 0o100000:
            return -2, 0
        return found.st_size, sum_of(fd)
    except OSError:
        return 1, -1
    finally:
        posix.close(fd)


def find(name: bytes, env: Env) -> bytes:
    """The path of a program along the command's own PATH. Raises OSError."""
    if b"/" in name:
        return name
    trouble = errno.ENOENT
    for folder in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":") if name else ():
        path = (folder or b".") + b"/" + name
        try:
            if posix.stat(path).st_mode & 0o170000 == 0o100000:
                if posix.access(path, posix.X_OK):
                    return path
                trouble = errno.EACCES
        except OSError as e:
            if e.errno in FAILS:  # nobody knows whether it lies here: another of its name is not taken for it
                raise
    raise OSError(trouble, "")


def signal_group(pid: int, number: int) -> None:
    try:
        posix.killpg(pid, number)
    except OSError:
        pass


def leader_status(pid: int, leave: bool) -> int | None:
    """Exit code or minus the signal of a dead leader, None while it lives. With `leave` it stays a zombie, and so its pid ours."""
    if leave and hasattr(posix, "waitid"):
        found = posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == posix.CLD_EXITED else -found.si_status
    ended, status = posix.waitpid(pid, posix.WNOHANG)
    return posix.waitstatus_to_exitcode(status) if ended else None


def reap(pid: int) -> None:
    try:
        posix.waitpid(pid, posix.WNOHANG)
    except OSError:
        pass


def group_gone(pid: int) -> bool:
    try:
        posix.killpg(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def others(pid: int) -> list[int]:
    """Pids of living members of the group but its leader; zombies are dead."""
    found = []
    try:
        entries = posix.listdir("/proc")
    except OSError:  # where there is none a group of zombies cannot be signalled
        try:
            posix.killpg(pid, 0)
        except OSError:
            return []
        return [pid]
    for entry in entries:
        if entry.isdigit() and int(entry) != pid:
            try:
                fd = posix.open("/proc/%s/stat" % entry, posix.O_RDONLY | posix.O_CLOEXEC)
            except OSError:
                continue
            try:
                fields = posix.read(fd, 4096).rpartition(b")")[2].split()
            except OSError:
                continue
            finally:
                posix.close(fd)
            if len(fields) > 2 and fields[2] == b"%d" % pid and fields[0] not in (b"Z", b"X"):
                found.append(int(entry))
    return found


def holders(fd: int) -> list[int]:
    """Pids of those that have a file of ours open to write into it, as far as /proc tells."""
    found = []
    try:
        name, mine = posix.readlink("/proc/self/fd/%d" % fd), str(posix.getpid())
        entries = [entry for entry in posix.listdir("/proc") if entry.isdigit() and entry != mine]
    except OSError:
        return []
    for entry in entries:
        try:
            links = ["/proc/%s/fd/%s" % (entry, one) for one in posix.listdir("/proc/%s/fd" % entry)]
            if any(posix.readlink(link) == name and posix.lstat(link).st_mode & 0o200 for link in links):
                found.append(int(entry))
        except OSError:
            continue
    return found


def main() -> None:
    for number in (signals.SIGINT, signals.SIGTERM, signals.SIGHUP, signals.SIGQUIT, signals.SIGPIPE, signals.SIGIO):
        signals.signal(number, signals.SIG_IGN)
    signals.signal(signals.SIGCHLD, lambda number, frame: None)
    signals.pthread_sigmask(signals.SIG_SETMASK, [])
    posix.closerange(5, max(1 << 16, posix.sysconf("SC_OPEN_MAX")))
    for fd in (SOCKET, JOURNAL):
        posix.set_inheritable(fd, False)
    try:
        Keeper(sys.argv[-1]).run()
    except OSError as e:  # the driver, which sees us end, can say why
        posix._exit(e.errno or 1)
    posix._exit(0)


main()

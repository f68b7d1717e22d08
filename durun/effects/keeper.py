"""The keeper: the process that begins a driver's commands, holds them, and outlives the driver.

Run by path with `-I -S`, it imports only what is built into the interpreter or a C module beside it.

Rules:
- a command is noted before it begins, and its end is noted in space reserved before; only this process writes the journal
- between looking at the gate and the note of the pid the gate is held shared: whoever takes over closes it for ever, and from
  then on nothing more begins here
- one way to stop: signal, grace, next signal, to the whole group; the end is noted when the group is gone
- only the keeper signals a group, and before it has reaped the leader
- the end of the command ends it, not the end of its output; what it leaves behind is named
- without a driver it goes on until its last command has ended, looking at the control file five times a second

Started as: keeper.py FOLDER, with descriptor 3 the socket to the driver and 4 the journal, locked.
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

SOCKET, JOURNAL = 3, 4
CHUNK = 65536  # bytes of the journal reserved at a time
PER_JOB = 4096  # bytes that must be there for each live command
CAPTURE = 16 * 1024 * 1024  # bytes of an output that becomes data
READ = 1 << 16
DEFAULT = [
    getattr(signals, "SIG" + name)
    for name in ("HUP", "INT", "QUIT", "PIPE", "TERM", "CHLD", "TSTP", "TTIN", "TTOU", "XFSZ", "USR1", "USR2", "ALRM")
]
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
NAMES = {"INT": signals.SIGINT, "TERM": signals.SIGTERM, "KILL": signals.SIGKILL}


class Job:
    """One live command."""

    def __init__(self, token: str, pid: int, files: Files, request: Request, now: float) -> None:
        self.token, self.pid, self.files, self.request = token, pid, files, request
        self.begun = now
        self.deadline = None if request["timeout"] is None else now + request["timeout"] / 1000
        self.silence = None if request["heartbeat"] is None else request["heartbeat"] / 1000
        self.sign = now
        self.seen: object = None
        self.looked = now
        self.stopped = ""
        self.steps: list[tuple[str, int]] = []  # (signal, seconds until the next)
        self.next_step: float | None = None
        self.status: int | None = None  # of the leader, once it is dead


class Files:
    """A pair of output files, kept open here to look at their size and whether anybody else holds them."""

    def __init__(self, number: int) -> None:
        self.out, self.err = "%d.out" % number, "%d.err" % number
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
        self.out_fd = posix.open(self.out, flags, 0o600)
        self.err_fd = posix.open(self.err, flags, 0o600)

    def sizes(self) -> tuple[int, int]:
        return posix.fstat(self.out_fd).st_size, posix.fstat(self.err_fd).st_size

    def held(self) -> bool:
        """Whether anybody else still has one of them open as its output."""
        for fd in (self.out_fd, self.err_fd):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError:
                return True
        return False

    def for_command(self, name: str) -> int:
        """A description of its own, locked shared, that the command inherits and whoever it leaves behind keeps."""
        fd = posix.open(name, posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def close(self) -> None:
        posix.close(self.out_fd)
        posix.close(self.err_fd)


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

    def note(self, *record: Any) -> None:
        payload = marshal.dumps(record, 2).hex().encode()
        line = b"%08x %s\n" % (binascii.crc32(payload), payload)
        write_all(JOURNAL, line, self.at)
        self.at += len(line)


def write_all(fd: int, data: bytes, at: int) -> None:
    while data:
        n = posix.pwrite(fd, data, at)
        data, at = data[n:], at + n


class Keeper:
    def __init__(self, folder: str) -> None:
        posix.chdir(folder)
        self.folder = folder
        self.gate = posix.open("gate", posix.O_RDONLY | posix.O_CLOEXEC)
        self.here = posix.open(".", posix.O_RDONLY | posix.O_CLOEXEC)
        self.journal = Journal()
        self.jobs: dict[str, Job] = {}
        self.pool: list[Files] = []
        self.files = 0
        self.incoming, self.outgoing = b"", b""
        self.orphan = self.closed = False
        self.control_at = 0
        self.environ = dict(posix.environ)

    # the loop

    def run(self) -> None:
        read, write = posix.pipe()
        for fd in (read, write):
            posix.set_blocking(fd, False)
        signals.set_wakeup_fd(write, warn_on_full_buffer=False)
        posix.set_blocking(SOCKET, False)
        poll = select.poll()
        poll.register(read, select.POLLIN)
        poll.register(SOCKET, select.POLLIN)
        while not (self.orphan and not self.jobs):
            if not self.orphan:
                poll.modify(SOCKET, select.POLLIN | (select.POLLOUT if self.outgoing else 0))
            for fd, what in poll.poll(self.patience()):
                if fd == read:
                    posix.read(read, READ)
                elif what & select.POLLOUT:
                    self.flush()
                if fd == SOCKET and what & ~select.POLLOUT:
                    self.hear()
                    if self.orphan:
                        poll.unregister(SOCKET)
            now = time.monotonic()
            for job in list(self.jobs.values()):
                self.look(job, now)
            if self.orphan:
                self.obey()
        self.tidy()

    def patience(self) -> int:
        """Milliseconds until something has to be looked at."""
        now = time.monotonic()
        wait = 0.2 if self.orphan else 60.0
        for job in self.jobs.values():
            if job.next_step is not None:
                wait = min(wait, 0.02 if job.status is not None else job.next_step - now)
            elif job.status is not None:
                wait = min(wait, 0.02)
            elif job.deadline is not None:
                wait = min(wait, job.deadline - now)
            if job.silence is not None and not job.stopped:
                wait = min(wait, max(0.02, job.silence / 10))
        return max(0, int(wait * 1000) + 1)

    # the driver

    def hear(self) -> None:
        while True:
            try:
                data = posix.read(SOCKET, READ * 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                continue
            except OSError:
                data = b""
            if not data:
                self.orphan = True
                break
            self.incoming += data
            if len(data) < READ:
                break
        while len(self.incoming) >= 4:
            length = int.from_bytes(self.incoming[:4], "big")
            if len(self.incoming) < 4 + length:
                break
            request = marshal.loads(self.incoming[4 : 4 + length])
            self.incoming = self.incoming[4 + length :]
            if request["kind"] == "begin":
                self.begin(request)
            else:
                self.stop(request["token"], request["steps"], request["why"])

    def answer(self, *words: Any) -> None:
        if self.orphan:
            return
        data = marshal.dumps(words, 2)
        self.outgoing += len(data).to_bytes(4, "big") + data
        self.flush()

    def flush(self) -> None:
        while self.outgoing:
            try:
                n = posix.write(SOCKET, self.outgoing)
            except BlockingIOError:
                return
            except OSError:
                self.outgoing = b""
                return
            self.outgoing = self.outgoing[n:]

    def obey(self) -> None:
        """What a later driver wrote into the control file: TOKEN SIGNAL:MS,SIGNAL:MS WHY."""
        try:
            fd = posix.open("control", posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=self.here)
        except OSError:
            return
        data = posix.pread(fd, READ, self.control_at)
        posix.close(fd)
        end = data.rfind(b"\n") + 1
        self.control_at += end
        for line in data[:end].decode("ascii", "replace").split("\n"):
            words = line.split(" ")
            if len(words) == 3:
                steps = [(s.partition(":")[0], int(s.partition(":")[2] or 0)) for s in words[1].split(",")]
                self.stop(words[0], steps, words[2])

    # to begin

    def begin(self, request: Request) -> None:
        token = request["token"]
        if self.closed:
            return self.answer("refused", token)
        fcntl.flock(self.gate, fcntl.LOCK_SH)
        try:
            if posix.pread(self.gate, 1, 0):
                self.closed = True
                return self.answer("refused", token)
            try:
                self.journal.reserve(len(self.jobs))
                files = self.take_files(request["capture"])
            except OSError as e:
                return self.answer("full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else "nostart", token, e.errno, "its output")
            self.journal.note("about", token, request["n"], files.out, files.err)
            self.spawn(request, token, files)
        finally:
            fcntl.flock(self.gate, fcntl.LOCK_UN)

    def take_files(self, fresh: bool) -> Files:
        posix.fchdir(self.here)
        while self.pool and not fresh:
            files = self.pool.pop()
            if files.sizes() == (0, 0) and not files.held():
                return files
            files.close()
        self.files += 1
        return Files(self.files)

    def spawn(self, request: Request, token: str, files: Files) -> None:
        out, err = files.for_command(files.out), files.for_command(files.err)
        given: int | None = None
        before = clock()
        try:
            given = self.stdin(request["stdin"])
            try:
                posix.chdir(request["cwd"])
            except OSError as e:
                return self.no_start(token, files, e.errno or errno.EINVAL, "directory")
            env = self.environ_of(request)
            program, trouble = find(request["argv"][0], env)
            if program is None:
                return self.no_start(token, files, trouble, "program")
            try:
                pid = self.spawn_program(program, request["argv"], env, (given, out, err))
            except (OSError, ValueError) as e:
                return self.no_start(token, files, getattr(e, "errno", None) or errno.EINVAL, "program")
        except OSError as e:
            return self.no_start(token, files, e.errno or errno.EINVAL, "stdin")
        finally:
            for fd in (out, err, given):
                if fd is not None:
                    posix.close(fd)
        self.journal.note("begun", token, pid, before, clock())
        self.jobs[token] = Job(token, pid, files, request, time.monotonic())

    def spawn_program(self, program: bytes, argv: list[str], env: Env, fds: tuple[int, ...]) -> int:
        actions = [(posix.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(fds)]
        words = [a.encode("utf-8", "surrogateescape") for a in argv]
        return posix.posix_spawn(program, words, env, file_actions=actions, setsid=True, setsigdef=DEFAULT, setsigmask=[])

    def no_start(self, token: str, files: Files, number: int, what: str) -> None:
        self.journal.note("nostart", token, number, what)
        self.pool.append(files)
        self.answer("nostart", token, number, what)

    def stdin(self, data: bytes | None) -> int:
        posix.fchdir(self.here)
        if data is None:
            return posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
        name = "stdin"
        fd = posix.open(name, posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC, 0o600)
        posix.unlink(name)
        write_all(fd, data, 0)
        return fd

    def environ_of(self, request: Request) -> Env:
        env = dict(self.environ)
        for name in request["without"]:
            env.pop(name.encode("utf-8", "surrogateescape"), None)
        for name, value in request["env"].items():
            env[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
        return env

    # to stop

    def stop(self, token: str, steps: list[tuple[str, int]], why: str) -> None:
        job = self.jobs.get(token)
        if job is None:
            return
        if not job.stopped:
            job.stopped = why
        job.steps = list(steps)
        self.step(job)

    def step(self, job: Job) -> None:
        """The next signal of the way to stop, to the whole group."""
        if not job.steps:
            job.next_step = time.monotonic() + 1.0
            job.steps = [("KILL", 0)]
            return
        name, grace = job.steps.pop(0)
        signal_group(job.pid, NAMES[name])
        if name != "KILL":
            signal_group(job.pid, signals.SIGCONT)
        job.next_step = time.monotonic() + grace / 1000

    # to end

    def look(self, job: Job, now: float) -> None:
        if job.status is None:
            job.status = leader_status(job.pid)
            if job.status is None:
                return self.look_at_time(job, now)
        if job.stopped:
            if others(job.pid):
                if job.next_step is not None and now >= job.next_step:
                    self.step(job)
                return
            reap(job.pid)
            return self.ended(job, [])
        reap(job.pid)
        left = [] if group_gone(job.pid) else others(job.pid)
        self.ended(job, left)

    def look_at_time(self, job: Job, now: float) -> None:
        if job.stopped:
            if job.next_step is not None and now >= job.next_step:
                self.step(job)
        elif job.deadline is not None and now >= job.deadline:
            self.stop(job.token, [("TERM", job.request["grace"]), ("KILL", 0)], "timeout")
        elif job.silence is not None and now - job.looked >= min(1.0, job.silence / 10):
            job.looked = now
            seen = (job.files.sizes(), touched(job.request["alive"]))
            if seen != job.seen:
                job.seen, job.sign = seen, now
            elif now - job.sign >= job.silence:
                self.stop(job.token, [("TERM", job.request["grace"]), ("KILL", 0)], "heartbeat")

    def ended(self, job: Job, left: list[int]) -> None:
        del self.jobs[job.token]
        files, request = job.files, job.request
        sizes = files.sizes()
        held = files.held()
        end = {
            "status": job.status, "stopped": job.stopped, "left": left[:20], "held": held and not left,
            "out": files.out if sizes[0] else "", "err": files.err if sizes[1] else "", "sizes": sizes,
            "crc": sum_of(files.out_fd) if request["capture"] and sizes[0] else 0, "data": file_sum(request["data"]),
            "name": "%d.json" % request["n"],
            "ms": int((time.monotonic() - job.begun) * 1000),
        }  # fmt: skip
        self.journal.note("ended", job.token, end)
        self.answer("ended", job.token, end)
        if sizes == (0, 0) and not held and not left:
            self.pool.append(files)
        else:
            files.close()

    def tidy(self) -> None:
        """Takes the empty files away."""
        posix.fchdir(self.here)
        for files in self.pool:
            for name in (files.out, files.err):
                try:
                    posix.unlink(name)
                except OSError:
                    pass


def clock() -> float:
    return time.clock_gettime(CLOCK)


def touched(path: str) -> int:
    try:
        return posix.stat(path).st_mtime_ns
    except OSError:
        return 0


def sum_of(fd: int) -> int:
    crc, at = 0, 0
    while at <= CAPTURE:
        data = posix.pread(fd, READ * 16, at)
        if not data:
            break
        crc = binascii.crc32(data, crc)
        at += len(data)
    return crc


def file_sum(path: str) -> tuple[int, int] | None:
    """Size and checksum of what was written to $DURUN_OUTPUT, or None."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        return posix.fstat(fd).st_size, sum_of(fd)
    except OSError:
        return None
    finally:
        posix.close(fd)


def find(word: str, env: Env) -> tuple[bytes | None, int]:
    """(path, 0) of a program along the command's own PATH, or (None, errno)."""
    name = word.encode("utf-8", "surrogateescape")
    if not name or b"\0" in name:
        return None, errno.ENOENT
    if b"/" in name:
        return name, 0
    trouble = errno.ENOENT
    for folder in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
        path = (folder or b".") + b"/" + name
        try:
            if posix.stat(path).st_mode & 0o170000 == 0o100000:
                if posix.access(path, posix.X_OK):
                    return path, 0
                trouble = errno.EACCES
        except OSError:
            pass
    return None, trouble


def signal_group(pid: int, number: int) -> None:
    try:
        posix.killpg(pid, number)
    except OSError:
        pass


def leader_status(pid: int) -> int | None:
    """Exit code or minus the signal of a dead leader, which stays a zombie; None while it lives."""
    if hasattr(posix, "waitid"):
        try:
            found = posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
        except ChildProcessError:
            return -9
        if found is None:
            return None
        return found.si_status if found.si_code == posix.CLD_EXITED else -found.si_status
    ended, status = posix.waitpid(pid, posix.WNOHANG)
    if not ended:
        return None
    return posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else -posix.WTERMSIG(status)


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
    except OSError:
        return [] if group_gone(pid) else [pid]
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


def main() -> None:
    for number in (signals.SIGINT, signals.SIGTERM, signals.SIGHUP, signals.SIGQUIT, signals.SIGPIPE):
        signals.signal(number, signals.SIG_IGN)
    signals.signal(signals.SIGCHLD, lambda number, frame: None)
    signals.pthread_sigmask(signals.SIG_SETMASK, [])
    posix.closerange(5, 1 << 16)
    for fd in (SOCKET, JOURNAL):
        posix.set_inheritable(fd, False)
    Keeper(sys.argv[1]).run()


main()

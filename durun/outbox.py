"""The deliverer: takes an intent, acts, and reports the outcome. It decides nothing and writes nothing.

An intent carries its request, frozen, and its key; what belongs to an attempt (number, paths) is added here, when it acts. On
taking a run over it finds out what became of each intent of the driver before: see the table in `effects.notes`.
"""

from __future__ import annotations

import binascii
import errno
import os
import select
import time
from collections.abc import Callable
from typing import Any

from durun.effects.command import (
    CAPTURE,
    GRACE,
    UNREADABLE,
    Commands,
    End,
    Full,
    KeeperGone,
    NoStart,
    Refused,
    Report,
    Request,
    read_whole,
    tail,
    too_long,
)
from durun.effects.notes import Begun, Notes, Nothing
from durun.effects.secrets import SecretMissing, Secrets
from durun.errors import TOO_FEW, ExpressionError, StoreUnusable, Superseded
from durun.machine.events import Answered, CouldNotStart, Ended, Happening, Lost, Moved
from durun.machine.model import Effect, Run
from durun.machine.scope import path_of
from durun.machine.secrets import filled
from durun.plan.digest import canonical_text
from durun.store.file import File
from durun.store.runs import Pinned
from durun.values import NamedTuple

Json = Any
SHELLS = {"sh": ["/bin/sh", "-eu", "-c"], "bash": ["bash", "-euo", "pipefail", "-c"]}
PINNED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
STDERR = 4096  # bytes of it that an error keeps
FULL = (errno.ENOSPC, errno.EDQUOT)
VAIN = 3  # keepers in a row that died before they had anything to say
LISTEN = 0.5  # s in which an end by a signal is heard for a signal to durun itself
NOT_READY: tuple[Json, str | None, bytes] = (None, None, b"")
LOOK = 0.1  # s between looks at what a dead driver's keeper holds
FEW = 4  # reports that are heard together however little is under way


def new_commands(folder: str, place: str) -> Commands:
    """A place and its keeper. Raises StoreUnusable where the folder cannot take them, or no process can be begun."""
    with usable(folder):
        return Commands(folder, place)


class usable:
    """What the system refuses in the folder of logs, locks and notes is a refusal: the next resume finds what is stored there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, OSError):
            raise StoreUnusable(unusable(self._folder, error.errno or 0)) from None


def _no_tree(tree: str) -> str:
    raise StoreUnusable(f"the pinned files {tree[:12]} are not in the database")


def unusable(folder: str, number: int) -> str:
    if number in FULL:
        return f"the disk of {folder} is full: nothing more is begun; free some, then resume"
    if number == errno.EMFILE:
        return TOO_FEW
    return f"{folder} cannot be used: {os.strerror(number)}: nothing more is begun; mend that, then resume"


class Adopted(NamedTuple):
    """A command of a dead driver that is still alive, watched here until it ends."""

    effect: Effect
    notes: Notes
    begun: Begun
    signs: tuple[int, ...]  # of life, as last seen
    since: float  # when they last changed, or were first looked at


class Deliverer:
    """Acts on the intents of one run, in one place. `no` is the run's number in the file, `path` that of the file."""

    def __init__(self, commands: Commands, no: int, pinned: Pinned, path: str, new_place: Callable[[], str], boot: str) -> None:
        self.commands = commands
        self.no, self.pinned, self.path = no, pinned, path
        self.boot = boot
        self._new_place = new_place
        self._retired: list[Commands] = []
        self._issued: dict[str, Effect] = {}
        self._adopted: dict[int, Adopted] = {}
        self._killed: dict[int, float] = {}
        self._sender: Any = None  # of requests, once there is one
        self._sent: dict[str, Effect] = {}
        self._known: list[CouldNotStart] = []  # what was found at once
        self.secrets = Secrets(pinned.plan.get("secrets", []), pinned.directory)
        self.secrets.learn()
        self._vain = 0
        self._ready: tuple[Json, str | None, bytes] = NOT_READY  # the frozen request of what may begin next, and what is said then
        self._own = {commands.place}  # the places of this driver
        base = pinned.pins["base"]
        self._env = {**base, **pinned.pins["env"]}
        self._without = (*(name for name in PINNED if name not in base), "DURUN_FILES", *self.secrets.names)
        self.tree: Callable[[str], str] = _no_tree  # where the pinned files of a tree lie, laid out and whole

    @property
    def place(self) -> str:
        return self.commands.place

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._issued or self._adopted or self._sent or self._known)

    def under_way(self) -> list[int]:
        acting = [e.no for e in (*self._issued.values(), *self._sent.values())]
        return [*acting, *self._adopted, *(known.effect for known in self._known)]

    # to act

    def make_ready(self, run: Run, effect: Effect) -> None:
        """Puts down all that is said when this begins, if it does. A secret is read, and pinned files are laid out, only then."""
        r = effect.request
        if effect.place == self.place and "method" not in r and "open" not in r and "files" not in r:
            number = self.commands.next_number()
            said = self.commands.said(self._request(run, effect, r, self._token(effect), number), number)
            self._ready = r, effect.place, said

    def begin(self, run: Run, effect: Effect, *, more: bool = False) -> None:
        """Begins an intent; what becomes of it is reported by `receive`. With `more` another follows at once."""
        self._begin(run, effect)
        if not more:
            self.commands.flush()

    def _begin(self, run: Run, effect: Effect) -> None:
        token = self._token(effect)
        (request, place, said), self._ready = self._ready, NOT_READY
        if request is effect.request and place == self.place:  # another effect may be given the number that was put down
            self._issued[token] = effect
            self.commands.begin_as_said(token, said, more=True)
            return
        try:
            request = filled(effect.request, self.secrets.value)
            if "method" in request:
                return self._send(effect, token, request)
        except (SecretMissing, ExpressionError) as e:  # a request is worked out but for its secrets: what fails is in them
            self._known.append(CouldNotStart(effect.no, 0, "secret", why=str(e)))
            return
        number = self.commands.next_number()
        self._issued[token] = effect
        self.commands.begin(self._request(run, effect, request, token, number), number, more=True)

    def _send(self, effect: Effect, token: str, request: Json) -> None:
        from durun.effects.http import Sender, host_of, prepared

        out = prepared(request, effect.key)
        if self._sender is None:
            self._sender = Sender(self.commands.folder)
        self._sent[token] = effect
        self._sender.begin(token, effect.place or self.place, out, request, host_of(effect.request))

    def _token(self, effect: Effect) -> str:
        return f"{self.no}.{effect.no}.{effect.attempt}"

    def _request(self, run: Run, effect: Effect, r: Json, token: str, number: int) -> Request:
        argv = list(r["argv"]) if "argv" in r else [*SHELLS[r["shell"]], r["script"], "durun"]
        files = {}
        if "files" in r:
            with usable(self.commands.folder):
                files["DURUN_FILES"] = self.tree(r["files"])
            for n in r.get("pinned", ()):
                argv[n] = os.path.join(files["DURUN_FILES"], argv[n].removeprefix("./"))
        env = {
            **self._env,
            **r["env"],
            "DURUN_RUN_ID": r.get("run", run.id),
            "DURUN_STATE": path_of(effect.scope, effect.state),
            "DURUN_VISIT": str(effect.visit),
            "DURUN_ATTEMPT": str(effect.attempt),
            "DURUN_IDEMPOTENCY_KEY": effect.key,
            "DURUN_OUTPUT": self.commands.data_path(number),
            "DURUN_HEARTBEAT": self.commands.alive_path(number),
            "DURUN_DB": self.path,
            **files,
        }
        stdin = None
        if "stdin_base64" in r:
            stdin = binascii.a2b_base64(r["stdin_base64"])
        elif "stdin" in r:  # null too is JSON
            stdin = (r["stdin"] if isinstance(r["stdin"], str) else canonical_text(r["stdin"])).encode("utf-8")
        cwd = os.path.join(self.pinned.directory, r["cwd"]) if "cwd" in r else self.pinned.directory
        capture = bool(r.get("capture"))
        return Request(token, argv, env, cwd, stdin, r.get("timeout"), r.get("heartbeat"), capture, self._without)

    def stop(self, no: int, steps: list[tuple[str, int]], why: str) -> None:
        """Has the command of an effect stopped. A request has the first grace to answer."""
        for token, effect in self._sent.items():
            if effect.no == no:
                self._sender.stop(token, steps[0][1], why)
        with usable(self.commands.folder):
            self._stop(no, steps, why)

    def _stop(self, no: int, steps: list[tuple[str, int]], why: str) -> None:
        for token, effect in self._issued.items():
            if effect.no == no:
                self.commands.stop(token, steps, why)
        if no in self._adopted:
            adopted = self._adopted[no]
            adopted.notes.ask_stop(adopted.begun, adopted.effect.key, steps, why)
            grace = sum(ms for _, ms in steps[:-1]) / 1000
            self._killed[no] = min(self._killed.get(no, float("inf")), time.monotonic() + grace)

    def sign(self, said: str) -> None:
        """Leaves a sign of life for whoever takes the run over."""
        for commands in (*self._retired, self.commands):
            commands.sign(said)

    def living(self, nos: list[int]) -> tuple[list[int], int | None]:
        """(pids that live of the commands of these effects, the pid of their keeper where it stands still)."""
        pids: list[int] = []
        keeper = None
        held = [*self._issued.values(), *(adopted.effect for adopted in self._adopted.values())]
        for effect in [e for e in held if e.no in nos]:
            notes = Notes(self.commands.folder, effect.place or self.place)
            notes.refresh()
            said = notes.of(self._token(effect))
            pids += notes.living(said, effect.key) if isinstance(said, Begun) else []
            keeper = keeper or notes.still_keeper()
        return pids, keeper

    # to take over

    def recover(self, effect: Effect) -> Happening | None:
        """What became of an intent of another driver: an event, or None where it is alive and watched from now on."""
        with usable(self.commands.folder):
            return self._recover(effect)

    def _recover(self, effect: Effect) -> Happening | None:
        assert effect.place is not None
        if "method" in effect.request:
            return self._recover_request(effect, effect.place)
        notes = Notes.take_over(self.commands.folder, effect.place)
        token = self._token(effect)
        if notes.gone:
            return Lost(effect.no, "the notes of its keeper are gone")
        said = notes.of(token)
        if effect.boot != self.boot and not isinstance(said, End | NoStart):
            return Lost(effect.no, "the machine was booted since")
        if isinstance(said, Nothing):
            return Moved(effect.no)
        if isinstance(said, Begun):
            self._adopted[effect.no] = Adopted(effect, notes, said, notes.signs(said), time.monotonic())
            return self._look(self._adopted[effect.no])
        return self._event(effect, said)

    def _recover_request(self, effect: Effect, place: str) -> Happening:
        """A request does not outlive its driver: it was never begun, or nobody knows."""
        notes = Notes.take_over(self.commands.folder, place, "requests")
        if notes.gone:
            return Lost(effect.no, "the notes of its driver are gone")
        if effect.boot != self.boot:
            return Lost(effect.no, "the machine was booted since")
        if isinstance(notes.of(self._token(effect)), Nothing):
            return Moved(effect.no)
        return Lost(effect.no, "it was sent, and its driver died before the answer was recorded")

    def is_over(self, boot: str | None, place: str | None, token: str, key: str, kind: str) -> bool:
        """Whether an attempt of a run that nobody drives has ended, as far as this can be told without taking it over.

        What was handed to a keeper that lives may begin yet.
        """
        if kind == "http" or place is None or boot != self.boot:
            return True  # a request does not outlive its driver, and nothing a boot
        notes = Notes(self.commands.folder, place)
        keeper = notes.keeper_alive()
        notes.refresh()
        said = notes.of(token)
        if isinstance(said, End | NoStart):
            return True
        if isinstance(said, Begun):
            return not keeper and not notes.alive(said, key)
        return not keeper and not notes.gone

    def _look(self, adopted: Adopted) -> Happening | None:
        """Whether an adopted command has ended by now."""
        effect, notes, begun, *_ = adopted
        keeper = notes.keeper_alive()
        if not keeper:
            begun = notes.found(begun, effect.key)
            adopted = self._adopted[effect.no] = adopted._replace(begun=begun)
            self._enforce(adopted)
        # once it is to stop, what left its group and holds its output is no reason to wait
        lives = notes.group_alive if effect.no in self._killed else notes.alive
        alive = keeper or lives(begun, effect.key)
        notes.refresh()
        said = notes.of(begun.token)
        if isinstance(said, Begun) and said.pid is not None:
            begun = said
            self._adopted[effect.no] = self._adopted[effect.no]._replace(begun=said)
        if isinstance(said, End | NoStart):
            del self._adopted[effect.no]
            return self._event(effect, said)
        if not alive:
            del self._adopted[effect.no]
            return Lost(effect.no, "its keeper died, and nobody saw how it ended")
        return None

    def _enforce(self, adopted: Adopted) -> None:
        """Timeout, heartbeat, and the KILL after a grace, where no keeper is left to see to them."""
        effect, notes, begun, *_ = adopted
        now = time.monotonic()
        why = "" if effect.no in self._killed else self._over(adopted, now)
        if why:
            notes.ask_stop(begun, effect.key, [("TERM", GRACE)], why)
            self._killed[effect.no] = now + GRACE / 1000
        elif now > self._killed.get(effect.no, float("inf")):
            notes.ask_stop(begun, effect.key, [("KILL", 0)], "timeout")
            self._killed[effect.no] = now + 1.0

    def _over(self, adopted: Adopted, now: float) -> str:
        """Whether an adopted command has had its time, or was silent for too long since somebody looks; '' where neither."""
        effect, notes, begun, signs, since = adopted
        timeout, heartbeat = effect.request.get("timeout"), effect.request.get("heartbeat")
        boot = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        if timeout is not None and begun.pid is not None and ran(begun, now, boot) > timeout / 1000:
            return "timeout"
        if heartbeat is None:
            return ""
        if (seen := notes.signs(begun)) != signs:
            self._adopted[effect.no] = adopted._replace(signs=seen, since=now)
        elif now - since > heartbeat / 1000:
            return "heartbeat"
        return ""

    # to hear

    def receive(self, timeout: float, wake: int | None = None) -> list[Happening]:
        """What has happened, waiting at most so many seconds for it (less where `wake` becomes readable)."""
        with usable(self.commands.folder):
            return self._receive(timeout, wake)

    def _receive(self, timeout: float, wake: int | None) -> list[Happening]:
        wait = min(timeout, LOOK) if self._adopted else timeout
        files: list[Any] = [self.commands] + ([wake] if wake is not None else [])
        write: list[int] = []
        odd: list[int] = []
        if self._sent:
            wait = min(wait, self._sender.patience())
            read, write, odd = self._sender.files()
            files += read
        told = self.commands.has_more
        ready = select.select(files, write, odd, 0.0 if self._known or told else max(0.0, wait))[0]
        if wake is not None and wake in ready:
            os.read(wake, 4096)
        if not told and self.commands not in ready:
            return self.gather([])
        # half of what is under way at most: others take their places while the rest is seen to
        return self.gather(self.commands.receive(None, max(FEW, len(self._issued) // 2)))

    def gather(self, reports: list[Report]) -> list[Happening]:
        """What has happened, from what the keeper said of this run, and from what can be seen without waiting."""
        events: list[Happening] = [*self._known]
        self._known = []
        for report in reports:
            events += self._report(report)
        if self._sent:
            events += [self._answered(answer) for answer in self._sender.act()]
        for adopted in list(self._adopted.values()):
            event = self._look(adopted)
            if event is not None:
                events.append(event)
        return events

    def files(self) -> tuple[list[int], list[int], list[int]]:
        """What to wait for beside the keeper, as `select` takes it."""
        return self._sender.files() if self._sent else ([], [], [])

    def patience(self) -> float:
        """Seconds until it has to be looked, whatever the keeper says."""
        if self._known:
            return 0.0
        wait = LOOK if self._adopted else 60.0
        return min(wait, self._sender.patience()) if self._sent else wait

    def _answered(self, answer: Any) -> Happening:
        """What became of a request, with no value of a secret in what will be stored of it."""
        from durun.effects.http import Unsent

        effect = self._sent.pop(answer.token)
        if not isinstance(answer, Unsent):
            mask, said = self.secrets.mask, canonical_text(answer.headers).encode()
            return Answered(
                effect.no, answer.status, mask.tree(answer.headers), answer.body, mask.text(answer.cut), answer.too_large,
                answer.sent, answer.fault, mask.text(answer.message), mask.text(answer.host), answer.stopped,
                mask.holder(answer.body, said),
            )  # fmt: skip
        if answer.why == "unnoted":
            raise StoreUnusable(unusable(self.commands.folder, answer.errno))
        if answer.why == "refused" and effect.place == self.place:
            raise Superseded("another driver has closed the gate of this one")
        return Moved(effect.no)

    def _report(self, report: Report) -> list[Happening]:
        if isinstance(report, KeeperGone):
            return self._without_keeper(report)
        self._vain = 0
        if isinstance(report, Refused):
            raise Superseded("another driver has closed the gate of this one")
        if isinstance(report, Full):
            raise StoreUnusable(unusable(self.commands.folder, report.errno))
        effect = self._issued.pop(report.token, None)
        return [self._event(effect, report)] if effect is not None else []

    def _without_keeper(self, gone: KeeperGone) -> list[Happening]:
        """The keeper died: a new one in a new place, and what the old one held is looked for. Not again and again."""
        self._vain += 1
        if self._vain >= VAIN:
            what = f"the keeper of {self.commands.path} died, and so did the {VAIN - 1} before it, before they began anything"
            raise StoreUnusable(f"{what} ({gone.why}): nothing more is begun; mend that, then resume")
        return self.renew(new_commands(self.commands.folder, self._new_place()))

    def renew(self, commands: Commands) -> list[Happening]:
        """The keeper of these commands takes the place of one that died, and what that held is looked for."""
        issued, self._issued = list(self._issued.values()), {}
        self._retired.append(self.commands)
        self.commands = commands
        self._own.add(self.commands.place)
        return [event for effect in issued if (event := self.recover(effect)) is not None]

    def _event(self, effect: Effect, said: End | NoStart) -> Happening:
        if isinstance(said, NoStart):
            return CouldNotStart(effect.no, said.errno, said.what, why=too_long() if said.errno == errno.E2BIG else "")
        folder, stdout, data = self.commands.folder, None, None
        too_large = said.out_size > CAPTURE and bool(effect.request.get("capture"))
        if effect.request.get("capture") and not too_large:
            stdout = read_whole(folder, said.out, said.out_size, said.out_crc)
            if stdout is None:
                return Lost(effect.no, "its output is not whole")
        if said.data_size is not None and said.status == 0:
            if said.data_size == UNREADABLE:
                data = b""  # there is something, and it is no file that can be read: no JSON, and an error that says so
            elif said.data_size > CAPTURE:
                too_large = True
            else:
                data = read_whole(folder, said.data, said.data_size, said.data_crc)
                if data is None:
                    return Lost(effect.no, "what it wrote to $DURUN_OUTPUT is not whole")
        return Ended(
            effect.no, said.status, said.stopped, stdout, data, too_large, self._stderr(said.err) if said.status else "",
            {"out": said.out, "err": said.err}, said.left, self.secrets.mask.holder(stdout, data), said.low,
            None if effect.place in self._own else said.at,
        )  # fmt: skip

    def _stderr(self, path: str) -> str:
        """The last 4 KiB, masked: a value that begins before them is hidden too."""
        mask = self.secrets.mask
        return mask.text(tail(self.commands.folder, path, STDERR + mask.longest))[-STDERR:]

    def close(self, *, keep: bool) -> None:
        """Lets the keepers go; with `keep` their notes stay."""
        self.close_sender()
        for commands in [*self._retired, self.commands]:
            commands.close(keep=keep or commands is not self.commands)

    def close_sender(self) -> None:
        """Drops what is on the wire; the keeper may be that of other runs too."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def environment(plan: Json, base: dict[str, str], env: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(what lies over the environment of a run's commands, what is taken out of it)."""
    return {**base, **env}, (*(name for name in PINNED if name not in base), *(spec["name"] for spec in plan.get("secrets", [])))


def with_files(deliverer: Deliverer, file: File) -> Deliverer:
    """The deliverer of a run, which finds its pinned files: laid out from the database when a command needs them."""
    if "trees" in deliverer.pinned.pins:
        from durun.effects.pinned import Trees
        from durun.store import pinned

        trees = Trees(file.folder, lambda digest: pinned.tree(file, digest), lambda digest: pinned.content(file, digest))
        deliverer.tree = trees.at
    return deliverer


def by_signal(event: Happening) -> bool:
    """Whether a command was ended by a signal that nobody here sent."""
    return isinstance(event, Ended) and not event.stopped and (event.status < 0 or 129 <= event.status <= 159)


def listened(event: Happening, told: Callable[[], str]) -> Happening:
    """An end by a signal nobody here sent is held back for a moment: if durun is being stopped too, it was stopped with it."""
    if not isinstance(event, Ended) or not by_signal(event):
        return event
    end = time.monotonic() + LISTEN
    while time.monotonic() < end and not told():
        time.sleep(0.01)
    return event._replace(stopped="leaving") if told() else event


def ran(begun: Begun, awake: float, boot: float) -> float:
    """Seconds that a command has run, sleep of the machine not counted where its keeper noted that clock."""
    return awake - begun.awake if begun.awake is not None else boot - begun.before

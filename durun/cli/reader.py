"""The small reader in front of typer, and the one place where a refusal becomes a message and an exit code.

It takes `--name value`, `--name=value`, flags, short forms and places by a function's own annotations. What it does not know
goes to typer, which is built over the same functions.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` costs an `ls` more than its query
import errno
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

COMMANDS = {
    "start": "start", "resume": "drive",
    "ls": "look", "show": "look", "history": "look", "logs": "look", "output": "look", "wait": "look",
    "watch": "watch",
    "cancel": "control", "pause": "control", "resolve": "control", "compensate": "undo",
    "approve": "people", "reject": "people", "signal": "people", "inbox": "people",
    "work": "work",
    "outbox ls": "outbox", "outbox show": "outbox", "outbox deliver": "outbox", "outbox retry": "outbox", "outbox drop": "outbox",
    "once": "once",
    "migrate": "migrate", "rewind": "rewind",
    "check": "plans", "db path": "plans", "db check": "database", "docs": "pages",
    "init": "templates", "graph": "graph", "schema": "schema", "simulate": "simulate", "report": "report",
    "db backup": "database", "db restore": "database", "db prune": "prune", "drain": "drain",
}  # fmt: skip
LOOKING = (  # what they print is all that they do
    "ls", "show", "history", "logs", "output", "wait", "watch", "inbox", "outbox ls", "outbox show", "check", "db path", "db check",
    "docs", "graph", "schema", "simulate", "report",
)  # fmt: skip
unwritten: list[int] = []  # why lines for stdout were lost, where that is no closed pipe
at_end: list[Callable[[], None]] = []  # what a command has opened, to be let go of when it has ended
LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)
SHORT = {"-i": "--set", "-q": "--quiet", "-f": "--follow"}


def function(name: str) -> Callable[..., int]:
    """The function of a command."""
    module = __import__(f"durun.cli.{COMMANDS[name]}", fromlist=["durun"])
    found: Callable[..., int] = getattr(module, name.replace(" ", "_"))
    return found


def run(argv: list[str]) -> int:
    """The exit code of a command line.

    Until a run is driven, Ctrl-C ends the process where it stands, as a kill would: an exception in the middle of an import can
    break a library, and everything here survives a kill.
    """
    prepare()
    name = " ".join(argv[:2]) if argv[:1] in (["db"], ["outbox"]) else argv[0] if argv else ""
    if name in COMMANDS:
        act = function(name)
        given = read(act, argv[len(name.split()) :])
        if given is not None:
            return guarded(lambda: act(**given), as_json=bool(given.get("json")), looking=name in LOOKING)
    from durun.cli import app

    return app.run(argv)


def prepare() -> None:
    """What every process of durun does first."""
    gc.set_threshold(100_000)  # what is imported stays: to look through it again and again is a tenth of a start
    _signal.signal(_signal.SIGINT, lambda _number, _frame: os._exit(130))
    _three_descriptors()
    _utf_8()
    sys.excepthook = _bug
    sys.set_int_max_str_digits(0)  # an integer keeps every digit, on every way in and out


def _bug(kind: type[BaseException], error: BaseException, where: Any) -> None:
    """A fault of durun itself: one line for the user, and the traceback in a file for us. The interpreter ends with 1."""
    import tempfile
    import traceback

    lines, said = _masked("".join(traceback.format_exception(kind, error, where))), _masked(f"{kind.__name__}: {error}")
    try:
        with tempfile.NamedTemporaryFile("w", prefix="durun-bug-", suffix=".log", delete=False, errors="replace") as f:
            f.write(lines)
        say(f"durun has a fault of its own ({said}); please report {f.name}. What was committed stands.")
    except OSError:
        say(lines)


def _masked(text: str) -> str:
    """Without the values of secrets that this process has read: whoever is sent the file is not to have them."""
    room = sys.modules.get("durun.effects.secrets")
    for mask in list(room.masks) if room is not None else ():
        text = mask.text(text)
    return text


def _three_descriptors() -> None:
    """stdin, stdout and stderr are open, so that no file of ours ever takes one of their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process lives)


def _utf_8() -> None:
    """What is written is UTF-8 wherever it goes: data as it is, and JSON has to be."""
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=errors)  # type: ignore[union-attr]


def read(act: Callable[..., int], words: list[str]) -> dict[str, Any] | None:
    """The arguments of a call, or None where the call is not plain enough to be sure."""
    places = act.__code__.co_varnames[: act.__code__.co_argcount]
    kinds, options = act.__annotations__, act.__kwdefaults__ or {}
    given: dict[str, Any] = {}
    free: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            free += words[at:]
            break
        if not word.startswith("-") or word == "-":
            free.append(word)
            continue
        name, equals, value = SHORT.get(word, word).partition("=")
        option = name[2:].replace("-", "_")
        option = option if option in options else option + "_"  # `from_` is the option --from
        if not name.startswith("--") or option not in options or (option in given and not kinds[option].startswith("list")):
            return None
        if kinds[option] == "bool":
            if equals:
                return None
            given[option] = True
            continue
        if not equals:
            if at >= len(words) or (words[at].startswith("-") and words[at] != "-"):
                return None
            value = words[at]
            at += 1
        if kinds[option].startswith("list"):
            given.setdefault(option, []).append(value)
        elif kinds[option].startswith("int"):
            if not (value.isascii() and value.isdigit()):
                return None
            given[option] = int(value)
        else:
            given[option] = value
    return _placed(act, places, free, given)


def _placed(act: Callable[..., int], places: tuple[str, ...], free: list[str], given: dict[str, Any]) -> dict[str, Any] | None:
    if places and act.__annotations__[places[-1]].startswith("list[str]"):
        rest = len(places) - 1
        if len(free) < len(places) and not act.__defaults__:
            return None
        return {**dict(zip(places[:rest], free, strict=False)), places[-1]: free[rest:], **given}
    needed = len(places) - len(act.__defaults__ or ())
    if not needed <= len(free) <= len(places):
        return None
    return {**dict(zip(places, free, strict=False)), **given}


def guarded(act: Callable[[], int], *, as_json: bool, looking: bool = False) -> int:
    """Runs a command; a refusal is a message and an exit code, a closed pipe is no fault. One that only looks has failed where
    what it prints is lost."""
    from durun.errors import Refusal

    try:
        code = act()
        sys.stdout.flush()
        return _unwritten(unwritten[0]) if looking and unwritten else code
    except Refusal as e:
        return refused(e.code, str(e), e.exit, as_json=as_json)
    except BrokenPipeError:
        _drop_stdout()
        return 0
    except UnicodeEncodeError as e:
        return refused("usage", f"{e.object[:60]!a} is no UTF-8 text", 2, as_json=as_json)
    except ValueError as e:
        if type(e).__name__ != "JSONDecodeError":
            raise
        # what a person gives is read where it comes in, so it was stored: the file is not as it was written
        said = f"what is stored cannot be read ({e}): `durun db check` looks at all of it; where it is damaged, restore a backup"
        return refused("store_unusable", said, 8, as_json=as_json)
    except OSError as e:
        if e.errno == errno.EMFILE:
            from durun.errors import TOO_FEW

            return refused("store_unusable", TOO_FEW, 8, as_json=as_json)
        if e.errno not in LOST:
            raise
        if e.filename is not None:
            said = f"{os.fsdecode(e.filename)} cannot be used: {os.strerror(e.errno)}; mend that, then the same again"
            return refused("store_unusable", said, 8, as_json=as_json)
        _drop_stdout()
        return _unwritten(e.errno)
    finally:
        while at_end:
            at_end.pop()()


def refused(code: str, message: str, exit: int, *, as_json: bool) -> int:
    """Says why something is not done, on stderr and where it is asked for as the one document on stdout. The exit code."""
    say(message)
    if as_json:
        out_json({"error": {"code": code, "message": message, "exit": exit}})
    return exit


def _unwritten(number: int) -> int:
    say(f"stdout cannot be written: {os.strerror(number)}")
    return 1


def _drop_stdout() -> None:
    """What is left in the buffer of a closed stdout goes nowhere, so that the interpreter has nothing to complain of."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    except OSError:
        return


def visible(text: str) -> str:
    """Lines with what cannot be printed made visible: no name, path or message moves a cursor or turns the text around."""
    if all(map(str.isprintable, text.split("\n"))):
        return text
    from durun.render.text import plain

    return "\n".join(map(plain, text.split("\n")))


def out(text: str) -> None:
    """Lines on stdout. A closed stdout never stops anything that moves a run."""
    try:
        sys.stdout.write(visible(text) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError) as e:
        if isinstance(e, OSError) and e.errno in LOST:
            unwritten.append(e.errno)
        _drop_stdout()


def out_json(document: Any) -> None:
    """One JSON document on stdout."""
    out(json_line(document))


def json_line(document: Any) -> str:
    """A document as JSON in one line: the same to whoever reads it, and nothing in it means anything to a terminal."""
    import json

    line = json.dumps(document, ensure_ascii=False)
    if line.isprintable():
        return line
    # half a surrogate is none of ours: to write it is the fault that it was
    return "".join(c if c.isprintable() or "\ud800" <= c <= "\udfff" else json.dumps(c)[1:-1] for c in line)


def in_pieces(document: dict[str, Any]) -> None:
    """The same, where some of its lists are as long as what they tell of: they are given one by one, and no list is ever whole."""
    write = sys.stdout.write
    for n, (name, value) in enumerate(document.items()):
        write(f"{', ' if n else '{'}{json_line(name)}: ")
        if not hasattr(value, "__next__"):
            write(json_line(value))
            continue
        write("[")
        for k, one in enumerate(value):
            write(f"{', ' if k else ''}{json_line(one)}")
        write("]")
    write("}\n")


def say(text: str) -> None:
    """Lines on stderr, for people."""
    try:
        sys.stderr.write(visible(text) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return

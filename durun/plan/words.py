"""The words of the language, and the functions that read its values. No library is needed to ask.

`model` says what a plan may hold, by these; `shapes` takes a plan by them without it.

- what belongs to the language but is not built yet is known by name and refused as "not yet", never ignored
- a function takes a value as it is written and gives what is kept of it, or says in durun's words what is wrong (ValueError)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from durun.plan.names import BUILT_IN, NAMED, PLAN, no_key, outside, own_error
from durun.plan.units import SPELLING, duration, moment, rate, size

Json = Any

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
METHOD = re.compile(r"[A-Z]{1,20}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NO_NAMES = ("in", "true", "false", "null")
METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH")
LARGEST_BODY = 16 * 1024**2

KINDS = ("run", "http", "wait", "approval", "choice", "pass", "fail", "parallel", "map", "plan")
LATER_KINDS: tuple[str, ...] = ()
EFFECTS = ("run", "http", "plan")  # what a map may hold directly
LATER = {
    "plan": (
        "affinity",
    ),
    "state": (
        *LATER_KINDS,
    ),
    "pins": (),
    "probe": (),
}  # fmt: skip

# which keys fit which kind, beside description, next, catch, assign and max_visits
FITS = {
    "run": {
        "run", "timeout", "heartbeat", "retry", "idempotent", "key", "probe", "output", "env", "cwd", "stdin", "expect",
        "shell", "poll", "next", "catch", "assign", "compensate", "pivot", "background", "limit",
    },
    "http": {
        "http", "timeout", "retry", "idempotent", "key", "probe", "poll", "idempotency_header", "next", "catch", "assign",
        "compensate", "pivot", "background", "limit",
    },
    "wait": {"wait", "timeout", "next", "catch", "assign"},
    "approval": {"approval", "timeout", "next", "catch", "assign"},
    "pass": {"pass", "next", "catch", "assign"},
    "choice": {"choice", "catch", "assign"},
    "fail": {"fail"},
    "parallel": {"parallel", "next", "catch", "assign"},
    "map": {"map", "next", "catch", "assign"},
    "plan": {"plan", "next", "catch", "assign"},
}  # fmt: skip
ALWAYS = {"description", "max_visits"}
# why a key does not fit a kind, where there is more to say
WHY = {
    **{(kind, key): "what is inside has one" for kind in ("parallel", "map", "plan") for key in ("timeout", "retry", "limit")},
    **{(kind, "output"): f"it stands under `{kind}`" for kind in ("parallel", "map")},
    ("http", "output"): "its output is {status, headers, json, body}",
    ("http", "expect"): "the statuses expected stand inside `http`",
    ("http", "heartbeat"): "`timeout` is the limit on the whole request",
    ("http", "env"): "values go into its url, headers and body",
    ("http", "stdin"): "its `json`, `form` or `body` is what it sends",
    ("run", "idempotency_header"): "a command is given the key as $DURUN_IDEMPOTENCY_KEY",
    ("wait", "retry"): "a `catch` may lead back to it",
    ("wait", "timeout"): "a wait for a time is over when that time has come",
    ("wait", "heartbeat"): "it goes beside `signal`, as in `wait: {signal: NAME, heartbeat: 1m}`",
    ("wait", "output"): "the payload of its signal is its output",
    ("approval", "retry"): "a `catch` may lead back to it",
    ("approval", "heartbeat"): "a person gives no sign of life",
    ("approval", "output"): "the answer is its output",
    ("wait", "poll"): "a poll repeats a command",
    ("choice", "next"): "each of its lines has one",
    ("fail", "next"): "it ends the run",
    ("fail", "catch"): "it is the end: what it raises goes to whoever watches the run",
    ("fail", "assign"): "it ends the run",
    ("pass", "output"): "it has none: it only assigns",
}


def not_yet(word: str) -> str:
    return f"`{word}` is part of the language, but this durun does not have it yet"


def nearest(word: Json, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(str(word)[:64], list(known)[:500], 1, 0.6)  # more would take long
    return f"; did you mean `{near[0]}`?" if near else ""


def shown(value: Json) -> str:
    """A value in a message: what it is, or the start of it."""
    match value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
    return f"`{cut(value)}`"


def cut(word: Json) -> str:
    """A word in a message, or the start of it."""
    text = str(word)
    return text if len(text) <= 40 else text[:37] + "…"


# --- values ---


def something(value: Json) -> Json:
    if value is None:
        raise ValueError("nothing is given here: give a value, or leave the key out")
    return value


def text(value: Json) -> Json:
    if not isinstance(value, str):
        wanted = "a text is wanted here"
        raise ValueError(f"{wanted}, not {shown(value)}" + ("; put it in quotes" if isinstance(value, bool | int | float) else ""))
    return value


def filled(value: str) -> str:
    if not value.strip():
        raise ValueError("this text is empty")
    return value


def below(value: str) -> str:
    """A directory; of one that is worked out what stands before its first expression is known."""
    known, worked_out, _ = value.partition("${{")
    wrong = outside(known.rpartition("/")[0] + "/" if worked_out and "/" in known else known if not worked_out else "")
    if wrong is not None:
        raise ValueError(f"{shown(value)} {wrong}")
    return value


def key(value: str) -> str:
    """A key of one's own; one that is worked out is looked at then."""
    wrong = None if "${{" in value else no_key(value)
    if wrong is not None:
        raise ValueError(f"this key {wrong}")
    return value


def span(value: Json) -> Json:
    """Milliseconds; a text with an expression stays what it is."""
    if isinstance(value, str):
        return value if "${{" in value else duration(value)
    raise ValueError(f"{shown(value)} is no duration; {SPELLING}")


def fixed_span(value: Json) -> Json:
    if isinstance(value, str) and "${{" in value:
        raise ValueError("no expression may stand here: write a duration such as 30s")
    return span(value)


def longer(value: Json) -> Json:
    if value == 0:
        raise ValueError("a duration of nothing has no sense here")
    return value


def leave(value: Json) -> Json:
    """`idempotent`: a boolean, or how long the far side remembers the key."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return longer(fixed_span(value))
    raise ValueError(f"true, false or a duration such as 24h is wanted here, not {shown(value)}")


def number(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a number is wanted here, not {shown(value)}")
    if not 1 <= value <= 1000:
        raise ValueError(f"a number from 1 to 1000 is wanted here, not {shown(value)}")
    return float(value)


def error_name(value: str) -> str:
    if problem := own_error(value):
        raise ValueError(f"{shown(value)} {problem}")
    return value


def matcher(value: Json) -> str:
    """A matcher in its one spelling: `"*"` is any, killed:SIGKILL is killed:KILL."""
    if not isinstance(value, str):
        raise ValueError(f"the name of an error is wanted here, not {shown(value)}")
    if value in ("*", "any"):
        return "any"
    if value == "run_timeout":
        raise ValueError("`run_timeout` is never caught: `on_error` says what follows")
    family, _, rest = value.partition(":")
    if not rest and (NAMED.fullmatch(value) or value in BUILT_IN):
        return value
    if family == "exit" and re.fullmatch(r"[0-9]{1,3}", rest) and int(rest) <= 255:
        return f"exit:{int(rest)}"
    if family == "killed" and re.fullmatch(r"[A-Z0-9]+", rest):
        return f"killed:{rest.removeprefix('SIG')}"
    if family == "http" and re.fullmatch(r"[1-5]([0-9][0-9]|xx)", rest):
        return value
    raise ValueError(f"{shown(value)} is no name of an error: such as exit:1, killed:TERM, timeout, any, or one of your own")


def not_in_doubt(value: list[str]) -> list[str]:
    if "in_doubt" in value:
        raise ValueError("a doubt is not retried by a rule: make the state `idempotent`, give it a `probe`, or catch it")
    return value


def a_list(value: Json) -> Json:
    return value if isinstance(value, list) else [value]


def output(value: Json) -> Json:
    return {"format": value} if isinstance(value, str) else value


def command(value: Json) -> Json:
    if isinstance(value, str):
        if "${{" in value:
            raise ValueError(
                'nothing is ever put into a shell script: pass the value by `env:` and write "$NAME", or make `run` a list'
            )
        if not value.strip():
            raise ValueError("the script is empty")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"a command is a list of words, or a text for the shell, not {'an empty list' if value == [] else shown(value)}"
        )
    if value[0] == "":
        raise ValueError("the name of the command is empty")
    for n, word in enumerate(value):
        if isinstance(word, dict | list) or word is None:
            raise ValueError(f"the words of a command are texts, numbers or booleans: word {n + 1} is {shown(word)}")
    return value


def method(value: str) -> str:
    if not METHOD.fullmatch(value) or value in ("CONNECT", "TRACE"):
        near = nearest(value.upper(), METHODS)
        raise ValueError(f"{shown(value)} is no method: such as {', '.join(METHODS)}, in capital letters{near}")
    meant = None if value in METHODS else next((known for known in METHODS if _slip(value, known)), None)
    if meant is not None:
        raise ValueError(f"{shown(value)} is no method that durun knows; did you mean `{meant}`?")
    return value


def _slip(word: str, known: str) -> bool:
    """Whether a word is another but for one letter that is left out, too many or wrong, or two that changed places.

    Of three letters a wrong one is no slip: it may be a word of somebody's own, such as SET.
    """
    if abs(len(word) - len(known)) > 1:
        return False
    at = next((n for n, (a, b) in enumerate(zip(word, known, strict=False)) if a != b), min(len(word), len(known)))
    rest, left = word[at:], known[at:]
    swapped = len(rest) > 1 and rest[:2] == left[1::-1] and rest[2:] == left[2:]
    wrong = len(known) > 3 and rest[1:] == left[1:] and len(rest) == len(left)
    return swapped or wrong or rest[1:] == left or rest == left[1:]


def header(value: str) -> str:
    if not HEADER.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of a header")
    return value


def body_size(value: Json) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no size; write 64KiB or 1MiB")
    if not 0 < size(value) <= LARGEST_BODY:
        raise ValueError(f"{shown(value)}: a body becomes data, so it has at most 16MiB")
    return size(value)


def statuses(value: Json) -> list[list[int]]:
    """`[200-299, 404]` as [[200, 299], [404, 404]]."""
    given = value if isinstance(value, list) else [value]
    if not given:
        raise ValueError("there is nothing in it")
    return [_range(one) for one in given]


def _range(value: Json) -> list[int]:
    found = re.fullmatch(r"([2-9][0-9]{2})(?:-([2-9][0-9]{2}))?", str(value)) if not isinstance(value, bool | float) else None
    if found is None:
        raise ValueError(f"{shown(value)} is no status: 200 to 999, or a range such as 200-299")
    low, high = int(found[1]), int(found[2] or found[1])
    if low > high:
        raise ValueError(f"{shown(value)}: a range begins with the smaller status")
    return [low, high]


def schema(value: Json) -> Json:
    """The short form of a type as a schema."""
    if value == "any":
        return {}
    if isinstance(value, str):
        return {"type": value}
    return value


def rules(value: Json) -> Json:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        raise ValueError(
            f"`retry` is a rule such as {{max_attempts: 3}}, or a list of rules, not {shown(value)}; left out, nothing is retried"
        )
    return [value]


def time(value: str) -> str:
    if "${{" not in value:
        moment(value)
    return value


def signal_name(value: str) -> str:
    if not NAMED.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of a signal: letters, digits, `_`, `.` and `-`, a letter first")
    return value


def way_to_wait(value: Json) -> str:
    """Which of the three kinds of wait is written."""
    if not isinstance(value, dict):
        return "(lasts)"
    return "(signal)" if {"signal", "schema", "heartbeat"} & set(value) else "(at)"


def way_to_ask(value: Json) -> str:
    """Which of the two kinds of probe is written."""
    return "(http)" if isinstance(value, dict) and "http" in value and "run" not in value else "(run)"


def option_name(value: str) -> str:
    if not OPTION.fullmatch(value):
        raise ValueError(f"{shown(value)} is no answer: letters, digits, `_`, `.` and `-`, at most 64")
    return value


def option(value: Json) -> Json:
    return value if isinstance(value, dict) else {"name": value}


def options(value: list[Any]) -> list[Any]:
    """Of options that are read."""
    names = [option.name for option in value]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the answer {shown(name)} is there twice")
    if all(option.reject for option in value):
        raise ValueError("every answer is a no: nothing could go on")
    return value


def failures(value: Json) -> Json:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value == "all" or (isinstance(value, str) and re.fullmatch(r"(100|[0-9]{1,2})%", value)):
        return value
    raise ValueError(f"how many may fail: a number, a share such as 25%, or all, not {shown(value)}")


def now(value: Json) -> Json:
    if value != "now":
        raise ValueError(f"`now` is wanted here, not {shown(value)}; left out, what is under way goes on to its end")
    return value


def variable(value: str) -> str:
    if not VARIABLE.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of an environment variable")
    return value


def secret(value: Json) -> Json:
    if isinstance(value, dict):
        if sum(word in value for word in ("file", "run")) > 1:
            raise ValueError("a secret comes from a `file` or from what `run` prints, not from both")
        return value
    return {"name": value}


def tool(value: Json) -> Json:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value) or not value[0]:
        raise ValueError(f"a tool is asked by a list of words such as [pay, --version], not {shown(value)}")
    return value


def plan_name(value: str) -> str:
    if not PLAN.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of a plan: small letters, digits and `-`, a letter first, at most 64")
    return value


def language(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int) or value != 1:
        raise ValueError(f"this durun reads version 1 of the language: `durun: 1`, not {shown(value)}")
    return value


def begun_rate(value: Json) -> Json:
    if isinstance(value, str):
        return rate(value)
    raise ValueError(f"{shown(value)} is no rate; write 25/s, 100/m or 1000/h")


def stop(value: Json) -> Json:
    if value not in ("stop", "compensate"):
        raise ValueError(f"`stop` or `compensate` is wanted here, not {shown(value)}")
    return value


def on_drift(value: Json) -> Json:
    if value not in ("ask", "continue"):
        raise ValueError(f"`ask` or `continue` is wanted here, not {shown(value)}")
    return value

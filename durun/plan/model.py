"""What a person may write: the shapes of a plan, as frozen pydantic models. A word is added to the language here.

What belongs to the language but is not built yet is known by name and refused as "not yet", never ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt

from durun.plan.units import duration

Json = Any

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
PLAN_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
ERROR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
NO_NAMES = ("in", "true", "false", "null")

KINDS = ("run", "wait", "choice", "pass", "fail")
LATER_KINDS = ("http", "approval", "parallel", "map", "plan")
LATER = {
    "plan": (
        "secrets", "vars_schema", "timeout", "limits", "group", "notify", "migrations", "on_drift", "affinity",
    ),
    "state": (
        *LATER_KINDS, "compensate", "pivot", "background", "limit", "idempotency_header", "failures", "enough", "stop",
        "concurrency",
    ),
    "pins": ("files", "tools"),
    "wait": ("signal", "schema", "heartbeat"),
    "probe": ("http",),
}  # fmt: skip
BUILT_IN = (
    "timeout", "heartbeat", "not_found", "network", "output_invalid", "output_too_large", "vars_invalid", "expression",
    "no_choice", "rejected", "branch_failed", "item_failed", "child_failed", "max_visits", "unresolved", "run_timeout",
    "in_doubt", "any", "exit", "killed", "http", "failed",
)  # fmt: skip


def not_yet(word: str) -> str:
    return f"`{word}` belongs to the language, but this durun does not have it yet"


def _text(value: Json) -> Json:
    if not isinstance(value, str):
        raise ValueError("a text is wanted here; put it in quotes")
    return value


def _duration(value: Json) -> Json:
    """Milliseconds; a text with an expression stays what it is."""
    if isinstance(value, str):
        return value if "${{" in value else duration(value)
    raise ValueError(f"`{value}` is no duration; write 250ms, 30s, 5m, 2h, 7d or 1h30m")


def _fixed_duration(value: Json) -> Json:
    if isinstance(value, str) and "${{" in value:
        raise ValueError("no expression may stand here: write a duration such as 30s")
    return _duration(value)


def _error_name(value: str) -> str:
    if value in BUILT_IN or ":" in value:
        raise ValueError(f"`{value}` is a name durun gives itself; take one of your own")
    if not ERROR_NAME.fullmatch(value):
        raise ValueError(f"`{value}` is no name of an error: letters, digits, `_`, `.` and `-`, a letter first")
    return value


def matcher(value: Json) -> str:
    """A matcher in its one spelling: `"*"` is any, killed:SIGKILL is killed:KILL."""
    if not isinstance(value, str):
        raise ValueError("the name of an error is wanted here")
    if value in ("*", "any"):
        return "any"
    family, _, rest = value.partition(":")
    if not rest and (ERROR_NAME.fullmatch(value) or value in BUILT_IN):
        return value
    if family == "exit" and re.fullmatch(r"\d{1,3}", rest) and int(rest) <= 255:
        return f"exit:{int(rest)}"
    if family == "killed" and re.fullmatch(r"[A-Z0-9]+", rest):
        return f"killed:{rest.removeprefix('SIG')}"
    if family == "http" and re.fullmatch(r"[1-5](\d\d|xx)", rest):
        return value
    raise ValueError(f"`{value}` is no name of an error: such as exit:1, killed:TERM, timeout, any, or one of your own")


def _not_in_doubt(value: list[str]) -> list[str]:
    if "in_doubt" in value:
        raise ValueError("a doubt is not retried by a rule: make the state `idempotent`, give it a `probe`, or catch it")
    return value


def _a_list(value: Json) -> Json:
    return value if isinstance(value, list) else [value]


def _output(value: Json) -> Json:
    return {"format": value} if isinstance(value, str) else value


def _argv_or_script(value: Json) -> Json:
    if isinstance(value, str):
        if "${{" in value:
            raise ValueError(
                'nothing is ever put into a shell script: pass the value by `env:` and write "$NAME", or make `run` a list'
            )
        if not value.strip():
            raise ValueError("the script is empty")
        return value
    if isinstance(value, list) and value:
        for word in value:
            if isinstance(word, dict | list) or word is None:
                raise ValueError("the words of a command are texts, numbers or booleans")
        return value
    raise ValueError("a command is a list of words, or a text for the shell")


def _schema(value: Json) -> Json:
    """The short form of a type as a schema."""
    if value == "any":
        return {}
    if isinstance(value, str):
        return {"type": value}
    return value


def _names(value: dict[str, Json]) -> dict[str, Json]:
    for name in value:
        if not NAME.fullmatch(name) or name in NO_NAMES:
            raise ValueError(f"`{name}` is no name: small letters, digits and `_`, a letter first, at most 64")
    return value


def _variables(value: dict[str, Json]) -> dict[str, Json]:
    for name, given in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"`{name}` is no name of an environment variable")
        if name.startswith("DURUN_"):
            raise ValueError(f"`{name}`: names that begin with DURUN_ are durun's")
        if given is None or isinstance(given, list | dict):
            raise ValueError(f"`{name}` must be a text, a number or a boolean")
    return value


Text = Annotated[str, BeforeValidator(_text)]
Span = Annotated[int | str, BeforeValidator(_duration)]
FixedSpan = Annotated[int, BeforeValidator(_fixed_duration)]
Matcher = Annotated[str, BeforeValidator(matcher)]
Matchers = Annotated[list[Matcher], BeforeValidator(_a_list), Field(min_length=1)]
Values = Annotated[dict[str, Json], AfterValidator(_names)]
Env = Annotated[dict[str, Json], AfterValidator(_variables)]
Codes = Annotated[list[Annotated[StrictInt, Field(ge=0, le=255)]], BeforeValidator(_a_list), Field(min_length=1)]
Command = Annotated[Json, BeforeValidator(_argv_or_script)]
Leave = Annotated[StrictBool | FixedSpan, Field()]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Rule(Shape):
    on: Annotated[Matchers, AfterValidator(_not_in_doubt)] = ["any"]
    max_attempts: Annotated[StrictInt, Field(ge=1)] | None = None
    max_elapsed: FixedSpan | None = None
    initial_interval: FixedSpan = 1000
    backoff: Annotated[float, Field(ge=1, le=1000, strict=False)] = 2
    max_interval: FixedSpan = 60_000
    jitter: Literal["full", "none"] = "full"


def _rules(value: Json) -> Json:
    if value in (0, False):
        raise ValueError("leave `retry` out: without it nothing is retried")
    return value if isinstance(value, list) else [value]


Rules = Annotated[list[Rule], BeforeValidator(_rules)]


class Catch(Shape):
    on: Matchers
    next: Text
    assign: Values = {}


class Output(Shape):
    format: Literal["json", "text", "lines"]
    schema_: Annotated[Json, BeforeValidator(_schema)] = Field(default=None, alias="schema")


class Probe(Shape):
    run: Command
    yes: Codes = [0]
    no: Codes = [1]
    shell: Literal["sh", "bash"] | None = None
    timeout: Span | None = None
    retry: Rules | None = None
    idempotent: StrictBool | FixedSpan | None = None
    env: Env = {}
    cwd: Text | None = None
    stdin: Json = None


class Poll(Shape):
    until: Text
    every: Span = 5000
    times: Annotated[StrictInt, Field(ge=1)] = 1
    lasts: Span = Field(alias="for")


class Line(Shape):
    when: Text | None = None
    next: Text


class At(Shape):
    at: Text


class Fail(Shape):
    error: Annotated[Text, AfterValidator(_error_name)]
    message: Text | None = None
    data: Json = None


def _wait(value: Json) -> Json:
    return value if isinstance(value, dict) else {"lasts": value}


class Wait(Shape):
    lasts: Span | None = None
    at: Text | None = None


class Nothing(Shape):
    pass


class State(Shape):
    description: Text | None = None
    next: Text | None = None
    catch: list[Catch] = []
    timeout: Span | None = None
    heartbeat: Span | None = None
    retry: Rules | None = None
    idempotent: StrictBool | FixedSpan | None = None
    key: Text | None = None
    probe: Probe | None = None
    assign: Values = {}
    output: Annotated[Output | None, BeforeValidator(_output)] = None
    env: Env = {}
    cwd: Text | None = None
    stdin: Json = None
    expect: Codes | None = None
    shell: Literal["sh", "bash"] | None = None
    poll: Poll | None = None
    max_visits: Annotated[StrictInt, Field(ge=1)] = 10_000
    run: Command = None
    wait: Annotated[Wait | None, BeforeValidator(_wait)] = None
    choice: Annotated[list[Line] | None, Field(min_length=1)] = None
    pass_: Nothing | None = Field(default=None, alias="pass")
    fail: Fail | None = None


class Defaults(Shape):
    timeout: Span | None = None
    heartbeat: Span | None = None
    retry: Rules | None = None
    env: Env = {}
    cwd: Text | None = None
    shell: Literal["sh", "bash"] | None = None
    idempotent: StrictBool | FixedSpan | None = None


class Pins(Shape):
    env: list[Text] = []


def _plan_name(value: str) -> str:
    if not PLAN_NAME.fullmatch(value):
        raise ValueError(f"`{value}` is no name of a plan: small letters, digits and `-`, a letter first, at most 64")
    return value


def _stop(value: Json) -> Json:
    if value == "compensate":
        raise ValueError(not_yet("compensate"))
    if value != "stop":
        raise ValueError("`stop` or `compensate` is wanted here")
    return value


class Plan(Shape):
    durun: Literal[1]
    name: Annotated[Text, AfterValidator(_plan_name)]
    version: Text | None = None
    description: Text | None = None
    input: Values = {}
    vars: Values = {}
    pins: Pins = Pins()
    on_error: Annotated[str, BeforeValidator(_stop)] = "stop"
    on_cancel: Annotated[str, BeforeValidator(_stop)] = "stop"
    defaults: Defaults = Defaults()
    output: Json = None
    start: Text
    states: Annotated[dict[str, State], AfterValidator(_names), Field(min_length=1)]


# which keys fit which kind, beside description, next, catch, assign and max_visits
FITS = {
    "run": {
        "run", "timeout", "heartbeat", "retry", "idempotent", "key", "probe", "output", "env", "cwd", "stdin", "expect",
        "shell", "poll", "next", "catch", "assign",
    },
    "wait": {"wait", "next", "catch", "assign"},
    "pass": {"pass", "next", "catch", "assign"},
    "choice": {"choice", "catch", "assign"},
    "fail": {"fail"},
}  # fmt: skip
ALWAYS = {"description", "max_visits"}

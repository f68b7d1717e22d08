"""What a person may write: the shapes of a plan, as frozen pydantic models. A word is added to the language here.

- what belongs to the language but is not built yet is known by name and refused as "not yet", never ignored
- a key that is given nothing (`timeout:` and no more) is a fault: left out and empty are not the same
- a value says what is wrong with it in durun's words; where it stands, `load` knows
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag

from durun.plan.names import BUILT_IN, NAMED, PLAN, own_error
from durun.plan.units import SPELLING, duration, moment, rate, size

Json = Any

T = TypeVar("T")

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"  # read by pydantic whenever it builds a shape
FINDER = "pydantic.plugin._loader"  # where it would look for them; were it to look elsewhere, only the time would be lost
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
    text = str(value)
    return f"`{text if len(text) <= 40 else text[:37] + '…'}`"


# --- values ---


def _something(value: Json) -> Json:
    if value is None:
        raise ValueError("nothing is given here: give a value, or leave the key out")
    return value


def _text(value: Json) -> Json:
    if not isinstance(value, str):
        wanted = "a text is wanted here"
        raise ValueError(f"{wanted}, not {shown(value)}" + ("; put it in quotes" if isinstance(value, bool | int | float) else ""))
    return value


def _filled(value: str) -> str:
    if not value.strip():
        raise ValueError("this text is empty")
    return value


def _duration(value: Json) -> Json:
    """Milliseconds; a text with an expression stays what it is."""
    if isinstance(value, str):
        return value if "${{" in value else duration(value)
    raise ValueError(f"{shown(value)} is no duration; {SPELLING}")


def _fixed_duration(value: Json) -> Json:
    if isinstance(value, str) and "${{" in value:
        raise ValueError("no expression may stand here: write a duration such as 30s")
    return _duration(value)


def _longer(value: Json) -> Json:
    if value == 0:
        raise ValueError("a duration of nothing has no sense here")
    return value


def _leave(value: Json) -> Json:
    """`idempotent`: a boolean, or how long the far side remembers the key."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _longer(_fixed_duration(value))
    raise ValueError(f"true, false or a duration such as 24h is wanted here, not {shown(value)}")


def _number(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a number is wanted here, not {shown(value)}")
    if not 1 <= value <= 1000:
        raise ValueError(f"a number from 1 to 1000 is wanted here, not {shown(value)}")
    return float(value)


def _error_name(value: str) -> str:
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


def _method(value: str) -> str:
    if not METHOD.fullmatch(value) or value in ("CONNECT", "TRACE"):
        near = nearest(value.upper(), METHODS)
        raise ValueError(f"{shown(value)} is no method: such as {', '.join(METHODS)}, in capital letters{near}")
    return value


def _header(value: str) -> str:
    if not HEADER.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of a header")
    return value


def _size(value: Json) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no size; write 64KiB or 1MiB")
    if not 0 < size(value) <= LARGEST_BODY:
        raise ValueError(f"{shown(value)}: a body becomes data, so it has at most 16MiB")
    return size(value)


def _statuses(value: Json) -> list[list[int]]:
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


def _schema(value: Json) -> Json:
    """The short form of a type as a schema."""
    if value == "any":
        return {}
    if isinstance(value, str):
        return {"type": value}
    return value


Maybe = Annotated[T | None, BeforeValidator(_something)]  # may be left out, may not be empty
Text = Annotated[str, BeforeValidator(_text)]
Filled = Annotated[Text, AfterValidator(_filled)]
Span = Annotated[int | str, BeforeValidator(_duration)]
Limit = Annotated[int | str, AfterValidator(_longer), BeforeValidator(_duration)]
FixedSpan = Annotated[int, BeforeValidator(_fixed_duration)]
FixedLimit = Annotated[int, AfterValidator(_longer), BeforeValidator(_fixed_duration)]
Matcher = Annotated[str, BeforeValidator(matcher)]
Matchers = Annotated[list[Matcher], BeforeValidator(_a_list), Field(min_length=1)]
Values = dict[str, Json]
Env = dict[str, Json]
Code = Annotated[StrictInt, Field(ge=0, le=255)]
Codes = Annotated[list[Code], BeforeValidator(_a_list), Field(min_length=1)]
Command = Annotated[Json, BeforeValidator(_argv_or_script)]
Leave = Annotated[bool | int, BeforeValidator(_leave)]
Shell = Literal["sh", "bash"]
Statuses = Annotated[list[list[int]], BeforeValidator(_statuses)]
Size = Annotated[int, BeforeValidator(_size)]
Header = Annotated[Text, AfterValidator(_header)]
Count = Annotated[StrictInt, Field(ge=1, le=2**53)]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # built with the plan, not each by itself too


class Rule(Shape):
    on: Annotated[Matchers, AfterValidator(_not_in_doubt)] = ["any"]
    max_attempts: Maybe[Count] = None
    max_elapsed: Maybe[FixedLimit] = None
    initial_interval: FixedSpan = 1000
    backoff: Annotated[float, BeforeValidator(_number)] = 2
    max_interval: FixedSpan = 60_000
    jitter: Literal["full", "none"] = "full"


def _rules(value: Json) -> Json:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        raise ValueError(
            f"`retry` is a rule such as {{max_attempts: 3}}, or a list of rules, not {shown(value)}; left out, nothing is retried"
        )
    return [value]


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
    shell: Maybe[Shell] = None
    timeout: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotent: Maybe[Leave] = None
    env: Env = {}
    cwd: Maybe[Filled] = None
    stdin: Json = None


class Auth(Shape):
    """Who asks: `bearer`, or `user` and `password`."""

    bearer: Maybe[Filled] = None
    user: Maybe[Text] = None
    password: Maybe[Text] = None


class Http(Shape):
    method: Annotated[Text, AfterValidator(_method)] = "GET"
    url: Filled
    headers: Values = {}
    json_: Json = Field(default=None, alias="json")
    form: Maybe[Values] = None
    body: Json = None
    expect: Statuses = [[200, 299]]
    max_body: Size = 1024**2
    auth: Maybe[Auth] = None


class HttpProbe(Shape):
    http: Http
    yes: Statuses = [[200, 299]]
    no: Statuses = [[404, 404]]
    timeout: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotent: Maybe[Leave] = None


AnyProbe = Annotated[
    Annotated[Probe, Tag("(run)")] | Annotated[HttpProbe, Tag("(http)")],
    Discriminator(lambda value: "(http)" if isinstance(value, dict) and "http" in value and "run" not in value else "(run)"),
]


class Poll(Shape):
    until: Filled
    every: Limit = 5000
    times: Count = 1
    lasts: Limit = Field(alias="for")


class Line(Shape):
    when: Maybe[Filled] = None
    next: Text


class Fail(Shape):
    error: Annotated[Text, AfterValidator(_error_name)]
    message: Maybe[Text] = None
    data: Json = None


def _time(value: str) -> str:
    if "${{" not in value:
        moment(value)
    return value


class At(Shape):
    at: Annotated[Text, AfterValidator(_time)]


def _signal_name(value: str) -> str:
    if not NAMED.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of a signal: letters, digits, `_`, `.` and `-`, a letter first")
    return value


class Heard(Shape):
    signal: Annotated[Text, AfterValidator(_signal_name)]
    schema_: Annotated[Json, BeforeValidator(_schema)] = Field(default=None, alias="schema")
    heartbeat: Maybe[Limit] = None


def _way_to_wait(value: Json) -> str:
    if not isinstance(value, dict):
        return "(lasts)"
    return "(signal)" if {"signal", "schema", "heartbeat"} & set(value) else "(at)"


# the parts in brackets name the ways a value may be written; they are no part of its place
Wait = Annotated[
    Annotated[Span, Tag("(lasts)")] | Annotated[At, Tag("(at)")] | Annotated[Heard, Tag("(signal)")],
    Discriminator(_way_to_wait),
]


def _option_name(value: str) -> str:
    if not OPTION.fullmatch(value):
        raise ValueError(f"{shown(value)} is no answer: letters, digits, `_`, `.` and `-`, at most 64")
    return value


class Option(Shape):
    name: Annotated[Text, AfterValidator(_option_name)]
    reject: bool = False


def _option(value: Json) -> Json:
    return value if isinstance(value, dict) else {"name": value}


def _options(value: list[Option]) -> list[Option]:
    names = [option.name for option in value]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the answer {shown(name)} is there twice")
    if all(option.reject for option in value):
        raise ValueError("every answer is a no: nothing could go on")
    return value


class Approval(Shape):
    message: Filled
    data: Json = None
    options: Annotated[
        list[Annotated[Option, BeforeValidator(_option)]], BeforeValidator(_a_list), Field(min_length=1), AfterValidator(_options)
    ] = Field(default_factory=lambda: [Option.model_construct(name="yes"), Option.model_construct(name="no", reject=True)])
    schema_: Annotated[Json, BeforeValidator(_schema)] = Field(default=None, alias="schema")


class Nothing(Shape):
    pass


ENDINGS = Literal["done", "failed", "in_doubt"]


class Compensation(Shape):
    """How what a state did is undone: one command or request."""

    run: Command = None
    http: Maybe[Http] = None
    shell: Maybe[Shell] = None
    timeout: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotent: Maybe[Leave] = None
    idempotency_header: Maybe[Header] = None
    probe: Maybe[AnyProbe] = None
    env: Env = {}
    cwd: Maybe[Filled] = None
    stdin: Json = None
    expect: Maybe[Codes] = None
    after: Annotated[list[ENDINGS], BeforeValidator(_a_list), Field(min_length=1)] = ["done"]
    if_: Maybe[Filled] = Field(default=None, alias="if")
    key: ClassVar[None] = None
    poll: ClassVar[None] = None
    output: ClassVar[None] = None


def _failures(value: Json) -> Json:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value == "all" or (isinstance(value, str) and re.fullmatch(r"(100|[0-9]{1,2})%", value)):
        return value
    raise ValueError(f"how many may fail: a number, a share such as 25%, or all, not {shown(value)}")


def _now(value: Json) -> Json:
    if value != "now":
        raise ValueError(f"`now` is wanted here, not {shown(value)}; left out, what is under way goes on to its end")
    return value


class Policy(Shape):
    concurrency: Maybe[Count] = None
    failures: Annotated[int | str, BeforeValidator(_failures)] = 0
    enough: Maybe[Count] = None
    stop: Annotated[str | None, BeforeValidator(_now)] = None


class Branch(Shape):
    start: Text
    states: Annotated[dict[str, State], Field(min_length=1)]
    output: Json = None


class Parallel(Policy):
    branches: Annotated[dict[str, Branch], Field(min_length=1)]


class Map(Policy, Branch):
    items: Filled
    label: Maybe[Text] = None


class Child(Shape):
    file: Filled
    input: Values = {}
    id: Maybe[Text] = None


class State(Shape):
    description: Maybe[Text] = None
    next: Maybe[Text] = None
    catch: list[Catch] = []
    timeout: Maybe[Limit] = None
    heartbeat: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotent: Maybe[Leave] = None
    key: Maybe[Filled] = None
    probe: Maybe[AnyProbe] = None
    assign: Values = {}
    output: Annotated[Output | None, BeforeValidator(_output)] = None
    env: Env = {}
    cwd: Maybe[Filled] = None
    stdin: Json = None
    expect: Maybe[Codes] = None
    shell: Maybe[Shell] = None
    poll: Maybe[Poll] = None
    max_visits: Count = 10_000
    idempotency_header: Maybe[Header] = None
    run: Command = None
    http: Maybe[Http] = None
    wait: Maybe[Wait] = None
    approval: Maybe[Approval] = None
    choice: Maybe[Annotated[list[Line], Field(min_length=1)]] = None
    pass_: Nothing | None = Field(default=None, alias="pass")
    fail: Maybe[Fail] = None
    parallel: Maybe[Parallel] = None
    map: Maybe[Map] = None
    plan: Maybe[Child] = None
    compensate: Maybe[Compensation] = None
    pivot: StrictBool = False
    background: StrictBool = False
    limit: Maybe[Text] = None


MOMENTS = Literal["approval", "signal", "blocked", "succeeded", "failed", "cancelled", "compensated"]


class Notify(Shape):
    """Whom a run tells of what becomes of it: one command or request, sent in the background."""

    on: Annotated[list[MOMENTS], BeforeValidator(_a_list), Field(min_length=1)]
    run: Command = None
    http: Maybe[Http] = None
    shell: Maybe[Shell] = None
    timeout: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotency_header: Maybe[Header] = None
    env: Env = {}
    cwd: Maybe[Filled] = None
    stdin: Json = None
    expect: Maybe[Codes] = None
    idempotent: ClassVar[bool] = True
    key: ClassVar[None] = None
    poll: ClassVar[None] = None
    output: ClassVar[None] = None
    probe: ClassVar[None] = None


class Defaults(Shape):
    timeout: Maybe[Limit] = None
    heartbeat: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    env: Env = {}
    cwd: Maybe[Filled] = None
    shell: Maybe[Shell] = None
    idempotent: Maybe[Leave] = None


def _variable(value: str) -> str:
    if not VARIABLE.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of an environment variable")
    return value


class SecretOf(Shape):
    """A secret that is not a variable of the environment: the text of a file, or what a command prints."""

    name: Annotated[Text, AfterValidator(_variable)]
    file: Maybe[Filled] = None
    run: Maybe[Command] = None


def _secret(value: Json) -> Json:
    if isinstance(value, dict):
        if sum(word in value for word in ("file", "run")) > 1:
            raise ValueError("a secret comes from a `file` or from what `run` prints, not from both")
        return value
    return {"name": value}


def _tool(value: Json) -> Json:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value) or not value[0]:
        raise ValueError(f"a tool is asked by a list of words such as [pay, --version], not {shown(value)}")
    return value


class Pins(Shape):
    env: list[Annotated[Text, AfterValidator(_variable)]] = []
    files: list[Filled] = []
    tools: dict[str, Annotated[list[str], BeforeValidator(_tool)]] = {}


def _plan_name(value: str) -> str:
    if not PLAN.fullmatch(value):
        raise ValueError(f"{shown(value)} is no name of a plan: small letters, digits and `-`, a letter first, at most 64")
    return value


def _language(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int) or value != 1:
        raise ValueError(f"this durun reads version 1 of the language: `durun: 1`, not {shown(value)}")
    return value


def _rate(value: Json) -> Json:
    if isinstance(value, str):
        return rate(value)
    raise ValueError(f"{shown(value)} is no rate; write 25/s, 100/m or 1000/h")


class SharedLimit(Shape):
    """What all runs in the file may have under way at once, and may begin in a time."""

    concurrency: Maybe[Count] = None
    rate: Annotated[tuple[int, int] | None, BeforeValidator(_rate), BeforeValidator(_something)] = None


class Group(Shape):
    name: Filled
    if_busy: Literal["refuse", "skip", "wait"] = "refuse"


def _stop(value: Json) -> Json:
    if value not in ("stop", "compensate"):
        raise ValueError(f"`stop` or `compensate` is wanted here, not {shown(value)}")
    return value


class Migration(Shape):
    """What becomes of a run of an older version that is moved to this plan."""

    from_: Annotated[list[Filled], BeforeValidator(_a_list), Field(min_length=1, alias="from")]
    map: dict[str, Text] = {}
    set: Values = {}


def _on_drift(value: Json) -> Json:
    if value not in ("ask", "continue"):
        raise ValueError(f"`ask` or `continue` is wanted here, not {shown(value)}")
    return value


class Plan(Shape):
    durun: Annotated[int, BeforeValidator(_language)]
    name: Annotated[Text, AfterValidator(_plan_name)]
    version: Maybe[Filled] = None
    description: Maybe[Text] = None
    input: Values = {}
    vars: Values = {}
    vars_schema: Annotated[Json, BeforeValidator(_something)] = None
    timeout: Maybe[Limit] = None
    pins: Pins = Field(default_factory=Pins.model_construct)
    secrets: list[Annotated[SecretOf, BeforeValidator(_secret)]] = []
    on_error: Annotated[str, BeforeValidator(_stop)] = "stop"
    on_cancel: Annotated[str, BeforeValidator(_stop)] = "stop"
    limits: dict[str, SharedLimit] = {}
    group: Maybe[Group] = None
    on_drift: Annotated[str, BeforeValidator(_on_drift)] = "ask"
    migrations: list[Migration] = []
    defaults: Defaults = Field(default_factory=Defaults.model_construct)
    notify: list[Notify] = []
    output: Json = None
    start: Text
    states: Annotated[dict[str, State], Field(min_length=1)]


def shaped(data: dict[str, Json]) -> Plan:
    """The plan in its shapes, which are built when the first one is read. Raises ValidationError.

    What is left out of a plan is made of its defaults alone (`model_construct`): no shape but the plan's own is built for it.
    """
    if not Plan.__pydantic_complete__:
        with _without_plugins():
            Plan.model_rebuild()
    return Plan.model_validate(data)


@contextmanager
def _without_plugins() -> Iterator[None]:
    """pydantic's plugins are left out: none has a say in what a plan is. To look for them in all that is installed takes time, and
    to load what would look for them a fifth of the reading of a plan; so nothing stands in its place while shapes are built.
    """
    before, nothing = os.environ.get(PLUGINS), ModuleType(FINDER)
    nothing.get_plugins = lambda: ()  # type: ignore[attr-defined]
    os.environ[PLUGINS] = "__all__"
    stands = sys.modules.setdefault(FINDER, nothing)
    try:
        yield
    finally:
        if stands is nothing:
            del sys.modules[FINDER]
        os.environ.pop(PLUGINS)
        os.environ.update({} if before is None else {PLUGINS: before})


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

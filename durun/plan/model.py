"""What a person may write: the shapes of a plan, as frozen pydantic models. A word is added to the language here.

- a plan that is well formed is taken by a table of what stands here, without this room (`shapes`); what is written anew here is
  written into it by scripts/shapes, and a test holds the two equal
- a key that is given nothing (`timeout:` and no more) is a fault: left out and empty are not the same
- a value says what is wrong with it in durun's words, by the functions of `words`; where it stands, `load` knows
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag

from durun.plan import words

Json = Any

T = TypeVar("T")

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"  # read by pydantic whenever it builds a shape
FINDER = "pydantic.plugin._loader"  # where it would look for them; were it to look elsewhere, only the time would be lost

Maybe = Annotated[T | None, BeforeValidator(words.something)]  # may be left out, may not be empty
Text = Annotated[str, BeforeValidator(words.text)]
Filled = Annotated[Text, AfterValidator(words.filled)]
Folder = Annotated[Text, AfterValidator(words.filled), AfterValidator(words.below)]
Key = Annotated[Text, AfterValidator(words.filled), AfterValidator(words.key)]
Span = Annotated[int | str, BeforeValidator(words.span)]
Limit = Annotated[int | str, AfterValidator(words.longer), BeforeValidator(words.span)]
FixedSpan = Annotated[int, BeforeValidator(words.fixed_span)]
FixedLimit = Annotated[int, AfterValidator(words.longer), BeforeValidator(words.fixed_span)]
Matcher = Annotated[str, BeforeValidator(words.matcher)]
Matchers = Annotated[list[Matcher], BeforeValidator(words.a_list), Field(min_length=1)]
Values = dict[str, Json]
Env = dict[str, Json]
Code = Annotated[StrictInt, Field(ge=0, le=255)]
Codes = Annotated[list[Code], BeforeValidator(words.a_list), Field(min_length=1)]
Command = Annotated[Json, BeforeValidator(words.command)]
Leave = Annotated[bool | int, BeforeValidator(words.leave)]
Shell = Literal["sh", "bash"]
Statuses = Annotated[list[list[int]], BeforeValidator(words.statuses)]
Size = Annotated[int, BeforeValidator(words.body_size)]
Header = Annotated[Text, AfterValidator(words.header)]
Count = Annotated[StrictInt, Field(ge=1, le=2**53)]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # built with the plan, not each by itself too


class Rule(Shape):
    on: Annotated[Matchers, AfterValidator(words.not_in_doubt)] = ["any"]
    max_attempts: Maybe[Count] = None
    max_elapsed: Maybe[FixedLimit] = None
    initial_interval: FixedSpan = 1000
    backoff: Annotated[float, BeforeValidator(words.number)] = 2
    max_interval: FixedSpan = 60_000
    jitter: Literal["full", "none"] = "full"


Rules = Annotated[list[Rule], BeforeValidator(words.rules)]


class Catch(Shape):
    on: Matchers
    next: Text
    assign: Values = {}


class Output(Shape):
    format: Literal["json", "text", "lines"]
    schema_: Annotated[Json, BeforeValidator(words.schema)] = Field(default=None, alias="schema")


class Probe(Shape):
    run: Command
    yes: Codes = [0]
    no: Codes = [1]
    shell: Maybe[Shell] = None
    timeout: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotent: Maybe[Leave] = None
    env: Env = {}
    cwd: Maybe[Folder] = None
    stdin: Json = None
    http: ClassVar[None] = None


class Auth(Shape):
    """Who asks: `bearer`, or `user` and `password`."""

    bearer: Maybe[Filled] = None
    user: Maybe[Text] = None
    password: Maybe[Text] = None


class Http(Shape):
    method: Annotated[Text, AfterValidator(words.method)] = "GET"
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
    Discriminator(words.way_to_ask),
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
    error: Annotated[Text, AfterValidator(words.error_name)]
    message: Maybe[Text] = None
    data: Json = None


class At(Shape):
    at: Annotated[Text, AfterValidator(words.time)]


class Heard(Shape):
    signal: Annotated[Text, AfterValidator(words.signal_name)]
    schema_: Annotated[Json, BeforeValidator(words.schema)] = Field(default=None, alias="schema")
    heartbeat: Maybe[Limit] = None


# the parts in brackets name the ways a value may be written; they are no part of its place
Wait = Annotated[
    Annotated[Span, Tag("(lasts)")] | Annotated[At, Tag("(at)")] | Annotated[Heard, Tag("(signal)")],
    Discriminator(words.way_to_wait),
]


class Option(Shape):
    name: Annotated[Text, AfterValidator(words.option_name)]
    reject: bool = False


class Approval(Shape):
    message: Filled
    data: Json = None
    options: Annotated[
        list[Annotated[Option, BeforeValidator(words.option)]],
        BeforeValidator(words.a_list),
        Field(min_length=1),
        AfterValidator(words.options),
    ] = Field(default_factory=lambda: [Option.model_construct(name="yes"), Option.model_construct(name="no", reject=True)])
    schema_: Annotated[Json, BeforeValidator(words.schema)] = Field(default=None, alias="schema")


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
    cwd: Maybe[Folder] = None
    stdin: Json = None
    expect: Maybe[Codes] = None
    after: Annotated[list[ENDINGS], BeforeValidator(words.a_list), Field(min_length=1)] = ["done"]
    if_: Maybe[Filled] = Field(default=None, alias="if")
    key: ClassVar[None] = None
    poll: ClassVar[None] = None
    output: ClassVar[None] = None
    background: ClassVar[bool] = False
    compensate: ClassVar[None] = None
    limit: ClassVar[None] = None
    pivot: ClassVar[bool] = False


class Policy(Shape):
    concurrency: Maybe[Count] = None
    failures: Annotated[int | str, BeforeValidator(words.failures)] = 0
    enough: Maybe[Count] = None
    stop: Annotated[str | None, BeforeValidator(words.now)] = None


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
    key: Maybe[Key] = None
    probe: Maybe[AnyProbe] = None
    assign: Values = {}
    output: Annotated[Output | None, BeforeValidator(words.output)] = None
    env: Env = {}
    cwd: Maybe[Folder] = None
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

    on: Annotated[list[MOMENTS], BeforeValidator(words.a_list), Field(min_length=1)]
    run: Command = None
    http: Maybe[Http] = None
    shell: Maybe[Shell] = None
    timeout: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    idempotency_header: Maybe[Header] = None
    env: Env = {}
    cwd: Maybe[Folder] = None
    stdin: Json = None
    expect: Maybe[Codes] = None
    idempotent: ClassVar[bool] = True
    key: ClassVar[None] = None
    poll: ClassVar[None] = None
    output: ClassVar[None] = None
    probe: ClassVar[None] = None
    background: ClassVar[bool] = False
    compensate: ClassVar[None] = None
    limit: ClassVar[None] = None
    pivot: ClassVar[bool] = False


class Defaults(Shape):
    timeout: Maybe[Limit] = None
    heartbeat: Maybe[Limit] = None
    retry: Maybe[Rules] = None
    env: Env = {}
    cwd: Maybe[Folder] = None
    shell: Maybe[Shell] = None
    idempotent: Maybe[Leave] = None


class SecretOf(Shape):
    """A secret that is not a variable of the environment: the text of a file, or what a command prints."""

    name: Annotated[Text, AfterValidator(words.variable)]
    file: Maybe[Filled] = None
    run: Maybe[Command] = None


class Pins(Shape):
    env: list[Annotated[Text, AfterValidator(words.variable)]] = []
    files: list[Filled] = []
    tools: dict[str, Annotated[list[str], BeforeValidator(words.tool)]] = {}


class SharedLimit(Shape):
    """What all runs in the file may have under way at once, and may begin in a time."""

    concurrency: Maybe[Count] = None
    rate: Annotated[tuple[int, int] | None, BeforeValidator(words.begun_rate), BeforeValidator(words.something)] = None


class Group(Shape):
    name: Filled
    if_busy: Literal["refuse", "skip", "wait"] = "refuse"


class Migration(Shape):
    """What becomes of a run of an older version that is moved to this plan."""

    from_: Annotated[list[Filled], BeforeValidator(words.a_list), Field(min_length=1, alias="from")]
    map: dict[str, Text] = {}
    set: Values = {}


class Plan(Shape):
    durun: Annotated[int, BeforeValidator(words.language)]
    name: Annotated[Text, AfterValidator(words.plan_name)]
    version: Maybe[Filled] = None
    description: Maybe[Text] = None
    input: Values = {}
    vars: Values = {}
    vars_schema: Annotated[Json, BeforeValidator(words.something)] = None
    timeout: Maybe[Limit] = None
    pins: Pins = Field(default_factory=Pins.model_construct)
    secrets: list[Annotated[SecretOf, BeforeValidator(words.secret)]] = []
    on_error: Annotated[str, BeforeValidator(words.stop)] = "stop"
    on_cancel: Annotated[str, BeforeValidator(words.stop)] = "stop"
    limits: dict[str, SharedLimit] = {}
    group: Maybe[Group] = None
    on_drift: Annotated[str, BeforeValidator(words.on_drift)] = "ask"
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

"""The form a run is pinned to: a checked plan as plain JSON, and the types that read it.

`plan/load` makes it, `store` keeps it under its SHA-256, `machine` reads it. Nothing here imports pydantic or YAML, so a
driver that resumes does not either.

Rules of the form:
- what a person may leave out is filled in: `defaults` are merged into each `run` state, its probe and its undo
- durations are integers of milliseconds; one that holds `${{ }}` stays the string it was and is read when it is used
- strings that hold `${{ }}` stay as they were written; bare expressions (`when`) too
- keys are sorted when it is written, lists keep their order
"""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import dirname, join, normpath
from typing import Any

from durun.values import TypedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NotRequired

Json = Any  # None, bool, int, float, str, list of Json, dict of str to Json
Template = Any  # Json whose strings may hold ${{ }}


class Rule(TypedDict):
    """One retry rule. `max_attempts` counts the first try; null: no end (only where `max_elapsed` is given)."""

    on: list[str]
    max_attempts: int | None
    max_elapsed: int | None  # ms
    initial_interval: int  # ms
    backoff: float
    max_interval: int  # ms
    jitter: Literal["full", "none"]


class Catch(TypedDict):
    on: list[str]
    next: str
    assign: dict[str, Template]


class Output(TypedDict):
    """What stdout is read as."""

    format: Literal["json", "text", "lines"]
    schema: NotRequired[Json]


class Act(TypedDict):
    """A command. Exactly one of `argv` and `script` is there. `files`: the digest of the tree of files that its plan pins."""

    argv: NotRequired[list[Template]]
    script: NotRequired[str]
    shell: NotRequired[Literal["sh", "bash"]]  # with script
    env: dict[str, Template]
    cwd: NotRequired[Template]
    stdin: NotRequired[Template]
    timeout: NotRequired[int | str]
    heartbeat: NotRequired[int | str]
    files: NotRequired[str]


class Request(TypedDict):
    """A request. At most one of `json`, `form` and `body` is there."""

    method: str
    url: Template
    headers: dict[str, Template]
    json: NotRequired[Template]
    form: NotRequired[dict[str, Template]]
    body: NotRequired[Template]
    auth: NotRequired[dict[str, Template]]  # bearer, or user and password
    expect: list[list[int]]  # ranges of statuses, both ends counted
    max_body: int  # bytes
    timeout: int | str
    key_header: NotRequired[str]  # where its key goes; a probe sends none


class Probe(Act):
    """A command that finds out, or a request (then it has the keys of one). Of a request `yes` and `no` are ranges."""

    yes: list[Json]
    no: list[Json]
    retry: list[Rule]
    idempotent: bool | int


class Poll(TypedDict):
    until: str
    every: int | str
    times: int
    # how long in all; spelt `for` in a plan
    lasts: int | str


class Branch(TypedDict):
    """One line of a choice; without `when` it is always taken."""

    when: NotRequired[str]
    next: str


class Fail(TypedDict):
    error: str
    message: NotRequired[Template]
    data: NotRequired[Template]


class Wait(TypedDict):
    """Exactly one of the three: `lasts` (a duration), `at` (an RFC 3339 time with offset) or `signal` (a name)."""

    lasts: NotRequired[int | str]
    at: NotRequired[Template]
    signal: NotRequired[str]
    schema: NotRequired[Json]  # with signal: what its payload must look like
    heartbeat: NotRequired[int | str]  # with signal: the longest silence


class Option(TypedDict):
    name: str
    reject: bool  # it is a no


class Approval(TypedDict):
    message: Template
    data: NotRequired[Template]
    options: list[Option]
    schema: NotRequired[Json]  # what is filled in


class Level(TypedDict):
    """States to walk through: a plan, a branch, or what is done for each item. Without `output` it gives null."""

    start: str
    states: dict[str, State]
    output: NotRequired[Template]


class Line(Level):
    """One branch of a parallel."""

    name: str


class Policy(TypedDict):
    """How many of its parts may fail, and how many are enough."""

    concurrency: int | None  # null: all at once
    failures: int | str  # how many, a share such as 25%, or all
    enough: int | None
    stop: NotRequired[Literal["now"]]


class Parallel(Policy):
    branches: list[Line]


class Map(Policy, Level):
    items: str
    label: NotRequired[Template]


class Child(TypedDict):
    file: str
    input: dict[str, Template]
    id: NotRequired[Template]
    pinned: Plan


class State(TypedDict):
    kind: Literal["run", "http", "wait", "approval", "choice", "pass", "fail", "parallel", "map", "plan"]
    description: NotRequired[str]
    next: NotRequired[str]  # not on choice and fail
    catch: list[Catch]
    assign: dict[str, Template]
    max_visits: int
    act: NotRequired[Any]  # Act of a run, Request of a http
    expect: NotRequired[list[int]]  # run
    retry: NotRequired[list[Rule]]  # run, http
    idempotent: NotRequired[bool | int]  # run, http; an integer is a duration in ms
    key: NotRequired[Template]  # run, http
    probe: NotRequired[Probe]  # run, http
    output: NotRequired[Output]  # run
    poll: NotRequired[Poll]  # run, http
    wait: NotRequired[Wait]  # wait
    approval: NotRequired[Approval]  # approval
    timeout: NotRequired[int | str]  # approval, and a wait for a signal
    choice: NotRequired[list[Branch]]  # choice
    fail: NotRequired[Fail]  # fail
    parallel: NotRequired[Parallel]  # parallel
    map: NotRequired[Map]  # map
    plan: NotRequired[Child]  # plan
    compensate: NotRequired[Json]  # run, http: a state of its own, with `after` and perhaps `if`
    pivot: NotRequired[bool]  # run, http
    background: NotRequired[bool]  # run, http: its intent is recorded, and the run goes on
    limit: NotRequired[str]  # run, http


class Limit(TypedDict):
    """What all runs in the file share by name. At least one is given."""

    concurrency: NotRequired[int]
    rate: NotRequired[list[int]]  # how many, in how many ms


class Group(TypedDict):
    name: Template
    if_busy: Literal["refuse", "skip", "wait"]


class Input(TypedDict):
    schema: Json  # a JSON Schema
    required: bool
    default: NotRequired[Json]


class Pins(TypedDict):
    """What goes with a run. `files`: path -> [SHA-256, mode], as they were when the plan was read; `tools`: name -> argv."""

    env: list[str]
    files: NotRequired[dict[str, Any]]
    tree: NotRequired[str]  # the digest of `files`
    tools: NotRequired[dict[str, list[str]]]


class Secret(TypedDict):
    """Where a secret is read when it is used: the variable of its name, a file, or what a command prints."""

    name: str
    file: NotRequired[str]
    run: NotRequired[Json]


class Notify(TypedDict):
    """Whom a run tells of what becomes of it. Beside these it has the keys of a state that acts."""

    on: list[Literal["approval", "signal", "blocked", "succeeded", "failed", "cancelled", "compensated"]]
    kind: Literal["run", "http"]
    act: Any  # Act, Request
    retry: list[Rule]
    expect: NotRequired[list[int]]


class Plan(TypedDict):
    durun: int
    name: str
    version: str
    description: NotRequired[str]
    input: dict[str, Input]
    vars: dict[str, Template]
    vars_schema: NotRequired[Json]  # a JSON Schema of all vars
    timeout: NotRequired[int | str]  # of the run
    pins: Pins
    secrets: NotRequired[list[Secret]]
    output: NotRequired[Template]
    on_error: NotRequired[Literal["compensate"]]
    on_cancel: NotRequired[Literal["compensate"]]
    notify: NotRequired[list[Notify]]
    limits: NotRequired[dict[str, Limit]]  # also there, and perhaps empty, where only a plan it calls has some
    group: NotRequired[Group]
    on_drift: NotRequired[Literal["continue"]]
    migrations: NotRequired[list[Json]]  # {from: versions, map, set}
    start: str
    states: dict[str, State]


def states_of(plan: Plan) -> Iterator[State]:
    """Every state of a plan: its own, those of branches and items, and those of the plans it calls."""
    for _, one in plans_of(plan):
        yield from own_states(one)


def states_in(plan: Plan) -> set[str]:
    """The names of all of them."""
    names, todo = set[str](), [plan["states"]]
    while todo:
        for name, state in todo.pop().items():
            names.add(name)
            inner = [*state.get("parallel", {}).get("branches", []), *([state["map"]] if "map" in state else [])]
            todo += [level["states"] for level in inner] + ([state["plan"]["pinned"]["states"]] if "plan" in state else [])
    return names


def has_requests(plan: Plan) -> bool:
    """Whether anything that a plan may do is a request."""
    told: list[Json] = [*plan.get("notify", [])]
    return any(map(_requests, told)) or any(_requests(state) or _requests(state.get("compensate", {})) for state in states_of(plan))


def has_messages(plan: Plan) -> bool:
    """Whether a run of it may leave something behind that is still to be delivered."""
    return "notify" in plan or any("background" in state for state in states_of(plan))


def _requests(state: Json) -> bool:
    return "method" in state.get("act", {}) or "method" in state.get("probe", {})


def pinned_names(plan: Plan) -> list[str]:
    """The environment variables that a plan and those it calls take with them."""
    called = [name for state in states_of(plan) if "plan" in state for name in state["plan"]["pinned"]["pins"]["env"]]
    return list(dict.fromkeys([*plan["pins"]["env"], *called]))


def plans_of(plan: Plan, file: str = "") -> Iterator[tuple[str, Plan]]:
    """A plan and those it calls, each with its file, relative to the folder of the first; '' for that itself."""
    todo: list[tuple[str, Plan]] = [(file, plan)]
    while todo:
        at, one = todo.pop()
        yield at, one
        for state in own_states(one):
            if "plan" in state:
                named = normpath(join(dirname(at), state["plan"]["file"]))
                todo.append((named, state["plan"]["pinned"]))


def own_states(plan: Plan) -> Iterator[State]:
    """Every state of a plan, those of branches and items too; not those of the plans it calls."""
    todo: list[Level] = [plan]
    while todo:
        for state in todo.pop()["states"].values():
            yield state
            todo += state["parallel"]["branches"] if "parallel" in state else []
            todo += [state["map"]] if "map" in state else []


def acts_of(state: State) -> Iterator[Any]:
    """The commands and requests of a state: its own, its probe, its undo and the probe of that."""
    undo: Json = state.get("compensate", {})
    for found in (state.get("act"), state.get("probe"), undo.get("act"), undo.get("probe")):
        if found is not None:
            yield found


def files_of(plan: Plan, tree: str) -> dict[str, Any]:
    """The pinned files of the tree with this digest: path -> [SHA-256, mode]."""
    for _, one in plans_of(plan):
        if tree == one["pins"].get("tree"):
            return one["pins"]["files"]
    return {}


def trees_of(plan: Plan) -> dict[str, str]:
    """The trees of files that a plan and those it calls take with them: file of the plan ('' for the first) -> digest."""
    return {file: one["pins"]["tree"] for file, one in plans_of(plan) if "tree" in one["pins"]}


def tools_of(plan: Plan) -> dict[str, list[str]]:
    """The tools that a plan and those it calls ask for their words: name -> argv; one of a called plan is named with it."""
    found: dict[str, list[str]] = dict(plan["pins"].get("tools", {}))
    for file, one in plans_of(plan):
        for name, argv in one["pins"].get("tools", {}).items() if file else ():
            if found.get(name) != argv:
                found[f"{one['name']}/{name}"] = argv
    return found


def has_tools(plan: Plan) -> bool:
    """Whether a plan, or one that it calls, asks tools for their words."""
    return any("tools" in one["pins"] for _, one in plans_of(plan))


ENDS = ("succeeded", "failed", "compensated")  # built-in targets of `next`

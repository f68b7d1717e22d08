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

from typing import Any, Literal, NotRequired, TypedDict

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
    """A command. Exactly one of `argv` and `script` is there."""

    argv: NotRequired[list[Template]]
    script: NotRequired[str]
    shell: NotRequired[Literal["sh", "bash"]]  # with script
    env: dict[str, Template]
    cwd: NotRequired[Template]
    stdin: NotRequired[Template]
    timeout: NotRequired[int | str]
    heartbeat: NotRequired[int | str]


class Probe(Act):
    yes: list[int]
    no: list[int]
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
    """Exactly one of the two: `lasts` (a duration) or `at` (an RFC 3339 time with offset)."""

    lasts: NotRequired[int | str]
    at: NotRequired[Template]


class State(TypedDict):
    kind: Literal["run", "wait", "choice", "pass", "fail"]
    description: NotRequired[str]
    next: NotRequired[str]  # not on choice and fail
    catch: list[Catch]
    assign: dict[str, Template]
    max_visits: int
    act: NotRequired[Act]  # run
    expect: NotRequired[list[int]]  # run
    retry: NotRequired[list[Rule]]  # run
    idempotent: NotRequired[bool | int]  # run; an integer is a duration in ms
    key: NotRequired[Template]  # run
    probe: NotRequired[Probe]  # run
    output: NotRequired[Output]  # run
    poll: NotRequired[Poll]  # run
    wait: NotRequired[Wait]  # wait
    choice: NotRequired[list[Branch]]  # choice
    fail: NotRequired[Fail]  # fail


class Input(TypedDict):
    schema: Json  # a JSON Schema
    required: bool
    default: NotRequired[Json]


class Pins(TypedDict):
    env: list[str]


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
    output: NotRequired[Template]
    start: str
    states: dict[str, State]


ENDS = ("succeeded", "failed", "compensated")  # built-in targets of `next`

"""typer over the same functions: help, completion, and a word for every mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.rich_utils import rich_format_error

from durun import __version__
from durun.cli.reader import COMMANDS, LOOKING, SHORT, function, guarded, refused, visible

WRONG: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")  # of any wrong usage
LONG = {long: short for short, long in SHORT.items()}
KINDS = {
    "str": str,
    "str | None": str | None,
    "bool": bool,
    "int": int,
    "int | None": int | None,
    "list[str]": list[str],
    "list[str] | None": list[str] | None,
}
HELP = {
    "db": "The database file (default: $DURUN_DB, else durun.db in the user's state directory).",
    "json": "One JSON document in place of other output.",
    "quiet": "Say nothing while it moves.",
    "ls quiet": "Print ids alone.",
    "set": "NAME=VALUE: an input, read by its type; NAME=@FILE and NAME=@- read it from there.",
    "migrate set": "VAR=VALUE: the value a var of the new plan begins with, read by its type.",
    "repeat": "What the run did since is begun again, with new visits and new keys.",
    "graph format": "mermaid or dot.",
    "report format": "md, json or html.",
    "out": "Write it into this file.",
    "answers": "A file (YAML or JSON) with what the world says: a path to a list of answers.",
    "map": "OLD=NEW: what a state of the run's plan is called in the new one.",
    "input": "A JSON file with inputs; - is stdin.",
    "id": "The id of the run. Given again with the same plan and input it does what resume does.",
    "no_wait": "Leave as soon as nothing can be done now.",
    "wait": "Sit out what only a person or a signal can move, too: go on listening until the run has ended.",
    "drain wait": "Wait until no run of the plan is in flight, or the rest only waits.",
    "detach": "Go on in the background, and leave as soon as the run is held there.",
    "from_": "Begin a run that failed anew at this state: a new visit, with a new key.",
    "failed_items": "Take up the failed items of a run that succeeded without them; a state may be named behind it.",
    "after_restore": "Go on with what was in flight in a backup or a copy: what may have happened since is then in doubt.",
    "older_than": "Only what ended so long ago (90d, 12h).",
    "shrink": "Give what is free in the database back to the disk, also where that takes long: nobody can write meanwhile.",
    "forget_id": "Forget the ids given with --id, too: given again they begin a new run.",
    "off": "New runs may begin again.",
    "accept_drift": "Go on with what the pinned tools say of themselves now; who says so is recorded.",
    "concurrency": "How many runs are driven at once.",
    "outbox deliver concurrency": "Of how many runs messages are delivered at once.",
    "work once": "Leave when nothing is left that could be done now.",
    "dry_run": "Check everything, say what would come of it, and store nothing.",
    "grace": "How long a command may take to end after TERM, before KILL.",
    "timeout": "How long to wait at most.",
    "happened": "It happened: go on as if it had just ended well.",
    "retry": "Begin it again, with the same key.",
    "fail": "It did not, and shall not: the error `unresolved`.",
    "undone": "What could not be undone is undone all the same.",
    "compensate": "Undo then what the run has done.",
    "force": "Also behind the point of no return.",
    "output": "With --happened: the output it gave, as JSON.",
    "note": "A word for the record.",
    "status": "Only runs with this status; may be given several times.",
    "plan": "Only runs of this plan.",
    "pause plan": "All runs of this plan that have not ended.",
    "limit": "How many of those that have ended.",
    "ls all": "Also all that have ended.",
    "resume all": "All that are interrupted or due, and what `pause --all` held.",
    "pause all": "The whole file, until `durun resume --all`.",
    "outbox ls all": "Also what was delivered, dropped or withdrawn.",
    "children": "Below each run those that it called, as runs of their own.",
    "follow": "Go on printing what comes.",
    "answer": "Which of its answers, where there are several of that kind.",
    "data": "What is filled in, as JSON; @FILE and @- read it from there.",
    "signal data": "The payload, or beside --error its output, as JSON; @FILE and @- read it from there.",
    "by": "Who says so; recorded as claimed (default: the user's name).",
    "digest": "Only if what is asked has this digest, as `show` prints it.",
    "resume": "Drive the run on here, and exit by it.",
    "error": "The wait ends with this error, a name of your own.",
    "message": "With --error: what it says.",
    "alive": "No word yet, but a sign of life: the wait's silence begins anew.",
    "new_key": "With another idempotency key: a deliberate repeat, another act to the far side.",
    "idempotent": "It may be begun again, with the same key, where nobody knows whether it happened.",
    "probe": "A command for sh that finds out whether it happened: 0 yes, 1 no, anything else: not known.",
    "once undo": "A command for sh that undoes it; it gets what was recorded on stdin.",
    "rewind undo": "What the run did since is undone first.",
    "dedupe": "A mark of your own: a signal of this name that was sent with it before is dropped.",
}


def build() -> typer.Typer:
    """The whole command line."""
    plain: Any = {"no_args_is_help": True, "pretty_exceptions_enable": False}  # a fault of ours is one line, as everywhere
    app = typer.Typer(help="A run manager that makes long work durable.", add_completion=True, **plain)
    groups = {
        "db": typer.Typer(help="The database file.", **plain),
        "outbox": typer.Typer(help="What runs have left to be delivered.", **plain),
    }
    for name in COMMANDS:
        act = function(name)
        group, word = (groups[name.split()[0]], name.split()[1]) if " " in name else (app, name)
        group.command(word, help=(act.__doc__ or "").strip())(_for_typer(name, act))
    for name, group in groups.items():
        app.add_typer(group, name=name)

    @app.callback()
    def root(version: Annotated[bool, typer.Option("--version", help="The version of durun.")] = False) -> None:
        if version:
            print(f"durun {__version__}")
            raise typer.Exit

    root_callback = app.registered_callback
    if root_callback is not None:
        root_callback.invoke_without_command = True
    return app


def _for_typer(command: str, act: Callable[..., int]) -> Callable[..., None]:
    """The function with options and places as typer wants them."""

    def called(**given: Any) -> None:
        raise typer.Exit(guarded(lambda: act(**given), as_json=bool(given.get("json")), looking=command in LOOKING))

    parameters, hints = [], {}
    for name, p in inspect.signature(act).parameters.items():
        kind: Any = KINDS[str(p.annotation)]
        if p.kind is inspect.Parameter.KEYWORD_ONLY:
            flag = "--" + name.rstrip("_").replace("_", "-")
            names = [flag, *([LONG[flag]] if flag in LONG else [])]
            hints[name] = Annotated[kind, typer.Option(*names, help=HELP.get(f"{command} {name}") or HELP[name])]
        else:
            hints[name] = Annotated[kind, typer.Argument(metavar=name.upper())]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=p.default, annotation=hints[name]))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = hints
    return called


def run(argv: list[str]) -> int:
    """The exit code of a command line that wants help, or has a mistake."""
    return guarded(lambda: _answered(argv), as_json="--json" in argv)


def _answered(argv: list[str]) -> int:
    as_json = "--json" in argv
    try:
        answer = build()(args=argv, prog_name="durun", standalone_mode=False)
        return answer if isinstance(answer, int) else 0
    except WRONG as e:
        if as_json:
            return refused("usage", e.format_message().splitlines()[0], e.exit_code, as_json=True)
        said = visible(e.format_message())  # typer hides less of what cannot be printed
        e.format_message = lambda: said
        rich_format_error(e)
        return int(e.exit_code)
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # whoever read the help has seen enough
            return 0
        return e.code if isinstance(e.code, int) else 0 if e.code is None else 2

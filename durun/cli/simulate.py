"""`durun simulate`: a plan is walked through without doing anything; what the world says is read from a script of answers."""

from __future__ import annotations

import os

from durun.cli.common import exit_of, text_of
from durun.cli.reader import out, out_json, say
from durun.errors import PlanRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any


def simulate(
    plan: str, *, set: list[str] | None = None, input: str | None = None, answers: str | None = None, json: bool = False
) -> int:
    """Walk through a plan without doing anything: every effect ends as --answers says, or well. Exits as the run would."""
    from durun.cli.start import input_given, newborn, one_stdin
    from durun.machine.script import Script, WrongAnswers
    from durun.machine.simulate import Walk
    from durun.plan.canonical import pinned_names
    from durun.plan.expressions import Evaluator
    from durun.plan.load import load
    from durun.plan.schema import input_values
    from durun.render import simulation

    one_stdin(plan, input, set, answers)
    loaded = load(text_of(plan), "stdin" if plan == "-" else plan)
    values = input_values(loaded.plan, input_given(loaded.plan, set or [], input))
    try:
        script = Script(loaded.plan, _answers(answers))
    except WrongAnswers as e:
        raise PlanRefused("\n".join(f"--answers {answers}: {said}" for said in e.faults)) from None
    missing = [name for name in pinned_names(loaded.plan) if name not in os.environ]
    if missing:
        raise PlanRefused(f"pins.env names {', '.join(missing)}, which the environment does not have")
    env = {name: os.environ[name] for name in pinned_names(loaded.plan)}
    born, types = newborn(loaded.plan, "simulated", env, values)
    walk = Walk(loaded.plan, born._replace(types=types, namespace="00" * 16), script, Evaluator())
    walk.go()
    if json:
        out_json(simulation.document(walk))
    else:
        out(simulation.text(walk))
    for path, n in script.left():
        say(f"{path}: {n} of its answers {'was' if n == 1 else 'were'} not asked for")
    return exit_of(walk.at.run.status) if not walk.ends or walk.at.run.status != "running" else 1


def _answers(file: str | None) -> Json:
    """The answers in a file: JSON, or YAML as a plan is written. Raises PlanRefused."""
    from durun.cli.common import read_file
    from durun.plan.data import read_json
    from durun.plan.load import mapping

    if file is None:
        return {}
    text = read_file(file)
    try:
        return read_json(text)
    except ValueError:
        return mapping(text, file)

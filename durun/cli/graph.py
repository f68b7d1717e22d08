"""`durun graph`: a plan as a drawing; of a run, its own plan with what was visited and where it stands."""

from __future__ import annotations

import os

from durun.cli.reader import out, out_json
from durun.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from durun.render.graph import Drawing

FORMATS = ("mermaid", "dot")


def graph(plan: str, *, format: str = "mermaid", json: bool = False, db: str | None = None) -> int:
    """Draw a plan (a file, or - for stdin), or by its id a run: its plan with what was visited and where it stands."""
    if format not in FORMATS:
        raise Usage(f"there is no format {format[:40]!r}; there are {' and '.join(FORMATS)}")
    made = _of_plan(plan) if plan == "-" or os.path.isfile(plan) or os.sep in plan else _of_run(plan, db)
    from durun.render import graph as drawn

    if json:
        out_json(drawn.document(made))
    else:
        out(drawn.mermaid(made) if format == "mermaid" else drawn.dot(made))
    return 0


def _of_plan(plan: str) -> Drawing:
    from durun.cli.common import text_of
    from durun.plan.load import load
    from durun.render.graph import drawing

    return drawing(load(text_of(plan), "stdin" if plan == "-" else plan).plan)


def _of_run(run: str, db: str | None) -> Drawing:
    from durun.cli.common import absent, alive_in, opened, where
    from durun.errors import NoSuchRun
    from durun.render.graph import drawing, marks_of
    from durun.store import read
    from durun.store.runs import Store

    if absent(where(db)):
        raise NoSuchRun(f"there is no file {run}, and no database at {where(db)} with a run of that name")
    file = opened(db, brief=True)
    try:
        no = read.number(file, run)
    except NoSuchRun as e:
        raise NoSuchRun(f"there is no file {run}, and {e}") from None
    found = read.summary(file, no, alive_in(file.path))
    stands = read.details(file, no)["positions"]
    title = f"run {found.id} of {found.name} {found.version}: {found.status}" + (f" ({found.reason})" if found.reason else "")
    return drawing(Store(file).pinned(no).plan, marks_of(stands, read.visits(file, no)), title)

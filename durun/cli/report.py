"""`durun report`: what there is to know of a run, for people who were not there."""

from __future__ import annotations

from durun.cli.common import document, look_at_onces, mask_of, opened
from durun.cli.reader import out, out_json
from durun.errors import Usage
from durun.store import read

FORMATS = ("md", "json", "html")
EVERY = 1_000_000  # effects


def report(run: str, *, format: str = "md", json: bool = False, db: str | None = None) -> int:
    """Print a report of a run: what happened and when, what is certain and what is not, who decided what."""
    if format not in FORMATS:
        raise Usage(f"there is no format {format[:40]!r}; there are {', '.join(FORMATS)}")
    from durun.render import report as drawn

    file = opened(db, brief=True)
    no = read.number(file, run)
    details, messages = read.details(file, no), read.messages(file, no, everything=True)
    effects = read.effects(file, no, EVERY)
    look_at_onces(file, no, effects)
    more = drawn.told(details, read.history(file, no), messages, effects)
    more["by"] = _user(details["pins"].get("uid"))
    mask = mask_of(file, no, run=True)
    doc, more = mask.tree(document(file, no, at=0)), mask.tree(more)
    if json or format == "json":
        out_json(drawn.document(doc, more))
        return 0
    title = f"Run {doc['id']} of {doc['plan']}: {doc['status']}"
    out((drawn.markdown if format == "md" else drawn.html)(title, drawn.sections(doc, more)))
    return 0


def _user(uid: int | None) -> str | None:
    """The name of who started a run, as this machine knows them."""
    import pwd

    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"

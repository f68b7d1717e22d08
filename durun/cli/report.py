"""`durun report`: what there is to know of a run, for people who were not there."""

from __future__ import annotations

from collections.abc import Iterator

from durun.cli.common import document, look_at_onces, mask_of, opened
from durun.cli.reader import in_pieces, out
from durun.errors import Usage
from durun.store import read
from durun.store.file import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from durun.render.report import Told

    Json = Any

FORMATS = ("md", "json", "html")


def report(run: str, *, format: str = "md", json: bool = False, db: str | None = None) -> int:
    """Print a report of a run: what happened and when, what is certain and what is not, who decided what."""
    if format not in FORMATS:
        raise Usage(f"there is no format {format[:40]!r}; there are {', '.join(FORMATS)}")
    from durun.render import report as drawn

    file = opened(db, brief=True, of=run)
    no = read.number(file, run)
    mask = mask_of(file, no, run=True)
    doc = mask.tree(document(file, no, at=0, many=drawn.MOST))
    more = _told(file, no, mask)
    if json or format == "json":
        in_pieces(drawn.document(doc, more))
        return 0
    title = f"Run {doc['id']} of {doc['plan']}: {doc['status']}"
    out((drawn.markdown if format == "md" else drawn.html)(title, drawn.sections(doc, drawn.for_people(more))))
    return 0


def _told(file: File, no: int, mask: Any) -> Told:
    """What a report has beside the run itself, in the form of the documents; the long lists are read as they are asked for."""
    from durun.render import document
    from durun.render.report import Told

    def history(after: int = 0, kinds: tuple[str, ...] = ()) -> Iterator[Json]:
        return (mask.tree(document.event(e)) for e in read.history(file, no, after, kinds))

    def effects(statuses: tuple[str, ...] = ()) -> Iterator[Json]:
        for e in read.every_effect(file, no, statuses):
            look_at_onces(file, no, [e])
            yield mask.tree(document.effect(e))

    def last(many: int) -> list[Json]:
        found = read.effects(file, no, many)
        look_at_onces(file, no, found)
        return [mask.tree(document.effect(e)) for e in found]

    details = read.details(file, no)
    messages = [mask.tree(document.message(m)) for m in read.messages(file, no, everything=True)]
    count = read.effects_by_status(file, no)
    drift = mask.tree(document.drifts(details["drift"] or []))
    by, host = _user(details["pins"].get("uid")), details["pins"].get("host")
    return Told(by, host, drift, messages, read.events(file, no), history, count, effects, last)


def _user(uid: int | None) -> str | None:
    """The name of who started a run, as this machine knows them."""
    import pwd

    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"

"""The rows of onces as whoever drives or undoes a run needs them; what their calls write is in `calls`. No decisions."""

from __future__ import annotations

import binascii
from typing import Any

import apsw

from durun.machine.model import Effect, Undo
from durun.machine.outcome import DONE, IN_DOUBT, NOT_DONE
from durun.plan.digest import canonical_text
from durun.store.file import File, rows

Json = Any


def owe(db: apsw.Connection, run: int, no: int, unusable: str) -> None:
    """It happened: its undo is owed, as far as there is something to give it."""
    db.execute(
        "UPDATE undos SET status = 'owed', request = CASE WHEN ? = '' THEN request -> '$.undo' END, error = ?"
        " WHERE run = ? AND effect = ? AND status = 'registered'",
        (unusable, unusable, run, no),
    )


def no_need(db: apsw.Connection, run: int, no: int) -> None:
    """It did not happen; should it begin again, its undo is registered again."""
    db.execute("UPDATE undos SET status = 'not_needed' WHERE run = ? AND effect = ? AND status = 'registered'", (run, no))


def to_undo(db: apsw.Connection, run: int, effect: Effect, undo: Undo) -> tuple[Effect, Undo]:
    """A once whose process is gone, and its undo as it is done: with what was printed. One without an end is in doubt."""
    if effect.status == "begin":
        effect = effect._replace(status=IN_DOUBT)
    if undo.status == "owed" and undo.request is not None and "stdin" not in undo.request:
        undo = undo._replace(request={**undo.request, **_printed(db, run, effect.no)})
    return effect, undo


def _printed(db: apsw.Connection, run: int, no: int) -> Json:
    """What a once printed, as the stdin of its undo."""
    raw = rows(db, "SELECT stdout FROM onces WHERE run = ? AND effect = ?", (run, no))[0][0] or b""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    return {"stdin": text} if "\0" not in text else {"stdin_base64": binascii.b2a_base64(raw, newline=False).decode("ascii")}


def resolved(db: apsw.Connection, run: int, step: int, name: str | None, how: str, output: Json, now: int) -> None:
    """A person has said what became of the onces in doubt of a step, or of one of them."""
    sql = (
        "SELECT e.no, e.request ->> '$.once' FROM onces o CROSS JOIN effects e ON e.run = o.run AND e.no = o.effect"
        " WHERE o.run = ? AND o.step = ? AND e.status IN ('in_doubt', 'not_certain')"
    )
    for no in [no for no, its in rows(db, sql, (run, step)) if name in (None, its)]:
        status = DONE if how == "happened" else NOT_DONE
        db.execute("UPDATE effects SET status = ?, error = NULL, ended_at = ? WHERE run = ? AND no = ?", (status, now, run, no))
        if how == "happened":
            said = "" if output is None else f"{output if isinstance(output, str) else canonical_text(output)}\n"
            db.execute("UPDATE effects SET exit = 0 WHERE run = ? AND no = ?", (run, no))
            db.execute("UPDATE onces SET stdout = ? WHERE run = ? AND effect = ?", (said.encode(), run, no))
            owe(db, run, no, "")
        else:
            no_need(db, run, no)


def begun(file: File, run: int, no: int) -> str | None:
    """The file of one whose end is not stored, None where it is."""
    sql = "SELECT o.file FROM onces o CROSS JOIN effects e ON e.run = o.run AND e.no = o.effect WHERE o.run = ? AND o.effect = ?"
    found = rows(file.db, f"{sql} AND e.status = 'begin'", (run, no))
    return found[0][0] if found else None

"""What a run holds that is too long to be written anew with each of its moves: its input, and its vars.

SQLite writes a row as a whole, and reads and compares all of it to do so. So a text of more than so many characters lies in a table
of its own, and the row of the run has NULL there. What is not NULL in the row counts.
"""

from __future__ import annotations

import apsw

from durun.store.file import rows
from durun.store.runs import LARGE

PUT = "INSERT INTO large (run, what, text) VALUES (?, ?, ?) ON CONFLICT (run, what) DO UPDATE SET text = excluded.text"


def put(db: apsw.Connection, run: int, what: str, text: str) -> str | None:
    """Stores a text where it belongs; what the row of the run is to hold of it."""
    if len(text) > LARGE:
        db.execute(PUT, (run, what, text))
        return None
    db.execute("DELETE FROM large WHERE run = ? AND what = ?", (run, what))
    return text


def of(db: apsw.Connection, run: int, what: str) -> str:
    """A text that the row of its run does not hold."""
    text: str = rows(db, "SELECT text FROM large WHERE run = ? AND what = ?", (run, what))[0][0]
    return text

"""Several moves that are stored together: as few rows as lead to the same.

Rules:
- what one move sets and a later one sets again, or takes away, is not written
- neighbours are one where they only set rows, each by its own key; a move that does more stays by itself
- what is to begin, and what is shared with other runs, goes by the moves themselves
"""

from __future__ import annotations

from durun.machine.model import Move, taken_away
from durun.machine.scope import inside, under


def together(moves: list[Move]) -> list[Move]:
    """The same, in order; the moves that were given stay as they are."""
    found: list[Move] = []
    made: Move | None = None
    for move in moves:
        if not _is_rows(move):
            found.append(move)
            made = None
            continue
        if made is None:
            made = Move(move.run)
            found.append(made)
        _lay_over(made, move)
    return found


def _is_rows(move: Move) -> bool:
    """Whether a move only sets rows, each by its own key, so that the last one counts."""
    more = move.undo_status or move.owed_again or move.onces or move.messages or move.withdraw or move.answers or move.signals
    return not more


def _lay_over(made: Move, move: Move) -> None:
    """What one move has changed, and after it another."""
    made.run = move.run
    if move.fresh or move.gone:
        _leave_out(made, move)
    made.positions.update(move.positions)
    made.states.update(move.states)
    made.effects.update(move.effects)
    made.fresh.update(move.fresh)
    made.items.update(move.items)
    made.undos.update(move.undos)
    for scope, left in move.gone.items():
        made.gone[scope] = left.after(made.gone.get(scope))
    made.history += move.history


def _leave_out(made: Move, move: Move) -> None:
    """What was set before, and a move takes away."""
    made.positions = {scope: p for scope, p in made.positions.items() if not taken_away(move, scope)}
    made.states = {key: row for key, row in made.states.items() if not taken_away(move, key[0])}
    if made.fresh or move.fresh or any(left.items for left in move.gone.values()):
        gone = {path for path in (*made.fresh, *(path for path, _ in made.items)) if _is_emptied(move, path)}
        made.fresh = {path: items for path, items in made.fresh.items() if path not in gone}
        made.items = {key: item for key, item in made.items.items() if key[0] not in gone}


def _is_emptied(move: Move, path: str) -> bool:
    """Whether the items that the state at a path held are taken away."""
    return path in move.fresh or any(inside(path, outer) for outer in move.fresh) or any(under(path, outer) for outer in move.gone)

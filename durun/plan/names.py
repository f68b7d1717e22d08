"""Names that durun gives itself, and the shape of those that people give. No library is needed to ask."""

from __future__ import annotations

import re

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PLAN = re.compile(r"[a-z][a-z0-9-]{0,63}")
NAMED = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
LONGEST_KEY = 1000  # characters
BUILT_IN = (
    "timeout", "heartbeat", "not_found", "network", "output_invalid", "output_too_large", "vars_invalid", "expression",
    "no_choice", "rejected", "branch_failed", "item_failed", "child_failed", "max_visits", "unresolved", "run_timeout",
    "in_doubt", "any", "exit", "killed", "http", "failed",
)  # fmt: skip


def quoted(path: str) -> str:
    """A path, or a text, as a word for the shell: a label may hold any mark but a bracket."""
    import shlex

    return shlex.quote(path)


def outside(path: str) -> str | None:
    """What is wrong with a directory that is to be below another, as it is written, or None; no link is looked at."""
    if path.startswith("/"):
        return "is absolute: a directory is named from the one in which the run was started, and lies below it"
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return "goes above the directory in which the run was started, and must lie below it"
    return None


def no_key(text: str) -> str | None:
    """What is wrong with an idempotency key of the plan's own, or None: it names one act to the far side."""
    if not text.strip():
        return "is empty: it would say of every act that it is the same"
    if len(text) > LONGEST_KEY:
        return f"has more than {LONGEST_KEY} characters"
    if not text.isprintable():
        return "holds a line break or what cannot be printed: a header carries it"
    return None


def own_error(name: str) -> str | None:
    """What is wrong with a name for an error of one's own, or None."""
    if name in BUILT_IN or ":" in name:
        return "is a name durun gives itself; take one of your own"
    if not NAMED.fullmatch(name):
        return "is no name of an error: letters, digits, `_`, `.` and `-`, a letter first"
    return None

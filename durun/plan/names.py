"""Names that durun gives itself, and the shape of those that people give. No library is needed to ask."""

from __future__ import annotations

import re

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PLAN = re.compile(r"[a-z][a-z0-9-]{0,63}")
NAMED = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
BUILT_IN = (
    "timeout", "heartbeat", "not_found", "network", "output_invalid", "output_too_large", "vars_invalid", "expression",
    "no_choice", "rejected", "branch_failed", "item_failed", "child_failed", "max_visits", "unresolved", "run_timeout",
    "in_doubt", "any", "exit", "killed", "http", "failed",
)  # fmt: skip


def own_error(name: str) -> str | None:
    """What is wrong with a name for an error of one's own, or None."""
    if name in BUILT_IN or ":" in name:
        return "is a name durun gives itself; take one of your own"
    if not NAMED.fullmatch(name):
        return "is no name of an error: letters, digits, `_`, `.` and `-`, a letter first"
    return None

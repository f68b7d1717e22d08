"""Every way durun refuses, as a tree, each with the exit code the shell sees.

    Refusal                      what a person reads on stderr; never a traceback
    ├── Usage             2      wrong usage
    ├── NoSuchRun         5      no such run, or an id that fits several
    ├── Held              6      another driver, or another run of the group, holds it
    ├── PlanRefused       7      plan, input, id or migration refused; nothing was changed
    ├── StoreUnusable     8      the database cannot be used: newer, foreign, damaged, full, not writable
    ├── NeedsPerson       9      blocked, paused or stranded
    ├── NotPossible      10      too late, or not possible in this status; nothing was changed
    └── NotNow           75      a once of an attempt that is over, or in doubt: nothing was begun

    ExpressionError              an expression could not give a value: the error `expression` of a state, no exit of its own
    Superseded                   another driver has taken the run: this one stops without a further side effect

A message is lower case, names the run, says what is so, and gives the next command.
"""

from __future__ import annotations

TOO_FEW = "durun may open too few files at once (`ulimit -n`): nothing more is begun; allow it more, then the same again"


class Refusal(Exception):
    """Something durun will not or cannot do. `exit` is the code of the process; `code` names it in JSON."""

    exit = 1
    code = "refused"


class Usage(Refusal):
    exit = 2
    code = "usage"


class NoSuchRun(Refusal):
    exit = 5
    code = "no_such_run"


class Held(Refusal):
    exit = 6
    code = "held"


class PlanRefused(Refusal):
    exit = 7
    code = "plan_refused"


class StoreUnusable(Refusal):
    exit = 8
    code = "store_unusable"


class NeedsPerson(Refusal):
    exit = 9
    code = "needs_person"


class NotPossible(Refusal):
    exit = 10
    code = "not_possible"


class NotNow(Refusal):
    exit = 75
    code = "not_now"


class ExpressionError(Exception):
    """An expression that gives no value. The message is one line in durun's words, without a traceback of any library."""


class Superseded(Exception):
    """The run's fence has moved on: another driver took it over."""

"""Which errors a rule speaks of, and how long to wait before the next try.

Rules:
- a matcher is a name, a family (`exit`, `killed`, `http`, `http:5xx`) or `any`
- `in_doubt` is matched by its own name alone, and `run_timeout` by nothing
- the first rule whose `on` matches holds; it allows another try while the failures it has matched in this visit are fewer
  than its `max_attempts`
- every delay lies in (0, max_interval]; it is capped before it can grow beyond what a number holds
"""

from __future__ import annotations

from collections.abc import Sequence

from durun.plan.canonical import Rule

FAMILIES = ("exit", "killed", "http")


def names_it(on: Sequence[str], name: str) -> bool:
    """Whether a list of matchers speaks of this error by its name or family; `any` does not."""
    if name in on:
        return True
    family, _, rest = name.partition(":")
    if family in FAMILIES and family in on:
        return True
    return family == "http" and f"http:{rest[:1]}xx" in on


def matches(on: Sequence[str], name: str) -> bool:
    """Whether a list of matchers takes this error."""
    if name == "run_timeout":
        return False
    return names_it(on, name) or ("any" in on and name != "in_doubt")


def find_rule(rules: Sequence[Rule], name: str, *, by_name: bool) -> int | None:
    """The place of the first rule that takes this error; with `by_name`, only one that names it or its family."""
    takes = names_it if by_name else matches
    return next((i for i, rule in enumerate(rules) if takes(rule["on"], name)), None)


def paid(rules: Sequence[Rule], failures: tuple[int, ...]) -> tuple[int, ...] | None:
    """The failures counted with a repeat of what nobody knows the end of, or None where the budget has none left."""
    at = next((i for i, rule in enumerate(rules) if "any" in rule["on"]), 0)
    counted, most = failures[at] + 1, rules[at]["max_attempts"]
    if most is not None and counted >= most:
        return None
    return (*failures[:at], counted, *failures[at + 1 :])


def delay(rule: Rule, failures: int, draw: float) -> int:
    """Milliseconds before the next try, after so many failures (1 or more) that the rule has matched."""
    length = float(rule["initial_interval"])
    cap = float(rule["max_interval"])
    for _ in range(failures - 1):
        if length >= cap or rule["backoff"] == 1:
            break
        length *= rule["backoff"]
    length = min(length, cap)
    if rule["jitter"] == "full":
        length *= 1.0 - draw
    return max(1, round(length))


def allowed(rule: Rule, failures: int, elapsed: int, wait: int) -> bool:
    """Whether another try may come, after `failures` that the rule has matched and `elapsed` ms of this visit."""
    if rule["max_attempts"] is not None and failures >= rule["max_attempts"]:
        return False
    return rule["max_elapsed"] is None or elapsed + wait <= rule["max_elapsed"]

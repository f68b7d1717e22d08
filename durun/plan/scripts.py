"""What a command says that its writer may not mean: `> /dev/stderr` empties the log.

What a command prints goes into files, so that it outlives the driver. To open such a file anew by `/dev/stdout` or `/dev/stderr`
with a single `>` cuts it to nothing, and what was printed before is gone; through `>&2` nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from durun.plan.references import Found, all_acts, items

Json = Any
Where = tuple[str | int, ...]

ANEW = r"(?<!>)[12]?>\|?[ \t]*/dev/(stdout|stderr)(?![\w./-])"


def warnings(data: dict[str, Json]) -> Iterator[Found]:
    """Scripts that empty what they have printed before."""
    for where, act in all_acts(data):
        yield from _of_act((*where, "run"), act.get("run"))


def _of_act(where: Where, run: Json) -> Iterator[Found]:
    words = [(where, run)] if isinstance(run, str) else [((*where, n), word) for n, word in enumerate(items(run))]
    for at, text in words:
        if isinstance(text, str) and "/dev/std" in text:
            for hit in re.finditer(ANEW, text):
                to = ">&1" if hit[1] == "stdout" else ">&2"
                said = f"`> /dev/{hit[1]}` opens the log anew, and what was printed before is lost: write `{to}`, or `>>`"
                yield Found(at, said, offset=hit.start())

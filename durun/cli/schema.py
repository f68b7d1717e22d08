"""`durun schema`: the plan language as a JSON Schema, with what the documentation says of each key."""

from __future__ import annotations

import os
import re

from durun.cli.reader import out as printed
from durun.cli.reader import out_json, say
from durun.errors import NotPossible


def schema(*, out: str | None = None, json: bool = False) -> int:
    """Print the JSON Schema of the plan language, for editors; with --out into a file."""
    from durun.plan.language import schema as made

    document = made(said_of_keys())
    if out is None:
        if json:
            out_json(document)
        else:
            printed(_text(document))
        return 0
    try:
        with open(out, "w", encoding="utf-8") as f:
            f.write(_text(document) + "\n")
    except OSError as e:
        raise NotPossible(f"{out} cannot be written: {os.strerror(e.errno or 0)}") from None
    if json:
        out_json({"file": os.path.abspath(out)})
    else:
        say(f"the schema is in {out}; a plan that begins with `# yaml-language-server: $schema={out}` is checked by it")
    return 0


def _text(document: object) -> str:
    import json

    return json.dumps(document, ensure_ascii=False, indent=2)


def said_of_keys() -> dict[str, str]:
    """What the documentation says of each kind of state, and of each key of one."""
    from durun.cli.pages import text

    found: dict[str, str] = {}
    for word, second, third in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\|$", text("plan"), re.MULTILINE):
        kinds = re.fullmatch(r"all( but \w+)?|\w+(, \w+)*", second)
        found.setdefault(word, re.sub("`", "", third if kinds else second))
    return found

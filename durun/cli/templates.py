"""`durun init`: plans to begin with, copied out of the program into a folder of one's own.

Rules:
- nothing is ever overwritten: the folder is new, or it is empty; what fails half way takes back what it made
- a file keeps what it is (one that can be begun stays so), and the umask of whoever copies it holds
- what to do next is what the template itself says: the first commands in the comment it begins with
"""

from __future__ import annotations

import os

from durun.cli.reader import out, out_json, say
from durun.errors import NotPossible, Usage

FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "templates")


def init(template: str | None = None, folder: str | None = None, *, json: bool = False) -> int:
    """Copy a plan to begin with into a folder, or list those there are."""
    there = templates()
    if template is None:
        if json:
            out_json({"templates": [{"template": name, "title": title(name)} for name in there]})
        else:
            for name in there:
                out(f"{name:<15}{title(name)}")
        return 0
    if template not in there:
        raise Usage(f"there is no template {template[:60]!r}; there are {', '.join(there)}")
    folder = template if folder is None else folder
    made = _copied(os.path.join(FOLDER, template), folder)
    then = commands(template)
    if json:
        out_json({"template": template, "folder": os.path.abspath(folder), "files": made, "next": then})
        return 0
    for name in made:
        out(os.path.join(folder, name))
    say("next:")
    if os.path.realpath(folder) != os.getcwd():
        import shlex

        say(f"  cd {shlex.quote(folder)}")
    for line in then:
        say(f"  {line}")
    return 0


def templates() -> list[str]:
    return sorted(name for name in os.listdir(FOLDER) if os.path.isfile(os.path.join(FOLDER, name, "plan.yaml")))


def title(template: str) -> str:
    """What a template does, in the first line of its plan."""
    return _comment(template)[0]


def commands(template: str) -> list[str]:
    """The first commands in the comment of its plan."""
    found: list[str] = []
    for line in _comment(template):
        if line.startswith("  "):
            found.append(line.strip())
        elif found:
            break
    return found


def _comment(template: str) -> list[str]:
    """The comment that a plan begins with, line by line."""
    lines: list[str] = []
    with open(os.path.join(FOLDER, template, "plan.yaml"), encoding="utf-8") as f:
        for line in f:
            if not line.startswith("#"):
                break
            lines.append(line[1:].rstrip().removeprefix(" "))
    return lines


def _copied(template: str, folder: str) -> list[str]:
    """The files of a template in a folder that is new or empty. Raises NotPossible, and then nothing is left of them."""
    made: list[str] = []
    new = not os.path.lexists(folder)
    try:
        if new:
            os.makedirs(folder)
        elif os.listdir(folder):
            raise NotPossible(f"{folder} is not empty, and nothing is overwritten: name a new folder, or an empty one")
        for name in _files(template):
            target = os.path.join(folder, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _copy(os.path.join(template, name), target, made)
        return [os.path.relpath(path, folder) for path in made]
    except OSError as e:
        for path in made:
            os.unlink(path)
        if new and os.path.isdir(folder):
            os.rmdir(folder)
        raise NotPossible(f"{folder} cannot be filled: {os.strerror(e.errno or 0)}; nothing was copied") from None


def _files(template: str) -> list[str]:
    """What belongs to a template: all but what an interpreter leaves beside it."""
    found = []
    for at, folders, names in os.walk(template):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [os.path.relpath(os.path.join(at, name), template) for name in names if not name.endswith(".pyc")]
    return sorted(found)


def _copy(source: str, target: str, made: list[str]) -> None:
    mode = os.stat(source).st_mode & 0o777 | 0o600
    with open(source, "rb") as f:
        data = f.read()
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as f:
        made.append(target)
        f.write(data)

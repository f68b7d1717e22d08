"""The pages of `durun docs`: markdown files beside the program, shown with colour on a terminal and as they are elsewhere."""

from __future__ import annotations

import os
import sys

from durun.cli.reader import out, out_json
from durun.errors import Usage

FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "docs")


def docs(page: str | None = None, *, json: bool = False) -> int:
    """Print a page of the documentation, or the list of pages."""
    titles = {name: text(name).partition("\n")[0].removeprefix("# ") for name in pages()}
    if page is None:
        if json:
            out_json({"pages": [{"page": name, "title": title} for name, title in titles.items()]})
        else:
            for name, title in titles.items():
                out(f"{name:<10}{title.partition(': ')[2]}")
        return 0
    if page not in titles:
        raise Usage(f"there is no page {page!r}; there are {', '.join(titles)}")
    if json:
        out_json({"page": page, "text": text(page)})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text(page)))
    else:
        sys.stdout.write(text(page))
    return 0


def pages() -> list[str]:
    return sorted(name.removesuffix(".md") for name in os.listdir(FOLDER) if name.endswith(".md"))


def text(page: str) -> str:
    with open(os.path.join(FOLDER, page + ".md"), encoding="utf-8") as f:
        return f.read()

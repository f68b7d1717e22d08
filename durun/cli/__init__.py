"""The command line: parse, call, show. One `main` turns an error into a message and an exit code.

Each command is a plain typed function in a module of its family. A well-formed call is read by the small reader of
`cli.reader`, which imports nothing; anything else (help, completion, a mistake) goes to typer over the same functions.
"""

from __future__ import annotations

import os
import sys


def process() -> None:
    """A process of durun: one command, and then its end at once. To take every module apart first costs as much as to start."""
    try:
        main()
    except SystemExit as e:
        for stream in (sys.stdout, sys.stderr):
            try:  # noqa: SIM105  (contextlib costs an `ls` a tenth)
                stream.flush()
            except (OSError, ValueError):
                pass  # closed: whoever read it has gone
        os._exit(e.code if isinstance(e.code, int) else 0 if e.code is None else 1)


def main(argv: list[str] | None = None) -> None:
    """Runs one command and raises SystemExit with its exit code."""
    try:
        from durun.cli import reader

        code = reader.run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)

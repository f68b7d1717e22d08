"""The command line: parse, call, show. One `main` turns an error into a message and an exit code.

Each command is a plain typed function in a module of its family. A well-formed call is read by the small reader of
`cli.reader`, which imports nothing; anything else (help, completion, a mistake) goes to typer over the same functions.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> None:
    """Runs one command and ends the process with its exit code."""
    try:
        from durun.cli import reader

        code = reader.run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)

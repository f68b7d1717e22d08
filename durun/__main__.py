"""`python -m durun`."""

from durun.cli import process

process()

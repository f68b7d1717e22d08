"""`python -m durun`."""

from durun.cli import main

main()

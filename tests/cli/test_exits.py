"""The exit codes by which commands tell how a run stands: each status that can be told has one, and what another drives has failed
nowhere."""

from __future__ import annotations

import typing

from durun.cli.common import EXITS, exit_of
from durun.machine.model import Status
from durun.render.text import stands


def test_every_status_has_an_exit_and_none_but_failed_is_told_as_a_failure() -> None:
    assert set(EXITS) == {*map(str, Status), "interrupted", "stranded"}
    assert [status for status in EXITS if exit_of(status) == 1] == ["failed"]


def test_what_another_driver_goes_on_with_is_said_to_with_the_command_that_waits_for_it() -> None:
    for status in ("running", "compensating"):
        doc: dict[str, typing.Any] = {"id": "r", "status": status, "waiting_for": [], "reason": None, "state": "a", "error": None}
        assert stands(doc) == f"run r is {status}: its driver goes on: `durun wait r`"

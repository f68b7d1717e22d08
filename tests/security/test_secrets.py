"""Where a secret could come out by a way that is not the plan's: a report of a fault of our own."""

from __future__ import annotations

import resource
import subprocess
import sys

from program import Program

SECRET = "s3cr3t-value-0123"
FAULT = """
import resource, sys
from durun import outbox
from durun.cli import main

def at_fault(self, *args, **more):
    value = self.secrets.value("TOKEN")
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    raise ZeroDivisionError(f"the far side said {value}, and of a core {core} bytes are kept")

outbox.Deliverer.{act} = at_fault
main()
"""


def test_what_durun_tells_of_a_fault_of_its_own_holds_no_secret(durun: Program) -> None:
    durun.plan("secrets: [TOKEN]\nstart: a\nstates: {a: {run: ['true'], env: {T: '${{ secrets.TOKEN }}'}, next: succeeded}}\n")
    env = {**durun.env, "TMPDIR": str(durun.folder), "TOKEN": SECRET}
    argv = [sys.executable, "-c", FAULT.replace("{act}", "begin"), "start", "plan.yaml"]
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    allowed = ["bash", "-c", f'ulimit -Sc {"unlimited" if limit == resource.RLIM_INFINITY else limit // 1024}; exec "$@"', "-"]
    done = subprocess.run([*allowed, *argv], cwd=durun.folder, env=env, capture_output=True, text=True, timeout=60)
    told = next(durun.folder.glob("durun-bug-*.log")).read_text()
    assert done.returncode == 1 and "the far side said ***" in done.stderr and "the far side said ***" in told
    assert "of a core 0 bytes are kept" in told
    assert SECRET not in done.stderr + done.stdout + told
    durun.audited = False


def test_a_number_of_millions_of_digits_does_not_hold_up_the_look_for_secrets() -> None:
    code = (
        "from durun.machine.secrets import Mask; mask = Mask([('TOKEN', 's3cr3t-value-0123')])\n"
        "assert mask.holder(b'[' + b'9' * 8_000_000 + b', \"s3cr3t\\\\u002dvalue-0123\"]') == 'TOKEN'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""The file: where it must not lie, a full disk, other users, other versions, a birth cut short, and what it costs to open it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TICK = "a: {run: 'echo tick >> ticks', next: succeeded}"


@pytest.fixture
def networked(place, root):
    """argv in front of a command that sees /proc say its files lie on NFS."""
    proc = place.folder / "proc"
    for name in ("self", "sys/kernel/random"):
        (proc / name).mkdir(parents=True)
    shutil.copy("/proc/sys/kernel/random/boot_id", proc / "sys/kernel/random/boot_id")
    table = Path("/proc/self/mountinfo").read_text()
    device = os.stat(place.folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [re.sub(r" - \S+", " - nfs4", line) if line.split()[2] == number else line for line in table.splitlines()]
    (proc / "self/mountinfo").write_text("\n".join(lines) + "\n")
    argv = ["unshare", "-m", "sh", "-c", f'mount --bind {proc} /proc && exec "$@"', "sh"]
    if subprocess.run([*argv, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system lets nobody make a mount namespace")
    return argv


def test_f34_on_a_network_file_system_nothing_is_made(place, networked):
    plan = place.plan(TICK)
    place.argv = [*networked, *place.argv]
    refused = place.durun("start", plan, exit=8)
    assert "network" in refused.err
    assert not [p.name for p in place.folder.iterdir() if p.name.startswith("durun.db")]

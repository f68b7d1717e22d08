"""Which boot of the machine this is, and its clocks.

A pid, a lock and a note that was not synced mean something in one boot only. `boot_id` is the same in a container after its
restart; neither clock can be set: one counts suspend, the other stands still meanwhile.
"""

from __future__ import annotations

import os
import sys
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_id() -> str:
    """The identity of this boot. Linux: the kernel's boot_id; macOS: kern.bootsessionuuid."""
    if sys.platform == "darwin":
        import subprocess

        asked = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as f:
        return f.read().strip()


def boot_ms() -> int:
    """Milliseconds since this boot, suspend counted."""
    return int(time.clock_gettime(_CLOCK) * 1000)


def awake_ms() -> int:
    """Milliseconds since this boot, suspend not counted."""
    return time.monotonic_ns() // 1_000_000


def host() -> str:
    return os.uname().nodename

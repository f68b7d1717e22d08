"""A keeper on a full disk: what runs is noted to its end, and nothing more begins."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FILL = """
from durun.effects.notes import Notes
def fill():
    size = 1 << 16
    with open(os.path.join(folder, 'fill'), 'ab', buffering=0) as f:
        while size:
            try:
                f.write(bytes(size))
            except OSError:
                size //= 2
ask(c, 'a', '/bin/sh', '-c', 'until [ -e $T/../go ]; do sleep 0.02; done; exit 5')
while not os.path.exists(os.path.join(folder, 'one', '1.out')): time.sleep(0.01)
fill()
open(os.path.join(folder, '..', 'go'), 'w').close()
print(report(c)[0].status)
said = []
for n in range(2000):
    ask(c, str(n), '/bin/true')
    said += report(c)
    if isinstance(said[-1], Full): break
print(type(said[-1]).__name__, {e.status for e in said[:-1]})
ask(c, 'x', '/bin/cat', stdin=b'x' * 100000)
print(type(report(c)[0]).__name__)
os.unlink(os.path.join(folder, 'fill'))
ask(c, 'y', '/bin/cat', stdin=b'x' * 100000)
print(report(c)[0].out_size)
notes = Notes(folder, 'one'); notes.refresh()
print(notes.of('a').status, notes.of(str(n)), notes.of('x'))
"""


def test_on_a_full_disk_the_end_is_noted_and_nothing_more_begins(
    tmp_path: Path, in_a_process_of_its_own: Callable[..., str]
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    small = f"mount -t tmpfs -o size=512k none {folder}"
    if subprocess.run(["unshare", "-m", "sh", "-c", small], capture_output=True).returncode:
        pytest.skip("needs root and unshare, to mount a small disk")
    found = in_a_process_of_its_own(folder, FILL, f'unshare -m sh -c \'{small}; exec "$0" "$@"\'')
    assert found == "5\nFull {0}\nFull\n100000\n5 Nothing() Nothing()\n"

"""A command that prints much: memory of driver and keeper, and the database, stay as they are. Run by scripts/faults --output."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults_place import Place, cmdline

MUCH = """
durun: 1
name: much
input: {much: string, more: string}
start: logs
states:
  logs:
    run: head -c "$MUCH" /dev/zero | tr "\\0" "\\377"
    env: {MUCH: '${{ input.much }}'}
    next: data
  data:
    run: [head, -c, '${{ input.more }}', /dev/zero]
    output: text
    catch: [{on: [output_too_large], next: fails}]
    next: fails
  fails:
    run: head -c "$MORE" /dev/zero | tr "\\0" "\\377" >&2; exit 3
    env: {MORE: '${{ input.more }}'}
    catch: [{on: ['exit:3'], next: stands}]
    next: stands
  stands: {run: 'echo up > up; until [ -e go ]; do sleep 0.02; done', next: succeeded}
"""
DRIVER, KEEPER = 60, 16  # MiB that they may have at their peak
TAILS = 128 << 10  # bytes: the last 4 KiB of what a command complained go with its error, wherever that is told


def size(text: str) -> int:
    return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)


def much(bytes_: int) -> int:
    """A run that prints much beside one that prints nothing: memory and database stay as they are, and its logs can be read."""
    folder = Path(tempfile.mkdtemp(prefix="durun-output-"))
    little, lot = (measure(folder / str(n), n) for n in (0, bytes_))
    print(f"{'':<24} {'nothing':>10} {bytes_:>14}")
    for name in little:
        print(f"{name:<24} {little[name]:>10} {lot[name]:>14}")
    wrong = [name for name in little if lot[name] > little[name] * 1.3 + TAILS * ("database" in name)]
    wrong += [name for name, most in (("driver, KiB", DRIVER), ("keeper, KiB", KEEPER)) if lot[name] > most * 1024]
    shutil.rmtree(folder, ignore_errors=True)
    print(*(f"VIOLATION {name}" for name in wrong), sep="\n")
    return 1 if wrong else 0


def measure(folder: Path, bytes_: int) -> dict[str, int]:
    """Peak memory of the driver and of its keeper, and the size of the database; raises where the run or its logs are not right."""
    place, more = Place(folder, {"plan.yaml": MUCH}), min(bytes_, 256 << 20)
    words = [sys.executable, "-m", "durun", "start", "plan.yaml", "--id", "r", "-i", f"much={bytes_}", "-i", f"more={more}"]
    process = subprocess.Popen(words, cwd=folder, env=place.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (folder / "up").exists():
        if process.poll() is not None:
            raise SystemExit(f"exit {process.returncode}: {process.communicate()[1]}")
        time.sleep(0.05)
    (keeper,) = [pid for pid in place.processes() if "keeper.py" in cmdline(pid)]
    found = {"driver, KiB": peak(process.pid), "keeper, KiB": peak(keeper)}
    (folder / "go").touch()
    err = process.communicate()[1]
    found["database, bytes"] = sum(p.stat().st_size for p in folder.glob("runs.db*") if p.is_file())
    logs = subprocess.Popen(
        [sys.executable, "-m", "durun", "logs", "r", "logs"], env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert logs.stdout is not None
    printed = sum(len(part) for part in iter(lambda: logs.stdout.read(1 << 20), b""))
    shown = [place.durun(*of) for of in (["show", "r"], ["history", "r"], ["show", "r", "--json"])]
    errors = {e["path"]: e["error"] for e in json.loads(shown[2][1])["effects"]}
    if process.returncode or printed != bytes_ or any(exit or "Traceback" in err for exit, _, err in shown) or "Traceback" in err:
        raise SystemExit(f"exit {process.returncode}, {printed} of {bytes_} bytes in its log: {err} {shown}")
    if bytes_ > 16 << 20 and "output_too_large" not in shown[1][1]:
        raise SystemExit(f"an output over 16 MiB is taken: {errors}")
    return found


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

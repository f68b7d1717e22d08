"""Every image that the disk may hold when the power goes, for one run after the other. Run by scripts/powercut.

The rules are in tests/powercut.py, the run and what is asked of an image in tests/crash/test_power_cut.py.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "crash")]

import test_power_cut as power  # noqa: E402


def main() -> int:
    given = argparse.ArgumentParser(prog="scripts/powercut")
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--few", type=int, help="so many images of each kind at each cut; else all")
    given.add_argument("--on", type=int, default=40, help="from one image in so many the run goes on (40)")
    given.add_argument("--bites", action="store_true", help="synchronous=NORMAL: what is forgotten must be found")
    args = given.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="durun-powercut-"))
    wrong = 0
    for pages in (4, 12, 1000):
        at = power.record(folder / f"{pages}", synchronous="NORMAL" if args.bites else "FULL", pages=pages)
        looked, gone_on, found = look(at, Random(args.seed + pages), args)
        print(f"log of {pages} pages: {looked} images, {gone_on} of them taken to the end, {len(found)} wrong", flush=True)
        for what in found[:10]:
            print(f"  {what}")
        wrong += len(found)
    shutil.rmtree(folder)
    if args.bites:
        print("it bites" if wrong else "it finds nothing: it is blind")
    return int(bool(wrong) != args.bites)


def look(at: Any, chance: Random, args: argparse.Namespace) -> tuple[int, int, list[str]]:
    looked, gone_on, found = 0, 0, list[str]()
    for n, cut in enumerate(at.cuts()):
        for name, image in cut.images(chance, args.few):
            looked += 1
            try:
                found += [f"cut {n}, {name}: {what}" for what in power.wrong(at.folder, cut, image)]
                if not args.bites and chance.randrange(args.on) == 0:
                    gone_on += 1
                    power.go_on(at.folder, cut, image)
            except Exception as e:  # noqa: BLE001 - whatever it is, it is what was found
                found.append(f"cut {n}, {name}: {type(e).__name__}: {e}")
    return looked, gone_on, found


if __name__ == "__main__":
    sys.exit(main())

"""What is noted last is found at the end of a long journal, as in the whole of it."""

from __future__ import annotations

import binascii
from pathlib import Path

from durun.effects.notes import LATELY, Begun, Notes, Nothing


def record(*words: str) -> bytes:
    said = "\t".join(words).encode()
    return b"%08x " % binascii.crc32(said) + said + b"\n"


def test_the_end_of_a_journal_says_what_began_last(tmp_path: Path) -> None:
    place = tmp_path / "p"
    place.mkdir()
    assert isinstance(Notes.lately(str(tmp_path), "p").of("1.1.1"), Nothing)
    lines, n = b"", 0
    while len(lines) < 2 * LATELY:
        n += 1
        lines += record("about", f"1.{n}.1", f"{n}.out", f"{n}.err") + record("begun", f"1.{n}.1", "77", "1.5", "1.6")
    (place / "journal").write_bytes(lines + b"\0" * 65536)
    late, whole = Notes.lately(str(tmp_path), "p"), Notes(str(tmp_path), "p")
    whole.refresh()
    assert late.of(f"1.{n}.1") == whole.of(f"1.{n}.1") == Begun(f"1.{n}.1", 77, 1.5, 1.6, f"{n}.out", f"{n}.err")
    assert isinstance(late.of("1.1.1"), Nothing) and isinstance(whole.of("1.1.1"), Begun)

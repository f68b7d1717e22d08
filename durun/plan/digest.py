"""The one text of a plan or of data, and its digest: keys sorted, no spaces, every character as it is."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Json = Any

_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical_text(value: Json) -> str:
    """The same value always gives the same text."""
    return _encode(value)


def digest(value: Json) -> str:
    """SHA-256 over the canonical text, 64 hex digits."""
    return hashlib.sha256(canonical_text(value).encode("utf-8", "surrogatepass")).hexdigest()

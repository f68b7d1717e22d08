"""The one text of a plan or of data, and its digest: keys sorted, no spaces, every character as it is."""

from __future__ import annotations

import hashlib
import json
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any

Json = Any

_encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
# the same, made once: `encode` makes one for each text, which costs as much as the text
_made = c_make_encoder and c_make_encoder(None, _encoder.default, encode_basestring, None, ":", ",", True, False, False)


def canonical_text(value: Json) -> str:
    """The same value always gives the same text."""
    return "".join(_made(value, 0)) if _made else _encoder.encode(value)


def digest(value: Json) -> str:
    """SHA-256 over the canonical text, 64 hex digits."""
    return hashlib.sha256(canonical_text(value).encode("utf-8", "surrogatepass")).hexdigest()

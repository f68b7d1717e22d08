"""The one text of a plan or of data, and its digest: keys sorted, no spaces, every character as it is."""

from __future__ import annotations

import json
import sys
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha1 as sha1
    from hashlib import sha256 as sha256
else:
    try:  # the interpreter's own: `hashlib` loads a library of ciphers first, which takes two milliseconds of every start
        from _sha1 import sha1

        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
    except ImportError:  # built without them
        from hashlib import sha1, sha256  # noqa: F401

Json = Any

_encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
# the same, made once: `encode` makes one for each text, which costs as much as the text
_made = c_make_encoder and c_make_encoder(None, _encoder.default, encode_basestring, None, ":", ",", True, False, False)


def canonical_text(value: Json) -> str:
    """The same value always gives the same text."""
    return "".join(_made(value, 0)) if _made else _encoder.encode(value)


def digest(value: Json) -> str:
    """SHA-256 over the canonical text, 64 hex digits."""
    return sha256(canonical_text(value).encode("utf-8", "surrogatepass")).hexdigest()

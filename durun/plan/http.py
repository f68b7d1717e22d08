"""What a plan says of requests: the faults that shapes cannot say, the canonical form, and what is known of an answer.

- GET, HEAD, OPTIONS, PUT and DELETE may be repeated (RFC 9110, 9.2.2) unless the plan says `idempotent: false`
- a request has a limit on its whole length, also where the plan gives none
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durun.plan import model

Json = Any
Where = tuple[str | int, ...]

REPEATABLE = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
TIMEOUT = 300_000  # ms
BODIES = ("json", "form", "body")
KEY_HEADER = "Idempotency-Key"
# where an expression may stand, and a secret too
WORDS = ("url", "headers", "json", "form", "body", "auth")
FIXED = ("method", "expect", "max_body")
ANSWER = {
    "type": "object",
    "properties": {
        "status": {"type": "integer"},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "json": {},
        "body": {"type": ["string", "null"]},
    },
    "additionalProperties": False,
}


def may_be_repeated(http: Json) -> bool:
    """Whether the method alone says that a request as it was written is idempotent."""
    return isinstance(http, dict) and http.get("method", "GET") in REPEATABLE


def faults(where: Where, http: Json) -> Iterator[tuple[Where, str]]:
    """What is wrong with a request as it was written, as (path, message)."""
    if not isinstance(http, dict):
        return
    given = [word for word in BODIES if word in http]
    if len(given) > 1:
        yield (*where, given[1]), f"a request has one body: {' or '.join(given)}, not both"
    url = http.get("url")
    if isinstance(url, str) and not url.startswith("${{") and not url.lower().startswith(("http://", "https://")):
        yield (*where, "url"), "a url begins with http:// or https://"
    headers = http.get("headers")
    names: set[str] = set()
    for name, value in headers.items() if isinstance(headers, dict) else ():
        yield from _header((*where, "headers", name), name, value, names)
        names.add(name.lower())
    form = http.get("form")
    for name, value in form.items() if isinstance(form, dict) else ():
        for one in value if isinstance(value, list) else [value]:
            if one is None or isinstance(one, dict | list):
                yield (*where, "form", name), "a field is a text, a number or a boolean, or a list of them"
                break
    yield from _auth((*where, "auth"), http.get("auth"), names)


def _header(at: Where, name: str, value: Json, before: set[str]) -> Iterator[tuple[Where, str]]:
    from durun.plan import words

    if not words.HEADER.fullmatch(name):
        yield at, f"{words.shown(name)} is no name of a header"
    elif name.lower() in ("content-length", "transfer-encoding", "connection", "expect"):
        yield at, f"`{name}` is worked out when the request is sent"
    elif name.lower() in before:
        yield at, f"`{name}` is given twice: case makes no difference"
    elif value is None or isinstance(value, dict | list):
        yield at, f"a text, a number or a boolean is wanted here, not {words.shown(value)}"
    elif isinstance(value, str) and any(c in value for c in "\r\n\0"):
        yield at, "a header is one line"


def _auth(at: Where, auth: Json, headers: set[str]) -> Iterator[tuple[Where, str]]:
    if not isinstance(auth, dict):
        return
    if ("bearer" in auth) == ("user" in auth or "password" in auth):
        yield at, "`auth` is {bearer: …} or {user: …, password: …}"
    elif "user" in auth and isinstance(auth["user"], str) and ":" in auth["user"].split("${{")[0]:
        yield (*at, "user"), "a user name holds no `:`"
    elif "authorization" in headers:
        yield at, "`auth` and the header Authorization say the same thing: give one of them"


def canonical(http: model.Http) -> dict[str, Json]:
    """The form a machine renders a request from."""
    act: dict[str, Json] = {
        "method": http.method, "url": http.url, "headers": http.headers, "expect": http.expect, "max_body": http.max_body,
    }  # fmt: skip
    for word, name in (("json", "json_"), ("form", "form"), ("body", "body")):
        if name in http.model_fields_set:
            act[word] = getattr(http, name)
    if http.auth is not None:
        act["auth"] = {word: value for word in ("bearer", "user", "password") if (value := getattr(http.auth, word)) is not None}
    return act

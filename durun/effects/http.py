"""Requests: sent by libcurl in the driver's own process and loop, without a thread.

Why libcurl: its limit is on the whole request, name lookup and the last byte of the body counted; it says when a connection
stands and nothing was sent on it yet, which is where the begin is noted; and it waits on descriptors as the loop does.

Rules:
- the begin is noted in the driver's place before the first byte goes out, under the gate that whoever takes over closes first:
  until then nothing has happened, and after the gate was closed nothing will
- one connection a request, never used again: libcurl would send anew on one that the far side had just closed
- HTTP/1.1, redirects off, no `Expect`, no cookies, no .netrc; TLS verified against the system's authorities
- proxies as for curl: http_proxy, https_proxy, all_proxy and no_proxy of the driver's environment
- a request that is to stop has its grace to answer; one that was not sent yet is withdrawn at once
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import os
import re
import time
from typing import Any
from urllib.parse import urlencode

import pycurl

from durun import __version__
from durun.machine.request import one_line
from durun.machine.request import url as address
from durun.machine.secrets import shown
from durun.plan.digest import canonical_text
from durun.values import NamedTuple

Json = Any
LONGEST = 2**31 - 1  # ms: the largest limit libcurl takes, 24 days
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
)  # fmt: skip
WORDS = {
    pycurl.E_COULDNT_RESOLVE_HOST: "its name cannot be resolved",
    pycurl.E_COULDNT_RESOLVE_PROXY: "the name of the proxy cannot be resolved",
    pycurl.E_GOT_NOTHING: "the connection was closed without an answer",
    100: "a line of its head is too long",  # CURLE_TOO_LARGE, which the binding has no name for
}


class Prepared(NamedTuple):
    """What goes out."""

    method: str
    url: str
    headers: list[bytes]
    body: bytes | None


class Answer(NamedTuple):
    """How a request ended; see `machine.events.Answered`. `host` and `message` are for people."""

    token: str
    status: int | None
    headers: dict[str, str]
    body: bytes
    cut: str
    too_large: bool
    sent: bool
    fault: str
    message: str
    host: str
    stopped: str


class Unsent(NamedTuple):
    """Nothing of it went out, and nothing will. why: stopped, refused (the gate is closed), unnoted (its begin could not be noted:
    `errno`)."""

    token: str
    why: str
    errno: int = 0


def prepared(request: Json, key: str) -> Prepared:
    """A filled request as it goes out. Raises ExpressionError where what filled it makes no request."""
    given = {name.lower(): (name, one_line(name, value)) for name, value in request["headers"].items()}
    body = _body(request, given)
    if "auth" in request:
        given["authorization"] = "Authorization", one_line("auth", _authorization(request["auth"]))
    header = request.get("key_header")
    if header is not None and header.lower() not in given:
        given[header.lower()] = header, one_line("key", key)
    given.setdefault("user-agent", ("User-Agent", f"durun/{__version__}"))
    lines = [f"{name}: {value}".encode() if value else f"{name};".encode() for name, value in given.values()]
    lines += [f"{name}:".encode() for name in ("Expect", "Content-Type") if name.lower() not in given]
    return Prepared(request["method"], address(request["url"]), lines, body)


def _body(request: Json, headers: dict[str, tuple[str, str]]) -> bytes | None:
    kind, body = "", None
    if "json" in request:
        kind, body = "application/json", canonical_text(request["json"])
    elif "form" in request:
        kind, body = "application/x-www-form-urlencoded", urlencode(request["form"], doseq=True)
    elif "body" in request:
        plain = isinstance(request["body"], str)
        kind, body = ("", request["body"]) if plain else ("application/json", canonical_text(request["body"]))
    if kind:
        headers.setdefault("content-type", ("Content-Type", kind))
    return None if body is None else body.encode()


def _authorization(auth: dict[str, str]) -> str:
    if "bearer" in auth:
        return f"Bearer {auth['bearer']}"
    pair = f"{auth.get('user', '')}:{auth.get('password', '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def host_of(request: Json) -> str:
    """The host a frozen request goes to, for people; where its place is open, as the plan wrote it."""
    found = re.match(r"https?://(?:[^/?#@]*@)?([^/?#]+)", shown(request, "url"), re.I)
    return found[1] if found else shown(request, "url")[:80]


class Transfer:
    """One request under way."""

    def __init__(self, token: str, place: str, request: Json, host: str) -> None:
        self.token, self.place, self.host = token, place, host
        self.limit, self.most = min(request["timeout"], LONGEST), request["max_body"]
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.sent = self.too_large = self.interim = self.past_headers = False
        self.unsent, self.errno = "", 0
        self.stopped, self.stop_at = "", 0.0
        self._last = ""
        self.odd = ""  # what came in the place of a status line

    def header(self, raw: bytes) -> None:
        """One line of the head; an interim answer (1xx) is none, and what follows the body is no header."""
        if not self.sent:
            return  # what a proxy says while the connection is made
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if found := re.match(r"HTTP/[0-9.]+ +([0-9]{3})\b", line):
            status = int(found[1])
            self.interim, self.past_headers, self.headers = status < 200, False, {}
            self.status = None if self.interim else status
        elif not line:
            self.past_headers = True
        elif self.status is None and line.startswith("HTTP/"):
            self.odd = line[:60]
        elif self.interim or self.past_headers:
            return
        elif line[0] in " \t" and self._last:
            self.headers[self._last] += " " + line.strip()
        else:
            name, _, value = line.partition(":")
            self._last = name.strip().lower()
            value = value.strip().replace("\0", "\ufffd")
            between = "\n" if self._last == "set-cookie" else ", "
            before = self.headers.get(self._last)
            self.headers[self._last] = value if before is None else before + between + value

    def write(self, data: bytes) -> int:
        if len(self.body) + len(data) > self.most:
            self.too_large = True
            return 0  # libcurl ends the request
        self.body += data
        return len(data)

    def answer(self, code: int, said: str, number: int) -> Answer | Unsent:
        """How it ended, from libcurl's word for it."""
        if self.unsent:
            return Unsent(self.token, self.unsent, self.errno)
        cause = WORDS.get(code) or (os.strerror(number).lower() if number else re.sub(r" after \d+ ms", "", said))
        cause = cause or f"libcurl ended it with its code {code}"  # some codes have no words; '' would mean whole
        late = code == pycurl.E_OPERATION_TIMEDOUT
        fault = message = cut = ""
        if self.status is None:
            fault = "timeout" if late and self.sent else "network"
            if self.odd:
                cause = f"it answered with a status line that is none, {self.odd!r}"
            if late:
                cause = f"{'no answer' if self.sent else 'no connection'} within {_spoken(self.limit)}"
            message = f"{self.host}: {'stopped, no answer in its grace' if self.stopped and code < 0 else cause}"
        elif code != pycurl.E_OK:
            cut = f"its time, {_spoken(self.limit)}, was over" if late else "it was stopped" if code < 0 else cause
        elif not self.past_headers:
            cut = "the connection was closed in the middle of its head"
        return Answer(
            self.token, self.status, self.headers, bytes(self.body), cut, self.too_large, self.sent, fault, message, self.host,
            self.stopped,
        )  # fmt: skip


def _spoken(ms: int) -> str:
    from durun.plan.units import show_duration

    return show_duration(ms)


class Sender:
    """The requests under way of one driver. `folder` is the database's own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._multi = pycurl.CurlMulti()
        self._under_way: dict[Any, Transfer] = {}

    def begin(self, token: str, place: str, out: Prepared, request: Json, host: str) -> None:
        """Begins a request; its end comes by `act`. Only once its connection stands is the begin noted, and then it is sent."""
        t = Transfer(token, place, request, host)
        curl = pycurl.Curl()
        _set_up(curl, t, out)
        curl.setopt(curl.PREREQFUNCTION, lambda *_: self._note(t))
        self._under_way[curl] = t
        self._multi.add_handle(curl)
        self._multi.perform()

    def _note(self, t: Transfer) -> int:
        """Notes that it begins, unless the gate is closed. Called on a connection on which nothing was sent yet."""
        try:
            t.unsent = "stopped" if t.stopped else _noted(os.path.join(self.folder, t.place), t.token)
        except FileNotFoundError:
            t.unsent = "refused"  # the place is gone: somebody took it over, and swept it
        except OSError as e:
            t.unsent, t.errno = "unnoted", e.errno or errno.EIO
        t.sent = not t.unsent
        return int(pycurl.PREREQFUNC_ABORT if t.unsent else pycurl.PREREQFUNC_OK)

    def stop(self, token: str, grace: int, why: str) -> None:
        """Gives a request so many ms to answer; one that was not sent is withdrawn with the next `act`."""
        for t in self._under_way.values():
            if t.token == token:
                at = time.monotonic() + (grace / 1000 if t.sent else 0)
                t.stop_at = min(at, t.stop_at) if t.stopped else at
                t.stopped = t.stopped or why

    def files(self) -> tuple[list[int], list[int], list[int]]:
        """The descriptors to wait for: to read, to write, and those with something out of the ordinary."""
        return self._multi.fdset() if self._under_way else ([], [], [])

    def patience(self) -> float:
        """Seconds until something has to be looked at."""
        wait = 1.0
        if (ms := self._multi.timeout()) >= 0:
            wait = min(wait, ms / 1000)
        stops = [t.stop_at for t in self._under_way.values() if t.stopped]
        return max(0.0, min([wait, *(at - time.monotonic() for at in stops)])) if self._under_way else 60.0

    def act(self) -> list[Answer | Unsent]:
        """Goes on with what can go on; the requests that have ended."""
        if not self._under_way:
            return []
        self._multi.perform()
        found: list[Answer | Unsent] = []
        left = 1
        while left:
            left, well, badly = self._multi.info_read()
            found += [self._ended(curl, pycurl.E_OK, "") for curl in well]
            found += [self._ended(curl, code, said) for curl, code, said in badly]
        now = time.monotonic()
        for curl, t in list(self._under_way.items()):
            if t.stopped and now >= t.stop_at:
                t.unsent = "" if t.sent else "stopped"
                found.append(self._ended(curl, -1, "stopped"))
        return found

    def _ended(self, curl: Any, code: int, said: str) -> Answer | Unsent:
        t = self._under_way.pop(curl)
        number = curl.getinfo(curl.OS_ERRNO) if code in (pycurl.E_COULDNT_CONNECT, pycurl.E_RECV_ERROR, pycurl.E_SEND_ERROR) else 0
        self._multi.remove_handle(curl)
        curl.close()
        return t.answer(code, said, number)

    def close(self) -> None:
        """Drops what is under way."""
        for curl in list(self._under_way):
            self._multi.remove_handle(curl)
            curl.close()
        self._under_way = {}
        self._multi.close()


def _noted(folder: str, token: str) -> str:
    """'' once the begin is noted, else why it may not be: under the gate, so that whoever closed it first sees every note.

    Raises OSError where it cannot be noted.
    """
    gate = os.open(os.path.join(folder, "gate"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "refused"  # it is being closed
        if os.pread(gate, 1, 0):
            return "refused"
        said = f"about\t{token}\t\t".encode()
        line = b"\n%08x %s\n" % (binascii.crc32(said), said)  # it begins anew, should a torn one stand before it
        file = os.open(os.path.join(folder, "requests"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # so much a disk takes that has no more room
            return ""
        finally:
            os.close(file)
    finally:
        os.close(gate)


def _set_up(curl: Any, t: Transfer, out: Prepared) -> None:
    curl.setopt(curl.URL, out.url.encode())
    curl.setopt(curl.PROTOCOLS, curl.PROTO_HTTP | curl.PROTO_HTTPS)
    curl.setopt(curl.HTTPHEADER, out.headers)
    if out.method == "HEAD":
        curl.setopt(curl.NOBODY, 1)
    elif out.body is not None or out.method in ("POST", "PUT", "PATCH"):
        curl.setopt(curl.POSTFIELDS, out.body or b"")
    curl.setopt(curl.CUSTOMREQUEST, out.method)
    curl.setopt(curl.HEADERFUNCTION, t.header)
    curl.setopt(curl.WRITEFUNCTION, t.write)
    curl.setopt(curl.TIMEOUT_MS, max(1, t.limit))
    curl.setopt(curl.CONNECTTIMEOUT_MS, max(1, t.limit))
    curl.setopt(curl.HTTP_VERSION, curl.CURL_HTTP_VERSION_1_1)
    curl.setopt(curl.PATH_AS_IS, 1)
    for option in (curl.NOSIGNAL, curl.FRESH_CONNECT, curl.FORBID_REUSE):
        curl.setopt(option, 1)
    for word, option in (("SSL_CERT_FILE", curl.CAINFO), ("SSL_CERT_DIR", curl.CAPATH)):
        if os.environ.get(word):
            curl.setopt(option, os.environ[word])
    if not os.environ.get("SSL_CERT_FILE"):
        with contextlib.suppress(StopIteration):
            curl.setopt(curl.CAINFO, next(path for path in AUTHORITIES if os.path.exists(path)))

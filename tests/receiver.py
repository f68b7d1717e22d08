"""The far side of requests: a real server on loopback that answers, drops, drips and repeats, and remembers what came.

`receiver.say(...)` sets what it does with the next requests, one after the other; the last one holds for all that follow. What
it has *done* (as a far side that honours keys would) is in `done`: the keys of requests whose work it did, each once.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

Act = Callable[["Handler"], None]


class Came(NamedTuple):
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()

    def come(self) -> None:
        self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.came = Came(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        with contextlib.suppress(OSError):
            self.receiver._next(self.came)(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = come

    def work(self) -> None:
        """Does what was asked for, once for each key."""
        with self.receiver.lock:
            if self.came.key not in self.receiver.done:
                self.receiver.done.append(self.came.key)

    def send(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **headers}.items():
            for one in value if isinstance(value, list) else [value]:
                self.send_header(name, one)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def reset(self) -> None:
        """Ends the connection with a reset, as a process that dies does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        pass


class Server6(Server):
    address_family = socket.AF_INET6


class Receiver:
    def __init__(self, host: str = "127.0.0.1", wrap: Callable[[socket.socket], socket.socket] | None = None) -> None:
        self.lock = threading.Lock()
        self.came: list[Came] = []
        self.done: list[str | None] = []
        self.closing = threading.Event()
        self._acts: list[Act] = [answer()]
        handler = type("Bound", (Handler,), {"receiver": self})
        self._server = (Server6 if ":" in host else Server)((host, 0), handler)
        if wrap is not None:
            self._server.socket = wrap(self._server.socket)
        self.port = self._server.server_address[1]
        self.url = f"http{'s' if wrap else ''}://{f'[{host}]' if ':' in host else host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def say(self, *acts: Act) -> None:
        with self.lock:
            self._acts = list(acts)

    def _next(self, came: Came) -> Act:
        with self.lock:
            self.came.append(came)
            return self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]

    def keys(self) -> list[str | None]:
        return [came.key for came in self.came]

    def lines(self) -> list[str]:
        return [f"{came.method} {came.path}" for came in self.came]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


# --- what it may do with a request ---


def answer(status: int = 200, data: Any = None, headers: dict[str, Any] | None = None, raw: bytes | None = None) -> Act:
    """Does the work where the status is a good one, and answers; `data` is sent as JSON."""

    def act(h: Handler) -> None:
        if status < 300:
            h.work()
        kind = {} if data is None else {"Content-Type": "application/json"}
        h.send(status, raw if raw is not None else b"" if data is None else json.dumps(data).encode(), {**kind, **(headers or {})})

    return act


def drop(*, after: bool) -> Act:
    """Closes the connection without an answer, before or after it did the work."""

    def act(h: Handler) -> None:
        if after:
            h.work()
        h.reset()

    return act


def late(status: int = 200, until: threading.Event | None = None) -> Act:
    """Does the work, and answers when somebody says so (or at the end of the test)."""

    def act(h: Handler) -> None:
        h.work()
        while not (until or h.receiver.closing).wait(0.02) and not h.receiver.closing.is_set():
            pass
        h.send(status, b'{"late": true}', {"Content-Type": "application/json"})

    return act


def half() -> Act:
    """Half of the body it promised, then the end."""

    def act(h: Handler) -> None:
        h.work()
        h.send(200, b'{"n": [1, 2', {"Content-Type": "application/json"}, length=200)
        h.reset()

    return act


def drip() -> Act:
    """A status line at once, and a body that comes byte by byte and has no end."""

    def act(h: Handler) -> None:
        h.work()
        h.send(200, b"", {"Content-Type": "text/plain"}, length=1_000_000)
        while not h.receiver.closing.wait(0.05):
            h.wfile.write(b"x")
            h.wfile.flush()

    return act


def head_and_stall() -> Act:
    """Half of a status line, and then nothing."""

    def act(h: Handler) -> None:
        h.work()
        h.wfile.write(b"HTTP/1.")
        h.wfile.flush()
        h.receiver.closing.wait(60)

    return act


def endless(status: int = 200) -> Act:
    """A body without an end, as fast as it is taken."""

    def act(h: Handler) -> None:
        h.work()
        h.send(status, b"", {"Content-Type": "text/plain"}, length=5 * 1024**3)
        while not h.receiver.closing.is_set():
            h.wfile.write(b"x" * 65536)

    return act


def raw(data: bytes) -> Act:
    """These bytes as they are, and the end."""

    def act(h: Handler) -> None:
        h.work()
        h.wfile.write(data)
        h.wfile.flush()

    return act


def then(*acts: Act) -> Act:
    """One thing after the other with the same request; for what a test does while the request is on the wire."""

    def act(h: Handler) -> None:
        for one in acts:
            one(h)

    return act


def does(what: Callable[[], Any]) -> Act:
    return lambda _: what()

"""Flights, hotels, cars and payments on loopback, for the plan beside it: it fails in every way a far side can.

    python3 service.py --ledger trip.db --token TOKEN [--port 8765] [--remember 86400]

It prints its address once it listens. All of it lies in one SQLite file, so it may be killed and begun again.

Rules, as a payment provider has them:
- every request but `GET /faults` and `POST /faults` wants the token
- POST honours `Idempotency-Key`: the same key with the same request gets the same answer, and nothing is done again; with another
  request it is refused (422); a key is forgotten so many seconds (`--remember`) after it came first
- what was made is found and undone by its id or by the key it was made with; one that was undone by its key before it came is
  refused when it comes (410)
- what is undone stays in the ledger, with the time at which it was undone; `GET /ledger` shows all of it

    GET    /flights?to=PLACE                    what there is, the cheapest first
    POST   /bookings {kind, item, traveller}    kind: flight, hotel or car
    POST   /payments {traveller, amount}
    POST   /tickets {bookings, payment}         the last step; it makes nothing that would have to be undone
    GET    /bookings/ID or /bookings/by-key/KEY, and DELETE; the same under /payments

Faults: `POST /faults {"on": "POST /bookings flight", "modes": ["drop", "ok", …]}` sets what is done with the next requests that
begin so, one after the other; a header `X-Fault: MODE` does it for its own request. Modes:

    ok             as if nothing had been said
    drop           the work is done, the connection is reset before the answer
    drop-before    the connection is reset before the work
    late           the work is done, the answer comes after `--late` seconds
    500            nothing is done: 500            500-after      the work is done: 500
    503            nothing is done: 503, Retry-After: 1
    409, 400, 402  nothing is done
    half           the work is done, half of the answer's body is sent
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import socket
import sqlite3
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = Any
MODES = ("ok", "drop", "drop-before", "late", "500", "500-after", "503", "409", "400", "402", "half")
PRICES = {"flight": 420, "hotel": 360, "car": 150}
FLIGHTS = [("TK-17", 420), ("LH-900", 610), ("BA-4", 755)]
SCHEMA = """
CREATE TABLE IF NOT EXISTS made (          -- every booking and every payment there ever was
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, what TEXT NOT NULL, traveller TEXT NOT NULL, amount INTEGER NOT NULL,
  key TEXT, made_at REAL NOT NULL, undone_at REAL
);
CREATE TABLE IF NOT EXISTS answers (       -- by key: what was asked with it, and what was said
  key TEXT PRIMARY KEY, asked TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS refused (key TEXT PRIMARY KEY);        -- undone before they came
CREATE TABLE IF NOT EXISTS faults (no INTEGER PRIMARY KEY, begins TEXT NOT NULL, mode TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS came (no INTEGER PRIMARY KEY, line TEXT NOT NULL, key TEXT, mode TEXT NOT NULL, at REAL NOT NULL);
"""


class Refused(Exception):
    """A request that is answered without any work."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Ledger:
    """What was booked and paid. One request at a time, each in one transaction."""

    def __init__(self, path: str, remember: float) -> None:
        self.remember = remember
        self.lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(SCHEMA)

    def mode(self, line: str, subject: str, key: str | None, header: str | None) -> str:
        """What is to be done with this request, and a note that it came."""
        with self.lock, self._db:
            rows = self._db.execute("SELECT no, mode, begins FROM faults ORDER BY no").fetchall()
            found = next(((no, mode) for no, mode, begins in rows if f"{line} {subject}".startswith(begins)), None)
            if found is not None:
                self._db.execute("DELETE FROM faults WHERE no = ?", (found[0],))
            mode = header or (found[1] if found else "ok")
            note = (line, key, mode, time.time())
            self._db.execute("INSERT INTO came (line, key, mode, at) VALUES (?, ?, ?, ?)", note)
        return mode

    def set_faults(self, begins: str, modes: list[str]) -> None:
        with self.lock, self._db:
            self._db.executemany("INSERT INTO faults (begins, mode) VALUES (?, ?)", [(begins, mode) for mode in modes])

    def make(self, line: str, body: Json, key: str | None) -> tuple[int, str]:
        """Does the work of a POST once for its key. Raises Refused."""
        asked = hashlib.sha256(f"{line}\n{json.dumps(body, sort_keys=True)}".encode()).hexdigest()
        with self.lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM answers WHERE at < ?", (time.time() - self.remember,))
            if self._one("SELECT 1 FROM refused WHERE key = ?", key):
                raise Refused(410, "it was undone before it came")
            before = self._one("SELECT asked, status, body FROM answers WHERE key = ?", key)
            if before is not None:
                if before[0] != asked:
                    raise Refused(422, "this key came with another request before")
                return before[1], before[2]
            answer = json.dumps(self._work(line, body, key))
            if key is not None:
                self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", (key, asked, 201, answer, time.time()))
            return 201, answer

    def _work(self, line: str, body: Json, key: str | None) -> Json:
        try:
            if line == "POST /tickets":
                return {"tickets": len(body["bookings"]), "payment": body["payment"]}
            kind = "payment" if line == "POST /payments" else body["kind"]
            amount = int(body["amount"]) if kind == "payment" else PRICES[kind]
            what = "trip" if kind == "payment" else str(body["item"])
            row = (f"{kind}-{secrets.token_hex(4)}", kind, what, str(body["traveller"]), amount, key, time.time())
        except (KeyError, TypeError, ValueError) as e:
            raise Refused(400, f"this is no request of {line}: {e!r}") from None
        self._db.execute("INSERT INTO made VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return self._seen(row[0])

    def find(self, place: str) -> Json:
        """What was made, by `/bookings/ID` or `/bookings/by-key/KEY`, and is not undone. Raises Refused."""
        with self.lock:
            id = self._id(place)
            if id is None:
                raise Refused(404, "there is none")
            return self._seen(id)

    def undo(self, place: str) -> None:
        """Undoes what was made. Undone by its key, it is refused should it come later. Raises Refused."""
        with self.lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            id, _, key = self._id(place), *place.rpartition("/by-key/")[1:]
            if key:
                self._db.execute("INSERT OR IGNORE INTO refused VALUES (?)", (key,))
            if id is not None:
                self._db.execute("UPDATE made SET undone_at = ? WHERE id = ?", (time.time(), id))
        if id is None:
            raise Refused(404, "there is none")

    def _id(self, place: str) -> str | None:
        kinds = "= 'payment'" if place.startswith("/payments/") else "<> 'payment'"
        column = "key" if "/by-key/" in place else "id"
        sql = f"SELECT id FROM made WHERE {column} = ? AND kind {kinds} AND undone_at IS NULL"
        found = self._one(sql, place.rpartition("/")[2])
        return found[0] if found else None

    def _seen(self, id: str) -> Json:
        kind, what, traveller, amount = self._one("SELECT kind, what, traveller, amount FROM made WHERE id = ?", id)
        return {"id": id, "kind": kind, "item": what, "traveller": traveller, "price": amount}

    def _one(self, sql: str, value: Json) -> Any:
        return self._db.execute(sql, (value,)).fetchone()

    def rows(self) -> Json:
        with self.lock:
            names = ("id", "kind", "item", "traveller", "amount", "key", "made_at", "undone_at")
            made = [dict(zip(names, row, strict=True)) for row in self._db.execute("SELECT * FROM made ORDER BY made_at")]
            came = [
                dict(zip(("line", "key", "mode"), r, strict=True))
                for r in self._db.execute("SELECT line, key, mode FROM came ORDER BY no")
            ]
        return {"made": made, "came": came}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger: Ledger
    token: str
    late: float

    def answer(self) -> None:
        self.close_connection = True
        try:
            body = self._body()
            if self.path == "/faults" and self.command == "POST":
                return self._faults(body)
            if self.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refused(401, "the token is missing, or another")
            if self.path == "/ledger":
                return self._send(200, self.ledger.rows())
            self._perform(body)
        except Refused as e:
            self._send(e.status, {"error": e.why})
        except OSError:
            pass  # who asked is gone

    do_GET = do_POST = do_DELETE = answer

    def _body(self) -> Json:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            return json.loads(raw) if raw else {}
        except ValueError:
            raise Refused(400, "the body is no JSON") from None

    def _faults(self, body: Json) -> None:
        unknown = [mode for mode in body["modes"] if mode not in MODES]
        if unknown:
            raise Refused(400, f"there is no mode {unknown[0]!r}")
        self.ledger.set_faults(body["on"], body["modes"])
        self._send(200, {})

    def _perform(self, body: Json) -> None:
        line, key = f"{self.command} {self.path}", self.headers.get("Idempotency-Key")
        mode = self.ledger.mode(line, str(body.get("kind", "")) if isinstance(body, dict) else "", key, self.headers.get("X-Fault"))
        if mode == "drop-before":
            return self._reset()
        if mode in ("500", "503", "409", "400", "402"):
            return self._send(int(mode), {"error": "as it was told"}, {"Retry-After": "1"} if mode == "503" else {})
        status, answer = self._work(line, body, key)
        if mode == "drop":
            return self._reset()
        if mode == "late":
            time.sleep(self.late)
        if mode == "500-after":
            return self._send(500, {"error": "as it was told"})
        self._send(status, answer, cut=mode == "half")

    def _work(self, line: str, body: Json, key: str | None) -> tuple[int, Json]:
        url = urlsplit(self.path)
        where = url.path.split("/")[1:]
        match self.command, where:
            case "GET", ["flights"]:
                to = parse_qs(url.query).get("to", [""])[0]
                return 200, {"flights": [{"id": id, "to": to, "price": price} for id, price in FLIGHTS]}
            case "POST", ["bookings" | "payments" | "tickets"]:
                status, text = self.ledger.make(line, body, key)
                return status, json.loads(text)
            case "GET", ["bookings" | "payments", *_]:
                return 200, self.ledger.find(url.path)
            case "DELETE", ["bookings" | "payments", *_]:
                self.ledger.undo(url.path)
                return 200, {}
        raise Refused(404, f"there is no {line}")

    def _send(self, status: int, answer: Json, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        raw = json.dumps(answer).encode()
        self.send_response_only(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2] if cut else raw)
        self.wfile.flush()

    def _reset(self) -> None:
        """Ends the connection as a process that dies does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass  # who asked is gone


def main() -> None:
    given = argparse.ArgumentParser(description="A far side on loopback for the plan book-trip.")
    given.add_argument("--ledger", required=True, help="its SQLite file")
    given.add_argument("--token", required=True, help="what every request must bear")
    given.add_argument("--port", type=int, default=0)
    given.add_argument("--remember", type=float, default=86400.0, help="seconds for which a key is remembered")
    given.add_argument("--late", type=float, default=30.0, help="seconds a late answer takes")
    asked = given.parse_args()
    handler = type("Bound", (Handler,), {"ledger": Ledger(asked.ledger, asked.remember), "token": asked.token, "late": asked.late})
    server = Server(("127.0.0.1", asked.port), handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

"""The template that books a trip, run for real against its own service, which fails as it is told.

After each test the run's log of effects and the service's ledger say the same: what is done was made once, what is undone is gone,
and nothing lies there that the run does not know of.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Died, DrivingRequests, Moments
from program import Program, until

from durun.engine import Engine
from durun.machine.model import TERMINAL, Status

TEMPLATE = Path(__file__).parents[2] / "durun" / "templates" / "book-trip"
TOKEN = "token-of-the-test-7f3a"
PLACES = ("POST /bookings flight", "POST /bookings hotel", "POST /bookings car", "POST /payments")
BOOKED = Counter(flight=1, hotel=1, car=1)
PAID = BOOKED + Counter(payment=1)
PASSING = ("drop", "drop-before", "late", "500", "500-after", "503")  # the rules of the plan get over these


class Service:
    """The far side, a process of its own."""

    def __init__(self, folder: Path, *more: str, port: int = 0) -> None:
        self.ledger, self._more = folder / "trip.db", more
        self._begin(port)

    def _begin(self, port: int) -> None:
        words = ["--ledger", str(self.ledger), "--token", TOKEN, "--port", str(port), *self._more]
        self.process = subprocess.Popen([sys.executable, TEMPLATE / "service.py", *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), "the service did not come up"

    def down(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def up(self) -> None:
        self._begin(int(self.url.rpartition(":")[2]))

    def forget(self) -> None:
        """Nothing was ever booked, asked or told to fail."""
        with contextlib.closing(sqlite3.connect(self.ledger, timeout=30)) as db, db:
            for table in ("made", "answers", "refused", "faults", "came"):
                db.execute(f"DELETE FROM {table}")

    def say(self, line: str, *modes: str) -> None:
        """What is done with the next requests that begin so."""
        body = json.dumps({"on": line, "modes": modes}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/faults", body), timeout=30).close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """A request of the test's own, with the token."""
        data = None if body is None else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {TOKEN}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, given, method=method), timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)

    def rows(self, sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.ledger, timeout=30)) as db:
            return db.execute(sql).fetchall()

    def holds(self) -> Counter[str]:
        """What is booked and paid now, by kind."""
        return Counter(kind for (kind,) in self.rows("SELECT kind FROM made WHERE undone_at IS NULL"))

    def made(self) -> Counter[str]:
        """What ever was, by kind."""
        return Counter(kind for (kind,) in self.rows("SELECT kind FROM made"))

    def came(self, begins: str = "") -> list[str]:
        return [line for (line,) in self.rows("SELECT line FROM came ORDER BY no") if line.startswith(begins)]

    def met(self, mode: str) -> list[str]:
        """The requests that met a mode."""
        return [line for line, how in self.rows("SELECT line, mode FROM came ORDER BY no") if how == mode]


class Trip:
    """The plan in a folder of the test, its tries shorter where the test waits for their end, and the service."""

    def __init__(self, durun: Program, *more: str) -> None:
        self.durun, self.service = durun, Service(durun.folder, *more)
        self.plan = (TEMPLATE / "plan.yaml").read_text()
        durun.env |= {"BOOKING_API": self.service.url, "BOOKING_TOKEN": TOKEN}

    def change(self, old: str, new: str) -> None:
        assert old in self.plan
        self.plan = self.plan.replace(old, new)

    def words(self, budget: int, patience: str) -> list[str]:
        (self.durun.folder / "plan.yaml").write_text(self.plan)
        given = {"traveller": "ann", "budget": budget, "patience": patience}
        return ["start", "plan.yaml", "--id", "r", *(word for k, v in given.items() for word in ("-i", f"{k}={v}"))]

    def start(self, exit: int, *, budget: int = 2000, patience: str = "10s") -> str:
        return self.durun(*self.words(budget, patience), exit=exit, limit=120).stderr

    def begin(self, *, budget: int = 2000, patience: str = "10s") -> subprocess.Popen[str]:
        return self.durun.begin(*self.words(budget, patience))

    def log(self) -> list[tuple[str, str, str, str | None]]:
        """(path, key, how it ended, what is to be undone of it) of every effect that makes something."""
        doc = self.durun.show("r")
        with contextlib.closing(sqlite3.connect(self.durun.db)) as db:
            undos = dict(db.execute("SELECT effect, status FROM undos").fetchall())
        if doc["undo"]:
            assert {u["effect"]: u["status"] for u in doc["undo"]} == undos
        makes = [e for e in doc["effects"] if e["kind"] == "http" and re.search(r"book_\w+$|^pay$", e["path"])]
        return [(e["path"], e["key"], e["status"], undos.get(e["no"])) for e in makes]

    def says_what_is_so(self) -> None:
        """A person answers what is in doubt by what the service holds."""
        doc = self.durun.show("r")
        keys = {e["path"]: e["key"] for e in doc["effects"]}
        for wants in doc["waiting_for"]:
            assert wants["kind"] in ("in_doubt", "keeps_dying"), wants
            at = "payments" if wants["path"].startswith("pay") else "bookings"
            there, answer = self.service.ask("GET", f"/{at}/by-key/{keys[wants['path']]}")
            words = ["--happened", "--output", json.dumps({"status": 200, "headers": {}, "json": answer, "body": ""})]
            undoes = wants["path"].endswith("~undo")
            self.durun("resolve", "r", wants["path"], *(words if there == 200 and not undoes else ["--retry"]))

    def agrees(self) -> None:
        """The run's log and the ledger say the same."""
        made = {key: gone is not None for key, gone in self.service.rows("SELECT key, undone_at FROM made")}
        assert len(made) == sum(self.service.made().values()), "a key made two things"
        log = self.log()
        assert set(made) <= {key for _, key, _, _ in log}, "something was made that the run does not know of"
        for path, key, status, undo in log:
            what = f"{path} is {status}, its undo {undo}; made: {key in made}, undone: {made.get(key)}"
            if status == "done":
                assert key in made, what
            if status in ("not_done", "withdrawn"):
                assert key not in made, what
            if undo in ("registered", "owed", "failed"):
                assert not made.get(key, False), what
            if undo in ("undone", "not_needed"):
                assert made.get(key, True), what
        files = [path for path in self.durun.folder.rglob("*") if path.is_file() and "runs.db" in str(path)]
        assert files and not [path for path in files if TOKEN.encode() in path.read_bytes()], "the token was written down"


@pytest.fixture
def trip(durun: Program) -> Iterator[Trip]:
    made = Trip(durun, "--late", "2.5")
    yield made
    try:
        made.agrees()
    finally:
        made.service.down()


# --- the service itself ---


def test_the_service_honours_keys_as_a_payment_provider_does(tmp_path: Path) -> None:
    service = Service(tmp_path, "--remember", "3600")
    paid = {"traveller": "ann", "amount": 5}
    first = service.ask("POST", "/payments", paid, Idempotency_Key="k1")
    assert first[0] == 201
    assert service.ask("POST", "/payments", paid, Idempotency_Key="k1") == first, "the same key and body: the same answer"
    assert service.ask("POST", "/payments", {**paid, "amount": 6}, Idempotency_Key="k1")[0] == 422
    assert service.ask("POST", "/payments", paid, Idempotency_Key="k2")[1]["id"] != first[1]["id"]
    assert service.made() == Counter(payment=2)
    assert service.ask("GET", "/payments/by-key/k1") == (200, first[1])
    assert service.ask("DELETE", f"/payments/{first[1]['id']}")[0] == 200
    assert service.ask("DELETE", f"/payments/{first[1]['id']}")[0] == 404
    assert service.ask("GET", "/payments/by-key/k1")[0] == 404
    assert service.ask("DELETE", "/payments/by-key/late")[0] == 404
    assert service.ask("POST", "/payments", paid, Idempotency_Key="late")[0] == 410, "undone before it came"
    assert service.ask("GET", "/flights", Authorization="Bearer another")[0] == 401
    service.down()


def test_the_service_forgets_a_key_when_its_time_is_over(tmp_path: Path) -> None:
    service = Service(tmp_path, "--remember", "0")
    for _ in range(2):
        assert service.ask("POST", "/bookings", {"kind": "car", "item": "x", "traveller": "ann"}, Idempotency_Key="k")[0] == 201
    assert service.made() == Counter(car=2)
    service.down()


# --- success ---


def test_a_trip_within_the_budget_is_booked_and_paid(trip: Trip) -> None:
    trip.start(0)
    assert trip.service.holds() == trip.service.made() == PAID
    output = json.loads(trip.durun("output", "r").stdout)
    assert output["price"] == 930 and output["payment"].startswith("payment-")


def test_a_dear_one_is_asked_about_and_a_yes_pays(trip: Trip) -> None:
    assert "costs 930. Pay it?" in trip.start(3, budget=800)
    assert trip.service.holds() == BOOKED
    trip.durun("approve", "r", "--resume")
    assert trip.service.holds() == trip.service.made() == PAID


def test_a_no_undoes_what_was_booked(trip: Trip) -> None:
    trip.start(3, budget=800)
    trip.durun("reject", "r", "--resume", exit=4)
    assert trip.service.made() == BOOKED and not trip.service.holds()
    assert trip.durun.show("r")["status"] == "compensated"


def test_a_backup_that_is_restored_after_the_run_had_gone_on_makes_no_second_charge(trip: Trip) -> None:
    """What is done again carries the key it had, so the service gives the answer it gave."""
    trip.start(3, budget=800)
    keys = {e["path"]: e["key"] for e in trip.durun.show("r")["effects"]}
    trip.durun("db", "backup", "saved.db")
    trip.durun("approve", "r", "--resume")
    paid = {e["path"]: e["key"] for e in trip.durun.show("r")["effects"]}
    assert trip.service.holds() == trip.service.made() == PAID and set(keys) < set(paid)
    trip.durun("db", "restore", "saved.db")
    assert trip.durun.show("r")["status"] == "blocked"
    trip.durun("resume", "r", "--after-restore", exit=3)
    trip.durun("approve", "r", "--resume")
    again = {e["path"]: e["key"] for e in trip.durun.show("r")["effects"] if e["kind"] == "http"}
    assert again == {path: key for path, key in paid.items() if path in again} and len(again) > len(keys)
    assert trip.service.holds() == trip.service.made() == PAID, "nothing was booked or paid twice"


# --- each fault ---


@pytest.mark.parametrize("mode", PASSING)
def test_what_passes_is_got_over_and_each_thing_is_done_once(trip: Trip, mode: str) -> None:
    for place in (*PLACES, "POST /tickets", "GET /flights"):
        trip.service.say(place, mode)
    trip.start(0, patience="1s" if mode == "late" else "10s")
    assert len(trip.service.met(mode)) == 6
    assert trip.service.holds() == trip.service.made() == PAID


@pytest.mark.parametrize("place", PLACES)
def test_half_an_answer_is_asked_for_again_where_that_is_safe_and_else_all_is_undone(trip: Trip, place: str) -> None:
    trip.service.say(place, "half")
    safe = "car" not in place
    trip.start(0 if safe else 4)
    assert trip.service.holds() == (PAID if safe else Counter())
    assert trip.service.made() == (PAID if safe else BOOKED)


@pytest.mark.parametrize("mode", ["409", "400", "402"])
@pytest.mark.parametrize("place", [PLACES[0], PLACES[3], "POST /tickets"])
def test_what_is_refused_for_good_undoes_all_that_was_done(trip: Trip, place: str, mode: str) -> None:
    trip.service.say(place, mode)
    trip.start(4)
    doc = trip.durun.show("r")
    assert (doc["status"], doc["error"]["name"]) == ("compensated", "branch_failed" if "book" in place else f"http:{mode}")
    expected = {PLACES[0]: Counter(hotel=1, car=1), PLACES[3]: BOOKED, "POST /tickets": PAID}[place]
    assert trip.service.made() == expected and not trip.service.holds()


@pytest.mark.parametrize("mode", [*PASSING, "half"])
def test_an_undo_gets_over_what_passes(trip: Trip, mode: str) -> None:
    for line in ("DELETE /bookings", "DELETE /bookings", "DELETE /bookings", "DELETE /payments"):
        trip.service.say(line, mode)
    trip.service.say("POST /tickets", "400")
    trip.start(4, patience="1s" if mode == "late" else "10s")
    assert len(trip.service.met(mode)) == 4
    assert trip.service.made() == PAID and not trip.service.holds()


def test_after_the_time_in_which_its_key_is_remembered_nothing_is_sent_again_unasked(durun: Program) -> None:
    trip = Trip(durun, "--remember", "1", "--late", "60")
    trip.change("    idempotent: 24h\n    probe:", "    idempotent: 1s\n    probe:")
    trip.service.say("POST /payments", "late")
    driver = trip.begin()
    until(lambda: trip.service.holds()["payment"])
    driver.kill()
    driver.communicate()
    paid_at = trip.service.rows("SELECT made_at FROM made WHERE kind = 'payment'")[0][0]
    until(lambda: time.time() > paid_at + 1.5)
    durun("resume", "r")
    assert len(trip.service.came("POST /payments")) == 1 and trip.service.came("GET /payments/by-key/")
    assert trip.service.holds() == PAID
    trip.agrees()
    trip.service.down()


# --- the end of what drives it ---

KILLED = {"the driver": False, "driver and keeper": True}


def kill(trip: Trip, driver: subprocess.Popen[str], everything: bool) -> None:
    if everything:
        trip.durun.kill_all()
    driver.kill()
    driver.communicate()


@pytest.mark.parametrize("everything", KILLED.values(), ids=KILLED)
@pytest.mark.parametrize("place", [*PLACES, "POST /tickets", "DELETE /bookings", "DELETE /payments"])
def test_killed_while_an_answer_is_awaited_it_goes_on_and_each_thing_is_done_once(trip: Trip, place: str, everything: bool) -> None:
    undoes = place.startswith("DELETE")
    trip.service.say(place, "late")
    if undoes:
        trip.service.say("POST /tickets", "400")
    driver = trip.begin()
    until(lambda: trip.service.met("late"))
    kill(trip, driver, everything)
    trip.durun("resume", "r", exit=4 if undoes else 0, limit=120)
    assert trip.service.made() == PAID
    assert trip.service.holds() == (Counter() if undoes else PAID)


def test_killed_again_and_again_at_whatever_moment_it_comes_to_one_end(trip: Trip) -> None:
    """Each driver is killed as soon as the service has heard something new of it. What dies three times is asked about."""
    trip.service.say("POST /tickets", *["400"] * 9)  # each time it is sent
    driver, lives = trip.begin(), 0
    while True:
        heard = len(trip.service.came())
        until(lambda seen=heard, driver=driver: len(trip.service.came()) > seen or driver.poll() is not None, 60)
        if driver.poll() is None:
            lives += 1
            kill(trip, driver, everything=lives % 2 == 0)
        elif driver.returncode == 9:
            driver.communicate()
            trip.says_what_is_so()
        else:
            break
        driver = trip.durun.begin("resume", "r", "-q")
    said = driver.communicate()[1]
    assert driver.returncode == 4, said
    assert lives >= 3  # where a death falls between two answers, two are heard by the next
    assert trip.service.made() == PAID and not trip.service.holds()


class Life:
    """A trip whose driver dies at one moment in this process, and is taken up by others; the service knows of no other trip.

    The plan says how to find out what happened, so nobody is asked."""

    def __init__(self, folder: Path, service: Service, *faults: tuple[str, str]) -> None:
        folder.mkdir()
        self.folder, self.service = folder, service
        service.forget()
        for line, mode in faults:
            service.say(line, mode)

    def live(self, at: int | None) -> tuple[Moments, Status]:
        moments, status = Moments(at), None
        for n in range(20):
            driving = DrivingRequests(self.folder, moments=moments if n == 0 else Moments())
            try:
                engine = driving.take() if driving.store.id_of("run") is not None else self._start(driving)
                engine.drive()
            except Died:
                driving.die()
                continue
            status = engine.at.run.status
            driving.leave()
            if status in TERMINAL:
                return moments, status
        raise AssertionError(f"it never ended: it is {status}")

    def _start(self, driving: DrivingRequests) -> Engine:
        given = {"traveller": "ann", "to": "rome", "budget": 2000, "patience": "10s"}
        return driving.start((TEMPLATE / "plan.yaml").read_text(), env={"BOOKING_API": self.service.url}, input=given)


@pytest.mark.parametrize("refused", [None, "POST /tickets"], ids=["to its end", "and back"])
def test_killed_at_every_moment_the_ledger_holds_each_thing_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    monkeypatch.setenv("BOOKING_TOKEN", TOKEN)
    service, total = Service(tmp_path), 1
    try:
        for at in (None, *range(200)):
            if at is not None and at >= total:
                break
            life = Life(tmp_path / f"{at}", service, *([(refused, "400")] * 3 if refused else []))
            moments, status = life.live(at)
            total = moments.seen if at is None else total
            where = f"killed at moment {at}, {moments.names[-1]}"
            assert status is (Status.COMPENSATED if refused else Status.SUCCEEDED), where
            assert service.made() == PAID and service.holds() == (Counter() if refused else PAID), where
    finally:
        service.down()
    assert total >= (60 if refused else 40), "the trip has fewer moments than it should"


# --- people who change their mind ---


@pytest.mark.parametrize("place", [*PLACES, None], ids=lambda p: p or "while it asks")
def test_cancelled_in_the_middle_everything_is_undone(trip: Trip, place: str | None) -> None:
    if place is not None:
        trip.service.say(place, "late")
        driver = trip.begin()
        until(lambda: trip.service.met("late"))
        trip.durun("cancel", "r", exit=4)
        assert driver.wait(60) == 4
        driver.communicate()
    else:
        trip.start(3, budget=800)
        trip.durun("cancel", "r", exit=4)
    assert trip.durun.show("r")["status"] == "compensated"
    assert trip.service.made() >= BOOKED if place != PLACES[0] else True
    assert not trip.service.holds()


def test_a_trip_that_was_booked_can_be_undone_once(trip: Trip) -> None:
    trip.start(0)
    trip.durun("compensate", "r", exit=4)
    assert trip.service.made() == PAID and not trip.service.holds()
    undone = len(trip.service.came("DELETE"))
    assert "compensated already" in trip.durun("compensate", "r", exit=4).stderr
    assert len(trip.service.came("DELETE")) == undone == 4
    assert [line.split("/")[1] for line in trip.service.came("DELETE")] == ["payments", "bookings", "bookings", "bookings"]


def test_an_undo_that_fails_blocks_the_run_and_again_does_only_what_is_left(trip: Trip) -> None:
    trip.change("max_elapsed: 10m", "max_attempts: 2")
    trip.service.say("POST /tickets", "400")
    trip.service.say("DELETE /payments", "409")
    trip.service.say("DELETE /bookings/flight", "503", "503")
    trip.start(9)
    doc = trip.durun.show("r")
    assert (doc["status"], doc["reason"]) == ("blocked", "undo_failed")
    assert trip.service.holds() == Counter(flight=1, payment=1), "the others went on"
    trip.agrees()
    before = trip.service.came("DELETE")
    trip.durun("compensate", "r", exit=4)
    again = trip.service.came("DELETE")[len(before) :]
    assert [line.split("/")[1] for line in again] == ["payments", "bookings"], "only what is left, the youngest first"
    assert not trip.service.holds()
    keys = dict(trip.service.rows("SELECT line, count(DISTINCT key) FROM came WHERE line LIKE 'DELETE%' GROUP BY line"))
    assert set(keys.values()) == {1}, "an undo keeps its key"


def test_while_the_service_is_down_nothing_is_forgotten(trip: Trip) -> None:
    trip.change("max_elapsed: 10m", "max_attempts: 2")
    trip.start(0)
    trip.service.down()
    trip.durun("compensate", "r", exit=9)
    assert trip.service.holds() == PAID
    trip.durun("compensate", "r", exit=9)
    trip.service.up()
    trip.durun("compensate", "r", exit=4)
    assert not trip.service.holds()


def test_ctrl_c_lets_the_undo_under_way_end_and_resume_goes_on_with_the_rest(trip: Trip) -> None:
    trip.service.say("POST /tickets", "400")
    trip.service.say("DELETE /bookings/by-key", "late")
    driver = trip.begin()
    until(lambda: trip.service.met("late"))
    os.kill(driver.pid, signal.SIGINT)
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode == 130, said
    assert trip.durun.show("r")["status"] == "paused"
    assert trip.service.holds() == Counter(flight=1, hotel=1), "what was under way has ended, and nothing more was begun"
    trip.durun("resume", "r", exit=4)
    assert not trip.service.holds() and len(trip.service.came("DELETE")) == 4

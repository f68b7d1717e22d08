"""Requests towards a far side that drops, drips, repeats and lies, and drivers that die while one is on the wire."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from email.utils import formatdate

import pytest
from receiver import Receiver, answer, does, drip, drop, endless, half, head_and_stall, late, raw, then

GOOD = answer(200, {"id": 7})


def post(url, more="", http=""):
    return f"a: {{http: {{method: POST, url: '{url}/pay', json: {{amount: 5}}{http}}}, {more} next: succeeded}}"


def get(url, more="", http=""):
    return f"a: {{http: {{url: '{url}/pay'{http}}}, {more} next: succeeded}}"


def started(place, states, exit=0, *args, **more):
    place.durun("start", place.plan(states, **more), "--id", "r", *args, exit=exit)
    return place.show("r")


# --- what is sent, and what comes back ---


def test_an_answer_is_the_output_and_the_key_went_with_the_request(place, receiver):
    receiver.say(answer(201, {"id": 12345678901234567890}, {"X-Two": ["a", "b"], "Set-Cookie": ["c=1", "d=2"]}))
    run = started(place, post(receiver.url))
    (came,) = receiver.came
    assert (came.method, came.path, json.loads(came.body)) == ("POST", "/pay", {"amount": 5})
    assert came.key == run["effects"][0]["key"]
    assert came.headers["content-type"] == "application/json"
    assert "expect" not in came.headers
    output = place.durun("output", "r", "a").json
    assert output["status"] == 201
    assert output["json"] == {"id": 12345678901234567890}
    assert (output["headers"]["x-two"], output["headers"]["set-cookie"]) == ("a, b", "c=1\nd=2")
    assert set(output) == {"status", "headers", "json", "body"}
    assert run["effects"][0]["kind"] == "http"


@pytest.mark.parametrize(
    ("given", "kind", "body"),
    [
        ("form: {a: 'b&c', n: [1, 2], t: 'ü +'}", "application/x-www-form-urlencoded", b"a=b%26c&n=1&n=2&t=%C3%BC+%2B"),
        ("body: plain", None, b"plain"),
        ("body: {z: 1, a: [true, null]}", "application/json", b'{"a":[true,null],"z":1}'),
        ("body: plain, headers: {content-type: text/csv}", "text/csv", b"plain"),
        ("json: null", "application/json", b"null"),
    ],
)
def test_a_body_is_sent_as_the_plan_gives_it(place, receiver, given, kind, body):
    started(place, f"a: {{http: {{method: PUT, url: '{receiver.url}', {given}}}, next: succeeded}}")
    (came,) = receiver.came
    assert (came.headers.get("content-type"), came.body) == (kind, body)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"])
def test_every_method_is_sent_as_it_is_and_without_a_body_where_there_is_none(place, receiver, method):
    started(place, f"a: {{http: {{method: {method}, url: '{receiver.url}/x?y=1'}}, next: succeeded}}")
    (came,) = receiver.came
    assert (came.method, came.path, came.body) == (method, "/x?y=1", b"")


def test_the_header_of_the_key_can_have_another_name_and_the_key_can_be_of_ones_own(place, receiver):
    more = "idempotency_header: X-Request-Id, key: 'inv-${{ input.n }}',"
    started(place, post(receiver.url, more), 0, "-i", "n=5", head="input: {n: integer}")
    (came,) = receiver.came
    assert came.headers["x-request-id"] == "inv-5"
    assert came.key is None


@pytest.mark.parametrize(("auth", "said"), [("bearer: abc", "Bearer abc"), ("user: me, password: 'ü:x'", "Basic bWU6w7w6eA==")])
def test_who_asks_is_said_as_the_plan_says(place, receiver, auth, said):
    started(place, post(receiver.url, http=f", auth: {{{auth}}}"))
    assert receiver.came[0].headers["authorization"] == said


@pytest.mark.parametrize(
    "value", ['it\'s "late" \\ \n\t', "${{ vars.x }}", "{{x}}", "\u2028 \U0001f600", "</script>", "a" * 300_000]
)
def test_f99_a_value_in_a_structured_body_arrives_as_it_is(place, receiver, value):
    place.write("in.json", json.dumps({"v": value}))
    states = f"a: {{http: {{method: POST, url: '{receiver.url}', json: {{m: '${{{{ input.v }}}}', in: 'say ${{{{ input.v }}}}'}}}}, next: succeeded}}"
    started(place, states, 0, "--input", "in.json", head="input: {v: string}")
    assert json.loads(receiver.came[0].body) == {"m": value, "in": "say " + value}


@pytest.mark.parametrize(
    ("http", "value", "said"),
    [
        ("url: '${{ input.v }}'", "ftp://x/", "http://"),
        ("url: 'http://127.0.0.1:1/${{ input.v }}'", "a#b", "#"),
        ("url: 'http://127.0.0.1:1/${{ input.v }}'", "a\r\nHost: evil", "control character"),
        ("url: 'http://127.0.0.1:1/', headers: {X: '${{ input.v }}'}", "a\r\nX-Evil: 1", "line break"),
        ("url: 'http://127.0.0.1:1/', json: {a: '${{ input.nothing }}'}", "x", "nothing"),
        ("url: 'http://127.0.0.1:1/', headers: {X: '${{ input.list }}'}", "x", "a string, number or boolean"),
    ],
)
def test_f101_a_request_that_cannot_be_worked_out_is_an_error_before_anything_is_sent(place, http, value, said):
    place.write("in.json", json.dumps({"v": value}))
    head = "input: {v: string, list: {type: array, default: []}, nothing: {type: any, default: null}}"
    states = f"a: {{http: {{{http}}}, catch: [{{on: expression, next: b}}], next: failed}}\nb: {{run: [echo, '${{{{ error.message }}}}'], output: text, next: succeeded}}"
    if "nothing" in http:
        states = states.replace("input.nothing }}", "input.nothing.x }}")
    started(place, states, 0, "--input", "in.json", head=head)
    assert said in place.durun("output", "r", "b").out


def test_what_may_not_stand_in_a_url_is_percent_encoded(place, receiver):
    states = f"a: {{http: {{url: '{receiver.url}/${{{{ input.v }}}}?q=${{{{ input.v }}}}'}}, next: succeeded}}"
    started(place, states, 0, "-i", "v=ä b%20c", head="input: {v: string}")
    assert receiver.came[0].path == "/%C3%A4%20b%20c?q=%C3%A4%20b%20c"


# --- how an end counts ---


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (400, "not_done"),
        (404, "not_done"),
        (409, "not_done"),
        (429, "not_done"),
        (408, "not_certain"),
        (500, "not_certain"),
        (503, "not_certain"),
        (302, "not_certain"),
        (304, "not_certain"),
    ],
)
def test_a_status_that_was_not_expected_is_an_error_with_its_name(place, receiver, status, how):
    receiver.say(answer(status, {"why": "so"}, {"Location": f"{receiver.url}/elsewhere"}))
    run = started(place, post(receiver.url), 1)
    assert run["effects"][0]["status"] == how
    error = run["error"]
    assert (error["name"], error["status"], error["exit"]) == (f"http:{status}", status, None)
    assert error["output"]["json"] == (None if status == 304 else {"why": "so"})
    assert receiver.lines() == ["POST /pay"]


def test_statuses_that_are_expected_are_done_whatever_they_are(place, receiver):
    receiver.say(answer(404), answer(302))
    states = (
        f"a: {{http: {{method: POST, url: '{receiver.url}/a', expect: [200-299, 404]}}, next: b}}\n"
        f"b: {{http: {{method: POST, url: '{receiver.url}/b', expect: 302}}, next: succeeded}}"
    )
    assert [e["status"] for e in started(place, states)["effects"]] == ["done", "done"]


@pytest.mark.parametrize(
    ("act", "name", "http"),
    [
        (half(), "output_invalid", ""),
        (answer(200, raw=b"{no json", headers={"Content-Type": "application/json"}), "output_invalid", ""),
        (answer(200, raw=b"\xff", headers={"Content-Type": "text/json+json"}), "output_invalid", ""),
        (endless(), "output_too_large", ", max_body: 100KiB"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Le"), "output_invalid", ""),
        (raw(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 2_000_000 + b"\r\n\r\n"), "output_invalid", ""),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"X-Many: abcdefghijklmnop\r\n" * 40_000 + b"\r\n"), "output_invalid", ""),
    ],
    ids=["half a body", "no json", "no utf-8", "over the cap", "half a head", "a line too long", "a head too long"],
)  # fmt: skip
def test_with_an_expected_status_the_effect_is_done_whatever_became_of_its_body(place, receiver, act, name, http):
    receiver.say(act)
    run = started(place, post(receiver.url, "retry: {on: any, max_attempts: 3}, idempotent: true,", http), 1)
    assert (run["effects"][0]["status"], run["error"]["name"]) == ("done", name)
    assert len(receiver.came) == 1, "what is done is not sent again by a rule that does not name the error"


def test_a_body_that_is_no_text_is_null_and_one_that_is_not_called_json_is_read_as_such_where_it_is(place, receiver):
    receiver.say(
        answer(200, raw=b"\x89PNG\0\xff"), answer(200, raw=b'{"a": 1}', headers={"Content-Type": "text/plain"}), answer(204)
    )
    states = "".join(
        f"{a}: {{http: {{url: '{receiver.url}'}}, next: {b}}}\n" for a, b in (("a", "b"), ("b", "c"), ("c", "succeeded"))
    )
    started(place, states)
    found = [place.durun("output", "r", name).json for name in "abc"]
    assert [(f["json"], f["body"]) for f in found] == [(None, None), ({"a": 1}, '{"a": 1}'), (None, "")]


def test_an_interim_answer_is_none(place, receiver):
    early = b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n"
    receiver.say(raw(early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), raw(early))
    started(
        place,
        f"a: {{http: {{url: '{receiver.url}'}}, next: b}}\nb: {{http: {{method: POST, url: '{receiver.url}'}}, next: succeeded}}",
        9,
    )
    output = place.durun("output", "r", "a").json
    assert (output["status"], output["body"]) == (200, "ok")
    assert "x-early" not in output["headers"]
    assert place.show("r")["reason"] == "in_doubt"


@pytest.mark.parametrize("where", ["refused", "no such name", "not trusted"])
def test_a_fault_before_the_first_byte_is_network_and_nothing_was_done(place, tmp_path, where):
    far = None
    if where == "not trusted":
        made = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "k.pem",
            "-out",
            "c.pem",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ]
        if subprocess.run(made, cwd=tmp_path, capture_output=True, check=False).returncode != 0:
            pytest.skip("openssl is not here")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
        far = Receiver(wrap=lambda s: context.wrap_socket(s, server_side=True))
    url = {"refused": "http://127.0.0.1:1", "no such name": "http://nowhere.invalid"}.get(where) or (far.url if far else "")
    run = started(place, post(url, "retry: {max_attempts: 2, initial_interval: 10ms},"), 1)
    assert (run["error"]["name"], run["effects"][0]["status"], run["effects"][0]["attempt"]) == ("network", "not_done", 2)
    assert url.split("//")[1] in run["error"]["message"]
    said = {"refused": "refused", "no such name": "resolved", "not trusted": "certificate"}[where]
    assert said in run["error"]["message"]
    if far is not None:
        assert not far.came
        far.close()


def test_tls_is_verified_against_the_authority_that_is_named(place, tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k.pem", "-out", "c.pem", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    if subprocess.run(made, cwd=tmp_path, capture_output=True, check=False).returncode != 0:
        pytest.skip("openssl is not here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    far = Receiver(wrap=lambda s: context.wrap_socket(s, server_side=True))
    place.env["SSL_CERT_FILE"] = str(tmp_path / "c.pem")
    started(place, post(far.url))
    assert far.lines() == ["POST /pay"]
    far.close()


def test_a_host_may_be_an_ipv6_address(place):
    try:
        far = Receiver("::1")
    except OSError:
        pytest.skip("there is no IPv6 here")
    started(place, post(far.url))
    assert far.lines() == ["POST /pay"]
    far.close()


def test_a_proxy_of_the_environment_is_asked_but_not_for_what_no_proxy_names(place, receiver):
    place.env |= {"http_proxy": receiver.url, "no_proxy": "127.0.0.2"}
    run = started(
        place, "a: {http: {url: 'http://far.invalid/x'}, next: b}\nb: {http: {url: 'http://127.0.0.2:1/'}, next: succeeded}", 1
    )
    assert receiver.lines() == ["GET http://far.invalid/x"]
    assert run["error"]["name"] == "network"


@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
def test_a_connection_that_breaks_without_an_answer_is_in_doubt(place, receiver, after):
    receiver.say(drop(after=after), GOOD)
    run = started(place, post(receiver.url, "retry: {max_attempts: 5, initial_interval: 10ms},"), 9)
    assert (run["reason"], run["effects"][0]["status"]) == ("in_doubt", "in_doubt")
    assert len(receiver.came) == 1
    place.durun("resolve", "r", "--retry")
    place.durun("resume", "r")
    assert len(set(receiver.keys())) == 1
    assert len(receiver.done) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
def test_an_idempotent_one_that_breaks_is_not_certain_and_retried_with_its_key(place, receiver, after):
    receiver.say(drop(after=after), drop(after=after), GOOD)
    run = started(place, post(receiver.url, "idempotent: 1h, retry: {on: network, max_attempts: 3, initial_interval: 10ms},"))
    assert run["effects"][0]["attempt"] == 3
    assert len(set(receiver.keys())) == 1
    assert len(receiver.done) == 1
    ends = [e["how"] for e in place.history("r", "attempt_ended")]
    assert ends == ["not_certain", "not_certain", "done"]


def test_no_retry_is_made_unless_the_plan_asks(place, receiver):
    receiver.say(drop(after=False), GOOD)
    run = started(place, get(receiver.url), 1)
    assert (run["error"]["name"], run["effects"][0]["status"]) == ("network", "not_certain")
    assert len(receiver.came) == 1, "nothing below durun sends again either"


def test_get_is_idempotent_unless_the_plan_says_otherwise(place, receiver):
    receiver.say(drop(after=False), GOOD)
    assert started(place, get(receiver.url, "idempotent: false,"), 9)["reason"] == "in_doubt"


@pytest.mark.parametrize(("probe", "posts"), [(answer(200, {"id": 7}), 1), (answer(404), 2)], ids=["yes", "no"])
def test_a_probe_by_request_settles_a_doubt(place, receiver, probe, posts):
    receiver.say(drop(after=posts == 1), probe, GOOD)
    asks = f"probe: {{http: {{url: '{receiver.url}/payments/${{{{ key }}}}'}}}},"
    run = started(place, post(receiver.url, asks))
    assert [line.split()[0] for line in receiver.lines()] == ["POST", "GET", "POST"][: posts + 1]
    assert receiver.came[1].path == f"/payments/{run['effects'][0]['key']}"
    assert receiver.came[1].key is None, "a question is not the act it asks about"
    assert place.durun("output", "r", "a").json["json"] == {"id": 7}
    assert len({came.key for came in receiver.came if came.key}) == 1


@pytest.mark.parametrize("act", [answer(500), answer(302), drop(after=False)], ids=["500", "302", "dropped"])
def test_a_probe_by_request_that_says_neither_leaves_the_doubt(place, receiver, act):
    receiver.say(drop(after=True), act)
    asks = f"probe: {{http: {{url: '{receiver.url}/q'}}}},"
    assert started(place, post(receiver.url, asks), 9)["reason"] == "in_doubt"


def test_a_request_may_probe_for_a_command_and_a_command_for_a_request(place, receiver):
    receiver.say(answer(200, {"n": 3}), drop(after=True))
    states = (
        f"a: {{run: 'kill -9 $$', output: json, probe: {{http: {{url: '{receiver.url}/q'}}}}, next: b}}\n"
        f"b: {{http: {{method: POST, url: '{receiver.url}/b'}}, probe: {{run: 'true'}}, next: succeeded}}"
    )
    run = started(place, states)
    assert run["status"] == "succeeded"
    assert place.durun("output", "r", "a").json == {"n": 3}


# --- limits ---


@pytest.mark.parametrize(
    ("act", "status", "name"),
    [
        (drip(), "done", "output_invalid"), (late(), "not_certain", "timeout"), (head_and_stall(), "not_certain", "timeout"),
        (endless(), "done", "output_too_large"),
    ],
    ids=["drips", "is silent", "stalls in its head", "has no end"],
)  # fmt: skip
def test_f64_a_timeout_is_a_limit_on_the_whole_request(place, receiver, act, status, name):
    receiver.say(act)
    began = time.monotonic()
    run = started(place, post(receiver.url, "timeout: 700ms, retry: {max_attempts: 2},"), 1)
    assert (run["effects"][0]["status"], run["error"]["name"]) == (status, name)
    assert time.monotonic() - began < 30
    assert len(receiver.came) == 1


def test_f64_a_connection_that_never_stands_is_network_and_not_done(place):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        run = started(place, post(f"http://127.0.0.1:{deaf.getsockname()[1]}", "timeout: 600ms,"), 1)
        for one in full:
            one.close()
    assert (run["error"]["name"], run["effects"][0]["status"]) == ("network", "not_done")
    assert "no connection within 600ms" in run["error"]["message"]


def test_f64_redirects_are_not_followed(place, receiver):
    receiver.say(answer(301, headers={"Location": f"{receiver.url}/again"}))
    assert started(place, get(receiver.url), 1)["error"]["name"] == "http:301"
    assert len(receiver.came) == 1


# --- Retry-After ---


@pytest.mark.parametrize("form", ["seconds", "a date"])
def test_f65_retry_after_is_honoured_in_full_and_kept_over_a_kill(place, receiver, form):
    times = []

    def busy(h):
        said = "2" if form == "seconds" else formatdate(time.time() + 3, usegmt=True)
        answer(429, headers={"Retry-After": said})(h)

    receiver.say(
        then(does(lambda: times.append(time.monotonic())), busy),
        then(does(lambda: times.append(time.monotonic())), GOOD),
    )
    plan = place.plan(post(receiver.url, "retry: {on: 'http:429', max_attempts: 2, initial_interval: 1ms, max_interval: 1ms},"))
    process = place.begin("start", plan, "--id", "r")
    place.until(lambda: place.runs() and place.history("r", "retry_at"), "the retry")
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    place.durun("resume", "r")
    assert times[1] - times[0] > 1.9
    assert len(receiver.came) == 2


@pytest.mark.parametrize("said", ["nonsense", "-5", "Sun, 99 Nov 2026 00:00:00 GMT", ""])
def test_f65_a_retry_after_that_is_none_changes_nothing(place, receiver, said):
    receiver.say(answer(503, headers={"Retry-After": said}), GOOD)
    started(place, post(receiver.url, "retry: {on: 'http:503', initial_interval: 1ms},"))
    assert len(receiver.came) == 2


def test_f65_a_huge_retry_after_is_shown_and_counts_as_elapsed(place, receiver):
    receiver.say(answer(503, headers={"Retry-After": "999999999"}))
    place.durun("start", place.plan(post(receiver.url, "retry: {on: 'http:503', max_elapsed: 1h},")), "--id", "r", exit=1)
    rule = "retry: {on: 'http:503', max_attempts: 2},"
    waits = place.durun("start", place.plan(post(receiver.url, rule)), "--id", "s", "--no-wait", exit=3)
    assert "until 20" in waits.err
    receiver.say(answer(503, headers={"Retry-After": "9" * 400}))
    waits = place.durun("start", place.plan(post(receiver.url, rule)), "--id", "t", "--no-wait", exit=3)
    assert "until 9999-12-31" in waits.err


# --- polls ---


def test_f62_a_poll_over_requests_renders_each_from_what_the_last_one_gave(place, receiver):
    receiver.say(*(answer(200, {"cursor": n, "ready": n == 3}) for n in range(1, 4)))
    states = (
        f"a: {{http: {{url: '{receiver.url}/jobs?after=${{{{ vars.at }}}}'}}, assign: {{at: '${{{{ output.json.cursor }}}}'}},"
        " poll: {until: output.json.ready, every: 10ms, for: 1m}, next: succeeded}"
    )
    started(place, states, head="vars: {at: 0}")
    assert [c.path.split("=")[1] for c in receiver.came] == ["0", "1", "2"]
    assert len(set(receiver.keys())) == 3


def test_a_round_that_fails_counts_as_not_yet_and_is_waited_for_as_long_as_it_asks(place, receiver):
    times = []
    stamp = does(lambda: times.append(time.monotonic()))
    receiver.say(
        then(stamp, answer(503, headers={"Retry-After": "1"})),
        then(stamp, drop(after=False)),
        then(stamp, answer(200, {"ok": True})),
    )
    started(place, get(receiver.url, "poll: {until: output.json.ok, every: 10ms, for: 1m},"))
    assert len(times) == 3
    assert times[1] - times[0] > 0.9


# --- drivers that die or are told to stop ---


def killed_while_asking(place, receiver, act, more=""):
    """The driver is killed by the far side, while the request is on the wire or once the answer is out."""
    process = []
    there = threading.Event()

    def kill():
        assert there.wait(30)
        process[0].kill()
        process[0].wait(60)

    receiver.say(act(does(kill)), GOOD)
    process.append(place.begin("start", place.plan(post(receiver.url, more)), "--id", "r"))
    there.set()
    process[0].wait(60)
    place.until(lambda: receiver.came, "the request")
    return place.show("r")


MOMENTS = {
    "before the work": lambda kill: then(kill, drop(after=False)),
    "after the work, unanswered": lambda kill: then(does(lambda: None), drop_later(kill)),
}


def drop_later(kill):
    def act(h):
        h.work()
        kill(h)

    return act


@pytest.mark.parametrize("moment", MOMENTS)
def test_f48_a_request_whose_driver_was_killed_is_asked_about(place, receiver, moment):
    assert killed_while_asking(place, receiver, MOMENTS[moment])["status"] == "interrupted"
    for _ in range(2):
        place.durun("resume", "r", exit=9)
        assert len(receiver.came) == 1
    assert place.show("r")["effects"][0]["status"] == "in_doubt"
    place.durun("resolve", "r", "--retry")
    place.durun("resume", "r")
    assert len(receiver.came) == 2
    assert len(set(receiver.keys())) == 1
    assert len(receiver.done) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_f48_an_idempotent_request_whose_driver_was_killed_is_sent_again_with_its_key(place, receiver, moment):
    killed_while_asking(place, receiver, MOMENTS[moment], "idempotent: true,")
    place.durun("resume", "r")
    assert len(receiver.came) == 2
    assert len(set(receiver.keys())) == 1
    assert len(receiver.done) == 1
    assert place.history("r", "in_doubt")


def test_f48_a_catch_may_take_the_doubt_of_a_request(place, receiver):
    states = "catch: [{on: in_doubt, next: b}],"
    process = []

    def kill():
        place.until(lambda: process, "the driver")
        process[0].kill()

    receiver.say(then(does(kill), drop(after=True)), GOOD)
    plan = place.plan(post(receiver.url, states) + "\nb: {run: 'true', next: succeeded}")
    process.append(place.begin("start", plan, "--id", "r"))
    process[0].wait(60)
    place.durun("resume", "r")
    assert place.show("r")["state"] == "b"
    assert len(receiver.came) == 1


def test_f48_a_driver_killed_before_its_connection_stood_begins_the_request_once(place):
    """The far side does not accept: nothing was sent, so nothing is in doubt."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        process = place.begin("start", place.plan(post(f"http://127.0.0.1:{port}")), "--id", "r")
        place.until(lambda: place.runs() and place.show("r")["effects"], "the intent")
        process.kill()
        process.wait(60)
        for one in full:
            one.close()
    assert place.durun("resume", "r", exit=1).err
    run = place.show("r")
    assert run["error"]["name"] == "network", "begun anew, and now refused"
    assert run["effects"][0]["attempt"] == 1
    assert not place.history("r", "in_doubt")


@pytest.mark.parametrize("how", ["INT", "TERM", "cancel"])
def test_a_request_on_the_wire_has_its_grace_to_answer(place, receiver, how):
    go = threading.Event()
    receiver.say(late(until=go))
    process = place.begin("start", place.plan(post(receiver.url) + "\n", start="a"), "--id", "r")
    place.until(lambda: receiver.came, "the request")
    if how == "cancel":
        other = place.begin("cancel", "r")
        place.until(lambda: place.history("r", "cancel_asked"), "the wish")
    else:
        process.send_signal(getattr(signal, f"SIG{how}"))
    go.set()
    if how == "cancel":
        place.end(other, (4, 10))
    place.end(process, (0, 4, 130, 143))
    run = place.show("r")
    assert run["effects"][0]["status"] == "done"
    assert len(receiver.came) == 1
    assert run["status"] == ("cancelled" if how == "cancel" else "succeeded")


@pytest.mark.parametrize("how", ["INT", "cancel"])
def test_a_request_that_does_not_answer_in_its_grace_is_let_go_and_said_to_be_unknown(place, receiver, how):
    receiver.say(late(), GOOD)
    process = place.begin("start", place.plan(post(receiver.url)), "--id", "r")
    place.until(lambda: receiver.came, "the request")
    if how == "cancel":
        place.durun("cancel", "r", "--grace", "200ms", exit=4)
        place.end(process, 4)
        assert place.show("r")["effects"][0]["status"] == "not_certain"
        return
    # a signal that comes before the one before it was heard is one with it
    place.until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT), "the end of the driver")
    place.end(process, (130, -signal.SIGINT))  # one more may meet a driver that has let go already
    run = place.show("r")
    assert run["status"] == "paused"
    assert run["effects"][0]["status"] == "in_doubt"
    place.durun("resume", "r", exit=9)
    assert len(receiver.came) == 1


def test_a_pause_lets_the_request_end_and_begins_nothing_more(place, receiver):
    go = threading.Event()
    receiver.say(late(until=go))
    states = post(receiver.url).replace("next: succeeded", "next: b") + "\nb: {run: 'echo b >> ticks', next: succeeded}"
    process = place.begin("start", place.plan(states), "--id", "r")
    place.until(lambda: receiver.came, "the request")
    place.durun("pause", "r")
    go.set()
    place.end(process, 9)
    assert place.show("r")["effects"][0]["status"] == "done"
    assert not place.lines("ticks")
    place.durun("resume", "r")
    assert place.lines("ticks") == ["b"]
    assert len(receiver.came) == 1


def test_a_driver_whose_gate_was_closed_sends_nothing(place, receiver):
    """Whoever takes over closes the gate first: what the old driver had not sent by then it never sends."""
    place.write("up.sh", "while [ ! -e go ]; do sleep 0.02; done")
    process = place.begin(
        "start", place.plan(f"w: {{run: 'echo $$ > up; . ./up.sh', next: a}}\n{post(receiver.url)}", start="w"), "--id", "r"
    )
    place.there("up")
    (gate,) = (place.folder / "durun.db.d").glob("*/gate")
    gate.write_bytes(b"x")
    place.write("go", "")
    done = place.end(process, 6)
    assert "taken over" in done.err or "closed the gate" in done.err
    assert not receiver.came
    place.durun("resume", "r")
    assert receiver.lines() == ["POST /pay"]
    assert not place.history("r", "in_doubt")


def test_a_plan_without_a_request_does_not_load_the_library(place):
    plan = place.plan("a: {run: 'true', next: succeeded}")
    place.durun("start", plan, "--id", "r")
    code = f"import sys; sys.argv = ['durun', 'start', {plan!r}, '--id', 's', '-q']\nfrom durun.cli import main\ntry: main()\nexcept SystemExit: pass\nprint('pycurl' in sys.modules)"
    said = subprocess.run([place.argv[0], "-c", code], env=place.env, cwd=place.folder, capture_output=True, text=True, timeout=60)
    assert said.stdout.split()[-1] == "False", said


def test_a_status_that_is_none_is_quoted(place, receiver):
    receiver.say(raw(b"HTTP/1.1 999999 Weird\r\nContent-Length: 2\r\n\r\nok"))
    run = started(place, post(receiver.url), 9)
    assert run["reason"] == "in_doubt"
    (doubt,) = place.history("r", "in_doubt")
    assert "it answered with a status line that is none, 'HTTP/1.1 999999 Weird'" in doubt["why"]

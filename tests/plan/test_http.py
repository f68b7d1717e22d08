"""What a plan may say of requests and secrets, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from durun.plan.load import PlanFaults, load

HEAD = "durun: 1\nname: test\n"


def faults(body: str, head: str = "") -> list[str]:
    try:
        load(f"{HEAD}{head}start: a\nstates:\n  a: {{{body}, next: succeeded}}\n", "plan.yaml")
    except PlanFaults as e:
        return [f.message for f in e.faults]
    return []


def good(body: str, head: str = "") -> dict[str, Any]:
    return dict(load(f"{HEAD}{head}start: a\nstates:\n  a: {{{body}, next: succeeded}}\n", "plan.yaml").plan["states"]["a"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("http: {}", "`url` is required here"), ("http: {url: x}", "http:// or https://"), ("http: {url: ''}", "empty"),
        ("http: {url: 'http://x', method: get}", "did you mean `GET`?"), ("http: {url: 'http://x', method: CONNECT}", "no method"),
        ("http: {url: 'http://x', method: GTE}", "did you mean `GET`?"), ("http: {url: 'http://x', method: PSOT}", "did you mean `POST`?"),
        ("http: {url: 'http://x', method: DELET}", "did you mean `DELETE`?"), ("http: {url: 'http://x', method: POSTT}", "did you mean `POST`?"),
        ("http: {url: 'http://x', method: PITCH}", "did you mean `PATCH`?"), ("run: [x], probe: {http: {url: 'http://x', method: GEET}}", "did you mean `GET`?"),
        ("http: {url: 'http://x', json: 1, form: {a: 1}}", "one body: json or form"),
        ("http: {url: 'http://x', expect: []}", "nothing in it"), ("http: {url: 'http://x', expect: 299-200}", "smaller"),
        ("http: {url: 'http://x', expect: [100]}", "no status"), ("http: {url: 'http://x', expect: 2xx}", "no status"),
        ("http: {url: 'http://x', max_body: 17MiB}", "at most 16MiB"), ("http: {url: 'http://x', max_body: 5}", "no size"),
        ("http: {url: 'http://x', headers: {'a b': 1}}", "no name of a header"), ("http: {url: 'http://x', headers: {A: 1, a: 2}}", "twice"),
        ("http: {url: 'http://x', headers: {A: [1]}}", "a text, a number or a boolean"), ('http: {url: \'http://x\', headers: {A: "a\\nb"}}', "one line"),
        ("http: {url: 'http://x', headers: {Content-Length: 5}}", "worked out when"), ("http: {url: 'http://x', form: {a: {}}}", "a field is"),
        ("http: {url: 'http://x', auth: {}}", "`auth` is {bearer"), ("http: {url: 'http://x', auth: {bearer: a, user: b}}", "`auth` is {bearer"),
        ("http: {url: 'http://x', auth: {user: 'a:b'}}", "no `:`"), ("http: {url: 'http://x', auth: {bearer: a}, headers: {authorization: b}}", "the same thing"),
        ("http: {url: 'http://x', header: {}}", "did you mean `headers`?"), ("http: {url: 'http://x'}, output: json", "{status, headers, json, body}"),
        ("http: {url: 'http://x'}, env: {A: b}", "says nothing to a `http`"), ("run: [x], idempotency_header: X", "$DURUN_IDEMPOTENCY_KEY"),
        ("http: {url: 'http://x'}, idempotency_header: 'a b'", "no name of a header"), ("http: {url: 'http://x'}, run: [x]", "several things at once"),
        ("http: {url: 'http://x', method: POST}, poll: {until: 'true', for: 1m}", "must be `idempotent`"),
        ("http: {url: 'http://x'}, idempotent: false, poll: {until: 'true', for: 1m}", "must be `idempotent`"),
        ("http: {url: 'http://x'}, poll: {until: 'true', for: 1m}, retry: {}", "no `retry` of its own"),
        ("run: [x], probe: {http: {url: 'http://x'}, yes: [200-404]}", "the status 404 means both yes and no"),
        ("run: [x], probe: {http: {url: 'http://x'}, env: {A: b}}", "`env` is no key here"), ("run: [x], probe: {http: {url: 'http://x'}, run: [y]}", "no key here"),
        ("http: {url: 'http://x', method: '${{ input.m }}'}", "no expression may stand here"),
        ("http: {url: 'http://x', expect: ['${{ input.m }}']}", "no expression may stand here"),
        ("http: {url: 'http://${{ nothing }}'}", "is no name here"), ("http: {url: 'http://x', json: {a: ['${{ vars.b }}']}}", "`vars.b` is not there"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_said(body: str, said: str) -> None:
    found = faults(body, "vars: {a: null}\n")
    assert any(said in message for message in found), found


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("states.a.output.stauts", "did you mean `states.a.output.status`?"), ("states.a.output.status.x", "is of the type integer"),
        ("states.a.output.body.x", "is of the type string or null"), ("states.a.output.json.x", ""), ("states.a.output.headers.etag", ""),
    ],
)  # fmt: skip
def test_what_is_read_of_an_answer_is_held_against_what_an_answer_has(template: str, said: str) -> None:
    text = f"{HEAD}start: a\noutput: '${{{{ {template} }}}}'\nstates: {{a: {{http: {{url: 'http://x'}}, next: succeeded}}}}\n"
    try:
        load(text, "plan.yaml")
    except PlanFaults as e:
        (fault,) = e.faults
        assert (said and said in fault.message) or (said.startswith("did") and "is not there" in fault.message), fault
    else:
        assert not said


def test_what_is_left_out_of_a_request_is_filled_in() -> None:
    state = good("http: {url: 'http://x'}")
    assert state["act"] == {
        "method": "GET", "url": "http://x", "headers": {}, "expect": [[200, 299]], "max_body": 2**20, "timeout": 300_000,
        "key_header": "Idempotency-Key",
    }  # fmt: skip
    assert (state["kind"], state["idempotent"], state["retry"]) == ("http", True, [])


@pytest.mark.parametrize(
    ("method", "more", "head", "idempotent"),
    [
        ("GET", "", "", True), ("HEAD", "", "", True), ("OPTIONS", "", "", True), ("PUT", "", "", True), ("DELETE", "", "", True),
        ("POST", "", "", False), ("PATCH", "", "", False), ("PURGE", "", "", False), ("GET", ", idempotent: false", "", False),
        ("POST", ", idempotent: 24h", "", 86_400_000), ("GET", "", "defaults: {idempotent: false}\n", False),
        ("POST", "", "defaults: {idempotent: true}\n", True),
    ],
)  # fmt: skip
def test_which_methods_are_idempotent_unless_the_plan_says_otherwise(method: str, more: str, head: str, idempotent: Any) -> None:
    assert good(f"http: {{method: {method}, url: 'http://x'}}{more}", head)["idempotent"] == idempotent


def test_defaults_reach_a_request_and_its_probe_as_far_as_they_fit() -> None:
    head = "defaults: {timeout: 5s, heartbeat: 1s, env: {A: b}, cwd: x, retry: {on: network}}\n"
    state = good("http: {url: 'http://x', method: POST}, probe: {http: {url: 'http://x'}}", head)
    assert (state["act"]["timeout"], state["probe"]["timeout"]) == (5000, 5000)
    assert state["retry"][0]["on"] == state["probe"]["retry"][0]["on"] == ["network"]
    assert not {"env", "cwd", "heartbeat"} & {*state["act"], *state["probe"]}
    assert (state["probe"]["yes"], state["probe"]["no"]) == ([[200, 299]], [[404, 404]])
    assert "key_header" not in state["probe"]


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ("[1]", "a text is wanted"), ("['a b']", "no name of an environment variable"), ("[A, A]", "named twice"), ("[A, {name: A, file: x}]", "named twice"),
        ("[{file: x}]", "`name` is required"), ("[{name: A, file: x, run: y}]", "not from both"), ("[{name: A, flie: x}]", "did you mean `file`?"),
        ("[{name: A, file: '${{ input.x }}'}]", "no expression may stand here"), ("A", "a list is wanted"), ("[{name: A, run: ''}]", "empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_secrets_is_said(secrets: str, said: str) -> None:
    found = faults("run: [x]", f"secrets: {secrets}\n")
    assert any(said in message for message in found), found


def test_where_secrets_come_from_is_pinned_with_the_plan() -> None:
    head = "secrets: [A, {name: B, file: b}, {name: C, run: [c, d]}, {name: D}]\n"
    plan = load(f"{HEAD}{head}start: a\nstates: {{a: {{run: [x], next: succeeded}}}}\n", "plan.yaml").plan
    assert plan["secrets"] == [{"name": "A"}, {"name": "B", "file": "b"}, {"name": "C", "run": ["c", "d"]}, {"name": "D"}]


def test_a_plan_without_secrets_has_the_digest_it_would_have_without_the_word() -> None:
    plan = load(f"{HEAD}start: a\nstates: {{a: {{run: [x], next: succeeded}}}}\n", "plan.yaml").plan
    assert "secrets" not in plan


@pytest.mark.parametrize("method", ["PROPFIND", "QUERY", "PURGE", "SEARCH", "REPORT", "MOVE", "COPY", "LINK", "VIEW", "SET"])
def test_a_method_of_somebody_elses_is_no_slip(method: str) -> None:
    assert good(f"http: {{url: 'http://x', method: {method}}}")["act"]["method"] == method

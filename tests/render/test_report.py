"""Reports of runs: what is in them, that they are the same every time, and that nothing from outside means anything in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt
from program import Program

EVIL = "a|b <script>alert(1)</script> `x` [l](u) ```\n# h\x1b[31m \u202e&amp; *b* $m$"
PLAN = """
version: '7'
input: {who: string}
secrets: [TOKEN]
start: book
states:
  book:
    run: 'echo "$WHO $TOKEN" >&2; exit 3'
    env: {WHO: '${{ input.who }}', TOKEN: '${{ secrets.TOKEN }}'}
    retry: {on: ['exit:3'], max_attempts: 2, initial_interval: 1ms}
    catch: [{on: ['exit:3'], next: ask}]
    next: ask
  ask: {approval: {message: 'Pay for ${{ input.who }}?', data: '${{ input.who }}'}, next: pay}
  pay: {run: 'kill -KILL $$', compensate: {run: 'exit 4', after: [done, in_doubt]}, next: succeeded}
"""
SECRET = {"TOKEN": "a-secret-of-mine"}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A file with a run that has failed: a retry, a person's word, an effect of which it is not certain whether it happened."""
    durun = Program(tmp_path_factory.mktemp("there"))
    durun.plan(PLAN)
    durun("start", "plan.yaml", "-i", f"who={EVIL}", "--id", "r", env=SECRET, exit=3)
    durun("approve", "r", "--by", "ann", "--note", EVIL, "--resume", env=SECRET, exit=1)
    yield durun
    durun.end()


def report(durun: Program, run: str, *more: str) -> str:
    said = durun("report", run, *more, env=SECRET)
    assert said.stderr == "" and SECRET["TOKEN"] not in said.stdout
    assert "json" in " ".join(more) or all(c.isprintable() or c == "\n" for c in said.stdout)
    return said.stdout


def without_chance(text: str) -> str:
    """The report with what differs from run to run taken out: times, keys, digests, the folder and who runs the test."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "KEY", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    text = re.sub(r"(started: TIME by) .*", r"\1 USER", text)
    return re.sub(r"(where|plan from|durun): .*", r"\1: HERE", text)


PLAIN = """
version: '7'
start: book
states:
  book: {run: 'exit 0', compensate: {run: 'true'}, next: charge}
  charge: {run: 'echo no money >&2; exit 3', retry: {on: ['exit:3'], max_attempts: 2, initial_interval: 1ms, jitter: none}, next: succeeded}
on_error: compensate
"""
GOLDEN = """\
# Run r of test: compensated

## Summary

- status: compensated
- plan: test 7
- plan digest: DIGEST
- state: charge (visit 1, attempt 2)
- started: TIME by USER
- ended: TIME
- where: HERE

## Data

Input:

```json
{}
```

## Error

- name: exit:3
- message: exit 3
- state: charge
- visit: 1
- attempt: 2
- exit: 3

The end of what it wrote to stderr:

```
no money
```

## What is certain, and what is not

Certain: 2 done, 1 not done.

Of everything that was begun it is known how it ended.

## Who decided what

| at | by | what | note |
| --- | --- | --- | --- |
| TIME | on_error | compensating |  |

## What happened

| no | at | where | what | more |
| --- | --- | --- | --- | --- |
| 1 | TIME |  | started |  |
| 2 | TIME | book | entered |  |
| 3 | TIME | book | attempt ended | how done, exit 0 |
| 4 | TIME | book | left | done, on to charge |
| 5 | TIME | charge | entered |  |
| 6 | TIME | charge | attempt ended | exit:3 (exit 3) |
"""


def test_the_report_of_a_run_that_was_compensated(durun: Program) -> None:
    durun.plan(PLAIN)
    durun("start", "plan.yaml", "--id", "r", exit=4)
    said = without_chance(report(durun, "r"))
    assert said.startswith(GOLDEN), said
    for row in (
        "| charge | attempt ended, attempt 2 | exit:3 (exit 3) |", "| book | run | done | 1 | 0 |  | TIME | TIME | KEY |",
        "| charge | run | not done | 2 | 3 | exit:3: exit 3 | TIME | TIME | KEY |", "| book\\~undo | undo | done | 1 | 0 |",
        "## Undos, the youngest first\n\n| of | status | error | key |\n| --- | --- | --- | --- |\n| book | undone |  | KEY |",
    ):  # fmt: skip
        assert row in said, said


def test_it_says_what_is_not_certain_and_who_decided_what_and_hides_secrets(there: Program) -> None:
    said = report(there, "r")
    part = said.partition("## What is certain, and what is not")[2].partition("\n## ")[0]
    assert "Certain: 1 not done." in part and "| pay | not certain: it ended with an error, and may have happened" in part
    decided = said.partition("## Who decided what")[2].partition("\n## ")[0]
    assert "| ann | ask: yes | a\\|b \\<script\\>" in decided
    assert "exit:3" in said and "durun resume r" in said.partition("What can be done:")[2].partition("## Data")[0]
    caught = next(e for e in json.loads(report(there, "r", "--json"))["history"] if e["kind"] == "caught")
    assert caught["error"]["stderr"].endswith(" ***\n")


def test_nothing_from_outside_means_anything_in_markdown(there: Program) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(report(there, "r"))
    inline = [child for token in tokens for child in token.children or []]
    assert {child.type for child in inline} <= {"text", "text_special"}, "no link, no emphasis, no code, no HTML"
    titles = [tokens[n + 1].content for n, token in enumerate(tokens) if token.type == "heading_open"]
    assert titles[0] == "Run r of test: failed" and "h" not in titles and len(titles) == len(set(titles))
    columns = 0
    for n, token in enumerate(tokens):
        columns = 0 if token.type == "tr_open" else columns + (token.type in ("td_open", "th_open"))
        if token.type == "tr_close":
            assert columns in (3, 4, 5, 9), tokens[n - 2].content
    [given] = [json.loads(t.content) for t in tokens if t.type == "fence" and t.info == "json"]
    assert given["who"].startswith("a|b <script>")


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nor_in_html_which_fetches_nothing(there: Program) -> None:
    page, said = Page(), report(there, "r", "--format", "html")
    page.feed(said)
    known = "html meta title style h1 h2 dl dt dd p pre table tr th td"
    assert set(page.tags) <= set(known.split()) and "src=" not in said and "href=" not in said
    assert page.text.count("<script>alert(1)</script>") >= 3 and "a|b" in page.text


def test_the_same_run_gives_the_same_report_and_the_document_has_it_in_fields(there: Program) -> None:
    for form in ("md", "html", "json"):
        assert report(there, "r", "--format", form) == report(there, "r", "--format", form)
    doc = json.loads(report(there, "r", "--json"))
    assert doc == json.loads(report(there, "r", "--format", "json"))
    assert doc["run"]["id"] == "r" and [e["no"] for e in doc["history"]] == list(range(1, len(doc["history"]) + 1))
    assert [e["path"] for e in doc["not_certain"]] == ["pay"] and [e["path"] for e in doc["certain"]] == ["book"]
    assert [(e["by"], e["answer"]) for e in doc["decisions"] if e["kind"] == "answered"] == [("ann", "yes")]
    assert doc["started_by"] and doc["host"]


def test_a_long_history_is_shown_by_its_beginning_and_its_end() -> None:
    from durun.render.report import MOST, Told, for_people, sections

    row: dict[str, Any] = {"at": "T", "kind": "entered", "path": "a", "visit": 1, "attempt": None}
    many = 2 * MOST + 7

    def history(after: int = 0, kinds: tuple[str, ...] = ()) -> Iterator[Any]:
        return iter(() if kinds else ({**row, "no": n} for n in range(after + 1, many + 1)))

    def effects(statuses: tuple[str, ...] = ()) -> Iterator[Any]:
        return iter(last(many) if not statuses else ())

    def last(count: int) -> list[Any]:
        made = {"path": "a", "kind": "run", "status": "done", "attempt": 1, "exit": 0, "error": None, "visit": 1, "key": "k"}
        return [{**made, "no": n, "intended_at": n, "ended_at": n} for n in range(many - count + 1, many + 1)]

    told = Told("me", "here", [], [], many, history, {"done": many}, effects, last)
    doc = dict.fromkeys(("reason", "ended_at", "error", "output", "state", "vars")) | {"id": "r", "parent": None}
    doc |= {"plan": "p", "version": "1", "digest": "d", "status": "failed", "created_at": "T", "updated_at": "T", "input": {}}
    doc |= {"waiting_for": [], "undo": [], "positions": [], "effects": [], "undoing": None}
    doc |= {"pins": {"directory": "/", "file": "f", "durun": "1", "tools": {}, "env": {}, "files": {}}}
    found = {section.title: section.parts for section in sections(doc, for_people(told))}
    assert f"Certain: {many} done" in found["What is certain, and what is not"][0].text  # type: ignore[union-attr]
    for title, end in (("What happened", 0), ("Effects", 6)):
        shown = found[title][0].rows  # type: ignore[union-attr]
        assert len(shown) == 2 * MOST + 1 and any("7 " in word and "left out" in word for word in shown[MOST])
        assert shown[-1][end] == str(many)


def test_what_it_is_asked_for_must_be_there(there: Program) -> None:
    assert "there are md, json, html" in there("report", "r", "--format", "pdf", exit=2).stderr
    assert "x" in there("report", "x", exit=5).stderr

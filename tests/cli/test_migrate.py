"""migrate and rewind, as a person uses them."""

from __future__ import annotations

import json
import os
from typing import Any

from program import Program, until

OLD = """
version: '1'
vars: {n: 1, gone: 2}
start: a
states:
  a: {run: 'echo a $DURUN_IDEMPOTENCY_KEY >> $LEDGER', idempotent: true, assign: {n: 5}, compensate: {run: 'echo undo a >> $LEDGER'}, next: w}
  w: {wait: {signal: go}, next: b}
  b: {run: 'echo b >> $LEDGER; test -e mended', idempotent: true, next: succeeded}
"""
NEW = """
version: '2'
vars: {n: 1, word: hello}
start: a
states:
  a: {run: 'echo a >> $LEDGER', idempotent: true, next: w}
  w: {wait: {signal: go}, next: c}
  c: {run: 'echo "c $N $WORD" >> $LEDGER', env: {N: '${{ vars.n }}', WORD: '${{ vars.word }}'}, idempotent: true, next: succeeded}
migrations: [{from: '1', map: {b: c}, set: {word: 'was ${{ vars.gone }}'}}]
"""


def counted(durun: Program) -> list[str]:
    return [line.split()[0] for line in durun.lines()]


def test_a_run_that_waits_goes_on_under_the_new_plan(durun: Program) -> None:
    durun.plan(OLD)
    id = durun.start(3)
    new = durun.plan(NEW, "new.yaml")
    dry = durun("migrate", id, new, "--dry-run")
    assert "nothing was changed" in dry.stderr and "a (done already)" in dry.stderr and "dropped  gone" in dry.stderr
    assert durun.show(id)["version"] == "1"
    doc = json.loads(durun("migrate", id, new, "--json").stdout)
    assert sorted(doc["states"]["changed"]) == ["a", "b", "w"] and doc["states"]["done"] == ["a"]
    assert doc["vars"] == {"set": {"word": "was 2"}, "dropped": ["gone"]} and not doc["dry_run"]
    shown = durun.show(id)
    assert shown["version"] == "2" and shown["digest"] == doc["to"]["digest"] and shown["vars"] == {"n": 5, "word": "was 2"}
    durun("signal", id, "go", "--resume")
    assert durun.lines()[1:] == ["c 5 was 2"]
    [told] = [e for e in json.loads(durun("history", id, "--json").stdout)["events"] if e["kind"] == "migrated"]
    assert (told["before"], told["version"], told["map"]) == ("1", "2", {"b": "c"}) and told["by"]
    durun("compensate", id, exit=4)
    assert durun.lines()[-1] == "undo a"


def test_a_failed_run_goes_on_at_its_state_with_a_new_visit_and_key(durun: Program) -> None:
    durun.plan(OLD)
    id = durun.start(3)
    durun("signal", id, "go", "--resume", exit=1)
    new = durun.plan(NEW, "new.yaml")
    said = durun("migrate", id, new, "--set", "word=plain ${{ x }}").stderr
    assert "c is entered anew: a new visit, with a new key" in said and f"durun resume {id}" in said
    durun("resume", id)
    assert durun.lines()[-1] == "c 5 plain ${{ x }}"


def refused(durun: Program, *words: Any, exit: int) -> str:
    return durun("migrate", *words, exit=exit).stderr


def test_what_does_not_fit_is_refused_and_nothing_is_changed(durun: Program) -> None:
    durun.plan(OLD)
    id = durun.start(3)
    before = durun.show(id)
    new = durun.plan(NEW, "new.yaml")
    assert "no state nowhere" in refused(durun, id, new, "--map", "nowhere=c", exit=7)
    assert "no state d there" in refused(durun, id, new, "--map", "b=d", exit=7)
    assert "no var x" in refused(durun, id, new, "--set", "x=1", exit=7)
    assert "no JSON" in refused(durun, id, new, "--set", "n=one", exit=7)
    assert "would be string" in refused(durun, id, new, "--set", 'n="one"', exit=7)
    assert "OLD=NEW" in refused(durun, id, new, "--map", "b", exit=2)
    gone = durun.plan(NEW.replace("w: {wait: {signal: go}", "v: {wait: {signal: go}").replace("next: w", "next: v"), "gone.yaml")
    assert "--map w=STATE" in refused(durun, id, gone, exit=7)
    bad = durun.plan(NEW.replace("next: c}", "next: nowhere}"), "bad.yaml")
    refused(durun, id, bad, exit=7)
    tool = durun.plan("pins: {tools: {x: [no-such-tool]}, env: [LEDGER]}\n" + NEW, "tool.yaml")
    assert "no-such-tool" in refused(durun, id, tool, exit=7)
    assert durun.show(id) == before
    durun("cancel", id, exit=4)
    assert "has ended" in refused(durun, id, new, exit=10)
    durun("migrate", "nobody", new, exit=5)


def test_a_run_whose_command_is_under_way_or_in_doubt_is_not_moved(durun: Program) -> None:
    durun.plan(
        OLD.replace("echo b >> $LEDGER;", "echo b >> $LEDGER; while test ! -e end; do sleep 0.05; done;").replace(
            "test -e mended', idempotent: true", "true'"
        )
    )
    id = durun.start(3)
    new = durun.plan(NEW, "new.yaml")
    durun("signal", id, "go")
    process = durun.begin("resume", id)
    until(lambda: "b" in durun.lines())
    assert "is driven by" in durun("migrate", id, new, exit=6).stderr
    os.kill(process.pid, 9)
    process.communicate()
    assert "still alive" in durun("migrate", id, new, exit=10).stderr
    durun.kill_all()
    said = durun("migrate", id, new, exit=10).stderr
    assert "is not known" in said and f"durun resolve {id} b" in said
    durun("resolve", id, "--fail")
    durun("migrate", id, new)
    durun("resume", id)
    assert durun.lines()[-1] == "c 5 was 2"


def test_pins_are_taken_anew_and_an_id_is_bound_to_the_new_plan(durun: Program) -> None:
    head = "pins: {files: [x], tools: {t: [cat, version]}, env: [LEDGER]}\n"
    show = "{run: 'cat $DURUN_FILES/x >> $LEDGER', compensate: {run: 'cat $DURUN_FILES/x >> $LEDGER'}, next: "
    body = f"version: '%s'\nstart: a\nstates:\n  a: {show}w}}\n  w: {{wait: {{signal: go}}, next: b}}\n  b: {show}succeeded}}\n"
    for name, text in (("x", "one\n"), ("version", "1.0")):
        (durun.folder / name).write_text(text)
    durun.plan(head + body % "1")
    durun("start", "plan.yaml", "--id", "k", exit=3)
    for name, text in (("x", "two\n"), ("version", "2.0")):
        (durun.folder / name).write_text(text)
    durun.plan(head + body % "2")
    durun("resume", "k", exit=9)
    assert "has moved" in durun("migrate", "k", "plan.yaml").stderr
    assert "have changed" not in durun("show", "k").stdout
    durun("signal", "k", "go")
    assert "another plan" not in durun("start", "plan.yaml", "--id", "k").stderr
    assert durun.lines() == ["one", "two"]
    durun("compensate", "k", exit=4)
    assert durun.lines() == ["one", "two", "two", "one"], "each is undone as the plan said under which it was done"


DEEP = """
version: '{version}'
start: {name}
states:
  {name}:
    map:
      items: '["k", "o"]'
      label: '${{{{ item }}}}'
      start: p
      states:
        p:
          parallel:
            branches:
              l: {{start: ask, states: {{ask: {{wait: {{signal: go}}, next: try}}, try: {{run: 'echo {name} >> $LEDGER', next: succeeded}}}}}}
              m: {{start: late, states: {{late: {{run: 'test -e mended', idempotent: true, retry: {{initial_interval: 1h, jitter: none}}, next: succeeded}}}}}}
          next: succeeded
    next: succeeded
"""


def test_what_stands_deep_inside_a_state_with_another_name_goes_along(durun: Program) -> None:
    durun.plan(DEEP.format(version=1, name="old"))
    id = durun.start(3, "--no-wait")
    durun("migrate", id, durun.plan(DEEP.format(version=2, name="other"), "new.yaml"), "--map", "old=other")
    durun("db", "check")
    waits = {way["path"] for way in durun.show(id)["waiting_for"] if way["kind"] == "signal"}
    assert waits == {"other[k].p.l.ask", "other[o].p.l.ask"}
    (durun.folder / "mended").touch()
    durun("signal", id, "go")
    durun("signal", id, "go", "--resume")
    assert durun.lines() == ["other", "other"]
    durun("db", "check")


CALLS = """
version: '{version}'
start: first
states:
  first: {{run: 'echo first >> $LEDGER', compensate: {{run: 'echo undo first >> $LEDGER'}}, next: {name}}}
  {name}: {{plan: {{file: child.yaml}}, next: last}}
  last: {{run: 'echo last >> $LEDGER', compensate: {{run: 'echo undo last >> $LEDGER'}}, next: succeeded}}
"""
CALLED = """
start: one
states:
  one: {run: 'echo one >> $LEDGER', compensate: {run: 'echo undo one >> $LEDGER'}, next: ask}
  ask: {wait: {signal: go}, next: two}
  two: {run: 'echo two >> $LEDGER', compensate: {run: 'echo undo two >> $LEDGER'}, next: succeeded}
"""


def test_what_a_child_does_is_its_own_once_the_state_that_called_it_has_another_name(durun: Program) -> None:
    durun.plan("name: child\n" + CALLED, "child.yaml")
    durun.plan(CALLS.format(version=1, name="old"))
    id = durun.start(3)
    durun("migrate", id, durun.plan(CALLS.format(version=2, name="other"), "new.yaml"), "--map", "old=other")
    durun("signal", id, "go", "--resume")
    undos = durun.show(id)["undo"]
    assert {u["path"]: (u["child"] or {}).get("path") for u in undos} == {
        "last": None, "other/two": "other", "old/one": "other", "first": None,
    }  # fmt: skip
    [child] = {u["child"]["run"] for u in undos if u["child"]}
    assert durun.show(child)["status"] == "succeeded"
    assert "has no state 'three'" in durun("logs", child, "three", exit=10).stderr
    durun("compensate", id, exit=4)
    assert durun.lines() == ["first", "one", "two", "last", "undo last", "undo two", "undo one", "undo first"]
    durun("db", "check")


EACH = """
version: '{version}'
start: {first}
states:
  {first}: {{map: {{items: '["x"]', label: '${{{{ item }}}}', start: m, states: {{m: {inner}}}}}, next: {second}}}
  {second}: {{map: {{items: '["x"]', label: '${{{{ item }}}}', start: ask, states: {{ask: {{wait: {{signal: go}}, next: m}}, m: {inner}}}}}, next: succeeded}}
"""
INNER = "{map: {items: '[1]', start: act, states: {act: {run: 'echo $DURUN_IDEMPOTENCY_KEY >> $LEDGER', next: succeeded}}}, next: succeeded}"


def test_what_stands_in_a_state_that_gets_the_name_of_another_has_keys_of_its_own(durun: Program) -> None:
    durun.plan(EACH.format(version=1, first="a", second="b", inner=INNER))
    id = durun.start(3)
    durun.plan(EACH.format(version=2, first="b", second="a", inner=INNER), "new.yaml")
    durun("migrate", id, "new.yaml", "--map", "a=b", "--map", "b=a")
    durun("signal", id, "go", "--resume")
    assert [e["path"] for e in durun.show(id)["effects"]] == ["a[x].m[0].act"] * 2
    assert len(set(durun.lines())) == 2, "the far side would take the second for a repeat of the first"


MID = "name: mid\nstart: {sub}\nstates: {{{sub}: {{plan: {{file: child.yaml, id: 'deep-${{{{ run.id }}}}'}}, next: succeeded}}}}\n"
TWICE = """
version: '{version}'
start: {name}
states:
  {name}: {{plan: {{file: mid.yaml, id: 'kid-${{{{ visit }}}}'}}, next: on}}
  on: {{choice: [{{when: states.{name}.visits < 2, next: {name}}}, {{next: succeeded}}]}}
"""


def test_a_child_is_found_by_its_id_wherever_migrations_have_taken_it(durun: Program) -> None:
    durun.plan("name: child\n" + CALLED, "child.yaml")
    durun.plan(MID.format(sub="sub"), "mid.yaml")
    durun.plan(TWICE.format(version=1, name="old"))
    id = durun.start(3)
    for version, name, sub, *words in ((2, "other", "sub", "old=other"), (3, "third", "inner", "other=third", "other/sub=inner")):
        durun.plan(MID.format(sub=sub), "mid.yaml")
        durun.plan(TWICE.format(version=version, name=name), "new.yaml")
        durun("migrate", id, "new.yaml", *(f"--map={word}" for word in words))
        for child, path, stands in (("kid-1", name, sub), ("deep-kid-1", f"{name}/{sub}", "ask")):
            shown = durun.show(child)
            assert (shown["status"], shown["state"], shown["parent"]["path"]) == ("waiting", stands, path)
            assert durun.show(f"{id}:{path}") == shown
        assert durun.show(f"{id}:old")["id"] == "kid-1"
        assert [way["path"] for way in durun.show("deep-kid-1")["waiting_for"]] == ["ask"]
        durun("wait", "deep-kid-1", exit=3)
    durun("signal", "deep-kid-1", "go", "--resume", exit=3)
    assert [durun.show(child)["status"] for child in ("kid-1", "deep-kid-1", "kid-2", "deep-kid-2")] == ["succeeded"] * 2 + [
        "waiting"
    ] * 2
    assert [e["path"] for e in durun.show("deep-kid-1")["effects"]] == ["one", "two"]
    assert [u["path"] for u in durun.show("kid-1")["undo"]] == ["inner/two", "sub/one"]
    durun("signal", "deep-kid-1", "go", exit=10)
    durun("signal", "deep-kid-2", "go", "--resume")
    durun("compensate", id, exit=4)
    assert durun.lines()[-4:] == ["undo two", "undo one"] * 2
    for child, sub in (("kid-1", "sub"), ("kid-2", "inner")):
        undone = [e["path"] for e in json.loads(durun("history", child, "--json").stdout)["events"] if e["kind"] == "undone"]
        assert undone == ["inner/two~undo", f"{sub}/one~undo"]
        assert [u["status"] for u in durun.show(child)["undo"]] == ["undone"] * 2
    listed = json.loads(durun("ls", "--children", "--all", "--json").stdout)["runs"]
    assert [(run["id"], run["status"], (run["parent"] or {}).get("path")) for run in listed[1:]] == [
        (child, "compensated", path) for child, path in (("kid-1", "third"), ("deep-kid-1", "third/inner"), ("kid-2", "third"), ("deep-kid-2", "third/inner"))
    ]  # fmt: skip


INSIDE = """
version: '{version}'
start: p
states:
  p:
    parallel:
      branches:
        l:
          start: e
          states:
            e:
              map:
                items: '["x"]'
                label: '${{{{ item }}}}'
                start: {first}
                states:
                  {first}: {{plan: {{file: done.yaml, id: was}}, next: {second}}}
                  {second}: {{plan: {{file: child.yaml, id: is}}, next: succeeded}}
              next: succeeded
    next: succeeded
"""


def test_children_whose_states_get_each_others_names_stay_who_they_are(durun: Program) -> None:
    durun.plan("name: done\n" + CALLED.replace("{wait: {signal: go}", "{pass: {}").replace("echo", "echo was"), "done.yaml")
    durun.plan("name: child\n" + CALLED, "child.yaml")
    durun.plan(INSIDE.format(version=1, first="a", second="b"))
    id = durun.start(3)
    before = durun.show("was")
    durun.plan(INSIDE.format(version=2, first="b", second="a"), "new.yaml")
    follows = durun.begin("history", "is", "--follow")
    assert follows.stdout is not None and "started" in follows.stdout.readline()
    durun("migrate", id, "new.yaml", "--map", "p.l.e[].a=b", "--map", "p.l.e[].b=a")
    shown = durun.show("is")
    assert (shown["status"], shown["state"], shown["parent"]["path"]) == ("waiting", "ask", "p.l.e[x].a")
    assert durun.show(f"{id}:p.l.e[x].a") == shown
    assert durun.show(f"{id}:p.l.e[x].b") == durun.show("was")
    assert {**durun.show("was"), "pins": None, "parent": None} == {**before, "pins": None, "parent": None}
    durun("signal", "was", "go", exit=10)
    one = "{plan: {file: done.yaml, id: was}, next: a}\n"
    both = INSIDE.format(version=3, first="b", second="a")
    assert one in both
    durun.plan(both.replace(f"b: {one}", "").replace("start: b", "start: a"), "new.yaml")
    durun("migrate", id, "new.yaml", "--map", "p.l.e[].b=a")
    assert [durun.show(child)["status"] for child in ("was", "is")] == ["succeeded", "waiting"]
    assert "takes the signal" in durun("signal", "was", "go", exit=10).stderr, "it is the other one that stands there"
    durun("signal", "is", "go", "--resume")
    assert "ask#1" in (said := follows.communicate(timeout=60)[0]) and "two#" in said and "succeeded" in said
    assert [[e["path"] for e in durun.show(child)["effects"]] for child in ("was", "is")] == [["one", "two"]] * 2
    durun("compensate", id, exit=4)
    assert durun.lines()[-4:] == ["undo two", "undo one", "was undo two", "was undo one"]
    assert [u["status"] for child in ("was", "is") for u in durun.show(child)["undo"]] == ["undone"] * 4


ASKS = """
version: '{version}'
start: first
states:
  first: {{run: 'true', next: {name}}}
  {name}: {{plan: {{file: child.yaml, id: kid}}, next: last}}
  last: {{wait: {{signal: on}}, next: succeeded}}
"""
ASKED = (
    "name: child\nstart: ask\nstates: {ask: {approval: {message: 'on?'}, next: k}, k: {run: 'test -e mended', next: succeeded}}\n"
)


def test_what_is_said_to_a_child_after_a_migration_is_heard(durun: Program) -> None:
    durun.plan(ASKED, "child.yaml")
    durun.plan(ASKS.format(version=1, name="old"))
    id = durun.start(3)
    durun("migrate", id, durun.plan(ASKS.format(version=2, name="other"), "new.yaml"), "--map", "old=other")
    durun("approve", "kid", "ask", "--resume", exit=1)
    assert "already" in durun("approve", "kid").stderr, "it was answered under the name it has now"
    durun("migrate", id, durun.plan(ASKS.format(version=3, name="third"), "new.yaml"), "--map", "other=third")
    assert durun.show("kid")["status"] == "failed" and [e["path"] for e in durun.show("kid")["effects"]] == ["k"]
    (durun.folder / "mended").touch()
    durun("resume", id, exit=3)
    assert durun.show("kid")["status"] == "succeeded" and [e["visit"] for e in durun.show("kid")["effects"]] == [1, 2]
    gone = durun.plan("version: '4'\nstart: last\nstates: {last: {wait: {signal: on}, next: succeeded}}\n", "gone.yaml")
    durun("migrate", id, gone)
    assert durun.show("kid")["status"] == "succeeded"
    assert "does not call it from third" in durun("logs", "kid", "nowhere", exit=10).stderr

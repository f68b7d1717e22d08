"""Parallel and map: each branch and item keeps what it did, stands in its place, and ends with the others."""

from __future__ import annotations

from typing import Any

import pytest


def test_f04_items_and_children_in_flight_when_everything_died_are_each_decided(place: Any) -> None:
    """Idempotent ones are begun again, the others are asked about; nothing waits for ever."""
    place.plan(
        "say: {run: 'echo child >> begun; test -e go || sleep 60', idempotent: true, next: succeeded}", "child.yaml", start="say"
    )
    place.plan(
        """both:
  parallel:
    branches:
      items:
        start: each
        states:
          each:
            map:
              items: '["x", "y"]'
              label: '${{ item }}'
              run: 'echo item >> begun; test -e go || sleep 60'
            next: succeeded
      child: {start: call, states: {call: {plan: {file: child.yaml}, next: succeeded}}}
  next: succeeded""",
        start="both",
    )
    place.begin("start", "plan.yaml", "--id", "r")
    place.until(lambda: len(place.lines("begun")) == 3, "all three")
    place.kill_all()
    place.write("go", "")
    place.durun("resume", "r", exit=9)
    assert sorted(place.lines("begun")) == ["child", "child", "item", "item"], "the child is idempotent"
    asked = {w["path"] for w in place.show("r")["waiting_for"]}
    assert len(asked) == 2 and all(path.startswith("both.items.each[") for path in asked)
    for path in sorted(asked):
        place.durun("resolve", "r", path, "--happened")
    place.durun("resume", "r")
    assert len(place.lines("begun")) == 4


def test_f44_what_a_sibling_has_finished_is_kept_whatever_the_other_branch_does(place: Any) -> None:
    states = """both:
  parallel:
    branches:
      slow: {start: s, states: {s: {run: 'until test -e bad; do sleep 0.02; done; echo slow >> ticks', next: succeeded}}}
      bad: {start: b, states: {b: {run: 'touch bad; test -e mended', next: succeeded}}}
  next: join
join: {run: 'echo join >> ticks', next: succeeded}"""
    place.plan(states, start="both")
    place.durun("start", "plan.yaml", "--id", "r", exit=1)
    assert place.lines("ticks") == ["slow"], "it went on to its end, and that is kept"
    place.write("mended", "")
    place.durun("resume", "r")
    assert place.lines("ticks") == ["slow", "join"]


def test_f44_killed_while_one_branch_is_done_and_the_other_in_flight_only_that_one_is_decided(place: Any) -> None:
    place.plan(
        """both:
  parallel:
    branches:
      quick: {start: q, states: {q: {run: 'echo quick >> ticks', next: succeeded}}}
      slow: {start: s, states: {s: {run: 'echo slow >> ticks; test -e go || sleep 60', idempotent: true, next: succeeded}}}
  next: join
join: {run: 'echo join >> ticks', next: succeeded}""",
        start="both",
    )
    place.begin("start", "plan.yaml", "--id", "r")
    place.until(lambda: place.db.exists() and place.lines("ticks") and "succeeded_inside" in place.durun("history", "r", exit=None).out,
                "the end of the quick one")  # fmt: skip
    place.until(lambda: "slow" in place.lines("ticks"), "the slow one")
    place.kill_all()
    place.write("go", "")
    place.durun("resume", "r")
    assert sorted(place.lines("ticks")) == ["join", "quick", "slow", "slow"]


def test_f75_one_answer_opens_one_gate_and_goes_on_at_once(place: Any) -> None:
    place.plan(
        """gates:
  parallel:
    branches:
      one: {start: gate1, states: {gate1: {approval: {message: one?}, next: a}, a: {run: 'echo a >> ticks', next: succeeded}}}
      two: {start: gate2, states: {gate2: {approval: {message: two?}, next: b}, b: {run: 'echo b >> ticks', next: succeeded}}}
  next: succeeded""",
        start="gates",
    )
    place.durun("start", "plan.yaml", "--id", "r", exit=3)
    assert "name one of gates.one.gate1, gates.two.gate2" in place.durun("approve", "r", exit=10).err
    place.durun("approve", "r", "gates.one.gate1")
    place.durun("resume", "r", exit=3)
    assert place.lines("ticks") == ["a"]
    assert [w["path"] for w in place.show("r")["waiting_for"]] == ["gates.two.gate2"]
    place.durun("approve", "r", "--resume")
    assert place.lines("ticks") == ["a", "b"]


@pytest.mark.parametrize("stop", [False, True], ids=["by default", "stop: now"])
def test_f129_a_failing_branch_lets_the_others_end_unless_the_plan_says_stop(place: Any, stop: bool) -> None:
    place.plan(
        f"""both:
  parallel:
    {"stop: now" if stop else "failures: 0"}
    branches:
      a: {{start: x, states: {{x: {{run: 'until test -e b; do sleep 0.02; done; exit 1', next: succeeded}}}}}}
      b:
        start: y
        states:
          y:
            run: |
              trap 'sleep 0.2; echo cleaned >> ticks; exit 1' TERM
              touch b
              n=0; while test $n -lt {1000 if stop else 20}; do sleep 0.02; n=$((n + 1)); done
              echo whole >> ticks
            next: succeeded
  catch: [{{on: branch_failed, next: join}}]
  next: succeeded
join:
  run: [sh, -c, 'echo $0 >> ticks', '${{{{ json(states.both.items.map(i, [i.label, i.status])) }}}}']
  next: succeeded""",
        start="both",
    )
    place.durun("start", "plan.yaml", "--id", "r")
    b = "stopped" if stop else "succeeded"
    assert place.lines("ticks") == ["cleaned" if stop else "whole", f'[["a","failed"],["b","{b}"]]']
    if stop:
        (ended,) = [e for e in place.history("r", "attempt_ended") if e["path"] == "both.b.y"]
        assert ended["stopped"] == "sibling"


def test_f131_results_stand_in_the_order_of_the_items_once_each_also_after_retries_and_a_kill(place: Any) -> None:
    place.plan(
        """each:
  map:
    items: '[0, 1, 2, 3, 4]'
    concurrency: 5
    run: |
      echo "$N" >> tries
      test "$N" != 3 || test $(grep -c 3 tries) -ge 3 || exit 1
      test "$N" = 3 || test -e go || while test $(grep -c 3 tries) -lt 3; do sleep 0.02; done
      test "$N" != 4 || test -e go || { touch waits; sleep 60; }
      echo "of $N"
    env: {N: '${{ item }}'}
    output: text
    idempotent: true
    retry: {max_attempts: 5, initial_interval: 10ms}
  next: succeeded""",
        head="output: '${{ states.each.output }}'",
        start="each",
    )
    place.begin("start", "plan.yaml", "--id", "r")
    place.until((place.folder / "waits").exists, "the last item")
    place.kill_all()
    place.write("go", "")
    place.durun("resume", "r", "--json")
    assert place.show("r")["output"] == [f"of {n}" for n in range(5)]


def test_f132_an_empty_list_succeeds_at_once_and_what_is_no_list_is_an_error(place: Any) -> None:
    place.plan(
        """each: {map: {items: input.items, run: echo >> ticks}, next: nested}
nested:
  map:
    items: '[[1], [], [2, 3]]'
    start: inner
    states: {inner: {map: {items: item, start: it, states: {it: {pass: {}, next: succeeded}}, output: '${{ item }}'}, next: succeeded}}
    output: '${{ states.inner.output }}'
  next: join
join: {run: echo join >> ticks, next: succeeded}""",
        head="input: {items: any}\noutput: '${{ [states.each.output, states.nested.output] }}'",
        start="each",
    )
    assert place.durun("start", "plan.yaml", "-i", "items=[]", "--json").json["output"] == [[], [[1], [], [2, 3]]]
    assert place.lines("ticks") == ["join"]
    for wrong in ("null", "{}", '"text"'):
        done = place.durun("start", "plan.yaml", "-i", f"items={wrong}", "--json", exit=1)
        assert done.json["error"]["name"] == "expression"


def test_f134_a_branch_in_its_retry_delay_or_a_map_inside_ends_with_the_others(place: Any) -> None:
    place.plan(
        """both:
  parallel:
    stop: now
    branches:
      delayed:
        start: d
        states: {d: {run: 'touch tried; exit 1', retry: {max_attempts: 9, initial_interval: 1h, jitter: none}, next: succeeded}}
      nested:
        start: each
        states: {each: {map: {items: '[1, 2]', run: 'echo n >> begun; sleep 60'}, next: succeeded}}
      bad: {start: b, states: {b: {run: 'until test -e tried && test $(wc -l < begun) = 2; do sleep 0.02; done; exit 1', next: succeeded}}}
  next: succeeded""",
        start="both",
    )
    place.write("begun", "")
    place.durun("start", "plan.yaml", "--id", "r", exit=1)
    shown = place.show("r")
    assert {p["phase"] for p in shown["positions"]} == {"failed"}
    assert not [e for e in shown["effects"] if e["status"] in ("begin", "waiting")]
    place.until(lambda: not place.processes(), "the end of all processes")
    place.durun("db", "check")


def test_f136_the_result_of_an_item_that_failed_keeps_its_place(place: Any) -> None:
    place.plan(
        """each:
  map: {items: '[0, 1, 2, 3]', failures: all, run: 'test $N != 1 && echo "$N"', env: {N: '${{ item }}'}, output: json}
  next: succeeded""",
        head="output: '${{ [states.each.output, states.each.items.map(i, i.status), states.each.items[1].error.name] }}'",
        start="each",
    )
    output = place.durun("start", "plan.yaml", "--json").json["output"]
    assert output == [[0, None, 2, 3], ["succeeded", "failed", "succeeded", "succeeded"], "exit:1"]

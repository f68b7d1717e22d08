"""Cancel and compensation: what was done is undone, in its order, whoever stops, asks twice or is not there."""

from __future__ import annotations

from typing import Any

from receiver import Receiver, answer, drop

UNDO = "compensate: {run: 'echo undo-NAME >> undone'}"


def act(name: str, next: str, run: str = "true", more: str = "") -> str:
    return f"{name}: {{run: '{run}', {UNDO.replace('NAME', name)}, {more}next: {next}}}"


def test_f83_a_cancelled_run_nobody_drives_is_undone_by_the_command_itself(place: Any) -> None:
    """With no process at all, with a dead driver, and twice."""
    for n, dead in enumerate((False, True)):
        place.write("undone", "")
        states = "\n".join(
            (act("a", "b"), "b: {approval: {message: well?}, next: c}", act("c", "succeeded", "echo on >> c; sleep 60"))
        )
        place.plan(states, head="on_cancel: compensate")
        run = f"r{n}"
        place.durun("start", "plan.yaml", "--id", run, exit=3)
        if dead:
            place.durun("approve", run)
            place.begin("resume", run)
            place.until(lambda: place.lines("c"), "the second command")
            place.kill_all()
        place.durun("cancel", run, exit=9 if dead else 4)  # whether c had done its work is not known
        if dead:
            place.durun("resolve", run, "--happened")
            place.durun("resume", run, exit=4)
        assert place.lines("undone") == (["undo-c", "undo-a"] if dead else ["undo-a"])
        place.durun("cancel", run, exit=10)
        assert place.show(run)["status"] == "compensated"


def test_f84_a_cancel_touches_no_run_that_has_ended_and_nothing_of_a_cancelled_one_comes_later(place: Any) -> None:
    place.plan("a: {run: 'echo done >> ticks', next: succeeded}", name="done.yaml")
    place.plan(
        "a: {run: 'echo try >> ticks; exit 1', retry: {max_attempts: 9, initial_interval: 1s, jitter: none}, next: succeeded}"
    )
    for n in range(3):
        place.durun("start", "done.yaml", "--id", f"done{n}")
        place.durun("start", "plan.yaml", "--id", f"later{n}", "--no-wait", exit=3)
    before = [place.show(f"done{n}") for n in range(3)]
    for n in range(3):
        place.durun("cancel", f"done{n}", exit=10)
        place.durun("cancel", f"later{n}", exit=4)
    assert [place.show(f"done{n}") for n in range(3)] == before
    assert all(e["status"] == "not_done" for n in range(3) for e in place.show(f"later{n}")["effects"])
    place.durun("resume", "--all")
    assert sorted(place.lines("ticks")) == ["done"] * 3 + ["try"] * 3


def test_f86_an_undo_is_cut_short_by_no_cancel_and_no_second_one(place: Any) -> None:
    steps = "for n in 1 2 3; do echo undo-$n >> undone; until test -e go$n; do sleep 0.02; done; done; echo undo-done >> undone"
    place.plan(f"a: {{run: 'true', compensate: {{run: '{steps}'}}, next: b}}\nb: {{run: 'echo b > b; sleep 60', next: succeeded}}",
               head="on_cancel: compensate")  # fmt: skip
    driver = place.begin("start", "plan.yaml", "--id", "r")
    place.there("b")
    first = place.begin("cancel", "r")
    place.until(lambda: place.lines("undone"), "the undo")
    for n in (1, 2, 3):
        assert "compensates" in place.durun("cancel", "r", exit=10).err
        place.write(f"go{n}", "")
    place.end(first, 4)
    place.end(driver, 4)
    assert place.lines("undone") == ["undo-1", "undo-2", "undo-3", "undo-done"]


def test_f87_undos_come_in_the_reverse_order_of_beginning_across_branches_and_items(place: Any) -> None:
    """c is slow and begins first, d is fast: both are undone by when they began; what was never begun is not undone."""
    place.plan(
        f"""{act("a", "b")}
{act("b", "both")}
both:
  parallel:
    branches:
      c: {{start: c, states: {{{act("c", "succeeded", "until test -e d; do sleep 0.02; done")}}}}}
      d: {{start: wait_c, states: {{wait_c: {{wait: 50ms, next: d}}, {act("d", "succeeded", "touch d")}}}}}
  next: each
each:
  map:
    items: '[1, 2, 3]'
    concurrency: 1
    start: e
    states: {{e: {{run: 'true', compensate: {{run: [sh, -c, 'echo undo-e$0 >> undone', '${{{{ item }}}}']}}, next: succeeded}}}}
  next: skip
skip: {{choice: [{{when: 'false', next: never}}, {{next: bad}}]}}
{act("never", "bad")}
bad: {{run: exit 1, next: succeeded}}""",
        head="on_error: compensate",
    )
    place.durun("start", "plan.yaml", "--id", "r", exit=4)
    assert place.lines("undone") == ["undo-e3", "undo-e2", "undo-e1", "undo-d", "undo-c", "undo-b", "undo-a"]


def test_f89_what_failed_half_way_or_lost_its_answer_is_on_the_list_of_what_is_undone(place: Any, receiver: Receiver) -> None:
    place.env["FAR"] = receiver.url
    place.plan(
        """a:
  run: 'touch made; exit 1'
  compensate: {after: [done, failed], run: 'rm made; echo undo-a >> undone'}
  catch: [{on: exit, next: b}]
  next: b
b:
  http: {method: POST, url: '${{ pins.env.FAR }}/b'}
  compensate: {http: {method: DELETE, url: '${{ pins.env.FAR }}/b/${{ undo_key }}'}}
  next: succeeded""",
        head="pins: {env: [FAR]}",
    )
    receiver.say(drop(after=True), answer())
    place.durun("start", "plan.yaml", "--id", "r", exit=9)
    place.durun("compensate", "r", exit=9)
    assert place.show("r")["reason"] == "in_doubt" and len(receiver.came) == 1, "nothing is undone blindly"
    assert not place.lines("undone"), "and nothing older before it is settled"
    place.durun("resolve", "r", "--happened")
    place.durun("resume", "r", exit=4)
    assert receiver.lines() == ["POST /b", f"DELETE /b/{receiver.came[0].key}"]
    assert place.lines("undone") == ["undo-a"] and not (place.folder / "made").exists()


def test_f90_an_undo_that_cannot_be_begun_ends_in_a_run_that_waits_for_a_person_at_once(place: Any) -> None:
    """One reads an output that never came, one is no program: the others go on, and each is said."""
    place.plan(
        f"""{act("a", "b")}
b: {{run: 'true', output: json, compensate: {{run: [echo, '${{{{ output.id }}}}']}}, catch: [{{on: output_invalid, next: c}}], next: c}}
c: {{run: 'true', compensate: {{run: [no-such-program-here]}}, next: d}}
{act("d", "bad")}
bad: {{run: exit 1, next: succeeded}}""",
        head="on_error: compensate",
    )
    said = place.durun("start", "plan.yaml", "--id", "r", exit=9).err
    assert place.lines("undone") == ["undo-d", "undo-a"]
    assert "could not be started" in said and "cannot be rendered" in said
    shown = place.show("r")
    assert (shown["status"], shown["reason"]) == ("blocked", "undo_failed")
    place.durun("compensate", "r", exit=9)
    assert place.lines("undone") == ["undo-d", "undo-a"], "what is undone is not undone again"
    place.durun("check", "plan.yaml")
    place.plan("a: {run: 'true', compensate: {run: [echo, '${{ outputs.id }}']}, next: succeeded}", name="bad.yaml")
    assert "outputs" in place.durun("check", "bad.yaml", exit=7).out + place.durun("check", "bad.yaml", exit=7).err


def test_f92_a_cancel_in_the_middle_of_a_map_undoes_just_what_was_done(place: Any) -> None:
    """Four of ten are done, two are under way: these are told to stop, one ends well all the same, of the other nobody knows."""
    place.plan(
        """each:
  map:
    items: '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]'
    concurrency: 2
    start: do
    states:
      do:
        run: |
          test "$N" -lt 4 || { trap 'test "$N" = 5 && exit 0; exit 1' TERM; echo "$N" >> begun; while :; do sleep 0.02; done; }
          echo "$N" >> done
        env: {N: '${{ item }}'}
        compensate:
          after: [done, in_doubt]
          run: [sh, -c, 'echo $0 >> undone', '${{ item }}']
        next: succeeded
  next: succeeded""",
        head="on_cancel: compensate",
        start="each",
    )
    driver = place.begin("start", "plan.yaml", "--id", "r")
    place.until(lambda: len(place.lines("begun")) == 2, "two under way")
    place.durun("cancel", "r", exit=4)
    place.end(driver, 4)
    assert sorted(place.lines("undone")) == ["0", "1", "2", "3", "4", "5"]
    assert place.lines("undone")[:2] in (["5", "4"], ["4", "5"])
    assert sorted(place.lines("begun")) == ["4", "5"]


def test_f93_with_its_parent_a_child_is_cancelled_and_no_process_is_left(place: Any) -> None:
    """A child plan, and a run that a command starts: it hears the TERM of its group, and can be gone on with."""
    place.plan("deep: {run: 'echo deep >> deep; sleep 60', next: succeeded}", name="child.yaml", start="deep")
    place.plan(
        """both:
  parallel:
    branches:
      built_in: {start: call, states: {call: {plan: {file: child.yaml}, next: succeeded}}}
      started: {start: run_it, states: {run_it: {run: 'exec PYTHON -m durun start child.yaml --id inner -q', next: succeeded}}}
  next: succeeded""".replace("PYTHON", place.argv[0]),
        start="both",
    )
    driver = place.begin("start", "plan.yaml", "--id", "outer")
    place.until(lambda: len(place.lines("deep")) == 2, "both children")
    place.durun("cancel", "outer", exit=4)
    place.end(driver, 4)
    place.until(lambda: not place.processes(), "the end of all processes")
    assert place.show("outer")["status"] == "cancelled"
    assert place.show("inner")["status"] == "interrupted"
    place.durun("cancel", "inner", exit=4)


def test_f86_nothing_is_undone_while_the_whole_file_is_held(place: Any) -> None:
    place.plan("\n".join((act("a", "b"), "b: {approval: {message: well?}, next: succeeded}")), head="on_cancel: compensate")
    for run in ("r", "s"):
        place.durun("start", "plan.yaml", "--id", run, exit=3)
    place.durun("pause", "--all")
    assert "resume --all" in place.durun("compensate", "r", exit=9).err
    place.durun("cancel", "s", exit=(3, 9))
    assert not place.lines("undone")
    place.durun("resume", "--all", exit=(0, 3, 4))
    place.durun("compensate", "r", exit=4)
    assert place.show("s")["status"] == "compensated"
    assert place.lines("undone") == ["undo-a"] * 2


def test_f86_a_cancel_that_the_driver_refuses_says_so_at_once_also_while_the_undoing_is_paused(place: Any) -> None:
    place.plan(
        "a: {run: 'true', compensate: {run: 'echo undo > undo; until test -e go; do sleep 0.02; done'}, next: b}\n"
        "b: {run: exit 1, next: succeeded}",
        head="on_error: compensate",
    )
    driver = place.begin("start", "plan.yaml", "--id", "r", "--wait")
    place.there("undo")
    pausing = place.begin("pause", "r")
    place.until(lambda: place.show("r")["status"] == "paused", "the pause")
    assert "compensates" in place.durun("cancel", "r", "--grace", "1h", exit=10).err
    place.write("go", "")
    place.end(pausing, 0)
    place.durun("resume", "r", exit=4)
    place.end(driver, 4)

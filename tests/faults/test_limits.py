"""Limits and groups between real processes: never too many at once, nobody held up by the dead, and no turn lost."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import apsw
import pytest
from receiver import Receiver, answer

ALONE = "'mkdir busy || echo overlap >> seen; echo $DURUN_RUN_ID >> seen; sleep 0.05; rmdir busy'"
HOLDS = "'echo begun >> seen; until test -e go; do sleep 0.02; done; echo ended >> seen'"
PAY = "limits: {pay: {concurrency: 1}}"


def stored(place: Any, sql: str) -> list[Any]:
    """Rows of the database."""
    db = apsw.Connection(str(place.db), flags=apsw.SQLITE_OPEN_READONLY)
    found = list(db.execute(sql))
    db.close()
    return found


def waiting(place: Any, run: str, kind: str) -> Any:
    """What a run says that it waits for, once it does."""

    def found() -> Any:
        said = place.durun("show", run, "--json", exit=(0, 5, 8))
        return said.exit == 0 and next((w for w in said.json["waiting_for"] if w["kind"] == kind), None)

    return place.until(found, f"{run} waits for a {kind}")


def test_f29_drivers_in_many_processes_never_take_the_same_place(place: Any) -> None:
    states = f"a: {{run: {ALONE}, limit: pay, idempotent: true, next: b}}\nb: {{run: {ALONE}, limit: pay, idempotent: true, next: succeeded}}"
    plan = place.plan(states, head=PAY)
    begun = [place.begin("start", plan, "--id", f"r{n}", "-q") for n in range(5)]
    for process in begun:
        place.end(process)
    assert sorted(place.lines("seen")) == sorted([f"r{n}" for n in range(5)] * 2)
    assert place.durun("db", "check", "--json").json["broken"] == []


def test_f30_a_limit_holds_between_the_items_of_one_run_and_the_states_of_another(place: Any) -> None:
    each = f"m: {{map: {{items: '[0, 1, 2, 3]', run: {ALONE}, limit: pay, idempotent: true}}, next: succeeded}}"
    first = place.begin("start", place.plan(each, start="m", head=PAY), "--id", "map", "-q")
    other = place.plan(f"a: {{run: {ALONE}, limit: pay, idempotent: true, next: succeeded}}", "other.yaml", head=PAY)
    place.durun("start", other, "--id", "one", "-q")
    place.end(first)
    assert sorted(place.lines("seen")) == ["map"] * 4 + ["one"]


def test_f53_a_killed_driver_keeps_its_place_as_long_as_its_command_goes_on_and_no_longer(place: Any) -> None:
    plan = place.plan(f"a: {{run: {HOLDS}, limit: pay, idempotent: true, next: succeeded}}", head=PAY)
    two = place.plan("b: {run: 'echo two >> seen', limit: pay, idempotent: true, next: succeeded}", "two.yaml", head=PAY, start="b")
    first = place.begin("start", plan, "--id", "one")
    place.there("seen")
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    second = place.begin("start", two, "--id", "two")
    said = waiting(place, "two", "limit")
    assert (said["path"], said["name"], said["command"]) == ("b", "pay", "durun resume two")
    assert said["message"] == "a place of the limit pay, held by run one (a)"
    place.write("go", "")
    place.end(second)
    assert place.lines("seen") == ["begun", "ended", "two"]
    assert place.show("one")["status"] == "interrupted"
    place.durun("resume", "one")
    assert place.lines("seen") == ["begun", "ended", "two"], "its end was taken as noted"
    assert place.durun("db", "check", "--json").json["broken"] == []


def test_f53_a_run_that_is_taken_up_again_keeps_the_place_of_its_living_command_and_frees_it_with_its_end(place: Any) -> None:
    plan = place.plan(f"a: {{run: {HOLDS}, limit: pay, idempotent: true, next: succeeded}}", head=PAY)
    two = place.plan("b: {run: 'echo two >> seen', limit: pay, idempotent: true, next: succeeded}", "two.yaml", head=PAY, start="b")
    first = place.begin("start", plan, "--id", "one")
    place.there("seen")
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    second, again = place.begin("start", two, "--id", "two"), place.begin("resume", "one")
    waiting(place, "two", "limit")
    place.until(lambda: place.show("one")["status"] == "running", "run one goes on")
    assert place.lines("seen") == ["begun"]
    place.write("go", "")
    place.end(second)
    place.end(again)
    assert place.lines("seen") == ["begun", "ended", "two"]


def test_f04_a_run_that_was_killed_while_it_waited_for_a_place_is_taken_up_with_all_others(place: Any) -> None:
    plan = place.plan(f"a: {{run: {HOLDS}, limit: pay, idempotent: true, next: succeeded}}", head=PAY)
    two = place.plan("b: {run: 'echo two >> seen', limit: pay, idempotent: true, next: succeeded}", "two.yaml", head=PAY, start="b")
    first = place.begin("start", plan, "--id", "one")
    place.there("seen")
    said = place.durun("start", two, "--id", "left", "--no-wait", exit=3)
    assert "a place of the limit pay, held by run one (a): durun resume left" in said.err
    second = place.begin("start", two, "--id", "two")
    waiting(place, "two", "limit")
    second.send_signal(signal.SIGKILL)
    second.wait(60)
    place.write("go", "")
    place.end(first)
    place.durun("resume", "--all")
    assert {run["status"] for run in place.runs()} == {"succeeded"}
    assert place.lines("seen") == ["begun", "ended", "two", "two"]


@pytest.mark.parametrize("how", ["cancel", "pause", "compensate"])
def test_f83_a_run_that_waits_for_a_place_hears_what_people_want(place: Any, how: str) -> None:
    plan = place.plan(f"a: {{run: {HOLDS}, limit: pay, idempotent: true, next: succeeded}}", head=PAY)
    first = place.begin("start", plan, "--id", "one", "-q")
    place.there("seen")
    second = place.begin("start", plan, "--id", "two", "-q")
    waiting(place, "two", "limit")
    place.durun(how, "two", exit={"cancel": (0, 4), "pause": 0, "compensate": (0, 4)}[how])
    place.end(second, {"cancel": 4, "pause": 9, "compensate": 4}[how])
    place.write("go", "")
    place.end(first)
    assert place.lines("seen") == ["begun", "ended"]
    if how == "pause":
        place.durun("resume", "two")
        assert place.lines("seen") == ["begun", "ended"] * 2


def test_f62_a_rate_lets_no_more_begin_in_its_time_over_all_runs_and_their_deaths(place: Any) -> None:
    states = "m: {map: {items: '[0, 1, 2]', run: ['true'], limit: far, idempotent: true}, next: succeeded}"
    plan = place.plan(states, start="m", head="limits: {far: {rate: 2/s}}")
    first, second = (place.begin("start", plan, "--id", id, "-q") for id in ("one", "two"))
    place.until(lambda: any(r["id"] == "one" for r in place.runs()), "run one is stored")
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    place.durun("resume", "one", "-q")
    place.end(second)
    begun = sorted(at for (at,) in stored(place, "SELECT first_at FROM effects"))
    assert len(begun) == 6
    # the clock that rates count by is read a moment after the one that is stored
    assert all(later - at > 1000 - 300 for at, later in zip(begun, begun[2:], strict=False)), begun


def test_f65_retry_after_holds_the_whole_limit_back_for_every_run_and_over_a_kill(place: Any, receiver: Receiver) -> None:
    receiver.say(answer(429, headers={"Retry-After": "4"}), answer(200, {}))
    head = "limits: {far: {concurrency: 5}}"
    rule = "retry: {on: 'http:429', initial_interval: 1ms, max_interval: 1ms}, "
    one = place.plan(f"a: {{http: {{url: '{receiver.url}'}}, {rule}limit: far, next: succeeded}}", head=head)
    two = place.plan("b: {run: 'true', limit: far, idempotent: true, next: succeeded}", "two.yaml", head=head, start="b")
    first = place.begin("start", one, "--id", "one")
    place.until(lambda: place.runs() and place.history("one", "retry_at"), "the retry")
    second = place.begin("start", two, "--id", "two")
    said = waiting(place, "two", "limit")
    assert said["message"] == "the limit far, which an answer holds back" and said["until"]
    second.send_signal(signal.SIGKILL)
    second.wait(60)
    place.durun("resume", "two")
    place.end(first)
    [(asked,)] = stored(place, "SELECT at FROM history WHERE kind = 'retry_at'")
    [(begun,)] = stored(place, "SELECT first_at FROM effects WHERE state = 'b'")
    assert begun - asked > 4000 - 300


# --- groups ---

GROUP = "input: {db: string}\ngroup: {name: 'backup-${{ input.db }}', if_busy: IF}"


def backup(place: Any, busy: str, run: str = HOLDS) -> str:
    return str(place.plan(f"a: {{run: {run}, idempotent: true, next: succeeded}}", f"{busy}.yaml", head=GROUP.replace("IF", busy)))


def test_f29_of_many_starts_in_one_group_at_once_one_is_stored(place: Any) -> None:
    plan = backup(place, "refuse")
    begun = [place.begin("start", plan, "-i", "db=x") for _ in range(5)]
    place.until(lambda: sum(process.poll() is not None for process in begun) == 4, "four are refused")
    place.write("go", "")
    done = [place.end(process, (0, 6)) for process in begun]
    assert sorted(d.exit for d in done) == [0, 6, 6, 6, 6]
    [run] = place.runs()
    for d in done:
        assert d.out == "" if d.exit else d.out == run["id"] + "\n"
        assert not d.exit or f"run {run['id']} of the group backup-x has not ended" in d.err
        assert not d.exit or f"`durun show {run['id']}`" in d.err
    assert place.lines("seen") == ["begun", "ended"]


def test_a_group_skips_or_refuses_what_comes_while_a_run_of_it_waits_or_is_blocked(place: Any) -> None:
    asks = "a: {approval: {message: well?}, next: succeeded}"
    first = place.plan(asks, head=GROUP.replace("IF", "skip"))
    place.durun("start", first, "-i", "db=x", "--id", "one", exit=3)
    said = place.durun("start", first, "-i", "db=x", "--id", "two")
    assert said.out == "" and "run one of the group backup-x has not ended, it is waiting: nothing is stored" in said.err
    doc = place.durun("start", first, "-i", "db=x", "--json").json
    assert doc == {"plan": "fault", "group": "backup-x", "run": "one", "skipped": True, "stored": False}
    place.durun("start", backup(place, "refuse"), "-i", "db=x", "--detach", exit=6)
    place.durun("start", first, "-i", "db=y", "--id", "three", exit=3)
    place.durun("start", first, "-i", "db=x", "--id", "one", exit=3)  # the id given again is that run
    assert len(place.runs()) == 2
    assert "is no name" in place.durun("start", first, "-i", "db=a\nb", exit=7).err


def test_f44_runs_of_a_group_that_wait_go_one_after_the_other_the_oldest_first(place: Any) -> None:
    holds, alone = (
        backup(place, "wait"),
        place.plan(f"a: {{run: {ALONE}, idempotent: true, next: succeeded}}", "alone.yaml", head=GROUP.replace("IF", "wait")),
    )
    first = place.begin("start", holds, "-i", "db=x", "--id", "one")
    place.there("seen")
    behind = []
    for id in ("two", "three", "four"):
        behind.append(place.begin("start", alone, "-i", "db=x", "--id", id))
        said = waiting(place, id, "group")
        assert said["name"] == "backup-x" and said["message"] == "the group backup-x: run one, which is running"
    behind[0].send_signal(signal.SIGKILL)
    behind[0].wait(60)
    assert place.durun("cancel", "three", exit=(0, 4)).exit in (0, 4)
    place.end(behind[1], 4)
    place.write("go", "")
    place.end(first)
    place.durun("resume", "--all", "-q")
    place.end(behind[2])
    assert place.lines("seen") == ["begun", "ended", "two", "four"]
    assert place.durun("db", "check", "--json").json["broken"] == []


def test_a_run_that_failed_is_not_resumed_beside_another_of_its_group(place: Any) -> None:
    fails = place.plan("a: {run: 'test -e go', idempotent: true, next: succeeded}", head=GROUP.replace("IF", "refuse"))
    place.durun("start", fails, "-i", "db=x", "--id", "one", exit=1)
    holds = place.begin("start", backup(place, "refuse"), "-i", "db=x", "--id", "two")
    place.there("seen")
    for words in (["resume", "one"], ["resume", "one", "--from", "a"], ["compensate", "one"]):
        said = place.durun(*words, exit=6)
        assert "run two of the group backup-x has not ended" in said.err
    assert place.show("one")["status"] == "failed" and place.show("one")["driver"] is None
    place.write("go", "")
    place.end(holds)
    place.durun("resume", "one")


def test_a_run_that_waits_moves_to_a_plan_with_another_limit_or_none_and_stays_behind_in_its_group(place: Any) -> None:
    plan = place.plan(f"a: {{run: {HOLDS}, limit: pay, idempotent: true, next: succeeded}}", head=PAY)
    first = place.begin("start", plan, "--id", "one", "-q")
    place.there("seen")
    for id in ("two", "three"):
        place.durun("start", plan, "--id", id, "-q", "--no-wait", exit=3)
    free = place.plan("a: {run: 'true', idempotent: true, next: succeeded}", "free.yaml")
    gap = place.plan(
        "a: {run: 'true', limit: gap, idempotent: true, next: succeeded}", "gap.yaml", head="limits: {gap: {rate: 9/s}}"
    )
    for id, to in (("two", free), ("three", gap)):
        place.durun("migrate", id, to)
        assert place.durun("db", "check", "--json").json["broken"] == []
        place.durun("resume", id, "-q")
    held = place.begin("start", backup(place, "wait"), "-i", "db=x", "--id", "held", "-q")
    place.until(lambda: place.lines("seen") == ["begun"] * 2, "the run that holds the group has begun")
    place.durun("start", backup(place, "wait"), "-i", "db=x", "--id", "behind", "-q", "--no-wait", exit=3)
    short = place.plan(
        "b: {run: 'echo b >> seen', idempotent: true, next: succeeded}", "short.yaml", head=GROUP.replace("IF", "wait"), start="b"
    )
    place.durun("migrate", "behind", short, "--map", "a=b")
    assert waiting(place, "behind", "group")["name"] == "backup-x"
    place.write("go", "")
    place.end(first)
    place.end(held)
    place.durun("resume", "behind", "-q")
    assert place.lines("seen") == ["begun"] * 2 + ["ended"] * 2 + ["b"]
    assert place.durun("db", "check", "--json").json["broken"] == []


def test_f_where_too_few_files_may_be_open_that_is_what_is_said(place: Any) -> None:
    plan = place.plan("a: {run: 'echo a >> ran', next: succeeded}")
    place.durun("start", place.plan("a: {wait: {signal: go}, next: succeeded}", name="waits.yaml"), "--id", "w", exit=3)
    for most in (6, 9, 12, 17):
        for words in (["start", plan], ["resume", "w"], ["work", "--once"]):
            script = f'ulimit -n {most}; exec "$@"'
            begun = subprocess.run(
                ["bash", "-c", script, "sh", *place.argv, *words], cwd=place.folder, env=place.env, capture_output=True, text=True,
                timeout=60,
            )  # fmt: skip
            assert (begun.returncode, "too few files" in begun.stderr) == (8, True), (most, words, begun.stderr)
    assert place.lines("ran") == []

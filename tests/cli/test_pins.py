"""What goes with a run: files that are pinned, and tools that are asked, seen from outside."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from program import Program, until

from durun.store.file import File, rows

GO = "{wait: {signal: go}, next: b}"


def write(durun: Program, name: str, text: str, mode: int = 0o644) -> Path:
    path = durun.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def plan(durun: Program, pins: str, states: str, more: str = "", name: str = "plan.yaml") -> Path:
    return durun.plan(f"pins: {pins}\nstart: a\n{more}\nstates:\n  {states}\n", name)


def test_a_run_ends_as_if_nothing_had_changed_though_all_around_it_has(durun: Program) -> None:
    """Plan, prompt, script, tool and environment change under a run that waits."""
    write(durun, "prompts/ask.md", "be kind")
    write(durun, "tools/pay.sh", '#!/bin/sh\necho "paid $(cat "$DURUN_FILES/prompts/ask.md") $1 $RATE"\n', 0o755)
    write(durun, "bin/bank", "#!/bin/sh\necho bank 1.0\n", 0o755)
    path = f"{durun.folder}/bin:{os.environ['PATH']}"
    plan(
        durun,
        "{files: ['prompts/**', tools/pay.sh], tools: {bank: [bank, --version]}, env: [RATE]}",
        f"a: {GO}\n  b: {{run: [./tools/pay.sh, prompts/ask.md], output: text, idempotent: true, next: succeeded}}",
        "on_drift: continue\noutput: '${{ states.b.output }}'",
    )
    id = durun("start", "plan.yaml", exit=3, env={"PATH": path, "RATE": "7"}).stdout.strip()
    plan(durun, "{env: [LEDGER]}", "a: {fail: {error: other}}")
    write(durun, "prompts/ask.md", "be rude")
    write(durun, "bin/bank", "#!/bin/sh\necho bank 2.0\n", 0o755)
    shutil.rmtree(durun.folder / "tools")
    durun("signal", id, "go")
    done = durun("resume", id, env={"PATH": path, "RATE": "8"})
    assert "plan.yaml, prompts/ask.md" in done.stderr and "tools/pay.sh is gone" in done.stderr
    output = durun("output", id).stdout.strip()
    assert output.startswith("paid be kind ") and output.endswith(" 7")
    assert output.split()[3].startswith(str(durun.db) + ".d/files/")
    assert [e["tools"][0]["now"]["said"] for e in history(durun, id, "drifted")] == ["bank 2.0"]


def history(durun: Program, id: str, kind: str) -> list[dict]:
    return [e for e in json.loads(durun("history", id, "--json").stdout)["events"] if e["kind"] == kind]


def test_the_files_on_disk_may_be_gone_and_layout_and_modes_are_kept(durun: Program) -> None:
    write(durun, "d/e/x", "x", 0o700)
    write(durun, "d/y", "y", 0o664)
    plan(
        durun,
        "{files: ['d/**']}",
        f"a: {GO}\n  b: {{run: 'cd $DURUN_FILES; stat -c \"%n %a\" . d d/e d/e/x d/y', output: lines, next: succeeded}}",
    )
    id = durun.start(3)
    shutil.rmtree(durun.folder / "d")
    durun("signal", id, "go", "--resume")
    said = durun("output", id, "b", "--json").stdout
    assert json.loads(said)["output"] == [". 555", "d 555", "d/e 555", "d/e/x 500", "d/y 444"]


def test_a_tree_that_was_changed_is_made_again_before_the_next_command(durun: Program) -> None:
    write(durun, "x", "x")
    write(durun, "d/y", "y")
    spoil = "cd $DURUN_FILES; chmod -R u+w .; echo other > x; rm -r d; mkdir d d/y; touch new; ln -s /etc/passwd evil"
    states = (
        f"a: {{run: '{spoil}', next: b}}\n  b: {{run: 'cd $DURUN_FILES; find . -type f | sort; cat x d/y', output: lines, next: c}}\n"
        f"  c: {{wait: {{signal: go}}, next: d}}\n  d: {{run: 'cd $DURUN_FILES; cat x d/y', output: text, next: succeeded}}"
    )
    plan(durun, "{files: [x, 'd/**']}", states)
    id = durun.start(3)
    assert json.loads(durun("output", id, "b", "--json").stdout)["output"] == ["./d/y", "./x", "xy"]
    shutil.rmtree(f"{durun.db}.d/files")
    durun("signal", id, "go", "--resume")
    assert durun("output", id, "d").stdout.strip() == "xy"


def test_content_is_stored_once_with_the_run_or_not_at_all(durun: Program) -> None:
    write(durun, "x", "the content")
    write(durun, "same", "the content")
    plan(durun, "{files: [x, same]}", "a: {pass: {}, next: succeeded}")
    durun.start()
    durun.start()
    file = File(str(durun.db), create=False)
    assert rows(file.db, "SELECT CAST(content AS TEXT) FROM files") == [("the content",)]
    assert [n for (n,) in rows(file.db, "SELECT count(*) FROM pinned UNION ALL SELECT count(*) FROM trees")] == [2, 2]
    file.close()
    refused = durun("start", "plan.yaml", "-i", "no=1", exit=7)
    assert "no" in refused.stderr and len(json.loads(durun("ls", "--all", "--json").stdout)["runs"]) == 2


def test_an_id_is_bound_to_what_the_pinned_files_hold(durun: Program) -> None:
    write(durun, "x", "1")
    write(durun, "sub/y", "1")
    plan(durun, "{files: [y]}", "a: {pass: {}, next: succeeded}", name="sub/child.yaml")
    plan(durun, "{files: [x]}", "a: {plan: {file: sub/child.yaml}, next: succeeded}")
    durun("start", "plan.yaml", "--id", "k")
    durun("start", "plan.yaml", "--id", "k")
    for name in ("x", "sub/y"):
        write(durun, name, "2")
        assert "another plan" in durun("start", "plan.yaml", "--id", "k", exit=7).stderr
        write(durun, name, "1")
    durun("start", "plan.yaml", "--id", "k")


def test_a_plan_that_is_called_has_the_files_of_its_own_folder(durun: Program) -> None:
    write(durun, "x", "outer")
    write(durun, "sub/x", "inner")
    show = "{run: [cat, x], output: text, idempotent: true, next: succeeded}"
    plan(durun, "{files: [x]}", f"a: {show}", "output: '${{ states.a.output }}'", name="sub/child.yaml")
    plan(durun, "{files: [x]}", f"a: {{plan: {{file: sub/child.yaml}}, next: b}}\n  b: {show}")
    id = durun.start()
    assert [durun("output", id, state).stdout.strip() for state in ("a", "b")] == ["inner", "outer"]
    assert set(durun.show(id)["pins"]["files"]) == {"x", "sub/x"}


def test_probe_and_undo_have_the_pinned_files_too(durun: Program) -> None:
    write(durun, "undo.sh", 'echo "undone $1" >> $LEDGER\n')
    plan(
        durun,
        "{files: [undo.sh], env: [LEDGER]}",
        "a: {run: 'true', compensate: {run: [sh, undo.sh, it], idempotent: true}, next: b}\n  b: {wait: {signal: go}, next: succeeded}",
    )
    id = durun.start(3)
    write(durun, "undo.sh", "exit 1\n")
    durun("compensate", id, exit=4)
    assert durun.lines() == ["undone it"]


def test_show_lists_pins_and_says_what_differs_on_disk(durun: Program) -> None:
    write(durun, "x", "1")
    plan(durun, "{files: [x], tools: {t: [echo, '1.0']}}", f"a: {GO}\n  b: {{pass: {{}}, next: succeeded}}")
    id = durun.start(3)
    said = durun("show", id).stdout
    assert durun.show(id)["digest"][:12] in said and "files    x" in said and "tool     t: 1.0" in said and "since" not in said
    write(durun, "x", "2")
    assert "x has changed since" in durun("show", id).stdout
    (durun.folder / "plan.yaml").unlink()
    assert "x has changed and plan.yaml is gone since" in durun("show", id).stdout


def test_a_pinned_tree_that_is_damaged_in_the_database_begins_nothing(durun: Program) -> None:
    durun.audited = False
    write(durun, "x", "1")
    plan(durun, "{files: [x]}", f"a: {GO}\n  b: {{run: 'echo b >> $LEDGER', next: succeeded}}")
    id = durun.start(3)
    file = File(str(durun.db), create=False)
    file.db.execute("UPDATE files SET content = 'other'")
    file.close()
    assert "damaged" in durun("signal", id, "go", "--resume", exit=8).stderr
    assert durun.lines() == []
    assert "another digest" in durun("db", "check", exit=8).stdout


# --- tools ---


def tool(durun: Program, words: str, *, mode: int = 0o755) -> None:
    write(durun, "bin/pay", f"#!/bin/sh\n{words}\n", mode)
    durun.env["PATH"] = f"{durun.folder}/bin:{os.environ['PATH']}"


DRIFTING = "a: {wait: {signal: go}, next: b}\n  b: {run: 'echo b >> $LEDGER', idempotent: true, next: succeeded}"
TOOL = "{tools: {pay: [pay]}, env: [LEDGER]}"


def test_a_tool_that_drifts_holds_the_run_until_a_person_accepts_it(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, DRIFTING)
    id = durun.start(3)
    tool(durun, "echo 2.0; echo noise >&2")
    durun("signal", id, "go")
    held = durun("resume", id, exit=9)
    assert 'pay said "1.0", and now "2.0"' in held.stderr and "--accept-drift" in held.stderr
    doc = durun.show(id)
    assert (doc["status"], doc["reason"]) == ("blocked", "drift") and durun.lines() == []
    [wanted] = doc["waiting_for"]
    assert wanted["kind"] == "drift" and wanted["command"] == f"durun resume {id} --accept-drift"
    assert "pay said" in durun("inbox").stdout and '"2.0"' in durun("show", id).stdout
    durun("resume", id, exit=9)
    assert durun("resume", id, "--accept-drift").returncode == 0 and durun.lines() == ["b"]
    assert len(history(durun, id, "drifted")) == 1
    [accepted] = history(durun, id, "drift_accepted")
    assert accepted["by"] and accepted["tools"][0]["was"] == {"said": "1.0"} and durun.show(id)["pins"]["tools"] == {"pay": "2.0"}


def test_a_tool_that_is_brought_back_lets_the_run_go_on(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, DRIFTING)
    id = durun.start(3)
    (durun.folder / "bin/pay").unlink()
    durun("signal", id, "go")
    assert "nothing (pay cannot be begun" in durun("resume", id, exit=9).stderr
    tool(durun, "echo 1.0")
    durun("resume", id)
    assert durun.lines() == ["b"] and len(history(durun, id, "drift_over")) == 1


def test_continue_writes_each_new_word_into_the_history_once(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, DRIFTING, "on_drift: continue")
    id = durun.start(3)
    for words in ("echo 2.0", "echo 2.0", "echo 3.0", "echo 1.0"):
        tool(durun, words)
        durun("resume", id, exit=3)
    assert [e["tools"][0]["now"]["said"] for e in history(durun, id, "drifted")] == ["2.0", "3.0"]
    assert durun.show(id)["pins"]["tools"] == {"pay": "1.0"}


@pytest.mark.parametrize("words", ["exit 3", "true", "head -c 20000 /dev/zero | tr '\\0' x", "kill -9 $$"])
def test_a_tool_that_says_nothing_is_refused_at_the_start_and_nothing_is_stored(durun: Program, words: str) -> None:
    tool(durun, words)
    plan(durun, TOOL, DRIFTING)
    assert "pins.tools: pay: " in durun("start", "plan.yaml", exit=7).stderr
    assert "pins.tools: pay: " in durun("start", "plan.yaml", "--dry-run", exit=7).stderr
    assert not durun.db.exists() or not json.loads(durun("ls", "--all", "--json").stdout)["runs"]


def test_a_tool_that_is_not_there_is_refused_at_the_start(durun: Program) -> None:
    plan(durun, "{tools: {pay: [no-such-tool]}}", DRIFTING)
    assert "no-such-tool cannot be begun" in durun("start", "plan.yaml", exit=7).stderr


def test_a_failed_and_a_paused_run_are_held_when_they_are_taken_up(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, "a: {run: 'echo a >> $LEDGER; test -e mended', idempotent: true, next: b}\n  b: {wait: 1h, next: succeeded}")
    id = durun.start(1)
    tool(durun, "echo 2.0")
    write(durun, "mended", "")
    durun("resume", id, exit=9)
    assert durun.lines() == ["a"] and durun.show(id)["reason"] == "drift"
    durun("resume", id, "--accept-drift", "--no-wait", exit=3)
    assert durun.lines() == ["a", "a"]
    durun("pause", id)
    tool(durun, "echo 3.0")
    durun("resume", id, "--no-wait", exit=9)
    assert durun.show(id)["reason"] == "drift"
    durun("resume", id, "--accept-drift", "--no-wait", exit=3)
    assert durun.show(id)["status"] == "waiting"


def test_what_was_under_way_ends_and_is_recorded_while_the_run_is_held(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(
        durun,
        TOOL,
        "a: {run: 'echo a >> $LEDGER; while test ! -e go; do sleep 0.05; done', next: b}\n  b: {run: 'echo b >> $LEDGER', next: succeeded}",
    )
    process = durun.begin("start", "plan.yaml", "--id", "r")
    until(lambda: durun.lines() == ["a"])
    os.kill(process.pid, 9)
    process.communicate()
    tool(durun, "echo 2.0")
    resumed = durun.begin("resume", "r")
    until(lambda: durun.seen("r").get("reason") == "drift")
    write(durun, "go", "")
    assert resumed.wait(30) == 9
    resumed.communicate()
    assert durun.lines() == ["a"] and durun.show("r")["state"] == "b"
    durun("resume", "r", "--accept-drift")
    assert durun.lines() == ["a", "b"]


def test_a_driver_that_sits_the_drift_out_goes_on_when_it_is_accepted_elsewhere(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, DRIFTING)
    id = durun.start(3)
    tool(durun, "echo 2.0")
    durun("signal", id, "go")
    sitting = durun.begin("resume", id, "--wait")
    until(lambda: durun.show(id)["reason"] == "drift" and (durun.show(id)["driver"] or {}).get("alive"))
    durun("resume", id, exit=9)
    durun("resume", id, "--accept-drift", exit=0)
    assert sitting.wait(30) == 0
    sitting.communicate()
    assert durun.lines() == ["b"]


def test_a_run_that_is_held_can_be_cancelled_and_compensated(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(
        durun,
        TOOL,
        "a: {run: 'true', compensate: {run: 'echo undone >> $LEDGER'}, next: b}\n  b: {wait: {signal: go}, next: succeeded}",
    )
    first, second = durun.start(3), durun.start(3)
    tool(durun, "echo 2.0")
    durun("resume", first, exit=9)
    durun("resume", second, exit=9)
    durun("cancel", first, exit=4)
    durun("compensate", second, exit=4)
    assert durun.lines() == ["undone"]
    assert [durun.show(id)["status"] for id in (first, second)] == ["cancelled", "compensated"]


def test_an_id_that_is_given_again_asks_as_a_resume_does(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, DRIFTING)
    durun("start", "plan.yaml", "--id", "k", exit=3)
    (durun.folder / "bin/pay").unlink()
    durun("start", "plan.yaml", "--id", "k", exit=9)
    assert durun.show("k")["reason"] == "drift"


def test_accept_drift_where_nothing_drifted_says_so(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, TOOL, DRIFTING)
    id = durun.start(3)
    assert "nothing of it has drifted" in durun("resume", id, "--accept-drift", exit=3).stderr
    assert durun("resume", "--all", "--accept-drift", exit=2)


def test_what_holds_a_secret_is_not_pinned(durun: Program) -> None:
    durun.env["TOKEN"] = value = "t0psecretvalue"
    write(durun, "notes", value)
    head = f"secrets: [TOKEN]\nstart: a\nstates:\n  {DRIFTING}\n"
    durun.plan(f"pins: {{files: [notes]}}\n{head}")
    assert "notes holds the secret TOKEN" in durun("start", "plan.yaml", exit=7).stderr
    durun.plan(f"pins: {{tools: {{pay: [cat, word]}}, env: [LEDGER]}}\n{head}")
    write(durun, "word", value)
    assert "pay: it said the secret TOKEN" in durun("start", "plan.yaml", exit=7).stderr
    write(durun, "word", "1.0")
    id = durun.start(3)
    write(durun, "word", f"1.0 {value}")
    said = [durun("resume", id, exit=9).stderr, durun("signal", id, "go").stderr, durun("work", "--once", exit=None).stderr]
    assert "it said the secret TOKEN" in said[0] and value not in "".join(said)
    durun("resume", id, "--accept-drift")
    for path in [durun.db, *durun.folder.glob("runs.db-wal")]:
        assert value.encode() not in path.read_bytes()


def test_what_a_tool_leaves_behind_is_not_waited_for(durun: Program) -> None:
    left = "n=0; until test -e over; do sleep 0.05; n=$((n + 1)); test $n -lt 150 || { touch waited; exit; }; done"
    words = json.dumps(["sh", "-c", f"{{ {left}; }} & printf 'pay\\n1.0\\n'"])
    plan(durun, f"{{tools: {{pay: {words}}}}}", "a: {pass: {}, next: succeeded}")
    id = durun.start()
    (durun.folder / "over").touch()
    assert not (durun.folder / "waited").exists()
    assert durun.show(id)["pins"]["tools"] == {"pay": "pay\n1.0"}


def test_the_tools_of_a_plan_that_is_called_are_asked_too(durun: Program) -> None:
    tool(durun, "echo 1.0")
    plan(durun, "{tools: {pay: [pay, inner]}}", "a: {pass: {}, next: succeeded}", name="child.yaml")
    plan(durun, "{tools: {pay: [pay]}}", "a: {plan: {file: child.yaml}, next: b}\n  b: {wait: {signal: go}, next: succeeded}")
    id = durun.start(3)
    assert durun.show(id)["pins"]["tools"] == {"pay": "1.0", "test/pay": "1.0"}


def test_work_has_the_pinned_files_and_holds_what_has_drifted(durun: Program) -> None:
    tool(durun, "echo 1.0")
    write(durun, "x", "one\n")
    plan(
        durun,
        "{files: [x], tools: {pay: [pay]}, env: [LEDGER]}",
        f"a: {GO}\n  b: {{run: 'cat $DURUN_FILES/x >> $LEDGER', next: succeeded}}",
    )
    well, held = durun.start(3), durun.start(3)
    write(durun, "x", "two\n")
    durun("signal", well, "go")
    durun("work", "--once")
    assert durun.lines() == ["one"] and durun.show(well)["status"] == "succeeded"
    tool(durun, "echo 2.0")
    durun("signal", held, "go")
    durun("work", "--once")
    assert durun.lines() == ["one"] and durun.show(held)["reason"] == "drift"
    durun("resume", held, "--accept-drift")
    assert durun.lines() == ["one", "one"]


def test_what_no_run_needs_any_more_is_pruned_with_it(durun: Program) -> None:
    write(durun, "x", "one\n")
    body = f"a: {GO}\n  b: {{run: 'cat $DURUN_FILES/x >> $LEDGER', next: succeeded}}"
    plan(durun, "{files: [x], env: [LEDGER]}", body, "version: '1'")
    id = durun.start(3)
    write(durun, "x", "two\n")
    plan(durun, "{files: [x], env: [LEDGER]}", body, "version: '2'")
    durun("migrate", id, "plan.yaml")
    durun("signal", id, "go", "--resume")
    assert durun.lines() == ["two"]
    durun("db", "prune", id)
    file = File(str(durun.db), create=False)
    for table in ("files", "trees", "pinned", "plans_left"):
        assert rows(file.db, f"SELECT count(*) FROM {table}") == [(0,)], table
    file.close()
    assert os.listdir(f"{durun.db}.d/files") == ["lock"]

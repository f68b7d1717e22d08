"""`durun once` killed with -9 at every moment: nothing is done twice without a word, and nothing is said to be done that is not."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from program import Program, until

# a call that ends itself at a moment: before and after each of these, some of them within a transaction
MORTAL = """
import os, signal, sys
from durun.cli import reader
from durun.effects import once as effect
from durun.store import calls, onces

at, seen = int(sys.argv[1]), 0

def moment():
    global seen
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
    seen += 1

def mortal(owner, name):
    real = getattr(owner, name)
    def called(*args, **more):
        moment()
        answer = real(*args, **more)
        moment()
        return answer
    setattr(owner, name, called)

for owner, names in (
    (effect.Output, ("__init__", "drop")), (effect, ("run",)), (onces, ("owe",)),
    (calls.Calls, ("begin", "_write", "ended", "doubt")),
):
    for name in names:
        mortal(owner, name)
code = reader.run(sys.argv[2:])
print(seen, file=open("moments", "w"))
sys.exit(code)
"""
# first a call that ends itself, then one that does not; what it is to do writes its name and its key
EACH = """
n=0
while :; do
  rm -f moments
  {python} mortal.py $n once m$n {options} -- sh -c 'echo m'$n' $DURUN_IDEMPOTENCY_KEY >> "$LEDGER"; echo did' > /dev/null || true
  test ! -e moments || break
  if ./once m$n {options} -- sh -c 'echo m'$n' $DURUN_IDEMPOTENCY_KEY >> "$LEDGER"; echo did' >> said.$n
  then echo "$n done"; else echo "$n $?"; fi
  n=$((n + 1))
done
"""


def outcomes(durun: Program, options: str) -> tuple[str, dict[int, tuple[str, list[str]]]]:
    """The run, and for each moment: how the second call ended, and the keys with which it was done."""
    (durun.folder / "mortal.py").write_text(MORTAL)
    (durun.folder / "once").write_text(f'#!/bin/sh\nexec {sys.executable} -m durun once "$@"\n')
    (durun.folder / "once").chmod(0o755)
    (durun.folder / "script").write_text(EACH.replace("{python}", sys.executable).replace("{options}", options))
    durun.plan("start: a\nstates: {a: {run: [sh, -eu, script], output: lines, next: succeeded}}\n")
    run = durun.start()
    found: dict[int, tuple[str, list[str]]] = {}

    for line in json.loads(durun("output", run, "a").stdout):
        n, how = line.split()
        found[int(n)] = (how, [key for name, key in map(str.split, durun.lines()) if name == f"m{n}"])
    assert len(found) >= 12, f"moments that were not met prove nothing: {found}"
    return run, found


def test_without_more_it_is_done_once_or_in_doubt(durun: Program) -> None:
    run, found = outcomes(durun, "--undo true")
    for n, (how, keys) in found.items():
        assert len(keys) <= 1, f"at moment {n} it was done twice"
        assert how in ("done", "75") and (how == "75" or keys), f"at moment {n} it was said to be done: {how}, {keys}"
    assert {how for how, _ in found.values()} == {"done", "75"}
    assert {len(keys) for how, keys in found.values() if how == "75"} == {0, 1}, "nobody can tell these two apart"
    undo = {u["path"]: u["status"] for u in durun.show(run)["undo"]}
    assert undo == {f"a/once:m{n}": "owed" if how == "done" else "registered" for n, (how, _) in found.items()} | {
        f"a/once:m{len(found)}": "owed"
    }


def test_a_probe_makes_it_done_exactly_once(durun: Program) -> None:
    _, found = outcomes(durun, """--probe "grep -q 'm$n ' '$LEDGER' && echo did" """)
    assert {(how, len(keys)) for how, keys in found.values()} == {("done", 1)}, found
    assert all((durun.folder / f"said.{n}").read_text() == "did\n" for n in found)


def test_what_is_idempotent_is_done_and_again_only_with_its_key(durun: Program) -> None:
    _, found = outcomes(durun, "--idempotent")
    assert {how for how, _ in found.values()} == {"done"}, found
    assert all(len(set(keys)) == 1 for _, keys in found.values()), found
    assert {len(keys) for _, keys in found.values()} == {1, 2}


@pytest.mark.parametrize("probe", ["", "--probe 'exit 1'"])
def test_when_the_power_goes_the_step_is_begun_again_and_asks_for_its_once(durun: Program, probe: str) -> None:
    (durun.folder / "once").write_text(f'#!/bin/sh\nexec {sys.executable} -m durun once "$@"\n')
    (durun.folder / "once").chmod(0o755)
    first = "./once first -- sh -c 'echo first >> \"$LEDGER\"'"
    second = f"./once second {probe} -- sh -c 'echo second >> \"$LEDGER\"; test $DURUN_ATTEMPT = 2 || exec sleep 60'"
    states: dict[str, Any] = {"a": {"run": f"{first}; {second}", "idempotent": True, "next": "succeeded"}}
    durun.plan(f"start: a\nstates: {json.dumps(states)}\n")
    begun = durun.begin("start", "plan.yaml")
    until(lambda: durun.lines() == ["first", "second"])
    durun.kill_all()
    begun.communicate()
    run = durun.the_run()
    before = {e["path"]: e["status"] for e in durun.show(run)["effects"]}
    assert before["a/once:first"] == "done" and before["a/once:second"] == "in_doubt", "whoever looks sees that its process is gone"
    if probe:
        durun("resume", run)
        assert durun.lines() == ["first", "second", "second"]
    else:
        assert "whether once second of a happened is not known" in durun("resume", run, exit=9).stderr
        assert durun.lines() == ["first", "second"]


def test_on_a_full_disk_nothing_is_begun(durun: Program) -> None:
    """The file is told that too little is free; what it says is what a person reads."""
    code = "import os, sys; from durun.store import file; file.ROOM = 1 << 62; from durun.cli import reader; sys.exit(reader.run(sys.argv[1:]))"
    (durun.folder / "full.py").write_text(code)
    durun.plan(
        f"start: a\nstates: {{a: {{run: '{sys.executable} full.py once x -- touch made || echo $? > said', next: succeeded}}}}\n"
    )
    run = durun.start()
    assert (durun.folder / "said").read_text() == "8\n" and not (durun.folder / "made").exists()
    assert [e["kind"] for e in durun.show(run)["effects"]] == ["run"] and not list(durun.folder.glob("runs.db.d/once/*"))

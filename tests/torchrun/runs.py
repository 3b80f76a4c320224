"""Real runs for tests: stock torchrun processes as nodes on loopback, their workers' event log, faults by pid, clean-up.

Law: whatever a test does, `Run.close` leaves no process of its agents behind; it knows them by the trees it saw.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
REPO = SCRIPTS.parents[2]
Event = Mapping[str, Any]
LOOP, GLOO = str(SCRIPTS / "loop.py"), str(SCRIPTS / "gloo.py")

PLENTY = "restarts: {total: 100, per_hour: null, per_node: null, per_signature: null, without_commit: null, early_exits: null, backoff_s: [0.0]}\n"
"""A YAML with caps that no test meets."""


class Agent:
    """One torchrun process and what grows from it."""

    def __init__(self, run: Run, node: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self.run, self.node = run, node
        self.out = run.folder / f"{node}.{len(run.agents)}.out"
        with open(self.out, "ab") as out:
            # A session of its own, as a node would be: nothing that hits the test's group hits it.
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=dict(env), cwd=cwd, start_new_session=True
            )
        self._seen: dict[int, psutil.Process] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """Everything that it and its workers printed so far."""
        return self.out.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        """All living processes below the agent (guardian included) that were ever seen."""
        with contextlib.suppress(psutil.Error):
            for p in psutil.Process(self.pid).children(recursive=True):
                self._seen[p.pid] = p
        return [p for p in self._seen.values() if _lives(p)]

    def guardian(self) -> psutil.Process | None:
        return next((p for p in self.tree() if _runs(p, "guardian_main_os")), None)

    def wait(self, within_s: float = 60.0) -> int:
        """Its exit status."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                pytest.fail(f"{self.node} still runs after {within_s:g} s\n{self.run.story()}")
            time.sleep(0.02)
        return int(self.process.returncode)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill_agent(self) -> None:
        """The agent process alone."""
        self.tree()
        self.process.kill()
        self.process.wait()

    def kill_node(self) -> None:
        """The agent, its guardian and all workers at once, as when a machine goes away."""
        tree = self.tree()
        for process in (self.process, *tree):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill_node()
        for p in self.tree():
            with contextlib.suppress(psutil.Error):
                p.kill()


class Run:
    """Agents of one run id, and what their workers log into `folder/events.jsonl`."""

    def __init__(self, folder: Path, endpoint: str, run_id: str = "job") -> None:
        self.folder, self.endpoint, self.run_id = folder, endpoint, run_id
        self.agents: list[Agent] = []
        folder.mkdir(exist_ok=True)

    def start(
        self,
        node: str,
        *words: str,
        nnodes: str = "1",
        nproc: str = "1",
        script: str = LOOP,
        flags: Sequence[str] = (),
        config: str = "",
        env: Mapping[str, str] | None = None,
        backend: str = "healthy-etcd",
        cwd: Path | None = None,
        inside: Sequence[str] = (),
    ) -> Agent:
        """Start one torchrun.  `words`: the script's arguments; `config`: the YAML's text; `inside`: what it runs under."""
        command = [*inside, *TORCHRUN, f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", f"--rdzv-backend={backend}"]
        if backend == "c10d":
            command += ["--rdzv-endpoint=localhost:0"]
        elif self.endpoint:
            command += [f"--rdzv-endpoint={self.endpoint}"]
        command += [f"--rdzv-id={self.run_id}"] if self.run_id else []
        if config:
            path = self.folder / f"{node}.yaml"
            path.write_text(config)
            command += [f"--rdzv-conf=config={path}"]
        command += [*flags, script, *words]
        agent = Agent(self, node, command, {**self.environment(node), **(env or {})}, cwd or self.folder)
        self.agents.append(agent)
        return agent

    def environment(self, node: str) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_HEALTH_NODE", "ELASTIC_HEALTH_CONFIG"))}
        return {
            **mine,
            "RUN_DIR": str(self.folder),
            "ELASTIC_HEALTH_NODE": node,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(REPO), mine.get("PYTHONPATH")))),
        }

    # ---- the event log
    def events(self, ev: str | None = None, **fields: Any) -> list[Event]:
        """Logged events, oldest first; those of a kind, with these fields."""
        try:
            lines = (self.folder / "events.jsonl").read_text().splitlines()
        except OSError:
            return []
        found: list[Event] = [json.loads(line) for line in lines]
        wanted = {**({"ev": ev} if ev else {}), **fields}
        return [e for e in found if all(e.get(k) == v for k, v in wanted.items())]

    def wait(self, holds: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
        """Whatever true thing `holds()` returns in time; fails with the agents' outputs otherwise."""
        deadline = time.monotonic() + within_s
        while True:
            found = holds()
            if found:
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within_s:g} s: {what}\n{self.story()}")
            time.sleep(0.02)

    def wait_group(self, nodes: int, *, after: int = 0, ev: str = "boot", nproc: int = 1, within_s: float = 60.0) -> list[Event]:
        """The first `ev` of every rank of a generation above `after` with so many nodes."""

        def whole() -> list[Event]:
            groups: dict[int, dict[int, Event]] = {}
            for e in self.events(ev):
                if e["generation"] > after and e["world"] == nodes * nproc:
                    groups.setdefault(e["generation"], {}).setdefault(e["rank"], e)
            full = [g for g, ranks in sorted(groups.items()) if len(ranks) == nodes * nproc]
            return [e for _, e in sorted(groups[full[-1]].items())] if full else []

        return self.wait(whole, f"a generation after {after} with {nodes} nodes", within_s)  # type: ignore[no-any-return]

    def alive_until(self, pid: int) -> float:
        """When this `loop.py` was last seen to run, seconds since the epoch."""
        return (self.folder / f"alive.{pid}").stat().st_mtime

    def order(self, name: str, text: str = "1") -> None:
        """What the scripts look for; whole at once."""
        partly = self.folder / f".{name}"
        partly.write_text(text)
        partly.rename(self.folder / name)

    def finish(self, *agents: Agent, within_s: float = 60.0) -> None:
        """All workers end well; all these agents (default: all living) must end with 0."""
        living = agents or tuple(a for a in self.agents if a.process.poll() is None)
        self.order("finish")
        for a in living:
            assert a.wait(within_s) == 0, self.story()

    def story(self) -> str:
        """Outputs and the last events, for a failed test."""
        outs = "\n".join(f"---- {a.out.name} (rc {a.process.poll()})\n{a.text()[-6000:]}" for a in self.agents)
        events = "\n".join(json.dumps({k: v for k, v in e.items() if k != "env"}) for e in self.events()[-25:])
        return f"{outs}\n---- events\n{events}"

    def close(self) -> None:
        for a in self.agents:
            a.close()


def program(name: str) -> str:
    """Path of one of the test scripts."""
    return str(SCRIPTS / f"{name}.py")


@contextmanager
def a_run(folder: Path, endpoint: str, run_id: str = "job") -> Iterator[Run]:
    """A run whose agents end with the block."""
    run = Run(folder, endpoint, run_id)
    try:
        yield run
    finally:
        run.close()


def gone(pids: Sequence[int], within_s: float) -> list[int]:
    """Waits for the processes to end; those that still live after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        left = [p for p in pids if psutil.pid_exists(p) and _lives(psutil.Process(p))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def _lives(p: psutil.Process) -> bool:
    try:
        return bool(p.is_running() and p.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _runs(p: psutil.Process, name: str) -> bool:
    try:
        return any(name in word for word in p.cmdline())
    except psutil.Error:
        return False

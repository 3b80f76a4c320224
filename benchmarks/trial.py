"""One trial: start a group, let it train, break it, and time the way to the first completed step of the new group.

The clock is the machine's wall clock, the same for the fault and for the steps that workers write down.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import TOKEN, Agent, end_all, free_port, listens, new_token

SCRIPT = Path(__file__).with_name("train_steps.py")
ROOT = SCRIPT.parents[1]
FAULTS = ("kill_worker", "kill_node", "hang", "sigstop")
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Launcher:
    """`words` follow `torchrun`; `endpoint` "" means c10d on a free port, hosted by the first agent."""

    name: str
    words: tuple[str, ...]
    endpoint: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """agents × workers; `warm_steps` on every rank before the fault, `settle_steps` of the new group before it counts as back."""

    agents: int = 2
    workers: int = 1
    gloo_timeout_s: float = 30.0
    step_s: float = 0.05
    warm_steps: int = 100
    settle_steps: int = 5
    start_within_s: float = 90.0
    back_within_s: float = 120.0


def with_product(env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which this checkout's product is imported, wherever another one is installed."""
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))}


def calibrate() -> float:
    """Milliseconds for a fixed piece of work on one core: how much of the machine was ours just now."""
    block, start = bytes(1 << 20), time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(96):
        digest.update(block)
    return (time.perf_counter() - start) * 1000


class Trial:
    """The agents of one group and what their workers wrote down."""

    def __init__(self, launcher: Launcher, setting: Setting, out: Path) -> None:
        self.launcher, self.setting = launcher, setting
        self.folder = Path(tempfile.mkdtemp(prefix=f"{launcher.name}.", dir=out))
        self.token, self.port = new_token(), free_port()
        self.agents: list[Agent] = []
        self.events: list[Event] = []
        self._read = 0

    def start(self) -> None:
        for number in range(self.setting.agents):
            self.agents.append(Agent(self._command(), self._env(number), self.folder / f"agent{number}.log", self.folder))
            if number == 0 and not self.launcher.endpoint:
                self.wait(lambda: listens(self.port), 60)

    def _command(self) -> list[str]:
        s, endpoint = self.setting, self.launcher.endpoint or f"127.0.0.1:{self.port}"
        group = (f"--nnodes=1:{s.agents}", f"--nproc-per-node={s.workers}", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={self.token}")
        place = ("--local-addr=127.0.0.1", f"--log-dir={self.folder / 'logs'}", str(SCRIPT))
        return [sys.executable, "-m", "torch.distributed.run", *self.launcher.words, *group, *place]

    def _env(self, number: int) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_HEALTH_", "TORCH_", "BENCH_"))}
        mine = {TOKEN: self.token, "BENCH_DIR": str(self.folder), "BENCH_AGENT": str(number), "BENCH_STEP_S": str(self.setting.step_s)}
        common = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "BENCH_GLOO_TIMEOUT_S": str(self.setting.gloo_timeout_s)}
        return with_product({**clean, **common, **mine, **self.launcher.env})

    # ---- what is seen
    def look(self) -> None:
        path = self.folder / "events.jsonl"
        if path.exists():
            with open(path, "rb") as f:
                f.seek(self._read)
                whole = f.read().rpartition(b"\n")[0]
            self._read += len(whole) + 1 if whole else 0
            self.events += [json.loads(line) for line in whole.splitlines()]

    def wait(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Look until `holds`, at most so long, and not after the last agent has ended."""
        deadline = time.monotonic() + within_s
        while True:
            over = time.monotonic() > deadline or (bool(self.agents) and all(a.ended for a in self.agents))
            self.look()
            if holds() or over:
                return holds()
            time.sleep(0.01)

    def steps(self, pids: set[int] | None = None, outside: set[int] | None = None, after: float = 0.0) -> list[Event]:
        inside = (e for e in self.events if e["ev"] == "step" and e["t"] > after)
        return [e for e in inside if (pids is None or e["pid"] in pids) and (outside is None or e["pid"] not in outside)]

    def warm(self) -> set[int]:
        """Pids of the whole group whose every rank has done `warm_steps`; empty if it did not come to that."""
        world = self.setting.agents * self.setting.workers

        def group() -> set[int]:
            counts = Counter(e["pid"] for e in self.steps() if e["world"] == world)
            pids = {pid for pid, n in counts.items() if n >= self.setting.warm_steps}
            return pids if len(pids) >= world else set()

        return group() if self.wait(lambda: bool(group()), self.setting.start_within_s) else set()

    def back(self, old: set[int], fault_at: float) -> bool:
        """A new group stands: each of its ranks has done `settle_steps`."""
        new = self.steps(outside=old, after=fault_at)
        if not new:
            return False
        world = int(new[-1]["world"])
        counts = Counter(e["pid"] for e in new if e["world"] == world)
        return sum(n >= self.setting.settle_steps for n in counts.values()) >= world

    # ---- what is done
    def strike(self, fault: str) -> float:
        """Break the last agent's worker, or the last agent; returns the moment."""
        last = len(self.agents) - 1
        victim = max((e for e in self.events if e["ev"] == "step" and e["agent"] == last), key=lambda e: e["t"])["pid"]
        at = time.time()
        if fault == "kill_worker":
            os.kill(victim, signal.SIGKILL)
        elif fault == "kill_node":
            self.agents[last].kill_tree()
        elif fault == "sigstop":
            os.kill(victim, signal.SIGSTOP)
        elif fault == "hang":
            (self.folder / f"hang.{victim}").touch()
            self.wait(lambda: any(e["ev"] == "hang" for e in self.events), 20)
            at = next(e["t"] for e in self.events if e["ev"] == "hang")
        else:
            raise ValueError(f"expected one of {FAULTS}; found {fault!r}")
        return at

    def incidents(self) -> int:
        """Evidence folders below torchrun's log folder that hold anything."""
        return sum(p.is_dir() and any(p.iterdir()) for p in (self.folder / "logs").glob("elastic-health/*"))

    def close(self) -> int:
        """End everything; returns how many processes had to be killed after their agents had ended."""
        for agent in self.agents:
            agent.leave(3.0)
        return end_all(self.token)


def measure(launcher: Launcher, fault: str, setting: Setting, out: Path, delay_s: float = 0.0) -> dict[str, Any]:
    """A whole trial as one flat record; `recovered_s` is missing unless `recovered`.

    The fault comes `delay_s` after the group is warm, so that it meets any point of a step and of the way to a checkpoint.
    """
    record: dict[str, Any] = {"launcher": launcher.name, "fault": fault, "recovered": False, "calibration_ms": round(calibrate(), 1)}
    record["load"] = round(os.getloadavg()[0], 2)
    trial = Trial(launcher, setting, out)
    record["folder"] = str(trial.folder)
    try:
        begun = time.time()
        trial.start()
        group = trial.warm()
        if not group:
            return {**record, "error": "the group did not start"}
        record["start_s"] = round(trial.steps()[0]["t"] - begun, 3)
        trial.wait(lambda: False, delay_s)
        _break(trial, fault, record)
    finally:
        record["left_over"] = trial.close()
    return record


def _break(trial: Trial, fault: str, record: dict[str, Any]) -> None:
    old = {e["pid"] for e in trial.events}
    at = trial.strike(fault)
    record["recovered"] = trial.wait(lambda: trial.back(old, at), trial.setting.back_within_s)
    new = trial.steps(outside=old, after=at)
    if record["recovered"]:
        boots = [e["t"] for e in trial.events if e["ev"] == "boot" and e["pid"] not in old]
        lost = max(e["step"] for e in trial.steps(pids=old)) - new[0]["step"] + 1
        record.update(recovered_s=round(new[0]["t"] - at, 3), boot_s=round(min(boots) - at, 3), world=new[-1]["world"], steps_lost=lost)
    record["evidence"] = trial.incidents()
    record["calibration_after_ms"] = round(calibrate(), 1)


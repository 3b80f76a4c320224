"""A real run under watch: agents, their etcd, the steps of each rank, and what the store says of them."""

from __future__ import annotations

import base64
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.etcd_fixture import EtcdCluster, etcd_cluster
from tests.torchrun.runs import PLENTY, Agent, Run, a_run

SCRIPT = str(Path(__file__).with_name("train.py"))
NODES = ("a", "b", "c")
BATCH = 12


@dataclass(frozen=True)
class Step:
    """One line of a rank's step log: number, when it ended (seconds since the epoch), how long its body took."""

    number: int
    at: float
    body_s: float


class Ctl(Protocol):
    """Runs etcdctl."""

    def ctl(self, *words: str) -> str: ...


@dataclass
class Watched:
    """The run of a drill.  `inside`: what a node's agent is started under."""

    etcd: Ctl
    run: Run
    agents: list[Agent]
    env: dict[str, str]
    config: str
    nnodes: str = str(len(NODES))
    inside: Callable[[str], tuple[str, ...]] = lambda node: ()

    def start(self, node: str) -> Agent:
        """Start this node's agent (again)."""
        made = self.run.start(node, nnodes=self.nnodes, script=SCRIPT, config=self.config, env=self.env, inside=self.inside(node))
        self.agents.append(made)
        return self.agents[-1]

    # ---- what the ranks log
    def steps(self, node: str, pid: int | None = None) -> list[Step]:
        """Steps of a node's worker (default: of all its workers, in order of time)."""
        found = []
        for path in self.run.folder.glob(f"steps.{node}.{pid if pid is not None else '*'}"):
            for line in path.read_text().splitlines():
                words = line.split()
                if len(words) == 3:
                    found.append(Step(int(words[0]), float(words[1]), float(words[2])))
        return sorted(found, key=lambda s: s.at)

    def gaps(self, node: str, start: float, end: float) -> list[float]:
        """Seconds from each step's end to the next one's, of steps that ended in [start, end), checkpoints included."""
        steps = self.steps(node)
        return [b.at - a.at for a, b in itertools.pairwise(steps) if start <= b.at < end]

    def wait_steps(self, node: str, more: int, within_s: float = 60.0) -> None:
        """Until that node's rank has done so many more steps."""
        have = len(self.steps(node))
        self.run.wait(lambda: len(self.steps(node)) >= have + more, f"{more} more steps of {node}", within_s)

    # ---- what the store says
    def keys(self, below: str) -> dict[str, dict[str, Any]]:
        """Values under `runs/job/`, by key's last part; each with etcd's own `create` and `version`."""
        prefix = f"/elastic-health/runs/{self.run.run_id}/{below}"
        found = json.loads(self.etcd.ctl("get", "--prefix", prefix, "-w", "json")).get("kvs", [])
        out = {}
        for kv in found:
            value = json.loads(base64.b64decode(kv["value"]))
            about = {"create": kv["create_revision"], "version": kv["version"], "lease": kv.get("lease", 0)}
            out[base64.b64decode(kv["key"]).decode().removeprefix(prefix)] = {**value, **about}
        return out

    def commits(self) -> list[dict[str, Any]]:
        """Checkpoint records in the order in which they were made."""
        return sorted(self.keys("checkpoints/").values(), key=lambda r: int(r["create"]))

    def leases(self) -> dict[str, int]:
        """Each node's lease, by its candidate."""
        return {str(c["node"]): int(c["lease"]) for c in self.keys("candidates/").values()}

    def said(self, text: str) -> int:
        """How many lines of the agents have this in them."""
        return sum(line.count(text) for a in self.agents for line in a.text().splitlines() if "elastic-health" in line)

    def agent(self, node: str) -> Agent:
        return next(a for a in reversed(self.agents) if a.node == node)

    def end(self, within_s: float = 90.0) -> None:
        """All living agents finish with 0."""
        self.run.finish(*(a for a in self.agents if a.process.poll() is None), within_s=within_s)


@contextmanager
def watched(folder: Path, members: int, *, every: int = 50, mode: str = "sync", config: str = "") -> Iterator[tuple[Watched, EtcdCluster]]:
    """Three agents that train on an etcd of so many members."""
    with etcd_cluster(members) as etcd, a_run(folder, ",".join(etcd.endpoints)) as run:
        w = Watched(etcd, run, [], {"EVERY": str(every), "MODE": mode, "PACE": "0.02"}, PLENTY + config)
        for node in NODES:
            w.start(node)
        run.wait_group(len(NODES), ev="trains", within_s=180)
        yield w, etcd


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def wait_until(at: float) -> None:
    """The length of a fault, which is the thing tested, is a length of time."""
    time.sleep(max(0.0, at - time.time()))

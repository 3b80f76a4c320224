"""Fault after fault, at random but repeatable, on real agents and a real etcd: one group at a time, and the run ends well."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import PLENTY, Agent, Run, stop

pytestmark = [pytest.mark.spec("R1", "R2", "R10"), pytest.mark.timeout(420), pytest.mark.slow, pytest.mark.sound_etcd]
NODES = "2:3"


class Storm:
    """The faults.  Each leaves at least two nodes that can go on."""

    def __init__(self, run: Run, etcd: EtcdCluster, seed: int) -> None:
        self.run, self.etcd, self.dice = run, etcd, random.Random(seed)
        self.agents: dict[str, Agent] = {}

    def start(self, node: str) -> None:
        self.agents[node] = self.run.start(node, nnodes=NODES, config=PLENTY + "membership: {scale_up: at_once}\n")

    def blow(self) -> str:
        fault: Callable[[str], None] = self.dice.choice(
            (
                self.worker_killed,
                self.worker_exits,
                self.agent_killed,
                self.node_killed,
                self.agent_stopped,
                self.etcd_frozen,
                self.agent_told,
            )
        )
        node = self.dice.choice(sorted(self.agents))
        fault(node)
        return f"{fault.__name__} {node}"

    def workers(self, node: str) -> list[int]:
        return [e["pid"] for e in self.run.events("boot", node=node)][-1:]

    def worker_killed(self, node: str) -> None:
        for pid in self.workers(node):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def worker_exits(self, node: str) -> None:
        for pid in self.workers(node):
            self.run.order(f"die.{pid}", "9")

    def agent_killed(self, node: str) -> None:
        self.agents[node].kill_agent()
        self.start(node)

    def node_killed(self, node: str) -> None:
        self.agents[node].kill_node()
        self.start(node)

    def agent_told(self, node: str) -> None:
        self.agents[node].signal(signal.SIGTERM)
        assert self.agents[node].wait(20) in (84, -15)  # the latter: still importing torch
        self.start(node)

    def agent_stopped(self, node: str) -> None:
        stop(self.agents[node].pid)
        time.sleep(self.dice.uniform(0.5, 9))  # the length of the fault
        self.agents[node].signal(signal.SIGCONT)

    def etcd_frozen(self, _: str) -> None:
        self.etcd.members[0].freeze()
        time.sleep(self.dice.uniform(0.2, 7))  # the length of the fault
        self.etcd.members[0].thaw()


def spans(run: Run) -> list[tuple[int, float, float]]:
    """(generation, first boot, last sign of life) of each generation's workers."""
    found: dict[int, list[float]] = {}
    for e in run.events("boot"):
        found.setdefault(e["generation"], []).append(e["t"])
        if (run.folder / f"alive.{e['pid']}").exists():
            found[e["generation"]].append(run.alive_until(e["pid"]))
    return [(g, min(t), max(t)) for g, t in sorted(found.items())]


def whole(run: Run, after: float) -> bool:
    """Did the workers of three nodes run in one group at that time?"""
    newest = max(e["generation"] for e in run.events("boot"))
    group = run.events("boot", generation=newest, world=3)
    return len(group) == 3 and all(run.alive_until(e["pid"]) > after for e in group)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_storm(run: Run, one_etcd: EtcdCluster, seed: int) -> None:
    storm = Storm(run, one_etcd, seed)
    for node in ("a", "b", "c"):
        storm.start(node)
    run.wait_group(3)
    done = []
    for _ in range(12):
        done.append(storm.blow())
        time.sleep(storm.dice.uniform(0, 3))  # faults also hit a group that forms
    for node, agent in tuple(storm.agents.items()):
        if agent.process.poll() == 69:  # it was started while etcd was frozen: a scheduler starts it again
            storm.start(node)
    later = time.time() + 1.0
    run.wait(lambda: whole(run, later), f"a whole group again after {done}", 60)
    run.finish(*storm.agents.values(), within_s=60)
    lives = spans(run)
    for (g, _, ended), (h, began, _) in itertools.pairwise(lives):
        assert ended <= began, f"generations {g} and {h} lived at once, by {ended - began:.3f} s, after {done}"

"""What the demo sees: the run's keys in etcd, and the steps that rank 0 wrote down.  It decides nothing.

A `Scene` is read again and again; waiting means reading until a condition holds or a deadline has passed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from demo_parts.nodes import Node
from elastic_health.recovery.snapshot import RunSnapshot, snapshot
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Store

LOOK_EVERY_S = 0.05
T = TypeVar("T")


class DemoFailed(Exception):
    """What was waited for did not come; the message says what, and why if that is known."""


@dataclass(frozen=True)
class Step:
    """One completed step, as rank 0 wrote it down."""

    step: int
    loss: float
    at: float
    gen: int
    world: int


@dataclass
class Scene:
    """`look` reads everything anew; `watching` is called after each look (the live table)."""

    store: Store
    keys: RunKeys
    nodes: list[Node]
    metrics: Path
    deadline: float
    watching: Callable[[Scene], None]
    now: RunSnapshot = field(init=False)
    steps: list[Step] = field(default_factory=list)
    _read: int = 0

    def __post_init__(self) -> None:
        self.now = RunSnapshot(self.keys)

    def look(self) -> None:
        self.now = snapshot(self.keys, self.store.range(self.keys.root).kvs)
        self._read_steps()
        self.watching(self)

    def _read_steps(self) -> None:
        if not self.metrics.exists():
            return
        with open(self.metrics, "rb") as f:
            f.seek(self._read)
            for line in f:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self.steps.append(Step(**json.loads(line)))

    @property
    def step(self) -> int:
        """Newest completed step, 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    def first_of(self, generation: int) -> Step | None:
        """The first step that `generation` completed."""
        return next((s for s in self.steps if s.gen == generation), None)

    def when(self, key: str) -> float:
        """Wall clock at which a key's writer wrote it."""
        return datetime.fromisoformat(self.now.at[key].replace("Z", "+00:00")).timestamp()

    def until(self, what: str, answer: Callable[[], T | None], limit_s: float = 60.0) -> T:
        """Look until `answer` is not None.

        Raises:
            DemoFailed: it did not come in time, the whole demo takes too long, or a node ended that should not have.
        """
        limit = min(time.monotonic() + limit_s, self.deadline)
        while True:
            self.look()
            found = answer()
            if found is not None:
                return found
            for node in self.nodes:
                if node.status not in (None, 0) and not node.killed:
                    raise DemoFailed(f"{node.name} ended with exit status {node.status} while waiting for {what}; see {node.log}")
            if time.monotonic() > limit:
                raise DemoFailed(f"waited in vain for {what}; see {self.nodes[0].log.parent}")
            time.sleep(LOOK_EVERY_S)

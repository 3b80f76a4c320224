"""A worker's home: its page and its link to the agent, as the worker API sees them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page_os import Page
from elastic_health.worker.link_net import WorkerLink


@dataclass
class Home:
    """Made by the bootstrap; `pid` is the worker's own (a forked child has no home)."""

    page: Page
    link: WorkerLink
    run: str
    generation: int
    local_rank: int
    pid: int = field(default_factory=os.getpid)

    def step(self, steps: int, position: int) -> None:
        self.page.step(steps, position)

    def phase(self, phase: Phase, bound_hint_s: float = 0.0) -> None:
        self.page.phase(phase, bound_hint_s)

    def order_generation(self) -> int:
        """The generation that the agent's order names; it grows when an in-place rollback is handed over."""
        return self.page.look().order.generation

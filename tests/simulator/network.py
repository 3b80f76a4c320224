"""What stands between agents, and between an agent and the store: delays, cuts, lost and late answers; all drawn from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(order=True)
class _Due:
    at: float
    n: int
    what: Callable[[], None] = field(compare=False)


class Clockwork:
    """One event heap: the only source of time and of order."""

    def __init__(self, seed: int) -> None:
        self.now, self.random, self._n = 0.0, random.Random(seed), 0
        self._heap: list[_Due] = []
        self.history: list[str] = []
        self.events = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._heap, _Due(max(when, self.now), self._n, what))

    def after(self, delay: float, what: Callable[[], None]) -> None:
        self.at(self.now + delay, what)

    def note(self, text: str) -> None:
        self.history.append(f"{self.now:9.3f}  {text}")

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Run until the condition holds; False when virtual `deadline` passes or nothing is left."""
        while self._heap:
            if until():
                return True
            due = heapq.heappop(self._heap)
            if due.at > deadline:
                heapq.heappush(self._heap, due)
                self.now = deadline
                return False
            self.now = max(self.now, due.at)
            self.events += 1
            due.what()
        return until()

    def delay(self, most: float = 0.02) -> float:
        """Mostly short, sometimes ten times as long."""
        r = self.random
        return r.uniform(0.0005, most) * (10 if r.random() < 0.03 else 1)

"""One seeded event heap: the only source of time, of order and of chance in a simulated run."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

LATEST_WRITE_S = 8.0
"""A write whose answer was lost may still land so much later."""


class Clockwork:
    """Virtual seconds; what is due at the same time happens in the order in which it was asked for."""

    def __init__(self, seed: int) -> None:
        self.now, self.random, self._n = 0.0, random.Random(seed), 0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self.history: list[str] = []

    def at(self, when: float, what: Callable[[], object]) -> None:
        self._n += 1
        heapq.heappush(self._heap, (max(when, self.now), self._n, what))

    def after(self, delay: float, what: Callable[[], object]) -> None:
        self.at(self.now + delay, what)

    def note(self, text: str) -> None:
        self.history.append(f"{self.now:9.3f}  {text}")

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Run until the condition holds; False when virtual `deadline` passes or nothing is left."""
        heap = self._heap
        while heap:
            if until():
                return True
            if heap[0][0] > deadline:
                self.now = deadline
                return False
            when, _, what = heapq.heappop(heap)
            self.now = max(self.now, when)
            what()
        return until()

    def delay(self, most: float = 0.02) -> float:
        """Mostly short, sometimes ten times as long."""
        r = self.random.random()
        return (0.0005 + r * (most - 0.0005)) * (10 if self.random.random() < 0.03 else 1)

"""Any sequence of steps, deaths, commits, worlds and windows: the committed history uses each position exactly once.

The naive twin knows only sets and lists: it looks for the next unused positions one by one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elastic_health.data.shares import share
from elastic_health.data.stream import SampleStream
from elastic_health.windows import Window, normal

pytestmark = pytest.mark.spec("R4")
N, BATCH, END = 23, 6, 300


@dataclass
class Twin:
    """What was consumed, in order, and what is skipped: as plain positions."""

    consumed: list[int] = field(default_factory=list)
    jumped: set[int] = field(default_factory=set)
    at: int = 0

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count and self.at < END:
            if self.at not in self.jumped:
                taken.append(self.at)
            self.at += 1
        return taken


class History(RuleBasedStateMachine):
    """One run of a job; `committed` is the newest checkpoint, `plan_windows` is what the store holds."""

    def __init__(self) -> None:
        super().__init__()
        self.world = 3
        self.plan_windows: tuple[Window, ...] = ()
        self.stream = SampleStream(N, global_batch=BATCH, seed=1, samples=END)
        self.twin = Twin()
        self.committed: tuple[dict[str, Any], list[int]] = (self._saved(), [])
        self.stream.place(0)

    def _saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = json.loads(json.dumps(self.stream.state_dict()))
        return saved

    @rule(steps=st.integers(1, 6))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            step = self.stream.next_step(self.world)
            if step is None:
                assert self.twin.take(1) == []
                return
            mine = [p for r in range(self.world) for a, b in share(step, r, self.world).runs for p in range(a, b)]
            assert mine == self.twin.take(len(mine))
            self.twin.consumed += mine
            self.stream.complete(step)

    @rule()
    def fetch_ahead(self) -> None:
        at = None
        for _ in range(3):
            step = self.stream.next_step(self.world, at)
            at = step.after if step is not None else at

    @rule()
    def commit(self) -> None:
        self.committed = (self._saved(), list(self.twin.consumed))

    @rule(world=st.integers(1, BATCH), in_place=st.booleans())
    def die_and_restart(self, world: int, in_place: bool) -> None:
        saved, consumed = self.committed
        if in_place:
            self.stream.load_state_dict(saved)
        else:
            self.world = world
            self.stream = SampleStream(N, global_batch=BATCH, seed=1, samples=END)
            self.stream.load_state_dict(saved)
        self.stream.place(saved["position"], self.plan_windows)
        self.twin.consumed, self.twin.at = list(consumed), saved["position"]
        self.twin.jumped |= {p for w in self.plan_windows for p in range(w.start, w.end)}

    @rule(start=st.integers(0, END), length=st.integers(1, 40))
    def record_a_window(self, start: int, length: int) -> None:
        # It is jumped from the next formation on.
        self.plan_windows = normal((*self.plan_windows, Window(start, start + length)))

    @invariant()
    def each_position_once_apart_from_windows(self) -> None:
        consumed = self.twin.consumed
        assert len(consumed) == len(set(consumed))
        behind = set(range(min(self.stream.position, END)))
        assert set(consumed) <= behind
        assert behind - set(consumed) <= self.twin.jumped


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

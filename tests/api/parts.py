"""Stand-ins for the loop's partners: an agent that hands out given plans, and checkpoints kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from elastic_health.data.stream import SampleStream
from elastic_health.generations import RestorePlan, checkpoint_name
from elastic_health.liveness.facts import Phase
from elastic_health.messages import PlanReply


@dataclass
class PlansHome:
    """Answers with one plan after the other."""

    plans: list[RestorePlan]
    asked: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)

    def plan(self) -> PlanReply:
        self.asked += 1
        return PlanReply("run", self.asked, self.plans[self.asked - 1], 0, 1)

    def mark_step(self, step: int, position: int) -> None:
        self.marks.append((step, position))

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.phases.append(phase)
        yield


@dataclass(frozen=True)
class At:
    step: int
    position: int


@dataclass
class MemorySaves:
    """Keeps the stream's states by name, as checkpoints would."""

    stream: SampleStream
    every: int = 3
    kept: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    bound: list[Any] = field(default_factory=list)
    finished: int = 0
    saved: list[int] = field(default_factory=list)

    def bind(self, home: Any) -> None:
        self.bound.append(home)

    def restore(self, plan: RestorePlan | None = None) -> At:
        name = max(self.kept, default=None) if plan is None else plan.checkpoint
        if name is None:
            return At(0, 0)
        step, state = self.kept[name]
        self.stream.load_state_dict(state)
        return At(step, self.stream.position)

    def maybe_save(self, step: int, position: int) -> bool:
        return step % self.every == 0 and self.save(step, position)

    def save(self, step: int, position: int) -> bool:
        assert position == self.stream.position
        self.saved.append(step)
        self.kept[checkpoint_name(step, 1)] = (step, self.stream.state_dict())
        return True

    def finish(self) -> None:
        self.finished += 1

    def plan_of(self, step: int, **changes: Any) -> RestorePlan:
        state = self.kept[checkpoint_name(step, 1)][1]
        return RestorePlan(**{"checkpoint": checkpoint_name(step, 1), "step": step, "position": state["position"], **changes})

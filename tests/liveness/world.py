"""A group of ranks on paper: what their pages would say at any moment of a planned run.

Each step, each rank computes for a while and then enters one blocking collective (sequence number = step), which ends shortly
after the last rank entered.  A fault stops a rank's plan at a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elastic_health.findings import Finding
from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState, RankFacts
from elastic_health.liveness.judge import judge
from elastic_health.liveness.memory import JudgeMemory
from elastic_health.policies import StallPolicy

COMM_S = 0.01
NEVER = float("inf")


def facts(rank: int, **changes: object) -> RankFacts:
    """A rank in the middle of healthy training, with changes."""
    base = RankFacts(
        rank=rank,
        node=f"node{rank}",
        local_rank=0,
        pid=1000 + rank,
        generation=1,
        phase=Phase.STEP,
        phase_age_s=100.0,
        proc=ProcState.SLEEPING,
        heartbeat_age_s=0.2,
        steps=50,
        step_age_s=0.1,
        activity=50,
        activity_age_s=0.1,
        frontier=(GroupFrontier("0", 100, 100, "gloo:all_reduce"),),
        frontier_age_s=0.1,
        progress_age_s=0.1,
        waiting=False,
        cpu_s=100.0,
        io_bytes=0,
        busy_age_s=0.1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def held(rank: int, for_s: float, seq: int = 101, op: str = "gloo:all_reduce", **changes: object) -> RankFacts:
    """A rank inside operation `seq` of the default group for `for_s`."""
    inside = {"frontier": (GroupFrontier("0", seq, seq - 1, op),), "waiting": True}
    ages = dict.fromkeys(("frontier_age_s", "progress_age_s", "step_age_s", "activity_age_s", "busy_age_s"), for_s)
    return facts(rank, **{**inside, **ages, **changes})


def idle(rank: int, for_s: float, **changes: object) -> RankFacts:
    """A rank outside all collectives with nothing moving for `for_s`."""
    ages = dict.fromkeys(("frontier_age_s", "progress_age_s", "step_age_s", "activity_age_s", "busy_age_s"), for_s)
    return facts(rank, **{**ages, **changes})


def look_once(group: Sequence[RankFacts], policy: StallPolicy | None = None, now: float = 1000.0, **kw: int) -> tuple[Finding, ...]:
    return judge(group, JudgeMemory(), policy or StallPolicy(), now, **kw)[1]


@dataclass(frozen=True)
class Plan:
    """`compute_s[step][rank]`; `busy`: computing shows as CPU.  `stop_at[rank]`: from then on it does nothing."""

    compute_s: tuple[tuple[float, ...], ...]
    busy: bool = True
    stop_at: tuple[float, ...] = ()

    @property
    def world(self) -> int:
        return len(self.compute_s[0])


@dataclass(frozen=True)
class Timeline:
    """`enters[step][rank]`, `done[step]`: absolute seconds; `inf` after a fault."""

    plan: Plan
    enters: tuple[tuple[float, ...], ...]
    done: tuple[float, ...]

    @property
    def end(self) -> float:
        return self.done[-1]

    def at(self, rank: int, t: float) -> RankFacts:
        step = sum(1 for end in self.done if end <= t)
        if step == len(self.done):
            step -= 1
        began = self.done[step - 1] if step else 0.0
        entered = self.enters[step][rank]
        inside = entered <= t
        stop = self.plan.stop_at[rank] if self.plan.stop_at else NEVER
        moved = entered if inside else began
        worked_until = min(t, entered, max(stop, began)) if self.plan.busy else began
        return facts(
            rank,
            steps=step,
            step_age_s=t - began,
            activity=step,
            activity_age_s=t - began,
            frontier=(GroupFrontier("0", step + inside, step, "gloo:all_reduce"),),
            frontier_age_s=t - moved,
            progress_age_s=t - moved,
            waiting=inside,
            busy_age_s=t - max(began, worked_until),
            phase_age_s=t,
        )


def run(plan: Plan) -> Timeline:
    enters: list[tuple[float, ...]] = []
    done: list[float] = []
    began = 0.0
    for row in plan.compute_s:
        at = tuple(
            NEVER if plan.stop_at and began + c > plan.stop_at[rank] else began + c for rank, c in enumerate(row)
        )
        enters.append(at)
        done.append(max(at) + COMM_S)
        if done[-1] == NEVER:
            break
        began = done[-1]
    return Timeline(plan, tuple(enters), tuple(done))


def watch(
    timeline: Timeline,
    until: float,
    policy: StallPolicy,
    every_s: float = 0.5,
    start: float = 0.0,
    away: Callable[[float], bool] = lambda t: False,
) -> list[tuple[float, tuple[Finding, ...]]]:
    """Judges at a steady pace, but not while `away(t)`; returns what was found at each look."""
    memory, out, t = JudgeMemory(), [], start
    while t <= until:
        if not away(t):
            memory, found = judge([timeline.at(r, t) for r in range(timeline.plan.world)], memory, policy, t + 5000.0)
            out.append((t, found))
        t += every_s
    return out


def finals(looks: list[tuple[float, tuple[Finding, ...]]]) -> list[tuple[float, Finding]]:
    return [(t, f) for t, found in looks for f in found if f.final]

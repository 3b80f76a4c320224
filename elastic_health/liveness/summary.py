"""What a running group tells the outside now and then: how fast it steps, and how each node is.  Pure.

Law: a report, never a judgement: nothing is decided by it, and what was not heard of lately is said to be silent, not well.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from elastic_health.generations import Generation, Member
from elastic_health.liveness.facts import ProcState, RankFacts

SILENT_AFTER_S = 5.0
"""A member tells its facts a few times a second."""
MOST_NODES = 256
"""Nodes that a summary lists, the least well first; about 40 kB.  Its counts are always of all."""
_PACE_KEPT = 64

Heard = Mapping[int, tuple[RankFacts, float]]
"""By rank: facts, and the monotonic second at which they came."""


class NodeHealth(Enum):
    """How a node looks from the rank-0 agent; later ones are worse."""

    WELL = "well"
    STARTING = "starting"
    """Its workers have shown no progress yet."""
    QUIET = "quiet"
    """No progress for longer than the stall bound; that may be a compile."""
    STOPPED = "stopped"
    """A worker process is stopped (SIGSTOP, debugger)."""
    ENDED = "ended"
    """A worker process is gone."""
    SILENT = "silent"
    """Nothing was heard of it lately."""


_WORST_FIRST = tuple(reversed(NodeHealth))


@dataclass(frozen=True)
class NodeSummary:
    """One member.  `step`: its slowest rank's newest completed step, -1 for none; `quiet_s`: since any rank's last
    progress, of the one that waits longest."""

    node: str
    rank: int
    workers: int
    health: NodeHealth
    phase: str = ""
    step: int = -1
    quiet_s: float = 0.0


@dataclass(frozen=True)
class Summary:
    """`runs/<run>/summary`, written by the rank-0 agent.  `counts`: nodes by health, of all; `nodes`: at most `MOST_NODES`."""

    generation: int = 0
    world: int = 0
    step: int = -1
    step_time_s: float | None = None
    counts: Mapping[str, int] | None = None
    nodes: tuple[NodeSummary, ...] = ()


@dataclass(frozen=True)
class Published:
    """`runs/<run>/progress`: newest completed step (-1: none told), median seconds a step, age of the oldest heartbeat;
    `warm` and `modules`: what the group has shown of its script, for spares."""

    step: int = -1
    generation: int = 0
    world: int = 0
    step_time_s: float | None = None
    heartbeat_age_s: float | None = None
    warm: bool | None = None
    modules: int = 0


@dataclass(frozen=True)
class Pace:
    """How long steps take: the median over the last 64 looks at which the step had moved.

    A look that finds several steps done counts as one of their mean length.
    """

    step: int = -1
    at: float = 0.0
    gaps: tuple[float, ...] = ()

    def seen(self, step: int, now: float) -> Pace:
        """After another look: `step` is the newest completed one (-1: none)."""
        if step == self.step:
            return self
        if self.step < 0 or step < self.step:  # the first one; or a rollback, whose distance is no duration
            return replace(self, step=step, at=now)
        gap = max(0.0, now - self.at) / (step - self.step)
        return Pace(step, now, (*self.gaps, gap)[-_PACE_KEPT:])

    @property
    def median_s(self) -> float | None:
        return round(statistics.median(self.gaps), 4) if self.gaps else None


def oldest_heartbeat_s(heard: Heard, now: float) -> float | None:
    """Age of the oldest heartbeat of any worker that ever had one."""
    return max((round(f.heartbeat_age_s + now - at, 1) for f, at in heard.values() if f.heartbeat_age_s is not None), default=None)


def summarize(record: Generation, heard: Heard, pace: Pace, now: float, quiet_after_s: float) -> Summary:
    """The summary of a generation now."""
    nodes = [_node(m, heard, now, quiet_after_s) for m in record.members]
    counts = {h.value: n for h in NodeHealth if (n := sum(1 for node in nodes if node.health is h))}
    listed = sorted(nodes, key=lambda n: (_WORST_FIRST.index(n.health), n.rank))[:MOST_NODES]
    return Summary(record.number, record.world_size, pace.step, pace.median_s, counts, tuple(listed))


def _node(m: Member, heard: Heard, now: float, quiet_after_s: float) -> NodeSummary:
    mine = [heard[r] for r in range(m.first_rank, m.first_rank + m.workers) if r in heard]
    if not mine:
        return NodeSummary(m.node, m.rank, m.workers, NodeHealth.SILENT)
    slowest, at = max(mine, key=lambda h: h[0].progress_age_s + now - h[1])
    quiet_s = round(max(0.0, slowest.progress_age_s + now - at), 1)
    step = min(f.steps for f, _ in mine)
    health = _health(mine, now, quiet_s > quiet_after_s)
    return NodeSummary(m.node, m.rank, m.workers, health, slowest.phase.value, step, quiet_s)


def _health(mine: list[tuple[RankFacts, float]], now: float, quiet: bool) -> NodeHealth:
    if any(now - at > SILENT_AFTER_S for _, at in mine):
        return NodeHealth.SILENT
    states = {f.proc for f, _ in mine}
    if states & {ProcState.GONE, ProcState.ZOMBIE}:
        return NodeHealth.ENDED
    if ProcState.STOPPED in states:
        return NodeHealth.STOPPED
    if all(f.steps <= 0 and f.activity <= 0 and not f.frontier for f, _ in mine):
        return NodeHealth.STARTING
    return NodeHealth.QUIET if quiet else NodeHealth.WELL

"""Facts about ranks, as plain data: what a page says, what /proc says, how a worker ended.

Times named `*_at` are CLOCK_MONOTONIC seconds of the node that observed them; times that cross nodes are ages
(`*_age_s`, measured on the node that owns the clock), so that no two clocks are ever compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum


class Phase(Enum):
    """What a worker says that it is doing."""

    BOOT = "boot"
    SCRIPT = "script"
    INIT = "init"
    DATA = "data"
    COMPILE = "compile"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    DONE = "done"


class ProcState(Enum):
    """The process as the kernel shows it."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    STOPPED = "stopped"
    DISK = "disk"
    ZOMBIE = "zombie"
    GONE = "gone"


@dataclass(frozen=True)
class GroupFrontier:
    """One process group's newest operation: sequence numbers last enqueued and last completed, -1 if unknown.

    `ranks`: global ranks of the group where they are known, else empty.  Over a link they travel as `span` (first, stride, how
    many) where they are an arithmetic progression: n ranks that each list n ranks would be n * n at the rank-0 agent.
    """

    group: str
    enqueued: int
    completed: int
    op: str = ""
    ranks: tuple[int, ...] = ()
    span: tuple[int, int, int] = (0, 0, 0)

    @property
    def first_last(self) -> tuple[int, int]:
        """Of the ranks that are told; there are some."""
        first, stride, count = self.span
        return (self.ranks[0], self.ranks[-1]) if self.ranks else (first, first + stride * (count - 1))

    @property
    def size(self) -> int:
        """How many ranks are told, 0 if none."""
        return len(self.ranks) or self.span[2]

    def told(self) -> Iterable[int]:
        first, stride, count = self.span
        return self.ranks or range(first, first + stride * count, stride or 1)

    def short(self) -> GroupFrontier:
        """With a span in place of the list, where there is one."""
        span = progression(self.ranks)
        return replace(self, ranks=(), span=span) if span[2] else self


def progression(ranks: tuple[int, ...]) -> tuple[int, int, int]:
    """(first, stride, how many) of an arithmetic progression, as the groups of data, tensor and pipeline parallelism are;
    (0, 0, 0) for anything else."""
    if not ranks:
        return (0, 0, 0)
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    regular = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + stride * len(ranks), stride))
    return (ranks[0], stride, len(ranks)) if regular else (0, 0, 0)


@dataclass(frozen=True)
class RankFacts:
    """One worker at one moment, as its agent saw it; crosses the agent link as JSON.

    Attributes:
        heartbeat_age_s: since the worker's heartbeat thread last wrote, None before the first beat.
        steps: completed steps told by the script (-1: it never told any); `step_age_s` since the last one.
        activity: optimizer activity count; `activity_age_s` since it last changed.
        frontier: newest collective per group; `frontier_age_s` since any of them changed.
        progress_age_s: age of the newest of step, activity, frontier and phase change.
        waiting: some group's `enqueued` is ahead of its `completed`: it is inside a collective.
        cpu_s, io_bytes: totals of the process tree; `busy_age_s` since either moved by more than noise.
        bound_hint_s: a bound that the script itself asked for in this phase (0: none).
        age_s: how long ago the judge received these facts, on its own clock (0: just now).
    """

    rank: int
    node: str
    local_rank: int
    pid: int
    generation: int
    phase: Phase
    phase_age_s: float
    proc: ProcState
    heartbeat_age_s: float | None
    steps: int
    step_age_s: float
    activity: int
    activity_age_s: float
    frontier: tuple[GroupFrontier, ...]
    frontier_age_s: float
    progress_age_s: float
    waiting: bool
    cpu_s: float
    io_bytes: int
    busy_age_s: float
    bound_hint_s: float = 0.0
    age_s: float = 0.0


def settled(fact: RankFacts) -> RankFacts:
    """A rank whose script is over waits in no collective any more: its page was written for the last time before the
    interpreter took itself apart, which takes seconds on a busy machine, and may still show its last one as under way."""
    if fact.phase is not Phase.DONE:
        return fact
    frontier = tuple(replace(g, completed=max(g.completed, g.enqueued)) for g in fact.frontier)
    return replace(fact, frontier=frontier, waiting=False)


@dataclass(frozen=True)
class ExitFacts:
    """How one worker ended.  `code` as in `subprocess` (negative: the signal).  `tail` is the end of its stderr."""

    rank: int
    node: str
    local_rank: int
    pid: int
    code: int
    at: float
    tail: str = ""
    error_file: str = ""
    oom_kills: int = 0
    ran_s: float = 0.0

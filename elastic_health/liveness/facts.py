"""Facts about ranks, as plain data: what a page says, what /proc says, how a worker ended.

Times named `*_at` are CLOCK_MONOTONIC seconds of the node that observed them; times that cross nodes are ages
(`*_age_s`, measured on the node that owns the clock), so that no two clocks are ever compared.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    `ranks`: global ranks of the group where they are known, else empty.
    """

    group: str
    enqueued: int
    completed: int
    op: str = ""
    ranks: tuple[int, ...] = ()


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

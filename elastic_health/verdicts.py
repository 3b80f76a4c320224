"""A verdict ends a generation: the first writer wins, every agent applies that one (R1).

Written only when it is to be executed now, and only for the generation whose processes were observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from elastic_health.codec import rest
from elastic_health.windows import Window


class VerdictKind(Enum):
    """`stop`: everyone leaves, and the run goes on when enough agents are started again; `abort` ends it for good."""

    RESTART = "restart"
    ROLLBACK = "rollback"
    SCALE = "scale"
    STOP = "stop"
    FINISH = "finish"
    ABORT = "abort"


class Cause(Enum):
    """Why a generation ended; the words that logs, records and `why` use."""

    WORKER_EXIT = "worker_exit"
    WORKER_KILLED = "worker_killed"
    OUT_OF_MEMORY = "out_of_memory"
    WATCHDOG_TIMEOUT = "watchdog_timeout"
    STALL = "stall"
    LOST_MEMBER = "lost_member"
    NOT_STARTED = "not_started"
    MISMATCHED_COLLECTIVES = "mismatched_collectives"
    NUMERIC_HALT = "numeric_halt"
    CHECKPOINT_UNUSABLE = "checkpoint_unusable"
    BAD_SETUP = "bad_setup"
    SCALE_UP = "scale_up"
    DRAIN = "drain"
    FINISHED = "finished"
    STOP_SIGNAL = "stop_signal"
    CAP_REACHED = "cap_reached"
    NO_CHECKPOINT = "no_checkpoint"
    REQUESTED = "requested"


@dataclass(frozen=True)
class Verdict:
    """`runs/<run>/verdicts/<g>`.

    Attributes:
        signature: short stable text that equal faults share (counts repeats), e.g. `worker_killed:SIGKILL`.
        ranks, nodes: who is named as the origin, never the victims.
        reason: one sentence for people.
        exit_status: for `stop`, `abort` and `finish`, an `ExitStatus` value.
        target: for `rollback`, the checkpoint's name (None: the beginning); `windows`: positions to skip.
        torn: name of a checkpoint found unusable: the forming transaction abandons it and its descendants.
        step: newest completed step known to the writer, -1 if none.
        early: a worker ended within its first seconds, no step done (counts towards a cap of its own).
        backoff_s: seconds that the next formation waits after this verdict was seen.
        writer: `<node>.<incarnation>#<n>`, by which a writer knows its own verdict again after a lost answer.
    """

    kind: VerdictKind
    cause: Cause
    generation: int
    signature: str = ""
    reason: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    incident: str = ""
    exit_status: int = 0
    target: str | None = None
    windows: tuple[Window, ...] = ()
    torn: str | None = None
    step: int = -1
    early: bool = False
    backoff_s: float = 0.0
    writer: str = ""
    rest: Mapping[str, Any] = rest()

    def blames(self, node: str) -> bool:
        """Was it the node itself that was lost, or that had a device error?  A program's end names a node too, and blames none."""
        return node in self.nodes and (self.cause is Cause.LOST_MEMBER or self.signature.startswith("device_error"))

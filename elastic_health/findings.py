"""A finding: one observed fact with its judgement, the common currency of checks, judges and parsers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic_health.verdicts import Cause


class FindingKind(Enum):
    """Closed list; docs name each."""

    WORKER_EXIT = "worker_exit"
    WORKER_KILLED = "worker_killed"
    OUT_OF_MEMORY = "out_of_memory"
    WATCHDOG_TIMEOUT = "watchdog_timeout"
    PEER_CONSEQUENCE = "peer_consequence"
    NEVER_ENTERED = "never_entered"
    ALL_STUCK = "all_stuck"
    NO_PROGRESS = "no_progress"
    PROCESS_STOPPED = "process_stopped"
    MISMATCHED_COLLECTIVES = "mismatched_collectives"
    NO_HEARTBEAT = "no_heartbeat"
    LATE = "late"
    NOT_MEASURED = "not_measured"
    DEVICE_ERROR = "device_error"
    NETWORK_ERROR = "network_error"
    TEARDOWN_HANG = "teardown_hang"
    MISCONFIGURED = "misconfigured"
    APPLICATION_ERROR = "application_error"
    DEVICE_MISSING = "device_missing"
    LINK_ERROR = "link_error"
    LOW_BANDWIDTH = "low_bandwidth"
    WRONG_RESULT = "wrong_result"
    CANARY_MISMATCH = "canary_mismatch"
    LOW_RESOURCE = "low_resource"
    CLOCK_OFFSET = "clock_offset"
    LEFTOVER_PROCESS = "leftover_process"
    THROTTLED = "throttled"
    OWN_CHECK = "own_check"
    NOTE = "note"


class Level(Enum):
    """How much a finding of a check weighs."""

    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        ranks, nodes, gpus: whom it names as the origin.
        measured, required, unit: the figure and its bound, where there is one.
        at: seconds since the epoch when it was first seen.
        evidence: small plain values only (JSON-ready).
        final: False is a warning, while the operation may still end: take evidence now, act on nothing.
        level: what it means for the check that found it; `fail` keeps the node out.
        advice: what a person should do about it.
        cause, signature, secondary: for ended workers, what `Incident` wants (see `elastic_health.liveness.exits`).
    """

    kind: FindingKind
    reason: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    measured: float | None = None
    required: float | None = None
    unit: str = ""
    at: float = 0.0
    evidence: Mapping[str, object] = field(default_factory=dict)
    final: bool = True
    level: Level = Level.FAIL
    advice: str = ""
    cause: Cause | None = None
    signature: str = ""
    secondary: bool = False

    @property
    def identity(self) -> str:
        """Equal for the same finding at another moment: log when the set of identities changes, not every cycle."""
        named = ",".join(map(str, self.ranks)) or ",".join(self.nodes)
        return f"{self.kind.value}:{named}:{'final' if self.final else 'warning'}"

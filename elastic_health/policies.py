"""What the YAML says, as the plain frozen data that decisions receive.

Pure code never sees the YAML, its parser or its models: an agent reads the file once (`elastic_health.config`) and
hands these on.  The defaults here *are* the product's defaults: the YAML models take theirs from these classes, and
`configs/health.yaml` is tested to say the same.  Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from elastic_health.generations import Bounds
from elastic_health.preflight.policy import PreflightPolicy


class ScaleUp(Enum):
    """When a fit node that finds the group not full is taken in."""

    AT_CHECKPOINT = "at_checkpoint"
    AT_ONCE = "at_once"
    OFF = "off"


class OutageChoice(Enum):
    """What a healthy generation does while no etcd endpoint answers."""

    RIDE_THROUGH = "ride_through"
    STOP = "stop"


class Warm(Enum):
    """Whether idle worker processes are kept imported and ready for the next generation."""

    AUTO = "auto"
    OFF = "off"


class Automatic(Enum):
    """The automatic actions that `observe_only` can hold back, one by one (R11)."""

    RESTART = "restart"
    ROLLBACK = "rollback"
    SCALE_UP = "scale_up"
    SET_ASIDE = "set_aside"


@dataclass(frozen=True)
class Caps:
    """How often a run may be restarted by itself (R6).  None: no such cap; 0: not once.

    Attributes:
        total: restarts of the whole run; `--max-restarts` above 0 takes its place, and `per_hour`'s.
        per_hour: restarts within any 3600 s.
        per_node: restarts for which one node was named, by a cause that speaks of the node and not of the program.
        per_signature: restarts with one signature.
        without_commit: restarts in a row without a new committed checkpoint.
        early_exits: workers ended within `early_exit_s` of their start with no step done, so many times in a row.
        mismatches: restarts after mismatched collectives, a program error.
        rollbacks_per_day: deliberate rollbacks within any 86400 s; they are not restarts.
        backoff_s: wait before the next formation, by number of repeats (first entry: no repeat; last one: for good).
        repeat_within_s: the same signature again within this time is a repeat.
    """

    total: int | None = 10
    per_hour: int | None = 3
    per_node: int | None = 4
    per_signature: int | None = 6
    without_commit: int | None = 5
    early_exits: int | None = 3
    early_exit_s: float = 10.0
    mismatches: int | None = 1
    rollbacks_per_day: int | None = 3
    backoff_s: tuple[float, ...] = (0.0, 5.0, 15.0, 60.0, 300.0)
    repeat_within_s: float = 3600.0


@dataclass(frozen=True)
class MembershipPolicy:
    """Joining and forming.  `bounds` travels in every generation record, so that all members keep the same ones.

    `gather_s`: a group that may grow first waits until no further node has come for so long, and at most
    `GATHER_MOST` times that.
    """

    join_timeout_s: float = 600.0
    last_call_s: float = 1.0
    former_delay_s: float = 2.0
    scale_up: ScaleUp = ScaleUp.AT_CHECKPOINT
    bounds: Bounds = field(default_factory=Bounds)
    gather_s: float = 5.0


GATHER_MOST = 4.0
"""Nodes that trickle in for ever must not keep a group small for ever."""


@dataclass(frozen=True)
class DrainPolicy:
    """SIGTERM to an agent: the node leaves once a checkpoint is committed, after `deadline_s` at the latest."""

    deadline_s: float = 25.0


@dataclass(frozen=True)
class OutagePolicy:
    """A whole etcd outage (U6)."""

    choice: OutageChoice = OutageChoice.RIDE_THROUGH
    bound_s: float = 600.0


@dataclass(frozen=True)
class StallPolicy:
    """Bounds of the stall judge.

    Attributes:
        stall_after_s: no marker of any rank moved for this long, and neither CPU nor I/O did: a stall.
        busy_after_s: the same while some rank's CPU or I/O still moves.
        start_after_s: until the first progress after a start.
        heartbeat_s: how often a worker's heartbeat thread writes.
        adapt_factor: a bound grows to this many times the longest healthy gap seen in the same phase; 0 switches it off.
    """

    stall_after_s: float = 5.0
    busy_after_s: float = 60.0
    start_after_s: float = 600.0
    heartbeat_s: float = 0.5
    adapt_factor: float = 4.0


@dataclass(frozen=True)
class EvidencePolicy:
    """What is collected before a teardown, and for how long at most.  `folder` "": below the agent's log folder."""

    folder: str = ""
    time_limit_s: float = 2.0
    stacks: bool = True


@dataclass(frozen=True)
class TeardownPolicy:
    """`grace_s`: from SIGTERM to SIGKILL.  `commit_wait_s`: how long an update or rename in progress may finish first."""

    grace_s: float = 1.0
    commit_wait_s: float = 1.0


@dataclass(frozen=True)
class CheckpointPolicy:
    """Retention and what a run without usable checkpoint may do.

    `rollback_reach_steps`: a rollback goes back at least this far before the first warning; retention keeps what it needs.
    """

    keep: int = 3
    start_over: bool = True
    rollback_reach_steps: int = 100


@dataclass(frozen=True)
class PagePolicy:
    """How a person is called, once a run: a command (the message on stdin), a URL that gets it as JSON, or both.

    `webhook_env`: an environment variable that holds the URL, for one that is itself a secret.
    """

    command: tuple[str, ...] = ()
    webhook: str = ""
    webhook_env: str = ""
    timeout_s: float = 10.0


@dataclass(frozen=True)
class RecoveryPolicy:
    """All that `decide` goes by."""

    caps: Caps = field(default_factory=Caps)
    scale_up: ScaleUp = ScaleUp.AT_CHECKPOINT
    start_over: bool = True
    observe_only: frozenset[Automatic] = frozenset()


@dataclass(frozen=True)
class Policies:
    """Every policy of one agent."""

    membership: MembershipPolicy = field(default_factory=MembershipPolicy)
    outage: OutagePolicy = field(default_factory=OutagePolicy)
    drain: DrainPolicy = field(default_factory=DrainPolicy)
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    stall: StallPolicy = field(default_factory=StallPolicy)
    evidence: EvidencePolicy = field(default_factory=EvidencePolicy)
    teardown: TeardownPolicy = field(default_factory=TeardownPolicy)
    checkpoints: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    page: PagePolicy = field(default_factory=PagePolicy)
    warm: Warm = Warm.AUTO
    preflight: PreflightPolicy = field(default_factory=PreflightPolicy)

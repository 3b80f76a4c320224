"""What the YAML says of the gate, as plain data; the defaults here are the product's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from elastic_health.codec import plain
from elastic_health.preflight.breaker import BreakerPolicy
from elastic_health.preflight.checks import GPU_LANE, CheckSpec, Kind, Stage, Unmeasured, due
from elastic_health.preflight.host_facts import Part
from elastic_health.preflight.host_limits import HostLimits

ADMISSION = frozenset((Stage.JOIN, Stage.AFTER_REPAIR))
DCGM_LIMITS_S: Mapping[int, float] = {1: 60.0, 2: 300.0, 3: 2700.0, 4: 10800.0}
"""By level, well above what NVIDIA's DCGM user guide says that they take: seconds, 2 minutes, 15 to 30 minutes, 1 to 2 hours."""
DCGM_LEVELS: Mapping[Stage, int] = {Stage.JOIN: 2, Stage.RESTART: 0, Stage.AFTER_REPAIR: 3}
HOST_LIMIT_S, CANARY_LIMIT_S, BANDWIDTH_LIMIT_S, PAIR_LIMIT_S = 10.0, 60.0, 120.0, 300.0
KERNEL_LOG = "/dev/kmsg"


def dcgm_specs(
    levels: Mapping[Stage, int], limits_s: Mapping[int, float], *, required: bool = False, when_not_measured: Unmeasured = Unmeasured.ADMIT
) -> tuple[CheckSpec, ...]:
    """One check `dcgm` a stage, at its level and with that level's limit; a stage without a level has none."""
    return tuple(
        CheckSpec("dcgm", Kind.DCGM, frozenset((stage,)), required, when_not_measured, limits_s[level], GPU_LANE, {"level": level})
        for stage, level in levels.items()
        if level
    )


@dataclass(frozen=True)
class CanaryRule:
    """`wait_s`: how long a node waits for others' votes while too few have voted for an outcome."""

    wait_s: float = 0.0


@dataclass(frozen=True)
class BandwidthRule:
    """What measures the bandwidth within a node, and what it is compared with.

    Attributes:
        command: nccl-tests' program and arguments; `{gpus}` stands for the number of GPUs (of workers, where none is seen).
        check, file: the baseline's name in etcd, or the file that holds it.
        min_ratio: of the baseline's median.
    """

    command: tuple[str, ...] = ("all_reduce_perf", "-b", "8M", "-e", "1G", "-f", "2", "-g", "{gpus}")
    check: str = "all_reduce"
    file: str = ""
    min_ratio: float = 0.9


CANARY, BANDWIDTH = CanaryRule(), BandwidthRule()
_HOST: Mapping[str, object] = {**plain(HostLimits()), "kernel_log": KERNEL_LOG}


RESTART_PARTS = (Part.MEMORY, Part.KERNEL_LOG)


def host_specs(stages: frozenset[Stage], restart: tuple[Part, ...], spec: CheckSpec) -> tuple[CheckSpec, ...]:
    """The host check: whole at admissions, and of the parts `restart` alone where a node merely comes back."""
    admission, again = stages & ADMISSION, stages & {Stage.RESTART}
    quick = {**spec.parameters, "parts": [part.value for part in restart]}
    whole = (replace(spec, stages=admission),) if admission else ()
    return (*whole, *((replace(spec, stages=again, parameters=quick),) if again and restart else ()))


DEFAULT_CHECKS: tuple[CheckSpec, ...] = (
    *host_specs(frozenset(Stage), RESTART_PARTS, CheckSpec("host", Kind.HOST, frozenset(), time_limit_s=HOST_LIMIT_S, parameters=_HOST)),
    CheckSpec("canary", Kind.CANARY, ADMISSION, time_limit_s=CANARY_LIMIT_S, lane=GPU_LANE, parameters=plain(CANARY)),
    *dcgm_specs(DCGM_LEVELS, DCGM_LIMITS_S),
    CheckSpec("bandwidth", Kind.BANDWIDTH, ADMISSION, time_limit_s=BANDWIDTH_LIMIT_S, lane=GPU_LANE, parameters=plain(BANDWIDTH)),
)
"""`restart` has the quick parts of the host check alone: an unblamed node that comes back waits for milliseconds."""


class Mode(Enum):
    """What the gate does.  `observe_only`: lets every node in, and says and records what would have kept it out."""

    ENFORCE = "enforce"
    OBSERVE_ONLY = "observe_only"
    OFF = "off"


@dataclass(frozen=True)
class QuarantineAfter:
    """A node whose preflight failed so many times in a row is put into quarantine for `for_s` seconds; `failures` 0: never.

    Off by default: a node that fails is kept out each time it asks anyway, and agents then need no right to write the
    fleet's list.
    """

    failures: int = 0
    for_s: float = 86400.0


@dataclass(frozen=True)
class PreflightPolicy:
    """The gate.

    Attributes:
        checks: of all stages, in the order of the table.
        total_s: for a whole stage: above the sum of the GPU lane at level 3.
        node_type: under which baselines of like nodes are kept; "": derived from the hardware.
        breaker: when nodes that fail alike are taken for a fault of the set-up.
    """

    checks: tuple[CheckSpec, ...] = DEFAULT_CHECKS
    total_s: float = 3600.0
    mode: Mode = Mode.ENFORCE
    node_type: str = ""
    quarantine: QuarantineAfter = field(default_factory=QuarantineAfter)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)

    @property
    def observe_only(self) -> bool:
        return self.mode is Mode.OBSERVE_ONLY

    def at(self, stage: Stage) -> tuple[CheckSpec, ...]:
        """What runs at a stage.

        Raises:
            ConfigError: as `checks.due`.
        """
        return () if self.mode is Mode.OFF else due(self.checks, stage)

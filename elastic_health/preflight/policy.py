"""What the YAML says of the gate, as plain data; the defaults here are the product's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_health.preflight.breaker import BreakerPolicy
from elastic_health.preflight.checks import GPU_LANE, CheckSpec, Kind, Stage

ADMISSION = frozenset((Stage.JOIN, Stage.AFTER_REPAIR))
DCGM_LIMITS_S: Mapping[int, float] = {1: 60.0, 2: 300.0, 3: 2700.0, 4: 10800.0}
"""By level, well above what NVIDIA's DCGM user guide says that they take: seconds, 2 minutes, 15 to 30 minutes, 1 to 2 hours."""
DCGM_LEVELS: Mapping[Stage, int] = {Stage.JOIN: 2, Stage.AFTER_REPAIR: 3}


def dcgm_specs(levels: Mapping[Stage, int], limits_s: Mapping[int, float]) -> tuple[CheckSpec, ...]:
    """One check `dcgm` a stage, at its level and with that level's limit; a stage without a level has none."""
    return tuple(
        CheckSpec("dcgm", Kind.DCGM, frozenset((stage,)), time_limit_s=limits_s[level], lane=GPU_LANE, parameters={"level": level})
        for stage, level in levels.items()
        if level
    )


DEFAULT_CHECKS: tuple[CheckSpec, ...] = (
    CheckSpec("host", Kind.HOST, frozenset(Stage), time_limit_s=10.0),
    CheckSpec("canary", Kind.CANARY, ADMISSION, time_limit_s=60.0, lane=GPU_LANE),
    *dcgm_specs(DCGM_LEVELS, DCGM_LIMITS_S),
    CheckSpec("bandwidth", Kind.BANDWIDTH, ADMISSION, time_limit_s=120.0, lane=GPU_LANE),
)
"""`restart` has the host check alone: an unblamed node that comes back waits well under a second."""


@dataclass(frozen=True)
class PreflightPolicy:
    """The gate.

    Attributes:
        checks: of all stages, in the order of the table.
        total_s: for a whole stage: above the sum of the GPU lane at level 3.
        observe_only: let every node in, and say and record what would have kept it out.
        breaker: when nodes that fail alike are taken for a fault of the set-up.
    """

    checks: tuple[CheckSpec, ...] = DEFAULT_CHECKS
    total_s: float = 3600.0
    observe_only: bool = False
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)

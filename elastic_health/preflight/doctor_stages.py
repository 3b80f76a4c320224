"""What `doctor` tells of the gate: the checks of each stage, and what each needs to run here."""

from __future__ import annotations

from elastic_health.preflight.checks import CheckSpec, Kind, Stage, words
from elastic_health.preflight.doctor_facts import StageCheck
from elastic_health.preflight.policy import BANDWIDTH, PreflightPolicy


def stage_checks(policy: PreflightPolicy) -> tuple[StageCheck, ...]:
    """In the order in which they stand in the table.

    Raises:
        ConfigError: as `PreflightPolicy.at`.
    """
    return tuple(_of(stage, spec) for stage in Stage for spec in policy.at(stage))


def _of(stage: Stage, spec: CheckSpec) -> StageCheck:
    return StageCheck(stage.value, spec.name, _needs(spec), required=spec.required, limit_s=spec.time_limit_s)


def _needs(spec: CheckSpec) -> tuple[str, ...]:
    if spec.kind is Kind.DCGM:
        return ("dcgmi",)
    first = words(spec, "command")[:1] if spec.kind is Kind.BANDWIDTH else ()
    return first if first == BANDWIDTH.command[:1] else ()  # `doctor` looks for tools by name only

"""Hosts as facts, good ones to be spoilt by tests, and how their judgement is looked at."""

from __future__ import annotations

import dataclasses

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.host import judge_host
from elastic_health.preflight.host_facts import Gpu, Gpus, HostFacts
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.results import CheckResult

GIB = 1024**3
MIB = 1024**2


def judged(facts: HostFacts, limits: HostLimits | None = None, **more: object) -> CheckResult:
    return judge_host(facts, limits or HostLimits(), **more)  # type: ignore[arg-type]


def only(result: CheckResult) -> Finding:
    assert len(result.findings) == 1, result.findings
    return result.findings[0]


def levels(result: CheckResult) -> list[tuple[FindingKind, Level]]:
    return [(f.kind, f.level) for f in result.findings]


def gpu(index: int = 0, **more: object) -> Gpu:
    base = Gpu(
        index,
        f"GPU-{index}",
        "NVIDIA H100 80GB HBM3",
        f"00000000:{index:02X}:00.0",
        ecc=True,
        uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        reasons=1,
        state=0,
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=5,
        pcie_generation_max=5,
        links=(True,) * 18,
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def host(*gpus: Gpu, devices: int | None = None) -> HostFacts:
    return HostFacts(gpus=Gpus(len(gpus) if devices is None else devices, True, "", "580.1", gpus))


GOOD = tuple(gpu(i) for i in range(8))

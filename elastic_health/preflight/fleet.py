"""One failure on many nodes: a set-up that is wrong, rather than a fleet that broke overnight (NVIDIA/DCGM#254).

Law: one node is never a fleet, and nothing here excuses a node: it says what fails alike, and the breaker decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.results import CheckResult, Outcome


@dataclass(frozen=True)
class FleetFailure:
    """What fails alike.

    Attributes:
        signature: equal for the same failure on another node, e.g. "dcgm:pcie:30".
        nodes: those that have it; `of`: nodes that ran the check.
        every_gpu: on each of these nodes it names every GPU of the test.
        sample: the finding of the first of these nodes.
    """

    signature: str
    nodes: tuple[str, ...]
    of: int
    every_gpu: bool
    sample: Finding
    reason: str
    advice: str


def fleet_wide(results: Mapping[str, CheckResult], *, share: float = 0.8, least_nodes: int = 3) -> tuple[FleetFailure, ...]:
    """The failures that at least `share` of the nodes have alike, the widest first; none with fewer than `least_nodes` such nodes.

    Args:
        results: of one check, by node.  Nodes of different types fail for different reasons: ask for each type apart.
        share: of the nodes that ran it (0 to 1].
    """
    ran = {node: r for node, r in results.items() if r.outcome is not Outcome.SKIPPED}
    having: dict[str, list[tuple[str, Finding]]] = {}
    for node in sorted(ran):
        for signature, finding in {signature_of(ran[node].check, f): f for f in ran[node].findings if _counts(f)}.items():
            having.setdefault(signature, []).append((node, finding))
    wide = [(s, found) for s, found in having.items() if len(found) >= max(least_nodes, 1) and len(found) >= share * len(ran)]
    wide.sort(key=lambda pair: (-len(pair[1]), pair[0]))
    return tuple(_failure(signature, found, len(ran)) for signature, found in wide)


def signature_of(check: str, finding: Finding) -> str:
    """The finding's own signature, else check and kind."""
    return finding.signature or f"{check}:{finding.kind.value}"


def _counts(finding: Finding) -> bool:
    return finding.level is Level.FAIL or finding.kind is FindingKind.NOT_MEASURED


def _failure(signature: str, found: list[tuple[str, Finding]], ran: int) -> FleetFailure:
    nodes, sample = tuple(node for node, _ in found), found[0][1]
    every_gpu = all(bool(f.evidence.get("every_gpu")) for _, f in found)
    gpus = ", on every GPU" if every_gpu else ""
    reason = f"{len(nodes)} of {ran} nodes fail alike{gpus}: {sample.reason}"
    advice = "suspect what they share (driver, CUDA and DCGM packages, configuration, a recent change) before you take any of them out"
    return FleetFailure(signature, nodes, ran, every_gpu, sample, reason, advice)

"""From findings of the judges to an incident that membership decides on.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastic_health.findings import Finding, FindingKind
from elastic_health.generations import Generation
from elastic_health.incidents import Incident
from elastic_health.verdicts import Cause

_CAUSES: Mapping[FindingKind, Cause] = {
    FindingKind.MISMATCHED_COLLECTIVES: Cause.MISMATCHED_COLLECTIVES,
    FindingKind.WATCHDOG_TIMEOUT: Cause.WATCHDOG_TIMEOUT,
}


def from_exit(found: Finding, *, id: str, generation: int, wall: float, step: int, ran_s: float) -> Incident:
    """The incident of one ended worker (`liveness.exits.classify`)."""
    return Incident(
        id=id,
        generation=generation,
        cause=found.cause or Cause.WORKER_EXIT,
        signature=found.signature,
        reason=found.reason,
        at=wall,
        ranks=found.ranks,
        nodes=found.nodes,
        findings=(found,),
        secondary=found.secondary,
        step=step,
        ran_s=ran_s,
    )


def from_stall(findings: Iterable[Finding], *, id: str, record: Generation, wall: float, step: int) -> Incident | None:
    """The incident of what `judge` found final; None if nothing is."""
    final = tuple(f for f in findings if f.final)
    if not final:
        return None
    first = final[0]
    cause = first.cause or _CAUSES.get(first.kind, Cause.STALL)
    ranks = tuple(sorted({r for f in final if f.kind is first.kind for r in f.ranks}))
    nodes = first.nodes or nodes_of(record, ranks)
    signature = first.signature or f"{cause.value}:{first.kind.value}"
    return Incident(id, record.number, cause, signature, first.reason, wall, ranks, nodes, final, step=step)


def nodes_of(record: Generation, ranks: Iterable[int]) -> tuple[str, ...]:
    """The nodes whose workers have these global ranks, in rank order."""
    wanted = set(ranks)
    return tuple(dict.fromkeys(m.node for m in record.members if wanted & set(range(m.first_rank, m.first_rank + m.workers))))

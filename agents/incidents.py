"""From findings of the judges to an incident that membership decides on.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elastic_health.findings import Finding, FindingKind
from elastic_health.generations import Generation
from elastic_health.incidents import Incident
from elastic_health.verdicts import Cause

_CAUSES: Mapping[FindingKind, Cause] = {
    FindingKind.MISMATCHED_COLLECTIVES: Cause.MISMATCHED_COLLECTIVES,
    FindingKind.WATCHDOG_TIMEOUT: Cause.WATCHDOG_TIMEOUT,
}


def from_exit(
    found: Finding, *, id: str, generation: int, wall: float, step: int, ran_s: float, ended: Iterable[int] = ()
) -> Incident:
    """The incident of one ended worker (`liveness.exits.classify`).

    Args:
        ended: ranks that had ended with status 0 before.  A worker that fails since a peer is gone blames nobody by itself;
            these are who left it alone.  No node is blamed for it: the program let them end.
    """
    early = tuple(sorted(set(ended)))
    if found.secondary and early:
        them = "it" if len(early) == 1 else "them"
        who = f"rank {early[0]}" if len(early) == 1 else f"ranks {', '.join(map(str, early[:8]))}{' …' if len(early) > 8 else ''}"
        found = replace(found, ranks=early, reason=f"{who} had ended with status 0 while others still needed {them}; then {found.reason}")
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

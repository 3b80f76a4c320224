"""Many nodes that fail alike say more about the set-up than about the nodes.

A driver that was upgraded under DCGM fails every node (NVIDIA/DCGM#254); an absent node failed all 2048 of a system
(flux-framework/flux-core#7663).  So quarantine has a bound, per signature and window.

Laws:
 - while the breaker is open for a signature, no node is quarantined by it; those that are in quarantine already stay;
 - the decision is a function of the failures given and of `now`: an old failure never counts again, and no node counts twice.
The breaker doesn't let anybody in: a node that fails its checks stays out of the membership all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class BreakerPolicy:
    """When nodes that fail alike are taken for a fault of the set-up.

    Attributes:
        window_s: failures that are older don't count.
        nodes: at least so many different nodes: two bad ones in an hour are bad luck.
        share: and at least this part of the nodes that were checked in the window, where their number is known.
    """

    window_s: float = 3600.0
    nodes: int = 3
    share: float = 0.05


@dataclass(frozen=True)
class NodeFailure:
    """A node that failed its preflight: by what (see `gate.signatures_of`), and when (seconds since the epoch)."""

    node: str
    at: float
    signatures: tuple[str, ...]


@dataclass(frozen=True)
class Suspicion:
    """The set-up is suspected: `nodes` of `checked` (0: unknown) failed by `signature` within the window."""

    signature: str
    nodes: tuple[str, ...]
    checked: int
    window_s: float

    @property
    def reason(self) -> str:
        of = f" of {self.checked}" if self.checked else ""
        return (
            f"{len(self.nodes)}{of} nodes failed alike ({self.signature}) within {self.window_s:g} s: "
            "look at what they share (driver, tool, configuration, network); no further node is quarantined for it"
        )


def suspicions(failures: Iterable[NodeFailure], checked: int, policy: BreakerPolicy, now: float) -> tuple[Suspicion, ...]:
    """Signatures by which so many nodes failed that the set-up is suspected; the commonest first.

    Args:
        failures: of all nodes, this one's included, in any order and however old.
        checked: different nodes that were checked in the window, passed or not; 0 where nobody counts.
    """
    by_signature: dict[str, set[str]] = {}
    for failure in failures:
        if now - policy.window_s < failure.at <= now + policy.window_s:  # a clock ahead of ours may stamp it later than now
            for signature in failure.signatures:
                by_signature.setdefault(signature, set()).add(failure.node)
    bound = max(policy.nodes, math.ceil(policy.share * checked))
    found = [Suspicion(s, tuple(sorted(nodes)), checked, policy.window_s) for s, nodes in by_signature.items() if len(nodes) >= bound]
    return tuple(sorted(found, key=lambda s: (-len(s.nodes), s.signature)))


def may_quarantine(failure: NodeFailure, found: Iterable[Suspicion]) -> bool:
    """May this failure count against its node?  Not if all that it failed by is suspected of the set-up."""
    suspected = {suspicion.signature for suspicion in found}
    return bool(failure.signatures) and not suspected.issuperset(failure.signatures)

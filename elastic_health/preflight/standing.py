"""What the fleet remembers of one node's preflights: `preflights/<node>`, its last word and how often it failed in a row.

Laws:
 - an admission ends the count of failures and all that was said of the node before;
 - a node that went into quarantine since its last admission is checked as `after_repair` when it comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_health.codec import rest
from elastic_health.preflight.breaker import NodeFailure
from elastic_health.preflight.gate import Decision, Verdict

ACTION = "preflight"
"""The kind of record that a node's failed preflight leaves in its run."""
_TEXT_CHARS = 300


@dataclass(frozen=True)
class Standing:
    """One node.

    Attributes:
        verdict: of its last admission or refusal, as `gate.Verdict` spells it.
        since: when that was, in seconds since the epoch by its own clock.
        failures: so many preflights in a row have failed.
        signatures: what the last one failed by.
        quarantined: it went into quarantine since its last admission.
    """

    node: str
    verdict: str = Verdict.ADMIT.value
    stage: str = ""
    run: str = ""
    since: float = 0.0
    failures: int = 0
    signatures: tuple[str, ...] = field(default=())
    reason: str = ""
    quarantined: bool = False
    rest: Mapping[str, Any] = rest()


def after(before: Standing | None, decision: Decision, run: str, now: float) -> Standing:
    """A node's standing after a decision."""
    old = before or Standing(decision.node)
    new = replace(old, verdict=decision.verdict.value, stage=decision.stage.value, run=run, since=now, reason=decision.reason[:_TEXT_CHARS])
    if decision.verdict is Verdict.ADMIT:
        return replace(new, failures=0, signatures=(), quarantined=False)
    return replace(new, failures=old.failures + 1, signatures=decision.signatures)


def repaired(before: Standing | None) -> bool:
    """Is this the first time that it asks since it was in quarantine?"""
    return before is not None and before.quarantined


def failures(standings: Iterable[Standing]) -> tuple[NodeFailure, ...]:
    """Those that failed last, as the breaker counts them."""
    return tuple(NodeFailure(s.node, s.since, s.signatures) for s in standings if s.failures)


def checked(standings: Iterable[Standing], window_s: float, now: float) -> int:
    """How many nodes were checked within the window."""
    return sum(s.since > now - window_s for s in standings)

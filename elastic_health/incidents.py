"""An incident: what went wrong in one generation, as the judge hands it to `decide`; and the record of what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_health.findings import Finding
from elastic_health.verdicts import Cause
from elastic_health.windows import Window


@dataclass(frozen=True)
class Incident:
    """Findings of one generation, first in time first.

    `secondary`: every finding is a consequence of a peer's failure (a connection closed by a peer, a peer's abort).
    `ran_s`: how long the named worker had run when it ended, in seconds; -1 where that is unknown, or where the group
    showed progress that no step tells of.
    """

    id: str
    generation: int
    cause: Cause
    signature: str
    reason: str
    at: float
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    secondary: bool = False
    step: int = -1
    torn: str | None = None
    windows: tuple[Window, ...] = ()
    target: str | None = None
    ran_s: float = -1.0


@dataclass(frozen=True)
class Record:
    """`runs/<run>/records/<ulid>`: one automatic action, for `why` and for comparing attempts (R5).

    `details`: small plain values of its kind: of a `preflight` what `gate.record` makes.
    """

    id: str
    action: str
    reason: str
    cause: str
    signature: str
    generation: int
    step: int = -1
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    position: int = 0
    checkpoint: str | None = None
    decision: str = ""
    who: str = ""
    at: float = 0.0
    done: bool = True
    incident: str = ""
    resources: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

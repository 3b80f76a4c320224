"""What one check found, and how single findings make its outcome: the currency of the gate, its table and its record.

Laws:
 - `not_measured` is never `pass`: what was cut off, could not run, or said nothing has no outcome of its own;
 - one finding of level `fail` fails the check, whatever else passed;
 - a check says `pass` only of what it has seen whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic_health.findings import Finding, FindingKind, Level


class Outcome(Enum):
    """Of one check on one node."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_MEASURED = "not_measured"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    """One check on one node.

    Attributes:
        check: its name, as YAML spells it.
        summary: one line for a person.
        seconds: how long it took; 0 where a stored output was read.
        details: small plain values (JSON-ready): versions, counts, the figures by size.
    """

    check: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    summary: str = ""
    seconds: float = 0.0
    details: Mapping[str, object] = field(default_factory=dict)


def outcome_of(findings: Iterable[Finding], *, measured: bool) -> Outcome:
    """The outcome that findings make.  `measured`: the check ran to its end and something was seen whole."""
    found = tuple(findings)
    if any(f.level is Level.FAIL for f in found):
        return Outcome.FAIL
    if not measured or any(f.kind is FindingKind.NOT_MEASURED for f in found):
        return Outcome.NOT_MEASURED
    return Outcome.WARN if any(f.level is Level.WARN for f in found) else Outcome.PASS


def not_measured(check: str, reason: str, *, advice: str = "", details: Mapping[str, object] | None = None) -> CheckResult:
    """The result of a check that could not see what it is for."""
    finding = Finding(FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice=advice)
    return CheckResult(check, Outcome.NOT_MEASURED, (finding,), reason, details=details or {})

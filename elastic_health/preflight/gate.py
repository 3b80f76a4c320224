"""The gate: from the results of a stage's checks to the one decision whether this node is let in.

Laws:
 - one failed check refuses; so does a required one that was skipped, one that must not be `not_measured`, and one without a
   result; nothing else refuses;
 - each row says why it admits or refuses, with measured against required, so that the table, the record and the log agree;
 - in observe-only mode the decision is the same and said, but the node is let in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from elastic_health.codec import plain
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.checks import CheckSpec, Stage, Unmeasured
from elastic_health.preflight.results import CheckResult, Outcome, not_measured

HEAD = ("check", "outcome", "found", "measured", "required", "what to do")
RECORD_FINDINGS = 16
"""Of one check in a record: the store is no place for a whole diagnostic."""
_TEXT_CHARS = 300


class Verdict(Enum):
    ADMIT = "admit"
    REFUSE = "refuse"
    ADMIT_OBSERVED = "admit_observed"
    """It would be refused, but the gate only observes."""

    @property
    def lets_in(self) -> bool:
        return self is not Verdict.REFUSE


class Why(Enum):
    """Of one check's row."""

    PASSED = "passed"
    WARNED = "warned"
    SKIPPED = "skipped"
    NOT_MEASURED_ADMITS = "not_measured_admits"
    FAILED = "failed"
    REQUIRED_BUT_SKIPPED = "required_but_skipped"
    NOT_MEASURED_REFUSES = "not_measured_refuses"

    @property
    def refuses(self) -> bool:
        return self in (Why.FAILED, Why.REQUIRED_BUT_SKIPPED, Why.NOT_MEASURED_REFUSES)


@dataclass(frozen=True)
class Row:
    """One check and what it means for the node."""

    result: CheckResult
    why: Why


@dataclass(frozen=True)
class Decision:
    """What the gate decided on one node.

    Attributes:
        signatures: what the node failed by, equal for nodes that fail alike (see `breaker`).
        seconds: from the first check's start to the last one's end.
    """

    verdict: Verdict
    stage: Stage
    node: str
    rows: tuple[Row, ...]
    seconds: float = 0.0
    signatures: tuple[str, ...] = field(default=())

    @property
    def refusing(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.why.refuses)

    @property
    def reason(self) -> str:
        """One line: what the node is refused for, "" if it is not."""
        return "; ".join(f"{row.result.check}: {_reason(row)}" for row in self.refusing)


def decide(
    stage: Stage, node: str, specs: Sequence[CheckSpec], results: Iterable[CheckResult], *, observe_only: bool = False, seconds: float = 0.0
) -> Decision:
    """Decide on a node.

    Args:
        specs: the checks of the stage (see `checks.due`).
        results: theirs, in any order; a check without one counts as `not_measured`, required or not.
        observe_only: let the node in whatever was found.
    """
    by_name = {result.check: result for result in results}
    rows = tuple(_row(spec, by_name.get(spec.name)) for spec in specs)
    refused = any(row.why.refuses for row in rows)
    verdict = Verdict.ADMIT if not refused else Verdict.ADMIT_OBSERVED if observe_only else Verdict.REFUSE
    signatures = tuple(sorted({s for row in rows for s in signatures_of(row)}))
    return Decision(verdict, stage, node, rows, seconds, signatures)


def _row(spec: CheckSpec, result: CheckResult | None) -> Row:
    if result is None:
        return Row(not_measured(spec.name, "it gave no result"), Why.NOT_MEASURED_REFUSES)
    return Row(result, _why(spec, result.outcome))


def _why(spec: CheckSpec, outcome: Outcome) -> Why:
    if outcome is Outcome.SKIPPED:
        return Why.REQUIRED_BUT_SKIPPED if spec.required else Why.SKIPPED
    if outcome is Outcome.NOT_MEASURED:
        return Why.NOT_MEASURED_REFUSES if spec.when_not_measured is Unmeasured.REFUSE else Why.NOT_MEASURED_ADMITS
    return {Outcome.PASS: Why.PASSED, Outcome.WARN: Why.WARNED, Outcome.FAIL: Why.FAILED}[outcome]


def signatures_of(row: Row) -> tuple[str, ...]:
    """What a row is refused for, without anything that belongs to one node: the finding's own signature, else `check:kind`."""
    if not row.why.refuses:
        return ()
    check = row.result.check
    if row.why is not Why.FAILED:
        return (f"{check}:{row.why.value}",)
    failing = [f for f in row.result.findings if f.level is Level.FAIL]
    return tuple(sorted({f.signature or f"{check}:{f.kind.value}" for f in failing})) or (f"{check}:{Why.FAILED.value}",)


# ---- what people and the store get


def table(decision: Decision, *, everything: bool = False) -> list[tuple[str, ...]]:
    """Rows under `HEAD`: a line a finding that counts; `everything` also shows checks that passed, and notes."""
    return [line for row in decision.rows for line in _lines(row, everything)]


def _lines(row: Row, everything: bool) -> list[tuple[str, ...]]:
    counting = [f for f in row.result.findings if f.level is not Level.NOTE]
    shown = row.result.findings if everything or (row.why.refuses and not counting) else counting
    outcome = row.result.outcome.value + (" (required)" if row.why is Why.REQUIRED_BUT_SKIPPED else "")
    if not shown:
        counts = everything or row.why.refuses
        return [(row.result.check, outcome, row.result.summary, "", "", "")] if counts else []
    return [(row.result.check, outcome, f.reason, figure(f.measured, f.unit), figure(f.required, f.unit), f.advice) for f in shown]


def figure(value: float | None, unit: str) -> str:
    """A figure for a person, "" for none."""
    return "" if value is None else f"{value:.4g} {unit}".rstrip() if abs(value) < 10_000 else f"{value:.0f} {unit}".rstrip()


def record(decision: Decision) -> dict[str, object]:
    """The decision as plain data for the store: JSON-ready, bounded, without values that JSON has no word for."""
    return {
        "verdict": decision.verdict.value,
        "stage": decision.stage.value,
        "reason": decision.reason[:_TEXT_CHARS],
        "signatures": list(decision.signatures),
        "seconds": round(decision.seconds, 3),
        "checks": [_check(row) for row in decision.rows],
    }


def _check(row: Row) -> dict[str, object]:
    counting = [f for f in row.result.findings if f.level is not Level.NOTE]
    said: dict[str, object] = {
        "check": row.result.check,
        "outcome": row.result.outcome.value,
        "why": row.why.value,
        "seconds": round(row.result.seconds, 3),
        "findings": [_finding(f) for f in counting[:RECORD_FINDINGS]],
    }
    return said | ({"findings_left_out": len(counting) - RECORD_FINDINGS} if len(counting) > RECORD_FINDINGS else {})


def _finding(found: Finding) -> dict[str, object]:
    said: Mapping[str, object] = {
        "kind": found.kind.value,
        "level": found.level.value,
        "reason": found.reason[:_TEXT_CHARS],
        "gpus": list(found.gpus[:RECORD_FINDINGS]),
        "measured": _finite(found.measured),
        "required": _finite(found.required),
        "unit": found.unit,
        "advice": found.advice[:_TEXT_CHARS],
    }
    return {name: plain(value) for name, value in said.items() if value not in (None, "", [])}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _reason(row: Row) -> str:
    failing = [f.reason for f in row.result.findings if f.level is Level.FAIL]
    measured = [f.reason for f in row.result.findings if f.kind is FindingKind.NOT_MEASURED]
    said = failing or measured or [row.result.summary or row.why.value]
    return said[0] + (f" (and {len(said) - 1} more)" if len(said) > 1 else "")

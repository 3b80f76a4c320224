"""A check, its result and the decision on it, as tests of the gate want them."""

from __future__ import annotations

from elastic_health.findings import Finding
from elastic_health.preflight.checks import CheckSpec, Kind, Stage
from elastic_health.preflight.gate import Decision, decide
from elastic_health.preflight.results import CheckResult, Outcome

EVERY = frozenset(Stage)


def spec(name: str = "one", **more: object) -> CheckSpec:
    return CheckSpec(name, Kind.OWN, EVERY, **more)  # type: ignore[arg-type]


def result(outcome: Outcome, check: str = "one", *findings: Finding) -> CheckResult:
    return CheckResult(check, outcome, findings, "as it is")


def decided(outcome: Outcome | None, **more: object) -> Decision:
    results = [result(outcome)] if outcome is not None else []
    return decide(Stage.JOIN, "n1", [spec(**more)], results)

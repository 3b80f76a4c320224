"""The gate's decision, as a table of cases; its table for people, its record."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.checks import (
    Stage,
    Unmeasured,
)
from elastic_health.preflight.gate import HEAD, RECORD_FINDINGS, Verdict, Why, decide, record, table
from elastic_health.preflight.results import CheckResult, Outcome, outcome_of
from tests.preflight.cases import decided, result, spec

pytestmark = pytest.mark.spec("P7")

# ---- one check


@pytest.mark.parametrize(
    ("outcome", "required", "unmeasured", "why"),
    [
        (Outcome.PASS, False, Unmeasured.ADMIT, Why.PASSED),
        (Outcome.PASS, True, Unmeasured.REFUSE, Why.PASSED),
        (Outcome.WARN, False, Unmeasured.ADMIT, Why.WARNED),
        (Outcome.WARN, True, Unmeasured.REFUSE, Why.WARNED),
        (Outcome.FAIL, False, Unmeasured.ADMIT, Why.FAILED),
        (Outcome.FAIL, True, Unmeasured.REFUSE, Why.FAILED),
        (Outcome.SKIPPED, False, Unmeasured.ADMIT, Why.SKIPPED),
        (Outcome.SKIPPED, False, Unmeasured.REFUSE, Why.SKIPPED),
        (Outcome.SKIPPED, True, Unmeasured.ADMIT, Why.REQUIRED_BUT_SKIPPED),
        (Outcome.NOT_MEASURED, False, Unmeasured.ADMIT, Why.NOT_MEASURED_ADMITS),
        (Outcome.NOT_MEASURED, True, Unmeasured.ADMIT, Why.NOT_MEASURED_ADMITS),
        (Outcome.NOT_MEASURED, False, Unmeasured.REFUSE, Why.NOT_MEASURED_REFUSES),
        (None, False, Unmeasured.ADMIT, Why.NOT_MEASURED_REFUSES),
    ],
)
def test_what_an_outcome_means_for_the_node(outcome: Outcome | None, required: bool, unmeasured: Unmeasured, why: Why) -> None:
    decision = decided(outcome, required=required, when_not_measured=unmeasured)
    assert decision.rows[0].why is why
    assert decision.verdict is (Verdict.REFUSE if why.refuses else Verdict.ADMIT)
    assert bool(decision.signatures) is why.refuses and bool(decision.reason) is why.refuses


def test_the_table_above_is_complete() -> None:
    """Each outcome with each policy has its row, so that a new outcome can't slip in as an admission."""
    for outcome, required, unmeasured in itertools.product(Outcome, (False, True), Unmeasured):
        assert decided(outcome, required=required, when_not_measured=unmeasured).rows[0].why in Why


def test_any_failure_of_any_check_refuses() -> None:
    """IBM/autopilot#68: a node was called healthy although a later category of the diagnostic had failed."""
    specs = [spec(f"c{i}") for i in range(5)]
    for bad in range(5):
        results = [result(Outcome.FAIL if i == bad else Outcome.PASS, f"c{i}") for i in range(5)]
        decision = decide(Stage.JOIN, "n1", specs, results)
        assert decision.verdict is Verdict.REFUSE and [r.result.check for r in decision.refusing] == [f"c{bad}"]
    late = (Finding(FindingKind.NOTE, "fine", level=Level.NOTE), Finding(FindingKind.DEVICE_ERROR, "PCIe failed"))
    assert outcome_of(late, measured=True) is Outcome.FAIL


@given(st.lists(st.sampled_from([o for o in Outcome if o is not Outcome.FAIL]), max_size=6), st.lists(st.integers(0, 5), max_size=3))
def test_a_failure_refuses_whatever_stands_beside_it(others: list[Outcome], bad: list[int]) -> None:
    names = [f"c{i}" for i in range(6)]
    outcomes = dict(zip(names, [*others, *[Outcome.PASS] * 6], strict=False)) | {f"c{i}": Outcome.FAIL for i in bad}
    decision = decide(Stage.JOIN, "n1", [spec(n) for n in names], [result(outcomes[n], n) for n in names])
    assert decision.verdict.lets_in is not bool(bad)
    assert {row.result.check for row in decision.refusing} == {f"c{i}" for i in bad}


def test_observing_admits_and_says_what_it_would_have_done() -> None:
    decision = decide(Stage.JOIN, "n1", [spec()], [result(Outcome.FAIL)], observe_only=True)
    assert decision.verdict is Verdict.ADMIT_OBSERVED and decision.verdict.lets_in and decision.reason and decision.signatures
    assert decide(Stage.JOIN, "n1", [spec()], [result(Outcome.PASS)], observe_only=True).verdict is Verdict.ADMIT
    assert record(decision)["verdict"] == "admit_observed"


def test_results_of_other_checks_count_for_nothing() -> None:
    decision = decide(Stage.JOIN, "n1", [spec()], [result(Outcome.PASS), result(Outcome.FAIL, "stranger")])
    assert decision.verdict is Verdict.ADMIT and len(decision.rows) == 1


def test_a_stage_without_checks_admits() -> None:
    assert decide(Stage.RESTART, "n1", [], []).verdict is Verdict.ADMIT


# ---- table and record


LOW = Finding(FindingKind.LOW_RESOURCE, "/scratch: 0.40 GiB free", measured=0.4, required=1.0, unit="GiB", advice="delete what is old")
HOT = Finding(FindingKind.THROTTLED, "GPU 3: hot", level=Level.WARN, gpus=("GPU-3",))


def test_the_table_shows_measured_against_required_and_what_to_do() -> None:
    absent = Finding(FindingKind.NOTE, "skipped: no dcgmi on PATH", level=Level.NOTE)
    specs = [spec("host"), spec("dcgm", required=True), spec("canary"), spec("links")]
    note = Finding(FindingKind.NOTE, "ECC is off", level=Level.NOTE)
    results = [
        result(outcome_of((LOW, HOT), measured=True), "host", LOW, HOT, note),
        CheckResult("dcgm", Outcome.SKIPPED, (absent,), absent.reason),
        result(Outcome.PASS, "canary"),
        result(Outcome.PASS, "links", note),
    ]
    decision = decide(Stage.JOIN, "n1", specs, results)
    rows = table(decision)
    assert rows == [
        ("host", "fail", "/scratch: 0.40 GiB free", "0.4 GiB", "1 GiB", "delete what is old"),
        ("host", "fail", "GPU 3: hot", "", "", ""),
        ("dcgm", "skipped (required)", "skipped: no dcgmi on PATH", "", "", ""),
    ]
    assert all(len(row) == len(HEAD) for row in rows)
    assert {("canary", "pass", "as it is", "", "", ""), ("links", "pass", "ECC is off", "", "", "")} < set(table(decision, everything=True))
    assert decision.reason == "host: /scratch: 0.40 GiB free; dcgm: skipped: no dcgmi on PATH"


def test_a_record_is_small_plain_and_finite() -> None:
    many = tuple(Finding(FindingKind.DEVICE_ERROR, f"bad {i}" * 1000, measured=float("nan"), required=float("inf")) for i in range(200))
    said = record(decide(Stage.JOIN, "n1", [spec()], [result(Outcome.FAIL, "one", *many)]))
    text = json.dumps(said, allow_nan=False)
    assert len(text) < 20_000 and said["verdict"] == "refuse"
    check = said["checks"][0]  # type: ignore[index]
    assert len(check["findings"]) == RECORD_FINDINGS and check["findings_left_out"] == 200 - RECORD_FINDINGS


def test_nodes_that_fail_alike_have_one_signature_and_others_another() -> None:
    def of(node: str, *found: Finding) -> tuple[str, ...]:
        return decide(Stage.JOIN, node, [spec("dcgm")], [result(Outcome.FAIL, "dcgm", *found)]).signatures

    one = Finding(FindingKind.DEVICE_ERROR, "GPU 3 of n1", gpus=("GPU-a",), signature="dcgm:pcie")
    other = Finding(FindingKind.DEVICE_ERROR, "GPU 5 of n2", gpus=("GPU-b",), signature="dcgm:pcie")
    assert of("n1", one) == of("n2", other) == ("dcgm:pcie",)
    assert of("n3", LOW) == ("dcgm:low_resource",) and of("n4") == ("dcgm:failed",)

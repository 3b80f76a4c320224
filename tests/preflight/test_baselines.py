"""Baselines from several runs, and a node's figures against them."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from elastic_health.errors import BaselineError
from elastic_health.findings import FindingKind
from elastic_health.preflight.baselines import (
    PREVIOUS_KEPT,
    Baseline,
    NodeFacts,
    Provenance,
    Run,
    combine,
    compare,
    left_out,
    node_type,
    succeed,
    unsteady,
)
from elastic_health.preflight.results import Outcome
from elastic_health.rendezvous.keys import check_segment

pytestmark = pytest.mark.spec("P2")
SIZES = tuple(1 << k for k in range(20, 28))


def run(level: float = 100.0, name: str = "r", sizes: tuple[int, ...] = SIZES) -> Run:
    return Run(name, {s: level + i for i, s in enumerate(sizes)})


def baseline(*runs: Run) -> Baseline:
    taken = runs or (run(99.0), run(100.0), run(101.0))
    return Baseline("all_reduce", "8x-H100", "GB/s", len(taken), combine(taken, least=1), Provenance("node-1", "2026-01-01T00:00:00Z"))


def test_one_odd_run_moves_neither_median_nor_bound() -> None:
    figures = combine([run(100.0), run(20.0), run(101.0), run(99.0), run(100.5)])
    first = figures[0]
    assert (first.median, first.mad, first.lowest, first.highest, first.runs) == (100.0, 1.0, 20.0, 101.0, 5)
    assert not unsteady(figures) and unsteady(combine([run(80.0), run(100.0), run(125.0)]))


@given(st.lists(st.floats(0.02, 1e4), min_size=1, max_size=9))
def test_the_figures_are_those_of_the_statistics_module(values: list[float]) -> None:
    (figure,) = combine([Run(str(i), {8: v}) for i, v in enumerate(values)], least=1)
    assert math.isclose(figure.median, statistics.median(values), abs_tol=1e-6)
    assert math.isclose(figure.mad, statistics.median(abs(v - statistics.median(values)) for v in values), abs_tol=1e-6)
    assert (figure.lowest, figure.highest, figure.runs) == (min(values), max(values), len(values))


def test_only_sizes_of_all_runs_are_kept_and_the_others_named() -> None:
    runs = [run(), run(sizes=SIZES[1:]), run(sizes=SIZES[:-1]), Run("z", {**run().values, SIZES[3]: 0.0})]
    figures = combine(runs)
    assert [f.size for f in figures] == [s for s in SIZES[1:-1] if s != SIZES[3]]
    assert left_out(runs, figures) == (SIZES[0], SIZES[3], SIZES[-1])


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([run(), run()], "at least 3 runs"),
        ([run(), run(), replace(run(name="bad.txt"), wrong=("12 wrong values",))], "bad.txt: 12 wrong values"),
        ([run(), run(), replace(run(), missing=("cut off",))], "cut off"),
        ([run(), run(), replace(run(), unit="MB/s")], "MB/s"),
        ([run(), run(), Run("e", {})], "sizes"),
        ([run(), run(), Run("n", {8: math.nan})], "finite"),
        ([run(), run(), Run("n", {-8: 1.0})], "above 0"),
        ([run(), run(), Run("o", {3: 4.0})], "all runs have"),
        ([Run(str(i), {8: 0.0, 16: 0.0}) for i in range(3)], "above 0"),
    ],
)
def test_what_is_no_baseline_is_refused(runs: list[Run], says: str) -> None:
    with pytest.raises(BaselineError, match=says):
        combine(runs)


def test_an_equal_node_passes_and_a_slow_one_fails_with_its_worst_size() -> None:
    assert compare(run(95.0), baseline()).outcome is Outcome.PASS
    slow = Run("s", {**run().values, SIZES[2]: 70.0, SIZES[5]: 50.0})
    result = compare(slow, baseline(), node="node-9")
    (finding,) = result.findings
    assert result.outcome is Outcome.FAIL and finding.kind is FindingKind.LOW_BANDWIDTH and finding.nodes == ("node-9",)
    assert (finding.measured, finding.required, finding.evidence["sizes"]) == (50.0, pytest.approx(0.9 * 105), [SIZES[2], SIZES[5]])
    assert "MAD 1.00, 3 runs" in result.summary
    assert compare(slow, baseline(), 0.4).outcome is Outcome.PASS


def test_links_that_are_all_down_fail_though_every_other_figure_is_there() -> None:
    """NVIDIA/DCGM#198: with all NVLinks down level 2 of the diagnostics passes; the traffic goes over PCIe, at a twentieth."""
    base = baseline(*(Run(str(i), dict.fromkeys(SIZES, 440.0 + i)) for i in range(3)))
    result = compare(Run("pcie", dict.fromkeys(SIZES, 22.0)), base)
    assert result.outcome is Outcome.FAIL and len(result.findings[0].evidence["sizes"]) == len(SIZES)  # type: ignore[arg-type]


@given(st.floats(0.05, 1.0), st.floats(0.0, 2.0))
def test_the_bound_is_the_ratio_of_the_median(ratio: float, share: float) -> None:
    result = compare(Run("m", {s: v * share for s, v in run().values.items()}), baseline(), ratio)
    if abs(share - ratio) > 0.001:
        assert result.outcome is (Outcome.PASS if share > ratio else Outcome.FAIL)


def test_no_baseline_is_not_measured_and_wrong_results_fail_all_the_same() -> None:
    missing = compare(run(), None, check="all_reduce")
    assert missing.outcome is Outcome.NOT_MEASURED and "baseline record" in missing.findings[0].advice
    wrong = replace(run(300.0), wrong=("3 wrong values",))
    for against in (None, baseline()):
        result = compare(wrong, against)
        assert result.outcome is Outcome.FAIL and result.summary == "3 wrong values"
        assert result.findings[0].kind is FindingKind.WRONG_RESULT


def test_too_little_in_common_is_not_measured() -> None:
    base = baseline()
    few = compare(run(sizes=SIZES[:2]), base)
    assert few.outcome is Outcome.NOT_MEASURED and "2 sizes" in few.summary and few.details["only_baseline"] == list(SIZES[2:])
    assert compare(run(sizes=SIZES[:3]), base).outcome is Outcome.PASS
    assert compare(run(sizes=(3, 5)), base).outcome is Outcome.NOT_MEASURED
    assert compare(Run("e", {}), base).outcome is Outcome.NOT_MEASURED
    assert compare(run(sizes=SIZES[:1]), baseline(run(sizes=SIZES[:1]))).outcome is Outcome.PASS, "it has no more"
    assert compare(Run("low", {SIZES[0]: 1.0}), base).outcome is Outcome.FAIL, "what was seen is too low, whatever is missing"


def test_sizes_that_only_one_side_has_are_said() -> None:
    result = compare(run(sizes=(4, *SIZES[:-1])), baseline())
    note = next(f for f in result.findings if f.kind is FindingKind.NOTE)
    assert note.evidence == {"only_measured": [4], "only_baseline": [SIZES[-1]]}


def test_a_cut_run_and_another_unit_are_not_measured() -> None:
    assert compare(replace(run(), missing=("cut off",)), baseline()).outcome is Outcome.NOT_MEASURED
    assert compare(replace(run(), unit="MB/s"), baseline()).outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0, 0.0])
def test_odd_figures_in_a_stored_baseline_are_not_compared(odd: float) -> None:
    base = baseline()
    spoilt = replace(base, figures=tuple(replace(f, median=odd) for f in base.figures))
    assert compare(run(), spoilt).outcome is Outcome.NOT_MEASURED


def test_a_baseline_that_is_unsteady_itself_is_said() -> None:
    result = compare(run(), baseline(run(80.0), run(100.0), run(125.0)))
    assert result.outcome is Outcome.PASS and any("own runs differ" in f.reason for f in result.findings)


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.1, math.nan])
def test_a_ratio_out_of_range_is_a_mistake_of_the_caller(ratio: float) -> None:
    with pytest.raises(ValueError, match="min_ratio"):
        compare(run(), baseline(), ratio)


def test_where_replaced_baselines_came_from_is_kept_bounded() -> None:
    kept = baseline()
    for i in range(PREVIOUS_KEPT + 3):
        kept = succeed(replace(baseline(), provenance=Provenance(f"n{i}", "")), replace(kept, rest={"later": i}))
    assert [p.node for p in kept.previous] == [f"n{i}" for i in range(9, 1, -1)] and kept.rest == {"later": 10}


def test_a_node_type_is_a_key_segment_whatever_the_hardware_is_called() -> None:
    h100 = NodeFacts(
        ("NVIDIA H100 80GB HBM3",) * 8, "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", 224, ("15b3-1021",) * 8 + ("8086-1592",)
    )
    assert node_type(h100) == "8x-NVIDIA-H100-80GB-HBM3.Intel-Xeon-Platinum-8480C.224-cpus.8x-15b3-1021_1x-8086-1592"
    assert node_type(replace(h100, gpus=h100.gpus[::-1], nics=h100.nics[::-1])) == node_type(h100), "order means nothing"
    assert node_type(replace(h100, gpus=h100.gpus[1:])) != node_type(h100)
    assert node_type(h100, "h100-island-2") == "h100-island-2"
    assert node_type(NodeFacts()) == "no-gpu.cpu"


@given(st.builds(NodeFacts, st.lists(st.text(max_size=90), max_size=4).map(tuple), st.text(), st.integers(0, 999), st.tuples(st.text())))
def test_any_names_make_a_segment(facts: NodeFacts) -> None:
    assert check_segment("node type", node_type(facts))

"""Bandwidth against a baseline: what is compared, what is not, and a naive twin."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.bandwidth import RESOLUTION, compare_by_size

GOOD = {1 << 20: 60.0, 1 << 23: 170.0, 1 << 26: 350.0, 1 << 29: 400.0}


@pytest.mark.spec("P2")
def test_equal_faster_and_just_good_enough_find_nothing() -> None:
    for factor in (1.0, 1.3, 0.9):
        assert compare_by_size({size: value * factor for size, value in GOOD.items()}, GOOD) == ()


@pytest.mark.spec("P2")
def test_a_slow_size_is_named_with_its_figures() -> None:
    (low,) = compare_by_size({**GOOD, 1 << 29: 300.0}, GOOD, 0.8)
    assert (low.kind, low.level, low.measured, low.required, low.unit) == (FindingKind.LOW_BANDWIDTH, Level.FAIL, 300.0, 320.0, "GB/s")
    assert low.evidence == {"size": 1 << 29, "baseline": 400.0, "ratio": 0.75}


def test_sizes_of_one_side_are_said_and_not_compared() -> None:
    (note,) = compare_by_size({**GOOD, 8: 0.01}, {**GOOD, 1 << 33: 480.0})
    assert (note.kind, note.level) == (FindingKind.NOTE, Level.NOTE)
    assert note.evidence == {"only_measured": [8], "only_baseline": [1 << 33]}


def test_too_few_common_sizes_are_not_measured() -> None:
    for measured, baseline in (
        ({}, GOOD),
        (GOOD, {}),
        ({}, {}),
        ({1 << 20: 60.0}, GOOD),
        ({size + 4: v for size, v in GOOD.items()}, GOOD),
    ):
        assert FindingKind.NOT_MEASURED in {f.kind for f in compare_by_size(measured, baseline)}
    assert compare_by_size({1 << 20: 60.0}, {1 << 20: 60.0}) == (), "all of the baseline's sizes, though there is one"


def test_a_slow_size_is_named_even_where_too_few_are_common() -> None:
    assert [f.kind for f in compare_by_size({1 << 20: 1.0}, GOOD)][:2] == [FindingKind.LOW_BANDWIDTH, FindingKind.NOT_MEASURED]


def test_two_decimals_do_not_make_a_small_message_slow() -> None:
    assert compare_by_size({8: 0.04}, {8: 0.05}) == ()
    assert compare_by_size({8: 0.02}, {8: 0.05})[0].kind is FindingKind.LOW_BANDWIDTH


@pytest.mark.parametrize(("ratio", "fewest"), [(0.0, 1), (1.1, 1), (-1.0, 1), (math.nan, 1), (0.9, 0)])
def test_nonsense_is_refused(ratio: float, fewest: int) -> None:
    with pytest.raises(ValueError, match="min_ratio"):
        compare_by_size(GOOD, GOOD, ratio, fewest=fewest)


FIGURES = st.dictionaries(st.sampled_from([1 << n for n in range(3, 12)]), st.floats(allow_nan=True, allow_infinity=True), max_size=9)


@given(FIGURES, FIGURES, st.floats(0.01, 1.0))
def test_a_naive_twin_names_the_same_sizes(measured: dict[int, float], baseline: dict[int, float], ratio: float) -> None:
    expected, common = [], 0
    for size in sorted(baseline):
        good, here = baseline[size], measured.get(size, math.nan)
        if RESOLUTION < good < math.inf and 0 <= here < math.inf:
            common += 1
            if not here > good * ratio - RESOLUTION:
                expected.append(size)
    found = compare_by_size(measured, baseline, ratio)
    low = [f.evidence["size"] for f in found if f.kind is FindingKind.LOW_BANDWIDTH]
    # Where the bound is met to the last bit the two sums may round apart.
    edge = {s for s in baseline if math.isclose(measured.get(s, -1), baseline[s] * ratio - RESOLUTION, rel_tol=1e-12)}
    assert set(low) - edge == set(expected) - edge
    if common == 0:
        assert any(f.kind is FindingKind.NOT_MEASURED for f in found)

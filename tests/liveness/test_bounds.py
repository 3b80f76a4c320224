"""Histograms of durations against sorted lists, and bounds between floor and reach."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from elastic_health import codec
from elastic_health.liveness.bounds import HALVE_ABOVE, LAST_BUCKET, Habits, Histogram, bucket_of, edge_s

DURATIONS = st.lists(st.floats(0.0, 1e5), min_size=1, max_size=60)


@given(st.floats(0.0, 1e5))
def test_a_bucket_holds_its_duration(duration_s: float) -> None:
    bucket = bucket_of(duration_s)
    assert duration_s <= edge_s(bucket) * (1 + 1e-9)
    assert bucket == 0 or edge_s(bucket - 1) < duration_s * (1 + 1e-9)


@pytest.mark.parametrize("odd", [math.nan, -1.0, 0.0, math.inf, 1e300])
def test_odd_durations_have_a_bucket(odd: float) -> None:
    assert bucket_of(odd) in (0, LAST_BUCKET)


@pytest.mark.spec("L5")
@given(DURATIONS, st.floats(0.01, 1.0))
def test_a_quantile_is_that_of_the_sorted_list_within_a_bucket(durations: list[float], q: float) -> None:
    plain = sorted(durations)[max(0, math.ceil(q * len(durations) - 1e-9) - 1)]
    found = Histogram().add(durations).quantile(q)
    assert found == edge_s(bucket_of(plain))


@given(DURATIONS, DURATIONS)
def test_the_order_of_learning_does_not_matter(one: list[float], two: list[float]) -> None:
    assert Histogram().add(one).add(two) == Histogram().add(two + one)


def test_old_habits_fade() -> None:
    rare = Histogram().add([50.0] * 3)
    for _ in range(4):
        rare = rare.add([0.1] * HALVE_ABOVE)
    assert rare.quantile(1.0) < 1.0 and rare.total <= HALVE_ABOVE


@pytest.mark.spec("L5")
@given(DURATIONS, st.floats(0.1, 100.0), st.floats(0.0, 10.0), st.floats(1.0, 1000.0))
def test_a_bound_keeps_between_floor_and_reach(durations: list[float], floor_s: float, factor: float, more_s: float) -> None:
    habits = Habits().learn({"step:idle": durations})
    reach_s, usual_s = floor_s + more_s, habits.of("step:idle").quantile(0.999)
    bound_s = habits.bound_s("step:idle", floor_s, factor, reach_s)
    assert floor_s <= bound_s <= max(reach_s, 2 * usual_s)
    assert bound_s >= min(factor, 2.0) * usual_s
    assert Habits().bound_s("step:idle", floor_s, factor, reach_s) == floor_s
    assert habits.bound_s("step:idle", floor_s, 0.0, reach_s) == floor_s


def test_habits_survive_being_stored() -> None:
    habits = Habits().learn({"step:idle": [0.1, 2.0], "collective": [0.01]})
    stored = json.loads(json.dumps(codec.plain(habits)))
    assert codec.build(Habits, stored, "habits") == habits

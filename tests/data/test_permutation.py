"""The order of samples: a bijection for each (seed, epoch, n), with random access, that never changes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings, strategies as st

from elastic_health.data.permutation import MAX_N, distance, grid, permute, place_of, round_keys
from elastic_health.data.permutation_torch import permute_many, sample_indices
from elastic_health.errors import DataError

pytestmark = pytest.mark.spec("R4")


def by_rolling(n: int, seed: int, epoch: int) -> list[int]:
    """The naive twin: keeps the whole grid as a table and rolls its columns and rows, then walks by look-up."""
    rows, columns = grid(n)
    where = {(r, c): (r, c) for r in range(rows) for c in range(columns)}  # start cell -> cell now
    for turn, key in enumerate(round_keys(n, seed, epoch)):
        by_column = [distance(key, c, rows) for c in range(columns)]
        by_row = [distance(key, r, columns) for r in range(rows)]
        for start, (r, c) in where.items():
            where[start] = ((r + by_column[c]) % rows, c) if turn % 2 == 0 else (r, (c + by_row[r]) % columns)
    table = [where[divmod(x, columns)][0] * columns + where[divmod(x, columns)][1] for x in range(rows * columns)]
    out = []
    for x in range(n):
        y = table[x]
        while y >= n:
            y = table[y]
        out.append(y)
    return out


@pytest.mark.parametrize("n", [*range(1, 66), 97, 100, 101, 255, 256, 257, 1000])
def test_every_small_length_is_permuted_and_back(n: int) -> None:
    order = [permute(i, n, 5, 2) for i in range(n)]
    assert sorted(order) == list(range(n))
    assert [place_of(j, n, 5, 2) for j in order] == list(range(n))


@given(n=st.integers(1, 400), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_like_the_naive_twin_and_the_tensor_twin(n: int, seed: int, epoch: int) -> None:
    order = [permute(i, n, seed, epoch) for i in range(n)]
    assert order == by_rolling(n, seed, epoch)
    assert permute_many(torch.arange(n), n, seed, epoch).tolist() == order


@given(n=st.integers(1, MAX_N), seed=st.integers(0, 2**64), epoch=st.integers(0, 2**40), at=st.floats(0, 1, exclude_max=True))
@settings(max_examples=200, deadline=None)
def test_random_access_at_any_length(n: int, seed: int, epoch: int, at: float) -> None:
    i = min(int(at * n), n - 1)
    j = permute(i, n, seed, epoch)
    assert 0 <= j < n
    assert place_of(j, n, seed, epoch) == i
    assert permute_many(torch.tensor([i]), n, seed, epoch).tolist() == [j]


def test_golden_values() -> None:
    """A run resumed by a later version must see the same order: these values never change."""
    assert [permute(i, 10, 0, 0) for i in range(10)] == [9, 3, 5, 7, 6, 1, 2, 8, 0, 4]
    assert [permute(i, 10**12, 7, 0) for i in range(5)] == [434114152516, 224137992155, 162757160824, 142772392558, 359109908391]
    assert [permute(i, 17, 1, 3) for i in range(6)] == [13, 5, 6, 8, 12, 4]
    assert [permute(i, MAX_N, 2**80, 9) for i in (0, 1, MAX_N - 1)] == [
        2424080813912270123,
        265511076761697851,
        918313414100359880,
    ]


def test_lengths_out_of_range_are_refused() -> None:
    for n in (0, -1, MAX_N + 1):
        with pytest.raises(DataError, match="pass len"):
            permute(0, n, 0, 0)


def _chi_squared(counts: list[int], expected: float) -> float:
    return sum((c - expected) ** 2 / expected for c in counts)


def _far(cells: int) -> float:
    """A bound that a fair source passes with a margin of five standard deviations (chi-squared, cells - 1)."""
    return (cells - 1) + 5 * math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_samples_come_equally_often(n: int) -> None:
    cells, draws = math.factorial(n), math.factorial(n) * 20
    seen = Counter(tuple(permute(i, n, seed, 0) for i in range(n)) for seed in range(draws))
    assert len(seen) == cells
    assert _chi_squared(list(seen.values()), draws / cells) < _far(cells)


@pytest.mark.parametrize("n", [50, 1000])
def test_each_place_holds_each_part_of_the_data_equally_often(n: int) -> None:
    seeds, parts = 800, 10
    for place in (0, 1, n // 2, n - 1):
        counts = Counter(permute(place, n, seed, 1) * parts // n for seed in range(seeds))
        assert _chi_squared([counts[p] for p in range(parts)], seeds / parts) < _far(parts)


def test_neighbours_and_epochs_are_unrelated() -> None:
    n = 10007
    a, b = permute_many(torch.arange(n), n, 3, 0), permute_many(torch.arange(n), n, 3, 1)
    places = torch.arange(n)

    def related(x: torch.Tensor, y: torch.Tensor) -> float:
        return float(torch.corrcoef(torch.stack([x.double(), y.double()]))[0, 1]) * math.sqrt(n)

    # Each is a standard normal for unrelated orders.
    assert abs(related(a, places)) < 5
    assert abs(related(a, b)) < 5
    assert abs(related(a[:-1], a[1:])) < 5
    # Fixed points and equal places are Poisson with mean 1.
    assert int((a == places).sum()) < 10
    assert int((a == b).sum()) < 10


@pytest.mark.parametrize("n", [100, 2**16 - 1, 2**16, 10**9])
def test_runs_over_an_epochs_end(n: int) -> None:
    want = [permute(p % n, n, 7, p // n) for p in range(n - 90, n + 120)]
    assert sample_indices([(n - 90, n + 120)], n, 7) == want
    assert sample_indices([(n - 90, n - 85), (n - 85, n), (n, n + 120)], n, 7) == want

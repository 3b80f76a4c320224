"""Shares of a global batch: disjoint, complete, as equal as possible, and weighted to the mean of the whole batch."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from elastic_health.data.shares import GlobalBatch, Runs, before, check_world, cut, share, share_sizes, total
from elastic_health.errors import DataError

pytestmark = pytest.mark.spec("R4")


@st.composite
def some_runs(draw: st.DrawFn) -> Runs:
    gaps = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=5))
    out, p = [], 0
    for gap, length in gaps:
        out.append((p + gap, p + gap + length))
        p += gap + length
    return tuple(out)


def spelled_out(runs: Runs) -> list[int]:
    return [p for a, b in runs for p in range(a, b)]


@given(runs=some_runs(), first=st.integers(0, 50), count=st.integers(0, 50), end=st.integers(0, 60))
def test_cut_and_before_are_slices(runs: Runs, first: int, count: int, end: int) -> None:
    assert spelled_out(cut(runs, first, count)) == spelled_out(runs)[first : first + count]
    assert spelled_out(before(runs, end)) == [p for p in spelled_out(runs) if p < end]


@given(runs=some_runs(), world=st.integers(1, 60), losses=st.randoms(use_true_random=False))
def test_shares_are_the_batch_and_the_weighted_mean_is_its_mean(runs: Runs, world: int, losses: object) -> None:
    """meta-pytorch/torchft#292, #58: with another number of replicas the batch and its gradient stay the same."""
    step = GlobalBatch(0, runs, 99)
    mine = [share(step, rank, world) for rank in range(world)]
    assert [p for s in mine for p in spelled_out(s.runs)] == spelled_out(runs)
    assert tuple(s.size for s in mine) == share_sizes(total(runs), world)
    loss = {p: losses.random() for p in spelled_out(runs)}  # type: ignore[attr-defined]

    def mean(reads: Runs) -> float:
        return sum(loss[p] for p in spelled_out(reads)) / total(reads)

    averaged_by_ddp = sum(s.weight * mean(s.reads) for s in mine) / world
    assert averaged_by_ddp == pytest.approx(mean(runs))
    assert all(total(s.reads) >= 1 for s in mine)
    assert [s.stand_in for s in mine] == [s.weight == 0 for s in mine] == [rank >= total(runs) for rank in range(world)]


def test_a_world_larger_than_the_batch_is_refused() -> None:
    check_world(8, 8)
    with pytest.raises(DataError, match=r"one sample a rank \(9 ranks\).*global_batch=8.*per_rank_batch"):
        check_world(8, 9)


def test_a_rank_outside_of_the_world_is_refused() -> None:
    with pytest.raises(DataError, match="rank from 0 to 1"):
        share(GlobalBatch(0, ((0, 4),), 4), 2, 2)

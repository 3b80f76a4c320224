"""Who takes which samples of a global batch, and with which weight.

Law: the shares of all ranks are disjoint and together are exactly the batch; sum over ranks of weight·(mean over a
rank's share) divided by the world is the mean over the batch.  Sizes differ by at most one.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_health.errors import DataError

Runs = tuple[tuple[int, int], ...]
"""Positions as half-open intervals, in order, disjoint."""


def total(runs: Runs) -> int:
    """How many positions the runs hold."""
    return sum(end - start for start, end in runs)


def cut(runs: Runs, first: int, count: int) -> Runs:
    """The positions number `first` … `first + count` - 1 of the runs, as runs."""
    out: list[tuple[int, int]] = []
    for start, end in runs:
        a, b = start + first, min(end, start + first + count)
        if first < end - start and count > 0:
            out.append((a, b))
            count -= b - a
            first = 0
        else:
            first = max(0, first - (end - start))
    return tuple(out)


def before(runs: Runs, end: int) -> Runs:
    """The positions below `end`."""
    return tuple((a, min(b, end)) for a, b in runs if a < end)


@dataclass(frozen=True)
class GlobalBatch:
    """The samples of one optimizer step over all ranks.

    Attributes:
        at: position of the stream when this step is due (may lie in a window that the batch jumps).
        runs: positions of the step's samples.
        after: position of the stream once the step has completed.
        token: which plan of the stream it belongs to; a new plan makes it stale.
    """

    at: int
    runs: Runs
    after: int
    token: int = 0

    @property
    def size(self) -> int:
        return total(self.runs)


@dataclass(frozen=True)
class Share:
    """One rank's part of a step.

    Attributes:
        runs: positions of its samples; empty for a stand-in.
        weight: factor for the *mean* loss over its samples, k·w/G.
        reads: positions to fetch: `runs`, or for a stand-in the step's first position, read with weight 0.
    """

    step: GlobalBatch
    runs: Runs
    weight: float
    reads: Runs

    @property
    def size(self) -> int:
        return total(self.runs)

    @property
    def stand_in(self) -> bool:
        return not self.runs


def share_sizes(size: int, world: int) -> tuple[int, ...]:
    """Samples for each rank: as equal as possible, the lower ranks take one more."""
    each, more = divmod(size, world)
    return tuple(each + (rank < more) for rank in range(world))


def check_world(batch: int, world: int) -> None:
    """Refuse a world in which a rank would have no sample at every step.

    Raises:
        DataError: more ranks than samples in a global batch.
    """
    if world > batch:
        raise DataError(
            f"a global batch of at least one sample a rank ({world} ranks)",
            f"global_batch={batch}",
            "raise global_batch, lower the number of ranks, or give per_rank_batch instead",
        )


def share(step: GlobalBatch, rank: int, world: int) -> Share:
    """Rank `rank`'s part of `step`.  With fewer samples than ranks (only at the very end of the data) the last ranks
    get a stand-in: they must join the step's collectives, but their loss counts nothing.
    """
    if not 0 <= rank < world:
        raise DataError(f"a rank from 0 to {world - 1}", f"{rank}", "correct rank= and world=")
    each, more = divmod(step.size, world)
    count = each + (rank < more)
    runs = cut(step.runs, rank * each + min(rank, more), count)
    reads = runs if runs else cut(step.runs, 0, 1)
    return Share(step, runs, count * world / step.size, reads)

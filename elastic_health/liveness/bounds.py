"""How long may this take: a floor from the policy, widened by the healthy durations seen so far.

Law: a bound is never below its floor, never above `reach` (the next wider bound of the policy, or twice the longest usual
duration), and only durations of the one who kept the others waiting are learned, never those of its victims.

Durations go into a histogram of logarithmic buckets (quarter octaves: an upper edge is at most 19 % too high), so a long run
costs a few hundred bytes and the learned bounds can be stored with the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FIRST_EDGE_S = 0.001
STEPS_PER_OCTAVE = 4
LAST_BUCKET = 110  # about 190,000 s
HALVE_ABOVE = 4096  # old habits fade: counts are halved when so many have come together
USUAL = 0.999


@dataclass(frozen=True)
class Histogram:
    """Counts of durations by bucket; `counts` is sparse and sorted, as (bucket, count)."""

    counts: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(count for _, count in self.counts)

    def add(self, durations_s: Iterable[float]) -> Histogram:
        """With these durations, in seconds."""
        counts = dict(self.counts)
        for duration_s in durations_s:
            bucket = bucket_of(duration_s)
            counts[bucket] = counts.get(bucket, 0) + 1
        if sum(counts.values()) > HALVE_ABOVE:
            counts = {bucket: count // 2 for bucket, count in counts.items() if count > 1}
        return Histogram(tuple(sorted(counts.items())))

    def quantile(self, q: float) -> float:
        """Upper edge, in seconds, of the bucket that holds the q-quantile; 0.0 without data."""
        need, seen = q * self.total, 0
        for bucket, count in self.counts:
            seen += count
            if seen >= need:
                return edge_s(bucket)
        return 0.0


def bucket_of(duration_s: float) -> int:
    """The bucket whose upper edge is the first one not below `duration_s`."""
    if not duration_s > FIRST_EDGE_S:  # also NaN
        return 0
    if duration_s >= edge_s(LAST_BUCKET):
        return LAST_BUCKET
    return min(LAST_BUCKET, math.ceil(math.log2(duration_s / FIRST_EDGE_S) * STEPS_PER_OCTAVE - 1e-9))


def edge_s(bucket: int) -> float:
    """Upper edge of a bucket, in seconds."""
    return float(FIRST_EDGE_S * 2.0 ** (bucket / STEPS_PER_OCTAVE))


@dataclass(frozen=True)
class Habits:
    """Histograms by what was being done, e.g. `step:idle`; stored with the run."""

    seen: Mapping[str, Histogram] = field(default_factory=dict)

    def learn(self, durations_s: Mapping[str, list[float]]) -> Habits:
        if not durations_s:
            return self
        return Habits({**self.seen, **{key: self.of(key).add(values) for key, values in durations_s.items()}})

    def of(self, key: str) -> Histogram:
        return self.seen.get(key, Histogram())

    def bound_s(self, key: str, floor_s: float, factor: float, reach_s: float) -> float:
        """`factor` × the longest usual duration of `key`, kept between the floor and the reach."""
        usual_s = self.of(key).quantile(USUAL)
        return max(floor_s, min(factor * usual_s, max(reach_s, 2.0 * usual_s)))

"""Bus bandwidth by message size against a baseline, both as plain figures.

Law: only sizes that both sides have are compared; too few of them is `not_measured`, never `pass`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from elastic_health.findings import Finding, FindingKind, Level

MIN_RATIO = 0.9
FEWEST_SIZES = 3
RESOLUTION = 0.01
"""GB/s: nccl-tests prints two decimals, so figures of small messages may differ by this much and be equal."""
UNIT = "GB/s"


def compare_by_size(
    measured: Mapping[int, float], baseline: Mapping[int, float], min_ratio: float = MIN_RATIO, *, fewest: int = FEWEST_SIZES
) -> tuple[Finding, ...]:
    """One `low_bandwidth` finding for each size below `min_ratio` × baseline, smallest size first; nothing when all hold.

    Args:
        measured, baseline: message size in bytes → bus bandwidth in GB/s.
        fewest: sizes that must be comparable (all of the baseline's, where it has fewer); below that one `not_measured` finding says so.

    Raises:
        ValueError: `min_ratio` is not in (0, 1], or `fewest` is below 1.
    """
    if not 0 < min_ratio <= 1 or fewest < 1:
        raise ValueError(f"expected 0 < min_ratio <= 1 and fewest >= 1; found {min_ratio} and {fewest}")
    good = _usable(baseline)
    seen = _usable(measured, zero=True)
    common = sorted(set(good) & set(seen))
    low = tuple(_low(size, seen[size], good[size], min_ratio) for size in common if seen[size] + RESOLUTION <= good[size] * min_ratio)
    told = _not_compared(measured, baseline, common)
    if len(common) >= max(1, min(fewest, len(good))):
        return (*low, *told)
    reason = f"{len(common)} message sizes are in the measurement and in the baseline, at least {min(fewest, max(1, len(good)))} are needed"
    few = Finding(
        FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice="measure with the sizes of the baseline, or record the baseline again"
    )
    return (*low, few, *told)


def _usable(figures: Mapping[int, float], *, zero: bool = False) -> dict[int, float]:
    """Finite figures; those of a baseline must be above what two decimals can tell from 0."""
    return {size: value for size, value in figures.items() if math.isfinite(value) and (value >= 0 if zero else value > RESOLUTION)}


def _low(size: int, value: float, good: float, min_ratio: float) -> Finding:
    ratio = value / good
    return Finding(
        FindingKind.LOW_BANDWIDTH,
        f"bus bandwidth at {size} bytes is {value:.2f} {UNIT}, {ratio:.1%} of the baseline's {good:.2f}; {min_ratio:.1%} is required",
        measured=value,
        required=good * min_ratio,
        unit=UNIT,
        evidence={"size": size, "baseline": good, "ratio": round(ratio, 4)},
        advice="look at link states and clocks (nvidia-smi nvlink -s, nvidia-smi -q -d PERFORMANCE), then measure again",
    )


def _not_compared(measured: Mapping[int, float], baseline: Mapping[int, float], common: list[int]) -> tuple[Finding, ...]:
    here, there = sorted(set(measured) - set(common)), sorted(set(baseline) - set(common))
    if not here and not there:
        return ()
    reason = f"sizes not compared: {len(here)} of the measurement, {len(there)} of the baseline"
    return (Finding(FindingKind.NOTE, reason, level=Level.NOTE, evidence={"only_measured": here, "only_baseline": there}),)

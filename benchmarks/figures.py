"""What the recovery benchmark's trials amount to: medians, ratios of medians with an interval, and the bars.  Pure.

Law: every choice favours stock.  "Best stock" is the stock launcher with the lowest median for that fault; stock's times are
of the trials that recovered, and a stock group that did not even start is left out; a trial of ours that did not start or did
not recover breaks the first bar.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "ours"
STOCK = ("shipped", "own-store", "tuned")
RESAMPLES = 10_000
SEED = 1
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Bar:
    """`ours` must take at most `at_most` × the time of `against` (a stock launcher, or "best"); `upper` bounds the interval."""

    fault: str
    at_most: float
    against: str = "best"
    upper: float | None = None


BARS = (
    Bar("kill_worker", 1.0, upper=1.1),
    Bar("kill_node", 0.6, against="tuned"),
    Bar("hang", 0.25),
    Bar("sigstop", 0.25),
)


@dataclass(frozen=True)
class Ratio:
    """Ratio of medians with its interval; n: sizes of the two samples."""

    value: float
    low: float
    high: float
    n: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Outcome:
    """`held` is None where the bar was not measured; `said` says what was compared."""

    bar: str
    held: bool | None
    said: str


Trials = Sequence[Mapping[str, Any]]


def times(trials: Trials, fault: str, launcher: str) -> list[float]:
    """Seconds of the trials that recovered."""
    return [float(t["recovered_s"]) for t in trials if (t["fault"], t["launcher"]) == (fault, launcher) and t["recovered"]]


def share(trials: Trials, launcher: str, fault: str | None = None) -> tuple[int, int]:
    """Trials that recovered, and all that count."""
    mine = [t for t in trials if t["launcher"] == launcher and fault in (None, t["fault"]) and not (launcher in STOCK and t.get("error"))]
    return sum(bool(t["recovered"]) for t in mine), len(mine)


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = SEED, resamples: int = RESAMPLES) -> Ratio:
    """Median of `ours` over median of `theirs`, with the percentile bootstrap's 95 % interval (Efron 1979).

    Both samples are drawn anew, each for itself.  With five values a sample the interval is rough and somewhat too narrow:
    it shows noise, it is no proof.

    Raises:
        ValueError: a sample is empty.
    """
    if not ours or not theirs:
        raise ValueError("expected two samples with values; found an empty one; run more repeats")
    draw = random.Random(seed)
    drawn = sorted(median(draw.choices(ours, k=len(ours))) / median(draw.choices(theirs, k=len(theirs))) for _ in range(resamples))
    tail = round(resamples * (1 - CONFIDENCE) / 2)
    return Ratio(median(ours) / median(theirs), drawn[tail], drawn[-1 - tail], (len(ours), len(theirs)))


def best_stock(trials: Trials, fault: str) -> str | None:
    """The stock launcher with the lowest median; None if none recovered once."""
    known = {name: found for name in STOCK if (found := times(trials, fault, name))}
    return min(known, key=lambda name: (median(known[name]), name)) if known else None


def judge_bar(trials: Trials, bar: Bar) -> Outcome:
    name = f"{bar.fault} <= {bar.at_most:g} x {bar.against} stock"
    ours = times(trials, bar.fault, OURS)
    if not share(trials, OURS, bar.fault)[1] or not any(share(trials, name, bar.fault)[1] for name in STOCK):
        return Outcome(name, None, "not measured")
    if not ours:
        return Outcome(name, False, "ours never recovered")
    other = best_stock(trials, bar.fault) if bar.against == "best" else bar.against
    theirs = times(trials, bar.fault, other) if other else []
    if not theirs:
        tried = share(trials, bar.against, bar.fault)[1] if bar.against != "best" else 1
        return Outcome(name, True if tried else None, "that stock never recovered" if tried else "not measured")
    found = ratio(ours, theirs)
    held = found.value <= bar.at_most and (bar.upper is None or found.high <= bar.upper)
    asked = f", upper end <= {bar.upper:g}" if bar.upper is not None else ""
    return Outcome(name + asked, held, f"{found} against {other}, n = {found.n[0]} and {found.n[1]}")


def judge_share(trials: Trials) -> Outcome:
    """Ours came back from every fault."""
    recovered, tried = share(trials, OURS)
    return Outcome("ours recovers always", recovered == tried if tried else None, f"{recovered} of {tried}")


def outcomes(trials: Trials, bars: Sequence[Bar] = BARS) -> list[Outcome]:
    return [judge_share(trials), *(judge_bar(trials, bar) for bar in bars)]


def remarks(trials: Trials) -> list[str]:
    """What a reader must know of these trials: groups that did not start, and a product that changed meanwhile."""
    said = [f"{t['launcher']}, {t['fault']}: {t['error']} (see {t.get('folder', '')})" for t in trials if t.get("error")]
    codes = [t["code"] for t in trials if "code" in t]
    if len(set(codes)) > 1:
        said.append(f"the product's source changed during the run ({len(set(codes))} states): measure a copy that nobody edits")
    return said


def exit_status(found: Sequence[Outcome]) -> int:
    """0: every bar held; 1: one did not; 3: none failed, but not all were measured."""
    if any(o.held is False for o in found):
        return 1
    return 3 if any(o.held is None for o in found) else 0


def table(trials: Trials, faults: Sequence[str], launchers: Sequence[str]) -> list[str]:
    """Markdown: one row a fault and launcher; the ratio is ours over that launcher."""
    rows = ["| fault | launcher | recovered | median s | min to max s | ours / it [95 %] | calibration ms |"]
    rows.append("| --- | --- | ---: | ---: | ---: | --- | ---: |")
    for fault in faults:
        ours = times(trials, fault, OURS)
        for launcher in launchers:
            back, tried = share(trials, launcher, fault)
            if tried:
                rows.append(_row(trials, fault, launcher, (back, tried), ours))
    return rows


def _row(trials: Trials, fault: str, launcher: str, found: tuple[int, int], ours: Sequence[float]) -> str:
    it = times(trials, fault, launcher)
    spread = f"{median(it):.2f} | {min(it):.2f} to {max(it):.2f}" if it else "– | –"
    against = str(ratio(ours, it)) if ours and it and launcher != OURS else ""
    spins = [float(t["calibration_ms"]) for t in trials if (t["fault"], t["launcher"]) == (fault, launcher) and "calibration_ms" in t]
    spin = f"{median(spins):.0f} ({min(spins):.0f} to {max(spins):.0f})" if spins else "–"
    return f"| {fault} | {launcher} | {found[0]}/{found[1]} | {spread} | {against} | {spin} |"

"""The sum of many outcomes: what struck, how it ended, how long forming took, in virtual seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.simulator.faults import FAULTS
from tests.simulator.run import Outcome
from tests.simulator.strikes import ALWAYS

SURE_FROM = 400
"""With so many seeds each kind of fault must have struck."""


class Tally:
    def __init__(self) -> None:
        self.seeds = self.failed = self.generations = self.in_place = self.steps = self.boundaries = 0
        self.faults, self.ends = Counter[str](), Counter[str]()
        self.gaps: list[float] = []
        self.first: list[float] = []

    def add(self, o: Outcome) -> None:
        self.seeds += 1
        self.failed += bool(o.broken)
        self.faults += o.faults
        self.ends[o.ended] += 1
        self.generations, self.in_place = self.generations + o.generations, self.in_place + o.in_place
        self.steps, self.boundaries = self.steps + o.steps, self.boundaries + o.boundaries
        self.gaps += o.gaps
        if o.first:
            self.first.append(o.first)

    @property
    def never(self) -> tuple[str, ...]:
        """Kinds of faults that should have struck and did not."""
        return tuple(sorted({*FAULTS, *ALWAYS} - set(self.faults))) if self.seeds >= SURE_FROM else ()

    def progress(self, of: int, took_s: float) -> str:
        left = took_s / self.seeds * (of - self.seeds)
        return (
            f"{self.seeds}/{of} seeds, {self.failed} failed, {self.generations} generations, {sum(self.faults.values())} faults; "
            f"{self.seeds / took_s:.0f} seeds/s, {took_s:.0f} s so far, {left:.0f} s to go"
        )

    def lines(self, took_s: float) -> list[str]:
        """The last one carries the figures."""
        width = max(map(len, self.faults), default=0)
        return [
            "faults that struck:",
            *(f"  {k:<{width}}  {v}" for k, v in sorted(self.faults.items(), key=lambda kv: (-kv[1], kv[0]))),
            f"fault kinds that never struck: {', '.join(self.never) or 'none'}",
            f"ends: {', '.join(f'{k} {v}' for k, v in sorted(self.ends.items()))}",
            f"{self.generations} generations, {self.in_place} of them in place; {self.steps} steps committed; {self.boundaries} boundaries",
            f"start to first generation, virtual seconds: {quantiles(self.first)}",
            f"verdict to next generation, virtual seconds: {quantiles(self.gaps)}",
            f"{self.seeds} seeds: {self.failed} broke an invariant; {sum(self.faults.values())} faults of {len(self.faults)} kinds, "
            f"{self.generations} generations; {took_s:.0f} s, {self.seeds / took_s:.1f} seeds/s",
        ]


def quantiles(values: Sequence[float]) -> str:
    if not values:
        return "none"
    v = sorted(values)
    at = {f"p{q:g}": v[min(len(v) - 1, int(len(v) * q / 100))] for q in (50, 90, 99, 99.9)}
    return ", ".join(f"{k} {x:.2f}" for k, x in at.items()) + f", most {v[-1]:.2f} ({len(v)})"

"""From a failing run to a small one: fewer strikes, fewer nodes, fewer things that differ from a plain run, shorter.

Law: the small run breaks the same law as the large one.  Chances depend on the seed, so a smaller setup is tried with a few
seeds before it is given up.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.simulator.run import Outcome, simulate
from tests.simulator.setup import Setup
from tests.simulator.strikes import Strike

SEEDS_A_TRY = 6
SEEDS_AT_THE_END = 40
LIMIT_S = 60.0


@dataclass(frozen=True)
class Small:
    """A failing run, as small as it got, and how many runs that took."""

    seed: int
    setup: Setup
    outcome: Outcome
    tries: int

    @property
    def command(self) -> str:
        return f"python -m tests.simulator --replay {self.seed} --setup '{self.setup.text()}'"


def law(broken: str) -> str:
    """What identifies a failure: `Broken: I7` or the name of an exception."""
    kind, _, rest = broken.partition(": ")
    return f"{kind}: {rest.split(':')[0]}" if kind == "Broken" else kind


def shrink(seed: int, given: Setup, broken: str, limit_s: float = LIMIT_S) -> Small:
    """Smaller and smaller, greedily, for at most `limit_s` seconds of this process."""
    until, tries = time.process_time() + limit_s, 0

    def fails(s: int, candidate: Setup) -> Outcome | None:
        nonlocal tries
        tries += 1
        o = simulate(s, candidate)
        return o if law(o.broken) == law(broken) else None

    first = fails(seed, given)
    if first is None:
        raise ValueError(f"expected seed {seed} to break {law(broken)}; it does not: a run depends on more than its seed")
    best = Small(seed, given, first, tries)
    again = True
    while again and time.process_time() < until:
        again = False
        for candidate in _smaller(best.setup):
            seeds = (best.seed, *(best.seed + i for i in range(1, SEEDS_A_TRY)))
            hit = next(((s, o) for s in seeds if time.process_time() < until and (o := fails(s, candidate)) is not None), None)
            if hit is not None:
                best, again = Small(hit[0], candidate, hit[1], tries), True
                break
    for s in range(SEEDS_AT_THE_END):
        if time.process_time() < until and (o := fails(s, best.setup)) is not None and len(o.history) < len(best.outcome.history):
            best = Small(s, best.setup, o, tries)
    return replace(best, tries=tries)


def _smaller(s: Setup) -> Iterator[Setup]:
    """Candidates, the boldest first."""
    n = len(s.strikes)
    for size in sorted({n, n // 2, 1} - {0}, reverse=True):
        for i in range(0, n, size):
            yield replace(s, strikes=s.strikes[:i] + s.strikes[i + size :])
    for nodes in range(1, s.nodes):
        least, most = min(s.least, nodes), min(s.most, nodes)
        yield replace(s, nodes=nodes, least=least, most=most, strikes=tuple(_within(x, nodes) for x in s.strikes))
    for f in dataclasses.fields(Setup):
        if f.name not in ("nodes", "least", "most", "strikes", "total") and getattr(s, f.name) != f.default:
            plain: dict[str, Any] = {f.name: f.default}
            yield replace(s, **plain)
    if s.total is None or s.total > 10:
        yield replace(s, total=10)
    for i, x in enumerate(s.strikes):
        for y in _simpler(x):
            yield replace(s, strikes=(*s.strikes[:i], y, *s.strikes[i + 1 :]))


def _within(x: Strike, nodes: int) -> Strike:
    return replace(x, target=x.target % nodes) if x.target >= nodes else x


def _simpler(x: Strike) -> Iterator[Strike]:
    if x.moment and x.after_s:
        yield replace(x, after_s=0.0)
    if x.moment and x.k > 1:
        yield replace(x, k=1)
    if not x.moment and x.after_s > 3.0:
        yield replace(x, after_s=round(x.after_s / 2, 1))

"""Every fault at every boundary: a few plain runs, and in each of them each kind of fault at each point where it can strike.

A boundary is the moment before an effect of an agent is carried out, or after a transaction has landed and before anybody
knows.  Up to that point the run is the plain one, event for event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.simulator.faults import FAULTS
from tests.simulator.run import simulate
from tests.simulator.setup import Setup
from tests.simulator.strikes import Strike

PLAIN = Setup(nodes=3, least=2, most=3, total=14, every=4, start_s=8.0)
BASES: Mapping[str, Setup] = {
    "forming and finishing": PLAIN,
    "restart": replace(PLAIN, strikes=(Strike("worker exits", 0.2, "txn commit", 1, 1),)),
    "rollback in place": replace(PLAIN, strikes=(Strike("halt and roll back", 0.2, "txn commit", 2, -2),)),
    "agent lost": replace(PLAIN, strikes=(Strike("agent killed", 0.2, "txn commit", 1, 0),)),
    "spare takes over": replace(PLAIN, most=2, strikes=(Strike("node drained", 0.2, "txn commit", 1, 1),)),
    "torn checkpoint": replace(
        PLAIN, strikes=(Strike("worker exits", 0.1, "txn commit", 2, -2), Strike("checkpoint torn", 0.0, "spawned", 4, -2))
    ),
    "retention": replace(PLAIN, total=24, every=2, keep=1, reach_steps=0),
}
SEED = 1
TARGETS = (-1, -2)
"""Whoever passes the boundary; the rank-0 agent."""


@dataclass(frozen=True)
class Case:
    base: str
    setup: Setup


def boundaries(base: str) -> int:
    """How many a plain run passes until it has ended."""
    o = simulate(SEED, BASES[base])
    if o.broken:
        raise AssertionError(f"{base}: {o.broken}")
    return o.boundaries


def cases(stride: int = 1, start: int = 0) -> Iterator[Case]:
    """Each `stride`-th of all (base, boundary, fault, target), from the `start`-th on."""
    n = -1
    for base, plain in BASES.items():
        for k in range(1, boundaries(base) + 1):
            for fault in FAULTS:
                for target in TARGETS:
                    n += 1
                    if n >= start and (n - start) % stride == 0:
                        yield Case(base, replace(plain, strikes=(*plain.strikes, Strike(fault, 0.0, "boundary", k, target))))

"""What is explored: the configurations of `make model`, and for each rule the one that shows what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.model.shape import FAULTS, Config

SMALL = Config(nodes=1, most=1, faults=1, rollbacks=1)
"""Seconds: in the quick suite.  Every phase, every way between phases and every fault."""

FULL: Mapping[str, Config] = {
    "one node, one fault": SMALL,
    "one node, one fault, two steps, a rollback": Config(nodes=1, most=1, faults=1, steps=2, gens=2, rollbacks=1, keep=1),
    "one node, two faults": Config(nodes=1, most=1, faults=2),
    "two nodes, one fault": Config(nodes=2, faults=1, warm=True),
    "three nodes, one fault": Config(nodes=3, faults=1, warm=True, brief=True, coarse=2),
    "two nodes, one fault, a rollback": Config(nodes=2, faults=1, gens=3, rollbacks=1, warm=True, brief=True, coarse=2),
    "two nodes, two faults": Config(nodes=2, faults=2, warm=True, brief=True, coarse=2),
}
"""What `make model` explores, each to its end."""

DEEP: Mapping[str, Config] = {
    "three nodes, one fault, writes under way": Config(nodes=3, faults=1, warm=True, brief=True, coarse=1),
    "two nodes, two steps, one fault, a rollback": Config(nodes=2, faults=1, steps=2, gens=3, rollbacks=1, keep=1, warm=True, coarse=1),
    "two nodes, two faults, writes under way": Config(nodes=2, faults=2, warm=True, coarse=1),
}
"""Millions of states: with `--deep`, no time promised."""

_TWO = Config(nodes=2, faults=1, warm=True, coarse=2)
_BACK = Config(nodes=2, faults=1, steps=2, gens=3, rollbacks=1, keep=1, warm=True, coarse=2)
_LONE = Config(nodes=1, most=1, faults=1, steps=2, gens=3, rollbacks=1, keep=1, warm=True, coarse=2)


def _only(c: Config, *kinds: str) -> Config:
    assert set(kinds) <= set(FAULTS)
    return replace(c, kinds=frozenset(kinds), faults=c.faults if kinds else 0)


LAPSES: Mapping[str, tuple[str, Config]] = {
    "1": ("I6", _only(replace(_LONE, rollbacks=0, steps=1, gens=2), "agent killed")),
    "2": ("I4", _only(_LONE, "worker exits")),
    "3": ("I7", _only(replace(_LONE, coarse=1))),
    "4": ("I4", _only(_BACK)),
    "5": ("I6", _only(replace(_BACK, steps=1, gens=2))),
    "6": ("I1", _only(replace(_LONE, rollbacks=0, steps=2, gens=2), "no answer")),
    "7 page": ("R7", _only(_TWO, "agent stopped")),
    "7 wait": ("R7", _only(_TWO, "agent stopped")),
    "7 links": ("R7", _only(_TWO, "cut from all")),
    "8": ("I7", _only(replace(_LONE, rollbacks=0, steps=2, gens=3), "worker exits")),
    "9 rank 0": ("I1", _only(replace(_TWO, steps=2, coarse=1))),
    "9 member": ("R7", _only(_TWO, "worker exits")),
    "9 reaped": ("R7", _only(_TWO, "agent killed", "cut from the store")),
    "fence current": ("I1", _only(replace(_LONE, faults=3, rollbacks=0), "no answer", "worker exits", "old verdict deleted")),
    "fence verdict": ("I1", _only(replace(_LONE, rollbacks=0, keep=2, coarse=1), "worker exits")),
    "first writer": ("I3", _only(_TWO, "worker exits")),
    "late member": ("I6", _only(replace(_LONE, faults=2, rollbacks=0, steps=1, gens=2), "no answer", "agent stopped", "store outage")),
}
"""For each rule: which invariant breaks without it, and the configuration that shows it (with the rule, it holds)."""

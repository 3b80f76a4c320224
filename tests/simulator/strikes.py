"""Strikes as data: which fault, where, and when; all drawn from the seed.

A strike comes at a random time, or right after the k-th passing of a moment: a transaction of a kind that landed, a
change of phase, a rollback's verdict, an in-place generation formed or taken up; or at a boundary: before any effect is
carried out, and after any transaction has landed.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from dataclasses import dataclass

from elastic_health.generations import GenerationKind
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.rendezvous.store import Delete, Txn
from elastic_health.verdicts import VerdictKind
from tests.simulator.faults import FAULTS, store_back, wake
from tests.simulator.node import Node
from tests.simulator.world import World

FAULT_TIME_S = 25.0
ALWAYS = ("clock rates differ", "rollback interrupted")
"""Counted beside `FAULTS`: a setting of the run, and what a strike within a rollback amounts to."""
MOMENTS = (
    *(f"txn {p.value}" for p in Purpose if p not in (Purpose.PUBLISH, Purpose.LEAVE)),
    *(f"phase {p.value}" for p in Phase if p is not Phase.LEFT),
    "rollback verdict", "in-place form", "taken up", "spawned", "workers done", "lease ended",
)  # fmt: skip
SILENT = (
    "node partitioned",
    "agent paused",
    "node frozen",
    "stale agent wakes",
    "halves parted",
    "cut from store",
    "cut from peers",
    "node lost",
    "store outage",
    "store loaded",
    "watch lags",
    "replies slow",
    "former stuck",
)
UPSETTING = (
    "worker exits",
    "agent killed",
    "node lost",
    "agent paused",
    "node frozen",
    "stale agent wakes",
    "halves parted",
    "lease lost",
    "node drained",
    "stall",
    "cut from store",
    "cut from peers",
)
QUICK = frozenset(
    ("worker exits", "stall", "halt and roll back", "checkpoint torn", "former stuck", "links reset", "window recorded", "watch compacted")
)
"""Faults after which the next generation must follow within `QUICK_S`, without waiting for any lease."""
QUICK_S = 10.0
DELIBERATE = frozenset(("node drained", "all drained", "node stopped"))
"""What people and schedulers do on purpose, and what therefore counts as no restart."""
IN_PLACE_MOMENTS = ("phase holding", "rollback verdict", "txn verdict", "in-place form", "taken up", "phase running", "txn form")


@dataclass(frozen=True)
class Strike:
    """`fault` strikes `after_s` seconds after `moment` was passed for the k-th time ("": after the start).

    `target`: index of a node; -1: whoever passed the moment; -2: the rank-0 agent.
    """

    fault: str
    after_s: float
    moment: str = ""
    k: int = 1
    target: int = -1

    @property
    def sentence(self) -> str:
        """For people."""
        whom = {-1: "whoever passes it" if self.moment else "the last node", -2: "the rank-0 agent"}.get(self.target, f"n{self.target}")
        late = f"{self.after_s:g} s after " if self.after_s else "at "
        when = f"{late}`{self.moment}` number {self.k}" if self.moment else f"at {self.after_s:.1f} s"
        return f"{self.fault}: {whom}, {when}"


class Plan:
    """The strikes of one run, and which of them came."""

    def __init__(self, world: World, strikes: tuple[Strike, ...]) -> None:
        self.world, self.strikes, self.counts, self.last_at = world, strikes, Counter[str](), 0.0
        self.open = True
        for s in strikes:
            if not s.moment:
                world.clockwork.at(s.after_s, functools.partial(self.strike, s, world.nodes[s.target]))

    def at_moment(self, moment: str, k: int, node: Node) -> None:
        for s in self.strikes:
            if s.moment == moment and s.k == k:
                if s.after_s:
                    self.world.clockwork.after(s.after_s, functools.partial(self.strike, s, self._target(s, node)))
                else:
                    self.strike(s, self._target(s, node))

    def _target(self, s: Strike, node: Node) -> Node:
        if s.target >= 0:
            return self.world.nodes[s.target % len(self.world.nodes)]
        g = self.world.ledger.generations.get(self.world.ledger.current)
        return self.world.named(g.members[0].node) if s.target == -2 and g is not None else node

    def strike(self, s: Strike, node: Node) -> None:
        w = self.world
        if not self.open or w.finished or not node.running or node.paused:
            return
        self.counts[s.fault] += 1
        if s.fault != "halt and roll back" and self._rolling_back():
            self.counts["rollback interrupted"] += 1
        self.last_at = w.clockwork.now
        w.clockwork.note(f"FAULT {s.fault} strikes {node.name}{f' ({s.moment} {s.k})' if s.moment else ''}")
        FAULTS[s.fault](w, node)

    def _rolling_back(self) -> bool:
        """A rollback is decided and not yet carried out, or its generation not yet taken up by all."""
        ledger = self.world.ledger
        g, v = ledger.generations.get(ledger.current), ledger.verdicts.get(ledger.current)
        if v is not None:
            return v.kind is VerdictKind.ROLLBACK
        if g is None or g.kind is not GenerationKind.IN_PLACE:
            return False
        return any(self.world.named(m.node).state.generation != g.number for m in g.members if self.world.named(m.node).life)

    def heal(self) -> None:
        """No more faults, and nothing left of the past ones."""
        self.open, w = False, self.world
        w.loss, w.compacting, w.loaded_until = 0.0, False, 0.0
        w.requests.clear()
        store_back(w)
        for n in w.nodes:
            w.memory.apply(Txn((), (Delete(w.quarantine + n.name),)))
            n.cut_store, n.former_stuck, n.unfit, n.stuck_process, n.lag = False, False, False, False, 0.0
            n.cut_peers.clear()
            wake(n)
            n.watch()
            if not n.running and not w.finished:
                n.boot()


def drawn(r: random.Random, nodes: int) -> tuple[Strike, ...]:
    """The strikes of a seed: none to eight, at random times or at moments; some seeds are about rollbacks in place."""
    names = sorted(FAULTS)
    if nodes > 1:
        names += ["halves parted", "stale agent wakes"]
    if r.random() < 0.25:
        first = Strike("halt and roll back", r.choice((0.0, 0.5, 2.0)), "txn commit", r.choice((1, 2, 4)), -2)
        likely = (*names, *UPSETTING * 4)
        return (first, *(_at_moment(r, r.choice(likely), IN_PLACE_MOMENTS, nodes) for _ in range(r.choice((1, 1, 2, 3)))))
    if r.random() < 0.2:  # somebody falls silent, and meanwhile the group ends for another reason
        at, silent, other = r.uniform(3.0, 12.0), r.randrange(nodes), r.randrange(nodes)
        upset = r.choice((*UPSETTING, *("worker exits", "stall") * 3))
        return (Strike(r.choice(SILENT), at, target=silent), Strike(upset, at + r.uniform(0.2, 9.0), target=other))
    if r.random() < 0.1:  # nothing fails, but nodes are told to leave
        names = sorted(DELIBERATE)
        return tuple(_at_moment(r, r.choice(names), MOMENTS, nodes) for _ in range(r.choice((1, 2, 4))))
    out = []
    for _ in range(r.choice((0, 1, 2, 3, 5, 8))):
        name = r.choice(names)
        timed = Strike(name, r.uniform(0.5, FAULT_TIME_S - 5.0), target=r.randrange(nodes))
        out.append(timed if r.random() < 0.4 else _at_moment(r, name, MOMENTS, nodes))
    return tuple(out)


def _at_moment(r: random.Random, name: str, moments: tuple[str, ...], nodes: int) -> Strike:
    k = r.choice((1, 1, 1, 1, 2) if moments is IN_PLACE_MOMENTS else (1, 1, 2, 3, 5))
    return Strike(name, r.choice((0.0, 0.0, 0.002, 0.05, 0.5, 2.0)), r.choice(moments), k, r.choice((-1, -1, -2, r.randrange(nodes))))

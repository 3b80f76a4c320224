"""Faults as data: what can strike, where, and when; all drawn from the seed.

A strike comes at a random time, or right after the k-th passing of a moment: a transaction of a kind that landed, a
change of phase, a rollback's verdict, an in-place generation formed or taken up.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.rendezvous.store import Delete, Put, Txn
from elastic_health.verdicts import Cause
from elastic_health.windows import Window
from tests.simulator.node import Node
from tests.simulator.world import GUARDIAN_S, World

FAULT_TIME_S = 25.0


# ---- what strikes
def _kill_agent(w: World, n: Node) -> None:
    c = w.clockwork
    n.alive = False
    w.links.cut(n)
    crew = n.crew

    def guardian() -> None:
        if n.crew is crew:
            n.crew = None

    c.after(c.random.uniform(0.0, GUARDIAN_S), guardian)
    _reboot(w, n, 0.3, 8.0)


def _lose_node(w: World, n: Node) -> None:
    n.alive, n.crew = False, None
    w.links.cut(n, silent=w.clockwork.random.random() < 0.5)
    _reboot(w, n, 3.0, 15.0)


def _reboot(w: World, n: Node, least: float, most: float) -> None:
    life = n.life
    w.clockwork.after(
        w.clockwork.random.uniform(least, most), lambda: n.boot() if not n.alive and n.life == life and not w.finished else None
    )


def _pause(w: World, n: Node) -> None:
    n.paused = n.slept = True
    w.links.cut(n, silent=True)
    life = n.life
    w.clockwork.after(w.clockwork.random.choice((0.5, 3.0, 9.0, 15.0)), lambda: wake(n) if n.life == life and n.running else None)


def wake(n: Node) -> None:
    """A stopped process goes on: what had come meanwhile is delivered first."""
    if not n.paused:
        return
    n.paused = False
    backlog, n.backlog = n.backlog, []
    for event in backlog:
        n.feed(event)
    n.feed(ev.Tick())
    n.watch()


def _cut_store(w: World, n: Node) -> None:
    n.cut_store = True

    def back() -> None:
        n.cut_store = False
        n.watch()

    w.clockwork.after(w.clockwork.random.choice((1.0, 4.0, 12.0)), back)


def _cut_peers(w: World, n: Node) -> None:
    n.cut_peers = {m.name for m in w.nodes if m is not n and w.clockwork.random.random() < 0.7}
    w.links.cut(n, silent=True)
    w.clockwork.after(w.clockwork.random.choice((1.0, 6.0, 15.0)), n.cut_peers.clear)


def _outage(w: World, n: Node) -> None:
    w.outage = True
    w.memory.freeze()
    w.clockwork.after(w.clockwork.random.choice((2.0, 8.0, 20.0)), lambda: store_back(w))


def store_back(w: World) -> None:
    w.outage = False
    w.memory.thaw()
    for n in w.nodes:
        n.watch()


def _exit(w: World, n: Node) -> None:
    n.lose_crew(Cause.WORKER_EXIT, "a worker ended with 1")


def _stall(w: World, n: Node) -> None:
    n.judge(Cause.STALL, "no progress")


def _halt(w: World, n: Node) -> None:
    w.halt()


def _torn(w: World, n: Node) -> None:
    g = w.ledger.generations.get(n.state.generation)
    if g is not None and g.plan.checkpoint is not None and n.crew is not None:
        n.judge(Cause.CHECKPOINT_UNUSABLE, "torn", torn=g.plan.checkpoint)


def _lease_lost(w: World, n: Node) -> None:
    if n.state.lease:
        w.expire(n.state.lease)


def _partition(w: World, n: Node) -> None:
    """The host's network is gone: neither store nor peers."""
    n.cut_store, n.cut_peers = True, {m.name for m in w.nodes if m is not n}
    w.links.cut(n, silent=True)

    def back() -> None:
        n.cut_store = False
        n.cut_peers.clear()
        n.watch()

    w.clockwork.after(w.clockwork.random.choice((4.0, 12.0, 20.0)), back)


def _links_reset(w: World, n: Node) -> None:
    w.links.cut(n)


def _former_stuck(w: World, n: Node) -> None:
    """It lives, renews and answers, but what it sends to form is never carried out."""
    n.former_stuck = True


def _slow_replies(w: World, n: Node) -> None:
    n.slow_until = w.clockwork.now + 3.0


def _watch_lags(w: World, n: Node) -> None:
    n.lag = w.clockwork.random.choice((0.3, 1.5, 5.0))

    def back() -> None:
        n.lag = 0.0

    w.clockwork.after(w.clockwork.random.uniform(1.0, 8.0), back)


def _compacted(w: World, n: Node) -> None:
    """For a while every watch resumes on a compacted history: a list instead of changes."""
    n.lag, w.compaction = 0.7, 1.0

    def back() -> None:
        n.lag, w.compaction = 0.0, 0.02

    w.clockwork.after(3.0, back)


def _skip(w: World, n: Node) -> None:
    """A person records a window, anywhere, and never takes it back."""
    start = w.clockwork.random.randrange(0, 150)
    window = Window(start, start + w.clockwork.random.choice((1, 4, 12)), "person")
    value = f'{{"start":{window.start},"end":{window.end},"reason":"person"}}'.encode()
    r = w.memory.apply(Txn((), (Put(w.keys.skip(f"p{w.count()}"), value),)))
    w.skips.append((r.revision, window))


def _drain(w: World, n: Node) -> None:
    """SIGTERM, with a deadline."""
    until = n.now + w.policies.drain.deadline_s
    n.drain_until = min(n.drain_until, until)
    n.feed(ev.DrainAsked("SIGTERM", until, w.saves, n.crew.steps if n.crew is not None else -1))


def _drain_all(w: World, n: Node) -> None:
    """As a scheduler ends a job: every node, within a moment."""
    for m in w.nodes:
        if m.running and not m.paused:
            life = m.life
            w.clockwork.after(w.clockwork.delay(0.3), lambda m=m, life=life: _drain(w, m) if m.life == life and m.running else None)  # type: ignore[misc]


def _stop(w: World, n: Node) -> None:
    """Ctrl-C, or a second signal while it drains."""
    n.feed(ev.StopAsked("SIGINT"))


def _quarantined(w: World, n: Node) -> None:
    w.memory.apply(Txn((), (Put(w.quarantine + n.name, b'{"reason":"planted"}'),)))
    w.clockwork.after(w.clockwork.random.uniform(2.0, 10.0), lambda: w.memory.apply(Txn((), (Delete(w.quarantine + n.name),))))


def _unfit(w: World, n: Node) -> None:
    n.unfit = True


def _unkillable(w: World, n: Node) -> None:
    n.stuck_process = n.crew is not None


def _fate(fate: str) -> Callable[[World, Node], None]:
    """The next requests of one purpose, of one node, meet this fate."""

    def strike(w: World, n: Node) -> None:
        r = w.clockwork.random
        purpose = r.choice((*(p.value for p in Purpose), "renew", "grant"))
        w.clockwork.note(f"      the next {purpose} of {n.name}: {fate}")
        w.requests[n.name, purpose] += [fate] * r.choice((1, 1, 2, 4))

    return strike


def _retention_late(w: World, n: Node) -> None:
    for node in w.nodes:
        w.requests[node.name, Purpose.DELETE.value] += ["write late"] * 3


FAULTS: Mapping[str, Callable[[World, Node], None]] = {
    "agent killed": _kill_agent,
    "node lost": _lose_node,
    "agent paused": _pause,
    "cut from store": _cut_store,
    "cut from peers": _cut_peers,
    "node partitioned": _partition,
    "links reset": _links_reset,
    "store outage": _outage,
    "worker exits": _exit,
    "stall": _stall,
    "halt and roll back": _halt,
    "checkpoint torn": _torn,
    "lease lost": _lease_lost,
    "former stuck": _former_stuck,
    "replies slow": _slow_replies,
    "request lost": _fate("request lost"),
    "reply lost": _fate("reply lost"),
    "write late": _fate("write late"),
    "store full": _fate("store full"),
    "retention late": _retention_late,
    "watch lags": _watch_lags,
    "watch compacted": _compacted,
    "window recorded": _skip,
    "node drained": _drain,
    "all drained": _drain_all,
    "node stopped": _stop,
    "node quarantined": _quarantined,
    "node unfit": _unfit,
    "process unkillable": _unkillable,
}
MOMENTS = (
    *(f"txn {p.value}" for p in Purpose if p not in (Purpose.PUBLISH, Purpose.LEAVE)),
    *(f"phase {p.value}" for p in Phase if p is not Phase.LEFT),
    "rollback verdict", "in-place form", "taken up", "spawned", "workers done", "lease ended",
)  # fmt: skip
SILENT = (
    "node partitioned",
    "agent paused",
    "cut from store",
    "cut from peers",
    "node lost",
    "store outage",
    "watch lags",
    "replies slow",
    "former stuck",
)
UPSETTING = (
    "worker exits",
    "agent killed",
    "node lost",
    "agent paused",
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
        self.last_at = w.clockwork.now
        w.clockwork.note(f"FAULT {s.fault} strikes {node.name}{f' ({s.moment} {s.k})' if s.moment else ''}")
        FAULTS[s.fault](w, node)

    def heal(self) -> None:
        """No more faults, and nothing left of the past ones."""
        self.open, w = False, self.world
        w.loss, w.compaction = 0.0, 0.02
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

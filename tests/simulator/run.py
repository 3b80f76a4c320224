"""One seed: a run of a few nodes with faults drawn from the seed; all invariants after each event.

A failing seed prints its history.  `python -m tests.simulator --seeds 10000 --seed0 0`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from elastic_health.policies import Caps, Policies, RecoveryPolicy
from elastic_health.verdicts import Cause, VerdictKind
from elastic_health.windows import outside
from tests.simulator.ledger import Broken, need
from tests.simulator.node import Node
from tests.simulator.world import World, in_place

FAULT_TIME_S = 40.0
SETTLE_S = 400.0


@dataclass(frozen=True)
class Outcome:
    """What became of a seed."""

    seed: int
    broken: str
    history: tuple[str, ...]
    faults: Counter[str]
    generations: int
    in_place: int
    virtual_s: float
    ended: str
    pages: int


def _policies(world_random: object, caps_low: bool) -> Policies:
    base = Policies()
    total = 3 if caps_low else 200
    caps = Caps(total=total, per_hour=None, per_node=None, per_signature=None, without_commit=None, early_exits=None, mismatches=None,
                rollbacks_per_day=None, backoff_s=(0.0, 0.5, 1.0))
    return replace(base, recovery=RecoveryPolicy(caps=caps, scale_up=base.membership.scale_up))


def simulate(seed: int) -> Outcome:
    """Run one seed to its end."""
    import random

    r = random.Random(seed * 7919 + 1)
    nodes = r.choice((1, 2, 3, 3, 4))
    least = r.randint(1, nodes)
    most = r.randint(least, nodes)
    world = World(seed, nodes=nodes, least=least, most=most, total=r.choice((60, 200, 400)), policies=_policies(r, r.random() < 0.1))
    faults: Counter[str] = Counter()
    _schedule(world, r, faults)
    broken = ""
    try:
        for node in world.nodes:
            world.clockwork.after(r.uniform(0.0, 1.5), node.boot)
        world.clockwork.run(lambda: world.finished, FAULT_TIME_S)
        _heal(world)
        world.clockwork.run(lambda: all(n.left is not None for n in world.nodes if n.alive), FAULT_TIME_S + SETTLE_S)
        world.check_history()
        need("I6", world.finished, f"the run did not end within {SETTLE_S:g} s after the last fault")
        v = world.ledger.verdicts[world.ledger.current]
        if v.kind is VerdictKind.FINISH:
            last = world.ledger.generations[world.ledger.current]
            newest = max((c.position for c in world.ledger.checkpoints.values()), default=0)
            need("I4", outside(newest, last.plan.windows) >= world.total, f"finished at {newest} of {world.total}")
        else:
            need("I5", v.cause in (Cause.CAP_REACHED, Cause.NO_CHECKPOINT) or v.exit_status != 0, f"aborted for {v.cause}")
    except (Broken, AssertionError, KeyError) as e:
        broken = f"{type(e).__name__}: {e}"
    v = world.ledger.verdicts.get(world.ledger.current)
    return Outcome(seed, broken, tuple(world.clockwork.history), faults, len(world.ledger.generations), in_place(world),
                   world.clockwork.now, v.kind.value if v else "-", world.pages)


def _heal(world: World) -> None:
    world.loss, world.outage = 0.0, False
    world.memory.thaw()
    for n in world.nodes:
        n.cut_store, n.cut_peers = False, set()
        _wake(n)
        if not n.alive or (n.left is not None and not world.finished):
            n.boot()


def _wake(n: Node) -> None:
    if n.paused:
        n.paused = False
        backlog, n.backlog = n.backlog, []
        for event in backlog:
            n.feed(event)
        from elastic_health.rendezvous import events as ev

        n.feed(ev.Tick())


# ---- faults as data: name -> what strikes
def _kill_agent(w: World, n: Node) -> None:
    n.alive = False
    w.break_links(n)
    life = n.life
    w.clockwork.after(w.clockwork.random.uniform(0.0, 0.2), lambda: n.life == life and setattr(n, "crew", None))  # the guardian
    w.clockwork.after(w.clockwork.random.uniform(0.3, 8.0), lambda: None if n.alive else n.boot())


def _lose_node(w: World, n: Node) -> None:
    n.alive, n.crew = False, None
    w.break_links(n, silent=w.clockwork.random.random() < 0.5)
    w.clockwork.after(w.clockwork.random.uniform(3.0, 20.0), lambda: None if n.alive else n.boot())


def _pause(w: World, n: Node) -> None:
    n.paused = True
    w.break_links(n, silent=True)
    life = n.life
    w.clockwork.after(w.clockwork.random.choice((0.5, 3.0, 9.0, 20.0)), lambda: n.life == life and n.alive and _wake(n))


def _cut_store(w: World, n: Node) -> None:
    n.cut_store = True
    w.clockwork.after(w.clockwork.random.choice((1.0, 4.0, 12.0)), lambda: setattr(n, "cut_store", False))


def _cut_peers(w: World, n: Node) -> None:
    n.cut_peers = {m.name for m in w.nodes if m is not n and w.clockwork.random.random() < 0.7}
    w.break_links(n, silent=True)
    w.clockwork.after(w.clockwork.random.choice((1.0, 6.0, 15.0)), lambda: setattr(n, "cut_peers", set()))


def _outage(w: World, n: Node) -> None:
    w.outage = True
    w.memory.freeze()

    def back() -> None:
        w.outage = False
        w.memory.thaw()

    w.clockwork.after(w.clockwork.random.choice((2.0, 8.0, 30.0)), back)


def _exit(w: World, n: Node) -> None:
    n.lose_crew(Cause.WORKER_EXIT, "a worker ended with 1")


def _stall(w: World, n: Node) -> None:
    n.judge(Cause.STALL, "no progress")


def _halt(w: World, n: Node) -> None:
    w.halt(w.ledger.current)


def _torn(w: World, n: Node) -> None:
    g = w.ledger.generations.get(n.state.generation) if n.alive else None
    if g is not None and g.plan.checkpoint is not None and n.crew is not None:
        n.judge(Cause.CHECKPOINT_UNUSABLE, "torn", torn=g.plan.checkpoint)


def _lease_lost(w: World, n: Node) -> None:
    if n.alive and n.state.lease:
        w.memory.expire(n.state.lease)


FAULTS = {
    "agent killed": _kill_agent,
    "node lost": _lose_node,
    "agent paused": _pause,
    "cut from store": _cut_store,
    "cut from peers": _cut_peers,
    "store outage": _outage,
    "worker exits": _exit,
    "stall": _stall,
    "halt and roll back": _halt,
    "checkpoint torn": _torn,
    "lease lost": _lease_lost,
}


def _schedule(world: World, r: object, faults: Counter[str]) -> None:
    import random

    assert isinstance(r, random.Random)
    for _ in range(r.choice((0, 1, 2, 3, 5, 8))):
        name = r.choice(sorted(FAULTS))
        target = r.choice(world.nodes)

        def strike(name: str = name, target: Node = target) -> None:
            if world.finished or (not target.alive and name not in ("store outage", "halt and roll back")) or target.paused:
                return
            faults[name] += 1
            world.clockwork.note(f"FAULT {name} strikes {target.name}")
            FAULTS[name](world, target)

        world.clockwork.at(r.uniform(1.0, FAULT_TIME_S - 10.0), strike)

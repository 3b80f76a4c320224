"""One seed: a run of a few nodes with faults drawn from the seed; all invariants after each event.

A failing seed prints its history.  `python -m tests.simulator --seeds 10000 --seed0 0`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from elastic_health.generations import GenerationKind
from elastic_health.verdicts import Cause, VerdictKind
from elastic_health.windows import outside
from tests.simulator.ledger import Broken, need
from tests.simulator.node import HOME
from tests.simulator.setup import Setup, setup
from tests.simulator.strikes import DELIBERATE, FAULT_TIME_S, QUICK, QUICK_S, Plan
from tests.simulator.world import STEP_S, World

RECOVER_S = 40.0
"""After the last fault: every member steps in a generation within this time (I6)."""
END_S = 60.0
"""After the last step: every agent has left."""


@dataclass(frozen=True)
class Outcome:
    """What became of a seed.

    Virtual seconds: `gaps` from each verdict to the next generation, `first` from the start to the first one.
    `boundaries`: how many were passed.
    """

    seed: int
    broken: str
    history: tuple[str, ...]
    faults: Counter[str]
    generations: int
    in_place: int
    gaps: tuple[float, ...]
    ended: str
    pages: int
    first: float
    boundaries: int
    steps: int


def simulate(seed: int, given: Setup | None = None) -> Outcome:
    """Run one seed to its end."""
    s, r = given or setup(seed), random.Random(seed * 31 + 5)
    world = World(seed, nodes=s.nodes, least=s.least, most=s.most, total=s.total, every=s.every, policies=s.policies)
    world.loss, world.saves = s.loss, s.saves
    for node, place in zip(world.nodes, s.places, strict=False):
        node.place = place
    for i, node in enumerate(world.nodes):
        node.offset = 1000.0 * i
        node.rate = r.uniform(0.975, 1.025) if s.skewed else 1.0
    world.plan = Plan(world, s.strikes)
    if s.skewed:
        world.plan.counts["clock rates differ"] += 1
    broken = ""
    try:
        _live(world, r)
        _judge(world, s)
    except (Broken, AssertionError, KeyError) as e:
        broken = f"{type(e).__name__}: {e}"
    ledger, v = world.ledger, world.ledger.verdicts.get(world.ledger.current)
    gaps = tuple(at - ledger.verdict_at[g - 1] for g, at in ledger.formed_at.items() if g - 1 in ledger.verdict_at)
    in_place = sum(g.kind is GenerationKind.IN_PLACE for g in ledger.generations.values())
    return Outcome(
        seed,
        broken,
        tuple(world.clockwork.history),
        world.plan.counts,
        len(ledger.generations),
        in_place,
        gaps,
        v.kind.value if v else "-",
        world.pages,
        ledger.formed_at.get(1, 0.0),
        world.moments["boundary"],
        max((c.position for c in ledger.checkpoints.values()), default=0),
    )


def _live(world: World, r: random.Random) -> None:
    c, plan = world.clockwork, world.plan
    assert plan is not None
    for node in world.nodes:
        c.after(r.uniform(0.0, 1.5), node.boot)
    c.run(lambda: world.finished, FAULT_TIME_S if plan.strikes else 5.0)
    plan.heal()
    healed = c.now
    c.note("healed")
    if not world.finished:
        # A group that was up all the time has stepped at once; one that was not has RECOVER_S.
        c.run(lambda: world.finished or (world.stepped_at > healed and _settled(world)), healed + RECOVER_S)
        need(
            "I6", world.finished or (world.stepped_at > healed and _settled(world)), f"no group trains {RECOVER_S:g} s after the last fault"
        )
    newest = max((n.crew.position for n in world.nodes if n.crew is not None), default=0)
    if world.total is None:
        world.total = newest + r.choice((1, 7, 30))
    c.run(lambda: world.finished and all(not n.running for n in world.nodes), c.now + max(0, world.total - newest) * STEP_S + END_S)


def _settled(world: World) -> bool:
    """Every member of the current generation runs, and it has no verdict."""
    g = world.ledger.generations.get(world.ledger.current)
    return (
        g is not None
        and g.number not in world.ledger.verdicts
        and all(world.named(m.node).state.generation == g.number and world.named(m.node).state.phase in HOME for m in g.members)
    )


def _judge(world: World, s: Setup) -> None:
    ledger = world.ledger
    ledger.consumed_once()
    need("I6", world.finished, "the run did not end")
    need("I6", all(not n.running for n in world.nodes), f"still here: {[n.name for n in world.nodes if n.running]}")
    v = ledger.verdicts[ledger.current]
    if v.kind is VerdictKind.FINISH:
        last = ledger.generations[ledger.current]
        newest = max((c.position for c in ledger.checkpoints.values()), default=0)
        assert world.total is not None
        need("I4", outside(newest, last.plan.windows) >= world.total, f"finished at {newest} of {world.total}")
        need("I5", not world.pages, "a person was called although the run finished")
    else:
        need("I5", v.cause in (Cause.CAP_REACHED, Cause.NO_CHECKPOINT) or v.exit_status != 0, f"aborted for {v.cause}")
        need("I5", world.pages == 1, f"{world.pages} pages for one end")
    names = [x.fault for x in s.strikes]
    if QUICK.issuperset(names) and names.count("former stuck") <= (s.nodes > 1):
        slow = [g for g, at in ledger.formed_at.items() if g > 1 and at > ledger.verdict_at[g - 1] + QUICK_S]
        need("I6", not slow, f"generations {slow} came more than {QUICK_S:g} s after the verdict before them")
    if DELIBERATE.issuperset(names) and not s.loss:
        # Who leaves while it is being formed with, and can't know it yet, is missed as any lost member.
        need("R6", ledger.restarts <= world.unaware, f"{ledger.restarts} restarts were counted, and all that happened was meant")
    if not s.strikes:
        need("R1", ledger.restarts == 0, f"{ledger.restarts} restarts, and nothing was wrong")

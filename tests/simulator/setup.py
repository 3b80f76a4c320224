"""Everything about a simulated run but its chances, as plain data: drawn from a seed, or read from a line of JSON."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, replace
from typing import Any

from elastic_health.generations import Bounds
from elastic_health.policies import Caps, CheckpointPolicy, DrainPolicy, MembershipPolicy, Policies, RecoveryPolicy, ScaleUp
from tests.simulator.strikes import DELIBERATE, Strike, drawn


@dataclass(frozen=True)
class Setup:
    """`total`: positions to consume, one a step (None: some more than were reached when the faults end).

    `every`: steps from commit to commit.  `skewed`: clocks of the nodes differ by up to 5 %.  `loss`: share of requests
    that meet a bad fate though no strike says so.  `saves`: the script commits when it is wished for.  `places`: of the nodes.
    """

    nodes: int = 3
    least: int = 2
    most: int = 3
    total: int | None = None
    every: int = 5
    strikes: tuple[Strike, ...] = ()
    skewed: bool = False
    loss: float = 0.0
    caps_total: int = 200
    scale_up: str = ScaleUp.AT_CHECKPOINT.value
    join_timeout_s: float = 60.0
    start_s: float = 15.0
    start_over: bool = True
    keep: int = 2
    reach_steps: int = 10
    saves: bool = True
    places: tuple[str, ...] = ()
    drain_s: float = 4.0
    gather_s: float = 0.0

    @property
    def policies(self) -> Policies:
        """Caps out of the way in most runs."""
        none = Caps(None, None, None, None, None, None, mismatches=None, rollbacks_per_day=None, backoff_s=(0.0, 0.5, 1.0))
        caps, scale = replace(none, total=self.caps_total), ScaleUp(self.scale_up)
        membership = MembershipPolicy(
            join_timeout_s=self.join_timeout_s, scale_up=scale, bounds=Bounds(start_s=self.start_s), gather_s=self.gather_s
        )
        keep = CheckpointPolicy(keep=self.keep, start_over=self.start_over, rollback_reach_steps=self.reach_steps)
        recovery = RecoveryPolicy(caps, scale, self.start_over)
        drain = DrainPolicy(self.drain_s)
        return replace(Policies(), recovery=recovery, membership=membership, checkpoints=keep, drain=drain)

    def text(self) -> str:
        """One line of JSON: what differs from a plain run."""
        return json.dumps({f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default})

    def lines(self) -> tuple[str, ...]:
        """For people."""
        whole = f"{self.nodes} node(s), {self.least}:{self.most} in a group, a commit each {self.every} steps, " + (
            f"{self.total} steps in all" if self.total is not None else "some steps after the last fault"
        )
        more = ["clocks differ"] * self.skewed + [f"{self.loss:.0%} of requests are lost"] * bool(self.loss)
        return (", ".join((whole, *more)), *(f"  {s.sentence}" for s in self.strikes))


def _plain(value: Any) -> Any:
    return [dataclasses.astuple(s) if isinstance(s, Strike) else s for s in value] if isinstance(value, tuple) else value


def read(text: str) -> Setup:
    """What `Setup.text` wrote.

    Raises:
        ValueError, TypeError: it is not that.
    """
    body = json.loads(text)
    strikes, places = (tuple(body.get(k, ())) for k in ("strikes", "places"))
    return Setup(**{**body, "strikes": tuple(Strike(*s) for s in strikes), "places": places})


def setup(seed: int) -> Setup:
    """What the seed says: low caps in some runs, short patience in some."""
    r = random.Random(seed * 7919 + 1)
    nodes = r.choice((1, 2, 3, 3, 4))
    least = r.randint(1, nodes)
    strikes = drawn(r, nodes)
    more = random.Random(seed * 104729 + 3)
    return Setup(
        nodes=nodes,
        least=least,
        most=r.randint(least, nodes),
        total=r.choice((20, 60, 150)) if r.random() < 0.3 else None,
        every=r.choice((2, 5, 5, 12)),
        strikes=strikes,
        skewed=r.random() < 0.3,
        loss=0.0 if DELIBERATE.issuperset(s.fault for s in strikes) else 0.02,
        caps_total=3 if r.random() < 0.1 else 200,
        scale_up=r.choice(("at_checkpoint", "at_once", "off")),
        join_timeout_s=r.choice((20.0, 60.0, 600.0)),
        start_s=r.choice((8.0, 15.0)),
        start_over=r.random() < 0.8,
        keep=r.choice((1, 2, 3)),
        reach_steps=r.choice((0, 10, 40)),
        saves=more.random() < 0.7,
        places=tuple(more.choice(("", "r1", "r2", "p1.r1")) for _ in range(nodes)) if more.random() < 0.5 else (),
        drain_s=more.choice((1.0, 4.0, 12.0)),
        gather_s=more.choice((0.0, 1.0, 3.0)),
    )

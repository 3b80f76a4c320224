"""One look at the group, and each rank against its bounds: what the judge's rules read.

Law: a bound depends on what the late rank does (its phase, its habits, whether its CPU or I/O moves, what it asked for), never
on what its victims do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from elastic_health.liveness.facts import Phase, ProcState, RankFacts
from elastic_health.liveness.memory import JudgeMemory, is_gone, what
from elastic_health.liveness.waits import Wait
from elastic_health.policies import StallPolicy

LEAST_WARNING_S = 1.0
ENOUGH_HABIT = 20
# Phases in which minutes of silence are ordinary: no node is blamed for being slow in them.
PATIENT = (Phase.BOOT, Phase.INIT, Phase.COMPILE, Phase.CHECKPOINT, Phase.DONE)


@dataclass(frozen=True)
class Scene:
    """One look: everything that the rules below read.  `present`: measured and alive; `ended`: gone, in any way."""

    facts: Mapping[int, RankFacts]
    present: Mapping[int, RankFacts]
    ended: frozenset[int]
    unmeasured: tuple[int, ...]
    memory: JudgeMemory
    policy: StallPolicy
    now: float
    whole: bool

    def waiting(self, rank: int) -> bool:
        return rank in self.present and self.memory.ranks[rank].waiting

    def stalled_s(self, rank: int) -> float:
        fact = self.facts[rank]
        return self.memory.fact_age_s(fact, fact.progress_age_s, self.now)

    def idle_s(self, rank: int) -> float:
        fact = self.facts[rank]
        return self.memory.fact_age_s(fact, min(fact.progress_age_s, fact.busy_age_s), self.now)

    def waited_s(self, wait: Wait) -> float:
        """How long the first of the waiters has been held."""
        return max((self._held_s(rank, wait.group) for rank in wait.waiters), default=0.0)

    def together_s(self, wait: Wait) -> float:
        """How long all of the waiters have been inside, so since the last of them came."""
        return min((self._held_s(rank, wait.group) for rank in wait.waiters), default=0.0)

    def _held_s(self, rank: int, group: str) -> float:
        known = self.memory.ranks[rank].groups.get(group)
        return self.memory.age_s(known.moved_at, self.now - self.facts[rank].age_s) if known else 0.0


def scene_of(facts: tuple[RankFacts, ...], memory: JudgeMemory, policy: StallPolicy, now: float, world: int, whole: bool) -> Scene:
    by_rank = {f.rank: f for f in facts}
    ended = frozenset(rank for rank, fact in by_rank.items() if is_gone(fact))
    old_s = max(2.0, 4 * policy.heartbeat_s)
    present = {rank: fact for rank, fact in by_rank.items() if rank not in ended and fact.age_s <= old_s}
    everyone = set(by_rank) | set(range(world))
    unmeasured = tuple(sorted(everyone - set(present) - ended))
    return Scene(by_rank, present, ended, unmeasured, memory, policy, now, whole)


def bounds_s(scene: Scene, rank: int) -> tuple[float, float]:
    """How long this rank may keep the others waiting: while idle, and while its CPU or I/O moves."""
    fact, policy = scene.facts[rank], scene.policy
    if fact.bound_hint_s > 0:
        return fact.bound_hint_s, fact.bound_hint_s
    if rank not in scene.ended and (not scene.memory.ranks[rank].started or fact.phase in PATIENT):
        return policy.start_after_s, policy.start_after_s
    key, habits = what(fact), scene.memory.habits
    busy_s = habits.bound_s(f"{key}:busy", policy.busy_after_s, policy.adapt_factor, policy.start_after_s)
    if fact.phase is Phase.EVAL or fact.proc is ProcState.DISK:
        return busy_s, busy_s
    idle_s = habits.bound_s(f"{key}:idle", policy.stall_after_s, policy.adapt_factor, policy.busy_after_s)
    return idle_s, max(idle_s, busy_s)


def warning_s(bound_s: float) -> float:
    return min(bound_s, max(LEAST_WARNING_S, bound_s / 2))


class Stage(Enum):
    """LATE: past the bound of an idle rank, but seen to work."""

    FINE = "fine"
    LATE = "late"
    WARNING = "warning"
    FINAL = "final"


@dataclass(frozen=True)
class Lateness:
    """One rank against its bounds: `measured_s` of `bound_s`."""

    rank: int
    stage: Stage
    measured_s: float
    bound_s: float


def lateness(scene: Scene, rank: int, late_s: float) -> Lateness:
    """`late_s`: how long this rank has held up something, whatever it does meanwhile."""
    idle_bound_s, busy_bound_s = bounds_s(scene, rank)
    idle_s = late_s if rank in scene.ended else min(late_s, scene.idle_s(rank))
    if late_s >= busy_bound_s:
        return Lateness(rank, Stage.FINAL, late_s, busy_bound_s)
    if idle_s >= idle_bound_s:
        return Lateness(rank, Stage.FINAL, idle_s, idle_bound_s)
    if idle_s >= warning_s(idle_bound_s):
        return Lateness(rank, Stage.WARNING, idle_s, idle_bound_s)
    if late_s >= warning_s(busy_bound_s):
        return Lateness(rank, Stage.WARNING, late_s, busy_bound_s)
    return Lateness(rank, Stage.LATE if late_s >= scene.policy.stall_after_s else Stage.FINE, late_s, busy_bound_s)


def lateness_alone(scene: Scene, rank: int) -> Lateness:
    """An idle process that nobody waits for may just be done: the short bound is for scripts that tell their steps, and went
    through enough of them."""
    fact, policy = scene.facts[rank], scene.policy
    idle_bound_s, busy_bound_s = bounds_s(scene, rank)
    told = fact.steps >= 0 and scene.memory.habits.of(f"{what(fact)}:idle").total >= ENOUGH_HABIT
    ending = bool(scene.ended) or (scene.memory.ranks[rank].had_groups and not fact.frontier)
    if fact.bound_hint_s <= 0:
        idle_bound_s = max(idle_bound_s, policy.start_after_s if ending else idle_bound_s if told else policy.busy_after_s)
        busy_bound_s = max(busy_bound_s, idle_bound_s)
    stalled_s, idle_s = scene.stalled_s(rank), scene.idle_s(rank)
    measured_s, bound_s = (stalled_s, busy_bound_s) if stalled_s >= busy_bound_s else (idle_s, idle_bound_s)
    stage = Stage.FINAL if measured_s >= bound_s else Stage.WARNING if measured_s >= warning_s(bound_s) else Stage.FINE
    return Lateness(rank, stage, measured_s, bound_s)


def collective_bound_s(scene: Scene, held: tuple[Wait, ...]) -> float:
    """For an operation that all have entered.  On a device it may stand behind minutes of queued work, so it gets longer."""
    policy = scene.policy
    ranks = [rank for wait in held for rank in wait.waiters]
    own_s = [bounds_s(scene, rank)[0] for rank in ranks if rank in scene.present]
    queued = any("nccl" in wait.op.lower() for wait in held)
    floor_s = policy.busy_after_s if queued else policy.stall_after_s
    return max(scene.memory.habits.bound_s("collective", floor_s, policy.adapt_factor, policy.busy_after_s), *own_s)



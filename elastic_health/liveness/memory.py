"""What the judge remembers from one look to the next: when each marker last moved, and when the judge itself was away.

Law: an age counts only time in which the judge was looking.  A gap between two looks (the observer was stopped, the machine
was suspended) is taken off every age that spans it, and for one beat after it nothing is judged final.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass, field, replace

from elastic_health.liveness.bounds import Habits
from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState, RankFacts
from elastic_health.policies import StallPolicy

KEPT_GAPS = 16
LEAST_GAP_S = 2.0
LEAST_BEAT_S = 1.0
STARTED_ACTIVITY = 2
STARTED_COLLECTIVES = 16


@dataclass(frozen=True)
class GroupMemory:
    """One group of one rank: its sequence numbers, and when they last moved."""

    enqueued: int
    completed: int
    moved_at: float


@dataclass(frozen=True)
class RankMemory:
    """One rank.  `idle_peak_s` is the longest idle time since its last progress; `key` names what it was doing."""

    pid: int
    progress_at: float
    groups: Mapping[str, GroupMemory]
    started: bool
    first_steps: int
    waiting: bool
    stopped_at: float | None = None
    idle_peak_s: float = 0.0
    key: str = ""
    had_groups: bool = False


@dataclass(frozen=True)
class JudgeMemory:
    """Opaque to callers, except `habits` (worth storing with the run) and `first_seen` (by a finding's identity)."""

    generation: int = 0
    looked_at: float | None = None
    away: tuple[tuple[float, float], ...] = ()
    quiet_until: float = float("-inf")
    ranks: Mapping[int, RankMemory] = field(default_factory=dict)
    members: Mapping[str, frozenset[int]] = field(default_factory=dict)
    habits: Habits = field(default_factory=Habits)
    first_seen: Mapping[str, float] = field(default_factory=dict)

    def age_s(self, since: float, now: float) -> float:
        """Seconds from `since` to `now` without the time in which nobody looked."""
        lost = sum(max(0.0, min(end, now) - max(start, since)) for start, end in self.away)
        return max(0.0, now - since - lost)

    def fact_age_s(self, fact: RankFacts, age_s: float, now: float) -> float:
        """An age out of `fact`, as of the moment when the fact was taken (what happened since isn't known)."""
        taken_at = now - fact.age_s
        return self.age_s(taken_at - age_s, taken_at)


def is_gone(facts: RankFacts) -> bool:
    return facts.proc in (ProcState.GONE, ProcState.ZOMBIE)


def look(memory: JudgeMemory, facts: Iterable[RankFacts], policy: StallPolicy, now: float) -> JudgeMemory:
    """The memory after this look: gaps of the observer, markers that moved, durations learned."""
    facts = tuple(facts)
    generation = max((f.generation for f in facts), default=memory.generation)
    if generation != memory.generation:
        memory = JudgeMemory(generation, memory.looked_at, memory.away, memory.quiet_until, habits=memory.habits)
    memory = _noticed_gap(memory, policy, now)
    learned: dict[str, list[float]] = {}
    ranks = dict(memory.ranks)
    everyone_waited = bool(memory.ranks) and all(m.waiting for m in memory.ranks.values())
    for fact in facts:
        before = memory.ranks.get(fact.rank)
        if before is not None and before.pid == fact.pid:
            _learn(learned, memory, before, fact, everyone_waited, now)
        else:
            before = None
        ranks[fact.rank] = _seen(memory, before, fact, now)
    return replace(memory, looked_at=now, ranks=ranks, members=_members(memory, facts), habits=memory.habits.learn(learned))


def _noticed_gap(memory: JudgeMemory, policy: StallPolicy, now: float) -> JudgeMemory:
    if memory.looked_at is None or now - memory.looked_at <= max(LEAST_GAP_S, 4 * policy.heartbeat_s):
        return memory
    away = (*memory.away, (memory.looked_at, now))[-KEPT_GAPS:]
    return replace(memory, away=away, quiet_until=now + max(LEAST_BEAT_S, 2 * policy.heartbeat_s))


def _seen(memory: JudgeMemory, before: RankMemory | None, fact: RankFacts, now: float) -> RankMemory:
    progress_at = now - fact.age_s - fact.progress_age_s
    moved = before is None or _moved(before, progress_at)
    idle_s = memory.fact_age_s(fact, min(fact.progress_age_s, fact.busy_age_s), now)
    stopped = fact.proc is ProcState.STOPPED
    return RankMemory(
        pid=fact.pid,
        progress_at=progress_at,
        groups=_groups(before, fact, memory.looked_at, now),
        started=has_started(before, fact),
        first_steps=fact.steps if before is None or before.first_steps < 0 else before.first_steps,
        waiting=fact.waiting or any(g.enqueued > g.completed for g in fact.frontier),
        stopped_at=(now if before is None or before.stopped_at is None else before.stopped_at) if stopped else None,
        idle_peak_s=idle_s if moved or before is None else max(before.idle_peak_s, idle_s),
        key=what(fact),
        had_groups=bool(fact.frontier) or (before is not None and before.had_groups),
    )


def _moved(before: RankMemory, progress_at: float) -> bool:
    return progress_at > before.progress_at + 0.01  # ages are rounded and clocks jitter


def _groups(before: RankMemory | None, fact: RankFacts, looked_at: float | None, now: float) -> dict[str, GroupMemory]:
    out = {}
    for group in fact.frontier:
        known = before.groups.get(group.group) if before else None
        if known is None or (known.enqueued, known.completed) != (group.enqueued, group.completed):
            # It moved since the last look; the newest move of all groups is a lower limit for how long ago.
            moved_at = now - fact.age_s - fact.frontier_age_s
            if looked_at is not None and known is not None:
                moved_at = max(moved_at, looked_at)
            known = GroupMemory(group.enqueued, group.completed, moved_at)
        out[group.group] = known
    return out


def has_started(before: RankMemory | None, fact: RankFacts) -> bool:
    """Has this rank done real work in this process, so that silence means something?

    Two optimizer steps, or a step told since we look, or (for a script that has neither) a run of collectives.
    """
    if before is not None and before.started:
        return True
    if fact.activity >= STARTED_ACTIVITY:
        return True
    if fact.steps >= 0 and before is not None and fact.steps > before.first_steps >= 0:
        return True
    return fact.steps < 0 and fact.activity <= 0 and any(g.completed >= STARTED_COLLECTIVES for g in fact.frontier)


def what(fact: RankFacts) -> str:
    """The key under which this rank's durations are learned: its phase, with the script's own unnamed one as a step."""
    return Phase.STEP.value if fact.phase is Phase.SCRIPT else fact.phase.value


def _learn(
    learned: dict[str, list[float]], memory: JudgeMemory, before: RankMemory, fact: RankFacts, everyone_waited: bool, now: float
) -> None:
    progress_at = now - fact.age_s - fact.progress_age_s
    if not (before.started and _moved(before, progress_at)):
        return
    gap_s = memory.age_s(before.progress_at, now) - memory.age_s(progress_at, now)
    if before.waiting:
        if everyone_waited:
            learned.setdefault("collective", []).append(gap_s)
        return
    learned.setdefault(f"{before.key}:idle", []).append(min(gap_s, before.idle_peak_s))
    learned.setdefault(f"{before.key}:busy", []).append(gap_s)


def _members(memory: JudgeMemory, facts: Iterable[RankFacts]) -> Mapping[str, frozenset[int]]:
    """Ranks of each group, from all that were ever told.  What is known already costs one look a rank."""
    grown: dict[str, set[int]] = {}
    for fact in facts:
        for group in fact.frontier:
            known = grown.get(group.group) or memory.members.get(group.group, frozenset())
            if fact.rank not in known or not _covered(known, group):
                grown.setdefault(group.group, set(known)).update((fact.rank, *group.told()))
    return {**memory.members, **{name: frozenset(ranks) for name, ranks in grown.items()}} if grown else memory.members


def _covered(known: AbstractSet[int], group: GroupFrontier) -> bool:
    """By its ends and its size: one name stands for one set of ranks."""
    return not group.size or (group.size <= len(known) and all(rank in known for rank in group.first_last))

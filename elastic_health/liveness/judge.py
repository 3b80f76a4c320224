"""Is the group making progress, and if not, who holds it up?  Facts to findings, warnings before final ones.

Law: only origins are named.  A rank inside a collective is a victim; a rank whose facts are old is not measured; a heartbeat
proves a thread and never excuses silence; work that is seen to move (CPU, I/O) buys time, up to a wider bound.

Two stages: at half of its bound a finding comes with `final=False` (time to take evidence, the operation may still end), past
its bound with `final=True`.  All ages are seconds; `Finding.at` is when it was first seen, on the clock of `now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elastic_health.findings import Finding, FindingKind
from elastic_health.liveness.facts import ProcState, RankFacts, settled
from elastic_health.liveness.memory import JudgeMemory, look
from elastic_health.liveness.scene import (
    LEAST_WARNING_S,
    PATIENT,
    Lateness,
    Scene,
    Stage,
    collective_bound_s,
    lateness,
    lateness_alone,
    scene_of,
    warning_s,
)
from elastic_health.liveness.waits import Wait, lagging, mismatches, waits
from elastic_health.policies import StallPolicy


def judge(
    facts: Iterable[RankFacts], memory: JudgeMemory, policy: StallPolicy, now: float, world: int = 0
) -> tuple[JudgeMemory, tuple[Finding, ...]]:
    """The whole group, in the rank-0 agent.

    Args:
        facts: newest facts of every rank, ended ones included (`proc` GONE); `age_s` set to how long ago they came in.
        memory: what the last call returned; `JudgeMemory()` at first.  A new generation starts afresh but for its habits.
        now: seconds on a monotonic clock.  Look at least once a second: after more than 2 s (or 4 heartbeats) the observer itself
            counts as having been away.
        world: number of ranks, where some may have sent no facts yet (0: as many as there are facts).

    Returns:
        The memory for the next call, and the findings, first seen first.  Log and act when `Finding.identity` is new.
    """
    return _judge(tuple(facts), memory, policy, now, world, whole=True)


def judge_local(
    facts: Iterable[RankFacts], memory: JudgeMemory, policy: StallPolicy, now: float
) -> tuple[JudgeMemory, tuple[Finding, ...]]:
    """One node's ranks alone, in its own agent.  What only the whole group can tell (all stuck, nobody lags) is left out."""
    return _judge(tuple(facts), memory, policy, now, 0, whole=False)


def _judge(
    facts: tuple[RankFacts, ...], memory: JudgeMemory, policy: StallPolicy, now: float, world: int, whole: bool
) -> tuple[JudgeMemory, tuple[Finding, ...]]:
    generation = max((f.generation for f in facts), default=memory.generation)
    facts = tuple(settled(f) for f in facts if f.generation == generation)
    memory = look(memory, facts, policy, now)
    scene = scene_of(facts, memory, policy, now, world, whole)
    found = () if now < memory.quiet_until else _findings(scene)
    first_seen = {f.identity: memory.first_seen.get(f.identity, now) for f in found}
    dated = sorted((replace(f, at=first_seen[f.identity]) for f in found), key=lambda f: (f.at, not f.final))
    return replace(memory, first_seen=first_seen), tuple(dated)


def _findings(scene: Scene) -> tuple[Finding, ...]:
    found = [*_stopped(scene)]
    held = waits({rank: fact for rank, fact in scene.facts.items() if rank not in scene.unmeasured}, scene.memory.members)
    held = tuple(wait for wait in held if any(rank in scene.present for rank in wait.waiters))
    stopped = {rank for rank, fact in scene.present.items() if fact.proc is ProcState.STOPPED}
    if not held:
        found += _silent(scene, stopped)
    else:
        origins = {rank for wait in held for rank in wait.missing if not scene.waiting(rank)} - stopped
        found += _missing(scene, held, origins)
        if not origins and not stopped:
            found += _no_origin(scene, held)
    if found and scene.unmeasured:
        found.append(_not_measured(scene))
    return tuple(found)


# ---- rules


def _stopped(scene: Scene) -> list[Finding]:
    """A stopped process (SIGSTOP, a debugger) is the origin wherever it stands, in any phase."""
    found: dict[bool, list[int]] = {}
    ages = {}
    for rank, fact in sorted(scene.present.items()):
        since = scene.memory.ranks[rank].stopped_at
        if since is None:
            continue
        # Its heartbeat thread stopped with it, so the stop may be older than our first look at it.
        silent_s = min(fact.heartbeat_age_s or 0.0, fact.progress_age_s)
        ages[rank] = max(scene.memory.age_s(since, scene.now), scene.memory.fact_age_s(fact, silent_s, scene.now))
        if ages[rank] >= warning_s(scene.policy.stall_after_s):
            found.setdefault(ages[rank] >= scene.policy.stall_after_s, []).append(rank)
    return [
        _finding(scene, FindingKind.PROCESS_STOPPED, ranks, final, max(ages[r] for r in ranks), scene.policy.stall_after_s, "is stopped")
        for final, ranks in found.items()
    ]


def _missing(scene: Scene, held: tuple[Wait, ...], origins: set[int]) -> list[Finding]:
    """Ranks that have not entered what the others wait in, and don't wait themselves."""
    stages: dict[Stage, list[tuple[Lateness, Wait]]] = {}
    for rank in sorted(origins):
        wait = max((w for w in held if rank in w.missing), key=scene.waited_s)
        waited_s = scene.waited_s(wait)
        late_s = waited_s if rank in scene.ended else min(waited_s, scene.stalled_s(rank))
        if late_s < waited_s and _long_useless(scene, rank, wait):
            late_s = waited_s
        late = lateness(scene, rank, late_s)
        if late.stage is not Stage.FINE:
            stages.setdefault(late.stage, []).append((late, wait))
    return [_missing_finding(scene, stage, who) for stage, who in stages.items()]


def _long_useless(scene: Scene, rank: int, wait: Wait) -> bool:
    """Markers move (say, of a background group), but neither side has done useful work for as long as a start may take."""
    limit_s = scene.policy.start_after_s
    if scene.waited_s(wait) < limit_s:
        return False
    return all(min(f.step_age_s, f.activity_age_s, f.phase_age_s) >= limit_s for f in (scene.facts[r] for r in (rank, *wait.waiters)))


def _missing_finding(scene: Scene, stage: Stage, who: list[tuple[Lateness, Wait]]) -> Finding:
    worst, wait = max(who, key=lambda pair: pair[0].measured_s - pair[0].bound_s)
    ranks = [late.rank for late, _ in who]
    entered = {r: next((g.enqueued for g in scene.facts[r].frontier if g.group == wait.group), -1) for r in ranks}
    text = f"has not entered operation {wait.seq} of group {wait.group or 'default'} in which {len(wait.waiters)} ranks wait"
    kind = FindingKind.LATE if stage is Stage.LATE else FindingKind.NEVER_ENTERED
    extra = {
        "group": wait.group,
        "seq": wait.seq,
        "op": wait.op,
        "waiting": list(wait.waiters),
        "entered": {str(r): seq for r, seq in entered.items()},
        "ended": [r for r in ranks if r in scene.ended],
    }
    return _finding(scene, kind, ranks, stage is Stage.FINAL, worst.measured_s, worst.bound_s, text, extra)


def _no_origin(scene: Scene, held: tuple[Wait, ...]) -> list[Finding]:
    """Nobody outside is missing: other operations at the same number, waits in a circle, or all arrived and none completed."""
    odd = mismatches(scene.present)
    if odd:
        first = odd[0]
        at = dict(first.ops)
        return _mismatch(scene, Wait(first.group, first.seq, tuple(at), ()), first.odd, at, held)
    if scene.unmeasured or not scene.whole:
        return []
    outside = [rank for rank in scene.present if not scene.waiting(rank) and not _belongs(scene, rank, held)]
    if any(scene.stalled_s(rank) >= LEAST_WARNING_S for rank in outside):
        return _outside(scene, outside, held[0])
    stuck = [wait for wait in held if not wait.missing]
    if stuck:
        return _all_stuck(scene, max(stuck, key=scene.together_s), held, bool(outside))
    missing = tuple(sorted({rank for wait in held for rank in wait.missing}))
    at = {rank: g.group for rank in missing for g in scene.present[rank].frontier if g.enqueued > g.completed}
    return _mismatch(scene, min(held, key=scene.together_s), missing, at, held)


def _all_stuck(scene: Scene, wait: Wait, held: tuple[Wait, ...], others_go_on: bool) -> list[Finding]:
    """Others that get on with it need this group less, or later: then it gets the wider bound."""
    waited_s, bound_s = scene.together_s(wait), collective_bound_s(scene, held)
    if others_go_on:
        bound_s = max(bound_s, scene.policy.busy_after_s)
    if waited_s < warning_s(bound_s):
        return []
    text = f"all {len(wait.waiters)} ranks entered operation {wait.seq} of group {wait.group or 'default'} and none completed it"
    extra = {"group": wait.group, "seq": wait.seq, "op": wait.op, "waiting": list(wait.waiters)}
    return [_finding(scene, FindingKind.ALL_STUCK, [], waited_s >= bound_s, waited_s, bound_s, text, extra)]


def _belongs(scene: Scene, rank: int, held: tuple[Wait, ...]) -> bool:
    return any(rank in scene.memory.members.get(wait.group, ()) for wait in held)


def _outside(scene: Scene, idle: list[int], wait: Wait) -> list[Finding]:
    """Ranks that wait for nothing and are in no group that is held: one of them may be a member that never used its group."""
    found: dict[Stage, list[tuple[Lateness, Wait]]] = {}
    for rank in idle:
        late = lateness(scene, rank, min(scene.stalled_s(rank), scene.waited_s(wait)))
        if late.stage in (Stage.WARNING, Stage.FINAL):
            found.setdefault(late.stage, []).append((late, wait))
    return [_missing_finding(scene, stage, who) for stage, who in found.items()]


def _mismatch(scene: Scene, wait: Wait, odd: tuple[int, ...], at: Mapping[int, str], held: tuple[Wait, ...]) -> list[Finding]:
    """`at`: for each rank the operation, or the group, that it stands in."""
    waited_s, bound_s = scene.together_s(wait), collective_bound_s(scene, held)
    if waited_s < warning_s(bound_s):
        return []
    text = f"stands at another operation than the others (group {wait.group or 'default'}, operation {wait.seq})"
    extra = {"group": wait.group, "seq": wait.seq, "at": {str(rank): where for rank, where in at.items()}}
    return [_finding(scene, FindingKind.MISMATCHED_COLLECTIVES, list(odd), waited_s >= bound_s, waited_s, bound_s, text, extra)]


def _silent(scene: Scene, stopped: set[int]) -> list[Finding]:
    """Nobody waits for anybody, and some make no progress: each against its own habits."""
    late = [lateness_alone(scene, rank) for rank in sorted(scene.present) if rank not in stopped]
    stages: dict[Stage, list[Lateness]] = {}
    for one in late:
        if one.stage in (Stage.WARNING, Stage.FINAL):
            stages.setdefault(one.stage, []).append(one)
    behind, lead = lagging({rank: fact for rank, fact in scene.facts.items() if rank not in scene.unmeasured})
    found = []
    for stage, who in stages.items():
        if behind and scene.whole and set(behind) & {one.rank for one in who}:
            wait = Wait("0", lead, tuple(sorted(set(scene.present) - set(behind))), behind)
            found.append(_missing_finding(scene, stage, [(one, wait) for one in who if one.rank in behind]))
        else:
            found.append(_silent_finding(scene, stage, who))
    return found


def _silent_finding(scene: Scene, stage: Stage, who: list[Lateness]) -> Finding:
    worst = max(who, key=lambda one: one.measured_s)
    dumb = [one.rank for one in who if (scene.facts[one.rank].heartbeat_age_s or 0.0) >= scene.policy.stall_after_s]
    kind = FindingKind.NO_HEARTBEAT if len(dumb) == len(who) else FindingKind.NO_PROGRESS
    text = "makes no progress and nobody waits for it in a collective"
    return _finding(scene, kind, [one.rank for one in who], stage is Stage.FINAL, worst.measured_s, worst.bound_s, text)


def _not_measured(scene: Scene) -> Finding:
    nodes = tuple(sorted({scene.facts[r].node for r in scene.unmeasured if r in scene.facts}))
    return Finding(FindingKind.NOT_MEASURED, "no fresh facts: not judged", ranks=scene.unmeasured, nodes=nodes, final=False)


# ---- words


def _finding(
    scene: Scene,
    kind: FindingKind,
    ranks: list[int],
    final: bool,
    measured_s: float,
    bound_s: float,
    text: str,
    extra: Mapping[str, object] | None = None,
) -> Finding:
    who = [scene.facts[r] for r in ranks if r in scene.facts]
    blamed = tuple(sorted({f.node for f in who if f.phase not in PATIENT}))
    named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}{' …' if len(ranks) > 8 else ''}"
    reason = f"{named} {text} for {measured_s:.1f} s (bound {bound_s:.1f} s)" if ranks else f"{text} for {measured_s:.1f} s"
    seen = {str(f.rank): _seen_of(f) for f in who[:8]}
    evidence = {**(extra or {}), "seen": seen}
    return Finding(kind, reason, tuple(ranks), blamed, measured=measured_s, required=bound_s, unit="s", final=final, evidence=evidence)


def _seen_of(fact: RankFacts) -> dict[str, object]:
    return {
        "phase": fact.phase.value,
        "proc": fact.proc.value,
        "step": fact.steps,
        "progress_age_s": round(fact.progress_age_s, 3),
        "busy_age_s": round(fact.busy_age_s, 3),
        "heartbeat_age_s": None if fact.heartbeat_age_s is None else round(fact.heartbeat_age_s, 3),
    }

"""Whole runs on paper: healthy ones are never accused, whoever stops is found in time and alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.findings import FindingKind
from elastic_health.liveness.facts import GroupFrontier
from elastic_health.liveness.judge import judge
from elastic_health.liveness.memory import JudgeMemory
from elastic_health.policies import StallPolicy
from tests.liveness.world import NEVER, Plan, facts, finals, run, watch

POLICY = StallPolicy(stall_after_s=5.0, busy_after_s=30.0)
LOOK_S = 0.5


@st.composite
def plans(draw: st.DrawFn, longest_s: float, busy: bool) -> Plan:
    world = draw(st.integers(1, 4))
    steps = draw(st.integers(4, 14))
    duration = st.floats(0.01, longest_s)
    rows = draw(st.lists(st.tuples(*[duration] * world), min_size=steps, max_size=steps))
    return Plan(tuple(rows), busy=busy)


@pytest.mark.spec("L5")
@settings(max_examples=40, deadline=None)
@given(plans(longest_s=4.9, busy=False), st.floats(0.0, 0.5))
def test_a_healthy_run_with_idle_gaps_below_the_bound_is_never_accused(plan: Plan, start: float) -> None:
    timeline = run(plan)
    assert finals(watch(timeline, timeline.end, POLICY, LOOK_S, start)) == []


@pytest.mark.spec("L5")
@settings(max_examples=40, deadline=None)
@given(plans(longest_s=29.0, busy=True), st.floats(0.0, 0.5))
def test_a_healthy_run_that_works_below_the_wider_bound_is_never_accused(plan: Plan, start: float) -> None:
    timeline = run(plan)
    assert finals(watch(timeline, timeline.end, POLICY, LOOK_S, start)) == []


@pytest.mark.spec("L8")
@settings(max_examples=40, deadline=None)
@given(st.data(), st.booleans())
def test_whoever_stops_is_found_in_time_and_alone(data: st.DataObject, busy: bool) -> None:
    world = data.draw(st.integers(2, 5))
    culprit = data.draw(st.integers(0, world - 1))
    rows = data.draw(st.lists(st.tuples(*[st.floats(0.05, 0.6)] * world), min_size=12, max_size=12))
    stop = data.draw(st.floats(3.0, 3.0 + sum(map(max, rows[5:]))))
    plan = Plan(tuple(rows), busy, tuple(stop if r == culprit else NEVER for r in range(world)))
    timeline = run(plan)
    if timeline.end != NEVER:
        return  # it stopped after its last step
    waited_from = min(timeline.enters[-1])
    found = finals(watch(timeline, waited_from + 8.0, POLICY, LOOK_S))
    at, first = found[0]
    assert first.ranks == (culprit,) and first.kind is FindingKind.NEVER_ENTERED
    # Idle habits below 0.6 s don't widen the bound: 4 × 0.6 s with a bucket's error is under 5 s.
    assert waited_from + POLICY.stall_after_s - 0.01 <= at <= max(waited_from, stop) + POLICY.stall_after_s + LOOK_S + 0.01
    assert {f.ranks for _, f in found} == {(culprit,)}


@settings(max_examples=30, deadline=None)
@given(st.floats(3.0, 8.0), st.floats(2.1, 30.0))
def test_a_stopped_observer_accuses_nobody(when: float, length: float) -> None:
    plan = Plan(tuple(((0.3, 0.4),) * 100))
    timeline = run(plan)
    looks = watch(timeline, timeline.end, POLICY, LOOK_S, away=lambda t: when <= t < when + length)
    assert not [f for _, found in looks for f in found]


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 4.5))
def test_habits_of_idle_steps_widen_the_bound(pause_s: float) -> None:
    """Thirty steps that idle for `pause_s`, then one that idles for 2.2 times as long: unusual, but no stall."""
    plan = Plan((((pause_s, pause_s),) * 30) + ((pause_s, 2.2 * pause_s),), busy=False)
    timeline = run(plan)
    assert finals(watch(timeline, timeline.end, POLICY, LOOK_S)) == []


@pytest.mark.spec("L3", "L8")
def test_recorded_gloo_frontiers_name_the_rank_that_skipped(cases: Path) -> None:
    """Real dumps of three gloo ranks: rank 2 skipped all_reduce 5; the others gave up, so nothing is open any more."""
    group = [_from_dump(cases / "flight_recorder" / f"gloo213_rank{rank}.json", rank) for rank in range(3)]
    memory, found, at = JudgeMemory(), (), 0.0
    while at < 70.0 and not any(f.final for f in found):
        aged = [replace(f, progress_age_s=at, frontier_age_s=at, busy_age_s=at) for f in group]
        memory, found = judge(aged, memory, POLICY, 1000.0 + at)
        at += LOOK_S
    final = [f for f in found if f.final]
    assert [(f.kind, f.ranks) for f in final] == [(FindingKind.NEVER_ENTERED, (2,))]
    assert (final[0].evidence["seq"], final[0].evidence["entered"]) == (5, {"2": 4})


@pytest.mark.spec("L3", "L8")
def test_the_same_frontiers_while_the_others_still_wait(cases: Path) -> None:
    group = []
    for rank in range(3):
        dump = _from_dump(cases / "flight_recorder" / f"gloo213_rank{rank}.json", rank)
        open_ = tuple(replace(g, completed=4) if rank != 2 and g.group == "0" else g for g in dump.frontier)
        group.append(replace(dump, frontier=open_, waiting=rank != 2, progress_age_s=6.0, frontier_age_s=6.0, busy_age_s=6.0))
    _, found = judge(group, JudgeMemory(), POLICY, 1000.0)
    assert [(f.kind, f.ranks, f.final) for f in found] == [(FindingKind.NEVER_ENTERED, (2,), True)]
    assert (found[0].evidence["group"], found[0].evidence["seq"], found[0].evidence["waiting"]) == ("0", 5, [0, 1])


def _from_dump(path: Path, rank: int):  # type: ignore[no-untyped-def]
    status = json.loads(path.read_text())["pg_status"]
    frontier = tuple(
        GroupFrontier(name, int(entry["last_enqueued_collective"]), int(entry["last_completed_collective"]))
        for name, entry in sorted(status.items())
    )
    return facts(rank, frontier=frontier, waiting=False)

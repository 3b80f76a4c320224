"""Scenes: who is named, at which stage, and who is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_health.findings import Finding, FindingKind
from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState
from elastic_health.liveness.judge import judge, judge_local
from elastic_health.liveness.memory import JudgeMemory
from elastic_health.policies import StallPolicy
from tests.liveness.world import facts, held, idle, look_once

K = FindingKind
OTHER = GroupFrontier("tp", 7, 6, "gloo:all_gather")


def said(found: tuple[Finding, ...]) -> list[tuple[FindingKind, tuple[int, ...], bool]]:
    return [(f.kind, f.ranks, f.final) for f in found]


SCENES = {
    "healthy": ([facts(0), facts(1)], []),
    "a rank never entered": ([held(0, 6), held(1, 6), idle(2, 6)], [(K.NEVER_ENTERED, (2,), True)]),
    "a warning comes first": ([held(0, 3), held(1, 3), idle(2, 3)], [(K.NEVER_ENTERED, (2,), False)]),
    "not yet": ([held(0, 2), held(1, 2), idle(2, 2)], []),
    "it just finished something long": ([held(0, 30), held(1, 30), idle(2, 1)], []),
    "it is late but works": ([held(0, 20), held(1, 20), idle(2, 20, busy_age_s=0.3)], [(K.LATE, (2,), False)]),
    "it worked, then stopped": ([held(0, 30), held(1, 30), idle(2, 30, busy_age_s=6)], [(K.NEVER_ENTERED, (2,), True)]),
    "it works for too long": ([held(0, 61), held(1, 61), idle(2, 61, busy_age_s=0)], [(K.NEVER_ENTERED, (2,), True)]),
    "waits for the disk": ([held(0, 20), idle(1, 20, proc=ProcState.DISK)], [(K.LATE, (1,), False)]),
    "no entry at all": ([held(0, 6, seq=1), idle(1, 6, frontier=(), activity=9)], [(K.NEVER_ENTERED, (1,), True)]),
    "two are missing": ([held(0, 6), idle(1, 6), idle(2, 7)], [(K.NEVER_ENTERED, (1, 2), True)]),
    "all stuck": ([held(0, 6), held(1, 7)], [(K.ALL_STUCK, (), True)]),
    "all stuck, on a device": ([held(0, 6, op="nccl:all_reduce"), held(1, 6, op="nccl:all_reduce")], []),
    "other operations at the same number": (
        [held(0, 6), held(1, 6), held(2, 6, op="gloo:broadcast")],
        [(K.MISMATCHED_COLLECTIVES, (2,), True)],
    ),
    "one against one": ([held(0, 6), held(1, 6, op="gloo:broadcast")], [(K.MISMATCHED_COLLECTIVES, (0, 1), True)]),
    "send and receive are one thing": ([held(0, 2.6, op="gloo:send"), held(1, 2.6, op="gloo:recv")], [(K.ALL_STUCK, (), False)]),
    "stopped outside": ([held(0, 6), idle(1, 6, proc=ProcState.STOPPED, heartbeat_age_s=6.0)], [(K.PROCESS_STOPPED, (1,), True)]),
    "stopped inside": ([held(0, 6), held(1, 6, proc=ProcState.STOPPED, heartbeat_age_s=6.0)], [(K.PROCESS_STOPPED, (1,), True)]),
    "stopped while saving": (
        [held(0, 6), idle(1, 6, proc=ProcState.STOPPED, heartbeat_age_s=6.0, phase=Phase.CHECKPOINT)],
        [(K.PROCESS_STOPPED, (1,), True)],
    ),
    "alone, silent, without steps told": ([idle(0, 20, steps=-1)], []),
    "alone, silent for long": ([idle(0, 61, steps=-1)], [(K.NO_PROGRESS, (0,), True)]),
    "alone, no heartbeat either": ([idle(0, 61, heartbeat_age_s=61.0)], [(K.NO_HEARTBEAT, (0,), True)]),
    "all outside collectives": ([idle(0, 61), idle(1, 62)], [(K.NO_PROGRESS, (0, 1), True)]),
    "one ended, the other still tidies up": ([facts(0, proc=ProcState.GONE), idle(1, 200)], []),
    "one ended before it entered": ([idle(0, 9, proc=ProcState.GONE), held(1, 6)], [(K.NEVER_ENTERED, (0,), True)]),
    "two take their interpreters apart, their pages as they were last": (
        [held(0, 30, seq=140, phase=Phase.DONE), held(1, 31, seq=139, op="gloo:broadcast", phase=Phase.DONE)],
        [],
    ),
    "one is done, and another still needs it": (
        [idle(0, 700, phase=Phase.DONE, proc=ProcState.GONE), held(1, 6)],
        [(K.NEVER_ENTERED, (0,), True)],
    ),
    "its facts are old": ([held(0, 6), idle(1, 6, age_s=9.0)], []),
    "its facts are old, another is missing": (
        [held(0, 6), idle(1, 6, age_s=9.0), idle(2, 6)],
        [(K.NEVER_ENTERED, (2,), True), (K.NOT_MEASURED, (1,), False)],
    ),
    "before the first progress": (
        [held(0, 100, seq=2, activity=0, steps=-1), idle(1, 100, frontier=(), activity=0, steps=-1)],
        [(K.LATE, (1,), False)],
    ),
    "a start that never ends": (
        [held(0, 601, seq=2, activity=0, steps=-1), idle(1, 601, frontier=(), activity=0, steps=-1)],
        [(K.NEVER_ENTERED, (1,), True)],
    ),
    "saving": ([held(0, 100), idle(1, 100, phase=Phase.CHECKPOINT)], [(K.LATE, (1,), False)]),
    "compiling": ([held(0, 100), idle(1, 100, phase=Phase.COMPILE)], [(K.LATE, (1,), False)]),
    "evaluating": ([held(0, 20), idle(1, 20, phase=Phase.EVAL)], [(K.LATE, (1,), False)]),
    "evaluating for too long": ([held(0, 61), idle(1, 61, phase=Phase.EVAL)], [(K.NEVER_ENTERED, (1,), True)]),
    "a bound of its own, kept": ([held(0, 100), idle(1, 100, bound_hint_s=300.0)], [(K.LATE, (1,), False)]),
    "a bound of its own, broken": ([held(0, 3), idle(1, 3, bound_hint_s=2.0)], [(K.NEVER_ENTERED, (1,), True)]),
    "a script with collectives only": (
        [held(0, 6, activity=0, steps=-1), idle(1, 6, activity=0, steps=-1)],
        [(K.NEVER_ENTERED, (1,), True)],
    ),
}


@pytest.mark.spec("L8")
@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str) -> None:
    group, expected = SCENES[name]
    assert said(look_once(group)) == expected


def test_a_victim_of_a_victim_is_not_named() -> None:
    """Rank 1 waits in a small group for rank 2, so rank 0, who waits for rank 1, waits for rank 2 as well."""
    one = held(1, 6, frontier=(GroupFrontier("0", 100, 100), GroupFrontier("tp", 7, 6, ranks=(1, 2))))
    two = idle(2, 6, frontier=(GroupFrontier("0", 100, 100), GroupFrontier("tp", 6, 6, ranks=(1, 2))))
    assert said(look_once([held(0, 6), one, two])) == [(K.NEVER_ENTERED, (2,), True)]


def test_waits_in_a_circle_are_mismatched() -> None:
    """Both wait, each in a group that the other has not entered: no one is slow, the order differs."""
    first = held(0, 6, frontier=(GroupFrontier("a", 5, 4), GroupFrontier("b", 2, 2)))
    second = held(1, 6, frontier=(GroupFrontier("a", 4, 4), GroupFrontier("b", 3, 2)))
    assert said(look_once([first, second])) == [(K.MISMATCHED_COLLECTIVES, (0, 1), True)]


def test_a_member_that_never_used_its_group_is_found() -> None:
    """The recorder of a rank that never launched on a group has no entry for it and looks idle."""
    group = [held(r, 6, frontier=(GroupFrontier("0", 100, 100), GroupFrontier("pp", 1, 0))) for r in (0, 1)]
    assert said(look_once([*group, idle(2, 6)])) == [(K.NEVER_ENTERED, (2,), True)]
    working = [*group, idle(2, 6, busy_age_s=0.2)]
    assert said(look_once(working)) == []


def test_a_small_group_stuck_among_ranks_that_go_on() -> None:
    group = [held(r, 61, frontier=(GroupFrontier("pp", 9, 8),)) for r in (0, 1)]
    assert said(look_once([*group, facts(2)])) == [(K.ALL_STUCK, (), True)]


@pytest.mark.spec("L8")
def test_the_evidence_says_where_each_stood() -> None:
    (found,) = look_once([held(0, 6), held(1, 6.5), idle(2, 7)])
    assert (found.nodes, found.unit, found.required) == (("node2",), "s", 5.0)
    assert found.measured == pytest.approx(6.5)
    assert {k: found.evidence[k] for k in ("group", "seq", "op", "waiting", "entered")} == {
        "group": "0",
        "seq": 101,
        "op": "gloo:all_reduce",
        "waiting": [0, 1],
        "entered": {"2": 100},
    }
    assert "rank 2 has not entered operation 101" in found.reason


@pytest.mark.spec("L5")
def test_slow_saves_blame_no_node() -> None:
    """ai2cm/ace#851, OpenRLHF/OpenRLHF#1126, huggingface/accelerate#2912: rank 0 saves slowly while the others wait."""
    for age_s, final in ((30.0, False), (599.0, False), (601.0, True)):
        for found in look_once([idle(0, age_s, phase=Phase.CHECKPOINT), held(1, age_s), held(2, age_s)]):
            assert found.ranks == (0,) and found.nodes == () and found.final is final


@pytest.mark.spec("L1")
def test_a_heartbeat_never_vetoes() -> None:
    fresh, none = (look_once([held(0, 6), idle(1, 6, heartbeat_age_s=age)]) for age in (0.01, None))
    assert said(fresh) == said(none) == [(K.NEVER_ENTERED, (1,), True)]


def test_ranks_that_sent_nothing_yet_are_not_measured() -> None:
    assert look_once([held(0, 6), held(1, 6)], world=3) == ()
    assert said(look_once([held(0, 6), idle(1, 6)], world=3)) == [(K.NEVER_ENTERED, (1,), True), (K.NOT_MEASURED, (2,), False)]


def test_one_node_alone_does_not_speak_for_the_group() -> None:
    """Both local ranks wait, perhaps for another node: only the whole group can tell."""
    local = [held(0, 60), held(1, 60)]
    assert judge_local(local, JudgeMemory(), StallPolicy(), 1000.0)[1] == ()
    assert said(judge_local([held(0, 6), idle(1, 6)], JudgeMemory(), StallPolicy(), 1000.0)[1]) == [(K.NEVER_ENTERED, (1,), True)]


@pytest.mark.spec("L1")
def test_an_observer_that_was_stopped_discounts_its_own_gap() -> None:
    """Everything stood still while the machine slept; on waking, nobody is accused of having slept."""
    policy = StallPolicy()
    group = [held(0, 0.3), idle(1, 0.3)]
    memory, _ = judge(group, JudgeMemory(), policy, 1000.0)
    later = [held(0, 40.8), idle(1, 40.8)]
    memory, found = judge(later, memory, policy, 1040.5)
    assert found == ()
    memory, found = judge([held(0, 42.0), idle(1, 42.0)], memory, policy, 1041.7)
    assert found == ()
    memory, found = judge([held(0, 44.0), idle(1, 44.0)], memory, policy, 1043.7)
    assert said(found) == [(K.NEVER_ENTERED, (1,), False)]
    memory, found = judge([held(0, 46.0), idle(1, 46.0)], memory, policy, 1045.6)
    assert said(found) == [(K.NEVER_ENTERED, (1,), True)]


def test_identities_are_stable_while_figures_grow() -> None:
    policy, memory, seen = StallPolicy(), JudgeMemory(), []
    for n in range(30):
        age_s = 0.5 * n
        memory, found = judge([held(0, age_s), idle(1, age_s)], memory, policy, 1000.0 + age_s)
        for finding in found:
            if finding.identity not in seen:
                seen.append(finding.identity)
                first_at = finding.at
            assert finding.at == first_at
    assert seen == ["never_entered:1:warning", "never_entered:1:final"]


def test_a_new_generation_forgets_the_old_ranks_but_not_the_habits() -> None:
    policy = StallPolicy()
    memory = JudgeMemory()
    for n in range(40):
        group = [facts(0, steps=n, activity=n, progress_age_s=0.0, busy_age_s=1.0)]
        memory, _ = judge(group, memory, policy, 1000.0 + 2.0 * n)
    habits = memory.habits
    assert habits.of("step:busy").total > 20
    memory, found = judge([facts(0, generation=2, pid=9, steps=-1, activity=0, frontier=())], memory, policy, 1082.0)
    assert memory.habits == habits and not memory.ranks[0].started and found == ()


def test_facts_of_an_older_generation_are_ignored() -> None:
    old = replace(idle(1, 60), generation=0)
    assert look_once([facts(0), old]) == ()


def test_steps_told_and_a_habit_make_silence_tell_within_the_bound() -> None:
    policy, memory = StallPolicy(), JudgeMemory()
    for n in range(60):
        memory, found = judge([facts(0, steps=n, progress_age_s=0.1, frontier=())], memory, policy, 1000.0 + 0.3 * n)
        assert found == ()
    at, firsts = 1000.0 + 0.3 * 59, {}
    for n in range(1, 12):
        memory, found = judge([idle(0, 0.5 * n + 0.1, steps=59, frontier=())], memory, policy, at + 0.5 * n)
        firsts.update({f: 0.5 * n for f in said(found) if f not in firsts})
    assert firsts == {(K.NO_PROGRESS, (0,), False): 2.5, (K.NO_PROGRESS, (0,), True): 5.0}


def test_background_groups_do_not_hide_a_hang_for_ever() -> None:
    """Markers move, but nobody completes a step for as long as a start may take."""
    waiting = held(0, 700, frontier_age_s=0.2, progress_age_s=0.2)
    memory = JudgeMemory()
    lazy = idle(1, 700, frontier_age_s=0.2, progress_age_s=0.2)
    for n in range(1300):
        at = 0.5 * n
        group = [replace(f, step_age_s=at, activity_age_s=at, phase_age_s=at) for f in (waiting, lazy)]
        memory, found = judge(group, memory, StallPolicy(), 1000.0 + at)
        if found and found[0].final:
            break
    assert said(found) == [(K.NEVER_ENTERED, (1,), True)] and 599 <= at <= 602


def test_all_stuck_counts_from_the_last_that_came() -> None:
    """The first waited long for a rank that worked; the operation itself has only just begun."""
    assert said(look_once([held(0, 25), held(1, 1)])) == []
    assert said(look_once([held(0, 25), held(1, 3)])) == [(K.ALL_STUCK, (), False)]

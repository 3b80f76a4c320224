"""What a group tells the outside: the pace of its steps, and how each node looks from the rank-0 agent."""

from __future__ import annotations

import pytest

from elastic_health.codec import dump, load
from elastic_health.generations import Generation, GenerationKind, Member, RestorePlan, RunSpec
from elastic_health.liveness.facts import Phase, ProcState, RankFacts
from elastic_health.liveness.summary import MOST_NODES, NodeHealth, Pace, Summary, oldest_heartbeat_s, summarize

pytestmark = pytest.mark.spec("L1", "U3")
NOW = 1000.0


def facts(rank: int, **about: object) -> RankFacts:
    known: dict[str, object] = {
        "rank": rank, "node": "n", "local_rank": 0, "pid": 1, "generation": 1, "phase": Phase.STEP, "phase_age_s": 9.0,
        "proc": ProcState.RUNNING, "heartbeat_age_s": 0.2, "steps": 40, "step_age_s": 0.5, "activity": 0, "activity_age_s": 9.0,
        "frontier": (), "frontier_age_s": 9.0, "progress_age_s": 0.5, "waiting": False, "cpu_s": 1.0, "io_bytes": 0, "busy_age_s": 0.0,
    }  # fmt: skip
    return RankFacts(**{**known, **about})  # type: ignore[arg-type]


def group(nodes: int, workers: int = 2) -> Generation:
    members = tuple(Member(f"n{i}", "x-0", f"n{i}:1", i, i * workers, workers) for i in range(nodes))
    return Generation(3, GenerationKind.FORMED, 2, 3, members, RestorePlan(), RunSpec(1, nodes, "d"))


HEALTH = {
    "well": ({}, 0.0, NodeHealth.WELL),
    "no progress for long": ({"progress_age_s": 6.0}, 0.0, NodeHealth.QUIET),
    "old facts": ({}, 6.0, NodeHealth.SILENT),
    "a stopped worker": ({"proc": ProcState.STOPPED}, 0.0, NodeHealth.STOPPED),
    "a worker that is gone": ({"proc": ProcState.GONE}, 0.0, NodeHealth.ENDED),
    "a dead one that nobody reaped": ({"proc": ProcState.ZOMBIE}, 0.0, NodeHealth.ENDED),
}


@pytest.mark.parametrize("case", HEALTH)
def test_one_worker_is_enough_to_make_its_node_less_than_well(case: str) -> None:
    about, age, want = HEALTH[case]
    heard = {r: (facts(r), NOW) for r in range(4)} | {3: (facts(3, **about), NOW - age)}
    told = summarize(group(2), heard, Pace(), NOW, 5.0)
    assert {n.node: n.health for n in told.nodes} == {"n0": NodeHealth.WELL, "n1": want}
    assert told.nodes[0].node == ("n0" if want is NodeHealth.WELL else "n1"), "the least well first"
    assert sum((told.counts or {}).values()) == 2


def test_before_any_progress_it_is_starting_and_unheard_of_it_is_silent() -> None:
    told = summarize(group(2), {0: (facts(0, steps=-1), NOW), 1: (facts(1, steps=-1), NOW)}, Pace(), NOW, 5.0)
    assert [n.health for n in told.nodes] == [NodeHealth.SILENT, NodeHealth.STARTING]
    assert summarize(group(1, 1), {0: (facts(0, steps=1), NOW)}, Pace(), NOW, 5.0).nodes[0].health is NodeHealth.WELL


def test_its_slowest_rank_speaks_for_a_node() -> None:
    heard = {0: (facts(0, steps=40), NOW), 1: (facts(1, steps=38, progress_age_s=2.0, phase=Phase.DATA), NOW - 1.0)}
    (node,) = summarize(group(1), heard, Pace(40), NOW, 5.0).nodes
    assert (node.step, node.phase, node.quiet_s) == (38, "data", 3.0)


def test_a_large_group_is_counted_whole_and_listed_in_part() -> None:
    n = MOST_NODES + 50
    heard = {r: (facts(r), NOW) for r in range(n)} | {n - 1: (facts(n - 1, proc=ProcState.STOPPED), NOW)}
    told = summarize(group(n, 1), heard, Pace(), NOW, 5.0)
    assert told.counts == {"well": n - 1, "stopped": 1} and len(told.nodes) == MOST_NODES
    assert told.nodes[0].node == f"n{n - 1}"
    raw = dump(told, at="", by="n0")
    assert len(raw) < 60_000 and load(Summary, raw, "k") == told


def test_the_pace_is_a_median_over_looks() -> None:
    pace, now = Pace(), 0.0
    for step in (-1, -1, 3):
        now += 1.0
        pace = pace.seen(step, now)
    assert pace.median_s is None, "one step is no distance"
    for gap, step in ((0.5, 4), (2.0, 8), (60.0, 9), (0.1, 9), (0.4, 10)):
        now += gap
        pace = pace.seen(step, now)
    assert (pace.step, pace.gaps, pace.median_s) == (10, (0.5, 0.5, 60.0, 0.5), 0.5)
    back = pace.seen(5, now + 1.0)
    assert (back.step, back.gaps) == (5, pace.gaps), "a rollback's distance is no duration"
    for i in range(200):
        back = back.seen(6 + i, now + 2.0 + i)
    assert len(back.gaps) == 64 and back.median_s == 1.0


def test_the_oldest_heartbeat_counts_the_time_since_it_was_heard() -> None:
    heard = {0: (facts(0), NOW), 1: (facts(1, heartbeat_age_s=1.0), NOW - 2.0), 2: (facts(2, heartbeat_age_s=None), NOW - 9.0)}
    assert oldest_heartbeat_s(heard, NOW) == 3.0
    assert oldest_heartbeat_s({}, NOW) is None

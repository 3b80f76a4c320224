"""Ages and work as pure arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from elastic_health.agents.rank_facts import BUSY_IO_BYTES_PER_S, BUSY_SHARE, Watched, first_work, is_waiting, next_work, rank_facts
from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState
from elastic_health.liveness.page import Beat, Mark, Order, PageFacts

pytestmark = pytest.mark.spec("L1", "L3", "L4")
WORKER = Watched(rank=5, local_rank=1, pid=42, generation=7, started_at=100.0)


S = 1_000_000_000


def page(mark: Mark = Mark(), beat: Beat = Beat(), order: Order = Order()) -> PageFacts:
    return PageFacts(mark, beat, order)


def test_an_idle_tree_ages() -> None:
    work = first_work(0.0, 10.0, 1000)
    for tenth in range(1, 100):
        work = next_work(work, tenth / 10, 10.0 + tenth * 0.001, 1000 + tenth)  # a hundredth of a core: noise
    assert work.busy_at == 0.0
    assert work.cpu_s == pytest.approx(10.099)


@pytest.mark.parametrize("every_s", [0.1, 0.25, 1.0, 5.0])
def test_a_heartbeats_cost_is_no_work_and_a_tenth_of_a_core_is(every_s: float) -> None:
    for share, works in ((BUSY_SHARE * 0.8, False), (0.1, True)):
        work = first_work(0.0, 0.0, 0)
        looks = int(20 / every_s)
        for look in range(1, looks + 1):
            now = look * every_s
            ticks = int(now * share / 0.01)  # as the kernel counts
            work = next_work(work, now, ticks * 0.01, 0)
        assert (work.busy_at > 15.0) is works
        assert works or work.busy_at == 0.0


def test_a_burst_within_a_window_is_work_at_once() -> None:
    work = next_work(first_work(0.0, 0.0, 0), 0.25, 0.06, 0)
    assert work.busy_at == 0.25


def test_bytes_are_work_too() -> None:
    work = first_work(0.0, 0.0, 0)
    assert next_work(work, 1.0, 0.0, BUSY_IO_BYTES_PER_S).busy_at == 0.0
    assert next_work(work, 1.0, 0.0, BUSY_IO_BYTES_PER_S + 1).busy_at == 1.0


def test_a_process_that_leaves_the_tree_is_no_work_and_hides_none() -> None:
    work = next_work(first_work(0.0, 100.0, 10**9), 0.2, 3.0, 10**6)
    assert work.busy_at == 0.0 and work.cpu_s == 100.0
    assert next_work(work, 0.4, 3.2, 10**6).busy_at == 0.4


def test_what_evidence_costs_the_worker_is_no_work() -> None:
    work = next_work(first_work(0.0, 0.0, 0), 3.0, 0.2, 10**7, discount=True)
    assert work.busy_at == 0.0
    assert next_work(work, 3.1, 0.2, 10**7).busy_at == 0.0
    assert next_work(work, 3.3, 0.4, 10**7).busy_at == 3.3


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(-1, 3), st.integers(-(10**6), 10**6)), max_size=30))
def test_sums_never_fall_and_busy_is_never_in_the_future(steps: list[tuple[float, float, int]]) -> None:
    now, cpu_s, io_bytes = 0.0, 5.0, 10**7
    work = first_work(now, cpu_s, io_bytes)
    for gap_s, cpu, io in steps:
        now, cpu_s, io_bytes = now + gap_s, max(0.0, cpu_s + cpu), max(0, io_bytes + io)
        after = next_work(work, now, cpu_s, io_bytes)
        assert after.cpu_s >= work.cpu_s and after.io_bytes >= work.io_bytes
        assert work.busy_at <= after.busy_at <= now
        work = after


def test_markers_that_never_moved_are_as_old_as_the_worker() -> None:
    facts = rank_facts(WORKER, "n", page(), ProcState.RUNNING, first_work(100.0, 0.0, 0), 160.0)
    assert facts.step_age_s == facts.activity_age_s == facts.frontier_age_s == facts.progress_age_s == facts.busy_age_s == 60.0
    assert facts.heartbeat_age_s is None and facts.steps == -1 and not facts.waiting


def test_progress_is_the_newest_of_the_markers_and_no_heartbeat() -> None:
    mark = Mark(steps=3, step_at=120 * S, phase=Phase.STEP, phase_at=110 * S, bound_hint_ms=9500)
    groups = (GroupFrontier("0", 5, 4),)
    beat = Beat(beat_at=1599 * S // 10, activity=8, activity_at=121 * S, frontier_at=140 * S, groups=groups)
    facts = rank_facts(WORKER, "n", page(mark, beat), ProcState.SLEEPING, first_work(100.0, 0.0, 0), 160.0)
    assert facts.progress_age_s == facts.frontier_age_s == 20.0
    assert (facts.step_age_s, facts.activity_age_s, facts.phase_age_s, facts.bound_hint_s) == (40.0, 39.0, 50.0, 9.5)
    assert facts.heartbeat_age_s == pytest.approx(0.1)
    assert (facts.rank, facts.local_rank, facts.pid, facts.generation, facts.node) == (5, 1, 42, 7, "n")
    assert (facts.steps, facts.activity, facts.phase, facts.frontier, facts.waiting) == (3, 8, Phase.STEP, groups, True)


def test_a_generation_handed_over_in_place_is_the_workers() -> None:
    facts = rank_facts(WORKER, "n", page(order=Order(generation=8)), ProcState.RUNNING, first_work(100.0, 0.0, 0), 103.0)
    assert facts.generation == 8


def test_no_page() -> None:
    facts = rank_facts(WORKER, "n", None, ProcState.RUNNING, first_work(100.0, 1.5, 7), 103.0)
    assert (facts.phase, facts.steps, facts.frontier, facts.cpu_s, facts.io_bytes) == (Phase.BOOT, -1, (), 1.5, 7)
    assert facts.progress_age_s == 3.0


def test_a_clock_read_before_the_page_moved_gives_no_negative_age() -> None:
    written = page(Mark(step_at=200 * S + S // 2), Beat(beat_at=200 * S + S // 2))
    facts = rank_facts(WORKER, "n", written, ProcState.RUNNING, first_work(200.4, 0.0, 0), 200.0)
    assert facts.step_age_s == facts.heartbeat_age_s == facts.busy_age_s == 0.0


@pytest.mark.parametrize(
    ("groups", "waits"),
    [((), False), (((5, 5),), False), (((5, 5), (3, 2)), True), (((1, -1),), True), (((-1, -1),), False)],
)
def test_waiting_is_an_operation_that_has_not_completed(groups: tuple[tuple[int, int], ...], waits: bool) -> None:
    assert is_waiting(GroupFrontier(str(i), *g) for i, g in enumerate(groups)) is waits

"""The budget: a generation is charged once, and only for what failed."""

from __future__ import annotations

import dataclasses

import pytest

from elastic_health.codec import dump, load
from elastic_health.generations import Budget, checkpoint_name
from elastic_health.recovery.budget import KEPT, charge, counted, newest_of, noted, opened
from elastic_health.verdicts import Cause, Verdict, VerdictKind

pytestmark = pytest.mark.spec("R6")


def restart(g: int, cause: Cause = Cause.LOST_MEMBER, **more: object) -> Verdict:
    return dataclasses.replace(Verdict(VerdictKind.RESTART, cause, g, signature=cause.value, nodes=("n1",)), **more)  # type: ignore[arg-type]


def test_a_restart_counts_everywhere() -> None:
    b = charge(opened(7), restart(1), 100.0, None)
    assert (b.restarts, b.since_commit, b.rollbacks, b.torch_max_restarts) == (1, 1, 0, 7)
    assert (b.by_node, b.by_signature, b.by_cause) == ((("n1", 1),), (("lost_member", 1),), (("lost_member", 1),))
    assert b.spent[0].at == 100.0 and b.spent[0].generation == 1


def test_a_generation_is_charged_once_however_often_its_end_is_carried_out() -> None:
    once = charge(Budget(), restart(3), 100.0, None)
    assert charge(once, restart(3), 200.0, None) == once


@pytest.mark.parametrize("kind", [VerdictKind.SCALE, VerdictKind.FINISH, VerdictKind.ABORT])
def test_what_is_no_restart_costs_nothing(kind: VerdictKind) -> None:
    assert charge(Budget(), restart(1, kind=kind), 1.0, None) == Budget()


def test_a_requested_restart_costs_nothing() -> None:
    assert charge(Budget(), restart(1, Cause.REQUESTED), 1.0, None) == Budget()


def test_a_rollback_is_no_restart_and_leaves_the_row_without_commit_alone() -> None:
    b = charge(charge(Budget(), restart(1), 1.0, None), restart(2, Cause.NUMERIC_HALT, kind=VerdictKind.ROLLBACK), 2.0, None)
    assert (b.restarts, b.rollbacks, b.since_commit) == (1, 1, 1)


def test_a_program_error_is_not_charged_to_the_node_that_met_it() -> None:
    assert charge(Budget(), restart(1, Cause.WORKER_EXIT), 1.0, None).by_node == ()


def test_a_new_commit_ends_the_row() -> None:
    b = charge(charge(Budget(), restart(1), 1.0, None), restart(2), 2.0, None)
    assert b.since_commit == 2
    b = charge(b, restart(3), 3.0, checkpoint_name(10, 3))
    assert (b.since_commit, b.last_checkpoint) == (1, checkpoint_name(10, 3))
    assert charge(b, restart(4), 4.0, checkpoint_name(10, 3)).since_commit == 2


def test_going_back_to_an_older_checkpoint_proves_no_progress() -> None:
    b = noted(Budget(since_commit=2), checkpoint_name(200, 5))
    assert b.since_commit == 0
    b = dataclasses.replace(b, since_commit=2)
    assert noted(b, checkpoint_name(100, 4)) == b
    assert noted(b, checkpoint_name(120, 6)).since_commit == 0


def test_newest_is_by_generation_first() -> None:
    assert newest_of([checkpoint_name(200, 5), checkpoint_name(120, 8), checkpoint_name(110, 8)]) == checkpoint_name(120, 8)
    assert newest_of([]) is None


def test_counters_outlive_the_kept_entries() -> None:
    b = Budget()
    for g in range(1, KEPT + 45):
        b = charge(b, restart(g), float(g), None)
    assert len(b.spent) == KEPT
    assert b.restarts == counted(b.by_node, "n1") == counted(b.by_cause, "lost_member") == KEPT + 44


def test_it_survives_the_store() -> None:
    b = charge(Budget(), restart(1, early=True), 5.5, checkpoint_name(1, 1))
    assert load(Budget, dump(b, at="2025-01-01T00:00:00Z", by="n1"), "budget") == b

"""The choice of a checkpoint, against a naive twin that walks whole paths, on random trees of histories."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.checkpoints.line import Choice, ChoiceReason, ancestors, choose, descendants, head, rollback_target, top
from elastic_health.generations import CheckpointRecord, CheckpointState, Generation, GenerationKind, RestorePlan, RunSpec
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import Window

pytestmark = pytest.mark.spec("R3")
SPEC = RunSpec(1, 4, "digest")
C, A, D = CheckpointState.COMMITTED, CheckpointState.ABANDONED, CheckpointState.DELETING


def record(step: int, generation: int, parent: CheckpointRecord | str | None = None, state: CheckpointState = C) -> CheckpointRecord:
    name = parent.name if isinstance(parent, CheckpointRecord) else parent
    return CheckpointRecord(step, generation, f"/c/{step}.{generation}", step * 64, 2, name, "m" * 64, state)


def tree(*records: CheckpointRecord) -> dict[str, CheckpointRecord]:
    return {r.name: r for r in records}


def generation(number: int, plan: CheckpointRecord | None = None, windows: tuple[Window, ...] = ()) -> Generation:
    start = RestorePlan(windows=windows)
    if plan is not None:
        start = RestorePlan(plan.name, plan.path, plan.step, plan.position, windows, plan.manifest)
    return Generation(number, GenerationKind.FORMED, number - 1, number, (), start, SPEC)


def restart(number: int, torn: str | None = None) -> Verdict:
    return Verdict(VerdictKind.RESTART, Cause.WORKER_EXIT, number, torn=torn)


def rollback(number: int, target: CheckpointRecord | None, *windows: Window) -> Verdict:
    return Verdict(VerdictKind.ROLLBACK, Cause.NUMERIC_HALT, number, target=target.name if target else None, windows=windows)


def test_the_first_generation_starts_at_the_beginning_and_already_skips_what_people_recorded() -> None:
    choice = choose({}, None, None, skips=[Window(5, 9)])
    assert choice == Choice(RestorePlan(windows=(Window(5, 9),)), (), ChoiceReason.BEGINNING)
    assert not choice.needs_leave_to_start_over


def test_checkpoints_without_any_generation_are_not_trusted_silently() -> None:
    choice = choose(tree(record(100, 1)), None, None)
    assert choice.reason is ChoiceReason.NONE_USABLE and choice.needs_leave_to_start_over


def test_own_newest_then_the_plan_then_the_nearest_committed_ancestor() -> None:
    a, b = record(100, 1), record(200, 1, record(100, 1))
    c = record(300, 2, b)
    assert choose(tree(a, b, c), generation(2, b), restart(2)).plan.checkpoint == c.name
    assert choose(tree(a, b), generation(2, b), restart(2)).reason is ChoiceReason.PLAN
    gone = dataclasses.replace(b, state=D)
    older = choose(tree(a, gone), generation(2, b), restart(2))
    assert (older.plan.checkpoint, older.plan.position, older.reason) == (a.name, 6400, ChoiceReason.ANCESTOR)
    assert older.passed == (b.name,)


def test_a_generation_that_committed_nothing_from_no_plan_loses_nothing() -> None:
    left_branch = record(100, 1, state=A)
    assert choose(tree(left_branch), generation(2), restart(2)).reason is ChoiceReason.BEGINNING


def test_never_any_and_none_usable_are_told_apart() -> None:
    """llnl/scr#174: after the last one is found bad too, it ends with a reason instead of trying again."""
    only = record(100, 1)
    choice = choose(tree(only), generation(2, only), restart(2, torn=only.name))
    assert choice.reason is ChoiceReason.NONE_USABLE and choice.plan == RestorePlan()
    assert choice.abandon == (only.name,) and choice.passed == (only.name,)


def test_a_rollback_leaves_its_branch_for_good() -> None:
    a = record(100, 1)
    b = record(200, 1, a)
    c = record(300, 1, b)
    choice = choose(tree(a, b, c), generation(1, windows=(Window(3, 5),)), rollback(1, a, Window(5, 8)))
    assert choice.plan == RestorePlan(a.name, a.path, 100, 6400, (Window(3, 8),), a.manifest)
    assert choice.abandon == (b.name, c.name) and choice.reason is ChoiceReason.ROLLBACK
    left = tree(a, *(dataclasses.replace(x, state=A) for x in (b, c)))
    assert choose(left, generation(2, a), restart(2)).plan.checkpoint == a.name


def test_a_rollback_whose_target_has_gone_takes_the_next_older_one() -> None:
    a = record(100, 1)
    b = record(200, 1, a, D)
    c = record(300, 1, b)
    choice = choose(tree(a, b, c), generation(1), rollback(1, b))
    assert (choice.plan.checkpoint, choice.reason, choice.abandon) == (a.name, ChoiceReason.ROLLBACK_OLDER, (c.name,))


def test_a_rollback_to_the_beginning_abandons_everything_so_far_and_nothing_later() -> None:
    a, later = record(100, 1), record(50, 3)
    choice = choose(tree(a, later), generation(2, a), rollback(2, None))
    assert choice.reason is ChoiceReason.ROLLBACK_BEGINNING and choice.abandon == (a.name,)


def test_a_torn_one_takes_its_descendants_with_it() -> None:
    a = record(100, 1)
    b = record(200, 1, a)
    c = record(300, 2, b)
    choice = choose(tree(a, b, c), generation(3, b), restart(3, torn=b.name))
    assert choice.plan.checkpoint == a.name and choice.abandon == (b.name, c.name)


def test_a_ring_of_parents_ends_the_line_instead_of_hanging() -> None:
    a, b = record(100, 1, record(200, 1)), record(200, 1, record(100, 1))
    assert ancestors(tree(a, b), b.name) == (b.name, a.name)


def test_rollback_target_is_old_enough() -> None:
    a = record(100, 1)
    b = record(200, 1, a)
    c = record(300, 1, b)
    assert rollback_target(tree(a, b, c), 1, None, 250) == b.name
    assert rollback_target(tree(a, b, c), 1, None, 99) is None


# ---- random histories, judged by a twin that asks the question the long way round
@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, CheckpointRecord], int, str | None]:
    """Records of up to 12 checkpoints in up to 4 generations, the last generation, and its plan."""
    made: list[CheckpointRecord] = []
    plans: dict[int, CheckpointRecord | None] = {}
    last = draw(st.integers(1, 4))
    for g in range(1, last + 1):
        plans[g] = draw(st.sampled_from([None, *made])) if made else None
        tip = plans[g]
        for _ in range(draw(st.integers(0, 3))):
            step = (tip.step if tip else 0) + draw(st.integers(1, 3)) * 10
            tip = record(step, g, tip, draw(st.sampled_from([C, C, C, A, D])))
            made.append(tip)
    plan = plans[last]
    return tree(*made), last, plan.name if plan else None


def path(records: dict[str, CheckpointRecord], name: str | None) -> list[str]:
    return [] if name is None or name not in records else [name, *path(records, records[name].parent)]


def twin(records: dict[str, CheckpointRecord], start: str | None, bad: set[str]) -> str | None:
    fit = [n for n in path(records, start) if records[n].state is C and not any(t in bad for t in path(records, n))]
    return max(fit, key=lambda n: records[n].step, default=None)


def start_of(records: dict[str, CheckpointRecord], last: int, plan: str | None) -> str | None:
    own = sorted((r for r in records.values() if r.generation == last and r.state is not A), key=lambda r: r.step)
    return own[-1].name if own else plan


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_restarts_agree_with_the_twin(history: tuple[dict[str, CheckpointRecord], int, str | None], data: st.DataObject) -> None:
    records, last, plan = history
    torn = data.draw(st.sampled_from([None, *records])) if records else None
    bad = {torn} if torn else set()
    choice = choose(records, generation(last, records[plan] if plan else None), restart(last, torn))
    assert choice.plan.checkpoint == twin(records, start_of(records, last, plan), bad)
    assert set(choice.abandon) == {n for n in records if records[n].state is C and any(t in bad for t in path(records, n))}
    assert (choice.plan.checkpoint is None) == (choice.reason in (ChoiceReason.BEGINNING, ChoiceReason.NONE_USABLE))
    if torn is None:
        assert head(records, last, plan) == choice.plan.checkpoint
        assert top(records, last, plan) == start_of(records, last, plan)


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_rollbacks_agree_with_the_twin(history: tuple[dict[str, CheckpointRecord], int, str | None], data: st.DataObject) -> None:
    records, last, plan = history
    target = data.draw(st.sampled_from([None, *records])) if records else None
    verdict = rollback(last, records[target] if target else None, Window(1, 4))
    choice = choose(records, generation(last, records[plan] if plan else None), verdict, skips=[Window(4, 6)])
    name = choice.plan.checkpoint
    assert name == twin(records, target, set())
    assert choice.plan.windows == (Window(1, 6),)
    # I7: whatever is restored next was never on the branch that was left.
    after = {n: dataclasses.replace(r, state=A) if n in choice.abandon else r for n, r in records.items()}
    assert set(committed_names(after)) <= set(path(records, name))
    again = choose(after, dataclasses.replace(generation(last + 1), plan=choice.plan), restart(last + 1))
    assert again.plan.checkpoint == name and again.plan.windows == choice.plan.windows


def committed_names(records: dict[str, CheckpointRecord]) -> list[str]:
    return [n for n, r in records.items() if r.state is C]


@settings(max_examples=200, deadline=None)
@given(histories())
def test_descendants_are_those_whose_path_goes_through(history: tuple[dict[str, CheckpointRecord], int, str | None]) -> None:
    records, _, _ = history
    for name in records:
        assert descendants(records, name) == {n for n in records if name in path(records, n)}

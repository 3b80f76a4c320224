"""Retention never takes what a restart or a rollback may need."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.checkpoints.line import ancestors, head, rollback_target
from elastic_health.checkpoints.retention import Forgotten, Keep, expendable, forgettable
from elastic_health.generations import CheckpointRecord, CheckpointState

pytestmark = pytest.mark.spec("R3")
C, A, D = CheckpointState.COMMITTED, CheckpointState.ABANDONED, CheckpointState.DELETING


def chain(*steps: int, generation: int = 1, parent: str | None = None) -> dict[str, CheckpointRecord]:
    out: dict[str, CheckpointRecord] = {}
    for step in steps:
        r = CheckpointRecord(step, generation, f"/c/{step}", step, 2, parent, "m", C)
        out[r.name], parent = r, r.name
    return out


def steps(records: dict[str, CheckpointRecord], names: tuple[str, ...]) -> list[int]:
    return [records[n].step for n in names]


def test_the_newest_stay_and_one_that_a_rollback_reaches() -> None:
    records = chain(10, 20, 30, 40, 50, 60)
    gone = expendable(records, 1, None, Keep(newest=2, reach_steps=25))
    assert steps(records, gone) == [10, 20, 40]


def test_nothing_old_enough_keeps_the_oldest() -> None:
    records = chain(10, 20, 30)
    assert steps(records, expendable(records, 1, None, Keep(newest=1, reach_steps=500))) == [20]


def test_plan_proven_and_protected_stay() -> None:
    records = chain(10, 20, 30, 40, 50, 60)
    n10, n20, n30, *_ = records
    gone = expendable(records, 1, n10, Keep(newest=1, reach_steps=0), proven=n20, protect=[n30])
    assert steps(records, gone) == [40, 50]


def test_abandoned_ones_go_after_a_grace_of_generations() -> None:
    records = chain(10, 20)
    left = chain(30, parent=list(records)[-1])
    left = {n: dataclasses.replace(r, state=A) for n, r in left.items()}
    both = {**records, **left}
    keep = Keep(newest=5, abandoned_for=2)
    assert expendable(both, 2, None, keep) == ()
    assert expendable(both, 3, None, keep) == tuple(left)


def test_who_descends_from_a_forgotten_one_goes_on_from_the_nearest_that_stays() -> None:
    records = chain(10, 20, 30)
    n10, n20, n30 = records
    records[n20] = dataclasses.replace(records[n20], state=D)
    assert forgettable(records, [n20], None) == Forgotten((n20,), ((n30, n10),))
    records[n10] = dataclasses.replace(records[n10], state=D)
    assert forgettable(records, [n10, n20], None) == Forgotten((n10, n20), ((n30, None),))
    assert forgettable(records, [n10, n30], n10) == Forgotten(), "a plan's stays, and so does what is committed"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.sets(st.integers(0, 59)), st.integers(0, 4), st.integers(2, 50))
def test_forgetting_leaves_every_line_as_it_was(n: int, gone: set[int], fork: int, most: int) -> None:
    names = [f"{i:02d}" for i in range(n)]
    steps = chain(*range(10, 10 * n + 10, 10))
    records = dict(zip(names, steps.values(), strict=True))
    for i, name in enumerate(names):  # every fifth one goes on from one further back: a branch
        parent = None if i == 0 else names[max(0, i - 1 - (fork if i % 5 == 0 else 0))]
        records[name] = dataclasses.replace(records[name], parent=parent, state=D if i in gone else C)
    found = forgettable(records, names, None, most)
    assert set(found.names) <= {names[i] for i in gone if i < n} and len(found.names) + len(found.parents) <= most
    after = {k: r for k, r in records.items() if k not in found.names}
    after.update({k: dataclasses.replace(after[k], parent=p) for k, p in found.parents})
    for name in after:
        assert list(ancestors(after, name)) == [a for a in ancestors(records, name) if a not in found.names]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 400), unique=True, max_size=12).map(sorted),
    st.integers(1, 4),
    st.integers(0, 200),
    st.integers(0, 400),
)
def test_whatever_goes_the_next_choice_is_the_same(at: list[int], newest: int, reach: int, back: int) -> None:
    records = chain(*at)
    gone = expendable(records, 1, None, Keep(newest, reach))
    after = {n: dataclasses.replace(r, state=D) if n in gone else r for n, r in records.items()}
    assert head(after, 1, None) == head(records, 1, None)
    kept = [n for n, r in after.items() if r.state is C]
    assert len(kept) >= min(newest, len(at))
    if at:
        before = rollback_target(records, 1, None, at[-1] - reach)
        assert before == rollback_target(after, 1, None, at[-1] - reach)
        assert ancestors(after, kept[-1]) == ancestors(records, kept[-1])
    assert expendable(after, 1, None, Keep(newest, reach)) == ()

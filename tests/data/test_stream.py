"""The stream alone: planning steps, windows, the end of the data, state.  Named tests are reports about other loaders."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.data.shares import share
from elastic_health.data.stream import SampleStream
from elastic_health.errors import DataError
from elastic_health.windows import Window

pytestmark = pytest.mark.spec("R4")


def run(stream: SampleStream, world: int = 1, steps: int | None = None) -> list[list[int]]:
    """The positions of each step until the end, or for `steps` steps; all complete."""
    out: list[list[int]] = []
    while steps is None or len(out) < steps:
        step = stream.next_step(world)
        if step is None:
            break
        out.append([p for rank in range(world) for a, b in share(step, rank, world).runs for p in range(a, b)])
        stream.complete(step)
    return out


def used(batches: list[list[int]]) -> list[int]:
    return [p for batch in batches for p in batch]


def resumed(stream: SampleStream, **numbers: Any) -> SampleStream:
    """Through JSON, as a checkpoint would hold it."""
    fresh = SampleStream(stream.spec.n, seed=stream.spec.seed, **numbers)
    fresh.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    return fresh


def test_each_epoch_holds_each_sample_once_in_another_order() -> None:
    stream = SampleStream(10, global_batch=4, seed=3, epochs=3)
    samples = [stream.spec.sample(p) for p in used(run(stream))]
    orders = [[i for e, i in samples if e == epoch] for epoch in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert [stream.spec.position(e, i) for e, i in samples] == list(range(30))


def test_resume_skips_the_done_batches_once_and_not_in_every_epoch() -> None:
    """allenai/open-instruct#681: after a resume at step k each later epoch also lost its first k batches."""
    whole = run(SampleStream(12, global_batch=4, seed=1, epochs=3))
    first = SampleStream(12, global_batch=4, seed=1, epochs=3)
    head = run(first, steps=2)
    tail = run(resumed(first, global_batch=4, epochs=3))
    assert head + tail == whole
    assert used(head + tail) == list(range(36))


def test_a_state_saved_exactly_at_an_epochs_end_swallows_no_epoch() -> None:
    """meta-pytorch/data#1437: 4 epochs asked, the state saved at the boundary, 3 run."""
    stream = SampleStream(8, global_batch=4, seed=1, epochs=4)
    done = []
    for _ in range(4):
        done += run(stream, steps=2)
        assert stream.position % 8 == 0
        stream = resumed(stream, global_batch=4, epochs=4)
    assert used(done) == list(range(32))
    assert stream.next_step(1) is None


def test_a_window_is_by_position_and_jumped_once() -> None:
    """facebookresearch/metaseq#500: a range given in updates was skipped a second time after a requeue."""
    skip = Window(16, 28, "spike")
    stream = SampleStream(100, global_batch=4, seed=1, samples=40)
    head = run(stream, steps=3)
    stream.place(stream.position, (skip,))
    middle = run(stream, steps=2)
    assert middle == [[12, 13, 14, 15], [28, 29, 30, 31]]
    again = resumed(stream, global_batch=4, samples=40)
    again.place(again.position, (skip,))  # the plan of a later start names it again
    tail = run(again)
    assert used(head + middle + tail) == [*range(16), *range(28, 40)]


def test_the_position_counts_samples_when_the_world_changes() -> None:
    """meta-pytorch/torchft#292, #58: 3 -> 2 replicas lost or repeated samples and changed the global batch."""
    stream = SampleStream(1000, global_batch=12, seed=1, samples=60)
    three = run(stream, world=3, steps=2)
    two = run(resumed(stream, global_batch=12, samples=60), world=2)
    assert used(three + two) == list(range(60))
    assert {len(b) for b in three + two} == {12}

    stream = SampleStream(1000, per_rank_batch=4, seed=1, samples=60)
    three = run(stream, world=3, steps=2)
    two = run(resumed(stream, per_rank_batch=4, samples=60), world=2)
    assert used(three + two) == list(range(60))
    assert [len(b) for b in three + two] == [12, 12, 8, 8, 8, 8, 4]


@given(
    n=st.integers(1, 40),
    batch=st.integers(1, 12),
    world=st.integers(1, 12),
    end=st.integers(1, 120),
    raw=st.lists(st.tuples(st.integers(0, 130), st.integers(1, 30)), max_size=4),
    drop_last=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_to_the_end_each_position_once_and_no_rank_without_a_sample(
    n: int, batch: int, world: int, end: int, raw: list[tuple[int, int]], drop_last: bool
) -> None:
    world = min(world, batch)
    stream = SampleStream(n, global_batch=batch, seed=2, samples=end, drop_last=drop_last)
    stream.place(0, [Window(s, s + length) for s, length in raw])
    left = [p for p in range(end) if not any(s <= p < s + length for s, length in raw)]
    batches = run(stream, world)
    if drop_last:
        assert used(batches) == left[: len(left) // batch * batch]
        assert all(len(b) == batch for b in batches)
    else:
        assert used(batches) == left
        # Only a run that is altogether shorter than its world has a step with less than a sample a rank.
        assert all(len(b) >= world for b in batches) or len(batches) == 1
        assert all(len(b) == batch for b in batches[:-1])
        assert all(len(b) < batch + world for b in batches[-1:])


def test_a_group_that_grows_at_the_very_end_uses_stand_ins() -> None:
    stream = SampleStream(100, global_batch=4, seed=1, samples=10)
    run(stream, world=2, steps=2)
    step = stream.next_step(3)
    assert step is not None
    mine = [share(step, rank, 3) for rank in range(3)]
    assert [s.runs for s in mine] == [((8, 9),), ((9, 10),), ()]
    assert mine[2].reads == ((8, 9),)
    assert mine[2].weight == 0


def test_a_small_remainder_joins_the_step_before_it() -> None:
    assert [len(b) for b in run(SampleStream(10, global_batch=4, samples=9), world=2)] == [4, 5]
    assert [len(b) for b in run(SampleStream(10, global_batch=4, samples=10), world=2)] == [4, 4, 2]


def test_an_endless_stream_of_a_trillion_seeks_at_once() -> None:
    stream = SampleStream(10**12, global_batch=4)
    stream.place(10**15 + 7)
    step = stream.next_step(2)
    assert step is not None
    assert step.runs == ((10**15 + 7, 10**15 + 11),)


def test_only_the_step_that_is_due_can_complete() -> None:
    stream = SampleStream(100, global_batch=4)
    first = stream.next_step(1)
    assert first is not None
    second = stream.next_step(1, first.after)
    assert second is not None
    with pytest.raises(DataError, match="due at position 0"):
        stream.complete(second)
    stream.complete(first)
    with pytest.raises(DataError, match="due at position 4"):
        stream.complete(first)
    stream.place(stream.position)  # a new plan at the same place: what was fetched before is stale
    with pytest.raises(DataError, match="drop the batches fetched before"):
        stream.complete(second)
    assert stream.position == 4


def test_skipped_updates_are_consumed_and_recorded_until_a_rollback_undoes_them() -> None:
    stream = SampleStream(100, global_batch=4)
    for applied in (True, False, False, True, False):
        step = stream.next_step(1)
        assert step is not None
        stream.complete(step, applied=applied, reason="nonfinite")
    assert stream.position == 20
    assert stream.not_applied == (Window(4, 12, "nonfinite"), Window(16, 20, "nonfinite"))
    again = resumed(stream, global_batch=4)
    assert again.not_applied == stream.not_applied
    again.place(8)
    assert again.not_applied == (Window(4, 8, "nonfinite"),)


def test_windows_of_state_and_plan_are_merged() -> None:
    old = SampleStream(100, global_batch=4)
    old.place(0, [Window(10, 20, "a")])
    stream = SampleStream(100, global_batch=4)
    stream.place(0, [Window(15, 30, "b")])
    stream.load_state_dict(old.state_dict())
    assert stream.windows == (Window(10, 30, "a; b"),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 1.*found version 2"),
        ({"n": 99}, "n=100.*found n=99.*same data set and seed"),
        ({"seed": 8}, "seed=7.*found seed=8"),
        ({"position": -1}, "position"),
        ({"position": "4"}, "position"),
        ({"windows": [[5, 5, ""]]}, "window with 0 <= start < end"),
        ({"windows": [[1, 2]]}, "list of .start, end, reason."),
        ({"windows": 3}, "list of"),
    ],
)
def test_a_state_that_does_not_belong_here_is_refused_and_changes_nothing(change: dict[str, Any], said: str) -> None:
    stream = SampleStream(100, global_batch=4, seed=7)
    stream.place(8, [Window(20, 30)])
    was = (stream.state_dict(), stream.token)
    with pytest.raises(DataError, match=said):
        stream.load_state_dict({**stream.state_dict(), **change})
    assert (stream.state_dict(), stream.token) == was


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({}, "global_batch= or per_rank_batch=.*neither"),
        ({"global_batch": 4, "per_rank_batch": 2}, "found both"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"per_rank_batch": True}, "per_rank_batch=True"),
        ({"global_batch": 4, "epochs": 1, "samples": 5}, "epochs= or samples="),
        ({"global_batch": 4, "epochs": 0}, "epochs=0"),
        ({"global_batch": 4, "samples": 1.5}, "samples=1.5"),
        ({"global_batch": 4, "seed": "x"}, "seed='x'"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        SampleStream(100, **numbers)


def test_a_data_set_without_samples_is_refused() -> None:
    with pytest.raises(DataError, match="length of the data set"):
        SampleStream(0, global_batch=4)

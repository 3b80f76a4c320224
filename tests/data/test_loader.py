"""The loader over real DataLoader workers: exact data whatever the workers, a new plan in the middle, no stray randomness."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from elastic_health.data.loader_torch import Batch, Loader
from elastic_health.data.sampler_torch import Sampler
from elastic_health.data.stream import SampleStream
from elastic_health.errors import DataError
from elastic_health.windows import Window
from tests.data.sets import Lists, Numbers, Stream, as_list

pytestmark = pytest.mark.spec("R4")
N = 40
WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True, "prefetch_factor": 4},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
]


def fresh(position: int = 0, *, rank: int = 0, world: int = 1, dataset: Any = None, **kinds: Any) -> tuple[SampleStream, Loader]:
    stream = SampleStream(N, global_batch=6, seed=5, epochs=2)
    stream.place(position)
    return stream, Loader(dataset or Numbers(N), stream, rank=rank, world=world, collate_fn=as_list, **kinds)


def consume(stream: SampleStream, loader: Loader, steps: int = 1000) -> list[Batch]:
    out: list[Batch] = []
    for batch in loader:
        stream.complete(batch.step)
        out.append(batch)
        if len(out) == steps:
            break
    return out


def samples(batches: list[Batch]) -> list[dict[str, Any]]:
    return [s for b in batches for s in b.data]


def positions(batches: list[Batch]) -> list[int]:
    return [p for b in batches for start, end in b.positions for p in range(start, end)]


@pytest.fixture(scope="module")
def reference() -> list[dict[str, Any]]:
    """All samples of the run, by position."""
    return samples(consume(*fresh()))


@pytest.mark.parametrize("kinds", WORKERS, ids=["none", "fork", "persistent", "spawn"])
def test_the_same_samples_and_the_same_augmentation_with_any_workers(kinds: dict[str, Any], reference: list[dict[str, Any]]) -> None:
    stream, loader = fresh(**kinds)
    batches = consume(stream, loader)
    assert positions(batches) == list(range(2 * N))
    assert [s["i"] for s in samples(batches)] == [stream.spec.sample(p)[1] for p in range(2 * N)]
    assert samples(batches) == reference


def test_the_same_augmentation_on_any_rank_after_any_resume(reference: list[dict[str, Any]]) -> None:
    for world in (2, 3):
        for rank in range(world):
            batches = consume(*fresh(17, rank=rank, world=world))
            assert samples(batches) == [reference[p] for p in positions(batches)]
    assert len({s["torch"] for s in reference}) == len(reference), "each sample of each epoch is augmented in its own way"


@pytest.mark.parametrize("kinds", WORKERS[:3], ids=["none", "fork", "persistent"])
def test_a_new_plan_in_the_middle_drops_what_was_fetched(kinds: dict[str, Any]) -> None:
    stream, loader = fresh(**kinds)
    saved, got = stream.state_dict(), []
    for batch in loader:
        got.append(positions([batch]))
        if len(got) == 3:  # a rollback in place: this batch is not completed
            stream.load_state_dict(saved)
            stream.place(6, [Window(12, 30)])
        elif len(got) == 6:
            loader.load_state_dict({**loader.state_dict(), "position": 70})
        else:
            stream.complete(batch.step)
    first, middle, last = got[:3], got[3:6], got[6:]
    assert first == [[*range(6)], [*range(6, 12)], [*range(12, 18)]]
    assert middle == [[*range(6, 12)], [*range(30, 36)], [*range(36, 42)]]
    assert last == [[*range(70, 76)], [*range(76, 80)]]


def test_a_new_plan_after_the_last_batch_goes_on() -> None:
    stream, loader = fresh(74)
    seen = []
    for batch in loader:
        seen += positions([batch])
        if len(seen) == 6:
            stream.place(68)
        else:
            stream.complete(batch.step)
    assert seen == [*range(74, 80), *range(68, 80)]


@pytest.mark.parametrize("kinds", WORKERS[:2], ids=["none", "fork"])
def test_reading_leaves_the_process_generators_alone(kinds: dict[str, Any]) -> None:
    random.seed(1)
    torch.manual_seed(2)
    numpy.random.seed(3)
    before = (random.getstate(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist())
    stream, loader = fresh(**kinds)
    consume(stream, loader, steps=3)
    assert (random.getstate(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()) == before


def test_generators_can_be_left_to_the_data_set() -> None:
    torch.manual_seed(2)
    first = consume(*fresh(seed_samples=False), steps=1)
    torch.manual_seed(2)
    assert consume(*fresh(30, seed_samples=False), steps=1)[0].data[0]["torch"] == first[0].data[0]["torch"]


def test_a_data_set_that_fetches_lists_is_seeded_once_a_share() -> None:
    a = consume(*fresh(dataset=Lists(N)), steps=2)
    b = consume(*fresh(6, dataset=Lists(N)), steps=1)
    assert a[1].data == b[0].data
    assert [s["i"] for s in a[0].data] == [s["i"] for s in consume(*fresh(), steps=1)[0].data]


def test_a_data_sets_own_attributes_are_seen_by_worker_init(capfd: pytest.CaptureFixture[str]) -> None:
    consume(*fresh(num_workers=1, multiprocessing_context="fork", worker_init_fn=_say_note), steps=1)
    assert "note: mine" in capfd.readouterr().out


def _say_note(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    print("note:", info.dataset.note, flush=True)  # type: ignore[attr-defined]


def test_weights_of_uneven_shares_and_the_loss_of_the_whole_batch() -> None:
    batches = [consume(*fresh(rank=rank, world=4), steps=1)[0] for rank in range(4)]
    assert [b.size for b in batches] == [2, 2, 1, 1]
    assert [b.weight for b in batches] == pytest.approx([2 * 4 / 6, 2 * 4 / 6, 4 / 6, 4 / 6])


def test_a_stand_in_is_marked() -> None:
    stream = SampleStream(N, global_batch=6, samples=2)
    batches = [consume(stream_, loader)[0] for stream_, loader in [_third(2), _third(0)]]
    assert (batches[0].weight, batches[0].size, batches[0].positions, len(batches[0].data)) == (0, 0, (), 1)
    assert batches[1].positions == ((0, 1),)
    assert stream.position == 0


def _third(rank: int) -> tuple[SampleStream, Loader]:
    stream = SampleStream(N, global_batch=6, samples=2)
    return stream, Loader(Numbers(N), stream, rank=rank, world=3, collate_fn=as_list)


def test_a_sampler_alone_serves_a_data_loader_of_ones_own() -> None:
    stream = SampleStream(N, global_batch=6, seed=5, epochs=1)
    sampler = Sampler(stream, rank=1, world=2)
    got = []
    for data in DataLoader(Numbers(N), batch_sampler=sampler, collate_fn=as_list):  # type: ignore[arg-type]
        mine = sampler.take()
        assert [s["i"] for s in data] == [stream.spec.sample(p)[1] for a, b in mine.runs for p in range(a, b)]
        got += [p for a, b in mine.runs for p in range(a, b)]
        stream.complete(mine.step)
    assert stream.position == N
    assert got == [p for p in range(N) if p % 6 >= 3 and p < 36] + [38, 39]
    with pytest.raises(DataError, match="one take"):
        sampler.take()


def test_a_new_plan_ends_an_iteration_of_a_sampler_alone() -> None:
    stream = SampleStream(N, global_batch=6, seed=5, epochs=1)
    batches = iter(Sampler(stream, rank=0, world=1))
    next(batches)
    stream.place(12)
    assert list(batches) == []


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Stream(), "map-style.*Stream, an IterableDataset.*index file"),
        (Numbers(N + 1), f"data set of {N} samples.*found {N + 1}"),
        (iter(()), "map-style data set with __getitem__"),
    ],
)
def test_data_sets_that_can_not_be_resumed_are_refused(dataset: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Loader(dataset, SampleStream(N, global_batch=6))


def test_more_ranks_than_samples_and_half_a_rank_are_refused() -> None:
    with pytest.raises(DataError, match="7 ranks"):
        next(iter(fresh(rank=0, world=7)[1]))
    with pytest.raises(DataError, match="rank= and world= together"):
        Loader(Numbers(N), SampleStream(N, global_batch=6), rank=1)


def test_torchruns_variables_count_when_there_is_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stream = SampleStream(N, global_batch=6)
    assert next(iter(Loader(Numbers(N), stream, collate_fn=as_list))).positions == ((3, 6),)

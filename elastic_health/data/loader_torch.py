"""A thin loader over `torch.utils.data.DataLoader`: exact data, at any position, on any number of ranks.

Law: what it yields depends on the stream's position alone.  A new plan in the middle of an iteration drops everything
that was fetched ahead and goes on from the new position.  Neither making nor reading it touches the process's own
random number generators.

Randomness of augmentations (`seed_samples`): before each `dataset[i]` the generators of Python, torch (CPU) and, if
loaded, numpy are seeded from (stream seed, position).  So a sample is augmented alike whatever the world size, number
of workers, start method or restart, and differently in each epoch.  What does not hold: a data set that fetches whole
lists (`__getitems__`) is seeded once a share, which depends on the world; a generator that the data set keeps to itself
is its own affair; so is randomness in `collate_fn`, which is seeded by worker and position only.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from elastic_health.data.sampler_torch import Sampler
from elastic_health.data.shares import GlobalBatch, Runs, Share
from elastic_health.data.stream import SampleStream
from elastic_health.errors import DataError


@dataclass(frozen=True)
class Batch:
    """What a rank gets for one step.

    Attributes:
        data: what `collate_fn` made of this rank's samples.
        weight: multiply the *mean* loss over `data` with it; then the gradient that DDP averages over ranks is that of
            the mean over the whole global batch, also when shares are uneven.
        positions: half-open intervals of stream positions in `data`; empty for a stand-in, which is there for the
            step's collectives only and weighs 0 (the very end of the data, fewer samples left than ranks).
        step: the whole step, for `SampleStream.complete`.
    """

    data: Any
    weight: float
    positions: Runs
    step: GlobalBatch

    @property
    def size(self) -> int:
        """This rank's samples."""
        return sum(end - start for start, end in self.positions)


def sample_seed(seed: int, position: int) -> int:
    """Seed of all randomness in fetching the sample at `position`: 63 bits of BLAKE2b over `seed/position`."""
    digest = blake2b(f"{seed}/{position}".encode(), person=b"eh sample seed 1", digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _seed_all(seed: int) -> None:
    random.seed(seed)
    # Only the CPU generator: torch.manual_seed would also touch devices.
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put the process's generators (Python, torch CPU, numpy if loaded) back afterwards."""
    python, cpu = random.getstate(), torch.default_generator.get_state()
    numpy = sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(cpu)
        if numpy is not None:
            numpy.random.set_state(arrays)


class _Seeded:
    """A map-style data set that is asked for (position, index) pairs; everything else is the inner data set's."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __getattr__(self, name: str) -> Any:
        # Dunder names must not be borrowed: pickle and torch ask for optional ones.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, item: tuple[int, int]) -> Any:
        position, index = item
        return self._fetch(position, lambda: self.dataset[index])

    def _fetch(self, position: int, get: Callable[[], Any]) -> Any:
        if get_worker_info() is not None:
            _seed_all(sample_seed(self.seed, position))
            return get()
        with kept_generators():
            _seed_all(sample_seed(self.seed, position))
            return get()


class _SeededLists(_Seeded):
    """The same for a data set with `__getitems__`."""

    def __getitems__(self, items: list[tuple[int, int]]) -> Any:
        return self._fetch(items[0][0], lambda: self.dataset.__getitems__([index for _, index in items]))


def _check(dataset: Any, n: int) -> None:
    if isinstance(dataset, IterableDataset):
        raise DataError(
            "a map-style data set (__getitem__ and __len__)",
            f"{type(dataset).__name__}, an IterableDataset",
            "exact resumption needs random access: wrap the source in a map-style data set, for instance over an index file",
        )
    if not hasattr(dataset, "__getitem__"):
        raise DataError("a map-style data set with __getitem__", type(dataset).__name__, "pass the data set itself")
    if hasattr(dataset, "__len__") and len(dataset) != n:
        raise DataError(f"a data set of {n} samples, as the stream has", f"{len(dataset)}", "use SampleStream(len(dataset), ...)")


class Loader:
    """Yields a `Batch` for each step from the stream's position on.

    Args:
        dataset: map-style.
        stream: its position says where to start; the loop (`run.steps`) moves it.
        rank, world: data-parallel rank and world, if they are not the process group's.
        seed_samples: see the module's text; False leaves all generators alone.
        num_workers … persistent_workers: as for `torch.utils.data.DataLoader`.

    Raises:
        DataError: an iterable data set, or one of another length than the stream's.
    """

    def __init__(
        self,
        dataset: Any,
        stream: SampleStream,
        *,
        rank: int | None = None,
        world: int | None = None,
        seed_samples: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        _check(dataset, stream.spec.n)
        self.stream, self.dataset = stream, dataset
        self.sampler = Sampler(stream, rank=rank, world=world, with_positions=seed_samples)
        self._generator = torch.Generator()
        kind = _SeededLists if getattr(dataset, "__getitems__", None) else _Seeded
        self._loader: DataLoader[Any] = DataLoader(
            kind(dataset, stream.spec.seed) if seed_samples else dataset,  # type: ignore[arg-type]
            batch_sampler=self.sampler,
            generator=self._generator,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )

    def __iter__(self) -> Iterator[Batch]:
        while True:
            token = self.stream.token
            for batch in self._from_here():
                yield batch
                if self.stream.token != token:
                    break
            else:
                if self.stream.token == token:
                    return

    def _from_here(self) -> Iterator[Batch]:
        # What a worker draws outside of a sample's fetch is a function of the position too.
        self._generator.manual_seed(sample_seed(self.stream.spec.seed + 1, self.stream.position))
        for data in self._loader:
            yield _batch(data, self.sampler.take())

    def state_dict(self) -> dict[str, Any]:
        """The stream's state (torchdata's protocol): where the last *completed* step ended."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; also in the middle of an iteration.

        Raises:
            DataError: see `SampleStream.load_state_dict`.
        """
        self.stream.load_state_dict(state)


def _batch(data: Any, mine: Share) -> Batch:
    return Batch(data, mine.weight, mine.runs, mine.step)

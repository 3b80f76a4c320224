"""The stream as a batch sampler for `torch.utils.data.DataLoader`.

Law: it starts at the stream's position, runs ahead of it as far as the loader prefetches, and never moves it: only
`SampleStream.complete` does.  The shares given out wait in order (`take`), one for each batch that the loader yields.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import Sampler as TorchSampler

from elastic_health.data.permutation_torch import sample_indices
from elastic_health.data.shares import Share, share
from elastic_health.data.stream import SampleStream
from elastic_health.errors import DataError


def where_am_i(rank: int | None, world: int | None) -> tuple[int, int]:
    """Data-parallel rank and world: as given, else the process group's, else torchrun's variables, else alone.

    Raises:
        DataError: only one of the two given.
    """
    if (rank is None) != (world is None):
        raise DataError("rank= and world= together", "one of them", "give both, or neither")
    if rank is not None and world is not None:
        return rank, world
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Sampler(TorchSampler[list[Any]]):
    """Index lists of this rank, one for each step.

    Args:
        stream: shared with whatever completes the steps.
        rank, world: data-parallel rank and world, if they are not the process group's.
        with_positions: yield (position, index) pairs instead of indices.

    A data loader built on it must keep order (`in_order=True`, the default).  After each batch, `take()` says which
    share it was.
    """

    def __init__(self, stream: SampleStream, *, rank: int | None = None, world: int | None = None, with_positions: bool = False) -> None:
        self.stream = stream
        self.with_positions = with_positions
        self._given = (rank, world)
        self._out: deque[Share] = deque()
        where_am_i(rank, world)

    def __iter__(self) -> Iterator[list[Any]]:
        rank, world = where_am_i(*self._given)
        out: deque[Share] = deque()
        self._out = out  # a new iteration forgets what an older one had fetched ahead
        token = self.stream.token
        step = self.stream.next_step(world)
        while step is not None and token == self.stream.token:
            mine = share(step, rank, world)
            out.append(mine)
            yield self._items(mine)
            step = self.stream.next_step(world, step.after)

    def take(self) -> Share:
        """The share of the batch that the data loader has just yielded.

        Raises:
            DataError: more batches were taken than given out.
        """
        if not self._out:
            raise DataError("one take() for each batch", "a take() before its batch", "call it once, right after the batch")
        return self._out.popleft()

    def _items(self, mine: Share) -> list[Any]:
        spec = self.stream.spec
        indices = sample_indices(mine.reads, spec.n, spec.seed)
        if not self.with_positions:
            return indices
        positions = (p for start, end in mine.reads for p in range(start, end))
        return list(zip(positions, indices, strict=True))

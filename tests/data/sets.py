"""Data sets for the loader's tests; at module level, so that spawned workers can unpickle them."""

from __future__ import annotations

import random
from typing import Any

import torch


class Numbers:
    """Sample i is i, with what each generator draws while it is fetched: a stand-in for an augmentation."""

    def __init__(self, n: int) -> None:
        self.n, self.note = n, "mine"

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return {"i": i, "torch": torch.rand(()).item(), "python": random.random(), "numpy": self._numpy()}

    def _numpy(self) -> float:
        import numpy

        return float(numpy.random.random())


class Lists(Numbers):
    """Fetches whole lists."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"i": i, "torch": torch.rand(()).item()} for i in indices]


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def as_list(samples: list[Any]) -> list[Any]:
    return samples

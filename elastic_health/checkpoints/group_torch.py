"""The ranks of a checkpoint, over a gloo group of their own.

Law: a step that may fail on one rank is taken through `together` or `first`, so that all ranks go on or all raise the
same error; no rank is left waiting in a collective that another one skipped.
"""

from __future__ import annotations

import contextlib
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from elastic_health.checkpoints.files_os import explain
from elastic_health.errors import CheckpointError, HealthError

T = TypeVar("T")


@dataclass(frozen=True)
class _Failed:
    expected: str
    found: str
    do: str


def _try(fn: Callable[[], T]) -> T | _Failed:
    try:
        return fn()
    except OSError as e:
        told = explain(e, "checkpoint")
        return _Failed(told.expected, told.found, told.do)
    except HealthError as e:
        return _Failed(e.expected, e.found, e.do)


class Group:
    """All ranks of the job, or this process alone when torch.distributed is not initialised.

    A gloo group of its own: asynchronous saves need a CPU backend, and collectives of a background thread on a shared
    group would interleave with those of training.  Making one is a collective call.
    """

    def __init__(self, timeout_s: float = 1800.0) -> None:
        alone = not (dist.is_available() and dist.is_initialized())
        self.pg = None if alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.rank = 0 if alone else dist.get_rank()
        self.world = 1 if alone else dist.get_world_size()
        self.host = socket.gethostname()

    def close(self) -> None:
        """Leave the group, unless the script has already ended all of them.  Not collective."""
        if self.pg is not None and dist.is_initialized():
            with contextlib.suppress(ValueError):  # it is gone
                dist.destroy_process_group(self.pg)
            self.pg = None

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank."""
        if self.pg is None:
            return [value]
        out: list[T | None] = [None] * self.world
        dist.all_gather_object(out, value, group=self.pg)
        return cast("list[T]", out)

    def most(self, *values: int) -> tuple[int, ...]:
        """The largest of each value over all ranks, on every rank: one small all-reduce."""
        if self.pg is None:
            return values
        told = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self.pg)
        return tuple(int(v) for v in told.tolist())

    def together(self, fn: Callable[[], T]) -> list[T]:
        """Run `fn` on every rank; all get every rank's result.

        Raises:
            CheckpointError: on all ranks alike, when `fn` raised `OSError` or a `HealthError` on any of them.
        """
        results = self.gather(_try(fn))
        failed = [(rank, r) for rank, r in enumerate(results) if isinstance(r, _Failed)]
        if failed:
            rank, first = failed[0]
            others = f" (ranks {', '.join(str(r) for r, _ in failed[:16])})" if len(failed) > 1 else ""
            where = f"on rank {rank}{others}: " if self.world > 1 else ""
            raise CheckpointError(first.expected, f"{where}{first.found}", first.do)
        return cast("list[T]", results)

    def first(self, fn: Callable[[], T]) -> T:
        """Run `fn` on rank 0; all get its result, or all raise its error as a `CheckpointError`."""
        result: list[T | _Failed | None] = [_try(fn) if self.rank == 0 else None]
        if self.pg is not None:
            dist.broadcast_object_list(result, src=0, group=self.pg)
        if isinstance(result[0], _Failed):
            raise CheckpointError(result[0].expected, result[0].found, result[0].do)
        return cast("T", result[0])


@contextlib.contextmanager
def alone_is_meant() -> Iterator[None]:
    """Without process groups torch's saver warns at each call that it takes the process to be alone: here it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield

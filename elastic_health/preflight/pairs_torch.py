"""The built-in benchmark of a pair: an all-reduce of several sizes, its results checked.

`python -m elastic_health.preflight.pairs_torch --rank 0|1 --world 2 --endpoint HOST:PORT --address HOST` prints JSON lines (see
`pair_bench`).  Rank 0 listens at the endpoint, at that address alone; gloo listens at `--address` and tells the other rank
that one.  NCCL chooses its ways as it does in training (`NCCL_SOCKET_IFNAME`, `NCCL_IB_HCA`).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

PATTERN = 251
"""A prime: each rank's numbers repeat after so many, and sums of small integers are exact in float32."""
LEAST_ITERATIONS = 3
LEAST_OPERATIONS = 10
"""Of one size: two checks, warm-up, timed ones, and what is agreed between."""
MAX_WRONG = 1 << 30
Reduce = Callable[[torch.Tensor, dist.ReduceOp.RedOpType], None]


@dataclass(frozen=True)
class Options:
    rank: int
    world: int
    endpoint: str
    address: str
    sizes: tuple[int, ...]
    iterations: int
    warmup: int
    limit_s: float
    backend: str


def options(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="elastic_health.preflight.pairs_torch", description="all-reduce bandwidth between processes")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--endpoint", required=True, help="HOST:PORT at which rank 0 listens")
    parser.add_argument("--address", default="", help="this node's own address; default: the endpoint's host on rank 0")
    parser.add_argument("--sizes", default="1048576,4194304,16777216,67108864", help="bytes, with commas")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for all of it, from here")
    parser.add_argument("--until", type=float, default=None, help="in place of --limit: the moment on CLOCK_MONOTONIC")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="nccl" if torch.cuda.is_available() else "gloo")
    said = parser.parse_args(argv)
    limit_s = said.limit if said.until is None else max(0.1, said.until - time.monotonic())
    try:
        sizes = tuple(int(size) for size in said.sizes.split(","))
    except ValueError:
        parser.error(f"--sizes: numbers of bytes with commas, not {said.sizes!r}")
    host, colon, port = said.endpoint.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        parser.error(f"--endpoint: HOST:PORT, not {said.endpoint!r}")
    if said.world < 2 or not 0 <= said.rank < said.world or min(sizes) < 4 or said.iterations < 1 or said.warmup < 0 or not limit_s > 0:
        parser.error("expected a world of at least 2, 0 <= rank < world, sizes of at least 4 bytes, an iteration, and a limit above 0")
    address = said.address or (host.strip("[]") if said.rank == 0 else "")
    return Options(said.rank, said.world, said.endpoint, address, sizes, said.iterations, said.warmup, limit_s, said.backend)


def meet(o: Options) -> TCPStore:
    """The store of this run: fresh, hosted by rank 0 at the endpoint's address alone.

    Raises:
        OSError: rank 0 can't listen there.
        RuntimeError: as torch has it, e.g. nobody is at the endpoint in time.
    """
    host, _, port = o.endpoint.rpartition(":")
    host = host.strip("[]")
    timeout = timedelta(seconds=o.limit_s)
    if o.rank:
        return TCPStore(host, int(port), o.world, is_master=False, timeout=timeout)
    listener = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    return TCPStore(
        host, int(port), o.world, is_master=True, timeout=timeout, wait_for_workers=True, multi_tenant=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def group(o: Options, store: TCPStore) -> Any:
    """The process group between the ranks."""
    if o.backend == "nccl":
        torch.cuda.set_device(0)
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timedelta(seconds=o.limit_s)
        return dist.ProcessGroupNCCL(PrefixStore("nccl", store), o.rank, o.world, nccl)
    kind: Any = dist.ProcessGroupGloo
    gloo = kind._Options()
    gloo._devices = [kind.create_device(hostname=o.address) if o.address else kind.create_default_device()]
    gloo._timeout = timedelta(seconds=o.limit_s)
    return kind(PrefixStore("gloo", store), o.rank, o.world, gloo)


def reducer(pg: Any, device: torch.device) -> Reduce:
    """An all-reduce that has ended when it returns."""

    def reduce(tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        wanted: Any = dist.AllreduceOptions()
        wanted.reduceOp = op
        pg.allreduce([tensor], wanted).wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return reduce


def measure(reduce: Reduce, o: Options, size: int, device: torch.device, budget_s: float) -> dict[str, object]:
    """One size: results checked before and after the timed operations, which stop early where they exceed `budget_s`.

    Returns:
        size in bytes, bus bandwidth in GB/s, seconds, number of iterations, and wrong elements over all ranks.
    """
    count = size // 4
    wrong = _wrong(reduce, o, count, device)
    data = torch.zeros(count, dtype=torch.float32, device=device)
    one_s = max(_timed(reduce, data) for _ in range(max(1, o.warmup)))
    rounds = int(_agreed(reduce, min(o.iterations, max(LEAST_ITERATIONS, budget_s / max(one_s, 1e-9))), dist.ReduceOp.MIN, device))
    median_s = statistics.median(_timed(reduce, data) for _ in range(max(1, rounds)))
    time_s = _agreed(reduce, median_s, dist.ReduceOp.MAX, device)
    wrong = int(_agreed(reduce, min(MAX_WRONG, wrong + _wrong(reduce, o, count, device)), dist.ReduceOp.SUM, device))
    busbw = count * 4 / time_s * 2 * (o.world - 1) / o.world / 1e9
    return {"size": size, "busbw": round(busbw, 6), "time_s": round(time_s, 9), "iterations": rounds, "wrong": wrong}


def _timed(reduce: Reduce, data: torch.Tensor) -> float:
    began = time.perf_counter()
    reduce(data, dist.ReduceOp.SUM)
    return time.perf_counter() - began


def _agreed(reduce: Reduce, value: float, op: dist.ReduceOp.RedOpType, device: torch.device) -> float:
    held = torch.tensor([value], dtype=torch.float64, device=device)
    reduce(held, op)
    return float(held.item())


def pattern(count: int, rank: int, device: torch.device) -> torch.Tensor:
    """A rank's numbers: small integers that differ between ranks and neighbours."""
    return ((torch.arange(count, device=device, dtype=torch.int64) * (rank + 3) + 7 * rank) % PATTERN).to(torch.float32)


def _wrong(reduce: Reduce, o: Options, count: int, device: torch.device) -> int:
    """Elements of a sum over the ranks that differ from what it must be; NaN differs from everything."""
    data = pattern(count, o.rank, device)
    reduce(data, dist.ReduceOp.SUM)
    expected = pattern(count, 0, device)
    for rank in range(1, o.world):
        expected += pattern(count, rank, device)
    return int((data != expected).sum().item())


def run(o: Options, say: Callable[[dict[str, object]], None]) -> None:
    """Measure all sizes, each as it is done told to `say`."""
    ends = time.monotonic() + o.limit_s
    say({"started": True, "left_s": round(o.limit_s, 3)})
    device = torch.device("cuda", 0) if o.backend == "nccl" else torch.device("cpu")
    store = meet(o)
    reduce = reducer(group(o, store), device)
    _agreed(reduce, 0.0, dist.ReduceOp.SUM, device)
    left_s = ends - time.monotonic()
    said = {"backend": o.backend, "torch": torch.__version__, "rank": o.rank, "world": o.world}
    say({"connected": True, "left_s": round(left_s, 3), **said})
    byte_s = 0.0
    for more, size in zip(range(len(o.sizes), 0, -1), o.sizes, strict=True):
        left_s = ends - time.monotonic()
        if _agreed(reduce, LEAST_OPERATIONS * size * byte_s / max(left_s, 1e-9), dist.ReduceOp.MAX, device) > 1:
            say({"skipped": size})  # on so slow a link there is no time for it, and the smaller ones have told
            continue
        found = measure(reduce, o, size, device, left_s / more / 3)
        byte_s = float(str(found["time_s"])) / size
        say(found)
    say({"done": True})


def main(argv: list[str]) -> int:
    o = options(argv)
    torch.set_num_threads(1)
    try:
        run(o, lambda said: print(json.dumps(said), flush=True))
    except (OSError, RuntimeError) as error:  # torch's distributed errors are RuntimeErrors
        text = str(error).splitlines() or [type(error).__name__]
        print(json.dumps({"error": text[0][:300]}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # a process group whose partner is gone may wait for it in its destructor

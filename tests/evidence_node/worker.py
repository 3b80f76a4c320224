"""A worker of two with torch's worker server and a gloo group, that ends in one of several kinds of trouble.

Arguments: socket path, rank, rendezvous file, trouble (`hang`: rank 1 never enters; `gil`: rank 1 holds the GIL).
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

os.environ["TORCH_FR_BUFFER_SIZE"] = "200"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


def never_enters() -> None:
    time.sleep(600)


def main() -> None:
    path, rank, rendezvous, trouble = sys.argv[1:5]
    server = c10d._WorkerServer(path, -1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=2)
    ones = torch.ones(4)
    for _ in range(5):
        dist.all_reduce(ones)
    print("ready", flush=True)
    if rank == "1" and trouble == "gil":
        ctypes.PyDLL(None).sleep(600)
    if rank == "1":
        never_enters()
    dist.all_reduce(ones)
    server.shutdown()


if __name__ == "__main__":
    main()

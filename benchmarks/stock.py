"""Stock torchrun's c10d rendezvous with n participants: the first formation, timed from the first call to the last return.

Participants are threads spread over a few processes, each with a handler and a store client of its own; the TCPStore is
hosted by this process, as on the node that `--rdzv-endpoint` names.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

PROCESSES = 8
READY_S = 600.0
"""For all processes to have imported torch, on a machine that does much else."""


def form_stock(n: int, limit_s: float) -> dict[str, Any]:
    """One formation; `formed` False when it was not there within `limit_s`."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=False)
    context = multiprocessing.get_context("spawn")
    processes = min(PROCESSES, n)
    barrier, results = context.Barrier(processes + 1), context.Queue()
    shares = [range(k, n, processes) for k in range(processes)]
    started = [
        context.Process(target=_participants, args=(len(s), n, f"127.0.0.1:{store.port}", barrier, results), daemon=True) for s in shares
    ]
    try:
        for process in started:
            process.start()
        barrier.wait(READY_S)
        found = _collect(results, processes, limit_s)
    finally:
        for process in started:
            process.kill()
            process.join()
    ranks = sorted(rank for _, _, rank in found)
    formed = ranks == list(range(n))
    took = max(f[1] for f in found) - min(f[0] for f in found) if formed else limit_s
    return {"formation": "first", "n": n, "formed": formed, "time_s": round(took, 3)}


def _collect(results: Queue[list[tuple[float, float, int]]], processes: int, limit_s: float) -> list[tuple[float, float, int]]:
    """(called at, returned at, rank) of all that came back in time."""
    found: list[tuple[float, float, int]] = []
    deadline = time.monotonic() + limit_s
    with contextlib.suppress(queue.Empty):
        for _ in range(processes):
            found += results.get(timeout=max(0.1, deadline - time.monotonic()))
    return found


def _participants(count: int, n: int, endpoint: str, barrier: Barrier, results: Queue[list[tuple[float, float, int]]]) -> None:
    import logging

    from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

    logging.disable(logging.WARNING)
    parameters = RendezvousParameters("c10d", endpoint, "bench", n, n, local_addr="127.0.0.1", is_host="false")
    handlers = [registry.get_rendezvous_handler(parameters) for _ in range(count)]
    found: list[tuple[float, float, int]] = []

    def join(handler: Any) -> None:
        called = time.time()
        rank = handler.next_rendezvous().rank
        found.append((called, time.time(), rank))

    threads = [threading.Thread(target=join, args=(h,), daemon=True) for h in handlers]
    barrier.wait(READY_S)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(found)
    time.sleep(3600)  # until killed: an orderly end would wait for the store's clients

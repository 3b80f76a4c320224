"""Configurations explored side by side, one process each, with a line of progress now and then."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.queues
import time
from collections.abc import Iterator
from queue import Empty

from tests.model.configs import DEEP, FULL
from tests.model.explore import Found, explore

_TELL_EVERY_S = 15.0


def explored(names: list[str], jobs: int, until: float) -> Iterator[tuple[str, Found]]:
    """Results as they come, one process a configuration, largest first."""
    context = multiprocessing.get_context("spawn")
    heard: multiprocessing.queues.Queue[tuple[str, Found | tuple[int, int, int]]] = context.Queue()
    todo = [n for n in (*FULL, *DEEP) if n in names]
    running: dict[str, multiprocessing.context.SpawnProcess] = {}
    at: dict[str, tuple[int, int, int]] = {}
    told = time.monotonic()
    while todo or running:
        while todo and len(running) < jobs:
            name = todo.pop()
            running[name] = context.Process(target=_work, args=(name, until, heard), daemon=True)
            running[name].start()
        try:
            name, what = heard.get(timeout=1.0)
        except Empty:
            dead = [n for n, p in running.items() if p.exitcode not in (None, 0)]
            if dead:
                raise SystemExit(f"the exploration of {dead} ended with status {running[dead[0]].exitcode} (out of memory?)") from None
            continue
        if isinstance(what, Found):
            running.pop(name).join()
            at.pop(name, None)
            yield name, what
        else:
            at[name] = what
        if time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            print("; ".join(f"{n}: {s} states, {s - k} to do, depth {d}" for n, (s, k, d) in at.items()), flush=True)


def _work(name: str, until: float, heard: multiprocessing.queues.Queue[tuple[str, Found | tuple[int, int, int]]]) -> None:
    heard.put((name, explore({**FULL, **DEEP}[name], tell=lambda *n: heard.put((name, n)), until=until)))

"""Looks at this node's workers: their pages, and what the kernel counts for their process trees.

Law: looking is cheap and changes nothing.  Which processes belong to a tree is read seldom (all of /proc), what they
consumed at each look (two small files a process).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from elastic_health.agents.rank_facts import Watched, Work, first_work, next_work, rank_facts
from elastic_health.agents.tree_os import Proc, descendants, read_proc, snapshot
from elastic_health.liveness.facts import ProcState, RankFacts
from elastic_health.liveness.page import PageFacts

SCAN_EVERY_S = 2.0
SCAN_SHARE = 0.02
"""Reading all of /proc takes at most this part of one core, so on a node with many processes it is done more seldom."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_STATES: Mapping[str, ProcState] = {
    "R": ProcState.RUNNING,
    "S": ProcState.SLEEPING,
    "I": ProcState.SLEEPING,
    "D": ProcState.DISK,
    "T": ProcState.STOPPED,
    "t": ProcState.STOPPED,
    "Z": ProcState.ZOMBIE,
    "X": ProcState.GONE,
}


class Observer:
    """Turns pages and /proc into facts, for the workers of one generation on this node.

    Args:
        node: this node's name.
        read_page: the page of a local rank now (`Page.look`), None while there is none.
    """

    def __init__(self, node: str, workers: Iterable[Watched], read_page: Callable[[int], PageFacts | None]) -> None:
        self._node, self._workers, self._read_page = node, tuple(workers), read_page
        roots = {w.pid: read_proc(w.pid) for w in self._workers}
        self._roots = {pid: proc.started for pid, proc in roots.items() if proc is not None}
        self._trees: dict[int, set[int]] = {w.pid: {w.pid} for w in self._workers}
        self._work: dict[int, Work] = {}
        self._next_scan = 0.0
        self._discounts, self._discount_once = 0, False

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(w.rank for w in self._workers)

    def observe(self, now: float | None = None) -> tuple[RankFacts, ...]:
        """One look at every worker.

        Args:
            now: CLOCK_MONOTONIC seconds (default: read it).
        """
        now = time.monotonic() if now is None else now
        if now >= self._next_scan:
            self._scan(now)
        facts = tuple(self._look(worker, now) for worker in self._workers)
        self._discount_once = False
        return facts

    @contextmanager
    def evidence(self) -> Iterator[None]:
        """While evidence is collected: what the workers consume for it (a flight recorder's dump costs tens of ms) is not work."""
        self._discounts += 1
        try:
            yield
        finally:
            self._discounts -= 1
            self._discount_once = True

    def _scan(self, now: float) -> None:
        began = time.monotonic()
        procs = snapshot()
        for worker in self._workers:
            alive = self._is_same(procs.get(worker.pid), worker.pid)
            below = descendants(procs, [worker.pid]) if alive else set()
            self._trees[worker.pid] = below | {p.pid for p in procs.values() if p.session == worker.pid}
        self._next_scan = now + max(SCAN_EVERY_S, (time.monotonic() - began) / SCAN_SHARE)

    def _is_same(self, proc: Proc | None, pid: int) -> bool:
        return proc is not None and self._roots.get(pid) == proc.started

    def _look(self, worker: Watched, now: float) -> RankFacts:
        proc = read_proc(worker.pid)
        cpu_s, io_bytes = self._consumed(worker.pid)
        before = self._work.get(worker.pid)
        discount = self._discounts > 0 or self._discount_once
        work = next_work(before, now, cpu_s, io_bytes, discount=discount) if before else first_work(now, cpu_s, io_bytes)
        self._work[worker.pid] = work
        return rank_facts(worker, self._node, self._page(worker.local_rank), self._state(proc, worker.pid), work, now)

    def _page(self, local_rank: int) -> PageFacts | None:
        try:
            return self._read_page(local_rank)
        except (ValueError, OSError):  # the worker's own memory, and it may have scribbled over it: no page
            return None

    def _state(self, proc: Proc | None, pid: int) -> ProcState:
        if proc is None or not self._is_same(proc, pid):
            return ProcState.GONE
        if proc.state == "Z" and proc.alive:  # only its main thread has ended
            return ProcState.SLEEPING
        return _STATES.get(proc.state, ProcState.SLEEPING)

    def _consumed(self, root: int) -> tuple[float, int]:
        cpu_s, io_bytes = 0.0, 0
        for pid in tuple(self._trees[root]):
            spent = read_cpu_s(pid)
            if spent is None:
                self._trees[root].discard(pid)
            else:
                cpu_s, io_bytes = cpu_s + spent, io_bytes + read_io_bytes(pid)
        return cpu_s, io_bytes


def read_cpu_s(pid: int) -> float | None:
    """CPU seconds of a process and of its children that it has waited for; None when it is gone.

    Counted so, the sum over a tree stays the same when a child ends: what it used passes to its parent.
    """
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(int(f) for f in fields[11:15]) * _TICK_S if len(fields) > 15 else None


def read_io_bytes(pid: int) -> int:
    """Bytes that a process and the children that it has waited for read and wrote by read and write calls; 0 where that is hidden."""
    said = _read(f"/proc/{pid}/io")
    total = 0
    for line in said.splitlines()[:2]:
        name, _, value = line.partition(b":")
        total += int(value) if name in (b"rchar", b"wchar") else 0
    return total


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)

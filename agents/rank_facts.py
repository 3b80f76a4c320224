"""From what a page says and what the kernel counts to the facts of one rank: ages, and whether the tree works.

Law: an age is the observing node's own, between two readings of its CLOCK_MONOTONIC, and never negative; a marker that
never moved is as old as the worker.  Whether a tree is busy is told by what it consumed beyond noise, never by its
heartbeat: that thread runs in a hung process too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState, RankFacts

BUSY_SHARE = 0.05
"""Of one core.  A worker's heartbeat and frontier polls cost about a thousandth, idle helper threads a hundredth; a
thread that computes, compiles, decompresses or spins in a driver takes a whole core."""
BUSY_IO_BYTES_PER_S = 64 * 1024
WINDOW_S = 1.0
"""The kernel counts CPU in ticks of 10 ms: over a second the share is five of them, over less it would be one or two."""


@dataclass(frozen=True)
class Work:
    """What a tree has consumed so far, and since when it was last seen to work.

    `mark_…`: the sums at the beginning of the present window.
    """

    cpu_s: float
    io_bytes: int
    busy_at: float
    mark_at: float
    mark_cpu_s: float
    mark_io_bytes: int


def first_work(now: float, cpu_s: float, io_bytes: int) -> Work:
    return Work(cpu_s, io_bytes, now, now, cpu_s, io_bytes)


def next_work(before: Work, now: float, cpu_s: float, io_bytes: int, *, discount: bool = False) -> Work:
    """The work after another reading of the sums.

    Args:
        cpu_s, io_bytes: sums over the tree.  They may fall when a process leaves it; that is no work.
        discount: what was consumed in this window was on behalf of the observer (evidence), so it is not work.
    """
    grown = replace(before, cpu_s=max(before.cpu_s, cpu_s), io_bytes=max(before.io_bytes, io_bytes))
    elapsed_s = max(now - before.mark_at, 0.0)
    window_s = max(elapsed_s, WINDOW_S)
    worked = cpu_s - before.mark_cpu_s > BUSY_SHARE * window_s or io_bytes - before.mark_io_bytes > BUSY_IO_BYTES_PER_S * window_s
    if worked or discount or elapsed_s >= WINDOW_S or cpu_s < before.mark_cpu_s or io_bytes < before.mark_io_bytes:
        grown = replace(grown, mark_at=now, mark_cpu_s=cpu_s, mark_io_bytes=io_bytes)
    return replace(grown, busy_at=now) if worked and not discount else grown


@dataclass(frozen=True)
class Watched:
    """A worker that is observed.  `started_at`: CLOCK_MONOTONIC second at which it was spawned."""

    rank: int
    local_rank: int
    pid: int
    generation: int
    started_at: float


class PageView(Protocol):
    """What is needed of a progress page.  `…_at` are CLOCK_MONOTONIC seconds of this node, 0 or below for never."""

    @property
    def phase(self) -> Phase: ...
    @property
    def phase_at(self) -> float: ...
    @property
    def heartbeat_at(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def step_at(self) -> float: ...
    @property
    def activity(self) -> int: ...
    @property
    def activity_at(self) -> float: ...
    @property
    def frontier(self) -> tuple[GroupFrontier, ...]: ...
    @property
    def frontier_at(self) -> float: ...
    @property
    def bound_hint_s(self) -> float: ...


def is_waiting(frontier: Iterable[GroupFrontier]) -> bool:
    """Some group has an operation enqueued that is not completed."""
    return any(g.enqueued > g.completed for g in frontier)


def rank_facts(watched: Watched, node: str, page: PageView | None, proc: ProcState, work: Work, now: float) -> RankFacts:
    """The facts of one rank now.  Without a page (a program that is no Python, or none yet) every marker is as old as the worker."""

    def age_s(at: float) -> float:
        return max(0.0, now - (at if at > 0 else watched.started_at))

    def marker(name: str) -> float:
        return age_s(getattr(page, f"{name}_at")) if page is not None else age_s(0.0)

    ages = {name: marker(name) for name in ("phase", "step", "activity", "frontier")}
    return RankFacts(
        rank=watched.rank,
        node=node,
        local_rank=watched.local_rank,
        pid=watched.pid,
        generation=watched.generation,
        phase=page.phase if page is not None else Phase.BOOT,
        phase_age_s=ages["phase"],
        proc=proc,
        heartbeat_age_s=age_s(page.heartbeat_at) if page is not None and page.heartbeat_at > 0 else None,
        steps=page.steps if page is not None else -1,
        step_age_s=ages["step"],
        activity=page.activity if page is not None else 0,
        activity_age_s=ages["activity"],
        frontier=page.frontier if page is not None else (),
        frontier_age_s=ages["frontier"],
        progress_age_s=min(ages.values()),
        waiting=page is not None and is_waiting(page.frontier),
        cpu_s=work.cpu_s,
        io_bytes=work.io_bytes,
        busy_age_s=max(0.0, now - work.busy_at),
        bound_hint_s=page.bound_hint_s if page is not None else 0.0,
    )

"""From what a page says and what the kernel counts to the facts of one rank: ages, and whether the tree works.

Law: an age is the observing node's own, between two readings of its CLOCK_MONOTONIC, and never negative; a marker that
never moved is as old as the worker.  Whether a tree is busy is told by what it consumed beyond noise, never by its
heartbeat: that thread runs in a hung process too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from elastic_health.liveness.facts import GroupFrontier, ProcState, RankFacts
from elastic_health.liveness.page import Beat, Mark, Order, PageFacts

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


def is_waiting(frontier: Iterable[GroupFrontier]) -> bool:
    """Some group has an operation enqueued that is not completed."""
    return any(g.enqueued > g.completed for g in frontier)


def rank_facts(watched: Watched, node: str, page: PageFacts | None, proc: ProcState, work: Work, now: float) -> RankFacts:
    """The facts of one rank now.

    Without a page (none yet, or a program that writes none) each marker is as old as the worker, and the generation is
    the one that it was spawned for; a page may have handed it a newer one in place.
    """
    mark, beat, order = (page.mark, page.beat, page.order) if page is not None else (Mark(), Beat(), Order())

    def age_s(at_ns: int) -> float:
        return max(0.0, now - (at_ns / 1e9 if at_ns > 0 else watched.started_at))

    phase_age_s, step_age_s = age_s(mark.phase_at), age_s(mark.step_at)
    activity_age_s, frontier_age_s = age_s(beat.activity_at), age_s(beat.frontier_at)
    return RankFacts(
        rank=watched.rank,
        node=node,
        local_rank=watched.local_rank,
        pid=watched.pid,
        generation=max(watched.generation, order.generation),
        phase=mark.phase,
        phase_age_s=phase_age_s,
        proc=proc,
        heartbeat_age_s=age_s(beat.beat_at) if beat.beat_at > 0 else None,
        steps=mark.steps,
        step_age_s=step_age_s,
        activity=beat.activity,
        activity_age_s=activity_age_s,
        frontier=beat.groups,
        frontier_age_s=frontier_age_s,
        progress_age_s=min(phase_age_s, step_age_s, activity_age_s, frontier_age_s),
        waiting=is_waiting(beat.groups),
        cpu_s=work.cpu_s,
        io_bytes=work.io_bytes,
        busy_age_s=max(0.0, now - work.busy_at),
        bound_hint_s=mark.bound_hint_ms / 1000,
    )

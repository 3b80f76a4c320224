"""Skipped windows: half-open intervals of global sample positions, and the arithmetic on them.

Law: a set of windows is kept sorted, disjoint and non-touching (`normal`), so that "is p skipped" and "the next k
positions outside" have one answer whatever order the windows came in, and recording one twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic_health.errors import DataError


@dataclass(frozen=True, order=True)
class Window:
    """Positions `start` <= p < `end`, in samples of the global stream."""

    start: int
    end: int
    reason: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.start, int) and isinstance(self.end, int)) or not 0 <= self.start < self.end:
            raise DataError("a window with 0 <= start < end", f"[{self.start}, {self.end})", "correct the window")


def normal(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Sorted, with overlapping or touching windows joined.

    Their reasons are joined as a sorted set: plan and loader state are merged at every start, and text that grew each
    time would have no end.
    """
    out: list[Window] = []
    for w in sorted(windows):
        if out and w.start <= out[-1].end:
            last = out[-1]
            out[-1] = Window(last.start, max(last.end, w.end), _both(last.reason, w.reason))
        else:
            out.append(w)
    return tuple(out)


def _both(a: str, b: str) -> str:
    return a if a == b else "; ".join(sorted({*a.split("; "), *b.split("; ")} - {""}))


def advance(position: int, count: int, windows: tuple[Window, ...]) -> tuple[tuple[tuple[int, int], ...], int]:
    """The next `count` positions outside all windows, from `position` on.

    Args:
        windows: normal form (see `normal`).

    Returns:
        The positions as half-open runs in order, and the position after the last one (never inside a window).
    """
    runs: list[tuple[int, int]] = []
    p, left = outside(position, windows), count
    for w in windows:
        if left <= 0:
            break
        if w.end <= p:
            continue
        if p < w.start:
            take = min(left, w.start - p)
            runs.append((p, p + take))
            p, left = p + take, left - take
        p = outside(p, windows)
    if left > 0:
        runs.append((p, p + left))
        p += left
    return tuple(runs), outside(p, windows)


def outside(position: int, windows: tuple[Window, ...]) -> int:
    """`position`, or the end of the window that it lies in (windows in normal form)."""
    for w in windows:
        if w.start <= position < w.end:
            return w.end
    return position

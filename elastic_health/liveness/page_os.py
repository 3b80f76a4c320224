"""Progress pages as files in shared memory: the agent makes them, a worker maps its own, both ends write their sections."""

from __future__ import annotations

import mmap
import os
import time

from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page import (
    PAGE_BYTES,
    PHASES,
    Beat,
    Order,
    PageFacts,
    blank,
    pack_beat,
    pack_order,
    pack_step,
    place,
    read,
)


class Page:
    """One mapped page.  Each section's writer is one thread of one process (see `page`)."""

    def __init__(self, path: str) -> None:
        """Map an existing page.

        Raises:
            OSError: no such file, or no permission.
            ValueError: the file isn't a page.
        """
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, PAGE_BYTES)
        finally:
            os.close(fd)
        read(self._map[:])
        self._seq = {"mark": 0, "beat": 0, "order": 0}
        self._steps, self._step_at, self._position, self._phase, self._phase_at, self._hint_ms = -1, 0, 0, 0, 0, 0

    @classmethod
    def create(cls, path: str) -> Page:
        """Make a blank page, readable and writable by the owner only."""
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, blank())
        finally:
            os.close(fd)
        return cls(path)

    def look(self) -> PageFacts:
        """What the page says now."""
        return read(self._map[:])

    def close(self) -> None:
        self._map.close()

    def _put(self, section: str, raw: bytes) -> None:
        at = place(section, self._seq[section])
        self._map[at : at + len(raw)] = raw

    # ---- the script's thread
    def step(self, steps: int, position: int = 0) -> None:
        """A step is completed; no system call."""
        self._steps, self._step_at, self._position = steps, time.monotonic_ns(), position
        self._mark()

    def phase(self, phase: Phase, bound_hint_s: float = 0.0) -> None:
        """The script enters a phase; `bound_hint_s` is how long it may take (0: the usual bounds)."""
        self._phase, self._phase_at, self._hint_ms = PHASES.index(phase), time.monotonic_ns(), int(bound_hint_s * 1000)
        self._mark()

    def _mark(self) -> None:
        seq = self._seq["mark"] = self._seq["mark"] + 1
        self._put("mark", pack_step(seq, self._steps, self._step_at, self._position, self._phase, self._phase_at, self._hint_ms))

    # ---- the heartbeat thread
    def beat(self, beat: Beat) -> None:
        seq = self._seq["beat"] = self._seq["beat"] + 1
        self._put("beat", pack_beat(seq, beat))

    # ---- the agent
    def order(self, order: Order) -> None:
        seq = self._seq["order"] = self._seq["order"] + 1
        self._put("order", pack_order(seq, order))

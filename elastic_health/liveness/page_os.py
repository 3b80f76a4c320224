"""Progress pages as files in shared memory: the agent makes them, a worker maps its own, both ends write their sections.

Law: a mark costs no system call; a reader never blocks a writer, and gets whole records only.
"""

from __future__ import annotations

import mmap
import os
import threading
import time

from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page import (
    PAGE_BYTES,
    PHASES,
    Beat,
    Order,
    PageFacts,
    blank,
    last_written,
    pack_beat,
    pack_mark,
    pack_order,
    place,
    read,
    torn,
)

_LOOKS = 20
"""A look that meets two writes of one section is made anew; a writer would have to write all the time to spoil so many."""


class Page:
    """One mapped page.  Each section's writer is one process (see `page`); within it any thread may mark.

    The page speaks of the process that mapped it: have a forked child call `silence` (`os.register_at_fork`).
    """

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
        self._silent = False
        # Reentrant: a signal handler of the script may mark while it interrupts a mark.
        self._lock = threading.RLock()
        now = self._map[:]
        mark = read(now).mark
        self._seq = {section: last_written(now, section) for section in ("mark", "beat", "order")}
        self._steps, self._step_at, self._position, self._microbatch = mark.steps, mark.step_at, mark.position, mark.microbatch
        self._phase, self._phase_at, self._hint_ms = PHASES.index(mark.phase), mark.phase_at, mark.bound_hint_ms
        self._saves = mark.saves

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
        """What the page says now.

        Raises:
            ValueError: it has been scribbled over.
        """
        copy = self._map[:]
        for _ in range(_LOOKS):
            if not torn(copy):
                break
            copy = self._map[:]
        return read(copy)

    def silence(self) -> None:
        """From now on this object writes nothing."""
        self._silent, self._lock = True, threading.RLock()

    def close(self) -> None:
        self._map.close()

    # ---- the script
    def step(self, steps: int, position: int = 0) -> None:
        """A step is completed (`steps` of them so far), and the stream stands at `position`; no system call."""
        with self._lock:
            self._steps, self._step_at, self._position, self._microbatch = steps, time.monotonic_ns(), position, 0
            self._mark()

    def microbatch(self, n: int) -> None:
        """Microbatch `n` of the step that runs."""
        with self._lock:
            self._microbatch = n
            self._mark()

    def phase(self, phase: Phase, bound_hint_s: float = 0.0) -> None:
        """The script enters a phase; `bound_hint_s` is how long it may take (0: the usual bounds)."""
        with self._lock:
            self._phase, self._phase_at, self._hint_ms = PHASES.index(phase), time.monotonic_ns(), int(bound_hint_s * 1000)
            self._mark()

    def saves(self) -> None:
        """The script saves a checkpoint when the agent wishes one."""
        with self._lock:
            self._saves = True
            self._mark()

    def _mark(self) -> None:
        seq = self._seq["mark"] + 1
        marks = (self._steps, self._step_at, self._position, self._microbatch, self._phase, self._phase_at, self._hint_ms, self._saves)
        self._put("mark", seq, pack_mark(seq, *marks))

    # ---- the heartbeat thread
    def beat(self, beat: Beat) -> None:
        seq = self._seq["beat"] + 1
        self._put("beat", seq, pack_beat(seq, beat))

    # ---- the agent
    def order(self, order: Order) -> None:
        seq = self._seq["order"] + 1
        self._put("order", seq, pack_order(seq, order))

    def _put(self, section: str, seq: int, raw: bytes) -> None:
        if not self._silent:
            self._seq[section] = seq
            at = place(section, seq)
            self._map[at : at + len(raw)] = raw

"""The heartbeat thread of a worker: writes the page twice a second, and ends the process when its agent's word has run out.

It needs the GIL: where a script holds that for good, the guardian and the parent-death signal end the process instead.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from elastic_health.liveness.facts import GroupFrontier
from elastic_health.liveness.frontier import frontier
from elastic_health.liveness.page import Beat, moved
from elastic_health.liveness.page_os import Page

BEAT_S = 0.5


class Watchdog:
    """Owns the beat section of the page.

    Args:
        activity: returns the number of optimizer steps so far.
    """

    def __init__(self, page: Page, activity: Callable[[], int]) -> None:
        self._page, self._activity = page, activity
        self._count = self._count_at = self._frontier_at = 0
        self._groups: tuple[GroupFrontier, ...] = ()
        self.warmable, self.modules, self.running = -1, 0, True
        self._mark_modules: Callable[[], int] | None = None
        self._pid = os.getpid()

    def start(self, modules: Callable[[], int]) -> None:
        """`modules` tells, once, at the first process group, which heavy modules the script has imported."""
        self._mark_modules = modules
        threading.Thread(target=self._run, name="eh-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while os.getpid() == self._pid:
            self.beat()
            self._obey()
            time.sleep(BEAT_S)

    def beat(self) -> None:
        now, count, groups = time.monotonic_ns(), self._activity(), _frontier()
        if count != self._count:
            self._count, self._count_at = count, now
        if groups and moved(self._groups, groups):
            self._groups, self._frontier_at = groups, now
            if self._mark_modules is not None:
                self.modules, self._mark_modules = self._mark_modules(), None
        self._page.beat(Beat(self._pid, now, count, self._count_at, self._frontier_at, self.warmable, self.modules, self.running, self._groups))

    def _obey(self) -> None:
        deadline = self._page.look().order.deadline
        if deadline and time.monotonic_ns() > deadline:
            os.write(2, b"elastic-health: this worker's agent has not been heard of past its deadline; ending\n")
            # The worker leads its session; what left it is found by the guardian.
            os.killpg(os.getpgid(0), signal.SIGKILL) if os.getpgid(0) == self._pid else os.kill(self._pid, signal.SIGKILL)


def _frontier() -> tuple[GroupFrontier, ...]:
    """This process's collective frontier; () before torch.distributed has a group."""
    dist = sys.modules.get("torch.distributed")
    c10d = sys.modules.get("torch._C._distributed_c10d")
    ready = getattr(dist, "is_initialized", None)
    if c10d is None or ready is None or not ready():
        return ()
    return frontier(c10d._dump_fr_trace_json(False, False))

"""The heartbeat thread of a worker: writes the page twice a second, and ends the process when its agent's word has run out.

Law: the agent's deadline on the page is the only clock that ends the process, and after a pause of its own (SIGSTOP, a
suspended machine) the thread gives the agent one beat to say something before it judges.

It needs the GIL: where a script holds that for good, the guardian and the parent-death signal end the process instead.
The thread is started below `threading`, so that a script doesn't meet it among its own.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from enum import Enum

from elastic_health.liveness.facts import GroupFrontier
from elastic_health.liveness.frontier import moved, shown
from elastic_health.liveness.page import GROUPS, Beat
from elastic_health.liveness.page_os import Page
from elastic_health.worker.hooks_torch import Activity, Recorder, open_server
from elastic_health.worker.imports_os import Imports

BEAT_S = 0.5
_IMPORT_POLL_S = 0.02
_GAP_S = 4 * BEAT_S
STUCK_S = 2.0
"""After so long with a collective under way and none moving, the operation that is waited for is looked up, once."""
_MODULES_FOR_S = 60.0
"""What is imported later than this after the first optimizer step isn't needed for a start."""


class Word(Enum):
    """What the agent's deadline means now."""

    NONE = "no deadline set"
    HOLDS = "it lies ahead"
    WAIT = "it has passed while this process stood still: one more beat"
    OVER = "it has passed"


def judge(now_ns: int, last_look_ns: int, deadline_ns: int) -> Word:
    """May this worker go on?

    Args:
        last_look_ns: when the thread last looked, 0 for never.
    """
    if deadline_ns == 0:
        return Word.NONE
    if now_ns <= deadline_ns:
        return Word.HOLDS
    return Word.WAIT if last_look_ns and now_ns - last_look_ns > _GAP_S * 1e9 else Word.OVER


class Watchdog:
    """Owns the beat section of the page.

    Args:
        server: path for torch's worker server, "" for none.
    """

    def __init__(self, page: Page, server: str) -> None:
        self._page, self._server = page, server
        self._activity, self._recorder = Activity(), Recorder()
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self.imports = Imports(self._wake_up)
        self._hooked = False
        self._count = self._count_at = self._frontier_at = self._modules = self._modules_until = 0
        self._groups: tuple[GroupFrontier, ...] = ()
        self._changed: dict[str, int] = {}
        self._looked = 0
        self._complained: set[str] = set()
        self._pid, self._main = os.getpid(), _thread.get_ident()

    def start(self) -> None:
        """Begin, on the main thread."""
        self.imports.install()
        _thread.start_new_thread(self._run, ())

    def _wake_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # awake already
            self._wake.release()

    def _run(self) -> None:
        next_beat = 0.0
        while True:
            self._guarded(self._hook)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_S
                self._guarded(self.beat)
                self._guarded(self._obey)
            pause = _IMPORT_POLL_S if self.imports.pending else next_beat - time.monotonic()
            self._wake.acquire(timeout=max(pause, 0.001))

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as e:  # an observer must not end what it observes, nor fall silent itself: it says so, once a kind
            if repr(e) not in self._complained and len(self._complained) < 10:
                self._complained.add(repr(e))
                os.write(2, f"elastic-health: {do.__name__} of the heartbeat: {e!r}\n".encode(errors="replace"))

    def _hook(self) -> None:
        """Start what needs torch, as soon as the script has imported it."""
        if not self._hooked and self.imports.imported("torch") and self.imports.imported("torch.distributed"):
            self._hooked = True
            self._activity.install()
            open_server(self._server)

    def beat(self) -> None:
        now, count = time.monotonic_ns(), self._activity()
        if count != self._count:
            self._modules_until = self._modules_until or now + int(_MODULES_FOR_S * 1e9)
            self._count, self._count_at = count, now
        self._look_at_groups(now)
        if not self._modules_until or now < self._modules_until:
            self._modules = self.imports.modules
        beat = Beat(
            pid=self._pid,
            beat_at=now,
            activity=count,
            activity_at=self._count_at,
            frontier_at=self._frontier_at,
            warmable=self.imports.warmable,
            modules=self._modules,
            running=self._script_runs(),
            groups=shown(self._groups, self._changed, GROUPS),
        )
        self._page.beat(beat)

    def _look_at_groups(self, now: int) -> None:
        waits = any(g.enqueued > g.completed for g in self._groups)
        groups = self._recorder.poll(stuck=waits and now - self._frontier_at > STUCK_S * 1e9)
        if moved(self._groups, groups):
            before = {g.group: g for g in self._groups}
            self._changed |= {g.group: now for g in groups if g.group not in before or moved((before[g.group],), (g,))}
            self._frontier_at = now
            self._groups = groups
        elif any(g.op for g in groups):
            self._groups = groups

    def _script_runs(self) -> bool:
        """Does the main thread still execute the script's own lines (and not what Python does at the end)?"""
        frame = sys._current_frames().get(self._main)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        return frame is not None and frame.f_code.co_name in ("<module>", "_run_module_as_main")

    def _obey(self) -> None:
        now, before = time.monotonic_ns(), self._looked
        self._looked = now
        if judge(now, before, self._page.look().order.deadline) is not Word.OVER:
            return
        os.write(2, b"elastic-health: this worker's agent has not been heard of past its deadline; ending\n")
        # The worker leads its session; what left it is found by the guardian.
        if os.getpgid(0) == self._pid:
            os.killpg(self._pid, signal.SIGKILL)
        os.kill(self._pid, signal.SIGKILL)

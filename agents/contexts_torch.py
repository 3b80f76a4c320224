"""torch's two process contexts, with three differences: stderr is tapped, each worker is a session of its own, and
closing them kills whole trees by our teardown.

Everything else (log folders, redirects, tees, filters, error files, NUMA binding, signal handlers) is torch's own code,
reached through the classes' documented-by-use seams: `SubprocessHandler._popen`, `SubprocessContext._start` and
`_close`, `MultiprocessContext.entrypoint` and `_close`.  The tests of workers start real ones through
each of these, so another torch that moves one fails them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from subprocess import Popen
from typing import Any

from torch.distributed.elastic.multiprocessing.api import MultiprocessContext, SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

from elastic_health import variables
from elastic_health.agents.functions_proc import FunctionWorker
from elastic_health.agents.stderr_proc import StderrTap

Take = Callable[[int, dict[str, str], str, str], "tuple[Popen[bytes], StderrTap] | None"]
"""`(local rank, whole environment, stdout path, stderr path)` -> a warm process that has become this worker."""
Close = Callable[[signal.Signals, float], None]


class WorkerHandler(SubprocessHandler):
    """torch's handler, but with stderr on a tap where torch would let the worker inherit ours."""

    def __init__(self, tap: StderrTap | None, take: Take | None, **kwargs: Any) -> None:
        self.tap = tap
        self._take = take
        self._rank, self._paths = kwargs["local_rank_id"], (kwargs["stdout"], kwargs["stderr"])
        super().__init__(**kwargs)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Popen[bytes]:
        warm = self._take(self._rank, env, *self._paths) if self._take else None
        if warm:
            process, tap = warm
            if self.tap:  # else its stderr goes to the user's file, once it has read its orders
                if self.tap.muted:
                    tap.mute()
                self.tap.close()
                self.tap = tap
            return process
        stderr = self.tap.write_fd if self.tap else self._stderr
        process = Popen(args, env=env, stdout=self._stdout, stderr=stderr, start_new_session=True)
        if self.tap:
            self.tap.handed_over()
        return process


def needs_tap(path: str) -> bool:
    """Does this stderr go nowhere that it could be read from later?  (An empty path is the agent's own stderr.)"""
    return path in ("", os.devnull)


def make_taps(stderrs: Mapping[int, str]) -> dict[int, StderrTap]:
    """A tap for each rank whose stderr is not a file; a filtered-out rank's tap only keeps the end."""
    return {rank: StderrTap(None if path == os.devnull else 2, str(rank)) for rank, path in stderrs.items() if needs_tap(path)}


class TappedSubprocessContext(SubprocessContext):
    """Workers that are programs.  Attributes `take` and `close_trees` must be set before `start`."""

    take: Take | None = None
    close_trees: Close
    on_handlers: Callable[[], None] = staticmethod(lambda: None)
    taps: dict[int, StderrTap]

    def _start(self) -> None:
        self.on_handlers()
        self.taps = make_taps(self.stderrs)
        # One by one, so that a start that fails half-way leaves the started ones where `close` finds them.
        for rank in range(self.nprocs):
            handler = WorkerHandler(
                self.taps.get(rank),
                self.take,
                entrypoint=self.entrypoint,
                args=self.args[rank],
                env=self.envs[rank],
                stdout=self.stdouts[rank],
                # A filtered-out rank's stderr goes to its tap, which forwards nothing: the same silence, and its tail is known.
                stderr=None if rank in self.taps else self.stderrs[rank],
                local_rank_id=rank,
                numa_options=self._numa_options,
            )
            self.subprocess_handlers[rank] = handler
            if handler.tap:
                self.taps[rank] = handler.tap

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.close_trees(death_sig, timeout)
        for handler in self.subprocess_handlers.values():
            for stream in (handler._stdout, handler._stderr):
                if stream:
                    stream.close()


class TappedMultiprocessContext(MultiprocessContext):
    """Workers that are functions."""

    close_trees: Close
    on_handlers: Callable[[], None] = staticmethod(lambda: None)
    taps: dict[int, StderrTap]

    def _start(self) -> None:
        self.on_handlers()
        self.taps = make_taps(self.stderrs)
        for rank, tap in self.taps.items():
            self.envs[rank][variables.STDERR_TAP] = tap.path
            self.stderrs[rank] = ""
        assert callable(self.entrypoint)
        self.entrypoint = FunctionWorker(self.entrypoint)
        super()._start()  # type: ignore[no-untyped-call]

    def processes(self) -> dict[int, Any]:
        return dict(enumerate(self._pc.processes)) if self._pc else {}

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.close_trees(death_sig, timeout)

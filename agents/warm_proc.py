"""Processes that have done their imports and wait to become workers: what makes a restart quick.

Law: a process is handed over at most once, only to the local rank that it was started for, and only if nothing that is
read before the script starts (interpreter, allocator and thread-pool variables) differs from what a fresh process would
have got.  Whatever is in doubt is killed and the worker starts cold: that is slower and never wrong.

The agent holds one end of a socket pair, the process waits on the other (`GO_FD`): it says `ready` when its imports are
done, and gets one JSON line with its environment, arguments, working directory and log paths; at EOF it exits, so a
dead agent leaves none behind.  While it waits it uses no CPU, but memory for its imports.

A parent-death signal is tied to the thread that starts a process: call `spawn` from the agent's main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.numa.binding import _maybe_wrap_command_args_with_numa_binding

from elastic_health import variables
from elastic_health.agents import tree_os
from elastic_health.agents.commands import BOOTSTRAP
from elastic_health.agents.stderr_proc import StderrTap

READY_WITHIN_S = 60.0
"""A process that has not said `ready` after this long is in doubt."""
SEND_S = 2.0

# Read while the interpreter or a library is loaded, so that setting them later has no effect.
_EARLY = ("LD_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ")
_EARLY_TORCH = ("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "ATEN_", "TRITON_")
# Read when a process group is made or an error is reported; the agent sets them for workers.
_LATE = ("TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "TORCH_CPP_LOG_LEVEL", "TORCH_GLOO_")


@dataclass(frozen=True)
class Go:
    """What makes a warm process a worker.  `env` is the whole environment; paths None keep what the process has."""

    env: Mapping[str, str]
    argv: tuple[str, ...]
    cwd: str
    stdout: str | None = None
    stderr: str | None = None

    def line(self) -> bytes:
        told = {"env": dict(self.env), "argv": list(self.argv), "cwd": self.cwd, "stdout": self.stdout, "stderr": self.stderr}
        return json.dumps(told).encode() + b"\n"


@dataclass
class WarmProcess:
    """One waiting process, or one handed over.  `token` is the one that it was started with.

    Socket and tap of one handed over stay open until its end: it may still be importing, and would fail at a closed one.
    """

    process: subprocess.Popen[bytes]
    tap: StderrTap
    token: str
    env: Mapping[str, str]
    socket: socket.socket
    born: float
    ready: bool = False

    def close(self) -> None:
        """Once it has ended."""
        self.socket.close()
        self.tap.close()


def early_differences(had: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that differ and whose difference would come too late for a process already running."""
    names = {n for n in had.keys() | wanted.keys() if n.startswith(_EARLY + _EARLY_TORCH) and not n.startswith(_LATE)}
    return tuple(sorted(n for n in names if had.get(n) != wanted.get(n)))


class WarmPool:
    """The waiting processes of one agent, at most one a local rank.

    Args:
        nproc: local ranks.
        env: what all workers get on top of the agent's environment and know before they have a rank.
        preload: module names to import beyond the bootstrap's own choice (handed over in `PRELOAD`).
        python: interpreter, as torchrun would use it.
        numa_options: torch's, so that a warm process is bound like a cold one.
    """

    def __init__(
        self,
        nproc: int,
        env: Mapping[str, str] | None = None,
        preload: tuple[str, ...] = (),
        python: str = sys.executable,
        numa_options: Any = None,
    ) -> None:
        self.nproc, self.python = nproc, python
        self._env, self._preload, self._numa = dict(env or {}), preload, numa_options
        self._waiting: dict[int, WarmProcess] = {}
        self.last_reason = ""

    def runs(self, python: str) -> bool:
        """Is this the interpreter that the pool's processes run?"""
        return python == self.python

    def spawn(self) -> int:
        """Start what is missing; returns how many were started."""
        missing = [rank for rank in range(self.nproc) if not self._usable(rank)]
        for rank in missing:
            self._drop(rank)
            self._waiting[rank] = self._start(rank)
        return len(missing)

    def tokens(self) -> frozenset[str]:
        """Tokens of the waiting processes, for the guardian."""
        return frozenset(w.token for w in self._waiting.values())

    def roots(self) -> tuple[tree_os.Root, ...]:
        """Waiting processes as roots, for the guardian."""
        return tuple(tree_os.root(w.process.pid) for w in self._waiting.values())

    def ready(self) -> int:
        """How many have finished their imports."""
        return sum(self._is_ready(w) for w in self._waiting.values())

    def take(self, local_rank: int, go: Go) -> WarmProcess | None:
        """Make the waiting process of `local_rank` the worker that `go` describes; None: start cold.

        `last_reason` says why not.
        """
        warm = self._waiting.pop(local_rank, None)
        if warm is None:
            self.last_reason = "none waiting"
            return None
        self.last_reason = self._doubt(warm, go) or self._send(warm, go)
        if self.last_reason:
            _end(warm)
            return None
        return warm

    def close(self) -> None:
        """End all that wait."""
        for rank in tuple(self._waiting):
            self._drop(rank)

    # ---- inside

    def _start(self, rank: int) -> WarmProcess:
        ours, theirs = socket.socketpair()
        token = f"warm-{secrets.token_hex(16)}"
        env = {**os.environ, **self._env, variables.WORKER_TOKEN: token, variables.GO_FD: str(theirs.fileno())}
        if self._preload:
            env[variables.PRELOAD] = ",".join(self._preload)
        command = (self.python, "-u", "-m", BOOTSTRAP, "--warm")
        args = _maybe_wrap_command_args_with_numa_binding(command, gpu_index=rank, numa_options=self._numa)
        tap = StderrTap(2, f"warm{rank}")
        try:
            process = subprocess.Popen(args, env=env, stderr=tap.write_fd, start_new_session=True, pass_fds=(theirs.fileno(),))
        except OSError:
            tap.close()
            ours.close()
            raise
        finally:
            theirs.close()
        tap.handed_over()
        ours.setblocking(False)
        return WarmProcess(process, tap, token, env, ours, time.monotonic())

    def _usable(self, rank: int) -> bool:
        warm = self._waiting.get(rank)
        return warm is not None and not self._unwell(warm)

    def _unwell(self, warm: WarmProcess) -> str:
        if warm.process.poll() is not None:
            return f"it had ended with {warm.process.returncode}"
        proc = tree_os.read_proc(warm.process.pid)
        if proc is None or proc.state in "Tt":
            return "it was stopped"
        if not self._is_ready(warm) and time.monotonic() - warm.born > READY_WITHIN_S:
            return f"it was not ready after {READY_WITHIN_S:.0f} s"
        return ""

    def _doubt(self, warm: WarmProcess, go: Go) -> str:
        differ = early_differences(warm.env, go.env)
        return self._unwell(warm) or (f"its environment differs in {', '.join(differ)}" if differ else "")

    def _is_ready(self, warm: WarmProcess) -> bool:
        if not warm.ready:
            with contextlib.suppress(OSError):
                warm.ready = bool(warm.socket.recv(64))
        return warm.ready

    def _send(self, warm: WarmProcess, go: Go) -> str:
        # One that is still importing is ahead of a fresh process: the line waits for it in the socket.
        warm.socket.settimeout(SEND_S)
        try:
            warm.socket.sendall(go.line())
        except OSError as error:
            return f"it did not take its orders: {error}"
        return ""

    def _drop(self, rank: int) -> None:
        warm = self._waiting.pop(rank, None)
        if warm:
            _end(warm)


def _end(warm: WarmProcess) -> None:
    """Kill it with all that it may have started; it has done nothing that needs a farewell."""
    tree_os.kill_all(tree_os.members({warm.token}, (tree_os.root(warm.process.pid),)))
    with contextlib.suppress(subprocess.TimeoutExpired):
        warm.process.wait(5.0)
    if warm.process.returncode is None:
        warm.process.send_signal(signal.SIGKILL)
    warm.close()

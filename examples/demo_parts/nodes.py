"""The demo's "nodes": one stock torchrun each, on this machine, and the ways in which they are broken.

Law: whatever happens, nothing that was started here stays: a torchrun is told to end, then its whole tree is killed; and
should the demo itself be killed, the kernel kills the torchruns, and their guardians the workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# Asks the kernel to kill this process when the one that started it ends, then becomes the command given.
_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
_END_S = 12.0


def torchrun() -> list[str]:
    """The stock command of this environment."""
    beside = Path(sys.executable).with_name("torchrun")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "torch.distributed.run"]


@dataclass
class Node:
    """`status` is torchrun's exit status once it has ended; `killed`: by us."""

    name: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    killed: bool = False
    family: list[psutil.Process] = field(default_factory=list)

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def status(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start, or start again, in a session of its own."""
        self.killed = False
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _DIE_WITH_PARENT, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def tree(self) -> list[psutil.Process]:
        """torchrun and every process below it."""
        if self.process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def kill(self) -> None:
        """The machine is gone: torchrun and all below it, at one blow, with no chance to say goodbye."""
        self.killed = True
        self.family = self.tree()
        for process in self.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(_END_S)

    def ask_to_end(self) -> None:
        self.family = self.tree() or self.family
        if self.up and self.process is not None:
            self.process.terminate()


def end(nodes: Sequence[Node]) -> list[str]:
    """Stop all nodes; returns what had to be killed, in words."""
    for node in nodes:
        node.ask_to_end()
    deadline, left = time.monotonic() + _END_S, []
    for node in nodes:
        if node.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.process.wait(max(0.1, deadline - time.monotonic()))
    for node in nodes:
        _, alive = psutil.wait_procs(node.family, timeout=max(0.1, min(3.0, deadline - time.monotonic())))
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(f"{node.name}: {' '.join(process.cmdline())[:80]}")
                process.kill()
        psutil.wait_procs(alive, timeout=3.0)
    return left


def environment(out: Path, step_s: float) -> dict[str, str]:
    """For every torchrun, the same."""
    here = os.environ.copy()
    # One thread a process: the ranks share this machine's cores.
    here.update(OMP_NUM_THREADS="1", SAMPLE_LOG_DIR=str(out / "samples"), DEMO_ORDERS=str(out / "orders"), DEMO_STEP_S=str(step_s))
    return here

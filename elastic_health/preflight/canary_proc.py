"""Runs the canary's process: its own process group, a time limit, bounded output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_health.preflight.canary_report import Report, read_report

COMMAND = (sys.executable, "-m", "elastic_health.preflight.canary_torch")
MAX_BYTES = 4 << 20
_ENDS_WITHIN_S = 5.0
ENVIRONMENT: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Set in the canary's process, whatever the user's own is: the bytes may depend on them."""


@dataclass(frozen=True)
class Ended:
    """What the process printed, and its status: negative for a signal, None when it was ended at the time limit."""

    report: Report
    status: int | None
    stderr: str = ""


def run_canary(timeout_s: float, *, arguments: Sequence[str] = (), command: Sequence[str] = COMMAND) -> Ended:
    """Run it to its end, or to `timeout_s` seconds; then its whole process group is killed.

    Raises:
        OSError: the command can't be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
        return Ended(read_report(_start_of(out.fileno())), status, _start_of(err.fileno())[-2000:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the group.  A process stuck in the driver (D state) doesn't die; it isn't waited for longer than bounded."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDS_WITHIN_S)


def _start_of(fd: int) -> str:
    return os.pread(fd, MAX_BYTES, 0).decode("utf-8", "replace")

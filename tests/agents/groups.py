"""Starts real worker groups for the tests, of small scripts that import no torch."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs

from elastic_health import variables
from elastic_health.agents import tree_os
from elastic_health.agents.guardian_proc import new_token
from elastic_health.agents.teardown import TeardownPlan
from elastic_health.agents.teardown_proc import teardown
from elastic_health.agents.workers_proc import StartSpec, WorkerGroupProcesses, start_workers


def until(condition: Callable[[], Any], timeout_s: float = 20.0, what: str = "") -> Any:
    """Waits for a condition; fails the test when it doesn't come."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what or condition}"
        time.sleep(0.01)
    return value


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def spec_of(
    path: Path | None,
    logs: LogsSpecs,
    nproc: int = 1,
    args: Sequence[str] = (),
    entrypoint: Any = sys.executable,
    **more: Any,
) -> StartSpec:
    """`python path args…` without `-u`, so that no bootstrap comes in between."""
    token = new_token()
    words: tuple[Any, ...] = (str(path), *args) if path else tuple(args)
    return StartSpec(
        name="trainer",
        entrypoint=entrypoint,
        args=dict.fromkeys(range(nproc), words),
        envs={r: {"RANK": str(r + 10), "LOCAL_RANK": str(r), variables.WORKER_TOKEN: token} for r in range(nproc)},
        logs_specs=logs,
        **more,
    )


@contextmanager
def group_of(spec: StartSpec, **more: Any) -> Iterator[WorkerGroupProcesses]:
    group = start_workers(spec, node="here", **more)
    try:
        yield group
    finally:
        teardown(group, TeardownPlan(grace_s=0.0))
        group.close()
        assert not tree_os.members(group.tokens(), tuple(group.roots.values()))


def logs_in(folder: Path, **more: Any) -> LogsSpecs:
    return DefaultLogsSpecs(log_dir=str(folder / "logs"), **more)

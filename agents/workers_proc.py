"""One node's workers of one generation: started through torch's log machinery, their ends told as facts.

Law: each worker's end is told exactly once, after all that it had written to stderr was read; nothing here kills
anyone (that is teardown's), and nothing here restarts anyone (that is the agent's).

A parent-death signal is tied to the *thread* that starts a process: call `start_workers` from one that lives as long
as the agent, its main thread.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs, PContext
from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elastic_health import variables
from elastic_health.agents import oom_os, tree_os
from elastic_health.agents.commands import BOOTSTRAP, Command, bootstrapped
from elastic_health.agents.contexts_torch import TappedMultiprocessContext, TappedSubprocessContext
from elastic_health.agents.exits_proc import ExitWatch
from elastic_health.agents.stderr_proc import StderrTap, file_tail
from elastic_health.agents.teardown import TeardownPlan
from elastic_health.agents.teardown_proc import teardown
from elastic_health.agents.warm_proc import Go, WarmPool, WarmProcess
from elastic_health.liveness.facts import ExitFacts

logger = logging.getLogger(__name__)
ERROR_CHARS = 65536
"""Of a worker's error file, what its facts may carry."""
_ERROR_FILE_BYTES = 2**20


@dataclass(frozen=True)
class StartSpec:
    """What stock torch hands to `start_processes`, in its words; see there.

    `envs[local_rank]` also carries our variables: WORKER_TOKEN (the same for all ranks), PAGE, LINK, SERVER, GENERATION, RUN.
    """

    name: str
    entrypoint: str | Callable[..., Any]
    args: dict[int, tuple[Any, ...]]
    envs: dict[int, dict[str, str]]
    logs_specs: LogsSpecs
    log_line_prefixes: dict[int, str] | None = None
    start_method: str = "spawn"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None


@dataclass
class _Ends:
    """What is known of the workers' ends; insertion order is the order of the ends."""

    facts: dict[int, ExitFacts] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)


class WorkerGroupProcesses:
    """The running workers.  Made by `start_workers`.

    Attributes:
        context: torch's process context, for code that expects one (`agent._pcontext`).
        roots: pid and start time by local rank.
    """

    def __init__(self, context: PContext, node: str, token: str, on_exit: Callable[[ExitFacts], None] | None) -> None:
        self.context = context
        self.node = node
        self._token = token
        self._taken: list[WarmProcess] = []
        self._on_exit = on_exit
        self._ends = _Ends()
        self._changed = threading.Condition()
        self._returned: dict[int, Any] = {}
        self._ended_by_us = False
        self._oom_at_start = oom_os.oom_kills()
        self._started_at = time.monotonic()
        self._watch: ExitWatch | None = None
        self._closed = False
        self.roots: dict[int, tree_os.Root] = {}

    # ---- what the agent asks

    def pids(self) -> dict[int, int]:
        """Pid by local rank, dead or alive."""
        return self.context.pids()

    def pidfds(self) -> dict[int, int]:
        """Pidfd by local rank, for a selector (empty where the kernel gives none); readable at the worker's end."""
        return dict(self._watch.pidfds) if self._watch else {}

    def tokens(self) -> frozenset[str]:
        """Every token that a process of these trees may carry: the generation's, and those of warm processes taken over."""
        return frozenset({self._token} - {""} | {warm.token for warm in self._taken})

    def alive(self) -> frozenset[int]:
        """Local ranks whose end has not been told yet."""
        with self._changed:
            return frozenset(self.roots) - self._ends.facts.keys()

    def exits(self) -> tuple[ExitFacts, ...]:
        """All ends so far, in the order in which they came."""
        with self._changed:
            return tuple(self._ends.facts.values())

    def wait_exited(self, timeout_s: float) -> bool:
        """Wait until all have ended, at most `timeout_s`; True if so."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._ends.facts) == len(self.roots), timeout_s)

    def wait_change(self, ended: int, timeout_s: float) -> int:
        """Wait until more than `ended` workers have ended; returns how many have."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ends.facts) > ended, timeout_s)
            return len(self._ends.facts)

    def stderr_tail(self, local_rank: int) -> str:
        """The last 64 KiB of a worker's stderr, wherever it goes."""
        tap = self._taps.get(local_rank)
        return tap.tail() if tap else file_tail(self.context.stderrs[local_rank])

    def result(self) -> RunProcsResult | None:
        """As torch's `PContext.wait(0)`, but kills nobody.

        None while all run or have ended well.  Otherwise failures in order of their ends (torchrun names the first as
        root cause), but none where teardown killed all of them; or, when all ended with 0, the return values (None for
        programs).
        """
        with self._changed:
            failures = {} if self._ends.failures.keys() <= self._ends.killed else dict(self._ends.failures)
            if not failures and len(self._ends.facts) < len(self.roots):
                return None
            well = not any(facts.code for facts in self._ends.facts.values())
            returned = {rank: self._returned.get(rank) for rank in self.roots} if well else {}
            return RunProcsResult(returned, failures, self.context.stdouts, self.context.stderrs)

    def ending(self) -> None:
        """From now on ends are our doing: out-of-memory counts are no longer put down to them."""
        self._ended_by_us = True

    def close(self, flush_s: float = 1.0) -> None:
        """After the last end: stop tailing, close log files and taps.  Kills what is still there (see teardown)."""
        if self._closed:
            return
        self._closed = True
        self.context.close(signal.SIGTERM, 1)
        if self._watch:
            self._watch.close()
        for tap in self._taps.values():
            tap.close(flush_s)
        for warm in self._taken:
            warm.close()

    # ---- starting

    def _begin(self) -> None:
        if self._watch:
            return
        pids = _started(self.context)
        self.roots = {rank: tree_os.root(pid) for rank, pid in pids.items()}
        if isinstance(self.context, TappedMultiprocessContext):
            threading.Thread(target=self._gather, name="eh-returns", daemon=True).start()
        self._watch = ExitWatch(pids, self._ended)

    @property
    def _taps(self) -> dict[int, StderrTap]:
        taps: dict[int, StderrTap] = getattr(self.context, "taps", {})
        return taps

    # ---- ends, on the watch's thread

    def _ended(self, rank: int) -> None:
        code, at = self._reap(rank), time.monotonic()
        tap = self._taps.get(rank)
        tail = tap.drain() if tap else file_tail(self.context.stderrs[rank])
        error_file = self.context.error_files[rank]
        facts = ExitFacts(
            rank=int(self.context.envs[rank].get("RANK", rank)),
            node=self.node,
            local_rank=rank,
            pid=self.roots[rank].pid,
            code=code,
            at=at,
            tail=tail,
            error_file=error_text(error_file),
            oom_kills=0 if self._ended_by_us or code == 0 else max(0, oom_os.oom_kills() - self._oom_at_start),
            ran_s=at - self._started_at,
        )
        with self._changed:
            self._ends.facts[rank] = facts
            if code < 0 and self._ended_by_us:
                self._ends.killed.add(rank)
            if code != 0:
                self._ends.failures[rank] = failure(rank, facts.pid, code, error_file)
            self._changed.notify_all()
        if self._on_exit:
            self._on_exit(facts)

    def _reap(self, rank: int) -> int:
        if isinstance(self.context, TappedSubprocessContext):
            return int(self.context.subprocess_handlers[rank].proc.wait())
        process = self.context.processes()[rank]  # type: ignore[attr-defined]
        deadline = time.monotonic() + 5.0
        while process.exitcode is None and time.monotonic() < deadline:
            process.join(0.05)  # another thread may be collecting it at this moment
        return process.exitcode if process.exitcode is not None else -signal.SIGKILL

    # ---- return values of functions

    def _gather(self) -> None:
        """torch's function workers wait after their result until all results are read: read them, then let them go."""
        context = self.context
        assert isinstance(context, TappedMultiprocessContext)
        queues: dict[int, Any] = dict(context._ret_vals)
        waiting = {queue._reader: rank for rank, queue in queues.items()}
        while waiting and not self._closed:
            for reader in connection.wait(list(waiting), timeout=1.0):
                rank = waiting.pop(reader)
                try:
                    self._returned[rank] = queues[rank].get()
                except Exception:  # unpickling runs the user's code, which may raise anything
                    logger.exception("the return value of local rank %d can't be read; it counts as None", rank)
        if not waiting:
            context._worker_finished_event.set()


def error_text(path: str) -> str:
    """A worker's error file (torch's JSON), "" if there is none; of one with a very long call stack, the message only."""
    text = file_tail(path, _ERROR_FILE_BYTES)
    if len(text) <= ERROR_CHARS:
        return text
    try:
        said = json.loads(text)["message"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return json.dumps({"message": {"message": str(said)[: ERROR_CHARS // 16]}})


def failure(local_rank: int, pid: int, code: int, error_file: str) -> ProcessFailure:
    """torch's failure record; a torn error file (its writer was killed) counts as none, where torch would raise."""
    try:
        return ProcessFailure(local_rank=local_rank, pid=pid, exitcode=code, error_file=error_file)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return ProcessFailure(local_rank=local_rank, pid=pid, exitcode=code, error_file="")


def start_workers(
    spec: StartSpec,
    *,
    node: str = "",
    on_exit: Callable[[ExitFacts], None] | None = None,
    warm: WarmPool | None = None,
    on_handlers: Callable[[], None] = lambda: None,
) -> WorkerGroupProcesses:
    """Start one generation's workers on this node.

    Args:
        spec: as built by torch's agent, plus our variables in `envs`.
        node: this node's name, for the facts.
        on_exit: called once for each worker that ends, from the watch's thread.
        warm: processes that may become workers at once.
        on_handlers: called when torch has put its own signal handlers in place, before any worker starts.

    Raises:
        OSError: a program can't be executed; those already started are killed.
    """
    token = spec.envs[0].get(variables.WORKER_TOKEN, "") if spec.envs else ""
    commands = command_of(spec)
    context = _context(spec, commands)
    group = WorkerGroupProcesses(context, node, token, on_exit)
    context.on_handlers = on_handlers
    context.close_trees = functools.partial(_close_trees, group)
    if isinstance(context, TappedSubprocessContext):
        context.take = _taker(group, commands, warm)
    try:
        with _in_own_environment(token if _spawns(spec) else ""):
            context.start()
        group._begin()
    except BaseException:  # also a signal's: what has started must not be left without an owner
        group._begin()
        teardown(group, TeardownPlan(grace_s=0.0))
        group.close()
        raise
    return group


def command_of(spec: StartSpec) -> dict[int, Command]:
    """The program of each rank, with the bootstrap in front of a Python script; empty for functions."""
    if not isinstance(spec.entrypoint, str):
        return {}
    pythons = [p for p in interpreters() if p != spec.entrypoint or _has_bootstrap(p)]
    return {rank: bootstrapped(spec.entrypoint, args, pythons) for rank, args in spec.args.items()}


def interpreters() -> tuple[str, ...]:
    """What torchrun may use as Python: its own interpreter, or PYTHON_EXEC."""
    return tuple(dict.fromkeys(p for p in (os.environ.get("PYTHON_EXEC", ""), sys.executable) if p))


@functools.lru_cache(maxsize=8)
def _has_bootstrap(python: str) -> bool:
    """Is this package installed for that interpreter (PYTHON_EXEC may be another environment's)?"""
    if python == sys.executable:
        return importlib.util.find_spec(BOOTSTRAP) is not None
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({BOOTSTRAP!r}) is None)"
    try:
        found = subprocess.run([python, "-c", probe], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        found = False
    if not found:
        logger.warning("expected elastic-health to be installed for PYTHON_EXEC=%s; found none; workers start without it", python)
    return found


def _context(spec: StartSpec, commands: Mapping[int, Command]) -> Any:
    shared: dict[str, Any] = {
        "name": spec.name,
        "envs": spec.envs,
        "logs_specs": spec.logs_specs,
        "log_line_prefixes": spec.log_line_prefixes,
        "numa_options": spec.numa_options,
        "duplicate_stdout_filters": spec.duplicate_stdout_filters,
        "duplicate_stderr_filters": spec.duplicate_stderr_filters,
    }
    if commands:
        args = {rank: command.args for rank, command in commands.items()}
        return TappedSubprocessContext(entrypoint=str(spec.entrypoint), args=args, **shared)
    assert callable(spec.entrypoint)
    return TappedMultiprocessContext(entrypoint=spec.entrypoint, args=spec.args, start_method=spec.start_method, **shared)


def _taker(group: WorkerGroupProcesses, commands: Mapping[int, Command], warm: WarmPool | None) -> Any:
    if warm is None:
        return None

    def take(rank: int, env: dict[str, str], stdout: str, stderr: str) -> tuple[subprocess.Popen[bytes], StderrTap] | None:
        command = commands[rank]
        if command.script is None or not warm.runs(command.entrypoint):
            return None
        taken = warm.take(rank, Go(env=env, argv=command.script, cwd=os.getcwd(), stdout=stdout or None, stderr=stderr or None))
        if taken is None:
            return None
        group._taken.append(taken)
        return taken.process, taken.tap

    return take


def _close_trees(group: WorkerGroupProcesses, death_sig: signal.Signals, timeout_s: float) -> None:
    """torch's `close`: nothing to do after a teardown; otherwise a teardown with torch's signal and timeout."""
    if group.alive():
        teardown(group, TeardownPlan(signal=death_sig, grace_s=float(timeout_s)))


def _started(context: Any) -> dict[int, int]:
    if isinstance(context, TappedSubprocessContext):
        return context.pids()
    return {rank: process.pid for rank, process in context.processes().items() if process.pid}


def _spawns(spec: StartSpec) -> bool:
    return not isinstance(spec.entrypoint, str) and spec.start_method == "spawn"


@contextmanager
def _in_own_environment(token: str) -> Iterator[None]:
    """Spawned function workers get their variables after they have started: /proc shows only what we had then."""
    if not token:
        yield
        return
    resource_tracker.ensure_running()  # it outlives the workers, so it must not carry their token
    os.environ[variables.WORKER_TOKEN] = token
    try:
        yield
    finally:
        del os.environ[variables.WORKER_TOKEN]

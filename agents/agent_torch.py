"""The elastic agent: torchrun's own, with membership, supervision and teardown replaced by ours.

It inherits the shell (constructor, metrics, events, results) from torch's `LocalElasticAgent`, and replaces how a worker
group lives: no monitor loop that sleeps, no per-agent restart count, no fixed exit barrier.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import DEFAULT_ROLE, RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from elastic_health.agents import tree_os
from elastic_health.agents.crew_torch import Crew, Launching
from elastic_health.agents.desk_os import Desk
from elastic_health.agents.entry_os import check_entry
from elastic_health.agents.files_os import check_open_files
from elastic_health.agents.guardian_proc import Guardian
from elastic_health.agents.hands_torch import AgentHands
from elastic_health.agents.link_sockets_net import raise_open_files
from elastic_health.agents.room_os import Room
from elastic_health.agents.workerlink_net import WorkerLinkServer
from elastic_health.errors import ConfigError, HealthError
from elastic_health.exits import ExitStatus
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.create_torch import status_of
from elastic_health.rendezvous.handler_torch import HealthyHandler

log = logging.getLogger("elastic_health")
_LEAVE_S = 5.0


class HealthyAgent(LocalElasticAgent):
    """Takes every argument that torch's agent takes."""

    def __init__(self, spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        self._hands: AgentHands | None = None
        self._link: WorkerLinkServer | None = None
        self._failures: dict[int, Any] = {}
        _log_to_stderr()

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """As torch's; a signal ends the process with a status that a scheduler can tell from a failure."""
        try:
            return super().run(role)  # type: ignore[no-any-return]
        except SignalException as e:
            _exit(ExitStatus.STOPPED, f"stopped by {e.sigval.name} before training finished")

    # ---- torch's hooks
    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        spec = self._worker_group.spec
        handler = spec.rdzv_handler
        assert isinstance(handler, HealthyHandler)
        place = handler.place
        try:
            check_entry(spec.entrypoint, spec.args)
            check_open_files(raise_open_files(), spec.local_world_size)
        except ConfigError as e:
            _exit(ExitStatus.BAD_CONFIG, str(e))
        self._on_signals()
        room, guardian = Room(), Guardian()
        guardian.start()
        guardian.folder(room.path)
        guardian.folder(room.shared)
        launching = Launching(self._logs_specs, self._start_method, self._log_line_prefix_template)
        crew = Crew(self._worker_group, launching, room, guardian, place.node, place.keys.run)
        crew.on_handlers = self._on_signals
        desk = Desk(place.keys.run, lambda event: hands.loop.post(event), lambda: hands.make_id())
        folder = room.evidence(place.policies.evidence.folder, getattr(self._logs_specs, "root_log_dir", "") or "")
        hands = self._hands = AgentHands(
            crew, desk, room, guardian, place.policies, place.store, folder, place.environ, handler.host_store, place.clock
        )
        self._link = WorkerLinkServer(room.link, desk.handle, lambda pid, rank: _belongs(crew, pid, rank))
        try:
            hands.loop = handler.attach(
                hands,
                workers=spec.local_world_size,
                role=spec.role,
                script=_digest(spec),
                script_name=_name(spec),
                max_restarts=spec.max_restarts,
            )
        except HealthError as e:
            _exit(status_of(e), str(e))
        hands.loop.run(lambda state: state.left is not None)
        return self._result()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End of `run`, for whatever reason; after a signal the node leaves the group first."""
        hands = self._hands
        if hands is None:
            return
        self._hands = None
        if hasattr(hands, "loop") and hands.loop.state.left is None:
            log.warning("leaving the run at once: %s", death_sig.name)
            hands.leave.hurry()
            hands.loop.post(ev.StopAsked(f"signal {death_sig.name}"))
            hands.loop.run(lambda state: state.left is not None, time.monotonic() + max(_LEAVE_S, float(timeout)))
            hands.loop.run(lambda state: not state.sent, time.monotonic() + 1.0)
        if hands.crew.processes is not None:
            hands.crew.end(hands.loop.state.settings.policies.teardown, finished=False, kill_s=float(timeout), signal=int(death_sig))
            hands.crew.clear()
        if self._link is not None:
            self._link.close()
        hands.close()
        handler = self._worker_group.spec.rdzv_handler
        assert isinstance(handler, HealthyHandler)
        handler.close()

    def _on_signals(self) -> None:
        """Handlers as torch's, but from the beginning (a signal while waiting must give the lease back), and with a first
        SIGTERM that drains this node while the loop goes on."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, _: Any) -> None:
            hands = self._hands
            if number == signal.SIGTERM and hands is not None and hasattr(hands, "loop") and not hands.leave.asked:
                hands.leave.ask("SIGTERM")
                return
            raise SignalException(f"Process {os.getpid()} got signal: {number}", sigval=signal.Signals(number))

        for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(","):
            number = getattr(signal, name.strip(), None)
            if number is not None:
                signal.signal(number, stop)

    # ---- results
    def _result(self) -> RunResult:
        hands = self._hands
        assert hands is not None and hands.loop.state.left is not None
        status, text = hands.loop.state.left
        hands.page_if_last()
        if status == ExitStatus.QUARANTINED:
            hands.gate.left_quarantined()
        result, workers = hands.last_result, self._worker_group.workers
        if status == ExitStatus.OK:
            self._worker_group.state = WorkerState.SUCCEEDED
            values = {w.global_rank: result.return_values.get(w.local_rank) for w in workers} if result is not None else {}
            if result is None:
                self._worker_group.workers = []
            return RunResult(WorkerState.SUCCEEDED, return_values=values)
        # In order of the ends: of equal seconds torch names the first one as the root cause.
        ranks = {w.local_rank: w.global_rank for w in workers}
        failures = {ranks[i]: failure for i, failure in result.failures.items() if i in ranks} if result is not None else {}
        self._worker_group.state = WorkerState.FAILED
        if status == ExitStatus.WORKERS_FAILED and failures:
            return RunResult(WorkerState.FAILED, failures=failures)
        if failures:
            sys.stderr.write(f"{ChildFailedError(_name(self._worker_group.spec), failures)}\n")
        _exit(ExitStatus(status), text)


def _exit(status: ExitStatus, text: str) -> NoReturn:
    sys.stderr.write(f"healthy-etcd: {text} (exit status {int(status)})\n")
    raise SystemExit(int(status))


def _belongs(crew: Crew, pid: int, local_rank: int) -> bool:
    """Is `pid` in the process tree of that worker?"""
    processes = crew.processes
    root = processes.pids().get(local_rank) if processes is not None else None
    return root is not None and (pid == root or pid in tree_os.descendants(tree_os.snapshot(), [root]))


def _digest(spec: WorkerSpec) -> str:
    """What all agents of a run must start: entry point and arguments."""
    entry = spec.entrypoint if isinstance(spec.entrypoint, str) else getattr(spec.entrypoint, "__qualname__", "function")
    base = os.path.basename(str(entry)) if isinstance(spec.entrypoint, str) else str(entry)
    words = [base, *(str(a) for a in spec.args)] if isinstance(spec.entrypoint, str) else [base]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _name(spec: WorkerSpec) -> str:
    if not isinstance(spec.entrypoint, str):
        return str(getattr(spec.entrypoint, "__qualname__", "function"))
    return " ".join(str(a) for a in (spec.args or (spec.entrypoint,)))[:200]


def _log_to_stderr() -> None:
    """One handler for our logger, unless the user has set one up."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s elastic-health %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(os.environ.get("ELASTIC_HEALTH_LOG", "INFO"))
        log.propagate = False

"""This node's workers of one generation: environment, start, watch, evidence, end.

Law: workers of a generation are started once, and the next generation's only after these are reaped, all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from signal import SIGKILL
from string import Template
from typing import Any

from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.utils.api import macros

from elastic_health import variables
from elastic_health.agents.guardian_proc import Guardian, new_token
from elastic_health.agents.rank_facts import Watched
from elastic_health.agents.room_os import Room
from elastic_health.agents.teardown import TeardownPlan, TeardownReport
from elastic_health.agents.teardown_proc import signal_workers, teardown
from elastic_health.agents.warm_proc import WarmPool
from elastic_health.agents.workers_proc import StartSpec, WorkerGroupProcesses, start_workers
from elastic_health.evidence.collect_proc import Target, collect
from elastic_health.generations import Generation, StoreAddress
from elastic_health.liveness.facts import ExitFacts
from elastic_health.liveness.page import Order
from elastic_health.liveness.page_os import Page
from elastic_health.policies import EvidencePolicy, TeardownPolicy

log = logging.getLogger("elastic_health")
_FINISH_ORPHANS_S = 5.0
"""After a good end the users' own background processes (uploaders) may go on for a moment, as under stock torchrun."""


@dataclasses.dataclass(frozen=True)
class Launching:
    """What torchrun said about starting workers, beside the spec."""

    logs_specs: Any
    start_method: str
    prefix_template: str | None


class Crew:
    """See the module docstring."""

    def __init__(self, group: WorkerGroup, launching: Launching, room: Room, guardian: Guardian, node: str, run: str) -> None:
        self._group, self._launching, self._room, self._guardian = group, launching, room, guardian
        self._node, self._run = node, run
        self._lock = threading.Lock()
        self.processes: WorkerGroupProcesses | None = None
        self.pages: list[Page] = []
        self.warmable: bool | None = None
        self.modules = 0
        self._wish = 0
        self.on_handlers: Callable[[], None] = lambda: None
        """Called when torch has put its own signal handlers in place, as it does at each start of workers."""
        self._started_at = 0.0
        self.pool: WarmPool | None = None

    # ---- start
    def start(self, record: Generation, rank: int, store: StoreAddress, on_exit: Callable[[ExitFacts], None]) -> None:
        """Spawn all workers; call from the agent's main thread.

        Raises:
            OSError: the program can't be executed.
        """
        spec: WorkerSpec = self._group.spec
        self._seat(record, rank, store)
        self.pages = self._room.pages(record.number, spec.local_world_size)
        token, self._started_at = new_token(), time.monotonic()
        self._guardian.guard({token})
        envs = {w.local_rank: self._environment(w, record, store, token) for w in self._group.workers}
        template = self._launching.prefix_template
        prefixes = {w.local_rank: self._prefix(template, w) for w in self._group.workers} if template else None
        self.processes = start_workers(
            StartSpec(
                name=spec.role,
                entrypoint=spec.entrypoint,  # type: ignore[arg-type]
                args={w.local_rank: tuple(macros.substitute(list(spec.args), str(w.local_rank))) for w in self._group.workers},
                envs=envs,
                logs_specs=self._launching.logs_specs,
                log_line_prefixes=prefixes,
                start_method=self._launching.start_method,
                numa_options=spec.numa_options,
                duplicate_stdout_filters=spec.duplicate_stdout_filters,
                duplicate_stderr_filters=spec.duplicate_stderr_filters,
            ),
            node=self._node,
            on_exit=on_exit,
            warm=self.pool,
            on_handlers=self.on_handlers,
        )
        self._guardian.guard(self.processes.tokens(), tuple(self.processes.roots.values()))
        for worker in self._group.workers:
            worker.id = self.processes.pids()[worker.local_rank]

    def _seat(self, record: Generation, rank: int, store: StoreAddress) -> None:
        """Ranks come from the generation record; nothing is asked of any store."""
        group: Any = self._group
        mine = record.members[rank]
        same_role = [m for m in record.members if m.role == mine.role]
        first_in_role = sum(m.workers for m in same_role if m.rank < rank)
        role_world = sum(m.workers for m in same_role)
        group.workers = [
            Worker(i, mine.first_rank + i, first_in_role + i, record.world_size, role_world) for i in range(group.spec.local_world_size)
        ]
        group.group_rank, group.group_world_size = rank, len(record.members)
        group.master_addr, group.master_port = group.spec.master_addr or store.host, group.spec.master_port or store.port

    def _environment(self, worker: Worker, record: Generation, store: StoreAddress, token: str) -> dict[str, str]:
        """What stock torch gives a worker, and ours."""
        group, spec, local = self._group, self._group.spec, worker.local_rank
        env = {
            "RANK": str(worker.global_rank),
            "GROUP_RANK": str(group.group_rank),
            "ROLE_RANK": str(worker.role_rank),
            "ROLE_NAME": spec.role,
            "LOCAL_WORLD_SIZE": str(spec.local_world_size),
            "WORLD_SIZE": str(worker.world_size),
            "GROUP_WORLD_SIZE": str(group.group_world_size),
            "ROLE_WORLD_SIZE": str(worker.role_world_size),
            "MASTER_ADDR": str(group.master_addr),
            "MASTER_PORT": str(group.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(record.restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(record.spec.max_restarts),
            "TORCHELASTIC_RUN_ID": self._run,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            variables.WORKER_TOKEN: token,
            variables.PAGE: self.pages[local].path,
            variables.LINK: self._room.link,
            variables.SERVER: self._room.server(record.number, local),
            variables.LOCAL: str(local),
            variables.GENERATION: str(record.number),
            variables.RUN: self._run,
        }
        env.update(_device_environment(spec, local))
        if "OMP_NUM_THREADS" in os.environ:
            env["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
        return env

    def _prefix(self, template: str, worker: Worker) -> str:
        return Template(template).safe_substitute(role_name=self._group.spec.role, rank=worker.global_rank, local_rank=worker.local_rank)

    # ---- while they run
    def order(self, deadline: float, generation: int, now: float) -> None:
        """Write the agent's section of every page."""
        order = Order(int(now * 1e9), int(deadline * 1e9), generation, wish=self._wish)
        with self._lock:
            for page in self.pages:
                page.order(order)
        self._guardian.deadline(deadline if self.processes is not None else None)

    def wish_checkpoint(self) -> None:
        """The next order to the workers wishes a checkpoint."""
        self._wish += 1

    def saves(self) -> tuple[bool, int]:
        """Do all of these workers save when it is wished, and the newest step that one of them has completed (-1: none)."""
        try:
            marks = [f.mark for i in range(len(self.pages)) if (f := self.look(i)) is not None]
        except ValueError:  # the script has scribbled over a page
            return False, -1
        return bool(marks) and all(m.saves for m in marks), max((m.steps for m in marks), default=-1)

    def signal(self, number: int) -> None:
        """Pass a signal on to the workers, and do nothing else to them."""
        if self.processes is not None:
            signal_workers(self.processes, number)

    def watched(self, record: Generation) -> tuple[Watched, ...]:
        assert self.processes is not None
        pids, since = self.processes.pids(), self._started_at
        return tuple(Watched(w.global_rank, w.local_rank, pids[w.local_rank], record.communicator, since) for w in self._group.workers)

    def look(self, local_rank: int) -> Any:
        """The page of a local rank now; None when it is gone."""
        with self._lock:
            return self.pages[local_rank].look() if local_rank < len(self.pages) else None

    def learn(self) -> None:
        """What a cold start showed about this script: may a warm process take over, and what should it import?"""
        if not isinstance(self._group.spec.entrypoint, str):
            return  # only a script can be handed to a process that waits
        facts = [self.look(i) for i in range(len(self.pages))]
        known = [f.beat.warmable for f in facts if f is not None and f.beat.warmable >= 0]
        if len(known) == len(facts) and known:
            self.warmable = all(known) if self.warmable is None else self.warmable and all(known)
            self.modules |= max(f.beat.modules for f in facts)

    # ---- evidence and end
    def evidence(self, folder: str, incident: str, policy: EvidencePolicy, limit_s: float, ranks: Mapping[int, Any]) -> dict[str, Any]:
        """Collect what these workers can still tell; bounded."""
        p = self.processes
        if p is None:
            return {}
        from elastic_health.codec import plain

        targets = tuple(
            Target(
                w.global_rank,
                w.local_rank,
                p.pids()[w.local_rank],
                server=p.context.envs[w.local_rank].get(variables.SERVER, ""),
                page=plain(ranks[w.global_rank]) if w.global_rank in ranks else {},
                stderr_tail=p.stderr_tail(w.local_rank),
            )
            for w in self._group.workers
        )
        return collect(targets, folder, incident=incident, node=self._node, time_limit_s=limit_s, stacks=policy.stacks)

    def end(
        self, policy: TeardownPolicy, *, finished: bool, kill_s: float, signal: int = 15, holding: Callable[[], str] | None = None
    ) -> TeardownReport | None:
        """End every process of this generation; blocks within its bounds.  `holding` says what should finish first."""
        p = self.processes
        if p is None:
            return None
        plan = TeardownPlan(
            signal=signal,
            grace_s=policy.grace_s,
            hold_s=policy.commit_wait_s,
            orphan_grace_s=_FINISH_ORPHANS_S if finished else 0.0,
            kill_s=kill_s,
        )
        return teardown(p, plan, holding)

    def kill(self) -> None:
        """Every worker's process group, at once and without looking: needs no file."""
        p = self.processes
        if p is None:
            return
        for rank in p.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(p.roots[rank].pid, SIGKILL)

    def clear(self) -> None:
        """After the end: close logs and pages, release the guardian.  From the main thread."""
        p, self.processes = self.processes, None
        if p is not None:
            p.close()
            self._guardian.release(p.tokens(), tuple(p.roots.values()))
        with self._lock:
            self.pages = []
            self._room.close_pages()
        self._guardian.deadline(None)

    # ---- warm processes
    def warm_up(self) -> None:
        """See that a process waits for each local rank, if this script allows it; from the main thread."""
        if self.pool is None:
            from elastic_health.worker.preload import names

            spec: WorkerSpec = self._group.spec
            python = str(spec.entrypoint)
            self.pool = WarmPool(spec.local_world_size, self._late_environment(), names(self.modules), python, spec.numa_options)
        started = self.pool.spawn()
        if started:
            self._guardian.guard(self.pool.tokens(), self.pool.roots())

    def adopt(self, warmable: bool, modules: int) -> None:
        """What another node's cold start showed about the same script; a spare has none of its own."""
        if self.warmable is None and isinstance(self._group.spec.entrypoint, str):
            self.warmable, self.modules = warmable, modules

    @staticmethod
    def _late_environment() -> dict[str, str]:
        """The early variables that a worker gets and the agent's own environment may lack (see `_environment`)."""
        env = {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "MKL_", "TORCH_NCCL_"))}
        return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **env}

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        with contextlib.suppress(OSError):
            self._room.close_pages()


def _device_environment(spec: WorkerSpec, local_rank: int) -> dict[str, str]:
    """LOCAL_RANK and CUDA_VISIBLE_DEVICES, with torchrun's virtual local rank or without.

    Raises:
        ValueError: fewer devices are visible than local ranks are asked for.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not spec.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank), **({"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})}
    devices = visible.split(",") if visible is not None else None
    if devices is not None and local_rank >= len(devices):
        raise ValueError(f"expected a device for local rank {local_rank}; found CUDA_VISIBLE_DEVICES={visible}; lower --nproc-per-node")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local_rank].strip() if devices is not None else str(local_rank)}

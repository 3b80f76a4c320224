"""`next_rendezvous` without our agent: the same machine with hands that hold no workers.

A thread keeps the loop turning between calls, so that the lease lives.  A second call says that this node's workers
are gone: it ends the generation (one verdict, whoever is first) and waits for the next.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousInfo, RendezvousStoreInfo

from elastic_health.generations import CheckpointRecord, Generation, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.messages import LinkMessage
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase, State
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause, Verdict

if TYPE_CHECKING:
    from elastic_health.rendezvous.handler_torch import HealthyHandler

log = logging.getLogger("elastic_health")
_LEAVE_S = 5.0


class BareRendezvous:
    """Hands without workers, and the calls of torch's protocol on top of them."""

    def __init__(self, handler: HealthyHandler) -> None:
        self._handler = handler
        self._store: TCPStore | None = None
        self._place: tuple[Generation, int, StoreAddress] | None = None
        self._thread: threading.Thread | None = None
        self._pause = threading.Event()
        self._loop = handler.attach(self, workers=1, role="default", script="", script_name="", max_restarts=0)

    # ---- torch's side
    def next(self) -> RendezvousInfo:
        self._stop_thread()
        before = self._place[0].number if self._place else 0
        if before and self._loop.state.generation == before:
            self._loop.post(ev.Judged(self._asked_again(before)))
        self._loop.run(lambda s: s.left is not None or (s.phase is Phase.RUNNING and s.generation > before))
        state = self._loop.state
        if state.left is not None or self._place is None:
            raise RendezvousClosedError(f"healthy-etcd: {state.left[1] if state.left else 'no generation'}")
        self._start_thread()
        return self._info()

    def leave(self) -> None:
        self._stop_thread()
        self._loop.post(ev.StopAsked("the handler was shut down"))
        self._loop.run(lambda s: s.left is not None, time.monotonic() + _LEAVE_S)

    def _info(self) -> RendezvousInfo:
        assert self._place is not None
        generation, rank, address = self._place
        client = TCPStore(address.host, address.port, is_master=False, timeout=timedelta(seconds=generation.bounds.start_s))
        return RendezvousInfo(
            store=PrefixStore(f"/bare/{generation.number}", client),
            rank=rank,
            world_size=len(generation.members),
            bootstrap_store_info=RendezvousStoreInfo(address.host, address.port),
        )

    def _asked_again(self, generation: int) -> Incident:
        text = "next_rendezvous was called again"
        return Incident(f"bare-{generation}", generation, Cause.REQUESTED, Cause.REQUESTED.value, text, time.time())

    def _start_thread(self) -> None:
        self._pause.clear()
        stop = self._pause.is_set

        def turn() -> None:
            self._loop.run(lambda s: stop() or s.left is not None)

        self._thread = threading.Thread(target=turn, name="eh-membership", daemon=True)
        self._thread.start()

    def _stop_thread(self) -> None:
        if self._thread is not None:
            self._pause.set()
            self._loop.post(ev.Tick())
            self._thread.join()
            self._thread = None

    # ---- Hands
    def preflight(self, stage: str) -> None:
        self._loop.post(ev.PreflightDone(True))

    def open_store(self, generation: Generation) -> None:
        self._store, address = self._handler.host_store()
        self._loop.post(ev.StoreOpened(generation.number, address))

    def start_workers(self, generation: Generation, rank: int, store: StoreAddress) -> None:
        self._place = (generation, rank, store)
        self._loop.post(ev.WorkersUp(generation.number))

    def stop_workers(self, generation: int, verdict: Verdict | None, reason: str, until: float) -> None:
        self._loop.post(ev.WorkersReaped(generation))

    def wish_checkpoint(self, generation: int) -> None: ...

    def pass_signal(self, generation: int) -> None: ...

    def hold_workers(self, generation: int) -> None:
        self._loop.post(ev.Held(generation, ok=False))

    def take_up(self, generation: Generation) -> None: ...

    def commit_answered(self, answer: ev.CommitAnswered) -> None: ...

    def remove_files(self, record: CheckpointRecord) -> None: ...

    def page_human(self, verdict: Verdict) -> None:
        log.error("the run was stopped: %s", verdict.reason)

    def heard(self, who: Who, message: LinkMessage) -> None: ...

    def look(self, state: State, deadline: float, now: float) -> None: ...

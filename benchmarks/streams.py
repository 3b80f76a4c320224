"""Many watchers over few gRPC streams: a shipped session for everything but watches.

The shipped watch has a stream and two threads of its own, as an agent wants it; thousands of them in one process would measure
Python's threads.  Here a watcher of etcd's still belongs to one agent, but the watchers of some dozen agents share a stream.
Nothing is resumed: a stream that ends ends the benchmark.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import StoreError, WatchBatch, WatchEvent
from elastic_health.rendezvous.wire_etcd import MESSAGES, span_after, watch_event

OnBatch = Callable[[WatchBatch], None]


class SharedWatch:
    """One watcher; closed here only, so that what etcd still sends for it is counted and dropped."""

    def __init__(self, on_batch: OnBatch) -> None:
        self.on_batch, self.open, self.parts = on_batch, True, list[WatchEvent]()

    def close(self) -> None:
        self.open = False


class SharedStream:
    """One gRPC stream with any number of watchers."""

    def __init__(self, session: EtcdSession) -> None:
        self._wishes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked: deque[SharedWatch] = deque()
        self._known: dict[int, SharedWatch] = {}
        self._lock, self._closed = threading.Lock(), False
        self._call = session.current().stream("Watch", self._requests(), None, session.metadata(5.0))
        self._thread = threading.Thread(target=self._run, name="shared-watch", daemon=True)
        self._thread.start()

    def _requests(self) -> Iterator[Any]:
        while (wish := self._wishes.get()) is not None:
            yield wish

    def watch(self, prefix: str, from_revision: int, on_batch: OnBatch, after: str, deletions: bool) -> SharedWatch:
        wanted = span_after(prefix, after)
        create = MESSAGES["WatchCreateRequest"](**wanted, start_revision=from_revision, fragment=True, filters=[0] if deletions else [])
        watch = SharedWatch(on_batch)
        with self._lock:  # etcd creates in the order of asking
            self._asked.append(watch)
            self._wishes.put(MESSAGES["WatchRequest"](create_request=create))
        return watch

    def _run(self) -> None:
        try:
            for response in self._call:
                self._take(response)
        except Exception as e:  # broad: whatever ends the stream must be seen
            if not self._closed:
                print(f"a shared watch stream ended: {e!r}", flush=True)

    def _take(self, response: Any) -> None:
        if response.created:
            self._known[response.watch_id] = self._asked.popleft()
            return
        watch = self._known.get(response.watch_id)
        if watch is None or response.canceled:
            raise RuntimeError(f"watch {response.watch_id} is unknown or cancelled: {response.cancel_reason}")
        watch.parts.extend(watch_event(event) for event in response.events)
        if not response.fragment and watch.parts:
            parts, watch.parts = tuple(watch.parts), []
            if watch.open:
                watch.on_batch(WatchBatch(parts[-1].kv.mod_revision, parts))

    def close(self) -> None:
        self._closed = True
        self._wishes.put(None)
        self._call.cancel()
        self._thread.join(10)


class PooledStore:
    """A `Store` for one of many agents on a session."""

    def __init__(self, session: EtcdSession, stream: SharedStream) -> None:
        self._session, self._stream = session, stream
        self.get, self.range, self.txn, self.txn_async = session.get, session.range, session.txn, session.txn_async
        self.grant, self.grant_async, self.revoke = session.grant, session.grant_async, session.revoke
        self.renew, self.renew_async = session.renew, session.renew_async

    def watch(
        self,
        prefix: str,
        from_revision: int,
        on_batch: OnBatch,
        on_trouble: Callable[[StoreError | None], None] | None = None,
        *,
        after: str = "",
        deletions: bool = False,
    ) -> SharedWatch:
        return self._stream.watch(prefix, from_revision, on_batch, after, deletions)

    def close(self) -> None:
        """The session is not this agent's alone."""

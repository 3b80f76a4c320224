"""One running watch on etcd: a thread that follows a stream and opens the next one when it breaks.

Law: every change from the asked revision on is delivered once, in order, whatever happens to streams and members;
if etcd compacted part of it away, one snapshot stands for what is missing.

Three facts about etcd shape it.  A progress notification of 3.4.23 may overtake events, so only delivered events move
the resume point.  A watch that starts at exactly the compaction revision may miss a deletion there, so a stream is asked
from one revision earlier and what is known already is dropped.  A watch created with an expired token stays open and
says nothing, so silence is measured: a progress request must be answered within a bound.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from elastic_health.rendezvous.channels_etcd import Channel, Metadata
from elastic_health.rendezvous.replies import Reply, meaning
from elastic_health.rendezvous.store import (
    NotEtcd,
    RangeResult,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    WatchBatch,
    WatchEvent,
)
from elastic_health.rendezvous.wire_etcd import MESSAGES, span_after, watch_event

_PAUSE_S, _PAUSE_MOST_S = 0.05, 1.0
_LOGIN_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class WatchPace:
    """A quiet stream is asked for progress every `ask_every_s`; no answer within `answer_s` means that it is dead."""

    ask_every_s: float = 3.0
    answer_s: float = 2.0


class WatchSource(Protocol):
    """What a watch needs of its session."""

    def current(self) -> Channel: ...

    def failed(self, channel: Channel) -> None: ...

    def metadata(self, timeout_s: float) -> Metadata: ...

    def forget_token(self, metadata: Metadata) -> None: ...

    def range(self, prefix: str, *, after: str = "", limit: int = 0, timeout_s: float | None = None) -> RangeResult: ...


_NO_PUTS = 0  # etcd's WatchCreateRequest.FilterType.NOPUT


@dataclass(frozen=True)
class Part:
    """What is watched, as `Store.watch` has it."""

    prefix: str
    after: str = ""
    deletions: bool = False


class _Requests:
    """The request side of one stream, iterated by gRPC's own thread, which so serves as the silence timer."""

    def __init__(self, create: Any, pace: WatchPace, on_silence: Callable[[], None]) -> None:
        self._create, self._pace, self._on_silence = create, pace, on_silence
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked_at = self._heard_at = time.monotonic()
        self._first, self._waiting, self._busy = True, True, False

    def __iter__(self) -> _Requests:
        return self

    def __next__(self) -> Any:
        if self._first:
            self._first = False
            self._asked_at = time.monotonic()
            return MESSAGES["WatchRequest"](create_request=self._create)
        while True:
            try:
                wish = self._wishes.get(timeout=self._wait_s())
            except queue.Empty:
                wish = "tick"
            if wish == "stop":
                raise StopIteration
            if not self._unanswered():
                return self._ask()
            if time.monotonic() >= self._asked_at + self._pace.answer_s and not self._busy:
                self._on_silence()
                raise StopIteration

    def _unanswered(self) -> bool:
        return self._heard_at < self._asked_at

    def _wait_s(self) -> float:
        if not self._unanswered():
            return self._pace.ask_every_s
        return max(0.01, self._asked_at + self._pace.answer_s - time.monotonic()) if not self._busy else self._pace.answer_s

    def _ask(self) -> Any:
        self._asked_at = time.monotonic()
        return MESSAGES["WatchRequest"](progress_request=MESSAGES["WatchProgressRequest"]())

    def heard(self, busy: bool) -> None:
        """A response came; `busy` while it is being delivered, since nothing is read meanwhile."""
        self._heard_at, self._busy = time.monotonic(), busy

    def ask_now(self) -> None:
        self._wishes.put("ask")

    def stop(self) -> None:
        self._wishes.put("stop")


class EtcdWatch:
    """A `Watch`.  An exception in a callback ends the watch's thread with a traceback: it is a bug of the receiver."""

    def __init__(
        self,
        source: WatchSource,
        part: Part,
        from_revision: int,
        on_batch: Callable[[WatchBatch], None],
        on_trouble: Callable[[StoreError | None], None] | None,
        pace: WatchPace,
    ) -> None:
        self._source, self._part, self._pace = source, part, pace
        self._next = max(1, from_revision)
        self._on_batch, self._on_trouble = on_batch, on_trouble
        self._closed = threading.Event()
        self._delivery = threading.RLock()  # held during callbacks: close() waits for a running one
        self._stream = threading.Lock()
        self._call: Any = None
        self._channel: Channel | None = None
        self._requests: _Requests | None = None
        self._troubled = False
        self._relogged = False
        self._pause_s = 0.0
        self._parts: list[WatchEvent] = []
        self._thread = threading.Thread(target=self._run, name=f"etcd-watch {part.prefix}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._delivery:
            self._closed.set()
        self._cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def suspect(self, channel: Channel) -> None:
        """Another call failed on this channel: ask at once whether the stream on it still lives."""
        with self._stream:
            if self._channel is channel and self._requests is not None:
                self._requests.ask_now()

    # --- the watch's own thread ---

    def _run(self) -> None:
        while not self._closed.wait(self._pause_s):
            error = self._follow()
            if self._closed.is_set():
                return
            if error is not None:
                self._tell(error)
                self._pause_s = min(max(_PAUSE_S, 2 * self._pause_s), _PAUSE_MOST_S)

    def _follow(self) -> StoreError | None:
        """Follow one stream to its end; the error that ended it, or None to go on at once."""
        channel = self._source.current()
        metadata: Metadata = ()
        try:
            metadata = self._source.metadata(_LOGIN_TIMEOUT_S)
            self._open(channel, metadata)
            for response in self._call:
                self._take(response, metadata)
            error: StoreError = StoreUnavailable("a running watch", f"the stream ended at {channel.endpoint.address}", "it is opened again")
        except grpc.RpcError as failure:
            error = self._rpc_error(failure, channel, metadata)
        except StoreError as trouble:
            return trouble
        except _Again:
            return None
        finally:
            self._cancel()
        self._source.failed(channel)
        return error

    def _open(self, channel: Channel, metadata: Metadata) -> None:
        self._parts = []
        filters = [_NO_PUTS] if self._part.deletions else []
        wanted = span_after(self._part.prefix, self._part.after)
        create = MESSAGES["WatchCreateRequest"](**wanted, start_revision=max(1, self._next - 1), fragment=True, filters=filters)
        requests = _Requests(create, self._pace, self._cancel)
        call = channel.stream("Watch", requests, None, metadata)
        with self._stream:
            self._call, self._channel, self._requests = call, channel, requests
        if self._closed.is_set():
            self._cancel()

    def _cancel(self) -> None:
        with self._stream:
            if self._requests is not None:
                self._requests.stop()
            if self._call is not None:
                self._call.cancel()

    def _rpc_error(self, failure: grpc.RpcError, channel: Channel, metadata: Metadata) -> StoreError:
        code, details = failure.code().name, failure.details() or failure.code().name
        reply = meaning(code, details)
        if reply is Reply.TOKEN_STALE:
            self._source.forget_token(metadata)
        found = f"{details} at {channel.endpoint.address}"
        if reply in (Reply.TOKEN_STALE, Reply.REFUSED):
            return StoreRefused("leave to watch", found, "check user, password and role")
        if reply is Reply.NOT_ETCD:
            return NotEtcd("etcd v3", found, "check the endpoint")
        silent = code == "CANCELLED" and not self._closed.is_set()
        return StoreUnavailable("a running watch", "no answer to a progress request" if silent else found, "it is opened again elsewhere")

    def _take(self, response: Any, metadata: Metadata) -> None:
        assert self._requests is not None
        self._requests.heard(busy=True)
        if response.canceled:
            self._cancelled(response, metadata)
        elif response.created:
            self._check_not_reset(response.header.revision)
            self._requests.ask_now()  # a watch counts as up only when it answers: see the module's text
        else:
            self._up()
        self._parts.extend(watch_event(event) for event in response.events)
        if not response.fragment:
            self._deliver(tuple(self._parts))
            self._parts = []
        self._requests.heard(busy=False)

    def _cancelled(self, response: Any, metadata: Metadata) -> None:
        if response.compact_revision > 0:
            self._snapshot()
            raise _Again()
        self._source.forget_token(metadata)
        if meaning("", response.cancel_reason) is Reply.TOKEN_STALE and not self._relogged:
            self._relogged = True  # tokens end as a matter of course; only a second refusal is trouble
            raise _Again()
        raise StoreRefused("a running watch", f"etcd cancelled it: {response.cancel_reason or 'no reason given'}", "check user and role")

    def _check_not_reset(self, revision: int) -> None:
        """A member may lag behind what was delivered; the store as a whole may not, unless its data was replaced."""
        if revision < self._next - 1 and self._present().revision < self._next - 1:
            self._snapshot()
            raise _Again()

    def _present(self) -> RangeResult:
        return self._source.range(self._part.prefix, after=self._part.after)

    def _snapshot(self) -> None:
        present = self._present()
        with self._delivery:
            if not self._closed.is_set():
                self._next = present.revision + 1
                self._up()
                self._on_batch(WatchBatch(present.revision, snapshot=True, kvs=present.kvs))

    def _deliver(self, events: tuple[WatchEvent, ...]) -> None:
        fresh = tuple(e for e in events if e.kv.mod_revision >= self._next)
        if not fresh:
            return
        with self._delivery:
            if not self._closed.is_set():
                self._next = fresh[-1].kv.mod_revision + 1
                self._on_batch(WatchBatch(self._next - 1, fresh))

    def _up(self) -> None:
        self._pause_s, self._relogged = 0.0, False
        if self._troubled:
            self._tell(None)

    def _tell(self, error: StoreError | None) -> None:
        self._troubled = error is not None
        with self._delivery:
            if self._on_trouble is not None and not self._closed.is_set():
                self._on_trouble(error)


class _Again(Exception):
    """Open the stream anew, at once and without trouble."""

"""A client of the in-memory store, with its faults as data: `Store` for the simulator and for tests.

Law: single-threaded and deterministic, like `memory.MemoryStore`.  A call without `_async` answers at once, whatever
the latency; an `_async` one answers within the call when latency is zero and no fault delays it, else from
`MemoryStore.advance`.  A request that is under way lands or is lost by the rules below even if its session crashes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from elastic_health.rendezvous.memory import MemoryStore, Subscription, part_of
from elastic_health.rendezvous.store import (
    KeyValue,
    Lease,
    RangeResult,
    StoreAmbiguous,
    StoreError,
    StoreUnavailable,
    Txn,
    TxnResult,
    WatchBatch,
)
from elastic_health.rendezvous.txn_rules import check_txn, writes

T = TypeVar("T")


class FaultKind(Enum):
    """What becomes of one request."""

    NOT_SENT = "not sent"  # StoreUnavailable, surely not applied
    LOST = "lost"  # StoreAmbiguous, never applied
    REPLY_LOST = "reply lost"  # StoreAmbiguous, applied
    LATE = "late"  # StoreAmbiguous now, applied `delay_s` later
    SLOW = "slow"  # an `_async` call: applied after `delay_s`, then answered


@dataclass(frozen=True)
class Fault:
    """Of the next writing transaction (`MemorySession.faults`) or renewal (`renew_faults`)."""

    kind: FaultKind
    delay_s: float = 0.0


@dataclass(frozen=True)
class Latency:
    """Of `_async` calls and of watch deliveries, in seconds."""

    request_s: float = 0.0
    reply_s: float = 0.0
    watch_s: float = 0.0


class MemoryWatch:
    """A `Watch` on the in-memory store."""

    def __init__(
        self,
        session: MemorySession,
        prefix: str,
        from_revision: int,
        on_batch: Callable[[WatchBatch], None],
        on_trouble: Callable[[StoreError | None], None] | None,
        after: str = "",
        deletions: bool = False,
    ) -> None:
        self._session, self._prefix, self._next = session, prefix, max(1, from_revision)
        self._after, self._deletions = after, deletions
        self._on_batch, self._on_trouble = on_batch, on_trouble
        self._subscription: Subscription | None = None
        self._closed = False
        self._stream = 0  # deliveries of an older stream are void
        self._last_due = 0.0

    def close(self) -> None:
        self._closed = True
        self._unsubscribe()

    def cut(self, tell: bool = True) -> None:
        """The stream breaks: what is under way is lost, `resume` fetches it again."""
        if self._subscription is not None:
            self._unsubscribe()
            self._tell(_unavailable("the watch was cut"), tell)

    def resume(self, tell: bool = True) -> None:
        """Open the stream again where the last delivery ended."""
        if self._closed or self._subscription is not None:
            return
        store, stream = self._session.store, self._stream
        missed = store.since(self._prefix, self._next, self._after, self._deletions)
        self._subscription = store.subscribe(self._prefix, lambda batch: self._send(batch, stream))
        self._tell(None, tell)
        for batch in missed:
            self._send(batch, stream)

    def _unsubscribe(self) -> None:
        self._stream += 1
        if self._subscription is not None:
            self._subscription.active = False
            self._subscription = None

    def _send(self, batch: WatchBatch, stream: int) -> None:
        if not batch.snapshot:
            batch = part_of(batch, self._prefix, self._after, self._deletions)
            if not batch.events:
                return
        store, delay_s = self._session.store, self._session.latency.watch_s
        due = max(store.now + delay_s, self._last_due)  # a smaller delay does not overtake
        if due <= store.now:
            self._receive(batch, stream)
        else:
            self._last_due = due
            store.at(due, lambda: self._receive(batch, stream))

    def _receive(self, batch: WatchBatch, stream: int) -> None:
        if self._closed or stream != self._stream or batch.revision < self._next:
            return
        self._next = batch.revision + 1
        self._on_batch(batch)

    def _tell(self, error: StoreError | None, tell: bool) -> None:
        if tell and self._on_trouble is not None and not self._closed:
            self._on_trouble(error)


class MemorySession:
    """A `Store` on a `MemoryStore`.

    `faults` and `renew_faults` are used up one a call, oldest first.  `latency` may be replaced at any time.
    """

    def __init__(self, store: MemoryStore, *, timeout_s: float = 5.0) -> None:
        self.store = store
        self.timeout_s = timeout_s
        self.latency = Latency()
        self.faults: deque[Fault] = deque()
        self.renew_faults: deque[Fault] = deque()
        self._down = False
        self._closed = False
        self._crashed = False
        self._watches: list[MemoryWatch] = []

    # --- faults ---

    @property
    def down(self) -> bool:
        """Whether the store is out of this client's reach."""
        return self._down

    def set_down(self, down: bool) -> None:
        """Cut this client off, or let it reach the store again; watches break and resume with it."""
        self._down = down
        for watch in list(self._watches):
            if down:
                watch.cut()
            else:
                watch.resume()

    def cut_watches(self) -> None:
        """Break every watch's stream; each resumes at once."""
        for watch in list(self._watches):
            watch.cut()
            watch.resume()

    def crash(self) -> None:
        """The client process is gone: no callback is called any more; requests under way still land."""
        self._crashed = True
        self.close()

    # --- Store ---

    def get(self, key: str, *, timeout_s: float | None = None) -> KeyValue | None:
        self._reach()
        return self.store.get(key)

    def range(self, prefix: str, *, after: str = "", limit: int = 0, timeout_s: float | None = None) -> RangeResult:
        self._reach()
        return self.store.range(prefix, after, limit)

    def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        check_txn(txn)
        self._reach()
        fault = self.faults.popleft() if writes(txn) and self.faults else None
        return self._suffer(fault, lambda: self.store.apply(txn))

    def txn_async(self, txn: Txn, done: Callable[[TxnResult | StoreError], None], *, timeout_s: float | None = None) -> None:
        check_txn(txn)
        fault = self.faults.popleft() if writes(txn) and self.faults and not self._down else None
        self._start(fault, lambda: self.store.apply(txn), done, timeout_s, writes(txn))

    def grant(self, ttl_s: float, *, timeout_s: float | None = None) -> Lease:
        self._reach()
        return self.store.grant(ttl_s)

    def grant_async(self, ttl_s: float, done: Callable[[Lease | StoreError], None], *, timeout_s: float | None = None) -> None:
        self._start(None, lambda: self.store.grant(ttl_s), done, timeout_s, False)

    def renew(self, lease_id: int, *, timeout_s: float | None = None) -> float:
        self._reach()
        fault = self.renew_faults.popleft() if self.renew_faults else None
        try:
            return self._suffer(fault, lambda: self.store.renew(lease_id))
        except StoreAmbiguous as lost:  # the real session repeats renewals until its deadline
            raise _unavailable(lost.found) from lost

    def renew_async(self, lease_id: int, done: Callable[[float | StoreError], None], *, timeout_s: float | None = None) -> None:
        fault = self.renew_faults.popleft() if self.renew_faults and not self._down else None
        self._start(fault, lambda: self.store.renew(lease_id), done, timeout_s, False)

    def revoke(self, lease_id: int, *, timeout_s: float | None = None) -> None:
        self._reach()
        self.store.expire(lease_id)

    def watch(
        self,
        prefix: str,
        from_revision: int,
        on_batch: Callable[[WatchBatch], None],
        on_trouble: Callable[[StoreError | None], None] | None = None,
        *,
        after: str = "",
        deletions: bool = False,
    ) -> MemoryWatch:
        """As the protocol says; past changes are delivered within this call when the latency is zero."""
        watch = MemoryWatch(self, prefix, from_revision, on_batch, on_trouble, after, deletions)
        self._watches.append(watch)
        if self._down:
            watch._tell(_unavailable("out of reach"), True)
        else:
            watch.resume(tell=False)
        return watch

    def close(self) -> None:
        self._closed = True
        for watch in self._watches:
            watch.close()

    # --- how a request fares ---

    def _reach(self) -> None:
        if self._down or self._closed:
            raise _unavailable("the session is closed" if self._closed else "out of reach")

    def _suffer(self, fault: Fault | None, act: Callable[[], T]) -> T:
        """A synchronous call under a fault."""
        kind = fault.kind if fault else None
        if kind is FaultKind.NOT_SENT:
            raise _unavailable("not sent")
        if kind is FaultKind.LATE and fault is not None:
            self.store.at(self.store.now + fault.delay_s, lambda: _land(act))
        if kind is FaultKind.REPLY_LOST:
            _land(act)
        if kind in (FaultKind.LOST, FaultKind.LATE, FaultKind.REPLY_LOST):
            raise _ambiguous()
        return act()

    def _start(
        self, fault: Fault | None, act: Callable[[], T], done: Callable[[T | StoreError], None], timeout_s: float | None, ambiguous: bool
    ) -> None:
        """An `_async` call: request and reply each take their time, and may each meet an outage."""
        slow_s = fault.delay_s if fault and fault.kind is FaultKind.SLOW else 0.0
        to_s, back_s = self.latency.request_s + slow_s, self.latency.reply_s
        if self._down or self._closed or (fault and fault.kind is not FaultKind.SLOW):
            self._answer(done, self._outcome(fault, act, ambiguous))
            return
        deadline = self.store.now + (self.timeout_s if timeout_s is None else timeout_s)
        lost = _ambiguous() if ambiguous else _unavailable("no answer in time")
        flight = _Flight(self, act, lambda answer: self._answer(done, answer), lost)
        if to_s == back_s == 0.0:
            flight.arrive(0.0)
            return
        self.store.at(deadline, flight.give_up)
        self.store.at(self.store.now + to_s, lambda: flight.arrive(back_s))

    def _outcome(self, fault: Fault | None, act: Callable[[], T], ambiguous: bool) -> T | StoreError:
        try:
            self._reach()
            return self._suffer(fault, act)
        except StoreAmbiguous as error:
            return error if ambiguous else _unavailable(error.found)
        except StoreError as error:
            return error

    def _answer(self, done: Callable[[T | StoreError], None], answer: T | StoreError) -> None:
        if not self._crashed:
            done(answer)


class _Flight(Generic[T]):
    """One request under way; answers once."""

    def __init__(self, session: MemorySession, act: Callable[[], T], answer: Callable[[T | StoreError], None], lost: StoreError) -> None:
        self._session, self._act, self._answer, self._lost = session, act, answer, lost
        self._answered = False

    def arrive(self, back_s: float) -> None:
        """The request reaches the store, unless the client is cut off by now."""
        if self._session.down:
            return
        try:
            result: T | StoreError = self._act()
        except StoreError as error:
            result = error
        if back_s == 0.0:
            self._once(result)
        else:
            store = self._session.store
            store.at(store.now + back_s, lambda: self._once(result) if not self._session.down else None)

    def give_up(self) -> None:
        self._once(self._lost)

    def _once(self, answer: T | StoreError) -> None:
        if not self._answered:
            self._answered = True
            self._answer(answer)


def _land(act: Callable[[], object]) -> None:
    """A request whose sender no longer listens: a refusal goes nowhere."""
    try:
        act()
    except StoreError:
        return


def _unavailable(found: str) -> StoreUnavailable:
    return StoreUnavailable("an answer of the store", found, "try again")


def _ambiguous() -> StoreAmbiguous:
    return StoreAmbiguous("the store's answer to a write", "it was lost", "read what the key holds, or send it again")

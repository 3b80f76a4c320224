"""An in-memory etcd: keys, revisions, leases, history and compaction, on a clock that the caller moves.

Law: single-threaded and deterministic.  Nothing here reads a clock, sleeps, starts a thread or draws a number; time
passes only in `advance`, and equal calls give equal results.  What it answers is what etcd answers (the contract tests
run on both); `memory_session` puts clients with faults in front of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil

from elastic_health.rendezvous.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Lease,
    LeaseGone,
    Op,
    Put,
    RangeResult,
    StoreFull,
    Target,
    Txn,
    TxnResult,
    WatchBatch,
    WatchEvent,
)
from elastic_health.rendezvous.txn_rules import check_txn

FIRST_REVISION = 1  # of an empty etcd; its first write makes revision 2


@dataclass
class _Lease:
    ttl_s: float
    ends_at: float
    keys: set[str] = field(default_factory=set)


@dataclass
class Subscription:
    """Somebody who hears of changes under `prefix`: `sink` is called within the change, in order."""

    prefix: str
    sink: Callable[[WatchBatch], None]
    active: bool = True


class MemoryStore:
    """The server.  `now` is in seconds on the caller's clock; `min_ttl_s` is the shortest lease that it grants."""

    def __init__(self, now: float = 0.0, *, min_ttl_s: float = 1.0) -> None:
        self.now = now
        self.revision = FIRST_REVISION
        self.compacted = 0
        self.full = False  # over its quota: puts are refused, the rest works
        self._min_ttl_s = min_ttl_s
        self._frozen = False
        self._keys: dict[str, KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self._history: list[WatchBatch] = []
        self._subscriptions: list[Subscription] = []
        self._outbox: list[WatchBatch] = []
        self._delivering = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0

    # --- time ---

    def at(self, due: float, act: Callable[[], None]) -> None:
        """Run `act` when the clock reaches `due` (at once-due ones too only in `advance`); ties in order of asking."""
        self._timer_count += 1
        heapq.heappush(self._timers, (due, self._timer_count, act))

    def next_due(self) -> float | None:
        """When the next timer or lease expiry is due: the time to which an event loop may jump."""
        dues = [t[0] for t in self._timers[:1]]
        if not self._frozen:
            dues += [lease.ends_at for lease in self._leases.values()]
        return min(dues, default=None)

    def advance(self, now: float) -> None:
        """Move the clock; what falls due happens in time order, a lease's end before a timer of the same instant."""
        if now < self.now:
            raise ValueError(f"the clock can't go back from {self.now} to {now}")
        while (due := self.next_due()) is not None and due <= now:
            self.now = max(self.now, due)
            ended = [i for i, lease in self._leases.items() if lease.ends_at <= due]
            if ended and not self._frozen:
                self.expire(ended[0])
            else:
                heapq.heappop(self._timers)[2]()
        self.now = now

    def freeze(self) -> None:
        """The whole store is down: leases stop running out.  (Sessions are told separately.)"""
        self._frozen = True

    def thaw(self) -> None:
        """It is back: as after an election in etcd, every lease has its full time again."""
        self._frozen = False
        for lease in self._leases.values():
            lease.ends_at = self.now + lease.ttl_s

    # --- reads and transactions ---

    def get(self, key: str) -> KeyValue | None:
        return self._keys.get(key)

    def range(self, prefix: str, after: str = "", limit: int = 0) -> RangeResult:
        found = sorted((k for k in self._keys if _within(k, prefix, after)), key=_byte_order)
        return RangeResult(self.revision, tuple(self._keys[k] for k in (found[:limit] if limit else found)), len(found))

    def apply(self, txn: Txn) -> TxnResult:
        """Do a transaction.

        Raises:
            LeaseGone: the branch that would run puts under a lease that has ended; nothing is changed.
            StoreFull: `full` is set and that branch puts something.
            RequestTooLarge, ValueError: as `txn_rules.check_txn`.
        """
        check_txn(txn)
        holds = all(self._holds(c) for c in txn.compare)
        ops = txn.then if holds else txn.otherwise
        self._check_puts([op for op in ops if isinstance(op, Put)])
        events: list[WatchEvent] = []
        results = [self._do(op, events) for op in ops]
        self._commit(events)
        return TxnResult(holds, self.revision, tuple(replace(read, revision=self.revision) for read in results if read is not None))

    def _holds(self, compare: Compare) -> bool:
        kv = self._keys.get(compare.key)
        if compare.target is Target.VALUE:
            return kv is not None and kv.value == compare.value
        if kv is None:
            return compare.value == 0
        number = {Target.MOD: kv.mod_revision, Target.CREATE: kv.create_revision, Target.VERSION: kv.version}[compare.target]
        return number == compare.value

    def _check_puts(self, puts: list[Put]) -> None:
        if puts and self.full:
            raise StoreFull("a store within its space quota", "it is full", "compact it")
        for put in puts:
            if put.lease and put.lease not in self._leases:
                raise LeaseGone("a living lease", f"lease {put.lease:x} has ended", "take a new one; its keys are gone")

    def _do(self, op: Op, events: list[WatchEvent]) -> RangeResult | None:
        if isinstance(op, Put):
            self._put(op, events)
            return None
        found = self._matching(op)
        if isinstance(op, Get):
            return RangeResult(self.revision, () if op.count else tuple(self._keys[k] for k in found), len(found))
        self._delete(found, events)
        return None

    def _matching(self, op: Get | Delete) -> list[str]:
        if op.prefix:
            return [kv.key for kv in self.range(op.key).kvs]
        return [op.key] if op.key in self._keys else []

    def _put(self, put: Put, events: list[WatchEvent]) -> None:
        revision, old = self.revision + 1, self._keys.get(put.key)
        if old is not None:
            self._detach(old)
            kv = replace(old, value=put.value, mod_revision=revision, version=old.version + 1, lease=put.lease)
        else:
            kv = KeyValue(put.key, put.value, revision, revision, 1, put.lease)
        self._keys[put.key] = kv
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        events.append(WatchEvent(False, kv))

    def _delete(self, keys: list[str], events: list[WatchEvent]) -> None:
        for key in keys:
            self._detach(self._keys.pop(key))
            events.append(WatchEvent(True, KeyValue(key, b"", 0, self.revision + 1, 0)))

    def _detach(self, kv: KeyValue) -> None:
        if kv.lease in self._leases:
            self._leases[kv.lease].keys.discard(kv.key)

    # --- leases ---

    def grant(self, ttl_s: float) -> Lease:
        """A new lease; like etcd, whole seconds and not below the server's minimum."""
        self._last_lease += 1
        granted_s = max(float(ceil(ttl_s)), self._min_ttl_s)
        self._leases[self._last_lease] = _Lease(granted_s, self.now + granted_s)
        return Lease(self._last_lease, granted_s)

    def renew(self, lease_id: int) -> float:
        """Seconds granted anew.

        Raises:
            LeaseGone: it has ended.
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseGone("a living lease", f"lease {lease_id:x} has ended", "take a new one; its keys are gone")
        lease.ends_at = self.now + lease.ttl_s
        return lease.ttl_s

    def expire(self, lease_id: int) -> None:
        """End a lease and delete its keys, in one revision; one that has ended already is fine."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        events: list[WatchEvent] = []
        self._delete(sorted(lease.keys, key=_byte_order), events)
        del self._leases[lease_id]
        self._commit(events)

    def leases(self) -> dict[int, float]:
        """Living leases and when each ends."""
        return {i: lease.ends_at for i, lease in self._leases.items()}

    # --- history ---

    def compact(self, revision: int) -> None:
        """Forget the history up to and including `revision`."""
        self.compacted = max(self.compacted, min(revision, self.revision))
        self._history = [b for b in self._history if b.revision > self.compacted]

    def since(self, prefix: str, from_revision: int, after: str = "", deletions: bool = False) -> list[WatchBatch]:
        """What a watch from `from_revision` has missed: batches, or one snapshot when part of it was compacted away."""
        if max(1, from_revision) <= self.compacted:
            present = self.range(prefix, after)
            return [WatchBatch(present.revision, snapshot=True, kvs=present.kvs)]
        missed = (part_of(b, prefix, after, deletions) for b in self._history if b.revision >= from_revision)
        return [b for b in missed if b.events]

    def subscribe(self, prefix: str, sink: Callable[[WatchBatch], None]) -> Subscription:
        """Hear of every later change under `prefix`; set `active` to False to end it."""
        subscription = Subscription(prefix, sink)
        self._subscriptions.append(subscription)
        return subscription

    def _commit(self, events: list[WatchEvent]) -> None:
        if not events:
            return
        self.revision += 1
        batch = WatchBatch(self.revision, tuple(events))
        self._history.append(batch)
        self._outbox.append(batch)
        self._deliver()

    def _deliver(self) -> None:
        """Tell subscribers; a change made inside a callback waits its turn, so that all hear all in one order."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._outbox:
                batch = self._outbox.pop(0)
                self._subscriptions = [s for s in self._subscriptions if s.active]
                for subscription in self._subscriptions:
                    part = part_of(batch, subscription.prefix)
                    if part.events and subscription.active:
                        subscription.sink(part)
        finally:
            self._delivering = False


def _byte_order(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _within(key: str, prefix: str, after: str) -> bool:
    return key.startswith(prefix) and (not after or (_byte_order(key) > _byte_order(after) and not key.startswith(after)))


def part_of(batch: WatchBatch, prefix: str, after: str = "", deletions: bool = False) -> WatchBatch:
    """What a watch of this kind hears of a batch; maybe nothing."""
    heard = (e for e in batch.events if _within(e.kv.key, prefix, after) and (e.deleted or not deletions))
    return WatchBatch(batch.revision, tuple(heard))

"""The narrow store protocol: what the rest of the package may ask of etcd v3, as plain data.

Law: a transaction is the only write.  Its answer is one of three: done or refused (`TxnResult`), surely not applied
(`StoreUnavailable`), or unknown (`StoreAmbiguous`: it may have landed, or may still land later).  No implementation
retries a write by itself; reads may be retried.  The same contract tests run on every implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from elastic_health.errors import HealthError


class StoreError(HealthError):
    """Root of the store's errors."""


class StoreUnavailable(StoreError):
    """No endpoint answered in time; a write was surely not applied (it was never sent, or was refused before raft)."""


class NameUnknown(StoreUnavailable):
    """An endpoint's name does not resolve: a mistake, or a DNS entry that is still to come."""


class StoreAmbiguous(StoreError):
    """A write was sent and its answer lost: it may have been applied, or may still be."""


class StoreRefused(StoreError):
    """Wrong user, password, certificate or permission."""


class NotEtcd(StoreError):
    """Something answers at the endpoint, but it does not speak etcd v3."""


class StoreSilent(NotEtcd):
    """Something takes connections at the endpoint and says nothing: not etcd, or an etcd that is frozen."""


class StoreFull(StoreError):
    """etcd is over its space quota (NOSPACE alarm): reads work, writes don't."""


class RequestTooLarge(StoreError):
    """Over 1.5 MiB or 128 operations: the caller must shard."""


class LeaseGone(StoreError):
    """The lease has ended in the store; its keys are deleted."""


@dataclass(frozen=True)
class KeyValue:
    """One key as the store holds it.  Revisions are the store's; `lease` is 0 for none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True)
class RangeResult:
    """All keys of a range at one revision, in key order.  `count`: how many there are, when only that was asked for."""

    revision: int
    kvs: tuple[KeyValue, ...]
    count: int = 0


class Target(Enum):
    """What a comparison looks at.  An absent key has mod revision, create revision and version 0."""

    MOD = "mod"
    CREATE = "create"
    VERSION = "version"
    VALUE = "value"


@dataclass(frozen=True)
class Compare:
    """`key`'s `target` equals `value` (int for revisions and version, bytes for VALUE)."""

    key: str
    target: Target
    value: int | bytes


@dataclass(frozen=True)
class Put:
    """Write a key, under a lease if `lease` is not 0."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True)
class Delete:
    """Delete a key, or with `prefix` every key that starts with it."""

    key: str
    prefix: bool = False


@dataclass(frozen=True)
class Get:
    """Read a key, or with `prefix` every key that starts with it; with `count` only how many there are."""

    key: str
    prefix: bool = False
    count: bool = False


Op = Put | Delete | Get


@dataclass(frozen=True)
class Txn:
    """If every comparison holds do `then`, else do `otherwise`; atomic."""

    compare: tuple[Compare, ...]
    then: tuple[Op, ...]
    otherwise: tuple[Op, ...] = ()


@dataclass(frozen=True)
class TxnResult:
    """`succeeded`: the comparisons held.  `reads`: one RangeResult per `Get` of the branch that ran, in order."""

    succeeded: bool
    revision: int
    reads: tuple[RangeResult, ...] = ()


@dataclass(frozen=True)
class Lease:
    """A granted lease.  `ttl_s` is what the server granted (etcd raises small ones), counted by the caller from the
    monotonic time at which the request was *sent*."""

    id: int
    ttl_s: float


@dataclass(frozen=True)
class WatchEvent:
    """One change.  For a deletion `kv.value` is empty and `kv.mod_revision` is the revision of the deletion."""

    deleted: bool
    kv: KeyValue


@dataclass(frozen=True)
class WatchBatch:
    """Consecutive changes up to `revision`.  `snapshot`: history was compacted away, so `events` is empty and
    `kvs` is the complete present content of the prefix; the receiver replaces its view."""

    revision: int
    events: tuple[WatchEvent, ...] = ()
    snapshot: bool = False
    kvs: tuple[KeyValue, ...] = ()


class Watch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """Stop; no callback starts after this returns."""


class Store(Protocol):
    """A session with a store.  Thread-safe.  Every call has a deadline (`timeout_s`, default per session).

    Raises (any call): StoreUnavailable, StoreRefused, NotEtcd, RequestTooLarge; `txn` with writes also
    StoreAmbiguous and StoreFull; `renew` LeaseGone.
    """

    def get(self, key: str, *, timeout_s: float | None = None) -> KeyValue | None: ...

    def range(self, prefix: str, *, after: str = "", limit: int = 0, timeout_s: float | None = None) -> RangeResult:
        """Keys under `prefix`; of them only those behind all that start with `after`; the first `limit` (0: all)."""

    def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult: ...

    def txn_async(self, txn: Txn, done: Callable[[TxnResult | StoreError], None], *, timeout_s: float | None = None) -> None:
        """Like `txn`, without waiting: `done` is called once, from another thread, with the result or the error."""

    def grant(self, ttl_s: float, *, timeout_s: float | None = None) -> Lease: ...

    def grant_async(self, ttl_s: float, done: Callable[[Lease | StoreError], None], *, timeout_s: float | None = None) -> None: ...

    def renew(self, lease_id: int, *, timeout_s: float | None = None) -> float:
        """Extend a lease; returns the seconds granted, to be counted from when the request was sent."""

    def renew_async(self, lease_id: int, done: Callable[[float | StoreError], None], *, timeout_s: float | None = None) -> None: ...

    def revoke(self, lease_id: int, *, timeout_s: float | None = None) -> None: ...

    def watch(
        self,
        prefix: str,
        from_revision: int,
        on_batch: Callable[[WatchBatch], None],
        on_trouble: Callable[[StoreError | None], None] | None = None,
        *,
        after: str = "",
        deletions: bool = False,
    ) -> Watch:
        """Deliver every change under `prefix` with revision >= `from_revision`, in order, none twice, none left out.

        `after`: only of keys behind all that start with it.  `deletions`: of keys that go, not of keys that are put.

        Resumes by itself over cut streams, other members and compaction (see `WatchBatch.snapshot`); a stream that
        is silent or cancelled is noticed by progress requests.  `on_trouble` hears an error when the stream is down
        and None when it is up again.  Callbacks run on the watch's own thread.
        """

    def close(self) -> None: ...

"""What the store's tests share: a put, a create-only write, and a listener that remembers."""

from __future__ import annotations

import queue
import threading

from elastic_health.rendezvous.store import Compare, Get, Put, Store, StoreError, Target, Txn, TxnResult, WatchBatch, WatchEvent


def put(store: Store, key: str, value: bytes, lease: int = 0) -> int:
    return store.txn(Txn((), (Put(key, value, lease),))).revision


def create(key: str, value: bytes) -> Txn:
    return Txn((Compare(key, Target.CREATE, 0),), (Put(key, value),), (Get(key),))


def later(store: Store, txn: Txn, timeout_s: float = 5.0) -> TxnResult:
    """`txn_async` as if it were `txn`: returns the result, raises the error."""
    answers: queue.SimpleQueue[TxnResult | StoreError] = queue.SimpleQueue()
    store.txn_async(txn, answers.put, timeout_s=timeout_s)
    answer = answers.get(timeout=timeout_s + 20)
    if isinstance(answer, StoreError):
        raise answer
    return answer


class Heard:
    """Everything that a watch delivered."""

    def __init__(self) -> None:
        self.batches: list[WatchBatch] = []
        self.trouble: list[StoreError | None] = []
        self.threads: set[int] = set()

    def batch(self, batch: WatchBatch) -> None:
        self.threads.add(threading.get_ident())
        self.batches.append(batch)

    @property
    def events(self) -> list[WatchEvent]:
        return [e for b in list(self.batches) for e in b.events]

    @property
    def values(self) -> list[bytes]:
        return [e.kv.value for e in self.events]

    @property
    def keys(self) -> list[str]:
        return [e.kv.key for e in self.events]

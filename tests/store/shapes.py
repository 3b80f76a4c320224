"""What the store's tests share: a put, a create-only write, and a listener that remembers."""

from __future__ import annotations

import threading

from elastic_health.rendezvous.store import Compare, Get, Put, Store, StoreError, Target, Txn, WatchBatch, WatchEvent


def put(store: Store, key: str, value: bytes, lease: int = 0) -> int:
    return store.txn(Txn((), (Put(key, value, lease),))).revision


def create(key: str, value: bytes) -> Txn:
    return Txn((Compare(key, Target.CREATE, 0),), (Put(key, value),), (Get(key),))


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

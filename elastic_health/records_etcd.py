"""Writes records and incidents of a run to the store, and keeps their number bounded.

Law: a record is written once under its own id, so sending it again after a lost answer changes nothing; the oldest
ones beyond the bound are deleted, never a newer one.  Records tell of decisions, they are not part of them: who can't
write one says so and goes on.
"""

from __future__ import annotations

from elastic_health.codec import dump
from elastic_health.incidents import Incident, Record
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Compare, Delete, Put, Store, StoreAmbiguous, Target, Txn

KEPT = 1000
"""Records (and incidents) of a run that stay; a record has about 600 bytes."""
_TRIES = 3
_DELETES_A_TXN = 100


def write_record(store: Store, keys: RunKeys, record: Record, *, at: str, by: str) -> None:
    """Write one record under its own id.

    Args:
        at: UTC, ISO 8601.  by: this node's name.

    Raises:
        StoreError: it could not be written (after a few tries where the answer was lost).
    """
    _create(store, keys.record(record.id), dump(record, at=at, by=by))


def write_incident(store: Store, keys: RunKeys, incident: Incident, *, at: str, by: str) -> None:
    """Write an incident's summary under its own id.  Raises as `write_record`."""
    _create(store, keys.incident(incident.id), dump(incident, at=at, by=by))


def _create(store: Store, key: str, value: bytes) -> None:
    txn = Txn((Compare(key, Target.CREATE, 0),), (Put(key, value),))
    for left in reversed(range(_TRIES)):
        try:
            store.txn(txn)
            return
        except StoreAmbiguous:
            if not left:
                raise


def prune(store: Store, keys: RunKeys, kept: int = KEPT) -> int:
    """Delete the oldest records and incidents beyond `kept` of each; returns how many.

    Oldest by the store's own order: ids sort by their writers' clocks, which may be hours apart.

    Reads them all: it is called once a generation, not at each write.
    """
    deleted = 0
    for prefix in (keys.records, keys.incident("")):
        names = [kv.key for kv in sorted(store.range(prefix).kvs, key=lambda kv: kv.create_revision)]
        old = names[: max(0, len(names) - kept)]
        for i in range(0, len(old), _DELETES_A_TXN):
            store.txn(Txn((), tuple(Delete(k) for k in old[i : i + _DELETES_A_TXN])))
        deleted += len(old)
    return deleted

"""Asks for an agent's rights before it joins: a right that is missing must end it at the start, not leave it waiting."""

from __future__ import annotations

import contextlib

from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.rights import explained
from elastic_health.rendezvous.store import Compare, Put, Store, StoreAmbiguous, StoreFull, StoreRefused, Target, Txn


def check_rights(store: Store, keys: RunKeys) -> None:
    """See whether this user may write below the run.  Nothing is written: etcd compares rights before versions.

    Raises:
        StoreRefused: it may not; the message says what is missing and how to grant it.
        StoreError: the store did not answer.
    """
    never = Txn((Compare(keys.secret, Target.VERSION, -1),), (Put(keys.secret, b""),))
    try:
        # A full etcd, or one whose answer is lost, is not about rights: whoever writes next tells.
        with contextlib.suppress(StoreFull, StoreAmbiguous):
            store.txn(never)
    except StoreRefused as e:
        raise explained(e, keys) from e

"""The run's link secret: made by the first agent, kept in etcd, read by all others; never logged."""

from __future__ import annotations

import json
import secrets
import time

from elastic_health.errors import BadValue
from elastic_health.rendezvous.fence import Stamp
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Compare, Get, Put, Store, StoreAmbiguous, StoreUnavailable, Target, Txn

SECRET_BYTES = 32
_TRIES = 5


def ensure_secret(store: Store, keys: RunKeys, stamp: Stamp) -> bytes:
    """Create the secret, or read the one that is there.

    Returns:
        32 random bytes, the same for every agent of the run.

    Raises:
        StoreError: the store did not answer.
        BadValue: the key holds something else.
    """
    value = json.dumps({"v": 1, "at": stamp.at, "by": stamp.by, "secret": secrets.token_hex(SECRET_BYTES)}).encode()
    txn = Txn((Compare(keys.secret, Target.CREATE, 0),), (Put(keys.secret, value),), (Get(keys.secret),))
    for left in reversed(range(_TRIES)):
        try:
            result = store.txn(txn)
            break
        except (StoreAmbiguous, StoreUnavailable):  # create-only: asking again is harmless, and settles it
            if not left:
                raise
            time.sleep(0.1)
    if not result.succeeded:
        value = result.reads[0].kvs[0].value
    try:
        return bytes.fromhex(json.loads(value)["secret"])
    except (ValueError, KeyError, TypeError) as e:
        raise BadValue("a JSON object with a hexadecimal `secret`", f"{keys.secret}: {type(e).__name__}", "delete this key") from e

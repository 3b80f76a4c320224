"""The run's link secret: made by the first agent, kept in etcd, read by all others; never logged.

It is the first thing that any agent writes into a run, so its schema is the run's: an agent of another major version
is refused here, before the run can see anything of it.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from dataclasses import dataclass

from elastic_health._version import __version__
from elastic_health.codec import SCHEMA, dump, load, shown
from elastic_health.errors import BadValue, OtherVersion, RunRefused
from elastic_health.rendezvous.fence import Stamp
from elastic_health.rendezvous.keys import RunKeys, last_segment
from elastic_health.rendezvous.store import (
    Compare,
    Get,
    KeyValue,
    Put,
    Store,
    StoreAmbiguous,
    StoreFull,
    StoreUnavailable,
    Target,
    Txn,
)

log = logging.getLogger("elastic_health")
SECRET_BYTES = 32
_TRIES = 5
_FULL_PAUSE_S = 1.0
_NAMED = 8
"""Nodes that a refusal names."""


@dataclass(frozen=True)
class Secret:
    """`runs/<run>/secret`.  `version`: of the package that the run was begun with."""

    secret: str
    version: str = ""


def ensure_secret(store: Store, keys: RunKeys, stamp: Stamp, patience_s: float = 0.0) -> bytes:
    """Create the secret, or read the one that is there.

    Args:
        patience_s: how long to wait for space in an etcd over its quota.

    Returns:
        32 random bytes, the same for every agent of the run.

    Raises:
        StoreError: the store did not answer, or is still full.
        RunRefused: the run was begun with another major version of this package.
        BadValue: the key holds something else.
    """
    there = store.get(keys.secret)  # reading works in a full etcd too
    return _read(store, keys, stamp, there if there is not None else _create(store, keys, stamp, time.monotonic() + patience_s))


def _create(store: Store, keys: RunKeys, stamp: Stamp, until: float) -> KeyValue:
    value = dump(Secret(secrets.token_hex(SECRET_BYTES), __version__), at=stamp.at, by=stamp.by)
    txn = Txn((Compare(keys.secret, Target.CREATE, 0),), (Put(keys.secret, value),), (Get(keys.secret),))
    unanswered, told = 0, False
    while True:
        try:
            done = store.txn(txn)
            return KeyValue(keys.secret, value, 0, 0, 0) if done.succeeded else done.reads[0].kvs[0]
        except (StoreAmbiguous, StoreUnavailable):  # create-only: asking again is harmless, and settles it
            unanswered += 1
            if unanswered == _TRIES:
                raise
            time.sleep(0.1)
        except StoreFull as e:
            if time.monotonic() >= until:
                raise StoreFull(e.expected, f"{e.found}: {keys.secret} could not be written", e.do) from e
            if not told:
                told = True
                log.warning("%s could not be written, and is tried again: %s", keys.secret, e)
            time.sleep(_FULL_PAUSE_S)


def _read(store: Store, keys: RunKeys, stamp: Stamp, kv: KeyValue) -> bytes:
    try:
        secret = bytes.fromhex(load(Secret, kv.value, keys.secret).secret)
    except OtherVersion as e:
        raise RunRefused(*_mixed(store, keys, stamp, kv)) from e
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:  # the value itself is never told
        raise BadValue(f"a `secret` of {2 * SECRET_BYTES} hexadecimal digits", f"{keys.secret}: something else", "delete this key")
    return secret


def _mixed(store: Store, keys: RunKeys, stamp: Stamp, kv: KeyValue) -> tuple[str, str, str]:
    """Both versions and the nodes: expected, found, do."""
    theirs = _fields(kv)
    candidates = {last_segment(c.key).partition(".")[0]: _fields(c) for c in store.range(keys.candidates).kvs}
    nodes = sorted(str(c.get("node", at)) for at, c in candidates.items())
    where = ", ".join(shown(n) for n in nodes[:_NAMED]) or shown(str(theirs.get("by", "an unknown node")))
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    version, schema = shown(str(theirs.get("version", "?"))), shown(str(theirs.get("v", "?")))
    return (
        f"one major version of elastic-health in a run: {__version__} (schema {SCHEMA}) on this node, {stamp.by}",
        f"run {keys.run} of elastic-health {version} (schema {schema}) on {where}{more}",
        "install the same version on all nodes, or use another --rdzv-id",
    )


def _fields(kv: KeyValue) -> dict[str, object]:
    try:
        body = json.loads(kv.value)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}

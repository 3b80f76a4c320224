"""Baselines in the store: `baselines/<node type>/<check>`, one JSON object each."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_health.codec import dump, load
from elastic_health.errors import BadValue, BaselineError
from elastic_health.preflight.baselines import Baseline, succeed
from elastic_health.rendezvous.keys import FleetKeys, check_segment
from elastic_health.rendezvous.store import Compare, Put, Store, StoreAmbiguous, Target, Txn

_TRIES = 4


@dataclass(frozen=True)
class Stored:
    """One key.  `baseline` None: it can't be read, and `why` says so."""

    key: str
    node_type: str
    check: str
    baseline: Baseline | None
    why: str = ""


def key_of(keys: FleetKeys, node_type: str, check: str) -> str:
    """The key of a baseline.

    Raises:
        ConfigError: one of the names can't stand in a key.
    """
    return keys.baseline(check_segment("node type", node_type), check_segment("check", check))


def read(store: Store, keys: FleetKeys, node_type: str, check: str) -> Baseline | None:
    """The stored baseline, None if there is none.

    Raises:
        BaselineError: what is stored makes no sense.
        StoreError: the store can't be read.
    """
    key = key_of(keys, node_type, check)
    kv = store.get(key)
    return None if kv is None else _read(kv.value, key)


def _read(raw: bytes, key: str) -> Baseline:
    try:
        return load(Baseline, raw, key)
    except BadValue as e:
        raise BaselineError(e.expected, e.found, e.do) from e


def read_all(store: Store, keys: FleetKeys) -> tuple[Stored, ...]:
    """All of them, in order of their keys; keys of another depth are none."""
    found = []
    for kv in store.range(keys.baselines).kvs:
        node_type, slash, check = kv.key[len(keys.baselines) :].partition("/")
        if not slash or not check or "/" in check:
            continue
        try:
            found.append(Stored(kv.key, node_type, check, load(Baseline, kv.value, kv.key)))
        except BadValue as e:
            found.append(Stored(kv.key, node_type, check, None, str(e)))
    return tuple(found)


def write(store: Store, keys: FleetKeys, new: Baseline, *, at: str, by: str, force: bool = False) -> Baseline:
    """Write a baseline; returns it as written, with the provenance of the one that it replaced.

    Args:
        at: UTC, ISO 8601.  by: who records it.
        force: replace one that is there, readable or not.

    Raises:
        BaselineError: one is there and `force` isn't given, or it changed meanwhile.
        StoreError: it could not be written.
    """
    key = key_of(keys, new.node_type, new.check)
    unanswered: bytes | None = None
    for _ in range(_TRIES):
        kv = store.get(key)
        if kv is not None and kv.value == unanswered:
            return _read(kv.value, key)
        if kv is not None and not force:
            raise BaselineError("no baseline yet", f"{key}, {_from(kv.value, key)}", "write --force to replace it")
        final = succeed(new, _old(kv.value, key) if kv else None)
        value = dump(final, at=at, by=by)
        try:
            if store.txn(Txn((Compare(key, Target.MOD, kv.mod_revision if kv else 0),), (Put(key, value),))).succeeded:
                return final
        except StoreAmbiguous:
            unanswered = value
    raise BaselineError("a baseline that nobody else writes", f"{key}: it keeps changing, or answers are lost", "look at it and try again")


def _old(raw: bytes, key: str) -> Baseline | None:
    try:
        return load(Baseline, raw, key)
    except BadValue:
        return None


def _from(raw: bytes, key: str) -> str:
    old = _old(raw, key)
    return f"of {old.provenance.at} from {old.provenance.node}" if old else "which can't be read"

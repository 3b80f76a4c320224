"""Reads and writes nodes' standings, and puts a node that keeps failing into quarantine where the YAML says so."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from elastic_health.codec import dump, load
from elastic_health.errors import BadValue
from elastic_health.preflight.breaker import may_quarantine, suspicions
from elastic_health.preflight.gate import Decision
from elastic_health.preflight.policy import PreflightPolicy
from elastic_health.preflight.standing import Standing, after, checked, failures
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.quarantine import Limits, Quarantine, node as node_named
from elastic_health.rendezvous.quarantine_etcd import quarantine
from elastic_health.rendezvous.store import Put, Store, StoreAmbiguous, Txn

_TRIES = 3


def read(store: Store, keys: FleetKeys, node: str) -> Standing | None:
    """A node's standing; None where there is none that can be read.

    Raises:
        StoreError: the store can't be read.
    """
    kv = store.get(keys.preflight(node))
    try:
        return load(Standing, kv.value, kv.key) if kv is not None else None
    except BadValue:
        return None


def read_all(store: Store, keys: FleetKeys) -> tuple[Standing, ...]:
    """Of every node; what can't be read is left out.  Raises as `read`."""
    found = []
    for kv in store.range(keys.preflights).kvs:
        try:
            found.append(load(Standing, kv.value, kv.key))
        except BadValue:
            continue
    return tuple(found)


def write(store: Store, keys: FleetKeys, standing: Standing, at: str) -> None:
    """
    Raises:
        StoreError: it could not be written (after a few tries where the answer was lost).
    """
    txn = Txn((), (Put(keys.preflight(standing.node), dump(standing, at=at, by=standing.node)),))
    for left in reversed(range(_TRIES)):
        try:
            store.txn(txn)
            return
        except StoreAmbiguous:
            if not left:
                raise


def settle(store: Store, keys: FleetKeys, policy: PreflightPolicy, decision: Decision, run: str, at: str) -> tuple[Standing, str]:
    """Write a node's standing after a decision and, by policy, quarantine it; also what a person should know of that, "" for nothing.

    Raises:
        StoreError: the store was not reached, or refused it.
    """
    now = time.time()
    standing = after(read(store, keys, decision.node), decision, run, now)
    write(store, keys, standing, at)
    if not decision.refusing:
        return standing, ""
    everyone = [*(s for s in read_all(store, keys) if s.node != standing.node), standing]
    count = checked(everyone, policy.breaker.window_s, now)
    suspected = suspicions(failures(everyone), count, policy.breaker, now)
    mine = [s.reason for s in suspected if s.signature in decision.signatures]
    due = policy.quarantine.failures and standing.failures >= policy.quarantine.failures and not decision.verdict.lets_in
    if not due:
        return standing, "; ".join(mine)
    if not may_quarantine(failures([standing])[0], suspected):
        return standing, f"not put into quarantine: {'; '.join(mine)}"
    return _quarantined(store, keys, policy, standing, count, at)


def _quarantined(store: Store, keys: FleetKeys, policy: PreflightPolicy, standing: Standing, fleet: int, at: str) -> tuple[Standing, str]:
    signature = standing.signatures[0] if standing.signatures else ""
    reason = f"{standing.failures} preflights in a row failed: {standing.reason}"
    said = Quarantine(reason, signature, until=time.time() + policy.quarantine.for_s)
    b = policy.breaker
    alike = max(b.nodes - 1, 1)
    limits = Limits(b.window_s, alike, b.share, max(b.share, Limits().share))
    known = fleet if fleet > math.ceil(1 / max(b.share, 0.01)) else 0  # too few to speak of shares
    found = quarantine(store, keys, node_named(standing.node), said, standing.node, fleet=known, limits=limits)
    if not found.there:
        return standing, f"not put into quarantine: {found.why}"
    inside = replace(standing, quarantined=True)
    write(store, keys, inside, at)
    return inside, f"put into quarantine for {policy.quarantine.for_s:g} s: {reason}"


def note_quarantine(store: Store, keys: FleetKeys, node: str, at: str) -> None:
    """This node leaves because it is in quarantine: what comes next is a repair.  Raises as `write`."""
    write(store, keys, replace(read(store, keys, node) or Standing(node), quarantined=True), at)

"""Writes automatic quarantine entries: look, ask the breaker, write if nobody has written meanwhile; else look again."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from elastic_health.codec import dump
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.quarantine import Limits, Quarantine, Resource, propose
from elastic_health.rendezvous.store import Store, StoreAmbiguous, StoreUnavailable


@dataclass(frozen=True)
class Turn:
    """`FleetKeys.quarantine_turn`: only its revision matters."""


@dataclass(frozen=True)
class Outcome:
    """`there`: the resource is in quarantine now.  `why`: why not, or why it was before."""

    there: bool
    written: bool
    why: str = ""


def quarantine(
    store: Store, keys: FleetKeys, resource: Resource, said: Quarantine, by: str, *, fleet: int, limits: Limits, within_s: float = 10.0
) -> Outcome:
    """Put `resource` into quarantine by policy, unless the breaker is against it.

    Call it only with what was found now: what records tell of the past may have been released since.

    Args:
        said: its `since` and `automatic` are set here.
        by: this node.

    Raises:
        StoreError: the store did not answer, or other agents kept writing for all of `within_s`.
    """
    deadline = time.monotonic() + within_s
    while True:
        now = time.time()
        at = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        full = dataclasses.replace(said, since=now, automatic=True)
        value, turn = dump(full, at=at, by=by), dump(Turn(), at=at, by=by)
        proposal = propose(store.range(keys.quarantine).kvs, keys, resource, full, value, fleet, limits, turn)
        if proposal.txn is None:
            return Outcome(proposal.held, False, proposal.why)
        try:
            if store.txn(proposal.txn).succeeded:
                return Outcome(True, True)
        except StoreAmbiguous:
            pass  # if it has landed, or lands, the next look or its transaction shows it
        if time.monotonic() >= deadline:
            raise StoreUnavailable("a turn to write to the quarantine list", f"none within {within_s:g} s", "try again")

"""The canary's votes and learned digests in the store: `canary/<fingerprint>/votes/<node>`, `…/learned`, `…/fingerprint`.

Laws:
 - `learned` is created, never rewritten, so of two checks that would teach different digests the store takes one;
 - all that one judgement sees was read at one revision, after the own vote was written: of two nodes that vote at the
   same time at least one sees both votes;
 - a node that agrees with the learned digest reads no votes, and nobody reads more than `MOST_VOTES`: a large fleet
   that starts at once costs the store little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_health.codec import dump, load, rest
from elastic_health.errors import BadValue
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.canary import CHECK, LEAST_NODES, Learned, Vote, is_digest, judge, merged, teach
from elastic_health.preflight.canary_report import Report, by_fingerprint, judge_report, own_votes
from elastic_health.preflight.fingerprint import Fingerprint
from elastic_health.preflight.results import CheckResult, Outcome, not_measured
from elastic_health.rendezvous.keys import FleetKeys, last_segment
from elastic_health.rendezvous.store import Compare, Delete, KeyValue, Put, Store, StoreAmbiguous, StoreError, StoreRefused, Target, Txn

MOST_VOTES = 512
_TRIES = 4
_NOTED = 8
_RIGHTS = "see that the etcd user may write below {} (etcdctl role grant-permission ROLE --prefix=true readwrite …)"


@dataclass(frozen=True)
class Ballot:
    """One node's vote as it is stored: the digest of each of its steady devices."""

    node: str
    devices: Mapping[str, str]
    at: str = ""
    rest: Mapping[str, Any] = rest()


@dataclass(frozen=True)
class Box:
    """What is stored of one fingerprint, at one revision.  `unread`: what could not be read, key by key."""

    votes: tuple[Vote, ...] = ()
    learned: Learned | None = None
    unread: tuple[str, ...] = field(default=())
    revision: int = 0


# ---- reading and writing


def cast(store: Store, keys: FleetKeys, fingerprint: Fingerprint, votes: Sequence[Vote]) -> None:
    """Write this node's vote over its older one, and the fingerprint's fields where nobody has yet.

    Args:
        votes: of one node, at least one.

    Raises:
        StoreError: it could not be written (after a few tries where the answer was lost).
    """
    node, at, segment = votes[0].node, votes[0].at, fingerprint.segment
    mine = Put(keys.canary_vote(segment, node), dump(Ballot(node, {v.device: v.digest for v in votes}, at), at=at, by=node))
    named = Put(keys.canary_fingerprint(segment), dump(fingerprint, at=at, by=node))
    _sent(store, Txn((Compare(named.key, Target.CREATE, 0),), (named, mine), (mine,)))


def withdraw(store: Store, keys: FleetKeys, fingerprint: Fingerprint, node: str) -> None:
    """Take back a node's vote.  Raises as `cast`."""
    _sent(store, Txn((), (Delete(keys.canary_vote(fingerprint.segment, node)),)))


def look(store: Store, keys: FleetKeys, fingerprint: Fingerprint) -> Box:
    """Read what is learned, and at most `MOST_VOTES` votes.  A value that makes no sense counts as absent and is named.

    Raises:
        StoreError: the store can't be read.
    """
    segment = fingerprint.segment
    found = store.range(keys.canary(segment), limit=MOST_VOTES + 2)
    votes, unread, learned = list[Vote](), list[str](), None
    for kv in found.kvs:
        try:
            if kv.key == keys.canary_learned(segment):
                learned = _learned(kv)
            elif kv.key.startswith(keys.canary_votes(segment)):
                votes += _votes(kv)
        except BadValue as e:
            unread.append(str(e))
    return Box(tuple(votes), learned, tuple(unread), found.revision)


def _votes(kv: KeyValue) -> list[Vote]:
    ballot = load(Ballot, kv.value, kv.key)
    for device, digest in ballot.devices.items():
        if not is_digest(digest):
            found = f"{kv.key}.devices.{device[:80]}: {digest[:80]!r}"
            raise BadValue("64 hexadecimal digits", found, "delete this key with etcdctl; its node votes again")
    return [Vote(last_segment(kv.key), device, digest, ballot.at) for device, digest in ballot.devices.items()]


def _learned(kv: KeyValue) -> Learned:
    stored = load(Learned, kv.value, kv.key)
    if not is_digest(stored.digest):
        found = f"{kv.key}.digest: {stored.digest[:80]!r}"
        raise BadValue("64 hexadecimal digits", found, "delete this key with etcdctl; the fleet learns anew")
    return stored


def write_learned(store: Store, keys: FleetKeys, fingerprint: Fingerprint, learned: Learned, *, at: str, by: str) -> bool:
    """Create `learned`; false when it is there already.

    Raises:
        StoreError: as `cast`.
    """
    key = keys.canary_learned(fingerprint.segment)
    return _sent(store, Txn((Compare(key, Target.CREATE, 0),), (Put(key, dump(learned, at=at, by=by)),)))


def _sent(store: Store, txn: Txn) -> bool:
    """Send until answered.  After a lost answer a refusal may be of our own write: it means "there already" all the same."""
    for left in reversed(range(_TRIES)):
        try:
            return store.txn(txn).succeeded
        except StoreAmbiguous:
            if not left:
                raise
    return False


# ---- the check


@dataclass(frozen=True)
class Fleet:
    """Whom one node's canary is compared with.

    Attributes:
        excluded: nodes and devices in quarantine; they are judged, and their votes don't count.
        least: nodes that must have voted.
        wait_s: how long to wait for other nodes' votes while there is no outcome.
    """

    store: Store
    keys: FleetKeys = field(default_factory=FleetKeys)
    excluded: AbstractSet[str] = frozenset()
    least: int = LEAST_NODES
    wait_s: float = 0.0


def check_canary(fleet: Fleet | None, report: Report, node: str, *, at: str) -> CheckResult:
    """The whole check after a measurement: the node's own devices among themselves, then against the fleet.

    Without a store, or with one that doesn't answer, the fleet's part is not measured; the node's own part stands.

    Args:
        at: UTC, ISO 8601.
    """
    local, seconds = judge_report(report, node), round(sum(u.seconds for u in report.units), 3)
    if fleet is None:
        return merged([local, not_measured(CHECK, "no store: compared with no other node's digests")], seconds=seconds)
    own = {key: own_votes(units, node, at) for key, units in by_fingerprint(report.units).items()}
    try:
        for key, votes in own.items():
            if votes:
                cast(fleet.store, fleet.keys, key, votes)
            else:  # what it once said stood for devices that are now in doubt
                withdraw(fleet.store, fleet.keys, key, node)
        return merged([local, *_settled(fleet, own)], seconds=seconds)
    except StoreError as e:
        advice = _RIGHTS.format(f"{fleet.keys.prefix}canary/") if isinstance(e, StoreRefused) else ""
        return merged([local, not_measured(CHECK, f"compared with no other node's digests: {e}", advice=advice)], seconds=seconds)


Own = Mapping[Fingerprint, Sequence[Vote]]


def _settled(fleet: Fleet, own: Own) -> list[CheckResult]:
    """Judge now; and while something lacks votes, again whenever anybody votes, up to `wait_s`."""
    results, revision = _judged(fleet, own)
    if fleet.wait_s <= 0 or not _open(results):
        return list(results.values())
    deadline, changed = time.monotonic() + fleet.wait_s, threading.Event()
    root = fleet.keys.canary_root
    watch = fleet.store.watch(root, revision + 1, lambda batch: changed.set())
    try:
        while _open(results) and changed.wait(max(0.0, deadline - time.monotonic())):
            changed.clear()
            results = {**results, **_judged(fleet, {key: own[key] for key in _open(results)})[0]}
    finally:
        watch.close()
    return list(results.values())


def _open(results: Mapping[Fingerprint, CheckResult]) -> list[Fingerprint]:
    """Those for which more votes may make an outcome."""
    return [key for key, r in results.items() if r.outcome is Outcome.NOT_MEASURED and not r.details.get("majority")]


def _judged(fleet: Fleet, own: Own) -> tuple[dict[Fingerprint, CheckResult], int]:
    """By fingerprint, and the smallest revision at which votes were read."""
    found = {key: judge_stored(fleet, key, votes) for key, votes in own.items() if votes}
    return {key: result for key, (result, _) in found.items()}, min((r for _, r in found.values() if r), default=0)


def judge_stored(fleet: Fleet, fingerprint: Fingerprint, own: Sequence[Vote]) -> tuple[CheckResult, int]:
    """Judge one node's votes by what is stored, and teach where the others' votes suffice; also the revision at which
    votes were read, 0 if they didn't have to be.

    Raises:
        StoreError: the store can't be reached.
    """
    store, keys = fleet.store, fleet.keys
    kv = store.get(keys.canary_learned(fingerprint.segment))
    if kv is not None and _agrees(kv, own):
        return judge((), own, _learned(kv), excluded=fleet.excluded, least=fleet.least), 0
    box = look(store, keys, fingerprint)
    result = judge(box.votes, own, box.learned, excluded=fleet.excluded, least=fleet.least)
    lesson = None if box.learned else teach(box.votes, own[0].node, excluded=fleet.excluded, least=fleet.least)
    if lesson is not None:
        write_learned(store, keys, fingerprint, lesson, at=own[0].at, by=own[0].node)
    unread = tuple(Finding(FindingKind.NOTE, f"counts as absent: {why}", level=Level.NOTE) for why in box.unread[:_NOTED])
    return (replace(result, findings=(*result.findings, *unread)) if unread else result), box.revision


def _agrees(kv: KeyValue, own: Sequence[Vote]) -> bool:
    try:
        learned = _learned(kv).digest
    except BadValue:
        return False
    return all(v.digest == learned for v in own)

"""The canary's votes and learned digests in the store: `canary/<fingerprint>/votes/<node>` and `…/learned`.

Law: `learned` is created, never rewritten, so of two checks that would teach different digests the store takes one.
All that one judgement sees was read at one revision, after the own vote was written: of two nodes that vote at the same
time at least one sees both votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_health.codec import dump, load, rest
from elastic_health.errors import BadValue
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.canary import CHECK, LEAST_NODES, Learned, Vote, is_digest, judge, merged, teach
from elastic_health.preflight.canary_report import Report, Unit, by_fingerprint, judge_report, own_votes
from elastic_health.preflight.fingerprint import Fingerprint
from elastic_health.preflight.results import CheckResult, not_measured
from elastic_health.rendezvous.keys import FleetKeys, last_segment
from elastic_health.rendezvous.store import Compare, Delete, Put, Store, StoreAmbiguous, StoreError, Target, Txn

_TRIES = 4
_NOTED = 8


@dataclass(frozen=True)
class Ballot:
    """One node's vote as it is stored: the digest of each of its steady devices."""

    node: str
    devices: Mapping[str, str]
    fingerprint: Fingerprint | None = None
    at: str = ""
    rest: Mapping[str, Any] = rest()


@dataclass(frozen=True)
class Box:
    """All that is stored of one fingerprint, at one revision.  `unread`: what could not be read, key by key."""

    votes: tuple[Vote, ...] = ()
    learned: Learned | None = None
    unread: tuple[str, ...] = field(default=())


def cast(store: Store, keys: FleetKeys, fingerprint: Fingerprint, votes: Sequence[Vote]) -> None:
    """Write this node's vote over its older one.  `votes`: of one node, at least one.

    Raises:
        StoreError: it could not be written (after a few tries where the answer was lost).
    """
    node, at = votes[0].node, votes[0].at
    ballot = Ballot(node, {v.device: v.digest for v in votes}, fingerprint, at)
    key = keys.canary_vote(fingerprint.segment, node)
    _sent(store, Txn((), (Put(key, dump(ballot, at=at, by=node)),)))


def withdraw(store: Store, keys: FleetKeys, fingerprint: Fingerprint, node: str) -> None:
    """Take back a node's vote.  Raises as `cast`."""
    _sent(store, Txn((), (Delete(keys.canary_vote(fingerprint.segment, node)),)))


def look(store: Store, keys: FleetKeys, fingerprint: Fingerprint) -> Box:
    """Read everything of one fingerprint.  A value that makes no sense counts as absent and is named.

    Raises:
        StoreError: the store can't be read.
    """
    segment = fingerprint.segment
    votes: list[Vote] = []
    unread: list[str] = []
    learned = None
    for kv in store.range(keys.canary(segment)).kvs:
        try:
            if kv.key == keys.canary_learned(segment):
                learned = _learned(kv.value, kv.key)
            elif kv.key.startswith(keys.canary_votes(segment)):
                votes += _votes(kv.value, kv.key)
        except BadValue as e:
            unread.append(str(e))
    return Box(tuple(votes), learned, tuple(unread))


def _votes(raw: bytes, key: str) -> list[Vote]:
    ballot = load(Ballot, raw, key)
    node = last_segment(key)
    for device, digest in ballot.devices.items():
        if not is_digest(digest):
            raise BadValue("64 hexadecimal digits", f"{key}.devices.{device[:80]}: {digest[:80]!r}", "delete this key with etcdctl")
    return [Vote(node, device, digest, ballot.at) for device, digest in ballot.devices.items()]


def _learned(raw: bytes, key: str) -> Learned:
    stored = load(Learned, raw, key)
    if not is_digest(stored.digest):
        raise BadValue(
            "64 hexadecimal digits", f"{key}.digest: {stored.digest[:80]!r}", "delete this key with etcdctl: the fleet learns anew"
        )
    return stored


def write_learned(store: Store, keys: FleetKeys, fingerprint: Fingerprint, learned: Learned, *, at: str, by: str) -> bool:
    """Create `learned`; false when it is there already.

    Raises:
        StoreError: as `cast`.
    """
    key = keys.canary_learned(fingerprint.segment)
    value = dump(replace(learned, fingerprint=fingerprint), at=at, by=by)
    return _sent(store, Txn((Compare(key, Target.CREATE, 0),), (Put(key, value),)))


def _sent(store: Store, txn: Txn) -> bool:
    """Send until answered.  After a lost answer a refusal may be of our own write; the caller reads again anyway."""
    for left in reversed(range(_TRIES)):
        try:
            return store.txn(txn).succeeded
        except StoreAmbiguous:
            if not left:
                raise
    return False


def check_fleet(
    store: Store,
    keys: FleetKeys,
    fingerprint: Fingerprint,
    own: Sequence[Vote],
    *,
    excluded: AbstractSet[str] = frozenset(),
    least: int = LEAST_NODES,
) -> CheckResult:
    """Vote, look, judge; and where the others' votes suffice for it, teach.

    Args:
        own: this node's votes for the fingerprint, as `own_votes` makes them; all of one node.
        excluded: nodes and devices in quarantine.

    Raises:
        StoreError: the store can't be reached.
    """
    if not own:
        return not_measured(CHECK, "no device of this node has a digest to compare")
    me, at = own[0].node, own[0].at
    cast(store, keys, fingerprint, own)
    box = look(store, keys, fingerprint)
    result = judge(box.votes, own, box.learned, excluded=excluded, least=least)
    lesson = None if box.learned else teach(box.votes, me, excluded=excluded, least=least)
    if lesson is not None:
        write_learned(store, keys, fingerprint, lesson, at=at, by=me)
    unread = tuple(Finding(FindingKind.NOTE, f"counts as absent: {why}", level=Level.NOTE) for why in box.unread[:_NOTED])
    return replace(result, findings=(*result.findings, *unread)) if unread else result


def check_canary(
    store: Store | None,
    keys: FleetKeys,
    report: Report,
    node: str,
    *,
    at: str,
    excluded: AbstractSet[str] = frozenset(),
    least: int = LEAST_NODES,
) -> CheckResult:
    """The whole check after a measurement: the node's own devices among themselves, then against the fleet.

    Without a store, or with one that doesn't answer, the fleet's part is not measured; the node's own part stands.

    Args:
        at: UTC, ISO 8601.
    """
    results = [judge_report(report, node)]
    for fingerprint, units in by_fingerprint(report.units).items():
        results.append(_one(store, keys, fingerprint, units, node, at=at, excluded=excluded, least=least))
    return merged(results, seconds=round(sum(u.seconds for u in report.units), 3))


def _one(
    store: Store | None,
    keys: FleetKeys,
    fingerprint: Fingerprint,
    units: Iterable[Unit],
    node: str,
    *,
    at: str,
    excluded: AbstractSet[str],
    least: int,
) -> CheckResult:
    if store is None:
        return not_measured(CHECK, "no store: this node's digests were compared with no other node's")
    own = own_votes(units, node, at)
    try:
        if not own:  # what it once said stood for devices that are now in doubt
            withdraw(store, keys, fingerprint, node)
        return check_fleet(store, keys, fingerprint, own, excluded=excluded, least=least)
    except StoreError as e:
        return not_measured(CHECK, f"the store did not answer, so no other node's digest was seen: {e}")

"""Member lists too long for one key: written in parts before the generation that names them.  Pure.

etcd takes 1.5 MiB in a request, whatever the number of keys in it; so the parts can't go with the generation in one
transaction.  Law: a part is written once, under a name of this attempt alone, and is never changed: a write of a part whose
answer is lost begins a new attempt, and the forming transaction compares that each part was written exactly once.  A part
that no generation names is harmless, and goes with the run.
"""

from __future__ import annotations

from elastic_health.generations import Member, MemberShard
from elastic_health.rendezvous import fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.keys import number
from elastic_health.rendezvous.state import Listing, Purpose

WHOLE_BYTES = 1_000_000
"""Up to so many bytes of members stay in the generation's record; the rest of a forming transaction has 0.5 MB then."""
SHARD_MEMBERS = 1024
"""Of some 250 bytes each, and at most 1.2 kB (a name, an address and a topology of 253 characters each, and more)."""


def shards(d: Draft, members: tuple[Member, ...]) -> tuple[str, ...] | None:
    """Names of the parts once all are written, () for a list that needs none; None while they are being written."""
    if _size_bytes(d, members) <= WHOLE_BYTES:
        return ()
    if not d.can_send(Purpose.SHARD):
        return None
    listing = d.s.listing
    if listing is None or listing.members != members:
        listing = Listing(members, _names(d, len(members)))
        d.set(listing=listing)
    if listing.done == len(listing.names):
        return listing.names
    at, name = listing.done * SHARD_MEMBERS, listing.names[listing.done]
    part = MemberShard(members[at : at + SHARD_MEMBERS])
    d.send(Purpose.SHARD, fence.member_shard(d.s.settings.keys, name, part, d.stamp()), names=(name,))
    return None


def _size_bytes(d: Draft, members: tuple[Member, ...]) -> int:
    """Longer lists by their first thousand; shorter ones are measured whole."""
    some = members[:1000]
    return len(d.stamp().value(MemberShard(some))) * len(members) // max(1, len(some))


def _names(d: Draft, count: int) -> tuple[str, ...]:
    """One a part; every part sent uses up a `next_id`, so no two attempts have the same names."""
    attempt = f"{number(d.s.view.current + 1)}.{'.'.join(d.s.who)}.{d.s.next_id}"
    return tuple(f"{attempt}.{i}" for i in range(-(-count // SHARD_MEMBERS)))

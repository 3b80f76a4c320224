"""Single calls of a session, as what its one loop needs: how to send one, and what has become of one that failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from elastic_health.rendezvous.channels_etcd import Channel, Metadata
from elastic_health.rendezvous.store import Lease
from elastic_health.rendezvous.wire_etcd import MESSAGES

Send = Callable[[Channel, float, Metadata], Any]
"""Sends one request on a channel: (channel, seconds left, metadata) -> response."""


@dataclass(frozen=True)
class Failure:
    """An attempt that brought no answer.  `sent`: the request may have reached etcd; `code`, `text`: gRPC's."""

    channel: Channel
    metadata: Metadata
    sent: bool
    code: str
    text: str


@dataclass(frozen=True)
class MemberStatus:
    """What one member says of itself.  `error` is set, and the rest empty, when it did not answer."""

    endpoint: str
    version: str = ""
    member_id: int = 0
    leader_id: int = 0
    revision: int = 0
    db_size_bytes: int = 0
    db_in_use_bytes: int = 0
    errors: tuple[str, ...] = ()
    error: str | None = None
    quota_bytes: int = 0
    """Told by etcd 3.6 and later; 0: not told."""

    @property
    def is_leader(self) -> bool:
        return self.member_id != 0 and self.member_id == self.leader_id


def sender(method: str, request: Any) -> Send:
    """One unary call."""
    return lambda channel, left_s, metadata: channel.call(method, request, left_s, metadata)


def grant_request(ttl_s: float) -> Any:
    return MESSAGES["LeaseGrantRequest"](TTL=max(1, ceil(ttl_s)), ID=random.SystemRandom().randrange(1, 1 << 62))


def granter(ttl_s: float) -> Send:
    """A lease's grant, with a new id each time."""
    return lambda channel, left_s, metadata: channel.call("LeaseGrant", grant_request(ttl_s), left_s, metadata)


def lease_of(response: Any) -> Lease:
    return Lease(response.ID, float(response.TTL))

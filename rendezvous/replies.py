"""What a failed call means, as a pure function of its gRPC status and text.

Law: `NOT_APPLIED` only where the request surely never reached raft; anything else that could have is `UNKNOWN`.
The texts are those of etcd's public error table (3.4 to 3.6) and of gRPC's own channel errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from elastic_health.rendezvous.store import LeaseGone, NotEtcd, RequestTooLarge, StoreError, StoreFull, StoreRefused


class Reply(Enum):
    """What came back instead of a result."""

    NOT_APPLIED = "not applied"  # never sent, or refused before raft; may be sent again, elsewhere first
    UNKNOWN = "unknown"  # sent, and no answer; may have been applied, or may still be
    TOKEN_STALE = "token stale"  # refused before raft; log in again, send again
    REFUSED = "refused"  # user, password or permission
    FULL = "full"
    TOO_LARGE = "too large"
    LEASE_GONE = "lease gone"
    AUTH_OFF = "auth off"  # the server has no users; go on without a token
    NOT_ETCD = "not etcd"
    COMPACTED = "compacted"
    BAD_REQUEST = "bad request"  # a mistake of ours


PERMISSION_DENIED = "permission denied"
"""Logged in, but the user's roles don't cover the key."""
# (text in lower case, meaning); the first that occurs in the details decides
_TEXTS: tuple[tuple[str, Reply], ...] = (
    ("invalid auth token", Reply.TOKEN_STALE),
    ("revision of auth store is old", Reply.TOKEN_STALE),
    ("authentication is not enabled", Reply.AUTH_OFF),
    ("authentication failed", Reply.REFUSED),
    ("user name is empty", Reply.REFUSED),
    (PERMISSION_DENIED, Reply.REFUSED),
    ("permission is not granted", Reply.REFUSED),
    ("user name not found", Reply.REFUSED),
    ("database space exceeded", Reply.FULL),
    ("request is too large", Reply.TOO_LARGE),
    ("too many operations", Reply.TOO_LARGE),
    ("message larger than max", Reply.TOO_LARGE),
    ("requested lease not found", Reply.LEASE_GONE),
    ("has been compacted", Reply.COMPACTED),
    ("etcdserver: no leader", Reply.NOT_APPLIED),
    ("too many requests", Reply.NOT_APPLIED),
    ("rpc not supported for learner", Reply.NOT_APPLIED),
    ("unhealthy cluster", Reply.NOT_APPLIED),
    ("failed to connect to all addresses", Reply.NOT_APPLIED),
    ("connections to all backends failing", Reply.NOT_APPLIED),
    ("name resolution", Reply.NOT_APPLIED),
    ("dns resolution failed", Reply.NOT_APPLIED),
    ("empty address list", Reply.NOT_APPLIED),
    ("cannot invoke rpc on closed channel", Reply.NOT_APPLIED),
)
_CODES: Mapping[str, Reply] = {
    "UNIMPLEMENTED": Reply.NOT_ETCD,
    "UNAUTHENTICATED": Reply.TOKEN_STALE,
    "PERMISSION_DENIED": Reply.REFUSED,
    "INVALID_ARGUMENT": Reply.BAD_REQUEST,
    "OUT_OF_RANGE": Reply.BAD_REQUEST,
    "FAILED_PRECONDITION": Reply.BAD_REQUEST,
}


def meaning(code: str, details: str) -> Reply:
    """Classify one failed call.

    Args:
        code: name of the gRPC status code.
        details: its text, as the server or the channel wrote it.
    """
    text = details.lower()
    for part, reply in _TEXTS:
        if part in text:
            return reply
    if "received http2 header with status" in text:
        return Reply.NOT_ETCD
    return _CODES.get(code, Reply.UNKNOWN)


def _refused(text: str, found: str) -> StoreRefused:
    if PERMISSION_DENIED in text:
        return StoreRefused("a user with rights to this key", found, "check user and role: grant the role rights to the key prefix")
    if "user name is empty" in text:
        return StoreRefused("a login, since etcd has users", found, "check user: set store.user and store.password_file in the YAML")
    return StoreRefused("a user and password that etcd accepts", found, "check user and password (store.user, store.password_file)")


def refusal(reply: Reply, text: str, address: str) -> StoreError:
    """The error for a definite refusal."""
    found = f"{text} at {address}"
    if reply is Reply.FULL:
        return StoreFull("etcd within its space quota", found, "compact and defragment it, then disarm its alarm")
    if reply is Reply.TOO_LARGE:
        return RequestTooLarge("a request within etcd's limits", found, "split it over several keys")
    if reply is Reply.LEASE_GONE:
        return LeaseGone("a living lease", found, "take a new one; its keys are gone")
    if reply is Reply.NOT_ETCD:
        return NotEtcd("etcd v3", found, "check host and port of --rdzv-endpoint")
    if reply in (Reply.REFUSED, Reply.TOKEN_STALE):
        return _refused(text.lower(), found)
    return StoreError("a request that etcd accepts", found, "this is a bug; please report it")

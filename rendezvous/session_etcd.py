"""A session with etcd v3 over gRPC: the real implementation of `Store`.

Law: a write is sent again only when it surely was not applied: it never left (`channels_etcd`'s proven channels), or
etcd refused it before raft (`replies.meaning`).  Any other lost answer is `StoreAmbiguous` and the caller's to settle.
Reads and lease renewals are repeated, on the next endpoint, until their deadline.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.calls_etcd import Failure, MemberStatus, Send, grant_request, granter, lease_of, sender
from elastic_health.rendezvous.channels_etcd import CallFailed, Channel, Channels, Metadata
from elastic_health.rendezvous.endpoints import TlsFiles, parse_endpoints
from elastic_health.rendezvous.probe_net import find_member
from elastic_health.rendezvous.replies import PERMISSION_DENIED, Reply, meaning, refusal
from elastic_health.rendezvous.store import (
    KeyValue,
    Lease,
    LeaseGone,
    RangeResult,
    StoreAmbiguous,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Txn,
    TxnResult,
    WatchBatch,
)
from elastic_health.rendezvous.token_etcd import Password, Token
from elastic_health.rendezvous.txn_rules import check_txn, writes
from elastic_health.rendezvous.watch_etcd import EtcdWatch, Part, WatchPace
from elastic_health.rendezvous.wire_etcd import MESSAGES, encode_key, key_value, span, span_after, txn_message, txn_result

DEFAULT_TIMEOUT_S = 5.0
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
_TXN_THREADS = 4
_HAS_LEADER = ("hasleader", "true")
T = TypeVar("T")


class EtcdSession:
    """A `Store` on etcd.  Make one with `connect`."""

    def __init__(self, channels: Channels, token: Token, timeout_s: float, pace: WatchPace) -> None:
        self._channels, self._token, self._timeout_s, self._pace = channels, token, timeout_s, pace
        self._closed = False
        self._begin()
        _SESSIONS.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._watches: weakref.WeakSet[EtcdWatch] = weakref.WeakSet()
        # renewals have a thread of their own: they must not queue behind slow transactions
        self._txn_pool = ThreadPoolExecutor(_TXN_THREADS, thread_name_prefix="etcd-txn")
        self._renew_pool = ThreadPoolExecutor(1, thread_name_prefix="etcd-renew")

    @classmethod
    def connect(
        cls,
        endpoints: str | Sequence[str],
        *,
        tls: TlsFiles | None = None,
        user: str | None = None,
        password: Password = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        calls_s: float | None = None,
        first: int | None = None,
        pace: WatchPace | None = None,
    ) -> EtcdSession:
        """Connect, log in, and see that an etcd v3 answers.

        Args:
            endpoints: as `endpoints.parse_endpoints` reads them.
            tls: PEM files; None with an `https://` endpoint means the system's authorities.
            password: or a function that reads it, asked at each login: a changed password is taken up.
            timeout_s: bound of this call, and the default deadline of later ones, where `calls_s` isn't given.
            first: index of the endpoint to begin with; None draws one, so that many agents spread over the members.
            pace: how quickly a watch notices silence.

        Raises:
            ConfigError: an endpoint or TLS file is unusable.
            StoreUnavailable, NotEtcd, StoreRefused.
        """
        parsed = parse_endpoints(endpoints)
        if tls is not None and parsed[0].tls is False:
            raise ConfigError("https:// endpoints with TLS files", f"http:// endpoints {endpoints!r}", "write https://, or no scheme")
        if tls is None and parsed[0].tls:
            tls = TlsFiles()
        token = Token(user, password)
        if token.has_password and user is None:
            raise ConfigError("a user with the password", "a password alone", "give the user's name too")
        deadline = time.monotonic() + timeout_s
        start = random.SystemRandom().randrange(len(parsed)) if first is None else first
        channels = Channels(parsed, tls, start)
        channels.prefer(find_member((*parsed[start:], *parsed[:start]), tls, deadline))
        session = cls(channels, token, calls_s or timeout_s, pace or WatchPace())
        try:
            session._first_read(deadline)
        except BaseException:
            session.close()
            raise
        return session

    def _first_read(self, deadline: float) -> None:
        request = MESSAGES["RangeRequest"](key=b"elastic-health-first-contact", count_only=True)
        try:
            self._ask(sender("Range", request), write=False, timeout_s=deadline - time.monotonic())
        except StoreRefused as refused:
            if PERMISSION_DENIED not in refused.found:  # logged in, merely not allowed that key
                raise

    # --- the one loop through which every call goes ---

    def _ask(self, send: Send, *, write: bool, timeout_s: float | None, failed: Failure | None = None) -> Any:
        """Send until answered, refused, ambiguous, or out of time.  `failed`: what has become of a first attempt, made elsewhere."""
        allowed_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + allowed_s
        pause_s, logins, last = _PAUSE_S, 0, "no time left to send anything"
        while failed is not None or ((left := deadline - time.monotonic()) > 0 and not self._closed):
            if failed is None:
                channel, sent = self._channels.current(), False
                metadata: Metadata = ()
                try:
                    metadata = self.metadata(left)
                    if write and not channel.proven:
                        self._prove(channel, left, metadata)
                    sent, left = True, max(0.001, deadline - time.monotonic())
                    return send(channel, left if write else self._share(left), metadata)
                except grpc.RpcError as error:
                    failed = Failure(channel, metadata, sent, error.code().name, error.details() or error.code().name)
            was, failed = failed, None
            channel, last, reply = was.channel, was.text, meaning(was.code, was.text)
            if write and was.sent and reply is Reply.UNKNOWN:
                self._move_on(channel, hung=was.code == "DEADLINE_EXCEEDED")
                found = f"{last} at {channel.endpoint.address}"
                raise StoreAmbiguous("etcd's answer to a write", found, "read what the key holds, or send it again")
            if self._token.may_renew(reply, last) and logins < 3:
                logins += 1
                self._token.forget(was.metadata)
                continue
            elsewhere = reply is Reply.NOT_ETCD and len(self._channels.endpoints) > 1
            if not elsewhere and reply not in (Reply.NOT_APPLIED, Reply.UNKNOWN):
                raise refusal(reply, last, channel.endpoint.address)
            self._move_on(channel, hung=was.code == "DEADLINE_EXCEEDED")
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)
        names = ",".join(e.address for e in self._channels.endpoints)
        raise StoreUnavailable(f"an answer of etcd at {names} within {allowed_s:g} s", last, "check the endpoint, the network and etcd")

    def _share(self, left_s: float) -> float:
        """One attempt's part of a read's time: with other endpoints to try, a frozen member gets half."""
        return left_s if len(self._channels.endpoints) == 1 else max(left_s / 2, min(left_s, 0.2))

    def _prove(self, channel: Channel, left_s: float, metadata: Metadata) -> None:
        """Get any answer from this channel, so that a write that follows was sent for sure."""
        try:
            channel.call("Status", MESSAGES["StatusRequest"](), self._share(left_s), metadata)
        except grpc.RpcError as error:
            if meaning(error.code().name, error.details() or "") in (Reply.NOT_APPLIED, Reply.UNKNOWN):
                raise
            channel.proven = True

    def _move_on(self, channel: Channel, *, hung: bool) -> None:
        self._channels.failed(channel, hung=hung)
        for watch in list(self._watches):
            watch.suspect(channel)

    # --- what a watch needs of its session (`watch_etcd.WatchSource`) ---

    def metadata(self, timeout_s: float) -> Metadata:
        """Call metadata: a valid token, and the wish to be refused at once by a member that has no leader.

        Raises:
            grpc.RpcError: logging in failed.
        """
        return (_HAS_LEADER, *self._token.metadata(self._channels.current(), timeout_s))

    def current(self) -> Channel:
        return self._channels.current()

    def failed(self, channel: Channel) -> None:
        self._channels.failed(channel)

    def forget_token(self, metadata: Metadata) -> None:
        self._token.forget(metadata)

    # --- Store ---

    def get(self, key: str, *, timeout_s: float | None = None) -> KeyValue | None:
        response = self._range(span(key, False), timeout_s)
        return key_value(response.kvs[0]) if response.kvs else None

    def range(self, prefix: str, *, after: str = "", limit: int = 0, timeout_s: float | None = None) -> RangeResult:
        response = self._range(span_after(prefix, after), timeout_s, limit)
        return RangeResult(response.header.revision, tuple(key_value(kv) for kv in response.kvs), response.count)

    def _range(self, keys: dict[str, bytes], timeout_s: float | None, limit: int = 0) -> Any:
        request = MESSAGES["RangeRequest"](**keys, limit=limit)
        return self._ask(sender("Range", request), write=False, timeout_s=timeout_s)

    def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        check_txn(txn)
        return txn_result(self._ask(sender("Txn", txn_message(txn)), write=writes(txn), timeout_s=timeout_s))

    def txn_async(self, txn: Txn, done: Callable[[TxnResult | StoreError], None], *, timeout_s: float | None = None) -> None:
        """Like `txn`; `done` gets what `txn` would return or raise, on any thread, and must not wait.  Not ordered among each
        other.  The first attempt waits in no thread of ours; what follows if it fails has one, and the time spent waiting for it
        counts."""
        try:
            check_txn(txn)
        except StoreError as error:
            return done(error)
        request = txn_message(txn)
        self._at_once("Txn", request, sender("Txn", request), txn_result, done, write=writes(txn), timeout_s=timeout_s)

    def grant(self, ttl_s: float, *, timeout_s: float | None = None) -> Lease:
        """A new lease.  Repeated with a new id if its answer is lost: a lease that nobody knows simply ends."""
        return lease_of(self._ask(granter(ttl_s), write=False, timeout_s=timeout_s))

    def grant_async(self, ttl_s: float, done: Callable[[Lease | StoreError], None], *, timeout_s: float | None = None) -> None:
        self._at_once("LeaseGrant", grant_request(ttl_s), granter(ttl_s), lease_of, done, write=False, timeout_s=timeout_s)

    def renew(self, lease_id: int, *, timeout_s: float | None = None) -> float:
        request = MESSAGES["LeaseKeepAliveRequest"](ID=lease_id)

        def send(channel: Channel, left_s: float, metadata: Metadata) -> Any:
            call = channel.stream("LeaseKeepAlive", iter([request]), left_s, metadata)
            for response in call:
                channel.proven = True
                call.cancel()
                return response
            raise CallFailed("the stream ended without an answer")

        response = self._ask(send, write=False, timeout_s=timeout_s)
        if response.TTL <= 0:
            raise LeaseGone("a living lease", f"lease {lease_id:x} has ended", "take a new one; its keys are gone")
        return float(response.TTL)

    def renew_async(self, lease_id: int, done: Callable[[float | StoreError], None], *, timeout_s: float | None = None) -> None:
        self._later(self._renew_pool, lambda left: self.renew(lease_id, timeout_s=left), done, timeout_s)

    def revoke(self, lease_id: int, *, timeout_s: float | None = None) -> None:
        """End a lease and delete its keys; one that has already ended is fine."""
        request = MESSAGES["LeaseRevokeRequest"](ID=lease_id)
        try:
            self._ask(sender("LeaseRevoke", request), write=False, timeout_s=timeout_s)
        except LeaseGone:
            return

    def watch(
        self,
        prefix: str,
        from_revision: int,
        on_batch: Callable[[WatchBatch], None],
        on_trouble: Callable[[StoreError | None], None] | None = None,
        *,
        after: str = "",
        deletions: bool = False,
    ) -> EtcdWatch:
        watch = EtcdWatch(self, Part(prefix, after, deletions), from_revision, on_batch, on_trouble, self._pace)
        with self._lock:
            self._watches.add(watch)
        watch.start()
        return watch

    def status(self, *, timeout_s: float = 2.0) -> tuple[MemberStatus, ...]:
        """Ask each endpoint for itself; never raises for one that does not answer."""
        return tuple(self._member(i, timeout_s) for i in range(len(self._channels.endpoints)))

    def _member(self, index: int, timeout_s: float) -> MemberStatus:
        channel = self._channels.of(index)
        name = channel.endpoint.address
        try:
            r = channel.call("Status", MESSAGES["StatusRequest"](), timeout_s, self._token.metadata(channel, timeout_s))
        except grpc.RpcError as error:
            return MemberStatus(name, error=error.details() or error.code().name)
        return MemberStatus(
            name, r.version, r.header.member_id, r.leader, r.header.revision, r.dbSize, r.dbSizeInUse, tuple(r.errors), None, r.dbSizeQuota
        )

    def member_names(self, *, timeout_s: float | None = None) -> dict[int, str]:
        """Member id -> its name ("" for one that has never started), of the whole cluster, learners left out."""
        request = MESSAGES["MemberListRequest"]()
        response = self._ask(lambda c, left, md: c.call("MemberList", request, left, md), write=False, timeout_s=timeout_s)
        return {m.ID: m.name for m in response.members if not m.isLearner}

    def keeps(self, revision: int, key: str, *, timeout_s: float | None = None) -> bool:
        """Can `key`'s state at `revision` still be read, or has it been compacted away?"""
        request = MESSAGES["RangeRequest"](key=encode_key(key), revision=revision, count_only=True)
        try:
            self._ask(sender("Range", request), write=False, timeout_s=timeout_s)
        except StoreError as e:
            if "has been compacted" in e.found:
                return False
            raise
        return True

    @property
    def logged_in(self) -> bool:
        """Has etcd taken this session's user?  Not if it has no users, or none was given."""
        return self._token.given

    def close(self) -> None:
        """End watches, threads and connections; calls still waiting end with StoreUnavailable.  Leases are left alone."""
        self._closed = True
        for watch in list(self._watches):
            watch.close()
        for pool in (self._txn_pool, self._renew_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._channels.close()

    def _at_once(
        self,
        method: str,
        request: Any,
        send: Send,
        read: Callable[[Any], T],
        done: Callable[[T | StoreError], None],
        *,
        write: bool,
        timeout_s: float | None,
    ) -> None:
        """A first attempt by gRPC's own thread; if it fails, or can't be made, the rest by `_ask` on a thread of the session."""
        allowed_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + allowed_s

        def again(failed: Failure | None) -> None:
            def ask(left_s: float) -> T:
                return read(self._ask(send, write=write, timeout_s=left_s, failed=failed))

            self._later(self._txn_pool, ask, done, deadline - time.monotonic(), failed is not None)

        def begin() -> None:
            channel, token = self._channels.current(), self._token.held()
            if self._closed or token is None or (write and not channel.proven):
                return again(None)
            metadata = (_HAS_LEADER, *token)
            try:
                call = channel.begin(method, request, allowed_s if write else self._share(allowed_s), metadata)
            except CallFailed as error:
                return again(Failure(channel, metadata, False, error.code().name, error.details()))

            def finish(call: Any) -> None:
                if call.code() is grpc.StatusCode.OK:
                    channel.proven = True
                    done(read(call.result()))
                else:
                    again(Failure(channel, metadata, True, call.code().name, call.details() or call.code().name))

            call.add_done_callback(finish)

        if threading.current_thread() is not threading.main_thread():
            return begin()
        # The exception of a signal strikes in the main thread, wherever that is: not inside gRPC, which might never end then.
        try:
            asked = self._txn_pool.submit(begin)
        except RuntimeError:  # it was shut down
            return done(_closed_error())
        asked.add_done_callback(lambda future: done(_closed_error()) if future.cancelled() else None)

    def _later(
        self,
        pool: ThreadPoolExecutor,
        call: Callable[[float], T],
        done: Callable[[T | StoreError], None],
        timeout_s: float | None,
        begun: bool = False,
    ) -> None:
        """`begun`: something was sent already, whose fate only `call` can tell; after `close` it sends nothing more."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

        def run() -> T | StoreError:
            try:
                return call(deadline - time.monotonic())
            except StoreError as error:
                return error

        def finish(future: Future[T | StoreError]) -> None:
            done((run() if begun else _closed_error()) if future.cancelled() else future.result())

        try:
            future = pool.submit(run)
        except RuntimeError:  # the pool's only refusal: it was shut down
            return done(run() if begun else _closed_error())
        future.add_done_callback(finish)

    def _after_fork(self) -> None:
        self._channels.reset()
        self._token.reset()
        self._begin()


def _closed_error() -> StoreError:
    return StoreUnavailable("an open session", "it was closed", "open another")


_SESSIONS: weakref.WeakSet[EtcdSession] = weakref.WeakSet()


def _renew_sessions() -> None:
    for session in list(_SESSIONS):
        session._after_fork()


os.register_at_fork(after_in_child=_renew_sessions)

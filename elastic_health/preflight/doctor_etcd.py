"""Looks at an etcd for `doctor`.  It writes nothing; every question has a time limit."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_health.config.load_os import read_password, tls_files
from elastic_health.config.model import StoreSection
from elastic_health.errors import ConfigError, HealthError
from elastic_health.preflight.doctor_facts import EtcdFacts, MemberFacts, Trouble
from elastic_health.rendezvous.endpoints import Endpoint, TlsFiles, parse_endpoints
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.probe_net import tls_context
from elastic_health.rendezvous.quarantine import concerning, read
from elastic_health.rendezvous.rights import explained
from elastic_health.rendezvous.rights_etcd import check_rights
from elastic_health.rendezvous.session_etcd import EtcdSession, MemberStatus
from elastic_health.rendezvous.store import StoreError, StoreRefused

READS = 9
_CALL_S = 2.0
_METRICS_BYTES = 1 << 20
_QUOTA = re.compile(rb"^etcd_server_quota_backend_bytes\s+([0-9.eE+]+)\s*$", re.M)
RUN = "doctor"
"""Rights are asked for below this run, where nothing is ever written."""


@dataclass(frozen=True)
class Own:
    """This node, as quarantine spells it: name, GPU uuids, NICs."""

    node: str
    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()


def look_at_etcd(endpoint: str, store: StoreSection, prefix: str, own: Own, environ: Mapping[str, str]) -> EtcdFacts | Trouble:
    """Connect as an agent would, and look around."""
    try:
        tls = tls_files(store)
        endpoints = parse_endpoints(endpoint)
        session = EtcdSession.connect(
            endpoint,
            tls=tls,
            user=store.user,
            password=read_password(store, environ),
            timeout_s=min(store.timeout_s, 2 * _CALL_S),
            calls_s=_CALL_S,
        )
    except HealthError as e:
        return Trouble(e.found, e.do)
    try:
        return _look(session, endpoints, tls or (TlsFiles() if endpoints[0].tls else None), FleetKeys(prefix), store.user or "", own)
    except StoreError as e:
        return Trouble(f"it answered, and then no more: {e.found}", e.do)
    finally:
        session.close()


def _look(
    session: EtcdSession, endpoints: tuple[Endpoint, ...], tls: TlsFiles | None, keys: FleetKeys, user: str, own: Own
) -> EtcdFacts | Trouble:
    rights, entries = None, None
    try:
        check_rights(session, RunKeys(RUN, keys.prefix))
        entries, _ = read(session.range(keys.quarantine).kvs, keys)
    except StoreRefused as e:
        told = explained(e, RunKeys(RUN, keys.prefix))
        rights = Trouble(told.found, told.do)
    reads, probe = list[float](), keys.quarantine
    if rights is None:
        for _ in range(READS):
            sent = time.monotonic()
            session.get(probe)
            reads.append(time.monotonic() - sent)
    status = session.status(timeout_s=_CALL_S)
    pages = {e.address: _metrics(e, tls) for e in endpoints}
    cluster = None
    with contextlib.suppress(StoreError):
        cluster = tuple(sorted(session.member_names().items()))
    revision = max((s.revision for s in status), default=0)
    mine = concerning(entries, own.node, own.gpus, own.nics, time.time()) if entries is not None else ()
    return EtcdFacts(
        members=tuple(_member(s, pages.get(s.endpoint, (0, None))[0]) for s in status),
        cluster=cluster,
        reads_s=tuple(reads),
        revision=revision,
        oldest=_oldest(session, revision, probe) if rights is None else None,
        user=user,
        logged_in=session.logged_in,
        rights=rights,
        quarantine=tuple((str(e.resource), e.said.reason) for e in mine),
        clock_s=next((ahead for _, ahead in pages.values() if ahead is not None), None),
    )


def _member(s: MemberStatus, quota: int) -> MemberFacts:
    if s.error:
        return MemberFacts(s.endpoint, error=s.error)
    sizes = (s.db_size_bytes, s.db_in_use_bytes, s.quota_bytes or quota)
    return MemberFacts(s.endpoint, s.version, s.member_id, s.leader_id, *sizes, alarms=s.errors)


def _oldest(session: EtcdSession, revision: int, key: str) -> int | None:
    """The oldest revision that can still be read, by halving: some 20 to 40 quick reads, each of one absent key.

    None: out of time, or etcd didn't say.
    """
    low, high, deadline = 1, revision, time.monotonic() + _CALL_S
    try:
        while low < high and time.monotonic() < deadline:
            middle = (low + high) // 2
            if session.keeps(middle, key):
                high = middle
            else:
                low = middle + 1
    except StoreError:
        return None
    return low if low == high else None


def _metrics(endpoint: Endpoint, tls: TlsFiles | None) -> tuple[int, float | None]:
    """The quota in bytes (0: not told), and how far this clock is ahead of etcd's in seconds, from its HTTP side.

    That side needs no user; it is closed where etcd has --listen-client-http-urls or --listen-metrics-urls elsewhere.
    """
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=_CALL_S)
    try:
        connection.connect()
        if tls is not None:
            context = tls_context(tls)
            context.set_alpn_protocols(["http/1.1"])
            connection.sock = context.wrap_socket(connection.sock, server_hostname=tls.server_name or endpoint.host)
        sent = time.time()
        connection.request("GET", "/metrics", headers={"Connection": "close"})
        reply = connection.getresponse()
        got = time.time()
        quota = _QUOTA.search(reply.read(_METRICS_BYTES)) if reply.status == http.client.OK else None
        return (int(float(quota[1])) if quota else 0), _ahead(reply.getheader("Date"), sent, got)
    except (OSError, ssl.SSLError, ValueError, OverflowError, http.client.HTTPException, ConfigError):
        return 0, None
    finally:
        connection.close()


def _ahead(date: str | None, sent: float, got: float) -> float | None:
    """`date` has whole seconds, cut off: etcd's clock was within [date, date + 1] at some time between `sent` and `got`."""
    if not date:
        return None
    try:
        theirs = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None
    if sent > theirs + 1:
        return sent - theirs - 1
    return min(0.0, got - theirs)

"""Asks etcd's HTTP endpoint for the time: the `Date` of its answer to GET /version, which needs no user and no quorum."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Iterable

from elastic_health.preflight.clock import ClockSample, from_date
from elastic_health.rendezvous.endpoints import TlsFiles, parse_endpoints

PATH = "/version"
TIMEOUT_S = 1.0


def store_clock(endpoints: str, tls: TlsFiles | None) -> Callable[[], tuple[ClockSample, ...]]:
    """What looks at the clock of a store that is spelled as in --rdzv-endpoint; its look is empty where nobody tells the time.

    Raises:
        ConfigError: an endpoint is malformed.
    """
    parsed = parse_endpoints(endpoints)
    files = tls if tls is not None else TlsFiles() if parsed[0].tls else None

    def look() -> tuple[ClockSample, ...]:
        try:
            context = _context(files) if files is not None else None
        except (OSError, ssl.SSLError):
            return ()
        return ask_clock([(e.host, e.port) for e in parsed], context, (files.server_name if files else None) or "")

    return look


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def ask_clock(
    endpoints: Iterable[tuple[str, int]], tls: ssl.SSLContext | None = None, server_name: str = "", timeout_s: float = TIMEOUT_S
) -> tuple[ClockSample, ...]:
    """One sample, of the first endpoint that answers; none if no one does.

    Args:
        endpoints: (host, port) of etcd's client URLs.
        tls: as for gRPC, where they are https.
        server_name: to expect in the certificate, "" for the endpoint's host.
        timeout_s: for each endpoint.
    """
    for host, port in endpoints:
        sample = _ask(host, port, tls, server_name or host, timeout_s)
        if sample is not None:
            return (sample,)
    return ()


def _ask(host: str, port: int, tls: ssl.SSLContext | None, name: str, timeout_s: float) -> ClockSample | None:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.connect()
        if tls is not None:
            connection.sock = tls.wrap_socket(connection.sock, server_hostname=name)
        sent = time.time()  # the clocks are compared at the question, not at the handshake
        connection.request("GET", PATH, headers={"Connection": "close"})
        header = connection.getresponse().getheader("Date", "")
        return from_date(sent, time.time(), header or "")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()

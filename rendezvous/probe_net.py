"""A look at what listens behind an endpoint, before gRPC is asked: gRPC's own errors can't tell a web server,
a refused certificate and a dead port apart.

It connects, sends the fixed opening of HTTP/2 and looks at the first bytes that come back, nothing more.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from enum import Enum

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.endpoints import Endpoint, TlsFiles
from elastic_health.rendezvous.store import NotEtcd, StoreError, StoreRefused, StoreUnavailable

_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # connection preface and an empty SETTINGS frame
_SETTINGS_TYPE = 4


class Listener(Enum):
    """What answered."""

    HTTP2 = "speaks HTTP/2"
    NOBODY = "refuses connections or can't be reached"
    SILENT = "accepts connections and says nothing"
    OTHER = "speaks something else"
    TLS_REFUSED = "refuses TLS"


@dataclass(frozen=True)
class Probe:
    """`detail` is for people."""

    listener: Listener
    detail: str = ""


def tls_context(tls: TlsFiles) -> ssl.SSLContext:
    """A client context for these files.

    Raises:
        ConfigError: a file is missing or no PEM file.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(n for n in (tls.ca, tls.certificate, tls.key) if n)
        do = "check the paths and that key and certificate match"
        raise ConfigError("readable PEM files for TLS", f"{error} ({names})", do) from error
    context.set_alpn_protocols(["h2"])
    return context


def probe(endpoint: Endpoint, tls: TlsFiles | None, timeout_s: float) -> Probe:
    """Look once; takes at most about twice `timeout_s`.

    Raises:
        ConfigError: a TLS file is unusable.
    """
    context = tls_context(tls) if tls is not None else None
    try:
        raw = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
    except OSError as error:
        return Probe(Listener.NOBODY, str(error))
    with raw:
        try:
            return _converse(raw, context, tls, endpoint.host)
        except TimeoutError:
            return Probe(Listener.SILENT, f"no byte within {timeout_s:g} s")
        except ssl.SSLCertVerificationError as error:
            return Probe(Listener.TLS_REFUSED, f"the server's certificate does not hold: {error.verify_message}")
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError) or error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                return Probe(Listener.OTHER, f"closed the connection{_tls_hint(tls)}")
            return Probe(Listener.TLS_REFUSED, f"TLS ended with {error.reason or error}; a client certificate may be required")
        except OSError as error:
            return Probe(Listener.OTHER, f"closed the connection ({error}){_tls_hint(tls)}")


def _tls_hint(tls: TlsFiles | None) -> str:
    if tls is None:
        return "; if it wants TLS, write https:// and give its CA file"
    return "; if it speaks no TLS, leave https:// and the TLS files out"


def _converse(raw: socket.socket, context: ssl.SSLContext | None, tls: TlsFiles | None, host: str) -> Probe:
    name = (tls.server_name if tls else None) or host
    stream: socket.socket = raw if context is None else context.wrap_socket(raw, server_hostname=name)
    stream.sendall(_OPENING)
    first = b""
    while len(first) < 4:
        piece = stream.recv(64)
        if not piece:
            hint = "closed the connection" if not first else f"said {first[:16]!r}"
            return Probe(Listener.OTHER, hint + _tls_hint(tls))
        first += piece
    if first[3] == _SETTINGS_TYPE and not first.startswith(b"HTTP"):
        return Probe(Listener.HTTP2)
    return Probe(Listener.OTHER, f"said {first[:16]!r}")


def find_member(endpoints: tuple[Endpoint, ...], tls: TlsFiles | None, deadline: float) -> Endpoint:
    """The first endpoint that speaks HTTP/2; asks again until `deadline` (monotonic) as long as waiting may help.

    Raises:
        ConfigError: a TLS file is unusable.
        StoreRefused: TLS was refused.
        NotEtcd: what listens speaks something else, or never speaks.
        StoreUnavailable: nobody listens.
    """
    pause_s = 0.1
    while True:
        seen: list[tuple[Endpoint, Probe]] = []
        for endpoint in endpoints:
            share_s = max(0.1, (deadline - time.monotonic()) / len(endpoints))
            seen.append((endpoint, probe(endpoint, tls, min(1.0, share_s))))
            if seen[-1][1].listener is Listener.HTTP2:
                return endpoint
        hopeless = all(p.listener in (Listener.OTHER, Listener.TLS_REFUSED) for _, p in seen)
        if hopeless or time.monotonic() + pause_s >= deadline:
            raise _no_member(seen)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)


def _no_member(seen: list[tuple[Endpoint, Probe]]) -> StoreError:
    found = "; ".join(f"{e.address} {p.listener.value}{f' ({p.detail})' if p.detail else ''}" for e, p in seen)
    kinds = {p.listener for _, p in seen}
    if Listener.TLS_REFUSED in kinds:
        return StoreRefused("a TLS connection to etcd", found, "check CA, client certificate and server name")
    if kinds & {Listener.OTHER, Listener.SILENT}:
        return NotEtcd("etcd v3", found, "check host and port of --rdzv-endpoint (a frozen etcd is silent, too)")
    return StoreUnavailable("etcd at --rdzv-endpoint", found, "start etcd, or correct the endpoint")

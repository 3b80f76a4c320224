"""A look at what listens behind an endpoint, before gRPC is asked: gRPC's own errors can't tell a web server,
a refused certificate and a dead port apart.

It connects, sends the fixed opening of HTTP/2 and looks at the first bytes that come back, nothing more.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.endpoints import Endpoint, TlsFiles
from elastic_health.rendezvous.store import NameUnknown, NotEtcd, StoreError, StoreRefused, StoreSilent, StoreUnavailable

_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # connection preface and an empty SETTINGS frame
_SETTINGS_TYPE = 4


class Listener(Enum):
    """What answered."""

    HTTP2 = "speaks HTTP/2"
    NOBODY = "refuses connections or can't be reached"
    SILENT = "accepts connections and says nothing"
    OTHER = "speaks something else"
    TLS_REFUSED = "refuses TLS"
    UNKNOWN_NAME = "has a name that this host can't resolve"


@dataclass(frozen=True)
class Probe:
    """`detail` and `do` (what may help) are for people."""

    listener: Listener
    detail: str = ""
    do: str = ""


_CHECK_TLS = "check CA, client certificate and server name (store.tls)"
_VERIFY_DO: Mapping[int, str] = {
    9: "check this machine's clock, or wait until the certificate is valid",
    10: "renew etcd's certificate or its CA, and check this machine's clock",
    **dict.fromkeys((18, 19, 20, 21), "give the CA that signed etcd's certificate in store.tls.ca"),
    **dict.fromkeys((62, 64), "write a name that the certificate holds into --rdzv-endpoint, or into store.tls.server_name"),
}
"""By OpenSSL's X509_V_ERR_* numbers: not yet valid, expired, issuer unknown or self-signed, host or address mismatch."""


def tls_context(tls: TlsFiles) -> ssl.SSLContext:
    """A client context for these files.

    Raises:
        ConfigError: a file is missing or no PEM file.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            # An empty password: an encrypted key is an error then, and not a prompt that nobody answers.
            context.load_cert_chain(tls.certificate, tls.key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        names = ", ".join(n for n in (tls.ca, tls.certificate, tls.key) if n)
        do = "check the paths, that key and certificate match, and that the key is not encrypted"
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
    except socket.gaierror as error:
        return Probe(Listener.UNKNOWN_NAME, error.strerror or str(error))
    except OSError as error:
        return Probe(Listener.NOBODY, str(error))
    with raw:
        try:
            return _converse(raw, context, tls, endpoint.host)
        except TimeoutError:
            return Probe(Listener.SILENT, f"no byte within {timeout_s:g} s")
        except ssl.SSLCertVerificationError as error:
            detail = f"the server's certificate does not hold: {error.verify_message}"
            return Probe(Listener.TLS_REFUSED, detail, _VERIFY_DO.get(error.verify_code, _CHECK_TLS))
        except ssl.SSLError as error:
            closed = isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError))
            if closed or error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                return Probe(Listener.OTHER, f"closed the connection{_tls_hint(tls)}")
            return _refused_by_server(error, tls)
        except OSError as error:
            return Probe(Listener.OTHER, f"closed the connection ({error}){_tls_hint(tls)}")


def _refused_by_server(error: OSError, tls: TlsFiles | None) -> Probe:
    """etcd ended TLS.  Its alert, if it arrives, seldom says more than that it was about this client's certificate."""
    detail = f"TLS ended with {getattr(error, 'reason', None) or error.strerror or error}"
    if tls is None or tls.certificate is None:
        do = "give a client certificate that etcd accepts in store.tls.cert and store.tls.key"
        return Probe(Listener.TLS_REFUSED, f"{detail}; a client certificate may be required, and none is given", do)
    do = f"check that etcd's --trusted-ca-file signed {tls.certificate} and that it has not expired"
    return Probe(Listener.TLS_REFUSED, f"{detail}; the client certificate was not accepted", do)


def _tls_hint(tls: TlsFiles | None) -> str:
    if tls is None:
        return "; if it wants TLS, write https:// and give its CA file"
    return "; if it speaks no TLS, leave https:// and the TLS files out"


def _converse(raw: socket.socket, context: ssl.SSLContext | None, tls: TlsFiles | None, host: str) -> Probe:
    if context is None:
        return _look(raw, tls)
    with context.wrap_socket(raw, server_hostname=(tls.server_name if tls else None) or host) as stream:
        try:
            found = _look(stream, tls)
        except (ssl.SSLError, ConnectionError) as error:
            return _refused_by_server(error, tls)
        # In TLS 1.3 this side is ready before the other has looked at its certificate.
        if found.listener is Listener.OTHER and stream.selected_alpn_protocol() == "h2":
            return _refused_by_server(ssl.SSLError(0, "a closed connection"), tls)
        return found


def _look(stream: socket.socket, tls: TlsFiles | None) -> Probe:
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
        NameUnknown: a name does not resolve, and no other endpoint gave a clear answer.
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
        return StoreRefused("a TLS connection to etcd", found, next((p.do for _, p in seen if p.do), _CHECK_TLS))
    if kinds & {Listener.OTHER, Listener.SILENT}:
        kind = NotEtcd if Listener.OTHER in kinds else StoreSilent
        return kind("etcd v3", found, "check host and port of --rdzv-endpoint (a frozen etcd is silent, too)")
    if Listener.UNKNOWN_NAME in kinds:
        host = socket.gethostname()
        return NameUnknown("a name that resolves in --rdzv-endpoint", found, f"correct the endpoint, or the resolver of this host ({host})")
    return StoreUnavailable("etcd at --rdzv-endpoint", found, "start etcd, or correct the endpoint")

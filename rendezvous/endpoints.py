"""Endpoints of a store as plain data: what a user may write for `--rdzv-endpoint`, and the TLS files.

`host`, `host:port`, `[v6]:port`, each optionally behind `http://` or `https://`, several separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from elastic_health.errors import ConfigError

DEFAULT_PORT = 2379
_FORM = re.compile(r"(?:(?P<scheme>https?)://)?(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>\d{1,5}))?/?")


@dataclass(frozen=True)
class Endpoint:
    """One address.  `tls` is None when the user named no scheme."""

    host: str
    port: int
    tls: bool | None = None

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files.  `ca` None: the system's authorities.  `certificate` and `key` go together.
    `server_name` replaces the endpoint's host in the check of the server's certificate."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            one = "a certificate without a key" if self.key is None else "a key without a certificate"
            raise ConfigError("a client certificate and its key, or neither", one, "give both files")


def parse_endpoint(text: str) -> Endpoint:
    """One endpoint.

    Raises:
        ConfigError: it has another form, or a port outside 1–65535.
    """
    match = _FORM.fullmatch(text.strip())
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if "@" in text:  # not shown: it may hold a password
        raise ConfigError("an endpoint as host:port", "one with `@`", "give user and password by store.user and store.password_file")
    if match is None or not 1 <= port <= 65535:
        raise ConfigError("an endpoint as host:port", repr(text), "write --rdzv-endpoint=host1:2379,host2:2379")
    scheme = match["scheme"]
    return Endpoint(match["v6"] or match["host"], port, None if scheme is None else scheme == "https")


def parse_endpoints(texts: str | Iterable[str]) -> tuple[Endpoint, ...]:
    """All endpoints of a comma-separated text, or of several texts, in order and without repeats.

    Raises:
        ConfigError: one is malformed, there is none, or some ask for TLS and some for plain text.
    """
    parts = [texts] if isinstance(texts, str) else list(texts)
    found = dict.fromkeys(parse_endpoint(piece) for part in parts for piece in part.split(",") if piece.strip())
    if not found:
        raise ConfigError("at least one endpoint", repr(texts), "write --rdzv-endpoint=host1:2379,host2:2379")
    if {True, False} <= {e.tls for e in found}:
        raise ConfigError("all endpoints with TLS, or all without", repr(texts), "use one scheme for all of them")
    return tuple(found)

"""Which address an agent advertises, and how addresses are spelled, read and resolved.

Law: an address in a record is `host:port`, IPv6 in brackets; what is advertised can be reached by the other nodes, so
it is a loopback address only when the store itself is on loopback.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from elastic_health.errors import ConfigError

NAME_AGAIN_S = 0.3
SockAddr = tuple[str, int] | tuple[str, int, int, int]


@dataclass(frozen=True)
class HostPort:
    """`host` is a name or a bare address (no brackets)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_hostport(text: str, default_port: int | None = None) -> HostPort:
    """Read `host:port`, `[v6]:port`, and with a default port also `host`, `[v6]` and a bare IPv6 address.

    Raises:
        ConfigError: no host, no port where none is given by default, or a port outside 0–65535.
    """
    text = text.strip()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else None
        bad = not closed or (rest != "" and port is None)
    elif text.count(":") > 1:
        host, port, bad = text, None, not is_address(text)
    else:
        host, colon, rest = text.partition(":")
        port, bad = (rest if colon else None), False
    number = default_port if port is None else int(port) if port.isascii() and port.isdigit() else None
    if bad or not host or number is None or not 0 <= number <= 65535:
        raise ConfigError("an address as host:port or [IPv6]:port", repr(text), "correct the address")
    return HostPort(host, number)


def is_address(host: str) -> bool:
    """Whether `host` is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, or `localhost`."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host.lower() == "localhost"


def advertised_host(local_addr: str | None, endpoints: tuple[str, ...]) -> str:
    """The host part of the address that other agents dial.

    `--local-addr` if the user gave it; else the source address of this machine's route to the first store endpoint that
    has one (a connected UDP socket tells it, no packet is sent); else what the host's own name resolves to.

    Args:
        local_addr: torchrun's `--local-addr`.
        endpoints: store endpoints as `host:port`.

    Raises:
        ConfigError: none of them gives an address that other nodes could reach, or `local_addr` is no address.
    """
    if local_addr:
        given = parse_hostport(local_addr, 0).host
        if is_address(given) and ipaddress.ip_address(given).is_unspecified:
            raise ConfigError("an address in --local-addr that other nodes can dial", given, "pass one address or name of this host")
        return given
    for endpoint in endpoints:
        target = parse_hostport(endpoint, 2379)
        source = route_source(target)
        if source is not None and (not is_loopback(source) or is_own_loopback(target.host)):
            return source
    own = _resolved_own_name()
    if own is None:
        found = "no route to the store and no resolvable host name"
        raise ConfigError("an address of this host that others reach", found, "pass --local-addr")
    return own


def is_own_loopback(host: str) -> bool:
    """Whether the store is spelled as loopback: then all agents are on this machine."""
    return is_loopback(host) or host == ""


def route_source(target: HostPort) -> str | None:
    """The local address that packets to `target` would leave from, None without a route or when the name is unknown."""
    try:
        found = socket.getaddrinfo(target.host, target.port or 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, proto, _, address in found:
        with socket.socket(family, kind, proto) as probe:
            try:
                probe.connect(address)
                source = str(probe.getsockname()[0])
            except OSError:
                continue
        if source not in ("0.0.0.0", "::"):
            return source
    return None


def wait_for_name(host: str, timeout_s: float, waiting: Callable[[str], None]) -> None:
    """Return once `host` resolves: a DNS entry may come later than the host that it names.

    Args:
        waiting: told once, with the resolver's error, when it does not resolve at once.

    Raises:
        ConfigError: it does not within `timeout_s`.
    """
    deadline, told = time.monotonic() + timeout_s, False
    while not (found := resolve(HostPort(host, 0))).addresses:
        if time.monotonic() >= deadline:
            own = f"this host calls itself {socket.gethostname()!r}"
            raise ConfigError(f"a --local-addr that resolves within {timeout_s:g} s", f"{host}: {found.error}; {own}", "correct it, or DNS")
        if not told:
            told = True
            waiting(found.error)
        time.sleep(NAME_AGAIN_S)


def both_names(host: str) -> str:
    """What `host` and this machine's own name resolve to, for a message that shows why they are not the same."""
    own = socket.gethostname()
    return "; ".join(f"{name!r} is {_addresses_of(name)}" for name in dict.fromkeys((host, own)))


def _addresses_of(name: str) -> str:
    found = dict.fromkeys(str(address[0]) for _, address in resolve(HostPort(name, 0)).addresses)
    return ", ".join(found) or "unknown here"


def _resolved_own_name() -> str | None:
    try:
        found = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)
    except OSError:
        return None
    hosts = [str(address[0]) for *_, address in found]
    return next((h for h in hosts if not is_loopback(h)), None)


@dataclass(frozen=True)
class Resolved:
    """Socket addresses of one `host:port`, in the resolver's order; `error` when there are none."""

    addresses: tuple[tuple[int, SockAddr], ...]
    error: str = ""


def resolve(address: HostPort) -> Resolved:
    """All stream addresses of `address`; may block on DNS when the host is a name."""
    flags = socket.AI_NUMERICHOST if is_address(address.host) else 0
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as e:
        return Resolved((), str(e))
    return Resolved(tuple((int(family), sockaddr) for family, _, _, _, sockaddr in found))  # type: ignore[misc]


def resolve_without_blocking(address: HostPort, done: Callable[[Resolved], None]) -> None:
    """Hand the addresses to `done`: at once for an IP address, from a thread of its own for a name."""
    if is_address(address.host):
        done(resolve(address))
        return
    threading.Thread(target=lambda: done(resolve(address)), name="eh-resolve", daemon=True).start()

"""Addresses: read, spelled, and which one an agent advertises."""

from __future__ import annotations

import socket
import threading

import pytest

from elastic_health.agents.addresses_net import (
    HostPort,
    Resolved,
    advertised_host,
    is_loopback,
    parse_hostport,
    resolve_without_blocking,
    route_source,
)
from elastic_health.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "default", "want"),
    [
        ("etcd1:2379", None, HostPort("etcd1", 2379)),
        ("10.0.0.1:80", None, HostPort("10.0.0.1", 80)),
        ("[fe80::1]:2379", None, HostPort("fe80::1", 2379)),
        ("[::1]", 5, HostPort("::1", 5)),
        ("::1", 5, HostPort("::1", 5)),
        ("name", 2379, HostPort("name", 2379)),
        (" name:0 ", None, HostPort("name", 0)),
    ],
)
def test_read(text: str, default: int | None, want: HostPort) -> None:
    assert parse_hostport(text, default) == want
    assert parse_hostport(str(want)) == want


@pytest.mark.parametrize(
    "text", ["", ":80", "name", "name:", "name:x", "name:70000", "name:-1", "[::1", "[::1]80", "a:b:c", "name:\u0661", "[]:80", "http://x:1"]
)
def test_mistakes_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_hostport(text)


def test_local_addr_wins() -> None:
    assert advertised_host("ib0.node7", ("127.0.0.1:2379",)) == "ib0.node7"
    assert advertised_host("[fe80::1]", ()) == "fe80::1"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:2379", "localhost:2379"])
def test_a_store_on_loopback_means_loopback(endpoint: str) -> None:
    assert is_loopback(advertised_host(None, (endpoint,)))


def test_a_store_elsewhere_never_means_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/pytorch#73380: names that don't lead back to the host; here the route decides, no name is compared."""
    from elastic_health.agents import addresses_net

    routes = {"store-a": None, "store-b": "127.0.0.1", "store-c": "192.0.2.7"}
    monkeypatch.setattr(addresses_net, "route_source", lambda target: routes[target.host])
    assert advertised_host(None, ("store-a:1", "store-b:1", "store-c:1")) == "192.0.2.7"


def test_no_way_to_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic_health.agents import addresses_net

    monkeypatch.setattr(addresses_net, "route_source", lambda target: None)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))])
    with pytest.raises(ConfigError, match="--local-addr"):
        advertised_host(None, ("etcd:2379",))


def test_route_needs_no_listener() -> None:
    assert route_source(HostPort("127.0.0.1", 9)) == "127.0.0.1"
    assert route_source(HostPort("no.such.name.invalid", 9)) is None


def test_an_address_resolves_at_once_and_a_name_elsewhere() -> None:
    found: list[tuple[Resolved, str]] = []
    done = threading.Event()

    def take(resolved: Resolved) -> None:
        found.append((resolved, threading.current_thread().name))
        done.set()

    resolve_without_blocking(HostPort("127.0.0.1", 80), take)
    assert found == [(Resolved(((socket.AF_INET, ("127.0.0.1", 80)),)), threading.current_thread().name)]
    done.clear()
    resolve_without_blocking(HostPort("localhost", 80), take)
    assert done.wait(10)
    assert found[1][1] != threading.current_thread().name

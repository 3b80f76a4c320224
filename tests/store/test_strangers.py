"""Endpoints that are no etcd, or that nobody listens at: one clear message, in bounded time."""

from __future__ import annotations

import http.server
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import NotEtcd, StoreUnavailable
from tests.etcd_fixture import EtcdCluster, free_port

BOUND_S = 2.0


def connect_fails(endpoint: str | list[str], error: type[Exception], *, within_s: float) -> str:
    begun = time.monotonic()
    with pytest.raises(error) as caught:
        EtcdSession.connect(endpoint, timeout_s=BOUND_S)
    assert time.monotonic() - begun < within_s
    text = str(caught.value)
    assert re.match(r"expected .*; found .*; ", text)
    return text


def test_nobody_listens() -> None:
    text = connect_fails(f"127.0.0.1:{free_port()}", StoreUnavailable, within_s=BOUND_S + 2)
    assert "refused" in text


def test_a_name_that_does_not_resolve() -> None:
    connect_fails("no-such-host.invalid:2379", StoreUnavailable, within_s=BOUND_S + 15)


def test_a_web_server_is_told_at_once() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        connect_fails(f"127.0.0.1:{server.server_address[1]}", NotEtcd, within_s=BOUND_S + 2)
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_silent_listener(silent_port: int) -> None:
    text = connect_fails(f"127.0.0.1:{silent_port}", NotEtcd, within_s=BOUND_S + 3)
    assert "says nothing" in text


def test_a_tcpstore() -> None:
    """Another job's store: what a mistyped port most likely hits."""
    code = (
        "import sys, torch.distributed as d\n"
        "s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(s.port, flush=True); sys.stdin.read()"
    )
    store = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert store.stdin and store.stdout
    try:
        ready, _, _ = select.select([store.stdout], [], [], 60)
        assert ready, "the TCPStore started"
        connect_fails(f"127.0.0.1:{int(store.stdout.readline())}", NotEtcd, within_s=BOUND_S + 3)
    finally:
        store.stdin.close()
        store.wait(20)
        store.stdout.close()


def test_a_grpc_server_that_is_no_etcd() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        connect_fails(f"127.0.0.1:{port}", NotEtcd, within_s=BOUND_S + 2)
    finally:
        server.stop(0)


def test_one_good_endpoint_among_bad_ones_is_enough(one_etcd: EtcdCluster, silent_port: int) -> None:
    session = EtcdSession.connect([f"127.0.0.1:{free_port()}", f"127.0.0.1:{silent_port}", *one_etcd.endpoints], first=0, timeout_s=5)
    try:
        assert session.get("x") is None
    finally:
        session.close()


@pytest.mark.parametrize("text", ["", "host:0", "host:70000", "host:port", "ftp://host:1", "a b:1", "http://a:1,https://b:1"])
def test_malformed_endpoints_are_refused_before_any_connection(text: str) -> None:
    with pytest.raises(ConfigError):
        EtcdSession.connect(text)


def test_a_proxy_variable_does_not_lead_etcd_traffic_astray(one_etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setitem(os.environ, name, f"http://127.0.0.1:{free_port()}")
    session = EtcdSession.connect(one_etcd.endpoints, timeout_s=3)
    session.close()

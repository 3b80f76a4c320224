"""Pure parts of the session: endpoints, limits, the meaning of a refusal, and the wire format in its private pool."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.endpoints import Endpoint, parse_endpoint, parse_endpoints
from elastic_health.rendezvous.replies import Reply, meaning, refusal
from elastic_health.rendezvous.store import Compare, Delete, Get, LeaseGone, NotEtcd, Put, StoreFull, StoreRefused, Target, Txn
from elastic_health.rendezvous.txn_rules import check_txn, txn_size_bytes, writes
from elastic_health.rendezvous.wire_etcd import encode_key, prefix_end, txn_message


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("etcd1:2379", Endpoint("etcd1", 2379)),
        ("etcd1", Endpoint("etcd1", 2379)),
        (" http://10.0.0.1:1/ ", Endpoint("10.0.0.1", 1, False)),
        ("https://etcd.example.com", Endpoint("etcd.example.com", 2379, True)),
        ("[::1]:4001", Endpoint("::1", 4001)),
    ],
)
def test_endpoints(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(endpoint.address) == Endpoint(endpoint.host, endpoint.port)


def test_a_list_of_endpoints_is_kept_in_order_without_repeats() -> None:
    assert [e.address for e in parse_endpoints("b:1,a:2,,b:1")] == ["b:1", "a:2"]
    assert parse_endpoints(["b:1,a:2", "c"])[2] == Endpoint("c", 2379)
    for bad in ("", " , ", "http://a,https://b", "a:1:2", "::1:5"):
        with pytest.raises(ConfigError):
            parse_endpoints(bad)


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_prefix_end_bounds_exactly_the_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    inside = key >= (prefix or b"\0") and (end == b"\0" or key < end)
    if key:  # etcd has no empty key
        assert inside == key.startswith(prefix) or (end == b"\0" and prefix != b"" and key > prefix)


@given(st.binary(max_size=8))
def test_any_key_comes_back_as_it_went(raw: bytes) -> None:
    assert encode_key(raw.decode("utf-8", "surrogateescape")) == raw


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=30), st.binary(max_size=300)), max_size=20),
    st.lists(st.text(min_size=1, max_size=30), max_size=20),
)
def test_the_size_estimate_is_never_below_the_message(puts: list[tuple[str, bytes]], others: list[str]) -> None:
    compares = tuple(Compare(k, Target.VALUE, v) for k, v in puts) + tuple(Compare(k, Target.MOD, 2**62) for k in others)
    reads = tuple(Get(k, prefix=True) for k in others) + tuple(Delete(k) for k in others)
    txn = Txn(compares, tuple(Put(k, v, 2**62) for k, v in puts), reads)
    assert txn_size_bytes(txn) >= txn_message(txn).ByteSize()


def test_only_puts_and_deletes_make_a_write() -> None:
    assert not writes(Txn((Compare("k", Target.MOD, 1),), (Get("k"),), (Get("k"),)))
    assert writes(Txn((), (Get("k"),), (Delete("k"),)))
    with pytest.raises(ValueError, match="without a key"):
        check_txn(Txn((), (Get(""),)))
    check_txn(Txn((), (Get("", prefix=True),)))


@pytest.mark.parametrize(
    ("code", "details", "reply"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: refused", Reply.NOT_APPLIED),
        ("UNAVAILABLE", "etcdserver: no leader", Reply.NOT_APPLIED),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Reply.NOT_APPLIED),
        ("UNAVAILABLE", "etcdserver: request timed out", Reply.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", Reply.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: leader changed", Reply.UNKNOWN),
        ("UNAVAILABLE", "Socket closed", Reply.UNKNOWN),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Reply.UNKNOWN),
        ("UNKNOWN", "anything", Reply.UNKNOWN),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Reply.TOKEN_STALE),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", Reply.REFUSED),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Reply.REFUSED),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Reply.FULL),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Reply.TOO_LARGE),
        ("NOT_FOUND", "etcdserver: requested lease not found", Reply.LEASE_GONE),
        ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", Reply.AUTH_OFF),
        ("UNIMPLEMENTED", "Method not found!", Reply.NOT_ETCD),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", Reply.BAD_REQUEST),
    ],
)
def test_the_meaning_of_a_refusal(code: str, details: str, reply: Reply) -> None:
    assert meaning(code, details) is reply


def test_refusals_become_their_errors() -> None:
    kinds = {Reply.FULL: StoreFull, Reply.LEASE_GONE: LeaseGone, Reply.NOT_ETCD: NotEtcd, Reply.REFUSED: StoreRefused}
    for reply, kind in kinds.items():
        error = refusal(reply, "text", "h:1")
        assert type(error) is kind and "text at h:1" in error.found


def test_another_client_with_generated_code_lives_beside_ours() -> None:
    """Generated etcd code registers its names in protobuf's default pool; ours must neither clash nor depend on it."""
    code = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "f = descriptor_pb2.FileDescriptorProto(name='rpc.proto', package='etcdserverpb', syntax='proto3')\n"
        "f.message_type.add(name='TxnRequest')\n"
        "descriptor_pool.Default().AddSerializedFile(f.SerializeToString())\n"
        "from elastic_health.rendezvous import wire_etcd\n"
        "g = descriptor_pb2.FileDescriptorProto(name='elastic_health/etcd.proto', package='elastic_health.etcd', syntax='proto3')\n"
        "g.message_type.add(name='Header')\n"
        "descriptor_pool.Default().AddSerializedFile(g.SerializeToString())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

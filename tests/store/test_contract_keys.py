"""The store's contract for keys, transactions and leases: the same tests in memory, on one real etcd and on three."""

from __future__ import annotations

import pytest

from elastic_health.rendezvous.store import (
    Compare,
    Delete,
    Get,
    Lease,
    LeaseGone,
    Put,
    RequestTooLarge,
    StoreError,
    StoreUnavailable,
    Target,
    Txn,
    TxnResult,
)
from tests.store.conftest import Place
from tests.store.shapes import Heard, create, put

# --- keys and revisions


def test_absent_key_reads_as_none_and_an_empty_range_has_a_revision(place: Place, prefix: str) -> None:
    store = place.session()
    assert store.get(prefix + "x") is None
    assert store.range(prefix).kvs == ()
    assert store.range(prefix).revision >= 1


def test_revisions_and_versions_of_one_key(place: Place, prefix: str) -> None:
    store, key = place.session(), prefix + "k"
    first = put(store, key, b"1")
    second = put(store, key, b"2")
    kv = store.get(key)
    assert kv is not None and (kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease) == (b"2", first, second, 2, 0)
    store.txn(Txn((), (Delete(key),)))
    third = put(store, key, b"3")
    kv = store.get(key)
    assert kv is not None and (kv.create_revision, kv.mod_revision, kv.version) == (third, third, 1)


def test_a_transaction_is_one_revision_and_one_without_changes_is_none(place: Place, prefix: str) -> None:
    store = place.session()
    before = store.range(prefix).revision
    done = store.txn(Txn((), (Put(prefix + "a", b""), Put(prefix + "b", b""))))
    assert done.revision == before + 1
    assert {kv.mod_revision for kv in store.range(prefix).kvs} == {before + 1}
    assert store.txn(Txn((), (Delete(prefix + "none"),))).revision == before + 1


def test_ranges_come_in_byte_order(place: Place, prefix: str) -> None:
    store = place.session()
    for name in ("b", "a/2", "a", "a/10", "é", "Z", "\U0001f600", "\ufffd"):
        put(store, prefix + name, name.encode())
    names = [kv.key[len(prefix) :] for kv in store.range(prefix).kvs]
    assert names == sorted(names, key=str.encode) and len(names) == 8


def test_prefix_delete_takes_the_prefix_and_nothing_else(place: Place, prefix: str) -> None:
    store = place.session()
    for name in ("a/1", "a/2", "a", "b"):
        put(store, prefix + name, b"")
    store.txn(Txn((), (Delete(prefix + "a/", prefix=True),)))
    assert [kv.key for kv in store.range(prefix).kvs] == [prefix + "a", prefix + "b"]


# --- comparisons


def test_create_only_has_one_winner(place: Place, prefix: str) -> None:
    one, two, key = place.session(), place.session(), prefix + "verdict"
    assert one.txn(create(key, b"one")).succeeded
    lost = two.txn(create(key, b"two"))
    assert not lost.succeeded
    assert [kv.value for kv in lost.reads[0].kvs] == [b"one"]


def test_each_kind_of_comparison(place: Place, prefix: str) -> None:
    store, key = place.session(), prefix + "k"
    put(store, key, b"v")
    kv = store.get(key)
    assert kv is not None
    mod, created = kv.mod_revision, kv.create_revision
    good: dict[Target, int | bytes] = {Target.MOD: mod, Target.CREATE: created, Target.VERSION: 1, Target.VALUE: b"v"}
    bad: dict[Target, int | bytes] = {Target.MOD: mod + 1, Target.CREATE: 0, Target.VERSION: 2, Target.VALUE: b"w"}
    for target in Target:
        assert store.txn(Txn((Compare(key, target, good[target]),), ())).succeeded, target
        assert not store.txn(Txn((Compare(key, target, bad[target]),), ())).succeeded, target


def test_comparisons_with_an_absent_key(place: Place, prefix: str) -> None:
    store, key = place.session(), prefix + "absent"
    for target in (Target.MOD, Target.CREATE, Target.VERSION):
        assert store.txn(Txn((Compare(key, target, 0),), ())).succeeded, target
        assert not store.txn(Txn((Compare(key, target, 1),), ())).succeeded, target
    assert not store.txn(Txn((Compare(key, Target.VALUE, b""),), ())).succeeded


def test_all_comparisons_must_hold_and_the_other_branch_runs_otherwise(place: Place, prefix: str) -> None:
    store = place.session()
    put(store, prefix + "a", b"1")
    both = (Compare(prefix + "a", Target.VALUE, b"1"), Compare(prefix + "b", Target.VERSION, 1))
    done = store.txn(Txn(both, (Put(prefix + "c", b"then"),), (Put(prefix + "c", b"otherwise"), Get(prefix, prefix=True))))
    assert not done.succeeded
    assert [(kv.key, kv.value) for kv in done.reads[0].kvs] == [(prefix + "a", b"1"), (prefix + "c", b"otherwise")]


def test_reads_in_a_transaction_come_in_order_of_asking(place: Place, prefix: str) -> None:
    store = place.session()
    put(store, prefix + "a", b"1")
    reading = (Get(prefix + "none"), Put(prefix + "b", b"2"), Get(prefix, prefix=True), Delete(prefix + "a"), Get(prefix + "a"))
    done = store.txn(Txn((), reading))
    assert [[kv.value for kv in r.kvs] for r in done.reads] == [[], [b"1", b"2"], []]
    assert {r.revision for r in done.reads} == {done.revision}


# --- limits


def test_operation_limits(place: Place, prefix: str) -> None:
    store = place.session()
    store.txn(Txn((), tuple(Put(f"{prefix}{i}", b"") for i in range(128))))
    assert len(store.range(prefix).kvs) == 128
    with pytest.raises(RequestTooLarge):
        store.txn(Txn((), tuple(Put(f"{prefix}{i}", b"") for i in range(129))))
    with pytest.raises(RequestTooLarge):
        store.txn(Txn(tuple(Compare(f"{prefix}{i}", Target.VERSION, 1) for i in range(129)), ()))


def test_size_limit_lets_through_exactly_what_the_server_takes(place: Place, prefix: str) -> None:
    store, limit = place.session(), 1536 * 1024
    put(store, prefix + "big", b"x" * (limit - 2048))
    with pytest.raises(RequestTooLarge):
        put(store, prefix + "bigger", b"x" * limit)
    assert store.get(prefix + "bigger") is None


def test_a_key_put_twice_is_a_programming_error(place: Place, prefix: str) -> None:
    store = place.session()
    with pytest.raises(ValueError, match="twice"):
        store.txn(Txn((), (Put(prefix + "a", b""), Put(prefix + "a", b""))))
    with pytest.raises(ValueError, match="puts and deletes"):
        store.txn(Txn((), (Put(prefix + "a", b""), Delete(prefix, prefix=True))))


# --- leases


def test_a_lease_that_is_not_renewed_ends_and_takes_its_keys_along_in_one_revision(place: Place, prefix: str) -> None:
    store = place.session()
    lease = store.grant(1.0)
    assert lease.ttl_s >= 1.0
    start = put(store, prefix + "a", b"", lease.id)
    put(store, prefix + "b", b"", lease.id)
    put(store, prefix + "stays", b"")
    heard = Heard()
    store.watch(prefix, start, heard.batch)
    place.wait(lambda: len(store.range(prefix).kvs) == 1, "the lease's keys are gone")
    place.wait(lambda: len(heard.keys) == 5, "both deletions are heard")
    assert [(e.deleted, e.kv.key) for e in heard.events[3:]] == [(True, prefix + "a"), (True, prefix + "b")]
    assert heard.events[3].kv.mod_revision == heard.events[4].kv.mod_revision
    with pytest.raises(LeaseGone):
        store.renew(lease.id)
    with pytest.raises(LeaseGone):
        put(store, prefix + "late", b"", lease.id)
    assert store.get(prefix + "late") is None
    store.revoke(lease.id)  # ended already: fine


def test_a_renewed_lease_lives_on(place: Place, prefix: str) -> None:
    store = place.session()
    lease = store.grant(1.0)
    put(store, prefix + "a", b"", lease.id)
    for _ in range(5):
        place.pass_time(0.4)
        assert store.renew(lease.id) == lease.ttl_s
    kv = store.get(prefix + "a")
    assert kv is not None and kv.lease == lease.id


def test_revoking_deletes_at_once_and_a_rewritten_key_leaves_its_lease(place: Place, prefix: str) -> None:
    store = place.session()
    lease = store.grant(60.0)
    put(store, prefix + "a", b"", lease.id)
    put(store, prefix + "b", b"", lease.id)
    put(store, prefix + "b", b"free")
    store.revoke(lease.id)
    assert [kv.key for kv in store.range(prefix).kvs] == [prefix + "b"]


def test_only_the_branch_that_runs_needs_a_living_lease(place: Place, prefix: str) -> None:
    store = place.session()
    lease = store.grant(60.0)
    store.revoke(lease.id)
    condition = (Compare(prefix + "a", Target.VERSION, 1),)
    assert not store.txn(Txn(condition, (Put(prefix + "a", b"", lease.id),), (Put(prefix + "b", b""),))).succeeded
    with pytest.raises(LeaseGone):
        store.txn(Txn((), (Put(prefix + "c", b""), Put(prefix + "a", b"", lease.id))))
    assert [kv.key for kv in store.range(prefix).kvs] == [prefix + "b"]


# --- asynchronous calls


def test_a_lease_that_is_granted_asynchronously_holds_keys(place: Place, prefix: str) -> None:
    store, answers = place.session(), list[Lease | StoreError]()
    store.grant_async(60.0, answers.append)
    place.wait(lambda: len(answers) == 1, "the grant answered")
    lease = answers[0]
    assert isinstance(lease, Lease) and lease.ttl_s >= 60.0
    put(store, prefix + "k", b"", lease.id)
    store.revoke(lease.id)
    assert store.get(prefix + "k") is None
    place.cut()
    store.grant_async(60.0, answers.append)
    place.wait(lambda: len(answers) == 2, "a grant goes on over a cut connection")
    assert isinstance(answers[1], Lease) and answers[1].id != lease.id


def test_async_calls_answer_once_with_the_result_or_the_error(place: Place, prefix: str) -> None:
    store = place.session()
    answers: list[TxnResult | float | StoreError] = []
    store.txn_async(create(prefix + "a", b"1"), answers.append)
    place.wait(lambda: len(answers) == 1, "the transaction answered")
    assert isinstance(answers[0], TxnResult) and answers[0].succeeded
    lease = store.grant(60.0)
    store.renew_async(lease.id, answers.append)
    place.wait(lambda: len(answers) == 2, "the renewal answered")
    assert answers[1] == lease.ttl_s
    store.revoke(lease.id)
    store.renew_async(lease.id, answers.append)
    place.wait(lambda: len(answers) == 3, "the renewal was refused")
    assert isinstance(answers[2], LeaseGone)
    store.close()
    store.txn_async(create(prefix + "b", b"1"), answers.append)
    place.wait(lambda: len(answers) == 4, "a closed session answers too")
    assert isinstance(answers[3], StoreUnavailable)

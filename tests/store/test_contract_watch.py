"""The store's contract for watches and failures: the same tests in memory, on one real etcd and on three."""

from __future__ import annotations

import pytest

from elastic_health.rendezvous.memory_session import MemorySession
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import (
    Compare,
    Delete,
    Put,
    Store,
    StoreAmbiguous,
    StoreError,
    StoreUnavailable,
    Target,
    Txn,
    TxnResult,
    Watch,
    WatchBatch,
)
from tests.store.conftest import EtcdPlace, MemoryPlace, Place
from tests.store.shapes import Heard, create, put

# --- watches


def test_a_watch_hears_past_and_present_in_order_and_only_its_prefix(place: Place, prefix: str) -> None:
    store, heard = place.session(), Heard()
    start = put(store, prefix + "a", b"1")
    put(store, prefix + "a", b"2")
    watch = store.watch(prefix, start, heard.batch)
    put(store, prefix[:-1] + "-other", b"no")
    put(store, prefix + "b", b"3")
    last = store.txn(Txn((), (Put(prefix + "c", b"4"), Delete(prefix + "a")))).revision
    place.wait(lambda: len(heard.values) == 5, "all five changes are heard")
    assert heard.values == [b"1", b"2", b"3", b"4", b""]
    assert [e.deleted for e in heard.events] == [False] * 4 + [True]
    assert heard.events[-1].kv.mod_revision == heard.batches[-1].revision == last
    watch.close()
    put(store, prefix + "d", b"5")
    assert store.get(prefix + "d") is not None
    assert len(heard.values) == 5
    assert heard.trouble == []


def test_a_watch_from_the_middle_of_the_past(place: Place, prefix: str) -> None:
    store, heard = place.session(), Heard()
    revisions = [put(store, prefix + "a", str(i).encode()) for i in range(10)]
    store.watch(prefix, revisions[6], heard.batch)
    place.wait(lambda: len(heard.values) == 4, "four changes are heard")
    assert heard.values == [b"6", b"7", b"8", b"9"]


def test_none_is_lost_and_none_comes_twice_over_cut_streams(place: Place, prefix: str) -> None:
    writer, reader, heard = place.session(), place.session(), Heard()
    start = put(writer, prefix + "n", b"0")
    reader.watch(prefix, start, heard.batch, heard.trouble.append)
    for i in range(1, 120):
        if i % 20 == 0:
            place.wait(lambda: heard.values, "the watch runs")
            place.cut()
        while True:
            try:
                writer.txn(Txn((Compare(prefix + "n", Target.VALUE, str(i - 1).encode()),), (Put(prefix + "n", str(i).encode()),)))
                break
            except StoreAmbiguous:  # conditional on the old value, so it may be sent again
                continue
    place.wait(lambda: len(heard.values) >= 120, "every change is heard")
    assert heard.values == [str(i).encode() for i in range(120)]
    assert not any(b.snapshot for b in heard.batches)
    place.wait(lambda: heard.trouble and heard.trouble[-1] is None, "the cut was told, and its end")
    assert isinstance(heard.trouble[0], StoreError)


def test_a_big_backlog_arrives_whole(place: Place, prefix: str) -> None:
    store, heard = place.session(), Heard()
    start = put(store, prefix + "k", b"")
    for i in range(12):
        store.txn(Txn((), tuple(Put(f"{prefix}{i}/{j}", bytes([i]) * 100_000) for j in range(14))))
    store.watch(prefix, start, heard.batch)  # 16 MB: etcd answers in fragments
    place.wait(lambda: len(heard.keys) == 1 + 12 * 14, "the backlog is heard")
    assert [b.revision for b in heard.batches] == sorted({b.revision for b in heard.batches})
    assert len(set(heard.keys)) == len(heard.keys)


def test_a_watch_from_a_compacted_revision_begins_with_a_snapshot(place: Place, prefix: str) -> None:
    store, heard = place.session(), Heard()
    start = put(store, prefix + "a", b"1")
    put(store, prefix + "gone", b"")
    store.txn(Txn((), (Delete(prefix + "gone"),)))
    last = put(store, prefix + "a", b"2")
    place.compact(last)
    store.watch(prefix, start, heard.batch)
    place.wait(lambda: heard.batches, "the snapshot is heard")
    assert heard.batches[0].snapshot and heard.batches[0].events == () and heard.batches[0].revision >= last
    assert [(kv.key, kv.value) for kv in heard.batches[0].kvs] == [(prefix + "a", b"2")]
    put(store, prefix + "b", b"3")
    place.wait(lambda: len(heard.batches) == 2, "later changes follow")
    assert heard.values == [b"3"]


def test_a_deletion_at_the_compaction_revision_is_not_missed(place: Place, prefix: str) -> None:
    """A watch that starts at exactly that revision could miss it: etcd drops the tombstone there."""
    store, heard = place.session(), Heard()
    put(store, prefix + "a", b"1")
    deletion = store.txn(Txn((), (Delete(prefix + "a"),))).revision
    place.compact(deletion)
    store.watch(prefix, deletion, heard.batch)
    place.wait(lambda: heard.batches, "the deletion shows")
    assert heard.batches[0].snapshot and heard.batches[0].kvs == ()


def test_compaction_during_an_outage_becomes_one_snapshot(place: Place, prefix: str) -> None:
    reader, heard = place.session(), Heard()
    start = put(reader, prefix + "a", b"1")
    reader.watch(prefix, start, heard.batch, heard.trouble.append)
    place.wait(lambda: heard.values == [b"1"], "the watch runs")
    place.outage(True)
    place.wait(lambda: heard.trouble, "the outage is told")
    outside = _outside(place)
    put(outside, prefix + "a", b"2")
    last = put(outside, prefix + "b", b"3")
    place.compact(last)
    place.outage(False)
    place.wait(lambda: len(heard.batches) == 2, "the snapshot is heard")
    assert heard.batches[1].snapshot and [kv.value for kv in heard.batches[1].kvs] == [b"2", b"3"]
    place.wait(lambda: heard.trouble[-1] is None, "the end of the outage is told")


def _outside(place: Place) -> Store:
    """A session that the outage does not touch."""
    if isinstance(place, MemoryPlace):
        return MemorySession(place.store)
    assert isinstance(place, EtcdPlace)
    session = EtcdSession.connect(place.cluster.endpoints)
    place.sessions.append(session)
    return session


def test_closing_a_watch_from_its_own_callback(place: Place, prefix: str) -> None:
    store, heard = place.session(), Heard()
    start = put(store, prefix + "a", b"1")
    watches: list[Watch] = []

    def once(batch: WatchBatch) -> None:
        heard.batch(batch)
        for watch in watches:
            watch.close()

    watches.append(store.watch(prefix, start + 1, once))
    put(store, prefix + "a", b"2")
    place.wait(lambda: heard.batches, "one change is heard")
    put(store, prefix + "a", b"3")
    later = Heard()
    store.watch(prefix, start, later.batch)
    place.wait(lambda: b"3" in later.values, "another watch hears all")
    assert heard.values == [b"2"]


# --- what fails, and how


def test_an_outage_is_unavailable_and_the_write_did_not_land(place: Place, prefix: str) -> None:
    store = place.session()
    put(store, prefix + "a", b"1")
    place.outage(True)
    for call in (
        lambda: store.get(prefix + "a", timeout_s=0.5),
        lambda: store.range(prefix, timeout_s=0.5),
        lambda: store.txn(create(prefix + "b", b"x"), timeout_s=0.5),
        lambda: store.grant(5, timeout_s=0.5),
        lambda: store.renew(1, timeout_s=0.5),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    # Once a call has failed: before, a write may be on its way when the connection ends, and nobody knows its fate.
    answers: list[TxnResult | StoreError] = []
    store.txn_async(create(prefix + "c", b"x"), answers.append, timeout_s=0.5)
    place.wait(lambda: answers, "the asynchronous one answered")
    place.outage(False)
    assert [kv.key for kv in store.range(prefix).kvs] == [prefix + "a"]
    assert isinstance(answers[0], StoreUnavailable)


def test_a_lost_reply_is_ambiguous_and_the_write_landed(place: Place, prefix: str) -> None:
    store = place.session()
    put(store, prefix + "warm", b"")
    place.lose_next_reply()
    with pytest.raises(StoreAmbiguous):
        store.txn(create(prefix + "verdict", b"mine"), timeout_s=2.0)
    place.mend()
    place.wait(lambda: store.get(prefix + "verdict") is not None, "the write shows")
    again = store.txn(create(prefix + "verdict", b"mine"))
    assert not again.succeeded and again.reads[0].kvs[0].value == b"mine"


def test_a_lost_reply_to_an_async_write_is_told_as_such_and_the_next_write_is_answered(place: Place, prefix: str) -> None:
    store, answers = place.session(), list[TxnResult | StoreError]()
    put(store, prefix + "warm", b"")
    place.lose_next_reply()
    store.txn_async(create(prefix + "verdict", b"mine"), answers.append, timeout_s=2.0)
    place.wait(lambda: answers, "the first answered")
    assert isinstance(answers[0], StoreAmbiguous)
    place.mend()
    place.wait(lambda: store.get(prefix + "verdict") is not None, "the write shows")
    store.txn_async(create(prefix + "verdict", b"mine"), answers.append)
    place.wait(lambda: len(answers) == 2, "the second answered")
    again = answers[1]
    assert isinstance(again, TxnResult) and not again.succeeded and again.reads[0].kvs[0].value == b"mine"


def test_a_read_survives_a_lost_reply(place: Place, prefix: str) -> None:
    store = place.session()
    put(store, prefix + "a", b"1")
    place.cut()
    kv = store.get(prefix + "a")
    assert kv is not None and kv.value == b"1"

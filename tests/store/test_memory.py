"""The in-memory store's own parts: the manual clock, latency, and each fault as data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import Fault, FaultKind, Latency, MemorySession
from elastic_health.rendezvous.store import (
    Compare,
    Delete,
    LeaseGone,
    Put,
    StoreAmbiguous,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Target,
    Txn,
    TxnResult,
    WatchBatch,
)
from tests.store.shapes import Heard, create, put


def pair() -> tuple[MemoryStore, MemorySession]:
    store = MemoryStore(100.0)
    return store, MemorySession(store)


@pytest.mark.parametrize(
    ("kind", "error", "lands_at_s"),
    [
        (FaultKind.NOT_SENT, StoreUnavailable, None),
        (FaultKind.LOST, StoreAmbiguous, None),
        (FaultKind.REPLY_LOST, StoreAmbiguous, 0.0),
        (FaultKind.LATE, StoreAmbiguous, 2.0),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_fault_of_a_write(kind: FaultKind, error: type[StoreError], lands_at_s: float | None, asynchronous: bool) -> None:
    store, session = pair()
    session.faults.append(Fault(kind, 2.0))
    answers: list[TxnResult | StoreError] = []
    if asynchronous:
        session.txn_async(create("/k", b"1"), answers.append)
    else:
        with pytest.raises(error) as caught:
            session.txn(create("/k", b"1"))
        answers.append(caught.value)
    assert [type(a) for a in answers] == [error]
    store.advance(101.9)
    assert (store.get("/k") is not None) == (lands_at_s == 0.0)
    store.advance(102.0)
    assert (store.get("/k") is not None) == (lands_at_s is not None)
    assert session.txn(create("/k", b"2")).succeeded == (lands_at_s is None)


def test_reads_use_up_no_fault() -> None:
    _, session = pair()
    session.faults.append(Fault(FaultKind.LOST))
    session.get("/k")
    session.txn(Txn((), ()))
    with pytest.raises(StoreAmbiguous):
        put(session, "/k", b"")


def test_a_late_write_may_lose_to_another() -> None:
    store, session = pair()
    session.faults.append(Fault(FaultKind.LATE, 1.0))
    with pytest.raises(StoreAmbiguous):
        session.txn(create("/verdict", b"late"))
    assert MemorySession(store).txn(create("/verdict", b"first")).succeeded
    store.advance(102.0)
    kv = store.get("/verdict")
    assert kv is not None and kv.value == b"first"


def test_latency_orders_request_and_reply_on_the_clock() -> None:
    store, session = pair()
    session.latency = Latency(request_s=0.2, reply_s=0.3)
    answers: list[TxnResult | StoreError] = []
    session.txn_async(create("/k", b"1"), answers.append)
    assert store.next_due() == pytest.approx(100.2)
    store.advance(100.25)
    assert store.get("/k") is not None and answers == []
    store.advance(100.6)
    assert len(answers) == 1 and isinstance(answers[0], TxnResult)
    store.advance(200.0)
    assert len(answers) == 1


def test_a_reply_after_the_deadline_is_ambiguous_and_the_write_still_lands() -> None:
    store, session = pair()
    session.faults.append(Fault(FaultKind.SLOW, 3.0))
    answers: list[TxnResult | StoreError] = []
    session.txn_async(create("/k", b"1"), answers.append, timeout_s=1.0)
    store.advance(101.5)
    assert [type(a) for a in answers] == [StoreAmbiguous] and store.get("/k") is None
    store.advance(104.0)
    assert store.get("/k") is not None and len(answers) == 1


@pytest.mark.parametrize(("cut_at", "landed"), [(100.1, False), (100.3, True)])
def test_an_outage_meets_the_request_or_the_reply(cut_at: float, landed: bool) -> None:
    store, session = pair()
    session.latency = Latency(0.2, 0.2)
    answers: list[TxnResult | StoreError] = []
    session.txn_async(create("/k", b"1"), answers.append, timeout_s=2.0)
    store.advance(cut_at)
    session.set_down(True)
    store.advance(103.0)
    assert [type(a) for a in answers] == [StoreAmbiguous]
    assert (store.get("/k") is not None) == landed


def test_a_crashed_client_hears_nothing_and_its_request_lands() -> None:
    store, session = pair()
    heard = Heard()
    session.watch("/", 1, heard.batch, heard.trouble.append)
    session.latency = Latency(0.2, 0.2, 0.1)
    answers: list[TxnResult | StoreError] = []
    session.txn_async(create("/k", b"1"), answers.append)
    session.crash()
    store.advance(110.0)
    assert store.get("/k") is not None and answers == [] and heard.batches == [] and heard.trouble == []


def test_a_lost_renewal_is_unavailable_and_counts_in_the_store() -> None:
    store, session = pair()
    lease = session.grant(10)
    store.advance(105.0)
    session.renew_faults.append(Fault(FaultKind.REPLY_LOST))
    with pytest.raises(StoreUnavailable):
        session.renew(lease.id)
    assert store.leases() == {lease.id: 115.0}


def test_lease_expiry_on_the_clock_and_by_force() -> None:
    store, session = pair()
    first, second = session.grant(2.5), session.grant(50)
    assert first.ttl_s == 3.0  # whole seconds, as etcd has it
    put(session, "/a", b"", first.id)
    put(session, "/b", b"", second.id)
    store.advance(102.99)
    assert store.get("/a") is not None
    store.advance(103.0)
    assert store.get("/a") is None
    store.expire(second.id)
    assert store.get("/b") is None
    with pytest.raises(LeaseGone):
        session.renew(second.id)


def test_a_whole_outage_gives_leases_their_full_time_back() -> None:
    store, session = pair()
    lease = session.grant(5)
    store.advance(104.0)
    store.freeze()
    store.advance(150.0)
    store.thaw()
    assert store.leases() == {lease.id: 155.0}


def test_a_full_store_takes_deletions_only() -> None:
    store, session = pair()
    put(session, "/k", b"")
    store.full = True
    with pytest.raises(StoreFull):
        put(session, "/k", b"")
    session.txn(Txn((), (Delete("/k"),)))
    assert store.get("/k") is None


def test_delayed_watch_deliveries_keep_their_order_and_a_cut_fetches_them_again() -> None:
    store, session = pair()
    heard = Heard()
    session.watch("/", 1, heard.batch, heard.trouble.append)
    session.latency = Latency(watch_s=1.0)
    put(session, "/k", b"1")
    session.latency = Latency(watch_s=0.1)
    put(session, "/k", b"2")
    store.advance(100.5)
    assert heard.values == []  # the second does not overtake
    session.cut_watches()
    store.advance(101.5)
    assert heard.values == [b"1", b"2"]
    assert isinstance(heard.trouble[0], StoreUnavailable) and heard.trouble[1:] == [None]


def test_a_change_made_in_a_callback_is_heard_by_all_in_one_order() -> None:
    _, session = pair()
    first, second = Heard(), Heard()

    def answer(batch: WatchBatch) -> None:
        first.batch(batch)
        if len(first.batches) == 1:
            put(session, "/k", b"answer")

    session.watch("/", 1, answer)
    session.watch("/", 1, second.batch)
    put(session, "/k", b"question")
    assert first.values == second.values == [b"question", b"answer"]


def test_the_clock_does_not_go_back_and_timers_run_in_order() -> None:
    store = MemoryStore()
    seen: list[str] = []
    store.at(2.0, lambda: seen.append("b"))
    store.at(1.0, lambda: seen.append("a"))
    store.at(1.0, lambda: store.at(1.5, lambda: seen.append("a2")))
    store.at(2.0, lambda: seen.append("c"))
    store.advance(3.0)
    assert seen == ["a", "a2", "b", "c"] and store.now == 3.0
    with pytest.raises(ValueError, match="back"):
        store.advance(2.0)


_names = st.sampled_from(["/a", "/a/b", "/b"])
_ops = st.one_of(
    st.builds(lambda k, v: ("put", k, v), _names, st.binary(max_size=2)),
    st.builds(lambda k, p: ("delete", k, p), _names, st.booleans()),
    st.builds(lambda k, v: ("cas", k, v), _names, st.binary(max_size=2)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_ops, max_size=25), st.data())
def test_a_view_kept_by_a_watch_equals_the_store(script: list[tuple[str, str, object]], data: st.DataObject) -> None:
    """The twin: a dictionary fed by the watch, whatever is cut or compacted in between."""
    store, session = pair()
    view: dict[str, bytes] = {}

    def hear(batch: WatchBatch) -> None:
        if batch.snapshot:
            view.clear()
            view.update({kv.key: kv.value for kv in batch.kvs})
        for event in batch.events:
            if event.deleted:
                del view[event.kv.key]
            else:
                view[event.kv.key] = event.kv.value

    session.watch("/", 1, hear)
    for kind, key, value in script:
        trouble = data.draw(st.sampled_from(["", "", "cut", "down", "compact"]))
        if trouble == "cut":
            session.cut_watches()
        if trouble in ("down", "compact"):
            session.set_down(True)
        _apply(store, kind, key, value)
        if trouble == "compact":
            store.compact(store.revision)
        session.set_down(False)
    assert view == {kv.key: kv.value for kv in store.range("/").kvs}


def _apply(store: MemoryStore, kind: str, key: str, value: object) -> None:
    if kind == "put":
        assert isinstance(value, bytes)
        store.apply(Txn((), (Put(key, value),)))
    elif kind == "delete":
        store.apply(Txn((), (Delete(key, prefix=bool(value)),)))
    else:
        assert isinstance(value, bytes)
        store.apply(Txn((Compare(key, Target.VALUE, value),), (Delete(key),), (Put(key, value),)))

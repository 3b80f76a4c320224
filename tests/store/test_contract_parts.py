"""The store's contract for parts of a prefix: what is counted, limited, left out or only heard of when it goes."""

from __future__ import annotations

import pytest

from elastic_health.rendezvous.store import Delete, Get, Put, Txn
from tests.store.conftest import Place
from tests.store.shapes import Heard, put


def filled(place: Place, prefix: str) -> int:
    """Returns the revision before the first of four keys."""
    store = place.session()
    first = put(store, prefix + "budget", b"0")
    for name in ("candidates/a", "candidates/b", "current"):
        put(store, prefix + name, name.encode())
    return first


def test_what_stands_behind_a_part(place: Place, prefix: str) -> None:
    filled(place, prefix)
    store = place.session()
    assert [kv.key[len(prefix) :] for kv in store.range(prefix, after=prefix + "candidates/").kvs] == ["current"]
    assert [kv.key[len(prefix) :] for kv in store.range(prefix, limit=2).kvs] == ["budget", "candidates/a"]


def test_a_count_sees_what_was_there_before_its_own_put(place: Place, prefix: str) -> None:
    filled(place, prefix)
    count, key = Get(prefix + "candidates/", prefix=True, count=True), prefix + "candidates/c"
    done = place.session().txn(Txn((), (count, Put(key, b""), count)))
    assert [(r.count, r.kvs) for r in done.reads] == [(2, ()), (3, ())]


@pytest.mark.spec("R1")
def test_a_watch_behind_a_part_and_one_of_what_goes(place: Place, prefix: str) -> None:
    start = filled(place, prefix)
    store, behind, gone = place.session(), Heard(), Heard()
    store.watch(prefix, start, behind.batch, after=prefix + "candidates/")
    store.watch(prefix + "candidates/", start, gone.batch, deletions=True)
    put(store, prefix + "candidates/a", b"again")
    store.txn(Txn((), (Delete(prefix + "candidates/a"), Put(prefix + "current", b"2"), Put(prefix + "budget", b"1"))))
    last = put(store, prefix + "verdicts/1", b"3")
    place.wait(lambda: behind.batches and behind.batches[-1].revision == last, "the last change is heard")
    place.wait(lambda: gone.events, "the deletion is heard")
    assert behind.values == [b"current", b"2", b"3"]
    assert [(e.kv.key[len(prefix) :], e.deleted) for e in gone.events] == [("candidates/a", True)]
    assert gone.events[0].kv.mod_revision == last - 1


def test_they_go_on_over_cut_streams(place: Place, prefix: str) -> None:
    store, gone = place.session(), Heard()
    start = filled(place, prefix)
    store.watch(prefix + "candidates/", start, gone.batch, gone.trouble.append, deletions=True)
    writer = place.session()
    for i in range(20):
        writer.txn(Txn((), (Put(prefix + f"candidates/n{i:02d}", b""),)))
        writer.txn(Txn((), (Delete(prefix + f"candidates/n{i:02d}"),)))
        if i == 10:
            place.cut()
            writer.get(prefix)  # a read is repeated until it is answered; a write on a cut connection would be ambiguous
    place.wait(lambda: len(gone.events) == 20, "all deletions are heard once", 30.0)
    assert [e.kv.key[-2:] for e in gone.events] == [f"{i:02d}" for i in range(20)]

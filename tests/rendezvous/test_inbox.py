"""Events made fewer: the same facts in the same order, and nothing taken together that hangs on the phase."""

from __future__ import annotations

from hypothesis import given, strategies as st

from elastic_health.messages import Ping
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.inbox import merged
from elastic_health.rendezvous.store import KeyValue, TxnResult, WatchBatch, WatchEvent
from elastic_health.rendezvous.view import Part, View, apply
from tests.rendezvous.shapes import KEYS

_KEYS = (KEYS.skip("1"), KEYS.skip("2"), KEYS.current)
_VALUE = {KEYS.current: b'{"generation":1}'}


def changed(revision: int, key: str, deleted: bool, snapshot: bool, part: Part) -> ev.StoreChanged:
    kv = KeyValue(key, b"" if deleted and not snapshot else _VALUE.get(key, b'{"start":1,"end":2}'), revision, revision, 1)
    batch = WatchBatch(revision, (), True, (kv,)) if snapshot else WatchBatch(revision, (WatchEvent(deleted, kv),))
    return ev.StoreChanged(batch, part=part)


CHANGES = st.tuples(st.sampled_from(_KEYS), st.booleans(), st.integers(0, 9).map(lambda n: n == 0), st.sampled_from((Part.ALL, Part.REST)))
OTHERS = st.sampled_from(
    (ev.Tick(), ev.LinkUp(("a", "x-0")), ev.LinkDown(("a", "x-0")), ev.PeerSaid(("a", "x-0"), Ping()), ev.TxnDone(1, TxnResult(True, 1)))
)


def taken(events: list[ev.Event]) -> tuple[View, list[ev.Event]]:
    """The view after all of them, and everything else in order."""
    view, others = View(), list[ev.Event]()
    for event in events:
        for fact in event.facts if isinstance(event, ev.Together) else (event,):
            if isinstance(fact, ev.StoreChanged):
                view = apply(view, fact.batch, KEYS, part=fact.part)
            else:
                others.append(fact)
    return view, others


@given(st.lists(st.one_of(CHANGES, OTHERS), max_size=30))
def test_the_same_facts_in_the_same_order(drawn: list[tuple[str, bool, bool, Part] | ev.Event]) -> None:
    events = [changed(i, *d) if isinstance(d, tuple) else d for i, d in enumerate(drawn, 2)]
    fewer = merged(events)
    assert taken(fewer) == taken(events)
    assert len(fewer) <= len(events)


def test_a_storm_becomes_one_event() -> None:
    storm = [changed(i, KEYS.skip(str(i)), False, False, Part.ALL) for i in range(2, 500)]
    (one,) = merged(storm)
    assert isinstance(one, ev.StoreChanged) and len(one.batch.events) == 498 and one.batch.revision == 499


def test_an_answer_is_taken_alone() -> None:
    up, done = ev.LinkUp(("a", "x-0")), ev.TxnDone(1, TxnResult(True, 1))
    assert merged([up, done, up, up]) == [up, done, ev.Together((up, up))]

"""What an agent knows of the store: changes, snapshots, and values that nobody of us wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from elastic_health.codec import dump
from elastic_health.generations import CheckpointRecord, StoreAddress
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.store import KeyValue, WatchBatch, WatchEvent
from elastic_health.rendezvous.view import View, apply
from elastic_health.windows import Window
from tests.rendezvous.shapes import KEYS, entry, generation, verdict

FLEET = FleetKeys(KEYS.prefix)
CHECKPOINT = CheckpointRecord(5, 1, "step-5", 5, 2, None, "m")
VALUES = {
    KEYS.current: b'{"v":1,"generation":1}',
    KEYS.generation(1): dump(generation(1, "a"), at="", by="a"),
    KEYS.verdict(1): dump(verdict(1), at="", by="a"),
    KEYS.store(1): dump(StoreAddress("a", 1, ""), at="", by="a"),
    KEYS.checkpoint(CHECKPOINT.name): dump(CHECKPOINT, at="", by="a"),
    KEYS.skip("1"): b'{"start":1,"end":2}',
    KEYS.budget: b'{"restarts":3}',
    KEYS.candidate("a", "x-0"): dump(entry("a").candidate, at="", by="a"),
    FLEET.quarantined_node("b"): b'{"reason":"hot"}',
}


def put(key: str, value: bytes, revision: int = 7) -> WatchEvent:
    return WatchEvent(False, KeyValue(key, value, revision, revision, 1, 9 if key.startswith(KEYS.candidates) else 0))


def gone(key: str, revision: int = 9) -> WatchEvent:
    return WatchEvent(True, KeyValue(key, b"", 0, revision, 0))


def changed(view: View, *events: WatchEvent) -> View:
    return apply(view, WatchBatch(max((e.kv.mod_revision for e in events), default=0), events), KEYS)


def full() -> View:
    return changed(View(), *(put(k, v) for k, v in VALUES.items()))


@pytest.mark.spec("R1")
def test_every_key_has_its_place() -> None:
    v = full()
    assert (v.current, v.current_mod, v.revision, v.budget.restarts) == (1, 7, 7, 3)
    assert v.generation == generation(1, "a")
    assert v.verdict == verdict(1)
    assert v.stores[1].host == "a"
    assert (v.checkpoints, v.checkpoint_mods) == ({CHECKPOINT.name: CHECKPOINT}, {CHECKPOINT.name: 7})
    assert v.skip_windows == (Window(1, 2),)
    assert list(v.candidates) == [("a", "x-0")]
    assert v.barred("b", 0.0) is not None
    assert not v.unreadable


@pytest.mark.spec("R1")
def test_deleting_every_key_leaves_nothing() -> None:
    v = changed(full(), *(gone(k) for k in VALUES))
    assert v == View(revision=9)


@pytest.mark.spec("R1")
def test_a_snapshot_replaces_all_that_it_speaks_of() -> None:
    run = apply(full(), WatchBatch(20, (), True, ()), KEYS)
    assert (run.current, run.candidates, run.checkpoints, run.revision) == (0, {}, {}, 20)
    assert run.barred("b", 0.0) is not None
    fleet = apply(full(), WatchBatch(20, (), True, ()), KEYS, fleet=True)
    assert fleet.barred("b", 0.0) is None
    assert fleet.current == 1


@pytest.mark.spec("R1")
@given(st.lists(st.tuples(st.sampled_from(sorted(VALUES)), st.booleans()), max_size=20))
def test_changes_one_by_one_end_where_a_snapshot_does(steps: list[tuple[str, bool]]) -> None:
    view, store = View(complete=True), dict[str, KeyValue]()
    for revision, (key, there) in enumerate(steps, 2):
        event = put(key, VALUES[key], revision) if there else gone(key, revision)
        view = changed(view, event)
        store.pop(key, None)
        if there:
            store[key] = event.kv
    run = tuple(kv for k, kv in store.items() if k.startswith(KEYS.root))
    fleet = tuple(kv for k, kv in store.items() if not k.startswith(KEYS.root))
    at = len(steps) + 1 if steps else 0
    listed = apply(apply(View(), WatchBatch(at, (), True, run), KEYS), WatchBatch(at, (), True, fleet), KEYS, fleet=True)
    assert listed == view


@pytest.mark.spec("R1")
def test_a_view_is_never_changed() -> None:
    before = full()
    kept = repr(before)
    changed(before, gone(KEYS.current), put(KEYS.candidate("a", "x-0"), b"nonsense"))
    assert repr(before) == kept


# ---- what nobody of us wrote
_SEGMENT = st.one_of(st.text(min_size=1, max_size=12), st.sampled_from(["²", "1" * 5000, "0000000001", "a.x-0", "-1", ".", "1.1"]))
_ROOMS = st.sampled_from(
    [KEYS.candidates, KEYS.generations, KEYS.verdicts, f"{KEYS.root}stores/", KEYS.checkpoints, KEYS.skips, FLEET.quarantine + "nodes/"]
)
_KEYS = st.one_of(st.sampled_from(sorted(VALUES)), st.builds(lambda room, s: room + s, _ROOMS, _SEGMENT), st.text(max_size=30))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["v", "generation", "start", "end", "until", "node"]), inner, max_size=4)
    ),
    max_leaves=6,
)
_RAW = st.one_of(
    st.binary(max_size=20),
    _JSON.map(lambda x: json.dumps(x).encode()),
    st.sampled_from(sorted(VALUES.values())),
    st.just(b"[" * 100_000),
    st.builds(
        lambda raw, at, junk: raw[:at] + junk + raw[at:],
        st.sampled_from(sorted(VALUES.values())),
        st.integers(0, 40),
        st.binary(max_size=3),
    ),
)


@pytest.mark.spec("R1")
@given(st.lists(st.tuples(_KEYS, _RAW, st.booleans()), max_size=6))
def test_no_key_and_no_value_stops_an_agent(steps: list[tuple[str, bytes, bool]]) -> None:
    view = full()
    for revision, (key, raw, there) in enumerate(steps, 10):
        view = changed(view, put(key, raw, revision) if there else gone(key, revision))
    assert view.revision >= 7


@pytest.mark.spec("R1")
@pytest.mark.parametrize("key", [k for k in sorted(VALUES) if k.startswith(KEYS.root)])
def test_an_unreadable_value_counts_as_absent_and_is_named(key: str) -> None:
    broken = changed(full(), put(key, b"{", 11))
    absent = changed(full(), gone(key, 11))
    assert list(broken.unreadable) == [key]
    assert key in broken.unreadable[key]
    assert apply(broken, WatchBatch(0), KEYS) == broken
    assert {**broken.__dict__, "unreadable": {}} == absent.__dict__
    assert not changed(broken, put(key, VALUES[key], 12)).unreadable
    assert not changed(broken, gone(key, 12)).unreadable
    assert not apply(broken, WatchBatch(12, (), True, ()), KEYS).unreadable


@pytest.mark.spec("R7")
def test_a_quarantine_that_cannot_be_read_still_bars_its_node() -> None:
    key = FLEET.quarantined_node("b")
    broken = changed(full(), put(key, b"yes, please", 11))
    barred = broken.barred("b", 1e12)
    assert barred is not None and key in barred.reason and list(broken.unreadable) == [key]
    freed = changed(broken, gone(key, 12))
    assert freed.barred("b", 0.0) is None and not freed.unreadable


@pytest.mark.spec("R2")
def test_a_candidate_that_nobody_holds_a_lease_of_is_none() -> None:
    """A plain `etcdctl put` over it takes the lease away: it would stand there for ever."""
    key = KEYS.candidate("a", "x-0")
    v = changed(full(), WatchEvent(False, KeyValue(key, VALUES[key], 7, 11, 2)))
    assert not v.candidates and "lease" in v.unreadable[key]


def test_messages_stay_short_whatever_was_written() -> None:
    v = changed(View(), put(KEYS.budget, b'{"restarts": "' + b"x" * 1_000_000 + b'"}'), put(KEYS.skip("\udcff\n" * 500), b"{"))
    assert len(v.unreadable) == 2
    assert all(len(text) < 2000 and text.isprintable() for text in v.unreadable.values())


@pytest.mark.parametrize("v", [0, 2, True, "1", None])
def test_another_schema_is_not_guessed_at(v: object) -> None:
    found = changed(View(), put(KEYS.current, json.dumps({"v": v, "by": "node-z", "generation": 1}).encode()))
    assert "node-z" in found.unreadable[KEYS.current] and "use one version" in found.unreadable[KEYS.current]


@pytest.mark.spec("R1")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEYS.generation(2), dump(generation(1, "a"), at="", by="a")),
        (KEYS.verdict(2), dump(verdict(1), at="", by="a")),
        (KEYS.checkpoint("000000000009.000001"), dump(CHECKPOINT, at="", by="a")),
        (KEYS.candidate("z", "x-0"), dump(entry("a").candidate, at="", by="a")),
        (KEYS.skip("1"), b'{"start":5,"end":5}'),
    ],
)
def test_a_value_that_speaks_of_another_key_is_not_taken(key: str, value: bytes) -> None:
    v = changed(View(), put(key, value))
    assert list(v.unreadable) == [key]
    assert not (v.generations or v.verdicts or v.checkpoints or v.candidates or v.skips)

"""Member lists too long for one key: parts first, then the generation that names them; nothing half-written is ever believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_health.codec import load
from elastic_health.errors import DataError
from elastic_health.generations import Candidate, CandidateState, Generation, MemberShard, RunSpec, whole
from elastic_health.recovery.snapshot import snapshot
from elastic_health.rendezvous import events as ev, fence, gather, listing
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.loop_net import answer
from elastic_health.rendezvous.membership import start, step
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.state import Me, Purpose, Settings
from elastic_health.rendezvous.store import Put, Store, Txn, WatchBatch
from elastic_health.rendezvous.view import View, apply
from tests.etcd_fixture import EtcdCluster, one_etcd
from tests.rendezvous.group import KEYS, Agent, Group

__all__ = ["one_etcd"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if two members filled a key."""
    monkeypatch.setattr(listing, "WHOLE_BYTES", 300)
    monkeypatch.setattr(listing, "SHARD_MEMBERS", 2)


def stored(group: Group, number: int) -> Generation:
    kv = group.store.get(KEYS.generation(number))
    assert kv is not None
    return load(Generation, kv.value, kv.key)


@pytest.mark.spec("R2")
@pytest.mark.usefixtures("short")
def test_a_long_list_is_written_in_parts_and_read_whole() -> None:
    group = Group(5, 5)
    group.add("a", "b", "c", "d", "e")
    record = stored(group, 1)
    assert record.members == () and len(record.shards) == 3
    assert group.members() == ["a", "b", "c", "d", "e"]
    assert all(a.state.rank == i for i, a in enumerate(group.agents))
    assert [m.node for m in snapshot(KEYS, group.store.range(KEYS.root).kvs).generations[1].members] == group.members()


@pytest.mark.usefixtures("short")
def test_the_next_generation_writes_its_own_parts() -> None:
    group = Group(4, 5)
    group.add("a", "b", "c", "d", "e")
    group.agents[2].kill()
    group.wait(30.0)
    assert group.members() == ["a", "b", "d", "e"]
    assert not set(stored(group, 1).shards) & set(stored(group, 2).shards)


@pytest.mark.usefixtures("short")
def test_a_part_whose_answer_is_lost_is_never_used() -> None:
    """It may land late: the next attempt has names of its own."""
    group = Group(3, 3)
    group.add("a", "b")
    former: Agent = group.agents[0]
    former.withheld.add(Purpose.SHARD)
    group.add("c")
    sent = next(s for s in former.state.sent.values() if s.purpose is Purpose.SHARD)
    former.withheld.clear()
    former.feed(ev.TxnFailed(sent.id, True, "no answer"))
    group.wait(1.5)
    assert group.members() == ["a", "b", "c"]
    assert sent.names[0] not in stored(group, 1).shards
    before = group.store.revision
    group.store.apply(sent.txn)
    group.run()
    assert group.store.revision == before + 1 and group.members() == ["a", "b", "c"]


def test_a_missing_part_makes_the_record_unreadable_and_says_which() -> None:
    g = replace(Generation(1, *(None,) * 5, RunSpec(1, 2, "")), shards=("one", "two"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="two"):
        whole(g, {"one": MemberShard(())})


def test_a_short_list_stays_in_the_record() -> None:
    group = Group(2, 2)
    group.add("a", "b")
    assert [m.node for m in stored(group, 1).members] == ["a", "b"] and stored(group, 1).shards == ()


NODES, NAME = 6000, "gpu-worker-{:05d}-xxxxxxxxxxxxxxxxxxxxxxxxx"


def candidates(store: Store, keys: RunKeys, spec: RunSpec, lease: int) -> None:
    """All but the former, a hundred at a time."""
    stamp = fence.Stamp("", "test")
    for first in range(1, NODES, 100):
        puts = []
        for i in range(first, min(first + 100, NODES)):
            node = NAME.format(i)
            c = Candidate(node, f"{i:08x}-0", CandidateState.READY, f"{node}:29400", 8, spec)
            puts.append(Put(keys.candidate(c.node, c.incarnation), stamp.value(c), lease))
        store.txn(Txn((), tuple(puts)))


@pytest.mark.spec("R2")
@pytest.mark.slow
def test_six_thousand_nodes_form_on_a_real_etcd(one_etcd: EtcdCluster) -> None:
    """Their members are 1.4 MB, near the 1.5 MiB that etcd takes in a request, and above what a record holds."""
    keys, spec = RunKeys("long"), RunSpec(NODES, NODES, "digest")
    store = EtcdSession.connect(one_etcd.endpoints)
    state = start(Settings(keys, Me(NAME.format(0), "00000000", "a:1", 8, spec)), ev.Clock(0.0, 1.7e9))
    todo: list[ev.Event] = [ev.StoreChanged(WatchBatch(1, (), True), fleet) for fleet in (True, False)]
    lease = store.grant(60.0)
    todo.append(ev.LeaseHeld(lease.id, 0.0, lease.ttl_s))
    purposes: list[Purpose] = []
    try:
        while Purpose.FORM not in purposes:
            if not todo:
                todo.append(ev.Tick())
            state, effects = step(state, todo.pop(0), ev.Clock(1.0, 1.7e9))
            for e in effects:
                if isinstance(e, ev.Send):
                    purposes.append(state.sent[e.id].purpose)
                    todo.append(answer(e.id, store.txn(e.txn)))
                if isinstance(e, ev.RunPreflight):
                    candidates(store, keys, spec, lease.id)
                    todo.append(ev.PreflightDone(True))
            if purposes[-1:] == [Purpose.READY] and not any(isinstance(e, ev.StoreChanged) for e in todo):
                found = store.range(keys.root)
                todo.append(ev.StoreChanged(WatchBatch(found.revision, (), True, found.kvs)))
                purposes.append(Purpose.CHECKING)
        assert purposes.count(Purpose.SHARD) == 6
        found = store.range(keys.root)
        view = apply(View(), WatchBatch(found.revision, (), True, found.kvs), keys)
        assert view.generation is not None and view.generation.world_size == 8 * NODES
        assert [m.node for m in view.generation.members] == [NAME.format(i) for i in range(NODES)]
        assert gather.ranked(view.candidates.values()) == view.generation.members
    finally:
        store.close()

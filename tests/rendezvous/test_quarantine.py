"""The quarantine list: what any value means, what holds, and the breaker over automatic entries."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from elastic_health.codec import dump
from elastic_health.errors import ConfigError
from elastic_health.rendezvous import quarantine as q
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.store import KeyValue, Put, Txn, WatchBatch
from elastic_health.rendezvous.view import View, apply

pytestmark = pytest.mark.spec("R7")
KEYS = FleetKeys()
NOW = 1_800_000_000.0


def kv(key: str, value: bytes, mod: int = 7) -> KeyValue:
    return KeyValue(key, value, 5, mod, 1)


def one(value: bytes, key: str = KEYS.quarantined_node("n1")) -> q.Entry:
    (entry,), strays = q.read([kv(key, value)], KEYS)
    assert not strays
    return entry


def bars_in_the_view(value: bytes, now: float) -> bool:
    """What every agent decides by."""
    batch = WatchBatch(9, (), True, (kv(KEYS.quarantined_node("n1"), value),))
    return apply(View(), batch, RunKeys("job"), fleet=True).barred("n1", now) is not None


# ---- values


@pytest.mark.parametrize(
    ("value", "reason", "until"),
    [
        (b"", "", 0.0),
        (b"{}", "", 0.0),
        (b"its fan is broken", "its fan is broken", 0.0),
        (b'{"reason": "hot"}', "hot", 0.0),
        (b'{"until": 1900000000, "by": "ann"}', "", 1.9e9),
        (b'{"reason": 5, "signature": "xid 79", "until": 1900000000}', "", 0.0),
        (b'{"until": "tomorrow", "reason": "hot"}', "hot", 0.0),
        (b'{"v": 9, "reason": "of a later version", "until": 1}', "of a later version", 0.0),
        (b"[1, 2]", "[1, 2]", 0.0),
        (b"null", "null", 0.0),
        (b"\xff\xfe", "\\xff\\xfe", 0.0),
        (b'{"until": NaN}', "", math.nan),
        (b"[" * 100_000, "[" * 80 + "…", 0.0),
    ],
)
def test_whatever_a_person_writes_is_in_quarantine(value: bytes, reason: str, until: float) -> None:
    entry = one(value)
    assert entry.holds(NOW) and bars_in_the_view(value, NOW)
    assert entry.said.reason == reason and (entry.said.until == until or math.isnan(until))
    assert entry.resource == q.node("n1")


def test_what_can_be_read_of_a_broken_value_is_shown() -> None:
    entry = one(b'{"reason": 5, "signature": "xid 79", "incidents": ["01A"], "by": "ann@host", "at": "2026-01-01T00:00:00Z"}')
    assert (entry.said.signature, entry.said.incidents) == ("xid 79", ("01A",))
    assert entry.stamps == q.Stamps("ann@host", "2026-01-01T00:00:00Z") and "reason" in entry.note


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["reason", "until", "since", "v", "by", "x"]), inner),
    max_leaves=8,
)


@given(st.binary(max_size=40) | json_values.map(lambda v: json.dumps(v).encode()), st.floats(0, 4e9))
def test_the_list_and_every_agent_agree(value: bytes, now: float) -> None:
    assert one(value).holds(now) == bars_in_the_view(value, now)


@given(st.binary(max_size=20), st.floats(1, 4e9), st.floats(0, 4e9))
def test_only_a_readable_end_that_has_come_ends_it(value: bytes, until: float, now: float) -> None:
    assert one(value).holds(now), "no such value has an end"
    assert one(json.dumps({"until": until}).encode()).holds(now) == (now < until)


def test_what_is_written_is_what_is_read() -> None:
    said = q.Quarantine("ECC errors", "device_error:gpu", ("01A", "01B"), NOW, NOW + 60, True)
    entry = one(dump(said, at="2026-01-01T00:00:00Z", by="n9"))
    assert entry.said == said and entry.stamps.by == "n9" and not entry.note
    assert entry.holds(NOW + 59) and not entry.holds(NOW + 60)


# ---- keys


def test_each_kind_has_its_key_and_is_read_back() -> None:
    spelt = {
        q.node("n1"): "/elastic-health/quarantine/nodes/n1",
        q.gpu("GPU-1f3e"): "/elastic-health/quarantine/gpus/GPU-1f3e",
        q.nic("n1", "mlx5_0"): "/elastic-health/quarantine/nics/n1/mlx5_0",
        q.route("n2", "n1"): "/elastic-health/quarantine/routes/n1+n2",
    }
    for resource, key in spelt.items():
        assert resource.key(KEYS) == key and q.resource_of(key, KEYS) == resource
    assert KEYS.quarantined_route("n2", "n1") == KEYS.quarantined_route("n1", "n2")
    assert q.route("n1", "n2") == q.route("n2", "n1") == q.resource_of(KEYS.quarantine + "routes/n2+n1", KEYS)


@pytest.mark.parametrize(
    "tail", ["", "nodes", "nodes/", "gpus/", "nics/n1", "nics/n1/", "nics//x", "routes/a", "routes/a+", "routes/+b", "rooms/x", "n1"]
)
def test_a_key_that_stands_for_nothing_is_named(tail: str) -> None:
    assert q.read([kv(KEYS.quarantine + tail, b"{}")], KEYS) == ((), (KEYS.quarantine + tail,))
    assert q.read([kv(KEYS.quarantine_turn, b"{}")], KEYS) == ((), ())


@pytest.mark.parametrize("bad", ["", "a/b", "a+b", "-x", "é", "x" * 254, "a b"])
def test_names_that_no_key_can_hold_are_refused(bad: str) -> None:
    for make in (q.node, q.gpu, lambda n: q.nic("n1", n), lambda n: q.nic(n, "eth0"), lambda n: q.route("n1", n)):
        with pytest.raises(ConfigError):
            make(bad)
    with pytest.raises(ConfigError, match="twice"):
        q.route("n1", "n1")


def test_who_is_concerned() -> None:
    values = [
        KEYS.quarantined_node("n2"),
        KEYS.quarantined_gpu("GPU-1"),
        KEYS.quarantined_nic("n1", "ib0"),
        KEYS.quarantined_nic("n2", "ib1"),
    ]
    values += [KEYS.quarantined_route("n1", "n2")]
    entries, _ = q.read([kv(key, b"") for key in values], KEYS)

    def names(node: str, gpus: tuple[str, ...], nics: tuple[str, ...]) -> list[str]:
        return [str(e.resource) for e in q.concerning(entries, node, gpus, nics, NOW)]

    assert names("n1", ("GPU-0",), ("ib1",)) == [], "a route, and another node's card of that name, keep nobody out"
    assert names("n1", ("GPU-1",), ("ib0",)) == ["gpu GPU-1", "nic n1/ib0"]
    assert names("n2", (), ()) == ["node n2"]


# ---- the breaker


def entry(
    resource: q.Resource, signature: str = "dcgm:pcie", since: float = NOW - 60, until: float = 0.0, automatic: bool = True
) -> q.Entry:
    return q.Entry(resource, resource.key(KEYS), q.Quarantine("", signature, (), since, until, automatic))


def nodes(n: int, **more: Any) -> list[q.Entry]:
    return [entry(q.node(f"n{i}"), **more) for i in range(n)]


LIMITS = q.Limits()


def may(existing: list[q.Entry], fleet: int = 100, name: str = "new", signature: str = "dcgm:pcie") -> tuple[bool, str]:
    return q.may_quarantine(existing, q.node(name), signature, NOW, fleet, LIMITS)


def test_many_alike_speak_of_the_set_up() -> None:
    """NVIDIA/DCGM#254: the pcie test fails on every GPU of every node after an upgrade."""
    assert may([]) == (True, "") and may(nodes(1)) == (True, "")
    allowed, why = may(nodes(2))
    assert not allowed and "n0, n1" in why and "dcgm:pcie" in why and "look at what they share" in why


def test_others_do_not_count() -> None:
    for some in (
        nodes(5, automatic=False),  # a person's
        nodes(5, since=NOW - LIMITS.window_s),  # long ago
        nodes(5, signature="xid 79"),  # for something else
        [entry(q.gpu(f"GPU-{i}")) for i in range(5)],  # of another kind
    ):
        assert may(some) == (True, ""), some
    assert may([entry(q.node("new")), *nodes(1)]) == (True, ""), "no node counts against itself"


def test_one_that_does_not_say_since_when_counts_as_new() -> None:
    assert not may([*nodes(1, since=math.nan), *nodes(2)[1:]])[0]


def test_expired_ones_count_as_alike_but_not_as_out() -> None:
    assert not may(nodes(2, until=NOW - 1))[0]
    apart = [entry(q.node(f"n{i}"), signature=f"s{i}", until=NOW - 1) for i in range(50)]
    assert may(apart) == (True, "")


def test_a_tenth_of_the_fleet_is_the_most_whatever_they_failed_by() -> None:
    apart = [entry(q.node(f"n{i}"), signature=f"s{i}") for i in range(10)]
    assert may(apart[:9]) == (True, "")
    allowed, why = may(apart)
    assert not allowed and "10 of a fleet of 100" in why
    assert may(apart, fleet=0) == (True, ""), "a share of what nobody knows says nothing"


@example(4, 0)
@settings(max_examples=40)
@given(st.integers(1, 60) | st.just(3000), st.integers(0, 40))
def test_never_half_of_the_fleet(fleet: int, signatures: int) -> None:
    """However they fail: as many as ask, one after another, with few or many signatures."""
    there: list[q.Entry] = []
    for i in range(min(fleet, 60)):
        signature = f"s{i % (signatures + 1)}"
        if may(there, fleet, f"n{i}", signature)[0]:
            there.append(entry(q.node(f"n{i}"), signature))
    assert 1 <= len(there) and (2 * len(there) < fleet or len(there) == 1)


# ---- automatic entries


class Fleet:
    """An in-memory store, and nodes that propose themselves."""

    def __init__(self) -> None:
        self.memory = MemoryStore()

    def kvs(self) -> tuple[KeyValue, ...]:
        return self.memory.range(KEYS.quarantine).kvs

    def propose(self, name: str, kvs: tuple[KeyValue, ...] | None = None, fleet: int = 2048, now: float = NOW) -> q.Proposal:
        said = q.Quarantine("absent", "absent", (), now, 0.0, True)
        seen = self.kvs() if kvs is None else kvs
        return q.propose(seen, KEYS, q.node(name), said, dump(said, at="", by=name), fleet, LIMITS, b"{}")

    def held(self) -> set[str]:
        return {e.resource.name for e in q.active(q.read(self.kvs(), KEYS)[0], NOW)}


def test_only_a_few_of_2048_that_fail_in_the_same_instant() -> None:
    """flux-framework/flux-core#7663: one node missed the start barrier, and all 2048 were drained.

    All look before any writes (so many of them as decide anything); each whose transaction is refused looks again."""
    fleet, asking = Fleet(), [f"n{i}" for i in range(60)]
    bound = int(LIMITS.alike_share * 2048)
    for _ in range(bound + 2):
        seen = fleet.kvs()
        proposals = {name: fleet.propose(name, seen) for name in asking}
        asking = [n for n, p in proposals.items() if p.txn is not None and not fleet.memory.apply(p.txn).succeeded]
    assert len(fleet.held()) == bound and not asking
    assert "look at what they share" in fleet.propose("n2047").why


def test_one_absent_of_many_is_the_only_one_marked() -> None:
    """flux-framework/flux-core#7663"""
    fleet = Fleet()
    proposal = fleet.propose("n7")
    assert proposal.txn is not None and fleet.memory.apply(proposal.txn).succeeded
    assert fleet.held() == {"n7"}


def test_an_entry_that_holds_is_left_as_it_is_and_an_expired_one_replaced() -> None:
    fleet = Fleet()
    key = KEYS.quarantined_node("n1")
    fleet.memory.apply(Txn((), (Put(key, b"by hand"),)))
    assert fleet.propose("n1") == q.Proposal(None, "by hand", held=True)
    fleet.memory.apply(Txn((), (Put(key, json.dumps({"until": NOW - 1}).encode()),)))
    proposal = fleet.propose("n1")
    assert proposal.txn is not None and fleet.memory.apply(proposal.txn).succeeded and fleet.held() == {"n1"}


def test_a_person_who_writes_meanwhile_is_not_overwritten() -> None:
    fleet = Fleet()
    proposal = fleet.propose("n1")
    assert proposal.txn is not None
    fleet.memory.apply(Txn((), (Put(KEYS.quarantined_node("n1"), b"by hand"),)))
    assert not fleet.memory.apply(proposal.txn).succeeded
    assert fleet.propose("n1").held


def test_who_was_released_no_longer_counts() -> None:
    fleet = Fleet()
    for name in ("n1", "n2"):
        proposal = fleet.propose(name, fleet=100)
        assert proposal.txn is not None and fleet.memory.apply(proposal.txn).succeeded
    assert fleet.propose("n3", fleet=100).txn is None
    found = q.of(q.read(fleet.kvs(), KEYS)[0], q.node("n1"))
    assert fleet.memory.apply(q.release(found)).succeeded
    assert fleet.propose("n3", fleet=100).txn is not None


def test_two_spellings_of_a_route_are_one() -> None:
    fleet = Fleet()
    for tail in ("routes/b+a", "routes/a+b"):
        fleet.memory.apply(Txn((), (Put(KEYS.quarantine + tail, b""),)))
    found = q.of(q.read(fleet.kvs(), KEYS)[0], q.route("a", "b"))
    assert len(found) == 2
    assert fleet.memory.apply(q.put(found, KEYS.quarantined_route("a", "b"), b"{}")).succeeded
    assert [e.key for e in q.read(fleet.kvs(), KEYS)[0]] == [KEYS.quarantined_route("a", "b")]
    assert not fleet.memory.apply(q.release(found)).succeeded, "not as it was read"

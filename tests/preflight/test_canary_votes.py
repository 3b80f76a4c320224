"""Votes in the store: interleaved checks of many nodes, an upgrade node by node, lost answers, keys that others wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.codec import dump
from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.canary import Learned, Vote
from elastic_health.preflight.canary_etcd import MOST_VOTES, Fleet, cast, check_canary, judge_stored, look, write_learned
from elastic_health.preflight.canary_report import Report, Unit
from elastic_health.preflight.fingerprint import Fingerprint
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import Fault, FaultKind, MemorySession
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Delete, Put, Store, Txn
from tests.etcd_fixture import EtcdCluster, one_etcd
from tests.preflight.votes import AT, BAD, GOOD, OTHER, digest, gpu, key, report, vote

__all__ = ["one_etcd"]
pytestmark = pytest.mark.spec("P4")
KEYS = FleetKeys()


def new() -> MemorySession:
    return MemorySession(MemoryStore())


def check(
    store: Store | None, node: str, *values: str, fingerprint: Fingerprint | None = None, excluded: frozenset[str] = frozenset()
) -> CheckResult:
    fleet = Fleet(store, KEYS, excluded) if store else None
    return check_canary(fleet, report(node, *values, fingerprint=fingerprint), node, at=AT)


def learned(store: Store, fingerprint: Fingerprint | None = None) -> str | None:
    found = look(store, KEYS, fingerprint or key()).learned
    return found.digest if found else None


def named(result: CheckResult) -> set[str]:
    return {n for f in result.findings if f.kind is FindingKind.CANARY_MISMATCH for n in f.nodes}


def test_three_nodes_learn_and_a_fourth_is_held_to_it() -> None:
    store = new()
    assert [check(store, n, GOOD, GOOD).outcome for n in "abc"] == [Outcome.NOT_MEASURED, Outcome.NOT_MEASURED, Outcome.PASS]
    assert learned(store) == GOOD
    bad = check(store, "d", BAD, BAD)
    assert bad.outcome is Outcome.FAIL and named(bad) == {"d"} and set(bad.findings[0].gpus) == {gpu("d", 0), gpu("d", 1)}
    assert learned(store) == GOOD and check(store, "a", GOOD).outcome is Outcome.PASS


def test_what_a_node_writes_is_readable_with_etcdctl() -> None:
    store = new()
    for n in "abc":
        check(store, n, GOOD)
    ballot = store.get(KEYS.canary_vote(key().segment, "a"))
    record = store.get(KEYS.canary_learned(key().segment))
    assert ballot is not None and record is not None
    told = json.loads(ballot.value)
    assert (told["v"], told["at"], told["by"], told["devices"]) == (1, AT, "a", {gpu("a"): GOOD})
    fields = store.get(KEYS.canary_fingerprint(key().segment))
    assert fields is not None and json.loads(fields.value)["driver"] == "550.54.15" and json.loads(fields.value)["by"] == "a"
    told = json.loads(record.value)
    assert (told["digest"], told["names"], told["by"]) == (GOOD, ["a", "b"], "c")


def test_a_fleet_upgraded_node_by_node_fails_nobody() -> None:
    store, old, new_key = new(), key(), key(driver="560.35.03")
    nodes = [f"n{i}" for i in range(6)]
    for _ in range(2):
        for n in nodes:
            check(store, n, GOOD)
    assert learned(store, old) == GOOD
    for i, upgraded in enumerate(nodes):
        outcome = check(store, upgraded, OTHER, fingerprint=new_key).outcome
        assert outcome is (Outcome.NOT_MEASURED if i < 2 else Outcome.PASS)
        for n in nodes[i + 1 :]:
            assert check(store, n, GOOD).outcome is Outcome.PASS
    assert (learned(store, old), learned(store, new_key)) == (GOOD, OTHER)
    assert check(store, "n0", GOOD, fingerprint=new_key).outcome is Outcome.FAIL


@settings(max_examples=200)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=40), st.integers(3, 7), st.booleans())
def test_one_bad_unit_among_three_or_more_good_nodes_is_never_learned(turns: list[int], good: int, moody: bool) -> None:
    """Any order, any repeats; the bad one may compute other wrong bytes each time it is asked."""
    store, seen = new(), set[int]()
    for i, turn in enumerate(turns):
        n = turn % (good + 1)
        seen.add(n)
        value = GOOD if n else digest(f"bad {i if moody else 0}")
        result = check(store, f"n{n}", value)
        assert learned(store) in (None, GOOD)
        assert result.outcome is not Outcome.FAIL or n == 0, "a good node never fails"
        assert named(result) <= {"n0"}
        if len(seen - {0}) >= 2 and 0 in seen and len(seen) >= 3 and n == 0:
            assert result.outcome is Outcome.FAIL
    for n in range(1, good + 1):
        assert check(store, f"n{n}", GOOD).outcome is not Outcome.FAIL
    assert learned(store) == GOOD
    assert check(store, "n0", BAD).outcome is Outcome.FAIL


@settings(max_examples=100)
@given(st.permutations("aabbccdd"))
def test_a_vote_and_its_judgement_may_be_apart(turns: list[str]) -> None:
    """At its first turn a node votes, at its second one it judges, the others' turns between: only the good digest is
    learned, and by all four."""
    store, voted = new(), set[str]()
    for n in turns:
        own = [vote(n, BAD if n == "a" else GOOD)]
        if n in voted:
            assert judge_stored(Fleet(store), key(), own)[0].outcome is not Outcome.FAIL or n == "a"
        else:
            cast(store, KEYS, key(), own)
            voted.add(n)
        assert learned(store) in (None, GOOD)
    assert learned(store) == GOOD


def test_of_two_teachers_the_store_takes_one() -> None:
    store = new()
    assert write_learned(store, KEYS, key(), Learned(GOOD), at=AT, by="a")
    assert not write_learned(store, KEYS, key(), Learned(BAD), at=AT, by="b")
    assert learned(store) == GOOD


@pytest.mark.parametrize("kind", [FaultKind.REPLY_LOST, FaultKind.LOST])
def test_lost_answers_are_asked_again(kind: FaultKind) -> None:
    store = new()
    for n in "abc":
        store.faults.extend([Fault(kind), Fault(kind)])
        check(store, n, GOOD)
        store.faults.clear()
    assert learned(store) == GOOD and check(store, "d", BAD).outcome is Outcome.FAIL


def test_without_a_store_the_nodes_own_part_still_stands() -> None:
    down = new()
    down.set_down(True)
    for store in (None, down):
        assert check(store, "a", GOOD, GOOD).outcome is Outcome.NOT_MEASURED
        assert check(store, "a", GOOD, BAD).outcome is Outcome.FAIL


def test_a_flaky_device_fails_with_its_vote_withdrawn() -> None:
    store = new()
    for n in "abcd":
        check(store, n, GOOD)
    flaky = Report((Unit(gpu("a"), key(), (GOOD, BAD, GOOD), 3),), True, 1)
    result = check_canary(Fleet(store), flaky, "a", at=AT)
    assert result.outcome is Outcome.FAIL and "differs from itself" in result.summary
    assert {v.node for v in look(store, KEYS, key()).votes} == {"b", "c", "d"}


def test_dtypes_are_judged_apart() -> None:
    store = new()
    for n in "abc":
        for dtype in ("float32", "bfloat16"):
            check(store, n, GOOD, fingerprint=key(dtype=dtype))
    both = Report((*report("d", GOOD).units, *report("d", BAD, fingerprint=key(dtype="bfloat16")).units), True, 1)
    assert check_canary(Fleet(store), both, "d", at=AT).outcome is Outcome.FAIL


def test_excluded_nodes_are_not_heard() -> None:
    store = new()
    check(store, "x", BAD), check(store, "y", BAD)
    quarantined = frozenset({"x", "y"})
    for n in "abc":
        assert check(store, n, GOOD, excluded=quarantined).outcome is not Outcome.FAIL
    assert learned(store) == GOOD


def test_who_agrees_with_the_learned_digest_reads_no_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new()
    for n in "abc":
        check(store, n, GOOD)
    monkeypatch.setattr("elastic_health.preflight.canary_etcd.look", None)
    assert check(store, "d", GOOD).outcome is Outcome.PASS


def test_a_very_large_fleet_is_judged_by_some_of_its_votes() -> None:
    store = new()
    for i in range(MOST_VOTES + 200):
        cast(store, KEYS, key(), [vote(f"n{i}")])
    assert len(look(store, KEYS, key()).votes) == MOST_VOTES + 1
    assert check(store, "zz", BAD).outcome is Outcome.FAIL and learned(store) == GOOD


class Meanwhile(MemorySession):
    """Other nodes vote between this node's look and its wait: nothing of that may be missed."""

    def watch(self, *arguments: Any, **named: Any) -> Any:
        for n in "bc":
            cast(self, KEYS, key(), [vote(n)])
        return super().watch(*arguments, **named)


@pytest.mark.parametrize(("value", "outcome"), [(GOOD, Outcome.PASS), (BAD, Outcome.FAIL)])
def test_a_node_waits_for_votes_and_misses_none(value: str, outcome: Outcome) -> None:
    fleet = Fleet(Meanwhile(MemoryStore()), KEYS, wait_s=30.0)
    assert check_canary(fleet, report("a", value), "a", at=AT).outcome is outcome


def test_waiting_ends_without_votes_and_is_not_begun_without_need() -> None:
    store = new()
    began = time.monotonic()
    assert check_canary(Fleet(store, wait_s=0.05), report("a", GOOD), "a", at=AT).outcome is Outcome.NOT_MEASURED
    for n in "bcd":
        check(store, n, GOOD)
    assert check_canary(Fleet(store, wait_s=60.0), report("a", GOOD, BAD), "a", at=AT).outcome is Outcome.FAIL
    assert check_canary(Fleet(store, wait_s=60.0), report("a", GOOD), "a", at=AT).outcome is Outcome.PASS
    assert time.monotonic() - began < 20


# ---- what others wrote


def test_a_digest_corrupted_by_hand_fails_no_fleet() -> None:
    store = new()
    for n in "abcd":
        check(store, n, GOOD)
    path = KEYS.canary_learned(key().segment)
    store.txn(Txn((), (Put(path, dump(Learned(BAD), at=AT, by="somebody")),)))
    results = [check(store, n, GOOD) for n in "abcd"]
    assert {r.outcome for r in results} == {Outcome.NOT_MEASURED} and "agree on another digest" in results[0].summary
    assert learned(store) == BAD, "a person decides"
    store.txn(Txn((), (Delete(path),)))
    assert [check(store, n, GOOD).outcome for n in "abcd"] == [Outcome.PASS] * 4 and learned(store) == GOOD


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"digest": 3}', b'{"digest": "zz"}', b'{"v": 9, "digest": "zz"}', b"\xff\xfe"])
def test_unreadable_keys_count_as_absent_and_are_named(raw: bytes) -> None:
    store = new()
    path, stray = KEYS.canary_learned(key().segment), KEYS.canary_vote(key().segment, "stray")
    store.txn(Txn((), (Put(path, raw), Put(stray, raw))))
    results = [check(store, n, GOOD) for n in "abc"]
    assert [r.outcome for r in results] == [Outcome.NOT_MEASURED, Outcome.NOT_MEASURED, Outcome.PASS]
    notes = [f.reason for f in results[-1].findings]
    assert any(path in note and ("delete" in note or "one version" in note) for note in notes), notes
    assert check(store, "d", BAD).outcome is Outcome.FAIL, "by the votes"


def test_a_vote_corrupted_by_hand_names_its_node_until_that_votes_again() -> None:
    store = new()
    for n in "ab":
        check(store, n, GOOD)
    cast(store, KEYS, key(), [vote("b", OTHER)])
    result = check(store, "c", GOOD)
    assert result.outcome is Outcome.PASS and named(result) == {"b"} and result.findings[0].level is Level.NOTE
    assert check(store, "b", GOOD).outcome is Outcome.PASS and not named(check(store, "c", GOOD))


# ---- a real etcd


@pytest.fixture
def session(one_etcd: EtcdCluster) -> Iterator[EtcdSession]:
    store = EtcdSession.connect(one_etcd.endpoints)
    yield store
    store.close()


def test_on_a_real_etcd(session: EtcdSession) -> None:
    assert look(session, KEYS, key()).votes == ()
    outcomes = [check(session, n, value).outcome for n, value in zip("xabcx", (BAD, GOOD, GOOD, GOOD, BAD), strict=True)]
    assert outcomes == [Outcome.NOT_MEASURED, Outcome.NOT_MEASURED, Outcome.PASS, Outcome.PASS, Outcome.FAIL]
    assert learned(session) == GOOD
    assert Vote("x", gpu("x"), BAD, AT) in look(session, KEYS, key()).votes


def test_three_nodes_that_start_together_on_a_real_etcd_name_the_bad_one(session: EtcdSession) -> None:
    def join(n: str) -> CheckResult:
        return check_canary(Fleet(session, KEYS, wait_s=20.0), report(n, BAD if n == "a" else GOOD), n, at=AT)

    with ThreadPoolExecutor(3) as pool:
        results = dict(zip("abc", pool.map(join, "abc"), strict=True))
    assert {n: r.outcome for n, r in results.items()} == {"a": Outcome.FAIL, "b": Outcome.PASS, "c": Outcome.PASS}
    assert results["a"].findings[0].nodes == ("a",)

"""What the fleet remembers of a node's preflights, and when a node that keeps failing goes into quarantine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_health.findings import Finding, FindingKind
from elastic_health.preflight.breaker import BreakerPolicy
from elastic_health.preflight.checks import CheckSpec, Kind, Stage
from elastic_health.preflight.gate import Decision, decide
from elastic_health.preflight.policy import PreflightPolicy, QuarantineAfter
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.preflight.standing import Standing, after, checked, failures, repaired
from elastic_health.preflight.standing_etcd import note_quarantine, read, read_all, settle, write
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import MemorySession
from elastic_health.rendezvous.store import Put, Txn

pytestmark = pytest.mark.spec("P7", "R7")
KEYS, AT = FleetKeys(), "2026-01-01T00:00:00Z"
SPEC = CheckSpec("raid", Kind.OWN, frozenset(Stage))
TWICE = PreflightPolicy(quarantine=QuarantineAfter(2, 600.0))


def decision(node: str, outcome: Outcome = Outcome.FAIL, *, observe_only: bool = False, signature: str = "raid:degraded") -> Decision:
    findings = (Finding(FindingKind.OWN_CHECK, "degraded", signature=signature),) if outcome is Outcome.FAIL else ()
    return decide(Stage.JOIN, node, (SPEC,), [CheckResult("raid", outcome, findings)], observe_only=observe_only)


def barred(store: MemorySession, node: str) -> bool:
    return store.get(KEYS.quarantined_node(node)) is not None


def test_an_admission_ends_the_count() -> None:
    once = after(None, decision("a"), "job", 1.0)
    twice = after(once, decision("a"), "job", 2.0)
    assert (once.failures, twice.failures, twice.signatures, twice.run) == (1, 2, ("raid:degraded",), "job")
    fine = after(replace(twice, quarantined=True), decision("a", Outcome.PASS), "job", 3.0)
    assert (fine.failures, fine.signatures, fine.reason, fine.quarantined, fine.since) == (0, (), "", False, 3.0)


def test_who_was_in_quarantine_comes_back_from_a_repair() -> None:
    assert not repaired(None) and not repaired(Standing("a", failures=3)) and repaired(Standing("a", quarantined=True))
    assert repaired(after(Standing("a", quarantined=True), decision("a"), "job", 1.0)), "it failed again: still not admitted since"


def test_what_the_breaker_counts() -> None:
    some = [Standing("a", since=100.0, failures=1, signatures=("x",)), Standing("b", since=10.0), Standing("c", since=90.0)]
    assert [(f.node, f.signatures) for f in failures(some)] == [("a", ("x",))] and checked(some, 50.0, 120.0) == 2


def test_a_second_failure_in_a_row_is_quarantined_where_the_yaml_says_so() -> None:
    store = MemorySession(MemoryStore())
    for _ in range(3):
        settle(store, KEYS, PreflightPolicy(), decision("never"), "job", AT)
    assert not barred(store, "never")
    first, note = settle(store, KEYS, TWICE, decision("a"), "job", AT)
    assert first.failures == 1 and not note and not barred(store, "a")
    second, note = settle(store, KEYS, TWICE, decision("a"), "job", AT)
    assert second.quarantined and "put into quarantine for 600 s" in note and barred(store, "a")
    assert read(store, KEYS, "a") == second and [s.node for s in read_all(store, KEYS)] == ["a", "never"]


def test_observed_failures_quarantine_nobody() -> None:
    store = MemorySession(MemoryStore())
    for _ in range(3):
        settle(store, KEYS, TWICE, decision("a", observe_only=True), "job", AT)
    assert not barred(store, "a")


def test_nodes_that_fail_alike_are_not_quarantined_further() -> None:
    """NVIDIA/DCGM#254, flux-framework/flux-core#7663: one cause that all share must not empty the fleet."""
    store = MemorySession(MemoryStore())
    policy = replace(TWICE, breaker=BreakerPolicy(3600.0, 3, 0.05))
    notes = [settle(store, KEYS, policy, decision(node), "job", AT)[1] for _ in range(2) for node in ("a", "b", "c", "d", "e")]
    assert sum(barred(store, n) for n in "abcde") == 0 and "not put into quarantine" in notes[-1] and "look at what they share" in notes[-1]
    other = [settle(store, KEYS, policy, decision("f", signature="raid:other"), "job", AT)[1] for _ in range(2)]
    assert barred(store, "f") and "put into quarantine" in other[-1]


def test_what_others_wrote_breaks_nothing() -> None:
    store = MemorySession(MemoryStore())
    store.txn(Txn((), (Put(KEYS.preflight("a"), b"not json"), Put(KEYS.preflight("b"), b'{"node": 5}'))))
    assert read(store, KEYS, "a") is None and read_all(store, KEYS) == ()
    assert settle(store, KEYS, TWICE, decision("a"), "job", AT)[0].failures == 1
    note_quarantine(store, KEYS, "b", AT)
    assert repaired(read(store, KEYS, "b"))
    write(store, KEYS, Standing("b", failures=7), AT)
    note_quarantine(store, KEYS, "b", AT)
    assert read(store, KEYS, "b") == Standing("b", failures=7, quarantined=True)

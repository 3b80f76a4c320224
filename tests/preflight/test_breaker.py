"""Many nodes that fail alike: the breaker, against the public reports that ask for it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from elastic_health.preflight.breaker import BreakerPolicy, NodeFailure, may_quarantine, suspicions

pytestmark = pytest.mark.spec("P7")

# ---- the breaker


def failures(*nodes: str, at: float = 1000.0, by: str = "dcgm:pcie") -> list[NodeFailure]:
    return [NodeFailure(node, at, (by,)) for node in nodes]


POLICY = BreakerPolicy(window_s=600.0, nodes=3, share=0.05)


def test_many_nodes_that_fail_alike_are_a_fault_of_the_set_up() -> None:
    """NVIDIA/DCGM#254: one test failed on all GPUs of all nodes after an upgrade."""
    found = suspicions(failures("n1", "n2", "n3"), 3, POLICY, 1000.0)
    assert [(s.signature, s.nodes) for s in found] == [("dcgm:pcie", ("n1", "n2", "n3"))]
    assert "3 of 3 nodes" in found[0].reason and not may_quarantine(failures("n4")[0], found)


def test_one_node_that_failed_is_marked_alone() -> None:
    """flux-framework/flux-core#7663: one of 2048 was absent, and all were drained."""
    found = suspicions(failures("n1"), 2048, POLICY, 1000.0)
    assert found == () and may_quarantine(failures("n1")[0], found)


def test_of_a_large_fleet_a_few_bad_nodes_are_just_bad() -> None:
    few = failures("n1", "n2", "n3")
    assert suspicions(few, 1000, POLICY, 1000.0) == ()
    many = failures(*(f"n{i}" for i in range(50)))
    assert len(suspicions(many, 1000, POLICY, 1000.0)) == 1
    assert len(suspicions(few, 0, POLICY, 1000.0)) == 1  # nobody counts the checked ones


def test_the_same_node_again_and_again_is_one_node() -> None:
    again = [NodeFailure("n1", 900.0 + i, ("dcgm:pcie",)) for i in range(50)]
    assert suspicions(again, 3, POLICY, 1000.0) == ()


def test_old_failures_never_come_back() -> None:
    """NVIDIA/NVSentinel#1347: old events were replayed on healthy nodes."""
    old = failures("n1", "n2", "n3", at=399.0)
    assert suspicions(old, 3, POLICY, 1000.0) == () and len(suspicions(old, 3, POLICY, 900.0)) == 1


def test_failures_of_different_kinds_don_t_add_up() -> None:
    mixed = failures("n1", by="a:x") + failures("n2", by="b:y") + failures("n3", by="c:z")
    assert suspicions(mixed, 3, POLICY, 1000.0) == ()


def test_a_node_with_a_fault_of_its_own_beside_the_common_one_may_be_quarantined() -> None:
    found = suspicions(failures("n1", "n2", "n3"), 3, POLICY, 1000.0)
    assert may_quarantine(NodeFailure("n2", 1000.0, ("dcgm:pcie", "host:device_error")), found)
    assert not may_quarantine(NodeFailure("n2", 1000.0, ()), ())


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 2000), st.sampled_from(["x", "y"])), max_size=30),
    st.integers(0, 50),
    st.floats(0, 2000),
)
def test_the_breaker_against_a_naive_count(seen: list[tuple[str, float, str]], checked: int, now: float) -> None:
    given_ = [NodeFailure(node, at, (signature,)) for node, at, signature in seen]
    found = {s.signature: set(s.nodes) for s in suspicions(given_, checked, POLICY, now)}
    for signature in ("x", "y"):
        nodes = {n for n, at, s in seen if s == signature and at > now - 600.0 and at <= now + 600.0}
        opens = len(nodes) >= 3 and len(nodes) >= 0.05 * checked
        assert (signature in found) is opens and (not opens or found[signature] == nodes)

"""A group that is not full takes newcomers in, together; spares that come and go disturb nobody."""

from __future__ import annotations

import dataclasses

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.policies import MembershipPolicy, Policies, RecoveryPolicy, ScaleUp
from elastic_health.rendezvous import events as ev
from tests.rendezvous.group import Group, phases

LAST_CALL_S = MembershipPolicy().last_call_s


def running(least: int, most: int, *nodes: str, policies: Policies | None = None) -> Group:
    """A group whose first generation runs with all of `nodes`."""
    g = Group(least, most, policies)
    g.add(*nodes)
    g.wait(LAST_CALL_S + 0.1)
    assert "running" in phases(g.agents)
    return g


def growing(how: ScaleUp, gather_s: float) -> Policies:
    membership = MembershipPolicy(scale_up=how, gather_s=gather_s)
    return dataclasses.replace(Policies(), membership=membership, recovery=RecoveryPolicy(scale_up=how))


@pytest.mark.spec("R2")
def test_nodes_that_come_one_after_another_are_taken_in_together() -> None:
    g = running(1, 9, "a", policies=growing(ScaleUp.AT_ONCE, 2.0))
    for node in ("b", "c", "d"):
        g.add(node)
        g.wait(1.5)
    assert g.members() == ["a"]
    g.wait(1.0)
    assert (g.current().number, g.members(), g.current().restarts) == (2, ["a", "b", "c", "d"], 0)
    assert g.current().moved == ()


@pytest.mark.spec("R2")
def test_nodes_that_trickle_in_for_ever_keep_a_group_small_only_for_a_while() -> None:
    g = running(1, 99, "a", policies=growing(ScaleUp.AT_ONCE, 2.0))
    for n in range(6):
        g.add(f"b{n}")
        g.wait(1.5)
    assert g.current().number == 2 and len(g.members()) >= 6


@pytest.mark.spec("R2")
def test_nobody_is_waited_for_when_the_group_is_full_with_those_who_are_there() -> None:
    g = running(1, 2, "a", policies=growing(ScaleUp.AT_ONCE, 60.0))
    g.add("b")
    g.wait(1.0)
    assert g.members() == ["a", "b"]


@pytest.mark.spec("R2")
def test_a_commit_while_nodes_still_gather_is_not_yet_the_one_to_grow_at() -> None:
    g = running(1, 9, "a", policies=growing(ScaleUp.AT_CHECKPOINT, 2.0))
    a = g.agents[0]
    a.commit(1, 5)
    g.add("b")
    a.commit(2, 10)
    g.add("c")
    g.wait(3.0)
    assert g.members() == ["a"]
    a.commit(3, 15)
    assert g.members() == ["a", "b", "c"] and g.current().plan.position == 15


@pytest.mark.spec("R2")
def test_a_spare_that_dies_or_is_drained_disturbs_nobody() -> None:
    g = running(2, 2, "a", "b")
    g.add("dies", "leaves")
    dies, leaves = g.agents[2:]
    dies.kill()
    leaves.feed(ev.DrainAsked("SIGTERM", g.clock.now + 20.0, True))
    assert leaves.left == ExitStatus.STOPPED
    g.wait(60.0)
    assert g.current().number == 1 and g.verdict(1) is None and phases(g.agents[:2]) == ["running", "running"]

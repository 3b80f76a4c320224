"""A node that is put into quarantine while it trains: its group goes on without it, at once."""

from __future__ import annotations

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.policies import MembershipPolicy
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.state import Phase
from elastic_health.rendezvous.store import Delete, KeyValue, Put, Txn, WatchBatch, WatchEvent
from elastic_health.verdicts import Cause, VerdictKind
from tests.rendezvous.group import KEYS, Group, phases

pytestmark = pytest.mark.spec("R7", "R2")


def running(least: int, most: int, *nodes: str) -> Group:
    g = Group(least, most)
    g.add(*nodes)
    g.wait(MembershipPolicy().last_call_s + 0.1)
    assert "running" in phases(g.agents)
    return g


def bar(g: Group, *nodes: str, value: bytes = b'{"reason": "its fan"}') -> None:
    keys = FleetKeys(KEYS.prefix)
    g.store.apply(Txn((), tuple(Put(keys.quarantined_node(n), value) for n in nodes)))
    g.run()


@pytest.mark.parametrize("node", ["a", "b", "c"])
@pytest.mark.parametrize("value", [b"", b"{}", b"its fan is broken"])
def test_the_group_goes_on_without_it(node: str, value: bytes) -> None:
    g = running(1, 3, "a", "b", "c")
    bar(g, node, value=value)
    g.wait(1.0)
    others = [a for a in g.agents if a.node != node]
    (barred,) = (a for a in g.agents if a.node == node)
    assert barred.left == ExitStatus.QUARANTINED
    assert (g.members(), phases(others), g.current().number) == (sorted({"a", "b", "c"} - {node}), ["running", "running"], 2)
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.kind, verdict.cause, verdict.nodes) == (VerdictKind.SCALE, Cause.DRAIN, (node,))
    assert "in quarantine" in verdict.reason and g.current().restarts == 0


def test_a_spare_takes_its_place() -> None:
    g = running(2, 2, "a", "b", "spare")
    bar(g, "b")
    g.wait(1.0)
    assert (g.members(), g.agents[1].left) == (["a", "spare"], ExitStatus.QUARANTINED)


def test_with_too_few_left_all_stop() -> None:
    g = running(2, 2, "a", "b")
    bar(g, "b")
    g.wait(1.0)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.kind is VerdictKind.STOP
    assert [a.left for a in g.agents] == [ExitStatus.STOPPED] * 2


def test_several_at_once() -> None:
    g = running(1, 4, "a", "b", "c", "d")
    bar(g, "a", "c")
    g.wait(1.0)
    assert (g.members(), g.agents[0].left, g.agents[2].left) == (["b", "d"], ExitStatus.QUARANTINED, ExitStatus.QUARANTINED)
    assert g.current().number == 2, "one formation for both"


def test_several_at_once_are_counted_when_it_is_asked_who_stays() -> None:
    g = running(2, 3, "a", "b", "c")
    bar(g, "a", "c")
    g.wait(1.0)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.kind is VerdictKind.STOP


def test_a_node_that_starts_workers_is_no_exception() -> None:
    g = Group(1, 2)
    a = g.add("a")
    a.withheld.add(ev.StartWorkers)
    g.add("b")
    assert a.phase is Phase.STARTING
    bar(g, "a")
    g.wait(1.0)
    assert a.left == ExitStatus.QUARANTINED and g.members() == ["b"]


def test_an_expired_entry_and_another_node_s_change_nothing() -> None:
    g = running(1, 2, "a", "b")
    bar(g, "a", value=b'{"until": 1600000000}')
    bar(g, "nobody")
    g.wait(5.0)
    assert (g.current().number, phases(g.agents)) == (1, ["running", "running"])


def test_one_that_can_t_ask_the_store_decides_nothing_and_then_it_does() -> None:
    """Told of the quarantine just before the store goes away, for longer than its lease lasts by its own clock."""
    g = running(1, 2, "a", "b")
    g.store_down()
    g.wait(30.0)
    b = g.agents[1]
    kv = KeyValue(FleetKeys(KEYS.prefix).quarantined_node("b"), b"", 9, 9, 1)
    b.feed(ev.StoreChanged(WatchBatch(g.store.revision, (WatchEvent(False, kv),)), True))
    g.wait(1.0)
    assert phases(g.agents) == ["running", "running"]
    g.store_back()
    bar(g, "b")
    g.wait(5.0)
    assert b.left == ExitStatus.QUARANTINED and g.members() == ["a"]


def test_released_it_may_come_back() -> None:
    g = running(1, 2, "a", "b")
    bar(g, "b")
    g.wait(1.0)
    g.store.apply(Txn((), (Delete(FleetKeys(KEYS.prefix).quarantined_node("b")),)))
    again = g.add("b", life=2)
    g.wait(30.0)
    assert again.phase is Phase.RUNNING and g.members() == ["a", "b"]

"""Retired checkpoints: who removes their files, and when their records go."""

from __future__ import annotations

import pytest

from elastic_health.generations import CheckpointState
from elastic_health.policies import CheckpointPolicy, Policies
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.verdicts import Cause
from tests.rendezvous.group import KEYS, Agent, Group

pytestmark = pytest.mark.spec("R3", "R10")
KEEP_ONE = Policies(checkpoints=CheckpointPolicy(keep=1, rollback_reach_steps=0))


def name(step: int, generation: int = 1) -> str:
    return f"{step:012d}.{generation:06d}"


def pair() -> tuple[Group, Agent, Agent]:
    g = Group(1, 2, KEEP_ONE)
    a, b = g.add("a"), g.add("b")
    for i, step in enumerate((10, 20, 30)):
        a.commit(i + 1, step)
    return g, a, b


def removed(agent: Agent) -> list[int]:
    return [e.record.step for e in agent.told(ev.RemoveFiles) if isinstance(e, ev.RemoveFiles)]


def records(g: Group) -> dict[str, str | None]:
    return {c.name: c.parent for c in g._fresh().checkpoints.values()}


def test_a_record_goes_once_its_files_are_gone_and_the_line_stays_whole() -> None:
    g, a, _ = pair()
    assert removed(a) == [10, 20]
    assert records(g) == {name(10): None, name(20): name(10), name(30): name(20)}
    a.feed(ev.FilesGone(name(20)))
    assert records(g) == {name(10): None, name(30): name(10)}
    a.feed(ev.FilesGone(name(10)))
    assert records(g) == {name(30): None}
    a.judge(Cause.WORKER_EXIT)
    g.wait(10.0)
    assert (g.current().number, g.current().plan.checkpoint) == (2, name(30))


def test_a_new_leader_takes_up_what_a_dead_one_began() -> None:
    g, a, b = pair()
    assert removed(b) == []
    a.kill()
    g.wait(30.0)
    assert b.phase is Phase.RUNNING and b.state.rank == 0
    assert removed(b) == [10, 20], "once each"
    b.feed(ev.FilesGone(name(10)), ev.FilesGone(name(20)))
    assert records(g) == {name(30): None}


def test_nothing_is_forgotten_after_the_generations_end() -> None:
    g, a, b = pair()
    a.withheld.add(Purpose.FORGET)
    a.feed(ev.FilesGone(name(10)))
    sent = a.state.under_way(Purpose.FORGET)
    assert sent is not None
    b.judge(Cause.WORKER_EXIT)
    g.wait(1.0)
    assert not g.store.apply(sent.txn).succeeded and name(10) in records(g)


def test_a_plans_checkpoint_stays_and_so_does_a_record_that_is_not_on_its_way_out() -> None:
    g, a, _ = pair()
    a.feed(ev.FilesGone(name(30)), ev.FilesGone("nonsense"))
    assert g._fresh().checkpoints[name(30)].state is CheckpointState.COMMITTED
    assert not a.state.files_gone & {"nonsense"}


def test_an_older_copy_of_the_write_changes_nothing() -> None:
    """Refused: a descendant was written meanwhile; it looks again and does it right."""
    g, a, _ = pair()
    a.withheld.add(Purpose.FORGET)
    a.feed(ev.FilesGone(name(20)))
    first = a.state.under_way(Purpose.FORGET)
    assert first is not None
    from elastic_health.rendezvous.store import Put, Txn

    value = g.store.get(KEYS.checkpoint(name(30)))
    assert value is not None
    g.store.apply(Txn((), (Put(KEYS.checkpoint(name(30)), value.value),)))
    a.withheld.discard(Purpose.FORGET)
    a.feed(ev.TxnDone(first.id, g.store.apply(first.txn)))
    assert records(g) == {name(10): None, name(30): name(10)}

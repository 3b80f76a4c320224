"""The store goes away and comes back: commits wait without holding training up, and nobody is given up too soon."""

from __future__ import annotations

import pytest

from elastic_health.generations import CandidateState
from elastic_health.rendezvous import events as ev, membership
from elastic_health.rendezvous.lead import COMMIT_PATIENCE_S
from elastic_health.rendezvous.serve import page_deadline
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.verdicts import VerdictKind
from tests.rendezvous.group import Agent, Group

pytestmark = pytest.mark.spec("U6", "R10")


def pair() -> tuple[Group, Agent, Agent]:
    g = Group(1, 2)
    return g, g.add("a"), g.add("b")


def answers(a: Agent) -> list[tuple[int, bool, bool]]:
    return [(e.request, e.committed, e.waits) for e in a.told(ev.CommitAnswered) if isinstance(e, ev.CommitAnswered)]


def test_commits_of_an_outage_are_made_afterwards_in_order_once_and_on_one_line() -> None:
    g, a, _ = pair()
    a.commit(1, 5)
    g.store_down()
    g.wait(4.0)  # the outage is known by now
    for n in (2, 3, 4):
        a.commit(n, 5 * n)
    assert answers(a) == [(1, True, False), (2, False, True), (3, False, True), (4, False, True)]
    g.wait(100.0)
    g.store_back()
    g.wait(5.0)
    assert answers(a)[4:] == [(2, True, False), (3, True, False), (4, True, False)]
    view = a.state.view
    names = sorted(view.checkpoints)
    assert [view.checkpoints[n].parent for n in names] == [None, *names[:-1]]
    assert [view.checkpoints[n].position for n in names] == [5, 10, 15, 20]
    assert len(a.said("committed_late")) == 3
    assert g.verdict(1) is None


def test_a_commit_without_an_answer_holds_training_up_for_a_moment_only() -> None:
    """The store hangs, and nobody knows yet."""
    g, a, _ = pair()
    a.withheld.add(Purpose.COMMIT)
    a.commit(1, 5)
    assert answers(a) == []
    g.wait(COMMIT_PATIENCE_S)
    assert answers(a) == [(1, False, True)]


def test_a_run_is_not_finished_before_what_waits_is_committed() -> None:
    g, a, b = pair()
    g.store_down()
    g.wait(10.0)
    a.commit(1, 5)
    a.commit(2, 10)
    for agent in (a, b):
        agent.feed(ev.WorkersDone(1))
    a.withheld.add(Purpose.COMMIT)
    g.store_back()
    g.wait(2.0)
    assert g.verdict(1) is None
    sent = a.state.under_way(Purpose.COMMIT)
    assert sent is not None
    a.withheld.clear()
    a.feed(ev.TxnFailed(sent.id, ambiguous=True))
    g.wait(3.0)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.kind is VerdictKind.FINISH
    assert [r.position for _, r in sorted(a.state.view.checkpoints.items())] == [5, 10]


def test_what_waits_when_the_generation_ends_is_said_to_be_lost() -> None:
    g, a, b = pair()
    g.store_down()
    g.wait(10.0)
    a.commit(1, 5)
    b.kill()
    g.run()
    assert a.phase is not Phase.RUNNING
    assert len(a.said("commit_lost")) == 1
    assert answers(a) == [(1, False, True), (1, False, False)]


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MOST_WAITING_COMMITS", 2)
    g, a, _ = pair()
    g.store_down()
    g.wait(10.0)
    for n in (1, 2, 3):
        a.commit(n, 5 * n)
    assert answers(a) == [(1, False, True), (2, False, True), (3, False, False)]


def test_a_transaction_answered_before_the_lease_is_no_end_of_the_outage() -> None:
    """What was asked before the outage may be answered first, at its end: that says nothing of the lease, and ends nobody's workers."""
    g, a, _ = pair()
    a.withheld.add(Purpose.COMMIT)
    a.commit(1, 5)
    sent = a.state.under_way(Purpose.COMMIT)
    assert sent is not None
    g.store_down()
    g.wait(10.0)
    assert not a.state.fresh(g.clock.now)
    a.withheld.add(ev.RenewLease)
    a.feed(ev.TxnDone(sent.id, g.store.apply(sent.txn)))
    assert (1, True, False) in answers(a)
    assert a.phase is Phase.RUNNING
    a.withheld.clear()
    g.store_back()
    g.wait(10.0)
    assert a.state.fresh(g.clock.now)
    assert g.verdict(1) is None


def test_a_waiting_commit_that_the_store_refuses_for_a_while_is_made_later() -> None:
    """A full store: the worker went on long ago, so only the agent can ask again."""
    g, a, _ = pair()
    g.store_down()
    g.wait(10.0)
    a.commit(1, 5)
    a.withheld.add(Purpose.COMMIT)
    g.store_back()
    g.wait(1.0)
    for _ in range(3):
        sent = a.state.under_way(Purpose.COMMIT)
        assert sent is not None
        a.feed(ev.TxnFailed(sent.id, ambiguous=False, reason="mvcc: database space exceeded", fatal=True))
        g.wait(1.5)
    assert answers(a) == [(1, False, True)]
    a.withheld.clear()
    sent = a.state.under_way(Purpose.COMMIT)
    assert sent is not None
    a.feed(ev.TxnFailed(sent.id, ambiguous=False, reason="mvcc: database space exceeded", fatal=True))
    g.wait(2.0)
    assert answers(a) == [(1, False, True), (1, True, False)]


def test_an_agent_that_wakes_after_its_lease_asks_first() -> None:
    """Paused for longer than the lease, shorter than the page allows: the workers live, and the store is asked."""
    g, a, b = pair()
    bounds = g.policies.membership.bounds
    deadline = page_deadline(b.state, g.clock.now)
    b.withheld.add(ev.RenewLease)
    g.store.freeze()  # its lease is still there when it wakes
    a.withheld.add(ev.RenewLease)
    later = deadline - bounds.link_timeout_s / 2
    g.clock = ev.Clock(later, g.clock.wall + later - g.clock.now)
    b.withheld.clear()
    a.withheld.clear()
    for agent in (a, b):
        agent.out.clear()
        agent.feed(ev.Tick())
    assert later < deadline
    assert (a.phase, b.phase) == (Phase.RUNNING, Phase.RUNNING)
    assert a.told(ev.RenewLease) and b.told(ev.RenewLease)
    assert a.state.fresh(g.clock.now) and b.state.fresh(g.clock.now)


def test_nobody_is_given_up_who_comes_back_from_an_outage_later_than_others() -> None:
    """b's watch and renewals find the store seconds after a's: its candidate is gone meanwhile, and it is no loss."""
    g, a, b = pair()
    bounds = g.policies.membership.bounds
    g.store_down()
    g.wait(60.0)
    g.store.thaw()
    a.store_up = True
    g.run()
    g.store.expire(b.state.lease)
    g.wait(bounds.link_timeout_s + 2.0)
    assert g.verdict(1) is None
    b.store_up = True
    g.wait(2.0)
    assert b.said("reattached")
    g.wait(30.0)
    assert g.verdict(1) is None
    assert (a.phase, b.phase) == (Phase.RUNNING, Phase.RUNNING)
    entry = a.state.view.candidates[b.state.who]
    assert entry.candidate.state is CandidateState.MEMBER


def test_a_silent_host_is_not_taken_for_one_that_answers() -> None:
    """Nobody who can't be reached will hear of the verdict: its time counts from the end of its lease, not from the verdict."""
    g = Group(1, 2)
    a, b = g.add("a"), g.add("b")
    bounds = g.policies.membership.bounds
    a.withheld.add(ev.Probe)
    b.alive = False  # its host is gone: no reset, no refusal
    began = g.clock.now
    a.feed(ev.LinkDown(b.state.who, "timeout"))
    a.feed(ev.Probed(b.state.who, dead=False))  # once it still answered
    while a.state.view.current == 1:
        a.feed(ev.Probed(b.state.who, dead=False, answers=False))
        g.wait(0.25)
        assert g.clock.now < began + 30
    assert g.clock.now - began <= bounds.lease_s + bounds.link_timeout_s + bounds.kill_grace_s + 1.0


def test_who_does_not_come_back_from_an_outage_is_given_up() -> None:
    g, a, b = pair()
    g.store_down()
    g.wait(60.0)
    b.withheld.update({ev.RenewLease, ev.GrantLease, Purpose.REATTACH})
    lease = b.state.lease
    g.store_back()
    g.store.expire(lease)
    g.wait(a.state.settings.return_s + 3.0)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.nodes == ("b",)

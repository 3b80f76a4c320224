"""Leases, outages and unanswered writes: when an agent may act, and when its workers may run."""

from __future__ import annotations

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.generations import Bounds, CheckpointRecord, RunSpec
from elastic_health.policies import Policies
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.membership import start, step
from elastic_health.rendezvous.serve import page_deadline
from elastic_health.rendezvous.state import Me, Phase, Purpose, Settings
from elastic_health.rendezvous.store import Put, Txn
from elastic_health.verdicts import Cause
from tests.rendezvous.group import KEYS, Agent, Group, phases

BOUNDS = Bounds()


def pair() -> tuple[Group, Agent, Agent]:
    g = Group(1, 2)
    g.add("a", "b")
    a, b = g.agents
    assert phases((a, b)) == ["running", "running"]
    return g, a, b


@pytest.mark.spec("R10")
@pytest.mark.parametrize("took_s", [0.0, 1.5, 6.0])
def test_a_lease_counts_from_when_it_was_asked_for(took_s: float) -> None:
    s = start(Settings(KEYS, Me("a", "x", "a:1", 2, RunSpec(1, 1, "d"))), ev.Clock(100.0, 0.0))
    s, _ = step(s, ev.LeaseHeld(7, 100.0, 5.0), ev.Clock(100.0 + took_s, 0.0))
    assert s.fresh(104.999)
    assert not s.fresh(105.0)


@pytest.mark.spec("R10")
def test_an_answer_that_overtakes_another_shortens_no_lease() -> None:
    s = start(Settings(KEYS, Me("a", "x", "a:1", 2, RunSpec(1, 1, "d"))), ev.Clock(100.0, 0.0))
    for sent in (100.0, 102.0, 101.0):
        s, _ = step(s, ev.LeaseHeld(7, sent, 5.0), ev.Clock(103.0, 0.0))
    assert s.lease_deadline == 107.0
    s, _ = step(s, ev.LeaseHeld(8, 103.0, 5.0), ev.Clock(103.0, 0.0))
    assert (s.lease, s.lease_deadline) == (7, 107.0)


@pytest.mark.spec("R10", "U6")
def test_one_transient_error_of_the_store_ends_nothing() -> None:
    """pytorch/pytorch#194870: a short store outage killed the renewal for good, and a TTL later the whole job."""
    g, a, b = pair()
    g.store_down()
    g.wait(2.0)
    g.store_back()
    g.wait(60.0)
    assert phases((a, b)) == ["running", "running"]
    assert g.verdict(1) is None
    assert a.state.fresh(g.clock.now)


@pytest.mark.spec("U6")
def test_a_whole_outage_only_delays_commits_and_decisions() -> None:
    g, a, b = pair()
    g.store_down()
    g.wait(30.0)
    assert phases((a, b)) == ["running", "running"]
    assert a.said("riding")
    a.commit(1, 5)
    g.wait(1.0)
    assert [(e.committed, e.waits) for e in a.told(ev.CommitAnswered) if isinstance(e, ev.CommitAnswered)] == [(False, True)]
    g.store_back()
    g.wait(2.0)
    assert [e.committed for e in a.told(ev.CommitAnswered) if isinstance(e, ev.CommitAnswered)] == [False, True]
    assert g.verdict(1) is None


@pytest.mark.spec("U6")
@pytest.mark.parametrize("what", ["a link breaks", "the bound passes", "a worker ends"])
def test_what_ends_riding_through(what: str) -> None:
    g, a, b = pair()
    g.store_down()
    g.wait(20.0)
    a.withheld.add(ev.Connect)
    b.withheld.add(ev.Connect)
    if what == "a link breaks":
        g.cut(a)
        a.inbox.append(ev.LinkDown(b.state.who, "timeout"))
        g.run()
    elif what == "the bound passes":
        g.wait(Policies().outage.bound_s)
    else:
        b.judge(Cause.WORKER_EXIT)
        g.run()
    assert not {Phase.RUNNING} & {a.phase, b.phase}
    assert a.told(ev.StopWorkers) and b.told(ev.StopWorkers)


@pytest.mark.spec("R10", "U6")
def test_a_member_that_alone_is_cut_off_is_told_by_its_peers() -> None:
    g, _, b = pair()
    g.store_down(b)
    g.wait(BOUNDS.lease_s + BOUNDS.link_timeout_s + 0.5)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.nodes == ("b",)
    assert len(b.told(ev.StopWorkers)) == 1
    assert g.members() == ["a"]


@pytest.mark.spec("R10", "U6")
def test_a_lone_member_that_rides_is_told_by_the_one_who_waits_for_it() -> None:
    """Nobody of its own group could tell it; without being told, two groups would train side by side."""
    g = Group(1, 1)
    a, spare = g.add("a"), g.add("b")
    g.store_down(a)
    g.wait(BOUNDS.lease_s + BOUNDS.link_timeout_s + 1.5)
    assert a.told(ev.StopWorkers)
    assert (g.members(), spare.phase) == (["b"], Phase.RUNNING)


@pytest.mark.spec("R10", "U6")
def test_a_former_that_joins_again_waits_anew_for_a_member_that_it_has_not_told_yet() -> None:
    """It wrote the verdict, lost its lease and with it all that it knew of its peers: how long the member's candidate has been
    gone says nothing then about whether that member, which trains on without the store, has heard that it is over."""
    g = Group(1, 1)
    a, spare = g.add("a"), g.add("b")
    spare.withheld |= {ev.Connect, Purpose.FORM}
    g.store_down(a)
    g.wait(BOUNDS.lease_s + 2 * BOUNDS.link_timeout_s + BOUNDS.kill_grace_s + 2.0)
    assert g.verdict(1) is not None and not a.told(ev.StopWorkers)
    spare.withheld.clear()
    g.store.expire(spare.state.lease)
    g.run()
    g.wait(1.0)
    assert spare.state.who[1].endswith("-1")
    assert a.told(ev.StopWorkers) or g.current().number == 1
    g.wait(BOUNDS.link_timeout_s + BOUNDS.kill_grace_s + 5.0)
    assert a.told(ev.StopWorkers)
    assert (g.members(), spare.phase) == (["b"], Phase.RUNNING)


@pytest.mark.spec("R10")
def test_a_candidate_lost_in_an_outage_is_put_back_and_the_group_goes_on() -> None:
    g, a, b = pair()
    g.store.expire(b.state.lease)
    g.wait(1.0)
    assert b.said("reattached")
    assert (g.current().number, phases((a, b))) == (1, ["running", "running"])
    g.wait(60.0)
    assert g.verdict(1) is None


@pytest.mark.spec("R10")
def test_an_agent_that_lost_its_lease_after_hours_joins_again_with_all_its_patience() -> None:
    """The time to join counts from when it began to join, not from the agent's start."""
    g, _, b = pair()
    g.wait(3 * Policies().membership.join_timeout_s)
    b.withheld.add(Purpose.REATTACH)
    g.store.expire(b.state.lease)
    g.wait(20.0)
    assert b.left is None
    assert b.state.who[1].endswith("-1")
    assert g.members() == ["a", "b"]


@pytest.mark.spec("R10")
def test_the_deadline_in_the_page_ends_workers_soon_after_the_lease() -> None:
    g, a, _ = pair()
    s, now = a.state, g.clock.now
    assert page_deadline(s, now) == s.lease_deadline + BOUNDS.link_timeout_s
    late = s.lease_deadline + 1.0
    assert page_deadline(s, late) == s.lease_deadline + BOUNDS.link_timeout_s
    riding = s.changed({"store_lost_since": now})
    assert page_deadline(riding, late) == late + BOUNDS.link_timeout_s


# ---- writes without an answer
@pytest.mark.spec("R1", "R10")
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("purpose", [Purpose.JOIN, Purpose.READY, Purpose.FORM, Purpose.MEMBER, Purpose.STORE])
def test_an_unanswered_write_is_sent_again_unchanged(purpose: Purpose, landed: bool) -> None:
    g = Group(1, 1)
    a = Agent(g, "a")
    a.withheld.add(purpose)
    g.agents.append(a)
    g.run()
    g.wait(2.0)
    sent = a.state.under_way(purpose)
    assert sent is not None
    if landed:
        assert g.store.apply(sent.txn).succeeded
    a.withheld.clear()
    a.feed(ev.TxnFailed(sent.id, ambiguous=True))
    g.wait(2.0)
    assert [e.txn for e in a.told(ev.Send) if isinstance(e, ev.Send) and e.id == sent.id] == [sent.txn, sent.txn]
    assert a.phase is Phase.RUNNING
    assert g.current().number == 1


@pytest.mark.spec("R1", "R2")
def test_a_later_try_that_surely_failed_does_not_settle_an_earlier_one() -> None:
    """Found by the simulator: `member` lands, its answer is lost, the next try finds no store, and meanwhile the generation ends.
    Forgotten, the write would leave a member in the store that is ready in its own eyes, and everybody waiting for it."""
    g = Group(2, 2)
    a, b = Agent(g, "a"), Agent(g, "b")
    b.withheld.add(Purpose.MEMBER)
    g.agents += [a, b]
    g.run()
    sent = b.state.under_way(Purpose.MEMBER)
    assert sent is not None and g.store.apply(sent.txn).succeeded
    g.store_down(b)
    b.withheld.clear()
    b.feed(ev.TxnFailed(sent.id, ambiguous=True))
    g.wait(1.0)  # tried again, in vain
    assert len([e for e in b.told(ev.Send) if isinstance(e, ev.Send) and e.id == sent.id]) > 1
    a.judge(Cause.WORKER_EXIT)
    g.store_back()
    g.wait(10.0)
    assert (g.current().number, g.members(), a.phase, b.phase) == (2, ["a", "b"], Phase.RUNNING, Phase.RUNNING)


@pytest.mark.spec("R1")
@pytest.mark.parametrize("landed", [True, False])
def test_an_unanswered_verdict_and_commit_come_out_once(landed: bool) -> None:
    g = Group(1, 1)
    a = g.add("a")
    for purpose in (Purpose.COMMIT, Purpose.VERDICT):
        a.withheld.add(purpose)
        a.commit(1, 5) if purpose is Purpose.COMMIT else a.judge(Cause.STALL)
        sent = a.state.under_way(purpose)
        assert sent is not None
        if landed:
            assert g.store.apply(sent.txn).succeeded
            g.run()
        a.withheld.discard(purpose)
        a.feed(ev.TxnFailed(sent.id, ambiguous=True))
        g.wait(2.0)
    assert [e.committed for e in a.told(ev.CommitAnswered) if isinstance(e, ev.CommitAnswered) and not e.waits] == [True]
    assert len(a.told(ev.WriteRecord)) == 1
    assert (g.current().number, g.current().plan.position) == (2, 5)


@pytest.mark.spec("R1", "R10")
def test_a_late_copy_of_member_never_lands_on_a_ready_candidate() -> None:
    """Found by the protocol model: two copies of `member` under way, one lands late, while the generation has no verdict
    yet.  The agent waits as ready and its candidate says `member`: it would never form again."""
    g = Group(1, 1)
    a = Agent(g, "a")
    a.withheld.add(Purpose.MEMBER)
    g.agents.append(a)
    g.run()
    sent = a.state.under_way(Purpose.MEMBER)
    assert sent is not None
    a.withheld.clear()
    a.feed(ev.TxnFailed(sent.id, ambiguous=True))
    g.wait(1.0)
    assert a.phase is Phase.RUNNING
    a.withheld |= {ev.StopWorkers, Purpose.VERDICT}
    g.store_down()
    g.wait(10.0)
    a.judge(Cause.WORKER_EXIT)
    assert a.phase is Phase.STOPPING
    g.store_back()
    g.wait(2.0)
    a.feed(ev.WorkersReaped(1))
    assert (a.phase, g.verdict(1)) == (Phase.READY, None)
    assert not g.store.apply(sent.txn).succeeded
    a.withheld.clear()
    asked = a.state.under_way(Purpose.VERDICT)
    assert asked is not None
    a.feed(ev.TxnFailed(asked.id, ambiguous=True))
    g.wait(10.0)
    assert (g.current().number, a.phase) == (2, Phase.RUNNING)


@pytest.mark.spec("R3")
def test_a_commit_that_the_store_refuses_is_answered_and_said() -> None:
    g = Group(1, 1)
    a = g.add("a")
    a.withheld.add(Purpose.COMMIT)
    a.commit(1, 5)
    sent = a.state.under_way(Purpose.COMMIT)
    assert sent is not None
    a.feed(ev.TxnFailed(sent.id, ambiguous=False, reason="mvcc: database space exceeded", fatal=True))
    (answer,) = a.told(ev.CommitAnswered)
    assert isinstance(answer, ev.CommitAnswered)
    assert (answer.committed, "space exceeded" in answer.reason) == (False, True)
    assert a.said("store_refuses")
    assert a.phase is Phase.RUNNING


@pytest.mark.spec("R10")
def test_what_an_ended_generation_still_asks_is_refused() -> None:
    g = Group(1, 1)
    a = g.add("a")
    a.judge(Cause.STALL)
    a.feed(ev.CommitAsked(9, CheckpointRecord(5, 1, "step-5", 5, 0, None, "m")))
    (answer,) = a.told(ev.CommitAnswered)
    assert isinstance(answer, ev.CommitAnswered)
    assert (answer.committed, answer.request) == (False, 9)
    g.wait(5.0)
    assert not a.state.view.checkpoints


# ---- hands in the store
@pytest.mark.spec("R1")
def test_a_record_that_someone_overwrote_stops_its_members_and_crashes_none() -> None:
    g, a, b = pair()
    g.store.apply(Txn((), (Put(KEYS.generation(1), b"oops"),)))
    g.wait(1.0)
    assert a.told(ev.StopWorkers) and b.told(ev.StopWorkers)
    assert KEYS.generation(1) in a.state.view.unreadable


@pytest.mark.spec("R2")
def test_what_cannot_be_reaped_bars_the_node() -> None:
    g, a, b = pair()
    b.withheld.add(ev.StopWorkers)
    a.judge(Cause.STALL)
    b.feed(ev.WorkersReaped(1, "pid 4711 (D)"))
    g.wait(20.0)
    assert b.left == ExitStatus.UNFIT_NODE
    assert b.state.left is not None and "4711" in b.state.left[1]
    assert g.members() == ["a"]

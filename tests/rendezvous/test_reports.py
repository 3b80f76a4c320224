"""Public reports of trouble at scale, each as its smallest group: one verdict for all, no time per node, faults stay local."""

from __future__ import annotations

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.generations import CandidateState
from elastic_health.incidents import Incident
from elastic_health.policies import MembershipPolicy
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase
from elastic_health.verdicts import Cause
from tests.rendezvous.group import KEYS, Agent, Group, phases

pytestmark = pytest.mark.spec("R1", "R2")
LAST_CALL_S = MembershipPolicy().last_call_s + 0.1


def formed(least: int, most: int, count: int) -> Group:
    g = Group(least, most)
    g.add(*(f"n{i:02d}" for i in range(count)))
    g.wait(LAST_CALL_S)
    assert set(phases(g.agents[:most])) == {"running"}
    return g


def living(g: Group) -> list[Agent]:
    return [a for a in g.agents if a.alive]


def recovery_s(g: Group, killed: list[Agent], generation: int) -> float:
    """Virtual seconds from the deaths to a later generation in which every living agent runs."""
    began = g.clock.now
    for a in killed:
        a.kill()
    while g.current().number <= generation or set(phases(living(g))) != {"running"}:
        assert g.clock.now < began + 120.0, phases(living(g))
        g.wait(0.1)
    return g.clock.now - began


def test_workers_that_see_different_faults_get_one_verdict() -> None:
    """intelligent-machine-learning/dlrover#1399: each worker went by the list of faults that it had, and they went out of step."""
    g = formed(4, 4, 4)
    for a, cause in zip(g.agents, (Cause.STALL, Cause.WORKER_EXIT, Cause.WATCHDOG_TIMEOUT, Cause.OUT_OF_MEMORY), strict=True):
        a.inbox.append(ev.Judged(_incident(a, cause)))  # all before any of them has heard of another's
    g.run()
    verdict = g.verdict(1)
    assert verdict is not None
    stopped = [next(e for e in a.out if isinstance(e, ev.StopWorkers)) for a in g.agents]
    assert {e.verdict for e in stopped} == {verdict}, "all act by the one that the store has"
    assert g.current().number == 2 and g.current().restarts == 1, "one restart, not one a fault"
    assert set(phases(g.agents)) == {"running"}


def test_a_reporter_that_comes_late_changes_nothing() -> None:
    """The same report: the slow one's list was another one."""
    g = formed(3, 3, 3)
    slow = g.agents[2]
    late = _incident(slow, Cause.WATCHDOG_TIMEOUT)
    g.agents[0].judge(Cause.WORKER_EXIT)
    first = g.verdict(1)
    slow.feed(ev.Judged(late))
    g.wait(5.0)
    assert g.verdict(1) == first and g.current().number == 2 and g.verdict(2) is None


def test_time_to_recover_does_not_grow_with_the_number_of_lost_nodes() -> None:
    """intelligent-machine-learning/dlrover#1690: nodes were relaunched one by one, some 20 s each."""
    one = formed(16, 64, 64)
    many = formed(16, 64, 64)
    took_one = recovery_s(one, one.agents[40:41], 1)
    took_many = recovery_s(many, many.agents[20:52], 1)
    assert len(many.current().members) == 32 and many.current().number == 2, "all of them in one formation"
    assert took_many <= took_one + 0.5, (took_one, took_many)


def test_the_lost_ones_come_back_in_one_formation() -> None:
    """The same report: 32 replacements are one scale-up, not 32."""
    g = formed(16, 64, 64)
    recovery_s(g, g.agents[20:52], 1)
    for i in range(20, 52):
        g.agents.append(Agent(g, f"n{i:02d}", life=2))
    g.run()
    g.wait(g.policies.membership.gather_s * 4 + 10.0)
    next(a for a in g.agents if a.state.rank == 0 and a.phase is Phase.RUNNING).commit(1, 100)
    g.wait(g.policies.membership.gather_s * 4 + 10.0)
    assert len(g.current().members) == 64 and g.current().number == 3


def test_an_error_of_one_launcher_stays_its_own() -> None:
    """NVIDIA/nvidia-resiliency-ext#421: a local error closed the rendezvous for healthy nodes."""
    g = formed(2, 3, 3)
    broken = g.agents[1]
    broken.feed(ev.StopAsked("an exception in this launcher"))
    g.wait(5.0)
    assert broken.left == ExitStatus.STOPPED
    assert phases(living(g)[:1] + living(g)[2:]) == ["running", "running"] and g.members() == ["n00", "n02"]
    again = g.add("n01", life=2)
    assert again.phase is not Phase.LEFT and again.left is None, "the run id is not closed for it either"


def test_an_unfit_node_and_a_refused_one_close_nothing() -> None:
    """The same report, before the group has formed."""
    g = Group(2, 3)
    bad = Agent(g, "bad")
    bad.fit = False
    g.agents.append(bad)
    g.add("a", "b")
    g.wait(LAST_CALL_S)
    assert bad.left == ExitStatus.UNFIT_NODE and g.members() == ["a", "b"] and phases(g.agents[1:]) == ["running", "running"]


def test_who_dies_before_the_quorum_leaves_it() -> None:
    """meta-pytorch/torchft#63: a dead member stayed in the quorum for ever."""
    g = Group(2, 3)
    g.add("dead")
    g.agents[0].kill()
    g.wait(g.policies.membership.bounds.lease_s + 1.0)
    assert KEYS.candidate(*g.agents[0].state.who) not in {kv.key for kv in g.store.range(KEYS.candidates).kvs}
    g.add("a", "b")
    g.wait(LAST_CALL_S)
    assert g.members() == ["a", "b"]


def test_two_halves_are_never_two_worlds() -> None:
    """meta-pytorch/torchft#70: two rooms formed in turn, each without the other.  Here no half reaches the other's agents, and both
    reach the store: one generation is current at any time, and nobody of an older one is a member."""
    g = formed(2, 4, 4)
    left, right = set(g.agents[:2]), set(g.agents[2:])
    for a in left:
        for who, b in list(a.links.items()):
            if b in right:
                del a.links[who], b.links[a.state.who]
                a.inbox.append(ev.LinkDown(who, "silent"))
                b.inbox.append(ev.LinkDown(a.state.who, "silent"))
    numbers = [g.current().number]
    for _ in range(60):
        g.wait(1.0)
        numbers.append(g.current().number)
        at_work = {a.state.generation for a in g.agents if a.phase in (Phase.STARTING, Phase.RUNNING)}
        assert len(at_work) <= 1, at_work
        says = {e.candidate.generation for e in g._fresh().candidates.values() if e.candidate.state is CandidateState.MEMBER}
        assert len(says) <= 1, says
    assert numbers == sorted(numbers) and numbers[-1] - numbers[0] <= 2, f"no flip-flop: {numbers}"
    assert set(phases(g.agents)) == {"running"}


def _incident(a: Agent, cause: Cause) -> Incident:
    return Incident(f"i-{a.node}", a.state.generation, cause, cause.value, f"{a.node} saw it", a.group.clock.wall, nodes=(a.node,))

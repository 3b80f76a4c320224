"""The life of a group of agents: forming, restarts, spares, growth, leaving, finishing."""

from __future__ import annotations

import dataclasses

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.generations import GenerationKind, RunSpec
from elastic_health.incidents import Incident
from elastic_health.policies import MembershipPolicy, Policies, RecoveryPolicy, ScaleUp
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase
from elastic_health.rendezvous.store import Put, Txn
from elastic_health.verdicts import Cause, VerdictKind
from elastic_health.windows import Window
from tests.rendezvous.group import KEYS, Agent, Group, phases

LAST_CALL_S = MembershipPolicy().last_call_s


def running(least: int, most: int, *nodes: str, policies: Policies | None = None) -> Group:
    """A group whose first generation runs with all of `nodes` that fit in."""
    g = Group(least, most, policies)
    g.add(*nodes)
    g.wait(LAST_CALL_S + 0.1)
    assert "running" in phases(g.agents)
    return g


def end(g: Group) -> None:
    for a in g.agents:
        if a.phase is Phase.RUNNING:
            a.feed(ev.WorkersDone(a.state.generation))


@pytest.mark.spec("R2")
def test_with_max_ready_the_group_forms_at_once() -> None:
    g = Group(1, 2)
    g.add("a", "b")
    assert (g.members(), phases(g.agents)) == (["a", "b"], ["running", "running"])


@pytest.mark.spec("R2")
def test_with_min_ready_the_first_formation_waits_for_one_last_call() -> None:
    g = Group(1, 3)
    a = g.add("a")
    g.wait(LAST_CALL_S * 0.9)
    assert a.phase is Phase.READY
    assert a.said("wait_last_call")
    g.add("b")
    g.wait(LAST_CALL_S * 0.2)
    assert g.members() == ["a", "b"]


@pytest.mark.spec("R2")
def test_below_min_nothing_forms_and_the_reason_is_said() -> None:
    g = Group(2, 3)
    a = g.add("a")
    g.wait(30.0)
    assert a.phase is Phase.READY
    assert a.said("wait_too_few")
    g.wait(MembershipPolicy().join_timeout_s)
    assert a.left == ExitStatus.NOT_FORMED


@pytest.mark.spec("P7")
def test_an_unfit_node_stays_out_and_delays_nobody() -> None:
    g = Group(1, 2)
    bad = Agent(g, "a")
    bad.fit = False
    g.agents.append(bad)
    g.run()
    assert bad.left == ExitStatus.UNFIT_NODE
    g.add("b", "c")
    assert g.members() == ["b", "c"]


@pytest.mark.spec("R1", "R2")
def test_a_restart_is_a_new_generation_with_a_new_store() -> None:
    """pytorch/pytorch#123678: one worker fails once; the restart must not shut the rendezvous down."""
    g = running(2, 2, "a", "b")
    g.agents[1].judge(Cause.WORKER_EXIT, "exit status 1")
    assert (g.current().number, g.members(), phases(g.agents)) == (2, ["a", "b"], ["running", "running"])
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.kind, verdict.cause) == (VerdictKind.RESTART, Cause.WORKER_EXIT)
    assert all(len(a.told(ev.StopWorkers)) == 1 for a in g.agents)
    stores = [kv.key for kv in g.store.range(f"{KEYS.root}stores/").kvs]
    assert stores == [KEYS.store(1), KEYS.store(2)]


@pytest.mark.spec("R1")
def test_two_judges_one_verdict() -> None:
    g = running(2, 2, "a", "b")
    a, b = g.agents
    for x, cause in ((a, Cause.STALL), (b, Cause.WORKER_KILLED)):
        x.inbox.append(ev.Judged(Incident("i", 1, cause, cause.value, "seen", g.clock.wall)))
    g.run()
    verdict = g.verdict(1)
    assert verdict is not None
    stops = [e.verdict for x in (a, b) for e in x.told(ev.StopWorkers) if isinstance(e, ev.StopWorkers)]
    assert stops == [verdict, verdict]
    assert sum(len(x.told(ev.WriteRecord)) for x in (a, b)) == 1


@pytest.mark.spec("R2")
def test_rank_0_leaves_and_the_survivor_takes_its_place() -> None:
    """pytorch/pytorch#182221: with nnodes=1:2 the node with rank 0 stops; the other one becomes rank 0 and goes on."""
    g = running(1, 2, "a", "b")
    a, b = g.agents
    a.feed(ev.StopAsked("SIGTERM"))
    g.wait(1.0)
    assert a.left == ExitStatus.STOPPED
    assert (g.members(), b.phase, b.state.rank) == (["b"], Phase.RUNNING, 0)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.cause is Cause.DRAIN
    assert g.current().moved == ("b: 1 -> 0 (workers 2-3 -> 0-1)",)
    assert g.current().restarts == 0


@pytest.mark.spec("R2", "R10")
def test_a_killed_agent_that_is_back_at_once_may_not_form_alone() -> None:
    """pytorch/pytorch#67616: agent and workers of A are killed and A starts again at once, while B runs: A alone must not
    make a world of its own; B is told to end, and both form the next one."""
    g = running(1, 2, "a", "b")
    a, b = g.agents
    g.cut(a)
    a.alive = False
    g.add("a", life=2)
    g.wait(20.0)
    assert sorted(g.members()) == ["a", "b"]
    assert all(record.member(*b.state.who) for record in b.state.view.generations.values())
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.cause, verdict.nodes) == (Cause.LOST_MEMBER, ("a",))
    assert all(n in b.state.view.verdicts for n in range(1, g.current().number))


@pytest.mark.spec("R2", "L7")
def test_a_dead_agent_is_noticed_within_a_second() -> None:
    """pytorch/pytorch#99051: after a host crash the others waited five minutes at the exit barrier."""
    g = running(1, 2, "a", "b")
    a, b = g.agents
    a.feed(ev.WorkersDone(1))
    b.kill()
    g.run()
    g.wait(1.0)
    assert g.members() == ["a"]
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.cause, verdict.nodes) == (Cause.LOST_MEMBER, ("b",))


@pytest.mark.spec("R2")
def test_a_silent_host_is_lost_by_its_lease_and_replaced_when_its_workers_must_be_gone() -> None:
    g = running(1, 2, "a", "b")
    a, b = g.agents
    b.alive = False
    a.withheld.add(ev.Probe)  # no answer from there
    bounds = g.policies.membership.bounds
    g.wait(bounds.lease_s + bounds.link_timeout_s + 0.1)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.cause is Cause.LOST_MEMBER
    assert g.current().number == 1
    assert a.said("wait_member_not_proven")
    g.wait(bounds.kill_grace_s + 0.2)
    assert (g.current().number, g.members()) == (2, ["a"])


@pytest.mark.spec("R2")
def test_spares_wait_and_disturb_nothing() -> None:
    """Surplus nodes neither restart nor close a full group, whether they come, leave, or die."""
    g = running(2, 2, "a", "b")
    spare, other = g.add("c"), g.add("d")
    for x in (spare, other):
        assert x.said("spare")
    other.feed(ev.StopAsked("SIGTERM"))
    spare.kill()
    g.wait(60.0)
    assert g.current().number == 1
    assert g.verdict(1) is None
    assert phases(g.agents[:2]) == ["running", "running"]


@pytest.mark.spec("R2")
def test_a_spare_takes_the_place_of_a_lost_member() -> None:
    g = running(2, 2, "a", "b")
    g.add("c")
    g.agents[1].kill()
    g.run()
    g.wait(1.0)
    assert (g.current().number, g.members()) == (2, ["a", "c"])


@pytest.mark.spec("R2")
@pytest.mark.parametrize(
    ("how", "has_checkpoint", "grows_before_commit", "grows_at_commit"),
    [
        (ScaleUp.AT_ONCE, True, True, True),
        (ScaleUp.AT_CHECKPOINT, True, False, True),
        (ScaleUp.AT_CHECKPOINT, False, True, True),
        (ScaleUp.OFF, True, False, False),
    ],
)
def test_a_newcomer_joins_as_the_yaml_says(how: ScaleUp, has_checkpoint: bool, grows_before_commit: bool, grows_at_commit: bool) -> None:
    policies = dataclasses.replace(Policies(), membership=MembershipPolicy(scale_up=how), recovery=RecoveryPolicy(scale_up=how))
    g = running(1, 2, "a", policies=policies)
    a = g.agents[0]
    if has_checkpoint:
        a.commit(1, 5)
    g.add("b")
    g.wait(LAST_CALL_S + 0.5)
    assert (len(g.members()) == 2) is grows_before_commit
    a.commit(2, 10)
    g.wait(1.0)
    assert (len(g.members()) == 2) is grows_at_commit
    assert g.current().restarts == 0
    if grows_at_commit and has_checkpoint:
        assert g.current().plan.position == (5 if grows_before_commit else 10)


@pytest.mark.spec("R2")
def test_finishing_waits_for_the_last_node_however_long() -> None:
    """pytorch/pytorch#118891: the node that hosts the store finishes first; the slow one must not lose its tail."""
    g = running(2, 2, "a", "b")
    a, b = g.agents
    a.feed(ev.WorkersDone(1))
    g.wait(3600.0)
    assert phases(g.agents) == ["running", "running"]
    b.feed(ev.WorkersDone(1))
    assert [x.left for x in g.agents] == [ExitStatus.OK, ExitStatus.OK]


@pytest.mark.spec("R2")
def test_success_stays_success_when_rank_0_is_gone_first() -> None:
    """pytorch/pytorch#69520: node 0 finishes and is gone while the others still look; they read the end in the store."""
    g = running(3, 3, "a", "b", "c")
    for x in g.agents[1:]:
        x.feed(ev.WorkersDone(1))
    b, c = g.agents[1:]
    g.store_down(b, c)
    g.agents[0].feed(ev.WorkersDone(1))
    assert g.agents[0].left == ExitStatus.OK
    g.agents[0].alive = False
    g.wait(0.5)
    g.store_back()
    g.wait(0.5)
    assert [x.left for x in (b, c)] == [ExitStatus.OK, ExitStatus.OK]


@pytest.mark.spec("R2")
def test_a_run_id_that_has_ended_is_refused_with_a_message() -> None:
    """pytorch/elastic#151: the same id again after a finished run: a clear message, not a hang."""
    g = running(1, 1, "a")
    end(g)
    late = g.add("a", life=2)
    assert late.left == ExitStatus.RUN_REFUSED
    assert late.state.left is not None
    assert all(word in late.state.left[1] for word in ("expected", "found", "finished", "--rdzv-id", "runs reopen"))


@pytest.mark.spec("R2")
def test_a_member_that_must_join_again_has_all_of_its_patience() -> None:
    """Counted from when it left the group, not from when it first joined, hours ago."""
    g = running(1, 1, "a")
    g.wait(30.0)
    (a,) = g.agents
    left = g.clock.now
    a.judge(Cause.WORKER_EXIT, "x")
    g.wait(3.0)
    assert a.state.phase is Phase.RUNNING and a.state.generation == 2
    assert a.state.joined_at >= left


def _stopped(status: ExitStatus) -> Group:
    base = Policies().recovery
    policies = dataclasses.replace(Policies(), recovery=dataclasses.replace(base, caps=dataclasses.replace(base.caps, total=0)))
    g = running(1, 2, "a", "b", policies=policies)
    g.agents[0].judge(Cause.BAD_SETUP if status is ExitStatus.BAD_CONFIG else Cause.WORKER_EXIT)
    assert {x.left for x in g.agents} == {status}
    return g


@pytest.mark.spec("R1", "R6")
@pytest.mark.parametrize("status", [ExitStatus.WORKERS_FAILED, ExitStatus.BAD_CONFIG])
def test_a_run_that_was_stopped_short_of_a_cap_goes_on_when_it_is_started_again(status: ExitStatus) -> None:
    g = _stopped(status)
    before = g.agents[0].state.view.budget
    again = [g.add("a", life=2), g.add("b", life=2)]
    g.wait(3.0)
    assert {x.state.phase for x in again} == {Phase.RUNNING}, [x.state.left for x in again]
    assert again[0].state.generation == 2
    verdict = g.verdict(1)
    assert verdict is not None and verdict.kind is VerdictKind.RESTART and verdict.cause is Cause.REQUESTED
    assert "had ended" in verdict.reason
    assert again[0].state.view.budget.restarts == before.restarts, "to start it again costs nothing, and forgives nothing"


@pytest.mark.spec("R1")
def test_nobody_goes_on_with_it_while_a_member_may_still_read_its_end() -> None:
    g = running(2, 2, "a", "b")
    b = g.agents[1]
    g.store_down(b)  # it does not see how the run ended
    g.agents[0].judge(Cause.BAD_SETUP)
    late = g.add("a", life=2)
    g.wait(1.0)
    verdict = g.verdict(1)
    assert verdict is not None and verdict.kind is VerdictKind.ABORT, "as it was written"
    assert late.state.phase is Phase.JOINING
    g.store_back()
    g.wait(7.0)  # its peer has told it the verdict, and it could not take its place back: the lease does
    assert b.left == ExitStatus.BAD_CONFIG
    g.add("b", life=2)
    g.wait(3.0)
    assert late.state.phase is Phase.RUNNING


@pytest.mark.spec("R2")
def test_another_script_or_other_bounds_under_the_same_id_are_refused() -> None:
    g = running(1, 2, "a")
    other = g.add("b", spec=RunSpec(1, 3, "digest", "train.py"))
    assert other.left == ExitStatus.RUN_REFUSED
    script = g.add("c", spec=RunSpec(1, 2, "another", "other.py"))
    assert script.left == ExitStatus.RUN_REFUSED
    g.wait(5.0)
    assert g.verdict(1) is None


@pytest.mark.spec("R1", "R6")
def test_a_cap_ends_the_run_for_all_and_everyone_calls_for_a_person() -> None:
    base = Policies().recovery
    policies = dataclasses.replace(Policies(), recovery=dataclasses.replace(base, caps=dataclasses.replace(base.caps, total=0)))
    g = running(2, 2, "a", "b", policies=policies)
    g.add("spare")
    g.agents[0].judge(Cause.WORKER_KILLED, "SIGKILL")
    assert {x.left for x in g.agents} == {ExitStatus.WORKERS_FAILED}
    assert all(x.told(ev.PageHuman) for x in g.agents)


@pytest.mark.spec("S5", "R3", "R10")
def test_a_rollback_keeps_the_processes_and_leaves_its_branch_for_good() -> None:
    g = running(2, 2, "a", "b")
    a, b = g.agents
    for n, position in enumerate((5, 10, 15), 1):
        a.commit(n, position)
    names = sorted(a.state.view.checkpoints)
    a.judge(Cause.NUMERIC_HALT, "spike", target=names[0], windows=(Window(14, 16, "spike"),))
    now = g.current()
    assert (now.number, now.kind, now.communicator, phases(g.agents)) == (2, GenerationKind.IN_PLACE, 1, ["running", "running"])
    assert (now.plan.checkpoint, now.plan.windows) == (names[0], (Window(14, 16, "spike"),))
    assert [a.state.view.checkpoints[n].state.value for n in names] == ["committed", "abandoned", "abandoned"]
    assert not a.told(ev.StopWorkers) and len(b.told(ev.TakeUp)) == 1


@pytest.mark.spec("S5", "R3")
@pytest.mark.parametrize("when", ["before the form", "before it is taken up"])
def test_a_member_lost_in_a_rollback_in_place_ends_it_and_its_target_stands(when: str) -> None:
    g = running(1, 2, "a", "b")
    a, b = g.agents
    a.commit(1, 5)
    a.commit(2, 10)
    first, second = sorted(a.state.view.checkpoints)
    (a if when == "before the form" else b).withheld.add(ev.HoldWorkers if when == "before the form" else ev.TakeUp)
    a.judge(Cause.NUMERIC_HALT, "spike", target=first, windows=(Window(9, 11),))
    b.kill()
    g.run()
    g.wait(20.0)
    now = g.current()
    assert (now.kind, now.members[0].node, now.plan.checkpoint) == (GenerationKind.FORMED, "a", first)
    assert now.plan.windows == (Window(9, 11),)
    assert a.state.view.checkpoints[second].state.value == "abandoned"


@pytest.mark.spec("S5")
def test_workers_that_die_while_they_hold_end_the_rollback_in_place() -> None:
    g = running(2, 2, "a", "b")
    a, b = g.agents
    a.withheld.add(ev.HoldWorkers)
    a.judge(Cause.NUMERIC_HALT, "spike")
    assert phases(g.agents) == ["holding", "holding"]
    b.judge(Cause.WORKER_KILLED, "SIGKILL")
    a.feed(ev.Held(1))
    g.wait(2.0)
    now = g.current()
    assert (now.kind, phases(g.agents)) == (GenerationKind.FORMED, ["running", "running"])
    assert len(b.told(ev.StartWorkers)) == 2


@pytest.mark.spec("R4")
def test_a_window_that_a_person_records_is_in_the_next_plan_and_in_all_later_ones() -> None:
    g = running(1, 1, "a")
    g.store.apply(Txn((), (Put(KEYS.skip("0001"), b'{"start":100,"end":200,"reason":"bad shard"}'),)))
    g.run()
    a = g.agents[0]
    for _ in range(2):
        a.judge(Cause.STALL)
        g.wait(30.0)
        assert g.current().plan.windows == (Window(100, 200, "bad shard"),)

"""A drain with a deadline: save, then leave; with too few left, stop so that the run can go on later."""

from __future__ import annotations

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.policies import MembershipPolicy
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.leaving import TOGETHER_S
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.verdicts import Cause, VerdictKind
from elastic_health.windows import Window
from tests.rendezvous.group import Agent, Group, phases

pytestmark = pytest.mark.spec("R1", "R2")
DEADLINE_S = 20.0


def running(least: int, most: int, *nodes: str) -> Group:
    g = Group(least, most)
    g.add(*nodes)
    g.wait(MembershipPolicy().last_call_s + 0.1)
    assert "running" in phases(g.agents)
    return g


def drain(a: Agent, *, saves: bool = True, step: int = -1) -> None:
    a.feed(ev.DrainAsked("SIGTERM", a.group.clock.now + DEADLINE_S, saves, step))


def test_the_group_saves_and_then_goes_on_without_the_node() -> None:
    g = running(1, 3, "a", "b", "c")
    a, b, c = g.agents
    drain(b, step=7)
    assert b.told(ev.WishCheckpoint) and not b.told(ev.PassSignal)
    g.wait(5.0)
    assert (phases(g.agents), g.current().number) == (["running"] * 3, 1), "nothing is saved yet, so nobody leaves"
    assert b.state.view.candidates[b.state.who].candidate.leaving
    a.commit(1, 6)
    assert b.phase is Phase.RUNNING, "a checkpoint from before the signal is not enough"
    a.commit(2, 7)
    g.wait(0.5)
    assert b.left == ExitStatus.STOPPED
    assert (g.members(), phases([a, c]), g.current().plan.position) == (["a", "c"], ["running", "running"], 7)
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.kind, verdict.cause, verdict.nodes) == (VerdictKind.SCALE, Cause.DRAIN, ("b",))
    assert g.current().restarts == 0 and g.current().moved == ("c: 2 -> 1 (workers 4-5 -> 2-3)",)


def test_rank_0_itself_may_be_drained() -> None:
    g = running(1, 2, "a", "b")
    a, b = g.agents
    drain(a, step=3)
    a.commit(1, 4)
    g.wait(0.5)
    assert (a.left, g.members(), b.phase, g.current().plan.position) == (ExitStatus.STOPPED, ["b"], Phase.RUNNING, 4)


def test_past_the_deadline_it_leaves_without() -> None:
    g = running(1, 2, "a", "b")
    b = g.agents[1]
    drain(b)
    g.wait(DEADLINE_S - 0.5)
    assert b.phase is Phase.RUNNING
    g.wait(1.0)
    assert b.left == ExitStatus.STOPPED and g.members() == ["a"] and g.current().restarts == 0


def test_past_the_deadline_it_leaves_even_while_the_store_is_out() -> None:
    g = running(1, 2, "a", "b")
    b = g.agents[1]
    g.store_down()
    drain(b)
    g.wait(DEADLINE_S + 2.0)
    assert b.left == ExitStatus.STOPPED


def test_a_second_signal_ends_it_at_once() -> None:
    g = running(1, 2, "a", "b")
    b = g.agents[1]
    drain(b)
    b.feed(ev.StopAsked("SIGTERM again"))
    g.wait(0.2)
    assert b.left == ExitStatus.STOPPED and g.members() == ["a"]


def test_a_script_that_does_not_save_gets_the_signal_and_its_end_is_no_failure() -> None:
    g = running(1, 2, "a", "b")
    b = g.agents[1]
    drain(b, saves=False)
    assert b.told(ev.PassSignal) and not b.told(ev.WishCheckpoint)
    g.agents[0].commit(1, 9)
    g.wait(3.0)
    assert b.phase is Phase.RUNNING, "its workers are still at it"
    b.feed(ev.WorkersLeft(1, False))
    assert b.phase is Phase.RUNNING, "those beside it may end in a moment too"
    g.wait(TOGETHER_S + 0.1)
    assert b.left == ExitStatus.STOPPED and g.members() == ["a"] and g.current().restarts == 0
    (stop,) = b.told(ev.StopWorkers)
    assert isinstance(stop, ev.StopWorkers) and stop.until > g.clock.now + DEADLINE_S / 2, "the others may use the time that is left"


def test_the_last_worker_of_the_node_ends_the_wait() -> None:
    g = running(1, 2, "a", "b")
    b = g.agents[1]
    drain(b, saves=False)
    b.feed(ev.WorkersLeft(1, True))
    g.wait(0.1)
    assert b.left == ExitStatus.STOPPED and g.members() == ["a"]


def test_with_too_few_left_all_stop_and_the_run_goes_on_when_it_is_started_again() -> None:
    g = running(2, 3, "a", "b")
    a, b = g.agents
    drain(b)
    a.commit(1, 8)
    g.wait(0.5)
    assert [x.left for x in (a, b)] == [ExitStatus.STOPPED, ExitStatus.STOPPED]
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.kind, verdict.exit_status) == (VerdictKind.STOP, ExitStatus.STOPPED)
    assert not a.told(ev.PageHuman) and not b.told(ev.PageHuman)
    later = [g.add("a", life=2), g.add("b", life=2)]
    g.wait(10.0)
    assert (phases(later), g.current().number, g.current().plan.position) == (["running", "running"], 2, 8)
    assert g.current().restarts == 0


def test_spares_count_and_stop_with_the_others_when_there_are_too_few() -> None:
    g = running(2, 2, "a", "b")
    g.add("spare")
    a, b, spare = g.agents
    drain(b)
    a.commit(1, 8)
    g.wait(0.5)
    assert g.members() == ["a", "spare"] and spare.phase is Phase.RUNNING
    drain(a)
    spare.feed(ev.Tick())
    a.commit(2, 9)
    g.wait(0.5)
    assert [x.left for x in (a, spare)] == [ExitStatus.STOPPED, ExitStatus.STOPPED]


def test_a_spare_alone_stops_with_the_others() -> None:
    g = running(3, 3, "a", "b", "c")
    spare = g.add("spare")
    for x in g.agents[:2]:
        drain(x)
    g.agents[0].commit(1, 8)
    g.wait(0.5)
    assert [x.left for x in g.agents] == [ExitStatus.STOPPED] * 4 and spare.left == ExitStatus.STOPPED
    verdict = g.verdict(1)
    assert verdict is not None and verdict.kind is VerdictKind.STOP and set(verdict.nodes) == {"a", "b"}


def test_of_two_that_leave_the_first_counts_without_the_second() -> None:
    g = running(2, 3, "a", "b", "c")
    for x in g.agents[1:]:
        drain(x)
    g.agents[0].commit(1, 8)
    g.wait(0.5)
    assert [x.left for x in g.agents] == [ExitStatus.STOPPED] * 3, "a would be alone, so it does not wait for ten minutes"


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rollback_meanwhile_finds_the_node_gone(leaves: int) -> None:
    g = running(1, 2, "a", "b")
    a = g.agents[0]
    a.commit(1, 5)
    drain(g.agents[leaves], step=9)
    a.judge(Cause.NUMERIC_HALT, "spike", target=next(iter(a.state.view.checkpoints)), windows=(Window(6, 7, "spike"),))
    g.wait(12.0)
    assert g.agents[leaves].left == ExitStatus.STOPPED
    assert g.members() == ["b" if leaves == 0 else "a"] and g.current().plan.windows == (Window(6, 7, "spike"),)


def test_training_that_ends_by_itself_meanwhile_has_finished() -> None:
    g = running(2, 2, "a", "b")
    drain(g.agents[1])
    for x in g.agents:
        x.feed(ev.WorkersDone(1))
    assert [x.left for x in g.agents] == [ExitStatus.OK, ExitStatus.OK]


def test_a_lost_answer_to_its_last_words_changes_nothing() -> None:
    g = running(1, 2, "a", "b")
    b = g.agents[1]
    b.withheld.add(Purpose.LEAVING)
    drain(b)
    g.agents[0].commit(1, 8)
    g.wait(0.5)
    assert b.left == ExitStatus.STOPPED and g.members() == ["a"]


@pytest.mark.parametrize(("least", "goes_on"), [(1, True), (2, False)])
def test_a_drained_node_that_is_killed_first_is_judged_as_drained_by_those_who_stay(least: int, goes_on: bool) -> None:
    g = running(least, 2, "a", "b")
    a, b = g.agents
    drain(b)
    b.kill()
    g.wait(30.0)
    verdict = g.verdict(1)
    assert verdict is not None and (verdict.cause, verdict.nodes) == (Cause.DRAIN, ("b",))
    assert verdict.kind is (VerdictKind.SCALE if goes_on else VerdictKind.STOP)
    assert a.left == (None if goes_on else ExitStatus.STOPPED) and g.current().restarts == 0
    assert g.members() == (["a"] if goes_on else ["a", "b"])


def test_what_befalls_others_meanwhile_is_a_fault_as_ever() -> None:
    g = running(1, 3, "a", "b", "c")
    drain(g.agents[1])
    g.agents[2].judge(Cause.WORKER_KILLED, "SIGKILL", nodes=("c",))
    g.wait(1.0)
    assert g.current().restarts == 1 and g.members() == ["a", "c"] and g.agents[1].left == ExitStatus.STOPPED

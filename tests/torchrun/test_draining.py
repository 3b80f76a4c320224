"""SIGTERM with a deadline, as Slurm's --signal=B:TERM@120 and Kubernetes send it: save if it can be, then leave."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

import pytest

from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from tests.torchrun.runs import PLENTY, Agent, Event, Run, gone, program

pytestmark = [pytest.mark.spec("R1", "R2", "U1"), pytest.mark.timeout(300), pytest.mark.slow]
SAVER, HANDLES = program("saver"), program("handles")
CALM = PLENTY + "liveness: {stall_after_s: 120, busy_after_s: 120}\n"
"""On a loaded machine these scripts take many seconds to import and to exit, which is not what is tested here."""
PATIENT = CALM + "drain: {deadline_s: 120}\n"


def trained(run: Run, steps: int, after: int = 0) -> int:
    """Wait until a generation above `after` has done so many steps; the newest step then."""

    def newest() -> int:
        done = [e["step"] for e in run.events("step") if e["generation"] > after]
        return max(done) if len(done) >= steps else 0

    return int(run.wait(newest, f"{steps} steps after generation {after}", 120))


def first_step(run: Run, after: int) -> Event:
    """The first step of the first generation above `after`."""
    found: list[Event] = run.wait(lambda: [e for e in run.events("step") if e["generation"] > after], f"a step after {after}", 120)
    return min(found, key=lambda e: (e["generation"], e["step"]))


def start(run: Run, *nodes: str, **about: Any) -> dict[str, Agent]:
    return {n: run.start(n, **about) for n in nodes}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_group_saves_and_goes_on_from_there_without_the_node(run: Run, mode: str) -> None:
    agents = start(run, "a", "b", nnodes="1:2", script=SAVER, config=PATIENT, env={"MODE": mode})
    group = run.wait_group(2, within_s=120)
    before = trained(run, 10)
    leaver = agents[group[1]["node"]]
    leaver.signal(signal.SIGTERM)
    assert leaver.wait(100) == 84, run.story()
    assert "asking all ranks for a checkpoint" in leaver.text() and "a checkpoint is committed" in leaver.text()
    went_on = first_step(run, group[0]["generation"])
    assert went_on["step"] > before and went_on["restarts"] == 0, "nothing that was done at the signal is done again, or charged"
    assert "Traceback" not in leaver.text()
    run.finish(agents[group[0]["node"]], within_s=120)


def test_with_too_few_left_all_stop_and_go_on_later_from_the_checkpoint(run: Run) -> None:
    agents = start(run, "a", "b", nnodes="2", script=SAVER, config=PATIENT)
    group = run.wait_group(2, within_s=120)
    before = trained(run, 10)
    agents[group[0]["node"]].signal(signal.SIGTERM)
    assert [a.wait(100) for a in agents.values()] == [84, 84], run.story()
    other = agents[group[1]["node"]].text()
    assert "started again" in other and "Traceback" not in other
    later = start(run, "a", "b", nnodes="2", script=SAVER, config=PATIENT)
    went_on = first_step(run, group[0]["generation"])
    assert went_on["step"] > before and went_on["restarts"] == 0
    run.finish(*later.values(), within_s=120)


def test_all_nodes_are_told_at_once_as_a_scheduler_ends_a_job(run: Run) -> None:
    agents = start(run, "a", "b", nnodes="1:2", script=SAVER, config=PATIENT)
    group = run.wait_group(2, within_s=120)
    before = trained(run, 10)
    for a in agents.values():
        a.signal(signal.SIGTERM)
    assert [a.wait(100) for a in agents.values()] == [84, 84], run.story()
    later = start(run, "a", nnodes="1:2", script=SAVER, config=PATIENT)
    went_on = first_step(run, group[0]["generation"])
    assert went_on["step"] > before and went_on["restarts"] == 0
    run.finish(*later.values(), within_s=120)


def test_a_script_of_its_own_gets_the_signal_and_the_time_that_is_left(run: Run) -> None:
    """As under stock torchrun, and longer than a teardown's grace; the other node's workers get no such signal."""
    agents = start(run, "a", "b", nnodes="1:2", script=HANDLES, config=PATIENT, env={"TAKES_S": "4"})
    group = run.wait_group(2)
    leaver, other = agents[group[0]["node"]], agents[group[1]["node"]]
    leaver.signal(signal.SIGTERM)
    assert leaver.wait(100) == 84, run.story()
    assert [e["node"] for e in run.events("saved")] == [leaver.node]
    assert [e["node"] for e in run.events("signalled")].count(leaver.node) == 1, "once, so that no handler is interrupted"
    (alone,) = run.wait_group(1, after=group[0]["generation"])
    assert (alone["node"], alone["restarts"]) == (other.node, 0)
    run.finish(other)


def test_past_the_deadline_it_leaves_anyway(run: Run) -> None:
    agents = start(run, "a", "b", nnodes="1:2", script=HANDLES, config=CALM + "drain: {deadline_s: 3}\n")
    group = run.wait_group(2)
    leaver, other = agents[group[0]["node"]], agents[group[1]["node"]]
    began = time.monotonic()
    leaver.signal(signal.SIGTERM)
    assert leaver.wait(60) == 84, run.story()
    took = time.monotonic() - began
    assert took >= 3.0 and "the deadline has passed" in leaver.text()
    assert not gone([group[0]["pid"]], 5)
    (alone,) = run.wait_group(1, after=group[0]["generation"])
    assert (alone["node"], alone["restarts"]) == (other.node, 0)
    run.finish(other)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(run: Run, second: signal.Signals) -> None:
    """Also while workers still use the time that they were given."""
    agent = run.start("a", script=HANDLES, config=CALM + "drain: {deadline_s: 3000}\n", env={"TAKES_S": "2000"})
    (worker,) = run.wait_group(1)
    agent.signal(signal.SIGTERM)
    run.wait(lambda: run.events("signalled"), "the worker has the signal")
    agent.signal(second)
    assert agent.wait(60) == 84, run.story()
    assert not gone([worker["pid"], *(p.pid for p in agent.tree())], 5)


def test_a_drained_node_that_is_killed_before_it_is_done_costs_no_restart(run: Run) -> None:
    """Kubernetes' SIGKILL after the grace period, a spot machine that goes early: it had said that it leaves."""
    agents = start(run, "a", "b", nnodes="1:2", script=HANDLES, config=PATIENT)
    group = run.wait_group(2)
    leaver, other = agents[group[1]["node"]], agents[group[0]["node"]]
    leaver.signal(signal.SIGTERM)
    with closing(EtcdSession.connect(run.endpoint)) as session:
        keys = RunKeys(run.run_id)
        run.wait(lambda: any(b'"leaving":true' in kv.value for kv in session.range(keys.candidates).kvs), "it says that it leaves")
    leaver.kill_node()
    (alone,) = run.wait_group(1, after=group[0]["generation"], within_s=100)
    assert (alone["node"], alone["restarts"]) == (other.node, 0), run.story()
    run.finish(other)

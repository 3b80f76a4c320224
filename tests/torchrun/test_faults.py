"""Faults in a running group of real agents: what goes, what stays, who goes on."""

from __future__ import annotations

import os
import signal

import pytest

from tests.torchrun.runs import PLENTY, Run, gone, program, stop

pytestmark = [pytest.mark.spec("R1", "R2", "L7"), pytest.mark.timeout(180)]


def test_a_killed_worker_restarts_the_whole_group(run: Run) -> None:
    """pytorch/pytorch#123678: a worker's restart never closes the rendezvous."""
    agents = [run.start(n, nnodes="2") for n in ("a", "b")]
    first = run.wait_group(2)
    os.kill(first[1]["pid"], signal.SIGKILL)
    again = run.wait_group(2, after=first[0]["generation"])
    assert [e["restarts"] for e in again] == [1, 1], "one count, the same on all nodes"
    assert [e["node"] for e in again] == [e["node"] for e in first], "ranks stay where they were"
    assert not gone([e["pid"] for e in first], 5)
    run.finish(*agents)


def test_the_others_go_on_without_a_dead_node_and_whoever_was_rank_1_becomes_rank_0(run: Run) -> None:
    """pytorch/pytorch#182221: a node's rank may change to 0 after the other node has left."""
    agents = {n: run.start(n, nnodes="1:2") for n in ("a", "b")}
    first = run.wait_group(2)
    dead = agents[first[0]["node"]]
    dead.kill_node()
    (alone,) = run.wait_group(1, after=first[0]["generation"], within_s=15)
    assert alone["node"] == first[1]["node"] and alone["rank"] == alone["group"] == 0
    run.finish(agents[alone["node"]])


def test_workers_die_with_their_agent_and_all_their_children(run: Run) -> None:
    """GaTech-RL2/EgoVerse#682: no worker, and no process that a worker started, outlives an agent that was killed alone."""
    agents = {n: run.start(n, nnodes="1:2", script=program("children")) for n in ("a", "b")}
    first = run.wait_group(2)
    run.wait(lambda: len(run.events("child")) == 2, "children of workers")
    dead = first[1]["node"]
    agents[dead].kill_agent()
    assert not gone([e["pid"] for e in run.events() if e["node"] == dead], 5), run.story()
    (alone,) = run.wait_group(1, after=first[0]["generation"], within_s=15)
    assert alone["node"] != dead
    run.finish(agents[alone["node"]])


@pytest.mark.slow
def test_a_stopped_agents_workers_end_by_themselves_and_the_others_form_anew(run: Run) -> None:
    agents = {n: run.start(n, nnodes="1:2") for n in ("a", "b")}
    first = run.wait_group(2)
    stopped = first[1]
    stop(agents[stopped["node"]].pid)
    assert not gone([stopped["pid"]], 20), "its deadline is over"
    (alone,) = run.wait_group(1, after=first[0]["generation"], within_s=30)
    assert alone["node"] != stopped["node"]
    assert run.alive_until(stopped["pid"]) < alone["t"], "never two groups at once"
    agents[stopped["node"]].signal(signal.SIGCONT)
    back = run.wait_group(2, after=alone["generation"], within_s=40)
    assert {e["node"] for e in back} == {"a", "b"}, "it joins again under another incarnation"
    run.finish()


@pytest.mark.slow
def test_a_killed_guardian_is_replaced(run: Run) -> None:
    agent = run.start("a")
    (first,) = run.wait_group(1)
    old = agent.guardian()
    assert old is not None
    old.kill()
    run.wait(lambda: agent.guardian() not in (None, old), "another guardian", 10)
    agent.kill_agent()
    assert not gone([first["pid"]], 5), "the new one knows what to guard"


@pytest.mark.slow
def test_no_restart_left_ends_all_agents_with_a_status_that_says_so(run: Run) -> None:
    """pytorch/pytorch#76287, bigscience-workshop/bigscience: a failed node leaves no job in limbo; the scheduler sees how it ended."""
    agents = [run.start(n, nnodes="2", flags=["--max-restarts=1"]) for n in ("a", "b")]
    first = run.wait_group(2)
    run.order(f"die.{first[0]['pid']}", "7")
    again = run.wait_group(2, after=first[0]["generation"])
    run.order(f"die.{again[0]['pid']}", "7")
    for a in agents:
        assert a.wait(20) == 82, run.story()
        assert "--max-restarts=1" in a.text()


@pytest.mark.slow
def test_the_first_generations_max_restarts_binds_and_another_value_warns(run: Run) -> None:
    """One count for the run: an agent with other ideas neither ends early nor restarts alone."""
    a = run.start("a", nnodes="1:2", flags=["--max-restarts=5"])
    first = run.wait_group(1)
    b = run.start("b", nnodes="1:2", flags=["--max-restarts=0"])
    both = run.wait_group(2, after=first[0]["generation"])
    run.order(f"die.{both[1]['pid']}", "3")
    again = run.wait_group(2, after=both[0]["generation"])
    assert [e["restarts"] for e in again] == [1, 1]
    assert "max-restarts" in b.text(), run.story()
    run.finish(a, b)


@pytest.mark.slow
def test_worker_after_worker_the_count_is_the_same_everywhere_and_ranks_stay(run: Run) -> None:
    """pytorch/pytorch#67615, verl-project/verl#500: a node keeps its rank over restarts, or it is said that ranks moved."""
    agents = [run.start(n, nnodes="3", config=PLENTY) for n in ("a", "b", "c")]
    group = run.wait_group(3)
    where = [e["node"] for e in group]
    for count in (1, 2):
        os.kill(group[count]["pid"], signal.SIGKILL)
        group = run.wait_group(3, after=group[0]["generation"])
        assert [e["restarts"] for e in group] == [count] * 3
        assert [e["node"] for e in group] == where
    run.finish(*agents)


@pytest.mark.slow
def test_ranks_that_move_are_said_to_have_moved(run: Run) -> None:
    """pytorch/pytorch#67615: node-local files that go by rank are elsewhere when a lower rank leaves."""
    agents = {n: run.start(n, nnodes="2:3", config=PLENTY) for n in ("a", "b", "c")}
    first = run.wait_group(3)
    agents[first[0]["node"]].kill_node()
    two = run.wait_group(2, after=first[0]["generation"], within_s=20)
    assert [e["node"] for e in two] == [e["node"] for e in first[1:]], "order is kept"
    for e in two:
        assert "ranks moved" in agents[e["node"]].text()
    run.finish(*(agents[e["node"]] for e in two))

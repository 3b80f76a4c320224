"""Stopping on purpose: SIGTERM to one node or to all, Ctrl-C once and twice."""

from __future__ import annotations

import signal

import pytest

from tests.torchrun.runs import Run, gone

pytestmark = [pytest.mark.spec("R1", "U1"), pytest.mark.timeout(180)]


def test_a_node_that_is_told_to_stop_leaves_and_the_others_go_on(run: Run) -> None:
    agents = {n: run.start(n, nnodes="1:2") for n in ("a", "b")}
    first = run.wait_group(2)
    leaver = agents[first[0]["node"]]
    leaver.signal(signal.SIGTERM)
    (alone,) = run.wait_group(1, after=first[0]["generation"], within_s=15)
    assert leaver.wait(15) == 84 and "Traceback" not in leaver.text()
    assert alone["node"] != leaver.node and alone["restarts"] == 0, "a node that leaves on request costs no restart"
    run.finish(agents[alone["node"]])


@pytest.mark.slow
def test_all_told_to_stop_end_soon_and_the_run_can_go_on_later(run: Run) -> None:
    agents = [run.start(n, nnodes="2") for n in ("a", "b")]
    first = run.wait_group(2)
    for a in agents:
        a.signal(signal.SIGTERM)
    codes = [a.wait(20) for a in agents]
    assert not gone([e["pid"] for e in first], 1)
    assert codes == [84, 84], run.story()
    later = [run.start(n, nnodes="2") for n in ("a", "b")]
    run.wait_group(2, after=first[0]["generation"])
    run.finish(*later)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_everything(run: Run, times: int) -> None:
    agent = run.start("a")
    (worker,) = run.wait_group(1)
    for _ in range(times):
        agent.signal(signal.SIGINT)
    assert agent.wait(20) == 84
    assert not gone([worker["pid"], *(p.pid for p in agent.tree())], 5)


@pytest.mark.slow
def test_a_signal_while_waiting_for_others_gives_the_place_back(run: Run) -> None:
    waits = run.start("a", nnodes="2")
    run.wait(lambda: "waiting to form" in waits.text(), "it waits for a second node")
    waits.signal(signal.SIGTERM)
    assert waits.wait(15) == 84
    others = [run.start(n, nnodes="2") for n in ("b", "c")]
    assert {e["node"] for e in run.wait_group(2)} == {"b", "c"}
    run.finish(*others)

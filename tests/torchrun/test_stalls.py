"""Ranks that stop making progress: found, named, and the group goes on, long before the collective's own time limit."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import GLOO, PLENTY, SCRIPTS, Run, gone, program, stop

pytestmark = [pytest.mark.spec("L3", "L7", "L8", "E1"), pytest.mark.timeout(180)]


def verdicts(etcd: EtcdCluster) -> list[dict[str, object]]:
    lines = etcd.ctl("get", "--prefix", "/elastic-health/runs/job/verdicts/", "--print-value-only").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def test_a_rank_that_never_enters_the_collective_is_named(run: Run, one_etcd: EtcdCluster) -> None:
    agents = [run.start(n, nnodes="2", script=GLOO) for n in ("a", "b")]
    first = run.wait_group(2, ev="step")
    run.wait(lambda: len(run.events("step")) > 40, "progress that counts as the end of the start")
    run.order(f"hang.{first[1]['pid']}")
    again = run.wait_group(2, after=first[0]["generation"], ev="step", within_s=40)
    (verdict,) = verdicts(one_etcd)
    assert verdict["cause"] == "stall" and verdict["ranks"] == [1], verdict
    assert again[0]["t"] - run.events("hangs")[0]["t"] < 25
    run.finish(*agents)


@pytest.mark.slow
def test_a_stopped_worker_is_named(run: Run, one_etcd: EtcdCluster) -> None:
    agents = [run.start(n, nnodes="2", script=GLOO) for n in ("a", "b")]
    first = run.wait_group(2, ev="step")
    run.wait(lambda: len(run.events("step")) > 40, "progress")
    stop(first[0]["pid"])
    run.wait_group(2, after=first[0]["generation"], ev="step", within_s=40)
    (verdict,) = verdicts(one_etcd)
    assert verdict["ranks"] == [0], verdict
    assert not gone([e["pid"] for e in first], 1)
    run.finish(*agents)


@pytest.mark.slow
def test_a_program_that_is_not_python_is_found_stopped_too(run: Run, one_etcd: EtcdCluster) -> None:
    agent = run.start("a", script=str(SCRIPTS / "shell.sh"), flags=["--no-python"])
    (first,) = run.wait_group(1)
    stop(first["pid"])
    run.wait_group(1, after=first["generation"], within_s=40)
    run.finish(agent)


@pytest.mark.parametrize("tee", [(), ("--redirects=3",)])
@pytest.mark.slow
def test_a_watchdog_abort_ends_the_group_on_every_node_at_once(run: Run, one_etcd: EtcdCluster, tee: tuple[str, ...]) -> None:
    agents = [run.start(n, nnodes="2", script=program("watchdog"), flags=tee, config=PLENTY) for n in ("a", "b")]
    first = run.wait_group(2)
    run.order(f"abort.{first[0]['pid']}")
    again = run.wait_group(2, after=first[0]["generation"])
    (verdict,) = verdicts(one_etcd)
    assert verdict["cause"] == "watchdog_timeout", verdict
    assert not gone([e["pid"] for e in first], 1)
    assert again[0]["t"] - run.events("aborts")[0]["t"] < 15
    run.finish(*agents)


@pytest.mark.slow
def test_an_abort_without_watchdog_lines_is_a_killed_worker(run: Run, one_etcd: EtcdCluster) -> None:
    agent = run.start("a")
    (first,) = run.wait_group(1)
    os.kill(first["pid"], signal.SIGABRT)
    run.wait_group(1, after=first["generation"])
    (verdict,) = verdicts(one_etcd)
    assert verdict["cause"] == "worker_killed", verdict
    run.finish(agent)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_peers_that_fail_because_one_was_killed_are_not_blamed(run: Run, one_etcd: EtcdCluster, victim: int) -> None:
    """gloo tells every peer of a killed rank that a connection was closed; they end with errors of their own."""
    agents = [run.start(n, nnodes="3", script=GLOO) for n in ("a", "b", "c")]
    first = run.wait_group(3, ev="step")
    os.kill(first[victim]["pid"], signal.SIGKILL)
    run.wait_group(3, after=first[0]["generation"], ev="step")
    (verdict,) = verdicts(one_etcd)
    assert (verdict["cause"], verdict["ranks"]) == ("worker_killed", [victim]), verdict
    run.finish(*agents)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_peers_of_a_dead_node_are_not_blamed_either(run: Run, one_etcd: EtcdCluster, victim: int) -> None:
    agents = {n: run.start(n, nnodes="2:3", script=GLOO) for n in ("a", "b", "c")}
    first = run.wait_group(3, ev="step")
    dead = first[victim]["node"]
    agents[dead].kill_node()
    two = run.wait_group(2, after=first[0]["generation"], ev="step", within_s=30)
    (verdict,) = verdicts(one_etcd)
    assert (verdict["cause"], verdict["nodes"], verdict["ranks"]) == ("lost_member", [dead], [victim]), verdict
    run.finish(*(agents[e["node"]] for e in two))


@pytest.mark.slow
def test_a_rank_that_ends_well_while_others_still_need_it_costs_a_restart(run: Run, one_etcd: EtcdCluster) -> None:
    """One rank's data set was shorter: it leaves with 0, and its peers find a closed connection."""
    agents = [run.start(n, nnodes="2", script=GLOO) for n in ("a", "b")]
    first = run.wait_group(2, ev="step")
    run.wait(lambda: len(run.events("step")) > 40, "progress that counts as the end of the start")
    run.order(f"die.{first[1]['pid']}", "0")
    run.wait_group(2, after=first[0]["generation"], ev="step", within_s=60)
    verdict = verdicts(one_etcd)[0]
    assert (verdict["cause"], verdict["ranks"]) == ("worker_exit", [1]), verdict  # not rank 0, whose error is a consequence
    assert "rank 1 had ended with status 0" in str(verdict["reason"])
    run.finish(*agents)

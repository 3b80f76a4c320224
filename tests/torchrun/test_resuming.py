"""A run goes on after all of its agents have gone; nodes may differ in their number of workers."""

from __future__ import annotations

import os
import signal

import pytest

from tests.torchrun.runs import PLENTY, Run, gone

pytestmark = [pytest.mark.spec("R1", "R2", "R6"), pytest.mark.timeout(180), pytest.mark.slow]


def test_after_a_power_cut_of_all_nodes_the_run_goes_on_with_its_budget(run: Run) -> None:
    agents = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
    first = run.wait_group(2)
    os.kill(first[0]["pid"], signal.SIGKILL)
    second = run.wait_group(2, after=first[0]["generation"])
    for a in agents:
        a.kill_node()
    assert not gone([e["pid"] for e in second], 1)
    later = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
    third = run.wait_group(2, after=second[0]["generation"], within_s=40)
    assert [e["restarts"] for e in third] == [2, 2], "what was spent stays spent"
    run.finish(*later)


def test_after_a_clean_stop_it_goes_on_at_once_and_nothing_was_spent(run: Run) -> None:
    agents = [run.start(n, nnodes="2") for n in ("a", "b")]
    first = run.wait_group(2)
    for a in agents:
        a.signal(signal.SIGTERM)
    assert [a.wait(20) for a in agents] == [84, 84]
    later = [run.start(n, nnodes="2") for n in ("a", "b")]
    second = run.wait_group(2, after=first[0]["generation"], within_s=20)
    assert [e["restarts"] for e in second] == [0, 0]
    run.finish(*later)


def test_nodes_with_different_numbers_of_workers(run: Run) -> None:
    agents = [run.start("a", nnodes="2", nproc="1"), run.start("b", nnodes="2", nproc="3")]
    first = run.wait(lambda: len(run.events("boot")) == 4 and run.events("boot"), "four workers")
    by_rank = sorted(first, key=lambda e: e["rank"])
    assert [e["rank"] for e in by_rank] == [0, 1, 2, 3] and {e["world"] for e in first} == {4}
    assert [e["node"] for e in by_rank] in (["a", "b", "b", "b"], ["b", "b", "b", "a"])
    locals_of_b = [e["env"]["LOCAL_RANK"] for e in by_rank if e["node"] == "b"]
    assert locals_of_b == ["0", "1", "2"] and by_rank[1]["env"]["GROUP_WORLD_SIZE"] == "2"
    victim = next(e for e in first if e["node"] == "b")
    os.kill(victim["pid"], signal.SIGKILL)
    run.wait(lambda: len(run.events("boot", restarts=1)) == 4, "all four again")
    assert not gone([e["pid"] for e in first], 5)
    run.finish(*agents)


def test_roles_are_counted_apart(run: Run) -> None:
    agents = [run.start(n, nnodes="3", flags=[f"--role={role}"]) for n, role in (("a", "actor"), ("b", "actor"), ("c", "learner"))]
    run.wait(lambda: len(run.events("boot")) == 3, "three workers")
    env = {e["node"]: e["env"] for e in run.events("boot")}
    assert {env["a"]["ROLE_RANK"], env["b"]["ROLE_RANK"]} == {"0", "1"} and env["c"]["ROLE_RANK"] == "0"
    assert (env["a"]["ROLE_WORLD_SIZE"], env["c"]["ROLE_WORLD_SIZE"], env["c"]["ROLE_NAME"]) == ("2", "1", "learner")
    run.finish(*agents)

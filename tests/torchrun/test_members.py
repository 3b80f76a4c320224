"""Who takes part: spares, newcomers, nodes that come back, and when a run is over."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import Any

import pytest

from tests.torchrun.runs import PLENTY, Agent, Run, program

pytestmark = [pytest.mark.spec("R2", "U1"), pytest.mark.timeout(180)]
AT_ONCE = PLENTY + "membership: {scale_up: at_once, gather_s: 1}\n"


def test_a_spare_waits_disturbs_nobody_and_takes_over_when_a_node_dies(run: Run) -> None:
    """pytorch/pytorch#123678: more nodes than MAX neither restart nor close the run."""
    agents = {n: run.start(n, nnodes="2") for n in ("a", "b")}
    first = run.wait_group(2)
    agents["spare"] = run.start("spare", nnodes="2")
    run.wait(lambda: "waiting as a spare" in agents["spare"].text(), "the spare waits")
    agents["b"].kill_node()
    again = run.wait_group(2, after=first[0]["generation"], within_s=20)
    assert {e["node"] for e in again} == {"a", "spare"}
    assert len(run.events("boot", generation=first[0]["generation"])) == 2 and again[0]["generation"] == first[0]["generation"] + 1
    run.finish(agents["a"], agents["spare"])


@pytest.mark.slow
def test_a_spare_ends_with_the_run(run: Run) -> None:
    """pytorch/pytorch#123678: neither closes what runs, nor waits for ever after it."""
    a = run.start("a", config=PLENTY)
    (first,) = run.wait_group(1)
    spare = run.start("b", config=PLENTY)
    run.wait(lambda: "waiting as a spare" in spare.text(), "the spare waits")
    os.kill(first["pid"], signal.SIGKILL)
    (second,) = run.wait_group(1, after=first["generation"])
    assert second["node"] == "a", "who was a member stays one"
    run.finish(a, spare)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["told to leave", "killed"])
def test_a_spare_that_goes_does_not_touch_the_run(run: Run, how: str) -> None:
    a = run.start("a")
    (first,) = run.wait_group(1)
    spare = run.start("b")
    run.wait(lambda: "waiting as a spare" in spare.text(), "the spare waits")
    if how == "killed":
        spare.kill_node()
        time.sleep(6.0)  # longer than the lease: what follows from its end has followed
    else:
        spare.signal(signal.SIGTERM)
        assert spare.wait(15) == 84
    assert run.alive_until(first["pid"]) > time.time() - 1
    run.finish(a)
    assert len(run.events("boot")) == 1


@pytest.mark.slow
def test_a_node_joins_a_group_that_is_not_full_and_it_is_no_restart(run: Run) -> None:
    a = run.start("a", nnodes="1:2", config=AT_ONCE)
    (first,) = run.wait_group(1)
    b = run.start("b", nnodes="1:2", config=AT_ONCE)
    both = run.wait_group(2, after=first["generation"])
    assert [e["restarts"] for e in both] == [0, 0], "growing spends nothing"
    assert both[0]["node"] == "a", "the former member keeps its rank"
    assert run.alive_until(first["pid"]) < both[0]["t"]
    run.finish(a, b)


@pytest.mark.slow
def test_by_default_a_group_grows_at_a_checkpoint_and_no_step_is_done_twice(run: Run) -> None:
    """The newcomers come one after another and are taken in together, from exactly where the checkpoint is."""
    about: dict[str, Any] = {
        "nnodes": "1:9",
        "script": program("saver"),
        "config": PLENTY + "membership: {gather_s: 3}\nliveness: {stall_after_s: 120, busy_after_s: 120}\n",
        "env": {"EVERY": "100"},
    }
    agents = [run.start("a", **about)]
    (first,) = run.wait_group(1)
    run.wait(lambda: run.events("step", step=101), "a checkpoint", 120)
    agents += [run.start(n, **about) for n in ("b", "c")]
    group = run.wait_group(3, after=first["generation"], within_s=150)
    assert group[0]["node"] == "a" and {e["restarts"] for e in group} == {0}
    steps = run.wait(lambda: run.events("step", generation=group[0]["generation"], rank=0), "a step", 60)
    assert steps[0]["step"] % 100 == 1
    run.finish(*agents)


@pytest.mark.slow
def test_of_two_spares_the_one_in_the_lost_nodes_rack_takes_its_rank(run: Run) -> None:
    """pytorch/pytorch#67615, verl-project/verl#500: nobody else's rank changes.  Places as Slurm tells them."""

    def node(name: str, rack: str) -> Agent:
        env = {"SLURM_TOPOLOGY_ADDR": f"top.{rack}.{name}", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
        return run.start(name, nnodes="3", config=PLENTY, env=env)

    agents = {n: node(n, rack) for n, rack in (("n10", "r2"), ("n2", "r1"), ("n1", "r1"))}
    group = run.wait_group(3)
    assert [e["node"] for e in group] == ["n1", "n2", "n10"]
    for name, rack in (("s1", "r2"), ("s2", "r1")):
        agents[name] = node(name, rack)
        run.wait(lambda name=name: "waiting as a spare" in agents[name].text(), f"{name} waits")
    agents["n2"].kill_node()
    again = run.wait_group(3, after=group[0]["generation"])
    assert [e["node"] for e in again] == ["n1", "s2", "n10"]
    assert "ranks moved" not in agents["n10"].text()
    run.finish(*(agents[n] for n in ("n1", "s2", "n10", "s1")))


@pytest.mark.slow
def test_a_node_that_is_killed_and_started_again_at_once_forms_no_world_of_its_own(run: Run) -> None:
    """pytorch/pytorch#67616: two jobs of one run id must never train at the same time."""
    agents = {n: run.start(n, nnodes="1:2", config=AT_ONCE) for n in ("a", "b")}
    first = run.wait_group(2)
    agents["a"].kill_node()
    agents["a"] = run.start("a", nnodes="1:2", config=AT_ONCE)
    both = run.wait_group(2, after=first[0]["generation"])
    assert {e["node"] for e in both} == {"a", "b"}
    run.finish(*agents.values())
    generations: dict[int, list[float]] = {}
    for e in run.events("boot"):
        generations.setdefault(e["generation"], []).extend((e["t"], run.alive_until(e["pid"])))
    spans = [(min(t), max(t)) for _, t in sorted(generations.items())]
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans)), spans


@pytest.mark.slow
def test_a_finished_run_id_is_refused_with_its_reason(run: Run) -> None:
    """pytorch/elastic#151: a second start under the same id is told so, and does not hang."""
    run.finish(run.start("a"))
    (run.folder / "finish").unlink()
    again = run.start("a")
    assert again.wait(30) == 78
    assert "finished" in again.text() and "--rdzv-id" in again.text() and "Traceback" not in again.text()
    assert len(run.events("boot")) == 1


@pytest.mark.slow
def test_success_stays_success_when_another_node_ends_much_later(run: Run) -> None:
    """pytorch/pytorch#118891, #69520: rank 0 has a long hook at its end; others' early end takes no store and no success away."""
    agents = [run.start(n, nnodes="3") for n in ("a", "b", "c")]
    group = run.wait_group(3)
    run.order(f"linger.{group[0]['node']}", "4")
    run.finish(*agents, within_s=30)
    assert len(run.events("exits")) == 3 and len(run.events("boot")) == 3


@pytest.mark.slow
def test_the_first_node_that_ends_may_be_rank_0(run: Run) -> None:
    """pytorch/pytorch#69520: rank 0's own workers are done first; its store stays until all are."""
    agents = [run.start(n, nnodes="2") for n in ("a", "b")]
    group = run.wait_group(2)
    run.order(f"linger.{group[1]['node']}", "3")
    run.finish(*agents, within_s=30)
    assert len(run.events("boot")) == 2


@pytest.mark.slow
def test_a_node_that_crashes_while_others_wait_for_the_end_is_noticed_at_once(run: Run) -> None:
    """pytorch/pytorch#99051: no five minutes at an exit barrier after a crash."""
    agents = {n: run.start(n, nnodes="1:2", config=PLENTY) for n in ("a", "b")}
    group = run.wait_group(2)
    late = group[1]["node"]
    run.order(f"linger.{late}", "600")
    run.order("finish")
    run.wait(lambda: run.events("exits"), "the other worker is done")
    began = time.monotonic()
    agents[late].kill_node()
    left = agents[group[0]["node"]]
    # The dead node's part is not done: the rest forms anew, and finishes by itself.
    assert left.wait(30) == 0
    assert time.monotonic() - began < 20 and run.events("exits")[-1]["world"] == 1

"""Who takes part: spares, newcomers, nodes that come back, and when a run is over."""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest

from tests.torchrun.runs import PLENTY, Run

pytestmark = [pytest.mark.spec("R2", "U1"), pytest.mark.timeout(180)]
AT_ONCE = PLENTY + "membership: {scale_up: at_once}\n"


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
def test_a_spare_that_leaves_does_not_touch_the_run(run: Run) -> None:
    a = run.start("a")
    (first,) = run.wait_group(1)
    spare = run.start("b")
    run.wait(lambda: "waiting as a spare" in spare.text(), "the spare waits")
    spare.signal(signal.SIGTERM)
    spare.wait(15)
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

"""No endpoint: a private etcd for this machine, gone with its last user; each launch is a run of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.torchrun.runs import Run, a_run

pytestmark = [pytest.mark.spec("U1"), pytest.mark.timeout(120)]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Run]:
    """A run without endpoint and run id; its private etcd's folder is below the run's."""
    with a_run(tmp_path / "run", "", "") as made:
        yield made


def servers(run: Run) -> list[psutil.Process]:
    """etcd and its keeper that serve this run's folder."""
    found = []
    for p in psutil.process_iter():
        try:
            if any(str(run.folder / "state") in word for word in p.cmdline()) and p.status() != psutil.STATUS_ZOMBIE:
                found.append(p)
        except psutil.Error:
            continue
    return found


def test_it_starts_one_and_leaves_nothing_behind(alone: Run) -> None:
    agent = alone.start("a")
    (first,) = alone.wait_group(1)
    assert servers(alone) and first["restarts"] == 0
    alone.finish(agent)
    alone.wait(lambda: not servers(alone), "no server is left", 10)


@pytest.mark.slow
def test_two_launches_at_once_are_two_runs_and_a_later_one_is_a_third(alone: Run) -> None:
    agents = [alone.start(n) for n in ("a", "b")]
    alone.wait(lambda: len(alone.events("boot")) == 2, "both run")
    assert {e["world"] for e in alone.events("boot")} == {1}
    alone.finish(*agents)
    later = alone.start("a")
    assert later.wait(30) == 0
    ids = {e["env"]["TORCHELASTIC_RUN_ID"] for e in alone.events("boot")}
    assert len(ids) == 3 and "none" not in ids
    alone.wait(lambda: not servers(alone), "no server is left", 10)


@pytest.mark.slow
def test_a_killed_launch_takes_its_etcd_along(alone: Run) -> None:
    agent = alone.start("a")
    (worker,) = alone.wait_group(1)
    agent.kill_agent()
    alone.wait(lambda: not servers(alone) and not psutil.pid_exists(worker["pid"]), "nothing is left", 15)


@pytest.mark.slow
def test_two_agents_share_one_run_by_its_id_on_the_private_etcd(alone: Run) -> None:
    alone.run_id = "shared"
    agents = [alone.start(n, nnodes="2") for n in ("a", "b")]
    assert {e["node"] for e in alone.wait_group(2)} == {"a", "b"}
    alone.finish(*agents)
    alone.wait(lambda: not servers(alone), "no server is left", 10)

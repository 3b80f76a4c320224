"""etcd goes away and comes back while training: a healthy run trains on."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import PLENTY, Run, a_run

pytestmark = [pytest.mark.spec("U6", "R10"), pytest.mark.timeout(240), pytest.mark.slow, pytest.mark.sound_etcd]


def test_a_lease_renewal_that_fails_for_two_seconds_ends_nothing(run: Run, one_etcd: EtcdCluster) -> None:
    """pytorch/pytorch#194870: one transient store error, and a TTL later the whole job ended."""
    agents = [run.start(n, nnodes="3") for n in ("a", "b", "c")]
    first = run.wait_group(3)
    one_etcd.members[0].freeze()
    time.sleep(2)  # the length of the fault
    one_etcd.members[0].thaw()
    until = time.time() + 8  # longer than a lease
    run.wait(lambda: time.time() > until, "a lease's time")
    assert len(run.events("boot")) == 3
    assert all(run.alive_until(e["pid"]) > until - 1 for e in first)
    run.finish(*agents)
    assert len(run.events("boot")) == 3


def test_etcd_killed_and_started_again_eight_seconds_later(run: Run, one_etcd: EtcdCluster) -> None:
    """Longer than a lease: links to all members are up, so the group trains on, and is a group again afterwards."""
    agents = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
    first = run.wait_group(2)
    etcd = one_etcd.members[0]
    etcd.kill()
    time.sleep(8)  # the length of the fault
    etcd.start()
    etcd.wait_healthy()
    back = time.time()
    run.wait(lambda: time.time() > back + 6, "a lease's time")
    assert len(run.events("boot")) == 2, run.story()
    assert all(run.alive_until(e["pid"]) > back + 5 for e in first)
    run.order(f"die.{first[1]['pid']}", "4")
    again = run.wait_group(2, after=first[0]["generation"])
    assert [e["restarts"] for e in again] == [1, 1]
    run.finish(*agents)


def test_a_fault_during_an_outage_is_dealt_with_after_it(run: Run, one_etcd: EtcdCluster) -> None:
    agents = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
    first = run.wait_group(2)
    etcd = one_etcd.members[0]
    etcd.kill()
    run.order(f"die.{first[1]['pid']}", "4")
    run.wait(lambda: run.events("dies"), "the fault")
    time.sleep(3)  # the outage goes on
    assert len(run.events("boot")) == 2
    etcd.start()
    etcd.wait_healthy()
    run.wait_group(2, after=first[0]["generation"], within_s=30)
    run.finish(*agents)


def test_leases_that_are_lost_and_not_replaced_are_retaken(run: Run, one_etcd: EtcdCluster) -> None:
    """All of them at once, as at the end of an outage: same incarnations, new leases, the same workers."""
    agents = [run.start(n, nnodes="3") for n in ("a", "b", "c")]
    first = run.wait_group(3)
    below = f"/elastic-health/runs/{run.run_id}/candidates/"

    def leases() -> dict[str, int]:
        found = json.loads(one_etcd.ctl("get", "--prefix", below, "-w", "json")).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode(): kv["lease"] for kv in found}

    run.wait(lambda: all("starting -> running" in a.text() for a in agents), "all run")
    had = leases()
    for lease in had.values():
        one_etcd.ctl("lease", "revoke", f"{lease:x}")
    run.wait(lambda: leases().keys() == had.keys() and not set(leases().values()) & set(had.values()), "all are retaken", 20)
    until = time.time() + 8  # longer than a lease
    run.wait(lambda: time.time() > until, "a lease's time")
    assert len(run.events("boot")) == 3, run.story()
    assert all(run.alive_until(e["pid"]) > until - 1 for e in first)
    run.finish(*agents)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_an_agent_that_is_started_in_an_outage_joins_after_it(run: Run, one_etcd: EtcdCluster, how: str) -> None:
    """Longer than one request's deadline: it says at once what it waits for."""
    etcd = one_etcd.members[0]
    etcd.freeze() if how == "frozen" else etcd.kill()
    agent = run.start("a")
    run.wait(lambda: "store.connect_s" in agent.text(), "the agent says that it waits")
    until = time.time() + 4  # the outage goes on
    run.wait(lambda: time.time() > until, "more of the outage")
    assert agent.process.poll() is None, agent.text()
    etcd.thaw() if how == "frozen" else etcd.start()
    run.wait_group(1, within_s=60)
    run.finish(agent)


def test_one_of_three_members_killed(three_etcd: EtcdCluster, tmp_path: Path) -> None:
    """Whichever leads: sessions move to another member, the group is not touched."""
    with a_run(tmp_path / "run", ",".join(three_etcd.endpoints)) as run:
        agents = [run.start(n, nnodes="2") for n in ("a", "b")]
        first = run.wait_group(2)
        three_etcd.leader().kill()
        until = time.time() + 8
        run.wait(lambda: time.time() > until, "a lease's time")
        assert len(run.events("boot")) == 2
        run.order(f"die.{first[0]['pid']}", "4")
        run.wait_group(2, after=first[0]["generation"], within_s=30)
        run.finish(*agents)

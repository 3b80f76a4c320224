"""Quarantine as real agents meet it: who joins, and who waits, is told once and leaves with 81; who was released comes back."""

from __future__ import annotations

import time

import pytest

from elastic_health.cli.main import main
from elastic_health.exits import ExitStatus
from elastic_health.rendezvous.keys import FleetKeys
from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import PLENTY, Agent, Run

pytestmark = [pytest.mark.spec("R7", "U1"), pytest.mark.timeout(900), pytest.mark.slow]
LONG = 240.0
"""Seconds; a start takes two on an idle machine."""
SOON_S = 3.0
"""A second is what is promised; a loaded machine gets more."""
KEYS = FleetKeys()


def told_once(agent: Agent) -> None:
    assert agent.wait(LONG) == ExitStatus.QUARANTINED, agent.text()
    text = agent.text()
    assert "Traceback" not in text and text.count("healthy-etcd: ") == 1, text
    assert f"quarantine release {agent.node}" in text.partition("healthy-etcd: ")[2], text


@pytest.mark.parametrize("value", ["", "{}", "its fan is broken", '{"until": "for ever"}'])
def test_who_joins_is_refused(value: str, run: Run, one_etcd: EtcdCluster) -> None:
    one_etcd.ctl("put", "--", KEYS.quarantined_node("a"), value)
    told_once(run.start("a", config=PLENTY))
    assert not run.events("boot")


def test_who_waits_for_others_leaves_at_once(run: Run, one_etcd: EtcdCluster) -> None:
    """By the command, while it is a ready candidate."""
    waiting = run.start("a", nnodes="2", config=PLENTY)
    run.wait(lambda: '"ready"' in one_etcd.ctl("get", "--prefix", "/elastic-health/runs/job/candidates/"), "it is ready", LONG)
    began = time.monotonic()
    assert main(["quarantine", "add", "a", "--reason", "its fan", "--endpoint", one_etcd.endpoints[0]]) == 0
    run.wait(lambda: "its fan" in waiting.text(), "it is told", LONG)
    assert time.monotonic() - began < SOON_S
    told_once(waiting)


def test_who_was_released_is_not_kept_out_by_what_was(run: Run, one_etcd: EtcdCluster) -> None:
    """NVIDIA/NVSentinel#1347, #1415: a restart replayed old events on nodes that had been released."""
    one_etcd.ctl("put", KEYS.quarantined_node("a"), "")
    told_once(run.start("a", config=PLENTY))
    assert main(["quarantine", "release", "a", "--endpoint", one_etcd.endpoints[0]]) == 0
    one_etcd.ctl("put", KEYS.quarantined_node("a"), '{"until": 1000000000}')  # and one that has expired says nothing
    revision = one_etcd.ctl("get", "/none", "--write-out=fields").split('"Revision" : ')[1].split()[0]
    one_etcd.ctl("compact", revision)
    again = run.start("a", config=PLENTY)
    run.wait_group(1, within_s=LONG)
    run.finish(again, within_s=LONG)

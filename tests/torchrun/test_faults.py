"""Faults in a running group of real agents: what goes, what stays, who goes on."""

from __future__ import annotations

import os
import signal

import pytest

from tests.torchrun.runs import PLENTY, Run, gone

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

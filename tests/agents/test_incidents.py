"""From an ended worker to an incident: who is named, who is not."""

from __future__ import annotations

import pytest

from elastic_health.agents.incidents import from_exit
from elastic_health.liveness.exits import classify
from elastic_health.liveness.facts import ExitFacts

HEAD = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
BROKEN = HEAD + "RuntimeError: Connection closed by peer [127.0.0.1]:4711\n"
OWN = HEAD + "ValueError: no such file\n"


def _exit(tail: str) -> ExitFacts:
    return ExitFacts(rank=0, node="a", local_rank=0, pid=10, code=1, at=5.0, tail=tail)


@pytest.mark.spec("L7", "E2")
def test_a_rank_that_ended_well_too_early_is_named_not_the_peer_that_broke_on_it() -> None:
    incident = from_exit(classify(_exit(BROKEN)), id="i", generation=1, wall=0.0, step=3, ran_s=9.0, ended=[2, 1])
    assert incident.ranks == (1, 2) and incident.nodes == (), "the program let them end: no node is blamed"
    assert incident.reason.startswith("ranks 1, 2 had ended with status 0 while others still needed them")
    assert incident.secondary, "a first cause that comes in a moment still wins"


def test_an_origin_of_its_own_stays_the_origin() -> None:
    incident = from_exit(classify(_exit(OWN)), id="i", generation=1, wall=0.0, step=3, ran_s=9.0, ended=[1])
    assert incident.ranks == (0,) and incident.nodes == ("a",) and "ended with status 0" not in incident.reason


def test_without_an_early_end_a_consequence_names_nobody() -> None:
    incident = from_exit(classify(_exit(BROKEN)), id="i", generation=1, wall=0.0, step=3, ran_s=9.0)
    assert incident.ranks == () and incident.nodes == ()

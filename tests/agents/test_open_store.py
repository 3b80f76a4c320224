"""The rank-0 agent's store that can't be opened ends the generation with a reason, not the agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_health.agents.hands_torch import AgentHands
from elastic_health.errors import LinkError
from elastic_health.rendezvous import events as ev
from elastic_health.verdicts import Cause

NO_ROOM = LinkError("a free port at 127.0.0.1", "[Errno 24] Too many open files", "raise the limit")


@pytest.mark.parametrize("trouble", [NO_ROOM, RuntimeError("gone")])
def test_a_store_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    posted: list[ev.Event] = []

    def fails() -> Any:
        raise trouble

    hands = AgentHands.__new__(AgentHands)  # of its parts only these two matter here
    hands._host_store = fails
    hands.loop = SimpleNamespace(post=posted.append)  # type: ignore[assignment]
    monkeypatch.setattr(AgentHands, "make_id", lambda self: "id")
    hands.open_store(SimpleNamespace(number=7, members=(SimpleNamespace(node="a"),)))  # type: ignore[arg-type]
    (judged,) = posted
    assert isinstance(judged, ev.Judged)
    incident = judged.incident
    assert incident.cause is Cause.NOT_STARTED and incident.nodes == ("a",) and incident.generation == 7
    assert str(trouble) in incident.reason and "a can't open" in incident.reason

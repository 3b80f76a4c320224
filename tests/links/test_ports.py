"""The kept link of an agent: dialed again for as long as it is wanted, however soon a dial fails."""

from __future__ import annotations

import time
from typing import Any

import pytest

from elastic_health.agents.links_net import LinkListener
from elastic_health.agents.ports_net import AgentLinks
from elastic_health.policies import Policies
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.handler_torch import Identity
from tests.etcd_fixture import free_port
from tests.links.parts import SECRET, agent, until


@pytest.mark.spec("R2")
def test_a_dial_that_fails_before_its_number_is_known_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused port or an unknown name is told by the link's thread while the caller still waits for the dial's number."""
    original = LinkListener.dial

    def slow_to_return(self: LinkListener, *words: Any, **named: Any) -> int:
        number = original(self, *words, **named)
        time.sleep(0.2)
        return number

    monkeypatch.setattr(LinkListener, "dial", slow_to_return)
    told: list[ev.Event] = []
    port = free_port()
    me = Identity("run", "a", "x", SECRET, "127.0.0.1", (), Policies())
    links = AgentLinks(me, told.append)
    try:
        links.connect(("b", "b-1"), f"127.0.0.1:{port}", 1)
        until(lambda: ev.LinkDown(("b", "b-1"), "refused") in told)
        with agent("b", port=port):
            until(lambda: ev.LinkUp(("b", "b-1")) in told)
    finally:
        links.close()

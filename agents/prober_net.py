"""Dials an agent whose link broke, to learn whether its process is dead.

Law: only proof counts as death.  A refused connection is proof (an agent listens for its whole life, so nobody listens
there any more), and so is an answer of the same node under another incarnation.  A stopped process still has its
connections accepted by the kernel and merely says nothing: that, a lost route and a foreign answer prove nothing, and
the lease decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from elastic_health.agents.link_types import DialFailed, DownReason, LinkEvent, LinkHello, Purpose, Up
from elastic_health.agents.links_net import LinkClient, LinkLoop

REDIALS = 2
"""A process that dies while it is dialed resets that connection: the next dial tells."""


class ProbeOutcome(Enum):
    """`foreign`: something else answers there, or something in between."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class ProbeResult:
    """`node` and `incarnation` are of the agent that answered and proved the run's secret (accepted only)."""

    outcome: ProbeOutcome
    took_s: float
    node: str = ""
    incarnation: str = ""
    detail: str = ""

    def proves_dead(self, node: str, incarnation: str) -> bool:
        """Whether the agent process (node, incarnation) that advertised this address is surely gone."""
        if self.outcome is ProbeOutcome.ACCEPTED:
            return self.node == node and self.incarnation != incarnation
        return self.outcome is ProbeOutcome.REFUSED


_OUTCOMES: Mapping[DownReason, ProbeOutcome] = {
    DownReason.REFUSED: ProbeOutcome.REFUSED,
    DownReason.TIMEOUT: ProbeOutcome.TIMEOUT,
    DownReason.UNREACHABLE: ProbeOutcome.UNREACHABLE,
}


def start_probe(links: LinkLoop, address: str, timeout_s: float, done: Callable[[ProbeResult], None]) -> None:
    """Dial `address` in the thread of `links`; `done` is called there, once, within about `timeout_s` seconds.

    Raises:
        ConfigError: `address` is no host:port.
    """
    began = time.monotonic()
    dials_left = [REDIALS]

    def heard(event: LinkEvent) -> None:
        now = time.monotonic()
        if isinstance(event, Up):
            done(ProbeResult(ProbeOutcome.ACCEPTED, now - began, event.peer.node, event.peer.incarnation))
        elif isinstance(event, DialFailed):
            left_s = began + timeout_s - now
            if event.reason in (DownReason.EOF, DownReason.RESET) and dials_left[0] > 0 and left_s > 0:
                dials_left[0] -= 1
                links.dial(address, 0, purpose=Purpose.PROBE, timeout_s=left_s, tell=heard)
                return
            done(ProbeResult(_OUTCOMES.get(event.reason, ProbeOutcome.FOREIGN), now - began, detail=event.detail))

    links.dial(address, 0, purpose=Purpose.PROBE, timeout_s=timeout_s, tell=heard)


def probe(address: str, secret: bytes, hello: LinkHello, timeout_s: float = 1.0) -> ProbeResult:
    """As `start_probe`, for a caller without links: blocks until the answer.

    Raises:
        ConfigError: `address` is no host:port.
    """
    results: list[ProbeResult] = []
    answered = threading.Event()

    def done(result: ProbeResult) -> None:
        results.append(result)
        answered.set()

    with LinkClient(secret, hello, lambda _: None) as links:
        start_probe(links, address, timeout_s, done)
        answered.wait(timeout_s + 2.0)
    return results[0] if results else ProbeResult(ProbeOutcome.TIMEOUT, timeout_s, detail="no answer from the link thread")

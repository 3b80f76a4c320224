"""The agent links as the membership loop uses them: one listener for life, one kept link to the rank-0 agent, probes."""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
from collections.abc import Callable

from elastic_health.agents.addresses_net import advertised_host, both_names, wait_for_name
from elastic_health.agents.link_types import DialFailed, Down, LinkEvent, LinkHello, LinkTiming, Message, Peer, Up
from elastic_health.agents.links_net import LinkListener
from elastic_health.agents.prober_net import ProbeOutcome, ProbeResult, start_probe
from elastic_health.errors import LinkError
from elastic_health.messages import LinkMessage
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.handler_torch import Identity
from elastic_health.rendezvous.view import Who

log = logging.getLogger("elastic_health")
REDIAL_S = 0.3
PROBE_S = 1.0


def open_links(identity: Identity, post: Callable[[ev.Event], None]) -> AgentLinks:
    """Listen, under this agent's first incarnation."""
    return AgentLinks(identity, post)


class AgentLinks:
    """See the module docstring.  Events reach the loop through `post`, from the link thread."""

    def __init__(self, identity: Identity, post: Callable[[ev.Event], None]) -> None:
        self._post = post
        self._wanted: tuple[Who, str, int] | None = None
        self._peers: dict[int, Peer] = {}
        self._dial = 0
        # A dial can fail before its number has come back to who asked for it.
        self._dialing = threading.Lock()
        self._closed = False
        hello = LinkHello(identity.run, identity.node, f"{identity.incarnation}-0")
        timing = LinkTiming(timeout_s=identity.policies.membership.bounds.link_timeout_s)
        host = advertised_host(identity.local_addr, identity.endpoints)
        patience_s = identity.policies.membership.join_timeout_s
        wait_for_name(host, patience_s, lambda e: log.warning("--local-addr=%s: %s; asking again for up to %g s", host, e, patience_s))
        self._links = LinkListener(identity.secret, host, self._heard, hello=hello, port=identity.listen, timing=timing)
        self.address = self._links.address
        if self._links.everywhere:
            what = "none of this machine's addresses is the advertised one, so links are taken on all interfaces"
            log.warning("%s: %s; others must reach this host there (a service address, NAT), or pass --local-addr", what, both_names(host))

    def beside(self) -> socket.socket:
        """A listening socket at the address where the links listen, on a free port: for the generation's store."""
        return self._links.beside()

    def rename(self, incarnation: str) -> None:
        self._links.hello = dataclasses.replace(self._links.hello, incarnation=incarnation)

    def connect(self, who: Who, address: str, generation: int) -> None:
        """Keep a link to `who` until `close_generation`; a failed or broken one is dialed again."""
        with self._dialing:
            self._wanted = (who, address, generation)
            self._dial = self._links.dial(address, generation)

    def tell(self, who: Who | None, message: LinkMessage) -> None:
        try:
            if who is None:
                self._links.broadcast(message)
            else:
                self._links.send_to(who, message)
        except LinkError:
            # Only when the link thread is far behind: the link is as good as broken, and its timeout will say so.
            return

    def probe(self, who: Who, address: str) -> None:
        def done(result: ProbeResult) -> None:
            self._post(ev.Probed(who, result.proves_dead(*who), result.outcome is ProbeOutcome.ACCEPTED))

        start_probe(self._links, address, PROBE_S, done)

    def close_generation(self, generation: int) -> None:
        """Drop the links of this generation and older ones; the listener stays."""
        self._wanted = None
        for peer in tuple(self._peers.values()):
            if peer.generation <= generation:
                self._links.drop(peer)
                self._peers.pop(peer.link, None)

    def close(self) -> None:
        self._closed, self._wanted = True, None
        self._links.close()

    # ---- on the link thread
    def _heard(self, event: LinkEvent) -> None:
        if isinstance(event, Up):
            self._peers[event.peer.link] = event.peer
            self._post(ev.LinkUp(event.peer.who))
        elif isinstance(event, Message):
            self._post(ev.PeerSaid(event.peer.who, event.message))
        elif isinstance(event, Down):
            self._peers.pop(event.peer.link, None)
            if all(p.who != event.peer.who for p in self._peers.values()):  # a newer link to it may be up already
                self._post(ev.LinkDown(event.peer.who, event.reason.value))
            if self._is_kept(event.peer.link):
                self._again()
        elif isinstance(event, DialFailed) and self._is_kept(event.dial):
            if self._wanted is not None:
                self._post(ev.LinkDown(self._wanted[0], event.reason.value))
            self._again()

    def _is_kept(self, number: int) -> bool:
        with self._dialing:
            return number == self._dial

    def _again(self) -> None:
        """Dial the wanted agent again, a little later."""

        def dial() -> None:
            with self._dialing:
                wanted = self._wanted
                if wanted is not None and not self._closed:
                    self._dial = self._links.dial(wanted[1], wanted[2])

        if self._wanted is not None and not self._closed:
            timer = threading.Timer(REDIAL_S, dial)
            timer.daemon = True
            timer.start()

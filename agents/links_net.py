"""What an agent does with its links: it listens for its whole life, dials, sends, drops; a mere client only dials.

Law: no other process keeps an agent's sockets open, neither across exec nor across fork: its peers see its death.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from dataclasses import replace
from typing import TypeVar

from elastic_health.agents.addresses_net import HostPort, parse_hostport
from elastic_health.agents.link_door_net import Door
from elastic_health.agents.link_loop_net import LINGER_S, Call, LinkThread, OnEvent
from elastic_health.agents.link_sockets_net import raise_open_files
from elastic_health.agents.link_types import LinkHello, LinkLimits, LinkTiming, Peer, Purpose
from elastic_health.agents.links import encode
from elastic_health.errors import LinkError
from elastic_health.messages import LinkMessage, Progress

FILES_FOR_OTHERS = 512
"""Of the limit of open files, what is not for links: workers' pipes, logs, etcd, /proc."""
L = TypeVar("L", bound="LinkLoop")
_alive: weakref.WeakSet[LinkLoop] = weakref.WeakSet()


class LinkLoop(LinkThread):
    """What an agent does with its links, from any thread."""

    def dial(
        self, address: str, generation: int, *, purpose: Purpose = Purpose.LINK, timeout_s: float | None = None, tell: OnEvent | None = None
    ) -> int:
        """Connect to the agent that listens at `address`; returns the link's number.

        Ends in `Up` (whose `peer.link` is that number) or in `DialFailed`; a probe is closed right after its `Up`.

        Args:
            tell: hears of this link instead of `on_event`.

        Raises:
            ConfigError: `address` is no host:port.
        """
        target, number = parse_hostport(address), next(self._numbers)
        until = time.monotonic() + (self.timing.handshake_s if timeout_s is None else timeout_s)
        hello = replace(self.hello, generation=generation, purpose=purpose)
        self._post(lambda: self._start_dial(number, target, hello, until, tell or self._on_event))
        return number

    def send(self, peer: Peer, message: LinkMessage) -> bool:
        """Queue a message for one link; nothing happens if it is down by then (its `Down` says so).

        Returns:
            False when the link thread is far behind and a `Progress` was dropped for it.

        Raises:
            LinkError: the message is too long, or the thread is far behind and the message may not be dropped.
        """
        body, may_drop = encode(message), isinstance(message, Progress)
        return self._post_message(lambda: self._put(peer.link, body, may_drop), may_drop)

    def send_to(self, who: tuple[str, str], message: LinkMessage) -> bool:
        """As `send`, over the newest link that is up to (node, incarnation)."""
        body, may_drop = encode(message), isinstance(message, Progress)
        return self._post_message(lambda: self._put(self._newest.get(who, 0), body, may_drop), may_drop)

    def broadcast(self, message: LinkMessage, generation: int | None = None) -> bool:
        """As `send`, to every peer that is up (of one generation, if given)."""
        body, may_drop = encode(message), isinstance(message, Progress)
        return self._post_message(lambda: self._put_all(body, may_drop, generation), may_drop)

    def drop(self, peer: Peer) -> None:
        """Close one link once what was sent is delivered, or after a second; no `Down` follows."""
        self._post(lambda: self._leave(peer.link))

    def drop_generation(self, generation: int) -> None:
        """Close every link of a generation, as `drop`."""
        self._post(lambda: self._leave_generation(generation))

    def close(self) -> None:
        """Deliver what was sent (for at most a second), close all sockets, end the thread.  Safe to repeat."""
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._closed.wait(LINGER_S + 5.0)

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post_message(self, call: Call, may_drop: bool) -> bool:
        if len(self._calls) < self.limits.commands:
            self._post(call)
            return True
        if may_drop:
            return False
        raise LinkError(f"at most {self.limits.commands} waiting messages", "a link thread that is behind", "send less often")


class LinkListener(LinkLoop):
    """The agent's links, with the port on which it can be dialed for its whole life; `address` is what to advertise.

    `everywhere`: `host` is no address of this machine, so the port is open on all its interfaces.

    Args:
        host: the advertised host (see `advertised_host`); all interfaces when it is none of this machine's addresses.
        port: 0 for any free one.

    Raises:
        LinkError: the port can't be opened.
    """

    def __init__(
        self,
        secret: bytes,
        host: str,
        on_event: OnEvent,
        *,
        hello: LinkHello,
        port: int = 0,
        timing: LinkTiming | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        limits, files = limits or LinkLimits(), raise_open_files()
        most = max(files // 2, files - FILES_FOR_OTHERS)  # links never take the agent's last descriptors
        super().__init__(secret, hello, on_event, timing=timing, limits=replace(limits, links=min(limits.links, most)))
        try:
            self._door = Door(host, port, self._selector, self._warnings)
        except LinkError:
            self.close_files()
            raise
        self.address, self.everywhere = str(HostPort(host, self._door.port)), self._door.everywhere
        _alive.add(self)
        self._thread.start()

    def beside(self) -> socket.socket:
        """A listening socket at the same local address, on a free port.

        Raises:
            LinkError: there is none.
        """
        assert self._door is not None
        return self._door.beside()


class LinkClient(LinkLoop):
    """Links of a process that only dials: probes from a command, tests.  An agent dials with its `LinkListener`."""

    def __init__(
        self, secret: bytes, hello: LinkHello, on_event: OnEvent, *, timing: LinkTiming | None = None, limits: LinkLimits | None = None
    ) -> None:
        super().__init__(secret, hello, on_event, timing=timing, limits=limits)
        _alive.add(self)
        self._thread.start()

    @classmethod
    def connect(cls, address: str, secret: bytes, hello: LinkHello, on_event: OnEvent, *, timing: LinkTiming | None = None) -> LinkClient:
        """A client that has begun to dial `address` for `hello.generation`."""
        client = cls(secret, hello, on_event, timing=timing)
        client.dial(address, hello.generation, purpose=hello.purpose)
        return client


def _close_in_forked_child() -> None:
    for loop in list(_alive):
        loop.close_files(forked=True)
    _alive.clear()


os.register_at_fork(after_in_child=_close_in_forked_child)

"""One connection of the link loop: its socket, its machine, its unsent bytes and its pulse.

Law: unsent bytes are bounded; what may be dropped (`Progress`) gives way when the peer reads slowly, every other
message is kept or the link ends as `slow`.  Nothing here blocks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_health.agents import link_sockets_net as sockets
from elastic_health.agents.addresses_net import SockAddr
from elastic_health.agents.link_pulse import Pulse
from elastic_health.agents.link_types import Direction, DownReason, LinkEvent, LinkHello, LinkLimits, Peer
from elastic_health.agents.links import NONCE_BYTES, Broken, Link, LinkOutcome, Side

READ_BYTES = 256 * 1024
WRITE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Closing:
    """Why a connection must be closed."""

    reason: DownReason
    detail: str = ""


@dataclass
class Wire:
    """A connection from the first SYN on.

    Attributes:
        number: this link's number within the agent, also what `dial` returned.
        remote: where it leads, for people.
        left: addresses of the same name still to be tried (dials only).
        failed: why earlier addresses of the name failed.
        until: monotonic second by which the handshake, or the leave-taking, must be over.
        tell: who hears of this link.
        leaving: this side has said all and waits for the other to close: closing at once, with its bytes unread,
            would reset the connection and could destroy the last message on its way.
        dropped: `Progress` messages that gave way.
    """

    number: int
    direction: Direction
    link: Link
    remote: str
    until: float
    pulse: Pulse
    tell: Callable[[LinkEvent], None]
    sock: socket.socket | None = None
    connecting: bool = False
    left: list[tuple[int, SockAddr]] = field(default_factory=list)
    failed: list[Closing] = field(default_factory=list)
    peer: Peer | None = None
    leaving: bool = False
    out: bytearray = field(default_factory=bytearray)
    dropped: int = 0
    mask: int = 0

    @property
    def up(self) -> bool:
        """Proven, and not being closed by this side."""
        return self.peer is not None and not self.leaving

    def connected(self) -> Closing | None:
        """The socket became writable while connecting: begin the handshake, or say why not."""
        assert self.sock is not None
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return Closing(sockets.why_not_connected(self.sock, error), os.strerror(error))
        if sockets.connected_to_itself(self.sock):
            return Closing(DownReason.REFUSED, "nobody listens: the dial met itself")
        sockets.connected(self.sock)
        self.connecting = False
        self.out += self.link.start()
        return None

    def read(self) -> tuple[list[LinkOutcome], Closing | None]:
        """Take what the socket holds, once (others wait too); the bytes to answer with are queued."""
        assert self.sock is not None
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return [], None
        except OSError as e:
            return [], Closing(sockets.reason_of(e.errno or 0), e.strerror or str(e))
        if not data:
            return [], Closing(DownReason.EOF, "closed by the other side")
        outcomes, reply = self.link.receive(data)
        self.out += reply
        broken = outcomes[-1] if outcomes and isinstance(outcomes[-1], Broken) else None
        return outcomes, Closing(broken.reason, str(broken.error)) if broken else None

    def put(self, body: bytes, may_drop: bool, limits: LinkLimits) -> Closing | None:
        """Queue an encoded message, drop it if it may be dropped, or say that the peer is too slow to be told."""
        if may_drop and len(self.out) > limits.drop_bytes:
            self.dropped += 1
            return None
        self.out += self.link.frame(body)
        if len(self.out) > limits.queue_bytes:
            return Closing(DownReason.SLOW, f"{len(self.out)} bytes unsent")
        return None

    def flush(self) -> Closing | None:
        """Send what the socket takes now; with nothing left and leaving, say that no more will come."""
        assert self.sock is not None
        try:
            while self.out:
                with memoryview(self.out) as all_bytes, all_bytes[:WRITE_BYTES] as part:
                    sent = self.sock.send(part)
                del self.out[:sent]
            if self.leaving:
                self.sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as e:
            return Closing(sockets.reason_of(e.errno or 0), e.strerror or str(e))
        return None


def new_machine(direction: Direction, secret: bytes, hello: LinkHello) -> Link:
    """A machine with a fresh nonce."""
    side = Side.DIALER if direction is Direction.DIALED else Side.LISTENER
    return Link(side, secret, hello, os.urandom(NONCE_BYTES))


def verdict_of(failed: list[Closing]) -> Closing:
    """What several addresses of one name say together: `refused` only when all of them refused."""
    return next((c for c in failed if c.reason is not DownReason.REFUSED), failed[-1])

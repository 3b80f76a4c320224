"""What an agent link says of itself: identities, peers, events, time limits.  Plain data, shared by both ends.

Law: one `Up` comes before any `Message` of a peer and one `Down` after the last; a link that this side closed on
purpose ends without a `Down`; a dial that never came up ends in exactly one `DialFailed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elastic_health.messages import LinkMessage


class Purpose(Enum):
    """Why an agent dials: to stay linked, or only to learn who answers."""

    LINK = "link"
    PROBE = "probe"


@dataclass(frozen=True)
class LinkHello:
    """Who speaks, bound into the handshake.

    Attributes:
        run: the run id; the two ends must name the same.
        node, incarnation: which agent.
        generation: the generation that a dialing member links for; a listener's own is not compared.
    """

    run: str
    node: str
    incarnation: str
    generation: int = 0
    purpose: Purpose = Purpose.LINK


class Direction(Enum):
    DIALED = "dialed"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class Peer:
    """One link that is or was up; `link` is its number within this agent, never used twice.

    `generation` is the one that the dialing side named, whichever side that is.
    """

    node: str
    incarnation: str
    generation: int
    direction: Direction
    link: int
    address: str = ""

    @property
    def who(self) -> tuple[str, str]:
        return (self.node, self.incarnation)


class DownReason(Enum):
    """Why a link ended or a dial failed.

    `refused` and `unreachable` only ever end a dial.  `protocol` covers a foreign program, another run, a wrong
    secret and a forged or damaged frame; `slow` is a peer that reads too little to be told what it must know.
    """

    EOF = "eof"
    RESET = "reset"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    SLOW = "slow"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class Up:
    peer: Peer


@dataclass(frozen=True)
class Message:
    peer: Peer
    message: LinkMessage


@dataclass(frozen=True)
class Down:
    """`at` is this node's CLOCK_MONOTONIC, in seconds.  EOF and reset are suspicions, not proof of death."""

    peer: Peer
    reason: DownReason
    at: float
    detail: str = ""


@dataclass(frozen=True)
class DialFailed:
    """`dial` is what `dial(…)` returned."""

    dial: int
    address: str
    reason: DownReason
    at: float
    detail: str = ""


LinkEvent = Up | Message | Down | DialFailed


@dataclass(frozen=True)
class LinkTiming:
    """Time limits of links, in seconds.

    `timeout_s`: silence after which a link is broken (`Bounds.link_timeout_s`); `handshake_s`: from accepting or
    dialing to both proofs.
    """

    timeout_s: float = 3.0
    handshake_s: float = 3.0

    @property
    def beat_s(self) -> float:
        """An idle side pings this often: two beats may be lost before the third is missed."""
        return self.timeout_s / 3

    @property
    def forgiveness_s(self) -> float:
        """What the other side has left to be heard in after this side woke from a pause: one beat and a half."""
        return self.timeout_s / 2


@dataclass(frozen=True)
class LinkLimits:
    """Bounds on what others can make an agent hold.

    Attributes:
        links: open connections, pending ones included.
        pending: connections that have not proven the secret; a new one pushes the oldest out.
        queue_bytes: unsent bytes a link; beyond it the peer is `slow` and the link ends.
        drop_bytes: unsent bytes a link beyond which `Progress` is dropped instead of queued.
        commands: calls waiting for the link thread.
    """

    links: int = 8192
    pending: int = 512
    queue_bytes: int = 16 * 1024 * 1024
    drop_bytes: int = 256 * 1024
    commands: int = 65536

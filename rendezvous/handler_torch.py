"""The rendezvous handler that torchrun gets: thin.  It owns the store session, the links and the membership loop.

With our agent (the rule) the agent attaches its hands and runs the loop.  With a stock agent, or by hand,
`next_rendezvous` runs the same machine with bare hands and returns when a generation has formed.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

from elastic_health.generations import RunSpec, StoreAddress
from elastic_health.policies import Policies
from elastic_health.preflight.clock import ClockSample
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.loop_net import Hands, Links, MembershipLoop
from elastic_health.rendezvous.rights import explained
from elastic_health.rendezvous.state import Me, Settings
from elastic_health.rendezvous.store import Store, StoreRefused
from elastic_health.rendezvous.tcpstore_torch import host_store

log = logging.getLogger("elastic_health")
BACKEND = "healthy-etcd"


class LinkPort(Links, Protocol):
    """Agent links that can be closed; `address` is where this agent listens."""

    address: str

    def beside(self) -> socket.socket:
        """A listening socket at the same local address, on a free port."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Identity:
    """Who dials and listens: what a link factory needs."""

    run: str
    node: str
    incarnation: str
    secret: bytes = field(repr=False)
    local_addr: str | None
    endpoints: tuple[str, ...]
    policies: Policies
    listen: int = 0


LinkFactory = Callable[[Identity, Callable[[ev.Event], None]], LinkPort]


@dataclass(frozen=True)
class Place:
    """Everything that `create` found out before any agent exists.

    `close` ends what was started for this process alone (a private etcd).  `environ` is the environment that the process
    was started with: `os.environ` lacks the secrets, which no child shall inherit.
    """

    store: Store
    keys: RunKeys
    node: str
    policies: Policies
    min_nodes: int
    max_nodes: int
    endpoints: tuple[str, ...]
    secret: bytes = field(repr=False)
    local_addr: str | None
    topology: str
    links: LinkFactory
    close: Callable[[], None]
    config_path: str = ""
    listen: int = 0
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    clock: Callable[[], tuple[ClockSample, ...]] | None = None


class HealthyHandler(RendezvousHandler):
    """See the module docstring."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.loop: MembershipLoop | None = None
        self._links: LinkPort | None = None
        self._bare: Any = None

    # ---- for our agent
    def attach(self, hands: Hands, *, workers: int, role: str, script: str, script_name: str, max_restarts: int) -> MembershipLoop:
        """Make the membership loop for an agent's hands and open it.

        Raises:
            StoreError: the first read of the run failed.
            ConfigError, LinkError: there is no address or port at which this agent can listen.
        """
        p = self.place
        name = uuid.uuid4().hex[:8]
        inbox: list[MembershipLoop] = []
        identity = Identity(p.keys.run, p.node, name, p.secret, p.local_addr, p.endpoints, p.policies, p.listen)
        self._links = p.links(identity, lambda event: inbox[0].post(event) if inbox else None)
        spec = RunSpec(p.min_nodes, p.max_nodes, script, script_name, max_restarts)
        me = Me(p.node, name, self._links.address, workers, spec, role, p.topology)
        self.loop = MembershipLoop(p.store, Settings(p.keys, me, p.policies), self._links, hands)
        inbox.append(self.loop)
        try:
            self.loop.open()
        except StoreRefused as e:
            raise explained(e, p.keys) from e
        return self.loop

    def host_store(self) -> tuple[TCPStore, StoreAddress]:
        """A fresh TCPStore for a generation of which this agent has rank 0, where its links listen.

        Raises:
            LinkError, RuntimeError: there is no free port or descriptor.
        """
        assert self._links is not None
        return host_store(self._links.address, self._links.beside())

    def close(self) -> None:
        """Let go of links, watches, session and private etcd.  Safe to call again."""
        if self.loop is not None:
            self.loop.close()
        if self._links is not None:
            self._links.close()
            self._links = None
            self.place.store.close()
            self.place.close()

    # ---- torch's protocol
    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self.place.keys.run

    def next_rendezvous(self) -> RendezvousInfo:
        """Join, and return when a generation with this node has formed (only without our agent).

        Raises:
            RendezvousClosedError: the run has ended, or this node may not take part.
        """
        from elastic_health.rendezvous.bare_torch import BareRendezvous

        if self._bare is None:
            self._bare = BareRendezvous(self)
        return self._bare.next()  # type: ignore[no-any-return]

    def is_closed(self) -> bool:
        return self.loop is not None and self.loop.state.left is not None

    def set_closed(self) -> None:
        """Nothing: one agent's end never closes the run for the others (pytorch/pytorch#123678)."""

    def num_nodes_waiting(self) -> int:
        """Spares never disturb a group; 1 when the generation has ended and must be formed anew."""
        if self.loop is None:
            return 0
        state = self.loop.state
        return int(bool(state.generation) and state.generation in state.view.verdicts)

    def shutdown(self) -> bool:
        if self._bare is not None:
            self._bare.leave()
        self.close()
        return True

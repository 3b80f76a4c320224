"""The TCPStore of one generation: fresh, on a port of the system's choice, hosted by the rank-0 agent.

A store that lives over restarts makes a restarted gloo read dead peers' addresses; so each formed generation gets its
own, and nothing is read from the one before.
"""

from __future__ import annotations

import socket

from torch._C._distributed_c10d import TCPStore

from elastic_health.generations import StoreAddress


def host_store(address: str, listener: socket.socket) -> tuple[TCPStore, StoreAddress]:
    """Listen for the workers of a generation.

    Args:
        address: the rank-0 agent's `host:port`; its host is what workers connect to.
        listener: a listening socket to take over.

    Returns:
        The store (it lives as long as it is referenced) and its address.

    Raises:
        RuntimeError: as torch has it (`DistNetworkError`, `DistStoreError`).
    """
    host = address.rpartition(":")[0].strip("[]")
    bound, port = listener.getsockname()[:2]
    # The store connects to itself, by an address of this machine: the advertised one may lead in from outside only.
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
    store = TCPStore(near, port, is_master=True, wait_for_workers=False, multi_tenant=False, master_listen_fd=listener.detach())
    return store, StoreAddress(host, port, address)

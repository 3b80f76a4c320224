"""The TCPStore of one generation: fresh, on a port of the system's choice, hosted by the rank-0 agent.

A store that lives over restarts makes a restarted gloo read dead peers' addresses; so each formed generation gets its
own, and nothing is read from the one before.
"""

from __future__ import annotations

from torch._C._distributed_c10d import TCPStore

from elastic_health.generations import StoreAddress


def host_store(address: str) -> tuple[TCPStore, StoreAddress]:
    """Listen for the workers of a generation.

    Args:
        address: the rank-0 agent's `host:port`; its host is what workers connect to.

    Returns:
        The store (it lives as long as it is referenced) and its address.
    """
    host = address.rpartition(":")[0].strip("[]")
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, multi_tenant=False)
    return store, StoreAddress(host, store.port, address)

"""What torch loads under the name `healthy-etcd`: a function without arguments that returns the creator.

torch loads this at any import of its rendezvous package, in workers too, and only logs failures; so nothing heavy is
imported here, and everything that can go wrong goes wrong in the creator, loudly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the function that makes a handler from torchrun's `RendezvousParameters`."""
    return _create


def _create(params: RendezvousParameters) -> RendezvousHandler:
    from elastic_health.agents.ports_net import open_links
    from elastic_health.agents.seam_torch import install
    from elastic_health.rendezvous.create_torch import create_handler

    handler = create_handler(params, open_links)
    install()
    return handler

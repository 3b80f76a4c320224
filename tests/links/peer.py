"""A process with nothing but agent links, to be stopped, killed and started again by tests.

Prints its address, then one line for each event; echoes `Started` with `Reaped`.
Arguments: secret (hex), node, incarnation, host, port, link timeout in seconds, what else to do (`fork` or nothing).
"""

from __future__ import annotations

import multiprocessing
import sys
import time

from elastic_health.agents.link_types import LinkEvent, LinkHello, LinkTiming, Message
from elastic_health.agents.links_net import LinkListener
from elastic_health.messages import Reaped, Started


def main() -> None:
    secret, node, incarnation, host, port, timeout_s, extra = sys.argv[1:8]

    def heard(event: LinkEvent) -> None:
        print(type(event).__name__, getattr(event, "reason", ""), flush=True)
        if isinstance(event, Message) and isinstance(event.message, Started):
            links.send(event.peer, Reaped(event.message.generation))

    timing = LinkTiming(timeout_s=float(timeout_s))
    links = LinkListener(bytes.fromhex(secret), host, heard, hello=LinkHello("run", node, incarnation), port=int(port), timing=timing)
    print(links.address, flush=True)
    if extra == "fork":
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        print(child.pid, flush=True)
    sys.stdin.read()
    links.close()


if __name__ == "__main__":
    main()

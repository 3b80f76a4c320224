"""The listening socket of an agent, and the warnings about whoever knocks.

Law: running out of file descriptors pauses accepting and harms no open link; one warning a minute for each
(host, kind of trouble), however often it comes.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import time
from collections.abc import Iterator

from elastic_health.agents.link_sockets_net import listen, listen_beside

log = logging.getLogger("elastic_health.links")

ACCEPTS_A_TURN = 64
FULL_PAUSE_S = 0.2
WARN_AGAIN_S = 60.0
WARNED_LIMIT = 256
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Warnings:
    """Says each thing once a minute; remembers at most `WARNED_LIMIT` things."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], float] = {}

    def say(self, host: str, what: str, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get((host, what), -WARN_AGAIN_S) < WARN_AGAIN_S:
            return
        if len(self._said) >= WARNED_LIMIT:
            self._said.pop(next(iter(self._said)))
        self._said[host, what] = now
        log.warning("agent links: %s", text)


class Door:
    """A listening socket registered with a selector, its key's data being the door itself.

    Raises:
        LinkError: the port can't be opened.
    """

    def __init__(self, host: str, port: int, selector: selectors.BaseSelector, warnings: Warnings) -> None:
        self._sock = listen(host, port)
        bound = self._sock.getsockname()
        self.port, self.everywhere = int(bound[1]), bound[0] in ("0.0.0.0", "::")
        self._selector, self._warnings = selector, warnings
        self._closed_until: float | None = None
        selector.register(self._sock, selectors.EVENT_READ, self)

    def accept(self, now: float) -> Iterator[tuple[socket.socket, str]]:
        """The connections that wait, a bounded number of them, each with the host that it came from."""
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as e:
                if e.errno not in _NO_ROOM:
                    continue  # the other side was gone before it was taken
                self._closed_until = now + FULL_PAUSE_S
                self._selector.unregister(self._sock)
                self._warnings.say("", "files", f"no new link for {FULL_PAUSE_S} s: {e}; raise the limit of open files")
                return
            yield sock, str(address[0])

    def reopen(self, now: float) -> None:
        """Accept again when the pause is over."""
        if self._closed_until is not None and now >= self._closed_until:
            self._closed_until = None
            self._selector.register(self._sock, selectors.EVENT_READ, self)

    def beside(self) -> socket.socket:
        """A listening socket at the same address, for something else."""
        return listen_beside(self._sock)

    def close(self) -> None:
        self._sock.close()

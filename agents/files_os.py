"""An agent's own share of open files: some are kept back, and given up when none is left.

Law: a full table of open files never ends an agent, and never makes it spin: what can't be looked at is looked at again,
and once a minute a person is told which limit to raise.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import time
from collections.abc import Iterator

from elastic_health.errors import ConfigError

log = logging.getLogger("elastic_health")
KEPT = 16
"""Given up in need: for the files in /proc and the pidfds that a teardown has open at once, and a guardian's pipe."""
AGENT_NEEDS, WORKER_NEEDS = 96, 16
"""Counted on Linux with two workers a node: 42 in use by a rank-0 agent of two nodes, links included; the rest is room."""
SAY_EVERY_S = 60.0
_FULL = (errno.EMFILE, errno.ENFILE)


def check_open_files(limit: int, workers: int) -> None:
    """See that an agent with so many workers can run at all under this limit.

    Raises:
        ConfigError: it can't.
    """
    need = AGENT_NEEDS + WORKER_NEEDS * workers
    if limit < need:
        do = "raise the hard limit (ulimit -Hn, LimitNOFILE= of the unit, the container's ulimits)"
        raise ConfigError(f"a limit of at least {need} open files for an agent with {workers} workers", f"{limit}", do)


class KeptFiles:
    """Some descriptors that are open for nothing, until they are needed."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._said_at = float("-inf")
        self.refill()

    def full(self, error: OSError) -> bool:
        """Was that a full table?  Then what was kept is free now, and a person has been told."""
        if error.errno not in _FULL:
            return False
        self.close()
        now = time.monotonic()
        if now >= self._said_at + SAY_EVERY_S:
            self._said_at = now
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.warning(
                "expected a free file descriptor; found none (%s; this agent may open %d); raise the limit (ulimit -n, LimitNOFILE=); "
                "until one is free, this node's workers are not looked at", error.strerror, limit,
            )  # fmt: skip
        return True

    def refill(self) -> None:
        """Keep some back again, if there are any."""
        with contextlib.suppress(OSError):
            while len(self._kept) < KEPT:
                self._kept.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    @contextlib.contextmanager
    def bearing(self) -> Iterator[None]:
        """Whatever is done here is left undone when no descriptor is free."""
        try:
            yield
        except OSError as e:
            if not self.full(e):
                raise

    def close(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

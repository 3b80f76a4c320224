"""Calls a person for the agent, once, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from elastic_health.pager_net import Page, page_once
from elastic_health.policies import PagePolicy
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Store

log = logging.getLogger("elastic_health")
_MORE_S = 5.0


class Pager:
    """Claimed in the store, so that one page goes out whoever is first."""

    def __init__(self, policy: PagePolicy, store: Store, environ: Mapping[str, str]) -> None:
        self._policy, self._store, self._environ = policy, store, environ
        self._thread: threading.Thread | None = None

    def page(self, keys: RunKeys, page: Page) -> None:
        """The first call counts."""
        if self._thread is not None:
            return
        log.error("A PERSON MUST LOOK: %s", page.reason)

        def call() -> None:
            for note in page_once(self._store, keys, self._policy, page, self._environ).trouble:
                log.error("paging: %s", note)

        self._thread = threading.Thread(target=call, name="eh-page", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it has gone out, within its time limit."""
        if self._thread is not None:
            self._thread.join(2 * self._policy.timeout_s + _MORE_S)

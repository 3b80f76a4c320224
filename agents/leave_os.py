"""A node that leaves with a deadline, as the hands carry it out: what its workers are asked, and the time that they get.

Decides nothing: `rendezvous.leaving` does.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Callable

from elastic_health.agents.crew_torch import Crew
from elastic_health.policies import Policies, TeardownPolicy
from elastic_health.rendezvous import events as ev

log = logging.getLogger("elastic_health")


class Leave:
    """One for the agent's life.

    Args:
        post: events for membership.
        later: calls something in the loop's next turn.

    Attributes:
        asked: the first signal has come.
        passed: number of the generation whose workers were passed the signal, -1 for none.
    """

    def __init__(
        self, crew: Crew, policies: Policies, post: Callable[[ev.Event], None], later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._crew, self._policies, self._post, self._later = crew, policies, post, later
        self.asked, self.passed = False, -1

    def ask(self, reason: str) -> None:
        """From a signal handler, in the middle of anything: only note it."""
        self.asked = True
        self._later(lambda: self._drain(reason))
        self._post(ev.Tick())

    def _drain(self, reason: str) -> None:
        saves, step = self._crew.saves()
        wait_s = self._policies.drain.deadline_s
        log.warning("%s: this node leaves within %g s (drain.deadline_s); once more, or SIGINT: at once", reason, wait_s)
        self._post(ev.DrainAsked(reason, time.monotonic() + wait_s, saves, step))

    def pass_signal(self, generation: int) -> None:
        log.info("generation %d: this script saves no checkpoint on request; its workers here get SIGTERM", generation)
        self.passed = generation
        self._crew.signal(signal.SIGTERM)

    def hurry(self) -> None:
        """A second signal: workers that still use the time they were given end now."""
        if self.passed >= 0:
            self._crew.signal(signal.SIGKILL)

    def patience(self, until: float) -> TeardownPolicy:
        """Workers that were passed the signal may take what is left of the time that was given."""
        policy = self._policies.teardown
        return dataclasses.replace(policy, grace_s=max(policy.grace_s, until - time.monotonic()))

    @property
    def first_signal(self) -> int:
        """What a teardown sends first: nothing to those who have the signal, or their handlers would be interrupted."""
        return 0 if self.passed >= 0 else int(signal.SIGTERM)

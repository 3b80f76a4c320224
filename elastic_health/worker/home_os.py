"""A worker's home: its page and its link to the agent, as the training loop and the checkpoints see them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from elastic_health.errors import LinkError
from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page_os import Page
from elastic_health.messages import (
    AgentReply,
    AskCommit,
    AskPlan,
    AskVerify,
    CommitReply,
    PlanReply,
    TellHalt,
    TellUnusable,
    Told,
    VerifyReply,
    WorkerMessage,
)
from elastic_health.worker.link_net import WorkerLink

COMMIT_TIMEOUT_S = 3600.0
"""Bound of a commit: the agent looks at every file of a checkpoint.  It does not wait for a store that is out (`CommitReply.waits`)."""
R = TypeVar("R", bound=AgentReply)


@dataclass
class Home:
    """Made by the bootstrap; `pid` is the worker's own (a forked child has no home).  Any thread may call."""

    page: Page
    link: WorkerLink
    run: str
    started_for: int
    local_rank: int
    pid: int = field(default_factory=os.getpid)
    _phase: Phase = Phase.SCRIPT

    @property
    def generation(self) -> int:
        """The generation that this worker acts for now: the agent's order grows at an in-place rollback."""
        return self.page.look().order.generation or self.started_for

    def plan(self) -> PlanReply:
        """Where this generation starts.

        Raises:
            LinkError: the agent is gone or refuses.
        """
        return self._ask(AskPlan(), PlanReply)

    def verify(self, ask: AskVerify) -> VerifyReply:
        return self._ask(ask, VerifyReply)

    def commit(self, ask: AskCommit) -> CommitReply:
        return self._ask(ask, CommitReply, COMMIT_TIMEOUT_S)

    def unusable(self, tell: TellUnusable) -> None:
        self._ask(tell, Told)

    def halt(self, tell: TellHalt) -> None:
        self._ask(tell, Told)

    def saves(self) -> None:
        self.page.saves()

    def wish(self) -> int:
        return self.page.look().order.wish

    def mark_step(self, step: int, position: int) -> None:
        self.page.step(step, position)

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """This worker is in `phase` for the length of the block."""
        before, self._phase = self._phase, phase
        self.page.phase(phase)
        try:
            yield
        finally:
            self._phase = before
            self.page.phase(before)

    def _ask(self, message: WorkerMessage, kind: type[R], timeout_s: float = 60.0) -> R:
        reply = self.link.call(message, timeout_s)
        if not isinstance(reply, kind):
            raise LinkError(f"{kind.__name__} from the agent", type(reply).__name__, "use one version of elastic-health on a node")
        return reply

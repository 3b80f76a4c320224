"""What the checkpoints need of the agent, as a protocol: the worker link implements it, tests and plain runs stand in.

Every call may come from the background thread of an asynchronous save while the main thread trains.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from elastic_health.liveness.facts import Phase
from elastic_health.messages import AskCommit, AskVerify, CommitReply, TellUnusable, VerifyReply


class Home(Protocol):
    """The agent of this node, as seen by one worker."""

    @property
    def run(self) -> str:
        """The run id."""

    @property
    def generation(self) -> int:
        """The generation that this worker acts for *now* (it changes at a rollback in place)."""

    def verify(self, ask: AskVerify) -> VerifyReply:
        """Raises `LinkError` when the agent does not answer."""

    def commit(self, ask: AskCommit) -> CommitReply:
        """Raises `LinkError` when the agent does not answer: the outcome is then unknown."""

    def unusable(self, tell: TellUnusable) -> None:
        """Returns when the agent has taken it."""

    def saves(self) -> None:
        """Tells the agent that this script saves when it wishes a checkpoint."""

    def wish(self) -> int:
        """Number of the agent's newest wish for a checkpoint, 0 for none."""

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Says on the progress page what this worker does, for the length of a `with` block."""

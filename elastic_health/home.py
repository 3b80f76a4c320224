"""What the training loop needs from whoever started it, and the loop's other partners, as narrow protocols.

`Home` is the agent on this node, or nobody (`Alone`: a plain `python train.py`, or stock torchrun).  The loop is the
same in both cases; what differs is only where the plan comes from and whether anyone reads the markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from elastic_health.generations import RestorePlan
from elastic_health.liveness.facts import Phase
from elastic_health.messages import PlanReply


class Home(Protocol):
    """The agent's side, as the loop sees it.  Marks are cheap (no system call); `plan` may wait for the agent."""

    def plan(self) -> PlanReply | None:
        """The plan of the generation that this worker belongs to now; None if there is no agent.

        Raises:
            LinkError: the agent is gone or refuses.
        """

    def mark_step(self, step: int, position: int) -> None:
        """Step number `step` (from 1) is complete and the stream stands at `position`."""

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """What this process does, for the length of a `with` block."""


class Alone:
    """Nobody is at home: no plan, no reader of marks."""

    def plan(self) -> PlanReply | None:
        return None

    def mark_step(self, step: int, position: int) -> None:
        del step, position

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        del phase
        return nullcontext()


class Place(Protocol):
    """What a restore returns: steps completed and the stream's position."""

    @property
    def step(self) -> int: ...

    @property
    def position(self) -> int: ...


class Saves(Protocol):
    """Checkpoints, as the loop sees them (`elastic_health.Checkpoints`).  Every call is made on all ranks alike."""

    def bind(self, home: Any) -> None:
        """The agent to commit through; None: there is none."""

    def restore(self, plan: RestorePlan | None = None) -> Place:
        """Bring the state to where the plan says; None: to the newest complete checkpoint in the folder."""

    def maybe_save(self, step: int, position: int) -> bool:
        """Save if `step` is due; true if it did."""

    def save(self, step: int, position: int) -> bool: ...

    def finish(self) -> object:
        """Wait for what is still being written."""


class Steps(Protocol):
    """A loader, as the loop sees it (`elastic_health.Loader`)."""

    @property
    def stream(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

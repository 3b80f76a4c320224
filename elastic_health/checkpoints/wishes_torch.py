"""A checkpoint on request: an agent that is to leave tells its own workers, and all ranks agree after which step they save.

Law: every rank gets the same answer for the same step.  They look together, over one small all-reduce, at steps that all
of them know beforehand: about once in `LOOK_EVERY_S`, so that it costs nothing where steps are short.
"""

from __future__ import annotations

import time

from elastic_health.checkpoints.group_torch import Group
from elastic_health.checkpoints.home import Home

LOOK_EVERY_S = 1.0
MOST_STEPS = 100
"""Between two looks, however short the steps are: they may get longer."""


def steps_between(step_s: float, before: int) -> int:
    """Steps until the next look, from the slowest rank's time a step and the number of steps before this look."""
    fit = int(LOOK_EVERY_S / step_s) if step_s > LOOK_EVERY_S / MOST_STEPS else MOST_STEPS
    return max(1, min(fit, 2 * before, MOST_STEPS))


class Wishes:
    """Every call is made on all ranks alike."""

    def __init__(self, home: Home, group: Group) -> None:
        self._home, self._group = home, group
        self._answered, self._every, self._told = 0, 1, False
        self._looked: tuple[int, float] | None = None

    def begin(self) -> None:
        """Steps are counted anew: a restore."""
        self._every, self._looked = 1, None

    def wished(self, step: int) -> bool:
        """Is a checkpoint wanted after `step`, on all ranks?  Once for each wish."""
        if not self._told:
            self._told = True
            self._home.saves()
        if self._looked is not None and step < self._looked[0] + self._every:
            return False
        now, micros = time.monotonic(), 1_000_000
        if self._looked is not None:
            micros = int((now - self._looked[1]) / max(1, step - self._looked[0]) * 1e6)
        wish, slowest = self._group.most(self._home.wish(), micros)
        self._every = steps_between(slowest / 1e6, self._every)
        self._looked = (step, now)
        new, self._answered = wish > self._answered, max(wish, self._answered)
        return new

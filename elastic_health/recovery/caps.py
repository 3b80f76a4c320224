"""Caps and back-off: may this run be restarted (or rolled back) once more, and how soon?

Law: a cap of N lets exactly N through.  All counts are the whole run's, from the budget in the store, never an
agent's own.  None: no such cap; 0: not once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from elastic_health.generations import Budget, Spent
from elastic_health.policies import Caps
from elastic_health.recovery.budget import DELIBERATE, NODE_CAUSES, counted
from elastic_health.verdicts import Cause

HOUR_S = 3600.0
DAY_S = 86400.0

ENDINGS = frozenset({Cause.WORKER_EXIT, Cause.WORKER_KILLED, Cause.OUT_OF_MEMORY, Cause.BAD_SETUP})
"""Causes where a worker ended by itself, so that an early end means something."""


class Cap(Enum):
    """Which cap; the words of `restarts:` in the YAML, but for the first two."""

    FORBIDDEN = "forbidden"
    MAX_RESTARTS = "--max-restarts"
    TOTAL = "total"
    PER_HOUR = "per_hour"
    PER_NODE = "per_node"
    PER_SIGNATURE = "per_signature"
    WITHOUT_COMMIT = "without_commit"
    EARLY_EXITS = "early_exits"
    MISMATCHES = "mismatches"
    ROLLBACKS_PER_DAY = "rollbacks_per_day"


@dataclass(frozen=True)
class CapHit:
    """A cap that lets nothing more through: `spent` of `limit`; `of` names the node or signature."""

    cap: Cap
    spent: int
    limit: int
    of: str = ""


@dataclass(frozen=True)
class Fault:
    """What the caps need to know of an incident."""

    cause: Cause
    signature: str
    nodes: tuple[str, ...] = ()
    early: bool = False

    @property
    def charged_nodes(self) -> tuple[str, ...]:
        return self.nodes if self.cause in NODE_CAUSES else ()


def restart_cap(budget: Budget, fault: Fault, caps: Caps, now: float) -> CapHit | None:
    """The first cap that forbids one more restart, the most telling one first; None if all allow it.

    Args:
        budget: with the newest checkpoint already noted (`budget.noted`).
        now: seconds since the epoch.
    """
    if fault.cause in DELIBERATE:
        return None
    return next((hit for hit in _restart_counts(budget, fault, caps, now) if hit.spent >= hit.limit), None)


def rollback_cap(budget: Budget, caps: Caps, now: float) -> CapHit | None:
    """The cap that forbids one more deliberate rollback, or None."""
    if caps.rollbacks_per_day is None:
        return None
    spent = sum(1 for s in budget.spent if s.rollback and now - s.at < DAY_S)
    hit = CapHit(Cap.ROLLBACKS_PER_DAY, spent, caps.rollbacks_per_day)
    return hit if hit.spent >= hit.limit else None


def _restart_counts(budget: Budget, fault: Fault, caps: Caps, now: float) -> Iterator[CapHit]:
    if caps.total == 0:
        yield CapHit(Cap.FORBIDDEN, budget.restarts, 0)
    if caps.mismatches is not None and fault.cause is Cause.MISMATCHED_COLLECTIVES:
        yield CapHit(Cap.MISMATCHES, counted(budget.by_cause, fault.cause.value), caps.mismatches)
    if caps.early_exits is not None and fault.early:
        # This exit is one of the row: with a limit of 3 the third one in a row is not followed by a restart.
        yield CapHit(Cap.EARLY_EXITS, early_row(budget) + 1, caps.early_exits)
    if caps.without_commit is not None:
        yield CapHit(Cap.WITHOUT_COMMIT, budget.since_commit, caps.without_commit)
    if caps.per_node is not None:
        for node in sorted(set(fault.charged_nodes)):
            yield CapHit(Cap.PER_NODE, counted(budget.by_node, node), caps.per_node, node)
    if caps.per_signature is not None:
        yield CapHit(Cap.PER_SIGNATURE, counted(budget.by_signature, fault.signature), caps.per_signature, fault.signature)
    yield from _plain_counts(budget, caps, now)


def _plain_counts(budget: Budget, caps: Caps, now: float) -> Iterator[CapHit]:
    """`--max-restarts` above 0 is the user's own plain count: it takes the place of the YAML's two."""
    if budget.torch_max_restarts > 0:
        yield CapHit(Cap.MAX_RESTARTS, budget.restarts, budget.torch_max_restarts)
        return
    if caps.per_hour is not None:
        yield CapHit(Cap.PER_HOUR, sum(1 for s in _restarts(budget) if now - s.at < HOUR_S), caps.per_hour)
    if caps.total is not None:
        yield CapHit(Cap.TOTAL, budget.restarts, caps.total)


def _restarts(budget: Budget) -> tuple[Spent, ...]:
    return tuple(s for s in budget.spent if not s.rollback)


def early_row(budget: Budget) -> int:
    """How many of the newest restarts followed an early exit, without a break."""
    row = 0
    for spent in reversed(_restarts(budget)):
        if not spent.early:
            break
        row += 1
    return row


def is_early(cause: Cause, ran_s: float, step: int, start_step: int, caps: Caps) -> bool:
    """Did a worker end within its first seconds, with no step done since the group's start?

    Args:
        ran_s: seconds that it ran, -1 if unknown.
        step: newest completed step, -1 if none.
        start_step: the step that the group started from, -1 for the very beginning.
    """
    return cause in ENDINGS and 0.0 <= ran_s < caps.early_exit_s and step <= start_step


def repeats(budget: Budget, fault: Fault, caps: Caps, now: float) -> int:
    """How often the same happened on the same placement lately.

    The same: equal signature within `repeat_within_s`.  The same placement: where both name a node by a cause that
    speaks of nodes, one of those must be the same; otherwise the program is the suspect, and it runs everywhere.
    """
    mine = set(fault.charged_nodes)
    return sum(
        1
        for s in _restarts(budget)
        if s.signature == fault.signature and now - s.at < caps.repeat_within_s and (not mine or not s.nodes or mine & set(s.nodes))
    )


def backoff_s(budget: Budget, fault: Fault, caps: Caps, now: float) -> tuple[float, int]:
    """Seconds that the next formation waits, and the number of repeats that they come from."""
    n = repeats(budget, fault, caps, now)
    if not caps.backoff_s or fault.cause in DELIBERATE:
        return 0.0, n
    return caps.backoff_s[min(n, len(caps.backoff_s) - 1)], n

"""Charging the run's budget: what one carried-out verdict costs.

Law: a generation is charged once, whoever forms the next one and however often; totals only grow; a deliberate
rollback, a scale change or a request by a person never counts as a restart.  The result goes into the same
transaction that forms the next generation, so no two formers can spend the same restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elastic_health.generations import Budget, Spent
from elastic_health.verdicts import Cause, Verdict, VerdictKind

KEPT = 256
"""Newest entries kept one by one; the counters go on beyond them."""

DELIBERATE = frozenset({Cause.SCALE_UP, Cause.DRAIN, Cause.REQUESTED})
"""Restarts that nothing failed for: not counted."""

NODE_CAUSES = frozenset(
    {
        Cause.WORKER_KILLED,
        Cause.OUT_OF_MEMORY,
        Cause.WATCHDOG_TIMEOUT,
        Cause.STALL,
        Cause.LOST_MEMBER,
        Cause.NOT_STARTED,
    }
)
"""Causes that speak of a node.  An exit status or mismatched collectives speak of the program, which runs on all."""

Pairs = tuple[tuple[str, int], ...]


def opened(max_restarts: int) -> Budget:
    """The budget of a run's first generation; `max_restarts` is its `--max-restarts`, which binds for the whole run."""
    return Budget(torch_max_restarts=max(0, max_restarts))


def counted(pairs: Pairs, name: str) -> int:
    """How often `name` was counted."""
    return dict(pairs).get(name, 0)


def newest_of(names: Iterable[str]) -> str | None:
    """The newest checkpoint by when it was made, not by step: after a rollback new ones have smaller steps."""
    return max(names, key=_age, default=None)


def noted(budget: Budget, newest_checkpoint: str | None) -> Budget:
    """The budget once the newest committed checkpoint is known: a new one ends the row of restarts without.

    New means made by a later generation, or later in the same one: an older checkpoint that a rollback returned to
    proves no progress.
    """
    if newest_checkpoint is None or _age(newest_checkpoint) <= _age(budget.last_checkpoint):
        return budget
    return replace(budget, last_checkpoint=newest_checkpoint, since_commit=0)


def charge(budget: Budget, verdict: Verdict, now: float, newest_checkpoint: str | None) -> Budget:
    """The budget after `verdict` was carried out, for the transaction that forms the next generation.

    Args:
        now: seconds since the epoch, on the former's clock.
        newest_checkpoint: name of the newest committed checkpoint, read after the verdict was.
    """
    budget = noted(budget, newest_checkpoint)
    if any(s.generation == verdict.generation for s in budget.spent):
        return budget
    if verdict.kind is VerdictKind.ROLLBACK:
        return replace(budget, rollbacks=budget.rollbacks + 1, spent=_kept(budget, _spent(verdict, now)))
    if verdict.kind is not VerdictKind.RESTART or verdict.cause in DELIBERATE:
        return budget
    spent = _spent(verdict, now)
    return replace(
        budget,
        restarts=budget.restarts + 1,
        since_commit=budget.since_commit + 1,
        spent=_kept(budget, spent),
        by_node=_counted_up(budget.by_node, spent.nodes),
        by_signature=_counted_up(budget.by_signature, (spent.signature,)),
        by_cause=_counted_up(budget.by_cause, (spent.cause,)),
    )


def as_seen(budget: Budget, seen: Mapping[int, float], before: int, now: float, wall: float) -> Budget:
    """The budget with times that this node can vouch for: clocks of nodes may be hours apart.

    What it saw itself is as old as its own monotonic clock says.  What was there before it came is at least
    that old; only beyond that the writer's stamp is believed, for want of anything else.

    Args:
        seen: monotonic second at which this agent saw the verdict of each generation.
        before: newest generation whose verdict it found when it began.
    """

    def at(s: Spent) -> float:
        if s.generation not in seen:
            return min(s.at, wall)
        own = wall - (now - seen[s.generation])
        return min(s.at, own) if s.generation <= before else own

    return replace(budget, spent=tuple(replace(s, at=at(s)) for s in budget.spent))


def _spent(verdict: Verdict, now: float) -> Spent:
    return Spent(
        at=now,
        cause=verdict.cause.value,
        signature=verdict.signature or verdict.cause.value,
        generation=verdict.generation,
        nodes=tuple(sorted(set(verdict.nodes))) if verdict.cause in NODE_CAUSES else (),
        rollback=verdict.kind is VerdictKind.ROLLBACK,
        early=verdict.early,
    )


def _kept(budget: Budget, spent: Spent) -> tuple[Spent, ...]:
    return (*budget.spent, spent)[-KEPT:]


def _counted_up(pairs: Pairs, names: tuple[str, ...]) -> Pairs:
    counts = dict(pairs)
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts.items()))


def _age(checkpoint: str | None) -> tuple[int, int]:
    """(generation, step) of a checkpoint's name `<step>.<generation>`; before all others for None."""
    if checkpoint is None:
        return (-1, -1)
    step, _, generation = checkpoint.partition(".")
    return (int(generation or 0), int(step))

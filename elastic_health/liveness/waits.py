"""Who waits for whom: from each group's sequence numbers, which ranks have not entered the operation that others are in.

Law: a rank that itself waits in a collective is a victim, never an origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_health.liveness.facts import GroupFrontier, RankFacts

DEFAULT_GROUPS = ("0", "default_pg", "")
"""Names under which torch reports the group of all ranks."""
ONE_SIDED = ("send", "recv")


@dataclass(frozen=True)
class Wait:
    """One group in which ranks wait.

    Attributes:
        seq: the newest operation that some waiter is held at.
        waiters: ranks inside it, with the operation's name where it is known.
        missing: members that have not entered `seq`, waiting elsewhere or not.
    """

    group: str
    seq: int
    waiters: tuple[int, ...]
    missing: tuple[int, ...]
    op: str = ""


@dataclass(frozen=True)
class Mismatch:
    """Same group, same sequence number, different operation; `ops` maps rank to name, `odd` is the minority (or all)."""

    group: str
    seq: int
    ops: Mapping[int, str]
    odd: tuple[int, ...]


def waits(facts: Mapping[int, RankFacts], members: Mapping[str, frozenset[int]]) -> tuple[Wait, ...]:
    """Every group in which some rank waits, in order of name.

    Args:
        facts: the ranks that can be judged; ranks of no facts are not counted as missing.
        members: ranks that are known to belong to a group; the default group has all.
    """
    frontiers: dict[str, dict[int, GroupFrontier]] = {}
    for rank, fact in facts.items():
        for group in fact.frontier:
            frontiers.setdefault(group.group, {})[rank] = group
    found = (_wait(name, entries, _expected(name, facts, members)) for name, entries in sorted(frontiers.items()))
    return tuple(wait for wait in found if wait is not None)


def _expected(name: str, facts: Mapping[int, RankFacts], members: Mapping[str, frozenset[int]]) -> frozenset[int]:
    if name in DEFAULT_GROUPS:
        return frozenset(facts)
    return members.get(name, frozenset()) & frozenset(facts)


def _wait(name: str, entries: Mapping[int, GroupFrontier], expected: frozenset[int]) -> Wait | None:
    waiters = tuple(sorted(rank for rank, entry in entries.items() if entry.enqueued > entry.completed))
    if not waiters:
        return None
    seq = max(entries[rank].completed for rank in waiters) + 1
    missing = tuple(sorted(rank for rank in expected if rank not in entries or entries[rank].enqueued < seq))
    at = next((rank for rank in waiters if entries[rank].enqueued == seq), waiters[0])
    return Wait(name, seq, tuple(rank for rank in waiters if rank not in missing), missing, entries[at].op)


def lagging(facts: Mapping[int, RankFacts]) -> tuple[tuple[int, ...], int]:
    """Ranks behind the others in the default group though nobody waits (operations that gave up count as done); the lead."""
    entered = {
        rank: max((g.enqueued for g in fact.frontier if g.group in DEFAULT_GROUPS), default=-1) for rank, fact in facts.items()
    }
    lead = max(entered.values(), default=-1)
    return tuple(sorted(rank for rank, seq in entered.items() if seq < lead)), lead


def mismatches(facts: Mapping[int, RankFacts]) -> tuple[Mismatch, ...]:
    """Groups whose waiting ranks stand at the same sequence number in different operations."""
    at: dict[tuple[str, int], dict[int, str]] = {}
    for rank, fact in facts.items():
        for group in fact.frontier:
            if group.enqueued > group.completed and group.op and not group.op.lower().endswith(ONE_SIDED):
                at.setdefault((group.group, group.enqueued), {})[rank] = group.op
    return tuple(
        Mismatch(name, seq, dict(sorted(ops.items())), _odd(ops)) for (name, seq), ops in sorted(at.items()) if len(set(ops.values())) > 1
    )


def _odd(ops: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks outside the largest party; all of them where no party is the largest."""
    parties: dict[str, list[int]] = {}
    for rank, op in ops.items():
        parties.setdefault(op, []).append(rank)
    sizes = sorted((len(ranks) for ranks in parties.values()), reverse=True)
    if sizes[0] == sizes[1]:
        return tuple(sorted(ops))
    largest = next(op for op, ranks in parties.items() if len(ranks) == sizes[0])
    return tuple(sorted(rank for rank, op in ops.items() if op != largest))

"""The order of ranks: by topology, then natural node name, then age; dense from 0.

Law: the order depends only on the members, so that survivors keep their order (neighbours stay neighbours), and a node
that comes back under its name takes its old place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from elastic_health.generations import Candidate, Generation, Member
from elastic_health.rendezvous.view import Entry

_DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which `node2` comes before `node10`."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(name) if part)


def ranked(entries: Iterable[Entry]) -> tuple[Member, ...]:
    """Members with dense group ranks and dense first worker ranks."""
    ordered = sorted(entries, key=lambda e: (natural(e.candidate.topology), natural(e.candidate.node), e.create_revision))
    members, first = [], 0
    for rank, entry in enumerate(ordered):
        members.append(_member(entry.candidate, rank, first))
        first += entry.candidate.workers
    return tuple(members)


def _member(c: Candidate, rank: int, first: int) -> Member:
    return Member(c.node, c.incarnation, c.address, rank, first, c.workers, c.role, c.topology)


def moved(members: tuple[Member, ...], last: Generation | None) -> tuple[str, ...]:
    """Whose rank is not what it was: `node: old -> new`, for people whose files go by rank."""
    before: dict[str, list[int]] = {}
    for m in last.members if last else ():
        before.setdefault(m.node, []).append(m.rank)
    out = []
    for m in members:
        old = before.get(m.node)
        if old and m.rank not in old:
            out.append(f"{m.node}: {old[0]} -> {m.rank}")
    return tuple(out)

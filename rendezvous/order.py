"""The order of ranks: near by topology, neighbours kept, as few as possible moved; dense from 0.

Laws, the earlier before the later:
 - the order depends only on the members and the last generation, never on who forms or in which order they came;
 - members of one place (rack, switch) stand together, at each level of the topology;
 - members that stay keep their order: neighbours stay neighbours;
 - as few of them as possible change their rank: a newcomer takes the first place that was vacated in its part of the
   topology, and comes last where none was;
 - what is left free goes by natural name (`node2` before `node10`), then by age.

A node that comes back under its name counts as one that stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic_health.generations import Candidate, Generation, Member
from elastic_health.rendezvous.view import Entry, Who

_DIGITS = re.compile(r"(\d+)")
_LEVELS = re.compile(r"[./]+")
_SHOWN = 200
"""How many moves a generation record names."""

Natural = tuple[tuple[int, int | str], ...]


def natural(name: str) -> Natural:
    """A sort key under which `node2` comes before `node10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name) if part)


def levels(topology: str) -> tuple[str, ...]:
    """`pod1.rack7` or `pod1/rack7` as its levels, the widest first; () if nothing is known."""
    return tuple(part for part in _LEVELS.split(topology) if part)


def near(a: str, b: str) -> int:
    """How many levels two places share."""
    shared = 0
    for one, other in zip(levels(a), levels(b), strict=False):
        if one != other:
            break
        shared += 1
    return shared


@dataclass(frozen=True)
class _Unit:
    """What is placed as a whole: a node, or all nodes below one place.  `old`: its smallest old rank, None if all are new."""

    name: Natural
    age: int
    who: Who
    old: int | None
    entries: tuple[Entry, ...]

    @property
    def by_name(self) -> tuple[Natural, int, Who]:
        return (self.name, self.age, self.who)


def ranked(entries: Iterable[Entry], last: Generation | None = None) -> tuple[Member, ...]:
    """Members with dense group ranks and dense first worker ranks, those of `last` where they were if that can be."""
    known = list(entries)
    before = _old_ranks(known, last)
    members, first = [], 0
    for rank, entry in enumerate(_placed(known, before, 0, 0)):
        members.append(_member(entry.candidate, rank, first))
        first += entry.candidate.workers
    return tuple(members)


def _placed(entries: list[Entry], before: Mapping[Who, int], level: int, at: int) -> list[Entry]:
    """`entries`, which are alike above `level`, in order; the first one will have rank `at`."""
    units = _units(entries, before, level)
    old = sorted((u for u in units if u.old is not None), key=lambda u: (u.old, *u.by_name))
    new = sorted((u for u in units if u.old is None), key=lambda u: u.by_name)
    order: list[Entry] = []

    def put(unit: _Unit) -> None:
        many = len(unit.entries) > 1
        order.extend(_placed(list(unit.entries), before, level + 1, at + len(order)) if many else unit.entries)

    for unit in old:
        assert unit.old is not None
        while (fits := next((u for u in new if len(u.entries) <= unit.old - at - len(order)), None)) is not None:
            new.remove(fits)  # somebody before this one is gone: here is room
            put(fits)
        put(unit)
    for unit in new:
        put(unit)
    return order


def _units(entries: list[Entry], before: Mapping[Who, int], level: int) -> list[_Unit]:
    """One unit a place below `level`, and one a node that has no place there."""
    places: dict[str, list[Entry]] = {}
    units = []
    for e in entries:
        path = levels(e.candidate.topology)
        if len(path) > level:
            places.setdefault(path[level], []).append(e)
        else:
            units.append(_unit(natural(e.candidate.node), [e], before))
    return [*units, *(_unit(natural(name), inside, before) for name, inside in places.items())]


def _unit(name: Natural, inside: list[Entry], before: Mapping[Who, int]) -> _Unit:
    eldest = min(inside, key=lambda e: (e.create_revision, e.who))
    old = min((before[e.who] for e in inside if e.who in before), default=None)
    return _Unit(name, eldest.create_revision, eldest.who, old, tuple(inside))


def _old_ranks(entries: list[Entry], last: Generation | None) -> dict[Who, int]:
    """Who had which rank: by incarnation, else by name (the agent was started again)."""
    if last is None:
        return {}
    here = {e.who for e in entries}
    found = {m.who: m.rank for m in last.members if m.who in here}
    free: dict[str, list[int]] = {}
    for m in last.members:
        if m.who not in here:
            free.setdefault(m.node, []).append(m.rank)
    for e in sorted(entries, key=lambda e: (e.create_revision, e.who)):
        if e.who not in found and free.get(e.candidate.node):
            found[e.who] = free[e.candidate.node].pop(0)
    return found


def _member(c: Candidate, rank: int, first: int) -> Member:
    return Member(c.node, c.incarnation, c.address, rank, first, c.workers, c.role, c.topology)


def picked(fit: Iterable[Entry], last: Generation | None, most: int) -> tuple[Entry, ...]:
    """Who takes part when more are ready than fit in: members of the last generation, then for each place that was
    vacated the spare nearest to it, then the oldest."""
    line = sorted(fit, key=lambda e: (e.create_revision, e.who))
    old = {m.who for m in last.members} if last else set()
    chosen = [e for e in line if e.who in old][:most]
    rest = [e for e in line if e.who not in old]
    here = {e.who for e in chosen}
    vacated = [m for m in last.members if m.who not in here] if last else []
    for m in vacated:
        if not rest or len(chosen) >= most:
            break
        best = max(rest, key=lambda e: (e.candidate.node == m.node, near(e.candidate.topology, m.topology), -e.create_revision, e.who))
        rest.remove(best)
        chosen.append(best)
    return tuple([*chosen, *rest][:most])


def moved(members: tuple[Member, ...], last: Generation | None) -> tuple[str, ...]:
    """Whose rank is not what it was, for people whose files go by rank: `node: 3 -> 2 (workers 24-31 -> 16-23)`."""
    before: dict[str, list[Member]] = {}
    for m in last.members if last else ():
        before.setdefault(m.node, []).append(m)
    out = []
    for m in members:
        old = before.get(m.node, [])
        same = next((o for o in old if o.who == m.who), None) or next((o for o in old if o.rank == m.rank), old[0] if old else None)
        if same is not None and (same.rank, same.first_rank, same.workers) != (m.rank, m.first_rank, m.workers):
            out.append(f"{m.node}: {same.rank} -> {m.rank} (workers {_workers(same)} -> {_workers(m)})")
    return tuple(out) if len(out) <= _SHOWN else (*out[:_SHOWN], f"and {len(out) - _SHOWN} more nodes")


def _workers(m: Member) -> str:
    return f"{m.first_rank}-{m.first_rank + m.workers - 1}" if m.workers > 1 else f"{m.first_rank}"

"""The collective frontier: from the flight recorder's JSON to the newest operation of each process group.  Pure.

Facts (torch 2.13): gloo's entries stay "scheduled" for good, only `retired` says completed, and its `pg_config` is
broken; a rank that never launched anything in a group has no entry for it.  `pg_status` counts groups by a *local* id:
the order in which this process joined them, so that one group has different ids on different ranks.  Only entries carry
both the id and the group's name, which is the same everywhere; so names are learned from entries and then kept.
gloo notes completions from several threads, and a late one overwrites a newer one: `last_completed_collective` may stay
behind for good though nothing is under way.  Entries tell the truth, so where they are at hand they correct it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_health.liveness.facts import GroupFrontier

UNNAMED = "?"
"""Begins the name of a group whose entries have left the recorder's ring before its name was learned."""


@dataclass(frozen=True)
class Dump:
    """What one recorder says.

    Attributes:
        status: local group id -> (last enqueued, last completed) sequence number, -1 for none.
        names: local group id -> name, where an entry tells it.
        ops: (local group id, sequence number) -> operation, from entries.
        retired: local group id -> sequence number up to which every entry is retired.
    """

    status: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[tuple[str, int], str] = field(default_factory=dict)
    retired: Mapping[str, int] = field(default_factory=dict)


def read_dump(raw: bytes | str) -> Dump:
    """Parse a dump with or without entries; anything unreadable gives an empty one."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return Dump()
    status = body.get("pg_status") if isinstance(body, dict) else None
    if not isinstance(status, dict):
        return Dump()
    names, ops, retired = _read_entries(body.get("entries"))
    return Dump({str(key): _sequence(one) for key, one in status.items() if isinstance(one, dict)}, names, ops, retired)


def groups(
    dump: Dump,
    names: Mapping[str, str] | None = None,
    ranks: Mapping[str, tuple[int, ...]] | None = None,
    retired: Mapping[str, int] | None = None,
) -> tuple[GroupFrontier, ...]:
    """The frontier of each group that has launched anything, in the order in which this process joined them.

    Args:
        names, retired: by local id, as learned from earlier dumps; the dump's own come on top.
        ranks: name -> global ranks.
    """
    known, done = {**(names or {}), **dump.names}, {**(retired or {}), **dump.retired}
    found = []
    for key in sorted(dump.status, key=lambda k: (len(k), k)):
        enqueued, completed = dump.status[key]
        if enqueued >= 0 or key == "0":
            name = known.get(key, "0" if key == "0" else f"{UNNAMED}{key}")
            completed = max(completed, min(done.get(key, -1), enqueued))
            found.append(GroupFrontier(name, enqueued, completed, dump.ops.get((key, enqueued), ""), (ranks or {}).get(name, ())))
    return tuple(found)


def frontier(raw: bytes | str) -> tuple[GroupFrontier, ...]:
    """The frontier of one dump that carries its entries."""
    return groups(read_dump(raw))


def nameless(dump: Dump, names: Collection[str]) -> tuple[str, ...]:
    """Local ids of groups that have launched something and whose name isn't known yet."""
    return tuple(key for key, (enqueued, _) in dump.status.items() if enqueued >= 0 and key not in names)


def shown(groups: Iterable[GroupFrontier], changed: Mapping[str, int], limit: int) -> tuple[GroupFrontier, ...]:
    """The `limit` most telling groups, in their given order: those waited in, then those that changed last.

    Args:
        changed: name -> any number that grows with time, when that group last changed.
    """
    every = tuple(groups)
    best = sorted(range(len(every)), key=lambda i: (every[i].enqueued <= every[i].completed, -changed.get(every[i].group, 0), i))
    return tuple(every[i] for i in sorted(best[:limit]))


def moved(before: Iterable[GroupFrontier], after: Iterable[GroupFrontier]) -> bool:
    """Did any group's newest collective change?"""
    return [(g.group, g.enqueued, g.completed) for g in before] != [(g.group, g.enqueued, g.completed) for g in after]


def _sequence(one: Mapping[str, Any]) -> tuple[int, int]:
    return _number(one.get("last_enqueued_collective")), _number(one.get("last_completed_collective"))


def _read_entries(entries: Any) -> tuple[dict[str, str], dict[tuple[str, int], str], dict[str, int]]:
    names: dict[str, str] = {}
    ops: dict[tuple[str, int], str] = {}
    open_: dict[str, int] = {}
    newest: dict[str, int] = {}
    for e in entries if isinstance(entries, list) else ():
        if not isinstance(e, dict):
            continue
        key, group = str(e.get("pg_id", "")), e.get("process_group")
        if isinstance(group, list) and group:
            names[key] = str(group[0])
        if e.get("is_p2p"):
            continue
        n = _number(e.get("collective_seq_id"))
        ops[key, n] = str(e.get("profiling_name", ""))[:64]
        newest[key] = max(newest.get(key, -1), n)
        if e.get("retired") is not True:
            open_[key] = min(open_.get(key, n), n)
    return names, ops, {key: open_.get(key, n + 1) - 1 for key, n in newest.items()}


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1

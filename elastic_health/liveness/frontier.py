"""The collective frontier: from the flight recorder's JSON to the newest operation of each process group.  Pure.

Facts (torch 2.13): gloo's entries stay "scheduled" for good, only `retired` says completed; `pg_config` may be broken for
gloo, so groups go by the keys of `pg_status`; a rank that never launched anything in a group has no entry for it.
"""

from __future__ import annotations

import json
from typing import Any

from elastic_health.liveness.facts import GroupFrontier


def frontier(raw: bytes | str) -> tuple[GroupFrontier, ...]:
    """Newest collectives by group, in the order of group numbers.

    Args:
        raw: what the recorder gives; with entries, operations are named from them.  Anything unreadable gives ().
    """
    try:
        body = json.loads(raw)
    except ValueError:
        return ()
    status = body.get("pg_status") if isinstance(body, dict) else None
    if not isinstance(status, dict):
        return ()
    ops = _operations(body.get("entries"))
    groups = []
    for name in sorted(status, key=lambda n: (len(n), n)):
        one = status[name]
        if isinstance(one, dict):
            enqueued, completed = _number(one.get("last_enqueued_collective")), _number(one.get("last_completed_collective"))
            groups.append(GroupFrontier(str(name), enqueued, completed, ops.get((str(name), enqueued), "")))
    return tuple(groups)


def _operations(entries: Any) -> dict[tuple[str, int], str]:
    """(group, sequence number) -> operation, from the entries of a full dump."""
    found: dict[tuple[str, int], str] = {}
    for e in entries if isinstance(entries, list) else ():
        if isinstance(e, dict) and not e.get("is_p2p"):
            group = e.get("process_group")
            name = str(group[0]) if isinstance(group, list) and group else str(e.get("pg_id", ""))
            found[(name, _number(e.get("collective_seq_id")))] = str(e.get("profiling_name", ""))[:64]
    return found


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1

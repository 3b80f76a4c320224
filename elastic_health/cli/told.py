"""A snapshot of a run as `status` and `runs show` tell it: lines for people, a plain object for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elastic_health.cli.show import few, table, when
from elastic_health.codec import plain, shown
from elastic_health.generations import Candidate, Member, Spent
from elastic_health.incidents import Record
from elastic_health.liveness.summary import NodeHealth, NodeSummary
from elastic_health.recovery.snapshot import RunSnapshot
from elastic_health.recovery.story import headline

_LAST_SPENT = _LAST_RECORDS = _LAST_UNREADABLE = 5
_MOST_ROWS = 16
"""Nodes in the table: with the rest of the page it fits on one screen."""
_MOST_WIDE = 160


def as_object(snap: RunSnapshot) -> dict[str, Any]:
    """For `--json`."""
    return {
        "run": snap.keys.run,
        "state": snap.state.value,
        "generation": plain(snap.generation),
        "verdict": plain(snap.verdict),
        "budget": plain(snap.budget),
        "checkpoints": plain(snap.checkpoints),
        "newest_committed": plain(snap.newest_committed),
        "candidates": plain(snap.candidates),
        "skips": plain(snap.skips),
        "progress": plain(snap.progress),
        "summary": plain(snap.summary),
        "unreadable": list(snap.unreadable),
    }


def as_lines(snap: RunSnapshot) -> list[str]:
    """For a terminal: one screen, whatever the run's size."""
    return [shown(line, _MOST_WIDE) for line in _lines(snap)]


def _lines(snap: RunSnapshot) -> Iterator[str]:
    yield headline(snap)
    yield from _progress(snap)
    yield from _members(snap)
    yield from (f"skipped: positions [{w.start}, {w.end}){f' ({w.reason})' if w.reason else ''}" for w in snap.skips[-_LAST_RECORDS:])
    if snap.verdict is not None:
        yield f"verdict: {snap.verdict.cause.value} -> {snap.verdict.kind.value}: {snap.verdict.reason}"
    yield from (_spent(s) for s in snap.budget.spent[-_LAST_SPENT:])
    yield from (_record(r) for r in snap.records[-_LAST_RECORDS:])
    yield from (f"could not be read: {text}" for text in snap.unreadable[:_LAST_UNREADABLE])
    if len(snap.unreadable) > _LAST_UNREADABLE:
        yield f"could not be read: {len(snap.unreadable) - _LAST_UNREADABLE} more; see --json"


def _progress(snap: RunSnapshot) -> Iterator[str]:
    p = snap.published
    if p is None:
        return
    step = f"newest step {p.step}" if p.step >= 0 else "the script tells of no steps"
    pace = f", {p.step_time_s:.3g} s a step (median)" if p.step_time_s is not None else ""
    beat = f", oldest heartbeat {p.heartbeat_age_s:.3g} s" if p.heartbeat_age_s is not None else ""
    at = snap.at.get(snap.keys.progress, "")
    yield f"progress: {step}{pace}{beat}; generation {p.generation}, world {p.world}{f', told {at}' if at else ''}"


def _spent(s: Spent) -> str:
    signature = f" ({s.signature})" if s.signature not in ("", s.cause) else ""
    return f"spent: {'rollback' if s.rollback else 'restart'} after generation {s.generation}: {s.cause}{signature}"


def _record(r: Record) -> str:
    done = "" if r.done else " (not done)"
    named = f", named {few(r.nodes)}" if r.nodes else ""
    return f"record: {when(r.at)} generation {r.generation}: {r.cause} -> {r.action}{done}{named}: {r.decision or r.reason}"


def _members(snap: RunSnapshot) -> Iterator[str]:
    live = {(c.node, c.incarnation): c for c in snap.candidates}
    group = snap.group if snap.group is not None and snap.generation is not None and snap.group.generation == snap.current else None
    told = {(n.node, n.rank): n for n in group.nodes} if group else {}
    members = snap.generation.members if snap.generation else ()
    ranked = [(told.get((m.node, m.rank)), m, live.pop(m.who, None)) for m in members]
    ranked.sort(key=lambda row: (row[0] is None or row[0].health is NodeHealth.WELL) and row[2] is not None)
    rows = [_row(*row) for row in ranked]
    rows += [(c.node, "-", "-", c.state.value, "-", "-", "-", "-", c.address) for c in sorted(live.values(), key=lambda c: c.node)]
    if rows:
        yield from table(("node", "rank", "workers", "state", "health", "phase", "step", "quiet s", "address"), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        yield f"… and {len(rows) - _MOST_ROWS} more"
    if group is not None and group.counts:
        at = snap.at.get(snap.keys.summary, "")
        counts = ", ".join(f"{n} {health}" for health, n in sorted(group.counts.items()))
        yield f"nodes: {counts}{f'; told {at}' if at else ''}"
    yield from _versions(snap)


def _row(n: NodeSummary | None, m: Member, live: Candidate | None) -> tuple[str, ...]:
    state = live.state.value if live else "gone"
    seen = (n.health.value, n.phase, str(n.step), f"{n.quiet_s:g}") if n else ("-", "-", "-", "-")
    return (m.node, str(m.rank), f"{m.first_rank}-{m.first_rank + m.workers - 1}", state, *seen, m.address)


def _versions(snap: RunSnapshot) -> Iterator[str]:
    """Only when there are several."""
    nodes: dict[str, list[str]] = {}
    for c in snap.candidates:
        nodes.setdefault(c.version or "unknown", []).append(c.node)
    if len(nodes) > 1:
        yield f"versions: {'; '.join(f'{v} on {few(sorted(who))}' for v, who in sorted(nodes.items()))}"

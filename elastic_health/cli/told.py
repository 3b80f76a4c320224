"""A snapshot of a run as `status` and `runs show` tell it: lines for people, a plain object for machines."""

from __future__ import annotations

from typing import Any

from elastic_health.cli.show import table
from elastic_health.codec import plain
from elastic_health.generations import Candidate, Member, Spent
from elastic_health.recovery.snapshot import RunSnapshot
from elastic_health.recovery.story import headline

_LAST_SPENT = 5


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
    """For a terminal."""
    lines = [headline(snap)]
    if snap.progress:
        lines.append("progress: " + ", ".join(f"{k} {v}" for k, v in snap.progress.items() if k not in ("v", "by")))
    lines += _members(snap)
    lines += [f"skipped: positions [{w.start}, {w.end}){f' ({w.reason})' if w.reason else ''}" for w in snap.skips]
    if snap.verdict is not None:
        lines.append(f"verdict: {snap.verdict.cause.value} -> {snap.verdict.kind.value}: {snap.verdict.reason}")
    lines += [_spent(s) for s in snap.budget.spent[-_LAST_SPENT:]]
    lines += [f"could not be read: {text}" for text in snap.unreadable]
    return lines


def _spent(s: Spent) -> str:
    signature = f" ({s.signature})" if s.signature not in ("", s.cause) else ""
    return f"spent: {'rollback' if s.rollback else 'restart'} after generation {s.generation}: {s.cause}{signature}"


def _members(snap: RunSnapshot) -> list[str]:
    live = {(c.node, c.incarnation): c for c in snap.candidates}
    members = snap.generation.members if snap.generation else ()
    rows = [_row(m, live.pop(m.who, None), snap) for m in members]
    rows += [(c.node, "-", "-", c.state.value, c.address) for c in sorted(live.values(), key=lambda c: c.node)]
    return table(("node", "rank", "workers", "state", "address"), rows) if rows else []


def _row(m: Member, live: Candidate | None, snap: RunSnapshot) -> tuple[str, ...]:
    state = live.state.value if live else "gone"
    return (m.node, str(m.rank), f"{m.first_rank}-{m.first_rank + m.workers - 1}", state, m.address)

"""The story of a run for people: each generation with its members, how it ended, who was named, and what was done.

Pure: a snapshot of keys in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from elastic_health.generations import CheckpointState, Generation, GenerationKind, Member, RestorePlan
from elastic_health.incidents import Record
from elastic_health.preflight.standing import ACTION as PREFLIGHT
from elastic_health.recovery.snapshot import RunSnapshot, RunState
from elastic_health.verdicts import Verdict, VerdictKind

MANY = 12
"""From this many members on, only their number is told, and who was named."""


def story(snap: RunSnapshot) -> tuple[str, ...]:
    """Lines without line ends; the first one says where the run is."""
    return tuple(_lines(snap))


def _lines(snap: RunSnapshot) -> Iterator[str]:
    yield headline(snap)
    yield from (f"{_KEPT.get(r.decision, r.decision)}: {', '.join(r.nodes)}: {r.reason}" for r in snap.records if r.action == PREFLIGHT)
    yield from (f"skipped: positions [{w.start}, {w.end}){_because(w.reason)}" for w in snap.skips)
    for number in sorted(snap.generations):
        yield ""
        yield from _generation(snap, snap.generations[number])
    yield from (line for line in _unreadable(snap))


_KEPT: Mapping[str, str] = {"refuse": "kept out by its preflight", "admit_observed": "let in, although its preflight failed"}


def headline(snap: RunSnapshot) -> str:
    """`run demo: running, generation 4 with 3 nodes (world 6), 2 restarts, 0 rollbacks`."""
    g, b = snap.generation, snap.budget
    parts = [_STATE_TEXT[snap.state]]
    if g is not None:
        parts.append(f"generation {g.number} with {count(len(g.members), 'node')} (world {g.world_size})")
    newest = snap.newest_committed
    if newest is not None:
        parts.append(f"newest committed checkpoint at step {newest.step}")
    parts.append(f"{count(b.restarts, 'restart')}, {count(b.rollbacks, 'rollback')}")
    return f"run {snap.keys.run}: {', '.join(parts)}"


_STATE_TEXT: Mapping[RunState, str] = {
    RunState.EMPTY: "nothing is known of it",
    RunState.DELETING: "being deleted; `runs delete` once more if nobody is at it",
    RunState.FORMING: "waiting for nodes",
    RunState.RUNNING: "running",
    RunState.LOST: "no agent is alive and nothing ended it",
    RunState.RESTARTING: "between two generations",
    RunState.FINISHED: "finished",
    RunState.CAPPED: "ended, a person must look",
    RunState.STOPPED: "stopped on request",
    RunState.PAUSED: "stopped on request; it goes on when it is started again",
}


def _generation(snap: RunSnapshot, g: Generation) -> Iterator[str]:
    began = snap.at.get(snap.keys.generation(g.number), "")
    kind = "formed" if g.kind is GenerationKind.FORMED else "went on in place (rollback)"
    yield f"generation {g.number} {kind}{f' {began}' if began else ''}: {count(len(g.members), 'node')}, world {g.world_size}"
    if len(g.members) < MANY:
        yield "  members: " + ", ".join(f"{m.node} ({_ranks(m)})" for m in g.members)
    yield f"  started {_start(g.plan)}"
    if g.moved:
        yield f"  ranks moved: {', '.join(g.moved)}"
    verdict = snap.verdicts.get(g.number)
    if verdict is None:
        yield "  no verdict: still running" if snap.state is RunState.RUNNING else "  no verdict"
    else:
        yield from _ending(snap, verdict, began)
    yield from _commits(snap, g)


def _ending(snap: RunSnapshot, v: Verdict, began: str) -> Iterator[str]:
    ended = snap.at.get(snap.keys.verdict(v.generation), "")
    lasted = _lasted(began, ended)
    yield f"  ended{f' {ended}' if ended else ''}{f' after {lasted}' if lasted else ''}: {v.cause.value} -> {v.kind.value}"
    if v.reason:
        yield f"    why: {v.reason}"
    named = _named(v)
    if named:
        yield f"    named: {named}"
    if v.step >= 0:
        yield f"    newest completed step: {v.step}"
    if v.torn:
        yield f"    set aside: checkpoint {v.torn}"
    if v.kind is VerdictKind.ROLLBACK:
        skipped = ", ".join(f"[{w.start}, {w.end})" for w in v.windows)
        yield f"    back to {v.target or 'the beginning'}{f', past positions {skipped}' if skipped else ''}"
    if v.kind in (VerdictKind.STOP, VerdictKind.ABORT, VerdictKind.FINISH):
        yield f"    exit status {v.exit_status}"
    yield from (_decision(r) for r in snap.records if r.generation == v.generation and r.decision)


def _decision(r: Record) -> str:
    by = f" (by {r.who})" if r.who else ""
    return f"    decided: {r.action}: {r.decision}{by}{'' if r.done else '; not done'}"


def _commits(snap: RunSnapshot, g: Generation) -> Iterator[str]:
    mine = [c for c in snap.checkpoints if c.generation == g.number]
    if not mine:
        return
    left = [c for c in mine if c.state is CheckpointState.ABANDONED]
    yield f"  checkpoints: steps {', '.join(str(c.step) for c in mine)}" + (
        f"; abandoned: {', '.join(f'{c.step}{_because(c.why)}' for c in left)}" if left else ""
    )


def _unreadable(snap: RunSnapshot) -> Iterator[str]:
    if snap.unreadable:
        yield ""
        yield from (f"could not be read: {text}" for text in snap.unreadable)


def _start(plan: RestorePlan) -> str:
    if plan.checkpoint is None:
        return "at the very beginning" if plan.position == 0 else f"without a checkpoint, at position {plan.position}"
    return f"from checkpoint {plan.checkpoint} (step {plan.step}, position {plan.position})"


def _named(v: Verdict) -> str:
    ranks = f"rank {', '.join(map(str, v.ranks))}" if v.ranks else ""
    nodes = f"node {', '.join(v.nodes)}" if v.nodes else ""
    return " on ".join(x for x in (ranks, nodes) if x)


def _ranks(m: Member) -> str:
    last = m.first_rank + m.workers - 1
    return f"rank {last}" if m.workers == 1 else f"ranks {m.first_rank}-{last}"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _lasted(began: str, ended: str) -> str:
    try:
        seconds = (_time(ended) - _time(began)).total_seconds()
    except (ValueError, TypeError):
        return ""
    return duration(seconds) if seconds >= 0 else ""


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = int(seconds)
    for big, big_name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= big:
            return f"{whole // big} {big_name} {whole % big // small} {small_name}"
    return f"{whole // 60} min {whole % 60} s"


def count(n: int, what: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{n} {what}{'' if n == 1 else 's'}"

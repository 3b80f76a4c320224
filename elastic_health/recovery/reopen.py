"""Reopening a run that was ended for good: the final verdict becomes a restart that a person asked for.

Law: `verdicts/<g>` is never deleted, so the fence of generation g stays shut; a run that finished, or that agents
still work on, is not reopened.  Spent restarts are forgiven, otherwise the next fault would end the run at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_health.codec import dump
from elastic_health.errors import RunRefused
from elastic_health.generations import Budget
from elastic_health.incidents import Record
from elastic_health.recovery.snapshot import RunSnapshot, RunState
from elastic_health.rendezvous.store import Compare, Delete, Put, Target, Txn
from elastic_health.verdicts import Cause, Verdict, VerdictKind


@dataclass(frozen=True)
class Who:
    """Who asks, and when: `at` UTC in ISO 8601, `now` the same in seconds since the epoch."""

    by: str
    at: str
    now: float
    reason: str = ""


def reopened(v: Verdict, who: Who) -> Verdict:
    """The final verdict as a requested restart; a torn checkpoint stays named, and windows stay skipped."""
    why = f"; {who.reason}" if who.reason else ""
    return _requested(v, f"reopened by {who.by}{why} (it had ended: {v.reason})")


def resumed(v: Verdict, by: str) -> Verdict:
    """As `reopened`, for a run that was stopped short of a cap: whoever starts it again goes on with it."""
    return _requested(v, f"resumed by {by} (it had ended: {v.reason})")


def _requested(v: Verdict, reason: str) -> Verdict:
    return replace(
        v,
        kind=VerdictKind.RESTART,
        cause=Cause.REQUESTED,
        signature=Cause.REQUESTED.value,
        reason=reason,
        exit_status=0,
        target=None,
        early=False,
        backoff_s=0.0,
    )


def reopen(snap: RunSnapshot, ident: str, who: Who) -> tuple[Txn, Record]:
    """The transaction, and the record in it.

    Args:
        ident: a fresh ULID for the record.

    Raises:
        RunRefused: the run isn't one that was ended for good, or agents are still there.
    """
    v = snap.verdict
    if v is None or snap.state not in (RunState.CAPPED, RunState.STOPPED):
        raise RunRefused("a run that was stopped or capped", f"run {snap.keys.run}: {snap.state.value}", "there is nothing to reopen")
    if snap.candidates:
        names = ", ".join(sorted(c.node for c in snap.candidates)[:5])
        raise RunRefused("no agent of the run alive", f"agents on {names}", "wait until they have ended (seconds), then try again")
    keys, new = snap.keys, reopened(v, who)
    record = Record(
        ident, "reopen", who.reason, Cause.REQUESTED.value, new.signature, v.generation, v.step, decision=new.reason, who=who.by, at=who.now
    )
    budget = Budget(torch_max_restarts=snap.budget.torch_max_restarts, last_checkpoint=snap.budget.last_checkpoint)

    def value(of: object) -> bytes:
        return dump(of, at=who.at, by=who.by)

    compare = tuple(Compare(k, Target.MOD, snap.mods.get(k, 0)) for k in (keys.current, keys.verdict(v.generation), keys.budget))
    puts = (Put(keys.verdict(v.generation), value(new)), Put(keys.budget, value(budget)), Put(keys.record(ident), value(record)))
    return Txn(compare, (*puts, Delete(keys.paged))), record

"""Deleting a run: may it go, and in which transactions?  Pure.

Law: a run that an agent holds a lease in is never deleted, and no half of a run is ever joined.  A finished run bars
itself: its verdict goes last, and is compared as it was read.  For any other, first a mark is written that keeps agents
from joining, then the run is read again, and only then its keys go, the mark last.  (So a full etcd, which takes no mark,
can still be rid of finished runs.)  A bounded number a transaction; what was interrupted, the same command ends.  Files on
disk are nobody's business here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from elastic_health.errors import RunRefused
from elastic_health.recovery.snapshot import RunSnapshot, RunState
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Compare, Delete, KeyValue, Target, Txn

DELETES_A_TXN = 100
"""etcd takes 128 operations; each needs the mark to be there, too."""
FINISHED = frozenset({RunState.FINISHED})
NAMED = 5


@dataclass(frozen=True)
class Which:
    """What may go.  `finished`: only runs that finished; `older_than_s`: only those that nobody has written to for so long."""

    finished: bool = False
    older_than_s: float = 0.0


def holders(kvs: Iterable[KeyValue], keys: RunKeys) -> tuple[str, ...]:
    """Names of candidates that a living agent holds; a key there without a lease is nobody's."""
    return tuple(kv.key[len(keys.candidates) :] for kv in kvs if kv.key.startswith(keys.candidates) and kv.lease)


def check(snap: RunSnapshot, held: Iterable[str], which: Which, age_s: float | None) -> None:
    """May this run be deleted?

    Args:
        held: as `holders` finds them.
        age_s: since the newest time in its values, None if no value tells one.

    Raises:
        RunRefused: no; expected, found, do.
    """
    run, names = snap.keys.run, sorted(held)
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        found = f"run {run} held by {', '.join(names[:NAMED])}{more}"
        raise RunRefused("a run that no agent works on", found, "stop its torchruns first; their leases end within seconds")
    if which.finished and snap.state not in FINISHED and snap.state is not RunState.DELETING:
        raise RunRefused("a run that finished", f"run {run}: {snap.state.value}", "leave out --finished to delete it all the same")
    if which.older_than_s > 0 and (age_s is None or age_s < which.older_than_s):
        found = f"run {run}: {'no time in any value' if age_s is None else f'{age_s:.0f} s'}"
        raise RunRefused(f"a run last written to {which.older_than_s:g} s ago", found, "leave out --older-than to delete it all the same")


def settle_s(snap: RunSnapshot) -> float:
    """How long after the mark the run is read again: where nothing ended it, its group may be riding through an outage
    whose end gives it time to put its candidates back."""
    if snap.state is not RunState.LOST and not (snap.deleting and snap.verdict is None and snap.current):
        return 0.0
    bounds = snap.generation.bounds if snap.generation else None
    return bounds.lease_s + bounds.link_timeout_s if bounds else 8.0


def needs_mark(snap: RunSnapshot) -> bool:
    return snap.state not in FINISHED


def transactions(snap: RunSnapshot, kvs: Iterable[KeyValue]) -> tuple[Txn, ...]:
    """All keys of the run, in an order in which no agent can join what is left.

    With a mark `current` goes first: nothing can be committed from then on.  Without one it goes last, with its verdict.
    """
    keys = snap.keys
    if needs_mark(snap):
        bars, first, last = (Compare(keys.deleting, Target.VERSION, 1),), [keys.current], [keys.secret, keys.deleting]
    else:
        verdict = keys.verdict(snap.current)
        bars, first = (Compare(verdict, Target.MOD, snap.mods.get(verdict, 0)),), []
        last = [keys.current, keys.generation(snap.current), verdict, keys.secret, keys.deleting]
    order = [*first, *sorted({kv.key for kv in kvs} - {*first, *last})]
    parts = [order[i : i + DELETES_A_TXN] for i in range(0, len(order), DELETES_A_TXN)]
    return tuple(Txn(bars, tuple(Delete(k) for k in part)) for part in (*parts, last))


def left_on_disk(snap: RunSnapshot) -> tuple[str, ...]:
    """Folders that hold this run's checkpoints, as its records tell."""
    return tuple(sorted({c.path.rstrip("/").rpartition("/")[0] or "/" for c in snap.checkpoints if c.path}))


def newest_at(times: Iterable[str]) -> float | None:
    """The newest of the values' `at`, in seconds since the epoch; None if none of them is a time."""
    return max((t for text in times if (t := _seconds(text)) is not None), default=None)


def _seconds(text: str) -> float | None:
    try:
        told = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return told.timestamp() if told.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None

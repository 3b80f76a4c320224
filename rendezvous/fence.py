"""The fence, and every transaction that membership sends, spelled out.

Law (R10): a write of generation g compares the mod revision of `current` with the one known since g began, and that
`verdicts/<g>` is absent.  Refused means over: the value is never refreshed and retried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from elastic_health.checkpoints.retention import Forgotten
from elastic_health.codec import dump
from elastic_health.generations import (
    Budget,
    Candidate,
    CheckpointRecord,
    CheckpointState,
    Generation,
    GenerationKind,
    MemberShard,
    StoreAddress,
)
from elastic_health.incidents import Record
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Compare, Delete, Get, Put, Target, Txn
from elastic_health.rendezvous.view import Current, View, Who
from elastic_health.verdicts import Verdict, VerdictKind

_AT_ONCE = 60


@dataclass(frozen=True)
class Fence:
    """Proof that generation `generation` is the current one and not yet ended, as two comparisons."""

    keys: RunKeys
    generation: int
    token: int

    def compares(self) -> tuple[Compare, ...]:
        return (Compare(self.keys.current, Target.MOD, self.token), Compare(self.keys.verdict(self.generation), Target.CREATE, 0))


@dataclass(frozen=True)
class Stamp:
    """Who writes, and when (UTC, ISO 8601): goes into every value."""

    at: str
    by: str

    def value(self, record: object) -> bytes:
        return dump(record, at=self.at, by=self.by)


def join(keys: RunKeys, candidate: Candidate, lease: int, stamp: Stamp) -> Txn:
    """The first write of an incarnation; none while the run is being deleted.  Also counts the candidates that are there
    already: all of them are older."""
    key = keys.candidate(candidate.node, candidate.incarnation)
    compare = (Compare(key, Target.CREATE, 0), Compare(keys.deleting, Target.CREATE, 0))
    older = Get(keys.candidates, prefix=True, count=True)
    return Txn(compare, (older, Put(key, stamp.value(candidate), lease)), (Get(key), Get(keys.deleting)))


def candidate_state(keys: RunKeys, candidate: Candidate, mod: int, lease: int, stamp: Stamp) -> Txn:
    """Change the own candidate, which this agent last wrote at revision `mod`: a late copy of this write is refused, so
    that a member never turns `ready` again behind its own back."""
    key = keys.candidate(candidate.node, candidate.incarnation)
    return Txn((Compare(key, Target.MOD, mod),), (Put(key, stamp.value(candidate), lease),), (Get(key),))


def member(fence: Fence, candidate: Candidate, mod: int, lease: int, stamp: Stamp) -> Txn:
    """`member`, before any worker is spawned: behind the fence, and only over the own candidate as `ready` left it at
    revision `mod`: a late copy never lands on one that has become `ready` again while the generation has no verdict."""
    key = fence.keys.candidate(candidate.node, candidate.incarnation)
    own = Compare(key, Target.MOD, mod)
    return Txn((*fence.compares(), own), (Put(key, stamp.value(candidate), lease),), (Get(fence.keys.current), Get(key)))


def reattach(fence: Fence, candidate: Candidate, lease: int, stamp: Stamp, over: int = 0) -> Txn:
    """After an outage: the candidate again, same incarnation, while the generation has no verdict.  `over`: mod revision
    of what somebody else wrote there (0: it is absent)."""
    key = fence.keys.candidate(candidate.node, candidate.incarnation)
    return Txn((*fence.compares(), Compare(key, Target.MOD, over)), (Put(key, stamp.value(candidate), lease),), (Get(key),))


def leave(keys: RunKeys, who: Who) -> Txn:
    return Txn((), (Delete(keys.candidate(*who)),))


def publish_store(fence: Fence, address: StoreAddress, stamp: Stamp) -> Txn:
    key = fence.keys.store(fence.generation)
    return Txn((*fence.compares(), Compare(key, Target.CREATE, 0)), (Put(key, stamp.value(address)),), (Get(key),))


def publish(fence: Fence, key: str, value: bytes) -> Txn:
    return Txn(fence.compares(), (Put(key, value),))


def commit(fence: Fence, record: CheckpointRecord, stamp: Stamp) -> Txn:
    key = fence.keys.checkpoint(record.name)
    return Txn(
        (*fence.compares(), Compare(key, Target.CREATE, 0)),
        (Put(key, stamp.value(record)),),
        (Get(key), Get(fence.keys.current), Get(fence.keys.verdict(fence.generation))),
    )


def mark_deleting(fence: Fence, view: View, names: Iterable[str], stamp: Stamp) -> Txn:
    compares, puts = list(fence.compares()), []
    for name in names:
        key = fence.keys.checkpoint(name)
        compares.append(Compare(key, Target.MOD, view.checkpoint_mods[name]))
        gone = dataclasses.replace(view.checkpoints[name], state=CheckpointState.DELETING)
        puts.append(Put(key, stamp.value(gone)))
    return Txn(tuple(compares), tuple(puts))


def forget(fence: Fence, view: View, what: Forgotten, stamp: Stamp) -> Txn:
    """Delete the records of checkpoints whose files are gone, and give their descendants other parents; all as it was read."""
    key = fence.keys.checkpoint
    touched = (*what.names, *(name for name, _ in what.parents))
    heirs = (dataclasses.replace(view.checkpoints[name], parent=parent) for name, parent in what.parents)
    return Txn(
        (*fence.compares(), *(Compare(key(name), Target.MOD, view.checkpoint_mods[name]) for name in touched)),
        (*(Put(key(c.name), stamp.value(c)) for c in heirs), *(Delete(key(name)) for name in what.names)),
    )


def verdict(
    keys: RunKeys, v: Verdict, record: Record, stamp: Stamp, view: View, dead: Iterable[Who] = (), gone: Iterable[Who] = ()
) -> Txn:
    """Create-only: the first writer wins.  With it go the record of the decision, and the candidates of proven dead
    members (by incarnation).  A rollback compares its target as it was read: `committed`.  `gone`: members that are called
    lost because their candidates went: they must still be gone.  Of both, so many as a transaction takes; the others'
    leases end, or their absence is compared by nobody, as the verdict is right with one lost member."""
    key = keys.verdict(v.generation)
    dead, gone_keys = tuple(dead)[:_AT_ONCE], [keys.candidate(*who) for who in tuple(gone)[:_AT_ONCE]]
    compares = [Compare(key, Target.CREATE, 0), *(Compare(k, Target.CREATE, 0) for k in gone_keys)]
    if v.kind is VerdictKind.ROLLBACK and v.target is not None:
        compares.append(Compare(keys.checkpoint(v.target), Target.MOD, view.checkpoint_mods.get(v.target, -1)))
    puts = (Put(key, stamp.value(v)), Put(keys.record(record.id), stamp.value(record)))
    return Txn(tuple(compares), (*puts, *(Delete(keys.candidate(*who)) for who in dead)), (Get(key), *map(Get, gone_keys)))


def member_shard(keys: RunKeys, name: str, shard: MemberShard, stamp: Stamp) -> Txn:
    """Under a name that no other attempt uses; nothing refers to it before a generation does."""
    return Txn((), (Put(keys.member_shard(name), stamp.value(shard)),))


def resume(keys: RunKeys, view: View, again: Verdict, record: Record, stamp: Stamp) -> Txn:
    """The final verdict of a run that may go on becomes `again`, a requested restart; it is never deleted, or the fence of its
    generation would open.  Compares `current` and that verdict as they were read, so that it lands once."""
    key = keys.verdict(again.generation)
    compares = (
        Compare(keys.current, Target.MOD, view.current_mod),
        Compare(key, Target.MOD, view.verdict_mods.get(again.generation, -1)),
    )
    return Txn(compares, (Put(key, stamp.value(again)), Put(keys.record(record.id), stamp.value(record))))


def form(keys: RunKeys, view: View, me: Who, g: Generation, budget: Budget, abandon: Iterable[str], why: str, stamp: Stamp) -> Txn:
    """One transaction: previous `current` unchanged, its verdict as it was read, the former's own candidate alive, the plan's
    record as it was read, the budget as it was read; puts generation, `current`, budget, abandoned marks."""
    mine = view.candidates[me]
    compares = [
        Compare(keys.current, Target.MOD, view.current_mod),
        Compare(keys.candidate(*me), Target.CREATE, mine.create_revision),
        Compare(keys.budget, Target.MOD, view.budget_mod),
        Compare(keys.generation(g.number), Target.CREATE, 0),
    ]
    if g.previous:
        # As it was read: a person may have reopened the run meanwhile, or again.
        compares.append(Compare(keys.verdict(g.previous), Target.MOD, view.verdict_mods.get(g.previous, -1)))
    if g.plan.checkpoint is not None:
        compares.append(Compare(keys.checkpoint(g.plan.checkpoint), Target.MOD, view.checkpoint_mods[g.plan.checkpoint]))
    compares += [Compare(keys.member_shard(name), Target.VERSION, 1) for name in g.shards]
    puts = [
        Put(keys.generation(g.number), stamp.value(dataclasses.replace(g, members=()) if g.shards else g)),
        Put(keys.current, stamp.value(Current(g.number))),
        Put(keys.budget, stamp.value(budget)),
    ]
    for name in abandon:
        compares.append(Compare(keys.checkpoint(name), Target.MOD, view.checkpoint_mods[name]))
        left = dataclasses.replace(view.checkpoints[name], state=CheckpointState.ABANDONED, why=why)
        puts.append(Put(keys.checkpoint(name), stamp.value(left)))
    return Txn(tuple(compares), tuple(puts), (Get(keys.current),))


def in_place(last: Generation, number: int, **changes: object) -> Generation:
    """The in-place generation: same members, ranks, store and communicator; new number and plan."""
    return dataclasses.replace(last, number=number, kind=GenerationKind.IN_PLACE, previous=last.number, moved=(), **changes)  # type: ignore[arg-type]

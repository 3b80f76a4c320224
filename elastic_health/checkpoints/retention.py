"""Which checkpoints may go: the decision of retention.

Invariant: what a restart or a rollback may need stays.  Never expendable: the last plan's checkpoint, the newest
`keep` committed ones of the current line, the newest one at least `reach_steps` before the newest, the newest one proven
good, and what the caller protects.  At least one committed checkpoint of the line always stays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from elastic_health.checkpoints.line import Records, ancestors, committed, head
from elastic_health.generations import CheckpointState


@dataclass(frozen=True)
class Keep:
    """The retention policy.

    Attributes:
        newest: how many committed ones of the current line stay, at least 1.
        reach_steps: one stays that is at least this many steps older than the newest (what a rollback needs).
        abandoned_for: an abandoned one stays until this many generations have formed after its own.
    """

    newest: int = 3
    reach_steps: int = 100
    abandoned_for: int = 2


def expendable(
    records: Records,
    generation: int,
    plan_checkpoint: str | None,
    keep: Keep,
    proven: str | None = None,
    protect: Collection[str] = (),
) -> tuple[str, ...]:
    """Names of checkpoints that may be marked `deleting` now, oldest first.

    Args:
        generation, plan_checkpoint: the current generation and its plan's checkpoint.
        proven: the newest checkpoint known to be good (restored and trained on past a rollback's reach).
        protect: names that something else still reads.
    """
    newest = head(records, generation, plan_checkpoint)
    line = committed(records, ancestors(records, newest))
    staying = {*line[: max(1, keep.newest)], *protect, plan_checkpoint, proven}
    if newest is not None:
        edge = records[newest].step - keep.reach_steps
        # Nothing that old yet: the oldest one is the best that a rollback can get.
        staying.add(next((n for n in line if records[n].step <= edge), line[-1]))
    gone = [n for n in line if n not in staying]
    gone += (n for n, r in records.items() if _stale(r.state, r.generation, generation, keep) and n not in staying)
    return tuple(sorted(gone))


def _stale(state: CheckpointState, born: int, generation: int, keep: Keep) -> bool:
    return state is CheckpointState.ABANDONED and generation - born >= keep.abandoned_for


@dataclass(frozen=True)
class Forgotten:
    """Records to delete, and those whose parent becomes another one in the same transaction (name -> new parent)."""

    names: tuple[str, ...] = ()
    parents: tuple[tuple[str, str | None], ...] = ()


def forgettable(records: Records, gone: Collection[str], plan_checkpoint: str | None, most: int = 40) -> Forgotten:
    """Which records in `deleting` may go, now that their files are `gone`; at most `most` keys are touched.

    The line never breaks: who descends from a forgotten one goes on from the nearest ancestor that stays.  Nobody could
    have restored what was in between.
    """
    names: list[str] = []
    parents: tuple[tuple[str, str | None], ...] = ()
    for name in sorted(n for n in gone if n in records and records[n].state is CheckpointState.DELETING and n != plan_checkpoint):
        more = _heirs(records, frozenset((*names, name)))
        if len(names) + 1 + len(more) > most:
            break
        names.append(name)
        parents = more
    return Forgotten(tuple(names), parents)


def _heirs(records: Records, lost: frozenset[str]) -> tuple[tuple[str, str | None], ...]:
    return tuple((n, _staying(records, r.parent, lost)) for n, r in sorted(records.items()) if n not in lost and r.parent in lost)


def _staying(records: Records, name: str | None, lost: frozenset[str]) -> str | None:
    while name in lost:
        name = records[name].parent
    return name

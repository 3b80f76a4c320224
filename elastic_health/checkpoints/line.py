"""Which checkpoint a generation starts from: the ancestor line, and the one choice on it.

Invariant: a plan names a checkpoint that is `committed`, lies on the ancestor line of the last generation's newest
state (or of the rollback's target), and is neither the torn one nor a descendant of it.  A rollback leaves a branch for
good: everything committed that is not its target or an ancestor of that is marked `abandoned` in the same transaction.

Records of checkpoints deleted by retention stay as `deleting` until their files are gone; the one that goes hands its
descendants to its own parent in the same transaction (see `retention.forgettable`), so that the line never breaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from elastic_health.generations import CheckpointRecord, CheckpointState, Generation, RestorePlan
from elastic_health.verdicts import Verdict, VerdictKind
from elastic_health.windows import Window, normal

Records = Mapping[str, CheckpointRecord]


class ChoiceReason(Enum):
    """Why this checkpoint and no other."""

    BEGINNING = "beginning"
    """Nothing was ever committed on this line: start at position 0, which is no loss."""
    OWN = "own"
    """The last generation's own newest committed one."""
    PLAN = "plan"
    """The last generation committed nothing: its plan once more."""
    ANCESTOR = "ancestor"
    """Newer ones exist on the line, but they are not usable any more: the nearest committed one before them."""
    ROLLBACK = "rollback"
    """The target that the rollback verdict names."""
    ROLLBACK_OLDER = "rollback_older"
    """The rollback's target is not committed any more: the next older committed one on its line."""
    ROLLBACK_BEGINNING = "rollback_beginning"
    """The rollback verdict itself names the beginning."""
    NONE_USABLE = "none_usable"
    """There were checkpoints on the line, and none is usable: start over only if the YAML allows it, else stop and page."""


@dataclass(frozen=True)
class Choice:
    """What the next generation starts from.

    Attributes:
        plan: checkpoint (or none, position 0), with all windows so far in normal form.
        abandon: names to mark `abandoned` in the forming transaction, in name order.
        passed: names on the line, newest first, that were passed over because they are not usable.
    """

    plan: RestorePlan
    abandon: tuple[str, ...]
    reason: ChoiceReason
    passed: tuple[str, ...] = ()

    @property
    def needs_leave_to_start_over(self) -> bool:
        """The plan would throw work away: the caller asks the YAML, and stops and pages if it says no."""
        return self.reason is ChoiceReason.NONE_USABLE


def ancestors(records: Records, name: str | None) -> tuple[str, ...]:
    """`name` and its ancestors, newest first, as far as records exist.  A ring (a damaged record) ends the line."""
    line: dict[str, None] = {}
    while name is not None and name in records and name not in line:
        line[name] = None
        name = records[name].parent
    return tuple(line)


def descendants(records: Records, name: str) -> frozenset[str]:
    """`name` and everything whose history goes through it."""
    children: dict[str, list[str]] = {}
    for record in records.values():
        if record.parent is not None:
            children.setdefault(record.parent, []).append(record.name)
    found, todo = {name}, [name]
    while todo:
        new = [c for c in children.get(todo.pop(), ()) if c not in found]
        found.update(new)
        todo += new
    return frozenset(found)


def committed(records: Records, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that may be restored, in the same order."""
    return tuple(n for n in names if records[n].state is CheckpointState.COMMITTED)


def newest_own(records: Records, generation: int) -> str | None:
    """The newest checkpoint that `generation` itself wrote and that was not abandoned (it may be going away)."""
    own = (r for r in records.values() if r.generation == generation and r.state is not CheckpointState.ABANDONED)
    return max((r.name for r in own), default=None)


def top(records: Records, generation: int, plan_checkpoint: str | None) -> str | None:
    """Where the line of `generation` starts: its newest own one that was not abandoned, else its plan's.

    It is the parent of that generation's next checkpoint.
    """
    return newest_own(records, generation) or plan_checkpoint


def head(records: Records, generation: int, plan_checkpoint: str | None) -> str | None:
    """The checkpoint that follows from `generation`: its own newest committed one, else its plan's, else the nearest
    committed ancestor; None if there is none."""
    return next(iter(committed(records, ancestors(records, top(records, generation, plan_checkpoint)))), None)


def choose(
    records: Records,
    last: Generation | None,
    verdict: Verdict | None,
    skips: Iterable[Window] = (),
    torn: str | None = None,
) -> Choice:
    """Choose the plan of the generation that follows `last`.

    Args:
        records: all checkpoint records of the run, by name, read after the verdict was read.
        last: the last generation, None before the first one.
        verdict: what ended it (None before the first one).
        skips: windows that people recorded.
        torn: a checkpoint found unusable, beside the one that the verdict names.
    """
    windows = _windows(last, verdict, skips)
    bad = frozenset[str]().union(*(descendants(records, t) for t in (torn, verdict.torn if verdict else None) if t is not None))
    if last is None:
        return _first(records, windows)
    if verdict is not None and verdict.kind is VerdictKind.ROLLBACK:
        return _rollback(records, verdict, windows, bad)
    return _onward(records, last, windows, bad)


def plan_for(records: Records, name: str | None, windows: tuple[Window, ...]) -> RestorePlan:
    """The plan that restores `name` (None: the beginning)."""
    if name is None:
        return RestorePlan(windows=windows)
    r = records[name]
    return RestorePlan(name, r.path, r.step, r.position, windows, r.manifest)


def rollback_target(records: Records, generation: int, plan_checkpoint: str | None, before_step: int) -> str | None:
    """The newest committed checkpoint on the line of `generation` at or before `before_step`; None: there is none that old."""
    line = committed(records, ancestors(records, top(records, generation, plan_checkpoint)))
    return next((n for n in line if records[n].step <= before_step), None)


def _windows(last: Generation | None, verdict: Verdict | None, skips: Iterable[Window]) -> tuple[Window, ...]:
    return normal((*(last.plan.windows if last else ()), *(verdict.windows if verdict else ()), *skips))


def _first(records: Records, windows: tuple[Window, ...]) -> Choice:
    # Checkpoints without any generation: someone removed the run's history.  No line leads to them.
    reason = ChoiceReason.NONE_USABLE if records else ChoiceReason.BEGINNING
    return Choice(plan_for(records, None, windows), (), reason, tuple(sorted(records, reverse=True)))


def _marks(records: Records, bad: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(committed(records, (n for n in bad if n in records))))


def _usable(records: Records, line: tuple[str, ...], bad: frozenset[str]) -> tuple[str | None, tuple[str, ...]]:
    """The first usable name of `line`, and those before it."""
    for i, n in enumerate(line):
        if records[n].state is CheckpointState.COMMITTED and n not in bad:
            return n, line[:i]
    return None, line


def _rollback(records: Records, verdict: Verdict, windows: tuple[Window, ...], bad: frozenset[str]) -> Choice:
    line = ancestors(records, verdict.target)
    name, passed = _usable(records, line, bad)
    good = frozenset(ancestors(records, name))
    left = {r.name for r in records.values() if r.generation <= verdict.generation and r.name not in good}
    if name is not None:
        reason = ChoiceReason.ROLLBACK if name == verdict.target else ChoiceReason.ROLLBACK_OLDER
    else:
        reason = ChoiceReason.ROLLBACK_BEGINNING if verdict.target is None else ChoiceReason.NONE_USABLE
    return Choice(plan_for(records, name, windows), _marks(records, bad | left), reason, passed)


def _onward(records: Records, last: Generation, windows: tuple[Window, ...], bad: frozenset[str]) -> Choice:
    own, planned = newest_own(records, last.number), last.plan.checkpoint
    name, passed = _usable(records, ancestors(records, own or planned), bad)
    if name is not None:
        reason = ChoiceReason.OWN if name == own else ChoiceReason.PLAN if name == planned else ChoiceReason.ANCESTOR
    else:
        had_some = planned is not None or any(r.generation == last.number for r in records.values())
        reason = ChoiceReason.NONE_USABLE if had_some else ChoiceReason.BEGINNING
    return Choice(plan_for(records, name, windows), _marks(records, bad), reason, passed)

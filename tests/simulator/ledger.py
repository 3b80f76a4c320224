"""The simulator's store: MemoryStore, with every write checked against the invariants as it lands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic_health.codec import load
from elastic_health.generations import Budget, Candidate, CandidateState, CheckpointRecord, CheckpointState, Generation, GenerationKind
from elastic_health.rendezvous.keys import RunKeys, last_segment
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.store import Delete, Put, Txn, TxnResult
from elastic_health.rendezvous.view import Current, Who
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import outside


class Broken(AssertionError):
    """An invariant does not hold; the text begins with its name."""


LAWS: Mapping[str, str] = {
    "I1": "one generation at a time can commit, and each follows from the one before",
    "I2": "ranks are dense, the size is within MIN:MAX, no quarantined or unfit node is in",
    "I3": "one verdict a generation, and all members apply that one",
    "I4": "each position is consumed once along the committed line, apart from recorded windows",
    "I5": "caps hold, and a person is called once, and only for an end that nobody asked for",
    "I6": "when faults end, the run goes on, and ends, within a bounded time",
    "I7": "a plan restores a committed checkpoint of its own line, whose files are there",
    "I8": "only the current generation writes; nothing that a restart needs is deleted",
    "R1": "without a fault nothing restarts",
    "R2": "`ready` is said only of a node whose workers are gone",
    "R9": "`member` stands in the store before workers do, and never two groups of workers on a node",
    "R10": "whoever may have been replaced counts on no lease, and trains for no generation",
}
"""What each name in a `Broken` means."""


def need(name: str, holds: bool, text: str) -> None:
    if not holds:
        raise Broken(f"{name}: {text}")


class Ledger:
    """What has been decided so far, as an outside observer of the store sees it.

    `now` tells virtual seconds; `verdict_at`, `formed_at` hold when each landed.
    """

    def __init__(self, store: MemoryStore, keys: RunKeys, least: int, most: int, caps_total: int | None, now: Callable[[], float]) -> None:
        self.store, self.keys, self.least, self.most, self.caps_total, self._now = store, keys, least, most, caps_total, now
        self.generations: dict[int, Generation] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.checkpoints: dict[str, CheckpointRecord] = {}
        self.masks: dict[str, int] = {}
        self.members: set[tuple[int, Who]] = set()
        self.condemned: set[str] = set()
        self.deleting: set[str] = set()
        self.current, self.restarts, self.failures = 0, 0, 0
        self.forgotten: set[str] = set()
        self.verdict_at: dict[int, float] = {}
        self.formed_at: dict[int, float] = {}

    def apply(self, txn: Txn) -> TxnResult:
        before_current, ended = self.current, set(self.verdicts)
        forgets = any(isinstance(op, Delete) and op.key.startswith(self.keys.checkpoints) for op in txn.then)
        lines = {name: self.line(name) for name in self.checkpoints} if forgets else {}
        result = self.store.apply(txn)
        if result.succeeded:
            for op in txn.then:
                if isinstance(op, Put):
                    self._landed(op, before_current, ended)
                elif isinstance(op, Delete) and op.key.startswith(self.keys.checkpoints):
                    self._forgotten(last_segment(op.key), before_current, ended)
            self._unbroken(lines)
            if self.current != before_current:
                self._left_behind()
        return result

    def _landed(self, op: Put, current: int, ended: set[int]) -> None:
        if op.key == self.keys.current:
            self.current = load(Current, op.value, op.key).generation
            need("I1", self.current == current + 1, f"current went from {current} to {self.current}")
        elif op.key.startswith(self.keys.candidates):
            self._candidate(load(Candidate, op.value, op.key), current, ended)
        elif op.key.startswith(self.keys.generations):
            self._formed(load(Generation, op.value, op.key))
        elif op.key.startswith(self.keys.verdicts):
            self._judged(int(last_segment(op.key)), load(Verdict, op.value, op.key))
        elif op.key.startswith(self.keys.checkpoints):
            self._checkpoint(load(CheckpointRecord, op.value, op.key), current, ended)
        elif op.key == self.keys.progress:
            g = int(op.value)
            need("I8", g == current and current not in ended, f"progress of generation {g} was published after its end")
        elif op.key == self.keys.budget:
            self.restarts = load(Budget, op.value, op.key).restarts
            need(
                "I5", self.restarts == self.failures, f"{self.restarts} restarts are charged, {self.failures} failures were answered by one"
            )
            need(
                "I5", self.caps_total is None or self.restarts <= self.caps_total, f"{self.restarts} restarts spent, cap {self.caps_total}"
            )

    def _candidate(self, c: Candidate, current: int, ended: set[int]) -> None:
        if c.state is CandidateState.MEMBER:
            need("R9", c.generation == current and current not in ended, f"{c.node} became member of {c.generation} after its end")
            self.members.add((c.generation, (c.node, c.incarnation)))

    def _formed(self, g: Generation) -> None:
        need("I1", g.number not in self.generations, f"generation {g.number} written twice")
        need("I1", g.previous == 0 or g.previous in self.verdicts, f"generation {g.number} formed before {g.previous} had ended")
        ranks = [m.rank for m in g.members]
        need("I2", ranks == list(range(len(ranks))), f"ranks {ranks}")
        need("I2", len({m.who for m in g.members}) == len(ranks), "a member twice")
        need("I2", self.least <= len(ranks) <= self.most, f"{len(ranks)} members, bounds {self.least}:{self.most}")
        first = 0
        for m in g.members:
            need("I2", m.first_rank == first, "worker ranks are not dense")
            first += m.workers
        last = self.generations.get(g.previous)
        if last is not None:
            now = [m.who for m in g.members]
            kept = [m.who for m in last.members if m.who in now]
            need("R2", [w for w in now if last.member(*w)] == kept, f"those who stay change their order in generation {g.number}")
        ended = self.verdicts.get(g.previous)
        if ended is not None and ended.kind is VerdictKind.RESTART and ended.cause is not Cause.REQUESTED:
            self.failures += 1
        self._same_group(g)
        self._restores(g)
        self._windows(g)
        self.generations[g.number], self.formed_at[g.number] = g, self._now()

    def _same_group(self, g: Generation) -> None:
        last = self.generations.get(g.previous)
        if g.kind is GenerationKind.IN_PLACE:
            need(
                "I2", last is not None and last.members == g.members and last.communicator == g.communicator, "in place, but another group"
            )
        else:
            need("I2", g.communicator == g.number, "a formed generation with another's communicator")

    def _restores(self, g: Generation) -> None:
        name = g.plan.checkpoint
        if name is None:
            return
        c = self.checkpoints[name]
        need("I7", c.state is CheckpointState.COMMITTED, f"generation {g.number} restores {name}, which is {c.state.value}")
        need("I7", name not in self.condemned, f"generation {g.number} restores {name} of a branch that a rollback left")
        need("I7", (c.position, c.step, c.manifest) == (g.plan.position, g.plan.step, g.plan.manifest), f"the plan misquotes {name}")

    def _windows(self, g: Generation) -> None:
        """Windows are cumulative: the last plan's and the last verdict's are all in this one."""
        last, v = self.generations.get(g.previous), self.verdicts.get(g.previous)
        for w in (*(last.plan.windows if last else ()), *(v.windows if v else ())):
            kept = all(outside(p, g.plan.windows) != p for p in range(w.start, w.end))
            need("I4", kept, f"generation {g.number} forgets the window {w.start}..{w.end}")

    def _judged(self, g: int, v: Verdict) -> None:
        need("I3", g not in self.verdicts, f"verdict {g} written twice")
        need("I3", g in self.generations or v.kind is VerdictKind.ABORT, f"verdict on unknown generation {g}")
        need("I3", v.generation == g, f"verdict {g} speaks of {v.generation}")
        self.verdicts[g], self.verdict_at[g] = v, self._now()
        if v.cause is Cause.SCALE_UP:
            need("I2", len(self.generations[g].members) < self.most, "a newcomer disturbs a full group")
        if v.kind is VerdictKind.ROLLBACK:
            if v.target is not None:
                state = self.checkpoints[v.target].state
                need("I7", state is CheckpointState.COMMITTED, f"rollback to {v.target}, which is {state.value}")
            good = self.line(v.target)
            self.condemned |= {c.name for c in self.checkpoints.values() if c.generation <= g and c.name not in good}

    def line(self, name: str | None) -> set[str]:
        """`name` and its ancestors."""
        found: set[str] = set()
        while name is not None and name in self.checkpoints:
            found.add(name)
            name = self.checkpoints[name].parent
        return found

    def _left_behind(self) -> None:
        """Whichever generation follows a rollback has marked, in the same transaction, all that the rollback left."""
        for name in self.condemned:
            need(
                "I7",
                self.checkpoints[name].state is not CheckpointState.COMMITTED,
                f"{name} of a branch that a rollback left is still committed",
            )

    def _checkpoint(self, c: CheckpointRecord, current: int, ended: set[int]) -> None:
        old = self.checkpoints.get(c.name)
        if old is None:
            self._commit(c, current, ended)
        elif c.state is CheckpointState.DELETING:
            need("I8", current not in ended, f"{c.name} marked deleting after generation {current} had ended")
            plan = self.generations[current].plan.checkpoint
            own = any(x.generation == current and x.state is CheckpointState.COMMITTED for x in self.checkpoints.values())
            need("I8", c.name != plan or own, f"the only restore point {c.name} goes away")
            self.deleting.add(c.name)
        self.checkpoints[c.name] = c

    def _forgotten(self, name: str, current: int, ended: set[int]) -> None:
        """A record goes only when its checkpoint was on its way out, behind the fence."""
        need("I8", current not in ended, f"{name} was forgotten after generation {current} had ended")
        state = self.checkpoints[name].state
        need("I8", state is CheckpointState.DELETING, f"{name} was forgotten as {state.value}")
        self.forgotten.add(name)

    def _unbroken(self, lines: dict[str, set[str]]) -> None:
        """Whoever stays has the ancestors that it had, apart from the forgotten ones."""
        for name, line in lines.items():
            if name not in self.forgotten:
                now = self.line(name)
                need("I7", now == line - self.forgotten, f"the line of {name} was {sorted(line)}, and is {sorted(now)}")

    def _commit(self, c: CheckpointRecord, current: int, ended: set[int]) -> None:
        need("I1", c.generation == current and current not in ended, f"commit {c.name} landed after its generation's end")
        need("I8", c.name in self.masks, f"{c.name} was never written by workers of its generation")
        plan = self.generations[current].plan.checkpoint
        own = self.checkpoints.get(c.parent or "")
        follows = c.parent == plan or (own is not None and own.generation == current)
        need("I7", follows, f"{c.name} goes on from {c.parent}, which is neither the plan's nor of its own generation")
        rivals = [x.name for x in self.checkpoints.values() if x.parent == c.parent and x.generation == c.generation]
        need("I1", not rivals, f"{c.name} and {rivals} of one generation have the parent {c.parent}")

    def consumed_once(self) -> None:
        """I4: every committed checkpoint holds each position before it once, apart from what its windows left out."""
        for name, c in self.checkpoints.items():
            plan = self.generations[c.generation].plan
            want = self.masks[plan.checkpoint] if plan.checkpoint is not None else 0
            skip = _bits((w.start, w.end) for w in plan.windows)
            want |= _bits([(plan.position, c.position)] if c.position > plan.position else []) & ~skip
            need("I4", self.masks[name] == want, f"{name} has consumed {self.masks[name]:b}, expected {want:b}")
            missing = _bits([(0, c.position)]) & ~(want | skip)
            need("I4", not missing, f"{name} never consumed {missing:b}, and no window says so")


def _bits(runs: Any) -> int:
    out = 0
    for start, end in runs:
        out |= (1 << end) - (1 << start)
    return out

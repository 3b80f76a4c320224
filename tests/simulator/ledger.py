"""The simulator's store: MemoryStore, with every write checked against the invariants as it lands."""

from __future__ import annotations

from elastic_health.codec import load
from elastic_health.generations import Budget, CheckpointRecord, CheckpointState, Generation
from elastic_health.rendezvous.keys import RunKeys, last_segment
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.store import Put, Txn, TxnResult
from elastic_health.rendezvous.view import Current
from elastic_health.verdicts import Verdict, VerdictKind


class Broken(AssertionError):
    """An invariant does not hold; the text begins with its name."""


def need(name: str, holds: bool, text: str) -> None:
    if not holds:
        raise Broken(f"{name}: {text}")


class Ledger:
    """What has been decided so far, as an outside observer of the store sees it."""

    def __init__(self, store: MemoryStore, keys: RunKeys, least: int, most: int, caps_total: int | None) -> None:
        self.store, self.keys, self.least, self.most, self.caps_total = store, keys, least, most, caps_total
        self.generations: dict[int, Generation] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.checkpoints: dict[str, CheckpointRecord] = {}
        self.masks: dict[str, frozenset[int]] = {}
        self.current = 0
        self.condemned: set[str] = set()

    def apply(self, txn: Txn) -> TxnResult:
        before_current, ended = self.current, set(self.verdicts)
        result = self.store.apply(txn)
        if result.succeeded:
            for op in txn.then:
                if isinstance(op, Put):
                    self._landed(op, before_current, ended)
        return result

    def _landed(self, op: Put, current: int, ended: set[int]) -> None:
        if op.key == self.keys.current:
            self.current = load(Current, op.value, op.key).generation
            need("I1", self.current == current + 1, f"current went from {current} to {self.current}")
        elif op.key.startswith(self.keys.generations):
            self._formed(load(Generation, op.value, op.key))
        elif op.key.startswith(self.keys.verdicts):
            self._judged(int(last_segment(op.key)), load(Verdict, op.value, op.key))
        elif op.key.startswith(self.keys.checkpoints):
            self._checkpoint(load(CheckpointRecord, op.value, op.key), current, ended)
        elif op.key == self.keys.budget:
            budget = load(Budget, op.value, op.key)
            need("I5", self.caps_total is None or budget.restarts <= self.caps_total, f"{budget.restarts} restarts spent, cap {self.caps_total}")

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
        name = g.plan.checkpoint
        if name is not None:
            state = self.checkpoints[name].state
            need("I7", state is CheckpointState.COMMITTED, f"generation {g.number} restores {name}, which is {state.value}")
            need("I7", name not in self.condemned, f"generation {g.number} restores {name} of a branch that a rollback left")
        self.generations[g.number] = g

    def _judged(self, g: int, v: Verdict) -> None:
        need("I3", g not in self.verdicts, f"verdict {g} written twice")
        need("I3", g in self.generations or v.kind is VerdictKind.ABORT, f"verdict on unknown generation {g}")
        self.verdicts[g] = v
        if v.kind is VerdictKind.ROLLBACK:
            good, name = set(), v.target
            while name is not None and name in self.checkpoints:
                good.add(name)
                name = self.checkpoints[name].parent
            self.condemned |= {c.name for c in self.checkpoints.values() if c.generation <= g and c.name not in good}

    def _checkpoint(self, c: CheckpointRecord, current: int, ended: set[int]) -> None:
        old = self.checkpoints.get(c.name)
        if old is None:
            need("I1", c.generation == current and current not in ended, f"commit {c.name} landed after its generation's end")
            siblings = [x for x in self.checkpoints.values() if x.parent == c.parent and x.generation == c.generation and x.state is CheckpointState.COMMITTED]
            need("I1", not siblings, f"two checkpoints of generation {c.generation} have the parent {c.parent}")
        elif c.state is CheckpointState.DELETING:
            need("I8", current not in ended, f"{c.name} marked deleting after generation {current} had ended")
            plan = self.generations[current].plan.checkpoint
            need("I8", c.name != plan or any(x.generation == current and x.state is CheckpointState.COMMITTED for x in self.checkpoints.values()),
                 f"the only restore point {c.name} goes away")
        self.checkpoints[c.name] = c
